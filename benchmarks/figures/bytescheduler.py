"""ByteScheduler's figures 4, 9 and 13, and its table 1, simulated for all-reduces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np

from benchmarks import colors
from benchmarks.figures.networks import PaperNetwork
from benchmarks.output import markdown_row, markdown_table
from caramel.analyzers.cost.network import Network
from caramel.analyzers.policies.batching import single
from caramel.analyzers.policies.credit_packing import P3_PARTITION_BYTES, bytescheduler
from caramel.analyzers.policies.pending_transfers import pending_transfers_of
from caramel.facts import BACKWARD, NO_LIMIT, Boundaries, InFlight, Schedule, Scheduled
from caramel.netmodel.choice import CollectiveOptions
from caramel.netmodel.model import NetworkModel
from caramel.simulator import simulate
from caramel.util.units import format_size

MODELS = ("VGG-16", "ResNet-50")
"""Those of the paper's three (section 6.1) of which there are times."""

MACHINES = 4
"""Of figure 13."""

RATES_BIT_PER_S = (1e9, 10e9, 25e9, 40e9, 100e9)
"""Of figure 13."""

OVERHEAD_S = 300e-6
"""Seconds of a partition besides those of its bytes (section 4.1)."""

HELD = 0.5
"""Part of the overhead for which a piece holds the channel; the next one need not wait for the rest (our choice)."""

PARTITIONS = (P3_PARTITION_BYTES, *(2**n for n in range(19, 28)))
CREDITS = (1, 2, 4, 8)
"""Bytes of a piece, 160 KiB to 128 MiB, and credits in pieces: all that are tried."""

FIFO_RATES = (1e9, 10e9)
"""Of figure 4."""

SWEPT_RATE, SWEPT_PARTITION = 10e9, 2**20
"""Of the sweep over the credit (our choice: those of figure 9 are not said)."""

NEAR = 1.001
"""How many times the least step counts as good as it (our choice)."""

FIFO, P3, FIXED, TUNED = "in the order of gradients", "P3", "sizes tuned at 1 Gbit/s", "sizes tuned here"


@dataclass(frozen=True)
class PieceNetwork(Network):
    """A ring of machines on which every piece has an overhead, of which a part holds the channel.

    Attributes:
        rate_bytes_per_s: of the link of each machine, in each direction.
    """

    rate_bytes_per_s: float = 0.0

    def channel_s(self, size_bytes: float) -> float:
        """Seconds for which a piece holds the channel."""
        sent_bytes = 2 * (self.workers - 1) / self.workers * size_bytes
        return HELD * OVERHEAD_S + sent_bytes / self.rate_bytes_per_s

    def lag_s(self, size_bytes: float) -> float:
        """Seconds from then until it has arrived."""
        return (1 - HELD) * OVERHEAD_S

    def time_s(self, size_bytes: float) -> float:
        """Seconds of a piece by itself."""
        return self.channel_s(size_bytes) + self.lag_s(size_bytes)


def network_of(rate_bit_per_s: float) -> PieceNetwork:
    """The machines with links of some rate.

    Args:
        rate_bit_per_s: bits per second.
    """
    options = CollectiveOptions("ring", 1, network=NetworkModel.from_link_rate(rate_bit_per_s / 8))
    return PieceNetwork(options, MACHINES, rate_bytes_per_s=rate_bit_per_s / 8)


def _step_s(boundaries: Boundaries, schedule: Schedule, network: PieceNetwork) -> float:
    limits = schedule.in_flight or NO_LIMIT
    return simulate(boundaries, schedule, network.channel_s, network.lag_s, limits).iteration_s


def by_priority_s(boundaries: Boundaries, rate: float, partition_bytes: float, credit_bytes: float) -> float:
    """Seconds of a step by ByteScheduler's queue.

    Args:
        boundaries: of its gradients.
        rate: of the links, in bits per second.
        partition_bytes: bytes of a piece.
        credit_bytes: bytes that may be under way at once.
    """
    network, buckets = network_of(rate), single().run(boundaries)
    schedule = bytescheduler(partition_bytes, credit_bytes).run(boundaries, buckets, network)
    return _step_s(boundaries, schedule, network)


def in_order_s(
    boundaries: Boundaries, rate: float, partition_bytes: float = np.inf, credit_bytes: float | None = None
) -> float:
    """Seconds of a step whose pieces leave in the order of their gradients, in the step that makes them.

    Args:
        boundaries: of its gradients.
        rate: of the links, in bits per second.
        partition_bytes: bytes of a piece; infinity to cut nothing.
        credit_bytes: bytes that may be under way at once; None for any.
    """
    network = network_of(rate)
    pieces = pending_transfers_of(boundaries, single().run(boundaries), network, partition_bytes)
    limits = InFlight(credit_bytes=None if credit_bytes is None else int(credit_bytes))
    schedule = Schedule(tuple(Scheduled(t.pieces, BACKWARD, "") for t in pieces), "in order", limits)
    return _step_s(boundaries, schedule, network)


@dataclass(frozen=True)
class Speed:
    """Figure 13: a network on links of one rate.

    Attributes:
        model: name of the network that is trained.
        rate_bit_per_s: of the links.
        compute_s: seconds of computation, those of a step with linear scaling.
        steps_s: seconds of a step by scheduler.
        partition_bytes: the best piece.
        credit_bytes: the best credit.
        good: number of sizes of `grid` that are as good.
    """

    model: str
    rate_bit_per_s: float
    compute_s: float
    steps_s: Mapping[str, float]
    partition_bytes: int
    credit_bytes: int
    good: int


def grid() -> list[tuple[int, int]]:
    """(partition, credit) in bytes, all that are tried."""
    return [(partition, partition * credit) for partition, credit in product(PARTITIONS, CREDITS)]


def grid_steps_s(boundaries: Boundaries, rate: float) -> list[float]:
    """Seconds of a step for each of `grid`.

    Args:
        boundaries: of its gradients.
        rate: of the links, in bits per second.
    """
    return [by_priority_s(boundaries, rate, *sizes) for sizes in grid()]


def _best(steps_s: Sequence[float]) -> int:
    return min(range(len(steps_s)), key=lambda n: (steps_s[n], n))


def record_of(networks: Mapping[str, PaperNetwork], models: Sequence[str] = MODELS) -> dict[str, Any]:
    """The paper's part of the record.

    Args:
        networks: by name.
        models: names of those to simulate.
    """
    speeds = []
    for model in models:
        boundaries, fixed = networks[model].boundaries(), (0, 0)
        for rate in RATES_BIT_PER_S:
            steps_s = grid_steps_s(boundaries, rate)
            best = grid()[_best(steps_s)]
            fixed = fixed if all(fixed) else best
            by_scheduler = {
                FIFO: in_order_s(boundaries, rate),
                P3: by_priority_s(boundaries, rate, P3_PARTITION_BYTES, P3_PARTITION_BYTES),
                FIXED: steps_s[grid().index(fixed)],
                TUNED: min(steps_s),
            }
            good = sum(step_s <= NEAR * min(steps_s) for step_s in steps_s)
            speeds.append(Speed(model, rate, boundaries.compute_s, by_scheduler, *best, good))
    return {
        "speeds": [asdict(each) for each in speeds],
        "sweeps": sweeps(networks[MODELS[0]]),
    }


def sweeps(network: PaperNetwork) -> dict[str, Any]:
    """Figures 4 and 9: seconds of a step of VGG-16 by partition and by credit.

    Args:
        network: VGG-16.
    """
    boundaries = network.boundaries()
    credits_bytes = [SWEPT_PARTITION * 2**n for n in range(8)]
    return {
        "partitions": {
            f"{rate:g}": {str(p): in_order_s(boundaries, rate, p, p) for p in PARTITIONS} for rate in FIFO_RATES
        },
        "credits": {
            f"{rate:g}": {str(c): in_order_s(boundaries, rate, SWEPT_PARTITION, c) for c in credits_bytes}
            for rate in FIFO_RATES
        },
        "priorities": {str(c): by_priority_s(boundaries, SWEPT_RATE, SWEPT_PARTITION, c) for c in credits_bytes},
    }


# -- what is shown -----------------------------------------------------------------------------------


def _rate(rate_bit_per_s: float) -> str:
    return f"{rate_bit_per_s / 1e9:g} Gbit/s"


def speeds_table(record: Mapping[str, Any]) -> str:
    """Figure 13 and table 1: milliseconds, gains over the order of gradients, and the best sizes."""
    rows = []
    for each in (Speed(**row) for row in record["speeds"]):
        base_s = each.steps_s[FIFO]
        cells = [f"{base_s * 1e3:.0f}"]
        for name in (P3, FIXED, TUNED):
            cells.append(f"{each.steps_s[name] * 1e3:.0f} ({(base_s / each.steps_s[name] - 1) * 100:+.0f} %)")
        sizes = f"{format_size(each.partition_bytes)}, {format_size(each.credit_bytes)}"
        rows.append(
            [each.model, _rate(each.rate_bit_per_s), *cells, f"{each.compute_s * 1e3:.0f}", sizes, str(each.good)]
        )
    head = ["model", "links", *(f"{name} [ms]" for name in (FIFO, P3, FIXED, TUNED)), "computation [ms]"]
    return markdown_table([*head, "best partition, credit", f"as good, of {len(grid())}"], rows)


def sweeps_table(record: Mapping[str, Any]) -> str:
    """Figure 4: milliseconds by partition and by credit, in the order of gradients."""
    found = record["sweeps"]
    parts = list[str]()
    for key, what in (("partitions", "partition, credit of one"), ("credits", "credit, partition of 1 MiB")):
        sizes = list(next(iter(found[key].values())))
        rows = [[_rate(float(rate)), *(f"{ms[size] * 1e3:.0f}" for size in sizes)] for rate, ms in found[key].items()]
        parts.append(markdown_table([what, *(format_size(int(size)) for size in sizes)], rows))
    sizes = list(found["priorities"])
    row = [f"{_rate(SWEPT_RATE)}, by priority", *(f"{found['priorities'][size] * 1e3:.0f}" for size in sizes)]
    return "\n\n".join(parts) + "\n" + markdown_row(row)


_COLORS = {FIFO: colors.SHADES[0], P3: colors.SHADES[2], FIXED: colors.TENSORFLOW[0], TUNED: colors.OURS}


def plot(record: Mapping[str, Any], path: str) -> None:
    """Draw figure 13: the part of linear scaling by rate.

    Args:
        record: the paper's part of the record.
        path: file to write; its ending says the format.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    panels = figure.subplots(1, len(MODELS), sharey=True)
    width = 0.8 / len(_COLORS)
    for panel, model in zip(panels, MODELS):
        speeds = [each for each in (Speed(**row) for row in record["speeds"]) if each.model == model]
        for number, (name, color) in enumerate(_COLORS.items()):
            at = [place + (number - 1.5) * width for place in range(len(speeds))]
            panel.bar(at, [100 * s.compute_s / s.steps_s[name] for s in speeds], width, color=color, label=name)
        panel.axhline(100, color=colors.BOUND, linestyle="--", linewidth=1)
        panel.set_xticks(range(len(speeds)), [_rate(s.rate_bit_per_s) for s in speeds])
        panel.set(title=f"{model}, {MACHINES} machines", ylim=(0, 119))
        panel.grid(alpha=0.3, axis="y")
    panels[0].set_ylabel("speed, of linear scaling [%]")
    panels[0].legend(frameon=False, ncols=2, loc="upper left", fontsize=8)
    figure.savefig(path, dpi=110)
