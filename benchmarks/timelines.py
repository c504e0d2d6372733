"""``python -m benchmarks.timelines``: where the time of a step goes, on hosts with shaped links.

A workload of `benchmarks.training` is planned as it is there. Steps are traced, and the median one is shown: what each
worker computes, what its link carries, how many ops run, and what is left of the links' time.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import click

from benchmarks.output import errors_for_click, markdown_table
from benchmarks.testbed.cores import cores_of
from benchmarks.training.effort import FULL
from benchmarks.training.grid import link_rate
from benchmarks.training.names import OURS
from benchmarks.training.ours import OPTIONS, limits_at, planned, predicted_s
from benchmarks.training.site import Site
from benchmarks.training.timeline import Message, Step, Work, traced_steps
from benchmarks.training.workloads import BY_NAME
from caramel.measure.tracer import timed_step
from caramel.netmodel.file import load

COLORS = {"forward": "#56B4E9", "backward": "#0072B2", "update": "#009E73", "transfer": "#000000"}
"""Of Okabe and Ito's palette."""

_TRANSFER_COLORS = ("#E69F00", "#D55E00", "#CC79A7", "#F0E442", "#999999", "#8C564B", "#66C2A5", "#B39DDB")

Home = tuple[int, ...]
"""The cores of a worker."""

_LEAST_S = 50e-6
"""Shorter ops are not drawn."""


@dataclass(frozen=True)
class Carried:
    """When a link can have carried a message, at the latest.

    Attributes:
        message: that was carried.
        start_s: seconds after the step began.
        end_s: likewise.
    """

    message: Message
    start_s: float
    end_s: float


# -- what follows from it --------------------------------------------------------------------------


def carried(messages: Iterable[Message], link_bytes_per_s: float) -> list[Carried]:
    """When a link can have carried one worker's messages at the latest, so that they arrived when they did.

    >>> a, b, c = (Message(0, 0, 10, end_s) for end_s in (2.0, 5.0, 5.5))
    >>> [(each.start_s, each.end_s) for each in carried([a, b, c], 10.0)]
    [(1.0, 2.0), (3.5, 4.5), (4.5, 5.5)]

    Args:
        messages: that it received.
        link_bytes_per_s: rate of its link.

    Returns:
        In the order in which they arrived. Links that were idle may send a little at once, for which reason the first
        may begin too early.
    """
    found: list[Carried] = []
    next_s = float("inf")
    for message in sorted(messages, key=lambda each: each.end_s, reverse=True):
        end_s = min(message.end_s, next_s)
        next_s = end_s - message.size_bytes / link_bytes_per_s
        found.append(Carried(message, next_s, end_s))
    return found[::-1]


def idle_s(carries: Sequence[Carried], start_s: float, end_s: float) -> float:
    """Seconds of a time in which a link carried nothing.

    >>> a = Message(0, 0, 10, 2.0)
    >>> idle_s([Carried(a, 1.0, 2.0), Carried(a, 4.0, 6.0)], 0.5, 5.0)
    2.5
    """
    return end_s - start_s - sum(max(min(c.end_s, end_s) - max(c.start_s, start_s), 0.0) for c in carries)


def running(works: Iterable[Work], homes: Sequence[Home]) -> list[tuple[float, Mapping[Home, int]]]:
    """How many ops run at a time: (since when, how many on which cores).

    >>> running([Work(0, "forward", 0.0, 2.0), Work(1, "forward", 1.0, 2.0)], [(0,), (1,)])
    [(0.0, {(0,): 1, (1,): 0}), (1.0, {(0,): 1, (1,): 1}), (2.0, {(0,): 0, (1,): 0})]

    Args:
        works: that ran.
        homes: each worker's cores; those of two workers are the same or have none in common.
    """
    changes: dict[float, list[tuple[Home, int]]] = {}
    for work in works:
        for at_s, by in ((work.start_s, 1), (work.end_s, -1)):
            changes.setdefault(at_s, []).append((homes[work.rank], by))
    found: list[tuple[float, Mapping[Home, int]]] = []
    counts = dict.fromkeys(homes, 0)
    for at_s in sorted(changes):
        for home, by in changes[at_s]:
            counts[home] += by
        found.append((at_s, dict(counts)))
    return found


def contended_s(works: Iterable[Work], homes: Sequence[Home]) -> list[tuple[float, float]]:
    """When all cores have an op to run, so that whatever else is to run waits for one.

    >>> works = [Work(0, "forward", 0.0, 2.0), Work(1, "forward", 1.0, 3.0), Work(2, "forward", 2.5, 4.0)]
    >>> contended_s(works, [(0,), (1,), (0,)])
    [(1.0, 2.0), (2.5, 3.0)]

    Args:
        works: see `running`.
        homes: likewise.
    """
    found: list[tuple[float, float]] = []
    for (start_s, counts), (end_s, _) in pairwise(running(works, homes)):
        if any(count < len(home) for home, count in counts.items()):
            continue
        if found and found[-1][1] == start_s:
            start_s = found.pop()[0]
        found.append((start_s, end_s))
    return found


@dataclass(frozen=True)
class Account:
    """Where the time of a step went, in seconds; of links, the mean over the workers.

    Attributes:
        step_s: all of it.
        carried_s: links carry what was sent, at their rate.
        idle_contended_s: they do not, while all processors have ops to run.
        idle_s: they do not, while one has none.
        computed_s: until the last worker has computed all gradients.
    """

    step_s: float
    carried_s: float
    idle_contended_s: float
    idle_s: float
    computed_s: float


def account(step: Step, homes: Sequence[Home], link_bytes_per_s: float) -> Account:
    """Where the time of a step went.

    Args:
        step: that was traced.
        homes: each worker's cores.
        link_bytes_per_s: rate of their links.
    """
    contended = contended_s(step.works, homes)
    idle, idle_contended = [], []
    for rank in range(len(homes)):
        carries = carried((m for m in step.messages if m.rank == rank), link_bytes_per_s)
        idle.append(idle_s(carries, 0.0, step.step_s))
        idle_contended.append(sum(idle_s(carries, *each) for each in contended))
    return Account(
        step.step_s,
        step.step_s - statistics.fmean(idle),
        statistics.fmean(idle_contended),
        statistics.fmean(idle) - statistics.fmean(idle_contended),
        max((work.end_s for work in step.works if work.kind == "backward"), default=0.0),
    )


def table(accounts: Sequence[Account]) -> str:
    """Steps, in Markdown."""
    head = (
        "step [ms]",
        "links carry [ms]",
        "idle, processors busy [ms]",
        "idle, a processor free [ms]",
        "gradients computed after [ms]",
    )
    rows = [
        tuple(f"{each_s * 1e3:.0f}" for each_s in (a.step_s, a.carried_s, a.idle_contended_s, a.idle_s, a.computed_s))
        for a in accounts
    ]
    return markdown_table(head, rows)


def figure(step: Step, homes: Sequence[Home], link_bytes_per_s: float, title: str) -> Any:
    """A step: for each worker what it computes and what its link carries, and how many ops run.

    Args:
        step: that was traced.
        homes: each worker's cores.
        link_bytes_per_s: rate of their links.
        title: what was trained.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    workers, cores = len(homes), len({core for home in homes for core in home})
    drawn = Figure(figsize=(11.0, 1.0 * workers + 3.0), layout="constrained")
    lanes, threads = drawn.subplots(2, 1, sharex=True, height_ratios=[2.0 * workers, 3.0])
    transfers = sorted({m.transfer for m in step.messages if m.transfer is not None})
    colors: dict[int | None, str] = {t: _TRANSFER_COLORS[n % len(_TRANSFER_COLORS)] for n, t in enumerate(transfers)}
    for rank in range(workers):
        for kind, color in COLORS.items():
            works = [w for w in step.works if w.rank == rank and w.kind == kind and w.end_s - w.start_s >= _LEAST_S]
            spans = [(w.start_s * 1e3, (w.end_s - w.start_s) * 1e3) for w in works]
            lanes.broken_barh(spans, (2 * rank + 0.1, 0.8), facecolors=color)
        for each in carried((m for m in step.messages if m.rank == rank), link_bytes_per_s):
            span = (each.start_s * 1e3, (each.end_s - each.start_s) * 1e3)
            lanes.broken_barh([span], (2 * rank + 1.1, 0.6), facecolors=colors.get(each.message.transfer, "#cccccc"))
    lanes.set_yticks(
        [n + 0.5 for n in range(2 * workers)],
        [text for rank in range(workers) for text in (f"worker {rank} computes", "its link carries")],
    )
    lanes.invert_yaxis()
    lanes.set_title(title, loc="left", fontsize=10)
    ran = running(step.works, homes)
    threads.step(
        [at_s * 1e3 for at_s, _ in ran],
        [sum(counts.values()) for _, counts in ran],
        where="post",
        color="black",
        linewidth=0.8,
    )
    line = threads.axhline(cores, color="red", linewidth=1.2, linestyle="--", label="processors")
    threads.set_ylabel("ops that run")
    threads.set_xlabel("ms")
    threads.set_xlim(0, step.step_s * 1e3)
    handles: list[Any] = [Patch(facecolor=color, label=kind) for kind, color in COLORS.items()]
    handles += [Patch(facecolor=color, label=f"transfer {t}") for t, color in colors.items()]
    drawn.legend(handles=[*handles, line], loc="outside upper center", ncols=6, frameon=False, fontsize=9)
    return drawn


# -- measuring -------------------------------------------------------------------------------------


@click.command()
@click.option("--workload", type=click.Choice(list(BY_NAME)), default="transformer", show_default=True)
@click.option("--workers", type=click.IntRange(min=2), default=4, show_default=True)
@click.option("--rho", type=float, default=2.0, show_default=True, help="Chooses the links' rate.")
@click.option("--examples", type=click.IntRange(min=1), required=True, help="Of a batch: what a cell's heading says.")
@click.option("--plan", type=click.Choice(list(OPTIONS)), default=OURS, show_default=True, help="How it is planned.")
@click.option("--steps", type=click.IntRange(min=1), default=9, show_default=True, help="That are traced.")
@click.option("--network", type=click.Path(dir_okay=False), help="What caramel netbench wrote; else it is measured.")
@click.option("--plot", type=click.Path(dir_okay=False), help="Write the median step into this file.")
@errors_for_click
def main(
    workload: str,
    workers: int,
    rho: float,
    examples: int,
    plan: str,
    steps: int,
    network: str | None,
    plot: str | None,
) -> None:
    """Show where the time of a step goes."""
    trained = replace(BY_NAME[workload], examples=examples)
    with Site(workers, None, FULL) as site:
        site.testbed.set_rate(link_rate(trained, rho))
        measured = load(network) if network is not None else site.network()
        context, trace = site.traced(trained)
        model = planned(plan, context, workers, trace, measured)
        rate = statistics.median(site.link_rates_bytes_per_s())
        with model.session(site.shared) as session:
            found = traced_steps(session, steps)
            plain_s = statistics.median(timed_step(session) for _ in range(steps))
    cores = sorted(os.sched_getaffinity(0))
    homes = [cores_of(rank, workers, cores) for rank in range(workers)]
    ordered = sorted(found, key=lambda step: step.step_s)
    predicted = predicted_s(model)
    limit_s = limits_at(model, rate).step_s(trace.step_s)
    click.echo(
        f"{workload}, {workers} workers, {examples} examples, links of {rate * 8e-6:.4g} Mbit/s of payload:\n"
        f"computation alone {trace.step_s * 1e3:.0f} ms, limit {limit_s * 1e3:.0f} ms, "
        + (f"predicted {predicted * 1e3:.0f} ms, " if predicted is not None else "")
        + f"measured {plain_s * 1e3:.0f} ms without tracing\n\n"
        + table([account(step, homes, rate) for step in ordered])
    )
    if plot is not None:
        title = f"{BY_NAME[workload].title}: a step of {examples} examples, links of {rate * 8e-6:.3g} Mbit/s"
        figure(ordered[len(ordered) // 2], homes, rate, title).savefig(plot, dpi=110)
        click.echo(f"{plot}")


if __name__ == "__main__":
    sys.exit(main(prog_name="python -m benchmarks.timelines"))
