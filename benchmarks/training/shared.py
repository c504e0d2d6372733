"""Contenders on processes that several of them share, and what becomes of them when one of them fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from benchmarks.training.contender import SETTLING_STEPS, Burst, Contender, Settings
from caramel.errors import CaramelError, ClusterError

T = TypeVar("T")


class Group:
    """Processes that contenders of a cell share. When one of them fails they are all stopped: they may be in any state.

    Args:
        stop: ends the processes; the next contender that is made starts them again.

    Attributes:
        failures: so far.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self.failures = 0
        self._stop = stop

    def doing(self, act: Callable[[], T]) -> T:
        """What a contender does; if it fails, the processes are stopped."""
        try:
            return act()
        except ClusterError:
            self.failures += 1
            with suppress(CaramelError):  # what failed first is what is told
                self._stop()
            raise


class Member:
    """A contender of a group. After the failure of another one it is made again, and begins anew.

    Args:
        name: of the contender.
        group: of contenders.
        make: makes it.

    Raises:
        CaramelError: it cannot be made.
    """

    def __init__(self, name: str, group: Group, make: Callable[[], Contender]) -> None:
        self.name = name
        self._group = group
        self._make = make
        self._has_run = False
        self._failures = group.failures
        self._contender = group.doing(make)

    @property
    def settings(self) -> Settings:
        """See `Contender`."""
        return self._contender.settings

    def run(self, steps: int) -> Burst:
        """See `Contender.run`."""
        found = self._group.doing(lambda: self._current().run(steps))
        self._has_run = True
        return found

    def traced_step(self) -> Any:
        """What runs and travels in a step, of a contender that can tell.

        Raises:
            ClusterError: a process ended, or did not answer in time.
        """
        return self._group.doing(lambda: self._current().traced_step())  # type: ignore[attr-defined]

    def pids(self) -> Sequence[int]:
        """See `Contender.pids`."""
        return self._group.doing(lambda: self._current().pids())

    def close(self) -> None:
        """See `Contender.close`."""
        self._contender.close()

    def _current(self) -> Contender:
        """The contender, on processes that run."""
        if self._failures != self._group.failures:
            with suppress(CaramelError):
                self._contender.close()
            self._failures = self._group.failures
            self._contender = self._make()
            if self._has_run:  # else its first losses are still to be compared
                self._contender.run(SETTLING_STEPS)
        return self._contender
