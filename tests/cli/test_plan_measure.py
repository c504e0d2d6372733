"""`caramel plan --measure`: from a program to a plan that was tried, and the run that applies it."""

import json
import re
import signal

import pytest
from click.testing import CliRunner

import caramel
from caramel.cli.main import main
from caramel.measure.netbench import QUICK, Settings, quick_up_to
from caramel.netmodel.file import load

SCRIPT = """
    import keras
    import numpy as np

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input([8]), keras.layers.Dense(30, "relu"), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.random.default_rng(1).normal(size=(40, 8)).astype("float32")
    history = model.fit(x, x.sum(axis=1), batch_size=20, epochs=2, verbose=0)
    print("plan of the training:", history.plan.digest, "losses", *history.history["loss"])
"""

PROGRAM = """
    import numpy as np
    import tensorflow as tf

    def build():
        w = tf.Variable(tf.zeros([3]), name="w")

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
            w.assign_sub(0.01 * tape.gradient(loss, w))
            return loss

        batch = np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 1]], np.ones(5, np.float32)
        return {"step": step, "inputs": [tf.TensorSpec([None, 3]), tf.TensorSpec([None])], "data": [batch]}
"""


@pytest.fixture
def a_short_look(monkeypatch):
    """A measurement of the network that takes a second or two."""
    sizes = []

    def settings(largest_bytes):
        sizes.append(largest_bytes)
        return Settings((64, 4096), ("star", "ring"), (1,), rounds=1, contention=False)

    monkeypatch.setattr("caramel.cli.measured_plan.quick_up_to", settings)
    return sizes


def run(*arguments):
    result = CliRunner().invoke(main, [*map(str, arguments)])
    assert result.exit_code == 0, (result.output, result.exception)
    return result


@pytest.mark.slow
def test_a_script_is_planned_and_trained(a_short_look, write, tmp_path):
    script, file = write(SCRIPT, "train.py"), tmp_path / "plan.json"
    said = run("plan", script, "--workers", 2, "--measure", "--cluster", "in-process", "--out", file)
    assert a_short_look == [4 * (8 * 30 + 30 + 30 + 1)]  # bytes of all gradients
    assert [line[0] for line in said.stderr.splitlines() if re.match(r"\d of 4: ", line)] == ["1", "2", "3", "4"]
    found = re.search(
        r"measured: ([\d.]+) ms \(median of (\d+) steps\); predicted ([\d.]+) ms \([+-][\d.]+%", said.stdout
    )
    assert found and 5 <= int(found[2]) <= 30 and float(found[1]) > 0
    assert f"written: {file}, {tmp_path / 'plan.network.json'}" in said.stdout
    assert load(tmp_path / "plan.network.json").workers == (2,)
    plan = caramel.Plan.load(file)
    assert plan.prediction is not None
    trained = run("run", script, "--workers", 2, "--plan", file)
    assert f"plan of the training: {plan.digest} losses" in trained.output
    plain = run("run", script, "--workers", 1)
    losses = [[float(text) for text in re.search("losses (.*)", each.output)[1].split()] for each in (trained, plain)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.slow
def test_a_program_file_with_a_known_network(a_short_look, write, tmp_path):
    """What is given is not measured; JSON is all that is on standard output."""
    network = tmp_path / "network.json"
    run("netbench", "--link-rate", "1Gbit/s", "--out", network)
    options = ("--workers", 3, "--measure", "--cluster", "in-process", "--network", network, "--json")
    said = run("plan", f"{write(PROGRAM)}:build", *options)
    figures = json.loads(said.stdout)
    assert not a_short_look and figures["measured_step_s"] > 0 and figures["predicted_iteration_s"] > 0


@pytest.mark.soak
def test_on_server_processes(write, tmp_path, namespaces):
    script, file = write(SCRIPT, "train.py"), tmp_path / "plan.json"
    said = run("plan", script, "--workers", 4, "--measure", "--out", file)
    assert "measured: " in said.stdout and "predicted" in said.stdout
    assert load(tmp_path / "plan.network.json").workers == (4,)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--measure", "--analyzers", "trace"], "--analyzers does not go with --measure"),
        (["--measure", "--workers-on-host", "2"], "--workers-on-host does not go with --measure"),
        (["--", "--epochs"], "is a program file, which has no arguments"),
    ],
)
def test_options_that_do_not_fit(arguments, said):
    result = CliRunner().invoke(main, ["plan", "x.py:build", "--workers", "2", *arguments])
    assert result.exit_code == 2 and said in result.output


def test_one_worker_has_no_network(write):
    result = CliRunner().invoke(main, ["plan", f"{write(PROGRAM)}:build", "--workers", "1", "--measure"])
    assert result.exit_code == 1 and "there is no network to measure" in result.output


@pytest.mark.parametrize("largest_bytes, count", [(1, 3), (2**14, 3), (2**18 + 1, 4), (2**23, 6), (2**40, 8)])
def test_no_larger_sizes_than_need_be(largest_bytes, count):
    sizes = quick_up_to(largest_bytes).sizes
    assert sizes == QUICK.sizes[:count] and (sizes[-1] >= largest_bytes or sizes == QUICK.sizes)


# -- scripts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--steps", "--until-step", "--checkpoint"])
def test_options_of_a_run_that_a_script_decides(option):
    result = CliRunner().invoke(main, ["run", "train.py", "--workers", "2", option, "3"])
    assert result.exit_code == 2 and f"{option} belongs to FILE.py:ENTRY" in result.output


@pytest.mark.slow
def test_a_script_that_is_interrupted(write, python):
    """Ctrl-C: the running step is the last one, and the exit status is that of the signal."""
    script = write(
        SCRIPT.replace("epochs=2", "epochs=10**6, callbacks=[Signals()]").replace(
            "    model = ",
            "    import os, signal\n    class Signals(keras.callbacks.Callback):\n"
            "        def on_train_batch_end(self, batch, logs=None):\n"
            "            if batch == 1:\n"
            "                os.kill(os.getpid(), signal.SIGINT)\n    model = ",
            1,
        )
    )
    ended = python("-m", "caramel", "run", script, "--workers", 2)
    assert ended.returncode == 128 + signal.SIGINT, ended.stderr
    assert "BackupAndRestore" in ended.stderr and "Traceback" not in ended.stderr
