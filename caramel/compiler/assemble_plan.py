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
from caramel.analyzers.servers.ordered_step import ServedProblem
from caramel.analyzers.step.boundaries import boundaries
from caramel.analyzers.step.element_updates import ElementUpdate
from caramel.analyzers.step.sparse_slices import with_added_slices
from caramel.collectives.dtypes import ITEM_BYTES
from caramel.compiler.divided_tables import choose_tables, with_divided_tables
from caramel.compiler.local_steps import local_plan
from caramel.compiler.options import CompileOptions
from caramel.compiler.parameter_servers import server_plan
from caramel.compiler.plan_parts import bare_plan, counts_differ, notes_of_workers
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
    else:
        if options.sync_every is not None:
            plan = local_plan(model, _devices(options), pipeline, options)
        elif options.servers is not None:
            plan, problem = server_plan(model, _devices(options), pipeline, options, trace)
            facts = {ServedProblem: problem}
        else:
            plan, facts = _made_plan(model, pipeline, options, trace)
        check_plan(plan, model)
    return plan, facts


def _made_plan(
    model: Model, pipeline: Pipeline | None, options: CompileOptions, trace: Trace | None
) -> tuple[Plan, Mapping[type, Any]]:
    """A plan made from facts, and the facts: with the tables divided, and the updates sharded, that options ask for."""
    workers, devices = options.workers, _devices(options)
    network = Network(options.collectives, workers)
    analyzers, notes = _analyzers(model, network, trace, options)

    def decide(tables: Collection[str], updates: Mapping[str, ElementUpdate]) -> tuple[Plan, Mapping[type, Any]]:
        """The plan and its facts with some tables divided, and some updates sharded."""
        chosen = analyzers
        if updates or tables:
            apart = boundaries(updates, tables)
            chosen = [apart if getattr(each, "name", None) == apart.name else each for each in analyzers]
        of_all = network
        if updates:  # so that each worker has a part of them
            of_all = Network(replace(options.collectives, is_spread=True), workers)
        found = analyse(chosen, [model, of_all], WANTED)
        if options.analyzers is None and POLICIES[options.policy].edges is None:  # else the order is to be as it is
            found = without_needless_order(found)
        asked = options.uneven_batches, options.statistics
        return make_plan(model, devices, found, chosen, notes, *asked, pipeline, tables), found

    tables: Collection[str] = ()
    about_tables: tuple[str, ...] = ()
    how = options.divides_tables(is_predicted=trace is not None and network.is_known)
    if how != "none" and workers > 1:

        def of_tables(names: Collection[str]) -> Plan:
            return decide(names, {})[0]

        tables, about_tables = choose_tables(model, of_tables, options.collectives.deterministic, is_asked=how == "all")
    if options.shard_updates != "none" and workers > 1:
        plan, facts = decide_about_sharding(
            model, partial(decide, tables), options.collectives, is_asked=options.shard_updates == "all"
        )
    else:
        plan, facts = decide(tables, {})
    return replace(plan, notes=(*plan.notes, *about_tables)), facts


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
    servers = plan.servers
    if servers is not None and options.server_list is not None:
        chosen = parse_devices(options.server_list, len(servers.devices), "server_list", "server")
        servers = replace(servers, devices=chosen)
    return replace(plan, devices=devices, servers=servers, proof=(), aliases=model.aliases)


def make_plan(
    model: Model,
    devices: Sequence[str],
    facts: Mapping[type, Any],
    analyzers: Sequence[Analyzer],
    notes: Sequence[str],
    uneven_batches: str,
    statistics: str,
    pipeline: Pipeline | None,
    tables: Collection[str] = (),
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
        tables: gradients of embedding tables of which each worker has some rows.
    """
    network: Network = facts[Network]
    transfers: Transfers = facts[Transfers]
    to_owners = with_divided_tables(transfers.transfers, tables)
    trace: Trace | None = facts.get(Trace)
    edges: ControlEdges = facts[ControlEdges]
    order: UpdateOrder | None = facts.get(UpdateOrder)
    plan = replace(
        bare_plan(model, devices, pipeline),
        weighted=uneven_batches == "weight" and counts_differ(model, len(devices), pipeline),
        deterministic=network.options.deterministic,
        statistics=statistics,
        network=None if network.options.network is None else network.options.network.description,
        transfers=with_added_slices(model, to_owners, trace, network.options.deterministic),
        analyzers=tuple(a.name for a in ordered(analyzers, [Model, Network], WANTED)),
        order=() if order is None else order.gradients,
        order_reason="" if order is None else f"{order.reason}; enforced: {edges.reason}",
        edges=edges.edges,
        in_flight=transfers.in_flight,
        prediction=predict(facts),
    )
    all_notes = [
        *model.notes,
        *notes,
        *transfers.notes,
        *notes_of_workers(model, plan),
        *_accumulation_notes(model),
        *(() if pipeline is None else pipeline.notes),
        *_collective_notes(network.options, transfers.transfers, len(devices)),
        *(f"trace: {warning}" for warning in (trace.warnings if trace is not None else ())),
    ]
    gradients = {g.name: g for g in model.gradients}
    extra_bytes = sum(gradients[name].size_bytes for name in plan.postponed)
    return replace(plan, notes=tuple(all_notes), extra_bytes=extra_bytes)


def _accumulation_notes(model: Model) -> list[str]:
    if not any(g.sources for g in model.gradients):
        return []
    accumulators = model.variables_of(VariableClass.ACCUMULATOR)
    where = f" in variables ({listed([v.plan_name for v in accumulators], 3)})" if accumulators else ""
    return [f"gradients that the program adds up{where} are added up by each worker, and their sum is aggregated"]


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
    return [f"network: extrapolated outside what was measured: {which} {listed(beyond, 3)}"]
