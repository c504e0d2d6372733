"""``python -m benchmarks.predictions``: predicted steps against measured ones, on hosts with shaped links.

A network of convolutions and dense layers is traced on the hosts, all of which share this machine's cores, and
their network is measured. Then the program is planned by several policies, all from that trace and that
network, and their steps are timed in turn.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import click

from benchmarks.collectives import cluster
from benchmarks.output import errors_for_click, markdown_table, write_json
from benchmarks.testbed import Testbed
from caramel.facts import Trace
from caramel.netmodel.model import NetworkModel
from caramel.util.progress import progress_over
from caramel.util.units import parse_rate

POLICIES: Mapping[str, Mapping[str, Any]] = {
    "complete": {},
    "the paper's rules": {"policy": "paper"},
    "backward window only": {"scheduling": False},
    "each gradient alone": {"batching": False},
    "no order enforced": {"serialization": False},
    "nothing planned": {"serialization": False, "batching": False, "scheduling": False},
}
WARM_UP = 8


@dataclass(frozen=True)
class Cell:
    """One policy.

    Attributes:
        policy: its name.
        predicted_s: seconds of a step by the simulator.
        lower_bound_s: no plan takes less, by the same times.
        postponed_bytes: of gradients that travel in the next step, in whole or in part.
        transfers: number of transfers.
        times_s: measured seconds of each step.
    """

    policy: str
    predicted_s: float
    lower_bound_s: float
    postponed_bytes: int
    transfers: int
    times_s: list[float]

    @property
    def measured_s(self) -> float:
        """Median of the steps."""
        return statistics.median(self.times_s)


def program(examples: int) -> Any:
    """A captured training step; each worker has its part of the data, so that only gradients cross the network."""
    import keras
    import numpy as np
    import tensorflow as tf

    import caramel

    keras.utils.set_random_seed(1)
    layers = keras.layers
    network = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            *(layers.Conv2D(32 * 2 ** (n // 2), 3, 1 + n % 2, "same", activation="relu") for n in range(6)),
            layers.Flatten(),
            layers.Dense(384, "relu"),
            layers.Dense(384, "relu"),
            layers.Dense(10),
        ]
    )
    optimizer = keras.optimizers.SGD(1e-3, momentum=0.9)

    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = network(images, training=True)
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True))
        trained = network.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained))
        return loss

    rng = np.random.default_rng(0)
    batch = rng.normal(size=(examples, 32, 32, 3)).astype(np.float32), rng.integers(0, 10, examples)

    def data(workers: int, rank: int) -> tf.data.Dataset:
        part = tuple(np.array_split(each, workers)[rank] for each in batch)
        return tf.data.Dataset.from_tensors(part).repeat()

    return caramel.capture(step, data=data)


def measure(
    context: Any,
    trace: Trace,
    network: NetworkModel,
    place: Any,
    workers: int,
    rounds: int,
    policies: Sequence[str],
) -> list[Cell]:
    """Time the steps of all policies in turn."""
    import caramel
    from caramel.measure.tracer import timed_step

    models = {
        name: caramel.ARModel(context, workers, trace=trace, network=network, **POLICIES[name]) for name in policies
    }
    times: dict[str, list[float]] = {name: [] for name in models}
    with ExitStack() as stack:
        sessions = {name: stack.enter_context(model.session(place)) for name, model in models.items()}
        show = stack.enter_context(progress_over(rounds + WARM_UP, True))
        for done in range(rounds + WARM_UP):
            for name, session in sessions.items():
                step_s = timed_step(session)
                times[name] += [step_s] if done >= WARM_UP else []
            show(done + 1, "")
    return [_cell(name, models[name].plan, times[name]) for name in models]


def _cell(name: str, plan: Any, times_s: list[float]) -> Cell:
    return Cell(
        name,
        plan.prediction.timeline.iteration_s,
        plan.prediction.lower_bound_s,
        plan.extra_bytes,
        len(plan.transfers),
        times_s,
    )


def table(cells: Sequence[Cell]) -> str:
    """The cells in markdown."""
    rows = [
        (
            cell.policy,
            str(cell.transfers),
            f"{cell.postponed_bytes / 2**20:.1f}",
            f"{cell.predicted_s * 1e3:.4g}",
            f"{cell.measured_s * 1e3:.4g}",
            f"{cell.predicted_s / cell.measured_s - 1:+.1%}",
            f"{cell.measured_s / cell.lower_bound_s:.2f}",
        )
        for cell in cells
    ]
    head = ("policy", "transfers", "postponed [MiB]", "predicted [ms]", "measured [ms]", "off", "of the bound")
    return markdown_table(head, rows)


@click.command()
@click.option("--workers", type=click.IntRange(min=2), default=4, show_default=True)
@click.option("--rate", default="100mbit", show_default=True, help="Of each host's link; 0 for the loopback device.")
@click.option(
    "--examples", "sizes", type=int, multiple=True, default=(256, 1024), show_default=True, help="Of a global batch."
)
@click.option("--rounds", type=int, default=15, show_default=True, help="Steps of each policy that count.")
@click.option("--policy", "policies", multiple=True, type=click.Choice(list(POLICIES)), help="Default: all.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False))
@errors_for_click
def main(
    workers: int, rate: str, sizes: tuple[int, ...], rounds: int, policies: tuple[str, ...], json_file: str | None
) -> None:
    """Compare predicted and measured steps."""
    from dataclasses import replace

    import caramel
    from caramel.measure.netbench import Settings, measure_network
    from caramel.runtime.host.run_options import RunOptions

    found = []
    with ExitStack() as stack:
        testbed = None if rate == "0" else stack.enter_context(Testbed(workers, parse_rate(rate)))
        place = replace(cluster(workers, testbed), options=RunOptions(intra_op_threads=1, inter_op_threads=2))
        where = "loopback" if testbed is None else f"links of {rate}"
        settings = Settings(tuple(2**k for k in range(12, 24, 2)), depths=(1, 4), rounds=3)
        network = measure_network(place, [workers], settings, where)
        for examples in sizes:
            context = program(examples)
            trace = caramel.trace(context, workers=workers, cluster=place, runs=5, steps=10)
            cells = measure(context, trace, network, place, workers, rounds, policies or tuple(POLICIES))
            alone_ms, ops_ms = trace.step_s * 1e3, trace.predicted_s * 1e3
            click.echo(
                f"\n{examples} examples: computation alone {alone_ms:.4g} ms; its ops predict {ops_ms:.4g} ms\n\n"
                + table(cells)
            )
            rows = [asdict(cell) for cell in cells]
            found.append(
                {"rate": rate, "workers": workers, "examples": examples, "step_s": trace.step_s, "cells": rows}
            )
    if json_file is not None:
        write_json(found, json_file)


if __name__ == "__main__":
    sys.exit(main(prog_name="python -m benchmarks.predictions"))
