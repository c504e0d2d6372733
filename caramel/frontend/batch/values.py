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
examples. That holds for all but `Statistic` and what is made of it (see ``normalised``): batch
normalisation takes the statistics of each worker's part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction


@dataclass(frozen=True)
class Size:
    """``coefficient * B**power``; without a coefficient it is some positive integer times that."""

    coefficient: Fraction | None
    power: Fraction = Fraction(0)

    def times(self, other: Size) -> Size:
        known = self.coefficient is not None and other.coefficient is not None
        if 0 in (self.coefficient, other.coefficient):
            return Size(Fraction(0))
        return Size(self.coefficient * other.coefficient if known else None, self.power + other.power)  # type: ignore[operator]


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
        centred: whether statistics of the batch went in without a normalisation by them.
    """

    axis: int
    power: Fraction = Fraction(0)
    before: int | None = 1
    after: int | None = 1
    same: bool = False
    centred: str = ""


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
    centred: str = ""


@dataclass(frozen=True)
class Statistic:
    """A function of means over the batch, for each channel.

    Attributes:
        scales: whether a root was taken: what is multiplied by it is normalised.
    """

    scales: bool = False


@dataclass(frozen=True)
class One:
    """A function of one example, the one at ``index`` of a loop over them."""

    index: str


@dataclass(frozen=True)
class ListOf:
    """A TensorList.

    Attributes:
        element: what each entry is; None while it has none.
        examples: whether its entries are the examples, one by one.
    """

    element: Value | None = None
    examples: bool = False


@dataclass(frozen=True)
class Unknown:
    """Something that cannot be told, and why."""

    why: str


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


def joined(first: Value, second: Value) -> Value:
    """What a tensor is that is one or the other, whatever decides which one.

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
        one = replace(first, same=first.same and second.same, centred=first.centred or second.centred)
        if one == replace(second, same=one.same, centred=one.centred):
            return one
    elif isinstance(first, Total) and isinstance(second, Total) and first.power == second.power:
        return Total(first.power, first.channels and second.channels, (), first.centred or second.centred)
    elif isinstance(first, ListOf) and isinstance(second, ListOf) and first.examples == second.examples:
        if first.element is None or second.element is None:
            return ListOf(first.element or second.element, first.examples)
        return ListOf(joined(first.element, second.element), first.examples)
    return Unknown("")
