"""What long work does about SIGINT (Ctrl-C) and SIGTERM: it ends in order, and at once the second time."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_DEFAULTS = {signal.SIGINT: (signal.default_int_handler, signal.SIG_DFL), signal.SIGTERM: (signal.SIG_DFL,)}
"""The handlers with which Python starts, by signal; SIGINT may have lost its own."""


class Interrupts:
    """Notes the first signal. The second does what it would without this. Use it in a ``with`` statement.

    Signals for which the program has a handler of its own are left to it. So are all in another thread than the main
    one, which has the signals.

    Args:
        say: function that is called with a line for the user when the first signal comes.
        ends_at_once: whether the second signal ends the process in the operating system's way, also where Python
            waits for a call that takes long.

    Attributes:
        number: the signal that came; None before.
    """

    def __init__(self, say: Callable[[str], None], ends_at_once: bool = False) -> None:
        self.number: int | None = None
        self._say, self._ends_at_once = say, ends_at_once
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number, defaults in _DEFAULTS.items():
                if signal.getsignal(number) in defaults:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    @property
    def exit_status(self) -> int:
        """Exit status of a process that a signal has ended; 0 without one."""
        return 0 if self.number is None else 128 + self.number

    def raise_ended(self) -> None:
        """Raise what ends a program after the signal that came, if one did: KeyboardInterrupt, or SystemExit."""
        if self.number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.number is not None:
            raise SystemExit(self.exit_status)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        for each, before in self._before.items():
            signal.signal(each, signal.SIG_DFL if self._ends_at_once else before)
        self._say(f"{signal.Signals(number).name}: the step that runs is the last one; again to end at once")
