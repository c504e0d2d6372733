"""Decide: a plan from facts and options, or a finished one that fits; nothing is rewritten here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from caramel.analyzers.analyzer import Analyzer, ordered
from caramel.analyzers.automatic import WANTED
from caramel.analyzers.cost.network import Network
from caramel.analyzers.cost.prediction import predict
from caramel.analyzers.plan_checks import check_applies
from caramel.analyzers.step.sparse_slices import with_sums
from caramel.data.pipeline import Pipeline, make_pipeline
from caramel.errors import InputError, PlanError, listed
from caramel.facts import ControlEdges, Trace, UpdateOrder
from caramel.frontend.context import Context
from caramel.model import Model, VariableClass
from caramel.modifiers.replicate import parse_devices
from caramel.netmodel.choice import CollectiveOptions
from caramel.plan import Plan, Transfer, Transfers


def refuse_options(given: str, others: Mapping[str, Any], why: str) -> None:
    """Refuse options that would have no effect beside another one.

    Args:
        given: the name of that one.
        others: whether each of the others was asked for, by name.
        why: and what to do.

    Raises:
        InputError: one was.
    """
    asked = [f"{name}=" for name, value in others.items() if value]
    if asked:
        raise InputError(f"with {given}= leave out {listed(asked)}: {why}")


def input_pipeline(context: Context, model: Model, workers: int, sharding: str | None) -> Pipeline | None:
    """The workers' input pipelines; None where the driver feeds all inputs.

    Raises:
        InputError: the dataset does not fit, or there is none and ``sharding`` says how to divide it.
    """
    if context.given is not None:
        return make_pipeline(context.given, model, workers, sharding)
    if sharding not in (None, "slice"):
        raise InputError(f"sharding={sharding!r} goes with a dataset: pass data= to caramel.capture")
    return None


def given_plan(
    plan: Plan | str | os.PathLike[str],
    model: Model,
    workers: int,
    device_list: Sequence[str] | None,
    pipeline: Pipeline | None,
) -> Plan:
    """A finished plan, or that of a file, for the devices of a list.

    Raises:
        PlanError: it cannot be read, or was made for something else.
    """
    found = plan if isinstance(plan, Plan) else Plan.load(plan)
    check_applies(found, model, workers)
    devices = parse_devices(found.devices if device_list is None else device_list, workers)
    sharding = None if pipeline is None else pipeline.sharding.value
    if found.sharding != sharding:
        raise PlanError(f"the plan was made for sharding={found.sharding!r}, here it is {sharding!r}")
    return replace(found, devices=devices, proof=())


def make_plan(
    model: Model,
    devices: Sequence[str],
    facts: Mapping[type, Any],
    analyzers: Sequence[Analyzer],
    notes: Sequence[str],
    uneven_batches: str,
    statistics: str,
    pipeline: Pipeline | None,
) -> Plan:
    """Put what was found together; nothing is rewritten here."""
    network: Network = facts[Network]
    transfers: Transfers = facts[Transfers]
    trace: Trace | None = facts.get(Trace)
    edges: ControlEdges = facts[ControlEdges]
    order: UpdateOrder | None = facts.get(UpdateOrder)
    weighted = _is_weighted(model, len(devices), uneven_batches, pipeline)
    everything = [*model.notes, *notes, *transfers.notes]
    if weighted:
        everything.append(
            "gradients are weighted by each worker's share of the examples, so batches need not divide evenly"
        )
    everything += _local_notes(model, statistics, len(devices))
    if pipeline is not None:
        everything += pipeline.notes
    everything += _collective_notes(network.options, transfers.transfers, len(devices))
    everything += [f"trace: {warning}" for warning in (trace.warnings if trace is not None else ())]
    plan = Plan(
        model_digest=model.digest,
        workers=len(devices),
        devices=tuple(devices),
        reduction=model.reduction.kind,
        reduction_reason=model.reduction.reason,
        weighted=weighted,
        deterministic=network.options.deterministic,
        statistics=statistics,
        network=None if network.options.network is None else network.options.network.description,
        transfers=with_sums(model, transfers.transfers, trace, network.options.deterministic),
        variable_classes=tuple((v.name, v.kind.value) for v in model.variables),
        notes=tuple(everything),
        sharding=None if pipeline is None else pipeline.sharding.value,
        analyzers=tuple(a.name for a in ordered(analyzers, [Model, Network], WANTED)),
        order=() if order is None else order.gradients,
        order_reason="" if order is None else f"{order.reason}; enforced: {edges.reason}",
        edges=edges.edges,
        in_flight=transfers.in_flight,
        prediction=predict(facts),
    )
    gradients = {g.name: g for g in model.gradients}
    return replace(plan, extra_bytes=sum(gradients[name].size_bytes for name in plan.postponed))


def _is_weighted(model: Model, workers: int, uneven_batches: str, pipeline: Pipeline | None) -> bool:
    """Whether gradients are weighted by the workers' shares of the examples."""
    return uneven_batches == "weight" and workers > 1 and not _always_even(model, pipeline)


def _always_even(model: Model, pipeline: Pipeline | None) -> bool:
    """Whether no worker's gradients ever need another weight than 1."""
    if pipeline is not None:
        return pipeline.always_even
    split = [i for i in model.inputs if i.split]
    static = all(i.shape is not None and i.shape[0] is not None for i in split)
    return static or model.reduction.kind != "mean"


def _local_notes(model: Model, statistics: str, workers: int) -> list[str]:
    accumulators = model.variables_of(VariableClass.ACCUMULATOR)
    notes = []
    local = [v.name for v in model.variables if v.kind.is_local and v not in accumulators]
    if local:
        used = "the mean over the workers" if statistics == "mean" and workers > 1 else "worker 0's"
        notes.append(
            f"{len(local)} variables are local to each worker ({listed(local, 3)}); "
            f"checkpoints and evaluations use {used}"
        )
    if any(g.sources for g in model.gradients):
        where = f" in variables ({listed([v.name for v in accumulators], 3)})" if accumulators else ""
        notes.append(
            f"gradients that the program adds up{where} are added up by each worker, and their sum is aggregated"
        )
    return notes


def _collective_notes(options: CollectiveOptions, transfers: Sequence[Transfer], workers: int) -> list[str]:
    notes = []
    full = sorted({t.dtype for t in transfers if t.wire is None})
    if options.wire is not None and full:
        notes.append(f"wire={options.wire} has no effect on gradients of {', '.join(full)}, which travel as they are")
    if options.network is not None:
        used = {(workers, t.algorithm, t.depth) for t in transfers}
        curves = [c for c in options.network.curves if (c.workers, c.algorithm, c.depth) in used]
        notes += [f"network: {c.warning}" for c in curves if c.warning is not None]
    return notes
