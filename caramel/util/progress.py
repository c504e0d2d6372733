"""Progress of long work: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LINE_INTERVAL_S = 10.0
"""Least seconds between two lines; work that takes less shows none."""

LOGGER_NAME = __name__
"""Name of the logger that gets the lines, however progress is shown."""

SAID_LOGGER_NAME = "caramel.said"
"""Name of the logger that gets what is printed anyway."""

_logger = logging.getLogger(LOGGER_NAME)

_is_hidden = False


def hide_progress(is_hidden: bool) -> None:
    """Show no progress from now on, or show it again; log files have it in any case."""
    global _is_hidden
    _is_hidden = is_hidden


def note_said(text: str, level: int = logging.INFO) -> None:
    """Let the log file, if there is one, have what is printed anyway.

    Args:
        text: what is printed.
        level: level of `logging`.
    """
    logging.getLogger(SAID_LOGGER_NAME).log(level, "%s", text.strip())


def say(text: str) -> None:
    """Show a line about what begins, as progress is shown; log files have it in any case."""
    _logger.info("%s", text)
    if not _is_hidden:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


@contextmanager
def progress_over(
    total: int | None, enabled: bool = True, unit: str = "", end: str = ""
) -> Iterator[Callable[[int, str], None]]:
    """Show how far a loop is.

    Args:
        total: number of rounds; None if it is not known.
        enabled: whether to show anything at all.
        unit: noun for the rounds, in lines; "" for none.
        end: when a loop of unknown length ends, in lines; "" to leave it out.

    Yields:
        A function to call with (rounds done, text to show).
    """
    if not enabled:
        yield lambda done, text: None
        return
    lines = _Lines(total, unit, end)
    if _is_hidden or not sys.stderr.isatty():
        yield lines.show
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)

        def show(done: int, text: str) -> None:
            bar.update(task, completed=done, description=text)
            lines.log(done, text)

        yield show


class _Lines:
    """Lines for a log file.

    Args:
        total: number of rounds; None if it is not known.
        unit: noun for the rounds; "" for none.
        end: when a loop of unknown length ends; "" to leave it out.
    """

    def __init__(self, total: int | None, unit: str, end: str) -> None:
        self._total, self._unit, self._end = total, unit and f" {unit}", end and f", {end}"
        self._start_s = self._last_s = time.monotonic()
        self._first: tuple[int, float] | None = None  # rounds that were done when the first was shown, and when

    def show(self, done: int, text: str) -> None:
        """Print a line, and log it, if the last one is long ago."""
        line = self.log(done, text)
        if line and not _is_hidden:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    def log(self, done: int, text: str) -> str:
        """Log a line if the last one is long ago; the line, or nothing."""
        now_s = time.monotonic()
        if self._first is None and done > 0:
            self._first = done, now_s  # what came before was more than these rounds: a start
        if now_s - self._last_s < _LINE_INTERVAL_S:
            return ""
        self._last_s = now_s
        passed_s = now_s - self._start_s
        rounds, rest = f"{done}{self._unit}{self._end}", ""
        if self._total is not None:
            rounds = f"{done} of {self._total}{self._unit}"
            if self._first is not None and self._first[0] < done < self._total:
                round_s = (now_s - self._first[1]) / (done - self._first[0])
                rest = f", about {round_s * (self._total - done):.0f} s to go"
        line = f"{rounds}: {text} ({passed_s:.0f} s{rest})"
        _logger.info("%s", line)
        return line
