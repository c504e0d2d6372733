"""For each op on reference variables of TensorFlow 1, the op that does the same to a resource variable."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from tensorflow.core.framework import types_pb2
from tensorflow.python.framework import op_def_registry

from caramel.graph import ops
from caramel.graph.graph import NodeDef

_COUNTERPART_OPS = {
    "Assign": "AssignVariableOp",
    "AssignAdd": "AssignAddVariableOp",
    "AssignSub": "AssignSubVariableOp",
    "IsVariableInitialized": "VarIsInitializedOp",
}
_RESOURCE_OP_PREFIXES = ("Apply", "SparseApply", "Scatter", "StridedSliceAssign", "CountUpTo")

_LOCKING_ATTRIBUTES = frozenset({"use_locking"})
"""Attributes without a place on the resource op: an op on resource variables that lacks them always locks."""

_ADVICE = {
    "TemporaryVariable": "Add the tensors with tf.add_n",
    "DestroyTemporaryVariable": "Add the tensors with tf.add_n",
    "RefSelect": "Choose between the variables' values (tf.gather, tf.where) instead of between the variables",
    "RefMerge": "Let every branch of the tf.cond return a value, or the same variable",
}


@dataclass(frozen=True)
class Counterpart:
    """The op on resource variables that replaces an op on references.

    Attributes:
        op: type of the op on resource variables.
        references: positions of the inputs that are references, and become handles.
        attributes: pairs (name, name on the resource op) of the attributes to keep.
        returns_reference: whether the first output is the first reference, to be read after the op.
    """

    op: str
    references: tuple[int, ...]
    attributes: tuple[tuple[str, str], ...]
    returns_reference: bool


@cache
def counterpart(op: str) -> Counterpart | None:
    """The counterpart of an op by the definitions of both ops; None if it has none.

    Args:
        op: type of the op on references.
    """
    target = _COUNTERPART_OPS.get(op) or (f"Resource{op}" if op.startswith(_RESOURCE_OP_PREFIXES) else None)
    reference_def, resource_def = op_def_registry.get(op), op_def_registry.get(target) if target else None
    if reference_def is None or resource_def is None or len(reference_def.input_arg) != len(resource_def.input_arg):
        return None
    attributes = _attributes(reference_def, resource_def)
    if attributes is None:
        return None
    renamed = dict(attributes)
    for reference_arg, resource_arg in zip(reference_def.input_arg, resource_def.input_arg):
        expected = (
            (types_pb2.DT_RESOURCE, "")
            if reference_arg.is_ref
            else (reference_arg.type, renamed.get(reference_arg.type_attr, ""))
        )
        if (resource_arg.type, resource_arg.type_attr) != expected or not (
            reference_arg.is_ref or reference_arg.name == resource_arg.name
        ):
            return None
    returns_reference = any(argument.is_ref for argument in reference_def.output_arg)
    if len(resource_def.output_arg) != (0 if returns_reference else len(reference_def.output_arg)):
        return None
    return Counterpart(resource_def.name, references_of(op), attributes, returns_reference)


def _attributes(reference_def: Any, resource_def: Any) -> tuple[tuple[str, str], ...] | None:
    """Pairs of attribute names; None where an attribute has no place on the resource op, or that op needs another."""
    resource_attributes = {a.name: a for a in resource_def.attr}
    of_values = {a.type_attr for a in (*reference_def.input_arg, *reference_def.output_arg) if not a.is_ref}
    pairs = {a.name: a.name for a in reference_def.attr if a.name in resource_attributes}
    if "T" not in resource_attributes and "dtype" in resource_attributes:
        pairs["T"] = "dtype"
    left_out = {a.name for a in reference_def.attr} - pairs.keys() - _LOCKING_ATTRIBUTES
    needed = {name for name, a in resource_attributes.items() if not a.HasField("default_value")}
    if any(a.type != "type" or a.name in of_values for a in reference_def.attr if a.name in left_out):
        return None
    return tuple(pairs.items()) if needed <= set(pairs.values()) else None


@cache
def references_of(op: str) -> tuple[int, ...]:
    """Positions of the inputs of an op that are references."""
    definition = op_def_registry.get(op)
    if definition is None:  # a function of the graph's library
        return ()
    return tuple(position for position, argument in enumerate(definition.input_arg) if argument.is_ref)


def is_reference_write(op: str) -> bool:
    """Whether the op writes the variables that its references refer to."""
    return counterpart(op) is not None and op != "IsVariableInitialized"


def advice(node: NodeDef) -> str:
    """Advice, for a message, on an op on references that has no counterpart.

    Args:
        node: node of the op.
    """
    if counterpart(node.op) is not None or node.op in ops.REFERENCE_VARIABLES:
        return "Give it the variable itself, not what another op makes of the variable"
    return _ADVICE.get(node.op, "Move it out of the training step (feed its result, or run it between steps)")
