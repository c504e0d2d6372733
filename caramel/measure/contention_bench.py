"""Measuring how computation and all-reduces that run at once slow each other down.

In a training step the workers compute while gradients travel. What moves bytes takes processor time from the
computation, and waits for it: both take longer than by themselves. So all workers multiply matrices, as long as
all-reduces take, by itself and beside these. And where gradients are more than the network can carry, several
all-reduces are under way, and wait at once: so several that begin at once are timed beside computation, too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caramel.graph.graph import NodeDef
from caramel.graph.nodes import assign, constant, dtype_attribute, node, read, shape_attribute, variable
from caramel.measure.all_reduce_bench import AllReduceBench, Build, clock, filled
from caramel.netmodel.contention import MOST_PROCESSOR_SHARE, Durations, contention_of

_DTYPE = "float32"
_FLOAT32, _INT32 = dtype_attribute(_DTYPE), dtype_attribute("int32")
_MATRIX_SIZE = 512
"""Rows and columns of the matrices, 1 MiB each; one product takes a core some milliseconds."""

_OPS_AT_ONCE = 2
"""Largest number of products that a worker makes at once, as a training step does: a layer's gradients by its inputs
and by its weights do not wait for each other. On four hosts with links of 75 Mbit/s that share two cores, a ring of 64
KiB takes 1.8 times as long beside one at once on each worker, and 2.5 times beside two."""

_PROBE_PRODUCTS, _MAX_PRODUCTS = 8, 2000
"""Number of products with which one is timed first, and the largest number in a computation."""

_MIN_TOTAL_S = 0.3
"""Least seconds for which all-reduces follow each other: no computation in training is shorter, pauses included."""

_MAX_REPEATS = 64
"""Largest number of all-reduces that follow each other."""

_MIN_INTERVAL_S = 1e-6
"""Least seconds between two clocks: nothing orders the clock at the start and an op that ends at once."""

_MIN_AT_ONCE, _MAX_AT_ONCE = 4, 32
"""Least and largest number of all-reduces that begin at once, as transfers of a step do where there are too many.

Small ones take less of many: between four local servers that share two cores, a shuffle of 4 KiB takes 4.6 ms from the
computation if one follows the other, and 2.1 ms of 16 at once."""

_LEAST_ROUNDS = 3
"""Least number of times that all-reduces are timed beside computation: lost packets stop one of a few."""

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
    bench: AllReduceBench,
    size_bytes: int,
    builds: Mapping[str, tuple[Build, float]],
    rounds: int,
    on_begin: Callable[[int], None] = lambda done: None,
) -> dict[str, ContentionMeasurement]:
    """Measure the contention of all-reduces of one size.

    Args:
        bench: the cluster to measure on.
        size_bytes: bytes of the tensors.
        builds: function that builds an all-reduce, and the seconds that it takes, by name.
        rounds: number of times that each is timed, in turn, after a round to warm up; one more if the computation turns
            out to be too short.
        on_begin: function that is called before each all-reduce with the number of those that are done.

    Returns:
        The measurement of each, by name.

    Raises:
        ClusterError: a worker cannot be reached.
    """
    computation = _Computation(bench)
    product_s = computation.seconds(_PROBE_PRODUCTS) / _PROBE_PRODUCTS
    measurements = {}
    for done, (name, (build, all_reduce_s)) in enumerate(builds.items()):
        on_begin(done)
        repeats = max(1, min(math.ceil(_MIN_TOTAL_S / all_reduce_s), _MAX_REPEATS))
        bench.load(size_bytes, {name: build}, repeats)
        end_clocks = bench.ends(name)
        computed_s = _COMPUTE_FRACTION * repeats * all_reduce_s
        alone, together = _measured(computation, end_clocks, computed_s, product_s, rounds)
        bench.unload()
        share, slowdown = contention_of(alone, together)
        count = min(max(math.ceil(_MIN_TOTAL_S / all_reduce_s), _MIN_AT_ONCE), _MAX_AT_ONCE)
        bench.load(size_bytes, {"at_once": build}, count, at_once=True)
        at_once = _at_once(computation, bench.ends("at_once"), count * all_reduce_s / product_s, rounds)
        bench.unload()
        alone_s = alone.reduce_s / repeats
        if at_once is None:
            measurements[name] = ContentionMeasurement(share, slowdown, None)
        else:
            # One after the other, each message finds the workers computing and has to wake a thread. Of several
            # all-reduces, a thread that is awake handles what has come from all of them.
            share = min(at_once.taken_s / count / (slowdown * alone_s), MOST_PROCESSOR_SHARE)
            measurements[name] = ContentionMeasurement(
                share, slowdown, _occupancy(alone_s, slowdown, count, at_once.all_s)
            )
    return measurements


@dataclass(frozen=True)
class _AtOnce:
    """Several all-reduces that began at once, beside a computation that outlasted them.

    Attributes:
        all_s: seconds until all had ended.
        taken_s: seconds by which the computation was longer.
    """

    all_s: float
    taken_s: float


def _occupancy(alone_s: float, slowdown: float, count: int, all_s: float) -> float:
    """The occupancy from the time of several all-reduces at once; the first takes as long as one beside computation.

    With occupancy o and slowdown s, all arrive after (count - 1) * o + s times what one takes by itself.
    """
    return max((all_s / alone_s - slowdown) / (count - 1), _MIN_OCCUPANCY)


def _at_once(computation: _Computation, reduced: Sequence[str], products: float, rounds: int) -> _AtOnce | None:
    """Measure all-reduces that begin at once, beside a computation that outlasts them.

    All have the same roots: those of stars that follow each other do not, but what follows a star in a step may be
    anything. None: no computation could be made long enough.

    Args:
        computation: what is computed beside them.
        reduced: for each worker the tensor that says when all have ended there.
        products: number of matrix products in the time that these would take one after the other, by themselves.
        rounds: largest number of times that they are timed.
    """
    rounds = min(rounds, _MAX_ROUNDS_AT_ONCE)
    count = _product_count(_OUTLASTING_RATIO * products)
    warm_up = computation.durations(count, reduced)
    if not _is_covered(warm_up):
        count = _product_count(_OUTLASTING_RATIO**2 * products * warm_up.reduce_s / warm_up.compute_s)
    alone_s, together = [computation.seconds(count)], []
    for _ in range(rounds):
        together.append(computation.durations(count, reduced))
        alone_s.append(computation.seconds(count))
    found = _median(together)
    taken_s = max(found.compute_s - statistics.fmean(alone_s), 0.0)
    return _AtOnce(found.reduce_s, taken_s) if _is_covered(found) else None


def _is_covered(together: Durations) -> bool:
    return together.compute_s >= _MIN_COVERED_FRACTION * together.reduce_s


def _measured(
    computation: _Computation, reduced: Sequence[str], computed_s: float, product_s: float, rounds: int
) -> tuple[Durations, Durations]:
    """Durations of all-reduces and of a computation, each by itself and both at once.

    Args:
        computation: what is computed beside them.
        reduced: for each worker the tensor that says when all have ended there.
        computed_s: seconds that the computation takes; longer if that turns out to be too short.
        product_s: seconds of a product.
        rounds: number of times that they are timed; at least 3 unless it is 1.
    """
    rounds = max(rounds, _LEAST_ROUNDS) if rounds > 1 else 1

    def durations(count: int, rounds: int) -> tuple[list[Durations], list[Durations]]:
        alone, together = [], []
        for _ in range(rounds):
            alone.append(Durations(computation.seconds(count), computation.reduce_seconds(reduced)))
            together.append(computation.durations(count, reduced))
        return alone, together

    count = _product_count(computed_s / product_s)
    computation.durations(count, reduced)
    alone, together = durations(count, 1)
    if together[0].reduce_s > _STALL_RATIO * alone[0].reduce_s:
        alone, together = durations(_product_count(_STALL_RATIO * together[0].reduce_s / product_s), rounds)
    else:
        more_alone, more_together = durations(count, rounds - 1)
        alone, together = alone + more_alone, together + more_together
    return _median(alone), _median(together)


def _product_count(products: float) -> int:
    return max(1, min(round(products), _MAX_PRODUCTS))


def _median(durations: Sequence[Durations]) -> Durations:
    """The median durations. How long what runs at once takes differs from time to time, as it does in a step."""
    return Durations(
        statistics.median(d.compute_s for d in durations), statistics.median(d.reduce_s for d in durations)
    )


class _Computation:
    """Products of matrices on each worker, with the times at which they begin and end.

    As many are made at once as a training step computes at once; the others follow these. The clock is each worker's
    own. The products are a loop, whose length is a variable: a graph of their own for each
    length would have tens of thousands of nodes, and TensorFlow goes through all nodes for each new step.
    """

    _count = 0

    def __init__(self, bench: AllReduceBench) -> None:
        _Computation._count += 1
        self._bench = bench
        scope = f"contention_{_Computation._count}"
        nodes: list[NodeDef] = [
            node(f"{scope}/count", "Placeholder", (), bench.devices[0], dtype=_INT32, shape=shape_attribute(()))
        ]
        self._fed_count = f"{scope}/count:0"
        self._products: int | None = None
        initialised, self._set_count, self._starts, self._ends = [], [], [], []
        for rank, placed in enumerate(bench.devices):
            device = placed.partition("/device:")[0]  # not on the processors if the worker computes elsewhere
            self._starts.append(clock(nodes, f"{scope}/start_{rank}", (), device))
            length = f"{scope}/length_{rank}"
            nodes += [
                variable(length, "int32", (), placed),
                assign(f"{length}/set", length, f"{scope}/count", "int32", placed),
                read(f"{length}/read", length, "int32", placed),
            ]
            self._set_count.append(f"{length}/set")
            initialised.append(_matrix(nodes, f"{scope}/matrix_{rank}", device))
            matrix, count = f"{scope}/matrix_{rank}", f"{length}/read"
            last = [
                _products(nodes, f"{scope}/product_{rank}_{loop}", matrix, count, device)
                for loop in range(min(_OPS_AT_ONCE, bench.computing_threads))
            ]
            self._ends.append(clock(nodes, f"{scope}/end_{rank}", last, device))
        bench.extend(nodes)
        bench.fetch([], initialised)
        self.seconds(1)

    def seconds(self, count: int) -> float:
        """Compute so many products; mean seconds over the workers."""
        self._set(count)
        return float(self._times(self._ends).mean())

    def reduce_seconds(self, others: Sequence[str]) -> float:
        """Run the ops before the workers' other clocks alone; mean seconds over the workers."""
        return float(self._times(others).mean())

    def durations(self, count: int, others: Sequence[str]) -> Durations:
        """Compute so many products together with the ops before the workers' other clocks."""
        self._set(count)
        times = self._times([*self._ends, *others])
        workers = self._bench.workers
        return Durations(float(times[:workers].mean()), float(times[workers:].mean()))

    def _set(self, count: int) -> None:
        """Tell the workers how many products to make, in a step of its own: nothing is on its way while they do."""
        if count != self._products:
            self._bench.fetch([], self._set_count, {self._fed_count: np.int32(count)})
            self._products = count

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


def _products(nodes: list[NodeDef], name: str, matrix: str, length: str, device: str) -> str:
    """Add a loop of products, each of the one before and the matrix; the op that keeps the last.

    These are TensorFlow's own ops of loops: values enter, go round while there are products to make, and leave.
    """

    def add(op: str, op_name: str, inputs: Sequence[str], dtype: Any, **attributes: Any) -> str:
        nodes.append(node(f"{name}/{op_name}", op, inputs, device, T=dtype, **attributes))
        return nodes[-1].name

    frame = {"frame_name": name.encode(), "parallel_iterations": 1}
    nodes.append(read(f"{name}/read", matrix, _DTYPE, device))
    nodes += [constant(f"{name}/{number}", np.int32(number), "int32", device) for number in (0, 1)]
    total = add("Enter", "total", [length], _INT32, is_constant=True, **frame)
    one = add("Enter", "one", [f"{name}/1"], _INT32, is_constant=True, **frame)
    factor = add("Enter", "factor", [f"{name}/read"], _FLOAT32, is_constant=True, **frame)
    entered = {
        "done": (add("Enter", "enter_done", [f"{name}/0"], _INT32, **frame), _INT32),
        "product": (add("Enter", "enter_product", [f"{name}/read"], _FLOAT32, **frame), _FLOAT32),
    }
    merged = {
        key: add("Merge", f"merge_{key}", [start, f"{name}/next_{key}"], dtype, N=2)
        for key, (start, dtype) in entered.items()
    }
    less = add("Less", "less", [merged["done"], total], _INT32)
    nodes.append(node(f"{name}/goes_on", "LoopCond", [less], device))
    for key, (_, dtype) in entered.items():
        add("Switch", f"switch_{key}", [merged[key], f"{name}/goes_on"], dtype)
    add("AddV2", "add", [f"{name}/switch_done:1", one], _INT32)
    add("MatMul", "multiply", [f"{name}/switch_product:1", factor], _FLOAT32)
    add("NextIteration", "next_done", [f"{name}/add"], _INT32)
    add("NextIteration", "next_product", [f"{name}/multiply"], _FLOAT32)
    last = add("Exit", "exit", [f"{name}/switch_product"], _FLOAT32)
    nodes.append(assign(f"{name}/kept", matrix, last, _DTYPE, device))
    return nodes[-1].name
