"""The work of ``caramel plan``: trace, compile, or only predict."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caramel.analyzers.registry import listed_analyzers
from caramel.armodel import ARModel
from caramel.compiler.distributed_model import predict_model
from caramel.compiler.options import CompileOptions
from caramel.facts import Trace
from caramel.frontend.program_file import Program
from caramel.measure.trace_file import as_trace
from caramel.model import Model
from caramel.netmodel.file import as_network
from caramel.plan import Plan
from caramel.runtime.feeds import bound_arrays
from caramel.signature import Feed

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlannedProgram:
    """A program with its plan.

    Attributes:
        model: the single-device step.
        plan: the plan.
        facts: facts from which it was made, by type.
    """

    model: Model
    plan: Plan
    facts: Mapping[type, Any]


def planned(
    loaded: Program,
    workers: int,
    devices: Sequence[str],
    analyzers: str | None,
    workers_on_host: int,
    decisions: Mapping[str, Any],
) -> PlannedProgram:
    """Compile a program with a plan from measured times, or only predict its step.

    Args:
        loaded: the program.
        workers: number of workers.
        devices: device of each worker; empty for the default.
        analyzers: names of analyzers, with commas; None for the automatic ones.
        workers_on_host: number of workers that compute at once where the program is traced.
        decisions: options of `CompileOptions`.

    Raises:
        CaramelError: a step fails; see `ARModel`.
    """
    options = dict(decisions)
    trace = as_trace(options.pop("trace"), loaded.context.for_workers(workers).model_for(workers))
    if trace is not None:
        _warn_of_other_hosts(trace, options.get("network"))
        warn_of_other_batch(trace, loaded, workers)
    if trace is None and options["sync_every"] is None:  # else nothing is sent beside computation
        trace = traced_program(loaded, workers_on_host, workers)
    if analyzers is None:
        options["trace"] = trace
    else:
        options["analyzers"] = listed_analyzers(analyzers, trace)
    options["device_list"] = list(devices) or None
    if options.pop("is_what_if", False):
        context = loaded.context.for_workers(workers)
        plan, facts = predict_model(context, CompileOptions(workers, **options, is_what_if=True), trace)
        return PlannedProgram(context.model_for(workers), plan, facts)
    armodel = ARModel(loaded.context, workers, **options)
    return PlannedProgram(armodel.model, armodel.plan, armodel.facts)


def _warn_of_other_hosts(trace: Trace, network: Any) -> None:
    """Warn where a trace is of workers that shared a host, and a network that was given by hand has a host for each."""
    found = as_network(network)
    doubt = None if found is None or found.given is None else trace.doubt(found.workers_on_host)
    if doubt is not None:
        _logger.warning("%s", doubt)


def warn_of_other_batch(trace: Trace, loaded: Program, workers: int) -> None:
    """Warn where a trace is of another number of examples than the batches have that this process feeds."""
    if (
        loaded.on_workers
        or loaded.context.examples_of_batch is not None
        or not (callable(loaded.data) or isinstance(loaded.data, Sequence))
    ):
        return  # `ARModel` sees the number itself, or batches cannot be read twice
    model = loaded.context.for_workers(workers).model_for(workers)
    feeds = [Feed(i.name, i.dtype, i.shape, i.split, i.optional, ()) for i in model.inputs]
    arrays = bound_arrays(feeds, loaded.first_batch(), {}, model.unused_inputs, model.input_order)
    counts = {len(arrays[feed.name]) for feed in feeds if feed.split and feed.name in arrays}
    if len(counts) != 1:
        return
    (examples,) = counts
    doubt = trace.doubt_of_batch(examples, max(model.dealing.shares(examples, workers)))
    if doubt is not None:
        _logger.warning("%s", doubt)


def traced_program(loaded: Program, workers_on_host: int, workers: int) -> Trace:
    """Trace a program on its first batch.

    Raises:
        TraceError: the program cannot be traced.
        ProgramError: the program has no data.
    """
    from caramel.measure.tracer import trace

    return trace(loaded.context, *loaded.first_batch(), workers=workers, workers_on_host=workers_on_host)
