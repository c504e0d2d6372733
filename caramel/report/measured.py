"""A measured step, from TensorFlow's statistics of a real one, as lanes."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from caramel.compiler.distributed_model import DistributedModel
from caramel.errors import listed
from caramel.graph.devices import Device
from caramel.graph.graph import Graph, data_texts, node_of
from caramel.measure.step_stats import Message, Row, TracedStep
from caramel.model import Model
from caramel.modifiers.emission import Purpose, Role
from caramel.report.served_links import ServedMessage, expected_pulls, served_messages
from caramel.report.step_timeline import (
    BACKWARD_PASS,
    FORWARD_PASS,
    OTHER,
    PULL,
    REDUCTION,
    STALL,
    TRANSFER,
    UPDATE,
    Bar,
    Lanes,
    StepTimeline,
    gaps,
    in_order,
    stalls,
)

_REPLICA = re.compile(r"(?:worker|server)_(\d+)/(.+)")
_POSTPONED = re.compile(r"caramel/worker_\d+/postponed/")
_COLLECTIVE = re.compile(r"caramel/transfer_(\d+)/(\S*)")

IN_MEMORY = "Workers and parameter servers share a process here, so nothing is sent: all is handed over in memory."
_OWN_CLOCKS = "What workers push is not shown: when it was there is known by the clocks of the servers only."

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

    A transfer is on a worker's lane from when all its gradients are there until its results are; a pull from when the
    worker has asked for it and the server has it until it is there; a push from when the worker has it until the server
    does. Times without any op on a worker are stalls; what they wait for is taken to be that on the link which ends
    first.

    Args:
        distributed: the distributed model of which a step was traced.
        step: the traced step.
        notes: notes about how it was measured, one sentence each.
    """
    plan = distributed.plan
    rows_by_rank, transfer_rows = _sorted_rows(distributed, step.rows)
    received = {} if plan.servers is not None else _messages_by_rank(step.messages, rows_by_rank)
    ranks = range(plan.workers + len(plan.server_devices))
    extents = {r: _extent(rows_by_rank.get(r, []), received.get(r, [])) for r in ranks}
    clocks = _clocks(extents, _is_of_one_process(step.rows))
    if plan.servers is None:
        ready_ns = _ready_ns(distributed, rows_by_rank)
        links = {r: _transfers(transfer_rows.get(r, {}), ready_ns.get(r, {}), clocks, r) for r in ranks}
        arrivals = {r: [(m.end_ns, m.size_bytes) for m in received.get(r, [])] for r in ranks}
        expected = _expected(distributed)
        other_notes: tuple[str, ...] = ()
    else:
        served = served_messages(distributed, step.messages, step.rows, clocks.are_one)
        links = {r: _served([m for m in served if m.rank == r], clocks) for r in ranks}
        arrivals = {r: [(m.end_ns, m.size_bytes) for m in served if (m.kind, m.rank) == (PULL, r)] for r in ranks}
        expected = expected_pulls(distributed)
        is_handed_over = _is_of_one_process(step.rows)
        other_notes = (IN_MEMORY,) if is_handed_over else () if clocks.are_one else (_OWN_CLOCKS,)

    lanes = [_lanes(r, rows_by_rank.get(r, []), links[r], arrivals[r], clocks) for r in ranks]
    workers = tuple(lanes[: plan.workers])
    servers = tuple(
        replace(each, rank=number, computation=tuple(bar for bar in each.computation if bar.kind != STALL))
        for number, each in enumerate(lanes[plan.workers :])
    )
    all_notes = (*notes, *other_notes, *clocks.notes, *_silent(workers, expected))
    return StepTimeline("measured", clocks.step_ns / 1e9, workers, all_notes, clocks.are_one, servers)


def _silent(workers: Sequence[Lanes], expected: Mapping[int, int]) -> Sequence[str]:
    """A note about workers of whose messages TensorFlow does not say all, now and then, though it says something."""
    silent = [f"worker {lanes.rank}" for lanes in workers if len(lanes.received) < expected.get(lanes.rank, 0)]
    if not silent or not any(lanes.received for lanes in workers):
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
        kind = _kind(name, role, kinds)
        if role.rank >= distributed.plan.workers and kind in (FORWARD_PASS, BACKWARD_PASS):
            kind = OTHER  # a server reads what these need
        by_rank.setdefault(role.rank, []).append((kind, row))
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


@dataclass(frozen=True)
class _Clocks:
    """The clocks of the workers and servers in a step.

    Attributes:
        starts_ns: nanoseconds at which the step of each began, by its own clock and its rank.
        step_ns: nanoseconds of the step.
        notes: what is doubtful of them, one sentence each.
    """

    starts_ns: Mapping[int, int]
    step_ns: int
    notes: tuple[str, ...] = ()

    @property
    def are_one(self) -> bool:
        """Whether times of different ones can be compared."""
        return not self.notes

    def seconds(self, time_ns: float, rank: int) -> float:
        """Seconds from the beginning of the step to a time by the clock of a worker or server."""
        return (time_ns - self.starts_ns[rank]) / 1e9


def _clocks(extents: Mapping[int, tuple[int, int] | None], is_one_process: bool) -> _Clocks:
    """What the clocks of the workers and servers have in common, from the time in which there is something of each.

    Where clocks are those of one machine, they are one clock. Where a worker of another process seems to begin after
    another has ended, they are not, and each worker begins at 0.
    """
    known = {rank: extent for rank, extent in extents.items() if extent is not None}
    if not known:
        return _Clocks(dict.fromkeys(extents, 0), 0)
    first, length = min(start for start, _ in known.values()), max(end - start for start, end in known.values())
    if not is_one_process and max(start for start, _ in known.values()) - first > length:
        starts = {rank: known[rank][0] if rank in known else 0 for rank in extents}
        return _Clocks(starts, length, ("The clocks of the workers differ, so each worker's lanes begin at 0.",))
    return _Clocks(dict.fromkeys(extents, first), max(end for _, end in known.values()) - first)


# -- lanes -------------------------------------------------------------------------------------


def _transfers(
    rows: Mapping[int, Sequence[Row]], ready_ns: Mapping[int, int], clocks: _Clocks, rank: int
) -> tuple[Bar, ...]:
    """The transfers on a worker's link."""
    return in_order(
        Bar(
            TRANSFER,
            f"transfer {number}",
            clocks.seconds(min(ready_ns.get(number, math.inf), *(row.start_ns for row in of_transfer)), rank),
            clocks.seconds(max(row.end_ns for row in of_transfer), rank),
            number,
        )
        for number, of_transfer in rows.items()
    )


def _served(messages: Iterable[ServedMessage], clocks: _Clocks) -> tuple[Bar, ...]:
    """The pulls and pushes on a worker's link; of pushes those of which both times are known by one clock."""
    shown = (m for m in messages if m.start_ns is not None and (m.kind == PULL or clocks.are_one))
    return in_order(
        Bar(m.kind, m.name, start_s, max(clocks.seconds(m.end_ns, m.rank), start_s))
        for m in shown
        for start_s in [clocks.seconds(m.start_ns or 0, m.rank)]
    )


def _lanes(
    rank: int,
    rows: Iterable[tuple[str, Row]],
    link: tuple[Bar, ...],
    arrivals: Iterable[tuple[int, int]],
    clocks: _Clocks,
) -> Lanes:
    busy = in_order(
        Bar(
            kind,
            _own_name(row.node),
            clocks.seconds(row.start_ns, rank),
            clocks.seconds(row.end_ns, rank),
            _transfer_of(row.node),
        )
        for kind, row in rows
    )
    step_s = clocks.step_ns / 1e9
    waiting = [
        stall
        for start_s, end_s in gaps(busy, 0.0, step_s)
        if end_s - start_s >= _LEAST_STALL * step_s
        for stall in stalls("no op runs", link, start_s, end_s)
    ]
    received = tuple((clocks.seconds(end_ns, rank), size_bytes) for end_ns, size_bytes in sorted(arrivals))
    return Lanes(rank, in_order([*busy, *waiting]), link, received)


def _own_name(node: str) -> str:
    match = _REPLICA.fullmatch(node)
    return node if match is None else match[2]


def _transfer_of(node: str) -> int | None:
    match = _COLLECTIVE.match(node)
    return None if match is None else int(match[1])
