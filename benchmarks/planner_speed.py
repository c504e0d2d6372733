"""``python -m benchmarks.planner_speed``: how long planning and predicting take, with one thread.

The steps are chains of layers with random times and sizes, and the network has measured curves of five algorithms at
four depths. The search simulates a fixed number of steps, which is counted: it does not depend on the machine.
"""

from __future__ import annotations

import os
import random
import re
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from benchmarks.output import errors_for_click, markdown_table, write_json

if TYPE_CHECKING:
    from caramel.analyzers.cost.network import Network
    from caramel.facts import Boundaries, Schedule

_SIZES = (64, 2**12, 2**15, 2**18, 2**20, 2**22, 2**24)
_GOALS_S = {"time of a new size": 1e-4, "prediction": 1.0, "planning": 2.0}
"""Seconds that each is to take at most, at the largest number of gradients that is measured."""

_RULES_GOAL_S = 0.1
"""The same for planning by the rules of a paper."""

_UPDATE_FRACTION = 0.05
"""Seconds of an update over those of its layer's forward computation."""


def chain(gradients: int) -> Boundaries:
    """A step of so many layers; its computation takes a second, a third of it forward.

    Args:
        gradients: number of layers, each with one gradient.
    """
    from caramel.facts import Boundaries, Boundary

    rng = random.Random(0)
    forward = [rng.uniform(0.5, 2) for _ in range(gradients)]
    unit_s = 1.0 / (3 * sum(forward))
    elements = [rng.choice([100, 1000, 20_000, 300_000, 2_000_000]) for _ in forward]
    boundaries, now = [], sum(forward)
    for layer in reversed(range(gradients)):
        now += 2 * forward[layer]
        boundaries.append(
            Boundary(
                f"layer_{layer}",
                "float32",
                elements[layer],
                4.0 * elements[layer],
                now * unit_s,
                sum(forward[:layer]) * unit_s,
                _UPDATE_FRACTION * forward[layer] * unit_s,
            )
        )
    return Boundaries(tuple(boundaries), 1.0)


def network_for(boundaries: Boundaries) -> Network:
    """A network on which one transfer of everything takes about a second, with curves as a measurement has them."""
    from caramel.analyzers.cost.network import Network
    from caramel.netmodel.choice import CollectiveOptions
    from caramel.netmodel.contention import Contention
    from caramel.netmodel.line import Curve, Sample
    from caramel.netmodel.model import NetworkModel

    byte_s = 1.0 / sum(g.size_bytes for g in boundaries.gradients)
    curves, contentions = [], []
    for number, algorithm in enumerate(("shuffle", "star", "ring", "halving_doubling", "chain")):
        for depth in (1, 2, 4, 8):
            start_s, slope_s = 1e-3 * (1 + 0.2 * number) * depth**0.5, byte_s * (1 + 0.1 * number) / (1 + 0.1 * depth)
            samples = [Sample(size, start_s + slope_s * size) for size in _SIZES]
            curves.append(Curve.fitted(4, algorithm, depth, samples))
            if depth in (1, 4):
                share, slowdowns = 0.2 + 0.02 * number, ((2**16, 1.3), (2**20, 1.3), (2**22, 1.2))
                contentions += [Contention(4, algorithm, depth, size, share, slow, 1.1) for size, slow in slowdowns]
    model = NetworkModel("as measured", tuple(curves), contentions=tuple(contentions))
    return Network(CollectiveOptions(network=model), 4)


def _row(what: str, gradients: int, rounds: int, run: Callable[[], float], evaluations: int | None) -> dict[str, Any]:
    times_s = [run() for _ in range(rounds)]
    return {
        "what": what,
        "gradients": gradients,
        "evaluations": evaluations,
        "seconds": times_s,
        "goal_s": _GOALS_S.get(what, _RULES_GOAL_S),
    }


def _timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def rules() -> dict[str, Callable[[Boundaries, Network], Schedule]]:
    """Plans by the rules of papers, by the name of what is timed."""
    from caramel.analyzers import bytescheduler, mg_wfbp
    from caramel.analyzers.policies.batching import paper_batching, single
    from caramel.analyzers.policies.credit_packing import p3
    from caramel.analyzers.policies.packing import backward_only, paper_packing

    return {
        "planning by Caramel's rules": lambda b, n: paper_packing().run(b, paper_batching().run(b, n), n),
        "planning by MG-WFBP's": lambda b, n: backward_only().run(b, mg_wfbp().run(b, n)),
        "planning by ByteScheduler's": lambda b, n: bytescheduler().run(b, single().run(b), n),
        "planning by P3's": lambda b, n: p3().run(b, single().run(b), n),
    }


def measure(rounds: int, planned: int, predicted: int, ruled: int) -> list[dict[str, Any]]:
    """Time all of it.

    Args:
        rounds: number of times, each with a network that has predicted nothing yet.
        planned: number of gradients of the step that is planned.
        predicted: number of gradients of the step that is predicted, each in a transfer of its own choice.
        ruled: number of gradients of the step that is planned by the rules of papers.
    """
    from caramel.analyzers.cost.network import Network
    from caramel.analyzers.optimal.prediction import predict
    from caramel.analyzers.policies.best_packing import choose_packing
    from caramel.facts import Boundaries, Schedule, Trace

    def new_sizes_s() -> float:
        network = network_for(step)
        network.time_s(1000.0)  # what is the same for all sizes
        return statistics.median(_timed(partial(network.time_s, 1001.5 * k)) for k in range(1, 1001))

    step = chain(planned)
    large = chain(predicted)
    schedule = choose_packing(large, network_for(large))

    def predict_once() -> float:
        trace = Trace("", {}, {}, 1.0, 1.0, 3, 4, None, "")
        facts = {Trace: trace, Network: network_for(large), Boundaries: large, Schedule: schedule}
        return _timed(lambda: predict(facts))

    of_papers = chain(ruled)

    def by_rules_s(plan: Callable[[Boundaries, Network], Schedule]) -> float:
        network = network_for(of_papers)
        network.time_s(1000.0)  # what is the same for all sizes
        return _timed(lambda: plan(of_papers, network))

    searched = re.search(r"(\d+) steps were simulated", choose_packing(step, network_for(step)).reason)
    assert searched is not None  # steps as these are never proved to be the best without a search
    return [
        _row("time of a new size", planned, rounds, new_sizes_s, None),
        _row("prediction", predicted, rounds, predict_once, None),
        _row(
            "planning",
            planned,
            rounds,
            lambda: _timed(lambda: choose_packing(step, network_for(step))),
            int(searched[1]),
        ),
        *(_row(what, ruled, rounds, partial(by_rules_s, plan), None) for what, plan in rules().items()),
    ]


def table(record: Any) -> str:
    """The medians, for the documents."""
    rows = []
    for row in record["rows"]:
        median_s = statistics.median(row["seconds"])
        counted = "" if row["evaluations"] is None else f"{row['evaluations']:,}"
        verdict = "yes" if median_s <= row["goal_s"] else "**no**"
        rows.append(
            [row["what"], f"{row['gradients']:,}", counted, f"{median_s:.3g} s", f"{row['goal_s']:g} s", verdict]
        )
    return markdown_table(["what", "gradients", "simulated steps", "median", "goal", "met"], rows)


@click.command()
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="How often each is timed.")
@click.option("--planned", type=click.IntRange(min=1), default=200, show_default=True, help="Gradients to plan.")
@click.option("--predicted", type=click.IntRange(min=1), default=1000, show_default=True, help="Gradients to predict.")
@click.option("--ruled", type=click.IntRange(min=1), default=500, show_default=True, help="To plan by papers' rules.")
@click.option("--json", "file", metavar="FILE.json", help="File to write.")
@errors_for_click
def main(rounds: int, planned: int, predicted: int, ruled: int, file: str | None) -> None:
    """Time planning and predicting."""
    record = {"rounds": rounds, "rows": measure(rounds, planned, predicted, ruled)}
    if file is not None:
        write_json(record, file)
    click.echo(table(record))


if __name__ == "__main__":
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # read when NumPy is loaded
        os.environ[name] = "1"
    main()
