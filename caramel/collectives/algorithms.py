"""The all-reduce algorithms: one row for each, and from it all that the rest of the library asks about them.

All schedules are proved by `caramel.collectives.schedule.check`, for any number of workers and any size.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from caramel.collectives import ring
from caramel.collectives.all_reduce import AllReduce
from caramel.collectives.chain import CHAIN
from caramel.collectives.halving_doubling import HALVING_DOUBLING
from caramel.collectives.ring import RING
from caramel.collectives.schedule import Algorithm, Proof, Schedule, check, in_chunks
from caramel.collectives.shuffle import SHUFFLE
from caramel.collectives.star import STAR
from caramel.errors import InputError, InvariantError
from caramel.util.arguments import shown

NATIVE = "native"
"""Name of TensorFlow's own CollectiveReduceV2, which is no schedule: on processors it is a ring."""

ALL_REDUCES: Mapping[str, AllReduce] = {
    row.name: row
    for row in (
        SHUFFLE,
        STAR,
        RING,
        HALVING_DOUBLING,
        CHAIN,
        AllReduce(NATIVE, None, ring.factors, has_one_sender=True),
    )
}
"""The all-reduce algorithms by name, in the order in which ties are broken."""

ALGORITHMS: Mapping[str, Algorithm] = {n: row.schedule for n, row in ALL_REDUCES.items() if row.schedule is not None}
"""The functions that make schedules, by the name of the algorithm; `NATIVE` has none."""

ALL_REDUCE_NAMES = tuple(ALL_REDUCES)
"""Names of all all-reduces that can be chosen, `NATIVE` included, in the order in which ties are broken."""

ALL_GATHER = "all_gather"
"""Name of the collective by which sparse gradients travel; there is no choice."""


def check_algorithm(name: object, among: Collection[str] = ALL_REDUCE_NAMES) -> None:
    """Check the name of an algorithm.

    Args:
        name: name that was given.
        among: names of the algorithms that there are.

    Raises:
        InputError: it is none of them.
    """
    if not isinstance(name, str) or name not in tuple(among):
        raise InputError(f"there is no all-reduce algorithm {shown(name)}; there are {', '.join(among)}")


class Schedules:
    """Proved schedules, each made and checked once however many transfers use it."""

    def __init__(self) -> None:
        self._proved: dict[tuple[str, int, int, int, int], tuple[Schedule, Proof]] = {}

    def proved(
        self, algorithm: str, workers: int, size: int, depth: int, turn: int = 0, in_rank_order: bool = False
    ) -> Schedule:
        """The schedule of an all-reduce.

        Args:
            algorithm: a name in `ALGORITHMS`.
            workers: number of ranks, at least 1.
            size: elements of the tensor, at least 0.
            depth: number of chunks, at least 1.
            turn: number of the transfer, by which uneven work rotates among the ranks.
            in_rank_order: whether every sum must be the rank-order left fold.

        Raises:
            InputError: no such algorithm, or an argument is out of range.
            InvariantError: the schedule is wrong (a defect of this library), or does not add in rank order.
        """
        check_algorithm(algorithm, ALGORITHMS)
        key = (algorithm, workers, size, depth, turn % max(workers, 1))
        if key not in self._proved:
            unproved = in_chunks(ALGORITHMS[algorithm], workers, size, depth, turn)
            self._proved[key] = unproved, check(unproved)
        schedule, proof = self._proved[key]
        if in_rank_order and not proof.is_rank_order_fold:
            raise InvariantError(f"the {algorithm} of {size} elements over {workers} ranks does not add in rank order")
        return schedule
