"""Graphs in which some tensors are summed over the workers: an Identity behind each, and in front of what enters."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from caramel.frontend.attributes import ENTERING_ATTRIBUTE, GATHERED_ATTRIBUTE, OVER_WORKERS_ATTRIBUTE
from caramel.frontend.batch.domain import Examples, Value
from caramel.frontend.captured import Entry, RawProgram
from caramel.graph import ops
from caramel.graph.graph import Graph, NodeDef, copied, data_texts, format_input, node_of, parse_input, tensor_name
from caramel.graph.nodes import node
from caramel.graph.shapes import SHAPES_ATTRIBUTE
from caramel.model import ForwardSum


def name_over_workers(tensor: str) -> str:
    """Name of the Identity that has a tensor's value of the whole batch."""
    return f"{node_of(tensor)}/over_workers"


def with_sum(
    raw: RawProgram,
    tensor: str,
    kind: str,
    counted: str | None,
    entries: Sequence[tuple[str, Entry]],
    kept: Collection[str] = (),
) -> RawProgram:
    """The program in which whatever reads a tensor reads the value of the whole batch.

    Args:
        raw: the captured program.
        tensor: name of the tensor, of which each worker has a part.
        kind: see `ForwardSum`.
        counted: see `ForwardSum`.
        entries: where gradients enter the ops that make the parts, each with the name of the op.
        kept: names of the readers that go on with the worker's part.
    """
    graph = raw.graph
    changed: dict[str, NodeDef] = {}
    added = [_identity(graph, name_over_workers(tensor), tensor, marked=True)]
    producer, index = parse_input(tensor)
    for reader, position in graph.consumers[producer]:
        if reader not in kept and parse_input(graph[reader].input[position])[1] == index:
            changed.setdefault(reader, copied(graph[reader]))
            changed[reader].input[position] = added[0].name
    names = _put_in_front(graph, entries, changed, added)
    forward_sum = ForwardSum(added[0].name, kind, names, counted)
    used = {op for op, _ in entries}
    summed = replace(
        raw,
        graph=graph.replaced(changed, added),
        forward_sums=(*raw.forward_sums, forward_sum),
        entries={op: known for op, known in raw.entries.items() if op not in used},
    )
    return _renamed(summed, tensor, tensor_name(added[0].name))


def with_entries(raw: RawProgram, forward_sum: ForwardSum, entries: Sequence[Entry]) -> RawProgram:
    """The program with a sum for which it asks itself.

    Args:
        raw: the captured program.
        forward_sum: the sum; its node is there.
        entries: where gradients enter that node.
    """
    changed: dict[str, NodeDef] = {}
    added: list[NodeDef] = []
    names = _put_in_front(raw.graph, [(forward_sum.node, entry) for entry in entries], changed, added)
    sums = (*raw.forward_sums, replace(forward_sum, entries=names))
    return replace(raw, graph=raw.graph.replaced(changed, added), forward_sums=sums)


def with_size(
    raw: RawProgram, name: str, position: int, nodes: Sequence[str], shapes: Mapping[str, Value]
) -> RawProgram:
    """The program in which an op reads what is made of sizes as it is for the number of all examples.

    Args:
        raw: the captured program.
        name: name of the op.
        position: which of its inputs.
        nodes: names of the nodes of which that input is made, in the order of the graph.
        shapes: what is known of the tensors whose shapes go into it, by the name of the op that asks for the shape.
    """
    graph = raw.graph
    copies = {original: f"{original}/of_all_workers" for original in nodes}
    added: list[NodeDef] = []
    sums: list[ForwardSum] = []
    for original, copy in copies.items():
        if copy in graph:
            continue
        if original not in shapes:
            texts = [parse_input(text) for text in data_texts(graph[original])]
            added.append(copied(graph[original], [format_input(copies[source], index) for source, index in texts]))
            added[-1].name = copy
            added[-1].attr.pop("_class", None)
            continue
        value = shapes[original]
        added.append(_identity(graph, copy, tensor_name(original), marked=isinstance(value, Examples)))
        if isinstance(value, Examples):
            added[-1].attr[GATHERED_ATTRIBUTE].list.i.extend((0, 1))
            sums.append(ForwardSum(copy, "shape" if graph[original].op == "Shape" else "sum", axis=value.axis))
    reader = copied(graph[name])
    source, index = parse_input(reader.input[position])
    reader.input[position] = format_input(copies[source], index)
    return replace(raw, graph=graph.replaced({name: reader}, added), forward_sums=(*raw.forward_sums, *sums))


def _identity(graph: Graph, name: str, tensor: str, marked: bool) -> NodeDef:
    source, index = parse_input(tensor)
    dtype = ops.output_types(graph[source])[index]
    identity = node(name, "Identity", [tensor if index else source])
    identity.attr["T"].type = dtype
    shapes = graph[source].attr[SHAPES_ATTRIBUTE].list.shape if SHAPES_ATTRIBUTE in graph[source].attr else []
    if len(shapes) > index:
        identity.attr[SHAPES_ATTRIBUTE].list.shape.add().CopyFrom(shapes[index])
    if marked:
        identity.attr[OVER_WORKERS_ATTRIBUTE].b = True
    return identity


def _put_in_front(
    graph: Graph, entries: Sequence[tuple[str, Entry]], changed: dict[str, NodeDef], added: list[NodeDef]
) -> tuple[str, ...]:
    """Put an Identity in front of each gradient that enters an op; the names of these."""
    names = []
    for number, (source, entry) in enumerate(entries):
        name = f"{source}/entering_{number}"
        added.append(_identity(graph, name, entry.tensor, marked=False))
        added[-1].attr[ENTERING_ATTRIBUTE].b = True
        names.append(name)
        for reader, position in entry.readers:
            changed.setdefault(reader, copied(graph[reader]))
            changed[reader].input[position] = name
    return tuple(names)


def _renamed(raw: RawProgram, tensor: str, summed: str) -> RawProgram:
    """The program with the summed tensor wherever it refers to the tensor itself."""

    def current(name: str) -> str:
        return summed if tensor_name(name) == tensor else name

    return replace(
        raw,
        differentiated=tuple((current(t), call) for t, call in raw.differentiated),
        loss=None if raw.loss is None else current(raw.loss),
        outputs=tuple((name, current(t)) for name, t in raw.outputs),
    )
