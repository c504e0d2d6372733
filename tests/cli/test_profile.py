"""`caramel profile`: real steps in the measures of the papers, as a table and as JSON."""

import json
import re

import pytest
from click.testing import CliRunner

from caramel.cli.main import main

PROGRAM = """
    import numpy as np
    import tensorflow as tf

    def build():
        w = tf.Variable(tf.zeros([30, 4]), name="w")

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ w - 1.0) ** 2)
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return loss

        data = np.ones([6, 30], np.float32)
        return {"step": step, "inputs": [tf.TensorSpec([None, 30], name="x")], "data": [data] * 40}

    def on_workers():
        data = tf.data.Dataset.from_tensor_slices(np.ones([12, 30], np.float32)).batch(6).repeat()
        return {**build(), "data": data}
"""


@pytest.fixture
def call(write):
    """Function that calls the command in this process, where TensorFlow is loaded already."""
    program = write(PROGRAM)
    return lambda entry, *more: CliRunner().invoke(
        main, ["profile", f"{program}:{entry}", "--cluster", "in-process", *map(str, more)]
    )


@pytest.mark.parametrize("entry", ["build", "on_workers"])
def test_a_profile(call, entry):
    done = call(entry, "--workers", 2, "--steps", 3)
    assert done.exit_code == 0, done.output
    assert "profile of 3 steps: " in done.output and "without tracing" in done.output
    for word in ("utilisation", "TicTac, equation 3", "Caramel, section 3.1", "stragglers"):
        assert word in done.output


def test_a_profile_as_json(call):
    done = call("build", "--workers", 3, "--steps", 2, "--json", "--no-batching")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output[done.output.index("{") :])
    assert found["steps"] == 2 and len(found["workers"]) == 3 and len(found["plan"]) == 64
    assert 0 < found["compute_s"] <= found["step_s"] and 0 < found["utilisation"] <= 1


@pytest.mark.parametrize(
    "more, message",
    [
        (["--steps", 0], "0 is not in the range"),
        (["--workers", 0], "number_of_workers|workers"),
    ],
)
def test_what_cannot_be_profiled(call, more, message):
    done = call("build", *more)
    assert done.exit_code != 0 and re.search(message, done.output), done.output
