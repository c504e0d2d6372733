"""What a host computes in a step: some workers of a captured program, without communication."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from caramel.armodel import make_signature
from caramel.compiler.assemble_plan import input_pipeline
from caramel.data.pipeline import Pipeline
from caramel.errors import InputError
from caramel.frontend.context import Context
from caramel.graph.devices import default_devices
from caramel.graph.verify import verify_structure
from caramel.model import Evaluation, Model
from caramel.modifiers import save_restore
from caramel.modifiers.distributed_graph import DistributedGraph
from caramel.modifiers.place_input import add_input_state, place_input, saved_position
from caramel.modifiers.replicate import parse_devices, replicate
from caramel.modifiers.serialize import serialize
from caramel.plan import Plan
from caramel.signature import Signature
from caramel.util.arguments import whole_number
from caramel.util.gc_pause import many_objects


@dataclass(frozen=True)
class Computation:
    """A captured program on workers each of which applies its own gradients. A `caramel.Session` runs it.

    Attributes:
        context: the captured program.
        model: its Model.
        plan: one without transfers.
        pipeline: the workers' input pipelines, if a dataset was given at capture.
        signature: names of what to feed, fetch and call.
        job_workers: between how many workers the batches of a dataset are divided.
        evaluation: none.
    """

    context: Context
    model: Model
    plan: Plan
    pipeline: Pipeline | None
    signature: Signature
    job_workers: int
    evaluation: Evaluation | None = None

    @cached_property
    def graph_def(self) -> Any:
        """The GraphDef. It holds no values; do not modify it."""
        return _emit(self.model, self.plan, self.pipeline, self.job_workers).graph.to_graph_def()


def make_computation(
    context: Context,
    workers: int,
    device_list: Sequence[str] | None = None,
    sharding: str | None = None,
    job_workers: int | None = None,
) -> Computation:
    """Replicate a captured program without connecting the replicas.

    Args:
        context: what `caramel.capture` returned.
        workers: number of workers, at least 1.
        device_list: see `caramel.ARModel`.
        sharding: likewise.
        job_workers: of the job of which these workers are a part; default: there are no others.

    Raises:
        InputError: an argument does not fit.
        CaptureError: the program cannot be captured or replicated.
    """
    if not isinstance(context, Context):
        raise InputError(f"the first argument must be what caramel.capture returned, got {type(context).__name__}")
    number = whole_number(workers, "workers")
    job = number if job_workers is None else whole_number(job_workers, "job_workers")
    if job < number:
        raise InputError(f"job_workers={job}: the whole job cannot have fewer workers than the {number} on this host")
    model = context.model
    devices = parse_devices(default_devices(number) if device_list is None else device_list, number)
    if sharding == "batches":
        job = number  # everybody takes whole batches, however many there are
    pipeline = input_pipeline(context, model, job, sharding)
    plan = _plan(model, devices, pipeline)
    # As nothing is combined, a batch may be uneven although no gradient is weighted.
    signature = replace(make_signature(model, plan, None, pipeline), reduction="sum")
    return Computation(context, model, plan, pipeline, signature, job)


def _plan(model: Model, devices: tuple[str, ...], pipeline: Pipeline | None) -> Plan:
    return Plan(
        model_digest=model.digest,
        workers=len(devices),
        devices=devices,
        reduction=model.reduction.kind,
        reduction_reason=model.reduction.reason,
        weighted=False,
        deterministic=False,
        statistics="local",
        network=None,
        transfers=(),
        variable_classes=tuple((v.name, v.kind.value) for v in model.variables),
        notes=("nothing is sent between workers",),
        sharding=None if pipeline is None else pipeline.sharding.value,
    )


@many_objects()
def _emit(model: Model, plan: Plan, pipeline: Pipeline | None, job_workers: int) -> DistributedGraph:
    distributed = replicate(model, plan.devices)
    if plan.edges:
        distributed = serialize(distributed, model, plan)
    saved: Sequence[save_restore.Saved] = ()
    if pipeline is not None:
        distributed = place_input(distributed, pipeline, plan.devices, job_workers)
        position, saved = saved_position(pipeline, plan.devices)
        distributed = distributed.extended(position)
    distributed = save_restore.add_state(distributed, model, plan, saved)
    if pipeline is not None:
        distributed = add_input_state(distributed, pipeline, plan.devices)
    verify_structure(distributed.graph, "computation")
    return distributed
