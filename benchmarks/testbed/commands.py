"""The system's own tools, run inside a namespace, and what their failures mean."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence

from caramel.errors import CaramelError

_PACKAGES = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux"}
"""Debian package of each tool that is needed."""

_TIMEOUT_S = 20.0
"""The tools answer within milliseconds; a kernel that keeps them this long is stuck."""

_UNAVAILABLE = (
    ("Unknown device type", "the kernel lacks bridges or veth pairs: load the modules bridge and veth"),
    ("qdisc kind is unknown", "the kernel lacks the token bucket filter: load the module sch_tbf"),
    ("Operation not supported", "the kernel lacks a part that is needed: load the modules bridge, veth and sch_tbf"),
    ("Operation not permitted", "this needs the capabilities CAP_SYS_ADMIN and CAP_NET_ADMIN: run it as full root"),
)
"""What a tool says where no testbed can be built, and what that means."""


class TestbedError(CaramelError):
    """The testbed cannot be built or used; the message names the command that failed and what it said."""

    __test__ = False  # not a class of tests, whatever pytest thinks of the name


class UnavailableError(TestbedError):
    """No testbed can be built on this machine or by this user."""


def check_system() -> None:
    """Check what can be checked before anything is built.

    Raises:
        UnavailableError: not Linux, not root, or a tool is missing.
    """
    if not sys.platform.startswith("linux"):
        raise UnavailableError(f"a testbed is made of Linux network namespaces, and this is {sys.platform}")
    if os.geteuid() != 0:
        raise UnavailableError(f"building a testbed needs root, and this is user {os.geteuid()}: run it with sudo")
    missing = [tool for tool in _PACKAGES if shutil.which(tool) is None]
    if missing:
        packages = " ".join(sorted({_PACKAGES[tool] for tool in missing}))
        raise UnavailableError(f"{' and '.join(missing)} not found: install with apt-get install {packages}")


def in_namespace(namespace: str, command: Sequence[str]) -> list[str]:
    """The command that runs a command in the network namespace with this path, as the same process."""
    return [shutil.which("nsenter") or "nsenter", f"--net={namespace}", "--", *command]


def run_tool(namespace: str, command: Sequence[str]) -> None:
    """Run a system tool in a namespace.

    Raises:
        UnavailableError: it fails because the kernel or the user's rights do not allow it.
        TestbedError: it fails otherwise, or does not end.
    """
    try:
        done = subprocess.run(
            in_namespace(namespace, command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            env={**os.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired as error:
        raise TestbedError(f"{shlex.join(command)} did not end within {_TIMEOUT_S:g} s") from error
    if done.returncode == 0:
        return
    problem = f"{shlex.join(command)} failed: {' '.join(done.stderr.split()) or f'exit code {done.returncode}'}"
    for sign, meaning in _UNAVAILABLE:
        if sign in done.stderr:
            raise UnavailableError(f"{problem} ({meaning})")
    raise TestbedError(problem)
