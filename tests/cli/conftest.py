"""The command, as a process of its own or called in this one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def _environment():
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="session")
def examples():
    """Directory of the example programs."""
    return EXAMPLES


@pytest.fixture(scope="session")
def python():
    """Function that runs Python with arguments, and returns the CompletedProcess."""

    def run(*arguments, timeout=180, prefix=(), **options):
        command = [*prefix, sys.executable, *map(str, arguments)]
        return subprocess.run(
            command,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            **options,
        )

    return run


@pytest.fixture(scope="session")
def command():
    """Function that runs the installed command ``caramel``."""
    script = Path(sys.executable).with_name("caramel")
    found = str(script) if script.exists() else shutil.which("caramel")
    if found is None:
        pytest.fail("the command caramel is not installed beside this Python")

    def run(*arguments, timeout=180, environment=None, **options):
        return subprocess.run(
            [found, *map(str, arguments)],
            env={**_environment(), **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            **options,
        )

    return run


@pytest.fixture(scope="session")
def isolated():
    """A command prefix that runs something in a network namespace of its own."""
    prefix = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-Urn"]
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare here to make a network namespace")
    made = subprocess.run([*prefix, "true"], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"the kernel allows no network namespace here: {made.stderr.strip()}")
    return prefix
