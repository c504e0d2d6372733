"""Iterators in TF1-style graphs: what they give becomes inputs of the step, their dataset the data source.

Only our copy of the graph is changed; the user's stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import tensorflow as tf

from caramel.data.dataset import TrainingData
from caramel.data.serialise import serialise_function, serialise_nodes
from caramel.errors import UnsupportedError
from caramel.graph import ops
from caramel.graph.graph import Graph, NodeDef, copied, format_input, parse_input
from caramel.graph.nodes import node
from caramel.graph.shapes import SHAPES_ATTRIBUTE
from caramel.model import Input

GET_NEXT = "IteratorGetNext"

_ADVICE = (
    "Read the data from one iterator (make_one_shot_iterator, or make_initializable_iterator with its initializer), or "
    "make the inputs placeholders and pass the dataset as data= to caramel.capture"
)


def iterator_of(nodes: Graph, roots: Sequence[str]) -> str | None:
    """The op that takes an element from an iterator and that the roots need, if there is one.

    Args:
        nodes: the user's graph.
        roots: names of the nodes that a step must compute.

    Raises:
        UnsupportedError: there are several.
    """
    needed = nodes.ancestors(roots)
    get_nexts = [n.name for n in nodes if n.op == GET_NEXT and n.name in needed]
    if len(get_nexts) > 1:
        is_one_iterator = len({nodes[name].input[0] for name in get_nexts}) == 1
        raise UnsupportedError(
            f"the step takes elements with {get_nexts[0]!r} and {get_nexts[1]!r}"
            + (
                ", two get_next() of one iterator, so it takes several elements: call get_next() once"
                if is_one_iterator
                else " from two iterators: make one of their datasets (tf.data.Dataset.zip)"
            )
        )
    return get_nexts[0] if get_nexts else None


def given_iterator(nodes: Graph, get_next: str) -> TrainingData:
    """The dataset behind an iterator.

    Args:
        nodes: the user's graph.
        get_next: name of the op that takes an element.

    Raises:
        UnsupportedError: it cannot be found, or there are several.
    """
    specs = tuple(_spec(nodes[get_next], position) for position in range(len(ops.output_types(nodes[get_next]))))
    iterator = nodes[parse_input(nodes[get_next].input[0])[0]]
    if iterator.op == "OneShotIterator":
        factory = iterator.attr["dataset_factory"].func.name
        return TrainingData(specs, lambda workers: [serialise_function(nodes, factory)])
    if iterator.op not in ("Iterator", "IteratorV2"):
        raise UnsupportedError(
            f"op {get_next!r} takes elements from {iterator.name!r} ({iterator.op}), whose dataset is not known. "
            f"{_ADVICE}"
        )
    makers = [n for n in nodes if n.op == "MakeIterator" and parse_input(n.input[1])[0] == iterator.name]
    datasets = list(dict.fromkeys(n.input[0] for n in makers))
    if len(datasets) != 1:
        what = "no initializer in the graph" if not datasets else "initializers for several datasets"
        raise UnsupportedError(f"iterator {iterator.name!r} has {what}, so its dataset is not known. {_ADVICE}")
    return TrainingData(specs, lambda workers: [serialise_nodes(nodes, datasets[0], anew=True)], anew=True)


def _spec(get_next: NodeDef, position: int) -> tf.TensorSpec:
    dtype = tf.as_dtype(get_next.attr["output_types"].list.type[position])
    if dtype == tf.variant:
        raise UnsupportedError(
            f"output {position} of op {get_next.name!r} is a ragged or sparse tensor: only dense tensors can be split "
            "over the workers. Convert it in the pipeline (dataset.map)"
        )
    return tf.TensorSpec(tf.TensorShape(get_next.attr["output_shapes"].list.shape[position]), dtype)


def iterator_inputs(nodes: Graph, get_next: str, whole: Collection[str]) -> tuple[Input, ...]:
    """The inputs that replace an iterator's outputs.

    Args:
        nodes: the user's graph.
        get_next: name of the op that takes an element.
        whole: names of the tensors that every worker gets whole.
    """
    inputs = []
    for position in range(len(ops.output_types(nodes[get_next]))):
        spec = _spec(nodes[get_next], position)
        shape = None if spec.shape.rank is None else tuple(spec.shape.as_list())
        split = shape != () and f"{get_next}:{position}" not in whole
        tensor, placeholder = f"{get_next}:{position}", _placeholder_name(get_next, position)
        inputs.append(Input(tensor, placeholder, spec.dtype.name, shape, split, component=position))
    return tuple(inputs)


def _placeholder_name(get_next: str, position: int) -> str:
    return f"{get_next}/component_{position}"


def with_placeholders(nodes: Graph, get_next: str | None) -> Graph:
    """The graph with placeholders in place of an iterator's outputs.

    Args:
        nodes: the user's graph.
        get_next: name of the op that takes an element; None for a graph without an iterator.
    """
    if get_next is None:
        return nodes
    width = len(ops.output_types(nodes[get_next]))
    rewritten: list[NodeDef] = []
    for current in nodes:
        if current.name == get_next:
            rewritten += [_placeholder(current, position) for position in range(width)]
        elif any(parse_input(text)[0] == get_next for text in current.input):
            rewritten.append(_redirected(current, get_next, width))
        else:
            rewritten.append(current)
    return Graph(rewritten, nodes.library, nodes.versions)


def _placeholder(get_next: NodeDef, position: int) -> NodeDef:
    placeholder = node(_placeholder_name(get_next.name, position), "Placeholder", (), get_next.device)
    placeholder.attr["dtype"].type = get_next.attr["output_types"].list.type[position]
    shape = get_next.attr["output_shapes"].list.shape[position]
    placeholder.attr["shape"].shape.CopyFrom(shape)
    placeholder.attr[SHAPES_ATTRIBUTE].list.shape.add().CopyFrom(shape)
    return placeholder


def _redirected(current: NodeDef, get_next: str, width: int) -> NodeDef:
    redirected = copied(current, ())
    for text in current.input:
        name, index = parse_input(text)
        if name != get_next:
            redirected.input.append(text)
        elif index >= 0:
            redirected.input.append(_placeholder_name(name, index))
        else:
            redirected.input.extend(format_input(_placeholder_name(name, p), -1) for p in range(width))
    return redirected


def placeholder_of(tensor: str, get_next: str | None) -> str:
    """The name of a tensor after `with_placeholders`.

    Args:
        tensor: name of the tensor in the user's graph.
        get_next: name of the op that takes an element; None for a graph without an iterator.
    """
    name, index = parse_input(tensor)
    return f"{_placeholder_name(name, index)}:0" if name == get_next else tensor
