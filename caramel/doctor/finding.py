"""What a check has found, and checks that end in time and hide no others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from caramel.errors import in_one_line
from caramel.util.daemon_threads import DaemonThreads


class State(str, Enum):
    """How well it is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """What one check has found.

    Attributes:
        check: noun for what was looked at, such as ``"clock of worker 1"``.
        state: how well it is.
        found: what was found there.
        mend: what to do about it; "" where nothing need be done.
    """

    check: str
    state: State
    found: str
    mend: str = ""

    def line(self) -> str:
        """The finding in one line.

        >>> Finding("link", State.WARNING, "it is slow", "use another one").line()
        'warning  link: it is slow. Mend: use another one'
        """
        mend = f". Mend: {self.mend}" if self.mend else ""
        return " ".join(f"{self.state.value:<7}  {self.check}: {self.found}{mend}".splitlines())

    def as_dict(self) -> dict[str, str]:
        """The finding for JSON."""
        return {**asdict(self), "state": self.state.value}


def ok(check: str, found: str) -> Finding:
    """A finding with which all is well."""
    return Finding(check, State.OK, found)


def warning(check: str, found: str, mend: str) -> Finding:
    """A finding with which one can train, but perhaps not as well."""
    return Finding(check, State.WARNING, found, mend)


def problem(check: str, found: str, mend: str) -> Finding:
    """A finding with which one cannot train."""
    return Finding(check, State.PROBLEM, found, mend)


def guarded(check: str, look: Callable[..., Iterable[Finding]], *arguments: Any) -> list[Finding]:
    """The findings of a check; where the check itself fails, that is the finding.

    Args:
        check: noun for what is looked at.
        look: function that looks.
        arguments: its arguments.
    """
    findings: list[Finding] = []
    try:
        for finding in look(*arguments):
            findings.append(finding)  # one by one: those before a failure stay
    except Exception as error:  # of whatever kind: the other checks are still to come
        findings.append(_failed(check, error))
    return findings


Check = tuple[str, Callable[..., Iterable[Finding]], tuple[Any, ...]]
"""A noun for what is looked at, a function that looks, and its arguments."""


def bounded(checks: Sequence[Check], limit_s: float) -> Iterator[list[Finding]]:
    """The findings of checks that run at once, in the order of the checks.

    Args:
        checks: the checks; threads are as many.
        limit_s: seconds that they may take; one that has not ended then is a problem.
    """
    threads = DaemonThreads(max(len(checks), 1), "doctor")
    until_s = time.monotonic() + limit_s
    started = [(check, threads.submit(guarded, check, look, *arguments)) for check, look, arguments in checks]
    for check, future in started:
        try:
            yield future.result(max(until_s - time.monotonic(), 0.0))
        except FutureTimeoutError:
            yield [problem(check, f"the check has not ended within {limit_s:g} s", "see what the other checks say")]


def _failed(check: str, error: Exception) -> Finding:
    what = f"the check itself failed ({type(error).__name__}: {in_one_line(error)})"
    return warning(check, what, "nothing is known about it; please report this")
