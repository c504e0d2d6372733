"""Answers as a table for people, and as CSV for programs."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import groupby
from typing import Any

from caramel.scaling.answers import NOT_TRACED, Answer
from caramel.util.tables import aligned
from caramel.util.units import format_number, format_time

_SPEED_UP = "speed-up: of the examples a second, over one worker by itself with as many examples as each has here"

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


def as_table(answers: Sequence[Answer], program: Sequence[str] = ("PROGRAM",), is_batch_given: bool = True) -> str:
    """A line for each answer, with the best policy of each number of workers and network marked.

    Where no policy has an answer, for one reason, that is one line.

    Args:
        answers: at least one.
        program: the program, as commands name it, and its arguments.
        is_batch_given: whether the question says how many examples a step or a worker has.
    """
    policies = {answer.policy for answer in answers}
    best = winners(answers) if len(policies) > 1 else []
    groups = groupby(answers, lambda answer: (answer.workers, answer.link))
    rows = [_row(answer, answer in best) for _, group in groups for answer in _told_once(list(group))]
    lines = [aligned([_HEAD, *rows], right={0, 3, 4, 6, 7, 8}, rule=True), ""]
    told = next((answer for answer in answers if answer.step_s is not None), None)
    if told is not None:
        lines.append(_SPEED_UP)
    if told is not None and told.examples is not None and not is_batch_given:
        lines.append(
            f"each worker has the {told.examples} examples that were traced, so a step of more workers has more: "
            "--global-batch B keeps the batch, --batch-per-worker b says another share"
        )
    if len(policies) == 1 and told is not None:
        lines.append("--policy all compares with other ways to send the gradients")
    if untraced := sorted({a.examples for a in answers if a.refused == NOT_TRACED and a.examples is not None}):
        shares = ",".join(map(str, untraced))
        own = ["--", *program[1:]] if len(program) > 1 else []
        command = shlex.join(["caramel", "trace", program[0], "--examples", shares, "--out", "T.json", *own])
        lines.append(
            f"{NOT_TRACED}: trace such shares on one host and give each file with --trace ({command}; where workers "
            "read a dataset, --workers N --workers-on-host 1 for each N instead of --examples), or say what a worker "
            "has with --batch-per-worker"
        )
    return "\n".join(lines).rstrip()


def _told_once(answers: Sequence[Answer]) -> Sequence[Answer]:
    """The answers of one number of workers on one network; one of them where all are refused for one reason."""
    reasons = {answer.refused for answer in answers}
    is_refused = len(reasons) == 1 and all(answer.step_s is None for answer in answers)
    return [replace(answers[0], policy="any")] if is_refused and len(answers) > 1 else answers


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
