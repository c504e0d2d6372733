"""Assemble a plan from facts and options, or check a finished one; nothing is rewritten here."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from caramel.analyzers.analyzer import Analyzer, analyse, ordered
from caramel.analyzers.automatic import WANTED
from caramel.analyzers.cost.network import Network
from caramel.analyzers.optimal.prediction import predict
from caramel.analyzers.plan_checks import check_applies, check_plan
from caramel.analyzers.policies.control_edges import without_needless_order
from caramel.analyzers.registry import POLICIES, automatic_analyzers
from caramel.analyzers.step.boundaries import boundaries
from caramel.analyzers.step.element_updates import ElementUpdate
from caramel.analyzers.step.sparse_slices import with_added_slices
from caramel.collectives.dtypes import ITEM_BYTES
from caramel.compiler.divided_tables import choose_tables, with_divided_tables
from caramel.compiler.local_steps import local_plan
from caramel.compiler.options import CompileOptions
from caramel.compiler.sharded_updates import decide_about_sharding
from caramel.data.pipeline import Pipeline, make_pipeline
from caramel.errors import InputError, PlanError, listed
from caramel.facts import ControlEdges, Trace, UpdateOrder
from caramel.frontend.context import Context
from caramel.graph.devices import default_devices, parse_devices
from caramel.model import Model, VariableClass
from caramel.netmodel.choice import CollectiveOptions
from caramel.netmodel.model import NetworkModel
from caramel.plan import Plan, Transfer, Transfers
from caramel.util.arguments import shown
from caramel.util.text_files import about_file


def input_pipeline(context: Context, model: Model, workers: int, sharding: str | None) -> Pipeline | None:
    """The workers' input pipelines; None where the driver feeds all inputs.

    Raises:
        InputError: the dataset does not fit, or there is none and ``sharding`` says how to divide it.
    """
    if context.given is not None:
        return make_pipeline(context.given, model, workers, sharding)
    if sharding is not None and not (isinstance(sharding, str) and sharding == "slice"):
        raise InputError(f"sharding={shown(sharding)} goes with a dataset: pass data= to caramel.capture")
    return None


def assemble_plan(
    model: Model, pipeline: Pipeline | None, options: CompileOptions, trace: Trace | None
) -> tuple[Plan, Mapping[type, Any]]:
    """The plan that options ask for, checked: a finished one for these devices, or one made from facts.

    Args:
        model: the single-device step.
        pipeline: the workers' input pipelines, if they read a dataset.
        options: options of the caller.
        trace: measured times of the program's ops, already read from the file of the options; None if there are none.

    Returns:
        The plan, and the facts of the analyzers, by type; no facts if the plan was given.

    Raises:
        InputError: the list of devices or of analyzers does not fit.
        AnalysisError: an analyzer failed.
        PlanError: a given plan cannot be read or was made for something else, or the plan breaks an invariant.
    """
    facts: Mapping[type, Any] = {}
    if options.plan is not None:
        with about_file(options.plan):
            plan = _given_plan(options.plan, model, pipeline, options)
            check_plan(plan, model)
    elif options.sync_every is not None:
        devices = _devices(options)
        weighted = options.uneven_batches == "weight" and counts_differ(model, options.workers, pipeline)
        plan = local_plan(model, devices, pipeline, options, weighted)
        check_plan(plan, model)
    else:
        workers, devices = options.workers, _devices(options)
        network = Network(options.collectives, workers)
        analyzers, notes = _analyzers(model, network, trace, options)

        def decide(tables: Collection[str], updates: Mapping[str, ElementUpdate]) -> tuple[Plan, Mapping[type, Any]]:
            """The plan and its facts with some tables divided, and some updates sharded."""
            is_apart = bool(updates or tables)
            is_default = [getattr(analyzer, "name", None) == "boundaries" for analyzer in analyzers] if is_apart else ()
            apart = boundaries(updates, tables)
            chosen = [apart if is_one else given for given, is_one in zip(analyzers, is_default)] or analyzers
            of_all = network
            if updates:  # so that each worker has a part of them
                of_all = Network(replace(options.collectives, is_spread=True), workers)
            found = analyse(chosen, [model, of_all], WANTED)
            if options.analyzers is None and POLICIES[options.policy].edges is None:  # else the order is to be as it is
                found = without_needless_order(found)
            made = make_plan(model, devices, found, chosen, notes, options.uneven_batches, options.statistics, pipeline)
            return replace(made, transfers=with_divided_tables(made.transfers, tables)), found

        tables: Collection[str] = ()
        about_tables: tuple[str, ...] = ()
        how = options.divides_tables(is_predicted=trace is not None and network.is_known)
        if how != "none" and workers > 1:
            tables, about_tables = choose_tables(
                model,
                lambda names: decide(names, {})[0],
                options.collectives.deterministic,
                is_asked=how == "all",
            )
        if options.shard_updates != "none" and workers > 1:
            plan, facts = decide_about_sharding(
                model, partial(decide, tables), options.collectives, is_asked=options.shard_updates == "all"
            )
        else:
            plan, facts = decide(tables, {})
        plan = replace(plan, notes=(*plan.notes, *about_tables))
        check_plan(plan, model)
    return plan, facts


def _devices(options: CompileOptions) -> tuple[str, ...]:
    given = default_devices(options.workers) if options.device_list is None else options.device_list
    return parse_devices(given, options.workers)


def _analyzers(
    model: Model, network: Network, trace: Trace | None, options: CompileOptions
) -> tuple[list[Analyzer], list[str]]:
    """The analyzers that the caller has listed, or those that the options need, with notes about omissions."""
    if options.analyzers is not None:
        return list(options.analyzers), []
    return automatic_analyzers(
        network,
        trace,
        serialize=options.serialization,
        batching=options.batching,
        scheduling=options.scheduling,
        policy=options.policy,
        postponed=_in_plan(model, options.postponed),
    )


def _in_plan(model: Model, names: Sequence[str]) -> Sequence[str]:
    """The names of gradients as plans have them; what is no list of names is refused where it is used."""
    if not isinstance(names, (list, tuple)):
        return names
    return [model.aliases.get(name, name) if isinstance(name, str) else name for name in names]


def _given_plan(
    plan_or_path: Plan | str | os.PathLike[str], model: Model, pipeline: Pipeline | None, options: CompileOptions
) -> Plan:
    """A finished plan, given or read from a file, for the devices of the options."""
    plan = plan_or_path if isinstance(plan_or_path, Plan) else Plan.load(plan_or_path)
    check_applies(plan, model, options.workers)
    devices = parse_devices(plan.devices if options.device_list is None else options.device_list, options.workers)
    sharding = None if pipeline is None else pipeline.sharding.value
    if plan.sharding != sharding:
        raise PlanError(f"the plan was made for sharding={plan.sharding!r}, here it is {sharding!r}")
    return replace(plan, devices=devices, proof=(), aliases=model.aliases)


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
    """Put the facts of analyzers together in a plan; nothing is rewritten here.

    Args:
        model: the single-device step.
        devices: device string of each worker.
        facts: facts of the analyzers, by type.
        analyzers: analyzers that made the facts.
        notes: notes about omissions, one sentence each.
        uneven_batches: see `caramel.ARModel`.
        statistics: see `caramel.ARModel`.
        pipeline: the workers' input pipelines, if they read a dataset.
    """
    network: Network = facts[Network]
    transfers: Transfers = facts[Transfers]
    trace: Trace | None = facts.get(Trace)
    edges: ControlEdges = facts[ControlEdges]
    order: UpdateOrder | None = facts.get(UpdateOrder)
    weighted = uneven_batches == "weight" and counts_differ(model, len(devices), pipeline)
    all_notes = [*model.notes, *notes, *transfers.notes]
    if weighted:
        all_notes.append(
            "gradients are weighted by each worker's share of the examples, so batches need not divide evenly"
        )
    all_notes += _local_notes(model, statistics, len(devices))
    if pipeline is not None:
        all_notes += pipeline.notes
    all_notes += _collective_notes(network.options, transfers.transfers, len(devices))
    all_notes += [f"trace: {warning}" for warning in (trace.warnings if trace is not None else ())]
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
        transfers=with_added_slices(model, transfers.transfers, trace, network.options.deterministic),
        variable_classes=tuple((v.plan_name, v.kind.value) for v in model.variables),
        notes=tuple(all_notes),
        sharding=None if pipeline is None else pipeline.sharding.value,
        outline=model.outline,
        aliases=model.aliases,
        analyzers=tuple(a.name for a in ordered(analyzers, [Model, Network], WANTED)),
        order=() if order is None else order.gradients,
        order_reason="" if order is None else f"{order.reason}; enforced: {edges.reason}",
        edges=edges.edges,
        in_flight=transfers.in_flight,
        prediction=predict(facts),
    )
    gradients = {g.name: g for g in model.gradients}
    return replace(plan, extra_bytes=sum(gradients[name].size_bytes for name in plan.postponed))


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


def _local_notes(model: Model, statistics: str, workers: int) -> list[str]:
    accumulators, totals = (model.variables_of(kind) for kind in (VariableClass.ACCUMULATOR, VariableClass.TOTAL))
    notes = []
    local = [v.plan_name for v in model.variables if v.kind.is_local and v not in (*accumulators, *totals)]
    if local:
        used = "the mean over the workers" if statistics == "mean" and workers > 1 else "worker 0's"
        notes.append(
            f"{len(local)} variables are local to each worker ({listed(local, 3)}); "
            f"checkpoints and evaluations use {used}"
        )
    if totals:
        names = listed([v.plan_name for v in totals], 3)
        notes.append(f"each worker adds its own examples to {names}; checkpoints and evaluations have the sums")
    if any(g.sources for g in model.gradients):
        where = f" in variables ({listed([v.plan_name for v in accumulators], 3)})" if accumulators else ""
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
        notes += _extrapolation_notes(options.network, transfers, workers)
    return notes


def _extrapolation_notes(network: NetworkModel, transfers: Sequence[Transfer], workers: int) -> list[str]:
    """Which transfers are predicted from measurements of other sizes or depths."""
    beyond = []
    for number, transfer in enumerate(transfers):
        if transfer.predicted_s is None or transfer.elements is None:
            continue
        size_bytes = transfer.elements * ITEM_BYTES[transfer.wire or transfer.dtype]
        if network.predict(transfer.algorithm, transfer.depth, workers, size_bytes).basis == "extrapolated":
            beyond.append(f"{number} ({transfer.algorithm} at depth {transfer.depth}, {size_bytes:,} bytes)")
    if not beyond:
        return []
    which = "transfer" if len(beyond) == 1 else f"{len(beyond)} transfers:"
    return [f"network: extrapolated beyond what was measured: {which} {listed(beyond, 3)}"]
