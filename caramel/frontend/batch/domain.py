"""Abstract values: how a tensor depends on the examples of the batch, and on their number.

Let B be the number of examples x_1 ... x_B. A tensor is one of

- `Independent`: ``c * B**power``, where c does not depend on the batch; for small integers that are made
  of sizes, the power of each one by itself (`Size`);
- `Examples`: along one axis, ``B**power * f(x_i)`` for each example;
- `MicroBatches`: examples in micro-batches, one after the other, and a remainder that none of them has;
- `Whole`: a value of the whole batch that every worker has;
- `Order`: the numbers of all entries, one after the other;
- `Permutation`: the numbers of all examples, in an order of chance;
- `Coordinates`: the number of each example, and beside it what the example has;
- `Offsets`: the number of each example, and zeros beside it;
- `ChosenShape`: the shape of a tensor of some of the examples;
- `Entries`: coordinates or values of entries of single examples;
- `Tokens`: entries of which each example has its own number, one example after the other, or what says whose they are;
- `Followed`: examples, and behind them entries that do not depend on the batch;
- `Positions`: places of the entries that some of the examples have;
- `Total`: ``B**power`` times the sum of ``f(x_i)`` over the examples;
- `Statistic`: some other function of means over the examples, one for each channel;
- `SingleExample`: a function of a single example, in a loop over them;
- `TensorList`: a TensorList of such tensors;
- `Unknown`: anything else, with the op that made it so.

When the batch is split into parts, each part has the values that the whole batch has for its examples.
That holds for all values but `Statistic` and those made from it: batch normalisation takes the statistics
of each worker's part (`Examples.normalised`); ``mixed_by`` marks all other uses of statistics.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from fractions import Fraction


@dataclass(frozen=True)
class Size:
    """A size: ``coefficient * B**power``.

    Attributes:
        coefficient: exact factor; None for an unknown positive integer.
        power: power of B.
    """

    coefficient: Fraction | None
    power: Fraction = Fraction(0)

    @property
    def is_whole(self) -> bool:
        """Whether the size is an integer for any number of examples."""
        coefficient = Fraction(1) if self.coefficient is None else self.coefficient
        return coefficient == 0 or (coefficient.denominator == self.power.denominator == 1 and self.power >= 0)

    def times(self, other: Size) -> Size | None:
        """The product with another size; None where it cannot be told."""
        first, second = self.coefficient, other.coefficient
        if 0 in (first, second):
            return Size(Fraction(0))
        power = self.power + other.power
        if first is not None and second is not None:
            return Size(first * second, power)
        coefficient = first if second is None else second
        return Size(None, power) if coefficient is None or (coefficient > 0 and coefficient.denominator == 1) else None


BATCH_SIZE = Size(Fraction(1), Fraction(1))
"""B, the number of examples: the length of the batch, and of a list with one entry for each example."""


@dataclass(frozen=True)
class Independent:
    """A tensor that does not depend on the examples, only on their number B.

    Attributes:
        power: power of B in each entry; None where there is no such power, or where ``sizes`` have several powers.
        sizes: entries of a scalar or vector that is made of sizes; None for all other tensors.
    """

    power: Fraction | None = Fraction(0)
    sizes: tuple[Size, ...] | None = None


@dataclass(frozen=True)
class Examples:
    """A tensor with one entry, or several, for each example along an axis.

    The axis has ``before * B * after`` entries: ``before`` batches one after the other, in which each
    example has ``after`` entries side by side.

    Attributes:
        axis: index of the axis of the examples.
        power: power of B in each entry.
        before: number of batches along the axis; None if it is not known.
        after: number of adjacent entries of an example; None if it is not known.
        repeated: whether all entries along the axis are the same and do not depend on the examples.
        mixed_by: name of the op that put statistics of the batch into the entries without a normalisation by them; None
            if there is no such op.
        normalised: whether the entries are the result of a normalisation by statistics of the batch, or linear in it.
        chosen: name of the op that has chosen which examples have entries, and how many, so that there are not
            ``before * B * after``; "" where all have as many.
    """

    axis: int
    power: Fraction = Fraction(0)
    before: int | None = 1
    after: int | None = 1
    repeated: bool = False
    mixed_by: str | None = None
    normalised: bool = False
    chosen: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether each example has exactly one entry, along the first axis, as the examples of a batch have."""
        return self.axis == 0 and self.arrangement == (1, 1, "")

    @property
    def arrangement(self) -> tuple[int | None, int | None, str]:
        """What two tensors must have in common if their entries, one by one, are to belong to the same examples."""
        return self.before, self.after, self.chosen


@dataclass(frozen=True)
class Positions:
    """Places of the entries that some of the examples have, as `tf.where` finds them in a mask.

    Attributes:
        mask: the mask, of which each example has some entries along its first axis.
        rank: number of axes of the mask.
        chosen: see `Examples`.
        parts: number of parts into which all entries are divided, of which this is one; 1 for those that a mask has.
    """

    mask: Examples
    rank: int
    chosen: str
    parts: int = 1


@dataclass(frozen=True)
class Order:
    """The numbers from 0 on of the entries that all examples together have.

    Attributes:
        count: number of entries of an example.
    """

    count: Fraction


@dataclass(frozen=True)
class Permutation:
    """The numbers of all examples, in an order of chance."""


@dataclass(frozen=True)
class ChosenShape:
    """The shape of a tensor in which only some of the examples have entries: their number is a sum over the examples.

    Attributes:
        examples: the tensor.
        sizes: size of each axis; that of the examples says nothing.
    """

    examples: Examples
    sizes: tuple[Size, ...]


@dataclass(frozen=True)
class Coordinates:
    """Places in a tensor of the examples, at which the number of the example stands in front of what the example has.

    Along the last axis of the tensor are the coordinates of a place; the first axis is that of the examples.

    Attributes:
        mixed_by: see `Examples`.
    """

    mixed_by: str | None = None


@dataclass(frozen=True)
class Offsets:
    """What makes `Coordinates` of places that begin with zero: the number of each example, and zeros for the others.

    The first axis is that of the examples, the last one that of the coordinates.
    """


@dataclass(frozen=True)
class Entries:
    """Coordinates, with the number of the example in front, or values of some entries, each of a single example."""


class Kind(enum.Enum):
    """What a tensor of `Tokens` has."""

    VALUES = "values"
    """A value of each entry, which depends on its example alone."""
    COORDINATES = "coordinates"
    """The number of each entry's example, and its place there."""
    ROWS = "rows"
    """The number of each entry's example."""
    LENGTHS = "lengths"
    """The number of entries of each example."""
    ENDS = "ends"
    """Where the entries of each example end, among those of all; also with a zero in front."""
    SHAPE = "shape"
    """The number of examples, and that of the entries of the one that has most."""
    NUMBER = "number"
    """One or more counts of entries over all examples."""


@dataclass(frozen=True)
class Tokens:
    """Entries of which each example has its own number, as words of texts, or what says whose they are.

    Attributes:
        kind: what the tensor has of them.
    """

    kind: Kind


@dataclass(frozen=True)
class Followed:
    """Entries of the examples along the first axis, and behind them others that do not depend on the batch.

    Attributes:
        examples: the entries of the examples.
    """

    examples: Examples


class Facet(enum.Enum):
    """What a tensor says of `MicroBatches`."""

    VALUES = enum.auto()
    """The entries of the examples."""
    SHAPE = enum.auto()
    """Their shape."""
    LENGTH = enum.auto()
    """How many there are."""


@dataclass(frozen=True)
class MicroBatches:
    """Micro-batches of B examples, one after the other along the first axis, and further rows that none of them has.

    Attributes:
        count: number of micro-batches; there are fewer further rows.
        facet: what the tensor says of them.
        sizes: size of each axis, where it is their shape; that of the first says nothing.
    """

    count: int
    facet: Facet = Facet.VALUES
    sizes: tuple[Size, ...] = ()


@dataclass(frozen=True)
class Whole:
    """A tensor of the whole batch, the same on all workers; its sizes may depend on the number of all examples."""


@dataclass(frozen=True)
class Total:
    """A sum over the examples.

    Attributes:
        power: power of B in each entry; -1 for a mean.
        channels: whether the tensor has one entry for each channel, as the means of batch normalisation have.
        mean_divisors: static numbers by which a division would make the sum a mean.
        mixed_by: see `Examples`.
    """

    power: Fraction = Fraction(0)
    channels: bool = False
    mean_divisors: tuple[int, ...] = ()
    mixed_by: str | None = None


class Role(enum.Enum):
    """Role of a statistic in a normalisation."""

    NONE = enum.auto()
    DIVISOR = enum.auto()
    """Root of means: a division by it normalises."""
    FACTOR = enum.auto()
    """One over such a root: a multiplication by it normalises."""
    SHIFT = enum.auto()
    """Means divided by such a root: a term to add to normalised entries."""


@dataclass(frozen=True)
class Statistic:
    """A function of means over the batch, for each channel.

    Attributes:
        role: role that the statistic may have in a normalisation.
    """

    role: Role = Role.NONE


@dataclass(frozen=True)
class SingleExample:
    """A function of one example, in a loop over the examples.

    Attributes:
        index: qualified name of the tensor with the example's index; None for an entry that a list has at its example.
    """

    index: str | None = None


@dataclass(frozen=True)
class TensorList:
    """A TensorList.

    Attributes:
        element: abstract value of each entry; None while the list has no entries.
        per_example: whether the list has one entry for each example.
        complete: whether each such entry is a function of its example; else some may be empty, or hold other values.
        length: number of entries of a list that has a fixed number of them; None for others, and where it is not known.
        filled: number of entries, from the first on, that are certain to have been written.
    """

    element: Value | None = None
    per_example: bool = False
    complete: bool = False
    length: int | None = None
    filled: int = 0


@dataclass(frozen=True)
class Unknown:
    """A tensor whose dependence on the examples cannot be told.

    Attributes:
        why: clause for messages with the cause, such as "Exp 'y' is not linear in a mean or sum over the batch".
        unmodelled: whether the cause is an op without a rule, or a variable's value of which nothing is known; else
            examples are known to be mixed, or the value to depend on their number.
        node: name of the op that made it so, where that is not inside a function; else "".
        beside_whole: whether the op has values of the whole batch beside others.
    """

    why: str
    unmodelled: bool = False
    node: str = ""
    beside_whole: bool = False


Value = (
    Independent
    | Examples
    | Positions
    | Order
    | Permutation
    | ChosenShape
    | Coordinates
    | Offsets
    | Entries
    | Tokens
    | Followed
    | MicroBatches
    | Whole
    | Total
    | Statistic
    | SingleExample
    | TensorList
    | Unknown
)


class Note(enum.Enum):
    """What of the whole batch an op puts into the values of single examples, where each worker does so in its part."""

    STATISTICS = enum.auto()
    """Means over the examples."""
    ORDER = enum.auto()
    """Another example, which chance chooses."""


INVARIANT = Independent()
"""A tensor that depends neither on the examples nor on their number."""


def constant(*numbers: int | float) -> Independent:
    """The abstract value of a constant scalar or vector.

    Args:
        numbers: entries of the constant.
    """
    return Independent(Fraction(0), tuple(Size(Fraction(n)) for n in numbers))


def of_sizes(sizes: tuple[Size, ...]) -> Independent:
    """The abstract value of a scalar or vector of sizes.

    Args:
        sizes: entries of the tensor.
    """
    powers = {s.power for s in sizes if s.coefficient != 0}
    if len(powers) > 1:
        return Independent(None, sizes)
    return Independent(powers.pop() if powers else Fraction(0), sizes)


def is_invariant(value: Value) -> bool:
    """Whether a value depends neither on the examples nor on their number."""
    return isinstance(value, Independent) and value.power == 0


def is_everywhere(value: Value) -> bool:
    """Whether a value is known to be the same on all workers."""
    return isinstance(value, Whole) or is_invariant(value)


def mixed_by(value: Value) -> str | None:
    """The op that has put statistics of the batch into the entries of each example, or their sum; None for none."""
    return value.mixed_by if isinstance(value, (Examples, Total)) else None


def joined(first: Value, second: Value) -> Value | None:
    """The value of a tensor that has one of two values, whichever is chosen; None where no value covers both.

    Two values may be joined only where the choice between them does not depend on the examples.
    """
    if first == second:
        return first
    for value, alternative in ((first, second), (second, first)):
        if isinstance(value, Unknown):
            return value
        if (
            isinstance(value, Independent)
            and isinstance(alternative, Total)
            and value.power == 0
            and alternative.power == -1
        ):
            return alternative  # a mean, plus a constant, or not
    if isinstance(first, Independent) and isinstance(second, Independent):
        if first.power == second.power and first.power is not None:
            return Independent(first.power)
    elif isinstance(first, Examples) and isinstance(second, Examples):
        examples = replace(
            first,
            repeated=first.repeated and second.repeated,
            mixed_by=first.mixed_by or second.mixed_by,
            normalised=first.normalised and second.normalised,
        )
        if examples == replace(
            second, repeated=examples.repeated, mixed_by=examples.mixed_by, normalised=examples.normalised
        ):
            return examples
    elif isinstance(first, Total) and isinstance(second, Total) and first.power == second.power:
        return Total(first.power, first.channels and second.channels, (), first.mixed_by or second.mixed_by)
    elif isinstance(first, TensorList) and isinstance(second, TensorList):
        return _joined_lists(first, second)
    return None


def _joined_lists(first: TensorList, second: TensorList) -> TensorList | None:
    if first.per_example != second.per_example:
        return None
    covering = replace(
        first,
        complete=first.complete and second.complete,
        length=first.length if first.length == second.length else None,
        filled=min(first.filled, second.filled),
    )
    if first.element is None or second.element is None:
        return replace(covering, element=first.element or second.element)
    element = joined(first.element, second.element)
    return None if element is None else replace(covering, element=element)
