"""Schedules as buckets in two windows, which is how a local search changes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from caramel.analyzers.cost.step_evaluator import Item
from caramel.analyzers.optimal.problem import travels_alone
from caramel.analyzers.optimal.rounding import aligned_elements
from caramel.facts import BACKWARD, FORWARD, Boundaries, Boundary, Piece, Schedule, Scheduled
from caramel.util.units import format_ms


@dataclass(frozen=True, eq=False)
class Bucket:
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


Windows = tuple[tuple[Bucket, ...], tuple[Bucket, ...]]
"""The buckets of the forward and of the backward window, in their order."""

FORE, BACK = 0, 1


class BucketPlans:
    """The schedules of a step's gradients, as buckets.

    Args:
        boundaries: boundaries of all gradients.

    Attributes:
        gradients: the gradients.
        has_updates: whether any update takes time.
    """

    def __init__(self, boundaries: Boundaries) -> None:
        self.gradients = boundaries.gradients
        self.has_updates = any(g.update_s > 0 for g in boundaries.gradients)
        self._position = {g.name: n for n, g in enumerate(boundaries.gradients)}
        top = max((g.level for g in boundaries.gradients), default=0)
        self._is_fixed = [travels_alone(g, top) for g in boundaries.gradients]

    # -- from schedules, and back ----------------------------------------------------------------

    def windows(self, schedule: Schedule) -> Windows:
        windows: tuple[list[Bucket], list[Bucket]] = ([], [])
        for transfer in schedule.transfers:
            pieces = []
            for piece in transfer.pieces:
                position = self._position[piece.gradient]
                is_whole = piece.elements == self.gradients[position].elements
                pieces.append((position, None if is_whole else piece.elements))
            windows[FORE if transfer.window == FORWARD else BACK].append(self.bucket_of(tuple(pieces)))
        return tuple(windows[0]), tuple(windows[1])

    def schedule(self, windows: Windows, given: Schedule) -> Schedule:
        """The schedule of these buckets; a transfer that was there before keeps its reason."""
        known = {(t.window, frozenset((p.gradient, p.elements) for p in t.pieces)): t for t in given.transfers}
        begin: dict[int, int] = {}
        made: dict[int, list[Scheduled]] = {FORE: [], BACK: []}
        for window in (BACK, FORE):  # the first elements of a cut gradient travel in the step that makes them
            for bucket in windows[window]:
                pieces = []
                for gradient, elements in bucket.pieces:
                    boundary = self.gradients[gradient]
                    start = begin.get(gradient, 0)
                    count = boundary.elements if elements is None else elements
                    begin[gradient] = start + (count or 0)
                    pieces.append(Piece(boundary.name, start, count))
                name = FORWARD if window == FORE else BACKWARD
                before = known.get((name, frozenset((p.gradient, p.elements) for p in pieces)))
                reason = self._reason(bucket, name) if before is None else before.reason
                made[window].append(Scheduled(tuple(pieces), name, reason))
        return replace(given, transfers=(*made[FORE], *made[BACK]))

    def _reason(self, bucket: Bucket, window: str) -> str:
        first: Boundary
        if window == FORWARD:
            first = min((self.gradients[g] for g, _ in bucket.pieces), key=lambda g: (g.read_s, g.name))
            what = f"Read from {format_ms(first.read_s)} on, by {first.name}"
        else:
            first = max((self.gradients[g] for g, _ in bucket.pieces), key=lambda g: (g.ready_s, g.name))
            what = f"Can start at {format_ms(first.ready_s)}, when {first.name} is ready"
        return f"{what}. In the {window} window, and with these gradients, by the simulated steps of a local search"

    def items(self, windows: Windows) -> tuple[list[Item], list[Item]]:
        items = tuple([bucket.item for bucket in window] for window in windows)
        if self.has_updates:
            last: dict[int, tuple[int, int]] = {}  # where the last awaited piece of each cut gradient is
            for window in (BACK, FORE):  # one with a piece in the forward window is updated there
                for place, bucket in enumerate(windows[window]):
                    last.update((gradient, (window, place)) for gradient in bucket.cut)
            for gradient, (window, place) in last.items():
                item = items[window][place]
                items[window][place] = item._replace(update_s=item.update_s + self.gradients[gradient].update_s)
        return items[0], items[1]

    def in_pieces(self, schedule: Schedule, most_bytes: float) -> Schedule:
        """A schedule in which each transfer that is larger is several, one after the other.

        Args:
            schedule: all transfers.
            most_bytes: number of bytes of a transfer on the wire, or a few more.
        """
        windows = self.windows(schedule)
        cut = tuple(
            tuple(part for bucket in window for part in self._bucket_in_pieces(bucket, most_bytes))
            for window in windows
        )
        return self.schedule((cut[0], cut[1]), schedule)

    def _bucket_in_pieces(self, bucket: Bucket, most_bytes: float) -> list[Bucket]:
        count = math.ceil(bucket.item.size_bytes / most_bytes)
        if count < 2 or bucket.is_fixed:
            return [bucket]
        room, parts = bucket.item.size_bytes / count, list[list[tuple[int, int | None]]]([[]])
        left_bytes = room
        for piece in bucket.pieces:
            gradient, elements, rest = self.gradients[piece[0]], self.elements(piece), piece
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
        return [self.bucket_of(tuple(part)) for part in parts if part]

    # -- changes -----------------------------------------------------------------------------------

    def bucket_of(self, pieces: tuple[tuple[int, int | None], ...]) -> Bucket:
        by_gradient: dict[int, int | None] = {}
        for gradient, elements in pieces:  # two pieces of one gradient become one
            if gradient in by_gradient:
                total = (by_gradient[gradient] or 0) + (elements or 0)
                elements = None if total == self.gradients[gradient].elements else total
            by_gradient[gradient] = elements
        merged = tuple(by_gradient.items())
        size = ready_s = update_s = 0.0
        read_s = float("inf")
        cut = []
        for gradient, elements in merged:
            boundary = self.gradients[gradient]
            ready_s, read_s = max(ready_s, boundary.ready_s), min(read_s, boundary.read_s)
            if elements is None:
                size += boundary.size_bytes
                update_s += boundary.update_s
            else:
                size += boundary.item_bytes * elements
                cut.append(gradient)
        is_fixed = self._is_fixed[merged[0][0]]
        return Bucket(merged, Item(size, ready_s, read_s, update_s), tuple(cut), is_fixed)

    def with_buckets(
        self,
        windows: Windows,
        window: int,
        place: int,
        count: int,
        piece_lists: Iterable[tuple[tuple[int, int | None], ...]],
    ) -> Windows:
        """Some neighbouring buckets replaced by ones of the given pieces."""
        buckets = windows[window]
        new = tuple(self.bucket_of(pieces) for pieces in piece_lists if pieces)
        return self.replaced(windows, window, (*buckets[:place], *new, *buckets[place + count :]))

    def replaced(self, windows: Windows, window: int, buckets: tuple[Bucket, ...]) -> Windows:
        if window == BACK and any(self.level(a) > self.level(b) for a, b in pairwise(buckets)):
            buckets = tuple(sorted(buckets, key=self.level))  # what others of the same step wait for goes first
        return (buckets, windows[BACK]) if window == FORE else (windows[FORE], buckets)

    def places(self, buckets: tuple[Bucket, ...], bucket: Bucket, window: int) -> list[int]:
        """All places for one more bucket in a window, those first that are nearest to where it is due."""
        key = self._due_s(bucket, window)
        usual = sum(self._due_s(other, window) <= key for other in buckets)
        return sorted(range(len(buckets) + 1), key=lambda place: (abs(place - usual), place))

    # -- what may be -----------------------------------------------------------------------------

    def may_join(self, first: Bucket, second: Bucket) -> bool:
        if first.is_fixed or second.is_fixed:
            return False
        a, b = (self.gradients[bucket.pieces[0][0]] for bucket in (first, second))
        return a.kind == b.kind and a.level == b.level

    def may_be(self, pieces: Sequence[tuple[int, int | None]], window: int) -> bool:
        return window == BACK or all(self.gradients[gradient].is_postponable for gradient, _ in pieces)

    def level(self, bucket: Bucket) -> int:
        return self.gradients[bucket.pieces[0][0]].level

    def _due_s(self, bucket: Bucket, window: int) -> float:
        return bucket.item.ready_s if window == BACK else bucket.item.read_s

    def elements(self, piece: tuple[int, int | None]) -> int:
        elements = self.gradients[piece[0]].elements if piece[1] is None else piece[1]
        assert elements is not None
        return elements

    def _bytes(self, piece: tuple[int, int | None]) -> float:
        gradient = self.gradients[piece[0]]
        return gradient.size_bytes if piece[1] is None else gradient.item_bytes * piece[1]

    def largest_first(self, pieces: Sequence[tuple[int, int | None]]) -> list[tuple[int, int | None]]:
        return sorted(pieces, key=lambda piece: (-self._bytes(piece), piece[0]))

    def in_order(self, pieces: tuple[tuple[int, int | None], ...], window: int) -> tuple[tuple[int, int | None], ...]:
        """The pieces as a window sorts them: what is ready, or read, first comes first."""

        def due_s(piece: tuple[int, int | None]) -> tuple[float, int]:
            gradient = self.gradients[piece[0]]
            return (gradient.ready_s if window == BACK else gradient.read_s), piece[0]

        return tuple(sorted(pieces, key=due_s))


def count_pieces(windows: Windows) -> int:
    return sum(len(bucket.pieces) for window in windows for bucket in window)
