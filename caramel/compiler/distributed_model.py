"""From a captured program to the graph of N workers, with everything that is needed to run it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from caramel.analyzers.plan_checks import check_plan
from caramel.analyzers.step.local_variables import with_local_state
from caramel.compiler.assemble_plan import assemble_plan, input_pipeline
from caramel.compiler.options import CompileOptions
from caramel.compiler.parameter_servers import server_plan
from caramel.compiler.plan_parts import bare_plan, counts_differ
from caramel.data.pipeline import Pipeline
from caramel.errors import InputError, InvariantError, PlanError, UnsupportedError, listed
from caramel.facts import Trace
from caramel.frontend.context import Context, check_context
from caramel.graph.devices import default_devices, parse_devices
from caramel.model import Evaluation, Model
from caramel.modifiers.emission import Emission, Role
from caramel.modifiers.optimize import is_optimizable, optimize
from caramel.modifiers.passes import (
    ALL_REDUCE,
    COMPUTATION_ALONE,
    FORWARD_PASS,
    LOCAL_STEPS,
    PARAMETER_SERVERS,
    PULLED_FORWARD_PASS,
    Target,
    emit,
)
from caramel.modifiers.proof import prove
from caramel.modifiers.signatures import make_signature
from caramel.plan import Plan
from caramel.signature import NONE, Signature
from caramel.util.arguments import whole_number
from caramel.util.gc_pause import paused_gc

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DistributedModel:
    """An emitted graph with its signature: all that a session, a checkpoint or an export needs.

    Attributes:
        context: the captured program.
        target: target that was emitted.
        emission: the finished emission.
        signature: names of the tensors to feed and fetch, and of the ops to run.
    """

    context: Context
    target: Target
    emission: Emission
    signature: Signature

    @property
    def model(self) -> Model:
        """The single-device step."""
        return self.emission.model

    @property
    def plan(self) -> Plan:
        """The plan that the graph carries out."""
        return self.emission.plan

    @property
    def pipeline(self) -> Pipeline | None:
        """The workers' input pipelines, if they read a dataset."""
        return self.emission.pipeline

    @property
    def evaluation(self) -> Evaluation | None:
        """The declared evaluation, if there is one."""
        return self.emission.evaluation

    @property
    def workers(self) -> int:
        """Number of workers of the whole job, between which batches are divided; more than the plan's on one host."""
        return self.emission.job_workers

    @property
    def roles(self) -> Mapping[str, Role]:
        """Purpose and worker of each node of the graph, by name."""
        return self.emission.roles

    @cached_property
    def graph_def(self) -> Any:
        """The GraphDef. It holds no values; do not modify it."""
        return self.emission.graph.to_graph_def()

    @cached_property
    def optimized(self) -> DistributedModel | None:
        """The same, as TensorFlow's graph optimizers would have it; None where they should, or must, do it themselves.

        It is optimised once, whatever the number of workers, and is to run with these optimizers off.
        """
        if not is_optimizable(self.emission):
            return None
        try:
            optimized = optimize(self.emission, self.signature)
        except (InvariantError, ImportError) as error:
            _logger.warning("TensorFlow optimises the graph of all workers when it first runs it: %s", error)
            return None
        return None if optimized is None else replace(self, emission=optimized)


def distribute(target: Target, context: Context, start: Emission) -> DistributedModel:
    """Emit a target.

    Args:
        target: target to emit.
        context: the captured program.
        start: fresh emission, on which no modifier has run.

    Raises:
        CaptureError: the program cannot be replicated.
        InvariantError: a modifier broke an invariant.
    """
    emission = emit(target, start)
    return DistributedModel(context, target, emission, make_signature(emission))


@paused_gc()
def compile_model(
    context: Context, options: CompileOptions, trace: Trace | None = None
) -> tuple[DistributedModel, Mapping[type, Any]]:
    """Decide and emit data-parallel training.

    Args:
        context: the captured program.
        options: options of the caller.
        trace: measured times of the program's ops, already read from the file of the options; None if there are none.

    Returns:
        The distributed model, and the facts of the analyzers, by type; no facts if the plan was given.

    Raises:
        CaramelError: see `caramel.ARModel`.
    """
    model = trainable_model(context, options.workers, options.sharding)
    pipeline = input_pipeline(context, model, options.workers, options.sharding)
    plan, facts = assemble_plan(model, pipeline, options, trace)
    advice = _MAKE_ANEW if options.plan is not None else None
    if options.analyzers is not None:
        advice = "its analyzers were given by the caller"
    return _emitted(context, model, plan, pipeline, advice), facts


_MAKE_ANEW = "make the plan anew"


def _emitted(
    context: Context, model: Model, plan: Plan, pipeline: Pipeline | None, advice: str | None = None
) -> DistributedModel:
    """The graph of a plan, proved.

    Raises:
        PlanError: the plan breaks an invariant, and advice was given for that.
        InvariantError: the plan breaks one, and there is no advice: it was made here.
    """
    evaluation = context.evaluation_for() if context.evaluation is not None else None
    target, own = _target_of(plan), model
    if plan.local is not None:
        own = with_local_state(model)
    try:
        distributed = distribute(target, context, Emission.initial(own, plan, evaluation, pipeline))
    except InvariantError as error:
        if advice is None:
            raise
        raise PlanError(f"the plan breaks an invariant, {error}; {advice}") from error
    proved = replace(plan, proof=prove(distributed.emission))
    return replace(distributed, emission=replace(distributed.emission, plan=proved))


def _target_of(plan: Plan) -> Target:
    if plan.local is not None:
        return LOCAL_STEPS
    return ALL_REDUCE if plan.servers is None else PARAMETER_SERVERS


def predict_model(
    context: Context, options: CompileOptions, trace: Trace | None = None
) -> tuple[Plan, Mapping[type, Any]]:
    """Decide about data-parallel training, and emit nothing; see `compile_model`.

    Args:
        context: the captured program.
        options: options of the caller.
        trace: measured times of the program's ops.

    Returns:
        The plan, without proofs, and the facts of the analyzers, by type.

    Raises:
        CaramelError: see `caramel.what_if`.
    """
    model = trainable_model(context, options.workers, options.sharding)
    pipeline = input_pipeline(context, model, options.workers, options.sharding)
    return assemble_plan(model, pipeline, options, trace)


def trainable_model(context: Context, workers: int, sharding: str | None = None) -> Model:
    """The step that some workers would run.

    Args:
        context: captured program.
        workers: number of workers.
        sharding: see `caramel.ARModel`.

    Raises:
        CaptureError: there is none, or it cannot be that of one device.
    """
    model = context.for_workers(workers, sharding).model_for(workers)
    _refuse_synchronised(model, workers)
    return model


def _refuse_synchronised(model: Model, workers: int) -> None:
    if workers > 1 and model.synchronised:
        raise UnsupportedError(
            f"{listed(model.synchronised, 3)} asks for an all-reduce or all-gather over all replicas, which with "
            f"{workers} workers would not be what one device has (it is inside a loop or branch, or not of examples, "
            "or not the sum or mean over them that it would have to be, or differentiated twice): move it out, or "
            "train with one worker"
        )


def computation_alone(
    context: Context,
    workers_on_host: int,
    device_list: Sequence[str] | None = None,
    sharding: str | None = None,
    workers: int | None = None,
) -> DistributedModel:
    """Replicate a captured program without connecting the replicas: each worker applies its own gradients.

    Args:
        context: captured program, as `caramel.capture` returned it.
        workers_on_host: number of workers to replicate for, at least 1.
        device_list: see `caramel.ARModel`.
        sharding: see `caramel.ARModel`.
        workers: number of workers of the job that these workers belong to; default: there are no others.

    Raises:
        InputError: an argument does not fit.
        CaptureError: the program cannot be captured or replicated.
    """
    check_context(context)
    number = whole_number(workers_on_host, "workers_on_host")
    job = number if workers is None else whole_number(workers, "workers")
    if job < number:
        raise InputError(f"workers={job}: the whole job cannot have fewer workers than the {number} on this host")
    context = context.for_workers(job, sharding)
    model = context.model_for(job)
    devices = parse_devices(default_devices(number) if device_list is None else device_list, number)
    if sharding == "batches":
        job = number  # each worker takes whole batches, however many workers there are
    pipeline = input_pipeline(context, model, job, sharding)
    start = Emission.initial(model, _without_transfers(model, devices, pipeline), None, pipeline, job)
    return _emit_computation(context, start)


def forward_pass(context: Context, options: CompileOptions) -> DistributedModel:
    """Replicate a captured program that trains nothing; results that are functions of sums are those of all workers.

    Args:
        context: captured program, as `caramel.capture` returned it.
        options: the number of workers, their devices and ``sharding``, and what there is about parameter servers, from
            which workers then pull all variables in every step.

    Raises:
        InputError: there are more servers than variables that they could have.
        CaptureError: the program cannot be captured or replicated.

    Source:
        TicTac, section 6: agents that infer only pull.
    """
    workers, sharding, device_list = options.workers, options.sharding, options.device_list
    context = context.for_workers(workers, sharding)
    model = context.model_for(workers)
    _refuse_synchronised(model, workers)
    devices = parse_devices(default_devices(workers) if device_list is None else device_list, workers)
    pipeline = input_pipeline(context, model, workers, sharding)
    if options.servers is not None:
        plan, _ = server_plan(model, devices, pipeline, options, None, is_forward=True)
        check_plan(plan, model)
    else:
        weighted = bool(model.forward_sums) and counts_differ(model, workers, pipeline)
        plan = replace(_without_transfers(model, devices, pipeline), weighted=weighted)
    target = FORWARD_PASS if plan.servers is None else PULLED_FORWARD_PASS
    distributed = distribute(target, context, Emission.initial(model, plan, None, pipeline, workers))
    return replace(distributed, signature=replace(distributed.signature, reduction=NONE))


def with_edges(computation: DistributedModel, edges: Sequence[tuple[str, str]]) -> DistributedModel:
    """A computation alone with other control edges.

    Args:
        computation: distributed model, as `computation_alone` returned it.
        edges: control edges, each (node before, node after), by names of the Model's graph.
    """
    emission = computation.emission
    plan = replace(emission.plan, edges=tuple(edges))
    return _emit_computation(
        computation.context, Emission.initial(emission.model, plan, None, emission.pipeline, emission.job_workers)
    )


def _emit_computation(context: Context, start: Emission) -> DistributedModel:
    computation = distribute(COMPUTATION_ALONE, context, start)
    return replace(computation, signature=replace(computation.signature, reduction=NONE))


def _without_transfers(model: Model, devices: tuple[str, ...], pipeline: Pipeline | None) -> Plan:
    return replace(bare_plan(model, devices, pipeline), notes=("nothing is sent between workers",))
