"""``python -m benchmarks.driver_inside``: the server of task 0 in the driver's own process, and beside it.

A worker on each host of a testbed with fast links, all on the machine's cores; the driver runs on the first host. It
opens two sessions, each on servers of its own, and runs their steps in turn.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import click
import numpy as np

from benchmarks.output import errors_for_click, markdown_table, write_json
from benchmarks.short_driver import fed
from benchmarks.statistics import paired_ratio
from benchmarks.testbed import Testbed
from benchmarks.training.workloads import SHORT
from caramel.frontend.context import Context
from caramel.runtime.host.environment import prepare_server

BESIDE, INSIDE = "beside", "inside"

_PORTS = {BESIDE: 2222, INSIDE: 2223}
_LINK_BYTES_PER_S = 10e9 / 8
_IMAGES, _IMAGE = 64, (224, 224, 3)
_MEASURE_S = 600.0

IMAGES = f"sums over {_IMAGES} images of {_IMAGE[0]} x {_IMAGE[1]}"
NETWORKS = (*(workload.title for workload in SHORT[:2]), IMAGES)


def _of_images() -> tuple[Context, tuple[np.ndarray, ...]]:
    """A step with next to nothing to compute on a batch that takes its time on the way, and such a batch."""
    import tensorflow as tf

    import caramel

    weight = tf.Variable(tf.zeros(_IMAGE[-1]), name="weight")

    def step(images: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.reduce_mean(images, [1, 2]) * weight)
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    images = np.random.default_rng(0).random((_IMAGES, *_IMAGE), np.float32)
    return caramel.capture(step, [tf.TensorSpec([None, *_IMAGE])]), (images,)


def drive(network: str, hosts: Sequence[str], rounds: int, runs: int) -> dict[str, list[float]]:
    """Median seconds of the steps of each round, with the server of task 0 beside the driver and inside.

    Args:
        network: one of `NETWORKS`.
        hosts: address of each host; this process runs on the first.
        rounds: how often either has its turn.
        runs: steps in a turn.
    """
    import caramel

    context, batch = _of_images() if network == IMAGES else fed(next(w for w in SHORT if w.title == network))
    times_s: dict[str, list[float]] = {BESIDE: [], INSIDE: []}
    with ExitStack() as opened:
        sessions = {}
        for where in times_s:
            addresses = [f"{host}:{_PORTS[where]}" for host in hosts]
            servers = caramel.Servers(tuple(addresses), task=0, drives_inside=where == INSIDE)
            model = caramel.ARModel(context, len(hosts), algorithm="star")
            sessions[where] = opened.enter_context(model.session(servers))
        for number in range(-1, rounds):  # the first one settles
            for where, session in sessions.items():
                steps_s = []
                for _ in range(runs):
                    begin_s = time.perf_counter()
                    session.step(*batch)
                    steps_s.append(time.perf_counter() - begin_s)
                if number >= 0:
                    times_s[where].append(statistics.median(steps_s))
    return times_s


def measure(networks: Sequence[str], workers: Sequence[int], rounds: int, runs: int) -> Iterator[dict[str, Any]]:
    """What `drive` measures, of each network and number of workers.

    Args:
        networks: some of `NETWORKS`.
        workers: numbers of workers, one on each host.
        rounds: see `drive`.
        runs: see `drive`.

    Raises:
        UnavailableError: no testbed can be built here.
        TestbedError: the driver fails.
    """
    for count in workers:
        for network in networks:
            with Testbed(count, _LINK_BYTES_PER_S) as testbed:
                hosts = [host.address for host in testbed.hosts]
                for host in testbed.hosts[1:]:
                    for port in _PORTS.values():
                        cluster = ",".join(f"{address}:{port}" for address in hosts)
                        worker = ["-m", "caramel", "worker", "--cluster", cluster, "--task", str(host.rank)]
                        host.popen([sys.executable, *worker], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                own = [network, json.dumps(hosts), str(rounds), str(runs)]
                driver = [sys.executable, "-m", "benchmarks.driver_inside", "--drive", *own]
                done = testbed.hosts[0].run(driver, _MEASURE_S)
            yield {"network": network, "workers": count, "times_s": json.loads(done.stdout.splitlines()[-1])}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The medians of all rounds, and of ratios in the same round.

    Args:
        rows: what `measure` has found.
    """
    lines = []
    for row in rows:
        beside_s, inside_s = (row["times_s"][where] for where in (BESIDE, INSIDE))
        ratio = paired_ratio(inside_s, beside_s)
        medians = [f"{statistics.median(each) * 1e3:.2f}" for each in (beside_s, inside_s)]
        lines.append([row["network"], str(row["workers"]), *medians, f"{ratio.median:.2f} ({ratio.bounds(2)})"])
    return markdown_table(["step", "workers", "beside [ms]", "inside [ms]", "inside / beside"], lines)


@click.command()
@click.option("--workers", multiple=True, type=click.IntRange(min=2), default=(2, 4), show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=15, show_default=True)
@click.option("--runs", type=click.IntRange(min=1), default=20, show_default=True, help="In each round.")
@click.option("--json", "path", type=click.Path(dir_okay=False), help="File to write all measurements to.")
@errors_for_click
def main(workers: tuple[int, ...], rounds: int, runs: int, path: str | None) -> None:
    """Measure, and print a table."""
    rows = []
    for row in measure(NETWORKS, workers, rounds, runs):
        rows.append(row)
        click.echo(table([row]).splitlines()[-1], err=True)
    if path is not None:
        write_json(rows, path)
    click.echo(table(rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--drive"]:
        prepare_server()
        _network, _hosts, _rounds, _runs = sys.argv[2:]
        click.echo(json.dumps(drive(_network, json.loads(_hosts), int(_rounds), int(_runs))))
    else:
        main()
