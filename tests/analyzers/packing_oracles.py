"""Brute force over plans of unit bytes, and the step that each makes, from first principles."""

import itertools
import random
from dataclasses import dataclass

from caramel.facts import Boundaries, Boundary
from caramel.netmodel.line import Line


@dataclass(frozen=True)
class Unit:
    """A gradient of a few bytes, each of which takes a second."""

    size: int
    ready: int
    read: int
    free: bool = True


def boundaries_of(units, compute, **fields):
    gradients = [
        Boundary(
            f"g{n}",
            "float32",
            u.size,
            float(u.size),
            float(u.ready),
            float(u.read),
            kept_reason="" if u.free else "it is read in this step",
            **fields,
        )
        for n, u in enumerate(units)
    ]
    return Boundaries(tuple(sorted(gradients, key=lambda g: (g.ready_s, g.name))), float(compute))


def line_of(start):
    return Line(float(start), 1.0)


def waits_of(transfers, compute):
    """Seconds that a step waits, and those in its forward pass.

    A transfer is (window, seconds, when it is ready, when it must have ended), in the channel's order. The computation
    reaches the time t of its own clock at t plus what it has been stalled by then.
    """
    channel = stalled = 0.0
    for window, seconds, ready, read in transfers:
        begins = channel if window == "forward" else max(channel, ready + stalled)
        channel = begins + seconds
        if window == "forward" and channel > read + stalled:
            stalled = channel - read
    return max(channel, compute + stalled) - compute, stalled


def waits_of_packing(packing, boundaries, line):
    """The same for a packing; it counts bytes anew."""
    transfers = []
    for t in packing.transfers:
        of = [boundaries.by_name[p.gradient] for p in t.pieces]
        size = sum(
            g.size_bytes if p.elements == g.elements else g.size_bytes * p.elements / g.elements
            for p, g in zip(t.pieces, of)
        )
        seconds = line.a_s + line.b_s_per_byte * size
        transfers.append((t.window, seconds, max(g.ready_s for g in of), min(g.read_s for g in of)))
    return waits_of(transfers, boundaries.compute_s)


def partitions(items):
    """All ways to put items into blocks."""
    if not items:
        yield []
        return
    for rest in partitions(items[1:]):
        yield [[items[0]], *rest]
        for n, block in enumerate(rest):
            yield [*rest[:n], [items[0], *block], *rest[n + 1 :]]


def by_brute_force(units, compute, start):
    """The least wait of all partitions of bytes, windows and orders: without a stall, and with."""
    owners = [n for n, u in enumerate(units) for _ in range(u.size)]
    blockings = {
        tuple(sorted(tuple(sorted(owners[b] for b in block)) for block in p)) for p in partitions(range(len(owners)))
    }
    smooth, least = float("inf"), float("inf")
    for blocks in blockings:
        for windows in itertools.product(("backward", "forward"), repeat=len(blocks)):
            if any(w == "forward" and not all(units[n].free for n in b) for w, b in zip(windows, blocks)):
                continue
            transfers = [
                (w, start + len(b), max(units[n].ready for n in b), min(units[n].read for n in b))
                for w, b in zip(windows, blocks)
            ]
            fore, back = ([t for t in transfers if t[0] == w] for w in ("forward", "backward"))
            for one in itertools.permutations(fore):
                for other in itertools.permutations(back):
                    waits, stalled = waits_of([*one, *other], compute)
                    least = min(least, waits)
                    if stalled == 0:
                        smooth = min(smooth, waits)
    return smooth, least


def runs(items):
    """All ways to cut a list into runs of neighbours."""
    for cuts in itertools.product((False, True), repeat=max(0, len(items) - 1)):
        found = [[items[0]]] if items else []
        for item, cut in zip(items[1:], cuts):
            found = [*found, [item]] if cut else [*found[:-1], [*found[-1], item]]
        yield found


def by_splits(units, compute, start, may_split=True):
    """The least wait of all splits with all buckets of neighbours, for gradients whose two orders agree."""

    def buckets(sizes, window):
        there = [n for n, size in enumerate(sizes) if size]
        for blocks in runs(there):
            yield [
                (
                    window,
                    start + sum(sizes[n] for n in b),
                    max(units[n].ready for n in b),
                    min(units[n].read for n in b),
                )
                for b in blocks
            ]

    least = float("inf")
    steps = [range(0, u.size + 1, 1 if may_split else max(1, u.size)) if u.free else (0,) for u in units]
    for later in itertools.product(*steps):
        now = [u.size - x for u, x in zip(units, later)]
        back = [sorted(b, key=lambda t: t[2]) for b in buckets(now, "backward")]
        # Of forward transfers that are in time only how long they take matters to the others.
        smooth = [f for f in buckets(later, "forward") if not waits_of(f, compute)[1]]
        for fore in [min(smooth, key=lambda f: sum(t[1] for t in f))] if smooth else []:
            least = min(least, *(waits_of([*fore, *b], compute)[0] for b in back))
    return least


def instance(rng, agree=True, kept=0.0, most=5, bytes_=5):
    """A few gradients, whose rooms agree or do not, with ties; the forward window ends before the backward one begins."""
    count = rng.randint(1, most)
    back, fore = [rng.randint(0, 8) for _ in range(count)], [rng.randint(0, 8) for _ in range(count)]
    if agree:
        back.sort(), fore.sort()
    sizes = [1] * count
    for _ in range(rng.randint(0, bytes_ - count)):
        sizes[rng.randrange(count)] += 1
    compute = max(back) + max(fore) + rng.randint(0, 2)
    units = [Unit(s, compute - b, f, rng.random() >= kept) for s, b, f in zip(sizes, back, fore)]
    return units, compute, rng.choice((0, 1, 1, 2, 3))


def instances(seed, count, **options):
    rng = random.Random(seed)
    return [instance(rng, **options) for _ in range(count)]
