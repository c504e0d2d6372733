"""The last step of planning: a local search on the simulated step itself.

Packings are optimal for a line, in an order in which rooms agree, and without the time of updates. Measured times are a
curve, and orders and updates are what they are. So the best packings are changed a little, again and again, as long as
the simulated step gets shorter. The search looks at a fixed number of steps and never at a clock: the same inputs give
the same plan.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise

from caramel.analyzers.cost.network import Network
from caramel.analyzers.cost.step_evaluator import Item, StepEvaluator
from caramel.analyzers.optimal.problem import travels_alone
from caramel.analyzers.optimal.rounding import aligned_elements
from caramel.facts import BACKWARD, FORWARD, Boundaries, Boundary, InFlight, Piece, Schedule, Scheduled

_LEAST_GAIN = 1e-7
"""Fraction of a step by which a change must make it shorter to be taken: less is rounding."""

_LEAST_GAIN_OF_CUTS = 5e-5
"""The same for a change after which more pieces travel: each costs ops that the simulator does not see (our choice)."""

_MOST_SKIPPED = 300
"""Number of changes of a kind among which a random one is taken (our choice)."""

_MOST_PLACES = 6
"""Number of places of a bucket at which it is taken apart, and of buckets that a gradient is moved to (our choice)."""

_PARTS = (0.5, 0.25, 0.75, 0.125, 0.03, 0.0)
"""Fractions of a piece that travel elsewhere; 0 stands for as little as can be cut, which holds an update back (our
choice)."""

_MOST_HELD_BACK = (1, 2, 4, 8)
"""Numbers of gradients whose updates are held back at once (our choice)."""

_MOVED_TOGETHER = (1, 2, 4, 8)
"""Numbers of gradients that move at once from a bucket to its neighbour (our choice)."""


@dataclass(frozen=True, eq=False)
class _Bucket:
    """What travels together.

    Attributes:
        pieces: pairs (position of the gradient in the boundaries, elements, None for all).
        item: transfer as the evaluator sees it, with the updates of whole gradients.
        cut: positions of the gradients of which this has only a piece.
        is_fixed: whether nothing may be added or taken away.
    """

    pieces: tuple[tuple[int, int | None], ...]
    item: Item
    cut: tuple[int, ...]
    is_fixed: bool


_Windows = tuple[tuple[_Bucket, ...], tuple[_Bucket, ...]]
"""The buckets of the forward and of the backward window, in their order."""

_FORE, _BACK = 0, 1


class LocalSearch:
    """Search for schedules near given ones.

    Args:
        network: network as planners see it.
        boundaries: boundaries of all gradients.
        scales: factors on the computation: 1 for what is predicted, then others for what may be instead.
        in_flight: number of transfers of each window that may be under way at once; default: the usual one.

    Attributes:
        evaluations: number of steps that were simulated so far.
    """

    def __init__(
        self,
        network: Network,
        boundaries: Boundaries,
        scales: Sequence[float] = (1.0,),
        in_flight: InFlight | None = None,
    ) -> None:
        self._in_flight = in_flight
        self._boundaries = boundaries
        self._gradients = boundaries.gradients
        self._scales = scales
        self._evaluator = StepEvaluator(network, boundaries)
        self._position = {g.name: n for n, g in enumerate(boundaries.gradients)}
        top = max((g.level for g in boundaries.gradients), default=0)
        self._is_fixed = [travels_alone(g, top) for g in boundaries.gradients]
        self._has_updates = any(g.update_s > 0 for g in boundaries.gradients)
        self.evaluations = 0

    # -- what a schedule costs -------------------------------------------------------------------

    def times_s(self, schedule: Schedule) -> list[float]:
        """Seconds of a step under a schedule, for each length of computation.

        Args:
            schedule: all transfers.
        """
        return self._times_s(self._windows(schedule))

    def _times_s(self, windows: _Windows, scales: Sequence[float] | None = None) -> list[float]:
        forward, backward = self._items(windows)
        wanted = self._scales if scales is None else scales
        self.evaluations += len(wanted)
        return [self._evaluator.iteration_s(forward, backward, self._in_flight, scale) for scale in wanted]

    def in_pieces(self, schedule: Schedule, most_bytes: float) -> Schedule:
        """A schedule in which each transfer that is larger is several, one after the other.

        Args:
            schedule: all transfers.
            most_bytes: number of bytes of a transfer on the wire, or a few more.
        """
        windows = self._windows(schedule)
        cut = tuple(
            tuple(part for bucket in window for part in self._bucket_in_pieces(bucket, most_bytes))
            for window in windows
        )
        return self._schedule((cut[0], cut[1]), schedule)

    def _bucket_in_pieces(self, bucket: _Bucket, most_bytes: float) -> list[_Bucket]:
        count = math.ceil(bucket.item.size_bytes / most_bytes)
        if count < 2 or bucket.is_fixed:
            return [bucket]
        room, parts = bucket.item.size_bytes / count, list[list[tuple[int, int | None]]]([[]])
        left_bytes = room
        for piece in bucket.pieces:
            gradient, elements, rest = self._gradients[piece[0]], self._elements(piece), piece
            while gradient.divisible and gradient.item_bytes * elements > left_bytes and len(parts) < count:
                first = aligned_elements(gradient, left_bytes / gradient.item_bytes)
                if 0 < first < elements:
                    parts[-1].append((piece[0], first))
                    elements -= first
                    rest = (piece[0], elements)
                parts.append([])
                left_bytes = room
            parts[-1].append(rest)
            left_bytes -= self._bytes(rest)
        return [self._bucket(tuple(part)) for part in parts if part]

    def in_other_window_s(self, schedule: Schedule, number: int, most: int) -> float | None:
        """Seconds of the step with one transfer at the best place of its other window; None if it cannot be there.

        Args:
            schedule: all transfers.
            number: number of the transfer.
            most: number of places to try, those nearest to where the transfer is due.
        """
        windows = self._windows(schedule)
        is_backward = number >= len(windows[_FORE])
        window, other = (_BACK, _FORE) if is_backward else (_FORE, _BACK)
        place = number - len(windows[_FORE]) if is_backward else number
        bucket = windows[window][place]
        if not self._may_be(bucket.pieces, other):
            return None
        left = self._replaced(windows, window, windows[window][:place] + windows[window][place + 1 :])
        times_s = []
        for target in self._places(left[other], bucket, other)[:most]:
            buckets = (*left[other][:target], bucket, *left[other][target:])
            times_s += self._times_s(self._replaced(left, other, buckets), self._scales[:1])
        return min(times_s)

    def _cost_s(self, windows: _Windows, limit_s: float | None) -> float:
        (predicted_s,) = self._times_s(windows, self._scales[:1])
        if limit_s is None:
            return predicted_s
        if predicted_s > limit_s:
            return math.inf
        return statistics.fmean([predicted_s, *self._times_s(windows, self._scales[1:])])

    def _items(self, windows: _Windows) -> tuple[list[Item], list[Item]]:
        items = tuple([bucket.item for bucket in window] for window in windows)
        if self._has_updates:
            last: dict[int, tuple[int, int]] = {}  # where the last awaited piece of each cut gradient is
            for window in (_BACK, _FORE):  # one with a piece in the forward window is updated there
                for place, bucket in enumerate(windows[window]):
                    last.update((gradient, (window, place)) for gradient in bucket.cut)
            for gradient, (window, place) in last.items():
                item = items[window][place]
                items[window][place] = item._replace(update_s=item.update_s + self._gradients[gradient].update_s)
        return items[0], items[1]

    # -- the search ------------------------------------------------------------------------------

    def improve(self, schedule: Schedule, evaluations: int, limit_s: float | None = None) -> Schedule:
        """The best schedule that is found from one on.

        It goes from each schedule to a better neighbour until there is none. Then it sets out again, a few random
        changes away from the best one, with the same random numbers each time.

        Args:
            schedule: schedule to begin with.
            evaluations: number of steps to simulate, or a few more.
            limit_s: seconds that a step may take with the computation as predicted, so that the mean over all lengths
                of the computation is least; None to make the step with the computation as predicted the least.
        """
        last = self.evaluations + evaluations
        best, best_s = self._descended(self._windows(schedule), limit_s, last)
        rng, pieces = random.Random(0), _count_pieces(best)
        while self.evaluations < last:
            start = self._shaken(best, rng)
            if start is None:
                break
            found, found_s = self._descended(start, limit_s, last)
            if found_s <= best_s and (found_s < best_s * (1 - _LEAST_GAIN) or _count_pieces(found) <= pieces):
                best, best_s, pieces = found, found_s, _count_pieces(found)
        return self._schedule(best, schedule)

    def _descended(self, windows: _Windows, limit_s: float | None, last: int) -> tuple[_Windows, float]:
        """A schedule without a better neighbour, or as far as it came, and its cost."""
        best_s = self._cost_s(windows, limit_s)
        improved = True
        while improved:
            improved = False
            for kind in self._kinds:
                while (better := self._better(kind(windows), windows, best_s, limit_s, last)) is not None:
                    windows, best_s = better
                    improved = True
        return windows, best_s

    def _better(
        self, candidates: Iterable[_Windows], than: _Windows, than_s: float, limit_s: float | None, last: int
    ) -> tuple[_Windows, float] | None:
        """The first candidate that is better, and its cost; None if there is none, or no more may be simulated."""
        pieces = _count_pieces(than)
        for candidate in candidates:
            if self.evaluations >= last:
                return None
            cost_s = self._cost_s(candidate, limit_s)
            gain = _LEAST_GAIN_OF_CUTS if _count_pieces(candidate) > pieces else _LEAST_GAIN
            if cost_s < than_s * (1 - gain):
                return candidate, cost_s
        return None

    @property
    def _kinds(self) -> Sequence[Callable[[_Windows], Iterator[_Windows]]]:
        kinds = (self._regrouped, self._moved, self._parts_moved, self._exchanged)
        return (*kinds, self._held_back) if self._has_updates else kinds

    def _shaken(self, windows: _Windows, rng: random.Random) -> _Windows | None:
        """The schedule after some random changes; None where nothing can be changed."""
        shaken = None
        for _ in range(rng.randint(2, 4)):
            kind = rng.choice(self._kinds)
            neighbours = list(islice(kind(shaken or windows), rng.randint(1, _MOST_SKIPPED)))
            if neighbours:
                shaken = neighbours[-1]
        return shaken

    def _regrouped(self, windows: _Windows) -> Iterator[_Windows]:
        """Neighbours joined, a bucket taken apart, some gradients of a bucket in its neighbour, two in other order."""
        for window in (_BACK, _FORE):
            buckets = windows[window]
            for place in range(len(buckets) - 1):
                first, second = buckets[place : place + 2]
                if self._may_join(first, second):
                    yield self._with(windows, window, place, 2, [(*first.pieces, *second.pieces)])
                    for count in _MOVED_TOGETHER:
                        if count < len(first.pieces):
                            pieces = self._sorted(first.pieces, window)
                            moved = [pieces[:-count], (*pieces[-count:], *second.pieces)]
                            yield self._with(windows, window, place, 2, moved)
                        if count < len(second.pieces):
                            pieces = self._sorted(second.pieces, window)
                            moved = [(*first.pieces, *pieces[:count]), pieces[count:]]
                            yield self._with(windows, window, place, 2, moved)
                if self._level(first) == self._level(second):
                    yield self._replaced(windows, window, (*buckets[:place], second, first, *buckets[place + 2 :]))
            for place, bucket in enumerate(buckets):
                if not bucket.is_fixed:
                    pieces = self._sorted(bucket.pieces, window)
                    for count in _spread(1, len(pieces) - 1):
                        yield self._with(windows, window, place, 1, [pieces[:count], pieces[count:]])

    def _moved(self, windows: _Windows) -> Iterator[_Windows]:
        """A gradient, or a whole bucket, elsewhere."""
        for window in (_BACK, _FORE):
            other = 1 - window
            for place, bucket in enumerate(windows[window]):
                if bucket.is_fixed:
                    continue
                rest = windows[window][:place] + windows[window][place + 1 :]
                left = self._replaced(windows, window, rest)
                if self._may_be(bucket.pieces, other):
                    yield from self._placed(left, other, bucket.pieces)
                if len(bucket.pieces) == 1:
                    continue
                for piece in self._largest_first(bucket.pieces):
                    remaining = tuple(p for p in bucket.pieces if p is not piece)
                    left = self._with(windows, window, place, 1, [remaining])
                    for target in (other, window):
                        if self._may_be([piece], target):
                            yield from self._placed(left, target, (piece,))

    def _parts_moved(self, windows: _Windows) -> Iterator[_Windows]:
        """A part of a gradient in another transfer, of either window, or in one of its own."""
        for window in (_BACK, _FORE):
            for place, bucket in enumerate(windows[window]):
                if bucket.is_fixed:
                    continue
                for piece in self._largest_first(bucket.pieces):
                    gradient = self._gradients[piece[0]]
                    if not gradient.divisible:
                        continue
                    for part in _PARTS:
                        elements = self._elements(piece)
                        moved = aligned_elements(gradient, part * elements) or aligned_elements(gradient, 64)
                        if 0 < moved < elements:
                            pieces = tuple((piece[0], elements - moved) if p is piece else p for p in bucket.pieces)
                            left = self._with(windows, window, place, 1, [pieces])
                            yield from self._placed_part(left, window, place, (piece[0], moved))

    def _placed_part(
        self, windows: _Windows, window: int, place: int, part: tuple[int, int | None]
    ) -> Iterator[_Windows]:
        """A part of a bucket elsewhere: in the other window, in a bucket beside it, or in one of its own."""
        other = 1 - window
        if self._may_be([part], other):
            yield from self._placed(windows, other, (part,))
        buckets, bucket = windows[window], self._bucket((part,))
        for target in (place + 1, place + 2, place - 1):
            if 0 <= target < len(buckets) and self._may_join(buckets[target], bucket):
                yield self._with(windows, window, target, 1, [(*buckets[target].pieces, part)])
        yield self._replaced(windows, window, (*buckets[: place + 1], bucket, *buckets[place + 1 :]))

    def _held_back(self, windows: _Windows) -> Iterator[_Windows]:
        """Updates that wait until a later gradient of the backward window has been computed, which is urgent.

        As little as can be cut of a gradient travels later, and its update with it: in a small transfer before that of
        the later gradient, which has as little of that one, too, or in that transfer itself.
        """
        buckets = windows[_BACK]
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
                    kept = (piece[0], self._elements(piece) - part)
                    pieces = tuple(kept if p == piece else p for p in changed[earlier].pieces)
                    changed[earlier] = self._bucket(pieces)
                    held.append((piece[0], part))
                if not held:
                    break
                joined = self._bucket((*target.pieces, *held))
                yield self._replaced(windows, _BACK, (*changed[:place], joined, *changed[place + 1 :]))
                part = self._least_part(*gate)
                kept = (gate[0], self._elements(gate) - part)
                rest = self._bucket(tuple(kept if p == gate else p for p in target.pieces))
                small = self._bucket((*held, (gate[0], part)))
                yield self._replaced(windows, _BACK, (*changed[:place], small, rest, *changed[place + 1 :]))

    def _longest_updates(self, buckets: Sequence[_Bucket], target: _Bucket) -> list[tuple[int, tuple[int, int | None]]]:
        """Whole gradients of some buckets with the longest updates: (place of the bucket, piece)."""
        found = [
            (place, piece)
            for place, bucket in enumerate(buckets)
            if self._may_join(bucket, target)
            for piece in bucket.pieces
            if piece[1] is None and self._gradients[piece[0]].update_s > 0 and self._least_part(*piece)
        ]
        return sorted(found, key=lambda entry: (-self._gradients[entry[1][0]].update_s, entry[1][0]))

    def _least_part(self, gradient: int, elements: int | None) -> int:
        """The least number of elements that can be cut off a piece; 0 where it cannot be cut."""
        boundary = self._gradients[gradient]
        part = aligned_elements(boundary, 1) or aligned_elements(boundary, 64)
        return part if boundary.divisible and part < self._elements((gradient, elements)) else 0

    def _exchanged(self, windows: _Windows) -> Iterator[_Windows]:
        """A gradient of one window for one of the other."""
        for back_place, back_bucket in enumerate(windows[_BACK]):
            for fore_place, fore_bucket in enumerate(windows[_FORE]):
                if not self._may_join(back_bucket, fore_bucket):
                    continue
                for back_piece in self._largest_first(back_bucket.pieces)[:_MOST_PLACES]:
                    for fore_piece in self._largest_first(fore_bucket.pieces)[:_MOST_PLACES]:
                        if back_piece[0] == fore_piece[0] or not self._may_be([back_piece], _FORE):
                            continue
                        back = tuple(fore_piece if p is back_piece else p for p in back_bucket.pieces)
                        fore = tuple(back_piece if p is fore_piece else p for p in fore_bucket.pieces)
                        changed = self._with(windows, _BACK, back_place, 1, [back])
                        yield self._with(changed, _FORE, fore_place, 1, [fore])

    # -- changes ---------------------------------------------------------------------------------

    def _placed(self, windows: _Windows, window: int, pieces: tuple[tuple[int, int | None], ...]) -> Iterator[_Windows]:
        """The pieces in one of the buckets of a window, or as a bucket of its own, at the places that suit it best."""
        buckets = windows[window]
        bucket = self._bucket(pieces)
        nearest = self._places(buckets, bucket, window)[:_MOST_PLACES]
        for place in nearest:
            if place < len(buckets) and self._may_join(buckets[place], bucket):
                yield self._with(windows, window, place, 1, [(*buckets[place].pieces, *pieces)])
        for place in nearest[:3]:
            yield self._replaced(windows, window, (*buckets[:place], bucket, *buckets[place:]))

    def _places(self, buckets: tuple[_Bucket, ...], bucket: _Bucket, window: int) -> list[int]:
        """All places for one more bucket in a window, those first that are nearest to where it is due."""
        key = self._due_s(bucket, window)
        usual = sum(self._due_s(other, window) <= key for other in buckets)
        return sorted(range(len(buckets) + 1), key=lambda place: (abs(place - usual), place))

    def _with(
        self,
        windows: _Windows,
        window: int,
        place: int,
        count: int,
        piece_lists: Iterable[tuple[tuple[int, int | None], ...]],
    ) -> _Windows:
        """Some neighbouring buckets replaced by ones of the given pieces."""
        buckets = windows[window]
        new = tuple(self._bucket(pieces) for pieces in piece_lists if pieces)
        return self._replaced(windows, window, (*buckets[:place], *new, *buckets[place + count :]))

    def _replaced(self, windows: _Windows, window: int, buckets: tuple[_Bucket, ...]) -> _Windows:
        if window == _BACK and any(self._level(a) > self._level(b) for a, b in pairwise(buckets)):
            buckets = tuple(sorted(buckets, key=self._level))  # what others of the same step wait for goes first
        return (buckets, windows[_BACK]) if window == _FORE else (windows[_FORE], buckets)

    def _bucket(self, pieces: tuple[tuple[int, int | None], ...]) -> _Bucket:
        by_gradient: dict[int, int | None] = {}
        for gradient, elements in pieces:  # two pieces of one gradient become one
            if gradient in by_gradient:
                total = (by_gradient[gradient] or 0) + (elements or 0)
                elements = None if total == self._gradients[gradient].elements else total
            by_gradient[gradient] = elements
        merged = tuple(by_gradient.items())
        size = ready_s = update_s = 0.0
        read_s = float("inf")
        cut = []
        for gradient, elements in merged:
            boundary = self._gradients[gradient]
            ready_s, read_s = max(ready_s, boundary.ready_s), min(read_s, boundary.read_s)
            if elements is None:
                size += boundary.size_bytes
                update_s += boundary.update_s
            else:
                size += boundary.item_bytes * elements
                cut.append(gradient)
        is_fixed = self._is_fixed[merged[0][0]]
        return _Bucket(merged, Item(size, ready_s, read_s, update_s), tuple(cut), is_fixed)

    # -- what may be -----------------------------------------------------------------------------

    def _may_join(self, first: _Bucket, second: _Bucket) -> bool:
        if first.is_fixed or second.is_fixed:
            return False
        a, b = (self._gradients[bucket.pieces[0][0]] for bucket in (first, second))
        return a.kind == b.kind and a.level == b.level

    def _may_be(self, pieces: Sequence[tuple[int, int | None]], window: int) -> bool:
        return window == _BACK or all(self._gradients[gradient].is_postponable for gradient, _ in pieces)

    def _level(self, bucket: _Bucket) -> int:
        return self._gradients[bucket.pieces[0][0]].level

    def _due_s(self, bucket: _Bucket, window: int) -> float:
        return bucket.item.ready_s if window == _BACK else bucket.item.read_s

    def _elements(self, piece: tuple[int, int | None]) -> int:
        elements = self._gradients[piece[0]].elements if piece[1] is None else piece[1]
        assert elements is not None
        return elements

    def _bytes(self, piece: tuple[int, int | None]) -> float:
        gradient = self._gradients[piece[0]]
        return gradient.size_bytes if piece[1] is None else gradient.item_bytes * piece[1]

    def _largest_first(self, pieces: Sequence[tuple[int, int | None]]) -> list[tuple[int, int | None]]:
        return sorted(pieces, key=lambda piece: (-self._bytes(piece), piece[0]))

    def _sorted(self, pieces: tuple[tuple[int, int | None], ...], window: int) -> tuple[tuple[int, int | None], ...]:
        """The pieces as a window sorts them: what is ready, or read, first comes first."""

        def due_s(piece: tuple[int, int | None]) -> tuple[float, int]:
            gradient = self._gradients[piece[0]]
            return (gradient.ready_s if window == _BACK else gradient.read_s), piece[0]

        return tuple(sorted(pieces, key=due_s))

    # -- schedules -------------------------------------------------------------------------------

    def _windows(self, schedule: Schedule) -> _Windows:
        windows: tuple[list[_Bucket], list[_Bucket]] = ([], [])
        for transfer in schedule.transfers:
            pieces = []
            for piece in transfer.pieces:
                position = self._position[piece.gradient]
                is_whole = piece.elements == self._gradients[position].elements
                pieces.append((position, None if is_whole else piece.elements))
            windows[_FORE if transfer.window == FORWARD else _BACK].append(self._bucket(tuple(pieces)))
        return tuple(windows[0]), tuple(windows[1])

    def _schedule(self, windows: _Windows, given: Schedule) -> Schedule:
        """The schedule of these buckets; a transfer that was there before keeps its reason."""
        known = {(t.window, frozenset((p.gradient, p.elements) for p in t.pieces)): t for t in given.transfers}
        begin: dict[int, int] = {}
        made: dict[int, list[Scheduled]] = {_FORE: [], _BACK: []}
        for window in (_BACK, _FORE):  # the first elements of a cut gradient travel in the step that makes them
            for bucket in windows[window]:
                pieces = []
                for gradient, elements in bucket.pieces:
                    boundary = self._gradients[gradient]
                    start = begin.get(gradient, 0)
                    count = boundary.elements if elements is None else elements
                    begin[gradient] = start + (count or 0)
                    pieces.append(Piece(boundary.name, start, count))
                name = FORWARD if window == _FORE else BACKWARD
                before = known.get((name, frozenset((p.gradient, p.elements) for p in pieces)))
                reason = self._reason(bucket, name) if before is None else before.reason
                made[window].append(Scheduled(tuple(pieces), name, reason))
        return replace(given, transfers=(*made[_FORE], *made[_BACK]))

    def _reason(self, bucket: _Bucket, window: str) -> str:
        first: Boundary
        if window == FORWARD:
            first = min((self._gradients[g] for g, _ in bucket.pieces), key=lambda g: (g.read_s, g.name))
            what = f"Read from {first.read_s * 1e3:.4g} ms on, by {first.name}"
        else:
            first = max((self._gradients[g] for g, _ in bucket.pieces), key=lambda g: (g.ready_s, g.name))
            what = f"Can start at {first.ready_s * 1e3:.4g} ms, when {first.name} is ready"
        return f"{what}. In the {window} window, and with these gradients, by the simulated steps of a local search"


def _count_pieces(windows: _Windows) -> int:
    return sum(len(bucket.pieces) for window in windows for bucket in window)


def _spread(first: int, last: int) -> list[int]:
    """Some numbers of a range, evenly spread."""
    count = last - first + 1
    if count <= _MOST_PLACES:
        return list(range(first, last + 1))
    return sorted({first + n * (count - 1) // (_MOST_PLACES - 1) for n in range(_MOST_PLACES)})
