"""Graphs in which some tensors are summed over the workers: an Identity behind each, and in front of what enters."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tensorflow.core.framework import attr_value_pb2

from caramel.frontend.attributes import ENTERING_ATTRIBUTE, GATHERED_ATTRIBUTE, OVER_WORKERS_ATTRIBUTE, PART_ATTRIBUTE
from caramel.frontend.batch.domain import Examples, Value
from caramel.frontend.captured import Entry, RawProgram
from caramel.graph import ops
from caramel.graph.graph import Graph, NodeDef, copied, data_texts, format_input, node_of, parse_input, tensor_name
from caramel.graph.nodes import constant, dtype_attribute, node
from caramel.graph.shapes import SHAPES_ATTRIBUTE, static_shape
from caramel.model import ForwardSum

_NUMBER = "caramel/number_of_examples"
"""Name of the node with the number of examples in a batch."""


def name_over_workers(tensor: str) -> str:
    """Name of the Identity that has a tensor's value of the whole batch.

    >>> name_over_workers("loss/Sum:0"), name_over_workers("unstack:1")
    ('loss/Sum/over_workers', 'unstack/over_workers_1')
    """
    name, index = parse_input(tensor)
    return f"{name}/over_workers{f'_{index}' if index else ''}"


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
    _redirect(graph, tensor, added[0].name, changed, kept)
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


def with_loop_results_apart(raw: RawProgram) -> RawProgram:
    """The program in which what loops add up leaves them through an Identity each, as other gradients are read.

    A loop has several results, and all that is said of a gradient is said of the node that gives it.

    Args:
        raw: the captured program.
    """
    for tensor in [g.tensor for g in raw.gradients if raw.graph[node_of(g.tensor)].op in ops.LOOPS]:
        name, index = parse_input(tensor)
        apart = _identity(raw.graph, f"{name}/gradient_{index}", tensor, marked=False)
        changed: dict[str, NodeDef] = {}
        _redirect(raw.graph, tensor, apart.name, changed)
        own = tensor_name(apart.name)
        gradients = tuple(replace(g, tensor=own) if g.tensor == tensor else g for g in raw.gradients)
        raw = _renamed(replace(raw, graph=raw.graph.replaced(changed, [apart]), gradients=gradients), tensor, own)
    return raw


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
            if PART_ATTRIBUTE in added[-1].attr:
                added[-1].attr["value"].CopyFrom(added[-1].attr[PART_ATTRIBUTE])
                added[-1].attr.pop(PART_ATTRIBUTE)
                added[-1].attr[OVER_WORKERS_ATTRIBUTE].b = True
                added[-1].attr[GATHERED_ATTRIBUTE].list.i.extend((0, 1))
            continue
        value = shapes[original]
        added.append(_identity(graph, copy, tensor_name(original), marked=isinstance(value, Examples)))
        if isinstance(value, Examples):
            added[-1].attr[GATHERED_ATTRIBUTE].list.i.extend((0, 1))
            sums.append(ForwardSum(copy, "shape" if graph[original].op == "Shape" else "sum", axis=value.axis))
    reader = copied(graph[name])
    source, index = parse_input(reader.input[position])
    reader.input[position] = format_input(copies[source], index)
    changed = graph.replaced({name: reader}, added)
    if any(PART_ATTRIBUTE in graph[original].attr for original in nodes):
        rows = next(i.shape[0] for i in raw.inputs if i.split and i.shape)
        changed = _with_open_shapes(changed, [*copies.values(), name], rows or 1)
    return replace(raw, graph=changed, forward_sums=(*raw.forward_sums, *sums))


def _with_open_shapes(graph: Graph, names: Sequence[str], rows: int) -> Graph:
    """The graph in which static shapes do not say what may follow from the number of a part's examples any more.

    Args:
        graph: nodes, traced for a part of the batch.
        names: names of nodes that are now those of the whole batch; what follows from them is changed, too.
        rows: number of examples in a part.
    """
    changed: dict[str, NodeDef] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in changed:
            continue
        changed[name] = copied(graph[name])
        for shape in changed[name].attr[SHAPES_ATTRIBUTE].list.shape:
            for dimension in shape.dim:
                if dimension.size > 0 and dimension.size % rows == 0:
                    dimension.size = -1
        waiting += [reader for reader, _ in graph.consumers[name]]
    return graph.replaced(changed)


def with_share(raw: RawProgram, result: str) -> RawProgram:
    """The program in which a gradient of a mean with respect to single examples is that of the whole batch's mean.

    It is multiplied by the share that a worker's part has of the examples, and so is what enters it where the program
    differentiates once more.

    Args:
        raw: the captured program.
        result: name of the node that carries the gradient.
    """
    graph = raw.graph
    dtype = ops.output_types(graph[result])[0]
    share, number = f"{result}/share", _NUMBER
    added = [] if number in graph else _number_of_examples(graph, next(i.node for i in raw.inputs if i.split))
    wide = dtype_attribute("float64")
    added.append(_scalar(node(f"{share}/exact", "RealDiv", [number, number], T=wide)))
    added.append(_scalar(node(share, "Cast", [f"{share}/exact"], SrcT=wide)))
    added[-1].attr["DstT"].type = dtype
    changed: dict[str, NodeDef] = {}
    places = [(tensor_name(result), f"{result}/of_all_examples", graph.consumers[result])]
    places += [
        (entry.tensor, f"{result}/entering_share_{position}", entry.readers)
        for position, entry in enumerate(raw.entries[result])
    ]
    for tensor, name, readers in places:
        product = _identity(graph, name, tensor, marked=False)
        product.op = "Mul"
        product.input.append(share)
        added.append(product)
        for reader, position in readers:
            if not graph[reader].input[position].startswith("^"):
                changed.setdefault(reader, copied(graph[reader]))
                changed[reader].input[position] = name
    entries = {op: known for op, known in raw.entries.items() if op != result}
    scaled = _renamed(
        replace(raw, graph=graph.replaced(changed, added), entries=entries),
        tensor_name(result),
        tensor_name(places[0][1]),
    )
    behind = [f"{number}/{part}" for part in ("shape", "axis", "rows")] + [number]
    return with_size(scaled, f"{share}/exact", 1, behind, {behind[0]: Examples(0)})


def _number_of_examples(graph: Graph, batch: str) -> list[NodeDef]:
    """Nodes of the number of examples in a batch, the last of which has it."""
    number = _NUMBER
    dtype = attr_value_pb2.AttrValue(type=ops.output_types(graph[batch])[0])
    whole, index = dtype_attribute("int64"), dtype_attribute("int32")
    shape = node(f"{number}/shape", "Shape", [batch], T=dtype, out_type=whole)
    rank = static_shape(graph, batch)
    shape.attr[SHAPES_ATTRIBUTE].list.shape.add().dim.add().size = -1 if rank is None else len(rank)
    axis = constant(f"{number}/axis", 0, "int32", "")
    rows = node(
        f"{number}/rows", "GatherV2", [shape.name, axis.name, axis.name], Tparams=whole, Tindices=index, Taxis=index
    )
    return [
        shape,
        _scalar(axis),
        _scalar(rows),
        _scalar(node(number, "Cast", [rows.name], SrcT=whole, DstT=dtype_attribute("float64"))),
    ]


def _scalar(made: NodeDef) -> NodeDef:
    made.attr[SHAPES_ATTRIBUTE].list.shape.add()
    return made


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


def _redirect(graph: Graph, tensor: str, to: str, changed: dict[str, NodeDef], kept: Collection[str] = ()) -> None:
    """Let whatever reads a tensor, but for the kept readers, read another one; what changes is added to ``changed``."""
    producer, index = parse_input(tensor)
    for reader, position in graph.consumers[producer]:
        if reader not in kept and parse_input(graph[reader].input[position])[1] == index:
            changed.setdefault(reader, copied(graph[reader]))
            changed[reader].input[position] = to


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
