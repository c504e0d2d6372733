"""`caramel trace`: its file fits the program, its table says what is expensive, and bad arguments are refused early."""

import pytest
from click.testing import CliRunner
from variants import in_soak

from caramel.cli.main import main
from caramel.measure.trace_file import check_trace, load_trace

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

        data = np.ones([6, 3], np.float32)
        return {"step": step, "inputs": [tf.TensorSpec([None, 3], name="x")], "data": [data] * 2}

    def on_workers():
        return {**build(), "data": tf.data.Dataset.from_tensor_slices(np.ones([12, 3], np.float32)).batch(6)}

    def without_data():
        return {key: value for key, value in build().items() if key != "data"}
"""


@pytest.fixture
def program(write):
    """A small program's file."""
    return write(PROGRAM)


@pytest.fixture
def call():
    """Function that calls the command in this process, where TensorFlow is loaded already."""
    return lambda *arguments: CliRunner().invoke(main, ["trace", *map(str, arguments)])


@pytest.mark.parametrize(
    ("entry", "job", "examples"),
    [
        ("build", [], 3),
        ("on_workers", ["--workers", 3], 2),
        *in_soak(("build", ["--workers", 3], 2), ("on_workers", [], 3)),
    ],
)
def test_a_trace(call, program, tmp_path, entry, job, examples):
    from caramel.frontend.program_file import load_program

    out = tmp_path / "trace.json"
    arguments = ["--workers-on-host", 2, "--runs", 2, "--steps", 2, "--out", out, "--description", "this host"]
    done = call(f"{program}:{entry}", *arguments, *job)
    assert done.exit_code == 0, done.output
    trace = load_trace(out)
    check_trace(trace, load_program(f"{program}:{entry}").context.model)
    assert (trace.workers, trace.runs, trace.examples) == (2, 2, examples)
    assert "trace: this host; mean of 2 runs" in done.stdout
    assert f"2 workers at once on {examples} examples each: a step takes" in done.stdout
    dearest = max(trace.op_s, key=lambda name: (trace.op_s[name], name))
    first = done.stdout.splitlines()[done.stdout.splitlines().index("") + 1 :]
    assert any(line.startswith(f"{dearest} ") for line in first)
    assert f"written: {out}" in done.stdout


def test_several_numbers_of_examples(call, program, tmp_path):
    out = tmp_path / "trace.json"
    quick = ("--runs", 1, "--steps", 1, "--no-orders")
    done = call(f"{program}:build", "--examples", "4,20", "--workers-on-host", 2, "--out", out, *quick)
    assert done.exit_code == 0, done.output
    found = [load_trace(tmp_path / f"trace.{count}.json") for count in (4, 20)]
    assert [(trace.examples, trace.workers) for trace in found] == [(4, 2), (20, 2)]
    assert not out.exists() and f"written: {tmp_path}/trace.4.json, {tmp_path}/trace.20.json" in done.stdout


def test_one_number_of_examples_is_in_the_file_that_is_named(call, program, tmp_path):
    out = tmp_path / "trace.json"
    quick = ("--runs", 1, "--steps", 1, "--no-orders")
    done = call(f"{program}:build", "--examples", 20, "--workers-on-host", 2, "--out", out, *quick)
    assert done.exit_code == 0 and load_trace(out).examples == 20, done.output


@pytest.mark.parametrize(
    ("entry", "arguments", "message"),
    [
        ("on_workers", ("--examples", "4,8"), "the program's dataset says how many examples a batch has"),
        ("build", ("--examples", "8,4"), "must ascend"),
        ("build", ("--examples", "0,4"), "at least one"),
        ("build", ("--examples", "4,8", "--workers", 3), "--workers does not go with --examples"),
        ("build", ("--examples", "4,8", "--timeline", "t.json"), "--timeline does not go with --examples"),
    ],
)
def test_numbers_of_examples_that_do_not_fit(call, program, tmp_path, entry, arguments, message):
    done = call(f"{program}:{entry}", *arguments, "--out", tmp_path / "trace.json")
    assert done.exit_code != 0 and message in done.output
    assert not list(tmp_path.glob("trace*"))


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.usefixtures("namespaces")
def test_on_processes(call, program, tmp_path):
    out = tmp_path / "trace.json"
    done = call(f"{program}:build", "--cluster", "processes", "--runs", 1, "--steps", 1, "--out", out)
    assert done.exit_code == 0, done.output
    assert "LocalProcesses" in load_trace(out).description


@pytest.mark.parametrize(
    ("entry", "arguments", "code", "message"),
    [
        ("build", [], 2, "--out FILE.json"),
        ("build", ["--out", "{}/nowhere/trace.json"], 1, "cannot be written"),
        ("build", ["--out", "{}/t.json", "--cluster", "cloud"], 2, "--cluster takes in-process"),
        ("build", ["--out", "{}/t.json", "--runs", "0"], 1, "runs must be a whole number of at least 1"),
        ("build", ["--out", "{}/t.json", "--workers-on-host", "3", "--workers", "2"], 1, "fewer workers than the 3"),
        ("build", ["--out", "{}/t.json", "--statistic", "median"], 2, "'median' is not one of"),
        ("without_data", ["--out", "{}/t.json"], 1, "the program has no data"),
        ("nothing", ["--out", "{}/t.json"], 1, "has no function 'nothing'"),
    ],
)
def test_bad_arguments(call, program, tmp_path, entry, arguments, code, message):
    result = call(f"{program}:{entry}", *[a.format(tmp_path) for a in arguments])
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == code, result.output
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".json"] == []
