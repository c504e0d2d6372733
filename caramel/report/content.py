"""What a report says in words: what would help, warnings and versions."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata

from caramel.errors import listed
from caramel.plan import Plan
from caramel.prediction import OUTSIDE_ADVICE, is_long_wait, without_long_wait_s
from caramel.report.figures import StepFigures, exposed_by_cause, exposed_by_transfer, figures_of
from caramel.report.run_record import RunRecord
from caramel.report.step_timeline import StepTimeline
from caramel.report.what_helps import WhatIf
from caramel.server_plan import ParameterServers
from caramel.util.units import format_ms

_SMALL_GAP = 0.03
"""Gap to the lower bound below which another plan is not worth looking for."""

_SHARE_TO_NAME = 0.02
"""Fraction of a step that a transfer has to be waited for to be worth a word."""


@dataclass(frozen=True)
class Report:
    """What a report is about.

    Attributes:
        title: name of what was planned or trained.
        plan: the plan.
        version: version of this library.
        predicted: the predicted step, if there is one.
        what_ifs: changes that may help.
        measured: the measured step, if one was traced.
        record: the training, if there was one.
        warnings: sentences about what is doubtful or to be expected, besides the notes of the plan.
        shares_cores: whether workers compute in turn, on cores that they share.
    """

    title: str
    plan: Plan
    version: str
    predicted: StepTimeline | None = None
    what_ifs: tuple[WhatIf, ...] = ()
    measured: StepTimeline | None = None
    record: RunRecord | None = None
    warnings: tuple[str, ...] = ()
    shares_cores: bool = False


def milliseconds(time_s: float) -> str:
    """A time in milliseconds, with three digits.

    >>> [milliseconds(time_s) for time_s in (0.012345, 1.5, 0.0)]
    ['12.3 ms', '1,500 ms', '0 ms']
    """
    return format_ms(time_s, digits=3)


def advice(report: Report) -> list[str]:
    """What the figures say about what would help, in sentences.

    Args:
        report: what the report is about.
    """
    prediction = report.plan.prediction
    if report.plan.local is not None:
        return ["Nothing is predicted of steps in which workers train by themselves."]
    if report.plan.servers is not None:
        return _about_servers(report.plan.servers, report.predicted)
    if prediction is None:
        return ["Nothing is predicted without a trace and a model of the network: give --trace and --network."]
    step = prediction.timeline
    sentences: list[str] = []
    exposed = exposed_by_transfer(report.predicted) if report.predicted is not None else {}
    waits = _worth_a_word({f"transfer {number}": s for number, s in exposed.items()}, step.iteration_s)
    if waits:
        sentences.append(f"By the prediction the step waits for {waits}.")
    else:
        sentences.append("By the prediction the step waits for no transfer that is worth a word.")
    if report.measured is not None:
        sentences += _about_measured(figures_of(report.measured), step.exposed_s, report.shares_cores)
    shorter = 1 - 1 / (1 + prediction.gap)  # the gap is in units of the bound
    if prediction.has_bound and prediction.gap <= _SMALL_GAP:
        helps = "only faster links, fewer bytes or more computation between two transfers help"
        sentences.append(
            f"No plan for this computation and network is predicted to be more than {max(shorter, 0.0):.1%} shorter: "
            f"{helps if waits else 'the step takes what its computation takes'}."
        )
    elif prediction.has_bound:
        sentences.append(f"By the prediction the best plan is at most {shorter:.1%} shorter, if there is a better one.")
    if step.rho < 1:
        sentences.append(f"Sending takes {step.rho:.2f} times as long as computing: the processors are what is short.")
    else:
        sentences.append(f"Sending takes {step.rho:.2f} times as long as computing: the links are what is short.")
    return sentences


def _about_measured(measured: StepFigures, predicted_exposed_s: float, shares_cores: bool) -> list[str]:
    """What is to be said where a traced step waits longer for transfers than the predicted one."""
    more_s = measured.exposed_s - predicted_exposed_s
    if more_s <= _SHARE_TO_NAME * measured.step_s:
        return []
    why = (
        "Workers share cores here, so a transfer waits for a processor, or for a worker whose turn comes later; no "
        "plan changes that."
        if shares_cores
        else "Trace and measure the network anew where it trains, with nothing else running."
    )
    waits = f"{milliseconds(measured.exposed_s)} of {milliseconds(measured.step_s)}"
    return [f"In the traced step it waits for transfers {waits}, longer than predicted. {why}"]


def _about_servers(servers: ParameterServers, predicted: StepTimeline | None) -> list[str]:
    """What the prediction says of a step with parameter servers."""
    step = servers.prediction
    if step is None:
        return ["Nothing is predicted without a trace and a model of the network: give --trace and --network."]
    longest, what = max((step.compute_s, "computing"), (step.pull_s, "pulls"), (step.push_s, "pushes"))
    exposed = {} if predicted is None else exposed_by_cause(predicted)
    waits = _worth_a_word({f"the {name}": s for name, s in exposed.items()}, step.step_s)
    return [
        f"A worker waits for {waits}." if waits else "A worker waits for no pull or push that is worth a word.",
        f"No order of pulls takes less than {milliseconds(step.lower_bound_s)}.",
        f"The longest part is {what}, with {milliseconds(longest)} of a step of {milliseconds(step.step_s)}.",
    ]


def _worth_a_word(exposed: Mapping[str, float], step_s: float) -> str:
    """What a step waits for long enough to be named, with the times, the longest first; "" where there is nothing."""
    named = sorted((name for name, s in exposed.items() if s > _SHARE_TO_NAME * step_s), key=lambda n: -exposed[n])
    return listed([f"{name} ({milliseconds(exposed[name])})" for name in named], 4) if named else ""


def notes(report: Report) -> list[tuple[str, str]]:
    """Warnings and notes: of what they are, and the sentence.

    Args:
        report: what the report is about.
    """
    found = [("warning", warning) for warning in report.warnings]
    for step in (report.predicted, report.measured):
        found += [] if step is None else [(step.source, note) for note in step.notes]
    if report.record is not None:
        bad = next((n for n, loss in enumerate(report.record.losses, 1) if not math.isfinite(loss)), None)
        found += [] if bad is None else [("warning", f"The loss is no finite number in step {bad} of this run.")]
        step_s = report.record.median_step_s
        if step_s is not None and is_long_wait(wait_s := report.record.data_wait_s, step_s):
            text = (
                f"A step waits {milliseconds(wait_s)} for its data, of {milliseconds(step_s)}, which a prediction does "
                "not count. Let the input pipeline work ahead: cache, prefetch, or make more calls at once."
            )
            found.insert(0, ("warning", text))
    if outside_s := _outside_interval(report):
        outside = f"The measured step of {milliseconds(outside_s)} is outside the interval of the prediction"
        text = f"{outside}: {OUTSIDE_ADVICE}."
        found.insert(0, ("warning", text))
    elif (below_s := _below_bound(report)) is not None:
        text = (
            f"The measured step of {milliseconds(below_s)} is shorter than the lower bound. That follows from the "
            "trace, whose computation took longer than that of this run."
        )
        found.insert(0, ("warning", text))
    found += [("plan", note) for note in report.plan.notes]
    found += [("checked", statement) for statement in report.plan.proof]
    return found


def _outside_interval(report: Report) -> float | None:
    """Measured seconds of a step that the prediction does not hold for; it says nothing of steps that are one run."""
    prediction, rest_s = report.plan.prediction, _comparable_s(report)
    return None if prediction is None or rest_s is None or prediction.holds(rest_s) else rest_s


def _below_bound(report: Report) -> float | None:
    """Measured seconds of a step that is shorter than the lower bound of the prediction; None for any other."""
    prediction, rest_s = report.plan.prediction, _comparable_s(report)
    if prediction is None or rest_s is None or not prediction.has_bound:
        return None
    return rest_s if rest_s < prediction.lower_bound_s else None


def _comparable_s(report: Report) -> float | None:
    """Measured seconds of a step, without a long wait for data; None where steps are one run, or none was measured."""
    record = report.record
    if record is None or record.median_step_s is None or record.steps_in_run > 1:
        return None
    return without_long_wait_s(record.median_step_s, record.data_wait_s)


def versions(report: Report) -> list[tuple[str, str]]:
    """Names and versions of what took part.

    Args:
        report: what the report is about.
    """
    packages = [(name, _version(name)) for name in ("tensorflow", "tensorflow-cpu", "keras", "numpy")]
    return [
        ("caramel", report.version),
        *((name, version) for name, version in packages if version),
        ("Python", platform.python_version()),
        ("system", f"{platform.system()} {platform.release()}, {platform.machine()}"),
    ]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def shared_cores_warning(workers: int, cores: int) -> str | None:
    """Why workers on one machine are not faster than one device; None if each has a core of its own.

    Args:
        workers: number of workers on the machine.
        cores: number of cores that they may use.
    """
    if workers <= cores:
        return None
    noun = "core" if cores == 1 else "cores"
    return (
        f"{workers} workers share the {cores} {noun} of this machine. They compute in turn, not at once, and add up "
        f"their gradients besides, so {workers} workers here are no faster than one device. On machines of their own "
        "they would compute at once."
    )
