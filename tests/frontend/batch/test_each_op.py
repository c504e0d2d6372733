"""Each op with a rule, by itself: what is said of its results holds when the batch is cut.

An instance is an op with its attributes; each of its inputs gets tensors that depend on the batch in every way that is
followed (`ARRANGEMENTS`), beside tensors that do not. Its results for a batch and for the parts of it, computed
eagerly, are compared with what the analysis of its graph promises of them.
"""

import inspect
import itertools
import random
import re
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from caramel.errors import CaptureError
from caramel.frontend.batch import domain, elementwise, layers, rules
from caramel.frontend.batch.domain import Kind
from caramel.frontend.batch.row_constants import row_constants
from caramel.frontend.roles.tensor_reductions import Reductions
from caramel.graph.graph import Graph
from caramel.graph.ops import op_names
from caramel.model import Input

v1 = tf.compat.v1
raw_ops = tf.raw_ops
B = 6
C = 4
"""Number of entries along all axes but that of the examples."""
CUTS = ((2, 4), (3, 3), (5, 1))

TYPES = {
    "f": tf.float32, "p": tf.float32, "m": tf.float32, "d": tf.float64, "c": tf.complex64, "i": tf.int32,
    "l": tf.int64, "b": tf.bool, "s": tf.string, "n": tf.string,
}  # fmt: skip
"""Types of inputs by letter: p are positive numbers, m is for matrices, n are texts of numbers."""
FLOATS = "fpmdc"
NUMBERS = FLOATS + "il"


@cache
def data(letter, rank, twin=False):
    """The entries of all examples, or of a tensor as large as one with C examples."""
    rng = np.random.default_rng([ord(letter), rank, twin])
    shape = [B, *[C] * (rank - 1)] if rank else []
    if letter in "il":
        return rng.integers(0, C, shape).astype(TYPES[letter].as_numpy_dtype)
    if letter == "b":
        return rng.uniform(size=shape) < 0.5
    if letter == "s":
        words = np.array(["ab", "a b c", "x", "1", " Y z", "b a1c d"], object)
        return words[rng.integers(0, len(words), shape)]
    if letter == "n":
        return np.array(["1", "2.5", "-3", "40"], object)[rng.integers(0, 4, shape)]
    found = rng.uniform(0.1, 0.9, shape)
    if letter not in "p":
        found = found * np.where(rng.uniform(size=shape) < 0.3, -1.0, 1.0)
    if letter == "m" and (rank >= 3 or (rank == 2 and twin)):
        found = found + 5 * np.eye(*found.shape[-2:])
    if letter == "c":
        found = found + 1j * rng.uniform(0.1, 0.9, shape)
    return found.astype(TYPES[letter].as_numpy_dtype)


class Place:
    """Where an instance is built: in a graph, of open or of static shapes, or eagerly for some examples."""

    def __init__(self, rows=None, static=None):
        self.rows, self.static, self.inputs, self.made = rows, static, [], {}

    def examples(self, letter, rank, twin=False):
        key = letter, rank, twin
        if key not in self.made:
            found = data(*key)
            if self.rows is not None:
                self.made[key] = tf.constant(found[self.rows], TYPES[letter])
            else:
                name, shape = f"x_{letter}_{rank}_{int(twin)}", (self.static, *found.shape[1:])
                self.made[key] = v1.placeholder(TYPES[letter], shape, name)
                self.inputs.append(Input(name, name, TYPES[letter].name, shape, True))
        return self.made[key]

    def fixed(self, letter, rank, shape=None):
        found = data(letter, rank, True)
        found = found[:C] if rank else found
        found = np.broadcast_to(found[tuple(slice(s) for s in shape)], shape) if shape is not None else found
        return tf.constant(found, TYPES[letter])

    def variable(self, letter, rank):
        key = "variable", letter, rank
        if key not in self.made:
            found = data(letter, rank, True)
            self.made[key] = tf.Variable(found[:C] if rank else found, dtype=TYPES[letter])
        return self.made[key]

    def count(self, dtype=tf.float32):
        return tf.cast(tf.shape(self.examples("f", 1))[0], dtype)

    def source(self, slot, arrangement):
        """An input; KeyError where there is none of this kind in this arrangement."""
        key = slot, arrangement
        if key not in self.made:
            letter, rank = slot[0], int(slot[1:])
            if letter == "z":
                entries = {"B": self.count(tf.int32), "2B": 2 * self.count(tf.int32), "4B": 4 * self.count(tf.int32)}
                entries["BB"] = entries["B"] * entries["B"]
                found = [entries.get(e) if e in entries else tf.constant(int(e)) for e in arrangement.split(",")]
                self.made[key] = tf.stack(found)
            else:
                self.made[key] = ARRANGEMENTS[arrangement](self, letter, rank)
        return self.made[key]


def need(holds):
    if not holds:
        raise KeyError


def at_axis(axis):
    def made(place, letter, rank):
        need(rank > axis)
        order = list(range(1, rank))
        order.insert(axis, 0)
        return moved(place.examples(letter, rank), order)

    return made


def moved(tensor, order):
    return tensor if order == sorted(order) else tf.transpose(tensor, order)


def swapped(arrangement):
    """The same with the examples along axis 1."""

    def made(place, letter, rank):
        need(rank > 1)
        return tf.transpose(place.source(f"{letter}{rank}", arrangement), [1, 0, *range(2, rank)])

    return made


def doubled(place, letter, rank):
    need(rank > 0)
    return tf.concat([place.examples(letter, rank), place.examples(letter, rank, True)], 0)


def with_two_each(place, letter, rank):
    need(rank > 0)
    both = tf.stack([place.examples(letter, rank), place.examples(letter, rank, True)], 1)
    return tf.reshape(both, [-1, *[C] * (rank - 1)])


def repeated(place, letter, rank):
    need(rank > 0)
    found = place.examples(letter, rank)
    if letter == "m" and rank > 1:
        return tf.ones_like(found) + 5 * tf.eye(C)
    return tf.zeros_like(found) if letter in "sn" else tf.ones_like(found)


def chosen(twin):
    def made(place, letter, rank):
        need(rank > 0)
        return tf.boolean_mask(place.examples(letter, rank), place.examples("b", 1, twin))

    return made


def times(power):
    def made(place, letter, rank):
        need(rank > 0 and letter in (FLOATS if power < 0 else NUMBERS))
        found = place.examples(letter, rank)
        count = place.count(found.dtype)
        return found / count if power < 0 else found * count

    return made


def total(place, letter, rank):
    need(letter in NUMBERS)
    return tf.reduce_sum(place.examples(letter, rank + 1), 0)


def mean(place, letter, rank):
    need(letter in FLOATS)
    return tf.reduce_mean(place.examples(letter, rank + 1), 0)


def statistic(place, letter, rank):
    need(letter in "fpd" and rank > 0)
    return tf.sqrt(tf.reduce_mean(tf.square(place.examples(letter, rank + 1)), 0))


def mixed(place, letter, rank):
    need(letter in "fpmd" and rank > 1)
    return place.examples(letter, rank) * tf.sqrt(tf.reduce_mean(tf.square(place.examples(letter, 2)), 0))


def sized(power):
    def made(place, letter, rank):
        need(letter in NUMBERS)
        found = place.fixed(letter, rank)
        count = place.count(found.dtype)
        need(letter in FLOATS or power in (1, None))
        return found * (count + 1 if power is None else count**power if power > 0 else 1 / count)

    return made


def rows_of_all(place, letter, rank):
    """Independent numbers, one row of them repeated for each example."""
    need(rank > 0 and letter in NUMBERS)
    return tf.tile(place.fixed(letter, rank)[:1], [place.count(tf.int32), *[1] * (rank - 1)])


def numbers(place, letter, rank):
    need(letter in "ilf" and rank == 1)
    return tf.cast(tf.range(place.count(tf.int32)), TYPES[letter])


def shape(place, letter, rank):
    need(letter in "ilf" and rank == 1)
    return tf.cast(tf.shape(place.examples("f", 2)), TYPES[letter])


def shape_of_chosen(place, letter, rank):
    need(letter in "il" and rank == 1)
    return tf.cast(tf.shape(place.source("f2", "chosen")), TYPES[letter])


def positions(place, letter, rank):
    need(letter == "l" and rank == 2)
    return tf.where(place.examples("b", 1))


def followed(place, letter, rank):
    need(rank > 0)
    return tf.concat([place.examples(letter, rank), place.fixed(letter, rank)], 0)


def words(place, letter, rank):
    need(letter == "s" and rank == 1)
    return tf.strings.split(place.examples("s", 1)).values


ARRANGEMENTS = {
    "fixed": lambda place, letter, rank: place.fixed(letter, rank),
    **{f"axis {axis}": at_axis(axis) for axis in range(4)},
    "before 2": doubled,
    "after 2": with_two_each,
    "before 2 at 1": swapped("before 2"),
    "after 2 at 1": swapped("after 2"),
    "repeated": repeated,
    "repeated at 1": swapped("repeated"),
    "rows of all": rows_of_all,
    "chosen": chosen(False),
    "also chosen": chosen(True),
    "chosen at 1": swapped("chosen"),
    "divided": times(-1),
    "times": times(1),
    "divided at 1": swapped("divided"),
    "total": total,
    "mean": mean,
    "statistic": statistic,
    "mixed": mixed,
    "mixed at 1": swapped("mixed"),
    "sizes": sized(1),
    "part of sizes": sized(-1),
    "sizes and one": sized(None),
    "numbers": numbers,
    "shape": shape,
    "shape of chosen": shape_of_chosen,
    "positions": positions,
    "followed": followed,
    "words": words,
    "variable": lambda place, letter, rank: place.variable(letter, rank).read_value(),
    "ones": lambda place, letter, rank: place.fixed(letter, rank, [1] * rank),
    "a row": lambda place, letter, rank: (need(rank > 1), place.fixed(letter, rank, [1, *[C] * (rank - 1)]))[1],
    "zeros": lambda place, letter, rank: (
        need(letter in NUMBERS and letter != "m"),
        tf.zeros_like(place.fixed(letter, rank)),
    )[1],
}
"""What an input may be, by name: a function of the place, the letter of its type, and its rank."""

IN_PAIRS = (
    "fixed", "axis 0", "axis 1", "axis 2", "before 2", "after 2", "repeated", "rows of all", "chosen", "also chosen",
    "divided", "times", "total", "mean", "statistic", "mixed", "sizes", "part of sizes", "sizes and one", "variable",
    "ones", "zeros", "numbers", "positions",
)  # fmt: skip
"""Those that two inputs have together, each with each."""

ENTRIES = ("B", "2B", "4B", "BB", "4", "1", "2", "-1")


def arrangements_of(slot, pair=False):
    if slot[0] == "z":
        rank = int(slot[1:])
        found = itertools.product(ENTRIES if rank < 3 else ("B", "4", "1", "-1"), repeat=rank)
        return [",".join(each) for each in found]
    return IN_PAIRS if pair else ARRANGEMENTS


@dataclass(frozen=True)
class Case:
    """An op with its attributes.

    Attributes:
        op: type of the op.
        inputs: each a slot such as "f2", a float tensor of rank 2, a list of slots, or a constant.
        attributes: attributes of the op.
        call: what makes the op of the tensors in the slots, and of the place; None for the op's own function.
        is_noise: whether results are random, so that only their shapes are compared.
        label: name of the call.
    """

    op: str
    inputs: tuple[Any, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    call: Any = None
    is_noise: bool = False
    label: str = ""

    def __str__(self):
        inputs = ", ".join(f"array{list(i.shape)}" if isinstance(i, np.ndarray) else str(i) for i in self.inputs)
        return f"{self.op}({inputs}{'; ' if self.attributes else ''}{self.attributes or ''}) {self.label}".strip()

    @property
    def slots(self):
        found = []
        for each in self.inputs:
            found += [s for s in (each if isinstance(each, list) else [each]) if is_slot(s)]
        return found

    def made(self, place, arrangements):
        """Its results, of inputs in some arrangements."""
        sources = [place.source(s, a) for s, a in zip(self.slots, arrangements)]
        waiting = iter(sources)
        if self.call is not None:
            found = self.call(place, *sources)
        else:
            function = getattr(raw_ops, self.op)
            given = [
                [next(waiting) if is_slot(e) else e for e in each]
                if isinstance(each, list)
                else next(waiting)
                if is_slot(each)
                else each
                for each in self.inputs
            ]
            found = function(**dict(zip(inspect.signature(function).parameters, given)), **self.attributes)
        found = found if isinstance(found, (list, tuple)) else [found]
        return [t for t in found if isinstance(t, tf.Tensor)]

    def instances(self):
        """The arrangements of all its slots."""
        slots = self.slots
        if len(slots) == 1:
            return [(a,) for a in arrangements_of(slots[0])]
        found = {}
        rest = ["4" if s[0] == "z" else "fixed" for s in slots]
        for position, slot in enumerate(slots):
            for a in arrangements_of(slot):
                found[(*rest[:position], a, *rest[position + 1 :])] = None
        for i, j in itertools.combinations(range(len(slots)), 2):
            for a, b in itertools.product(arrangements_of(slots[i], True), arrangements_of(slots[j], True)):
                each = list(rest)
                each[i], each[j] = a, b
                found[tuple(each)] = None
        if not any(s[0] == "z" for s in slots):
            found.update({(a,) * len(slots): None for a in ARRANGEMENTS})
        return list(found)


def is_slot(each):
    return isinstance(each, str) and re.fullmatch("[a-z][0-9]", each) is not None


# -- what is promised --------------------------------------------------------------------------


def check(value, whole, parts, sizes):
    """What is wrong with what is said of a tensor; None if nothing is.

    Args:
        value: what is said.
        whole: the tensor for the whole batch.
        parts: the tensor for each part of it.
        sizes: numbers of examples of the parts.
    """
    rule = PROMISES.get(type(value))
    return None if rule is None or domain.mixed_by(value) else rule(value, whole, parts, sizes)


def same(first, second):
    first, second = np.asarray(first), np.asarray(second)
    if first.shape != second.shape:
        return False
    if first.dtype.kind in "fc":
        scale = max(1.0, float(np.max(np.abs(second[np.isfinite(second)]), initial=0.0)))
        return np.allclose(first, second, rtol=2e-3, atol=2e-5 * scale, equal_nan=True)
    return np.array_equal(first, second)


def over(array, count, power):
    """An array divided by a power of the number of examples."""
    return array if not power else np.asarray(array, np.complex128) / float(count) ** float(power)


def of_independent(value, whole, parts, sizes):
    arrays, counts = [whole, *parts], [sum(sizes), *sizes]
    if value.sizes is not None:
        for array, count in zip(arrays, counts):
            if array.ndim > 1 or array.size != len(value.sizes):
                return f"has shape {array.shape}"
            for number, size in zip(array.ravel(), value.sizes):
                told = float(number) / count ** float(size.power)
                if size.coefficient is None:
                    same_for_all = all(
                        np.isclose(told, a.ravel()[list(value.sizes).index(size)] / c ** float(size.power))
                        for a, c in zip(arrays, counts)
                        if sum(s == size for s in value.sizes) == 1
                    )
                    if told < 1 or abs(told - round(told)) > 1e-4 or not same_for_all:
                        return f"{number} of {count} examples is no such size"
                elif not np.isclose(told, float(size.coefficient), rtol=1e-4):
                    return f"{number} of {count} examples is no such size"
        return None
    if value.power is None:
        alike = [(a, b) for (a, n), (b, m) in itertools.combinations(zip(arrays, counts), 2) if n == m]
        return None if all(same(a, b) for a, b in alike) else "differs between parts of the same size"
    if not any(a.size for a in arrays):
        return None  # of no entries, whatever their number along other axes is
    first = over(whole, counts[0], value.power)
    return None if all(same(over(a, n, value.power), first) for a, n in zip(parts, sizes)) else "is not the same"


def of_total(value, whole, parts, sizes):
    if any(p.shape != whole.shape for p in parts):
        return "has other shapes"
    if whole.dtype.kind in "bO":
        return "is no number"
    added = sum(np.asarray(over(p, n, value.power), np.complex128) for p, n in zip(parts, sizes))
    return None if same(added, np.asarray(over(whole, sum(sizes), value.power), np.complex128)) else "is no sum"


def of_examples(value, whole, parts, sizes):
    arrays, counts = [whole, *parts], [sum(sizes), *sizes]
    if any(a.ndim <= value.axis for a in arrays):
        return f"has shape {whole.shape}"
    arrays = [np.moveaxis(over(a, n, value.power), value.axis, 0) for a, n in zip(arrays, counts)]
    if value.repeated:
        entries = [entry for a in arrays for entry in a]
        if not all(same(e, entries[0]) for e in entries):
            return "has other entries for some examples"
    lengths = [len(a) for a in arrays]
    if value.chosen and value.before is None:  # in an order that nobody knows
        return None if in_order(arrays[0]) == in_order(np.concatenate(arrays[1:], 0)) else "has other entries"
    if value.chosen:
        for before in [value.before] if value.before else range(1, max(lengths[0], 1) + 1):
            if all(n % before == 0 for n in lengths):
                whole, *rest = [a.reshape(before, n // before, *a.shape[1:]) for a, n in zip(arrays, lengths)]
                if all(r.shape[2:] == whole.shape[2:] for r in rest) and same(np.concatenate(rest, 1), whole):
                    return None
        return "does not have what its parts have chosen"
    each, rest = divmod(lengths[0], counts[0])
    if rest or any(n != c * each for n, c in zip(lengths, counts)):
        return f"has lengths {lengths}"
    if any(a.shape[1:] != arrays[0].shape[1:] for a in arrays):
        return "has other shapes"
    divisors = [n for n in range(1, each + 1) if each % n == 0]
    for before in [value.before] if value.before else divisors:
        for after in [value.after] if value.after else divisors:
            if before * after == each or each == 0:
                whole, *rest = [a.reshape(before, n, -1) if a.size else a for a, n in zip(arrays, counts)]
                if not whole.size or same(np.concatenate(rest, 1), whole):
                    return None
    return f"does not have the entries of its parts, {each} of each example"


def of_order(value, whole, parts, sizes):
    arrays, counts = [whole, *parts], [sum(sizes), *sizes]
    told = all(same(a.ravel(), np.arange(int(value.count * n)).astype(a.dtype)) for a, n in zip(arrays, counts))
    return None if told else "does not count"


def starts_of(sizes):
    return np.cumsum([0, *sizes[:-1]])


def of_positions(value, whole, parts, sizes):
    if value.mask.before != 1 or value.mask.after is None or whole.ndim > 2:
        return None
    moved_on = [p + s * value.mask.after * np.eye(1, p.shape[-1] if p.ndim > 1 else 1, dtype=p.dtype).reshape(
        -1 if p.ndim > 1 else ()) for p, s in zip(parts, starts_of(sizes))]  # fmt: skip
    return None if same(np.concatenate(moved_on, 0), whole) else "has other places"


def of_coordinates(value, whole, parts, sizes):
    moved_on = [p + s * np.eye(1, p.shape[-1], dtype=p.dtype)[0] for p, s in zip(parts, starts_of(sizes))]
    return None if same(np.concatenate(moved_on, 0), whole) else "has other places"


def in_order(array):
    return sorted(map(repr, array.tolist()))


def of_entries(value, whole, parts, sizes):
    plain = np.concatenate(parts, 0)
    counted = [plain] if plain.dtype.kind == "O" else [plain, np.concatenate([
        p + s * (np.eye(1, p.shape[-1], dtype=p.dtype)[0] if p.ndim > 1 else 1)
        for p, s in zip(parts, starts_of(sizes))], 0)]  # fmt: skip
    return None if any(in_order(c) == in_order(whole) for c in counted) else "has other entries"


def of_chosen_shape(value, whole, parts, sizes):
    if any(a.shape != (len(value.sizes),) for a in (whole, *parts)):
        return f"has shape {whole.shape}"
    for axis, size in enumerate(value.sizes):
        entries = [a[axis] for a in (whole, *parts)]
        if axis == value.examples.axis and entries[0] != sum(entries[1:]):
            return "is no sum"
        if axis != value.examples.axis and size.coefficient is not None and any(e != size.coefficient for e in entries):
            return "has other sizes"
    return None


def of_followed(value, whole, parts, sizes):
    arrays, counts = [whole, *parts], [sum(sizes), *sizes]
    ends = [n * value.examples.before * value.examples.after for n in counts]
    fronts, backs = zip(*((a[:e], a[e:]) for a, e in zip(arrays, ends)))
    if not all(same(b, backs[0]) for b in backs):
        return "has others behind"
    return check(value.examples, fronts[0], fronts[1:], sizes)


def of_tokens(value, whole, parts, sizes):
    if value.kind in (Kind.VALUES, Kind.LENGTHS):
        return None if same(np.concatenate(parts, 0), whole) else "has other entries"
    if value.kind in (Kind.COORDINATES, Kind.ROWS):
        unit = [1, 0] if value.kind is Kind.COORDINATES else 1
        moved_on = [p + s * np.array(unit, p.dtype) for p, s in zip(parts, starts_of(sizes))]
        return None if same(np.concatenate(moved_on, 0), whole) else "has other places"
    if value.kind is Kind.ENDS:
        lengths = [np.diff(a) if len(a) == n + 1 else np.diff(a, prepend=0) for a, n in zip(parts, sizes)]
        of_whole = np.diff(whole) if len(whole) == sum(sizes) + 1 else np.diff(whole, prepend=0)
        return None if same(np.concatenate(lengths, 0), of_whole) else "has other ends"
    if value.kind is Kind.SHAPE:
        return None if all(a[0] == n for a, n in zip((whole, *parts), (sum(sizes), *sizes))) else "has other shapes"
    return None


PROMISES = {
    domain.Independent: of_independent,
    domain.Total: of_total,
    domain.Examples: of_examples,
    domain.Order: of_order,
    domain.Positions: of_positions,
    domain.Coordinates: of_coordinates,
    domain.Offsets: of_coordinates,
    domain.Entries: of_entries,
    domain.ChosenShape: of_chosen_shape,
    domain.Followed: of_followed,
    domain.Tokens: of_tokens,
}
"""Checks by the kind of what is said; of the other kinds nothing is promised."""

NO_FIT = (ValueError, TypeError, KeyError, IndexError, AttributeError, NotImplementedError, ZeroDivisionError,
          tf.errors.OpError)  # fmt: skip
"""What is raised where tensors do not fit an op."""


@cache
def eager_places():
    parts = [[slice(0, first), slice(first, B)] for first, _ in CUTS]
    return Place(slice(0, B)), [[Place(rows) for rows in each] for each in parts], [
        Place(slice(at, at + 2)) for at in range(0, B, 2)
    ]  # fmt: skip


def built(case, instances, static=None):
    """A graph with the instances that fit, its place, and the results of each."""
    graph, place, found = tf.Graph(), Place(static=static), {}
    with graph.as_default():
        for each in instances:
            try:
                found[each] = [t.name for t in case.made(place, each) if t.dtype not in (tf.variant, tf.resource)]
            except NO_FIT:
                continue
    return graph, place, found


def nodes_of(graph):
    return Graph.from_graph_def(graph.as_graph_def(add_shapes=True))


def values_of(case, instances, static):
    """What is said of the results of each instance."""
    graph, place, found = built(case, instances, static)
    constants = None
    if static is not None:
        _, _, also = built(case, found, B)
        both = [each for each in found if each in also]
        graph, place, found = built(case, both, static)
        whole = built(case, both, B)[0]
        try:
            constants = row_constants(nodes_of(graph), nodes_of(whole), static, B // static)
        except CaptureError:  # a table has another name in each graph
            return
    reductions = Reductions(nodes_of(graph), place.inputs, None, constants)
    for each, names in found.items():
        for position, name in enumerate(names):
            try:
                value = reductions.value_of(name)
                if not reductions.batch_wide_values([name]):
                    yield each, position, value
            except CaptureError:
                continue
            except Exception as error:
                yield each, position, error


def results(case, place, arrangements, position):
    found = [t for t in case.made(place, arrangements) if t.dtype not in (tf.variant, tf.resource)]
    array = found[position].numpy()
    return np.zeros_like(array) if case.is_noise else np.asarray(array)


def violations(case, instances=None, static=None):
    """(what is wrong with each instance of a case, number of promises compared)."""
    found, compared = [], 0
    whole_place, cut_places, pairs = eager_places()
    for each, position, value in values_of(case, case.instances() if instances is None else instances, static):
        if isinstance(value, Exception):
            found.append((each, position, value, "raised"))
            continue
        if type(value) not in PROMISES or domain.mixed_by(value) or getattr(value, "normalised", False):
            continue
        try:
            whole = results(case, whole_place, each, position)
        except NO_FIT:
            continue
        for places in cut_places if static is None else [pairs]:
            try:
                parts = [results(case, place, each, position) for place in places]
            except NO_FIT:
                continue
            compared += 1
            sizes = [place.rows.stop - place.rows.start for place in places]
            wrong = check(value, whole, parts, sizes)
            if wrong:
                found.append((each, position, value, wrong))
                break
    return found, compared


# -- the ops -----------------------------------------------------------------------------------

CASES = {}


def add(op, *inputs, call=None, is_noise=False, label="", **attributes):
    CASES.setdefault(op, []).append(Case(op, inputs, attributes, call, is_noise, label))


FLAGS = (False, True)


def traced(function, *tensors):
    """An op that is only in graphs, which eagerly is run in one."""
    return tf.function(function)(*tensors) if tf.executing_eagerly() else function(*tensors)


for op in elementwise.LINEAR - op_names(
    "Cast CheckNumerics CheckNumericsV2 EnsureShape Real Imag Conj OptimizationBarrier"
):
    for slot in ("f0", "f1", "f2", "f3", "i1", "i2"):
        if not (op in ("DebugGradientIdentity",) and slot[0] == "i"):
            add(op, slot)
for slot in ("f0", "f1", "f2"):
    add("CheckNumerics", slot, message="")
    add("CheckNumericsV2", slot, message="")
    add("EnsureShape", slot, shape=[None] * int(slot[1]))
for slot in ("f1", "f2", "i1", "i2", "i0", "f0", "b1", "b2", "l2"):
    for to in (tf.float32, tf.int32, tf.bool, tf.float64, tf.int64, tf.complex64):
        add("Cast", slot, DstT=to)
for slot in ("c0", "c1", "c2", "c3"):
    for op in ("Real", "Imag", "Conj", "Angle", "ComplexAbs", "Abs", "Neg", "Identity", "Sign"):
        if op not in ("Abs",):
            add(op, slot)

OF_TEXTS = {
    "RegexFullMatch": ((".*a.*",), {}), "RegexReplace": (("a", "c"), {}),
    "StaticRegexFullMatch": ((), {"pattern": ".*a.*"}), "StaticRegexReplace": ((), {"pattern": "a", "rewrite": "b"}),
    "StringLength": ((), {}), "StringLower": ((), {}), "StringStrip": ((), {}), "StringUpper": ((), {}),
    "StringToHashBucket": ((), {"num_buckets": 7}), "StringToHashBucketFast": ((), {"num_buckets": 7}),
    "StringToHashBucketStrong": ((), {"num_buckets": 7, "key": [1, 2]}),
}  # fmt: skip
for op, (more, attributes) in OF_TEXTS.items():
    for slot in ("s0", "s1", "s2"):
        add(op, slot, *more, **attributes)
for slot in ("n0", "n1", "n2"):
    add("StringToNumber", slot)
for slot in ("f1", "f2", "i1"):
    add("AsString", slot)
    add("Bucketize", slot, boundaries=[0.0, 0.5, 2.0])
for slot in ("b0", "b1", "b2"):
    add("LogicalNot", slot)
for slot in ("i0", "i1", "i2"):
    add("Invert", slot)
    add("PopulationCount", slot)
    for op in ("Abs", "Sign", "Square"):
        add(op, slot)
for slot in ("f1", "f2"):
    add("FakeQuantWithMinMaxVars", slot, "f0", "f0")
    add("FakeQuantWithMinMaxArgs", slot)
for op in (
    elementwise.UNARY
    - set(OF_TEXTS)
    - op_names(
        "StringToNumber AsString Bucketize LogicalNot Invert PopulationCount FakeQuantWithMinMaxVars Angle ComplexAbs "
        "FakeQuantWithMinMaxArgs"
    )
):
    for slot in ("p0", "p1", "p2", "f2", "f3"):
        add(op, slot)

RANKS = ((2, 2), (2, 1), (1, 2), (3, 2), (2, 3), (0, 2), (2, 0), (1, 1), (0, 0))
OF_INTEGERS = op_names("BitwiseAnd BitwiseOr BitwiseXor LeftShift RightShift TruncateDiv TruncateMod Mod")
ALIKE = op_names(
    "ReluGrad Relu6Grad LeakyReluGrad EluGrad SeluGrad SoftplusGrad SoftsignGrad SigmoidGrad TanhGrad SqrtGrad "
    "RsqrtGrad InvGrad ReciprocalGrad ApproximateEqual Complex"
)
for op in OF_INTEGERS | {"FloorDiv", "FloorMod", "Div"}:
    for first, second in RANKS:
        if op == "Div" or (first, second) in ((2, 2), (2, 0), (2, 1), (0, 0)):
            add(op, f"i{first}", f"i{second}")
for op in ("Maximum", "Add", "Sub", "Mul", "Pow", "Equal", "AddV2", "Minimum"):
    add(op, "i1", "i1")
    add(op, "i0", "i0")
    add(op, "i2", "i0")
for op in ("LogicalAnd", "LogicalOr"):
    for first, second in ((2, 2), (2, 1), (1, 2)):
        add(op, f"b{first}", f"b{second}")
MANY_RANKS = op_names("Add AddV2 Sub Mul RealDiv Maximum Pow SquaredDifference Less")
for op in (
    elementwise.NARY
    - OF_INTEGERS
    - ALIKE
    - op_names("LogicalAnd LogicalOr AddN AccumulateNV2 Select SelectV2 ClipByValue Betainc ApproximateEqual")
):
    for first, second in RANKS if op in MANY_RANKS else ((2, 2), (2, 1), (2, 0), (0, 2)):
        add(op, f"p{first}", f"p{second}")
for op in ALIKE:
    add(op, "p2", "p2")
    if op in ("Complex", "ApproximateEqual"):
        add(op, "p1", "p1")
add("Betainc", "p1", "p1", "p1")
add("Betainc", "p2", "p2", "p2")
for rank in (0, 1, 2):
    add("AddN", [f"f{rank}", f"f{rank}"])
    add("AddN", [f"f{rank}", f"f{rank}", f"f{rank}"])
    add("AccumulateNV2", f"f{rank}", f"f{rank}", call=lambda place, a, b: traced(
        lambda a, b: raw_ops.AccumulateNV2(inputs=[a, b], shape=a.shape), a, b), label="of two")  # fmt: skip
    add("ClipByValue", f"f{rank}", "f0", "f0")
    add("ClipByValue", f"f{rank}", f"f{rank}", f"f{rank}")
    add("Select", f"b{rank}", f"f{rank}", f"f{rank}")
    add("SelectV2", f"b{rank}", f"f{rank}", f"f{rank}")
    add("SelectV2", f"b{rank}", f"f{rank}", 0.0)
    add("SelectV2", f"b{rank}", 0.0, f"f{rank}")
add("Select", "b1", "f2", "f2")
add("Select", "b0", "f2", "f2")
for ranks in ((1, 2, 2), (2, 1, 2), (2, 2, 1), (2, 0, 0), (0, 2, 2), (2, 2, 0), (0, 1, 2), (3, 2, 2)):
    add("SelectV2", f"b{ranks[0]}", f"f{ranks[1]}", f"f{ranks[2]}")

for rank in (0, 1, 2, 3):
    for letter in "fib":
        add("OnesLike", f"{letter}{rank}")
        add("ZerosLike", f"{letter}{rank}")
for slot in ("f1", "f2"):
    for to in (tf.int32, tf.int16, tf.float64, tf.int64):
        add("Bitcast", slot, type=to)
for given in FLAGS:
    for slot in ("f1", "f2", "f3"):
        add("QuantizeAndDequantize", slot, range_given=given, input_min=-1.0, input_max=1.0)
        for op, more in (("V2", ()), ("V3", (8,)), ("V4", ())):
            add(f"QuantizeAndDequantize{op}", slot, -1.0, 1.0, *more, range_given=given)
            add(f"QuantizeAndDequantize{op}", slot, "f0", 1.0, *more, range_given=given)
    for axis in (0, 1, 2):
        for slot in ("f2", "f3"):
            for op, more in (("V2", ()), ("V3", (8,)), ("V4", ())):
                add(f"QuantizeAndDequantize{op}", slot, [-1.0] * C, [1.0] * C, *more, range_given=given, axis=axis)
                add(f"QuantizeAndDequantize{op}", slot, "f1", [1.0] * C, *more, range_given=given, axis=axis)


def table(place, keys, default):
    if "table" not in place.made:
        pairs = tf.lookup.KeyValueTensorInitializer(tf.range(C, dtype=tf.int64), tf.linspace(0.0, 1.0, C))
        place.made["table"] = tf.lookup.StaticHashTable(pairs, 0.5)
    return raw_ops.LookupTableFindV2(table_handle=place.made["table"].resource_handle, keys=keys, default_value=default)


for slot in ("l0", "l1", "l2"):
    add("LookupTableFindV2", slot, "f0", call=table, label="of a table")

for rank in (0, 1, 2):
    add("IdentityN", [f"f{rank}", f"i{rank}"])

# layout
for slot, target in (
    ("f1", "z1"), ("f1", "z2"), ("f2", "z1"), ("f2", "z2"), ("f2", "z3"), ("f3", "z2"), ("f3", "z1"), ("f3", "z3"),
    ("i2", "z2"), ("f1", "z3"),
):  # fmt: skip
    add("Reshape", slot, target)
for slot in ("f0", "f1", "f2", "f3", "i0", "i1"):
    for axis in (0, 1, 2, -1, -2):
        add("ExpandDims", slot, axis)
        add("Squeeze", slot, call=lambda place, t, axis=axis: raw_ops.Squeeze(
            input=tf.expand_dims(t, axis), axis=[axis]), label=f"of an axis at {axis}")  # fmt: skip
        add("Squeeze", slot, call=lambda place, t, axis=axis: raw_ops.Squeeze(input=tf.expand_dims(t, axis)),
            label=f"of all, one at {axis}")  # fmt: skip
    add("Squeeze", slot)
for order in itertools.permutations(range(2)):
    add("Transpose", "f2", list(order))
for order in itertools.permutations(range(3)):
    add("Transpose", "f3", list(order))
add("Transpose", "f3", [-1, 0, -2])
add("Transpose", "i1", [0])
for rank in (1, 2, 3):
    for axis in range(-1, rank):
        for letter in "fi":
            add("ConcatV2", [f"{letter}{rank}", f"{letter}{rank}"], axis)
        add("ConcatV2", [f"f{rank}", f"f{rank}", f"f{rank}"], axis) if rank == 2 else None
for rank in (0, 1, 2):
    for axis in range(-1, rank + 1):
        for letter in "fi":
            add("Pack", [f"{letter}{rank}", f"{letter}{rank}"], axis=axis)
        add("Pack", [f"f{rank}"], axis=axis)
for rank in (1, 2, 3):
    for axis in range(-2, rank):
        for number in (2, 4, 6):
            add("Unpack", f"f{rank}", num=number, axis=axis)
            add("Split", axis, f"f{rank}", num_split=number)
            add("Split", axis, f"i{rank}", num_split=number)
        for parts in ([1, 3], [2, 2], [-1, 1], [3, 3]):
            add("SplitV", f"f{rank}", parts, axis, num_split=2)
    add("SplitV", f"f{rank}", "z2", 0, num_split=2)


def random_slices(rank, count):
    """Attributes and bounds of slices: (begin, end, strides, masks)."""
    rng = random.Random(rank)
    for _ in range(count):
        entries = rng.randint(1, rank + 1)
        begin = [rng.choice((0, 0, 0, 1, -2, -1)) for _ in range(entries)]
        end = [rng.choice((0, 2, 4, 6, -1, 100)) for _ in range(entries)]
        strides = [rng.choice((1, 1, 1, 1, 2, -1)) for _ in range(entries)]
        masks = {"begin_mask": rng.getrandbits(entries), "end_mask": rng.choice((-1, rng.getrandbits(entries))),
                 "new_axis_mask": rng.getrandbits(entries) & rng.getrandbits(entries),
                 "shrink_axis_mask": rng.getrandbits(entries) & rng.getrandbits(entries),
                 "ellipsis_mask": rng.choice((0, 1 << rng.randrange(entries)))}  # fmt: skip
        masks["end_mask"] &= 2**entries - 1
        yield begin, end, strides, masks


for rank in (1, 2, 3):
    for begin, end, strides, masks in random_slices(rank, 25):
        add("StridedSlice", f"f{rank}", begin, end, strides, **masks)
        add("StridedSlice", f"i{rank}", begin, end, strides, **masks) if rank == 1 else None
add("StridedSlice", "i1", [0], [-1], [1], begin_mask=1, end_mask=1, shrink_axis_mask=1, ellipsis_mask=1)
for begin in (0, 1):
    add("StridedSlice", "f1", [begin], "z1", [1])
    add("StridedSlice", "f2", [begin], "z1", [1])
    add("StridedSlice", "f2", [0, begin], "z2", [1, 1])
    add("StridedSlice", "f2", "z1", [1000], [1])


def slice_grad(begin, end, strides, masks):
    """The gradient of a slice of a tensor of some shape."""

    def call(place, shape, gradient):
        return raw_ops.StridedSliceGrad(shape=shape, begin=begin, end=end, strides=strides, dy=gradient, **masks)

    return call


for rank, slots in ((1, ("f1", "f2")), (2, ("f1", "f2", "f3"))):
    for begin, end, strides, masks in random_slices(rank, 10):
        for slot in slots:
            add("StridedSliceGrad", f"z{rank}", slot, call=slice_grad(begin, end, strides, masks),
                label=f"{begin} {end} {strides} {masks}")  # fmt: skip
for begin in ([0, 0], [1, 0], [0, 1], [0, 2]):
    add("Slice", "f2", begin, "z2")
for begin in ([0], [1]):
    add("Slice", "f1", begin, "z1")
    add("Slice", "i1", begin, "z1")
for begin in ([0, 0, 0], [0, 1, 0], [0, 0, 1]):
    add("Slice", "f3", begin, "z3")
add("Slice", "f2", "z2", [-1, -1])
for rank in (1, 2, 3):
    add("Tile", f"f{rank}", f"z{rank}")
    add("Fill", f"z{rank}", "f0")
    add("Empty", f"z{rank}", dtype=tf.float32, init=True)
    add("Empty", f"z{rank}", dtype=tf.float32, init=False, is_noise=True)
    for source in range(rank + 1):
        add("BroadcastTo", f"f{source}", f"z{rank}")
        add("BroadcastTo", f"i{source}", f"z{rank}")
add("Fill", "i1", "f0")
add("Tile", "f2", "i1")
for op in ("TensorScatterUpdate", "TensorScatterAdd", "TensorScatterSub"):
    for value, indices, rows in (
        ("f2", [[1]], "f2"), ("f2", [[0], [1], [2], [3]], "f2"), ("f3", [[0], [1], [2], [3]], "f3"), ("f1", [[1], [0]], "f1"),
        ("f2", [[0, 1]], "f1"), ("f2", [[0, 1], [0, 2], [0, 3], [0, 0]], "f1"),
        ("f3", [[1, 1], [0, 0], [2, 2], [3, 3]], "f2"), ("f2", [1], "f1"), ("f3", [1], "f2"), ("f3", [1, 2], "f1"),
        ("f1", "i2", "f1"), ("f2", "i2", "f1"),
    ):  # fmt: skip
        add(op, value, indices, rows)
    add(op, "f2", "i1", "f2", call=lambda place, value, at, rows, op=op: getattr(raw_ops, op)(
        tensor=value, indices=at[:, None], updates=rows), label="at rows")  # fmt: skip
    add(op, "f1", "i1", "f1", call=lambda place, value, at, rows, op=op: getattr(raw_ops, op)(
        tensor=value, indices=at[:, None], updates=rows), label="at rows")  # fmt: skip
for padding in ([[0, 0], [0, 0]], [[1, 0], [0, 0]], [[0, 0], [0, 1]], [[0, 2], [1, 1]]):
    for letter in "fi":
        add("Pad", f"{letter}2", padding)
        add("PadV2", f"{letter}2", padding, 2)
        add("PadV2", f"{letter}2", padding, f"{letter}0")
        for mode in ("REFLECT", "SYMMETRIC"):
            add("MirrorPad", f"{letter}2", padding, mode=mode)
for padding in ([[1, 0]], [[0, 2]]):
    for letter in "fi":
        add("Pad", f"{letter}1", padding)
        add("PadV2", f"{letter}1", padding, 2)
        add("MirrorPad", f"{letter}1", padding, mode="SYMMETRIC")
for op in ("Cumsum", "Cumprod", "CumulativeLogsumexp"):
    for rank in (1, 2, 3):
        for axis in (0, 1, -1):
            for exclusive, reverse in itertools.product(FLAGS, FLAGS):
                add(op, f"f{rank}", axis, exclusive=exclusive, reverse=reverse)
    add(op, "f2", "i0")
for rank in (1, 2, 3):
    for axis in ([0], [1], [-1], [0, 1], [0, 2], [1, 2], []):
        add("ReverseV2", f"f{rank}", axis)
        add("Roll", f"f{rank}", [1] * len(axis), axis)
add("Roll", "f2", "i0", 0)
add("Roll", "f2", "i0", 1)
for rank in (2, 3):
    for batch, sequence in itertools.permutations(range(rank), 2):
        add("ReverseSequence", f"f{rank}", "i1", seq_dim=sequence, batch_dim=batch)

# gathers
for table_rank, index_rank in itertools.product((1, 2, 3), (0, 1, 2)):
    for axis in (0, 1, 2, -1, -2):
        for batched in (0, 1, 2, -1):
            if abs(batched) <= min(index_rank, table_rank - 1):
                add("GatherV2", f"f{table_rank}", f"i{index_rank}", axis, batch_dims=batched)
add("GatherV2", np.linspace(0, 1, 40, dtype=np.float32), "i1", 0)
add("GatherNd", np.linspace(0, 1, 40, dtype=np.float32), "i2", call=lambda place, at: raw_ops.GatherNd(
    params=np.linspace(0, 1, 40, dtype=np.float32), indices=at[..., :1]), label="of many")  # fmt: skip
add("GatherV2", "i1", "i0", 0)
add("GatherV2", "i1", "i1", 0)
for table_rank in (1, 2, 3):
    for index_rank in (0, 1, 2, 3):
        for batched in (0,):  # TensorFlow aborts where others do not fit
            add("ResourceGather", f"i{index_rank}", call=lambda place, t, rank=table_rank, batched=batched:
                raw_ops.ResourceGather(resource=place.variable("f", rank).handle, indices=t, dtype=tf.float32,
                                       batch_dims=batched), label=f"of rank {table_rank}, {batched}")  # fmt: skip
        if index_rank:
            add("ResourceGatherNd", f"i{index_rank}", call=lambda place, t, rank=table_rank: raw_ops.ResourceGatherNd(
                resource=place.variable("f", rank).handle, indices=t[..., :rank], dtype=tf.float32),
                label=f"of rank {table_rank}")  # fmt: skip
            add("GatherNd", f"f{table_rank}", f"i{index_rank}")
            add("GatherNd", f"f{table_rank}", f"i{index_rank}", call=lambda place, t, at: raw_ops.GatherNd(
                params=t, indices=at[..., :1]), label="one coordinate")  # fmt: skip
for rank in (0, 1, 2):
    for axis in range(-1, rank + 1):
        add("OneHot", f"i{rank}", 4, 1.0, 0.0, axis=axis)
        add("OneHot", f"i{rank}", 4, "f0", 0.0, axis=axis)
        add("OneHot", f"i{rank}", "i0", 1.0, 0.0, axis=axis)

# reductions
AXES = (0, 1, 2, -1, -2, [0, 1], [0, 2], [1, 2], [0, 1, 2], [], [-1, 0])
for op in ("Sum", "Mean", "Max", "Min", "Prod", "EuclideanNorm", "All", "Any"):
    for rank in (0, 1, 2, 3) if op in ("Sum", "Mean") else (2, 3):
        for axes in AXES:
            for keep in FLAGS:
                if op in ("All", "Any"):
                    add(op, f"b{rank}", axes, keep_dims=keep)
                else:
                    add(op, f"f{rank}", axes, keep_dims=keep)
                    add(op, f"i{rank}", axes, keep_dims=keep) if op in ("Mean", "Sum", "Prod") and not keep else None
    add(op, "b2" if op in ("All", "Any") else "f2", "i0")
for op in ("ArgMax", "ArgMin"):
    for rank in (1, 2, 3):
        for axis in (0, 1, 2, -1):
            add(op, f"f{rank}", axis)
for slot in ("f0", "f1", "f2", "f3"):
    add("L2Loss", slot)
for op in ("Unique", "UniqueWithCounts"):
    add(op, "i1")
    add(op, "f1")
for op in ("UniqueV2", "UniqueWithCountsV2"):
    add(op, "i2", [0])
    add(op, "i2", [1])
add("ListDiff", "i1", "i1")
for kind in ("Sum", "Mean", "Max", "Min", "Prod"):
    for slot in ("f1", "f2"):
        add(f"Segment{kind}", slot, "i1", call=lambda place, t, at, kind=kind: getattr(raw_ops, f"Segment{kind}")(
            data=t, segment_ids=tf.zeros_like(at)), label="of one segment")  # fmt: skip
        add(f"Segment{kind}", slot, "i1")
    if kind != "Mean":
        for slot, at in (("f1", "i1"), ("f2", "i1"), ("f2", "i2"), ("f3", "i2"), ("i2", "i1"), ("f3", "i1")):
            add(f"UnsortedSegment{kind}", slot, at, 4)
        add(f"UnsortedSegment{kind}", "f2", "i1", "i0")
for version, more in (("", ()), ("V2", (0.5,)), ("V3", (0.5, 0.1)), ("V4", (0.5, 0.1)), ("V5", (0.5, 0.1, 0.0))):
    add(f"NonMaxSuppression{version}", "f2", "f1", 3, *more)
for at, rows, size in (("i1", "f1", [4]), ("i1", "f2", [4, 4]), ("i1", "i1", [4]), ("i2", "f2", [4])):
    add("ScatterNd", at, rows, call=lambda place, at, rows, size=size: raw_ops.ScatterNd(
        indices=at[..., None], updates=rows, shape=size), label="of columns")  # fmt: skip
for at, rows, size in (("i2", "f1", [4, 4]), ("i2", "f2", [4, 4, 4]), ("i3", "f2", [4, 4]), ("i3", "f1", [4, 4])):
    add("ScatterNd", at, rows, call=lambda place, at, rows, size=size: raw_ops.ScatterNd(
        indices=at[..., :2], updates=rows, shape=size), label="of pairs")  # fmt: skip
add("ScatterNd", "i1", "f1", "z1", call=lambda place, at, rows, size: raw_ops.ScatterNd(
    indices=at[..., None], updates=rows, shape=size), label="of a shape")  # fmt: skip
for slot in ("f1", "f2", "f3"):
    add("HistogramFixedWidth", slot, [-1.0, 1.0], 4)
    add("HistogramFixedWidth", slot, "f1", 4, call=lambda place, t, limits: raw_ops.HistogramFixedWidth(
        values=t, value_range=limits[:2], nbins=4), label="in ranges")  # fmt: skip
for a, b in itertools.product(FLAGS, FLAGS):
    add("MatMul", "f2", "f2", transpose_a=a, transpose_b=b)
    for ranks in ((2, 2), (3, 3), (3, 2), (2, 3), (4, 3), (4, 4), (2, 4)):
        for op in ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"):
            add(op, f"f{ranks[0]}", f"f{ranks[1]}", adj_x=a, adj_y=b, **({"Tout": tf.float32} if op[-1] == "3" else {}))
for equation, *slots in (
    ("ij,jk->ik", "f2", "f2"), ("ij,ij->i", "f2", "f2"), ("ij,ij->j", "f2", "f2"), ("ij,ij->", "f2", "f2"),
    ("ij->ji", "f2"), ("ij->i", "f2"), ("ij->j", "f2"), ("ij->", "f2"), ("ii->i", "f2"), ("i,j->ij", "f1", "f1"),
    ("...i,...i->...", "f2", "f2"), ("...ij,jk->...ik", "f3", "f2"), ("i...,i...->i...", "f3", "f2"),
    ("i...,...->i...", "f2", "f2"), ("ijk,ikl->ijl", "f3", "f3"), ("ij,jk,kl->il", "f2", "f2", "f2"),
    ("i...->...i", "f3"), ("i...->...", "f3"), ("ij...,j...->i...", "f3", "f2"), ("...,...->...", "f2", "f1"),
    ("...i,i->...i", "f2", "f1"), ("...i,...j->...ij", "f3", "f2"), ("ij,j->i", "f2", "f1"), ("i,i->", "f1", "f1"),
    ("i...,j->...j", "f2", "f1"),
):  # fmt: skip
    add("Einsum", list(slots), equation=equation)
for rank in (2, 3, 4):
    for data_format in ("NHWC", "NCHW"):
        add("BiasAdd", f"f{rank}", "f1", data_format=data_format)

# layers
for padding in ("SAME", "VALID"):
    for strides in ([1, 1, 1, 1], [1, 2, 2, 1]):
        add("Conv2D", "f4", "f4", strides=strides, padding=padding)
        add("DepthwiseConv2dNative", "f4", "f4", strides=strides, padding=padding)
        add("Dilation2D", "f4", "f3", strides=strides, rates=[1, 1, 1, 1], padding=padding)
    add("Conv", "f4", "f4", strides=[1, 1, 1, 1], padding=padding)
    add("Conv", "f4", "f4", strides=[1, 1, 1, 1], padding=padding, data_format="CHANNELS_FIRST")
    add("Conv", "f5", "f4", strides=[1, 1, 1, 1], padding=padding, batch_dims=2)
    add("Conv3D", "f5", "f5", strides=[1] * 5, padding=padding)
add("Conv2D", "f4", "f4", strides=[1, 1, 1, 1], padding="SAME", data_format="NCHW")
for op in ("Conv2DBackpropInput", "DepthwiseConv2dNativeBackpropInput"):
    for sizes in ("z1",):
        add(op, sizes, "f4", "f4", call=lambda place, n, weights, gradient, op=op: getattr(raw_ops, op)(
            input_sizes=tf.concat([n, [C, C, C]], 0), filter=weights,
            out_backprop=gradient if "Depth" not in op else tf.repeat(gradient, C, 3), strides=[1, 1, 1, 1],
            padding="SAME"), label="of a number")  # fmt: skip
add("Conv3DBackpropInputV2", "z1", "f5", "f5", call=lambda place, n, weights, gradient: raw_ops.Conv3DBackpropInputV2(
    input_sizes=tf.concat([n, [C, C, C, C]], 0), filter=weights, out_backprop=gradient, strides=[1] * 5,
    padding="SAME"), label="of a number")  # fmt: skip
for batch in (1, 2):
    sides, strides = [batch, 2, 2, 1], [batch, 1, 1, 1]
    for op in ("AvgPool", "MaxPool", "MaxPoolWithArgmax"):
        add(op, "f4", ksize=sides, strides=[1, 1, 1, 1], padding="SAME")
        add(op, "f4", ksize=[1, 2, 2, 1], strides=strides, padding="SAME")
        add(op, "f4", ksize=sides, strides=strides, padding="VALID")
        add(op, "f4", ksize=[1, 1, 1, 2], strides=[1, 1, 1, 2], padding="VALID")
        add(
            op, "f4", ksize=[1, 1, 2, 2], strides=[1, 1, 1, 1], padding="SAME", data_format="NCHW"
        ) if "Arg" not in op else None
    add("MaxPoolV2", "f4", sides, strides, padding="SAME")
    add("MaxPoolV2", "f4", [1, 2, 2, 1], strides, padding="SAME")
    for op in ("AvgPool3D", "MaxPool3D"):
        add(op, "f5", ksize=[batch, 2, 2, 2, 1], strides=[1] * 5, padding="SAME")
        add(op, "f5", ksize=[1, 2, 2, 2, 1], strides=[batch, 1, 1, 1, 1], padding="SAME")
    add("ExtractImagePatches", "f4", ksizes=sides, strides=[1] * 4, rates=[1] * 4, padding="SAME")
    add("ExtractImagePatches", "f4", ksizes=[1, 2, 2, 1], strides=strides, rates=[1] * 4, padding="SAME")
    add("ExtractVolumePatches", "f5", ksizes=[batch, 2, 2, 2, 1], strides=[1] * 5, padding="SAME")
    for op in ("FractionalAvgPool", "FractionalMaxPool"):
        add(op, "f4", pooling_ratio=[float(batch), 1.4, 1.4, 1.0], deterministic=True, seed=1, seed2=1)
        add(
            op,
            "f4",
            pooling_ratio=[1.0, 1.4, 1.4, 1.0],
            pseudo_random=True,
            overlapping=True,
            deterministic=True,
            seed=1,
            seed2=1,
        )
for included in FLAGS:
    add(
        "MaxPoolWithArgmax",
        "f4",
        ksize=[1, 2, 2, 1],
        strides=[1, 2, 2, 1],
        padding="SAME",
        include_batch_in_index=included,
    )
add("LRN", "f4")
for op in ("DepthToSpace", "SpaceToDepth"):
    add(op, "f4", block_size=2)
    add(op, "f4", block_size=2, data_format="NCHW")
for op in ("ResizeArea", "ResizeBicubic", "ResizeBilinear", "ResizeNearestNeighbor"):
    add(op, "f4", [3, 5])
    add(op, "f4", "z2")
    add(op, "f4", [3, 5], align_corners=True)
MOVES = np.tile(np.array([[1, 0, 1, 0, 1, 0, 0, 0]], np.float32), [1, 1])
for op, more in (("ImageProjectiveTransformV2", ()), ("ImageProjectiveTransformV3", (0.0,))):
    add(op, "f4", MOVES, [3, 3], *more, interpolation="BILINEAR")
    add(op, "f4", "f2", [3, 3], call=lambda place, t, moves, op=op, more=more: getattr(raw_ops, op)(
        images=t, transforms=tf.concat([moves, moves], 1), output_shape=[3, 3], interpolation="BILINEAR",
        **({"fill_value": more[0]} if more else {})), label="each its own")  # fmt: skip
add("ScaleAndTranslate", "f4", [3, 3], [1.0, 1.0], [0.0, 1.0])
add("ScaleAndTranslate", "f4", [3, 3], "f1", [0.0, 1.0], call=lambda place, t, by: raw_ops.ScaleAndTranslate(
    images=t, size=[3, 3], scale=by[:2], translation=[0.0, 1.0]), label="by some")  # fmt: skip
add("Multinomial", "f2", 3, is_noise=True)
add("Multinomial", "f2", "i0", is_noise=True)
add("StatelessMultinomial", "f2", 3, [1, 2], is_noise=True)
add("StatelessMultinomial", "f2", 3, "i1", is_noise=True)
add("SparseSoftmaxCrossEntropyWithLogits", "f2", "i1")
add("SoftmaxCrossEntropyWithLogits", "f2", "p2")
for op in ("InTopK", "InTopKV2"):
    add(op, "f2", "i1", *(((), (2,))[op[-1] == "2"]), **({"k": 2} if op[-1] == "K" else {}))
add("InTopKV2", "f2", "i1", "i0")
for op in ("Softmax", "LogSoftmax"):
    for rank in (1, 2, 3):
        add(op, f"f{rank}")
for rank in (1, 2, 3):
    add("TopK", f"f{rank}", k=2)
    add("TopKV2", f"f{rank}", 2)
    add("TopKV2", f"f{rank}", "i0")
for axes, dims in ((1, [4]), (2, [4, 4]), (3, [4, 4, 4])):
    name = "" if axes == 1 else f"{axes}D"
    for rank in range(axes, 5):
        add(f"FFT{name}", f"c{rank}")
        add(f"IFFT{name}", f"c{rank}")
        add(f"RFFT{name}", f"f{rank}", dims)
        add(f"IRFFT{name}", f"c{rank}", dims)
for rank in (1, 2, 3):
    add("MatrixDiag", f"f{rank}")
    add("MatrixDiagV2", f"f{rank}", 0, -1, -1, 0.5)
    add("MatrixDiagV2", f"f{rank}", [-1, 2], 5, 4, 0.5) if rank > 1 else None
    add("MatrixDiagV3", f"f{rank}", 0, -1, -1, 0.5)
    add("MatrixDiagV3", f"f{rank}", [-1, 2], 5, 4, "f0") if rank > 1 else None
for rank in (2, 3, 4):
    add("MatrixDiagPart", f"f{rank}")
    add("MatrixDiagPartV2", f"f{rank}", 0, 0.5)
    for k in (0, 1, [-1, 1]):
        add("MatrixDiagPartV3", f"f{rank}", k, 0.5)
    add("MatrixDiagPartV3", f"f{rank}", [-1, 1], "f0")
    add("MatrixBandPart", f"f{rank}", 1, 0)
    add("MatrixBandPart", f"f{rank}", "l0", 0)
    for version in ("", "V2", "V3"):
        add(f"MatrixSetDiag{version}", f"f{rank}", f"f{rank - 1}", *([0] if version else []))
    add("MatrixSetDiagV3", f"f{rank}", f"f{rank}", [0, 3])
    for op in ("MatrixInverse", "MatrixDeterminant", "LogMatrixDeterminant", "Cholesky", "Qr", "MatrixSquareRoot",
               "MatrixLogarithm", "MatrixExponential", "Lu"):  # fmt: skip
        add(op, f"m{rank}") if op != "MatrixLogarithm" else None
    for op in ("Svd", "SelfAdjointEigV2", "Eig"):
        vectors = "compute_uv" if op == "Svd" else "compute_v"
        add(op, f"m{rank}", **{vectors: False}, **({"Tout": tf.complex64} if op == "Eig" else {}))
        add(op, f"m{rank}", **{vectors: True}, **({"Tout": tf.complex64} if op == "Eig" else {}))
    add("CholeskyGrad", f"m{rank}", f"f{rank}")
    add("MatrixSolve", f"m{rank}", f"f{rank}")
    add("MatrixTriangularSolve", f"m{rank}", f"f{rank}")
add("MatrixTriangularSolve", "m3", "f2")
add("MatrixTriangularSolve", "m2", "f3")
for rank in (2, 3, 4):
    add("MatrixSolveLs", f"m{rank}", f"f{rank}", np.float64(0.1))
for op in ("HSVToRGB", "RGBToHSV"):
    for rank in (1, 2, 3, 4):
        add(op, f"p{rank}", call=lambda place, t, op=op: getattr(raw_ops, op)(images=t[..., :3]), label="of three")
for rank in (1, 2, 3):
    add("Cross", f"f{rank}", f"f{rank}", call=lambda place, a, b: raw_ops.Cross(a=a[..., :3], b=b[..., :3]),
        label="of three")  # fmt: skip
for op, by in (("AdjustContrastv2", "contrast_factor"), ("AdjustHue", "delta"), ("AdjustSaturation", "scale")):
    for rank in (3, 4, 5):
        add(op, f"p{rank}", "p0", call=lambda place, t, by, op=op, name=by: getattr(raw_ops, op)(
            images=t[..., :3], **{name: by}), label="of three")  # fmt: skip
for op in ("SpaceToBatchND", "BatchToSpaceND"):
    for rank in (2, 3, 4):
        for blocks in ([2], [2, 2], [1]):
            if len(blocks) < rank:
                add(op, f"f{rank}", blocks, [[0, 0]] * len(blocks))
                add(op, f"f{rank}", blocks, [[0, 2]] * len(blocks)) if op[0] == "S" else None
for op in ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"):
    for training, data_format in itertools.product(FLAGS, ("NHWC", "NCHW")):
        add(op, "f4", "f1", "f1", "f1", "p1", is_training=training, data_format=data_format)
    add(op, "f4", "f1", "f1", "f1", "p1", is_training=True, exponential_avg_factor=0.5)

# random numbers
for rank in (1, 2, 3):
    z = f"z{rank}"
    for op in ("RandomStandardNormal", "RandomUniform", "TruncatedNormal"):
        add(op, z, is_noise=True, dtype=tf.float32)
    add("RandomUniformInt", z, 0, 9, is_noise=True)
    add("RandomUniformInt", z, 0, "i0", is_noise=True)
    add("RandomPoissonV2", z, "p0", is_noise=True)
    add("RandomPoissonV2", z, "p1", is_noise=True)
    add("RandomGamma", z, "p0", is_noise=True)
    add("RandomGamma", z, "p1", is_noise=True)
    add("ParameterizedTruncatedNormal", z, 0.0, 1.0, -1.0, 1.0, is_noise=True)
    add("ParameterizedTruncatedNormal", z, "f0", 1.0, -1.0, 1.0, is_noise=True)
    for op in ("StatelessRandomNormal", "StatelessRandomUniform", "StatelessTruncatedNormal"):
        add(op, z, [1, 2], is_noise=True)
        add(f"{op}V2", z, np.array([1], np.uint64), np.array([1, 2], np.uint64), 1, is_noise=True)
    add("StatelessRandomUniform", z, "i1", is_noise=True)
    add("StatelessRandomUniformFullInt", z, [1, 2], is_noise=True)
    add("StatelessRandomUniformFullIntV2", z, np.array([1], np.uint64), np.array([1, 2], np.uint64), 1, is_noise=True)
    add("StatelessRandomUniformInt", z, [1, 2], 0, 9, is_noise=True)
    add("StatelessRandomUniformInt", z, [1, 2], 0, "i0", is_noise=True)
    add("StatelessRandomUniformIntV2", z, np.array([1], np.uint64), np.array([1, 2], np.uint64), 1, 0, 9, is_noise=True)


def generator(place):
    if "generator" not in place.made:
        place.made["generator"] = tf.Variable(np.arange(3), dtype=tf.int64)
    return place.made["generator"].handle


for op in layers.GENERATOR_OPS:
    more = {"minval": 0, "maxval": 9} if op == "StatefulUniformInt" else {}
    for rank in (1, 2, 3):
        add(op, f"z{rank}", call=lambda place, shape, op=op, more=more: getattr(raw_ops, op)(
            resource=generator(place), algorithm=np.int64(1), shape=shape, **more), is_noise=True,
            label="of a state")  # fmt: skip
add("RngReadAndSkip", "i0", call=lambda place, by: raw_ops.RngReadAndSkip(
    resource=generator(place), alg=1, delta=tf.cast(by, tf.uint64)), is_noise=True, label="of a state")  # fmt: skip
add("RngSkip", "l0", call=lambda place, by: (raw_ops.RngSkip(resource=generator(place), algorithm=np.int64(1), delta=by),
    by)[1], label="of a state")  # fmt: skip

# sizes
for rank in (0, 1, 2, 3):
    for op in ("Shape", "Size", "Rank"):
        add(op, f"f{rank}")
    add("ShapeN", [f"f{rank}", "f1"])
add("Size", "l2")
add("Shape", "l2")
for start, step in ((0, 1), (1, 1), (0, 2)):
    add("Range", start, "i0", step)
    add("Range", start, "z1", step, call=lambda place, n, start=start, step=step: raw_ops.Range(
        start=start, limit=n[0], delta=step), label=f"{start} {step}")  # fmt: skip
for op in ("BroadcastGradientArgs",):
    add(op, "z1", "z1")
    add(op, "z1", "z2")
for op in ("Prod", "Sum", "Max", "Min"):
    add(op, "z2", [0])
    add(op, "z3", 0, keep_dims=True)
for op in (
    "Mul",
    "Add",
    "AddV2",
    "Sub",
    "RealDiv",
    "Div",
    "DivNoNan",
    "FloorDiv",
    "TruncateDiv",
    "Maximum",
    "Minimum",
    "FloorMod",
    "Mod",
    "Less",
    "Pow",
):
    add(op, "z1", "z1")
    add(op, "z1", "z2")
    add(op, "z1", "z1", call=lambda place, a, b, op=op: getattr(raw_ops, op)(
        x=tf.cast(a, tf.float32), y=tf.cast(b, tf.float32)), label="of floats")  # fmt: skip
for to in (tf.float32, tf.bool, tf.int64):
    add("Cast", "z1", DstT=to)
    add(
        "Cast",
        "z1",
        call=lambda place, a, to=to: raw_ops.Cast(x=0.5 * tf.cast(a, tf.float32), DstT=tf.int32),
        label=f"of halves {to}",
    )
for op in ("Neg", "Abs", "Sign", "Square", "Identity", "Invert"):
    add(op, "z1")
    add(op, "z2")
add("GatherV2", "z3", [2, 0], 0)
add("GatherV2", "z3", "i0", 0)
add("GatherV2", "z3", -1, 0)
add("StridedSlice", "z3", [-1], [0], [-1], end_mask=1)
for begin, end, stride in ((0, 2, 1), (-2, 100, 1), (2, 0, -1), (0, 3, 2)):
    for begin_mask, end_mask, shrink in itertools.product((0, 1), (0, 1), (0, 1)):
        add(
            "StridedSlice",
            "z3",
            [begin],
            [end],
            [stride],
            begin_mask=begin_mask,
            end_mask=end_mask,
            shrink_axis_mask=shrink,
        )
for begin, size in ((0, 2), (1, -1), (1, 1), (0, -1)):
    add("Slice", "z3", [begin], [size])
add("Unpack", "z3", num=3)
add("Split", 0, "z2", num_split=2)
add("ConcatV2", ["z2", "z1"], 0)
add("Pack", ["i0", "i0"])
add("Pack", ["z2", "z2"])
add("Reshape", "z2", [2, 1])
add("Reshape", "z2", [2])
add("Reshape", "z1", [])
add("Squeeze", "z1")
add("ExpandDims", "z1", 0)
add("SelectV2", "b0", "i0", "i0")

# partitions, places, ragged, samplers, lists
for slot in ("f1", "f2", "i1"):
    add("DynamicPartition", slot, "i1", num_partitions=4)
add("DynamicPartition", "f2", "i2", num_partitions=4)


def stitched(place, t, at):
    places = tf.dynamic_partition(tf.range(tf.size(at)), at, 4)
    return raw_ops.DynamicStitch(indices=places, data=raw_ops.DynamicPartition(data=t, partitions=at, num_partitions=4))


for slot in ("f1", "f2"):
    add("DynamicStitch", slot, "i1", call=stitched, label="of parts")
add("DynamicStitch", ["i1", "i1"], ["f1", "f1"])
add("DynamicStitch", [[0, 1], [2]], ["z2", "z1"])
for slot in ("b1", "b2", "b3", "f1", "f2"):
    add("Where", slot)
add(
    "GatherNd",
    "f1",
    "b1",
    call=lambda place, t, mask: raw_ops.GatherNd(params=t, indices=tf.where(mask)),
    label="where",
)
add(
    "GatherNd",
    "f2",
    "b2",
    call=lambda place, t, mask: raw_ops.GatherNd(params=t, indices=tf.where(mask)),
    label="where",
)
add(
    "GatherNd",
    "f3",
    "b2",
    call=lambda place, t, mask: raw_ops.GatherNd(params=t, indices=tf.where(mask)),
    label="where",
)
add("GatherV2", "f2", "b1", call=lambda place, t, mask: raw_ops.GatherV2(
    params=t, indices=tf.squeeze(tf.where(mask), 1), axis=0), label="where")  # fmt: skip
add("GatherNd", "f2", "i1", call=lambda place, t, at: raw_ops.GatherNd(
    params=t, indices=tf.stack([tf.range(tf.shape(at)[0]), at], 1)), label="one of each")  # fmt: skip
add("ScatterNd", "i1", "f1", call=lambda place, at, rows: raw_ops.ScatterNd(
    indices=tf.stack([tf.range(tf.shape(at)[0]), at], 1), updates=rows, shape=tf.stack([tf.shape(at)[0], C])),
    label="one of each")  # fmt: skip
add("Pack", ["i1", "i1"], axis=1)
add("ConcatV2", ["i2", "i2"], 1)

for slot in ("i1", "i2"):
    for size in (4, "i0"):
        for binary in FLAGS:
            add("DenseBincount", slot, size, np.zeros([0], np.float32), binary_output=binary)
            add("DenseBincount", slot, size, f"f{slot[1]}", binary_output=binary)
add("StringSplitV2", "s1", "")
add("StringSplitV2", "s1", " ", maxsplit=1)
add("StringSplitV2", "s1", "s0")
for op in ("UnicodeDecode", "UnicodeDecodeWithOffsets"):
    add(op, "s1", input_encoding="UTF-8")


def of_words(make):
    return lambda place, t: make(tf.strings.split(t))


for label, make in {
    "values": lambda r: raw_ops.StringLength(input=r.values), "lengths": lambda r: r.row_lengths(),
    "starts": lambda r: r.row_splits, "rows": lambda r: r.value_rowids(), "tensor": lambda r: r.to_tensor("", [None, 3]),
    "open tensor": lambda r: r.to_tensor(""), "nrows": lambda r: r.nrows(), "ends": lambda r: r.row_limits(),
    "first": lambda r: r.values[:1], "grams": lambda r: tf.strings.ngrams(r, 2).values,
    "counts": lambda r: tf.math.bincount(r.with_values(tf.strings.to_hash_bucket_fast(r.values, C)), minlength=C,
                                         maxlength=C, axis=-1),
    "size": lambda r: tf.size(r.values),
}.items():  # fmt: skip
    add("StringSplitV2", "s1", call=of_words(make), label=label)

for op in (
    "LogUniformCandidateSampler", "UniformCandidateSampler", "LearnedUnigramCandidateSampler",
    "ThreadUnsafeUnigramCandidateSampler", "FixedUnigramCandidateSampler", "AllCandidateSampler",
):  # fmt: skip
    more = {} if op[0] == "A" else {"range_max": 9}
    more |= {"unigrams": [1.0] * 9} if op[1] == "i" else {}
    add(op, "l2", num_true=C, num_sampled=4, unique=True, is_noise=True, **more)
    add(op, "l2", num_true=C, num_sampled=4, unique=False, is_noise=True, **more)
add("ComputeAccidentalHits", "l2", "l1", num_true=C)
for hashed in FLAGS:
    add("SparseCross", "l2", "l2", call=lambda place, a, b, hashed=hashed: raw_ops.SparseCross(
        indices=[], values=[], shapes=[], dense_inputs=[a, b], hashed_output=hashed, num_buckets=9, hash_key=1,
        out_type=tf.int64 if hashed else tf.string, internal_type=tf.int64 if hashed else tf.string), label=str(hashed))  # fmt: skip
    add("SparseCross", "s2", "s2", call=lambda place, a, b, hashed=hashed: raw_ops.SparseCross(
        indices=[], values=[], shapes=[], dense_inputs=[a, b], hashed_output=hashed, num_buckets=9, hash_key=1,
        out_type=tf.int64 if hashed else tf.string, internal_type=tf.string), label=f"texts {hashed}")  # fmt: skip
add("SparseToDense", "l2", "l2", call=lambda place, a, b: (lambda crossed: raw_ops.SparseToDense(
    sparse_indices=crossed[0], output_shape=crossed[2], sparse_values=crossed[1], default_value=np.int64(-1)))(
    raw_ops.SparseCross(indices=[], values=[], shapes=[], dense_inputs=[a, b], hashed_output=True, num_buckets=9,
                        hash_key=1, out_type=tf.int64, internal_type=tf.int64)), label="of crosses")  # fmt: skip


def listed(t):
    return raw_ops.TensorListFromTensor(tensor=t, element_shape=tf.constant(-1))


def stacked(handle):
    return raw_ops.TensorListStack(input_handle=handle, element_shape=tf.constant(-1), element_dtype=tf.float32)


def joined(op, handle):
    if op == "TensorListConcat":
        return raw_ops.TensorListConcat(input_handle=handle, element_dtype=tf.float32)
    of_any = tf.constant(-1), tf.constant([], tf.int64)
    return raw_ops.TensorListConcatV2(
        input_handle=handle, element_shape=of_any[0], leading_dims=of_any[1], element_dtype=tf.float32
    )


def got(handle, at):
    return raw_ops.TensorListGetItem(
        input_handle=handle, index=at, element_shape=tf.constant(-1), element_dtype=tf.float32
    )


def reserved(count):
    return raw_ops.TensorListReserve(element_shape=tf.constant(-1), num_elements=count, element_dtype=tf.float32)


def empty():
    return raw_ops.EmptyTensorList(element_shape=tf.constant(-1), max_num_elements=-1, element_dtype=tf.float32)


def put(handle, at, item):
    return raw_ops.TensorListSetItem(input_handle=handle, index=at, item=item)


def pushed(handle, item):
    return raw_ops.TensorListPushBack(input_handle=handle, tensor=item)


def popped(handle):
    return raw_ops.TensorListPopBack(input_handle=handle, element_shape=tf.constant(-1), element_dtype=tf.float32)


for rank in (1, 2, 3):
    slot = f"f{rank}"
    add("TensorListFromTensor", slot, call=lambda place, t: stacked(listed(t)), label="stacked")
    add("TensorListLength", slot, call=lambda place, t: raw_ops.TensorListLength(input_handle=listed(t)), label="of it")
    add("TensorListStack", slot, call=lambda place, t: stacked(listed(t)), label="of it")
    if rank > 1:
        for op in ("TensorListConcat", "TensorListConcatV2"):
            add(op, slot, call=lambda place, t, op=op: joined(op, listed(t)), label="of it")
    for at in (0, 1, -1):
        add("TensorListGetItem", slot, call=lambda place, t, at=at: got(listed(t), at), label=f"at {at}")
    add("TensorListGetItem", slot, "i0", call=lambda place, t, at: got(listed(t), at), label="at one")
    lower = f"f{rank - 1}"
    add("TensorListSetItem", slot, lower, call=lambda place, t, e: stacked(put(listed(t), 1, e)), label="of it")
    add(
        "TensorListSetItem",
        slot,
        lower,
        call=lambda place, t, e: stacked(put(listed(t), 1, got(listed(t), 1))),
        label="its own",
    )
    add("TensorListSetItem", slot, lower, call=lambda place, t, e: got(put(listed(t), 1, e), 0), label="another")
    add("TensorListPushBack", slot, lower, call=lambda place, t, e: stacked(pushed(listed(t), e)), label="of it")
    add("TensorListPopBack", slot, call=lambda place, t: popped(listed(t))[1], label="of it")
    add("TensorListPopBack", slot, call=lambda place, t: stacked(popped(listed(t))[0]), label="others")
    add("TensorListReserve", "i0", lower, call=lambda place, n, e: stacked(put(reserved(n), 0, e)), label="set")
    add(
        "TensorListReserve", "z1", lower, call=lambda place, n, e: stacked(put(reserved(n[0]), 0, e)), label="of a size"
    )
    add("TensorListReserve", "z1", lower, call=lambda place, n, e: got(put(reserved(n[0]), 0, e), 0), label="read")
    add(
        "EmptyTensorList", lower, lower, call=lambda place, a, b: stacked(pushed(pushed(empty(), a), b)), label="of two"
    )
    add(
        "EmptyTensorList", lower, lower, call=lambda place, a, b: popped(pushed(pushed(empty(), a), b))[1], label="last"
    )
    add(
        "TensorListLength",
        lower,
        call=lambda place, a: raw_ops.TensorListLength(input_handle=pushed(empty(), a)),
        label="one",
    )
add(
    "TensorListReserve",
    "z1",
    call=lambda place, n: raw_ops.TensorListLength(input_handle=reserved(n[0])),
    label="length",
)


# -- the tests ---------------------------------------------------------------------------------

NOT_MADE = {
    "MatrixLogarithm": "does not come to an end for some matrices that have no logarithm",
    "OptimizationBarrier": "is no op of TensorFlow",
    "RandomShuffle": "has an order of its own on each worker; see tests/exact/test_permutations_exact.py",
    "StatelessShuffle": "has an order of its own on each worker; see tests/exact/test_permutations_exact.py",
    "XlaDynamicUpdateSlice": "has no kernel outside of XLA",
}
"""Ops with a rule of which no instance is made, and why."""

NEVER_COMPARED = op_names(
    "MatrixExponential QuantizeAndDequantize TopK NonMaxSuppression NonMaxSuppressionV2 NonMaxSuppressionV3 "
    "NonMaxSuppressionV4 NonMaxSuppressionV5 ListDiff SegmentMean TruncateMod UnsortedSegmentMax UnsortedSegmentProd"
)
"""Ops of which nothing may be compared in the drawn instances: nothing is promised of examples, or they do not run."""

EXAMPLES = r"(axis|before|after|repeated|rows of all|chosen|also chosen|mixed|divided|times)[a-z0-9 ]*"
"""Pattern of the arrangements that have examples."""

KNOWN = {
    "no vectors": (
        r"(Eig|SelfAdjointEigV2|Svd)\(.*'compute_u?v': False", ".*", (1, 2),
        "layers._by_inner_axes says that vectors that are not computed, and have no entries, are of examples",
    ),
    "axes of one entry": (
        r"BroadcastGradientArgs", ".*", None,
        "sizes._broadcast_axes: TensorFlow names no axes where the shapes are the same, and more of a single example",
    ),
}  # fmt: skip
"""What is wrong by name: a pattern of the cases, one of the arrangements, the outputs (None for any), and the reason."""

PER_OP = 8
"""About how many instances of an op are made, drawn from all; each is as quick as the op."""

STATIC_ROWS = 2
"""Number of examples of a part, where it is static."""


def drawn(op, count):
    """Some instances of each case of an op, the same in each run."""
    for case in CASES[op]:
        instances = case.instances()
        most = max(1, count // len(CASES[op]))
        found = random.Random(str(case)).sample(instances, min(most, len(instances)))
        slots = case.slots
        plain = [tuple("axis 0" if s[0] != "z" else ",".join(["B", "4", "4"][: int(s[1])]) for s in slots)]
        plain.append(("axis 0", *["fixed"] * (len(slots) - 1)))
        plain.append((*["B" if s[0] == "z" else "fixed" for s in slots[:-1]], "axis 0"))
        plain.append(("axis 1",) * len(slots))
        yield case, list(dict.fromkeys([*found, *(each for each in plain if each in instances)]))


def is_known(case, arrangements, output):
    return any(
        re.match(of_cases, str(case))
        and re.fullmatch(of_arrangements, " & ".join(arrangements))
        and (outputs is None or output in outputs)
        for of_cases, of_arrangements, outputs, _ in KNOWN.values()
    )


def check_op(op, count, static=None):
    """The number of promises that were compared, all of which hold but the known ones."""
    wrong, compared = [], 0
    for case, instances in drawn(op, count):
        found, more = violations(case, instances, static)
        compared += more
        wrong += [
            f"{case} of {each}: output {at} is said to be {value}, and {why}"
            for each, at, value, why in found
            if not is_known(case, each, at)
        ]
    assert not wrong, "\n".join([f"{len(wrong)} promises do not hold", *wrong[:9]])
    return compared


@pytest.mark.parametrize("op", sorted(CASES))
def test_what_is_said_of_results_holds(op):
    """Batches of any size; of an op that is not among those named, something is promised and compared."""
    assert check_op(op, PER_OP) or check_op(op, 10 * PER_OP) or op in NEVER_COMPARED


@pytest.mark.parametrize(
    "op", sorted(op_names("Reshape Squeeze ConcatV2 Pack Tile Slice GatherV2 BroadcastTo Add Sum"))
)
def test_what_is_said_of_results_of_static_shapes_holds(op):
    check_op(op, PER_OP, STATIC_ROWS)


@pytest.mark.soak
@pytest.mark.parametrize("static", [None, STATIC_ROWS])
@pytest.mark.parametrize("op", sorted(CASES))
def test_all_instances(op, static):
    check_op(op, 10**9, static)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.xfail(strict=True, reason=why)) for name, (*_, why) in KNOWN.items()]
)
def test_known_violations(name):
    """What is known to be wrong is so still: a rule that was mended must not stay in the table."""
    of_cases, of_arrangements, outputs, _ = KNOWN[name]
    for case in (case for cases in CASES.values() for case in cases if re.match(of_cases, str(case))):
        instances = [each for each in case.instances() if re.fullmatch(of_arrangements, " & ".join(each))]
        assert not violations(case, instances[:30])[0]


def test_every_rule_has_instances():
    assert (rules.ALL_RULES.keys() | rules.PARTIAL_OPS) - CASES.keys() == NOT_MADE.keys()
