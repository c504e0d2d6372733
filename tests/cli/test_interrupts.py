"""SIGINT and SIGTERM: the running step is the last one, what was trained is saved, and the run can go on."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner
from small_programs import STEP
from variants import in_soak

from caramel.cli.main import main
from caramel.util.interrupts import Interrupts

ENDLESS = STEP.replace('"data": [batch]}', '"data": endless}').replace(
    "        return {",
    "        def endless():\n            while True:\n                yield batch\n\n        return {",
)


@pytest.fixture
def started():
    """Starts a run as a process of its own; none outlives its test."""
    processes = []

    def start(*arguments):
        process = subprocess.Popen(
            [sys.executable, "-m", "caramel", "run", *map(str, arguments)],
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def await_file(path, process, timeout_s=120):
    deadline = time.monotonic() + timeout_s
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"there is no {path}"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, *in_soak(signal.SIGINT)])
@pytest.mark.parametrize("text", [STEP, *in_soak(ENDLESS)], ids=["in steps", "without an end"])
def test_a_run_that_is_ended_goes_on(write, tmp_path, started, number, text):
    program, directory = f"{write(text)}:build", tmp_path / "saved"
    steps = ["--steps", 10**6] if text is STEP else []
    process = started(program, "--workers", 2, "--checkpoint", directory, "--save-every", 1, *steps)
    await_file(directory / "checkpoint", process)  # the list of checkpoints, which stays; they themselves are rotated
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, (out, err)
    assert "Traceback" not in err and f"{number.name}: the step that runs is the last one" in err
    done = int(re.search(r"\n(\d+) steps in ", out)[1])
    assert done >= 1 and f"saved {directory}/checkpoint-{done}\n" in out
    command = shlex.split(re.search(r"go on with: (.*)\n", out)[1])
    until = ["--until-step", "1000000"] if steps else []
    assert command == [
        "caramel",
        "run",
        program,
        "--workers",
        "2",
        "--checkpoint",
        str(directory),
        "--save-every",
        "1",
        *until,
    ]

    runner = CliRunner()
    for _ in range(2):  # the second one finds nothing to do
        again = [*command[1 : -2 if until else None], "--until-step", str(done + 3)]
        assert runner.invoke(main, again).exit_code == 0
    whole = ["run", program, "--workers", "2", "--checkpoint", str(tmp_path / "whole"), "--steps", str(done + 3)]
    assert runner.invoke(main, whole).exit_code == 0
    name = f"checkpoint-{done + 3}"
    values = [tf.train.load_checkpoint(str(tmp_path / where / name)).get_tensor("w") for where in ("saved", "whole")]
    np.testing.assert_array_equal(*values)


def test_without_checkpoints_nothing_is_kept(write, started):
    process = started(f"{write(STEP)}:build", "--workers", 2, "--steps", 10**6)
    line = process.stdout.readline()  # the plan is there
    assert line.startswith("plan ")
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "with --checkpoint DIR a run can go on" in err, (out, err)
    assert "saved" not in out and re.search(r"\d+ steps? in [\d.]+ s", out)


def test_the_second_signal_is_not_waited_with():
    with pytest.raises(KeyboardInterrupt), Interrupts(print) as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        assert interrupts.number == signal.SIGINT and interrupts.exit_status == 130
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)


def test_signals_are_as_before_afterwards():
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts(print):
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_steps_and_until_step():
    result = CliRunner().invoke(main, ["run", "x.py:build", "--workers", "2", "--steps", "3", "--until-step", "5"])
    assert result.exit_code == 2 and "exclude each other" in result.output
