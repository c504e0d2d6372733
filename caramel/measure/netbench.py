"""Measuring a network, as `caramel netbench` does: its all-reduces are timed, and their times fitted."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from caramel.collectives.algorithms import ALL_REDUCE_NAMES, NATIVE, Schedules, check_algorithm
from caramel.errors import InputError
from caramel.measure.all_reduce_bench import ELEMENT_BYTES, HOPELESS, AllReduceBench, build_for
from caramel.measure.contention_bench import measure_contention
from caramel.netmodel.contention import Contention
from caramel.netmodel.line import Curve, Sample
from caramel.netmodel.model import LARGE_BYTES, MEASURED_DEPTHS, NetworkModel
from caramel.runtime.clusters.base import Cluster
from caramel.util.arguments import whole_number
from caramel.util.progress import progress_over

DEFAULT_SIZES = (64, *(2**k for k in range(12, 26, 2)), 2**25)
"""64 B and 4 MiB (Caramel, section 4.2), and a ladder up to 32 MiB."""

_GIVEN_UP_FROM_BYTES = 2**20
"""From this size on, what is hopeless and falls behind is not measured at larger sizes; below, chunks look hopeless
that win when they are long enough."""

_SMALLER = 8
"""Sizes that are measured beside computation differ by at least so many times."""

_SMALL_BYTES = 2**12
"""The smallest of them: what is about as small takes about as long."""

_NEAR, _MOST_NEAR = 1.25, 6
"""What takes so many times as long as the fastest may be the fastest beside computation; so many are tried."""

_ALWAYS_BESIDE = ("shuffle", 1)
"""Has few rounds and spreads its work: several at once may be fast where one by itself is not."""


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
        sizes: bytes of the tensors.
        algorithms: names.
        depths: numbers of chunks; `native` has depth 1 only.
        rounds: how often each is timed.
        contention: whether to measure how all-reduces and computation are in each other's way.
        prune: whether to spend less time on what is far behind, and more on what is close to the fastest.
        timeout_s: of one step.
    """

    sizes: tuple[int, ...] = DEFAULT_SIZES
    algorithms: tuple[str, ...] = ALL_REDUCE_NAMES
    depths: tuple[int, ...] = MEASURED_DEPTHS
    rounds: int = 7
    contention: bool = True
    prune: bool = True
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        for name, what in (("sizes", "size"), ("depths", "depth")):
            object.__setattr__(self, name, tuple(whole_number(n, f"each {what}") for n in getattr(self, name)))
        object.__setattr__(self, "rounds", whole_number(self.rounds, "rounds"))
        if not self.algorithms:
            raise InputError("give at least one algorithm to measure")
        for name in self.algorithms:
            check_algorithm(name)
        if len(set(self.sizes)) < 2 or min(self.sizes) < ELEMENT_BYTES:
            raise InputError(
                f"a line needs at least 2 different sizes of at least {ELEMENT_BYTES} bytes, got {self.sizes}"
            )
        if not self.depths:
            raise InputError("give at least one depth to measure")

    def choices(self) -> list[tuple[str, int]]:
        """Pairs of algorithm and depth."""
        return [(a, d) for a in self.algorithms for d in (self.depths if a != NATIVE else (1,))]


def measure_network(
    cluster: Cluster,
    workers: Collection[int],
    settings: Settings | None = None,
    description: str = "",
    on_network: Callable[[NetworkModel], None] = lambda network: None,
) -> NetworkModel:
    """Measure all-reduces and fit the model of the network.

    Args:
        cluster: where to start the workers.
        workers: one or more numbers of workers, each at least 2.
        settings: what to measure.
        description: where this is, for the reader of the file.
        on_network: called after each number of workers with the model of what is measured so far.

    Returns:
        The model, with a curve for each number of workers, algorithm and depth.

    Raises:
        ClusterError: a worker cannot be started or reached.
        FitError: too few sizes could be measured.
    """
    settings = settings or Settings()
    numbers = sorted({whole_number(number, "each number of workers") for number in workers})
    if not numbers:
        raise InputError("give at least one number of workers")
    curves: list[Curve] = []
    gammas: list[float] = []
    contentions: list[Contention] = []
    each = (len(set(settings.sizes)) + len(_sizes_beside(settings))) * settings.rounds
    total = len(numbers) * each
    with cluster.held(numbers[-1]), progress_over(total) as show:
        for position, number in enumerate(numbers):
            done = position * each

            def tell(rounds: int, text: str, base: int = done) -> None:
                show(base + rounds, text)

            found, gamma, beside = _measure(cluster, number, settings, tell)
            curves += found
            gammas.append(gamma)
            contentions += beside
            network = NetworkModel(
                description or "measured", tuple(curves), min(gammas), contentions=tuple(contentions)
            )
            on_network(network)
    return network


def _is_hopeless(ratios: Sequence[float]) -> bool:
    """Whether something was far behind the fastest at two sizes, and fell further behind."""
    return len(ratios) >= 2 and min(ratios[-2:]) > HOPELESS and ratios[-1] >= ratios[-2]


def _measure(
    cluster: Cluster, workers: int, settings: Settings, tell: Callable[[int, str], None]
) -> tuple[list[Curve], float, list[Contention]]:
    samples: dict[tuple[str, int], list[Sample]] = {}
    slowness: dict[tuple[str, int], list[float]] = {choice: [] for choice in settings.choices()}
    schedules = Schedules()
    with AllReduceBench(cluster, workers, settings.timeout_s, NATIVE in settings.algorithms) as bench:
        for position, size in enumerate(sorted(set(settings.sizes))):
            choices = [c for c, ratios in slowness.items() if not (settings.prune and _is_hopeless(ratios))]
            bench.load(size, {f"{a}_{d}": build_for(schedules, bench, a, d, size) for a, d in choices})

            def on_round(n: int, position: int = position, size: int = size) -> None:
                tell(position * settings.rounds + n, f"{workers} workers, {size} bytes")

            times = {
                c: statistics.median(t)
                for c, t in zip(choices, bench.measure(settings.rounds, on_round, settings.prune).values())
            }
            for choice in choices:
                samples.setdefault(choice, []).append(Sample(size, times[choice]))
                if size >= _GIVEN_UP_FROM_BYTES:
                    slowness[choice].append(times[choice] / min(times.values()))
            bench.unload()
        gamma = bench.additions_s_per_byte()
        curves = [Curve.fitted(workers, a, d, found) for (a, d), found in samples.items()]
        beside = _contentions(bench, schedules, curves, settings, tell)
    return curves, gamma, beside


def _sizes_beside(settings: Settings) -> list[int]:
    """A size of a bucket, a smaller one, and that of a few biases, as far as they are measured; the largest first."""
    if not settings.contention:
        return []
    found = [max((size for size in settings.sizes if size <= LARGE_BYTES), default=min(settings.sizes))]
    for pick, least in ((max, 0), (min, _SMALL_BYTES)):
        smaller = [size for size in settings.sizes if least <= size <= found[-1] / _SMALLER]
        found += [pick(smaller)] if smaller else []
    return found


def _contentions(
    bench: AllReduceBench,
    schedules: Schedules,
    curves: Sequence[Curve],
    settings: Settings,
    tell: Callable[[int, str], None],
) -> list[Contention]:
    """Of what is about as fast as the fastest, beside computation; at smaller sizes also what is at larger ones.

    Otherwise what is slow at small sizes would seem to be as little slowed down there as at large ones. What has few
    rounds and spreads its work is among them at all sizes: several at once may be fast where one by itself is not.
    """
    network = NetworkModel("", tuple(curves))
    kinds = [(curve.algorithm, curve.depth) for curve in curves]
    found: list[Contention] = []
    chosen: dict[tuple[str, int], None] = {_ALWAYS_BESIDE: None} if _ALWAYS_BESIDE in kinds else {}
    for position, size in enumerate(_sizes_beside(settings), len(set(settings.sizes))):
        tell(position * settings.rounds, f"{bench.workers} workers, {size} bytes beside computation")
        times_s = {kind: network.predict(*kind, bench.workers, size).time_s for kind in kinds}
        best_first = sorted(kinds, key=lambda kind: times_s[kind])
        near = [kind for kind in best_first if times_s[kind] <= _NEAR * times_s[best_first[0]]][:_MOST_NEAR]
        chosen |= dict.fromkeys(near)
        builds = {f"{a}_{d}": (build_for(schedules, bench, a, d, size), times_s[a, d]) for a, d in chosen}
        measured = measure_contention(bench, size, builds, settings.rounds)
        found += [Contention(bench.workers, a, d, size, **vars(measured[f"{a}_{d}"])) for a, d in chosen]
    return found
