"""Transfer boundaries: the times when each gradient is ready and when its parameter is first read, in an order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

import numpy as np

from caramel.analyzers.analyzer import Analyzer
from caramel.analyzers.cost.network import Network
from caramel.analyzers.step.element_updates import element_updates, writers_before_gradient
from caramel.analyzers.step.table_costs import TableCosts
from caramel.collectives.dtypes import ITEM_BYTES
from caramel.errors import listed
from caramel.facts import Boundaries, Boundary, ControlEdges, Dependencies, Trace, UpdateOrder
from caramel.graph.graph import Graph, node_of
from caramel.model import Gradient, Model


def boundaries(sharded: Collection[str] = (), divided: Collection[str] = ()) -> Analyzer:
    """The analyzer that provides `Boundaries`.

    Args:
        sharded: names of gradients whose updates each worker makes a part of, in the step itself.
        divided: names of sparse gradients of whose tables each worker has some rows.
    """
    return Analyzer(
        "boundaries",
        (Model, Dependencies, Trace, UpdateOrder, ControlEdges, Network),
        Boundaries,
        partial(find_boundaries, sharded=sharded, divided=divided),
    )


def find_boundaries(
    model: Model,
    found: Dependencies,
    trace: Trace,
    order: UpdateOrder,
    enforced: ControlEdges,
    network: Network,
    sharded: Collection[str] = (),
    divided: Collection[str] = (),
) -> Boundaries:
    """Put all ops of a step one after the other and look where gradients and reads are.

    What no gradient needs, and no update is, comes last; where the trace has the pace of a step, times are those at
    which all workers were so far. They are scaled so that all ops together take the step that was measured, with this
    order enforced if that was, and longer by the processor time that one transfer of everything takes from them if they
    were measured, and the network model says so. Collectives of the forward pass come on top.

    Args:
        model: the single-device step.
        found: dependencies of the step.
        trace: measured times of the step.
        order: order in which gradients are computed.
        enforced: control edges that enforce the order.
        network: network with the element type on the wire and the processor time that transfers take.
        sharded: see `boundaries`.
        divided: see `boundaries`.

    Source:
        Caramel, sections 3.3.1 and 4.1.
    """
    needed, others = op_sequence(found, order)
    total_s = sum(trace.op_s.get(op, 0.0) for op in found.ops)
    kind = enforced.kind if enforced.edges else "none"
    alone_s = _step_s(trace, kind)
    tables = TableCosts(model, trace, network, divided)
    sent_bytes = {g.name: _sent_bytes(g, network, tables) for g in model.gradients}
    # Times that were not measured are good for an order only; nothing has to be known of transfers for that.
    factor = _computation_factor(network, alone_s, sum(sent_bytes.values())) if trace.runs > 0 else 1.0
    scale = factor * alone_s / total_s if total_s > 0 else 0.0
    waits_s = {**_forward_waits_s(model, trace, network), **tables.waits_s()}
    starts, ends, now_s = {}, {}, 0.0
    for op in [*needed, *others]:
        starts[op] = now_s
        now_s += scale * trace.op_s.get(op, 0.0) + waits_s.get(op, 0.0)
        ends[op] = now_s
    compute_s = now_s
    pace = trace.pace.get(kind, ())
    if pace:
        starts, ends = (_at_pace(times, pace, compute_s) for times in (starts, ends))
    by_name = {g.name: g for g in model.gradients}
    gradient_boundaries = []
    for name in order.gradients:
        gradient = by_name[name]
        reads = [_first_use_s(model.graph, user, starts, compute_s) for user in found.reads[name]]
        parts = network.workers if name in sharded else 1
        update_s = sum(trace.op_s.get(op, 0.0) * tables.times(name, op) for op in found.updates[name])
        blocks = found.levels[name] > 0 or any(level > 0 for level in found.levels.values())
        gradient_boundaries.append(
            Boundary(
                name=name,
                dtype=gradient.dtype,
                elements=None if gradient.is_sparse else gradient.size,
                size_bytes=sent_bytes[name],
                ready_s=max(ends[p] for p in found.producers[name]),
                read_s=min(reads, default=compute_s),
                update_s=scale * update_s / parts,
                level=found.levels[name],
                kept_reason=found.kept_reasons[name] or _kept_by_sharding(model, name, sharded),
                divisible=not gradient.is_sparse and not blocks and name not in sharded,
                condition=found.conditions.get(name, ""),
            )
        )
    beside = "" if factor == 1 else f"; beside one transfer of everything computation takes {factor:.3g} times as long"
    basis = f"{trace.description}{_missing(model, found, trace)}{beside}"
    return Boundaries(tuple(gradient_boundaries), compute_s, basis, factor, frozenset(sharded), frozenset(divided))


def _kept_by_sharding(model: Model, name: str, sharded: Collection[str]) -> str:
    """Why a gradient whose update is sharded cannot travel in the forward window; "" where it can."""
    early = writers_before_gradient(model, element_updates(model)[0][name]) if name in sharded else ()
    return f"its update is sharded, and op {early[0]!r} writes the parameter in its own step" if early else ""


def op_sequence(found: Dependencies, order: UpdateOrder) -> tuple[list[str], list[str]]:
    """The ops of a step but its updates, one after the other: what gradients need, in their order, and the others.

    Args:
        found: dependencies of the step.
        order: order in which gradients are computed.
    """
    updating = {node for nodes in found.updates.values() for node in nodes}
    needed = [op for stage in order.stages for op in stage]
    others = set(found.ops) - set(needed) - updating
    return needed, [op for op in found.ops if op in others]


def _forward_waits_s(model: Model, trace: Trace, network: Network) -> dict[str, float]:
    """Seconds that a step waits for collectives of the forward pass, by the op whose value they make.

    What reads the value waits for it, so they count like ops. A gradient that is summed on its way back is another.
    """
    if trace.runs == 0 or not network.is_known or network.workers == 1:
        return {}
    waits_s = {}
    for each in model.forward_sums:
        time_s = network.time_s(trace.op_bytes.get(each.node, 0))
        for op in (each.node, *(each.entries if each.gradients_differ else ())):
            waits_s[op] = time_s
    return waits_s


def _at_pace(times_s: Mapping[str, float], pace: Sequence[float], compute_s: float) -> dict[str, float]:
    """Times on the clock of ops one after the other, on that of real steps."""
    parts = np.linspace(0, compute_s, len(pace))
    found = compute_s * np.interp(np.fromiter(times_s.values(), float, len(times_s)), parts, pace)
    return dict(zip(times_s, found.tolist()))


def _missing(model: Model, found: Dependencies, trace: Trace) -> str:
    """What a trace does not say, and what is taken instead; and whether workers shared its host. Empty if neither."""
    if trace.runs == 0:  # nothing was measured
        return ""
    untimed = [name for name, nodes in found.producers.items() if not any(node in trace.op_s for node in nodes)]
    unsized = [g.name for g in model.gradients if g.indices is not None and node_of(g.tensor) not in trace.op_bytes]
    text = f"; it has no times of what makes {listed(untimed, 3)}, which count as 0" if untimed else ""
    if trace.workers > 1:
        text += f"; {trace.workers} workers computed at once there, and shared the cores"
    return text + (f"; it has no sizes of {listed(unsized, 3)}, which count with all rows" if unsized else "")


def _computation_factor(network: Network, alone_s: float, total_bytes: float) -> float:
    """The factor by which computation takes longer beside one transfer of everything."""
    if not network.takes_processor:
        return 1.0
    return network.compute_factor(alone_s, network.time_s(total_bytes), network.processor_s(total_bytes))


def _step_s(trace: Trace, kind: str) -> float:
    """Seconds of a step: as measured, and longer by the cost of the order where that was measured."""
    measured = trace.ordered_step_s
    free_s = measured.get("none", 0.0)
    return trace.step_s * (measured.get(kind, free_s) / free_s if free_s > 0 else 1.0)


def _first_use_s(graph: Graph, user: str, starts: dict[str, float], compute_s: float) -> float:
    """Seconds until an op that reads a variable is needed; the end of the step where only updates need it."""
    if user not in starts:
        return compute_s
    waiting: Sequence[str] = [user]
    if graph[user].op in ("ReadVariableOp", "Identity"):  # they take no time; what waits is what uses the value
        waiting = [reader for reader, _ in graph.consumers[user] if reader in starts] or [user]
    return min(starts[name] for name in waiting)


def _sent_bytes(gradient: Gradient, network: Network, tables: TableCosts) -> float:
    """Bytes of the all-reduce that sends as much as the transfer of a gradient."""
    if gradient.is_sparse:
        return tables.sent_bytes(gradient)
    return gradient.size * ITEM_BYTES[network.options.wire_for(gradient.dtype) or gradient.dtype]
