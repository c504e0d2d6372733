"""``python -m benchmarks.local_steps``: what local steps gain on links that are far too slow, and what they lose.

Times are of the Transformer of the examples, on hosts of a testbed whose links are so slow that the all-reduces of a
step need a given multiple of its computation. Contenders take turns, round by round. Losses are of that Transformer and
of the digits of the examples, trained on workers of one process, on data that they were not trained with.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from benchmarks.collectives import cluster
from benchmarks.output import errors_for_click, markdown_table, write_json
from benchmarks.testbed import Testbed
from benchmarks.testbed.shaping import LONG_BURST_BYTES, PAYLOAD
from benchmarks.turns import in_turn
from caramel.util.progress import progress_over

ALL_REDUCED = "all-reduced gradients"
NO_EXCHANGE = "local, no exchange"
"""The computation alone, which has its turns, too."""

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    ALL_REDUCED: {},
    "local, 0.7 and 0.5": {},
    "local, 0.7 and 0.9": {"outer_momentum": 0.9},
    "local, 1 and 0": {"outer_learning_rate": 1.0, "outer_momentum": 0.0},
}
"""Trainings whose losses are compared: options besides the number of steps from one exchange to the next."""

EXAMPLES: Mapping[str, Sequence[int]] = {"transformer": (250, 500, 1000), "digits_keras": (150, 300, 600)}
"""Examples whose losses are compared, and after how many steps."""

TIMED = "transformer"
"""The example whose steps are timed."""

_EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
_FAST_BYTES_PER_S = 10e9 / 8
_SETTLING_STEPS = 10
_NEVER = 2**31


def _program(example: str) -> Mapping[str, Any]:
    """An example, as the command would load it."""
    if str(_EXAMPLES) not in sys.path:
        sys.path.insert(0, str(_EXAMPLES))
    parts: Mapping[str, Any] = import_module(example).program()
    return parts


def _captured(parts: Mapping[str, Any]) -> Any:
    import caramel

    if callable(parts["data"]):  # batches that are fed
        return caramel.capture(parts["step"], parts["inputs"])
    return caramel.capture(parts["step"], data=parts["data"])


def _computation_s(workers: int, steps: int) -> tuple[float, int]:
    """Seconds of a step without transfers, on hosts with fast links; and the bytes of its gradients."""
    import caramel

    context = _captured(_program(TIMED))
    with (
        Testbed(workers, _FAST_BYTES_PER_S) as testbed,
        caramel.ARModel(context, workers, sync_every=_NEVER).session(cluster(workers, testbed)) as session,
    ):
        session.run(steps=_SETTLING_STEPS, progress=False)
        begin_s = time.perf_counter()
        session.run(steps=steps, progress=False)
        compute_s = (time.perf_counter() - begin_s) / steps
    return compute_s, sum(g.size_bytes for g in context.model_for(workers).gradients)


def times(
    workers: int, rho: float, every: Sequence[int], rounds: int, show: Callable[[int, str], None]
) -> dict[str, Any]:
    """Seconds of a step of each contender, exchanges included, round by round.

    Args:
        workers: number of workers, each on a host of its own.
        rho: seconds that links need for all-reduces, over seconds of computation.
        every: numbers of steps from one exchange to the next.
        rounds: how often each contender has its turn.
        show: function that shows progress: number of turns done, and what is done.

    Raises:
        CaramelError: a training fails.
    """
    import caramel
    from caramel.measure.netbench import measure_network, quick_up_to

    compute_s, size_bytes = _computation_s(workers, 100)
    rate = 2 * (workers - 1) / workers * size_bytes / (rho * compute_s)
    found: dict[str, list[float]] = {}
    with ExitStack() as opened:
        testbed = opened.enter_context(Testbed(workers, rate / PAYLOAD, LONG_BURST_BYTES))
        servers = cluster(workers, testbed)
        network = measure_network(servers, [workers], quick_up_to(size_bytes), f"links of {rate * 8e-6:.3g} Mbit/s")
        turns: dict[str, tuple[Any, int]] = {}
        exchanges: list[dict[str, Any]] = []
        contenders = {NO_EXCHANGE: _NEVER, ALL_REDUCED: None, **{f"local, {count} steps": count for count in every}}
        for name, count in contenders.items():
            options: dict[str, Any] = {} if count is None else {"sync_every": count}
            model = caramel.ARModel(_captured(_program(TIMED)), workers, network=network, **options)
            session = opened.enter_context(model.session(servers))
            turns[name] = session, _SETTLING_STEPS if count is None else min(count, max(every))
            if model.plan.local is not None:
                exchanges = [
                    {"algorithm": each.algorithm, "depth": each.depth, "bytes": each.size_bytes}
                    for each in model.plan.local.exchanges
                ]
        for session, _ in turns.values():
            session.run(steps=2, progress=False)
            session.flush()
        alone: dict[str, list[float]] = {}
        for name in in_turn([*turns], rounds, show):
            session, steps = turns[name]
            times_s = _times_s(session, steps)
            found.setdefault(name, []).append(statistics.fmean(times_s))
            if contenders[name] == steps:  # one of them has the exchange
                alone.setdefault(name, []).append((sum(times_s) - max(times_s)) / (steps - 1))
    return {
        "workers": workers,
        "rho": rho,
        "compute_s": compute_s,
        "rate_bytes_per_s": rate,
        "exchanges": exchanges,
        "times_s": found,
        "alone_s": alone,
    }


def _times_s(session: Any, steps: int) -> list[float]:
    """Seconds of each step, with what comes after it."""
    ends = [time.perf_counter()]
    session.run(steps=steps, progress=False, on_step=lambda _: ends.append(time.perf_counter()))
    ends[-1] = time.perf_counter()
    return [end - begin for begin, end in pairwise(ends)]


def losses(example: str, workers: int, every: int, steps: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Losses of each variant after some numbers of steps, on data that it was not trained with.

    Args:
        example: name of a program.
        workers: number of workers.
        every: number of steps from one exchange to the next.
        steps: numbers of steps, ascending.
    """
    import caramel

    for name, options in VARIANTS.items():
        parts = _program(example)
        chosen: Mapping[str, Any] = options if name == ALL_REDUCED else {"sync_every": every, **options}
        evaluation, done = parts["evaluation"], 0
        batches = parts["data"]() if callable(parts["data"]) else None
        with caramel.ARModel(_captured(parts), workers, **chosen).session(caramel.InProcess()) as session:
            for count in steps:
                session.run(batches, steps=count - done, progress=False)
                session.write_back()
                done = count
                found = evaluation["function"](*evaluation["data"])
                row = {"example": example, "training": name, "workers": workers, "every": every, "steps": count}
                yield {**row, "loss": float(found["loss"]), "accuracy": float(found["accuracy"])}


def times_table(record: Mapping[str, Any]) -> str:
    """Medians in ms, and the median of the computation alone over each.

    What computation takes differs by some percent from turn to turn, so where an exchange comes after some steps it is
    that of the other steps of the turn, else that of the turn without exchanges in the same round.

    Args:
        record: what `main` has written.
    """
    found, of_others = record["times"]["times_s"], record["times"]["alone_s"]
    lines = []
    for name, each in found.items():
        ratios = [alone_s / time_s for alone_s, time_s in zip(of_others.get(name, found[NO_EXCHANGE]), each)]
        lines.append([name, f"{statistics.median(each) * 1e3:.1f}", f"{statistics.median(ratios):.1%}"])
    return markdown_table(["training", "a step [ms]", "utilisation"], lines)


def losses_table(record: Mapping[str, Any]) -> str:
    """Losses by number of steps, and in brackets the part of right answers, for each example.

    Args:
        record: what `main` has written.
    """
    tables = []
    for example in dict.fromkeys(row["example"] for row in record["losses"]):
        rows = [row for row in record["losses"] if row["example"] == example]
        counts = list(dict.fromkeys(row["steps"] for row in rows))
        by_name = {name: {r["steps"]: r for r in rows if r["training"] == name} for name in VARIANTS}
        lines = [
            [name, *(f"{of[count]['loss']:.3f} ({of[count]['accuracy']:.1%})" for count in counts)]
            for name, of in by_name.items()
        ]
        head = [f"`{example}.py`, an exchange after {rows[0]['every']} steps", *(f"{count} steps" for count in counts)]
        tables.append(markdown_table(head, lines))
    return "\n\n".join(tables)


@click.command()
@click.option("--workers", type=click.IntRange(min=2), default=4, show_default=True)
@click.option("--rho", type=float, default=20.0, show_default=True, help="All-reduces over computation.")
@click.option("--every", type=int, multiple=True, default=(100, 500), show_default=True, help="Steps to an exchange.")
@click.option("--no-times", is_flag=True, help="Keep the times that the record has.")
@click.option("--no-losses", is_flag=True, help="Keep the losses that the record has.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--loss-every", type=int, default=20, show_default=True, help="Steps to an exchange, for losses.")
@click.option("--json", "path", type=click.Path(dir_okay=False), help="File to write all measurements to.")
@errors_for_click
def main(
    workers: int,
    rho: float,
    every: tuple[int, ...],
    rounds: int,
    no_times: bool,
    no_losses: bool,
    loss_every: int,
    path: str | None,
) -> None:
    """Measure, and print tables; needs root."""
    record: dict[str, Any] = {}
    if (no_times or no_losses) and path is not None:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
    if not no_times:
        with progress_over(rounds * (2 + len(every))) as show:
            record["times"] = times(workers, rho, every, rounds, show)
    if not no_losses:
        rows: list[dict[str, Any]] = []
        with progress_over(sum(len(VARIANTS) * len(steps) for steps in EXAMPLES.values())) as show:
            for example, steps in EXAMPLES.items():
                for row in losses(example, workers, loss_every, steps):
                    rows.append(row)
                    show(len(rows), f"{example}, {row['training']}: {row['steps']} steps")
        record["losses"] = rows
    if path is not None:
        write_json(record, path)
    click.echo(f"{times_table(record)}\n\n{losses_table(record)}")


if __name__ == "__main__":
    main()
