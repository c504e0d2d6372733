"""Arguments of program files, which come after two dashes."""

import json
import sys
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from caramel.cli import run as run_module
from caramel.cli.main import main

PROGRAM = """
    import argparse
    import numpy as np
    import tensorflow as tf

    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, required=True)
    rate = parser.parse_args().rate

    def build():
        assert parser.parse_args().rate == rate
        w = tf.Variable(0.0, name="w")

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((w - x) ** 2)
            w.assign_sub(rate * tape.gradient(loss, w))
            return loss

        return {"step": step, "inputs": [tf.TensorSpec([None])], "data": [np.ones(4, np.float32)] * 2}
"""


@pytest.fixture
def call(write):
    program = f"{write(PROGRAM)}:build"

    def call_it(verb, *arguments):
        before = sys.argv
        result = CliRunner().invoke(main, [verb, program, "--workers", "2", *map(str, arguments)])
        assert sys.argv is before
        return result

    return call_it


@pytest.mark.parametrize("rate", [0.5, 0.25])
def test_the_program_finds_its_own(call, rate):
    result = call("run", "--json", "--", "--rate", rate)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["last_loss"] == pytest.approx((1 - 2 * rate) ** 2)


def test_so_does_that_of_an_export(call, tmp_path):
    result = call("export", "--out", tmp_path / "exported", "--", "--rate", 0.5)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "exported" / "graph.pb").exists()


@pytest.mark.parametrize("arguments", [[], ["--", "--speed", "1"]])
def test_wrong_ones(call, arguments):
    result = call("run", *arguments)
    assert result.exit_code == 1
    assert "does not like its arguments: they come last in a command, after two dashes" in result.output


def test_a_run_goes_on_with_the_same(monkeypatch):
    given = ["run", "a.py:b", "--steps", "9", "--workers", "2", "--", "--steps", "3"]
    monkeypatch.setattr(sys, "argv", ["caramel", *given])
    said = []
    run_module._say_how_to_go_on(SimpleNamespace(add=lambda text, **_: said.append(text)), SimpleNamespace(), 12)
    assert said == ["go on with: caramel run a.py:b --workers 2 --until-step 12 -- --steps 3"]
