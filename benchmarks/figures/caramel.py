"""Caramel's figures 2, 8, 9, 11, 12 and 14, simulated."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

import numpy as np

from benchmarks import colors
from benchmarks.figures.networks import PaperNetwork
from benchmarks.figures.servers import served_steps_s
from benchmarks.output import markdown_table
from benchmarks.published_data import FIGURE_9_NETWORK
from caramel.analyzers.analyzer import Analyzer, analyse
from caramel.analyzers.cost.network import Network
from caramel.analyzers.optimal.step_bound import step_bound_s
from caramel.analyzers.policies.batching import paper_batching, single
from caramel.analyzers.policies.best_packing import best_packing
from caramel.analyzers.policies.packing import backward_only, paper_packing
from caramel.facts import Boundaries, Schedule, Timeline
from caramel.netmodel.choice import CollectiveOptions
from caramel.netmodel.model import NetworkModel
from caramel.simulator import simulate
from caramel.util.units import format_size

MODELS = ("AlexNet-v2", "Inception-v3", "ResNet-50", "ResNet-152", "VGG-16")
"""The paper's five (section 6)."""

WORKERS = (8, 16)
"""Of figures 8 and 9."""

SCALES = (2, 4, 8, 16, 32, 64)
"""Numbers of workers of figure 14."""

ABLATED, ABLATED_WORKERS = "Inception-v3", 8
"""Of figure 11."""

MORE_WORKERS = 64
"""Number of workers of one more simulation of figure 11, as 8 leave nothing to see (our choice)."""

ALONE, PAPER, OURS = "each gradient alone", "the paper's policy", "this library"

LINK_BYTES_PER_S = 10e9 / 8

MEASURED, LINKS = "as measured by MG-WFBP's authors", "links alone"

NETWORKS: Mapping[str, NetworkModel] = {
    MEASURED: FIGURE_9_NETWORK,
    LINKS: NetworkModel.from_link_rate(LINK_BYTES_PER_S),
}
"""Networks of 10 Gbit/s: with all that all-reduces cost hosts, and with the time of the bytes on the links only."""

RING = CollectiveOptions("ring", 1)
ANY = CollectiveOptions()
SHUFFLE = CollectiveOptions("shuffle", depth_by_threshold=True)

POLICIES: Mapping[str, tuple[CollectiveOptions, Sequence[Analyzer]]] = {
    ALONE: (RING, (single(), backward_only())),
    PAPER: (SHUFFLE, (paper_batching(), paper_packing())),
    OURS: (ANY, (best_packing(),)),
}
"""All-reduces and analyzers by policy; those of the paper are those of ``policy="paper"``."""

SERVERS: Mapping[str, Callable[[int], int]] = {
    "servers, one for each worker": lambda workers: workers,
    "servers, one for two workers": lambda workers: workers // 2,
}
"""Number of servers from that of workers, as in figure 8."""

_SEEDS = 11
"""Number of times that random orders are drawn; an odd one, for a median that is one of them (our choice)."""


@dataclass(frozen=True)
class Step:
    """A simulated step.

    Attributes:
        model: name of the network that is trained.
        workers: number of workers.
        policy: what was simulated.
        step_s: seconds of the step.
        compute_s: seconds of computation in it.
        rho: communication over computation; None with servers, where transfers of both ways overlap.
        alpha: hidden part of the shorter of both; None likewise.
        links: name of the network of `NETWORKS`.
    """

    model: str
    workers: int
    policy: str
    step_s: float
    compute_s: float
    rho: float | None = None
    alpha: float | None = None
    links: str = MEASURED

    @property
    def utilisation(self) -> float:
        """The part of the step in which the workers compute."""
        return self.compute_s / self.step_s


def step(model: str, workers: int, policy: str, timeline: Timeline, links: str = MEASURED) -> Step:
    """What is kept of a timeline."""
    found = timeline.iteration_s, timeline.compute_s, timeline.rho, timeline.alpha
    return Step(model, workers, policy, *found, links)


def simulated(
    boundaries: Boundaries,
    workers: int,
    options: CollectiveOptions,
    analyzers: Sequence[Analyzer],
    links: str = MEASURED,
) -> Timeline:
    """A step by some policy.

    Args:
        boundaries: of its gradients.
        workers: number of workers.
        options: what all-reduces may be used.
        analyzers: those that provide the schedule.
        links: name of the network of `NETWORKS`.
    """
    network = Network(replace(options, network=NETWORKS[links]), workers)
    schedule = analyse(analyzers, [boundaries, network], [Schedule])[Schedule]
    return simulate(boundaries, schedule, network.time_s)


def iterations(networks: Mapping[str, PaperNetwork], workers: Sequence[int] = SCALES) -> list[Step]:
    """Steps of the five models by policy; with servers and with links alone at the workers of figures 8 and 9.

    Args:
        networks: by name.
        workers: numbers of workers.
    """
    found = []
    for model in MODELS:
        for number in workers:
            found += _of_policies(model, networks[model], number, MEASURED)
            if number in WORKERS:
                found += _of_policies(model, networks[model], number, LINKS)
                for name, servers_of in SERVERS.items():
                    step_s = served_steps_s(networks[model], number, servers_of(number), ())["random"]
                    found.append(Step(model, number, name, step_s, networks[model].compute_s))
    return found


def _of_policies(model: str, network: PaperNetwork, workers: int, links: str) -> list[Step]:
    boundaries = network.boundaries()
    found = [
        step(model, workers, policy, simulated(boundaries, workers, options, analyzers, links), links)
        for policy, (options, analyzers) in POLICIES.items()
    ]
    bound_s = step_bound_s(boundaries, Network(replace(ANY, network=NETWORKS[links]), workers))
    return [*found, Step(model, workers, BOUND, bound_s, boundaries.compute_s, links=links)]


BOUND = "lower bound"


def _rows(record: Mapping[str, Any], key: str) -> list[Step]:
    return [Step(**row) for row in record[key]]


def _by_policy(steps: Sequence[Step], model: str, workers: int, links: str = MEASURED) -> dict[str, Step]:
    return {each.policy: each for each in steps if (each.model, each.workers, each.links) == (model, workers, links)}


def iterations_table(record: Mapping[str, Any]) -> str:
    """Figures 8 and 9: milliseconds and utilisation."""
    steps = _rows(record, "iterations")
    policies = [*SERVERS, *POLICIES]
    rows = []
    for workers in WORKERS:
        for model in MODELS:
            of = _by_policy(steps, model, workers)
            cells = [_time_and_share(of[name]) for name in policies]
            rows.append([str(workers), model, *cells, f"{of[BOUND].step_s * 1e3:.0f}", *_gains(of)])
    head = ["workers", "model", *(f"{name} [ms]" for name in policies), f"{BOUND} [ms]"]
    return markdown_table([*head, *_GAINS], rows)


_GAINS = [f"{name} / {OURS}" for name in (ALONE, PAPER)]


def _gains(of: Mapping[str, Step]) -> list[str]:
    return [f"{of[name].step_s / of[OURS].step_s:.2f}" for name in (ALONE, PAPER)]


def _time_and_share(of: Step) -> str:
    return f"{of.step_s * 1e3:.0f} ({of.utilisation:.0%})"


def links_table(record: Mapping[str, Any]) -> str:
    """Figures 8 and 9 with links alone."""
    steps = _rows(record, "iterations")
    rows = []
    for workers in WORKERS:
        for model in MODELS:
            of = _by_policy(steps, model, workers, LINKS)
            cells = [_time_and_share(of[name]) for name in POLICIES]
            rows.append([str(workers), model, *cells, f"{of[BOUND].step_s * 1e3:.0f}", *_gains(of)])
    return markdown_table(["workers", "model", *(f"{name} [ms]" for name in POLICIES), f"{BOUND} [ms]", *_GAINS], rows)


def scaling_table(record: Mapping[str, Any]) -> str:
    """Utilisation by number of workers, for each model and policy."""
    steps = _rows(record, "iterations")
    rows = [
        [model, policy, *(f"{_by_policy(steps, model, n)[policy].utilisation:.0%}" for n in SCALES)]
        for model in MODELS
        for policy in POLICIES
    ]
    return markdown_table(["model", "policy", *(f"{n} workers" for n in SCALES)], rows)


def overlap_table(record: Mapping[str, Any]) -> str:
    """Figure 2: rho, alpha and utilisation of each point of the plot."""
    steps = _rows(record, "iterations")
    rows = []
    for model in MODELS:
        for workers in WORKERS:
            of = _by_policy(steps, model, workers)
            cells = [f"{of[name].rho:.2f}, {of[name].alpha:.2f}, {of[name].utilisation:.0%}" for name in POLICIES]
            rows.append([model, str(workers), *cells])
    return markdown_table(["model", "workers", *(f"{name}: rho, alpha, utilisation" for name in POLICIES)], rows)


# -- figures 11 and 12 -------------------------------------------------------------------------------

_BACKWARD = (single(), backward_only())
_BATCHED = (paper_batching(), backward_only())

STAGES: Mapping[str, tuple[CollectiveOptions, Sequence[Analyzer], bool]] = {
    "each gradient alone by a ring, any order": (RING, _BACKWARD, False),
    "+ the fastest all-reduce for each size": (ANY, _BACKWARD, False),
    "+ batching": (ANY, _BATCHED, False),
    "+ one order on all workers": (ANY, _BATCHED, True),
    "+ forward window": (ANY, (paper_batching(), paper_packing()), True),
    "this library's packing instead": (ANY, (best_packing(),), True),
}
"""What is switched on one after the other; last whether the order of the backward pass is enforced."""


def ablation(networks: Mapping[str, PaperNetwork], models: Sequence[str] = MODELS) -> list[Step]:
    """Figures 11 and 12: steps with one optimisation after the other.

    Where no order is enforced, each worker computes in a random order of its own, and the row is the median of such
    steps.

    Args:
        networks: by name.
        models: names of those to simulate.
    """
    cases = [(model, ABLATED_WORKERS) for model in models] + [(ABLATED, MORE_WORKERS)]
    found = []
    for model, workers in cases:
        network = networks[model]
        enforced = [network.boundaries([network.greedy_order()])]
        loose = [network.boundaries(_any_orders(network, workers, seed)) for seed in range(_SEEDS)]
        for name, (options, analyzers, has_order) in STAGES.items():
            drawn = enforced if has_order else loose
            timelines = [simulated(each, workers, options, analyzers) for each in drawn]
            middle = statistics.median_low(each.iteration_s for each in timelines)
            timeline = next(each for each in timelines if each.iteration_s == middle)
            found.append(step(model, workers, name, timeline))
    return found


def _any_orders(network: PaperNetwork, workers: int, seed: int) -> list[list[int]]:
    random = Random(seed)
    return [network.any_order(random) for _ in range(workers)]


def ablation_table(record: Mapping[str, Any]) -> str:
    """Figure 11: one model, with rho and alpha."""
    found = {(each.policy, each.workers): each for each in _rows(record, "ablation") if each.model == ABLATED}
    rows = []
    for name in STAGES:
        cells = [name]
        for workers in (ABLATED_WORKERS, MORE_WORKERS):
            of = found[name, workers]
            cells += [f"{of.step_s * 1e3:.0f}", f"{of.rho:.2f}", f"{of.alpha:.3f}", f"{of.utilisation:.1%}"]
        rows.append(cells)
    head = ["step [ms]", "rho", "alpha", "utilisation"]
    both = [f"{what}, {n} workers" for n in (ABLATED_WORKERS, MORE_WORKERS) for what in head]
    return markdown_table(["optimisations", *both], rows)


def ablations_table(record: Mapping[str, Any]) -> str:
    """Figure 12: utilisation of all models."""
    found = {(s.policy, s.model): s for s in _rows(record, "ablation") if s.workers == ABLATED_WORKERS}
    rows = [[name, *(f"{found[name, model].utilisation:.1%}" for model in MODELS)] for name in STAGES]
    return markdown_table(["optimisations", *MODELS], rows)


# -- figure 14 ---------------------------------------------------------------------------------------

ALGORITHMS = ("shuffle", "ring", "halving_doubling")
SIZES = (64 * 2**10, 64 * 2**20)
"""A small and a large transfer (our choice: the paper's are in a picture only)."""


@dataclass(frozen=True)
class Reduction:
    """A predicted all-reduce.

    Attributes:
        algorithm: its name.
        workers: number of workers.
        size_bytes: bytes of the tensor.
        time_s: predicted seconds.
    """

    algorithm: str
    workers: int
    size_bytes: int
    time_s: float


def reductions() -> list[Reduction]:
    """Figure 14: all-reduces by algorithm, number of workers and size."""
    return [
        Reduction(name, workers, size, FIGURE_9_NETWORK.predict(name, 1, workers, size).time_s)
        for size in SIZES
        for name in ALGORITHMS
        for workers in SCALES
    ]


def reductions_table(record: Mapping[str, Any]) -> str:
    """Figure 14: milliseconds."""
    found = {(r.size_bytes, r.algorithm, r.workers): r for r in (Reduction(**row) for row in record["reductions"])}
    rows = [
        [format_size(size), name.replace("_", "-"), *(f"{found[size, name, n].time_s * 1e3:.4g}" for n in SCALES)]
        for size in SIZES
        for name in ALGORITHMS
    ]
    return markdown_table(["size", "all-reduce", *(f"{n} workers [ms]" for n in SCALES)], rows)


# -- all of it ---------------------------------------------------------------------------------------


def record_of(networks: Mapping[str, PaperNetwork]) -> dict[str, Any]:
    """The paper's part of the record.

    Args:
        networks: by name.
    """
    return {
        "iterations": [asdict(each) for each in iterations(networks)],
        "ablation": [asdict(each) for each in ablation(networks)],
        "reductions": [asdict(each) for each in reductions()],
    }


_COLORS = {ALONE: colors.OTHERS, PAPER: colors.TENSORFLOW[0], OURS: colors.OURS}
_MARKERS = dict(zip(MODELS, "osD^v"))


def plot(record: Mapping[str, Any], path: str) -> None:
    """Draw figure 2, with the points of figures 8 and 9, and utilisation by number of workers.

    Args:
        record: the paper's part of the record.
        path: file to write; its ending says the format.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    steps = _rows(record, "iterations")
    figure = Figure(figsize=(12.5, 8.6), layout="constrained")
    grid = figure.add_gridspec(2, len(MODELS), height_ratios=(3, 2))
    above = figure.add_subplot(grid[0, :])
    shown = [s for s in steps if s.policy in POLICIES and s.workers in WORKERS and s.links == MEASURED]
    most = 1.15 * max(each.rho or 0.0 for each in shown)
    rho, alpha = np.meshgrid(np.geomspace(0.2, most, 200), np.linspace(0, 1, 101))
    levels = np.arange(0.1, 1.0, 0.1)
    drawn = above.contour(rho, alpha, utilisation(rho, alpha), levels, colors="#C9CDD2", linewidths=1)
    above.clabel(drawn, fmt=lambda value: f"{value:.0%}", fontsize=8)
    for each in shown:
        face = _COLORS[each.policy] if each.workers == WORKERS[0] else "none"
        style: dict[str, Any] = {"color": _COLORS[each.policy], "markerfacecolor": face, "markersize": 8}
        above.plot([each.rho or 0.0], [each.alpha or 0.0], _MARKERS[each.model], **style)
    names = [Line2D([], [], color=_COLORS[name], linewidth=3, label=name) for name in POLICIES]
    names += [Line2D([], [], color="k", marker=_MARKERS[model], linestyle="", label=model) for model in MODELS]
    for workers, face in zip(WORKERS, ("k", "none")):
        label = f"{workers} workers"
        names.append(Line2D([], [], color="k", marker="o", markerfacecolor=face, linestyle="", label=label))
    above.legend(handles=names, frameon=False, bbox_to_anchor=(1.0, 1.0), loc="upper left")
    above.set(xscale="log", xlabel="rho: communication / computation", ylabel="alpha: hidden part of the shorter")
    above.set(title="utilisation (lines), and simulated steps", xlim=(0.2, most), ylim=(0, 1.03))
    ticks = [tick for tick in (0.25, 0.5, 1, 2, 4, 8, 16) if tick < most]
    above.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    above.minorticks_off()
    for column, model in enumerate(MODELS):
        _draw_scaling(figure.add_subplot(grid[1, column]), steps, model, column == 0)
    figure.savefig(path, dpi=110)


def _draw_scaling(panel: Any, steps: Sequence[Step], model: str, is_first: bool) -> None:
    for policy in POLICIES:
        shares = [100 * _by_policy(steps, model, n)[policy].utilisation for n in SCALES]
        panel.plot(SCALES, shares, marker="o", markersize=3, color=_COLORS[policy])
    bounds = [100 * _by_policy(steps, model, n)[BOUND].utilisation for n in SCALES]
    panel.plot(SCALES, bounds, "--", color=colors.BOUND, linewidth=1, label="at the lower bound")
    panel.set(xscale="log", title=model, ylim=(0, 105), xlabel="workers")
    panel.set_xticks(SCALES, [str(n) for n in SCALES])
    panel.minorticks_off()
    panel.grid(alpha=0.3)
    if is_first:
        panel.set_ylabel("utilisation [%]")
        panel.legend(frameon=False, fontsize=8)


def utilisation(rho: Any, alpha: Any) -> Any:
    """U = 1 / (1 + rho - alpha min(rho, 1)) (Caramel, section 3.1).

    >>> float(utilisation(2.0, 1.0)), float(utilisation(0.5, 0.0))
    (0.5, 0.6666666666666666)
    """
    return 1 / (1 + rho - alpha * np.minimum(rho, 1))


def most_gain(record: Mapping[str, Any], over: str, links: str) -> tuple[float, str, int]:
    """The largest ratio of a policy's step over this library's on 8 and 16 workers, with the model and the workers.

    Args:
        record: the paper's part of the record.
        over: name of the policy.
        links: name of the network of `NETWORKS`.
    """
    steps, best = _rows(record, "iterations"), (-math.inf, "", 0)
    for model in MODELS:
        for workers in WORKERS:
            of = _by_policy(steps, model, workers, links)
            best = max(best, (of[over].step_s / of[OURS].step_s, model, workers))
    return best
