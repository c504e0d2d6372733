"""Nodes of tables of which several ranks have some rows each: on workers, and on parameter servers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from caramel.graph import ops
from caramel.graph.graph import NodeDef, control_texts
from caramel.graph.nodes import constant, dtype_attribute, node


def stated_shape(original: NodeDef, name: str, shape: Sequence[int], device: str, controls: Sequence[str]) -> NodeDef:
    """A constant in place of an op that asks for the shape of a table, with that of the whole.

    Args:
        original: the op.
        name: name of the constant.
        shape: shape of the whole table.
        device: device string.
        controls: control inputs.
    """
    stated = constant(name, np.array(shape), ops.dtype_name(original.attr["out_type"].type), device)
    stated.input.extend(controls)
    return stated


def row_count(original: NodeDef, name: str, rows: int, device: str) -> NodeDef:
    """A constant with a rank's number of rows, for an op of its update.

    Args:
        original: the op, which adds up slices.
        name: name of the constant.
        rows: the number.
        device: device string.
    """
    return constant(name, rows, ops.dtype_name(original.attr["Tnumsegments"].type), device)


def handed_on(original: NodeDef, rows: str, dtype: str) -> NodeDef:
    """An op that hands on rows in place of looking them up.

    Args:
        original: the op that looks rows up.
        rows: name of the tensor with the rows.
        dtype: their element type.
    """
    inputs = [rows, *control_texts(original)]
    return node(original.name, "Identity", inputs, original.device, T=dtype_attribute(dtype))
