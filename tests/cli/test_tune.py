"""`caramel tune`: trials, the plan that is kept, and the command that runs it."""

import json
import re

import pytest
from click.testing import CliRunner

import caramel
from caramel.cli.main import main
from caramel.netmodel.file import save

PROGRAM = """
    import numpy as np
    import tensorflow as tf

    def build():
        weights = [tf.Variable(tf.ones([300, 300]) / 300.0, name=f"w_{n}") for n in range(3)]

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                y = x
                for weight in weights:
                    y = y @ weight
                loss = tf.reduce_mean((y - 1.0) ** 2)
            for weight, gradient in zip(weights, tape.gradient(loss, weights)):
                weight.assign_sub(0.01 * gradient)
            return loss

        data = np.ones([6, 300], np.float32)
        return {"step": step, "inputs": [tf.TensorSpec([None, 300], name="x")], "data": [data] * 200}
"""


@pytest.fixture
def call(write, tmp_path):
    """Function that calls a command in this process, where TensorFlow is loaded already."""
    program, network = write(PROGRAM), tmp_path / "network.json"
    save(caramel.NetworkModel.from_costs(1e-4, 1e-9), network)

    def run(name, *more, given=("--network", network)):
        options = ["--workers", 2, "--cluster", "in-process", *given, *more]
        return CliRunner().invoke(main, [name, f"{program}:build", *map(str, options)])

    return run


def test_the_fastest_is_written_and_run(call, tmp_path):
    out = tmp_path / "tuned.json"
    done = call("tune", "--trials", 2, "--steps", 2, "--out", out)
    assert done.exit_code == 0, done.output
    assert re.search(r"trial 0: the planner's plan: [\d.]+ ms", done.stderr)
    assert re.search(r"trial 1: buckets of .* in flight, depth", done.stderr) and "trial 3" not in done.stderr
    assert "of the first" in done.stdout and f"written: {out}" in done.stdout
    following = re.search(r"^next: caramel run (.*)$", done.stdout, re.MULTILINE)[1]
    assert following.endswith(f"--workers 2 --cluster in-process --plan {out}")
    assert caramel.Plan.load(out).workers == 2
    ran = call("run", "--steps", 2, "--plan", out, given=())
    assert ran.exit_code == 0 and caramel.Plan.load(out).digest[:12] in ran.stdout, ran.output


def test_orders_of_pulls(call, tmp_path):
    out = tmp_path / "tuned.json"
    done = call("tune", "--trials", 1, "--steps", 1, "--servers", 1, "--out", out)
    assert done.exit_code == 0, done.output
    assert re.search(r"trial 1: pulls in (no order|the order \w+, \d+ in flight)", done.stderr)
    assert len(caramel.Plan.load(out).server_devices) == 1
    following = re.search(r"^next: caramel run (.*)$", done.stdout, re.MULTILINE)[1]
    assert following.endswith(f"--workers 2 --cluster in-process --plan {out}")


def test_as_json(call):
    done = call("tune", "--trials", 1, "--steps", 1, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [trial["limits"] is None for trial in found["trials"]] == [True, False]
    assert all(trial["step_s"] > 0 and trial["error"] is None for trial in found["trials"])
    assert len(found["plan"]) == 64 and (found["limits"] is None or found["ratios"])


@pytest.mark.parametrize(
    "more, message",
    [
        (("--trials", 0), "0 is not in the range"),
        (("--workers", 1), "one worker"),
        (("--out", "nowhere/plan.json"), "nowhere"),
        (("--network", "missing.json"), "missing.json"),
    ],
)
def test_what_cannot_be_tuned(call, more, message):
    done = call("tune", *more)
    assert done.exit_code != 0 and message in done.output
