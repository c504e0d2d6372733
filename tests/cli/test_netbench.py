"""`caramel netbench`, and what accepts its file."""

import json

import pytest
from click.testing import CliRunner

from caramel.cli.main import main

PROGRAM = """
    import numpy as np
    import tensorflow as tf

    def build():
        w = tf.Variable(tf.zeros([3]), name="w")

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.linalg.matvec(x, w) - 1.0) ** 2)
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return loss

        return {"step": step, "inputs": [tf.TensorSpec([None, 3], name="x")], "data": [np.ones([6, 3], np.float32)] * 2}
"""


@pytest.fixture
def program(write):
    """A small program, as the command takes it."""
    return f"{write(PROGRAM)}:build"


@pytest.fixture
def call():
    """Function that calls the command in this process, where TensorFlow is loaded already."""
    return lambda *arguments: CliRunner().invoke(main, [str(a) for a in arguments])


def check_refused(result, code, message):
    """Exit code, the message on the error stream, and no traceback."""
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == code, result.output
    assert message in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.slow
def test_measure_and_use(call, program, tmp_path, monkeypatch):
    monkeypatch.setattr("caramel.measure.contention_bench._MAX_REPEATS", 2)  # nobody looks at how exact the times are
    monkeypatch.setattr("caramel.measure.contention_bench._MAX_PRODUCTS", 8)
    out, plot = tmp_path / "network.json", tmp_path / "network.png"
    measured = call(
        "netbench", "--workers", 2, "--cluster", "in-process", "--size", "64", "--size", "64KiB", "--rounds", 2,
        "--depth", 1, "--algorithm", "star", "--algorithm", "ring", "--out", out, "--plot", plot,
    )  # fmt: skip
    assert measured.exit_code == 0, measured.output
    assert "choices for 2 workers" in measured.stdout and "threshold" in measured.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")
    data = json.loads(out.read_text())
    assert {(c["workers"], c["algorithm"], c["depth"]) for c in data["curves"]} == {(2, "star", 1), (2, "ring", 1)}
    trained = call("run", program, "--workers", 2, "--steps", 2, "--network", out)
    assert trained.exit_code == 0, trained.output
    assert "network: InProcess on" in trained.stdout and "  ms" in trained.stdout
    refused = call("run", program, "--workers", 3, "--steps", 2, "--network", out)
    check_refused(refused, 1, "measured with 2 workers, not with 3")


def test_by_hand(call, tmp_path):
    out = tmp_path / "network.json"
    done = call("netbench", "--link-rate", "10Gbit/s", "--latency", "5e-5", "--out", out, "--workers", 16)
    assert done.exit_code == 0, done.output
    assert "given by hand: links of 1.25e+09 bytes/s, 5e-05 s per message" in done.stdout
    assert "choices for 16 workers" in done.stdout
    done = call("netbench", "--alpha", "5e-5", "--beta", "1e-9", "--gamma", "1e-10", "--out", out)
    assert done.exit_code == 0, done.output
    assert json.loads(out.read_text())["given"] == {
        "alpha_s": 5e-5,
        "beta_s_per_byte": 1e-9,
        "gamma_s_per_byte": 1e-10,
    }


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--workers", 2], 2, "--out FILE.json"),
        (["--workers", 2, "--out", "{}/nowhere/n.json"], 1, "cannot be written"),
        (["--workers", 2, "--out", ""], 1, "is no name of a file"),
        (["--workers", 2, "--out", "{}/n.json", "--plot", "{}/n.xyz"], 1, "its ending must be one of"),
        (["--out", "{}/n.json"], 2, "--workers N"),
        (["--out", "{}/n.json", "--alpha", "1e-5"], 2, "--alpha and --beta belong together"),
        (["--out", "{}/n.json", "--alpha", "1e-5", "--beta", "1", "--link-rate", "1mbit"], 2, "either --link-rate or"),
        (["--out", "{}/n.json", "--link-rate", "fast"], 1, "cannot read the rate 'fast'"),
        (["--out", "{}/n.json", "--latency", "1e-5"], 2, "belong together"),
        (["--out", "{}/n.json", "--link-rate", "1mbit", "--gamma", "1e-5"], 2, "either --link-rate or"),
        (["--out", "{}/n.json", "--link-rate", "1mbit", "--plot", "{}/n.png"], 2, "leave out --plot"),
        (["--out", "{}/n.json", "--link-rate", "1mbit", "--rounds", "0"], 2, "is not measured"),
        (["--out", "{}/n.json", "--link-rate", "1mbit", "--quick"], 2, "is not measured"),
        (["--out", "{}/n.json", "--link-rate", "1mbit", "--workers", "0"], 1, "at least 1 worker"),
        (
            ["--out", "{}/n.json", "--workers", "2", "--cluster", "cloud"],
            2,
            "takes in-process, processes, tf-config, slurm, ray or HOST:PORT",
        ),
        (["--out", "{}/n.json", "--workers", "2", "--cluster", "a:b"], 1, "no address of a server"),
        (["--out", "{}/n.json", "--link-rate", "1mbit", "--latency", "-1"], 1, "alpha of a network must be"),
        (["--out", "{}/no/n.json", "--link-rate", "1mbit"], 1, "cannot be written"),
        (["--out", "{}/n.json", "--workers", "1"], 1, "at least 2 workers"),
        (["--out", "{}/n.json", "--workers", "2", "--size", "64"], 1, "at least 2 different sizes"),
        (["--out", "{}/n.json", "--workers", "2", "--size", "x", "--size", "64"], 1, "cannot read the size 'x'"),
        (["--out", "{}/n.json", "--workers", "2", "--algorithm", "tree"], 1, "no all-reduce algorithm 'tree'"),
        (
            ["--out", "{}/n.json", "--workers", "2", "--depth", "0"],
            1,
            "each depth must be a whole number of at least 1",
        ),
        (["--out", "{}/n.json", "--workers", "2", "--rounds", "0"], 1, "rounds must be a whole number of at least 1"),
    ],
)
def test_bad_arguments(call, tmp_path, arguments, code, message):
    check_refused(call("netbench", *[str(a).format(tmp_path) for a in arguments]), code, message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is damaged or no network model"),
        ('{"kind": "caramel network model", "version": 99}', "has version 99, this library reads version 1"),
        ("{}", "is not a network model"),
    ],
)
def test_a_bad_file(call, program, tmp_path, content, message):
    path = tmp_path / "network.json"
    path.write_text(content)
    result = call("run", program, "--workers", 2, "--network", path)
    check_refused(result, 1, message)
    assert str(path) in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--algorithm", "tree"], "no all-reduce algorithm 'tree'"),
        (["--depth", "0"], "at least 1, got 0"),
        (["--wire", "int8"], "bfloat16 or float16"),
        (["--deterministic", "--algorithm", "ring"], "use one of shuffle, star, chain"),
        (["--network", "/nowhere.json"], "cannot be read"),
    ],
)
def test_bad_options_of_collectives(call, program, arguments, message):
    check_refused(call("run", program, "--workers", 4, *arguments), 1, message)


def test_options_of_collectives(call, program, tmp_path):
    done = call("run", program, "--workers", 3, "--steps", 2, "--algorithm", "chain", "--depth", 2, "--deterministic")
    assert done.exit_code == 0, done.output
    assert "chain" in done.stdout and "added in rank order" in done.stdout
    out = tmp_path / "exported"
    done = call("export", program, "--workers", 2, "--out", out, "--algorithm", "native")
    assert done.exit_code == 0, done.output
    assert json.loads((out / "signature.json").read_text())["group_leader"] == "/job:worker/replica:0/task:0"
