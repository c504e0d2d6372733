"""Measuring how computation and all-reduces that run at once slow each other down.

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
_MATRIX_SIZE = 512
"""Rows and columns of the matrices, 1 MiB each; one product takes a core some milliseconds."""

_PROBE_PRODUCTS, _MAX_PRODUCTS = 8, 2000
"""Number of products with which one is timed first, and the largest number in a computation."""

_MIN_TOTAL_S = 0.3
"""Least seconds for which all-reduces follow each other: no computation in training is shorter, pauses included."""

_MAX_REPEATS = 64
"""Largest number of all-reduces that follow each other."""

_MIN_INTERVAL_S = 1e-6
"""Least seconds between two clocks: nothing orders the clock at the start and an op that ends at once."""

_MIN_AT_ONCE, _MAX_AT_ONCE = 4, 8
"""Least and largest number of all-reduces that begin at once, as transfers of a step do where there are too many."""

_MAX_ROUNDS_AT_ONCE = 2
"""Largest number of rounds with several all-reduces at once, which are already a mean."""

_MIN_OCCUPANCY = 0.1
"""Least occupancy; a smaller one is noise, because each further all-reduce sends its bytes (our choice)."""

_MIN_COVERED_FRACTION = 0.8
"""Least fraction of the all-reduces' time that must have had computation beside it."""

_OUTLASTING_RATIO = 1.2
"""Length of the computation beside all-reduces at once, relative to their time one after the other."""

_COMPUTE_FRACTION = 0.7
"""Length of the computation, relative to the all-reduces' time: it should end first even if it takes half as long
again."""

_STALL_RATIO = 1.3
"""Slowdown of all-reduces beside computation from which on they are measured again, beside one that outlasts them.
Lost packets cost pauses of fixed length; laid to the time in which both ran, they would seem many times as long."""


@dataclass(frozen=True)
class ContentionMeasurement:
    """The measured contention of one kind of all-reduce.

    Attributes:
        processor_share: fraction; see `caramel.netmodel.contention.Contention`.
        slowdown: ratio; see there.
        occupancy: ratio; see there.
    """

    processor_share: float
    slowdown: float
    occupancy: float | None


def measure_contention(
    bench: AllReduceBench, size_bytes: int, builds: Mapping[str, tuple[Build, float]], rounds: int
) -> dict[str, ContentionMeasurement]:
    """Measure the contention of all-reduces of one size.

    Args:
        bench: the cluster to measure on.
        size_bytes: bytes of the tensors.
        builds: function that builds an all-reduce, and the seconds that it takes, by name.
        rounds: number of times that each is timed, in turn; doubled if computation turns out to be too short.

    Returns:
        The measurement of each, by name.

    Raises:
        ClusterError: a worker cannot be reached.
    """
    product_s = _Computation(bench, _PROBE_PRODUCTS).seconds() / _PROBE_PRODUCTS
    measurements = {}
    for name, (build, all_reduce_s) in builds.items():
        repeats = max(1, min(math.ceil(_MIN_TOTAL_S / all_reduce_s), _MAX_REPEATS))
        bench.load(size_bytes, {name: build}, repeats)
        end_clocks = bench.ends(name)
        computed_s = _COMPUTE_FRACTION * repeats * all_reduce_s
        alone, together = _measured(bench, end_clocks, computed_s / product_s, rounds)
        if together.reduce_s > _STALL_RATIO * alone.reduce_s:
            alone, together = _measured(bench, end_clocks, _STALL_RATIO * together.reduce_s / product_s, rounds)
        bench.unload()
        share, slowdown = contention_of(alone, together)
        count = min(max(math.ceil(_MIN_TOTAL_S / all_reduce_s), _MIN_AT_ONCE), _MAX_AT_ONCE)
        all_s = _at_once_s(bench, size_bytes, build, count, count * all_reduce_s / product_s, rounds)
        measurements[name] = ContentionMeasurement(
            share, slowdown, _occupancy(alone.reduce_s / repeats, slowdown, count, all_s)
        )
    return measurements


def _occupancy(alone_s: float, slowdown: float, count: int, all_s: float | None) -> float | None:
    """The occupancy from the time of several all-reduces at once; the first takes as long as one beside computation.

    With occupancy o and slowdown s, all arrive after (count - 1) * o + s times what one takes by itself.
    """
    if all_s is None:
        return None
    return max((all_s / alone_s - slowdown) / (count - 1), _MIN_OCCUPANCY)


def _at_once_s(
    bench: AllReduceBench, size_bytes: int, build: Build, count: int, products: float, rounds: int
) -> float | None:
    """The seconds until so many all-reduces that begin at once have all ended, beside a computation that outlasts them.

    All have the same roots: those of stars that follow each other do not, but what follows a star in a step may be
    anything. None: no computation could be made long enough.

    Args:
        bench: the cluster to measure on.
        size_bytes: bytes of the tensors.
        build: function that builds one all-reduce.
        count: number of all-reduces at once.
        products: number of matrix products in the time that these would take one after the other, by themselves.
        rounds: largest number of times that they are timed.
    """
    rounds = min(rounds, _MAX_ROUNDS_AT_ONCE)
    bench.load(size_bytes, {"at_once": build}, count, at_once=True)
    reduced = bench.ends("at_once")
    together = _together(bench, reduced, _OUTLASTING_RATIO * products, rounds)
    if not _is_covered(together):
        longer = together.reduce_s / together.compute_s
        together = _together(bench, reduced, _OUTLASTING_RATIO**2 * longer * products, rounds)
    bench.unload()
    return together.reduce_s if _is_covered(together) else None


def _is_covered(together: Durations) -> bool:
    return together.compute_s >= _MIN_COVERED_FRACTION * together.reduce_s


def _together(bench: AllReduceBench, reduced: Sequence[str], products: float, rounds: int) -> Durations:
    """Durations of all-reduces beside about so many products."""
    computation = _computation(bench, products)
    computation.durations(reduced)
    return _minimum([computation.durations(reduced) for _ in range(rounds)])


def _computation(bench: AllReduceBench, products: float) -> _Computation:
    return _Computation(bench, max(1, min(round(products), _MAX_PRODUCTS)))


def _measured(
    bench: AllReduceBench, reduced: Sequence[str], products: float, rounds: int
) -> tuple[Durations, Durations]:
    """Durations of all-reduces and about so many products, each by itself and both at once."""
    computation = _computation(bench, products)
    alone: list[Durations] = []
    together: list[Durations] = []
    computation.durations(reduced)
    for _ in range(rounds):
        alone.append(Durations(computation.seconds(), computation.seconds(reduced)))
        together.append(computation.durations(reduced))
    return _minimum(alone), _minimum(together)


def _minimum(durations: Sequence[Durations]) -> Durations:
    """The least durations: other work of a machine makes each longer, and few steps differently in each round."""
    return Durations(min(d.compute_s for d in durations), min(d.reduce_s for d in durations))


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
        """Run the ops before some clocks; mean seconds over the workers. Default: this computation."""
        return float(self._times(ends or self._ends).mean())

    def durations(self, others: Sequence[str]) -> Durations:
        """Run this together with the ops before the workers' other clocks."""
        times = self._times([*self._ends, *others])
        workers = self._bench.workers
        return Durations(float(times[:workers].mean()), float(times[workers:].mean()))

    def _times(self, ends: Sequence[str]) -> np.ndarray:
        values = np.array(self._bench.fetch([*self._starts, *ends], []), np.float64)
        starts, ended = values[: self._bench.workers], values[self._bench.workers :]
        return np.maximum(ended - np.resize(starts, ended.shape), _MIN_INTERVAL_S)


def _matrix(nodes: list[NodeDef], name: str, device: str) -> str:
    """Add a matrix that multiplied with itself stays as it is; the op that initialises it."""
    nodes.append(variable(name, _DTYPE, (_MATRIX_SIZE, _MATRIX_SIZE), device))
    value = filled(nodes, f"{name}/initial", 1 / _MATRIX_SIZE, (_MATRIX_SIZE, _MATRIX_SIZE), device)
    nodes.append(assign(f"{name}/initialise", name, value, _DTYPE, device))
    return nodes[-1].name


def _chain(nodes: list[NodeDef], name: str, matrix: str, products: int, device: str) -> str:
    """Add products one after the other; the op that keeps the last."""
    nodes.append(read(f"{name}/read", matrix, _DTYPE, device))
    first = last = nodes[-1].name
    for number in range(products):
        nodes.append(node(f"{name}/{number}", "MatMul", [last, first], device, T=dtype_attribute(_DTYPE)))
        last = nodes[-1].name
    nodes.append(assign(f"{name}/kept", matrix, last, _DTYPE, device))
    return nodes[-1].name
