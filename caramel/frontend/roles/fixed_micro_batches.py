"""Steps that cut a batch of a fixed size by numbers: ``x[16:32]`` of 64 rows is one of four micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import numpy as np

from caramel.frontend.captured import RawProgram
from caramel.graph import ops
from caramel.graph.folding import folded
from caramel.graph.graph import NodeDef, copied, data_texts, node_of, tensor_name
from caramel.graph.nodes import constant, dtype_attribute, node
from caramel.graph.shapes import static_shape, with_inferred_shapes

_SAME_ROWS = frozenset({"Identity", "Cast", "StopGradient"})
"""Ops behind which a tensor has the rows of their input."""


@dataclass(frozen=True)
class _Cut:
    """An op that takes consecutive rows of an input of the step.

    Attributes:
        node: the op.
        source: name of the input.
        kind: its element type, as an attribute.
        first: number of the first row.
        end: number behind the last row.
        begins: where the op begins, along each axis.
        ends: where it ends along each axis, or how much it takes.
    """

    node: NodeDef
    source: str
    kind: Any
    first: int
    end: int
    begins: np.ndarray
    ends: np.ndarray


class _OtherCut(Exception):
    """An input is cut otherwise."""


def with_sizes_of_micro_batches(raw: RawProgram, examples: int) -> tuple[RawProgram, int] | None:
    """The program that takes multiples of a K-th of its rows, in place of the same numbers of rows, and K.

    Args:
        raw: the captured program.
        examples: number of examples in every batch.

    Returns:
        None for a program that does not cut all of its inputs so, into equal parts.
    """
    try:
        cuts = list(_cuts(raw, examples))
    except _OtherCut:
        return None
    size = gcd(examples, *(place for cut in cuts for place in (cut.first, cut.end)))
    if not cuts or size == examples:
        return None
    count = examples // size
    changed, added = {}, dict[str, NodeDef]()
    for cut in cuts:
        own = copied(cut.node)
        first = _place(cut, "begin", cut.first // size, count, cut.begins, added)
        taken = cut.end if own.op == "StridedSlice" else cut.end - cut.first
        last = _place(cut, "end", taken // size, count, cut.ends, added)
        own.input[1], own.input[2] = first, last
        changed[own.name] = own
    graph = raw.graph.replaced(changed, list(added.values()))
    return replace(raw, graph=with_inferred_shapes(graph, keep=True)), count


def _cuts(raw: RawProgram, examples: int) -> Iterator[_Cut]:
    """The ops that cut inputs of the step by rows.

    Raises:
        _OtherCut: one takes something else than consecutive rows between two that are known.
    """
    graph, divided = raw.graph, {i.node for i in raw.inputs if i.split}
    for each in graph:
        if each.op not in ("Slice", "StridedSlice"):
            continue
        source = node_of(data_texts(each)[0])
        while graph[source].op in _SAME_ROWS:
            source = node_of(data_texts(graph[source])[0])
        if source not in divided:
            continue
        bounds = [folded(graph, tensor_name(text), raw.library) for text in data_texts(each)[1:]]
        if any(bound is None or bound.ndim != 1 or not bound.size for bound in bounds):
            raise _OtherCut
        begins, ends, strides = [*bounds, np.ones(1)][:3]
        masks = _masks(each)
        if masks["ellipsis"] or (masks["begin"] and masks["end"] and strides[0] == 1):
            continue  # all rows
        if strides[0] != 1 or masks["new_axis"] or masks["shrink_axis"]:
            raise _OtherCut
        first, end = 0 if masks["begin"] else int(begins[0]), examples if masks["end"] else int(ends[0])
        if each.op == "Slice":
            end = first + end if end >= 0 else examples
        shape = static_shape(graph, tensor_name(each.name))
        if shape is None or shape[0] is not None:  # something else may have followed from the number
            raise _OtherCut
        if not 0 <= first < end <= examples:
            raise _OtherCut
        kind = dtype_attribute(ops.dtype_name(graph[source].attr["dtype"].type))
        yield _Cut(each, source, kind, first, end, begins, ends)


def _masks(each: NodeDef) -> dict[str, int]:
    """What a slice along the first axis is said to be, by the names of the masks; nothing of a `Slice`."""
    names = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    return {name: each.attr[f"{name}_mask"].i & 1 if each.op == "StridedSlice" else 0 for name in names}


def _place(cut: _Cut, what: str, number: int, count: int, places: np.ndarray, added: dict[str, NodeDef]) -> str:
    """A vector with so many K-ths of the rows in front of what an op has there for the other axes.

    Args:
        cut: the op.
        what: what it has the vector for.
        number: how many K-ths.
        count: K.
        places: the vector that the op has now.
        added: nodes that were added, by name; it gets those that are missing.
    """
    dtype, device = str(places.dtype), cut.node.device
    kind = dtype_attribute(dtype)

    def add(made: NodeDef) -> str:
        added.setdefault(made.name, made)
        return str(made.name)

    rows = f"{cut.source}/micro_batch_{dtype}"
    shape = add(node(f"{rows}/shape", "Shape", [cut.source], device, T=cut.kind, out_type=kind))
    zero, one = (add(constant(f"{rows}/{name}", [n], "int32", device)) for name, n in (("zero", 0), ("one", 1)))
    masks = {f"{name}_mask": 0 for name in ("begin", "end", "ellipsis", "new_axis")}
    index = dtype_attribute("int32")
    of_all = node(f"{rows}/all", "StridedSlice", [shape, zero, one, one], device, T=kind, Index=index, **masks)
    of_all.attr["shrink_axis_mask"].i = 1
    divisor = add(constant(f"{rows}/count", count, dtype, device))
    size = add(node(rows, "FloorDiv", [add(of_all), divisor], device, T=kind))
    factor = add(constant(f"{rows}/times_{number}/factor", number, dtype, device))
    scalars = [add(node(f"{rows}/times_{number}", "Mul", [size, factor], device, T=kind))]
    own = f"{cut.node.name}/{what}_of_micro_batches"
    scalars += [
        add(constant(f"{own}/axis_{axis}", int(place), dtype, device)) for axis, place in enumerate(places[1:], 1)
    ]
    return add(node(own, "Pack", scalars, device, T=kind, N=len(scalars), axis=0))
