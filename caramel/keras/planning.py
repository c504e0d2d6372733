"""Plans for `fit`: where the network is known, the step is traced on the workers, and its transfers are planned."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from caramel.armodel import ARModel
from caramel.errors import CaptureError, TraceError
from caramel.facts import Trace
from caramel.frontend.context import Context
from caramel.measure.trace_file import load_trace
from caramel.measure.tracer import trace
from caramel.model import Model
from caramel.outline import differences
from caramel.runtime.clusters.base import Cluster
from caramel.util.tables import counted
from caramel.util.units import format_time

_RUNS, _STEPS = 3, 10
"""Number of traced and of plain steps before a training: it is to begin soon."""

_BY_HAND = ("plan", "analyzers", "policy", "postponed", "serialization", "scheduling")
"""Options with which the caller decides what else a trace is for."""


def traced_options(
    context: Context,
    options: Mapping[str, Any],
    workers: int,
    cluster: Cluster | None,
    batch: Callable[[], Sequence[Any] | None],
    own_step: Callable[[], Context],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Options of `caramel.ARModel` with a trace of the captured step, where one is of use.

    Args:
        context: what `fit` captured.
        options: options of the caller.
        workers: number of workers.
        cluster: the cluster to train on.
        batch: function that makes the arrays of a step: none where the workers read the data, None where there is no
            batch to be had.
        own_step: function that captures the model's ``train_step`` as a user would.
        say: function that takes a line for the user before what takes long.

    Raises:
        TraceError: the caller's trace is of another program.
    """
    found = dict(options)
    if found.get("trace") is not None:
        given = found["trace"]
        loaded = load_trace(given) if isinstance(given, (str, os.PathLike)) else given
        found["trace"] = _of_captured(loaded, context.model_for(workers), own_step)
    elif (
        found.get("network") is not None
        and found.get("sync_every") is None  # a step that sends nothing needs no plan
        and not any(name in found for name in _BY_HAND)
    ):
        arrays = batch()
        if arrays is not None:
            say(f"caramel: the step is traced on {workers} workers, to plan for this network")
            found["trace"] = trace(
                context,
                *arrays,
                workers=workers,
                cluster=cluster,
                runs=_RUNS,
                steps=_STEPS,
                device_list=found.get("device_list"),
                progress=False,
            )
    return found


def _of_captured(given: Any, step: Model, own_step: Callable[[], Context]) -> Trace:
    """A user's trace, for what `fit` captures: the same step, which besides watches the metrics.

    Raises:
        TraceError: it is a trace of another program.
    """
    digest = step.digest
    own: Model | None = None
    if not isinstance(given, Trace) or given.model_digest == digest:
        return given  # ARModel says what is wrong with what is no trace
    with suppress(CaptureError):  # what `fit` could capture with its knowledge of Keras, a plain capture may not
        own = own_step().model
    if own is None or given.model_digest != own.digest:
        raise TraceError(
            "the trace is of another program than this model's training step on this data "
            f"({differences(given.outline, (own or step).outline)}): trace "
            "caramel.capture(lambda *batch: model.train_step(batch), data=dataset) with the same model and dataset, or "
            "leave trace= out, and fit traces by itself where network= is given"
        )
    nodes = {node.name for node in step.graph}
    return replace(
        given,
        model_digest=digest,
        op_s={name: time_s for name, time_s in given.op_s.items() if name in nodes},
        op_bytes={name: size for name, size in given.op_bytes.items() if name in nodes},
        op_least_s={name: time_s for name, time_s in given.op_least_s.items() if name in nodes},
    )


def one_line(model: ARModel, took_s: float) -> str:
    """What a plan is, and what it is predicted to bring, if anything is.

    Args:
        model: what was planned.
        took_s: seconds that it took, tracing included.
    """
    plan, prediction = model.plan, model.plan.prediction
    forward = sum(transfer.window == "forward" for transfer in plan.transfers)
    text = (
        f"caramel: plan {plan.digest[:12]} for {plan.workers} workers, in {took_s:.1f} s: "
        f"{counted(len(plan.transfers), 'transfer')}, {forward} of them in the next step's forward pass"
    )
    if prediction is None:
        return text
    step, interval = format_time(prediction.timeline.iteration_s), prediction.interval
    span = "" if interval is None else f" ({format_time(interval.low_s)} to {format_time(interval.high_s)})"
    return f"{text}; a step is predicted to take {step}{span}"
