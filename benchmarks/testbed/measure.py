"""Measuring what a link of the testbed really does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.testbed.commands import TestbedError
from benchmarks.testbed.host import Host

_PROGRAM = [sys.executable, "-I", "-S", str(Path(__file__).with_name("stream.py"))]
_WARM_UP_S = 0.3
"""The burst passes and TCP finds its window."""

_GRACE_S = 15.0
"""Longer than the receiver waits for a connection, so that its own message is what one sees."""


def stream_rate_bytes_per_s(sender: Host, receiver: Host, seconds: float) -> float:
    """Payload rate of one TCP stream, as the receiver counts it.

    Raises:
        TestbedError: the stream breaks.
    """
    receiving = receiver.popen(
        [*_PROGRAM, "receive", receiver.address, str(_WARM_UP_S), str(seconds)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    sending: subprocess.Popen[Any] | None = None
    try:
        assert receiving.stdout is not None
        port = receiving.stdout.readline().strip()
        if port:
            sending = sender.popen(
                [*_PROGRAM, "send", receiver.address, port], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        output, errors = receiving.communicate(timeout=_WARM_UP_S + seconds + _GRACE_S)
        if receiving.returncode != 0:
            said = (errors.strip().splitlines() or [f"exit code {receiving.returncode}"])[-1]
            raise TestbedError(f"no stream from {sender.name} to {receiver.name}: {said}")
        return float(output)
    except subprocess.TimeoutExpired as error:
        raise TestbedError(f"the stream from {sender.name} to {receiver.name} did not end in time") from error
    finally:
        receiver.end(receiving)
        if sending is not None:
            sender.end(sending)
