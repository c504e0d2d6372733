"""A measured step, from TensorFlow's statistics of a real one, as lanes."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from caramel.compiler.distributed_model import DistributedModel
from caramel.errors import listed
from caramel.graph.devices import Device
from caramel.graph.graph import Graph, data_texts, node_of
from caramel.measure.step_stats import Message, Row, TracedStep
from caramel.model import Model
from caramel.modifiers.emission import Purpose, Role
from caramel.report.step_timeline import (
    BACKWARD_PASS,
    FORWARD_PASS,
    OTHER,
    REDUCTION,
    STALL,
    TRANSFER,
    UPDATE,
    Bar,
    StepTimeline,
    WorkerLanes,
    gaps,
    in_order,
    waits,
)

_REPLICA = re.compile(r"worker_(\d+)/(.+)")
_POSTPONED = re.compile(r"caramel/worker_\d+/postponed/")
_COLLECTIVE = re.compile(r"caramel/transfer_(\d+)/(\S*)")

OF_SERVERS = (
    "What workers pull from parameter servers and push to them does not count as sent: it is in the times in which a "
    "worker neither computes nor sends."
)

_LEAST_STALL = 5e-3
"""Fraction of a step from which on a time without an op is shown as a stall: between two ops there is always some."""


def kinds_of_nodes(model: Model) -> Mapping[str, str]:
    """What each node of the single-device step is for, by its name.

    Args:
        model: the single-device step.

    Returns:
        `FORWARD_PASS` for what the loss needs, `BACKWARD_PASS` for what only gradients need, `UPDATE` for what follows
        from gradients, `OTHER` for the rest.
    """
    graph = model.graph
    producers = [node_of(t) for g in model.gradients for t in (g.tensor, g.indices) if t is not None]
    # Control inputs say only what else a step has to do: a loss that is returned may wait for all updates.
    needed = graph.ancestors(producers, control=False)
    forward = graph.ancestors([node_of(model.loss)], control=False)
    kinds = dict.fromkeys(needed, BACKWARD_PASS)
    kinds.update((name, UPDATE) for name in graph.descendants(producers) - needed)
    kinds.update((name, FORWARD_PASS) for name in forward)
    return {node.name: kinds.get(node.name, OTHER) for node in graph}


def measured_timeline(distributed: DistributedModel, step: TracedStep, notes: Iterable[str] = ()) -> StepTimeline:
    """The lanes of a real step.

    A transfer is on a worker's lane from when all its gradients are there until its results are. Times without any op
    on a worker are stalls; what they wait for is taken to be that transfer under way which ends first.

    Args:
        distributed: the distributed model of which a step was traced.
        step: the traced step.
        notes: notes about how it was measured, one sentence each.
    """
    rows_by_rank, transfer_rows = _sorted_rows(distributed, step.rows)
    received = _messages_by_rank(step.messages, rows_by_rank)
    ranks = range(distributed.plan.workers)
    extents = {r: _extent(rows_by_rank.get(r, []), received.get(r, [])) for r in ranks}
    shifts, end_ns, shift_notes = _clocks(extents, _is_of_one_process(step.rows))
    ready_ns = _ready_ns(distributed, rows_by_rank)
    workers = tuple(
        _lanes(
            rank,
            rows_by_rank.get(rank, []),
            transfer_rows.get(rank, {}),
            ready_ns.get(rank, {}),
            received.get(rank, []),
            shifts,
            end_ns,
        )
        for rank in ranks
    )
    served = () if distributed.plan.servers is None else (OF_SERVERS,)
    all_notes = (*notes, *served, *shift_notes, *_silent(workers, _expected(distributed)))
    return StepTimeline("measured", end_ns / 1e9, workers, all_notes, has_one_clock=not shift_notes)


def _silent(workers: Iterable[WorkerLanes], expected: Mapping[int, int]) -> Sequence[str]:
    """A note about workers of whose messages TensorFlow does not say all, now and then, though it says something."""
    sending = [lanes for lanes in workers if lanes.link]
    silent = [f"worker {lanes.rank}" for lanes in sending if len(lanes.received) < expected.get(lanes.rank, 0)]
    if not silent or not any(lanes.received for lanes in sending):
        return ()
    return (f"TensorFlow kept no account of all that {listed(silent)} received in this step.",)


def _expected(distributed: DistributedModel) -> Mapping[int, int]:
    """The number of tensors that each worker gets from others for collectives, by its rank."""
    roles = distributed.roles
    crossing = {
        (roles[node.name].rank, text)
        for node in distributed.emission.graph
        if roles[node.name].purpose is Purpose.COLLECTIVE
        for text in data_texts(node)
        if roles[node_of(text)].rank != roles[node.name].rank
    }
    return Counter(rank for rank, _ in crossing)


# -- whose rows they are -----------------------------------------------------------------------

_Rows = Mapping[int, list[tuple[str, Row]]]


def _sorted_rows(
    distributed: DistributedModel, rows: Iterable[Row]
) -> tuple[_Rows, Mapping[int, Mapping[int, list[Row]]]]:
    """Rows with their kinds by rank, and those from the beginning to the end of each transfer, by rank and number."""
    kinds, roles = kinds_of_nodes(distributed.model), distributed.roles
    in_transfers = _nodes_in_transfers(distributed.emission.graph)
    by_rank: dict[int, list[tuple[str, Row]]] = {}
    transfers: dict[int, dict[int, list[Row]]] = {}
    for row in rows:
        name = _known(row.node, roles)
        if name is None:
            continue
        role = roles[name]
        by_rank.setdefault(role.rank, []).append((_kind(name, role, kinds), row))
        if role.transfer is not None and row.node in in_transfers:
            transfers.setdefault(role.rank, {}).setdefault(role.transfer, []).append(row)
    return by_rank, transfers


def _ready_ns(distributed: DistributedModel, rows_by_rank: _Rows) -> Mapping[int, Mapping[int, int]]:
    """When all gradients of a transfer are there, by rank and number, where that is known of each of them.

    A worker that sends a gradient as it is has no op of its own for that.
    """
    emission = distributed.emission
    found: dict[int, dict[int, int]] = {}
    for rank, rows in rows_by_rank.items():
        ends_ns: dict[str, int] = {}
        for _, row in rows:
            ends_ns[row.node] = max(row.end_ns, ends_ns.get(row.node, row.end_ns))
        for number, transfer in enumerate(emission.plan.transfers):
            sources = [node_of(emission.pieces[rank, piece]) for piece in transfer.pieces]
            if all(source in ends_ns for source in sources):
                found.setdefault(rank, {})[number] = max(ends_ns[source] for source in sources)
    return found


def _kind(name: str, role: Role, kinds: Mapping[str, str]) -> str:
    """What a node of the distributed graph is for."""
    match = _REPLICA.fullmatch(name)
    if match is not None:
        return kinds.get(match[2], OTHER)
    if role.purpose is Purpose.COLLECTIVE or name.startswith("caramel/cut_"):
        return REDUCTION
    return UPDATE if _POSTPONED.match(name) is not None else OTHER


def _known(name: str, roles: Mapping[str, Role]) -> str | None:
    """The node of the graph that a row is of: itself, or the call or loop that it is a part of."""
    while name not in roles:
        name, _, rest = name.rpartition("/")
        if not rest or not name:
            return None
    return name


def _nodes_in_transfers(graph: Graph) -> set[str]:
    """The nodes of collectives that wait for a whole bucket: not those of constants, nor a gradient's own reshape."""
    constant: set[str] = set()
    waiting: set[str] = set()
    for name in graph.order:
        match = _COLLECTIVE.match(name)
        if match is None:
            continue
        inputs = [node_of(text) for text in data_texts(graph[name])]
        if graph[name].op == "Const" or (inputs and all(source in constant for source in inputs)):
            constant.add(name)
        elif not match[2].startswith("flat_"):
            waiting.add(name)
    return waiting


def _messages_by_rank(messages: Iterable[Message], rows_by_rank: _Rows) -> Mapping[int, list[Message]]:
    """What came for collectives from other devices, by the rank of the worker most of whose ops run on the target."""
    counts = Counter((row.device, rank) for rank, rows in rows_by_rank.items() for _, row in rows)
    ranks = {device: rank for (device, rank), _ in sorted(counts.items(), key=lambda item: item[1])}  # the most is last
    received: dict[int, list[Message]] = {}
    for message in messages:
        is_of_transfer = _COLLECTIVE.search(message.tensor) is not None
        if is_of_transfer and message.source != message.target and message.target in ranks:
            received.setdefault(ranks[message.target], []).append(message)
    return received


# -- clocks ------------------------------------------------------------------------------------


def _extent(rows: Sequence[tuple[str, Row]], messages: Sequence[Message]) -> tuple[int, int] | None:
    """First start and last end on a worker, in nanoseconds of its clock; None if nothing is known of it."""
    if not rows:
        return None
    ends = [row.end_ns for _, row in rows] + [message.end_ns for message in messages]
    return min(row.start_ns for _, row in rows), max(ends)


def _is_of_one_process(rows: Iterable[Row]) -> bool:
    """Whether all ops ran in one process."""
    devices = [Device.parse(text) for text in {row.device for row in rows}]
    return len({(device.job, device.task) for device in devices}) == 1


def _clocks(
    extents: Mapping[int, tuple[int, int] | None], is_one_process: bool
) -> tuple[Mapping[int, int], int, Sequence[str]]:
    """The nanoseconds at which each worker's step began by its clock, the nanoseconds of the step, and notes.

    Where clocks are those of one machine, they are one clock. Where a worker of another process seems to begin after
    another has ended, they are not, and each worker begins at 0.
    """
    known = {rank: extent for rank, extent in extents.items() if extent is not None}
    if not known:
        return dict.fromkeys(extents, 0), 0, ()
    first, length = min(start for start, _ in known.values()), max(end - start for start, end in known.values())
    if not is_one_process and max(start for start, _ in known.values()) - first > length:
        starts = {rank: known[rank][0] if rank in known else 0 for rank in extents}
        return starts, length, ("The clocks of the workers differ, so each worker's lanes begin at 0.",)
    return dict.fromkeys(extents, first), max(end for _, end in known.values()) - first, ()


# -- lanes -------------------------------------------------------------------------------------


def _lanes(
    rank: int,
    rows: Iterable[tuple[str, Row]],
    transfers: Mapping[int, Sequence[Row]],
    ready_ns: Mapping[int, int],
    messages: Sequence[Message],
    shifts: Mapping[int, int],
    length_ns: int,
) -> WorkerLanes:
    shift_ns = shifts[rank]

    def seconds(time_ns: float) -> float:
        return (time_ns - shift_ns) / 1e9

    link = in_order(
        Bar(
            TRANSFER,
            f"transfer {number}",
            seconds(min(ready_ns.get(number, math.inf), *(row.start_ns for row in of_transfer))),
            seconds(max(row.end_ns for row in of_transfer)),
            number,
        )
        for number, of_transfer in transfers.items()
    )
    busy = in_order(
        Bar(kind, _own_name(row.node), seconds(row.start_ns), seconds(row.end_ns), _transfer_of(row.node))
        for kind, row in rows
    )
    step_s = length_ns / 1e9
    stalls = [
        Bar(STALL, "no op runs", first_s, last_s, transfer)
        for start_s, end_s in gaps(busy, 0.0, step_s)
        if end_s - start_s >= _LEAST_STALL * step_s
        for first_s, last_s, transfer in waits(link, start_s, end_s)
    ]
    received = tuple((seconds(m.end_ns), m.size_bytes) for m in sorted(messages, key=lambda m: m.end_ns))
    return WorkerLanes(rank, in_order([*busy, *stalls]), link, received)


def _own_name(node: str) -> str:
    match = _REPLICA.fullmatch(node)
    return node if match is None else match[2]


def _transfer_of(node: str) -> int | None:
    match = _COLLECTIVE.match(node)
    return None if match is None else int(match[1])
