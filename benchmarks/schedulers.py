"""``python -m benchmarks.schedulers``: every scheduler of the papers on the same hosts, measured and predicted.

Hosts of a testbed have emulated accelerators: computation takes time, but no processor. All-reduces run on the workers'
hosts; parameter servers have further hosts, as many as there are workers, with the same links. All contenders have the
same step, trace and measured network, and the losses of all must agree. They take turns, so that all see the same
machine.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks.output import errors_for_click, markdown_table, write_json
from benchmarks.turns import SETTLING_STEPS, compare_losses, first_hosts, in_turn, open_hosts, turn_s
from caramel.util.progress import progress_over

OURS = "Caramel, optimal"
NO_SCHEDULE = "each gradient alone, in no order"

ALL_REDUCES: Mapping[str, Callable[[Any, Any], Mapping[str, Any]]] = {
    NO_SCHEDULE: lambda trace, _: {"trace": trace, "serialization": False, "batching": False, "scheduling": False},
    "WFBP": lambda trace, _: {"analyzers": _backward_only(trace, "single")},
    "SyncEASGD": lambda trace, _: {"analyzers": _backward_only(trace, "fixed", math.inf)},
    "MG-WFBP": lambda trace, _: {"analyzers": _backward_only(trace, "mg_wfbp")},
    "ByteScheduler": lambda trace, _: {"trace": trace, "policy": "bytescheduler"},
    "P3": lambda trace, _: {"trace": trace, "policy": "p3"},
    "Caramel, the paper's rules": lambda trace, _: {"trace": trace, "policy": "paper"},
    OURS: lambda trace, _: {"trace": trace},
}
"""Contenders that all-reduce: options of `caramel.ARModel` besides the network, from a trace."""

SERVED: Mapping[str, str] = {
    "servers, no order": "none",
    "servers, TIC": "tic",
    "servers, TAC": "tac",
    "servers, best": "best",
}
"""Contenders with parameter servers: orders of pulls."""

NEAR = 0.1
"""Part of a step by which a prediction may be off."""


@dataclass(frozen=True)
class Cell:
    """What all contenders have in common.

    Attributes:
        network: name of an emulated network.
        workers: number of workers, each on a host of its own.
        rho: seconds that a link needs for the bytes of a balanced all-reduce, over seconds of computation.
    """

    network: str
    workers: int
    rho: float

    def __str__(self) -> str:
        return f"{self.network}, {self.workers} workers, rho {self.rho:g}"


def _backward_only(trace: Any, batching: str, *arguments: Any) -> list[Any]:
    """The analyzers of a scheduler that knows the backward pass only."""
    from caramel.analyzers.policies import batching as batchings
    from caramel.analyzers.policies.control_edges import serialization
    from caramel.analyzers.policies.order import greedy_order
    from caramel.analyzers.policies.packing import backward_only
    from caramel.analyzers.policies.transfers import adaptive_depth
    from caramel.analyzers.step.boundaries import boundaries
    from caramel.analyzers.step.dependencies import dependencies
    from caramel.analyzers.step.op_times import given_trace

    buckets = getattr(batchings, batching)(*arguments)
    facts = [dependencies(), given_trace(trace), greedy_order(), serialization(), boundaries()]
    return [*facts, buckets, backward_only(), adaptive_depth()]


def measure(
    cell: Cell,
    contenders: Sequence[str],
    rounds: int,
    steps: int,
    networks: dict[float, Any],
    show: Callable[[int, str], None],
) -> dict[str, Any]:
    """Seconds of each contender's steps, and what was predicted.

    Args:
        cell: what they have in common.
        contenders: their names.
        rounds: how often each has its turn.
        steps: timed steps of a turn, which follow one that is not.
        networks: models of the networks that were measured, by rate; that of the cell is added.
        show: function that shows progress: number of turns done, and what is done.

    Raises:
        CaramelError: a training fails.
        InvariantError: the losses of two contenders differ.
    """
    import caramel
    from benchmarks.training.accelerated import Accelerated
    from benchmarks.training.effort import EMULATED as EFFORT
    from benchmarks.training.ours import captured
    from benchmarks.training.profiles import COMPUTATION_S, EMULATED, TOTAL_BYTES
    from caramel.measure.netbench import measure_network

    workers = servers = cell.workers
    rate = 2 * (workers - 1) / workers * TOTAL_BYTES / (cell.rho * COMPUTATION_S)
    context = captured(EMULATED[cell.network])
    made: dict[str, tuple[Any, dict[str, Any]]] = {}
    with ExitStack() as opened:
        of_all = open_hosts(opened, workers + servers, rate)
        of_workers = Accelerated(first_hosts(of_all, workers))
        if rate not in networks:
            show(0, "the network")
            where = f"links of {rate * 8 / 1e6:.4g} Mbit/s"
            networks[rate] = measure_network(of_workers, [workers], EFFORT.network, where)
        show(0, "the trace")
        trace = caramel.trace(context, workers=workers, cluster=of_workers)
        hosts = opened.enter_context(of_workers.shared())
        with_servers = opened.enter_context(Accelerated(of_all).shared())
        for name in contenders:
            show(0, f"{name}: plan and first steps")
            model, where, facts = _planned(name, context, workers, servers, trace, networks[rate], hosts, with_servers)
            session = opened.enter_context(model.session(where))
            losses = [result.loss for result in session.run(steps=SETTLING_STEPS, progress=False)]
            made[name] = session, {**facts, "losses": losses, "times_s": []}
            compare_losses(name, losses, contenders[0], made[contenders[0]][1]["losses"])
        for name in in_turn(contenders, rounds, show):
            session, found = made[name]
            found["times_s"].append(turn_s(session, steps))
    found = {name: facts for name, (_, facts) in made.items()}
    return {
        "network": cell.network,
        "workers": workers,
        "servers": servers,
        "rho": cell.rho,
        "rate_bytes_per_s": rate,
        "compute_s": COMPUTATION_S,
        "contenders": found,
    }


def _planned(
    name: str, context: Any, workers: int, servers: int, trace: Any, network: Any, hosts: Any, with_servers: Any
) -> tuple[Any, Any, dict[str, Any]]:
    """A contender's model, where it runs, and what is known of it before."""
    import caramel

    if name in SERVED:
        served = caramel.PSModel(context, workers, servers, ordering=SERVED[name], trace=trace, network=network)
        found = served.plan.servers
        assert found is not None and found.prediction is not None
        return served, with_servers, {"predicted_s": found.prediction.step_s, "transfers": None}
    model = caramel.ARModel(context, workers, network=network, **ALL_REDUCES[name](trace, network))
    predicted = model.plan.prediction
    predicted_s = None if predicted is None else predicted.timeline.iteration_s
    return model, hosts, {"predicted_s": predicted_s, "transfers": len(model.plan.transfers)}


# -- tables --------------------------------------------------------------------------------------


def _median_s(found: Mapping[str, Any]) -> float:
    return statistics.median(found["times_s"])


def _off(found: Mapping[str, Any]) -> float | None:
    """By which part of the measured step the prediction is off."""
    predicted_s = found["predicted_s"]
    return None if predicted_s is None else predicted_s / _median_s(found) - 1


def _label(cell: Mapping[str, Any]) -> str:
    return f"{cell['network']}, rho {cell['rho']:g}"


def steps_table(record: Mapping[str, Any]) -> str:
    """Milliseconds of a step of each contender, by cell, and in brackets by how much the prediction is off.

    Args:
        record: what `main` has written.
    """
    cells = record["cells"]
    names = list(dict.fromkeys(name for cell in cells for name in cell["contenders"]))
    lines = []
    for name in names:
        line = [name]
        for cell in cells:
            found = cell["contenders"].get(name)
            if found is None:
                line.append("-")
                continue
            off = _off(found)
            line.append(f"{_median_s(found) * 1e3:.0f}" + ("" if off is None else f" ({off:+.1%})"))
        lines.append(line)
    return markdown_table(["scheduler", *map(_label, cells)], lines)


def predictions_table(record: Mapping[str, Any]) -> str:
    """In how many cells each contender's step was predicted well enough.

    Args:
        record: what `main` has written.
    """
    lines = []
    for name in dict.fromkeys(name for cell in record["cells"] for name in cell["contenders"]):
        found = [cell["contenders"][name] for cell in record["cells"] if name in cell["contenders"]]
        offs = [off for each in found if (off := _off(each)) is not None]
        if offs:
            near, worst = sum(abs(off) <= NEAR for off in offs), max(offs, key=abs)
            lines.append([name, f"{near} of {len(offs)}", f"{worst:+.1%}"])
    return markdown_table(["scheduler", f"predicted within {NEAR:.0%}", "the worst"], lines)


# -- the command ---------------------------------------------------------------------------------


def _cells(networks: Sequence[str], workers: int, rhos: Sequence[float]) -> Iterator[Cell]:
    return (Cell(network, workers, rho) for rho in rhos for network in networks)


@click.command()
@click.option("--network", "networks", multiple=True, default=("inceptionv3", "vgg16"), show_default=True)
@click.option("--workers", type=click.IntRange(min=2), default=4, show_default=True)
@click.option("--rho", "rhos", type=float, multiple=True, default=(1.0, 2.0), show_default=True)
@click.option(
    "--contender", "contenders", multiple=True, type=click.Choice([*ALL_REDUCES, *SERVED]), help="Default: all."
)
@click.option("--rounds", type=click.IntRange(min=1), default=4, show_default=True, help="Turns of each.")
@click.option("--steps", type=click.IntRange(min=1), default=4, show_default=True, help="Timed steps of a turn.")
@click.option(
    "--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Record to write, or to go on with."
)
@errors_for_click
def main(
    networks: tuple[str, ...],
    workers: int,
    rhos: tuple[float, ...],
    contenders: tuple[str, ...],
    rounds: int,
    steps: int,
    path: Path | None,
) -> None:
    """Measure the cells that the record does not have yet with all contenders, and print two tables; needs root."""
    record: dict[str, Any] = {"cells": []}
    if path is not None and path.exists():
        record = json.loads(path.read_text(encoding="utf-8"))
    measured: dict[float, Any] = {}
    chosen = contenders or (*ALL_REDUCES, *SERVED)
    known = [
        Cell(cell["network"], cell["workers"], cell["rho"])
        for cell in record["cells"]
        if cell["contenders"].keys() >= {*chosen}
    ]
    for cell in _cells(networks, workers, rhos):
        if cell in known:
            continue
        click.echo(str(cell))
        with progress_over(rounds * len(chosen)) as show:
            found = measure(cell, chosen, rounds, steps, measured, show)
        label = {name: found[name] for name in ("network", "workers", "rho")}
        others = [each for each in record["cells"] if not label.items() <= each.items()]
        record["cells"] = [*others, found]  # in place of what fewer contenders had
        if path is not None:
            write_json(record, path)
    click.echo(f"{steps_table(record)}\n\n{predictions_table(record)}")


if __name__ == "__main__":
    main()
