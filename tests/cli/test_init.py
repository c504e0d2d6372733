"""`caramel init`: each file trains by the command as on one device, and nothing is overwritten."""

import os
import re
import runpy
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from caramel.cli.main import main
from caramel.errors import InputError
from caramel.starters.starter import KINDS, write_starter

STEPS = 16
"""Batches of one pass over the data of those that make it themselves."""


def numbers(output):
    """The last loss and the evaluation that a run prints."""
    loss = re.search(r"loss \S+ -> (\S+)", output).group(1)
    return float(loss), float(re.search(r"^evaluation \w+: (\S+)$", output, re.MULTILINE).group(1))


@pytest.fixture
def caramel_says(tmp_path):
    """Function that runs the command in a directory of its own; what it prints. It must say nothing on standard error."""
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}

    def run(*arguments):
        command = [sys.executable, "-m", "caramel", *map(str, arguments)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tf1", "step"])
def test_two_workers_are_one_device(caramel_says, tmp_path, kind):
    assert "caramel run train.py:program --steps 200 --workers 2" in caramel_says("init", "--kind", kind)
    said = caramel_says("run", "train.py:program", "--workers", 2, "--steps", STEPS)
    alone = runpy.run_path(str(tmp_path / "train.py"))["main"](epochs=1)
    np.testing.assert_allclose(numbers(said), alone, rtol=1e-4)


@pytest.mark.slow
def test_two_workers_are_one_device_for_keras(caramel_says, tmp_path, monkeypatch):
    assert "caramel run digits.py --workers 2\n" in caramel_says("init", "digits.py")
    said = caramel_says("run", "digits.py", "--workers", 2)
    monkeypatch.chdir(tmp_path)
    alone = runpy.run_path("digits.py")["main"]()
    for name, values in alone.items():
        found = [float(value) for value in re.findall(rf" {name}: (\S+)", said)]
        np.testing.assert_allclose(found, values, rtol=2e-3, err_msg=name)
    assert alone["val_accuracy"][-1] > 0.9
    assert (tmp_path / "digits.keras").exists()


def test_what_is_there_stays(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("mine")
    done = CliRunner().invoke(main, ["init", str(path)])
    assert done.exit_code == 1 and "is there already, and stays as it is" in done.output
    assert path.read_text() == "mine" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("train", "let it end in .py"),
        ("my-train.py", "letters, digits and _"),
        ("none/train.py", "cannot be written"),
        ("gs://bucket/train.py", "cannot be written"),
    ],
)
def test_a_wrong_path(tmp_path, monkeypatch, name, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=words):
        write_starter("step", name)
    assert list(tmp_path.iterdir()) == []


def test_a_path_with_spaces_is_quoted(tmp_path):
    folder = tmp_path / "my programs"
    folder.mkdir()
    done = CliRunner().invoke(main, ["init", "--kind", "step", str(folder / "train.py")])
    assert f"caramel run '{folder}/train.py:program'" in done.output
    assert f"python '{folder}/train.py'" in (folder / "train.py").read_text()


def test_kinds():
    done = CliRunner().invoke(main, ["init", "--kind", "torch"])
    assert done.exit_code == 2 and all(kind in done.output for kind in KINDS)
