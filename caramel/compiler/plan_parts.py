"""What every plan says, whether gradients travel by it or not."""

from __future__ import annotations

from collections.abc import Sequence

from caramel.data.pipeline import Pipeline
from caramel.errors import listed
from caramel.model import Model, VariableClass
from caramel.plan import Plan
from caramel.util.tables import counted


def bare_plan(model: Model, devices: Sequence[str], pipeline: Pipeline | None) -> Plan:
    """A plan of a step by which nothing travels, without a note.

    Args:
        model: the single-device step.
        devices: device string of each worker.
        pipeline: the workers' input pipelines, if they read a dataset.
    """
    return Plan(
        model_digest=model.digest,
        workers=len(devices),
        devices=tuple(devices),
        reduction=model.reduction.kind,
        reduction_reason=model.reduction.reason,
        weighted=False,
        deterministic=False,
        statistics="local",
        network=None,
        transfers=(),
        variable_classes=tuple((v.plan_name, v.kind.value) for v in model.variables),
        notes=(),
        sharding=None if pipeline is None else pipeline.sharding.value,
        outline=model.outline,
        aliases=model.aliases,
    )


def counts_differ(model: Model, workers: int, pipeline: Pipeline | None) -> bool:
    """Whether the workers may have different numbers of examples in a step.

    Args:
        model: the single-device step.
        workers: number of workers.
        pipeline: input pipelines of the workers, if they have any.
    """
    if workers == 1:
        return False
    if pipeline is not None:
        return not pipeline.always_even
    return any(i.split and (i.shape is None or i.shape[0] is None) for i in model.inputs)


def notes_of_workers(model: Model, plan: Plan) -> list[str]:
    """Notes about what differs between the workers of a plan: examples, and variables.

    Args:
        model: the step, with the classes of variables that it has in the plan.
        plan: a plan of it.
    """
    notes = []
    if plan.weighted:
        notes.append("gradients are weighted by each worker's share of the examples, so batches need not divide evenly")
    totals = model.variables_of(VariableClass.TOTAL)
    apart = (*model.variables_of(VariableClass.ACCUMULATOR), *totals)
    local = [v.plan_name for v in model.variables if v.kind.is_local and v not in apart]
    if local and plan.workers > 1:
        used = "the mean over the workers" if plan.statistics == "mean" else "worker 0's"
        notes.append(
            f"{counted(len(local), 'variable')} {'is' if len(local) == 1 else 'are'} local to each worker "
            f"({listed(local, 3)}); "
            f"checkpoints and evaluations use {used}"
        )
    if totals:
        names = listed([v.plan_name for v in totals], 3)
        notes.append(f"each worker adds its own examples to {names}; checkpoints and evaluations have the sums")
    return notes
