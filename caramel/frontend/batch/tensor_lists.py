"""TensorLists, which loops read and write an entry at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from caramel.frontend.batch.domain import (
    BATCH_SIZE,
    INVARIANT,
    Examples,
    Independent,
    SingleExample,
    Size,
    TensorList,
    Unknown,
    Value,
    is_invariant,
    of_sizes,
)
from caramel.frontend.batch.op import Op, Rule


def _new(op: Op) -> Value:
    """A list without elements, but with a length."""
    count = op.inputs[1]
    if is_invariant(count):
        return TensorList(length=op.integer(1))
    if isinstance(count, Independent) and count.sizes == (BATCH_SIZE,):
        return TensorList(per_example=True)
    return op.unknown("makes a list whose length depends on the number of examples")


def _empty(op: Op) -> Value:
    return TensorList()


def _from_tensor(op: Op) -> Value:
    value = op.inputs[0]
    if isinstance(value, Examples):
        if value.axis > 0:
            return TensorList(replace(value, axis=value.axis - 1))
        if value.before != 1 or value.after != 1 or value.power != 0:
            return op.unknown("makes a list of examples that have several entries each")
        if value.chosen:
            return op.unknown("makes a list of chosen examples, of which each worker has another number")
        if value.mixed_by:
            return op.unknown("makes a list of examples that a mean over the batch was put into")
        return TensorList(SingleExample(), per_example=True, complete=True)
    if is_invariant(value):
        return TensorList(INVARIANT)
    return op.unknown("makes a list of sums over the examples")


def _concatenated(op: Op) -> Value | Sequence[Value]:
    """The entries of a list one after the other, and how long each of them is."""
    value = op.inputs[0]
    if not isinstance(value, TensorList) or value.element is None or value.per_example:
        return op.unknown("joins a list of which nothing is known")
    element = value.element
    if is_invariant(element):
        return INVARIANT
    if not isinstance(element, Examples) or element.chosen or element.before is None or element.after is None:
        return op.unknown("joins a list of sums over the examples, or of what cannot be counted")
    if element.axis:
        return [element, INVARIANT]
    if value.length is None or value.length > value.filled:
        return op.unknown("joins a list of which it is not known that all its entries have been written")
    joined = replace(element, before=element.before * value.filled)
    return [joined, Independent(Fraction(1))]


def _stack(op: Op) -> Value:
    value = op.inputs[0]
    if not isinstance(value, TensorList) or value.element is None:
        return op.unknown("stacks a list of which nothing is known")
    if value.per_example:
        if not value.complete:
            return op.unknown("stacks a list that does not have what belongs to each example")
        return (
            Examples(0)
            if isinstance(value.element, (SingleExample, Independent))
            else op.unknown("stacks a list of sums")
        )
    if isinstance(value.element, Examples):
        return replace(value.element, axis=value.element.axis + 1)
    if is_invariant(value.element):
        return INVARIANT
    return op.unknown("stacks a list of sums over the examples")


def _get(op: Op) -> Value:
    value, index = op.inputs[0], op.inputs[1]
    if not isinstance(value, TensorList) or value.element is None or not is_invariant(index):
        return op.unknown("reads a list of which nothing is known")
    if value.per_example:
        return SingleExample(op.qualified_name(1))
    return value.element


def _set(op: Op) -> Value:
    """The list after a write of one entry; only the loop around it tells that each example gets its own entry."""
    value, index, item = op.inputs[0], op.inputs[1], op.inputs[2]
    if not isinstance(value, TensorList) or not is_invariant(index):
        return op.unknown("writes to a place that depends on the examples")
    if isinstance(item, SingleExample):
        if not value.per_example or item.index != op.qualified_name(1):
            return op.unknown("writes a single example to a place that is not its own")
        item = SingleExample()
    elif value.per_example:
        if not is_invariant(item):
            return op.unknown("writes values of all examples to the place of a single one")
        item = INVARIANT
    return _with(op, _written(op, value), item)


def _written(op: Op, value: TensorList) -> TensorList:
    """The list with one more entry that is certain to be there, and with its length, which a write may change."""
    index = op.integer(1)
    length = value.length
    if op.node.attr["resize_if_index_out_of_bounds"].b:
        length = None if length is None or index is None else max(length, index + 1)
    return replace(value, length=length, filled=value.filled + (index == value.filled))


def _with(op: Op, value: TensorList, item: Value) -> Value:
    """The list with one more element."""
    element = item if value.element is None else op.joined(value.element, item)
    return element if isinstance(element, Unknown) else replace(value, element=element, complete=False)


def _push(op: Op) -> Value:
    value, item = op.inputs
    if not isinstance(value, TensorList) or value.per_example or isinstance(item, SingleExample):
        return op.unknown("appends to a list of which nothing is known")
    return _with(op, replace(value, length=None), item)


def _pop(op: Op) -> Value | Sequence[Value]:
    value = op.inputs[0]
    if not isinstance(value, TensorList) or value.element is None or value.per_example:
        return op.unknown("reads a list of which nothing is known")
    return [replace(value, length=None, filled=0), value.element]


def _length(op: Op) -> Value:
    value = op.inputs[0]
    if not isinstance(value, TensorList):
        return op.unknown("measures a list of which nothing is known")
    return of_sizes((BATCH_SIZE if value.per_example else Size(None),))


RULES: dict[str, Rule] = {
    "TensorListReserve": _new,
    "EmptyTensorList": _empty,
    "TensorListFromTensor": _from_tensor,
    "TensorListStack": _stack,
    **dict.fromkeys(("TensorListConcat", "TensorListConcatV2"), _concatenated),
    "TensorListGetItem": _get,
    "TensorListSetItem": _set,
    "TensorListPushBack": _push,
    "TensorListPopBack": _pop,
    "TensorListLength": _length,
}
