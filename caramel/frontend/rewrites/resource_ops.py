"""For each op on reference variables of TensorFlow 1, the op that does the same to a resource variable."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from tensorflow.core.framework import types_pb2
from tensorflow.python.framework import op_def_registry

from caramel.graph import ops
from caramel.graph.graph import NodeDef

_BY_NAME = {
    "Assign": "AssignVariableOp",
    "AssignAdd": "AssignAddVariableOp",
    "AssignSub": "AssignSubVariableOp",
    "IsVariableInitialized": "VarIsInitializedOp",
}
_BY_PREFIX = ("Apply", "SparseApply", "Scatter", "StridedSliceAssign", "CountUpTo")

_WITHOUT_MEANING = frozenset({"use_locking"})
"""The ops on resource variables that have no such attribute always lock."""

_ADVICE = {
    "TemporaryVariable": "Add the tensors with tf.add_n",
    "DestroyTemporaryVariable": "Add the tensors with tf.add_n",
    "RefSelect": "Choose between the variables' values (tf.gather, tf.where) instead of between the variables",
    "RefMerge": "Let every branch of the tf.cond return a value, or the same variable",
}


@dataclass(frozen=True)
class Counterpart:
    """How to write an op on references for resource variables.

    Attributes:
        op: the op to use.
        references: positions of the inputs that are references, and become handles.
        attributes: the attributes to keep: (name, name on the other op).
        returns_reference: whether the first output is the first reference, to be read after the op.
    """

    op: str
    references: tuple[int, ...]
    attributes: tuple[tuple[str, str], ...]
    returns_reference: bool


@cache
def counterpart(op: str) -> Counterpart | None:
    """The counterpart of an op, as the definitions of both ops say, or None.

    Args:
        op: an op type.
    """
    target = _BY_NAME.get(op) or (f"Resource{op}" if op.startswith(_BY_PREFIX) else None)
    theirs, ours = op_def_registry.get(op), op_def_registry.get(target) if target else None
    if theirs is None or ours is None or len(theirs.input_arg) != len(ours.input_arg):
        return None
    attributes = _attributes(theirs, ours)
    if attributes is None:
        return None
    renamed = dict(attributes)
    for mine, other in zip(theirs.input_arg, ours.input_arg):
        wanted = (types_pb2.DT_RESOURCE, "") if mine.is_ref else (mine.type, renamed.get(mine.type_attr, ""))
        if (other.type, other.type_attr) != wanted or not (mine.is_ref or mine.name == other.name):
            return None
    returns_reference = any(argument.is_ref for argument in theirs.output_arg)
    if len(ours.output_arg) != (0 if returns_reference else len(theirs.output_arg)):
        return None
    return Counterpart(ours.name, references_of(op), attributes, returns_reference)


def _attributes(theirs: Any, ours: Any) -> tuple[tuple[str, str], ...] | None:
    """Pairs of names; None where an attribute has no place on the other op, or the other op needs one more."""
    known = {a.name: a for a in ours.attr}
    of_values = {a.type_attr for a in (*theirs.input_arg, *theirs.output_arg) if not a.is_ref}
    pairs = {a.name: a.name for a in theirs.attr if a.name in known}
    if "T" not in known and "dtype" in known:
        pairs["T"] = "dtype"
    left_out = {a.name for a in theirs.attr} - pairs.keys() - _WITHOUT_MEANING
    needed = {name for name, a in known.items() if not a.HasField("default_value")}
    if any(a.type != "type" or a.name in of_values for a in theirs.attr if a.name in left_out):
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
    """What to do instead of an op on references that has no counterpart.

    Args:
        node: the node.
    """
    if counterpart(node.op) is not None or node.op in ops.REFERENCE_VARIABLES:
        return "Give it the variable itself, not what another op makes of the variable"
    return _ADVICE.get(node.op, "Move it out of the training step (feed its result, or run it between steps)")
