"""``python -m benchmarks.published``: this library's models and plans against figures that others have published.

It replays MG-WFBP's simulation, predicts some of its authors' times of all-reduces from the others, and plans the steps
of nine networks that PipeDream's authors measured. Nothing is measured: the same data give the same numbers anywhere.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click

from benchmarks.output import errors_for_click, markdown_table, write_json
from benchmarks.published_data import (
    FIGURE_9_NETWORK,
    FITTED_NETWORKS,
    FittedNetwork,
    all_reduce_samples,
    boundaries_of,
)
from benchmarks.published_layers import Layer, googlenet_on_k80, layers_by_network
from benchmarks.statistics import geometric_mean
from caramel.analyzers.analyzer import Analyzer, analyse
from caramel.analyzers.cost.network import Network
from caramel.analyzers.optimal.problem import TIE_TOLERANCE
from caramel.analyzers.optimal.search import Packing, pack
from caramel.analyzers.optimal.step_bound import step_bound_s
from caramel.analyzers.policies.batching import fixed, mg_wfbp, single
from caramel.analyzers.policies.packing import backward_only
from caramel.facts import Boundaries, Schedule
from caramel.netmodel.choice import CollectiveOptions
from caramel.netmodel.line import Curve, Sample
from caramel.netmodel.model import NetworkModel
from caramel.simulator import simulate
from caramel.util.progress import progress_over
from caramel.util.units import format_size

# -- MG-WFBP's figure 9 ------------------------------------------------------------------------------

MERGED = "MG-WFBP"

SYSTEMS: Mapping[str, Analyzer] = {"WFBP": single(), "SyncEASGD": fixed(math.inf), MERGED: mg_wfbp()}
"""The three systems that the figure compares, as batching policies of this library."""

FIGURE_9_WORKERS = (4, 8, 16, 32, 64)

PUBLISHED_SPEEDUPS = {(64, "WFBP"): 1.78, (64, "SyncEASGD"): 1.35}
"""How many times as long as with MG-WFBP a step of GoogleNet takes, by number of workers and system: the ratios of the
figure that the text says (section V.C)."""

MOST_OFF = 0.03
"""How far a replayed ratio may be from the published one, as a part of it."""


@dataclass(frozen=True)
class Replay:
    """GoogleNet in MG-WFBP's simulation.

    Attributes:
        workers: number of workers.
        steps_s: seconds of a step by system.
    """

    workers: int
    steps_s: Mapping[str, float]

    def speedup(self, system: str) -> float:
        """How many times as long as with MG-WFBP a step takes with another system."""
        return self.steps_s[system] / self.steps_s[MERGED]


def figure_9_network(workers: int) -> Network:
    """The network of the figure, with so many workers."""
    return Network(CollectiveOptions("ring", 1, network=FIGURE_9_NETWORK), workers)


def replay(layers: Sequence[Layer], workers: int) -> Replay:
    """Simulate a step under each of `SYSTEMS`.

    Args:
        layers: layers of the network that is trained.
        workers: number of workers.
    """
    boundaries, network = boundaries_of(layers), figure_9_network(workers)
    steps_s = {}
    for name, batching in SYSTEMS.items():
        schedule = analyse([batching, backward_only()], [boundaries, network], [Schedule])[Schedule]
        steps_s[name] = simulate(boundaries, schedule, network.time_s).iteration_s
    return Replay(workers, steps_s)


def figure_9_table(record: Mapping[str, Any]) -> str:
    """The published ratios beside the replayed ones."""
    by_workers = {row["workers"]: Replay(**row) for row in record["figure_9"]}
    rows = []
    for (workers, system), published in PUBLISHED_SPEEDUPS.items():
        here = by_workers[workers].speedup(system)
        off = here / published - 1
        kept = "yes" if abs(off) <= MOST_OFF else "no"
        rows.append([str(workers), f"{MERGED} over {system}", f"{published:.2f}", f"{here:.2f}", f"{off:+.1%}", kept])
    return markdown_table(["workers", "ratio", "published", "here", "off", f"within {MOST_OFF:.0%}"], rows)


# -- times of all-reduces ----------------------------------------------------------------------------

FITTED_BYTES = tuple(64 * 4**n for n in range(8))
"""Sizes that a model is fitted to: 64 B to 1 MiB, as `caramel netbench` spaces them."""

SMALL_BYTES = 8192
"""The largest size before the jump of the published times, at 8 workers from 0.18 to 0.79 ms."""

_ALGORITHM = "ring"
"""What the authors take the all-reduces for (MG-WFBP, figure 5); what MPI chose at which size is not published."""


@dataclass(frozen=True)
class Calibration:
    """Times that were predicted by a model that had not seen them.

    Attributes:
        fitted: what the model was fitted to.
        workers: number of workers of the predicted all-reduces.
        predicted: which of their sizes were predicted.
        count: number of these sizes.
        small_off: median of the errors up to `SMALL_BYTES`, each without its sign and as a part of the published time;
            None where nothing so small was predicted.
        large_off: the same above.
        worst_off: largest error, with its sign.
        worst_bytes: its size.
    """

    fitted: str
    workers: int
    predicted: str
    count: int
    small_off: float | None
    large_off: float
    worst_off: float
    worst_bytes: int


def calibrations(samples: Mapping[int, Sequence[Sample]]) -> list[Calibration]:
    """Fit models to a part of the times and predict others.

    Args:
        samples: times by number of workers.
    """
    largest = max(FITTED_BYTES)
    second = sorted(FITTED_BYTES)[-2]
    sizes = f"{len(FITTED_BYTES)} sizes"
    found = []
    for workers in samples:
        model = _fitted(samples, [workers], largest)
        others = [s for s in samples[workers] if s.size_bytes not in FITTED_BYTES]
        found.append(_predicted(model, workers, others, f"{sizes}, 64 B to {format_size(largest)}", "all others"))
    for workers in samples:
        model = _fitted(samples, [workers], second)
        above = [s for s in samples[workers] if s.size_bytes > second]
        name = f"above {format_size(second)}"
        found.append(
            _predicted(model, workers, above, f"{len(FITTED_BYTES) - 1} sizes, 64 B to {format_size(second)}", name)
        )
    for workers in samples:
        others_too = [n for n in samples if n != workers]
        model = _fitted(samples, others_too, largest)
        fitted = f"{sizes} with {' and '.join(map(str, others_too))} workers"
        found.append(_predicted(model, workers, samples[workers], fitted, "all"))
    return found


def _fitted(samples: Mapping[int, Sequence[Sample]], numbers: Sequence[int], most_bytes: int) -> NetworkModel:
    """The model of `FITTED_BYTES` up to some size, with some numbers of workers."""
    curves = []
    for workers in numbers:
        known = [s for s in samples[workers] if s.size_bytes in FITTED_BYTES and s.size_bytes <= most_bytes]
        curves.append(Curve.fitted(workers, _ALGORITHM, 1, known))
    return NetworkModel("published times", tuple(curves))


def _predicted(model: NetworkModel, workers: int, unseen: Sequence[Sample], fitted: str, predicted: str) -> Calibration:
    off = {s.size_bytes: model.predict(_ALGORITHM, 1, workers, s.size_bytes).time_s / s.time_s - 1 for s in unseen}
    small = [abs(each) for size, each in off.items() if size <= SMALL_BYTES]
    large = [abs(each) for size, each in off.items() if size > SMALL_BYTES]
    worst = max(off, key=lambda size: abs(off[size]))
    small_off = statistics.median(small) if small else None
    return Calibration(fitted, workers, predicted, len(off), small_off, statistics.median(large), off[worst], worst)


def calibrations_table(record: Mapping[str, Any]) -> str:
    """The errors of each calibration."""
    head = ["fitted to", "predicted for", "sizes", "number"]
    head += [f"up to {format_size(SMALL_BYTES)}", "above", "worst", "at"]
    rows = []
    for each in (Calibration(**row) for row in record["calibrations"]):
        small = "-" if each.small_off is None else f"{each.small_off:.1%}"
        errors = [small, f"{each.large_off:.1%}", f"{each.worst_off:+.0%}", format_size(each.worst_bytes)]
        rows.append([each.fitted, f"{each.workers} workers", each.predicted, str(each.count), *errors])
    return markdown_table(head, rows)


# -- plans for nine networks -------------------------------------------------------------------------

RHOS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Seconds of one transfer of everything, over those of the computation."""

PLANNERS: Mapping[str, Callable[..., Packing]] = {
    "best buckets, backward window only": lambda *facts: pack(*facts, forward=False),
    "whole gradients, both windows": lambda *facts: pack(*facts, split=False),
    "both windows": pack,
}
BOTH = "both windows"


@dataclass(frozen=True)
class Gap:
    """The plans for one network on one of `FITTED_NETWORKS`, and what no plan is below.

    Attributes:
        network: name of the network that is trained.
        links: name of the network that carries transfers.
        workers: number of workers.
        rho: seconds of one transfer of everything, over those of the computation.
        plans_s: seconds of a step by planner.
        bound_s: lower bound on the seconds of a step in which the forward pass never waits.
        any_bound_s: lower bound on the seconds of any step.
        is_proved: whether the plan with both windows is proved to be nearly best.
        cuts: number of gradients that this plan cuts.
    """

    network: str
    links: str
    workers: int
    rho: float
    plans_s: Mapping[str, float]
    bound_s: float
    any_bound_s: float
    is_proved: bool
    cuts: int


def gap(name: str, layers: Sequence[Layer], on: FittedNetwork, rho: float) -> Gap:
    """Plan the steps of a network whose computation is rescaled to some rho.

    Args:
        name: name of the network that is trained.
        layers: its layers.
        on: the network that carries transfers.
        rho: seconds of one transfer of everything, over those of the computation.
    """
    boundaries = _rescaled(layers, on, rho)
    packings = {planner: make(boundaries, on.line) for planner, make in PLANNERS.items()}
    both = packings[BOTH]
    any_bound_s = step_bound_s(boundaries, Network(CollectiveOptions("ring", 1, network=on.model()), on.workers))
    pieces = [piece.gradient for transfer in both.transfers for piece in transfer.pieces]
    return Gap(
        name,
        on.name,
        on.workers,
        rho,
        {planner: packing.iteration_s for planner, packing in packings.items()},
        boundaries.compute_s + both.bound_s,
        any_bound_s,
        both.is_optimal,
        len(pieces) - len(set(pieces)),
    )


def _rescaled(layers: Sequence[Layer], on: FittedNetwork, rho: float) -> Boundaries:
    all_s = on.line.time_s(sum(layer.parameter_bytes for layer in layers))
    factor = all_s / rho / sum(layer.forward_s + layer.backward_s for layer in layers)
    return boundaries_of([layer.scaled(factor) for layer in layers])


def gaps(networks: Mapping[str, Sequence[Layer]], rhos: Sequence[float] = RHOS) -> list[Gap]:
    """All combinations, with progress on a terminal.

    Args:
        networks: layers by network.
        rhos: values of rho.
    """
    cases = [(rho, name, on) for rho in rhos for name in networks for on in FITTED_NETWORKS]
    found = []
    with progress_over(len(cases)) as show:
        for number, (rho, name, on) in enumerate(cases, 1):
            found.append(gap(name, networks[name], on, rho))
            show(number, f"rho {rho:g}, {name}")
    return found


def gaps_table(record: Mapping[str, Any]) -> str:
    """Geometric mean and worst of how much longer steps are than the bounds, by rho; and what is proved."""
    all_gaps = [Gap(**row) for row in record["gaps"]]
    rows = []
    for rho in dict.fromkeys(each.rho for each in all_gaps):
        chosen = [each for each in all_gaps if each.rho == rho]
        cells = [_over([each.plans_s[planner] / each.bound_s for each in chosen]) for planner in PLANNERS]
        rows.append([f"{rho:g}", *cells, _over([each.plans_s[BOTH] / each.any_bound_s for each in chosen])])
    proved, most = sum(each.is_proved for each in all_gaps), f"{TIE_TOLERANCE * 100:g} %"
    said = (
        f"Of the {len(all_gaps)} plans with both windows {proved} are proved to be within {most} of the first bound; "
        f"they cut {max(each.cuts for each in all_gaps)} gradients at most."
    )
    return markdown_table(["rho", *PLANNERS, f"{BOTH}, over the bound of any plan"], rows) + f"\n\n{said}"


def _over(ratios: Sequence[float]) -> str:
    """How far ratios are above 1, on average and at most.

    >>> _over([1.21, 1.0])
    '10.0 % / 21.0 %'
    """
    return f"{(geometric_mean(ratios) - 1) * 100:.1f} % / {(max(ratios) - 1) * 100:.1f} %"


# -- all of it ---------------------------------------------------------------------------------------


def record_of_all() -> dict[str, Any]:
    """What `benchmarks/results/published.json` has."""
    layers = googlenet_on_k80()
    return {
        "figure_9": [asdict(replay(layers, workers)) for workers in FIGURE_9_WORKERS],
        "calibrations": [asdict(each) for each in calibrations(all_reduce_samples())],
        "gaps": [asdict(each) for each in gaps(layers_by_network())],
    }


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "json_file", metavar="FILE", help="Write the results.")
@errors_for_click
def main(json_file: str | None) -> None:
    """Compare models and plans with figures that others have published."""
    record = record_of_all()
    for table in (figure_9_table, calibrations_table, gaps_table):
        click.echo(f"{table(record)}\n")
    if json_file is not None:
        write_json(record, json_file)


if __name__ == "__main__":
    sys.exit(main(prog_name="python -m benchmarks.published"))
