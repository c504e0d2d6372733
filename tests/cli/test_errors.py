"""Errors at the command: a code, one line that says what to do, and no traceback unless asked for."""

import os

import keras
import pytest
from click.testing import CliRunner

from caramel.cli.main import main
from caramel.cli.options import _with_options

STEP = """
    import numpy as np
    import tensorflow as tf

    def batch(n=6):
        return np.ones([n, 3], np.float32), np.ones([n], np.float32)

    def build():
        w = tf.Variable(tf.zeros([3]), name="w")

        @tf.function
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return loss

        @tf.function
        def evaluate(x, y):
            return {"error": tf.reduce_max(tf.abs(tf.linalg.matvec(x, w) - y)), "predicted": tf.linalg.matvec(x, w)}

        specs = [tf.TensorSpec([None, 3], name="x"), tf.TensorSpec([None], name="y")]
        return {"step": step, "inputs": specs, "data": [batch()]}
"""


@pytest.fixture
def call():
    """Function that calls the command in this process."""

    def call_it(*arguments):
        return CliRunner().invoke(main, [str(a) for a in arguments])

    return call_it


def check(result, *words, code=1):
    """Exit code, one line on the error stream, all words in it."""
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == code, result.output
    lines = [line for line in result.stderr.splitlines() if line]
    assert "Traceback" not in result.output
    if code == 1:
        assert len(lines) == 1, lines
        assert lines[0].startswith("Error: ")
    missing = [word for word in words if word not in lines[-1]]
    assert not missing, f"{missing} not in {lines[-1]}"


def test_a_good_run(call, write):
    result = call("run", f"{write(STEP)}:build", "--workers", 2)
    assert result.exit_code == 0, result.output
    assert "1 step in" in result.stdout


def test_a_good_run_warns_of_nothing(call, write, tmp_path, caplog, monkeypatch):
    from tensorflow.python.util import deprecation

    monkeypatch.setattr(deprecation, "_PRINTED_WARNING", {})  # TensorFlow says it only once in a process
    result = call("run", f"{write(STEP)}:build", "--workers", 2, "--checkpoint", tmp_path / "saved")
    assert result.exit_code == 0, result.output
    said = [record.getMessage() for record in caplog.records]
    assert [text for text in said if "retracing" not in text] == []  # that depends on what was traced before


def test_no_such_file(call, tmp_path):
    check(call("run", tmp_path / "nothing.py:build", "--workers", 2), "no program file", "nothing.py")


def test_no_such_entry(call, write):
    check(call("run", f"{write(STEP)}:built", "--workers", 2), "no function 'built'", "batch, build")


def test_no_entry(call, write):
    """It is taken for a script, which would train by itself; nothing of it runs."""
    path = write(STEP)
    result = call("run", path, "--workers", 2)
    assert result.exit_code == 1 and "Traceback" not in result.output
    assert f"(if build returns the program already, say {path}:build instead)" in result.stderr
    assert "would train in this process" in result.stderr
    assert "def program():" in result.stderr and '"Program files" in the documentation' in result.stderr


def test_a_program_that_raises(call, write):
    path = write(
        STEP.replace("w = tf.Variable", "raise ValueError('first line\\nsecond line')\n        w = tf.Variable")
    )
    result = call("run", f"{path}:build", "--workers", 2)
    check(result, f"Error: {path}:build raises ValueError at {path}:9: first line")
    assert result.stdout == ""


def test_a_step_that_raises_while_it_is_traced(call, write):
    path = write(
        STEP.replace("with tf.GradientTape()", "raise ValueError('upside down')\n            with tf.GradientTape()")
    )
    check(call("run", f"{path}:build", "--workers", 2), "'step'", "ValueError", "upside down", path.name)


def test_data_that_raises(call, write):
    path = write(STEP.replace('"data": [batch()]', '"data": (batch(1 / n) for n in [0])'))
    check(call("run", f"{path}:build", "--workers", 2), "data", "ZeroDivisionError", path.name)


def test_data_that_does_not_fit(call, write):
    path = write(STEP.replace('"data": [batch()]', '"data": [batch()[:1]]'))
    check(call("run", f"{path}:build", "--workers", 2), "1 array", "x (float32", "y (float32")


def test_no_data(call, write):
    path = write(STEP.replace(', "data": [batch()]', ""))
    check(call("run", f"{path}:build", "--workers", 2, "--steps", 3), "no data", "'data'")


def test_data_for_an_evaluation_that_is_not_there(call, write):
    path = write(STEP.replace('"data": [batch()]', '"data": [batch()], "evaluation": {"data": batch()}'))
    check(call("run", f"{path}:build", "--workers", 2), "evaluat")


def test_evaluation_data_that_does_not_fit(call, write):
    evaluation = '"evaluation": {"function": evaluate, "inputs": specs, "data": (np.ones([6, 3]),)}'
    path = write(STEP.replace('"data": [batch()]', f'"data": [batch()], {evaluation}'))
    check(call("run", f"{path}:build", "--workers", 2), "1 array", "y (float32")


def test_an_evaluation_is_printed(call, write):
    evaluation = '"evaluation": {"function": evaluate, "inputs": specs, "data": batch()}'
    path = write(STEP.replace('"data": [batch()]', f'"data": [batch()], {evaluation}'))
    result = call("run", f"{path}:build", "--workers", 2)
    assert result.exit_code == 0, result.output
    # One step from zero with gradient -2 for each of 3 weights: each prediction is 0.6.
    assert "evaluation error: 0.4" in result.stdout
    assert "evaluation predicted: array of shape [6]" in result.stdout


def test_values_that_are_no_real_numbers_are_printed(call, write):
    values = '{"verdict": tf.constant("good"), "turned": tf.complex(tf.reduce_sum(x), 1.0), "all": tf.constant(True)}'
    text = STEP.replace('return {"error"', f'return {values}\n            return {{"error"')
    evaluation = '"evaluation": {"function": evaluate, "inputs": specs, "data": batch()}'
    path = write(text.replace('"data": [batch()]', f'"data": [batch()], {evaluation}'))
    result = call("run", f"{path}:build", "--workers", 2)
    assert result.exit_code == 0, repr(result.exception)
    lines = [line.removeprefix("evaluation ") for line in result.stdout.splitlines() if line.startswith("evaluation ")]
    assert lines == ["verdict: good", "turned: (18+1j)", "all: 1"]


def test_a_program_that_cannot_be_replicated(call, write):
    path = write(
        STEP.replace("tf.linalg.matvec(x, w) - y", "tf.linalg.matvec(x, w) - tf.py_function(abs, [y], y.dtype)")
    )
    check(call("run", f"{path}:build", "--workers", 2), "'EagerPyFunc'", "training step")


@pytest.mark.parametrize("workers", [0, -3])
@pytest.mark.parametrize("verb", [["run"], ["export", "--out", "out"]])
def test_number_of_workers(call, write, workers, verb):
    check(call(*verb, f"{write(STEP)}:build", "--workers", workers), "--workers", "at least 1", f"got {workers}")


@pytest.mark.parametrize("timeout", [0, -1])
def test_step_timeout(call, write, timeout):
    check(call("run", f"{write(STEP)}:build", "--workers", 2, "--step-timeout", timeout), "--step-timeout", "positive")


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--workers", "two"], ["--workers", "two"]),
        ([], ["--workers"]),
        (["--workers", 2, "--steps", -1], ["--steps", "-1"]),
        (["--workers", 2, "--save-every", 0, "--checkpoint", "x"], ["--save-every"]),
        (["--workers", 2, "--save-every", 2], ["--save-every", "--checkpoint"]),
        (["--workers", 2, "--cluster", "cloud"], ["--cluster", "in-process", "processes", "tf-config", "HOST:PORT"]),
        (["--workers", 2, "--epochs", 3], ["--epochs"]),
    ],
)
def test_wrong_usage(call, write, arguments, words):
    check(call("run", f"{write(STEP)}:build", *arguments), *words, code=2)


ONE = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'


@pytest.mark.parametrize("verb", [["run", f"{__file__}:build"], ["netbench", "--out", "network.json"]])
@pytest.mark.parametrize(
    "text, words",
    [
        (None, ["TF_CONFIG is not set", "host0:2222"]),
        ("{", ["TF_CONFIG is no JSON", "line 1"]),
        (ONE, ["task 1 of the cluster (b:1), and task 0 (a:1) drives it", "run `caramel worker` here"]),
    ],
)
def test_tf_config(call, monkeypatch, verb, text, words):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if text is not None:
        monkeypatch.setenv("TF_CONFIG", text)
    check(call(*verb, "--workers", 2, "--cluster", "tf-config"), *words)


@pytest.mark.parametrize(
    "arguments, text, words, code",
    [
        ([], None, ["TF_CONFIG is not set", "--cluster HOST:PORT,HOST:PORT,... --task N", "--hosts FILE"], 2),
        (["--cluster", "tf-config"], None, ["TF_CONFIG is not set", "host0:2222"], 1),
        ([], "[1", ["TF_CONFIG is no JSON"], 1),
        ([], ONE.partition(', "task"')[0] + "}", ["no 'task'", "--cluster and --task"], 2),
        (["--task", 0], ONE, ["--task", "--cluster HOST:PORT"], 2),
        (["--cluster", "a:1,b:1"], ONE, ["--task 0 to 1"], 2),
        (["--cluster", "a:1,b:1", "--task", 2], ONE, ["between 0 and 1"], 2),
        (["--cluster", "a:1,a:1", "--task", 0], ONE, ["twice"], 1),
        (["--devices", 0], ONE, ["--devices"], 2),
    ],
)
def test_a_worker_that_cannot_be_started(call, monkeypatch, arguments, text, words, code):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if text is not None:
        monkeypatch.setenv("TF_CONFIG", text)
    check(call("worker", *arguments), *words, code=code)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("10.9.8.7:2222\n10.9.8.6:2222\n", ["no line of", "--task, one of 0 (10.9.8.7:2222), 1 (10.9.8.6:2222)"]),
        (
            "localhost:2222\nlocalhost:2223\n10.9.8.6:2222\n",
            ["several lines of", "one of 0 (localhost:2222), 1 (localhost:2223)"],
        ),
    ],
)
def test_which_line_is_this_machine_s(call, write, lines, words):
    check(call("worker", "--hosts", write(lines, "hosts.txt")), "to this machine", *words, code=2)


FITS = """
    import keras
    import numpy as np

    def main():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(np.ones([8, 3]), np.ones([8, 1]), callbacks=[keras.callbacks.LambdaCallback(
            on_train_begin=lambda logs: print("training"))])
"""


@pytest.mark.parametrize("verb", ["run", "plan"])
def test_an_entry_that_trains_by_itself(call, write, verb):
    result = call(verb, f"{write(FITS)}:main", "--workers", 2)
    check(result, "calls fit", "without an entry", "__name__ == '__main__'")
    assert "training" not in result.output and "fit" not in vars(keras.Model)


@pytest.mark.parametrize("workers, is_doubted", [(2, False), (3, True)])
def test_a_trace_of_another_share_is_doubted(call, write, tmp_path, workers, is_doubted):
    program, trace = f"{write(STEP)}:build", tmp_path / "trace.json"
    measured = call("trace", program, "--workers", 2, "--workers-on-host", 1, "--runs", 1, "--steps", 1, "--out", trace)
    assert measured.exit_code == 0, measured.output
    for verb in ("plan", "run"):
        done = call(verb, program, "--workers", workers, "--trace", trace)
        assert done.exit_code == 0, done.output
        assert ("trace is of 3 examples on each worker, and here a worker has 2 of 6" in done.stderr) == is_doubted


def test_steps_that_were_made_before(call, write, tmp_path):
    program = f"{write(STEP)}:build"
    asked = ("run", program, "--workers", 2, "--checkpoint", tmp_path / "saved", "--until-step", 1)
    first, second = call(*asked), call(*asked)
    assert first.exit_code == second.exit_code == 0
    assert "nothing is trained" not in first.output
    assert "step 1 was made before, so nothing is trained" in second.stderr


def test_a_checkpoint_directory_that_is_a_file(call, write, tmp_path):
    (tmp_path / "file").write_text("")
    result = call("run", f"{write(STEP)}:build", "--workers", 2, "--checkpoint", tmp_path / "file")
    check(result, "--checkpoint", "file", code=2)


def test_a_checkpoint_directory_under_a_file(call, write, tmp_path):
    (tmp_path / "file").write_text("")
    result = call("run", f"{write(STEP)}:build", "--workers", 2, "--checkpoint", tmp_path / "file" / "saved")
    check(result, "file/saved", "can be written to")


def test_a_checkpoint_of_another_program(call, write, tmp_path):
    assert call("run", f"{write(STEP)}:build", "--workers", 2, "--checkpoint", tmp_path / "saved").exit_code == 0
    other = write(STEP.replace("[3]", "[4]").replace("3]", "4]"), "other.py")
    check(
        call("run", f"{other}:build", "--workers", 2, "--checkpoint", tmp_path / "saved"),
        "does not fit",
        "w has shape [3]",
        "[4]",
    )


def test_a_checkpoint_directory_whose_files_are_gone(call, write, tmp_path):
    """To start from nothing would overwrite what the user wanted to go on from."""
    saved = tmp_path / "saved"
    assert call("run", f"{write(STEP)}:build", "--workers", 2, "--checkpoint", saved).exit_code == 0
    for path in saved.glob("checkpoint-*"):
        path.unlink()
    check(call("run", f"{write(STEP)}:build", "--workers", 2, "--checkpoint", saved), "checkpoint-1", "saved")


def test_an_export_over_something_else(call, write, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("precious")
    result = call("export", f"{write(STEP)}:build", "--workers", 2, "--out", tmp_path / "out")
    check(result, "not an export", "another directory", str(tmp_path / "out"))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.tex"]


def test_an_export_under_a_file(call, write, tmp_path):
    (tmp_path / "file").write_text("")
    result = call("export", f"{write(STEP)}:build", "--workers", 2, "--out", tmp_path / "file" / "out")
    check(result, str(tmp_path / "file" / "out"), "failed")


@pytest.mark.parametrize(
    "devices, words",
    [
        (["/job:worker/task:0"], ["1 entries", "2 workers"]),
        (["/task:0", "/task:0"], ["/task:0", "workers 0 and 1"]),
        (["/task:0", "host1"], ["'host1'", "/job:worker"]),
    ],
)
def test_devices_of_an_export(call, write, tmp_path, devices, words):
    options = [part for device in devices for part in ("--device", device)]
    result = call("export", f"{write(STEP)}:build", "--workers", 2, "--out", tmp_path / "out", *options)
    check(result, *words)
    assert not (tmp_path / "out").exists()


def test_debug_gives_the_error_itself(call, write):
    result = call("--debug", "run", f"{write(STEP)}:built", "--workers", 2)
    assert type(result.exception).__name__ == "ProgramError"


@pytest.mark.soak  # as test_debug_gives_the_error_itself
@pytest.mark.slow
def test_debug_shows_the_traceback(command, write):
    path = write("def build():\n    raise ValueError('no data today')\n")
    debug = command("--debug", "run", f"{path}:build", "--workers", 2)
    assert debug.returncode == 1
    assert "Traceback (most recent call last)" in debug.stderr
    assert f'File "{path}", line 2, in build' in debug.stderr


# -- files to write --------------------------------------------------------------------------


OUTPUTS = {
    "trace": ["trace", "PROGRAM", "--out"],
    "plan": ["plan", "PROGRAM", "--workers", 2, "--out"],
    "netbench": ["netbench", "--alpha", "1e-5", "--beta", "1e-9", "--out"],
    "plot": ["netbench", "--workers", 2, "--cluster", "in-process", "--out", "OTHER", "--plot"],
    "export": ["export", "PROGRAM", "--workers", 2, "--out"],
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_named_pipe_to_write_to(call, write, tmp_path, name):
    """It is neither replaced nor written to, where nobody reads, forever."""
    program = f"{write(STEP)}:build"
    os.mkfifo(tmp_path / "pipe")
    named = {"PROGRAM": program, "OTHER": tmp_path / "other.json"}
    result = call(*[named.get(part, part) for part in OUTPUTS[name]], tmp_path / "pipe")
    check(result, "pipe", "no directory" if name == "export" else "no regular file")
    assert (tmp_path / "pipe").is_fifo()
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {"pipe", "my_program.py"}


@pytest.mark.parametrize(
    ("command", "options", "words"),
    [
        ("plan", ("--servers", 9), ["--servers 9: there are 1 variables"]),
        (
            "plan",
            ("--servers", 1, "--ordering", "tac"),
            ["--ordering tac goes by the times", "give --network"],
        ),
        ("plan", ("--servers", 1, "--sync-every", 2), ["--sync-every goes without --servers"]),
        ("run", ("--deterministic", "--wire", "bfloat16"), ["--deterministic and --wire exclude each other"]),
        ("tune", ("--servers", 9, "--cluster", "in-process"), ["--servers 9: there are 1 variables"]),
    ],
)
def test_errors_name_options(call, write, command, options, words):
    """The library speaks of arguments; who calls a command has options."""
    check(call(command, f"{write(STEP)}:build", "--workers", 2, *options), *words)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("servers=4: give it", "--servers 4: give it"),
        (
            "take ordering='tac' with deterministic=True, or batching=False",
            "take --ordering tac with --deterministic, or --no-batching",
        ),
        ("pass network= (a file), or trace=", "pass --network (a file), or --trace"),
        ("fit(x, y, servers=2) and f(network=1)", "fit(x, y, servers=2) and f(network=1)"),
        (
            "/data/depth=3/part, write workers=2, checkpoint=c, steps=3",
            "/data/depth=3/part, write workers=2, checkpoint=c, steps=3",
        ),
    ],
)
def test_arguments_of_the_library_are_options_of_the_command(text, shown):
    assert _with_options(text, main.commands["run"]) == shown


@pytest.mark.parametrize(
    ("command", "option", "words"),
    [
        ("tune", "--no-batching", ["--no-batching", "It is an option of caramel"]),
        ("tune", "--sync-every", ["--sync-every", "It is an option of caramel run, export, plan, profile."]),
        ("tune", "--workerz", ["--workerz", "'--workers'"]),
        ("trace", "--straggler", ["--straggler", "It is an option of caramel scale."]),
    ],
)
def test_options_of_other_commands(call, write, command, option, words):
    check(call(command, f"{write(STEP)}:build", "--workers", 2, option, 3), *words, code=2)
