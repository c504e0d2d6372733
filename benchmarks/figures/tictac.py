"""TicTac's figures 7, 9, 10, 11a and 12b, simulated."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks import colors
from benchmarks.figures.networks import PaperNetwork
from benchmarks.figures.servers import ROUNDS, orders, served_steps_s, worker_step
from benchmarks.output import markdown_table
from caramel.analyzers.servers.efficiency import busiest_resource_s, efficiency, speedup, upper_bound_s
from caramel.analyzers.servers.makespan import makespan_s
from caramel.analyzers.servers.pull_orders import random_pulls

RANDOM, BEST = "random", "best"
RULES = ("tic", "tac", BEST)

MODELS: Mapping[str, tuple[str, float]] = {
    "Inception-v1": ("GoogLeNet", 2.0),
    "Inception-v3": ("Inception-v3", 1.0),
    "ResNet-50-v1": ("ResNet-50", 1.0),
    "ResNet-101-v1": ("ResNet-101", 2.0),
    "AlexNet-v2": ("AlexNet-v2", 1.0),
    "VGG-16": ("VGG-16", 1.0),
}
"""The paper's names: the network here, and the paper's batch (table 1) over that of the network's times."""

SCALES = ((1, 1), (2, 1), (4, 1), (8, 2), (16, 4))
"""(workers, servers) of figure 7; the paper has one server for four workers."""

SERVERS = ((8, 1), (8, 2), (8, 4))
"""Of figure 9."""

BATCHES, BATCH_SCALE = (0.5, 1.0, 2.0), (4, 1)
"""Factors of figure 10, and its workers and servers."""

SPREAD_MODEL, SPREAD_SCALE, SPREAD_ORDERS = "Inception-v1", (4, 1), 1000
"""Of figure 12b; the paper has Inception-v2."""

TRAINING, INFERENCE = "training", "inference"
_IS_TRAINING = {TRAINING: True, INFERENCE: False}


@dataclass(frozen=True)
class Ordered:
    """Steps of one network with its pulls in several orders.

    Attributes:
        model: name of the network in the paper.
        workload: `TRAINING` or `INFERENCE`.
        workers: number of workers.
        servers: number of servers.
        batch: factor on the paper's batch.
        steps_s: seconds of a step by order.
        efficiencies: scheduling efficiency E of pulls and computation, by order; of random ones the mean.
        lower_s: lower bound on the seconds of pulls and computation.
        upper_s: upper bound on them.
        potential: the most that an order can bring, S.
    """

    model: str
    workload: str
    workers: int
    servers: int
    batch: float
    steps_s: Mapping[str, float]
    efficiencies: Mapping[str, float]
    lower_s: float
    upper_s: float
    potential: float

    def gain(self, rule: str) -> float:
        """How many more steps there are in a second than with random orders, as a part."""
        return self.steps_s[RANDOM] / self.steps_s[rule] - 1


def ordered(
    model: str, network: PaperNetwork, workload: str, workers: int, servers: int, batch: float = 1.0
) -> Ordered:
    """Simulate a step with each of `RULES` and with random orders.

    Args:
        model: name of the network in the paper.
        network: the network, with the times of the paper's batch.
        workload: `TRAINING` or `INFERENCE`.
        workers: number of workers.
        servers: number of servers.
        batch: factor on the computation.
    """
    network, is_training = network.scaled(batch), _IS_TRAINING[workload]
    steps_s = served_steps_s(network, workers, servers, RULES, is_training)
    problem = worker_step(network, workers, servers, is_training).problem
    forward = worker_step(network, workers, servers, is_training=False).problem
    after_s = sum(op.time_s for op in problem.ops) - sum(op.time_s for op in forward.ops)
    efficiencies = {
        name: efficiency(problem, makespan_s(forward, order) + after_s)
        for name, order in orders(forward, RULES).items()
    }
    drawn = [makespan_s(forward, random_pulls(forward, seed)) + after_s for seed in range(ROUNDS)]
    efficiencies[RANDOM] = statistics.mean(efficiency(problem, time_s) for time_s in drawn)
    bounds = busiest_resource_s(problem), upper_bound_s(problem), speedup(problem)
    return Ordered(model, workload, workers, servers, batch, steps_s, efficiencies, *bounds)


def cases() -> list[tuple[int, int, float]]:
    """(workers, servers, batch factor) of figures 7, 9 and 10, each once."""
    found = [(*scale, 1.0) for scale in (*SCALES, *SERVERS)] + [(*BATCH_SCALE, batch) for batch in BATCHES]
    return list(dict.fromkeys(found))


def at_paper_batch(networks: Mapping[str, PaperNetwork], model: str) -> PaperNetwork:
    """A network with the times of the paper's batch.

    Args:
        networks: by name.
        model: name of the network in the paper.
    """
    name, factor = MODELS[model]
    return networks[name].scaled(factor)


def spread(networks: Mapping[str, PaperNetwork], count: int = SPREAD_ORDERS) -> dict[str, Any]:
    """Figure 12b: the shortest step over each of many in random orders, and with TAC.

    Args:
        networks: by name.
        count: number of random orders.
    """
    network = at_paper_batch(networks, SPREAD_MODEL)
    problem = worker_step(network, *SPREAD_SCALE, is_training=False).problem
    times_s = [makespan_s(problem, random_pulls(problem, seed)) for seed in range(count)]
    by_rule = {name: makespan_s(problem, order) for name, order in orders(problem, RULES).items()}
    least_s = min([*times_s, *by_rule.values()])
    return {
        "quantiles": {f"{q:g}": least_s / float(np.quantile(times_s, 1 - q)) for q in (0.05, 0.5, 0.95)},
        "rules": {name: least_s / time_s for name, time_s in by_rule.items()},
        "orders": len({random_pulls(problem, seed) for seed in range(count)}),
    }


def record_of(networks: Mapping[str, PaperNetwork], models: Sequence[str] = tuple(MODELS)) -> dict[str, Any]:
    """The paper's part of the record.

    Args:
        networks: by name.
        models: names of those to simulate, as in the paper.
    """
    found = [
        asdict(ordered(model, at_paper_batch(networks, model), workload, workers, servers, batch))
        for model in models
        for workload in _IS_TRAINING
        for workers, servers, batch in cases()
    ]
    return {"orders": found, "spread": spread(networks)}


# -- what is shown -----------------------------------------------------------------------------------


def _rows(record: Mapping[str, Any]) -> dict[tuple[str, str, int, int, float], Ordered]:
    rows = (Ordered(**row) for row in record["orders"])
    return {(each.model, each.workload, each.workers, each.servers, each.batch): each for each in rows}


def _row(
    found: Mapping[tuple[str, str, int, int, float], Ordered],
    model: str,
    workload: str,
    scale: tuple[int, int],
    batch: float,
) -> Ordered:
    workers, servers = scale
    return found[model, workload, workers, servers, batch]


def _gains(of: Ordered) -> str:
    """The gain of each rule in percent, once where all are the same."""
    texts = dict.fromkeys(f"{of.gain(rule) * 100:.1f}" for rule in RULES)
    return next(iter(texts)) if len(texts) == 1 else ", ".join(f"{of.gain(rule) * 100:.1f}" for rule in RULES)


def gains_table(record: Mapping[str, Any]) -> str:
    """Figures 7 and 9: how many percent more steps a second each rule has than random orders."""
    found = _rows(record)
    scales = list(dict.fromkeys((*SCALES, *SERVERS)))
    rows = []
    for workload in _IS_TRAINING:
        for model in MODELS:
            cells = []
            for scale in scales:
                of = _row(found, model, workload, scale, 1.0)
                cells.append(_gains(of))
            rows.append([workload, model, *cells])
    return markdown_table(["", "model", *(f"{w} and {s}" for w, s in scales)], rows)


def batches_table(record: Mapping[str, Any]) -> str:
    """Figure 10: the same by batch factor."""
    found = _rows(record)
    rows = []
    for workload in _IS_TRAINING:
        for model in MODELS:
            cells = []
            for batch in BATCHES:
                of = _row(found, model, workload, BATCH_SCALE, batch)
                cells += [_gains(of), f"{of.potential:.2f}"]
            rows.append([workload, model, *cells])
    head = [text for batch in BATCHES for text in (f"batch * {batch:g}", "S")]
    return markdown_table(["", "model", *head], rows)


def efficiencies_table(record: Mapping[str, Any]) -> str:
    """Figure 11a: scheduling efficiency by order, at 4 workers."""
    found = _rows(record)
    rows = []
    for workload in _IS_TRAINING:
        for model in MODELS:
            of = _row(found, model, workload, BATCH_SCALE, 1.0)
            rows.append([workload, model, *(f"{of.efficiencies[name]:.3f}" for name in (RANDOM, *RULES))])
    return markdown_table(["", "model", RANDOM, *RULES], rows)


def spread_table(record: Mapping[str, Any]) -> str:
    """Figure 12b: quantiles of the normalised speed."""
    found = record["spread"]
    rows = [[f"{RANDOM}, the {float(q):.0%} quantile", f"{value:.3f}"] for q, value in found["quantiles"].items()]
    rows += [[name, f"{value:.3f}"] for name, value in found["rules"].items()]
    return markdown_table(["order", "shortest step / step"], rows)


_COLORS = {"tic": colors.TENSORFLOW[0], "tac": colors.TENSORFLOW[1], BEST: colors.OURS}


def plot(record: Mapping[str, Any], path: str) -> None:
    """Draw figures 7 and 9.

    Args:
        record: the paper's part of the record.
        path: file to write; its ending says the format.
    """
    from matplotlib.figure import Figure

    found = _rows(record)
    figure = Figure(figsize=(13, 6.4), layout="constrained")
    panels = figure.subplots(2, len(MODELS), sharex=True, sharey="row")
    for row, workload in enumerate(_IS_TRAINING):
        for column, model in enumerate(MODELS):
            panel = panels[row][column]
            for rule in RULES:
                gains = [100 * _row(found, model, workload, scale, 1.0).gain(rule) for scale in SCALES]
                width = 3.5 if rule == "tic" else 2.2 if rule == "tac" else 1.2
                panel.plot([w for w, _ in SCALES], gains, color=_COLORS[rule], linewidth=width, label=rule, marker="o",
                           markersize=width)  # fmt: skip
            panel.set_xscale("log")
            panel.set_xticks([w for w, _ in SCALES], [str(w) for w, _ in SCALES])
            panel.minorticks_off()
            panel.grid(alpha=0.3)
            if row == 0:
                panel.set_title(model)
            else:
                panel.set_xlabel("workers")
        panels[row][0].set_ylabel(f"{workload}: more steps a second\nthan with random orders [%]")
    panels[0][0].legend(frameon=False)
    figure.savefig(path, dpi=110)
