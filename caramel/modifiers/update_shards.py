"""Shards: which elements of sharded updates, of slots and of tables each worker has, as follows from the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from caramel.analyzers.servers.placement import divided_updates, node_servers
from caramel.analyzers.step.row_updates import RowUpdate, row_updates
from caramel.collectives.algorithms import schedule_maker
from caramel.collectives.dealt_rows import rows_of_owners
from caramel.collectives.schedule import complete_sums, in_chunks
from caramel.facts import Piece
from caramel.model import Model
from caramel.plan import OWNERS, Plan, Transfer
from caramel.server_plan import Home


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


def divided_tables(model: Model, plan: Plan) -> list[RowUpdate]:
    """The tables of which each worker has some rows, in the order of their gradients.

    Args:
        model: the single-device step.
        plan: the plan, whose transfers say which.
    """
    names = {name for transfer in plan.transfers if transfer.algorithm == OWNERS for name in transfer.gradients}
    return [row_updates(model)[0][gradient.name] for gradient in model.gradients if gradient.name in names]


def served_tables(model: Model, plan: Plan) -> list[tuple[Home, RowUpdate]]:
    """The tables of which each parameter server has some rows.

    Args:
        model: the single-device step.
        plan: the plan.
    """
    homes = () if plan.servers is None else plan.servers.homes
    return [(home, update) for home, update in divided_updates(model, homes) if isinstance(update, RowUpdate)]


@dataclass(frozen=True)
class Division:
    """How a variable is divided between ranks: workers, or parameter servers.

    Attributes:
        ranks: ranks that have parts. Parameter servers count on from the workers.
        shards: ranges of its elements, all of them in their order, where it is divided by elements. Else empty: then
            the rank in place k of K has the rows k, k + K, k + 2 K and so on.
    """

    ranks: tuple[int, ...]
    shards: Shards = ()

    @property
    def is_by_rows(self) -> bool:
        """Whether each rank has whole rows; otherwise its elements are one flat tensor."""
        return not self.shards

    def rows(self, whole: Sequence[int]) -> Mapping[int, int]:
        """The number of rows of each rank, where it is divided by rows.

        Args:
            whole: shape of the whole variable.
        """
        return dict(zip(self.ranks, rows_of_owners(whole[0], len(self.ranks))))


def divisions(model: Model, plan: Plan) -> Mapping[str, Division]:
    """How the variables are divided of which each worker, or server, has a part only, by the variable's name.

    Args:
        model: the single-device step.
        plan: the plan.
    """
    found: dict[str, Division] = {}
    names, workers = {v.plan_name: v.name for v in model.variables}, tuple(range(plan.workers))
    for home in () if plan.servers is None else plan.servers.homes:
        if home.is_divided:
            division = _of_servers(home, plan.workers)
            found.update((names[name], division) for name in home.variables)
    if plan.sharded:
        shards = gradient_shards(plan)
        for update in plan.sharded:
            found.update((names[slot], Division(workers, shards[update.gradient])) for slot in update.slots)
    for table in divided_tables(model, plan):
        found.update((name, Division(workers)) for name in (table.parameter, *table.slots))
    return found


def _of_servers(home: Home, workers: int) -> Division:
    ranks = tuple(workers + server for server in home.servers)
    if home.rows:
        return Division(ranks)
    starts = accumulate(home.sizes, initial=0)
    return Division(ranks, tuple(map(Shard, ranks, starts, home.sizes)))


def ranks_with_all(model: Model, plan: Plan) -> Mapping[str, tuple[int, ...]]:
    """The ranks that have all of a variable of the step, by the variable's name; the first gives it to the others.

    Args:
        model: the single-device step.
        plan: the plan. Its parameter servers count on from the workers.
    """
    workers = tuple(range(plan.workers))
    if plan.servers is None:
        return {v.name: workers for v in model.variables if v.node in model.graph}
    homes, there = plan.servers.home_by_variable, node_servers(model, plan.servers.homes)
    return {
        v.name: (*(() if v.plan_name in homes else workers), *(plan.workers + k for k in there.get(v.node, ())))
        for v in model.variables
        if v.node in model.graph
    }
