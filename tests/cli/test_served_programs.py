"""`--servers` of `caramel run`, `plan` and `export`."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from caramel.cli.main import main

PROGRAM = """
    import numpy as np
    import tensorflow as tf

    def program():
        w = tf.Variable(tf.zeros([16, 9]), name="w")
        b = tf.Variable(tf.zeros([9]), name="b")

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ w + b - 1.0) ** 2)
            for variable, gradient in zip((w, b), tape.gradient(loss, (w, b))):
                variable.assign_sub(0.1 * gradient)
            return loss

        rng = np.random.default_rng(0)
        data = [rng.normal(size=(6, 16)).astype(np.float32) for _ in range(4)]
        return {"step": step, "inputs": [tf.TensorSpec([None, 16], name="x")], "data": data}
"""


@pytest.fixture
def program(write):
    return f"{write(PROGRAM, 'two_parameters.py')}:program"


def losses_in(output):
    """The first and the last loss in what ``caramel run`` says, as text."""
    return re.search(r"loss (\S+ -> \S+)", output)[1]


def call(*arguments, status=0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == status, result.output
    return result.output


def test_run(program):
    want = losses_in(call("run", program, "--workers", 2))
    for options in (
        ["--servers", 1],
        ["--servers", 2, "--ordering", "tio", "--pulls-in-flight", 1],
        ["--servers", 1, "--server-device", "/job:worker/task:1", "--ordering", "none"],
    ):
        output = call("run", program, "--workers", 2, *options)
        assert losses_in(output) == want and "parameter server" in output


def test_checkpoints(program, tmp_path):
    straight = call("run", program, "--workers", 2)
    call("run", program, "--workers", 2, "--servers", 2, "--steps", 2, "--checkpoint", tmp_path / "saved")
    output = call("run", program, "--workers", 2, "--steps", 2, "--checkpoint", tmp_path / "saved")
    assert "(step 2)" in output
    assert losses_in(straight).split(" -> ")[0] != losses_in(output).split(" -> ")[0]


def test_plan_and_run_with_it(program, tmp_path):
    out = tmp_path / "plan.json"
    options = ["--servers", 2, "--ordering", "tio", "--pulls-in-flight", 3]
    output = call("plan", program, "--workers", 2, *options, "--out", out)
    assert "2 parameter servers" in output and "tio" in output
    servers = json.loads(out.read_text())["servers"]
    assert (servers["ordering"], servers["in_flight"], len(servers["devices"])) == ("tio", 3, 2)
    applied = call("run", program, "--workers", 2, "--plan", out)
    assert losses_in(applied) == losses_in(call("run", program, "--workers", 2))


@pytest.mark.slow
def test_export(program, tmp_path):
    call("export", program, "--workers", 2, "--servers", 2, "--out", tmp_path / "out")
    np.savez(tmp_path / "batch.npz", x=np.ones([6, 16], np.float32))
    command = [sys.executable, tmp_path / "out" / "run.py", "train", "--data", tmp_path / "batch.npz", "--steps", 2]
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
    assert result.returncode == 0 and "loss" in result.stdout, result.stderr


@pytest.mark.soak  # as an export with servers of this machine, and as where TF_CONFIG names workers
@pytest.mark.processes
def test_an_export_runs_where_tf_config_names_parameter_servers(program, tmp_path, network):
    """One command on every task: the first worker trains, all others serve, those of the job ps too."""
    call("export", program, "--workers", 2, "--servers", 2, "--out", tmp_path / "out")
    np.savez(tmp_path / "batch.npz", x=np.ones([6, 16], np.float32))
    runner = [tmp_path / "out" / "run.py"]
    cluster = {
        "worker": ["127.0.0.1:2222", "127.0.0.1:2223"],
        "ps": ["127.0.0.1:2224", "127.0.0.1:2225"],
    }

    def environment(job, index):
        return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})}

    for job, index in (("worker", 1), ("ps", 0), ("ps", 1)):
        server = network.start(*runner, "serve", "--cluster", "tf-config", environment=environment(job, index))
        assert network.line_of(server).startswith("serving")
    options = ["--cluster", "tf-config", "--data", tmp_path / "batch.npz", "--steps", 2]
    result = network.run(*runner, "train", *options, environment=environment("worker", 0))
    assert result.returncode == 0 and "step 2 loss" in result.stdout, result.stderr


@pytest.mark.parametrize("command", ["run", "plan", "export"])
@pytest.mark.parametrize(
    "options, message",
    [
        (["--servers", 0], "--servers"),
        (["--servers", "some"], "--servers"),
        (["--servers", 1, "--pulls-in-flight", 0], "--pulls-in-flight"),
        (["--servers", 1, "--ordering", "alphabetical"], "ordering"),
        (["--servers", 1, "--ordering", "tac"], "--ordering tac"),
        (["--ordering", "tic"], "--servers"),
        (["--servers", 2, "--server-device", "/job:ps/task:0"], "--server-device"),
        (["--servers", 9], "--servers 9"),
        (["--servers", 1, "--sync-every", 2], "without --servers"),
        (["--servers", 1, "--shard-updates", "all"], "--shard-updates"),
    ],
)
def test_what_does_not_fit(program, tmp_path, command, options, message):
    more = ["--out", tmp_path / "out"] if command == "export" else []
    result = CliRunner().invoke(main, [command, program, "--workers", "2", *map(str, [*options, *more])])
    assert result.exit_code != 0 and message in result.output, result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()
