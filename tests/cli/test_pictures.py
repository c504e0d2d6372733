"""``--timeline`` and ``--report`` of the commands: what is in the files, and that bad names are refused before any work."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from caramel.cli.main import main

PROGRAM = """
    import numpy as np
    import tensorflow as tf

    def build():
        first, second = tf.Variable(tf.ones([8, 16]), name="first"), tf.Variable(tf.ones([16, 4]), name="second")

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.nn.relu(x @ first) @ second - 1.0) ** 2)
            for variable, gradient in zip((first, second), tape.gradient(loss, (first, second))):
                variable.assign_sub(0.001 * gradient)
            return loss

        data = np.ones([6, 8], np.float32)
        return {"step": step, "inputs": [tf.TensorSpec([None, 8], name="x")], "data": [data] * 9}
"""


@pytest.fixture
def program(write):
    """The program's file and entry."""
    return f"{write(PROGRAM)}:build"


@pytest.fixture
def call(tmp_path):
    """Function that calls the command in this process and returns what it printed."""

    def run(*arguments):
        done = CliRunner().invoke(main, list(map(str, arguments)))
        assert done.exit_code == 0, done.output
        return done.output

    return run


def lanes(file):
    """Names of the lanes of each worker, and categories of their bars."""
    events = json.loads(file.read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    found = {name: set() for name in names.values()}
    for event in events:
        if event["name"] == "thread_name":
            found[names[event["pid"]]].add(event["args"]["name"].partition(" (")[0])
    return found, {event["cat"] for event in events if event["ph"] == "X"}


def test_trace_plan_and_run(call, program, tmp_path):
    trace, network, plan = tmp_path / "trace.json", tmp_path / "network.json", tmp_path / "plan.json"
    out = tmp_path / "out.json"
    printed = call("trace", program, "--runs", 2, "--steps", 2, "--no-orders", "--out", trace, "--timeline", out)
    assert f"written: {trace}, {out}" in printed
    assert lanes(out)[0] == {"worker 0": {"computation, measured"}}
    assert {"forward pass", "backward pass", "update"} <= lanes(out)[1]

    call("netbench", "--link-rate", "1Mbit/s", "--out", network)
    pictures = ("--timeline", out, "--report", tmp_path / "plan.html")
    printed = call("plan", program, "--workers", 2, "--trace", trace, "--network", network, "--out", plan, *pictures)
    assert f"written: {plan}, {out}, {tmp_path / 'plan.html'}" in printed
    text = (tmp_path / "plan.html").read_text()
    assert "predicted step" in text and "Fewer bytes" in text and "measured step" not in text
    predicted = {"computation, predicted", "link, predicted"}
    assert lanes(out)[0] == {"worker 0": predicted, "worker 1": predicted}
    assert json.loads(out.read_text())["otherData"]["predicted step [ms]"] > 0

    report = tmp_path / "run.html"
    printed = call("run", program, "--workers", 2, "--plan", plan, "--timeline", out, "--report", report)
    assert f"written: {out}, {report}" in printed
    text = report.read_text()
    assert all(word in text for word in ("predicted step", "measured step", "throughput", "after 9 steps", program))
    both = predicted | {"computation, measured", "link, measured"}
    assert lanes(out)[0] == {"worker 0": both, "worker 1": both}
    assert {"compute", "forward pass", "backward pass", "update", "transfer"} <= lanes(out)[1]


def test_a_run_of_one_step_has_a_timeline_that_says_so(call, program, tmp_path):
    call("run", program, "--workers", 2, "--steps", 1, "--timeline", tmp_path / "out.json")
    (first, second) = json.loads((tmp_path / "out.json").read_text())["otherData"]["notes"]
    assert "first step" in second and lanes(tmp_path / "out.json")[0].keys() == {"worker 0", "worker 1"}


def test_a_run_without_steps_writes_none(call, program, tmp_path):
    call("run", program, "--workers", 2, "--steps", 0, "--timeline", tmp_path / "out.json")
    assert not (tmp_path / "out.json").exists()


def test_a_plan_without_a_network_has_a_report(call, program, tmp_path):
    call("plan", program, "--workers", 2, "--report", tmp_path / "out.html")
    assert "give --trace and --network" in (tmp_path / "out.html").read_text()


def test_many_workers_on_few_cores_are_explained(call, program, tmp_path, monkeypatch):
    monkeypatch.setattr("caramel.report.training.usable_cores", lambda: 2)
    call("run", program, "--workers", 3, "--steps", 2, "--report", tmp_path / "out.html")
    assert "3 workers share the 2 cores of this machine" in (tmp_path / "out.html").read_text()


WITHOUT_TENSORFLOW = "import sys; sys.modules['tensorflow'] = None; from caramel.cli.main import main; main()"


@pytest.mark.parametrize(
    "arguments, wanted",
    [
        ("trace FILE --out FOLDER/trace.json --timeline FOLDER/none/out.json", "none/out.json' cannot be written"),
        ("plan FILE --workers 2 --timeline FOLDER/none/out.json", "none/out.json' cannot be written"),
        ("plan FILE --workers 2 --timeline FOLDER/out.json", "give --network FILE.json"),
        ("run FILE --workers 2 --timeline FOLDER", "is a directory"),
        ("run FILE --workers 2 --report /proc/out.html", "'/proc/out.html' cannot be written"),
        ("plan FILE --workers 2 --report FOLDER", "is a directory"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_any_work(arguments, wanted, tmp_path):
    words = arguments.replace("FILE", "nowhere.py:build", 1).replace("FOLDER", str(tmp_path)).split()
    command = [sys.executable, "-c", WITHOUT_TENSORFLOW, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode in (1, 2) and wanted in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_each_fit_of_a_script_is_drawn(call, write, tmp_path):
    script = write(
        """
        import keras, numpy as np
        x = np.ones([24, 3], "float32")
        for units in (1, 2):
            model = keras.Sequential([keras.Input([3]), keras.layers.Dense(units)], name=f"with_{units}")
            model.compile("sgd", "mse")
            model.fit(x, np.ones([24, units], "float32"), batch_size=4, verbose=0)
            model.evaluate(x, np.ones([24, units], "float32"), verbose=0)
        """,
        "train.py",
    )
    call("run", script, "--workers", 2, "--report", tmp_path / "a.html", "--timeline", tmp_path / "a.json")
    made = {path.name for path in tmp_path.iterdir()} - {"train.py"}
    assert made == {"a.html", "a.2.html", "a.json", "a.2.json"}
    assert "with_1" in (tmp_path / "a.html").read_text() and "with_2" in (tmp_path / "a.2.html").read_text()
    assert lanes(tmp_path / "a.2.json")[0].keys() == {"worker 0", "worker 1"}
