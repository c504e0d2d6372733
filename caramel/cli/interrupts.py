"""What a command does about SIGINT (Ctrl-C) and SIGTERM: it ends in order, and at once the second time."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

import click

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Notes the first signal; the second does what it does without this. Use it in a ``with`` statement.

    In another thread than the main one, which has the signals, it notes none.

    Attributes:
        number: the signal that came; None before.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in _NUMBERS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    @property
    def exit_status(self) -> int:
        """Exit status of a process that a signal has ended; 0 without one."""
        return 0 if self.number is None else 128 + self.number

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self._restore()  # the next one ends it
        click.echo(f"{signal.Signals(number).name}: the step that runs is the last one; again to end at once", err=True)

    def _restore(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)
        self._before = {}
