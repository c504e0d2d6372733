"""``python -m benchmarks.mixtures``: tables whose rows are at owners among the workers, against tables on servers.

The network is one that a mixture suits best: all of its parameters are tables of which each example looks up some
rows, so that nothing is all-reduced, and a mixture of both is the same as parameter servers. Hosts of a testbed have
emulated accelerators: computation takes time, but no processor. Contenders take turns.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import click

from benchmarks.output import errors_for_click, markdown_table, write_json
from benchmarks.pull_orders import ratio_bounds
from benchmarks.turns import SETTLING_STEPS, compare_losses, first_hosts, in_turn, open_hosts, turn_s
from caramel.util.progress import progress_over

OWNERS = "the workers"

TABLES, ROWS, WIDTH = 8, 2500, 64
"""Tables, rows of each, and numbers of a row."""

EXAMPLES, LENGTH = 256, 24
"""Examples of a batch of all workers, and rows that each looks up in all tables together."""

COMPUTATION_S = 0.3
"""Of a step, a third of it in the forward pass."""

_CLASSES = 8
_ITEM_BYTES, _INDEX_BYTES = 4, 4


def _network(layers: Any, x: Any, sleep: Callable[..., Any]) -> Any:
    """The sum of the rows of an example; some of its numbers are the logits."""
    tf = layers.tf

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def computed(given: Any) -> Any:
        def later(value: Any, time_s: float) -> Any:
            with tf.control_dependencies([sleep(tf, tf.reshape(value, [-1])[0], time_s, True)]):
                return tf.identity(value)

        return later(given, COMPUTATION_S / 3), lambda upstream: later(upstream, 2 * COMPUTATION_S / 3)

    parts = tf.split(x % ROWS, TABLES, axis=1)
    rows = [layers.embedding(f"table{number}", part, ROWS, WIDTH) for number, part in enumerate(parts)]
    return computed(tf.reduce_sum(tf.concat(rows, 1), 1))[:, :_CLASSES]


def _workload() -> Any:
    from benchmarks.training.accelerators import marked
    from benchmarks.training.workloads import Workload

    network = partial(_network, sleep=marked)
    return Workload("tables", "rows of tables", EXAMPLES, _CLASSES, (LENGTH,), "int32", network, learning_rate=0.5)


def rows_bytes(workers: int) -> float:
    """Bytes of the rows that a worker looks up in a step, or of their gradients.

    Args:
        workers: number of workers.
    """
    return EXAMPLES / workers * LENGTH * (WIDTH * _ITEM_BYTES + _INDEX_BYTES)


def measure(
    workers: int, rho: float, servers: Sequence[int], rounds: int, steps: int, show: Callable[[int, str], None]
) -> dict[str, Any]:
    """Seconds of each contender's steps.

    Args:
        workers: number of workers, each on a host of its own.
        rho: seconds in which a link gets the rows that a worker looks up, and sends their gradients, over seconds of
            computation.
        servers: numbers of servers that have the tables, each on a host of its own.
        rounds: how often each contender has its turn.
        steps: timed steps of a turn, which follow one that is not.
        show: function that shows progress: number of turns done, and what is done.

    Raises:
        CaramelError: a training fails.
        InvariantError: the losses of two contenders differ.
    """
    import caramel
    from benchmarks.training.accelerated import Accelerated
    from benchmarks.training.ours import captured

    rate = 2 * rows_bytes(workers) / (rho * COMPUTATION_S)
    context = captured(_workload())
    names = {OWNERS: 0, **{f"{count} servers": count for count in servers}}
    with ExitStack() as opened:
        of_all = open_hosts(opened, workers + max(servers), rate)
        sessions: dict[str, Any] = {}
        losses: dict[str, list[float]] = {}
        for name, count in names.items():
            show(0, f"{name}: first steps")
            hosts = Accelerated(first_hosts(of_all, workers + count))
            at = {"servers": count} if count else {"shard_embeddings": True}
            sessions[name] = opened.enter_context(caramel.ARModel(context, workers, **at).session(hosts))
            losses[name] = [result.loss for result in sessions[name].run(steps=SETTLING_STEPS, progress=False)]
            compare_losses(name, losses[name], OWNERS, losses[OWNERS])
        times_s: dict[str, list[float]] = {name: [] for name in names}
        for name in in_turn([*names], rounds, show):
            times_s[name].append(turn_s(sessions[name], steps))
    return {
        "workers": workers,
        "rho": rho,
        "rate_bytes_per_s": rate,
        "compute_s": COMPUTATION_S,
        "rows_bytes": rows_bytes(workers),
        "times_s": times_s,
        "losses": losses,
    }


def table(record: Mapping[str, Any]) -> str:
    """Time of a step with the tables on servers over that with owners, by cell.

    Args:
        record: what `main` has written.
    """
    names = list(dict.fromkeys(name for cell in record["cells"] for name in cell["times_s"]))
    lines = []
    for cell in record["cells"]:
        times_s = cell["times_s"]
        line = [str(cell["workers"]), f"{cell['rho']:g}"]
        for name in names:
            if name not in times_s:
                line.append("-")
                continue
            ratio, low, high = ratio_bounds(times_s[name], times_s[OWNERS], 0.5)
            median = f"{statistics.median(times_s[name]) * 1e3:.0f}"
            line.append(median if name == OWNERS else f"{median}: {ratio:.3f} ({low:.3f} to {high:.3f})")
        lines.append(line)
    heads = [f"rows at {OWNERS} [ms]", *(f"rows at {name} [ms]: over that" for name in names if name != OWNERS)]
    return markdown_table(["workers", "rho", *heads], lines)


@click.command()
@click.option("--workers", type=click.IntRange(min=2), default=4, show_default=True)
@click.option("--rho", "rhos", type=float, multiple=True, default=(0.5, 1.0, 2.0), show_default=True)
@click.option("--servers", type=click.IntRange(min=1), multiple=True, default=(2, 4), show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=7, show_default=True, help="Turns of each.")
@click.option("--steps", type=click.IntRange(min=1), default=4, show_default=True, help="Timed steps of a turn.")
@click.option("--json", "path", type=click.Path(dir_okay=False), help="File to write all measurements to.")
@errors_for_click
def main(
    workers: int, rhos: tuple[float, ...], servers: tuple[int, ...], rounds: int, steps: int, path: str | None
) -> None:
    """Measure, and print a table; needs root."""
    record: dict[str, Any] = {"cells": []}
    with progress_over(len(rhos) * rounds * (1 + len(servers))) as show:
        for number, rho in enumerate(rhos):
            begin = number * rounds * (1 + len(servers))
            record["cells"].append(
                measure(workers, rho, servers, rounds, steps, lambda n, what, b=begin: show(b + n, what))  # type: ignore[misc]
            )
    click.echo(table(record))
    if path is not None:
        write_json(record, path)


if __name__ == "__main__":
    main()
