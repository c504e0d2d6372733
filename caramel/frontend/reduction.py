"""How a loss reduces over the batch: is it a mean over the examples, or a sum?

Every value is described by a form and by a power of the batch size that it carries:

- free: does not depend on the examples (power 1: a count of them);
- ones: one entry for each example, the same whatever the examples are;
- examples: one entry for each example, along one axis;
- total: a sum over the examples (power 0), or a mean (power -1).

Sums over the batch axis turn examples into a total; means do so and divide by the count. What does
not fit is unknown, with the op that made it so, and then the caller has to say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from caramel.graph import ops
from caramel.graph.graph import Graph, NodeDef, node_of, parse_input, tensor_name
from caramel.model import Input

_SHAPE_OPS = frozenset({"Shape", "ShapeN", "Size"})
_ONES_OPS = frozenset({"OnesLike", "ZerosLike"})
_SAME = frozenset(
    {
        "Identity",
        "IdentityN",
        "Cast",
        "StopGradient",
        "PreventGradient",
        "CheckNumerics",
        "EnsureShape",
        "Neg",
        "Snapshot",
    }
)
_RESHAPE = frozenset({"Reshape", "Squeeze", "ExpandDims"})
_ADD = frozenset({"Add", "AddV2", "AddN", "Sub"})
_MULTIPLY = frozenset({"Mul", "MulNoNan"})
_DIVIDE = frozenset({"RealDiv", "Div", "DivNoNan", "TruncateDiv", "FloorDiv"})
_ELEMENTWISE_BINARY = _ADD | _MULTIPLY | _DIVIDE | {"Maximum", "Minimum", "SquaredDifference", "Pow", "SelectV2"}


@dataclass(frozen=True)
class _Value:
    form: str  # free, ones, examples, total, unknown
    power: int = 0
    axis: int = 0
    why: str = ""
    counts: tuple[int, ...] = ()  # of a total: static numbers that a mean would divide by


_FREE = _Value("free")


def _unknown(node: NodeDef, why: str) -> _Value:
    return _Value("unknown", why=f"{node.op} {node.name!r} {why}")


def reduction_of(graph: Graph, tensor: str, inputs: Sequence[Input]) -> tuple[str | None, str]:
    """Whether a tensor is a mean or a sum over the examples of the batch.

    Args:
        graph: nodes with ``_output_shapes`` attributes.
        tensor: the tensor that is differentiated.
        inputs: the program's inputs; the split ones carry the batch along axis 0.

    Returns:
        ``("mean" | "sum" | None, reason)``; None where it cannot be told.
    """
    value = _Analysis(graph, {i.node for i in inputs if i.split}).value_of(tensor)
    if value.form == "total" and value.power == -1:
        return "mean", f"the loss {tensor!r} averages over the batch"
    if value.form == "total" and value.power == 0:
        return "sum", f"the loss {tensor!r} adds up the examples of the batch without dividing by their number"
    if value.form == "examples" and value.power == 0:
        return "sum", f"the loss {tensor!r} has one value for each example; differentiation adds them"
    if value.form == "examples" and value.power == -1:
        return "mean", f"the loss {tensor!r} has one value for each example, divided by their number"
    if value.form in ("free", "ones"):
        return None, f"the loss {tensor!r} does not depend on any input that is split over the workers"
    return None, value.why or f"the loss {tensor!r} is neither a mean nor a sum over the batch"


def batch_wide_values(graph: Graph, tensor: str, inputs: Sequence[Input]) -> tuple[str, ...]:
    """Ops whose value over the whole batch goes into the values of single examples.

    Batch normalisation's mean and variance are such. Each worker computes them over its own part.
    """
    analysis = _Analysis(graph, {i.node for i in inputs if i.split})
    analysis.value_of(tensor)
    return tuple(analysis.batch_wide)


class _Analysis:
    def __init__(self, graph: Graph, split: set[str]) -> None:
        self._graph = graph
        self._split = split
        self._only_batch_is_open = all(self._is_open_in_front(name) for name in split if name in graph)
        self.batch_wide: dict[str, None] = {}

    def value_of(self, tensor: str) -> _Value:
        name, _ = parse_input(tensor)
        needed = self._graph.ancestors([name], control=False)
        order = [n for n in self._graph.order if n in needed]
        values: dict[str, _Value] = {}
        for current in order:
            values[current] = self._value(self._graph[current], values)
        return values[name]

    def _is_open_in_front(self, name: str) -> bool:
        shape = self._shape(name)
        return shape is not None and shape[:1] == [None] and None not in shape[1:]

    # -- facts about nodes -------------------------------------------------------------------

    def _shape(self, text: str) -> list[int | None] | None:
        name, index = parse_input(text)
        shapes = self._graph[name].attr["_output_shapes"].list.shape
        if index >= len(shapes) or shapes[index].unknown_rank:
            return None
        return [d.size if d.size >= 0 else None for d in shapes[index].dim]

    def _constant(self, text: str) -> Any:
        node = self._graph[node_of(text)]
        while node.op == "Identity":
            node = self._graph[node_of(node.input[0])]
        return tf.make_ndarray(node.attr["value"].tensor) if node.op == "Const" else None

    def _divides_by(self, divisor: str, counts: Sequence[int]) -> int:
        """1 where a constant divisor is the static number of examples, else 0.

        With a static batch the traced program holds that number as a constant; each worker then
        has a batch of that size.
        """
        value = self._folded(divisor) if counts else None
        return int(value is not None and value.size == 1 and float(value.ravel()[0]) in counts)

    def _folded(self, text: str) -> Any:
        """The value of a tensor that is made of constants only, else None."""
        behind = self._graph.ancestors([node_of(text)], control=False)
        nodes = Graph(
            (n for n in self._graph if n.name in behind),
            self._graph.library,
            self._graph.versions,
        )
        if any(n.op in ops.PLACEHOLDERS or ops.is_stateful(n) for n in nodes):
            return None
        with tf.Graph().as_default():
            (tensor,) = tf.import_graph_def(_data_only(nodes), return_elements=[tensor_name(text)], name="")
            with tf.compat.v1.Session() as session:
                return session.run(tensor)

    # -- rules -------------------------------------------------------------------------------

    def _value(self, node: NodeDef, values: Mapping[str, _Value]) -> _Value:
        if node.name in self._split:
            return _Value("examples")
        inputs = [text for text in node.input if not text.startswith("^")]
        got = [values[node_of(text)] for text in inputs]
        if all(v == _FREE for v in got):
            return _FREE
        if node.op in _SHAPE_OPS and got[0].form in ("examples", "ones"):
            return _Value("free", 1)
        if node.op in _ONES_OPS and got[0].form in ("examples", "ones"):
            return _Value("ones", 0, got[0].axis)
        if node.op in ("Fill", "BroadcastTo") and all(v.form == "free" for v in got):
            return _Value("ones")
        if all(v.form == "free" for v in got):
            return self._count(node, got)
        rank = self._rank(node)
        if rank is None and any(v.form in ("examples", "ones") for v in got):
            return _unknown(node, "has a result of unknown rank")
        if node.op in ("Mean", "Sum"):
            return self._reduce(node, inputs, got)
        if node.op == "L2Loss":
            return self._sum(node, got[0]) if got[0].power == 0 else _unknown(node, "is not linear")
        if any(v.form in ("examples", "ones") for v in got):
            return self._per_example(node, inputs, got, rank or 0)
        return self._scalar(node, inputs, got)

    def _rank(self, node: NodeDef) -> int | None:
        shape = self._shape(node.name)
        return None if shape is None else len(shape)

    def _count(self, node: NodeDef, got: Sequence[_Value]) -> _Value:
        """Arithmetic on shapes: the result still counts examples."""
        if node.op in _DIVIDE and len(got) == 2:
            return _Value("free", got[0].power - got[1].power)
        return _Value("free", max(v.power for v in got))

    def _axes(self, node: NodeDef, inputs: Sequence[str]) -> list[int] | None:
        axes = self._constant(inputs[1])
        shape = self._shape(inputs[0])
        if axes is None or shape is None:
            return None
        return [int(a) % max(len(shape), 1) for a in axes.ravel()]

    def _reduce(self, node: NodeDef, inputs: Sequence[str], got: Sequence[_Value]) -> _Value:
        value = got[0]
        if value.form not in ("examples", "ones"):
            return value  # a mean or sum of totals is still that total's kind
        axes = self._axes(node, inputs)
        if axes is None:
            if self._rank(node) != 0:
                return _unknown(node, "reduces over axes that are not constant")
            axes = list(range(len(self._shape(inputs[0]) or [0])))
        if value.axis not in axes:
            if node.attr["keep_dims"].b:
                return value
            return _Value(value.form, value.power, value.axis - sum(1 for a in set(axes) if a < value.axis))
        summed = self._sum(node, value)
        if node.op == "Mean":
            return _Value(summed.form, summed.power - 1)
        shape = self._shape(inputs[0]) or []
        examples = shape[value.axis] if value.axis < len(shape) else None
        if examples is None:
            return summed
        entries = math.prod(shape[a] or 0 for a in set(axes))
        return replace(summed, counts=(examples, entries))

    @staticmethod
    def _sum(node: NodeDef, value: _Value) -> _Value:
        """Sum over the batch axis; entries that do not depend on the examples are counted."""
        if value.form == "ones":
            return _Value("free", value.power + 1)
        return _Value("total", value.power)

    def _per_example(self, node: NodeDef, inputs: Sequence[str], got: Sequence[_Value], rank: int) -> _Value:
        axis = self._open_axis(node)
        if axis is None:
            axis = self._axis(node, inputs, got, rank)
        if rank == 0:
            return _unknown(node, "turns per-example values into a scalar in a way that is neither a mean nor a sum")
        form = "examples" if any(v.form in ("examples", "unknown", "total") for v in got) else "ones"
        self.batch_wide.update((node_of(t), None) for t, v in zip(inputs, got) if v.form in ("unknown", "total"))
        powers = [v.power for v in got]
        if node.op in _MULTIPLY:
            return _Value(form, sum(powers), axis)
        if node.op in _DIVIDE:
            shape = self._shape(inputs[0]) or [None]
            size = shape[got[0].axis] if got[0].axis < len(shape) else None
            counts = () if size is None else (size,)
            return _Value(form, powers[0] - powers[1] - self._divides_by(inputs[1], counts), axis)
        relevant = {v.power for v in got if v.form in ("examples", "ones")}
        if node.op in _SAME | _RESHAPE | _ADD | {"Transpose", "ConcatV2", "Pack"} and len(relevant) == 1:
            return _Value(form, relevant.pop(), axis)
        if relevant == {0}:
            return _Value(form, 0, axis)
        return _unknown(node, "uses values divided by the batch size in a way that is not linear")

    def _open_axis(self, node: NodeDef) -> int | None:
        """The only axis of unknown size, where the number of examples is the only size that is unknown."""
        if not self._only_batch_is_open:
            return None
        shape = self._shape(node.name)
        return shape.index(None) if shape is not None and shape.count(None) == 1 else None

    def _axis(self, node: NodeDef, inputs: Sequence[str], got: Sequence[_Value], rank: int) -> int:
        """Where the batch axis goes; ops that are not known keep it in front."""
        if node.op == "Transpose":
            permutation = self._constant(inputs[1])
            if permutation is not None:
                return int(list(permutation).index(got[0].axis))
            return 0
        if node.op in _ELEMENTWISE_BINARY:
            for text, value in zip(inputs, got):
                shape = self._shape(text)
                if value.form in ("examples", "ones") and shape is not None:
                    return max(value.axis + rank - len(shape), 0)
        if len(inputs) == 1 or node.op in _SAME:
            return got[0].axis if got[0].axis < max(rank, 1) else 0
        return 0

    def _scalar(self, node: NodeDef, inputs: Sequence[str], got: Sequence[_Value]) -> _Value:
        """Arithmetic on totals: only what keeps a mean a mean and a sum a sum."""
        unknown = next((v for v in got if v.form == "unknown"), None)
        if unknown is not None:
            return unknown
        if node.op in _SAME | _RESHAPE:
            return got[0]
        totals = [v for v in got if v.form == "total"]
        if node.op in _MULTIPLY and len(totals) == 1:
            return _Value("total", sum(v.power for v in got))
        if node.op in _DIVIDE and got[0].form == "total" and got[1].form == "free":
            return _Value("total", got[0].power - got[1].power - self._divides_by(inputs[1], got[0].counts))
        if node.op in _ADD | {"Pack", "ConcatV2"}:
            if len({v.power for v in totals}) == 1 and len(totals) == len(got):
                return totals[0]
            rest = [v for v in got if v.form == "free"]
            if all(v.power == -1 for v in totals) and all(v.power == 0 for v in rest):
                return totals[0]
            return _unknown(
                node,
                "adds a sum over the examples to a term that does not depend on them (a regulariser, say): "
                "with N workers that term would count N times",
            )
        return _unknown(node, "is not linear in a mean or sum over the batch")


def _data_only(nodes: Graph) -> Any:
    """The nodes without their control inputs."""
    graph_def = nodes.to_graph_def()
    for node in graph_def.node:
        data = [text for text in node.input if not text.startswith("^")]
        del node.input[:]
        node.input.extend(data)
    return graph_def
