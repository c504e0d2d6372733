"""``python -m benchmarks.pull_orders``: steps with parameter servers, with the pulls in an order and in none.

Hosts of a testbed have emulated accelerators: computation takes time, but no processor. The network is one with
branches. Contenders take turns, step by step, so that all see the same machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import click
import numpy as np

from benchmarks.output import errors_for_click, markdown_table, write_json
from benchmarks.turns import first_hosts, in_turn, open_hosts
from caramel.util.progress import progress_over

NO_ORDER = "none"
ORDERINGS = (NO_ORDER, "tic", "tac", "best", "reverse")
"""Contenders: names of orders."""

_SETTLING_STEPS = 10


def _program(profile: str) -> Any:
    from benchmarks.training.ours import captured
    from benchmarks.training.profiles import EMULATED

    return captured(EMULATED[profile])


def measure(
    profile: str,
    workers: int,
    servers: int,
    rho: float,
    orderings: Sequence[str],
    steps: int,
    show: Callable[[int, str], None],
) -> dict[str, Any]:
    """Seconds of each step of each contender.

    Args:
        profile: name of the emulated network.
        workers: number of workers, each on a host of its own.
        servers: number of parameter servers, each on a host of its own.
        rho: seconds in which a server's link sends what workers pull, and gets what they push, one after the other,
            over seconds of computation.
        orderings: contenders, by names of orders.
        steps: number of steps of each.
        show: function that shows progress: number of steps done, and what is done.

    Raises:
        CaramelError: a training fails.
    """
    import caramel
    from benchmarks.training.accelerated import Accelerated
    from benchmarks.training.profiles import COMPUTATION_S, TOTAL_BYTES

    rate = 2 * workers / servers * TOTAL_BYTES / (rho * COMPUTATION_S)
    context = _program(profile)
    found: dict[str, list[float]] = {name: [] for name in orderings}
    predicted: dict[str, float] = {}
    with ExitStack() as opened:
        processes = open_hosts(opened, workers + servers, rate)
        hosts = opened.enter_context(Accelerated(processes).shared())
        network = caramel.NetworkModel.from_link_rate(rate)
        alone = Accelerated(first_hosts(processes, workers))
        trace = caramel.trace(context, workers=workers, cluster=alone)
        sessions: dict[str, Any] = {}
        for name in orderings:
            model = caramel.PSModel(context, workers, servers, ordering=name, trace=trace, network=network)
            assert model.plan.servers is not None and model.plan.servers.prediction is not None
            predicted[name] = model.plan.servers.prediction.step_s
            sessions[name] = opened.enter_context(model.session(hosts))
            sessions[name].run(steps=_SETTLING_STEPS, progress=False)
        for name in in_turn(orderings, steps, show):
            begin_s = time.perf_counter()
            sessions[name].run(steps=1, progress=False)
            found[name].append(time.perf_counter() - begin_s)
    return {
        "network": profile,
        "workers": workers,
        "servers": servers,
        "rho": rho,
        "rate_bytes_per_s": rate,
        "compute_s": COMPUTATION_S,
        "predicted_s": predicted,
        "times_s": found,
    }


_RESAMPLES = 2000


def ratio_bounds(
    times_s: Sequence[float], others_s: Sequence[float], quantile: float, seed: int = 1
) -> tuple[float, float, float]:
    """A quantile of times over that of others, and its 95 % bounds by the bootstrap, in which steps stay in turn.

    Args:
        times_s: seconds of each step.
        others_s: seconds of the steps of the other contender, in the same turns.
        quantile: of 1.
        seed: of the random numbers.
    """
    pairs = np.array([times_s, others_s])
    random = np.random.default_rng(seed)
    chosen = random.integers(0, pairs.shape[1], (_RESAMPLES, pairs.shape[1]))
    of_all = np.quantile(pairs[:, chosen], quantile, axis=2)
    low, high = np.quantile(of_all[0] / of_all[1], [0.025, 0.975])
    one, other = np.quantile(pairs, quantile, axis=1)
    return float(one / other), float(low), float(high)


def table(record: Mapping[str, Any]) -> str:
    """Median and 95th percentile of each contender, and how they compare with no order.

    Args:
        record: what `measure` gives.
    """
    times, lines = record["times_s"], []
    for name, each in times.items():
        line = [name, f"{np.median(each) * 1e3:.0f}", f"{np.quantile(each, 0.95) * 1e3:.0f}"]
        for quantile in (0.5, 0.95):
            ratio, low, high = ratio_bounds(each, times[NO_ORDER], quantile)
            line.append("1" if name == NO_ORDER else f"{ratio:.3f} ({low:.3f} to {high:.3f})")
        lines.append([*line, f"{record['predicted_s'][name] * 1e3:.0f}"])
    heads = ["order", "median [ms]", "95th percentile [ms]", "median over no order", "95th percentile over no order"]
    return markdown_table([*heads, "predicted [ms]"], lines)


def cells_table(record: Mapping[str, Any]) -> str:
    """The table of each cell below a line that says which one it is, for a document.

    Args:
        record: what `main` has written.
    """
    return "\n\n".join(
        f"{cell['network']} on {cell['workers']} workers and {cell['servers']} servers, rho {cell['rho']:g}, "
        f"{len(cell['times_s'][NO_ORDER])} steps of each:\n\n{table(cell)}"
        for cell in record["cells"]
    )


@click.command()
@click.option("--profile", default="inceptionv3", show_default=True, help="Emulated network.")
@click.option("--workers", type=click.IntRange(min=1), default=4, show_default=True)
@click.option("--servers", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--rho", type=float, multiple=True, default=(1.0,), show_default=True, help="Sending over computation.")
@click.option("--ordering", "orderings", multiple=True, type=click.Choice(ORDERINGS), default=ORDERINGS[:4])
@click.option("--steps", type=click.IntRange(min=2), default=300, show_default=True, help="Steps of each.")
@click.option("--json", "path", type=click.Path(dir_okay=False), help="File to write all measurements to.")
@errors_for_click
def main(
    profile: str,
    workers: int,
    servers: int,
    rho: tuple[float, ...],
    orderings: tuple[str, ...],
    steps: int,
    path: str | None,
) -> None:
    """Measure, and print a table for each rho; needs root."""
    records = []
    for each in rho:
        with progress_over(steps * len(orderings)) as show:
            records.append(measure(profile, workers, servers, each, orderings, steps, show))
        click.echo(f"rho {each:g}\n\n{table(records[-1])}\n")
    if path is not None:
        write_json({"cells": records}, path)


if __name__ == "__main__":
    main()
