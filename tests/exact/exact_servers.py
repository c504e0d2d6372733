"""Parameter servers against one device, and against all-reduces in rank order, which have the same bits."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from exact_common import in_process
from exact_steps import Program, alone, captured_once, values_of

import caramel
from caramel.collectives.dealt_rows import rows_of_owners
from caramel.facts import Trace
from caramel.runtime.host.run_options import RunOptions
from caramel.server_plan import Home, ServerPart

THREADS = RunOptions(optimize_graph=False, intra_op_threads=1, inter_op_threads=4)
"""Kernels as written, but several ops at a time, so that a read and an update without an order come in any."""

Trained = tuple[list[float], dict[str, np.ndarray]]


def run(program: Program, model: Any, data: Sequence[tuple[Any, ...]], together: int = 1) -> Trained:
    """Losses and final values, written back to the program's own variables."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the steps are not run one by one
        with model.session(in_process(THREADS)) as session:
            results = session.run(data, steps_per_execution=together, progress=False)
            session.write_back()
    return [result.loss for result in results], values_of(program)


def served(
    make: Callable[[], Program],
    data: Sequence[tuple[Any, ...]],
    workers: int,
    servers: int,
    together: int = 1,
    **options: Any,
) -> tuple[Trained, caramel.PSModel]:
    """What training with parameter servers gives, and its model."""
    program, context = captured_once(make)
    model = caramel.PSModel(context, workers, servers, **{"deterministic": True, **options})
    return run(program, model, data, together), model


def reduced(make: Callable[[], Program], data: Sequence[tuple[Any, ...]], workers: int, **options: Any) -> Trained:
    """The same with all-reduces in rank order."""
    program, context = captured_once(make)
    return run(program, caramel.ARModel(context, workers, deterministic=True, **options), data)


def assert_bits(got: Trained, want: Trained) -> None:
    """The same losses and values to the last bit; what is not a number is so in both."""
    np.testing.assert_array_equal(got[0], want[0], err_msg="losses")
    assert set(got[1]) == set(want[1])
    for name, value in want[1].items():
        assert got[1][name].dtype == value.dtype and got[1][name].shape == value.shape, name
        np.testing.assert_array_equal(got[1][name], value, err_msg=name)


def assert_close(got: Trained, want: Trained, rtol: float = 1e-8) -> None:
    """The same but for rounding, of a value or of the largest in its tensor."""
    np.testing.assert_allclose(got[0], want[0], rtol=rtol, err_msg="losses")
    for name, value in want[1].items():
        largest = float(np.max(np.abs(value), initial=0)) if value.dtype.kind in "fc" else 0.0
        np.testing.assert_allclose(got[1][name], value, rtol=rtol, atol=1e-2 * rtol * largest, err_msg=name)


def check(
    make: Callable[[], Program],
    data: Sequence[tuple[Any, ...]],
    workers: int,
    servers: int | Sequence[int],
    unmoved: Sequence[str] | None = (),
    is_one_device: bool = True,
    **options: Any,
) -> caramel.PSModel:
    """K servers train as one device does, and with the bits of all-reduces in rank order.

    Args:
        make: gives the program.
        data: global batches, a tuple of arrays for each step.
        workers: N.
        servers: K, or several.
        unmoved: names of variables that training leaves as they are, learning rates apart; None for any.
        is_one_device: whether the program is the same on one device.
        options: of `caramel.PSModel`.
    """
    program, context = captured_once(make)
    before = values_of(program)
    want = run(program, caramel.ARModel(context, workers, deterministic=True), data)
    still = {name for name in before if np.array_equal(before[name], want[1][name]) and "learning_rate" not in name}
    assert unmoved is None or still == set(unmoved), still
    for number in [servers] if isinstance(servers, int) else servers:
        model = caramel.PSModel(context, workers, number, **{"deterministic": True, **options})
        assert_bits(run(program, model, data), want)
        assert_on_servers(model, number)
    if is_one_device:
        assert_close(want, alone(make, data))
    return model


def assert_on_servers(model: caramel.PSModel, servers: int) -> None:
    """Each variable of a home has all of its elements on the servers that the plan names, and none on a worker."""
    plan = model.plan
    assert len(plan.servers.devices) == servers and not set(plan.servers.devices) & set(plan.devices)
    assert not plan.transfers
    variable_by_name = {v.plan_name: v for v in model.model.variables}
    names = [name for home in plan.servers.homes for name in home.variables]
    assert len(set(names)) == len(names)
    trained = {model.model.variable_by_name[g.parameter].plan_name for g in model.model.gradients}
    assert trained <= set(names), trained - set(names)
    device_by_handle = {n.name: n.device for n in model.graph_def.node if n.op in ("VarHandleOp", "VariableV2")}
    for home in plan.servers.homes:
        for name in home.variables:
            node = variable_by_name[name].node
            found = {h: d for h, d in device_by_handle.items() if h.split("/", 1)[1:] == [node]}
            want = {f"server_{part.server}/{node}": plan.servers.devices[part.server] for part in home.parts}
            assert found == want, name


def traced(context: caramel.Context, seed: int = 0) -> Trace:
    """A trace with some time for each op and some bytes for each result."""
    rng = np.random.default_rng(seed)
    op_s = {node.name: float(rng.integers(1, 90)) * 1e-6 for node in context.model.graph}
    step_s = sum(op_s.values())
    return Trace(context.model.digest, op_s, {}, step_s, step_s, 2, 1, None, "by hand")


NETWORK = caramel.NetworkModel.from_costs(1e-4, 1e-8)


def with_homes(plan: caramel.Plan, change: Callable[[Home], Home], **changed: Any) -> caramel.Plan:
    """A plan in which variables have other homes."""
    homes = tuple(change(home) for home in plan.servers.homes)
    return replace(plan, servers=replace(plan.servers, homes=homes, **changed), proof=())


def random_homes(plan: caramel.Plan, seed: int) -> caramel.Plan:
    """The plan with variables on servers at random, in parts of random sizes where they were in parts, in any order.

    Args:
        plan: plan with servers.
        seed: of the random numbers.
    """
    rng = np.random.default_rng(seed)
    count = len(plan.servers.devices)

    def moved(home: Home) -> Home:
        if len(home.parts) > 1 and not home.is_divided:
            return home  # each server has all of it
        number = 1 if not home.is_divided else int(rng.integers(1, count + 1))
        if number == 1:
            return replace(home, parts=(ServerPart(int(rng.integers(count))),))
        chosen = [int(server) for server in rng.permutation(count)[:number]]
        if home.rows:
            rows = rows_of_owners(sum(home.rows), number)
            return replace(home, parts=tuple(ServerPart(s, rows=n) for s, n in zip(chosen, rows)))
        size = sum(part.elements for part in home.parts)
        cuts = [0, *sorted(int(cut) for cut in rng.integers(0, size + 1, number - 1)), size]
        sizes = [end - start for start, end in zip(cuts, cuts[1:])]
        return replace(home, parts=tuple(ServerPart(s, n) for s, n in zip(chosen, sizes) if n))

    pulls = tuple(str(name) for name in rng.permutation(plan.servers.pulls))
    return with_homes(plan, moved, pulls=pulls, in_flight=int(rng.integers(1, 4)))
