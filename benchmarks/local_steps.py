"""``python -m benchmarks.local_steps``: what local steps gain on links that are far too slow, and what they lose.

The program is the Transformer of the examples. Times are of hosts of a testbed, whose links are so slow that the
all-reduces of a step need a given multiple of its computation. Contenders take turns, round by round. Losses are of a
training on workers of one process, on data that it was not trained with.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from benchmarks.collectives import cluster
from benchmarks.output import errors_for_click, markdown_table, write_json
from benchmarks.testbed import Testbed
from caramel.util.progress import progress_over

ALL_REDUCED = "all-reduced gradients"

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    ALL_REDUCED: {},
    "local, 0.7 and 0.9": {},
    "local, 1 and 0": {"outer_learning_rate": 1.0, "outer_momentum": 0.0},
}
"""Trainings whose losses are compared: options besides the number of steps from one exchange to the next."""

_EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
_FAST_BYTES_PER_S = 10e9 / 8
_SETTLING_STEPS = 10


def _program() -> Mapping[str, Any]:
    """The example, as the command would load it."""
    if str(_EXAMPLES) not in sys.path:
        sys.path.insert(0, str(_EXAMPLES))
    import transformer  # type: ignore[import-not-found]

    parts: Mapping[str, Any] = transformer.program()
    return parts


def _captured(parts: Mapping[str, Any]) -> Any:
    import caramel

    return caramel.capture(parts["step"], data=parts["data"])


def _computation_s(workers: int, steps: int) -> tuple[float, int]:
    """Seconds of a step without transfers, on hosts with fast links; and the bytes of its gradients."""
    import caramel

    context = _captured(_program())
    with (
        Testbed(workers, _FAST_BYTES_PER_S) as testbed,
        caramel.ARModel(context, workers, sync_every=2**31).session(cluster(workers, testbed)) as session,
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

    compute_s, size_bytes = _computation_s(workers, 100)
    rate = 2 * (workers - 1) / workers * size_bytes / (rho * compute_s)
    found: dict[str, list[float]] = {}
    with ExitStack() as opened:
        testbed = opened.enter_context(Testbed(workers, rate))
        servers = cluster(workers, testbed)
        turns: dict[str, tuple[Any, int]] = {}
        for count in (0, *every):
            options: dict[str, Any] = {"sync_every": count} if count else {}
            session = opened.enter_context(caramel.ARModel(_captured(_program()), workers, **options).session(servers))
            turns[f"local, {count} steps" if count else ALL_REDUCED] = session, count or _SETTLING_STEPS
        for session, _ in turns.values():
            session.run(steps=2, progress=False)
            session.flush()
        done = 0
        for _ in range(rounds):
            for name, (session, steps) in turns.items():
                show(done, name)
                begin_s = time.perf_counter()
                session.run(steps=steps, progress=False)
                found.setdefault(name, []).append((time.perf_counter() - begin_s) / steps)
                done += 1
    return {"workers": workers, "rho": rho, "compute_s": compute_s, "rate_bytes_per_s": rate, "times_s": found}


def losses(workers: int, every: int, steps: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Losses of each variant after some numbers of steps, on data that it was not trained with.

    Args:
        workers: number of workers.
        every: number of steps from one exchange to the next.
        steps: numbers of steps, ascending.
    """
    import caramel

    for name, options in VARIANTS.items():
        parts = _program()
        chosen: Mapping[str, Any] = options if name == ALL_REDUCED else {"sync_every": every, **options}
        evaluation, done = parts["evaluation"], 0
        with caramel.ARModel(_captured(parts), workers, **chosen).session(caramel.InProcess()) as session:
            for count in steps:
                session.run(steps=count - done, progress=False)
                session.write_back()
                done = count
                loss = float(evaluation["function"](*evaluation["data"])["loss"])
                yield {"training": name, "workers": workers, "every": every, "steps": count, "loss": loss}


def times_table(record: Mapping[str, Any]) -> str:
    """Medians in ms, and computation over each.

    Args:
        record: what `main` has written.
    """
    found = record["times"]
    lines = [
        [
            name,
            f"{statistics.median(each) * 1e3:.0f}",
            f"{found['compute_s'] / statistics.median(each):.1%}",
        ]
        for name, each in found["times_s"].items()
    ]
    return markdown_table(["training", "a step [ms]", "utilisation"], lines)


def losses_table(record: Mapping[str, Any]) -> str:
    """Losses by number of steps.

    Args:
        record: what `main` has written.
    """
    rows = record["losses"]
    counts = list(dict.fromkeys(row["steps"] for row in rows))
    by_name = {name: {r["steps"]: r["loss"] for r in rows if r["training"] == name} for name in VARIANTS}
    lines = [[name, *(f"{of[count]:.3f}" for count in counts)] for name, of in by_name.items()]
    return markdown_table(["training", *(f"{count} steps" for count in counts)], lines)


@click.command()
@click.option("--workers", type=click.IntRange(min=2), default=4, show_default=True)
@click.option("--rho", type=float, default=20.0, show_default=True, help="All-reduces over computation.")
@click.option("--every", type=int, multiple=True, default=(100, 500), show_default=True, help="Steps to an exchange.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--loss-every", type=int, default=20, show_default=True, help="Steps to an exchange, for losses.")
@click.option("--steps", type=int, multiple=True, default=(250, 500, 1000), show_default=True, help="For losses.")
@click.option("--json", "path", type=click.Path(dir_okay=False), help="File to write all measurements to.")
@errors_for_click
def main(
    workers: int,
    rho: float,
    every: tuple[int, ...],
    rounds: int,
    loss_every: int,
    steps: tuple[int, ...],
    path: str | None,
) -> None:
    """Measure, and print two tables; needs root."""
    with progress_over(rounds * (1 + len(every))) as show:
        record: dict[str, Any] = {"times": times(workers, rho, every, rounds, show)}
    record["losses"] = []
    with progress_over(len(VARIANTS) * len(steps)) as show:
        for row in losses(workers, loss_every, sorted(steps)):
            record["losses"].append(row)
            show(len(record["losses"]), f"{row['training']}: {row['steps']} steps")
    if path is not None:
        write_json(record, path)
    click.echo(f"{times_table(record)}\n\n{losses_table(record)}")


if __name__ == "__main__":
    main()
