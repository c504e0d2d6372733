"""What is known of a tensor: how it depends on the examples of the batch, and on how many there are.

Let B be the number of examples x_1 ... x_B. A tensor is one of

- `Free`: ``c * B**power``, where c does not depend on the batch; of small integers that are made of
  sizes, each one by itself (`Size`);
- `Examples`: along one axis, ``B**power * f(x_i)`` for each example;
- `Total`: ``B**power`` times the sum of ``f(x_i)`` over the examples;
- `Statistic`: some other function of means over the examples, one for each channel;
- `One`: a function of a single example, in a loop over them;
- `ListOf`: a TensorList of such tensors;
- `Unknown`: anything else, with the op that made it so.

A batch that is cut into parts then has, for each part, the values that the whole batch has for these
examples. That holds for all but `Statistic` and what is made of it: batch normalisation takes the
statistics of each worker's part (`Examples.normalised`); all other uses of them are told apart (``centred``).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from fractions import Fraction


@dataclass(frozen=True)
class Size:
    """``coefficient * B**power``; without a coefficient it is some positive integer times that."""

    coefficient: Fraction | None
    power: Fraction = Fraction(0)

    @property
    def is_whole(self) -> bool:
        """Whether it is an integer, however many examples there are."""
        coefficient = Fraction(1) if self.coefficient is None else self.coefficient
        return coefficient == 0 or (coefficient.denominator == self.power.denominator == 1 and self.power >= 0)

    def times(self, other: Size) -> Size | None:
        """The product; None where it cannot be told."""
        first, second = self.coefficient, other.coefficient
        if 0 in (first, second):
            return Size(Fraction(0))
        power = self.power + other.power
        if first is not None and second is not None:
            return Size(first * second, power)
        known = first if second is None else second
        return Size(None, power) if known is None or (known > 0 and known.denominator == 1) else None


@dataclass(frozen=True)
class Free:
    """Does not depend on the examples, only on how many there are.

    Attributes:
        power: of B in it; None where it is no multiple of a power, or where ``sizes`` have several.
        sizes: the entries of a scalar or vector that is made of sizes; None for all other tensors.
    """

    power: Fraction | None = Fraction(0)
    sizes: tuple[Size, ...] | None = None


@dataclass(frozen=True)
class Examples:
    """One entry, or several, for each example along an axis.

    The axis has ``before * B * after`` entries: ``before`` batches one after the other, in which each
    example has ``after`` entries side by side. None: it is not known how many.

    Attributes:
        axis: which one.
        power: of B in each entry.
        before: batches.
        after: entries of an example.
        same: whether all entries along the axis are the same and do not depend on the examples.
        centred: the op that put statistics of the batch in without a normalisation by them, if there is one.
        normalised: whether they are what a normalisation by statistics of the batch gave, or linear in it.
    """

    axis: int
    power: Fraction = Fraction(0)
    before: int | None = 1
    after: int | None = 1
    same: bool = False
    centred: str | None = None
    normalised: bool = False


@dataclass(frozen=True)
class Total:
    """A sum over the examples.

    Attributes:
        power: of B; -1 for a mean.
        channels: whether it has one entry for each channel, as the means of batch normalisation have.
        counts: static numbers by which a mean over it would divide.
        centred: see `Examples`.
    """

    power: Fraction = Fraction(0)
    channels: bool = False
    counts: tuple[int, ...] = ()
    centred: str | None = None


class Role(enum.Enum):
    """What a statistic does in a normalisation."""

    NONE = enum.auto()
    DIVISOR = enum.auto()
    """The root of means: what is divided by it is normalised."""
    FACTOR = enum.auto()
    """One over such a root: what is multiplied by it is normalised."""
    SHIFT = enum.auto()
    """Means divided by such a root: to be added to what is normalised."""


@dataclass(frozen=True)
class Statistic:
    """A function of means over the batch, for each channel.

    Attributes:
        role: what it may be used for.
    """

    role: Role = Role.NONE


@dataclass(frozen=True)
class One:
    """A function of one example.

    Attributes:
        index: which one, as the tensor that it was read at; None for the example whose place in a list it has.
    """

    index: str | None = None


@dataclass(frozen=True)
class ListOf:
    """A TensorList.

    Attributes:
        element: what each entry is; None while it has none.
        examples: whether it has one entry for each example.
        complete: whether each of these has what belongs to its example; else some may be empty, or have other things.
    """

    element: Value | None = None
    examples: bool = False
    complete: bool = False


@dataclass(frozen=True)
class Unknown:
    """Something that cannot be told.

    Attributes:
        why: what makes it so.
        unheard: whether that is an op, or a variable's value, of which nothing is known; else it is known that
            examples are mixed, or how many there are.
    """

    why: str
    unheard: bool = False


Value = Free | Examples | Total | Statistic | One | ListOf | Unknown

FREE = Free()


def constant(*numbers: int | float) -> Free:
    """A constant scalar or vector."""
    return Free(Fraction(0), tuple(Size(Fraction(n)) for n in numbers))


def free(sizes: tuple[Size, ...]) -> Free:
    """A scalar or vector of sizes."""
    powers = {s.power for s in sizes if s.coefficient != 0}
    if len(powers) > 1:
        return Free(None, sizes)
    return Free(powers.pop() if powers else Fraction(0), sizes)


def is_number(value: Value) -> bool:
    """Whether it depends neither on the examples nor on how many there are."""
    return isinstance(value, Free) and value.power == 0


def joined(first: Value, second: Value) -> Value | None:
    """What a tensor is that is one or the other, whatever decides which one; None where nothing is both.

    Only a decision that does not depend on the examples may be joined like this.
    """
    if first == second:
        return first
    for one, other in ((first, second), (second, first)):
        if isinstance(one, Unknown):
            return one
        if isinstance(one, Free) and isinstance(other, Examples) and one.power == 0 and other.power == 0:
            return replace(other, same=False)
        if isinstance(one, Free) and isinstance(other, Total) and one.power == 0 and other.power == -1:
            return other  # a mean, plus a constant, or not
    if isinstance(first, Free) and isinstance(second, Free):
        if first.power == second.power and first.power is not None:
            return Free(first.power)
    elif isinstance(first, Examples) and isinstance(second, Examples):
        one = replace(
            first,
            same=first.same and second.same,
            centred=first.centred or second.centred,
            normalised=first.normalised and second.normalised,
        )
        if one == replace(second, same=one.same, centred=one.centred, normalised=one.normalised):
            return one
    elif isinstance(first, Total) and isinstance(second, Total) and first.power == second.power:
        return Total(first.power, first.channels and second.channels, (), first.centred or second.centred)
    elif isinstance(first, ListOf) and isinstance(second, ListOf):
        return _joined_lists(first, second)
    return None


def _joined_lists(first: ListOf, second: ListOf) -> ListOf | None:
    if first.examples != second.examples:
        return None
    complete = first.complete and second.complete
    if first.element is None or second.element is None:
        return ListOf(first.element or second.element, first.examples, complete)
    element = joined(first.element, second.element)
    return None if element is None else ListOf(element, first.examples, complete)
