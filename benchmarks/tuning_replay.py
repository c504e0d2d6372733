"""``python -m benchmarks.tuning_replay``: how many trials searches need, by replay on a measured grid.

The grid is ByteScheduler's: sizes of pieces, and credits. Each of its settings is run once on hosts with emulated
accelerators: computation takes time, but no processor. Searches are then replayed on these times, with many seeds, as
in Figure 14 of the paper.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import click
import numpy as np

from benchmarks.output import errors_for_click, markdown_table, write_json
from benchmarks.turns import open_hosts
from caramel.tuning.bayesian import BayesianSearch
from caramel.util.progress import progress_over
from caramel.util.units import format_size

PARTITIONS_BYTES = tuple(2**power for power in range(16, 24))
CREDITS = (1, 2, 4, 8)
"""Credits, in pieces."""

SEEDS = 30
NEAR = 0.02
"""Part of the shortest step within which a search has found it (ByteScheduler, Figure 14)."""

_SETTLING_STEPS = 4


# -- the grid ------------------------------------------------------------------------------------


def measure(profile: str, workers: int, rho: float, steps: int, show: Callable[[int, str], None]) -> dict[str, Any]:
    """Seconds of a step with each setting.

    Args:
        profile: name of the emulated network.
        workers: number of workers, each on a host of its own.
        rho: seconds in which a balanced all-reduce of all gradients keeps a link busy, over seconds of computation.
        steps: number of timed steps of each setting.
        show: function that shows progress: number of settings done, and the next one.

    Raises:
        CaramelError: a training fails.
    """
    import caramel
    from benchmarks.training.accelerated import Accelerated
    from benchmarks.training.ours import captured
    from benchmarks.training.profiles import COMPUTATION_S, EMULATED, TOTAL_BYTES
    from caramel.measure.timed_steps import timed_steps

    rate = 2 * (workers - 1) / workers * TOTAL_BYTES / (rho * COMPUTATION_S)
    context = captured(EMULATED[profile])
    settings = [(size, credit) for size in PARTITIONS_BYTES for credit in CREDITS]
    found: list[dict[str, Any]] = []
    with ExitStack() as opened:
        emulated = Accelerated(open_hosts(opened, workers, rate))
        network = caramel.NetworkModel.from_link_rate(rate)
        trace = caramel.trace(context, workers=workers, cluster=emulated)
        hosts = opened.enter_context(emulated.shared())
        for number, (size, credit) in enumerate(settings):
            show(number, f"pieces of {format_size(size)}, credit of {credit}")
            model = caramel.ARModel(context, workers, analyzers=_analyzers(trace, size, credit), network=network)
            with model.session(hosts) as session:
                timed_steps(session, None, _SETTLING_STEPS)
                times_s = timed_steps(session, None, steps)
            transfers = len(model.plan.transfers)
            found.append({"partition_bytes": size, "credit": credit, "transfers": transfers, "times_s": times_s})
    return {"network": profile, "workers": workers, "rho": rho, "rate_bytes_per_s": rate, "settings": found}


def _analyzers(trace: Any, partition_bytes: int, credit: int) -> list[Any]:
    from caramel.analyzers import bytescheduler
    from caramel.analyzers.policies.batching import single
    from caramel.analyzers.policies.best_order import best_order
    from caramel.analyzers.policies.control_edges import serialization
    from caramel.analyzers.policies.transfers import adaptive_depth
    from caramel.analyzers.step.boundaries import boundaries
    from caramel.analyzers.step.dependencies import dependencies
    from caramel.analyzers.step.op_times import given_trace

    queue = bytescheduler(partition_bytes, credit * partition_bytes)
    facts = [dependencies(), given_trace(trace), best_order(True), serialization(), boundaries()]
    return [*facts, single(), queue, adaptive_depth()]


# -- searches ------------------------------------------------------------------------------------

Search = Callable[[np.ndarray, np.ndarray, int], Iterator[int]]
"""Function from points of shape [settings, 2], each between 0 and 1, their times and a seed to settings to try."""


def points_of(record: Mapping[str, Any]) -> np.ndarray:
    """The settings of a record on logarithmic scales from 0 to 1."""
    values = np.log2([[each["partition_bytes"], each["credit"]] for each in record["settings"]])
    low, high = values.min(axis=0), values.max(axis=0)
    scaled: np.ndarray = (values - low) / np.where(high > low, high - low, 1.0)
    return scaled


def bayesian(points: np.ndarray, times_s: np.ndarray, seed: int) -> Iterator[int]:
    """Bayesian optimisation, as `caramel.tune` has it, from a setting by chance."""
    search = BayesianSearch(points, seed)
    number: int | None = int(np.random.default_rng(seed).integers(len(points)))
    while number is not None:
        yield number
        search.note(number, float(times_s[number]))
        number = search.propose()


def by_chance(points: np.ndarray, times_s: np.ndarray, seed: int) -> Iterator[int]:
    """Any setting that was not tried."""
    yield from np.random.default_rng(seed).permutation(len(points)).tolist()


def in_turn(points: np.ndarray, times_s: np.ndarray, seed: int) -> Iterator[int]:
    """All settings one after the other, from one by chance on."""
    start = int(np.random.default_rng(seed).integers(len(points)))
    yield from ((start + number) % len(points) for number in range(len(points)))


_MOMENTUM, _RATE = 0.9, 0.3
"""Of the descent (our choice: the paper does not give them)."""


def descending(points: np.ndarray, times_s: np.ndarray, seed: int) -> Iterator[int]:
    """Gradient descent with momentum from a setting by chance, by the times of neighbours, which are trials, too.

    It goes on from another setting by chance where it comes to one that it had.
    """
    random = np.random.default_rng(seed)
    axes = [np.unique(points[:, axis]) for axis in range(points.shape[1])]
    tried: set[int] = set()

    def nearest(point: np.ndarray) -> int:
        return int(np.argmin(np.linalg.norm(points - point, axis=1)))

    while len(tried) < len(points):
        here = points[random.choice([n for n in range(len(points)) if n not in tried])]
        speed = np.zeros(points.shape[1])
        centers: set[int] = set()
        while (center := nearest(here)) not in centers:
            centers.add(center)
            slope = np.zeros(points.shape[1])
            for axis, values in enumerate(axes):
                gap = values[1] - values[0] if len(values) > 1 else 0.0
                beside = nearest(points[center] + np.eye(points.shape[1])[axis] * (gap if here[axis] < 0.5 else -gap))
                for number in (center, beside):
                    if number not in tried:
                        tried.add(number)
                        yield number
                apart = points[beside][axis] - points[center][axis]
                slope[axis] = (times_s[beside] - times_s[center]) / times_s[center] / apart if apart else 0.0
            speed = _MOMENTUM * speed - _RATE * slope
            here = np.clip(points[center] + speed, 0.0, 1.0)


SEARCHES: Mapping[str, Search] = {
    "Bayesian optimisation": bayesian,
    "by chance": by_chance,
    "one after the other": in_turn,
    "gradient descent with momentum": descending,
}


def trials_until(times_s: np.ndarray, order: Iterator[int], near: float = NEAR) -> int:
    """The number of trials until one is near the shortest.

    Args:
        times_s: seconds of each setting.
        order: settings in the order in which they are tried.
        near: part of the shortest time within which one is near it.
    """
    enough_s = (1 + near) * times_s.min()
    for count, number in enumerate(order, start=1):
        if times_s[number] <= enough_s:
            return count
    raise AssertionError("the search has not tried all settings")


def replayed(record: Mapping[str, Any], seeds: int = SEEDS) -> dict[str, list[int]]:
    """Numbers of trials of each search, for each seed.

    Args:
        record: what `measure` gives.
        seeds: number of seeds.
    """
    points = points_of(record)
    times_s = np.array([statistics.median(each["times_s"]) for each in record["settings"]])
    return {
        name: [trials_until(times_s, search(points, times_s, seed)) for seed in range(seeds)]
        for name, search in SEARCHES.items()
    }


def table(record: Mapping[str, Any]) -> str:
    """The times of the grid, and the trials of each search, for a document.

    Args:
        record: what `main` has written.
    """
    medians = {(e["partition_bytes"], e["credit"]): statistics.median(e["times_s"]) for e in record["settings"]}
    sizes = list(dict.fromkeys(size for size, _ in medians))
    credits_ = list(dict.fromkeys(credit for _, credit in medians))
    best_s = min(medians.values())
    grid = markdown_table(
        ["pieces of", *(f"credit of {credit}" for credit in credits_)],
        [[format_size(size), *(f"{medians[size, credit] / best_s:.3f}" for credit in credits_)] for size in sizes],
    )
    rows = []
    for name, trials in record["trials"].items():
        low, middle, high = np.quantile(trials, [0.1, 0.5, 0.9])
        rows.append([name, f"{np.mean(trials):.1f}", f"{middle:.0f}", f"{low:.0f} to {high:.0f}"])
    searches = markdown_table(["search", "mean trials", "median", "10 % to 90 %"], rows)
    seeds = len(next(iter(record["trials"].values())))
    near = sum(time_s <= (1 + NEAR) * best_s for time_s in medians.values())
    of_grid = (
        f"{record['network']} on {record['workers']} workers, rho {record['rho']:g}: time of a step over the shortest "
        f"one of {best_s * 1e3:.0f} ms"
    )
    of_searches = (
        f"Trials until a step is within {NEAR:.0%} of the shortest, as {near} of {len(medians)} are; {seeds} seeds"
    )
    return "\n\n".join([of_grid, grid, of_searches, searches])


@click.command()
@click.option("--profile", default="resnet50", show_default=True, help="Emulated network.")
@click.option("--workers", type=click.IntRange(min=2), default=4, show_default=True)
@click.option("--rho", type=float, default=1.0, show_default=True, help="Sending over computation.")
@click.option("--steps", type=click.IntRange(min=1), default=6, show_default=True, help="Timed steps of each setting.")
@click.option("--json", "path", type=click.Path(dir_okay=False), help="File to write all measurements to.")
@errors_for_click
def main(profile: str, workers: int, rho: float, steps: int, path: str | None) -> None:
    """Measure the grid, replay searches on it, and print a table; needs root."""
    with progress_over(len(PARTITIONS_BYTES) * len(CREDITS)) as show:
        record = measure(profile, workers, rho, steps, show)
    record["trials"] = replayed(record)
    click.echo(table(record))
    if path is not None:
        write_json(record, path)


if __name__ == "__main__":
    main()
