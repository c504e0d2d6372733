"""State: restore, broadcast and save, as nodes that run between steps.

Values never enter the graph: they travel in a checkpoint that worker 0 reads, and from there to the
other workers. A checkpoint holds the single-device program's own names, from worker 0; what is
local to the other workers (statistics, random states) is kept under names of its own beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from caramel.collectives.lower import Emitter
from caramel.graph.devices import Device, host_of
from caramel.graph.graph import NodeDef, format_input
from caramel.graph.nodes import assign, constant, dtype_attribute, dtypes_attribute, group, node, read, shape_attribute
from caramel.model import Model, Variable, VariableClass
from caramel.modifiers.emission import Emission, Purpose, Role, SavedTensor, replica_name, server_name
from caramel.modifiers.seeds import GOLDEN_RATIO_32
from caramel.modifiers.update_shards import Division, divisions, ranks_with_all
from caramel.plan import Plan

RESTORE_PREFIX = "caramel/restore/prefix"
SAVE_PREFIX = "caramel/save/prefix"
RESTORE_SAVED = "caramel/restore/saved"
RESTORE_UNSAVED = "caramel/restore/unsaved"
RESTORE_LOCAL = "caramel/restore/local"
BROADCAST = "caramel/broadcast/done"
SAVE = "caramel/save/done"
SAVE_STEPS = "caramel/save/steps"
COMBINED_SCOPE = "caramel/combined"
FILL = "caramel/tables/filled"

STEPS_KEY = "caramel/steps"
"""Checkpoint key of the number of steps, which the program may not count, or otherwise."""


@dataclass(frozen=True)
class StateBuilder:
    """Collector of state nodes, each with its role."""

    nodes: list[tuple[NodeDef, Role]]

    def add(self, node_def: NodeDef, rank: int) -> str:
        self.nodes.append((node_def, Role(Purpose.STATE, rank)))
        return node_def.name


def read_checkpoint(
    builder: StateBuilder,
    scope: str,
    dtypes: Mapping[str, str],
    host: str,
    places: Mapping[str, tuple[str, str]] | None = None,
) -> dict[str, str]:
    """Read the checkpoint that is fed to `RESTORE_PREFIX`.

    Args:
        builder: collector of the new nodes.
        scope: prefix of their names.
        dtypes: dtype of each value, by its name.
        host: device of worker 0's host.
        places: where the checkpoint has a value, by its name; the key is its name by default. See
            `Variable.checkpoint_place`.

    Returns:
        The tensor of each value.
    """
    if not dtypes:
        return {}
    found = [(places or {}).get(name, (name, "")) for name in dtypes]
    keys = _strings(builder, f"{scope}/keys", [key for key, _ in found], host)
    slices = _strings(builder, f"{scope}/slices", [part for _, part in found], host)
    types = dtypes_attribute(dtypes.values())
    read = builder.add(node(f"{scope}/read", "RestoreV2", [RESTORE_PREFIX, keys, slices], host, dtypes=types), 0)
    return {key: format_input(read, position) for position, key in enumerate(dtypes)}


def local_key(rank: int, name: str) -> str:
    """Checkpoint key of a local variable of a worker other than worker 0."""
    return f"caramel/worker_{rank}/{name}"


def random_state_offset(variable: Variable, rank: int) -> np.ndarray:
    """The offset from worker 0's random state to another worker's.

    A seed of two elements is (seed, counter): the seed moves. The state of a `tf.random.Generator`
    is (counter, ..., key): the key moves. Multiples of an odd constant near 2**32 / golden ratio keep
    the streams of different ranks and of user seeds that are close together apart.

    Args:
        variable: variable of the class random state, of rank 1.
        rank: rank of the other worker.

    Returns:
        An array of the variable's shape and dtype.
    """
    offset = np.zeros(variable.shape, dtype=np.dtype(variable.dtype))
    position = 0 if variable.size <= 2 else variable.size - 1
    step = (rank * GOLDEN_RATIO_32) % (1 << 32)
    if offset.dtype.kind == "i" and offset.dtype.itemsize == 4:
        step -= (1 << 32) if step >= (1 << 31) else 0
    offset.reshape(-1)[position] = step
    return offset


def variables_on_worker(model: Model, rank: int) -> tuple[Variable, ...]:
    """The variables that a worker holds: worker 0 all of them, the others those of the step."""
    return tuple(v for v in model.variables if rank == 0 or v.node in model.graph)


def combined_nodes_by_handle(model: Model, plan: Plan) -> dict[str, str]:
    """Variables of which checkpoints hold the combined value of all workers.

    These are those of which each worker has a part, or parameter servers have all; totals, whose sum over the workers
    is the value that one device would have, and gradient accumulators, whose mean is (or sum, for a loss that is a
    sum); and statistics, where the plan says that they are averaged.

    Returns:
        The node with the combined value, on worker 0, by the handle node of the variable.
    """
    nodes_by_handle = {}
    divided, combined_kinds = divisions(model, plan), (VariableClass.ACCUMULATOR, VariableClass.TOTAL)
    ranks = ranks_with_all(model, plan)
    for number, variable in enumerate(model.variables):
        averaged = variable.kind is VariableClass.STATISTICS and plan.statistics == "mean" and _is_floating(variable)
        is_combined = plan.workers > 1 and (averaged or variable.kind in combined_kinds)
        is_served = ranks.get(variable.name, (0,))[0] >= plan.workers
        if variable.node in model.graph and (is_combined or is_served or variable.name in divided):
            nodes_by_handle[variable.node] = f"{COMBINED_SCOPE}/{number}"
    return nodes_by_handle


def _is_summed(variable: Variable, plan: Plan) -> bool:
    """Whether the value that one device would have is the sum of the workers' values."""
    is_accumulator = variable.kind is VariableClass.ACCUMULATOR and plan.reduction == "sum"
    return is_accumulator or variable.kind is VariableClass.TOTAL


def _is_floating(variable: Variable) -> bool:
    return variable.dtype.startswith(("float", "bfloat", "complex"))


def separately_saved(model: Model, plan: Plan) -> list[tuple[int, Variable, str]]:
    """(rank, variable, checkpoint key) of the values that a checkpoint keeps under names of Caramel's own."""
    combined_nodes = combined_nodes_by_handle(model, plan)
    return [
        (rank, v, local_key(rank, v.name))
        for rank in range(plan.workers)
        for v in variables_on_worker(model, rank)
        if v.kind.is_local and (rank > 0 or v.node in combined_nodes)
    ]


def add_state(emission: Emission) -> Emission:
    """Add restore, broadcast and save.

    Args:
        emission: the emission with the replicas, and with the tensors that are saved besides variables.

    Returns:
        The emission with the ops named by the constants of this module.
    """
    model, plan = emission.model, emission.plan
    builder = StateBuilder([])
    places = _Places.of(model, plan)
    host = places.host
    builder.add(_string_placeholder(RESTORE_PREFIX, host), 0)
    saved = [v for v in model.variables if v.saved]
    unsaved = [v for v in model.variables if not v.saved]
    for group_name, chosen in ((RESTORE_SAVED, saved), (RESTORE_UNSAVED, unsaved)):
        items = [(places.first(v), v, v.name) for v in chosen]
        _restore(builder, group_name, items, places)
    local_items = separately_saved(model, plan)
    _restore(builder, RESTORE_LOCAL, local_items, places)
    _broadcast(builder, model, plan, places)
    if model.tables:
        _fill(builder, model, places)
    combined_nodes = _combine(builder, model, plan, places)
    shared_items = [(places.first(v), v, v.name) for v in saved]
    _save(builder, shared_items, local_items, combined_nodes, emission.saved, places)
    return emission.extended(builder.nodes)


def file_copy_nodes(plan: Plan, scope: str) -> list[NodeDef]:
    """Ops ``scope/copied`` that let worker 0 copy the small file of ``scope/from:0`` to that of ``scope/to:0``.

    Args:
        plan: plan with the devices.
        scope: beginning of the names of all nodes.
    """
    host = str(host_of(Device.parse(plan.devices[0])))
    names = [f"{scope}/{end}" for end in ("from", "to", "content", "copied")]
    return [
        *(_string_placeholder(name, host) for name in names[:2]),
        node(names[2], "ReadFile", [names[0]], host),
        node(names[3], "WriteFile", [names[1], names[2]], host),
    ]


@dataclass(frozen=True)
class _Places:
    """Where variables are: on workers, by their ranks, and on parameter servers after them.

    Attributes:
        workers: number of workers.
        devices: device string of each worker, and of each parameter server.
        copies: ranks that have all of a variable, by its name; worker 0 has what is not there.
        divided: how variables are divided of which no rank has all, by their names.
    """

    workers: int
    devices: tuple[str, ...]
    copies: Mapping[str, Sequence[int]]
    divided: Mapping[str, Division]

    @classmethod
    def of(cls, model: Model, plan: Plan) -> _Places:
        """Those of a plan."""
        devices = tuple(str(Device.parse(text)) for text in (*plan.devices, *plan.server_devices))
        return cls(plan.workers, devices, ranks_with_all(model, plan), divisions(model, plan))

    @cached_property
    def host(self) -> str:
        """Device of worker 0's host."""
        return str(host_of(Device.parse(self.devices[0])))

    def first(self, variable: Variable) -> int:
        """The rank that has all of a variable, and gives it to the others that have."""
        return self.copies.get(variable.name, (0,))[0]

    def handle(self, rank: int, variable: Variable) -> str:
        """Name of a variable's handle on a worker or server."""
        server = rank - self.workers
        return replica_name(rank, variable.node) if server < 0 else server_name(server, variable.node)


def _string_placeholder(name: str, device: str) -> NodeDef:
    return node(name, "Placeholder", (), device, dtype=dtype_attribute("string"), shape=shape_attribute(()))


def _strings(builder: StateBuilder, name: str, values: Iterable[str], device: str) -> str:
    array = np.array([v.encode() for v in values], dtype=object)
    return builder.add(constant(name, array, "string", device), 0)


def _restore(
    builder: StateBuilder,
    group_name: str,
    items: Sequence[tuple[int, Variable, str]],
    places: _Places,
) -> None:
    scope = group_name + "_ops"
    assigned: list[str] = []
    keys = {key: v.checkpoint_place for _, v, key in items if key == v.name}
    restored = read_checkpoint(builder, scope, {key: v.dtype for _, v, key in items}, places.host, keys)
    for position, (rank, variable, key) in enumerate(items):
        name = f"{scope}/assign_{position}"
        if key == variable.name and variable.name in places.divided:
            assigned += _cut_and_assigned(builder, name, variable, restored[key], places)
        else:
            assigned.append(builder.add(_assign(name, rank, variable, restored[key], places), rank))
    builder.add(group(group_name, assigned, places.host), 0)


def _assign(name: str, rank: int, variable: Variable, value: str, places: _Places) -> NodeDef:
    return assign(name, places.handle(rank, variable), value, variable.dtype, places.devices[rank])


def _cut_and_assigned(builder: StateBuilder, name: str, variable: Variable, value: str, places: _Places) -> list[str]:
    """Give each worker or server its part of a variable."""
    division = places.divided[variable.name]
    emitter = Emitter(name, places.devices, variable.dtype)
    if division.is_by_rows:
        return _dealt_and_assigned(builder, emitter, variable, value, places)
    flat = emitter.reshape(0, "flat", value, (variable.size,))
    parts = emitter.parted(0, "parts", flat, [shard.size for shard in division.shards])
    assigned = []
    for rank in division.ranks:
        own = [part for part, shard in zip(parts, division.shards) if shard.rank == rank]
        part = emitter.joined(0, f"of_{rank}", own or [emitter.slice(0, f"none_{rank}", flat, 0, 0)])
        emitter.out.nodes.append((_assign(f"{name}/{rank}", rank, variable, part, places), rank))
        assigned.append(f"{name}/{rank}")
    for node_def, rank in emitter.out.nodes:
        builder.add(node_def, rank)
    return assigned


def _dealt_and_assigned(
    builder: StateBuilder, emitter: Emitter, variable: Variable, value: str, places: _Places
) -> list[str]:
    """Give each owner its rows of a variable: of K owners every Kth one."""
    assigned, owners = [], places.divided[variable.name].ranks
    attributes = {"T": dtype_attribute(variable.dtype), "Index": dtype_attribute("int32"), "end_mask": 1}
    for place, rank in enumerate(owners):
        bounds = [emitter.integers(0, [each]) for each in (place, 0, len(owners))]
        part = emitter.add(0, f"rows_{rank}", "StridedSlice", [value, *bounds], **attributes)
        emitter.out.nodes.append((_assign(f"{emitter.prefix}/{rank}", rank, variable, part, places), rank))
        assigned.append(f"{emitter.prefix}/{rank}")
    for node_def, rank in emitter.out.nodes:
        builder.add(node_def, rank)
    return assigned


def _collected(builder: StateBuilder, emitter: Emitter, variable: Variable, places: _Places) -> str:
    """The rows of all owners in the order of the whole: the first one of each, then the second of each, and so on."""
    dtype, int32 = dtype_attribute(variable.dtype), dtype_attribute("int32")
    rows_by_rank, parts = places.divided[variable.name].rows(variable.shape), []
    most = max(rows_by_rank.values())
    for rank, rows in rows_by_rank.items():
        part = builder.add(_read(f"{emitter.prefix}/read_{rank}", rank, variable, places), rank)
        if rows < most:
            widths = np.zeros([len(variable.shape), 2], np.int32)
            widths[0, 1] = most - rows
            padding = builder.add(constant(f"{emitter.prefix}/missing_{rank}", widths, "int32", places.devices[0]), 0)
            part = emitter.add(0, f"filled_{rank}", "Pad", [part, padding], T=dtype, Tpaddings=int32)
        parts.append(part)
    rows_of_all = emitter.add(0, "rows", "Pack", parts, T=dtype, N=len(parts), axis=1)
    whole = emitter.reshape(0, "in_order", rows_of_all, (-1, *variable.shape[1:]))
    begin, size = ([0] * len(variable.shape), [variable.shape[0], *([-1] * len(variable.shape[1:]))])
    inputs = [whole, emitter.integers(0, begin), emitter.integers(0, size)]
    return emitter.add(0, "whole", "Slice", inputs, T=dtype, Index=int32)


def _join(builder: StateBuilder, name: str, variable: Variable, places: _Places) -> None:
    """Add the value of a variable of which each worker or server has a part."""
    division = places.divided[variable.name]
    emitter = Emitter(name, places.devices, variable.dtype)
    if division.is_by_rows:
        whole = _collected(builder, emitter, variable, places)
        _add_joined(builder, name, variable, whole, emitter, places)
        return
    parts: dict[int, list[str]] = {}
    for rank in sorted({shard.rank for shard in division.shards}):
        part = builder.add(_read(f"{name}/read_{rank}", rank, variable, places), rank)
        sizes = [shard.size for shard in division.shards if shard.rank == rank]
        parts[rank] = [*reversed(emitter.parted(rank, f"parts_{rank}", part, sizes))]
    flat = emitter.joined(0, "flat", [parts[shard.rank].pop() for shard in division.shards])
    _add_joined(builder, name, variable, emitter.reshape(0, "whole", flat, variable.shape), emitter, places)


def _add_joined(
    builder: StateBuilder, name: str, variable: Variable, whole: str, emitter: Emitter, places: _Places
) -> None:
    """Add the nodes of an emitter, and one of a name for the value that they make."""
    for node_def, rank in emitter.out.nodes:
        builder.add(node_def, rank)
    builder.add(node(name, "Identity", [whole], places.devices[0], T=dtype_attribute(variable.dtype)), 0)


def _combine(builder: StateBuilder, model: Model, plan: Plan, places: _Places) -> dict[str, str]:
    """Add the combined values of all workers; see `combined_nodes_by_handle`."""
    combined_nodes = combined_nodes_by_handle(model, plan)
    for variable in model.variables:
        if variable.node not in combined_nodes:
            continue
        name, host = combined_nodes[variable.node], places.devices[0]
        if variable.name in places.divided:
            _join(builder, name, variable, places)
            continue
        dtype, rank = dtype_attribute(variable.dtype), places.first(variable)
        if rank >= places.workers:
            there = builder.add(_read(f"{name}/read", rank, variable, places), rank)
            builder.add(node(name, "Identity", [there], host, T=dtype), 0)
            continue
        reads = [
            builder.add(_read(f"{name}/read_{rank}", rank, variable, places), rank) for rank in range(plan.workers)
        ]
        if _is_summed(variable, plan):
            builder.add(node(name, "AddN", reads, host, T=dtype, N=len(reads)), 0)
            continue
        total = builder.add(node(f"{name}/sum", "AddN", reads, host, T=dtype, N=len(reads)), 0)
        workers = builder.add(constant(f"{name}/workers", plan.workers, variable.dtype, host), 0)
        builder.add(node(name, "RealDiv", [total, workers], host, T=dtype), 0)
    return combined_nodes


def _broadcast(builder: StateBuilder, model: Model, plan: Plan, places: _Places) -> None:
    """Add the nodes that give the first values to all who have all of a variable."""
    scope = "caramel/broadcast"
    assigned: list[str] = []
    everywhere = (v for v in model.variables if v.node in model.graph and v.name not in places.divided)
    for number, variable in enumerate(everywhere):
        first = places.first(variable)
        value = builder.add(_read(f"{scope}/read_{number}", first, variable, places), first)
        assigned += _to_others(builder, scope, number, variable, value, plan, places)
    builder.add(group(BROADCAST, assigned, places.devices[0]), 0)


def _fill(builder: StateBuilder, model: Model, places: _Places) -> None:
    """Add the nodes that give all workers' lookup tables the keys and values that worker 0 has in variables."""
    scope = "caramel/tables"
    filled = []
    for number, table in enumerate(model.tables):
        keys, values = model.variable_by_name[table.keys], model.variable_by_name[table.values]
        texts = [
            builder.add(_read(f"{scope}/{part}_{number}", 0, variable, places), 0)
            for part, variable in (("keys", keys), ("values", values))
        ]
        types = {"Tin": dtype_attribute(keys.dtype), "Tout": dtype_attribute(values.dtype)}
        for rank, device in enumerate(places.devices[: places.workers]):
            if table.node in model.graph:
                handle = replica_name(rank, table.node)
                name = f"{scope}/fill_{number}_{rank}"
                fill = node(name, "LookupTableImportV2", [handle, *texts], device, **types)
                filled.append(builder.add(fill, rank))
    builder.add(group(FILL, filled, places.devices[0]), 0)


def _to_others(
    builder: StateBuilder,
    scope: str,
    number: int,
    variable: Variable,
    value: str,
    plan: Plan,
    places: _Places,
) -> list[str]:
    """Pass the first value to the others: random states offset by rank; a sum that still grows stays with worker 0.

    Each worker passes the value on to the next one, so that no worker sends it more than once: with one sender, the
    link of worker 0 would carry the whole model once for each other worker.
    """
    assigned = []
    dtype = dtype_attribute(variable.dtype)
    first, *others = places.copies.get(variable.name, (0,))
    for before, rank in zip((first, *others), others):
        device = places.devices[rank]
        if before != first:
            passed = node(f"{scope}/pass_{number}_{before}", "Identity", [value], places.devices[before], T=dtype)
            value = builder.add(passed, before)
        source = value
        if variable.kind is VariableClass.RANDOM_STATE:
            name = f"{scope}/offset_{number}_{rank}"
            offset = builder.add(
                constant(f"{name}/by", random_state_offset(variable, rank), variable.dtype, device), rank
            )
            source = builder.add(node(name, "AddV2", [value, offset], device, T=dtype), rank)
        elif _is_summed(variable, plan):
            source = builder.add(node(f"{scope}/zeros_{number}_{rank}", "ZerosLike", [value], device, T=dtype), rank)
        assignment = _assign(f"{scope}/assign_{number}_{rank}", rank, variable, source, places)
        assigned.append(builder.add(assignment, rank))
    return assigned


def assignment_nodes(model: Model, plan: Plan, names: Sequence[str], scope: str) -> list[NodeDef]:
    """Nodes that give all workers the values of some variables, read from a checkpoint.

    Args:
        model: the single-device step.
        plan: the plan of the emitted graph.
        names: names of the variables, which are also their keys in the checkpoint.
        scope: name of the op that is done when all values are assigned.
    """
    builder = StateBuilder([])
    places = _Places.of(model, plan)
    variables = [model.variable_by_name[name] for name in names]
    inner_scope = f"{scope}_ops"
    keys = {v.name: v.checkpoint_place for v in variables}
    restored = read_checkpoint(builder, inner_scope, {v.name: v.dtype for v in variables}, places.host, keys)
    assigned = []
    for number, variable in enumerate(variables):
        value = restored[variable.name]
        if variable.name in places.divided:
            assigned += _cut_and_assigned(builder, f"{inner_scope}/assign_{number}", variable, value, places)
            continue
        first = places.first(variable)
        name = f"{inner_scope}/assign_{number}_{first}"
        assigned.append(builder.add(_assign(name, first, variable, value, places), first))
        if variable.node in model.graph:
            assigned += _to_others(builder, inner_scope, number, variable, value, plan, places)
    builder.add(group(scope, assigned, places.host), 0)
    return [node_def for node_def, _ in builder.nodes]


def _read(name: str, rank: int, variable: Variable, places: _Places) -> NodeDef:
    return read(name, places.handle(rank, variable), variable.dtype, places.devices[rank])


def _save(
    builder: StateBuilder,
    shared: Sequence[tuple[int, Variable, str]],
    local: Sequence[tuple[int, Variable, str]],
    combined_nodes: Mapping[str, str],
    saved_tensors: Sequence[SavedTensor],
    places: _Places,
) -> None:
    host, scope = places.host, SAVE + "_ops"
    prefix = builder.add(_string_placeholder(SAVE_PREFIX, host), 0)
    zero = builder.add(constant(f"{scope}/zero", 0, "int64", host), 0)
    attributes = {"dtype": dtype_attribute("int64"), "shape": shape_attribute(())}
    steps = builder.add(node(SAVE_STEPS, "PlaceholderWithDefault", [zero], host, **attributes), 0)
    items = [*shared, *local]
    reads = []
    for number, (rank, variable, _) in enumerate(items):
        if number < len(shared) and variable.node in combined_nodes:
            reads.append(combined_nodes[variable.node])
        else:
            reads.append(builder.add(_read(f"{scope}/read_{number}", rank, variable, places), rank))
    extra_tensors = [*saved_tensors, SavedTensor(STEPS_KEY, steps, "int64")]
    entries = [v.checkpoint_place if key == v.name else (key, "") for _, v, key in items]
    entries += [(s.key, "") for s in extra_tensors]
    keys = _strings(builder, f"{scope}/keys", [key for key, _ in entries], host)
    slices = _strings(builder, f"{scope}/slices", [part for _, part in entries], host)
    types = dtypes_attribute([*(v.dtype for _, v, _ in items), *(s.dtype for s in extra_tensors)])
    tensors = [prefix, keys, slices, *reads, *(s.tensor for s in extra_tensors)]
    written = node(f"{scope}/write", "SaveV2", tensors, host, dtypes=types)
    builder.add(group(SAVE, [builder.add(written, 0)], host), 0)
