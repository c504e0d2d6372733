"""``python -m benchmarks.first_step``: how long a training takes until its first step has ended, and its memory.

A network of `keras.applications` on small images, by Keras' own ``fit`` and by `caramel.fit` on workers of one process.
Each is measured in a process of its own, one after the other, round by round; what counts begins with the call of
``fit``: TensorFlow is imported and the model is built then.
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

name, workers, side, classes, batch, steps = sys.argv[1], *map(int, sys.argv[2:])
rng = np.random.default_rng(0)
x, y = rng.random((batch * steps, side, side, 3), "float32"), rng.integers(0, classes, batch * steps)
model = getattr(keras.applications, name)(weights=None, input_shape=(side, side, 3), classes=classes)
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy())
ends = []


class Clock(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        ends.append(time.perf_counter())

    def on_train_batch_end(self, batch, logs=None):
        ends.append(time.perf_counter())


options = {"batch_size": batch, "shuffle": False, "verbose": 0, "callbacks": [Clock()]}
begin = time.perf_counter()
if workers == 0:
    model.fit(x, y, **options)
else:
    caramel.fit(model, x, y, workers=workers, **options)
print(json.dumps({
    "ready_s": ends[0] - begin,
    "first_s": ends[1] - begin,
    "step_s": min(after - before for before, after in zip(ends[1:], ends[2:])),
    "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
}))
"""


def measure(names: Sequence[str], workers: Sequence[int], rounds: int) -> Iterator[dict[str, Any]]:
    """One measurement after the other.

    Args:
        names: networks of `keras.applications`.
        workers: numbers of workers; 0 for Keras' own ``fit``.
        rounds: number of times.

    Raises:
        CaramelError: a training fails.
    """
    for number in range(rounds):
        for name in names:
            for count in workers:
                sizes = (count, SIDE_PIXELS, CLASSES, BATCH, STEPS)
                command = [sys.executable, "-c", _ONE, name, *map(str, sizes)]
                done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=_PATIENCE_S)
                if done.returncode:
                    raise CaramelError(f"{name} on {count} workers: {done.stderr.strip().splitlines()[-1]}")
                yield {
                    "model": name,
                    "workers": count,
                    "round": number,
                    **json.loads(done.stdout.strip().splitlines()[-1]),
                }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The medians, beside those of Keras' own ``fit``.

    Args:
        rows: what `measure` has found.
    """
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["workers"]), []).append(row)

    def median(name: str, workers: int, figure: str) -> float:
        return float(statistics.median(row[figure] for row in groups[name, workers]))

    lines = []
    for name, workers in groups:
        first_s = median(name, workers, "first_s")
        lines.append(
            [
                name,
                str(workers) if workers else "Keras' own fit",
                f"{median(name, workers, 'ready_s'):.1f}",
                f"{first_s:.1f}",
                f"{first_s / median(name, 0, 'first_s'):.2f}" if (name, 0) in groups else "-",
                f"{median(name, workers, 'step_s'):.2f}",
                f"{median(name, workers, 'peak_bytes') / 2**30:.2f}",
            ]
        )
    head = ["network", "workers", "ready [s]", "first step [s]", "times Keras'", "a later step [s]", "peak [GiB]"]
    return markdown_table(head, lines)


@click.command()
@click.option("--model", "names", multiple=True, default=("ResNet50",), show_default=True)
@click.option("--workers", multiple=True, type=int, default=(0, 2, 4, 8), show_default=True, help="0: Keras' own fit.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--json", "path", type=click.Path(dir_okay=False), help="File to write all measurements to.")
@errors_for_click
def main(names: tuple[str, ...], workers: tuple[int, ...], rounds: int, path: str | None) -> None:
    """Measure, and print a table."""
    rows = []
    for row in measure(names, workers, rounds):
        rows.append(row)
        click.echo(f"{row['model']}, {row['workers']} workers: first step after {row['first_s']:.1f} s", err=True)
        if path is not None:
            write_json(rows, path)
    click.echo(table(rows))


if __name__ == "__main__":
    main()
