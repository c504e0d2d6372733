"""State: restore, broadcast and save, as nodes that run between steps.

Values never enter the graph: they travel in a checkpoint that worker 0 reads, and from there to the
other workers. A checkpoint holds the single-device program's own names, from worker 0; what is
local to the other workers (statistics, random states) is kept under names of its own beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from caramel.graph.devices import Device
from caramel.graph.graph import NodeDef, format_input
from caramel.graph.nodes import constant, dtype_attribute, dtypes_attribute, group, node, shape_attribute
from caramel.model import Model, Variable, VariableClass
from caramel.modifiers.distributed import DistributedGraph, Purpose, Role, replica_name
from caramel.modifiers.replicate import GOLDEN_RATIO_32

RESTORE_PREFIX = "caramel/restore/prefix"
SAVE_PREFIX = "caramel/save/prefix"
RESTORE_SAVED = "caramel/restore/saved"
RESTORE_UNSAVED = "caramel/restore/unsaved"
RESTORE_LOCAL = "caramel/restore/local"
BROADCAST = "caramel/broadcast/done"
SAVE = "caramel/save/done"
SAVE_STEPS = "caramel/save/steps"

STEPS_KEY = "caramel/steps"
"""Checkpoint key of the number of steps, for programs that do not count them."""


@dataclass(frozen=True)
class _Builder:
    """Collects state nodes."""

    nodes: list[tuple[NodeDef, Role]]

    def add(self, made: NodeDef, rank: int) -> str:
        self.nodes.append((made, Role(Purpose.STATE, rank)))
        return made.name


def local_key(rank: int, name: str) -> str:
    """Checkpoint key of a local variable of a worker other than worker 0."""
    return f"caramel/worker_{rank}/{name}"


def random_state_offset(variable: Variable, rank: int) -> np.ndarray:
    """What is added to worker 0's random state to get another worker's.

    A seed of two elements is (seed, counter): the seed moves. The state of a `tf.random.Generator`
    is (counter, ..., key): the key moves. Multiples of an odd constant near 2**32 / golden ratio keep
    the streams of different ranks and of user seeds that are close together apart.

    Args:
        variable: a variable of the class random state, of rank 1.
        rank: the worker.

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


def on_worker(model: Model, rank: int) -> tuple[Variable, ...]:
    """The variables that a worker holds: worker 0 all of them, the others those of the step."""
    return tuple(v for v in model.variables if rank == 0 or v.node in model.graph)


def add_state(distributed: DistributedGraph, model: Model, devices: Sequence[str]) -> DistributedGraph:
    """Add restore, broadcast and save.

    Args:
        distributed: the replicas.
        model: the single-device step.
        devices: device of each rank.

    Returns:
        The graph with the ops named by the constants of this module.
    """
    builder = _Builder([])
    parsed = [Device.parse(d) for d in devices]
    host = str(
        Device(
            parsed[0].job, parsed[0].replica, parsed[0].task, "CPU", parsed[0].index if parsed[0].type == "CPU" else 0
        )
    )
    prefix = builder.add(_string_placeholder(RESTORE_PREFIX, host), 0)
    saved = [v for v in model.variables if v.saved]
    unsaved = [v for v in model.variables if not v.saved]
    for done, chosen in ((RESTORE_SAVED, saved), (RESTORE_UNSAVED, unsaved)):
        items = [(0, v, v.name) for v in chosen]
        _restore(builder, done, prefix, items, host, parsed)
    local = [
        (rank, v, local_key(rank, v.name))
        for rank in range(1, len(devices))
        for v in on_worker(model, rank)
        if v.kind.is_local
    ]
    _restore(builder, RESTORE_LOCAL, prefix, local, host, parsed)
    _broadcast(builder, model, parsed)
    _save(builder, [(0, v, v.name) for v in saved] + local, host, parsed)
    return distributed.extended(builder.nodes)


def _string_placeholder(name: str, device: str) -> NodeDef:
    return node(name, "Placeholder", (), device, dtype=dtype_attribute("string"), shape=shape_attribute(()))


def _handle(rank: int, variable: Variable) -> str:
    return replica_name(rank, variable.node)


def _strings(builder: _Builder, name: str, values: Iterable[str], device: str) -> str:
    array = np.array([v.encode() for v in values], dtype=object)
    return builder.add(constant(name, array, "string", device), 0)


def _restore(
    builder: _Builder,
    done: str,
    prefix: str,
    items: Sequence[tuple[int, Variable, str]],
    host: str,
    devices: Sequence[Device],
) -> None:
    scope = done + "_ops"
    assigned: list[str] = []
    if items:
        keys = _strings(builder, f"{scope}/keys", [key for _, _, key in items], host)
        slices = _strings(builder, f"{scope}/slices", ["" for _ in items], host)
        read = builder.add(
            node(
                f"{scope}/read",
                "RestoreV2",
                [prefix, keys, slices],
                host,
                dtypes=dtypes_attribute(v.dtype for _, v, _ in items),
            ),
            0,
        )
        for position, (rank, variable, _) in enumerate(items):
            assign = _assign(
                f"{scope}/assign_{position}",
                _handle(rank, variable),
                format_input(read, position),
                variable,
                devices[rank],
            )
            assigned.append(builder.add(assign, rank))
    builder.add(group(done, assigned, host), 0)


def _assign(name: str, handle: str, value: str, variable: Variable, device: Device) -> NodeDef:
    return node(name, "AssignVariableOp", [handle, value], str(device), dtype=dtype_attribute(variable.dtype))


def _broadcast(builder: _Builder, model: Model, devices: Sequence[Device]) -> None:
    """Worker 0's values to all, random states offset by rank."""
    scope = "caramel/broadcast"
    assigned: list[str] = []
    for number, variable in enumerate(v for v in model.variables if v.node in model.graph):
        value = builder.add(_read(f"{scope}/read_{number}", 0, variable, devices[0]), 0)
        for rank in range(1, len(devices)):
            source, device = value, str(devices[rank])
            if variable.kind is VariableClass.RANDOM_STATE:
                name = f"{scope}/offset_{number}_{rank}"
                offset = builder.add(
                    constant(f"{name}/by", random_state_offset(variable, rank), variable.dtype, device), rank
                )
                source = builder.add(
                    node(name, "AddV2", [value, offset], device, T=dtype_attribute(variable.dtype)), rank
                )
            assign = _assign(
                f"{scope}/assign_{number}_{rank}", _handle(rank, variable), source, variable, devices[rank]
            )
            assigned.append(builder.add(assign, rank))
    builder.add(group(BROADCAST, assigned, str(devices[0])), 0)


def _read(name: str, rank: int, variable: Variable, device: Device) -> NodeDef:
    return node(name, "ReadVariableOp", [_handle(rank, variable)], str(device), dtype=dtype_attribute(variable.dtype))


def _save(builder: _Builder, items: Sequence[tuple[int, Variable, str]], host: str, devices: Sequence[Device]) -> None:
    scope = SAVE + "_ops"
    prefix = builder.add(_string_placeholder(SAVE_PREFIX, host), 0)
    zero = builder.add(constant(f"{scope}/zero", 0, "int64", host), 0)
    attributes = {"dtype": dtype_attribute("int64"), "shape": shape_attribute(())}
    steps = builder.add(node(SAVE_STEPS, "PlaceholderWithDefault", [zero], host, **attributes), 0)
    reads = [
        builder.add(_read(f"{scope}/read_{n}", rank, variable, devices[rank]), rank)
        for n, (rank, variable, _) in enumerate(items)
    ]
    keys = _strings(builder, f"{scope}/keys", [*(key for _, _, key in items), STEPS_KEY], host)
    slices = _strings(builder, f"{scope}/slices", [""] * (len(items) + 1), host)
    types = dtypes_attribute([*(v.dtype for _, v, _ in items), "int64"])
    written = node(f"{scope}/write", "SaveV2", [prefix, keys, slices, *reads, steps], host, dtypes=types)
    builder.add(group(SAVE, [builder.add(written, 0)], host), 0)
