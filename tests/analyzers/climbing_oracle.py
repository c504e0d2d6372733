"""The shortest steps that can be found without the planner: all plans of a few gradients, and hill climbing.

Nothing here comes from the planner. `Step` says how long a step is, from the rules in `caramel.simulator`, for gradients
of one kind and transfers that arrive as soon as they leave the channel; what is found is then simulated by the product,
which has to agree.
"""

import math
import random
from bisect import bisect_left
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product
from operator import itemgetter, sub

from caramel.analyzers.cost.network import Network
from caramel.analyzers.cost.simulate import simulate_on
from caramel.facts import BACKWARD, FORWARD, Piece, Schedule, Scheduled
from caramel.netmodel.choice import CollectiveOptions
from caramel.netmodel.line import Curve, Sample
from caramel.netmodel.model import NetworkModel

STARTS = 20

LONGEST, LONGER = 3, 8
"""Number of climbs that go on, and how many times as long without gain."""

GAIN = 1e-5
"""Least fraction of the step that counts as gain."""

MOST_TRANSFERS = 60
"""Largest number of transfers of a plan: where small ones cost little, ever more would gain ever less."""

MOST_MOVES = 30
"""Largest number of moves of a climb, in those without gain that end it."""


# -- networks, and the seconds of a transfer on them without the product ------------------------


@dataclass(frozen=True)
class Known:
    """A network as the planner sees it, and the seconds of a transfer of so many bytes by a formula of its own."""

    network: Network
    seconds: object


def line(start_s, s_per_byte):
    """A network on which every transfer takes a + b * bytes: a ring of two workers has two messages and all bytes."""
    model = NetworkModel.from_costs(start_s / 2, s_per_byte)
    network = Network(CollectiveOptions("ring", 1, network=model), 2)
    return Known(network, lambda size_bytes: start_s + s_per_byte * size_bytes)


def measured(points, workers=8):
    """A network of which star at depth 1 was measured; points are (bytes, seconds), at least two, in ascending order.

    Between the points the seconds are on lines; before the first they are its own. After the last they go on with the
    slope from the largest size that is at most half of the last, and no steeper than the last point's own ratio.
    """
    curve = Curve.fitted(workers, "star", 1, [Sample(size, time_s) for size, time_s in points])
    network = Network(CollectiveOptions(network=NetworkModel("measured", (curve,))), workers)
    sizes, times = zip(*points)
    half = next(n for n in reversed(range(len(sizes))) if 2 * sizes[n] <= sizes[-1])
    assert times[half] < times[-1]
    last = min((times[-1] - times[half]) / (sizes[-1] - sizes[half]), times[-1] / sizes[-1])
    slopes = [(later[1] - one[1]) / (later[0] - one[0]) for one, later in pairwise(points)] + [last]

    def seconds(size_bytes):
        if size_bytes <= sizes[0]:
            return times[0]
        before = bisect_left(sizes, size_bytes) - 1
        return times[before] + slopes[before] * (size_bytes - sizes[before])

    return Known(network, seconds)


# -- how long a step is -------------------------------------------------------------------------


class Transfer:
    """What travels together: elements by the number of the gradient."""

    __slots__ = ("elements", "ready_s", "seconds")

    def __init__(self, elements, seconds, ready_s):
        self.elements, self.seconds, self.ready_s = elements, seconds, ready_s


class Step:
    """Steps of given gradients on a network, for plans that are two lists of transfers: forward and backward."""

    def __init__(self, boundaries, known):
        assert len({(g.dtype, g.level, g.condition) for g in boundaries.gradients}) <= 1
        assert all(g.elements for g in boundaries.gradients)
        self.boundaries, self.known = boundaries, known
        self.gradients = boundaries.gradients
        self.compute_s = boundaries.compute_s
        self.elements = [g.elements for g in self.gradients]
        self.item_bytes = [g.size_bytes / g.elements for g in self.gradients]
        self.ready_s = [min(g.ready_s, self.compute_s) for g in self.gradients]
        self.read_s = [min(g.read_s, self.compute_s) for g in self.gradients]
        self.update_s = [g.update_s for g in self.gradients]
        self.least_s = self.compute_s + sum(self.update_s)
        self.seconds = self._seconds if any(self.update_s) else self._seconds_without_updates

    def transfer(self, elements):
        """A transfer of so many elements of each gradient."""
        size_bytes = sum(self.item_bytes[g] * count for g, count in elements.items())
        return Transfer(elements, self.known.seconds(size_bytes), max(self.ready_s[g] for g in elements))

    def _seconds_without_updates(self, forward, backward):
        channel_s, arrived_s = 0.0, {}
        for t in forward:
            channel_s += t.seconds
            for g in t.elements:
                arrived_s[g] = channel_s
        reads = self.read_s
        late = [(reads[g], at - reads[g]) for g, at in arrived_s.items() if at > reads[g] and reads[g] < self.compute_s]
        for t in backward:
            stalled_s = max((by for read_s, by in late if read_s < t.ready_s), default=0.0) if late else 0.0
            channel_s = max(channel_s, t.ready_s + stalled_s) + t.seconds
        return max(channel_s, self.compute_s + max((by for _, by in late), default=0.0))

    def _seconds(self, forward, backward):
        """With updates, which interrupt the computation once all that they wait for has arrived."""
        updates_s, barriers_s = self._after_arrivals(forward, backward)
        compute_s, channel_s = self.compute_s, 0.0
        now_s = clock_s = 0.0  # when the computation is free, and where it is by then
        taken, arrivals_s = 0, []
        for t in forward:
            channel_s += t.seconds
            arrivals_s.append(channel_s)
        sent = len(forward)
        for ready_s, seconds in [*((t.ready_s, t.seconds) for t in backward), (compute_s, None), (math.inf, None)]:
            # The computation goes on to where the next transfer is ready, then to its end, then all updates are made.
            while clock_s < ready_s and (taken < sent or ready_s < math.inf):
                at_s = now_s + ready_s - clock_s
                if barriers_s[taken] >= ready_s and (taken == sent or at_s <= arrivals_s[taken]):
                    now_s, clock_s = at_s, ready_s
                    channel_s = max(channel_s, at_s)
                    break
                arrival_s = arrivals_s[taken]
                if now_s < arrival_s:
                    clock_s = min(clock_s + arrival_s - now_s, max(clock_s, min(barriers_s[taken], compute_s)))
                    now_s = arrival_s
                now_s += updates_s[taken]
                taken += 1
            if seconds is not None:
                channel_s += seconds
                arrivals_s.append(channel_s)
                sent += 1
        return max(now_s, channel_s)

    def _after_arrivals(self, forward, backward):
        """Of each transfer the seconds of updates that begin with it; and how far the computation gets before it.

        Before as many transfers have arrived as there are in front, the computation does not get beyond the first read
        of what only they complete.
        """
        updates_s = [0.0] * (len(forward) + len(backward))
        barriers_s = [math.inf] * (len(updates_s) + 1)
        seen = set()
        for n in reversed(range(len(forward))):
            barriers_s[n] = barriers_s[n + 1]
            for g in forward[n].elements:
                if g not in seen:
                    seen.add(g)
                    updates_s[n] += self.update_s[g]
                    barriers_s[n] = min(barriers_s[n], self.read_s[g])
        for n in reversed(range(len(backward))):
            for g in backward[n].elements:
                if g not in seen:
                    seen.add(g)
                    updates_s[len(forward) + n] += self.update_s[g]
        return updates_s, barriers_s

    def schedule(self, forward, backward):
        """The plan as the product has it."""
        begun = [0] * len(self.elements)
        made = []
        for window, transfers in ((FORWARD, forward), (BACKWARD, backward)):
            for t in transfers:
                pieces = [Piece(self.gradients[g].name, begun[g], count) for g, count in sorted(t.elements.items())]
                for g, count in t.elements.items():
                    begun[g] += count
                made.append(Scheduled(tuple(pieces), window, ""))
        return Schedule(tuple(made), "by the oracle")

    def simulated_s(self, forward, backward):
        """Seconds of the step by the product's own simulator, which has to agree with this one."""
        made_s = simulate_on(self.known.network, self.boundaries, self.schedule(forward, backward)).iteration_s
        assert math.isclose(made_s, self.seconds(forward, backward), rel_tol=1e-9), (made_s, forward, backward)
        return made_s


# -- all plans ----------------------------------------------------------------------------------


@cache
def _ordered(units):
    """All lists of parts, none empty, that add up to so many units of each gradient."""
    if not any(units):
        return [()]
    firsts = (part for part in product(*(range(u + 1) for u in units)) if any(part))
    return [(first, *rest) for first in firsts for rest in _ordered(tuple(map(sub, units, first)))]


def shortest_of_all_s(boundaries, known, parts):
    """Seconds of the shortest of all plans that cut each gradient into so many equal parts, or into its elements.

    All ways to put these parts into transfers, the transfers into windows and the windows into orders.
    """
    step = Step(boundaries, known)
    units = tuple(min(parts, g.elements) if g.divisible else 1 for g in step.gradients)
    assert all(count % unit == 0 for count, unit in zip(step.elements, units))

    @cache
    def transfer(part):
        return step.transfer({g: step.elements[g] * n // units[g] for g, n in enumerate(part) if n})

    best_s, best = math.inf, None
    for later in product(*(range(u + 1) if g.is_postponable else (0,) for u, g in zip(units, step.gradients))):
        now = [[*map(transfer, plan)] for plan in _ordered(tuple(map(sub, units, later)))]
        for plan in _ordered(later):
            forward = [*map(transfer, plan)]
            for backward in now:
                step_s = step.seconds(forward, backward)
                if step_s < best_s:
                    best_s, best = step_s, (forward, backward)
    return step.simulated_s(*best)


# -- hill climbing ------------------------------------------------------------------------------


def climbed_s(boundaries, known, seed, starts=STARTS, longest=LONGEST):
    """Seconds of the shortest step that hill climbing finds from so many random plans.

    Args:
        boundaries: boundaries of all gradients, of one kind.
        known: the network.
        seed: of all random numbers.
        starts: number of random plans.
        longest: number of the best climbs that go on.
    """
    climber = Climber(Step(boundaries, known), random.Random(seed))
    patience = 60 + 20 * min(len(boundaries.gradients), 30)
    found = sorted((climber.climb(climber.start(), patience) for _ in range(starts)), key=itemgetter(0))
    found += [climber.climb(plan, LONGER * patience) for _, plan in found[:longest]]
    _, plan = min(found, key=itemgetter(0))
    return climber.step.simulated_s(*plan)


class Climber:
    """A plan is a pair (forward, backward) of lists of transfers; a move returns another pair, or None."""

    def __init__(self, step, rng):
        self.step, self.rng = step, rng
        self.by_ready = sorted(range(len(step.elements)), key=lambda g: (step.ready_s[g], -step.read_s[g], g))
        self.rank = {g: n for n, g in enumerate(self.by_ready)}
        self.may_wait = [g.is_postponable for g in step.gradients]
        self.divisible = [g.divisible for g in step.gradients]
        self.moves = [self._move_some] * 5 + [self._merge] + [self._split] + [self._reorder] + [self._change_window]

    def climb(self, plan, patience):
        """Take each random move that is no loss, until none has gained for a while."""
        best_s = self.step.seconds(*plan)
        left, moves = patience, 0
        while left and moves < MOST_MOVES * patience and best_s > self.step.least_s * (1 + 1e-9):
            left, moves = left - 1, moves + 1
            moved = self.rng.choice(self.moves)(plan)
            if moved is None or len(moved[0]) + len(moved[1]) > MOST_TRANSFERS:
                continue
            moved_s = self.step.seconds(*moved)
            if moved_s <= best_s:
                if moved_s < best_s * (1 - GAIN):
                    left = patience
                plan, best_s = moved, moved_s
        return best_s, plan

    def start(self):
        """Random buckets, of neighbours or of any gradients, each in a random window."""
        rng, order = self.rng, list(self.by_ready)
        if rng.random() < 0.3:
            rng.shuffle(order)
        most = rng.choice((1, 3, 6, len(order)))
        cuts = sorted(rng.sample(range(1, len(order)), min(rng.randint(0, most), len(order) - 1)))
        plan = [], []
        postponed = rng.choice((0.0, 0.2, 0.5, 0.8))
        for begin, end in pairwise([0, *cuts, len(order)]):
            later = rng.random() < postponed
            for window, block in enumerate(
                (
                    [g for g in order[begin:end] if later and self.may_wait[g]],
                    [g for g in order[begin:end] if not (later and self.may_wait[g])],
                )
            ):
                if block:
                    plan[window].append(self.step.transfer({g: self.step.elements[g] for g in block}))
        plan[0].sort(key=lambda t: min(self.step.read_s[g] for g in t.elements))
        plan[1].sort(key=lambda t: t.ready_s)
        return plan

    def _pick(self, plan):
        n = self.rng.randrange(len(plan[0]) + len(plan[1]))
        return (0, n) if n < len(plan[0]) else (1, n - len(plan[0]))

    @staticmethod
    def _copy(plan):
        return list(plan[0]), list(plan[1])

    def _move_some(self, plan):
        """Move a gradient, neighbours in a transfer, or a part of a gradient, to another transfer or one of its own."""
        rng, (window, n) = self.rng, self._pick(plan)
        source = plan[window][n].elements
        names = sorted(source, key=self.rank.__getitem__) if len(source) > 1 else list(source)
        begin = rng.randrange(len(names))
        end = begin + 1
        while end < len(names) and rng.random() < 0.5:
            end += 1
        moved = {g: source[g] for g in names[begin:end]}
        if len(moved) == 1 and rng.random() < 0.6:
            g = names[begin]
            if not self.divisible[g] or source[g] < 2:
                return None
            moved[g] = max(1, int(source[g] * 2 ** -rng.uniform(0, 9)))
        rest = {g: count - moved.get(g, 0) for g, count in source.items() if count > moved.get(g, 0)}
        return self._put(plan, window, n, rest, moved)

    def _put(self, plan, window, n, rest, moved):
        """Move what is not the rest of a transfer to a random place."""
        rng, new = self.rng, self._copy(plan)
        places = [(w, m) for w in (0, 1) for m in range(len(plan[w])) if (w, m) != (window, n)]
        places = [place for place in places if place[0] == 1 or all(self.may_wait[g] for g in moved)]
        if places and rng.random() < 0.7:
            to, m = rng.choice(places)
            other = dict(plan[to][m].elements)
            for g, count in moved.items():
                other[g] = other.get(g, 0) + count
            new[to][m] = self.step.transfer(other)
            self._replace(new, window, n, rest)
        else:
            to = rng.choice((0, 1)) if all(self.may_wait[g] for g in moved) else 1
            self._replace(new, window, n, rest)
            new[to].insert(rng.randint(0, len(new[to])), self.step.transfer(moved))
        return new

    def _replace(self, plan, window, n, rest):
        plan[window][n : n + 1] = [self.step.transfer(rest)] if rest else []

    def _merge(self, plan):
        """Send two transfers of one window as one."""
        window = self.rng.choice((0, 1))
        if len(plan[window]) < 2:
            return None
        new = self._copy(plan)
        place, other = self.rng.sample(range(len(plan[window])), 2)
        both = dict(plan[window][place].elements)
        for g, count in plan[window][other].elements.items():
            both[g] = both.get(g, 0) + count
        new[window][place] = self.step.transfer(both)
        del new[window][other]
        return new

    def _split(self, plan):
        """Cut a transfer in two, between gradients in the order of readiness."""
        window, n = self._pick(plan)
        source = plan[window][n].elements
        if len(source) < 2:
            return None
        names = sorted(source, key=self.rank.__getitem__)
        cut = self.rng.randrange(1, len(names))
        halves = [self.step.transfer({g: source[g] for g in half}) for half in (names[:cut], names[cut:])]
        new = self._copy(plan)
        new[window][n : n + 1] = halves if window == 1 else halves[::-1]
        return new

    def _reorder(self, plan):
        """Move a transfer to another place of its window."""
        window = self.rng.choice((0, 1))
        if len(plan[window]) < 2:
            return None
        new = self._copy(plan)
        moved = new[window].pop(self.rng.randrange(len(new[window])))
        new[window].insert(self.rng.randint(0, len(new[window])), moved)
        return new

    def _change_window(self, plan):
        """Move a whole transfer to the other window."""
        window, n = self._pick(plan)
        if window == 1 and not all(self.may_wait[g] for g in plan[1][n].elements):
            return None
        new = self._copy(plan)
        moved = new[window].pop(n)
        other = new[1 - window]
        if self.rng.random() < 0.5 and window == 1:
            read_s = min(self.step.read_s[g] for g in moved.elements)
            at = sum(min(self.step.read_s[g] for g in t.elements) <= read_s for t in other)
        else:
            at = self.rng.randint(0, len(other))
        other.insert(at, moved)
        return new
