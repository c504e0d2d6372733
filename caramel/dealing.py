"""How the rows of a batch are dealt to the workers: as parts of the batch, or of each of its micro-batches.

A step may cut its batch into K equal micro-batches, one after the other. Then a worker's part of the batch is its part
of each of these, so that the step cuts that part into its parts of the same micro-batches; see
`caramel.frontend.batch.micro_batches`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from caramel.util.ranges import balanced

__all__ = ["WHOLE", "Dealing", "in_order"]


@dataclass(frozen=True)
class Dealing:
    """The micro-batches of which a worker has a part of each.

    Attributes:
        micro_batches: their number; 1 where the batch is not cut.
        leaves_remainder: whether no micro-batch has the last rows, where their number does not divide the batch: the
            step does without. Else there must be none.
        rows: number of rows that each batch must have, as the step takes rows by their numbers; None for any.
    """

    micro_batches: int = 1
    leaves_remainder: bool = False
    rows: int | None = None

    def used(self, rows: int) -> int:
        """The number of rows that the micro-batches have.

        Args:
            rows: number of rows of a batch.

        >>> Dealing(4, leaves_remainder=True).used(23)
        20
        """
        return rows // self.micro_batches * self.micro_batches

    def refusal(self, rows: int) -> str:
        """Why the step cannot take a batch; "" where it can.

        Args:
            rows: number of rows of the batch.
        """
        if self.rows is not None and rows != self.rows:
            return f"the step was captured for batches of {self.rows}, of which it takes rows by their numbers"
        if self.micro_batches == 1 or (self.used(rows) and (rows == self.used(rows) or self.leaves_remainder)):
            return ""
        needs = "at least one example for each" if self.leaves_remainder else f"a multiple of {self.micro_batches}"
        return f"the step cuts its batch into {self.micro_batches} micro-batches, so it needs {needs}"

    def slices(self, rows: int, workers: int) -> list[list[slice]]:
        """The rows of each worker, as slices of the batch, one for each micro-batch.

        A worker without rows has those of others, for a weight of 0.

        Args:
            rows: number of rows of a batch.
            workers: number of workers.

        >>> Dealing(2).slices(8, 2)
        [[slice(0, 2, None), slice(4, 6, None)], [slice(2, 4, None), slice(6, 8, None)]]
        """
        size = rows // self.micro_batches
        parts = [(start, length) if length else (0, min(size, 1)) for start, length in balanced(size, workers)]
        begins = range(0, size * self.micro_batches, size) if size else [0] * self.micro_batches
        return [[slice(begin + start, begin + start + length) for begin in begins] for start, length in parts]

    def of_first(self, rows: int, workers: int, all_workers: int) -> list[slice]:
        """The rows that the first of all workers have together, as slices of the batch, one for each micro-batch.

        Args:
            rows: number of rows of a batch.
            workers: how many of them.
            all_workers: number of all workers.

        >>> Dealing(2).of_first(8, 1, 2)
        [slice(0, 2, None), slice(4, 6, None)]
        """
        size = rows // self.micro_batches
        length = sum(length for _, length in balanced(size, all_workers)[:workers])
        return [slice(size * number, size * number + length) for number in range(self.micro_batches)]

    def shares(self, rows: int, workers: int) -> tuple[int, ...]:
        """The number of rows of each worker.

        Args:
            rows: number of rows of a batch.
            workers: number of workers.
        """
        return tuple(self.micro_batches * length for _, length in balanced(rows // self.micro_batches, workers))


def in_order(parts: Sequence[np.ndarray], shares: Sequence[int], axis: int, batches: int) -> tuple[np.ndarray, ...]:
    """What the workers have of all rows, in the order of one device: as many entries for each worker as before.

    Args:
        parts: array of each worker: of several batches, one after the other, its entries.
        shares: number of rows of each; those of a worker without rows are others', and stay where they are.
        axis: axis along which the entries of a row lie.
        batches: number of batches, or of parts of micro-batches.

    >>> [each.tolist() for each in in_order([np.array([0, 1, 4, 5]), np.array([2, 3, 6, 7])], [4, 4], 0, 2)]
    [[0, 1, 2, 3], [4, 5, 6, 7]]
    """
    counting = [rank for rank, share in enumerate(shares) if share]
    if len(counting) < 2:
        return tuple(parts)
    cut = [np.split(parts[rank], batches, axis) for rank in counting]
    whole = np.concatenate([each[number] for number in range(batches) for each in cut], axis)
    ends = np.cumsum([parts[rank].shape[axis] for rank in counting])[:-1]
    ordered = dict(zip(counting, np.split(whole, ends, axis)))
    return tuple(ordered.get(rank, part) for rank, part in enumerate(parts))


WHOLE = Dealing()
"""The dealing of a batch that is not cut."""
