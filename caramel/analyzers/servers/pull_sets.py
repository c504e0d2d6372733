"""Communication dependencies: the sets of pulls that ops wait for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class PullSets:
    """The distinct sets of pulls that ops wait for (``op.dep`` of the papers).

    Ops that wait for the same pulls are one to every algorithm here, and a step has far fewer sets than ops.

    Attributes:
        members: (sets, pulls) whether a pull is in a set.
        set_of: for each op, in topological order, the row of its set.
    """

    members: np.ndarray
    set_of: np.ndarray

    @classmethod
    def of(cls, pulls: Sequence[str], ops: Iterable[tuple[str, Iterable[str]]]) -> PullSets:
        """The sets of a step.

        Args:
            pulls: names of the pulls, in the order of the columns.
            ops: (name, names of its inputs), in topological order.

        Source:
            TicTac, section 4.1, "Communication Dependency". The paper walks depth first from each op; in
            topological order an op only joins what its inputs wait for.
        """
        bits = {name: 1 << column for column, name in enumerate(pulls)}
        rows: dict[int, int] = {}
        set_of = []
        for name, inputs in ops:
            joined = 0
            for given in inputs:
                joined |= bits[given]
            bits[name] = joined
            set_of.append(rows.setdefault(joined, len(rows)))
        width = (len(pulls) + 7) // 8
        packed = np.frombuffer(bytearray().join(of.to_bytes(width, "little") for of in rows), dtype=np.uint8)
        members = np.unpackbits(packed.reshape(len(rows), width), axis=1, count=len(pulls), bitorder="little")
        return cls(members.astype(bool), np.array(set_of, dtype=np.int64))

    def totals(self, of_ops: np.ndarray) -> np.ndarray:
        """The sum over the ops of each set.

        Args:
            of_ops: (ops,) a number for each op.
        """
        sums = np.zeros(len(self.members), dtype=of_ops.dtype)
        np.add.at(sums, self.set_of, of_ops)
        return sums
