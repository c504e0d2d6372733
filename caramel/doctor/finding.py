"""What a check has found, and checks that end in time and hide no others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
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
    try:
        return list(look(*arguments))
    except Exception as error:  # of whatever kind: the other checks are still to come
        return [_failed(check, error)]


class Bounded:
    """Checks that run at once, each for a limited time.

    Args:
        limit_s: seconds that each may take from its start; threads are as many as checks.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s

    def each(
        self, checks: Iterable[tuple[str, Callable[..., Iterable[Finding]], tuple[Any, ...]]]
    ) -> Iterable[list[Finding]]:
        """The findings of each check, in the order of the checks.

        Args:
            checks: noun, function and arguments of each; see `guarded`.
        """
        listed = list(checks)
        threads = DaemonThreads(max(len(listed), 1), "doctor")
        started = [(check, threads.submit(guarded, check, look, *arguments)) for check, look, arguments in listed]
        for check, future in started:
            yield self._result(check, future)

    def _result(self, check: str, future: Future[list[Finding]]) -> list[Finding]:
        try:
            return future.result(self._limit_s)
        except FutureTimeoutError:
            return [problem(check, f"the check has not ended within {self._limit_s:g} s", "see what the others say")]


def _failed(check: str, error: Exception) -> Finding:
    what = f"the check itself failed ({type(error).__name__}: {in_one_line(error)})"
    return warning(check, what, "nothing is known about it; please report this")
