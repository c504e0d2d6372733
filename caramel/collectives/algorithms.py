"""The all-reduce algorithms: one row for each, and from it all that the rest of the library asks about them.

There is a row of `ALL_REDUCES` for each that needs to know nothing of hosts; `all_reduce_named` knows those for so many
workers on a host, too. All schedules are proved by `caramel.collectives.schedule.check`, for any number of workers and
any size.
"""

from __future__ import annotations

from collections.abc import Mapping

from caramel.collectives import hierarchy, ring
from caramel.collectives.all_reduce import AllReduce
from caramel.collectives.chain import CHAIN
from caramel.collectives.halving_doubling import HALVING_DOUBLING
from caramel.collectives.ring import RING
from caramel.collectives.schedule import Algorithm, Proof, Schedule, check, in_chunks
from caramel.collectives.shuffle import SHUFFLE
from caramel.collectives.star import STAR
from caramel.errors import InputError, InvariantError
from caramel.plan import OWNERS
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
"""The functions that make schedules, by the name of the algorithm; `NATIVE` has none, and `hierarchy_K` is not here."""

ALL_REDUCE_NAMES = tuple(ALL_REDUCES)
"""Names of all all-reduces that can be chosen, `NATIVE` included, in the order in which ties are broken."""

ALL_GATHER = "all_gather"
"""Name of the collective by which sparse gradients travel, to all workers."""

SPARSE = (ALL_GATHER, OWNERS)
"""Names of all transfers of sparse gradients."""


def all_reduce_named(name: object) -> AllReduce:
    """The all-reduce of a name: one of `ALL_REDUCE_NAMES`, or ``hierarchy_K`` for hosts of K workers.

    Args:
        name: name that was given.

    Raises:
        InputError: there is none of that name.
    """
    row = (ALL_REDUCES.get(name) or hierarchy.named(name)) if isinstance(name, str) else None
    if row is None:
        raise InputError(
            f"there is no all-reduce algorithm {shown(name)}; there are {', '.join(ALL_REDUCE_NAMES)}, and "
            f"{hierarchy.NAME_FOR_PEOPLE} for hosts of K workers, at least 2"
        )
    return row


def is_all_reduce(name: object) -> bool:
    """Whether there is an all-reduce of a name."""
    return isinstance(name, str) and (name in ALL_REDUCES or hierarchy.named(name) is not None)


def schedule_maker(name: object) -> Algorithm:
    """The function that makes the schedules of an all-reduce.

    Args:
        name: name that was given.

    Raises:
        InputError: there is none of that name, or it is `NATIVE`, which has none.
    """
    make = all_reduce_named(name).schedule
    if make is None:
        raise InputError(f"the {name} all-reduce is TensorFlow's own, and has no schedule")
    return make


class Schedules:
    """Proved schedules, each made and checked once however many transfers use it."""

    def __init__(self) -> None:
        self._proved: dict[tuple[str, int, int, int, int], tuple[Schedule, Proof]] = {}

    def proved(
        self, algorithm: str, workers: int, size: int, depth: int, turn: int = 0, in_rank_order: bool = False
    ) -> Schedule:
        """The schedule of an all-reduce.

        Args:
            algorithm: name of an all-reduce that has a schedule.
            workers: number of ranks, at least 1.
            size: elements of the tensor, at least 0.
            depth: number of chunks, at least 1.
            turn: number of the transfer, by which uneven work rotates among the ranks.
            in_rank_order: whether every sum must be the rank-order left fold.

        Raises:
            InputError: no such algorithm, or an argument is out of range.
            InvariantError: the schedule is wrong (a defect of this library), or does not add in rank order.
        """
        make = schedule_maker(algorithm)
        key = (algorithm, workers, size, depth, turn % max(workers, 1))
        if key not in self._proved:
            unproved = in_chunks(make, workers, size, depth, turn)
            self._proved[key] = unproved, check(unproved)
        schedule, proof = self._proved[key]
        if in_rank_order and not proof.is_rank_order_fold:
            raise InvariantError(f"the {algorithm} of {size} elements over {workers} ranks does not add in rank order")
        return schedule
