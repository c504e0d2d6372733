"""What takes part in a benchmark of training steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Settings = Mapping[str, int | float | str | bool]
"""What was chosen for a contender, as its row shows it."""

STEP_TIMEOUT_S = 120.0
"""A step that takes longer has failed; the slowest takes some seconds."""

SETTLING_STEPS = 2
"""Of a contender that was just made, before its steps are measured: what compiles and connects is done by then."""


@dataclass(frozen=True)
class Burst:
    """Steps that followed each other.

    Attributes:
        times_s: seconds of each step, from the start of one to the start of the next.
        losses: of the whole batch, for each step: the mean over the workers.
    """

    times_s: tuple[float, ...]
    losses: tuple[float, ...]


class Contender(Protocol):
    """Trains one workload on all hosts of a testbed; idle unless it runs.

    Attributes:
        name: of the kind, such as ``mwms``.
    """

    name: str

    @property
    def settings(self) -> Settings:
        """What was chosen."""

    def run(self, steps: int) -> Burst:
        """Run steps.

        Raises:
            ClusterError: a process ended, or did not answer in time.
        """

    def pids(self) -> Sequence[int]:
        """Its processes, some of which may be others' too."""

    def close(self) -> None:
        """End its processes; nothing happens the second time."""
