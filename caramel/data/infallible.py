"""Datasets of which no element can fail: all values are in memory, and no op on the way has anything to refuse."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from caramel.graph import ops
from caramel.graph.functions import Library
from caramel.graph.graph import Graph, NodeDef, data_texts, node_of, parse_input
from caramel.graph.shapes import Shape, sizes, static_shape, with_inferred_shapes

_VALUES = frozenset(
    {"Const", ops.VARIABLE, "ReadVariableOp", "Placeholder", "DummySeedGenerator", "DummyMemoryCache", "Identity"}
)
"""What datasets are made of."""

_IN_ORDER = ops.op_names(
    "RangeDataset RepeatDataset TakeDataset SkipDataset PrefetchDataset OptionsDataset ShuffleDataset "
    "ShuffleDatasetV2 ShuffleDatasetV3 ShuffleAndRepeatDataset ShuffleAndRepeatDatasetV2"
)
"""Datasets that pass on the elements of one, or numbers, in whatever order."""

_OF_SEVERAL = frozenset({"TensorDataset", "TensorSliceDataset", "ZipDataset", "ConcatenateDataset"})
_BATCHES = frozenset({"BatchDataset", "BatchDatasetV2", "ParallelBatchDataset"})
_MAPS = frozenset({"MapDataset", "ParallelMapDataset", "ParallelMapDatasetV2"})

_ALONE = ops.op_names(
    "Identity NoOp Cast Neg Abs Sqrt Rsqrt Square Exp Log Log1p Tanh Sigmoid Relu Floor Ceil Round Rint Sign "
    "LogicalNot ZerosLike OnesLike"
)
"""Ops of one input that have a result for any numbers."""

_TOGETHER = ops.op_names(
    "Add AddV2 Sub Mul Maximum Minimum SquaredDifference SelectV2 LogicalAnd LogicalOr Equal NotEqual Greater "
    "GreaterEqual Less LessEqual"
)
"""Ops of several inputs that have a result for any numbers, if the shapes fit; so has RealDiv."""

_WITH_CONSTANTS = ops.op_names("OneHot ExpandDims Sum Mean Max Min Prod")
"""Ops that TensorFlow has checked when the function was traced, where all other inputs are constants."""

_FOLLOWED = _ALONE | _TOGETHER | _WITH_CONSTANTS | {"RealDiv", "GatherV2"}


def cannot_fail(graph: Graph, dataset: str) -> bool:
    """Whether a dataset gives all of its elements without an error, as far as its graph tells.

    Args:
        graph: nodes of the dataset, with the library of its functions.
        dataset: name of the node that is the dataset.
    """
    library = Library(graph)
    return all(_is_sure(graph, library, graph[name]) for name in graph.ancestors([dataset]))


def _is_sure(graph: Graph, library: Library, node: NodeDef) -> bool:
    if node.op in _VALUES or node.op in _IN_ORDER or node.op in _OF_SEVERAL:
        return True
    if node.op in ("CacheDataset", "CacheDatasetV2"):
        file = graph[node_of(node.input[1])]
        return file.op == "Const" and not any(file.attr["value"].tensor.string_val)
    if node.op in _BATCHES:
        return all(shape is not None and None not in shape[1:] for shape in _element(node))
    return node.op in _MAPS and _is_sure_map(graph, library, node)


def _element(dataset: NodeDef) -> list[Shape | None]:
    """The shapes of the components of a dataset's elements."""
    return [sizes(shape) for shape in dataset.attr["output_shapes"].list.shape]


def _has_open_axis(dataset: NodeDef) -> bool:
    """Whether elements of a dataset may have different shapes."""
    return any(shape is None or None in shape for shape in _element(dataset))


def _is_sure_map(graph: Graph, library: Library, node: NodeDef) -> bool:
    """Whether a function has a result for each element of the dataset that it gets."""
    source = graph[node_of(node.input[0])]
    taken = [graph[node_of(text)] for text in data_texts(node)[1:]]
    others = [each for each in taken if each.attr["dtype"].type != ops.DT_RESOURCE]
    if any(each.op not in ("Const", "ReadVariableOp") for each in others) or len(others) != len(taken):
        return False
    body = library.body(node.attr["f"].func.name)
    shapes = _element(source)
    if len(body.arguments) < len(shapes):
        return False
    inner = Graph(body.graph, graph.library, graph.versions)
    varying = _varying(inner, body.arguments)
    if any(inner[name].op not in _FOLLOWED for name in varying):
        return False
    given = dict(zip(body.arguments, [*shapes, *[None] * (len(body.arguments) - len(shapes))]))
    inner = with_inferred_shapes(inner, given)
    rows = _rows(graph, source)
    made = [graph[name] for name in graph.ancestors([source.name])]
    joins = any(each.op == "ConcatenateDataset" and _has_open_axis(each) for each in made)
    is_of_one_batch = sum(each.op in _BATCHES for each in made) == 1 and not joins
    return all(_has_result(inner, inner[name], body.arguments, rows, is_of_one_batch) for name in varying)


def _varying(graph: Graph, arguments: Sequence[str]) -> list[str]:
    """The ops of a function whose results may differ between elements; any other would fail with the first."""
    varying = set(arguments)
    for name in graph.order:
        node = graph[name]
        if ops.is_stateful(node) or ops.functions_of(node) or not varying.isdisjoint(graph.sources(name)):
            varying.add(name)
    return [name for name in graph.order if name in varying and name not in arguments]


def _has_result(graph: Graph, node: NodeDef, arguments: Sequence[str], rows: int | None, is_of_one_batch: bool) -> bool:
    """Whether an op of a function has a result for any values of its inputs.

    Args:
        graph: the function, with static shapes.
        node: the op.
        arguments: names of the function's arguments.
        rows: number below which all entries of the first argument are; None if that is not known.
        is_of_one_batch: see `_fit`.
    """
    if node.op in _ALONE:
        return True
    texts = data_texts(node)
    if node.op in _TOGETHER or (node.op == "RealDiv" and tf.as_dtype(node.attr["T"].type).is_floating):
        return _fit([static_shape(graph, text) for text in texts], is_of_one_batch)
    if node.op in _WITH_CONSTANTS:
        return all(graph[node_of(text)].op == "Const" for text in texts[1:])
    return node.op == "GatherV2" and rows is not None and _looks_up_rows(graph, node, arguments, rows)


def _fit(shapes: Sequence[Shape | None], is_of_one_batch: bool) -> bool:
    """Whether tensors of these shapes fit together, whatever the sizes are that are not static.

    Args:
        shapes: static shapes.
        is_of_one_batch: whether a first axis that is not static is that of one batch, of which all have as many rows.
    """
    if None in shapes:
        return False
    known = [shape for shape in shapes if shape is not None]
    rank = max(map(len, known))
    padded = [(1,) * (rank - len(shape)) + shape for shape in known]
    for axis, found in enumerate(zip(*padded)):
        others = {size for size in found if size != 1}
        is_told = found.count(None) < 2 or (axis == 0 and is_of_one_batch)
        if len(others) > 1 or not is_told:
            return False
    return True


def _looks_up_rows(graph: Graph, node: NodeDef, arguments: Sequence[str], rows: int) -> bool:
    """Whether an op looks up rows of a table at the numbers that the function gets as its first argument."""
    table, numbers, axis = data_texts(node)
    shape, along = static_shape(graph, table), graph[node_of(axis)]
    is_first_axis = along.op == "Const" and not tf.make_ndarray(along.attr["value"].tensor).any()
    has_rows = shape is not None and len(shape) > 0 and shape[0] is not None and shape[0] >= rows
    return is_first_axis and has_rows and parse_input(numbers) == (arguments[0], 0) and not node.attr["batch_dims"].i


def _rows(graph: Graph, dataset: NodeDef) -> int | None:
    """The number below which all numbers are that a dataset's first component has; None if that is not known."""
    while dataset.op != "RangeDataset":
        if dataset.op not in _IN_ORDER | _BATCHES | {"ZipDataset"}:
            return None
        dataset = graph[node_of(dataset.input[0])]
    bounds = [graph[node_of(text)] for text in data_texts(dataset)]
    if any(bound.op != "Const" for bound in bounds):
        return None
    start, stop, step = (int(tf.make_ndarray(bound.attr["value"].tensor)) for bound in bounds)
    return stop if start >= 0 and step > 0 else None
