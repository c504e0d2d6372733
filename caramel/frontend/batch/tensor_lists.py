"""TensorLists, which loops read and write an entry at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from caramel.frontend.batch.domain import FREE, Examples, Free, ListOf, One, Size, Unknown, Value, free, is_number
from caramel.frontend.batch.op import Op, Rule

_EACH = (Size(Fraction(1), Fraction(1)),)
"""The length of a list with an entry for each example."""


def _new(op: Op) -> Value:
    """A list without elements, but with a length."""
    count = op.inputs[1]
    if is_number(count):
        return ListOf()
    if isinstance(count, Free) and count.sizes == _EACH:
        return ListOf(examples=True)
    return op.unknown("makes a list whose length depends on the number of examples")


def _empty(op: Op) -> Value:
    return ListOf()


def _from_tensor(op: Op) -> Value:
    value = op.inputs[0]
    if isinstance(value, Examples):
        if value.axis > 0:
            return ListOf(replace(value, axis=value.axis - 1))
        if value.before != 1 or value.after != 1 or value.power != 0:
            return op.unknown("makes a list of examples that have several entries each")
        return ListOf(One(), examples=True, complete=True)
    if is_number(value):
        return ListOf(FREE)
    return op.unknown("makes a list of sums over the examples")


def _stack(op: Op) -> Value:
    value = op.inputs[0]
    if not isinstance(value, ListOf) or value.element is None:
        return op.unknown("stacks a list of which nothing is known")
    if value.examples:
        if not value.complete:
            return op.unknown("stacks a list that does not have what belongs to each example")
        return Examples(0) if isinstance(value.element, (One, Free)) else op.unknown("stacks a list of sums")
    if isinstance(value.element, Examples):
        return replace(value.element, axis=value.element.axis + 1)
    if is_number(value.element):
        return FREE
    return op.unknown("stacks a list of sums over the examples")


def _get(op: Op) -> Value:
    value, index = op.inputs[0], op.inputs[1]
    if not isinstance(value, ListOf) or value.element is None or not is_number(index):
        return op.unknown("reads a list of which nothing is known")
    if value.examples:
        return One(op.place(1))
    return value.element


def _set(op: Op) -> Value:
    """One entry: that each example has its own in the end, only the loop around it tells."""
    value, index, item = op.inputs[0], op.inputs[1], op.inputs[2]
    if not isinstance(value, ListOf) or not is_number(index):
        return op.unknown("writes to a place that depends on the examples")
    if isinstance(item, One):
        if not value.examples or item.index != op.place(1):
            return op.unknown("writes a single example to a place that is not its own")
        item = One()
    elif value.examples:
        if not is_number(item):
            return op.unknown("writes values of all examples to the place of a single one")
        item = FREE
    return _with(op, value, item)


def _with(op: Op, value: ListOf, item: Value) -> Value:
    """The list with one more element."""
    element = item if value.element is None else op.joined(value.element, item)
    return element if isinstance(element, Unknown) else ListOf(element, value.examples)


def _push(op: Op) -> Value:
    value, item = op.inputs
    if not isinstance(value, ListOf) or value.examples or isinstance(item, One):
        return op.unknown("appends to a list of which nothing is known")
    return _with(op, value, item)


def _pop(op: Op) -> Value | Sequence[Value]:
    value = op.inputs[0]
    if not isinstance(value, ListOf) or value.element is None or value.examples:
        return op.unknown("reads a list of which nothing is known")
    return [value, value.element]


def _length(op: Op) -> Value:
    value = op.inputs[0]
    if not isinstance(value, ListOf):
        return op.unknown("measures a list of which nothing is known")
    return free(_EACH if value.examples else (Size(None),))


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
