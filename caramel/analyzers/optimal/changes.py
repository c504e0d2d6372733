"""Changes of schedules: all of some kinds, and random ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from caramel.analyzers.optimal.buckets import BACK, FORE, Bucket, BucketPlans, Windows
from caramel.analyzers.optimal.rounding import aligned_elements

_MOST_PLACES = 6
"""Number of places of a bucket at which it is taken apart, and of buckets that a gradient is moved to (our choice)."""

_PARTS = (0.5, 0.25, 0.75, 0.125, 0.03, 0.0)
"""Fractions of a piece that travel elsewhere; 0 stands for as little as can be cut, which holds an update back (our
choice)."""

_MOST_HELD_BACK = (1, 2, 4, 8)
"""Numbers of gradients whose updates are held back at once (our choice)."""

_MOVED_TOGETHER = (1, 2, 4, 8)
"""Numbers of gradients that move at once from a bucket to its neighbour (our choice)."""

_SMALLEST_PART = 9
"""Negative binary logarithm of the least fraction of a piece that a random change cuts off (our choice)."""

_FREQUENCIES = (11, 3, 2, 2, 2)
"""How often a random change is some gradients moved, and a bucket delayed, joined, in the other window or divided (our
choice)."""

_RandomKind = Callable[[Windows, int, int, random.Random], "Windows | None"]
"""Function from a schedule, a window, the place of a bucket in it and random numbers to a changed schedule."""


class Changes:
    """Changes of schedules as buckets.

    Args:
        plans: schedules of the step.

    Attributes:
        kinds: functions that yield all neighbours of a kind, those first that promise most.
    """

    def __init__(self, plans: BucketPlans) -> None:
        self._plans = plans
        self._gradients = plans.gradients
        kinds = (self._regrouped, self._moved, self._parts_moved, self._exchanged)
        self.kinds: Sequence[Callable[[Windows], Iterator[Windows]]] = (
            (*kinds, self._held_back) if plans.has_updates else kinds
        )
        self._random_kinds: Sequence[_RandomKind] = (
            self._some_moved,
            self._bucket_delayed,
            self._bucket_joined,
            self._bucket_in_other_window,
            self._bucket_divided,
        )

    def _regrouped(self, windows: Windows) -> Iterator[Windows]:
        """Neighbours joined, a bucket taken apart, some gradients of a bucket in its neighbour, two in other order."""
        for window in (BACK, FORE):
            buckets = windows[window]
            for place in range(len(buckets) - 1):
                first, second = buckets[place : place + 2]
                if self._plans.may_join(first, second):
                    yield self._plans.with_buckets(windows, window, place, 2, [(*first.pieces, *second.pieces)])
                    for count in _MOVED_TOGETHER:
                        if count < len(first.pieces):
                            pieces = self._plans.in_order(first.pieces, window)
                            moved = [pieces[:-count], (*pieces[-count:], *second.pieces)]
                            yield self._plans.with_buckets(windows, window, place, 2, moved)
                        if count < len(second.pieces):
                            pieces = self._plans.in_order(second.pieces, window)
                            moved = [(*first.pieces, *pieces[:count]), pieces[count:]]
                            yield self._plans.with_buckets(windows, window, place, 2, moved)
                if self._plans.level(first) == self._plans.level(second):
                    yield self._plans.replaced(
                        windows, window, (*buckets[:place], second, first, *buckets[place + 2 :])
                    )
            for place, bucket in enumerate(buckets):
                if not bucket.is_fixed:
                    pieces = self._plans.in_order(bucket.pieces, window)
                    for count in _spread(1, len(pieces) - 1):
                        yield self._plans.with_buckets(windows, window, place, 1, [pieces[:count], pieces[count:]])

    def _moved(self, windows: Windows) -> Iterator[Windows]:
        """A gradient, or a whole bucket, elsewhere."""
        for window in (BACK, FORE):
            other = 1 - window
            for place, bucket in enumerate(windows[window]):
                if bucket.is_fixed:
                    continue
                rest = windows[window][:place] + windows[window][place + 1 :]
                left = self._plans.replaced(windows, window, rest)
                if self._plans.may_be(bucket.pieces, other):
                    yield from self._placed(left, other, bucket.pieces)
                if len(bucket.pieces) == 1:
                    continue
                for piece in self._plans.largest_first(bucket.pieces):
                    remaining = tuple(p for p in bucket.pieces if p is not piece)
                    left = self._plans.with_buckets(windows, window, place, 1, [remaining])
                    for target in (other, window):
                        if self._plans.may_be([piece], target):
                            yield from self._placed(left, target, (piece,))

    def _parts_moved(self, windows: Windows) -> Iterator[Windows]:
        """A part of a gradient in another transfer, of either window, or in one of its own."""
        for window in (BACK, FORE):
            for place, bucket in enumerate(windows[window]):
                if bucket.is_fixed:
                    continue
                for piece in self._plans.largest_first(bucket.pieces):
                    gradient = self._gradients[piece[0]]
                    if not gradient.divisible:
                        continue
                    for part in _PARTS:
                        elements = self._plans.elements(piece)
                        moved = aligned_elements(gradient, part * elements) or aligned_elements(gradient, 64)
                        if 0 < moved < elements:
                            pieces = tuple((piece[0], elements - moved) if p is piece else p for p in bucket.pieces)
                            left = self._plans.with_buckets(windows, window, place, 1, [pieces])
                            yield from self._placed_part(left, window, place, (piece[0], moved))

    def _placed_part(
        self, windows: Windows, window: int, place: int, part: tuple[int, int | None]
    ) -> Iterator[Windows]:
        """A part of a bucket elsewhere: in the other window, in a bucket beside it, or in one of its own."""
        other = 1 - window
        if self._plans.may_be([part], other):
            yield from self._placed(windows, other, (part,))
        buckets, bucket = windows[window], self._plans.bucket_of((part,))
        for target in (place + 1, place + 2, place - 1):
            if 0 <= target < len(buckets) and self._plans.may_join(buckets[target], bucket):
                yield self._plans.with_buckets(windows, window, target, 1, [(*buckets[target].pieces, part)])
        yield self._plans.replaced(windows, window, (*buckets[: place + 1], bucket, *buckets[place + 1 :]))

    def _held_back(self, windows: Windows) -> Iterator[Windows]:
        """Updates that wait until a later gradient of the backward window has been computed, which is urgent.

        As little as can be cut of a gradient travels later, and its update with it: in a small transfer before that of
        the later gradient, which has as little of that one, too, or in that transfer itself.
        """
        buckets = windows[BACK]
        for place in range(1, len(buckets)):
            target = buckets[place]
            gates = [(g, e) for g, e in target.pieces if self._least_part(g, e)]
            if not gates:
                continue
            gate = max(gates, key=lambda piece: self._gradients[piece[0]].ready_s)
            for count in _MOST_HELD_BACK:
                changed, held = list(buckets), list[tuple[int, int | None]]()
                for earlier, piece in self._longest_updates(buckets[:place], target)[:count]:
                    part = self._least_part(*piece)
                    kept = (piece[0], self._plans.elements(piece) - part)
                    pieces = tuple(kept if p == piece else p for p in changed[earlier].pieces)
                    changed[earlier] = self._plans.bucket_of(pieces)
                    held.append((piece[0], part))
                if not held:
                    break
                joined = self._plans.bucket_of((*target.pieces, *held))
                yield self._plans.replaced(windows, BACK, (*changed[:place], joined, *changed[place + 1 :]))
                part = self._least_part(*gate)
                kept = (gate[0], self._plans.elements(gate) - part)
                rest = self._plans.bucket_of(tuple(kept if p == gate else p for p in target.pieces))
                small = self._plans.bucket_of((*held, (gate[0], part)))
                yield self._plans.replaced(windows, BACK, (*changed[:place], small, rest, *changed[place + 1 :]))

    def _longest_updates(self, buckets: Sequence[Bucket], target: Bucket) -> list[tuple[int, tuple[int, int | None]]]:
        """Whole gradients of some buckets with the longest updates: (place of the bucket, piece)."""
        found = [
            (place, piece)
            for place, bucket in enumerate(buckets)
            if self._plans.may_join(bucket, target)
            for piece in bucket.pieces
            if piece[1] is None and self._gradients[piece[0]].update_s > 0 and self._least_part(*piece)
        ]
        return sorted(found, key=lambda entry: (-self._gradients[entry[1][0]].update_s, entry[1][0]))

    def _least_part(self, gradient: int, elements: int | None) -> int:
        """The least number of elements that can be cut off a piece; 0 where it cannot be cut."""
        boundary = self._gradients[gradient]
        part = aligned_elements(boundary, 1) or aligned_elements(boundary, 64)
        return part if boundary.divisible and part < self._plans.elements((gradient, elements)) else 0

    def _exchanged(self, windows: Windows) -> Iterator[Windows]:
        """A gradient of one window for one of the other."""
        for back_place, back_bucket in enumerate(windows[BACK]):
            for fore_place, fore_bucket in enumerate(windows[FORE]):
                if not self._plans.may_join(back_bucket, fore_bucket):
                    continue
                for back_piece in self._plans.largest_first(back_bucket.pieces)[:_MOST_PLACES]:
                    for fore_piece in self._plans.largest_first(fore_bucket.pieces)[:_MOST_PLACES]:
                        if back_piece[0] == fore_piece[0] or not self._plans.may_be([back_piece], FORE):
                            continue
                        back = tuple(fore_piece if p is back_piece else p for p in back_bucket.pieces)
                        fore = tuple(back_piece if p is fore_piece else p for p in fore_bucket.pieces)
                        changed = self._plans.with_buckets(windows, BACK, back_place, 1, [back])
                        yield self._plans.with_buckets(changed, FORE, fore_place, 1, [fore])

    def _placed(self, windows: Windows, window: int, pieces: tuple[tuple[int, int | None], ...]) -> Iterator[Windows]:
        """The pieces in one of the buckets of a window, or as a bucket of its own, at the places that suit it best."""
        buckets = windows[window]
        bucket = self._plans.bucket_of(pieces)
        nearest = self._plans.places(buckets, bucket, window)[:_MOST_PLACES]
        for place in nearest:
            if place < len(buckets) and self._plans.may_join(buckets[place], bucket):
                yield self._plans.with_buckets(windows, window, place, 1, [(*buckets[place].pieces, *pieces)])
        for place in nearest[:3]:
            yield self._plans.replaced(windows, window, (*buckets[:place], bucket, *buckets[place:]))

    # -- random changes --------------------------------------------------------------------------

    def random_change(self, windows: Windows, rng: random.Random) -> Windows | None:
        """A random change of one bucket; None where the one that was drawn is not possible.

        Args:
            windows: buckets of a schedule, at least one.
            rng: random numbers.
        """
        number = rng.randrange(len(windows[FORE]) + len(windows[BACK]))
        window = FORE if number < len(windows[FORE]) else BACK
        place = number if window == FORE else number - len(windows[FORE])
        (kind,) = rng.choices(self._random_kinds, _FREQUENCIES)
        return kind(windows, window, place, rng)

    def _some_moved(self, windows: Windows, window: int, place: int, rng: random.Random) -> Windows | None:
        """Some neighbours of a bucket, or a part of a gradient, in another bucket or one of their own."""
        bucket = windows[window][place]
        if bucket.is_fixed:
            return None
        pieces = self._plans.in_order(bucket.pieces, window)
        begin = rng.randrange(len(pieces))
        end = begin + 1
        while end < len(pieces) and rng.random() < 0.5:
            end += 1
        moved, rest = pieces[begin:end], pieces[:begin] + pieces[end:]
        if len(moved) == 1 and rng.random() < 0.6:
            ((gradient, elements),) = moved[:1]
            count = self._plans.elements((gradient, elements))
            part = aligned_elements(self._gradients[gradient], count * 2 ** -rng.uniform(0, _SMALLEST_PART))
            if not self._gradients[gradient].divisible or not 0 < part < count:
                return None
            moved, rest = ((gradient, part),), (*rest, (gradient, count - part))
        left = self._plans.with_buckets(windows, window, place, 1, [rest])
        allowed = (FORE, BACK) if self._plans.may_be(moved, FORE) else (BACK,)
        others = [(w, p) for w in allowed for p in range(len(left[w])) if not (rest and (w, p) == (window, place))]
        added = self._plans.bucket_of(moved)
        if others and rng.random() < 0.7:
            window, place = rng.choice(others)
            if not self._plans.may_join(left[window][place], added):
                return None
            return self._plans.with_buckets(left, window, place, 1, [(*left[window][place].pieces, *moved)])
        return self._inserted(left, rng.choice(allowed), added, rng)

    def _inserted(self, windows: Windows, window: int, bucket: Bucket, rng: random.Random) -> Windows:
        buckets = windows[window]
        place = rng.randint(0, len(buckets))
        return self._plans.replaced(windows, window, (*buckets[:place], bucket, *buckets[place:]))

    def _taken(self, windows: Windows, window: int, place: int) -> Windows:
        """The schedule without a bucket."""
        buckets = windows[window]
        return self._plans.replaced(windows, window, buckets[:place] + buckets[place + 1 :])

    def _bucket_delayed(self, windows: Windows, window: int, place: int, rng: random.Random) -> Windows:
        """A bucket sooner or later in its window."""
        return self._inserted(self._taken(windows, window, place), window, windows[window][place], rng)

    def _bucket_joined(self, windows: Windows, window: int, place: int, rng: random.Random) -> Windows | None:
        """A bucket joined with another one of its window."""
        buckets = windows[window]
        other = rng.randrange(len(buckets))
        if other == place or not self._plans.may_join(buckets[other], buckets[place]):
            return None
        joined = self._plans.bucket_of((*buckets[other].pieces, *buckets[place].pieces))
        changed = [joined if n == other else bucket for n, bucket in enumerate(buckets) if n != place]
        return self._plans.replaced(windows, window, tuple(changed))

    def _bucket_in_other_window(self, windows: Windows, window: int, place: int, rng: random.Random) -> Windows | None:
        """A bucket in the other window, where it is due or anywhere."""
        bucket, other = windows[window][place], 1 - window
        if bucket.is_fixed or not self._plans.may_be(bucket.pieces, other):
            return None
        left = self._taken(windows, window, place)
        if rng.random() < 0.5:
            return self._inserted(left, other, bucket, rng)
        target = self._plans.places(left[other], bucket, other)[0]
        return self._plans.replaced(left, other, (*left[other][:target], bucket, *left[other][target:]))

    def _bucket_divided(self, windows: Windows, window: int, place: int, rng: random.Random) -> Windows | None:
        """A bucket as two, one after the other."""
        bucket = windows[window][place]
        if bucket.is_fixed or len(bucket.pieces) == 1:
            return None
        pieces = self._plans.in_order(bucket.pieces, window)
        cut = rng.randrange(1, len(pieces))
        return self._plans.with_buckets(windows, window, place, 1, [pieces[:cut], pieces[cut:]])


def _spread(first: int, last: int) -> list[int]:
    """Some numbers of a range, evenly spread."""
    count = last - first + 1
    if count <= _MOST_PLACES:
        return list(range(first, last + 1))
    return sorted({first + n * (count - 1) // (_MOST_PLACES - 1) for n in range(_MOST_PLACES)})
