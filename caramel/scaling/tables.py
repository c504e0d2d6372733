"""Answers as a table for people, and as CSV for programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from caramel.scaling.answers import NOT_TRACED, Answer
from caramel.util.tables import aligned
from caramel.util.units import format_number, format_time

_ADVICE = f"{NOT_TRACED}: say what a worker has with --batch-per-worker, or trace other batches and give each --trace"
"""What to do about batches that no trace tells of."""

_HEAD = (
    "workers",
    "network",
    "policy",
    "examples of each",
    "step",
    "95 %",
    "utilisation",
    "examples/s",
    "speed-up",
    "",
)


def as_data(answer: Answer) -> dict[str, Any]:
    """An answer in SI units, by name."""
    derived = ("utilisation", "speed_up", "examples_per_s")
    return {**asdict(answer), **{name: getattr(answer, name) for name in derived}}


def as_table(answers: Sequence[Answer]) -> str:
    """A line for each answer, with the best policy of each number of workers and network marked.

    Args:
        answers: at least one.
    """
    best = winners(answers)
    rows = [_HEAD, *(_row(answer, answer in best) for answer in answers)]
    table = aligned(rows, right={0, 3, 4, 6, 7, 8}, rule=True)
    return f"{table}\n\n{_ADVICE}" if any(answer.refused == NOT_TRACED for answer in answers) else table


def winners(answers: Sequence[Answer]) -> list[Answer]:
    """The answer with the shortest step for each number of workers and network; the first one of equal ones."""
    found: dict[tuple[int, str], Answer] = {}
    for answer in answers:
        key = answer.workers, answer.link
        if answer.step_s is not None and (key not in found or answer.step_s < (found[key].step_s or 0.0)):
            found[key] = answer
    return list(found.values())


def _row(answer: Answer, is_best: bool) -> tuple[str, ...]:
    about = (str(answer.workers), answer.link, answer.policy, "-" if answer.examples is None else str(answer.examples))
    if answer.step_s is None or answer.utilisation is None or answer.speed_up is None:
        return (*about, "-", "", "-", "-", "-", answer.refused)
    interval = ""
    if answer.low_s is not None and answer.high_s is not None:
        interval = f"{format_time(answer.low_s)} to {format_time(answer.high_s)}"
    rate = "-" if answer.examples_per_s is None else format_number(answer.examples_per_s)
    notes = ["best"] if is_best else []
    notes += ["extrapolated"] if answer.basis == "extrapolated" else []
    shown = (format_time(answer.step_s), interval, f"{answer.utilisation:.0%}", rate, format_number(answer.speed_up))
    return (*about, *shown, ", ".join(notes))


def as_csv(answers: Sequence[Answer]) -> str:
    """A line for each answer, in SI units; what is not known is empty.

    Args:
        answers: at least one.
    """
    text = io.StringIO()
    rows = [as_data(answer) for answer in answers]
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
