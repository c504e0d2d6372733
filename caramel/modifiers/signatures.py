"""Signatures: the names of the nodes that modifiers emitted."""

from __future__ import annotations

from caramel.collectives.algorithms import NATIVE
from caramel.errors import CaptureError
from caramel.graph.devices import Device, task_name
from caramel.graph.graph import tensor_name
from caramel.model import Evaluation
from caramel.modifiers import save_restore
from caramel.modifiers.emission import Emission, own_name, replica_name
from caramel.modifiers.evaluate import EVALUATION_SCOPE
from caramel.modifiers.exchange import ANCHOR, BEGIN, EXCHANGE, RESTORE_MOMENTUM, momentum_keys
from caramel.modifiers.place_input import data_signature
from caramel.modifiers.postpone import FLUSH, FORGET
from caramel.modifiers.serve import server_step
from caramel.plan import Plan
from caramel.signature import EvaluationSignature, Feed, Signature


def make_signature(emission: Emission) -> Signature:
    """The names by which an emitted graph is run.

    Args:
        emission: a finished or a fresh emission; the names follow from the attributes that it begins with.

    Raises:
        CaptureError: the evaluation has no output.
    """
    model, plan, evaluation, pipeline = emission.model, emission.plan, emission.evaluation, emission.pipeline
    ranks = range(plan.workers)

    local = plan.local

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
        step=(
            *(own_name(rank, "step") for rank in ranks),
            *(server_step(server) for server in range(len(plan.server_devices))),
        ),
        servers=plan.server_devices,
        restore_prefix=tensor_name(save_restore.RESTORE_PREFIX),
        restore=(
            save_restore.RESTORE_SAVED,
            save_restore.BROADCAST,
            *([save_restore.FILL] if model.tables else []),
            *([FORGET] if plan.postponed else []),
            *([] if local is None else [BEGIN]),
        ),
        restore_unsaved=save_restore.RESTORE_UNSAVED,
        restore_local=save_restore.RESTORE_LOCAL,
        local_keys=tuple(key for _, _, key in save_restore.separately_saved(model, plan)),
        save_prefix=tensor_name(save_restore.SAVE_PREFIX),
        save_steps=tensor_name(save_restore.SAVE_STEPS),
        steps_key=model.step_counter or save_restore.STEPS_KEY,
        save=save_restore.SAVE,
        group_leader=_group_leader(plan),
        flush=_flush(plan),
        checkpoint_names=tuple(v.name for v in model.variables if v.saved),
        evaluation=None if evaluation is None else evaluation_signature(evaluation, EVALUATION_SCOPE),
        data=None if pipeline is None else data_signature(pipeline, plan.workers),
        reported=model.reported or model.reduction.kind,
        dealing=model.dealing,
        dealt_outputs=model.dealt_outputs,
        sync_every=0 if local is None else local.sync_every,
        anchor="" if local is None else ANCHOR,
        restore_momentum="" if local is None else RESTORE_MOMENTUM,
        momentum_keys=tuple(momentum_keys(model, plan)),
    )


def _flush(plan: Plan) -> tuple[str, ...]:
    """What is left to do after steps before values are read."""
    if plan.local is not None:
        return (EXCHANGE,)
    return (FLUSH,) if plan.postponed else ()


def _group_leader(plan: Plan) -> str:
    """The first worker's task, if native all-reduces need one."""
    if plan.workers == 1 or all(t.algorithm != NATIVE for t in plan.transfers):
        return ""
    device = Device.parse(plan.devices[0])
    return task_name(device.job or "localhost", device.task or 0)


def evaluation_signature(evaluation: Evaluation, scope: str) -> EvaluationSignature:
    """Names of an evaluation's feeds and fetches under ``scope``.

    Raises:
        CaptureError: the evaluation has no output.
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
