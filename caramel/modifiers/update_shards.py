"""Shards: which elements of sharded updates and their slots each worker has, as follows from the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from caramel.collectives.algorithms import schedule_maker
from caramel.collectives.schedule import complete_sums, in_chunks
from caramel.facts import Piece
from caramel.model import Model
from caramel.plan import Plan, Transfer


@dataclass(frozen=True)
class Shard:
    """Elements of a flat tensor that one worker has.

    Attributes:
        rank: rank of the worker.
        start: position of the first element.
        size: number of elements.
    """

    rank: int
    start: int
    size: int


Shards = tuple[Shard, ...]
"""Shards of one tensor: all of its elements, in their order."""


def parts_of(transfer: Transfer, start: int, size: int) -> list[tuple[Piece, int, int]]:
    """What a range of a transfer's elements has: pieces, the first element in the gradient, and their number."""
    found, position = [], 0
    for piece in transfer.pieces:
        elements = piece.elements or 0
        first, last = max(start, position), min(start + size, position + elements)
        if first < last:
            found.append((piece, piece.start + first - position, last - first))
        position += elements
    return found


def gradient_shards(plan: Plan) -> Mapping[str, Shards]:
    """The shards of the gradients whose updates are sharded, by the gradient's name.

    Args:
        plan: the plan.
    """
    return _shards(plan.transfers, plan.workers, frozenset(update.gradient for update in plan.sharded))


@lru_cache(maxsize=4)
def _shards(transfers: tuple[Transfer, ...], workers: int, names: frozenset[str]) -> Mapping[str, Shards]:
    shards: dict[str, list[Shard]] = {name: [] for name in names}
    for number, transfer in enumerate(transfers):
        if names.isdisjoint(transfer.gradients):
            continue
        make, size = schedule_maker(transfer.algorithm), transfer.elements or 0
        for complete in complete_sums(in_chunks(make, workers, size, transfer.depth, number)):
            for piece, first, count in parts_of(transfer, complete.start, complete.size):
                if piece.gradient in names:
                    shards[piece.gradient].append(Shard(complete.rank, first, count))
    return {name: tuple(sorted(found, key=lambda shard: shard.start)) for name, found in shards.items()}


def slot_shards(model: Model, plan: Plan) -> Mapping[str, Shards]:
    """The shards of the variables of which each worker has a part only, by the variable's name.

    Args:
        model: the single-device step.
        plan: the plan.
    """
    if not plan.sharded:
        return {}
    names = {v.plan_name: v.name for v in model.variables}
    shards = gradient_shards(plan)
    return {names[slot]: shards[update.gradient] for update in plan.sharded for slot in update.slots}
