"""Measuring how computation and all-reduces that run at once are in each other's way.

In a training step the workers compute while gradients travel. What moves bytes takes processor time from the
computation, and waits for it: both take longer than by themselves. So all workers multiply matrices, as long as
all-reduces take, by itself and beside these. And where gradients are more than the network can carry, several
all-reduces are under way, and wait at once: so several that begin at once are timed beside computation, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from caramel.graph.graph import NodeDef
from caramel.graph.nodes import assign, dtype_attribute, node, read, variable
from caramel.measure.all_reduce_bench import AllReduceBench, Build, clock, filled
from caramel.netmodel.contention import Durations, contention_of

_DTYPE = "float32"
_WIDTH = 512
"""Of the matrices, 1 MiB each; one product takes a core some milliseconds."""

_FIRST_PRODUCTS, _MOST_PRODUCTS = 8, 2000
_LEAST_S = 0.3
"""How long all-reduces should follow each other: a computation in training is not shorter, and its pauses are in it."""

_MOST_REPEATS = 64
_SHORTEST_S = 1e-6
"""Nothing orders a clock at the start and what begins with it; what takes next to nothing may be first."""

_LEAST_AT_ONCE, _MOST_AT_ONCE = 4, 8
"""So many transfers of a step are under way at once where there are too many."""

_ROUNDS_AT_ONCE = 2
"""Several all-reduces are already a mean."""

_LEAST_OCCUPANCY = 0.1
"""Less is noise: each more of them sends its bytes (our choice)."""

_COVERED_PART = 0.8
"""So much of their time must have had computation beside it."""

_OUTLASTING = 1.2
"""So many times as long as those all-reduces would take one after the other is the computation beside them."""

_COMPUTED_PART = 0.7
"""So long is the computation, of the all-reduces' time: it should end first even if it takes half as long again."""

_STALLED = 1.3
"""All-reduces that take so many times as long beside computation are measured again, beside one that outlasts them.
Lost packets cost pauses of fixed length; laid to the time in which both ran, they would seem many times as long."""


@dataclass(frozen=True)
class Measured:
    """What was measured of one kind of all-reduce.

    Attributes:
        processor_share: a part; see `caramel.netmodel.contention.Contention`.
        slowdown: a ratio; likewise.
        occupancy: a ratio; likewise.
    """

    processor_share: float
    slowdown: float
    occupancy: float | None


def measure_contention(
    bench: AllReduceBench, size_bytes: int, builds: Mapping[str, tuple[Build, float]], rounds: int
) -> dict[str, Measured]:
    """Measure one size.

    Args:
        bench: the cluster.
        size_bytes: bytes of the tensors.
        builds: all-reduces by name, and the seconds that each takes.
        rounds: how often each is timed, in turn; twice as often if computation turns out to be too short.

    Returns:
        Of each what was found.

    Raises:
        ClusterError: a worker cannot be reached.
    """
    product_s = _Computation(bench, _FIRST_PRODUCTS).seconds() / _FIRST_PRODUCTS
    found = {}
    for name, (build, all_reduce_s) in builds.items():
        repeats = max(1, min(math.ceil(_LEAST_S / all_reduce_s), _MOST_REPEATS))
        bench.load(size_bytes, {name: build}, repeats)
        reduced = bench.ends(name)
        computed_s = _COMPUTED_PART * repeats * all_reduce_s
        alone, together = _measured(bench, reduced, computed_s / product_s, rounds)
        if together.reduce_s > _STALLED * alone.reduce_s:
            alone, together = _measured(bench, reduced, _STALLED * together.reduce_s / product_s, rounds)
        bench.unload()
        share, slowdown = contention_of(alone, together)
        count = min(max(math.ceil(_LEAST_S / all_reduce_s), _LEAST_AT_ONCE), _MOST_AT_ONCE)
        all_s = _at_once_s(bench, size_bytes, build, count, count * all_reduce_s / product_s, rounds)
        found[name] = Measured(share, slowdown, _occupancy(alone.reduce_s / repeats, slowdown, count, all_s))
    return found


def _occupancy(alone_s: float, slowdown: float, count: int, all_s: float | None) -> float | None:
    """What follows from the time of so many all-reduces at once; the first of them takes as long as one beside them.

    With occupancy o and slowdown s, all arrive after (count - 1) * o + s times what one takes by itself.
    """
    if all_s is None:
        return None
    return max((all_s / alone_s - slowdown) / (count - 1), _LEAST_OCCUPANCY)


def _at_once_s(
    bench: AllReduceBench, size_bytes: int, build: Build, count: int, products: float, rounds: int
) -> float | None:
    """The seconds until so many all-reduces that begin at once have all ended, beside a computation that outlasts them.

    All have the same roots: those of stars that follow each other do not, but what follows a star in a step may be
    anything. None: no computation could be made long enough.

    Args:
        bench: the cluster.
        size_bytes: bytes of the tensors.
        build: of one all-reduce.
        count: how many.
        products: of matrices, in the time that they would take one after the other, by themselves.
        rounds: how often they are timed, at most.
    """
    rounds = min(rounds, _ROUNDS_AT_ONCE)
    bench.load(size_bytes, {"at_once": build}, count, at_once=True)
    reduced = bench.ends("at_once")
    together = _together(bench, reduced, _OUTLASTING * products, rounds)
    if not _is_covered(together):
        longer = together.reduce_s / together.compute_s
        together = _together(bench, reduced, _OUTLASTING**2 * longer * products, rounds)
    bench.unload()
    return together.reduce_s if _is_covered(together) else None


def _is_covered(together: Durations) -> bool:
    return together.compute_s >= _COVERED_PART * together.reduce_s


def _together(bench: AllReduceBench, reduced: Sequence[str], products: float, rounds: int) -> Durations:
    """All-reduces beside about so many products."""
    computation = _computation(bench, products)
    computation.durations(reduced)
    return _least([computation.durations(reduced) for _ in range(rounds)])


def _computation(bench: AllReduceBench, products: float) -> _Computation:
    return _Computation(bench, max(1, min(round(products), _MOST_PRODUCTS)))


def _measured(
    bench: AllReduceBench, reduced: Sequence[str], products: float, rounds: int
) -> tuple[Durations, Durations]:
    """All-reduces and about so many products, each by itself and both at once."""
    computation = _computation(bench, products)
    alone: list[Durations] = []
    together: list[Durations] = []
    computation.durations(reduced)
    for _ in range(rounds):
        alone.append(Durations(computation.seconds(), computation.seconds(reduced)))
        together.append(computation.durations(reduced))
    return _least(alone), _least(together)


def _least(found: Sequence[Durations]) -> Durations:
    """Whatever else a machine does makes work longer, and that of few steps differently from round to round."""
    return Durations(min(d.compute_s for d in found), min(d.reduce_s for d in found))


class _Computation:
    """Products of matrices, one after the other on each worker, with the times at which they begin and end.

    The clock is each worker's own. TensorFlow would leave out a product that nothing needs, so the last one is kept.
    """

    _count = 0

    def __init__(self, bench: AllReduceBench, products: int) -> None:
        _Computation._count += 1
        self._bench = bench
        scope = f"contention_{_Computation._count}"
        nodes: list[NodeDef] = []
        initialised, self._starts, self._ends = [], [], []
        for rank, placed in enumerate(bench.devices):
            device = placed.partition("/device:")[0]  # not on the processors if the worker computes elsewhere
            self._starts.append(clock(nodes, f"{scope}/start_{rank}", (), device))
            initialised.append(_matrix(nodes, f"{scope}/matrix_{rank}", device))
            last = _chain(nodes, f"{scope}/product_{rank}", f"{scope}/matrix_{rank}", products, device)
            self._ends.append(clock(nodes, f"{scope}/end_{rank}", [last], device))
        bench.extend(nodes)
        bench.fetch([], initialised)
        self.seconds()

    def seconds(self, ends: Sequence[str] = ()) -> float:
        """Run what leads to some clocks; mean seconds over the workers. Default: this computation."""
        return float(self._times(ends or self._ends).mean())

    def durations(self, others: Sequence[str]) -> Durations:
        """Run this together with what leads to the workers' other clocks."""
        times = self._times([*self._ends, *others])
        workers = self._bench.workers
        return Durations(float(times[:workers].mean()), float(times[workers:].mean()))

    def _times(self, ends: Sequence[str]) -> np.ndarray:
        values = np.array(self._bench.fetch([*self._starts, *ends], []), np.float64)
        starts, found = values[: self._bench.workers], values[self._bench.workers :]
        return np.maximum(found - np.resize(starts, found.shape), _SHORTEST_S)


def _matrix(nodes: list[NodeDef], name: str, device: str) -> str:
    """A variable that multiplied with itself stays as it is; the op that initialises it."""
    nodes.append(variable(name, _DTYPE, (_WIDTH, _WIDTH), device))
    value = filled(nodes, f"{name}/initial", 1 / _WIDTH, (_WIDTH, _WIDTH), device)
    nodes.append(assign(f"{name}/initialise", name, value, _DTYPE, device))
    return nodes[-1].name


def _chain(nodes: list[NodeDef], name: str, matrix: str, products: int, device: str) -> str:
    """Products one after the other; the op that keeps the last."""
    nodes.append(read(f"{name}/read", matrix, _DTYPE, device))
    first = last = nodes[-1].name
    for number in range(products):
        nodes.append(node(f"{name}/{number}", "MatMul", [last, first], device, T=dtype_attribute(_DTYPE)))
        last = nodes[-1].name
    nodes.append(assign(f"{name}/kept", matrix, last, _DTYPE, device))
    return nodes[-1].name
