"""Place input: each worker's pipeline on its host, and the step's inputs read from it."""

from __future__ import annotations

from caramel.data import template as names
from caramel.data.pipeline import Pipeline
from caramel.data.source import SEED
from caramel.graph.devices import Device, host_of
from caramel.graph.graph import NodeDef, copied, format_input, parse_input
from caramel.graph.nodes import assign, constant, dtype_attribute, group, node, shape_attribute
from caramel.graph.shapes import SHAPES_ATTRIBUTE
from caramel.modifiers.emission import Emission, Purpose, Role, SavedTensor, own_name, replica_name
from caramel.modifiers.save_restore import StateBuilder, read_checkpoint
from caramel.signature import DataSignature

LOAD = "caramel/input/load"
RESTORE = "caramel/input/restore"
POSITION = "caramel/input/position"
"""Tensor of the position in the data, and its checkpoint key; `caramel.runtime.worker_data` defines its numbers."""

POSITION_SIZE = 6
"""Least number of int64 elements of a position."""

DIGEST = "caramel/input/digest"


def input_name(rank: int, name: str) -> str:
    """Name of a node of a worker's pipeline."""
    return own_name(rank, f"input/{name}")


def state_key(rank: int) -> str:
    """Checkpoint key of the state of a worker's iterator."""
    return own_name(rank, "input")


def place_input(emission: Emission) -> Emission:
    """Copy the pipelines to the workers' hosts and let the steps' inputs read the elements that they keep.

    Args:
        emission: the emission with the replicas, whose inputs are placeholders.

    Returns:
        The emission without placeholders for the dataset's inputs; unchanged where the driver feeds all inputs.
    """
    pipeline, workers = emission.pipeline, emission.job_workers
    if pipeline is None:
        return emission
    added: list[tuple[NodeDef, Role]] = []
    changed: dict[str, NodeDef] = {}
    for rank, text in enumerate(emission.plan.devices):
        template = pipeline.template(rank)
        host = str(host_of(Device.parse(text)))
        role = Role(Purpose.INPUT, rank)
        added += [(_copy(n, rank, workers, host), role) for n in template.graph]
        for position, input_ in enumerate(template.order):
            name = replica_name(rank, input_.node)
            source = format_input(input_name(rank, names.ELEMENT), position)
            device = emission.graph[name].device
            changed[name] = node(name, "Identity", [source], device, T=dtype_attribute(input_.dtype))
    return emission.extended(added, changed, [t.graph.library for t in pipeline.templates])


def weight_of_element(emission: Emission, rank: int) -> str | None:
    """The tensor with the weight of a worker's gradients, which follows from its element; None where it does not.

    Args:
        emission: an emission, whose inputs are placed if there is such a tensor.
        rank: the worker.
    """
    pipeline = emission.pipeline
    if pipeline is None or pipeline.sharding is not names.Sharding.SLICE:
        return None
    which = names.SUM_WEIGHT if emission.plan.reduction == "sum" else names.MEAN_WEIGHT
    return format_input(input_name(rank, names.ELEMENT), len(pipeline.template(rank).order) + which)


def _copy(original: NodeDef, rank: int, workers: int, host: str) -> NodeDef:
    name = input_name(rank, original.name)
    if original.name in (names.RANK, names.WORKERS):
        return constant(name, rank if original.name == names.RANK else workers, "int64", host)
    inputs = (parse_input(text) for text in original.input)
    copy = copied(original, [format_input(input_name(rank, producer), index) for producer, index in inputs])
    copy.name = name
    copy.device = host
    for key in ("_class", SHAPES_ATTRIBUTE):
        copy.attr.pop(key, None)
    if "shared_name" in copy.attr and copy.attr["shared_name"].s:  # without one a resource has the node's own name
        copy.attr["shared_name"].s = name.encode()
    return copy


def save_position(emission: Emission) -> Emission:
    """Add the tensors in which a checkpoint keeps the position in the data; none where the driver feeds all inputs."""
    pipeline, devices = emission.pipeline, emission.plan.devices
    if pipeline is None:
        return emission
    host = str(host_of(Device.parse(devices[0])))
    zeros = constant(f"{POSITION}/none", [0] * POSITION_SIZE, "int64", host)
    attributes = {"dtype": dtype_attribute("int64"), "shape": shape_attribute([-1])}
    position = node(POSITION, "PlaceholderWithDefault", [zeros.name], host, **attributes)
    digest = constant(DIGEST, pipeline.digest.encode(), "string", host)
    saved = [SavedTensor(POSITION, position.name, "int64"), SavedTensor(DIGEST, digest.name, "string")]
    ranks = pipeline.saved_ranks(len(devices))
    saved += [SavedTensor(state_key(rank), input_name(rank, f"{names.STATE}/read"), "variant") for rank in ranks]
    role = Role(Purpose.STATE, 0)
    return emission.extended(
        [(node_def, role) for node_def in (zeros, position, digest)], saved=(*emission.saved, *saved)
    )


def add_input_state(emission: Emission) -> Emission:
    """Add the ops that load the pipelines' constants and that put iterators where a checkpoint says.

    Args:
        emission: the emission with pipelines and state; it stays unchanged without pipelines.
    """
    pipeline, devices = emission.pipeline, emission.plan.devices
    if pipeline is None:
        return emission
    hosts = [str(host_of(Device.parse(d))) for d in devices]
    builder = StateBuilder([])
    constants_by_rank = [(rank, c) for rank in range(len(devices)) for c in pipeline.source(rank).constants]
    read = read_checkpoint(builder, f"{LOAD}_ops", {c.key: c.dtype for _, c in constants_by_rank}, hosts[0])
    op_names = []
    for number, (rank, c) in enumerate(constants_by_rank):
        handle = input_name(rank, f"{names.SOURCE}/{c.node}")
        assignment = assign(f"{LOAD}_ops/assign_{number}", handle, read[c.key], c.dtype, hosts[rank])
        op_names.append(builder.add(assignment, rank))
    builder.add(group(LOAD, op_names, hosts[0]), 0)
    ranks = pipeline.saved_ranks(len(devices))
    read = read_checkpoint(builder, f"{RESTORE}_ops", {state_key(rank): "variant" for rank in ranks}, hosts[0])
    op_names = []
    for rank, host in enumerate(hosts):
        state = read[state_key(rank % len(ranks))]  # one for all, or each its own
        inputs = [input_name(rank, names.ITERATOR), state]
        op_names.append(builder.add(node(f"{RESTORE}_ops/iterator_{rank}", "DeserializeIterator", inputs, host), rank))
    builder.add(group(RESTORE, op_names, hosts[0]), 0)
    return emission.extended(builder.nodes)


def data_signature(pipeline: Pipeline, workers: int) -> DataSignature:
    """The names of the nodes that `place_input` and `add_input_state` emitted."""
    ranks = range(workers)

    def everywhere(name: str, suffix: str = "") -> tuple[str, ...]:
        return tuple(input_name(rank, name) + suffix for rank in ranks)

    split = [i for i in pipeline.inputs if i.split]
    return DataSignature(
        sharding=pipeline.sharding.value,
        anew=any(s.anew for s in pipeline.sources),
        infinite=any(s.is_infinite for s in pipeline.sources),
        draws=max((s.draws for s in pipeline.sources), key=("never", "once", "often").index),
        resumes=all(s.resumes for s in pipeline.sources),
        inputs=tuple(i.name for i in pipeline.inputs),
        split=tuple(i.name for i in split),
        rows=tuple(i.shape[0] if i.shape else None for i in split),
        seed=everywhere(f"{names.SOURCE}/{SEED}", ":0"),
        skip=everywhere(names.SKIP, ":0"),
        buffer=everywhere(names.BUFFER, ":0"),
        start=everywhere(names.START, ":0"),
        tried=everywhere(f"{names.TRIED}/read", ":0"),
        load=LOAD,
        build=everywhere(names.BUILD),
        clear=everywhere(names.CLEAR),
        begin=everywhere(names.BEGIN),
        advance=everywhere(names.ADVANCE),
        counts=everywhere(names.COUNTS, ":0"),
        snapshot=everywhere(names.SNAPSHOT)[: len(pipeline.saved_ranks(workers))],
        forget=everywhere(names.FORGET)[: len(pipeline.saved_ranks(workers))],
        restore=RESTORE,
        position=f"{POSITION}:0",
        position_key=POSITION,
        digest=pipeline.digest,
        digest_key=DIGEST,
        ahead=pipeline.may_run_ahead,
    )
