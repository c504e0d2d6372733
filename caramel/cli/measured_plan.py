"""The work of ``caramel plan --measure``: everything from a program to a plan that was tried, in one go."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caramel.analyzers.servers.placement import place, variable_groups
from caramel.armodel import ARModel
from caramel.compiler.options import TRAVEL_OPTIONS
from caramel.errors import InputError
from caramel.facts import Trace
from caramel.frontend.program_file import Program
from caramel.measure.in_turn import ROUNDS, is_gain, times_in_turn
from caramel.measure.netbench import measure_network, quick_up_to
from caramel.measure.timed_steps import timed_steps
from caramel.measure.tracer import trace
from caramel.netmodel.model import NetworkModel
from caramel.prediction import predicted_beside, without_long_wait_s
from caramel.report.run_record import RunRecord
from caramel.report.training import where_workers_share_cores
from caramel.runtime.clusters.base import Cluster
from caramel.runtime.session import Session
from caramel.runtime.step_rate import FIRST_RUNS
from caramel.util.units import format_ms, more_or_less

_LEAST_STEPS, _MOST_STEPS, _BUDGET_S = 5, 30, 20.0
"""Numbers of steps that are timed: between these, as many as fit into so many seconds."""

_STEPS_IN_TURN, _BUDGET_IN_TURN_S = 10, 20.0
"""Largest number of steps in a round beside the step without a plan, and about how long all rounds may take."""

_PLANNING = frozenset({*TRAVEL_OPTIONS, "network", "trace"})
"""Options without which there is no plan."""

_UNTIMED_STEPS = 6
"""Number of steps before those: the first ones, in which TensorFlow gets ready, and some that are drawn."""


@dataclass(frozen=True)
class TriedPlan:
    """A plan, and what it took to run it.

    Attributes:
        armodel: the compiled program, with the plan.
        network: model of the network; None where it was given.
        trace: trace of the program; likewise.
        record: what the steps of the try were like.
        cluster: where they ran.
        in_turn_s: seconds of a step, and of one without a plan, in each of some rounds of both.
    """

    armodel: ARModel
    network: NetworkModel | None
    trace: Trace | None
    record: RunRecord
    cluster: Cluster
    in_turn_s: Sequence[tuple[float, float]]

    @property
    def steps_s(self) -> Sequence[float]:
        """Measured seconds of steps."""
        return self.record.plain_steps_s

    @property
    def step_s(self) -> float:
        """Seconds of a step: the median."""
        return statistics.median(self.steps_s)

    def __str__(self) -> str:
        """Predicted beside measured, and the step without a plan, for people."""
        return "\n".join(text for text in (self._beside_prediction(), self._beside_unplanned()) if text)

    def as_dict(self) -> dict[str, Any]:
        """What was measured, for JSON."""
        return {
            "measured_step_s": self.step_s,
            "measured_steps": len(self.steps_s),
            "unplanned_step_s": statistics.median(without_s for _, without_s in self.in_turn_s),
            "ratios_to_unplanned": list(self.gain_ratios),
        }

    @property
    def gain_ratios(self) -> Sequence[float]:
        """Time of a step over that of one without a plan, in each round of both."""
        return [with_s / without_s for with_s, without_s in self.in_turn_s]

    def _beside_unplanned(self) -> str:
        ratios = self.gain_ratios
        without_s = statistics.median(without_s for _, without_s in self.in_turn_s)
        text = (
            f"without a plan, measured in turn with it: {format_ms(without_s)}; the plan takes "
            f"{more_or_less(statistics.median(ratios))} (median of {len(ratios)} rounds; from "
            f"{more_or_less(min(ratios))} to {more_or_less(max(ratios))})"
        )
        if is_gain([1 / ratio for ratio in ratios]):
            text += (
                "\nnote: the step is faster without this plan, so what was measured for it does not hold: measure "
                "again with nothing else running, or train without --plan"
            )
        return text

    def _beside_prediction(self) -> str:
        text = f"measured: {format_ms(self.step_s)} (median of {len(self.steps_s)} steps)"
        prediction, servers = self.armodel.plan.prediction, self.armodel.plan.servers
        why = where_workers_share_cores(self.cluster, self.armodel.plan.workers)
        if servers is not None and servers.prediction is not None:
            predicted_s = servers.prediction.step_s
            text = f"{text}; {predicted_beside(predicted_s, self.step_s)}"
            return text if why is None else f"{text}\nnote: {why[0].lower()}{why[1:]}"
        if prediction is None:
            return text
        wait_s = self.record.data_wait_s
        text = f"{text}; {prediction.beside(self.step_s, data_wait_s=wait_s)}"
        if prediction.holds(without_long_wait_s(self.step_s, wait_s)):
            return text
        return f"{text}\nnote: {why[0].lower()}{why[1:]}" if why else text


def measured_plan(
    program: Program,
    workers: int,
    cluster: Cluster,
    devices: Sequence[str],
    decisions: Mapping[str, Any],
    is_drawn: bool,
    say: Callable[[str], None],
) -> TriedPlan:
    """Measure the network and the program on a cluster, plan, and try the plan.

    What is trained meanwhile is thrown away.

    Args:
        program: the program.
        workers: number of workers.
        cluster: where they run.
        devices: device of each worker; empty for the default.
        decisions: options of `ARModel`; a ``network`` or ``trace`` that is given is not measured.
        is_drawn: whether some steps of the try are to be drawn.
        say: function that is called with what begins.

    Raises:
        InputError: there is one worker, so no network.
        CaramelError: a part fails; see `measure_network`, `trace` and `ARModel`.
    """
    options = measured_options(program, workers, cluster, devices, decisions, 4, say)
    say("3 of 4: planning")
    armodel = ARModel(program.context, workers, device_list=list(devices) or None, **options)
    say("4 of 4: trying the plan, also in turn with the step without one")
    with armodel.session(cluster) as session:
        record = RunRecord(session, is_drawn)
        _try(session, program, record)
        in_turn_s = _in_turn_s(session, program, workers, cluster, devices, decisions)
    network, trace_ = (options[name] if decisions.get(name) is None else None for name in ("network", "trace"))
    return TriedPlan(armodel, network, trace_, record, cluster, in_turn_s)


def measured_options(
    program: Program,
    workers: int,
    cluster: Cluster,
    devices: Sequence[str],
    decisions: Mapping[str, Any],
    parts: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Options with a network and a trace, which are measured where they were not given.

    Args:
        program: the program.
        workers: number of workers.
        cluster: where they run.
        devices: device of each worker; empty for the default.
        decisions: options of `ARModel`.
        parts: number of parts of the whole work, of which these are the first two.
        say: function that is called with what begins.

    Raises:
        InputError: there is one worker, so no network; or there are more servers than variables.
        CaramelError: a measurement fails.
    """
    options = dict(decisions)
    model = program.context.for_workers(workers).model_for(workers)
    if options.get("servers") is not None:
        place(variable_groups(model), options["servers"])  # refuses too many before anything is measured
    if options.get("network") is None:
        if workers < 2:
            raise InputError("one worker sends nothing, so there is no network to measure: plan for 2 workers or more")
        total_bytes = sum(gradient.size_bytes for gradient in model.gradients)
        say(f"1 of {parts}: measuring the network, which takes less than a minute")
        options["network"] = measure_network(cluster, [workers], quick_up_to(total_bytes), _where(cluster))
    if options.get("trace") is None:
        say(f"2 of {parts}: tracing the program's step")
        options["trace"] = trace(
            program.context,
            *program.first_batch(),
            workers=workers,
            cluster=cluster,
            device_list=list(devices) or None,
            description=_where(cluster),
        )
    return options


def _where(cluster: Cluster) -> str:
    return f"{type(cluster).__name__}, planned from {platform.node()}"


def _try(session: Session, program: Program, record: RunRecord) -> None:
    """Make some steps."""

    def run(steps: int) -> None:
        session.run(None if program.on_workers else program.batches(steps), steps, on_run=record.note, progress=False)

    run(_UNTIMED_STEPS + _LEAST_STEPS)
    more = int(_BUDGET_S / statistics.median(record.plain_steps_s)) - _LEAST_STEPS
    run(max(0, min(more, _MOST_STEPS - _LEAST_STEPS)))


def _in_turn_s(
    session: Session,
    program: Program,
    workers: int,
    cluster: Cluster,
    devices: Sequence[str],
    decisions: Mapping[str, Any],
) -> list[tuple[float, float]]:
    """Seconds of a step, and of one without a plan, in each round of both."""
    options = {name: value for name, value in decisions.items() if name not in _PLANNING}
    unplanned = ARModel(program.context, workers, device_list=list(devices) or None, **options)
    batches = None if program.on_workers else program.batches
    with unplanned.session(cluster.beside()) as other:
        step_s = statistics.median(timed_steps(other, batches, FIRST_RUNS + 1)[FIRST_RUNS:])
        steps = max(1, min(_STEPS_IN_TURN, int(_BUDGET_IN_TURN_S / (2 * ROUNDS * step_s))))
        return times_in_turn((session, other), batches, steps)
