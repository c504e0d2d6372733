"""Answers as a picture: how fast training gets with more workers, and with faster links, and which policy wins."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from caramel.errors import InputError
from caramel.scaling.answers import Answer
from caramel.scaling.tables import winners
from caramel.util.whole_files import replacing

_TOP = 50
"""Place of the first policy above all others, as lines may be on each other."""


def save_plot(answers: Sequence[Answer], path: str | os.PathLike[str]) -> None:
    """Draw answers: speed-up over workers, the step over links, and the best policy of each pair of both.

    Args:
        answers: some of which have a step.
        path: file to write; its ending says the format.

    Raises:
        InputError: there is nothing to draw, or the file cannot be written.
    """
    known = [answer for answer in answers if answer.step_s is not None]
    if not known:
        raise InputError("there is no answer to draw: each was refused, as the table says")
    from matplotlib.figure import Figure  # takes a second to import

    figure = Figure(figsize=(16.0, 4.8), layout="constrained")
    speed, steps, best = figure.subplots(1, 3)
    links = list(dict.fromkeys(answer.link for answer in known))
    policies = list(dict.fromkeys(answer.policy for answer in known))
    colors = {policy: f"C{number}" for number, policy in enumerate(policies)}
    _draw_speed(speed, [answer for answer in known if answer.link == links[-1]], colors)
    most = max(answer.workers for answer in known)
    _draw_steps(steps, [answer for answer in known if answer.workers == most], links, colors)
    _draw_best(best, known, links, policies, colors)
    kind = os.path.splitext(path)[1].removeprefix(".") or "png"
    try:
        with replacing(path) as temporary:
            figure.savefig(temporary, dpi=120, format=kind)
    except (OSError, ValueError) as error:
        raise InputError(f"the plot cannot be written to {path}: {error}") from error


def _draw_speed(panel: Any, answers: Sequence[Answer], colors: dict[str, str]) -> None:
    counts = sorted({answer.workers for answer in answers})
    panel.plot(counts, counts, ":", color="gray", label="as many times as workers")
    for policy, color in colors.items():
        of = sorted((answer for answer in answers if answer.policy == policy), key=lambda answer: answer.workers)
        panel.plot(
            [answer.workers for answer in of], [answer.speed_up for answer in of], "o-", color=color, label=policy
        )
    panel.set(xscale="log", yscale="log", xlabel="workers", ylabel="speed-up over one worker")
    panel.set_title(f"network: {answers[0].link}" if answers else "")
    panel.set_xticks(counts, [str(count) for count in counts], minor=False)
    panel.minorticks_off()
    panel.legend()


def _draw_steps(panel: Any, answers: Sequence[Answer], links: Sequence[str], colors: dict[str, str]) -> None:
    columns = {link: column for column, link in enumerate(links)}
    for place, (policy, color) in enumerate(colors.items()):
        of = [answer for answer in answers if answer.policy == policy]
        x = [columns[answer.link] for answer in of]
        panel.plot(
            x, [(answer.step_s or 0.0) * 1e3 for answer in of], "o-", color=color, label=policy, zorder=_TOP - place
        )
        if all(answer.low_s is not None for answer in of):
            low, high = ([(getattr(answer, name) or 0.0) * 1e3 for answer in of] for name in ("low_s", "high_s"))
            panel.fill_between(x, low, high, color=color, alpha=0.12, linewidth=0)
    panel.set_xticks(range(len(links)), links)
    panel.set(yscale="log", xlabel="network", ylabel="step [ms], with 95 % bounds")
    panel.set_title(f"{answers[0].workers} workers" if answers else "")


def _draw_best(
    panel: Any, answers: Sequence[Answer], links: Sequence[str], policies: Sequence[str], colors: dict[str, str]
) -> None:
    from matplotlib.colors import ListedColormap

    best = winners(answers)
    counts = sorted({answer.workers for answer in best})
    grid = [[float("nan")] * len(counts) for _ in links]
    for answer in best:
        row, column = links.index(answer.link), counts.index(answer.workers)
        grid[row][column] = policies.index(answer.policy)
        panel.text(column, row, _by_how_much(answer, answers), ha="center", va="center", fontsize=8)
    shown = ListedColormap([colors[policy] for policy in policies])
    panel.imshow(grid, cmap=shown, vmin=-0.5, vmax=len(policies) - 0.5, aspect="auto", origin="lower", alpha=0.5)
    panel.set_xticks(range(len(counts)), [str(count) for count in counts])
    panel.set_yticks(range(len(links)), links)
    panel.set(xlabel="workers", title="the shortest step, and by how much")


def _by_how_much(best: Answer, answers: Sequence[Answer]) -> str:
    """The best policy, and by which part its step is shorter than the next one."""
    cell = [each for each in answers if (each.workers, each.link) == (best.workers, best.link) and each is not best]
    others = [each.step_s for each in cell if each.step_s is not None]
    if not others or best.step_s is None:
        return best.policy
    return f"{best.policy}\n{1 - best.step_s / min(others):.0%}"
