"""Where the workers are in their data, as checkpoints have it: a few numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from caramel.errors import CheckpointError
from caramel.util.arguments import MOST_WORKERS, shown

SEED_LIMIT = 2**62
"""Bound of the random seeds of shuffles."""

_MOST_PASSED_OVER = 2**40
"""Bound of the passes and elements of a position: with a microsecond for each, two weeks."""

_NUMBERS = 6
"""How many there are before those of passes that were left early."""


class PassState(IntEnum):
    """State of a pass over the data; the numbers are those of checkpoints."""

    ENDED = 0
    GOING = 1
    AFTER_ERROR = 2
    """Elements have failed, and workers have to find the next one that all of them have."""


@dataclass(frozen=True)
class DataPosition:
    """A position in the data.

    Attributes:
        seed: of shuffles without one.
        passes: how many have begun.
        taken: how many elements of the present pass were taken.
        state: of the present pass.
        has_iterators: whether the checkpoint has the states of the workers' iterators, too.
        workers: number of workers.
        left: of passes that were left before their end, how many elements were taken, where later orders depend on it.
    """

    seed: int
    passes: int
    taken: int
    state: PassState
    has_iterators: bool
    workers: int
    left: Mapping[int, int]

    def numbers(self) -> np.ndarray:
        """What a checkpoint has of it: int64, of six numbers and two for each pass that was left early."""
        left = [number for each in sorted(self.left.items()) for number in each]
        here = [self.seed, self.passes, self.taken, self.state, self.has_iterators, self.workers]
        return np.array([*here, *left], np.int64)

    @classmethod
    def of(cls, numbers: np.ndarray, prefix: str) -> DataPosition:
        """The position that a checkpoint has.

        Args:
            numbers: what `numbers` has given.
            prefix: the checkpoint's prefix, for errors.

        Raises:
            CheckpointError: no position has these numbers: to pass over as many batches as they say may take for ever.
        """
        if numbers.dtype == np.int64 and numbers.ndim == 1 and len(numbers) >= _NUMBERS and len(numbers) % 2 == 0:
            seed, passes, taken, state, has_iterators, workers, *left = numbers.tolist()
            if (
                0 < seed <= SEED_LIMIT
                and 0 <= passes <= _MOST_PASSED_OVER
                and 0 <= taken <= _MOST_PASSED_OVER
                and state in list(PassState)
                and has_iterators in (0, 1)
                and 1 <= workers <= MOST_WORKERS
                and (passes > 0 or (taken == 0 and state == PassState.ENDED))
                and all(0 <= number < passes for number in left[::2])
                and all(0 <= count <= _MOST_PASSED_OVER for count in left[1::2])
            ):
                left_early = dict(zip(left[::2], left[1::2]))
                return cls(seed, passes, taken, PassState(state), bool(has_iterators), workers, left_early)
        raise CheckpointError(
            f"checkpoint {prefix!r} is damaged: its position in the data is {shown(numbers.tolist())}, which is none. "
            "Restore another checkpoint"
        )
