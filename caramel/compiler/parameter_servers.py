"""Parameter servers: the plan of a step whose variables are on servers, from which workers pull them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from caramel.analyzers.servers.placement import place, variable_groups
from caramel.analyzers.servers.pull_orders import NO_ORDER, pull_order
from caramel.analyzers.servers.served_step import channel_s, predict_served_step
from caramel.analyzers.servers.split import split_step
from caramel.analyzers.servers.worker_step import worker_step
from caramel.analyzers.step.dependencies import find_dependencies
from caramel.compiler.options import CompileOptions
from caramel.compiler.plan_parts import bare_plan, counts_differ, notes_of_workers
from caramel.data.pipeline import Pipeline
from caramel.errors import InputError, UnsupportedError, listed
from caramel.facts import Trace
from caramel.graph.devices import WORKER_JOB, Device, parse_devices
from caramel.model import Model
from caramel.netmodel.messages import message_cost
from caramel.plan import Plan
from caramel.server_plan import Home, ParameterServers

_TIMED = ("tac", "tao", "best", "reverse")
"""Orderings that go by times."""


def server_devices(workers: Sequence[str], options: CompileOptions) -> tuple[str, ...]:
    """Device string of each server; by default each is a task of its own, after those of the workers.

    Args:
        workers: device string of each worker.
        options: options of the caller, with ``servers``.

    Raises:
        InputError: the list of them does not fit.
    """
    assert options.servers is not None
    if options.server_list is not None:
        return parse_devices(options.server_list, options.servers, "server_list", "server")
    used = (device.task for device in map(Device.parse, workers) if device.job in (None, WORKER_JOB))
    first = max((task for task in used if task is not None), default=len(workers) - 1) + 1
    return tuple(f"/job:{WORKER_JOB}/task:{first + server}" for server in range(options.servers))


def server_plan(
    model: Model, devices: Sequence[str], pipeline: Pipeline | None, options: CompileOptions, trace: Trace | None
) -> Plan:
    """A plan in which servers have the variables.

    Args:
        model: the single-device step.
        devices: device string of each worker.
        pipeline: the workers' input pipelines, if they read a dataset.
        options: options of the caller.
        trace: measured times of the program's ops; None without any.

    Raises:
        InputError: there are more servers than variables that they could have.
        UnsupportedError: the step writes no variable alike for all workers.
    """
    there = server_devices(devices, options)
    groups = variable_groups(model, exact_bits=options.deterministic)
    variables = [v for group in groups for v in group.variables]
    if not variables:
        raise UnsupportedError(
            "the step writes no variable that servers could have: what it updates, if anything, is a worker's own (an "
            "update that draws random numbers is, for one)"
        )
    if len(there) > len(variables):
        raise InputError(
            f"servers={len(there)}: there are {len(variables)} variables that servers could have, so some would "
            "have nothing to do"
        )
    homes = place(groups, len(there))
    servers = replace(
        _in_order(model, there, homes, options, trace),
        pulled_bytes=sum(group.pulled_bytes for group in groups),
        pushed_bytes=sum(g.size_bytes for g in model.gradients if not g.is_sparse),
    )
    network = options.collectives.network
    plan = replace(
        bare_plan(model, devices, pipeline),
        weighted=options.uneven_batches == "weight" and counts_differ(model, options.workers, pipeline),
        statistics=options.statistics,
        deterministic=options.deterministic,
        network=None if network is None else network.description,
        servers=servers,
    )
    notes = [*model.notes, *notes_of_workers(model, plan)]
    busy = {server for group, home in zip(groups, homes) if group.follows_gradients for server in home.servers}
    if len(busy) < len(there):
        idle = sorted({*range(len(there))} - busy)
        notes.append(
            f"no parameter is left for {listed([f'server {each}' for each in idle], 3)}: some of {len(variables)} "
            "variables are kept together"
        )
    held = len(split_step(model).holders)
    if held:
        notes.append(f"{held} ops of each worker take a variable by its handle, and get a copy of it in every step")
    return replace(plan, notes=(*notes, *(() if pipeline is None else pipeline.notes)))


def _in_order(
    model: Model, there: tuple[str, ...], homes: tuple[Home, ...], options: CompileOptions, trace: Trace | None
) -> ParameterServers:
    """The servers with the order in which they send parameters, and the predicted step."""
    network = options.collectives.network
    is_timed = trace is not None and network is not None
    ordering = options.ordering or ("best" if is_timed else "tic")
    if ordering in _TIMED and not is_timed:
        missing = [name for name, given in (("trace=", trace), ("network=", network)) if given is None]
        raise InputError(
            f"ordering={ordering!r} goes by the times of ops and transfers: give {' and '.join(missing)}, or take "
            "'tic', which goes by the graph alone"
        )
    cost = None if network is None else message_cost(network, options.workers)
    pull_s = (
        (lambda size_bytes: size_bytes * 1e-9)  # only how they compare matters then
        if cost is None
        else partial(channel_s, workers=options.workers, servers=len(there), cost=cost)
    )
    op_s = {} if trace is None else _scaled(trace)
    step = worker_step(model, homes, op_s, pull_s)
    parameters = () if ordering == NO_ORDER else step.parameters(pull_order(ordering, step.problem))
    found = ParameterServers(there, homes, ordering, parameters, options.pulls_in_flight)
    if cost is None or trace is None:
        return found
    updates = find_dependencies(model).updates
    update_s = {name: sum(op_s.get(op, 0.0) for op in names) for name, names in updates.items()}
    return replace(found, prediction=predict_served_step(step, parameters, options.workers, len(there), cost, update_s))


def _scaled(trace: Trace) -> Mapping[str, float]:
    """Seconds of each op, so that all together take the step that was measured."""
    total_s = sum(trace.op_s.values())
    scale = trace.step_s / total_s if total_s > 0 else 1.0
    return {name: scale * time_s for name, time_s in trace.op_s.items()}
