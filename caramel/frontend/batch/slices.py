"""Slices: what they leave of the axis of the examples, and which micro-batches they take; see `micro_batches`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

from caramel.frontend.batch.domain import BATCH_SIZE, Examples, Independent, Size, is_invariant
from caramel.frontend.batch.op import Op
from caramel.graph.graph import data_texts


def sliced_axis(
    op: Op,
    axis: int,
    entries: int,
    bounds: Sequence[list[int] | None],
    rank: int | None = None,
    takes_part: bool = False,
) -> int | None:
    """The batch axis after a slice that takes all of it; None if the slice does not.

    Args:
        op: the op, with the masks of a StridedSlice.
        axis: batch axis of what is sliced.
        entries: number of entries of the bounds.
        bounds: begins, ends and strides; None for what is not constant.
        rank: rank of what is sliced; None for that of the first input.
        takes_part: whether the slice may take some of the axis.
    """
    rank = op.rank(0) if rank is None else rank
    masks = {name: op.node.attr[f"{name}_mask"].i for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}

    def has(name: str, entry: int) -> bool:
        return bool(masks[name] >> entry & 1)

    consumed = sum(1 for e in range(entries) if not has("ellipsis", e) and not has("new_axis", e))
    source_axis = result_axis = 0
    for entry in range(entries):
        if has("ellipsis", entry):
            skipped = (rank or 0) - consumed
            if source_axis <= axis < source_axis + skipped:
                return result_axis + axis - source_axis
            source_axis, result_axis = source_axis + skipped, result_axis + skipped
        elif has("new_axis", entry):
            result_axis += 1
        elif source_axis == axis:
            takes = takes_part or _takes_all(entry, has, bounds)
            return result_axis if takes and not has("shrink_axis", entry) else None
        else:
            source_axis, result_axis = source_axis + 1, result_axis + (not has("shrink_axis", entry))
    return result_axis + axis - source_axis


def _takes_all(entry: int, has: Callable[[str, int], bool], bounds: Sequence[list[int] | None]) -> bool:
    """Whether an entry of a slice takes a whole axis."""
    begins, _, strides = bounds
    starts = has("begin", entry) or (begins is not None and begins[entry] == 0)
    return bool(starts and has("end", entry) and strides is not None and strides[entry] == 1)


# -- micro-batches -----------------------------------------------------------------------------


def part_taken(op: Op) -> Examples | None:
    """The examples that a slice takes, where they are some of several batches one after the other; else None.

    Args:
        op: a slice of examples.
    """
    value = op.inputs[0]
    if (
        not isinstance(value, Examples)
        or value.axis != 0
        or value.before is None
        or (value.after, value.chosen) != (1, "")
    ):
        return None
    taken = micro_batches_taken(op, value.before, has_remainder=False)
    return None if taken is None else replace(value, axis=taken.axis, before=taken.before)


def micro_batches_taken(op: Op, count: int, has_remainder: bool) -> Examples | None:
    """The micro-batches that a slice takes along the first axis; None where it takes something else.

    Args:
        op: the op; its first input has so many micro-batches.
        count: number of micro-batches.
        has_remainder: whether further entries may follow.
    """
    if op.node.op not in ("StridedSlice", "Slice") or not _is_fixed_elsewhere(op):
        return None
    return _of_slice(op, count) if op.node.op == "Slice" else _of_strided_slice(op, count, has_remainder)


def _is_fixed_elsewhere(op: Op) -> bool:
    """Whether what a slice takes along the other axes does not depend on the batch, nor on its size."""
    for position in range(1, len(op.inputs)):
        value = op.inputs[position]
        if is_invariant(value):
            continue
        length = op.shape(position)
        if length is None or length[0] is None or position == 3:
            return False
        for entry in range(1, length[0]):
            if isinstance(value, Independent) and value.sizes is not None:
                is_fixed = value.sizes[entry].power == 0
            else:
                text = op.entry_of(position, entry)
                is_fixed = text is not None and is_invariant(op.value_of(text))
            if not is_fixed:
                return False
    return True


def _of_strided_slice(op: Op, count: int, has_remainder: bool) -> Examples | None:
    masks = {name: op.node.attr[f"{name}_mask"].i & 1 for name in ("begin", "end", "ellipsis", "new_axis")}
    length, strides = op.shape(1), op.integers(3)
    if not length or not length[0] or not strides or strides[0] != 1 or masks["ellipsis"] or masks["new_axis"]:
        return None
    axis = sliced_axis(op, 0, length[0], (op.integers(1), op.integers(2), strides), takes_part=True)
    if axis is None or (masks["end"] and has_remainder):
        return None
    begin = Size(Fraction(0)) if masks["begin"] else _first_size(op, 1)
    end = Size(Fraction(count), Fraction(1)) if masks["end"] else _first_size(op, 2)
    if begin is not None and end is not None:
        return _between(axis, _place(begin, count, has_remainder), _place(end, count, has_remainder), count)
    if masks["begin"] or masks["end"]:
        return None
    first, last = op.entry_of(1, 0), op.entry_of(2, 0)
    number = None if first is None else _counted(op, first, count)
    if first is None or last is None or number is None or not _is_one_further(op, first, number, last):
        return None
    return Examples(axis)


def _of_slice(op: Op, count: int) -> Examples | None:
    begin, size = _first_size(op, 1), _first_size(op, 2)
    if size is None or size.power != 1 or size.coefficient is None:
        return None
    if begin is not None:
        first = _place(begin, count, has_remainder=True)
        return None if first is None else _between(0, first, first + size.coefficient, count)
    text = op.entry_of(1, 0)
    is_one = size == BATCH_SIZE and text is not None and _counted(op, text, count) is not None
    return Examples(0) if is_one else None


def _between(axis: int, first: Fraction | None, last: Fraction | None, count: int) -> Examples | None:
    if first is None or last is None or not 0 <= first < last <= count:
        return None
    taken = last - first
    return Examples(axis, before=int(taken)) if first.denominator == taken.denominator == 1 else None


def _place(size: Size, count: int, has_remainder: bool) -> Fraction | None:
    """Before which micro-batch a place is; those from the end on count from behind it."""
    if size.coefficient == 0:
        return Fraction(0)
    if size.coefficient is None or size.power != 1:
        return None
    if size.coefficient < 0:
        return None if has_remainder else count + size.coefficient
    return size.coefficient


def _first_size(op: Op, position: int) -> Size | None:
    """The first entry of a vector, where it is a size."""
    value = op.inputs[position]
    if isinstance(value, Independent) and value.sizes:
        return value.sizes[0]
    text = op.entry_of(position, 0)
    entry = None if text is None else op.value_of(text)
    return entry.sizes[0] if isinstance(entry, Independent) and entry.sizes else None


def _counted(op: Op, text: str, count: int) -> str | None:
    """What a place multiplies the size of a micro-batch by, if a loop counts with it the micro-batches; else None."""
    number = _number_of(op, text)
    limit = None if number is None else op.limit_of(number)
    return number if limit is not None and limit <= count else None


def _is_one_further(op: Op, first: str, number: str, last: str) -> bool:
    """Whether a place is at the end of the micro-batch at whose beginning another one is.

    Args:
        op: the slice.
        first: the place at the beginning.
        number: what that multiplies the size of a micro-batch by.
        last: the other place.
    """
    end = op.producer_of(op.behind_identities(last))
    texts = data_texts(end)
    if end.op in ("Add", "AddV2"):  # start + size
        return any(
            _is_size(op, size) and op.expression_of(start) == op.expression_of(first)
            for start, size in (texts, reversed(texts))
        )
    following = _number_of(op, last)  # (number + 1) * size
    added = None if following is None else op.producer_of(op.behind_identities(following))
    return (
        added is not None
        and added.op in ("Add", "AddV2")
        and any(
            op.expression_of(own) == op.expression_of(number) and _is_one(op, one)
            for own, one in (data_texts(added), reversed(data_texts(added)))
        )
    )


def _number_of(op: Op, text: str) -> str | None:
    """What a place multiplies the size of a micro-batch by; None where it does not."""
    made = op.producer_of(op.behind_identities(text))
    if made.op != "Mul":
        return None
    first, second = data_texts(made)
    return next((number for number, size in ((first, second), (second, first)) if _is_size(op, size)), None)


def _is_size(op: Op, text: str) -> bool:
    value = op.value_of(text)
    return isinstance(value, Independent) and value.sizes == (BATCH_SIZE,)


def _is_one(op: Op, text: str) -> bool:
    value = op.value_of(text)
    return isinstance(value, Independent) and value.sizes == (Size(Fraction(1)),)
