"""Draws the pictures of docs/explanation: docs/images/flow.png, two_workers.png and windows.png.

The times in windows.png are those of the library's own simulator.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from caramel.analyzers import Network, analyse, backward_only, optimal_packing, single
from caramel.facts import FORWARD, Boundaries, Boundary, Schedule, Timeline
from caramel.netmodel import CollectiveOptions, NetworkModel
from caramel.simulator import simulate

IMAGES = Path(__file__).parent.parent / "docs" / "images"
PLAIN, GIVEN, CROSSING, UPDATE = "#e8eef7", "#fdf1dc", "#f6d5d5", "#dcefdc"
DPI = 130


def main() -> None:
    """Draw all of them."""
    for name, figure in (("flow", flow()), ("two_workers", two_workers()), ("windows", windows())):
        path = IMAGES / f"{name}.png"
        figure.savefig(path, dpi=DPI, facecolor="white")
        print(path)


def box(
    panel: Any, x: float, y: float, text: str, color: str = PLAIN, width: float = 1.5, height: float = 0.62
) -> None:
    """A box with a text, around a point."""
    style = FancyBboxPatch(
        (x - width / 2, y - height / 2), width, height, boxstyle="round,pad=0.03", facecolor=color, edgecolor="0.4"
    )
    panel.add_patch(style)
    panel.text(x, y, text, ha="center", va="center", fontsize=9)


def arrow(panel: Any, start: tuple[float, float], end: tuple[float, float], text: str = "", color: str = "0.3") -> None:
    """An arrow, with a text beside it."""
    panel.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": color, "shrinkA": 0, "shrinkB": 0})
    if text:
        panel.text((start[0] + end[0]) / 2, (start[1] + end[1]) / 2 + 0.09, text, ha="center", fontsize=8, color="0.3")


def empty_panel(size: tuple[float, float], right: float, top: float) -> tuple[Figure, Any]:
    """A figure without axes."""
    figure = Figure(figsize=size, layout="constrained")
    panel = figure.subplots()
    panel.set(xlim=(0, right), ylim=(0, top))
    panel.axis("off")
    return figure, panel


def flow() -> Figure:
    """From the program to what runs."""
    figure, panel = empty_panel((9.5, 2.3), 12.6, 2.75)
    y = 0.45
    stages = ["your program", "Model", "facts", "Plan", "graph for\nN workers", "run or export"]
    places = [0.95 + 2.12 * n for n in range(len(stages))]
    for x, text in zip(places, stages):
        box(panel, x, y, text, GIVEN if text == "your program" else PLAIN)
    steps = ["capture", "analyse", "decide", "modify", "start"]
    for left, right, text in zip(places, places[1:], steps):
        arrow(panel, (left + 0.8, y), (right - 0.8, y), text)
    box(panel, places[1] + 1.06, 2.2, "trace:\nseconds of each op", GIVEN, 2.0, 0.8)
    box(panel, places[3] - 1.06 + 0.6, 2.2, "network model:\nseconds of an all-reduce", GIVEN, 2.4, 0.8)
    arrow(panel, (places[1] + 1.06, 1.76), (places[2] - 0.2, y + 0.36))
    arrow(panel, (places[3] - 0.46, 1.76), (places[2] + 0.2, y + 0.36))
    return figure


def two_workers() -> Figure:
    """What one graph for two workers has in it."""
    figure, panel = empty_panel((8.2, 4.4), 10.0, 5.6)
    parts = ["parameters", "forward\npass", "backward\npass", "updates"]
    rows = {"worker 0": 4.5, "worker 1": 1.1}
    places = {"parameters": 1.7, "forward\npass": 3.8, "backward\npass": 5.9, "updates": 9.0}
    for name, y in rows.items():
        panel.text(0.05, y + 0.75, f"{name}: half of the batch", fontsize=9, weight="bold")
        for part in parts:
            box(panel, places[part], y, part, UPDATE if part == "updates" else PLAIN, 1.45, 0.75)
        arrow(panel, (2.46, y), (3.04, y))
        arrow(panel, (4.56, y), (5.14, y))
    box(panel, 7.45, 2.8, "all-reduce:\nmean of the gradients", CROSSING, 2.1, 0.8)
    for y, sign in ((4.5, 1), (1.1, -1)):
        arrow(panel, (6.4, y - sign * 0.41), (6.95, 2.8 + sign * 0.43))
        panel.text(6.2, 2.8 + sign * 0.85, "gradients", fontsize=8, color="0.3", ha="right")
        arrow(panel, (8.1, 2.8 + sign * 0.43), (8.75, y - sign * 0.41))
        panel.text(8.75, 2.8 + sign * 0.75, "mean", fontsize=8, color="0.3")
    panel.axhline(2.8, 0.02, 0.61, color="0.75", linestyle=":", linewidth=1)
    panel.text(0.2, 2.86, "only all-reduces cross this line", fontsize=8, color="0.4")
    return figure


STEP = Boundaries(
    (
        Boundary("layer 4", "float32", 1_250_000, 5e6, ready_s=6e-3, read_s=3e-3),
        Boundary("layer 3", "float32", 225_000, 0.9e6, ready_s=8e-3, read_s=2e-3),
        Boundary("layer 2", "float32", 25_000, 0.1e6, ready_s=10e-3, read_s=1e-3),
        Boundary("layer 1", "float32", 12_500, 0.05e6, ready_s=12e-3, read_s=0.0),
    ),
    compute_s=12e-3,
)
"""Four layers of 1 ms forward and 2 ms backward each, as on the page about policies."""

NETWORK = Network(CollectiveOptions("ring", 1, network=NetworkModel.from_costs(0.3e-3, 1e-9)), workers=2)


def windows() -> Figure:
    """One step, with the backward window alone and with both."""
    figure = Figure(figsize=(9.0, 4.8), layout="constrained")
    panels = figure.subplots(3, 1, sharex=True)
    plans = [
        ("send after the computation", Schedule((), "")),
        ("backward window only: each gradient as soon as it is there", made(backward_only())),
        ("both windows: some gradients of the step before travel in the forward pass", made(optimal_packing())),
    ]
    for panel, (title, schedule) in zip(panels, plans):
        if schedule.transfers:
            timeline = simulate(STEP, schedule, NETWORK.time_s)
        else:
            timeline, schedule = after_all()
        draw_step(panel, title, schedule, timeline)
    panels[-1].set_xlabel("ms since the start of the step")
    panels[-1].set(xlim=(0, 22.4), xticks=range(0, 23, 2))
    return figure


def made(packing: Any) -> Schedule:
    """A schedule by a policy of packing."""
    analyzers = [single(), packing] if packing.name == "backward only" else [packing]
    return analyse(analyzers, [STEP, NETWORK], [Schedule])[Schedule]


def after_all() -> tuple[Timeline, Schedule]:
    """Nothing is sent while something computes."""
    late = Boundaries(
        tuple(
            Boundary(g.name, g.dtype, g.elements, g.size_bytes, ready_s=12e-3, read_s=g.read_s) for g in STEP.gradients
        ),
        STEP.compute_s,
    )
    schedule = analyse([single(), backward_only()], [late, NETWORK], [Schedule])[Schedule]
    return simulate(late, schedule, NETWORK.time_s), schedule


def draw_step(panel: Any, title: str, schedule: Schedule, timeline: Timeline) -> None:
    """Computation above, the link below."""
    end_ms = timeline.iteration_s * 1e3
    stalls = [(s.start_s * 1e3, s.end_s * 1e3) for s in timeline.spans if s.kind == "stall"]
    for number in range(8):
        forward = number < 4
        start = number if forward else 4 + 2 * (number - 4)
        width = 1 if forward else 2
        label = f"{'F' if forward else 'B'}{number + 1 if forward else 8 - number}"
        shift = sum(b - a for a, b in stalls if a <= start + 1e-9)
        panel.barh(1, width, left=start + shift, height=0.62, color=PLAIN, edgecolor="0.4")
        panel.text(start + shift + width / 2, 1, label, ha="center", va="center", fontsize=8)
    for span in timeline.spans:
        if span.kind != "transfer":
            continue
        transfer = schedule.transfers[int(span.what)]
        names = ", ".join(dict.fromkeys(p.gradient.removeprefix("layer ") for p in transfer.pieces))
        width = (span.end_s - span.start_s) * 1e3
        color = UPDATE if transfer.window == FORWARD else CROSSING
        panel.barh(0, width, left=span.start_s * 1e3, height=0.62, color=color, edgecolor="0.4")
        panel.text(span.start_s * 1e3 + width / 2, 0, names, ha="center", va="center", fontsize=8)
    panel.axvline(end_ms, color="C3", linewidth=1)
    panel.text(end_ms + 0.1, 1, f"{end_ms:.2f} ms", color="C3", va="center", fontsize=9)
    panel.set_yticks([0, 1], ["link", "computation"])
    panel.set_ylim(-0.5, 1.5)
    panel.set_title(title, fontsize=10, loc="left")
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


if __name__ == "__main__":
    main()
