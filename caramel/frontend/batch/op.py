"""One node as the rules see it: abstract values of its inputs, shapes, and constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from caramel.frontend.batch.domain import (
    Examples,
    Independent,
    Note,
    Statistic,
    Total,
    Unknown,
    Value,
    is_invariant,
    joined,
)
from caramel.graph import ops
from caramel.graph.graph import NodeDef, data_texts
from caramel.graph.shapes import Shape

_FRACTIONAL_PREFIXES = ("float", "bfloat", "complex")
"""Beginnings of the names of the dtypes whose numbers need not be integers."""


KEEPS_NUMBERS = ops.op_names("Identity Cast StopGradient EnsureShape Snapshot")
"""Ops that leave whole numbers what they are, but for a Cast to bool."""


@dataclass(frozen=True)
class Op:
    """A node with the facts about its inputs.

    Attributes:
        node: the node.
        inputs: abstract value of each data input.
        texts: input text of each data input.
        shape_of: function from a tensor to its static shape; None where not even the rank is known.
        constant_of: function from a tensor to its value, if it is made of constants only; else None.
        expression_of: function from a tensor to a text that is the same for tensors with the same entries.
        producer_of: function from a tensor to the node that makes it.
        value_of: function from a tensor behind the node to its abstract value.
        outputs: number of outputs.
        function: name of the function that contains the node; "" for the graph itself.
        notes: what of the whole batch ops put into values of single examples, by their names; a rule adds to them.
        limit_of: function from a tensor behind the node to a number below which it is, where a loop counts with it from
            zero or more; else None.
        knows_rows: whether it is known which constants follow from the number of examples; else one of that value may.
    """

    node: NodeDef
    inputs: tuple[Value, ...]
    texts: tuple[str, ...]
    shape_of: Callable[[str], Shape | None]
    constant_of: Callable[[str], Any]
    expression_of: Callable[[str], str]
    producer_of: Callable[[str], NodeDef]
    value_of: Callable[[str], Value]
    outputs: int
    function: str
    notes: dict[str, Note]
    limit_of: Callable[[str], int | None]
    knows_rows: bool = False

    def shape(self, position: int) -> Shape | None:
        """Static shape of an input."""
        return self.shape_of(self.texts[position])

    def rank(self, position: int) -> int | None:
        """Rank of an input."""
        shape = self.shape(position)
        return None if shape is None else len(shape)

    def result_shape(self, index: int = 0) -> Shape | None:
        """Static shape of an output."""
        return self.shape_of(f"{self.node.name}:{index}")

    def constant(self, position: int) -> np.ndarray | None:
        """An input's value, where it is made of constants only; else None."""
        value = self.inputs[position]
        if not isinstance(value, Independent) or (value.power is None and value.sizes is None):
            return None
        if value.sizes is not None:
            numbers = [s.coefficient for s in value.sizes]
            if any(s.power != 0 for s in value.sizes) or any(n is None for n in numbers):
                return None
            array = np.array([int(n) if n.denominator == 1 else float(n) for n in numbers if n is not None])
            return array.reshape(()) if self.rank(position) == 0 else array
        folded = self.constant_of(self.texts[position])
        return None if folded is None else np.asarray(folded)

    def integer(self, position: int) -> int | None:
        """The value of an input that is one constant integer; else None."""
        entries = self.integers(position)
        return entries[0] if entries is not None and len(entries) == 1 else None

    def integers(self, position: int) -> list[int] | None:
        """The entries of an input that is a constant vector of integers, or one integer; else None."""
        array = self.constant(position)
        is_whole = array is not None and (array.dtype.kind != "f" or np.array_equal(array, np.floor(array)))
        return [int(n) for n in array.ravel()] if array is not None and is_whole else None

    @property
    def casts_to_bool(self) -> bool:
        """Whether the op is a Cast to bool, which only says which numbers are not zero."""
        return self.node.op == "Cast" and self._type("DstT") == "bool"

    @property
    def keeps_numbers(self) -> bool:
        """Whether the op leaves whole numbers, such as places, what they are; a Cast to bool does not."""
        return self.node.op in KEEPS_NUMBERS and not self.casts_to_bool

    @property
    def makes_fractions(self) -> bool:
        """Whether the op is a Cast to numbers that may be fractions."""
        return self.node.op == "Cast" and self._type("DstT").startswith(_FRACTIONAL_PREFIXES)

    @property
    def truncates(self) -> bool:
        """Whether the op rounds to an integer, so that it is not linear: half of a number need not give half of it."""
        if self.node.op == "Cast":
            source, target = self._type("SrcT"), self._type("DstT")
            return target == "bool" or (
                source.startswith(_FRACTIONAL_PREFIXES) and not target.startswith(_FRACTIONAL_PREFIXES)
            )
        return self.node.op in ("Div", "Mean") and not self._type("T").startswith(_FRACTIONAL_PREFIXES)

    def _type(self, attribute: str) -> str:
        return ops.dtype_name(self.node.attr[attribute].type)

    def entry_of(self, position: int, entry: int) -> str | None:
        """The scalar that is one entry of an input, where that is packed of scalars; else None."""
        text = self.behind_identities(self.texts[position])
        packed = self.producer_of(text)
        scalars = data_texts(packed) if packed.op == "Pack" else ()
        return scalars[entry] if entry < len(scalars) else None

    def behind_identities(self, text: str) -> str:
        """The tensor that Identities behind the node pass on as another one."""
        node = self.producer_of(text)
        while node.op == "Identity":
            text = node.input[0]
            node = self.producer_of(text)
        return text

    def qualified_name(self, position: int) -> str:
        """The name of an input with that of its function, unique over all functions."""
        return f"{self.function}/{self.texts[position]}"

    def joined(self, first: Value, second: Value) -> Value:
        """The value of an output that has one of two values."""
        value = joined(first, second)
        return self.unknown("has what cannot be told") if value is None else value

    def unknown(self, why: str, unmodelled: bool = False) -> Unknown:
        """The value of an output of which nothing can be told.

        Args:
            why: predicate of the sentence about the op in messages, such as "takes a diagonal".
            unmodelled: whether the op has no rule; see `Unknown`.
        """
        node = "" if self.function else self.node.name
        return Unknown(f"{self.node.op} {self.node.name!r} {why}", unmodelled, node)


Rule = Callable[[Op], "Value | Sequence[Value]"]
"""Function from an op to the abstract values of its outputs: one value for all, or one for each."""

MIXES_EXAMPLES = "takes some of the examples, or brings them into another order"
"""Predicate, for messages, of an op that takes some of the examples or reorders them."""


def moved(op: Op, value: Value, axis: int | None) -> Value:
    """A value with its examples along another axis; a value without examples as it is.

    Args:
        op: the op.
        value: abstract value of its input.
        axis: axis of the examples in the result; None where the op takes them apart.
    """
    if isinstance(value, Examples):
        return op.unknown(MIXES_EXAMPLES) if axis is None else replace(value, axis=axis)
    if isinstance(value, (Total, Statistic)):
        return value
    if isinstance(value, Independent) and value.power is not None:
        return Independent(value.power)
    return op.unknown("is not followed here")


def varying_arguments(op: Op) -> Unknown | None:
    """An Unknown that says so where an input other than the first depends on the batch or its size; else None."""
    if all(is_invariant(v) for v in op.inputs[1:]):
        return None
    return op.unknown("has arguments that depend on the batch")
