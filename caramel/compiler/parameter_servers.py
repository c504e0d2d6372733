"""Parameter servers: the plan of a step whose variables are on servers, from which workers pull them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from caramel.analyzers.servers.ordered_step import ServedProblem
from caramel.analyzers.servers.placement import LARGEST_SHARE, VariableGroup, variable_groups
from caramel.analyzers.servers.split import split_step
from caramel.compiler.options import CompileOptions
from caramel.compiler.plan_parts import bare_plan, counts_differ, notes_of_workers
from caramel.data.pipeline import Pipeline
from caramel.errors import UnsupportedError, listed
from caramel.facts import Trace
from caramel.graph.devices import WORKER_JOB, Device, parse_devices
from caramel.model import Model
from caramel.plan import Plan
from caramel.server_plan import ParameterServers
from caramel.util.tables import counted


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
    model: Model,
    devices: Sequence[str],
    pipeline: Pipeline | None,
    options: CompileOptions,
    trace: Trace | None,
    *,
    is_forward: bool = False,
) -> tuple[Plan, ServedProblem]:
    """A plan in which servers have the variables, and what it was made from.

    Args:
        model: the single-device step.
        devices: device string of each worker.
        pipeline: the workers' input pipelines, if they read a dataset.
        options: options of the caller.
        trace: measured times of the program's ops; None without any.
        is_forward: whether the step trains nothing, so that workers only pull.

    Raises:
        InputError: there are more servers than variables that they could have.
        UnsupportedError: the step writes no variable alike for all workers.
    """
    if not model.gradients and not is_forward:
        raise UnsupportedError(
            "with one worker this step stays as it is, as nothing is known of how gradients of several would combine: "
            "there is nothing to push, so leave servers= out"
        )
    there = server_devices(devices, options)
    groups = variable_groups(model, exact_bits=options.deterministic)
    network = options.collectives.network
    more = {"trace": trace, "exact_bits": options.deterministic}
    problem = ServedProblem.on(network, model, options.workers, len(there), **more)
    step = problem.ordered(options.ordering)
    servers = ParameterServers(
        there,
        step.homes,
        step.ordering,
        step.pulls,
        options.pull_window,
        pulled_bytes=sum(group.pulled_bytes for group in groups),
        pushed_bytes=sum(g.size_bytes for g in model.gradients if not g.is_sparse),
        prediction=step.prediction,
    )
    plan = replace(
        bare_plan(model, devices, pipeline),
        weighted=(
            options.uneven_batches == "weight"
            and (not is_forward or bool(model.forward_sums))
            and counts_differ(model, options.workers, pipeline)
        ),
        statistics=options.statistics,
        deterministic=options.deterministic,
        network=None if network is None else network.description,
        servers=servers,
    )
    notes = [*model.notes, *notes_of_workers(model, plan)]
    busy = {server for group, home in zip(groups, step.homes) if group.follows_gradients for server in home.servers}
    if len(busy) < len(there):
        count = sum(len(group.variables) for group in groups)
        idle = sorted({*range(len(there))} - busy)
        notes.append(
            f"no parameter is left for {listed([f'server {each}' for each in idle], 3)}: some of {count} "
            "variables are kept together"
        )
    notes += _notes_of_tables(model, groups, len(there))
    held = len(split_step(model).holders)
    if held:
        notes.append(
            f"{counted(held, 'op')} of each worker, given the handle of a variable: it gets a copy in each step"
        )
    return replace(plan, notes=(*notes, *(() if pipeline is None else pipeline.notes))), problem


def _notes_of_tables(model: Model, groups: Sequence[VariableGroup], servers: int) -> list[str]:
    """Notes on variables of which workers get rows, and on why large ones are whole where others are not."""
    split = split_step(model)
    looked_up = dict.fromkeys(split.variables[lookup.handle].plan_name for lookup in split.lookups)
    notes = []
    if looked_up:
        notes.append(
            f"of {listed(list(looked_up))} workers look rows up where these are, and push the gradients of these rows; "
            "how many bytes that is depends on the examples"
        )
    large_bytes = LARGEST_SHARE * sum(group.read_bytes for group in groups) / servers
    for group in groups:
        if servers > 1 and group.whole_reason and group.follows_gradients and group.read_bytes > large_bytes:
            notes.append(f"{group.variables[0].plan_name!r} is whole on one server: {group.whole_reason}")
    return notes
