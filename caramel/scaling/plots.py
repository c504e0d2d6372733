"""Answers as a picture: how fast training gets with more workers, and with faster links, and which policy wins."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from caramel.errors import InputError
from caramel.scaling.answers import Answer
from caramel.scaling.tables import winners
from caramel.util.figures import save_figure

_SAME = 0.01
"""Fraction of a step by which the answers of two policies may differ to share a line."""


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
    lines = _lines(known, policies)
    colors = {policy: f"C{number}" for number, line in enumerate(lines) for policy in line}
    _draw_speed(speed, [answer for answer in known if answer.link == links[-1]], lines, colors)
    most = max(answer.workers for answer in known)
    _draw_steps(steps, [answer for answer in known if answer.workers == most], links, lines, colors)
    _draw_best(best, known, links, policies, colors)
    figure.legend(*speed.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    save_figure(figure, path)


def _lines(answers: Sequence[Answer], policies: Sequence[str]) -> list[list[str]]:
    """The policies, those together whose steps are nearly the same everywhere."""
    steps_s = {
        policy: {(a.workers, a.link): a.step_s or 0.0 for a in answers if a.policy == policy} for policy in policies
    }

    def are_same(one: str, other: str) -> bool:
        first, second = steps_s[one], steps_s[other]
        return first.keys() == second.keys() and all(
            abs(first[cell] - second[cell]) <= _SAME * first[cell] for cell in first
        )

    lines: list[list[str]] = []
    for policy in policies:
        line = next((line for line in lines if all(are_same(other, policy) for other in line)), None)
        if line is None:
            lines.append([policy])
        else:
            line.append(policy)
    return lines


def _draw_speed(panel: Any, answers: Sequence[Answer], lines: Sequence[Sequence[str]], colors: dict[str, str]) -> None:
    counts = sorted({answer.workers for answer in answers})
    panel.plot(counts, counts, ":", color="gray", label="as many times as workers")
    for line in lines:
        of = sorted((answer for answer in answers if answer.policy == line[0]), key=lambda answer: answer.workers)
        speeds = [answer.speed_up for answer in of]
        panel.plot([answer.workers for answer in of], speeds, "o-", color=colors[line[0]], label=", ".join(line))
    panel.set(xscale="log", yscale="log", xlabel="workers", ylabel="speed-up over one worker")
    panel.set_title(f"network: {answers[0].link}" if answers else "")
    panel.set_xticks(counts, [str(count) for count in counts], minor=False)
    panel.minorticks_off()
    _set_plain_numbers(panel.yaxis)


def _draw_steps(
    panel: Any,
    answers: Sequence[Answer],
    links: Sequence[str],
    lines: Sequence[Sequence[str]],
    colors: dict[str, str],
) -> None:
    """The steps of each line, beside each other at each network, with what they may be."""
    for place, line in enumerate(lines):
        of = [answer for answer in answers if answer.policy == line[0]]
        aside = 0.5 * (place - (len(lines) - 1) / 2) / len(lines)
        x = [links.index(answer.link) + aside for answer in of]
        step_ms = [(answer.step_s or 0.0) * 1e3 for answer in of]
        is_known = all(answer.low_s is not None and answer.high_s is not None for answer in of)
        low_ms, high_ms = ([(getattr(a, name) or 0.0) * 1e3 for a in of] for name in ("low_s", "high_s"))
        errors_ms = [
            [step - low for step, low in zip(step_ms, low_ms)],
            [high - step for step, high in zip(step_ms, high_ms)],
        ]
        panel.errorbar(x, step_ms, errors_ms if is_known else None, fmt="o", color=colors[line[0]], capsize=3)
    panel.set_xticks(range(len(links)), links)
    panel.set_xlim(-0.5, len(links) - 0.5)
    panel.set(yscale="log", xlabel="network", ylabel="step [ms], with 95 % bounds")
    panel.set_title(f"{answers[0].workers} workers" if answers else "")
    _set_plain_numbers(panel.yaxis)


def _set_plain_numbers(axis: Any) -> None:
    """Ticks of a logarithmic axis as people write numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_locator(NullLocator())


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
