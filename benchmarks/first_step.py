"""``python -m benchmarks.first_step``: how long a training takes until its first step has ended, and its memory.

A network of `keras.applications` on small images, or BERT, by Keras' own ``fit`` and by `caramel.fit` on workers of
one process, or on servers in processes of their own. Each is measured in a process of its own, one after the other,
round by round; what counts begins with the call of ``fit``: TensorFlow is imported and the model is built then. Memory
is that of the process that calls ``fit``, in two epochs, beside the bytes of all variables.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.output import errors_for_click, markdown_table, write_json
from caramel.errors import CaramelError

SIDE_PIXELS, CLASSES, BATCH, STEPS = 64, 10, 8, 4

_ROOT = Path(__file__).resolve().parents[1]
_PATIENCE_S = 1800.0

_ONE = """
import os
os.environ["CUDA_VISIBLE_DEVICES"], os.environ["TF_CPP_MIN_LOG_LEVEL"] = "", "3"
import json, resource, sys, time
import keras
import numpy as np
import caramel
from benchmarks.networks import TRANSFORMER, transformer

name, workers, servers, side, classes, batch, steps = sys.argv[1], *map(int, sys.argv[2:])
rng = np.random.default_rng(0)
if name == TRANSFORMER:
    model, optimizer = transformer(), keras.optimizers.Adam(1e-4)
    x, y = rng.integers(0, 30_000, (batch * steps, *model.input_shape[1:]), "int32"), rng.integers(0, 2, batch * steps)
else:
    build, optimizer = getattr(keras.applications, name), "sgd"
    model = build(weights=None, input_shape=(side, side, 3), classes=classes)
    x, y = rng.random((batch * steps, side, side, 3), "float32"), rng.integers(0, classes, batch * steps)
model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy())
model.optimizer.build(model.trainable_variables)
ends = []


class Clock(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        ends.append(time.perf_counter())

    def on_train_batch_end(self, batch, logs=None):
        ends.append(time.perf_counter())


options = {"batch_size": batch, "epochs": 2, "shuffle": False, "verbose": 0, "callbacks": [Clock()]}
begin = time.perf_counter()
if workers == 0:
    model.fit(x, y, **options)
else:
    cluster = caramel.LocalProcesses(allow_open_ports=True) if servers else caramel.InProcess()
    caramel.fit(model, x, y, workers=workers, cluster=cluster, **options)
variables = [v.value for v in (*model.variables, *model.optimizer.variables)]
print(json.dumps({
    "state_bytes": sum(int(np.prod(v.shape)) * v.dtype.size for v in variables),
    "ready_s": ends[0] - begin,
    "first_s": ends[1] - begin,
    "step_s": min(after - before for before, after in zip(ends[1:], ends[2:])),
    "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
}))
"""


def measure(
    names: Sequence[str], workers: Sequence[int], rounds: int, servers: bool = False
) -> Iterator[dict[str, Any]]:
    """One measurement after the other.

    Args:
        names: networks of `keras.applications`, or ``"BERT"``.
        workers: numbers of workers; 0 for Keras' own ``fit``.
        rounds: number of times.
        servers: whether each worker has a process of its own.

    Raises:
        CaramelError: a training fails.
    """
    for number in range(rounds):
        for name in names:
            for count in workers:
                sizes = (count, int(servers), SIDE_PIXELS, CLASSES, BATCH, STEPS)
                command = [sys.executable, "-c", _ONE, name, *map(str, sizes)]
                done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=_PATIENCE_S)
                if done.returncode:
                    raise CaramelError(f"{name} on {count} workers: {done.stderr.strip().splitlines()[-1]}")
                yield {
                    "model": name,
                    "workers": count,
                    "servers": servers and count > 0,
                    "round": number,
                    **json.loads(done.stdout.strip().splitlines()[-1]),
                }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The medians, beside those of Keras' own ``fit``.

    Args:
        rows: what `measure` has found.
    """
    groups: dict[tuple[str, int, bool], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["workers"], row["servers"]), []).append(row)

    def median(group: tuple[str, int, bool], figure: str) -> float:
        return float(statistics.median(row[figure] for row in groups[group]))

    lines = []
    for group in groups:
        name, workers, servers = group
        first_s, alone = median(group, "first_s"), (name, 0, False)
        lines.append(
            [
                name,
                f"{workers}{', servers' if servers else ''}" if workers else "Keras' own fit",
                f"{median(group, 'ready_s'):.1f}",
                f"{first_s:.1f}",
                f"{first_s / median(alone, 'first_s'):.2f}" if alone in groups else "-",
                f"{median(group, 'step_s'):.2f}",
                f"{median(group, 'state_bytes') / 2**30:.2f}",
                f"{median(group, 'peak_bytes') / 2**30:.2f}",
            ]
        )
    head = ["network", "workers", "ready [s]", "first step [s]", "times Keras'", "a later step [s]"]
    return markdown_table([*head, "variables [GiB]", "peak [GiB]"], lines)


@click.command()
@click.option("--model", "names", multiple=True, default=("ResNet50",), show_default=True)
@click.option("--workers", multiple=True, type=int, default=(0, 2, 4, 8), show_default=True, help="0: Keras' own fit.")
@click.option("--servers", is_flag=True, help="Give each worker a process of its own.")
@click.option("--add", is_flag=True, help="Keep what the file has.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--json", "path", type=click.Path(dir_okay=False), help="File to write all measurements to.")
@errors_for_click
def main(
    names: tuple[str, ...], workers: tuple[int, ...], servers: bool, add: bool, rounds: int, path: str | None
) -> None:
    """Measure, and print a table."""
    rows = json.loads(Path(path).read_text(encoding="utf-8")) if add and path is not None else []
    for row in measure(names, workers, rounds, servers):
        rows.append(row)
        click.echo(f"{row['model']}, {row['workers']} workers: first step after {row['first_s']:.1f} s", err=True)
        if path is not None:
            write_json(rows, path)
    click.echo(table(rows))


if __name__ == "__main__":
    main()
