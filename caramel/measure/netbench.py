"""Measuring a network, as `caramel netbench` does: its all-reduces are timed, and their times fitted."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from caramel.collectives.algorithms import ALL_REDUCE_NAMES, NATIVE, Schedules, all_reduce_named
from caramel.collectives.hierarchy import hierarchy_name
from caramel.errors import InputError
from caramel.measure.all_reduce_bench import (
    ELEMENT_BYTES,
    PRUNE_RATIO,
    AllReduceBench,
    build_for,
    devices_for,
    repetitions,
)
from caramel.measure.contention_bench import measure_contention
from caramel.netmodel.contention import Contention
from caramel.netmodel.line import Curve, Sample
from caramel.netmodel.model import LARGE_BYTES, MEASURED_DEPTHS, NetworkModel
from caramel.runtime.clusters.base import Cluster, workers_on_host
from caramel.util.arguments import chunk_count, timeout_s, whole_number, worker_count
from caramel.util.progress import progress_over
from caramel.util.units import format_size

SMALLEST_SIZE = 64
"""Bytes of a small tensor (Caramel, section 4.2), which is always measured: nothing else says what a start costs."""

DEFAULT_SIZES = (SMALLEST_SIZE, *(2**k for k in range(12, 26, 2)), 2**25)
"""Bytes of the tensors: 64 B and 4 MiB (Caramel, section 4.2), and a ladder up to 32 MiB."""

_PRUNE_FROM_BYTES = 2**20
"""Least size at which an all-reduce that falls far behind is not measured at larger sizes any more; at smaller sizes,
chunks fall behind that win when they are long enough."""

_MOST_BYTES = 2**31 - 1
"""Bytes of the largest tensor that a message of gRPC can carry."""

_SIZE_RATIO = 8
"""Least ratio between two sizes that are measured beside computation."""

_MIN_CONTENTION_BYTES = 2**12
"""Bytes of the smallest of them: smaller ones take about as long."""

_CANDIDATE_RATIO = 1.25
"""Ratio to the fastest time up to which an all-reduce may be the fastest beside computation."""

_ALWAYS_CANDIDATE = ("shuffle", 1)
"""Algorithm and depth that are always measured beside computation: with few rounds and spread work, several at once
may be fast where one by itself is not."""


@dataclass(frozen=True)
class Settings:
    """The settings of a measurement.

    Attributes:
        sizes: bytes of the tensors; 64 bytes are measured, too, unless there is a smaller one.
        algorithms: names of the algorithms.
        depths: numbers of chunks; `native` has depth 1 only.
        rounds: number of times that each is timed.
        contention: whether to measure how all-reduces and computation slow each other down.
        prune: whether to spend less time on all-reduces far behind the fastest, and more on those close to it.
        timeout_s: seconds that one step may take.
        longest_s: seconds that the fastest all-reduce of a size may take; larger sizes are left out. The two smallest
            are measured in any case.
        sizes_beside: largest number of sizes that are measured beside computation, 2 or 3.
        candidates: largest number of all-reduces of a size that are measured beside computation, the fastest first.
        budget_s: seconds from the start within which larger sizes are begun that will end by then, as it seems; what
            runs beside computation comes after them.
        hierarchy: whether to measure the hierarchical all-reduce of the cluster's hosts, too, where some workers share
            one and not all do.
    """

    sizes: tuple[int, ...] = DEFAULT_SIZES
    algorithms: tuple[str, ...] = ALL_REDUCE_NAMES
    depths: tuple[int, ...] = MEASURED_DEPTHS
    rounds: int = 7
    contention: bool = True
    prune: bool = True
    timeout_s: float = 300.0
    longest_s: float = 5.0
    sizes_beside: int = 3
    candidates: int = 6
    budget_s: float = math.inf
    hierarchy: bool = True

    def __post_init__(self) -> None:
        reason = "TensorFlow sends a tensor in one message, which has at most 2 GiB"
        sizes = (whole_number(n, "each size", most=_MOST_BYTES, reason=reason) for n in self.sizes)
        object.__setattr__(self, "sizes", tuple(sizes))
        object.__setattr__(self, "depths", tuple(chunk_count(n, "each depth") for n in self.depths))
        object.__setattr__(self, "rounds", whole_number(self.rounds, "rounds"))
        object.__setattr__(self, "sizes_beside", whole_number(self.sizes_beside, "sizes_beside", 2, 3))
        object.__setattr__(self, "candidates", whole_number(self.candidates, "candidates"))
        if not self.budget_s > 0.0:
            raise InputError(f"budget_s must be positive, got {self.budget_s!r}")
        for name in ("timeout_s", "longest_s"):
            object.__setattr__(self, name, timeout_s(getattr(self, name), name))
        if not self.algorithms:
            raise InputError("give at least one algorithm to measure")
        for name in self.algorithms:
            all_reduce_named(name)
        if self.sizes and min(self.sizes) > SMALLEST_SIZE:
            object.__setattr__(self, "sizes", (SMALLEST_SIZE, *self.sizes))
        if len(set(self.sizes)) < 2 or min(self.sizes) < ELEMENT_BYTES:
            raise InputError(
                f"a line needs at least 2 different sizes of at least {ELEMENT_BYTES} bytes, got "
                f"{', '.join(format_size(size) for size in self.sizes) or 'none'}: give another size (--size)"
            )
        if not self.depths:
            raise InputError("give at least one depth to measure")

    def choices(self) -> list[tuple[str, int]]:
        """Pairs of algorithm and depth."""
        return [(a, d) for a in self.algorithms for d in (self.depths if a != NATIVE else (1,))]


QUICK = Settings(
    sizes=(SMALLEST_SIZE, *(2**k for k in (14, 18, 20, 22, 24, 26, 28))),
    algorithms=tuple(name for name in ALL_REDUCE_NAMES if name != NATIVE),
    depths=(1, 4),
    rounds=2,
    longest_s=1.0,
    sizes_beside=2,
    candidates=1,
    budget_s=35.0,
)
"""A first look, in less than a minute: up to the size whose all-reduce takes a second."""

_LEAST_SIZES = 3
"""Number of sizes that `quick_up_to` measures in any case."""


def quick_up_to(largest_bytes: int) -> Settings:
    """A first look for transfers up to a size: `QUICK` without sizes that are larger than need be.

    Args:
        largest_bytes: bytes of the largest transfer.
    """
    needed = sum(size < largest_bytes for size in QUICK.sizes) + 1
    return replace(QUICK, sizes=QUICK.sizes[: max(needed, _LEAST_SIZES)])


def measure_network(
    cluster: Cluster,
    workers: Collection[int],
    settings: Settings | None = None,
    description: str = "",
    on_network: Callable[[NetworkModel], None] = lambda network: None,
    device_list: Sequence[str] = (),
) -> NetworkModel:
    """Measure all-reduces and fit the model of the network.

    Args:
        cluster: the cluster on which the workers start.
        workers: one or more numbers of workers, each at least 2.
        settings: settings of the measurement; default: `Settings()`.
        description: description of the place, for the reader of the file.
        on_network: function that is called after each number of workers with the model fitted so far.
        device_list: device string of each worker; empty for those of the cluster. Fewer workers have the first ones.

    Returns:
        The model, with a curve for each number of workers, algorithm and depth.

    Raises:
        ClusterError: a worker cannot be started or reached.
        FitError: too few sizes could be measured.
    """
    settings = settings or Settings()
    numbers = sorted({worker_count(number, "each number of workers") for number in workers})
    if not numbers:
        raise InputError("give at least one number of workers")
    curves: list[Curve] = []
    gammas: list[float] = []
    contentions: list[Contention] = []
    rounds_per_number = (len(set(settings.sizes)) + len(_sizes_beside(settings))) * settings.rounds
    total = len(numbers) * rounds_per_number
    with cluster.held(numbers[-1]), progress_over(total) as show_progress:
        for position, number in enumerate(numbers):
            done = position * rounds_per_number
            of_number = _with_hierarchy(settings, cluster, devices_for(cluster, number, device_list))

            def report(rounds: int, text: str, base: int = done) -> None:
                show_progress(base + rounds, text)

            new_curves, gamma, new_contentions = _measure(cluster, number, of_number, report, device_list)
            curves += new_curves
            gammas.append(gamma)
            contentions += new_contentions
            network = NetworkModel(
                description or "measured", tuple(curves), min(gammas), contentions=tuple(contentions)
            )
            on_network(network)
    return network


def _with_hierarchy(settings: Settings, cluster: Cluster, devices: Sequence[str]) -> Settings:
    """The settings with the all-reduce for the cluster's hosts, if workers share them and it is asked for."""
    on_host = workers_on_host(cluster.hosts_of(devices))
    name = hierarchy_name(on_host)
    if not settings.hierarchy or not 1 < on_host < len(devices) or name in settings.algorithms:
        return settings
    return replace(settings, algorithms=(*settings.algorithms, name))


def _falls_behind(ratios: Sequence[float]) -> bool:
    """Whether an all-reduce was far behind the fastest at two sizes, and fell further behind."""
    return len(ratios) >= 2 and min(ratios[-2:]) > PRUNE_RATIO and ratios[-1] >= ratios[-2]


def _measure(
    cluster: Cluster,
    workers: int,
    settings: Settings,
    report: Callable[[int, str], None],
    device_list: Sequence[str],
) -> tuple[list[Curve], float, list[Contention]]:
    samples: dict[tuple[str, int], list[Sample]] = {}
    slowness: dict[tuple[str, int], list[float]] = {choice: [] for choice in settings.choices()}
    schedules = Schedules()
    fastest: list[Sample] = []
    began_s = ended_s = time.monotonic()
    taken_s = 0.0  # by the last size
    with AllReduceBench(cluster, workers, settings.timeout_s, NATIVE in settings.algorithms, device_list) as bench:
        for position, size in enumerate(sorted(set(settings.sizes))):
            expected_s = _expected_s(fastest, size)
            if expected_s > settings.longest_s:
                break
            growth = expected_s / fastest[-1].time_s if expected_s > 0.0 else 1.0
            if position >= 2 and ended_s - began_s + taken_s * growth > settings.budget_s:
                break
            choices = [c for c, ratios in slowness.items() if not (settings.prune and _falls_behind(ratios))]
            builds = {f"{a}_{d}": build_for(schedules, bench, a, d, size) for a, d in choices}
            bench.load(size, builds, repetitions(size, expected_s))

            def on_round(n: int, position: int = position, size: int = size) -> None:
                report(position * settings.rounds + n, f"{workers} workers, {size} bytes")

            times = {
                c: statistics.median(t)
                for c, t in zip(choices, bench.measure(settings.rounds, on_round, settings.prune).values())
            }
            fastest.append(Sample(size, min(times.values())))
            for choice in choices:
                samples.setdefault(choice, []).append(Sample(size, times[choice]))
                if size >= _PRUNE_FROM_BYTES:
                    slowness[choice].append(times[choice] / min(times.values()))
            bench.unload()
            now_s = time.monotonic()
            taken_s, ended_s = now_s - ended_s, now_s
        gamma = bench.additions_s_per_byte()
        curves = [Curve.fitted(workers, a, d, samples_of_choice) for (a, d), samples_of_choice in samples.items()]
        measured = replace(settings, sizes=tuple(sample.size_bytes for sample in fastest))
        contentions = _contentions(bench, schedules, curves, measured, report)
    return curves, gamma, contentions


def _expected_s(fastest: Sequence[Sample], size_bytes: int) -> float:
    """Seconds of the fastest all-reduce of a larger size, by those of the two sizes before it; 0 before these."""
    if len(fastest) < 2:
        return 0.0
    before, last = fastest[-2:]
    slope = max(last.time_s - before.time_s, 0.0) / (last.size_bytes - before.size_bytes)
    return last.time_s + slope * (size_bytes - last.size_bytes)


def _sizes_beside(settings: Settings) -> list[int]:
    """Bytes of a bucket, of a smaller one, and of a few biases, as far as they are measured; the largest first."""
    if not settings.contention:
        return []
    larger = [size for size in settings.sizes if size > SMALLEST_SIZE] or settings.sizes
    sizes = [max((size for size in larger if size <= LARGE_BYTES), default=min(larger))]
    for pick, least_bytes in ((max, 0), (min, _MIN_CONTENTION_BYTES)):
        smaller = [size for size in settings.sizes if least_bytes <= size <= sizes[-1] / _SIZE_RATIO]
        sizes += [pick(smaller)] if smaller else []
    return sizes if settings.sizes_beside == 3 else [sizes[0], *sizes[1:][-1:]]


def _contentions(
    bench: AllReduceBench,
    schedules: Schedules,
    curves: Sequence[Curve],
    settings: Settings,
    report: Callable[[int, str], None],
) -> list[Contention]:
    """Contentions of the all-reduces that are about as fast as the fastest, at this size or a larger one.

    Otherwise those that are slow at small sizes would seem to be as little slowed down there as at large ones. The
    one with few rounds and spread work is among them at all sizes: several at once may be fast where one by itself is
    not.
    """
    network = NetworkModel("", tuple(curves))
    kinds = [(curve.algorithm, curve.depth) for curve in curves]
    contentions: list[Contention] = []
    chosen: dict[tuple[str, int], None] = {_ALWAYS_CANDIDATE: None} if _ALWAYS_CANDIDATE in kinds else {}
    for position, size in enumerate(_sizes_beside(settings), len(set(settings.sizes))):
        times_s = {kind: network.predict(*kind, bench.workers, size).time_s for kind in kinds}
        best_first = sorted(kinds, key=lambda kind: times_s[kind])
        close = [kind for kind in best_first if times_s[kind] <= _CANDIDATE_RATIO * times_s[best_first[0]]]
        chosen |= dict.fromkeys(close[: settings.candidates])
        builds = {f"{a}_{d}": (build_for(schedules, bench, a, d, size), times_s[a, d]) for a, d in chosen}

        def on_begin(done: int, position: int = position, size: int = size, count: int = len(builds)) -> None:
            rounds = settings.rounds * position + settings.rounds * done // count
            report(rounds, f"{bench.workers} workers, {size} bytes beside computation")

        measured = measure_contention(bench, size, builds, settings.rounds, on_begin)
        contentions += [Contention(bench.workers, a, d, size, **vars(measured[f"{a}_{d}"])) for a, d in chosen]
    return contentions
