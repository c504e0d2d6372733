"""One node as the rules see it: what its inputs are, shapes, and constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from caramel.frontend.batch.domain import Examples, Free, Statistic, Total, Unknown, Value, is_number, joined
from caramel.graph import ops
from caramel.graph.graph import NodeDef
from caramel.graph.shapes import Shape

_FRACTIONAL = ("float", "bfloat", "complex")
"""How the names of the types begin whose numbers need not be whole."""


def names(text: str) -> frozenset[str]:
    """Names of ops, given with spaces between them."""
    return frozenset(text.split())


@dataclass(frozen=True)
class Op:
    """A node with what is known of its inputs.

    Attributes:
        node: the node.
        inputs: what each data input is.
        texts: the data inputs.
        shape_of: static shape of a tensor; None where not even its rank is known.
        constant_of: value of a tensor that is made of constants only, else None.
        outputs: how many outputs it has.
        scope: the function that it is in.
        notes: names of the ops that put a value of the whole batch into values of single examples.
    """

    node: NodeDef
    inputs: tuple[Value, ...]
    texts: tuple[str, ...]
    shape_of: Callable[[str], Shape | None]
    constant_of: Callable[[str], Any]
    outputs: int
    scope: str
    notes: dict[str, None]

    def shape(self, position: int) -> Shape | None:
        """Static shape of an input."""
        return self.shape_of(self.texts[position])

    def rank(self, position: int) -> int | None:
        """Rank of an input."""
        shape = self.shape(position)
        return None if shape is None else len(shape)

    def result(self, index: int = 0) -> Shape | None:
        """Static shape of an output."""
        return self.shape_of(f"{self.node.name}:{index}")

    def constant(self, position: int) -> np.ndarray | None:
        """An input's value, where it is made of constants only."""
        value = self.inputs[position]
        if not isinstance(value, Free) or (value.power is None and value.sizes is None):
            return None
        if value.sizes is not None:
            numbers = [s.coefficient for s in value.sizes]
            if any(s.power != 0 for s in value.sizes) or any(n is None for n in numbers):
                return None
            array = np.array([int(n) if n.denominator == 1 else float(n) for n in numbers if n is not None])
            return array.reshape(()) if self.rank(position) == 0 else array
        found = self.constant_of(self.texts[position])
        return None if found is None else np.asarray(found)

    def integer(self, position: int) -> int | None:
        """An input that is one constant integer."""
        found = self.constant(position)
        return int(found.ravel()[0]) if found is not None and found.size == 1 else None

    def integers(self, position: int) -> list[int] | None:
        """An input that is a constant vector of integers, or one integer."""
        found = self.constant(position)
        return None if found is None else [int(n) for n in found.ravel()]

    @property
    def gives_truth(self) -> bool:
        """Whether a Cast only says which numbers are not zero."""
        return self._type("DstT") == "bool"

    @property
    def truncates(self) -> bool:
        """Whether what is left of a number is whole: of half of it is not half as much left."""
        if self.node.op == "Cast":
            source, target = self._type("SrcT"), self._type("DstT")
            return target == "bool" or (source.startswith(_FRACTIONAL) and not target.startswith(_FRACTIONAL))
        return self.node.op in ("Div", "Mean") and not self._type("T").startswith(_FRACTIONAL)

    def _type(self, attribute: str) -> str:
        return ops.dtype_name(self.node.attr[attribute].type)

    def place(self, position: int) -> str:
        """The name of an input, which no other function has."""
        return f"{self.scope}/{self.texts[position]}"

    def joined(self, first: Value, second: Value) -> Value:
        """What an output is that may be one or the other."""
        found = joined(first, second)
        return self.unknown("has what cannot be told") if found is None else found

    def unknown(self, why: str, unheard: bool = False) -> Unknown:
        """Nothing can be told, because the op does this."""
        return Unknown(f"{self.node.op} {self.node.name!r} {why}", unheard)


Rule = Callable[[Op], "Value | Sequence[Value]"]
"""What the outputs of an op are: one value for all, or one for each."""

MIXES = "takes some of the examples, or brings them into another order"
"""What is wrong with an op that takes the examples apart."""


def moved(op: Op, value: Value, axis: int | None) -> Value:
    """The value with its examples along another axis; without examples as it is."""
    if isinstance(value, Examples):
        return op.unknown(MIXES) if axis is None else replace(value, axis=axis)
    if isinstance(value, (Total, Statistic)):
        return value
    if isinstance(value, Free) and value.power is not None:
        return Free(value.power)
    return op.unknown("is not followed here")


def only_first(op: Op) -> Unknown | None:
    """What is wrong where anything but the first input depends on the batch, or on its size."""
    if all(is_number(v) for v in op.inputs[1:]):
        return None
    return op.unknown("has arguments that depend on the batch")
