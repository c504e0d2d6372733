"""TensorLists, which loops read and write an entry at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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
        return TensorList()
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
    return _with(op, value, item)


def _with(op: Op, value: TensorList, item: Value) -> Value:
    """The list with one more element."""
    element = item if value.element is None else op.joined(value.element, item)
    return element if isinstance(element, Unknown) else TensorList(element, value.per_example)


def _push(op: Op) -> Value:
    value, item = op.inputs
    if not isinstance(value, TensorList) or value.per_example or isinstance(item, SingleExample):
        return op.unknown("appends to a list of which nothing is known")
    return _with(op, value, item)


def _pop(op: Op) -> Value | Sequence[Value]:
    value = op.inputs[0]
    if not isinstance(value, TensorList) or value.element is None or value.per_example:
        return op.unknown("reads a list of which nothing is known")
    return [value, value.element]


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
    "TensorListGetItem": _get,
    "TensorListSetItem": _set,
    "TensorListPushBack": _push,
    "TensorListPopBack": _pop,
    "TensorListLength": _length,
}
