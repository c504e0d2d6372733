"""What is written to standard error: nothing where nothing is wrong, and everything where something is."""

import os
import subprocess
import sys

import pytest
from variants import in_soak

from caramel.cli.quiet import _held_back

PROGRAM = """
    import tensorflow as tf
    v1 = tf.compat.v1

    def build():
        x = v1.placeholder(tf.float32, [None, 2], name="x")
        w = v1.get_variable("w", [2, 1], initializer=v1.ones_initializer())
        v1.train.GradientDescentOptimizer(0.01).minimize(tf.reduce_mean(tf.square(tf.matmul(x, w))))
        return {"data": [{"x": [[1.0, 2.0]] * 4}] * 3}
"""

NOISE = "I0000 00:00:1 1 port.cc:153] oneDNN custom operations are on. You may see slightly different numerical results"


def write(text):
    os.write(2, text.encode())  # as a library does


def test_lines_about_the_build_are_left_out(capfd):
    with _held_back():
        write(f"WARNING: All log messages before absl::InitializeLog() is called\n{NOISE}\n\nE0000 something else\n")
    assert capfd.readouterr().err == "E0000 something else\n"


def test_all_is_said_of_a_failure(capfd):
    with pytest.raises(ImportError), _held_back():
        write(f"{NOISE}\nlibsomething.so is missing\n")
        raise ImportError
    assert capfd.readouterr().err == f"{NOISE}\nlibsomething.so is missing\n"


def test_afterwards_standard_error_is_as_before(capfd):
    with _held_back():
        pass
    write(f"{NOISE}\n")
    assert NOISE in capfd.readouterr().err


def test_quiet_for_whoever_asks_for_less():
    """TensorFlow's lines come before it looks at the level."""
    loading = [sys.executable, "-c", "from caramel.cli.quiet import load_quietly; load_quietly()"]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    assert subprocess.run(loading, env=environment, capture_output=True, text=True, timeout=180).stderr == ""


@pytest.mark.parametrize(
    "arguments", [["run", "--cluster", "in-process"], *in_soak(["run", "--cluster", "processes"], ["plan"], ["export"])]
)
def test_a_command_that_goes_well(arguments, tmp_path):
    (tmp_path / "program.py").write_text("\n".join(line[4:] for line in PROGRAM.splitlines()))
    verb, *options = arguments
    options += ["--out", "exported"] if verb == "export" else []
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    command = [sys.executable, "-m", "caramel", verb, "program.py:build", "--workers", "2", *options]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**environment, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert (done.returncode, done.stderr) == (0, "")
