"""Writing NodeDefs directly: TensorFlow's Python op layer is far too slow for large graphs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache

import numpy as np
from tensorflow.core.framework import attr_value_pb2, node_def_pb2, tensor_pb2
from tensorflow.python.framework import tensor_util

from caramel.graph import ops
from caramel.graph.graph import NodeDef

_COLOCATION_PREFIX = "loc:@"

_SEED_BITS = 63
"""Bits of a seed attribute without its sign."""


def node(
    name: str,
    op: str,
    inputs: Iterable[str] = (),
    device: str = "",
    **attributes: object,
) -> NodeDef:
    """A NodeDef; attributes may be ints, bools, bytes or AttrValues."""
    node_def = node_def_pb2.NodeDef(name=name, op=op, input=list(inputs), device=device)
    for key, value in attributes.items():
        node_def.attr[key].CopyFrom(_attribute(value))
    return node_def


def _attribute(value: object) -> attr_value_pb2.AttrValue:
    if isinstance(value, attr_value_pb2.AttrValue):
        return value
    if isinstance(value, bool):
        return attr_value_pb2.AttrValue(b=value)
    if isinstance(value, int):
        return attr_value_pb2.AttrValue(i=value)
    if isinstance(value, bytes):
        return attr_value_pb2.AttrValue(s=value)
    raise TypeError(f"no attribute value for {value!r}")


@lru_cache  # the values are copied into nodes, never changed
def dtype_attribute(name: str) -> attr_value_pb2.AttrValue:
    """Attribute value of a dtype given by name."""
    return attr_value_pb2.AttrValue(type=ops.dtype_enum(name))


def dtypes_attribute(names: Iterable[str]) -> attr_value_pb2.AttrValue:
    """Attribute value of a list of dtypes given by name."""
    types = attr_value_pb2.AttrValue.ListValue(type=[ops.dtype_enum(n) for n in names])
    return attr_value_pb2.AttrValue(list=types)


def shape_attribute(shape: Sequence[int] | None) -> attr_value_pb2.AttrValue:
    """Attribute value of a static shape; None for an unknown one."""
    value = attr_value_pb2.AttrValue()
    value.shape.SetInParent()
    if shape is None:
        value.shape.unknown_rank = True
        return value
    for size in shape:
        value.shape.dim.add().size = size
    return value


def constant(name: str, value: object, dtype: str, device: str) -> NodeDef:
    """A Const node; for the few small numbers that a collective or a group needs."""
    array = np.asarray(value)
    if array.dtype == np.int32 and dtype == "int32":  # most of a collective's, and quicker than TensorFlow's function
        proto = tensor_pb2.TensorProto(dtype=ops.dtype_enum(dtype), tensor_content=array.tobytes())
        proto.tensor_shape.SetInParent()
        for size in array.shape:
            proto.tensor_shape.dim.add().size = size
    else:
        proto = tensor_util.make_tensor_proto(array, dtype=ops.dtype_enum(dtype), shape=array.shape)
    return node(name, "Const", (), device, dtype=dtype_attribute(dtype), value=attr_value_pb2.AttrValue(tensor=proto))


def colocated(node_def: NodeDef) -> list[str]:
    """The ops with which a node asks to be colocated."""
    texts = (text.decode() for text in node_def.attr["_class"].list.s) if "_class" in node_def.attr else ()
    return [text.removeprefix(_COLOCATION_PREFIX) for text in texts if text.startswith(_COLOCATION_PREFIX)]


def colocate(node_def: NodeDef, renamed: Callable[[str], str | None]) -> None:
    """Rename the ops with which a node asks to be colocated, in place; ops without a new name are dropped."""
    if "_class" not in node_def.attr:
        return
    names = [renamed(wish.decode().removeprefix(_COLOCATION_PREFIX)) for wish in node_def.attr["_class"].list.s]
    classes = [f"{_COLOCATION_PREFIX}{name}".encode() for name in names if name is not None]
    if classes:
        node_def.attr["_class"].list.s[:] = classes
    else:
        del node_def.attr["_class"]


def group(name: str, targets: Iterable[str], device: str) -> NodeDef:
    """A NoOp that is done when its targets are."""
    return node(name, "NoOp", ["^" + target for target in targets], device)


def variable(
    name: str, dtype: str, shape: Sequence[int] | None, device: str, shared_name: str | None = None
) -> NodeDef:
    """The handle of a variable, of any shape if shape is None; its shared name is the node's name by default."""
    attributes: dict[str, object] = {"shape": shape_attribute(shape), "shared_name": (shared_name or name).encode()}
    return node(name, "VarHandleOp", (), device, dtype=dtype_attribute(dtype), **attributes)


def read(name: str, handle: str, dtype: str, device: str, after: Iterable[str] = ()) -> NodeDef:
    """The value of a variable, once the nodes of ``after`` have run."""
    return node(
        name, "ReadVariableOp", [handle, *("^" + other for other in after)], device, dtype=dtype_attribute(dtype)
    )


def assign(name: str, handle: str, value: str, dtype: str, device: str) -> NodeDef:
    """The assignment of a value to a variable."""
    return node(name, "AssignVariableOp", [handle, value], device, dtype=dtype_attribute(dtype))


def settings_of(node: NodeDef) -> dict[str, tuple[object, ...]]:
    """The attributes of a node that are numbers or texts.

    Args:
        node: the node.
    """
    return {
        name: (value.i, value.b, value.f, value.s, tuple(value.list.i))
        for name, value in node.attr.items()
        if not name.startswith("_") and (value.WhichOneof("value") in ("i", "b", "f", "s") or value.list.i)
    }


def offset_seed(node: NodeDef, by: int) -> None:
    """Give a random op, in place, another stream; the seeds (0, 0), which ask for a seed from the system, stay.

    Args:
        node: the op.
        by: what is added to its second seed; 0 leaves it as it is.
    """
    seed, seed2 = node.attr["seed"].i, node.attr["seed2"].i
    if by == 0 or (seed == 0 and seed2 == 0):
        return
    shifted = (seed2 + by) % (1 << _SEED_BITS)
    node.attr["seed2"].i = shifted if (seed, shifted) != (0, 0) else 1


def free_name(name: str, taken: Collection[str]) -> str:
    """The name itself if it is not taken, else the name with the first number that makes it unique.

    Args:
        name: the name.
        taken: names that there are.

    >>> free_name("a", {"a", "a_1"})
    'a_2'
    """
    free, number = name, 1
    while free in taken:
        free, number = f"{name}_{number}", number + 1
    return free
