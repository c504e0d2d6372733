"""ARModel: from a captured program to one distributed, verified graph."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from caramel.analyzers.analyzer import analyse
from caramel.analyzers.automatic import WANTED, automatic
from caramel.analyzers.cost.network import Network
from caramel.analyzers.plan_checks import check_plan
from caramel.analyzers.step.postponement import postponement
from caramel.collectives.algorithms import NATIVE
from caramel.compiler.assemble_plan import given_plan, input_pipeline, make_plan, refuse_options
from caramel.data.pipeline import Pipeline
from caramel.errors import CaptureError, InputError, InvariantError, PlanError
from caramel.facts import Trace
from caramel.frontend.context import Context
from caramel.graph.devices import Device, default_devices, task_name
from caramel.graph.graph import Graph, tensor_name
from caramel.graph.verify import verify_structure
from caramel.measure.trace_file import as_trace
from caramel.model import Evaluation, Model
from caramel.modifiers import save_restore
from caramel.modifiers.aggregate import aggregate, verify_aggregated
from caramel.modifiers.cut import cut
from caramel.modifiers.distributed_graph import DistributedGraph, own_name, replica_name
from caramel.modifiers.evaluate import add_evaluation
from caramel.modifiers.place_input import add_input_state, data_signature, place_input, saved_position
from caramel.modifiers.postpone import FLUSH, FORGET, postpone, verify_postponed
from caramel.modifiers.proof import prove
from caramel.modifiers.replicate import parse_devices, replicate
from caramel.modifiers.serialize import serialize
from caramel.modifiers.weigh import weigh
from caramel.netmodel.choice import CollectiveOptions
from caramel.netmodel.file import as_network
from caramel.netmodel.model import NetworkModel
from caramel.plan import Plan
from caramel.signature import EvaluationSignature, Feed, Signature
from caramel.util.arguments import whole_number
from caramel.util.gc_pause import many_objects

if TYPE_CHECKING:
    from caramel.runtime.clusters.base import Cluster
    from caramel.runtime.session import Session

EVALUATION_SCOPE = "caramel/evaluation/"


class ARModel:
    """A training program compiled for N workers.

    Args:
        context: what `caramel.capture` returned.
        number_of_workers: N, at least 1.
        serialization: enforce one order of computation; needs a trace.
        batching: send small gradients together.
        scheduling: send part of the gradients in the next forward pass; needs a trace and a network model.
        analyzers: a list of `caramel.Analyzer` to use instead of the automatic ones
            (`caramel.analyzers.automatic.automatic` returns those).
        device_list: a device string for each worker; default ``/job:worker/task:r``. Parts such as
            ``/GPU:0`` are kept.
        sharding: how a dataset given at capture is divided. ``"slice"``: every batch is split over the
            workers, so a step is that of one device on the same dataset. ``"batches"``: a step takes N
            batches, one for each worker, so it is that of one device on the N batches joined. Default:
            ``"slice"``; of no use where each worker has a dataset of its own, and refused there.
        uneven_batches: ``"weight"`` to weight gradients by each worker's share of the examples where
            a batch does not divide evenly, ``"refuse"`` to refuse such batches (saves one
            multiplication per gradient).
        statistics: what checkpoints and evaluations have of the statistics that each worker keeps of its own
            examples (of batch normalisation): ``"local"``, those of worker 0, or ``"mean"``, the mean over
            all workers.
        network: a `caramel.NetworkModel`, or the file of one, to choose algorithms and depths by. It must
            have been measured with this number of workers, or given by hand.
        algorithm: one all-reduce algorithm for all gradients instead: ``"shuffle"``, ``"star"``,
            ``"ring"``, ``"halving_doubling"``, ``"chain"`` or ``"native"``.
        depth: number of chunks of every all-reduce instead.
        deterministic: add gradients in rank order only, so that the bits of the result do not depend on
            how gradients are bucketed, cut and scheduled.
        wire: ``"bfloat16"`` or ``"float16"`` to send rounded gradients.
        postponed: names of gradients that travel, and whose updates are made, at the start of the next step,
            chosen by hand instead of by scheduling.
        trace: measured times of the program's ops (`caramel.trace`), or the file of some.
        policy: ``"optimal"``, or ``"paper"`` for Caramel's own batching and packing.
        plan: a finished Plan, or the file of one, to apply as it is; nothing is analysed, and of the options
            above only the device list (which may be another) and ``sharding`` go with it.

    Attributes:
        model: the single-device Model.
        pipeline: the workers' input pipelines, if a dataset was given at capture.
        plan: the Plan.
        facts: what the analyzers found, by type; empty if a plan was given.
        signature: names of what to feed, fetch and call.

    Raises:
        InputError: an argument does not fit.
        CaptureError: the program cannot be captured or replicated.
        AnalysisError: an analyzer failed.
        PlanError: the plan was made for something else, or breaks an invariant.
        TraceError: the trace is of another program.
        InvariantError: the emitted graph is wrong (a defect of this library).

    Source:
        Caramel, section 5.
    """

    def __init__(
        self,
        context: Context,
        number_of_workers: int,
        serialization: bool = True,
        batching: bool = True,
        scheduling: bool = True,
        analyzers: Sequence[Any] | None = None,
        device_list: Sequence[str] | None = None,
        *,
        sharding: str | None = None,
        uneven_batches: str = "weight",
        statistics: str = "local",
        network: NetworkModel | str | os.PathLike[str] | None = None,
        algorithm: str | None = None,
        depth: int | None = None,
        deterministic: bool = False,
        wire: str | None = None,
        postponed: Sequence[str] = (),
        trace: Trace | str | os.PathLike[str] | None = None,
        policy: str = "optimal",
        plan: Plan | str | os.PathLike[str] | None = None,
    ) -> None:
        if not isinstance(context, Context):
            raise InputError(f"the first argument must be what caramel.capture returned, got {type(context).__name__}")
        workers = whole_number(number_of_workers, "number_of_workers")
        if uneven_batches not in ("weight", "refuse"):
            raise InputError(f"uneven_batches must be 'weight' or 'refuse', got {uneven_batches!r}")
        if statistics not in ("local", "mean"):
            raise InputError(f"statistics must be 'local' or 'mean', got {statistics!r}")
        collectives = CollectiveOptions(algorithm, depth, deterministic, wire, as_network(network))
        collectives.check_workers(workers)
        self.context = context
        self.model: Model = context.model
        self.pipeline = input_pipeline(context, self.model, workers, sharding)
        self.facts: Mapping[type, Any] = {}
        switches = {"serialization": not serialization, "batching": not batching, "scheduling": not scheduling}
        chosen_by = {**switches, "policy": policy != "optimal", "postponed": postponed, "trace": trace is not None}
        if analyzers is not None:
            refuse_options("analyzers", chosen_by, "put analyzers that do it into the list")
        if plan is not None:
            collective = {"network": network, "algorithm": algorithm, "depth": depth, "deterministic": deterministic}
            weighting = {"uneven_batches": uneven_batches != "weight", "statistics": statistics != "local"}
            others = {"analyzers": analyzers is not None, **collective, "wire": wire, **weighting}
            refuse_options("plan", {**chosen_by, **others}, "all of it is decided by the plan")
            self.plan = given_plan(plan, self.model, workers, device_list, self.pipeline)
        else:
            devices = parse_devices(default_devices(workers) if device_list is None else device_list, workers)
            network_fact = Network(collectives, workers)
            chosen, notes = (
                (list(analyzers), [])
                if analyzers is not None
                else automatic(
                    network_fact,
                    as_trace(trace, self.model),
                    serialize=serialization,
                    batching=batching,
                    scheduling=scheduling,
                    policy=policy,
                    postponed=postponed,
                )
            )
            self.facts = analyse(chosen, [self.model, network_fact], WANTED)
            self.plan = make_plan(
                self.model, devices, self.facts, chosen, notes, uneven_batches, statistics, self.pipeline
            )
        check_plan(self.plan, self.model)
        self.evaluation: Evaluation | None = context.evaluation_for() if context.evaluation is not None else None
        try:
            self._distributed = emit(self.model, self.plan, self.evaluation, self.pipeline)
        except InvariantError as error:
            if plan is None and analyzers is None:
                raise
            advice = "make the plan anew" if plan is not None else "its analyzers were given by the caller"
            raise PlanError(f"the plan breaks an invariant, {error}; {advice}") from error
        self.plan = replace(self.plan, proof=prove(self._distributed, self.model, self.plan))
        self.signature = make_signature(self.model, self.plan, self.evaluation, self.pipeline)

    @cached_property
    def graph_def(self) -> Any:
        """The distributed GraphDef. It holds no values; do not modify it."""
        return self._distributed.graph.to_graph_def()

    @property
    def roles(self) -> Any:
        """For each node of the graph what it is for and whose it is."""
        return self._distributed.roles

    def session(self, cluster: Cluster | None = None, **options: Any) -> Session:
        """Start a cluster and a session on it.

        Args:
            cluster: where to run; default `caramel.InProcess()`.
            options: of `caramel.Session`.

        Returns:
            A Session; use it in a ``with`` statement.
        """
        from caramel.runtime.clusters.base import InProcess
        from caramel.runtime.session import Session

        return Session(self, cluster or InProcess(), **options)

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write the graph, initial values, signature, plan and a runner to a directory.

        Args:
            path: directory to make; what is there is replaced only once all is written.

        Raises:
            ExportError: it cannot be written; what was there is untouched.
        """
        from caramel.export.writer import export

        export(self, path)


@many_objects()
def emit(model: Model, plan: Plan, evaluation: Evaluation | None, pipeline: Pipeline | None = None) -> DistributedGraph:
    """Apply the modifiers in their order and verify the result of each."""

    verified: Graph | None = None

    def checked(distributed: DistributedGraph, modifier: str) -> DistributedGraph:
        nonlocal verified
        verify_structure(distributed.graph, modifier, verified)
        verified = distributed.graph
        return distributed

    distributed = checked(replicate(model, plan.devices), "replicate")
    if plan.edges:
        distributed = checked(serialize(distributed, model, plan), "serialize")
    if pipeline is not None:
        distributed = checked(place_input(distributed, pipeline, plan.devices), "place_input")
    distributed, tensors = weigh(distributed, model, plan)
    distributed = checked(distributed, "weigh")
    distributed, pieces = cut(distributed, model, plan, tensors)
    distributed = checked(distributed, "cut")
    later = postponement(model, plan.postponed)
    distributed, pieces = postpone(distributed, model, plan, pieces, later)
    distributed = checked(distributed, "postpone")
    distributed = checked(aggregate(distributed, model, plan, pieces), "aggregate")
    verify_aggregated(distributed, model, plan, pieces)
    verify_postponed(distributed, model, plan, later)
    saved: Sequence[save_restore.Saved] = ()
    if pipeline is not None:
        position, saved = saved_position(pipeline, plan.devices)
        distributed = distributed.extended(position)
    distributed = checked(save_restore.add_state(distributed, model, plan, saved), "add_state")
    if pipeline is not None:
        distributed = checked(add_input_state(distributed, pipeline, plan.devices), "add_input_state")
    if evaluation is not None:
        distributed = add_evaluation(distributed, evaluation, model, plan, EVALUATION_SCOPE)
        distributed = checked(distributed, "add_evaluation")
    return distributed


def make_signature(
    model: Model, plan: Plan, evaluation: Evaluation | None, pipeline: Pipeline | None = None
) -> Signature:
    """The names of what modifiers emitted."""
    ranks = range(plan.workers)

    def everywhere(tensor: str) -> tuple[str, ...]:
        return tuple(tensor_name(replica_name(rank, tensor)) for rank in ranks)

    return Signature(
        workers=plan.workers,
        devices=plan.devices,
        reduction=plan.reduction,
        feeds=tuple(
            Feed(i.name, i.dtype, i.shape, i.split, i.optional, everywhere(i.node))
            for i in model.inputs
            if i.component is None
        ),
        weights=tuple(tensor_name(own_name(rank, "weight")) for rank in ranks) if plan.weighted else (),
        losses=everywhere(model.loss),
        outputs=tuple((name, everywhere(tensor)) for name, tensor in model.outputs),
        step=tuple(own_name(rank, "step") for rank in ranks),
        restore_prefix=tensor_name(save_restore.RESTORE_PREFIX),
        restore=(save_restore.RESTORE_SAVED, save_restore.BROADCAST, *([FORGET] if plan.postponed else [])),
        restore_unsaved=save_restore.RESTORE_UNSAVED,
        restore_local=save_restore.RESTORE_LOCAL,
        local_keys=tuple(key for _, _, key in save_restore.kept_apart(model, plan)),
        save_prefix=tensor_name(save_restore.SAVE_PREFIX),
        save_steps=tensor_name(save_restore.SAVE_STEPS),
        steps_key=model.step_counter or save_restore.STEPS_KEY,
        save=save_restore.SAVE,
        group_leader=_group_leader(plan),
        flush=(FLUSH,) if plan.postponed else (),
        checkpoint_names=tuple(v.name for v in model.variables if v.saved),
        evaluation=None if evaluation is None else evaluation_signature(evaluation, EVALUATION_SCOPE),
        data=None if pipeline is None else data_signature(pipeline, plan.workers),
        reported=model.reported or model.reduction.kind,
    )


def _group_leader(plan: Plan) -> str:
    """The first worker's task, if native all-reduces need one."""
    if plan.workers == 1 or all(t.algorithm != NATIVE for t in plan.transfers):
        return ""
    device = Device.parse(plan.devices[0])
    return task_name(device.job or "localhost", device.task or 0)


def evaluation_signature(evaluation: Evaluation, scope: str) -> EvaluationSignature:
    """Names of an evaluation's feeds and fetches under ``scope``.

    Raises:
        CaptureError: it has no output.
    """
    if not evaluation.outputs:
        raise CaptureError("the evaluation returns no tensor: return what it computes")
    return EvaluationSignature(
        feeds=tuple(
            Feed(i.name, i.dtype, i.shape, False, i.optional, (tensor_name(scope + i.node),)) for i in evaluation.inputs
        ),
        fetches=tuple((name, tensor_name(scope + tensor)) for name, tensor in evaluation.outputs),
        targets=tuple(scope + t for t in evaluation.targets),
    )
