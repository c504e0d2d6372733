"""`caramel run` on the example programs, as a user calls it."""

import re

import pytest
import tensorflow as tf
from click.testing import CliRunner

from caramel.cli.main import main

pytestmark = pytest.mark.slow

ENTRIES = {"digits_keras.py": "program", "digits_tf1.py": "build"}
COUNTERS = {"digits_keras.py": "adam/iteration", "digits_tf1.py": "global_step"}


def steps_and_losses(text):
    """What the summary line says: number of steps, first and last loss."""
    found = re.search(r"(\d+) steps in .*: loss ([\d.e+-]+) -> ([\d.e+-]+)", text)
    assert found, text
    return int(found[1]), float(found[2]), float(found[3])


@pytest.mark.parametrize(
    "example, directory",
    [("digits_keras.py", "relative"), pytest.param("digits_tf1.py", "absolute", marks=pytest.mark.soak)],
)
def test_run_save_and_resume(command, examples, tmp_path, monkeypatch, example, directory):
    """As a process, which says no more than it should; and again, in this one, from where that ended."""
    saved = tmp_path / "saved" if directory == "absolute" else "saved"
    program = f"{examples / example}:{ENTRIES[example]}"
    arguments = ["run", program, "--workers", "2", "--checkpoint", str(saved)]
    first = command(*arguments, "--steps", 3, "--save-every", 2, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    steps, start, end = steps_and_losses(first.stdout)
    assert steps == 3
    assert 0 < end < start
    assert "1 transfer," in first.stdout
    assert "evaluation accuracy: 0." in first.stdout
    assert "restored" not in first.stdout
    assert "\x1b" not in first.stdout + first.stderr  # no progress bar where there is no terminal
    names = {path.name for path in (tmp_path / "saved").iterdir()}
    assert names == {
        "checkpoint",
        *(f"checkpoint-{step}.{part}" for step in (2, 3) for part in ("index", "data-00000-of-00001")),
    }

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(examples))  # only for the run in this process, which puts it there otherwise
    second = CliRunner().invoke(main, [*arguments, "--steps", "2"])
    assert second.exit_code == 0, second.output
    assert "restored" in second.output
    assert "checkpoint-3 (step 3)" in second.output
    steps, resumed, _ = steps_and_losses(second.output)
    assert steps == 2
    assert resumed < start
    assert tf.train.latest_checkpoint(str(tmp_path / "saved")) == str(tmp_path / "saved" / "checkpoint-5")
    for step in (2, 3, 5):
        reader = tf.train.load_checkpoint(str(tmp_path / "saved" / f"checkpoint-{step}"))
        assert reader.get_tensor(COUNTERS[example]) == step


def test_steps_of_zero_save_and_evaluate_only(examples, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(examples))  # as below
    program = f"{examples / 'digits_keras.py'}:program"
    arguments = ["run", program, "--workers", "2", "--steps", "0", "--checkpoint", str(tmp_path / "saved")]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert "evaluation accuracy" in result.output
    assert "steps in" not in result.output
    reader = tf.train.load_checkpoint(str(tmp_path / "saved" / "checkpoint-0"))
    assert reader.get_tensor("adam/iteration") == 0


@pytest.mark.soak  # as test_on_processes of `caramel trace`
@pytest.mark.processes
def test_run_on_processes_is_as_in_one_process(command, examples, monkeypatch, isolated):
    monkeypatch.syspath_prepend(str(examples))  # only for the run in this process, which puts it there otherwise
    program = f"{examples / 'digits_keras.py'}:program"
    arguments = ["run", program, "--workers", "2", "--steps", "3", "--cluster"]
    processes = command(*arguments, "processes")
    assert processes.returncode == 0, processes.stderr
    here = CliRunner().invoke(main, [*arguments, "in-process"])
    assert here.exit_code == 0, here.output
    assert steps_and_losses(processes.stdout) == pytest.approx(steps_and_losses(here.stdout), rel=1e-4)
