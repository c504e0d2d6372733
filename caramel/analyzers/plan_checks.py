"""Checks that a plan holds for a Model: the invariants of any plan, whoever made or edited it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from caramel.analyzers.servers.checks import check_servers
from caramel.analyzers.step.dependencies import conditions_of
from caramel.analyzers.step.element_updates import ElementUpdate, element_updates, writers_before_gradient
from caramel.analyzers.step.local_variables import exchangeable
from caramel.analyzers.step.postponement import is_shared, postponement
from caramel.analyzers.step.row_updates import row_updates
from caramel.analyzers.step.sparse_slices import distinct_rows_node
from caramel.collectives.algorithms import ALL_REDUCE_NAMES, NATIVE, SPARSE, is_all_reduce
from caramel.collectives.dtypes import NARROWABLE_DTYPES, NATIVE_DTYPES, WIRE_DTYPES
from caramel.errors import InputError, OtherProgramError, PlanError, listed
from caramel.facts import BACKWARD, FORWARD, Piece
from caramel.graph.guards import guards_of
from caramel.local_plan import LocalSteps
from caramel.model import Gradient, Model
from caramel.netmodel.choice import ON_ONE_WORKER, CollectiveOptions, allowed_algorithms, is_in_rank_order
from caramel.outline import differences
from caramel.plan import OWNERS, Plan, Transfer
from caramel.util.arguments import MOST_CHUNKS, shown
from caramel.util.units import format_ms


def check_applies(plan: Plan, model: Model, workers: int) -> None:
    """Check that a plan was made for a Model and a number of workers.

    Raises:
        OtherProgramError: it was made for another program.
        PlanError: for another number of workers.
    """
    if plan.model_digest != model.digest:
        raise OtherProgramError(
            f"the plan was made for another program (its digest is {plan.model_digest[:12]}, this one's "
            f"{model.digest[:12]}; {differences(plan.outline, model.outline)}): make the plan anew"
        )
    check_workers(plan, workers)


def check_workers(plan: Plan, workers: int) -> None:
    """Check that a plan was made for a number of workers.

    Raises:
        PlanError: for another one.
    """
    if plan.workers != workers:
        raise PlanError(f"the plan was made for {plan.workers} workers, not for {workers}: make the plan anew")
    if len(plan.devices) != workers:
        raise PlanError(f"the plan has {len(plan.devices)} devices for {workers} workers")


def check_plan(plan: Plan, model: Model) -> None:
    """Check the invariants that do not need the emitted graph.

    Gradients are combined as the program wants it. Every element of every gradient travels exactly once; what
    travels together is of one element type, a sparse gradient alone; the collectives exist and may be used; those of
    the forward window come first, and what is postponed can be; edges are between ops that exist, and nothing waits
    for what may not run.

    Raises:
        PlanError: naming the transfer.
    """
    _check_reduction(plan, model)
    if plan.local is not None:
        _check_local(plan, plan.local, model)
        return
    if plan.servers is not None:
        check_servers(plan, plan.servers, model)
        return
    by_name = {g.name: g for g in model.gradients}
    for number, transfer in enumerate(plan.transfers):
        _check_transfer(f"transfer {number}", transfer, model, by_name, plan)
    _check_sharded(plan, model)
    conditions = conditions_of(model)
    for number, transfer in enumerate(plan.transfers):
        distinct = list(dict.fromkeys(conditions[name] or "always" for name in transfer.gradients))
        if len(distinct) > 1:
            raise PlanError(
                f"transfer {number} sends gradients together that are there under different conditions "
                f"({listed(distinct, 3)}): those that are not would keep back the others"
            )
    for name, gradient in by_name.items():
        _check_pieces(gradient, [piece for piece, _ in plan.pieces.get(name, ())])
    for number, transfer in enumerate(plan.transfers):
        sizes = [(p.elements or 0) * by_name[p.gradient].item_bytes for p in transfer.pieces]
        if transfer.elements is not None and transfer.size_bytes != sum(sizes):
            raise PlanError(f"transfer {number} says {transfer.size_bytes} bytes, its pieces have {sum(sizes)}")
    windows = [t.window for t in plan.transfers]
    if windows != sorted(windows, key=(FORWARD, BACKWARD).index):
        raise PlanError("a transfer of the forward window comes after one of the backward window: put them first")
    for most in (plan.in_flight.forward, plan.in_flight.backward):
        if most is not None and most < 1:
            raise PlanError(f"{most} transfers may be under way at once: it must be at least 1, or none said")
    credit_bytes = plan.in_flight.credit_bytes
    if credit_bytes is not None and credit_bytes < 1:
        raise PlanError(f"{credit_bytes} bytes may be under way at once: it must be at least 1, or none said")
    try:
        closure = postponement(model, plan.postponed)
    except InputError as error:
        raise PlanError(str(error)) from error
    if plan.edges:
        _check_edges(plan.edges, model, set(closure.moved))


def _check_reduction(plan: Plan, model: Model) -> None:
    if plan.reduction != model.reduction.kind:
        raise PlanError(f"the plan combines gradients by {plan.reduction!r}, the program by {model.reduction.kind!r}")
    if plan.statistics not in ("local", "mean"):
        raise PlanError(f"the plan has statistics={plan.statistics!r}: there are 'local' and 'mean'")


def _check_local(plan: Plan, local: LocalSteps, model: Model) -> None:
    """Every parameter is exchanged once, with others of its element type, by a collective that exists."""
    if plan.transfers or plan.sharded or plan.edges or plan.deterministic:
        raise PlanError("the plan lets workers train by themselves, and has transfers of gradients: make it anew")
    if local.sync_every < 1 or not local.learning_rate > 0 or not 0 <= local.momentum < 1:
        raise PlanError(
            f"the plan exchanges parameters after {local.sync_every} steps, with a learning rate of "
            f"{local.learning_rate} and a momentum of {local.momentum}: at least 1, more than 0, and 0 up to less than "
            "1 are possible"
        )
    by_name = {v.plan_name: v for v in exchangeable(model)}
    names = [name for exchange in local.exchanges for name in exchange.parameters]
    if sorted(names) != sorted(by_name):
        missing = sorted(by_name.keys() - names)
        reason = f"{missing[0]!r} is not exchanged" if missing else "a parameter is not there, or exchanged twice"
        raise PlanError(f"the plan does not exchange each parameter once: {reason}")
    for number, exchange in enumerate(local.exchanges):
        where, variables = f"exchange {number}", [by_name[name] for name in exchange.parameters]
        if {v.dtype for v in variables} != {exchange.dtype}:
            raise PlanError(f"{where} is of {exchange.dtype}, and not all of its parameters are")
        elements = sum(v.size for v in variables)
        if (exchange.elements, exchange.size_bytes) != (elements, elements * variables[0].item_bytes):
            raise PlanError(f"{where} says {exchange.elements} elements, and its parameters have {elements}")
        _check_wire(where, exchange.dtype, exchange.wire)
        try:
            options = CollectiveOptions(algorithm=exchange.algorithm, depth=exchange.depth, wire=exchange.wire)
            options.check_workers(plan.workers)
            allowed_algorithms(options, plan.workers, exchange.dtype)
        except InputError as error:
            raise PlanError(f"{where}: {error}") from error


def _check_edges(edges: Sequence[tuple[str, str]], model: Model, moved: Collection[str]) -> None:
    """An op that does not run, in a branch or as nothing is pending yet, would take with it what waits for it."""
    graph, guards = model.graph, guards_of(model.graph).by_node
    for edge in edges:
        for name in edge:
            if name not in graph:
                raise PlanError(f"the plan orders {name!r}, which the program does not have")
        before, after = edge
        reason = ""
        if before in moved and after not in moved:
            reason = "which is postponed to the next step"
        elif not guards[before] <= guards[after]:
            reason = "which runs in a branch only"
        elif is_shared(graph[after]):
            reason = f"but {graph[after].op} ops serve checkpoints and evaluations, too"
        if reason:
            raise PlanError(f"the plan lets {after!r} wait for {before!r}, {reason}: leave that edge out")


def verify_plan(plan: Plan, model: Model) -> list[str]:
    """Check a plan once more, and its lower bound.

    Args:
        plan: plan of an emitted graph.
        model: the single-device step.

    Returns:
        Statements of what holds.

    Raises:
        PlanError: an invariant is broken, nothing was proved of the graph, or the lower bound is above the step.
    """
    check_plan(plan, model)
    if not plan.proof:
        raise PlanError("nothing was proved of the graph of this plan: check a plan that ARModel has made")
    if plan.servers is not None:
        return ["each variable is on servers that exist, whole, and only those in parts whose updates can be divided"]
    if plan.local is not None:
        return ["each parameter is exchanged once, with collectives that may be used"]
    statements = [f"the {len(plan.transfers)} transfers send every gradient once, with collectives that may be used"]
    if plan.prediction is None:
        return [*statements, "no step is predicted, so there is no lower bound"]
    bound_s, step_s = plan.prediction.lower_bound_s, plan.prediction.timeline.iteration_s
    if not plan.prediction.has_bound:
        raise PlanError(
            f"the lower bound of the step, {format_ms(bound_s, 6)}, is above the step of the plan, "
            f"{format_ms(step_s, 6)}: one of the two is wrong, which is a defect of this library. Please report "
            "it with the plan, the trace and the network"
        )
    return [
        *statements,
        f"the lower bound, {format_ms(bound_s, 6)}, is not above the step, {format_ms(step_s, 6)}",
    ]


def reason_against_sharding(plan: Plan, model: Model, update: ElementUpdate) -> str | None:
    """Why a plan does not allow that an update is sharded; None if it does.

    Args:
        plan: the plan.
        model: the single-device step.
        update: an update of which each worker could make a part.
    """
    pieces = plan.pieces[update.gradient]
    transfer = next(t for t in plan.transfers if update.gradient in t.gradients)
    if plan.workers < 2:
        return "there is one worker"
    if len(pieces) > 1:
        return "it travels in pieces"
    if update.gradient in plan.postponed and (early := writers_before_gradient(model, update)):
        return f"it waits for the next step, and op {early[0]!r} writes the parameter in its own step"
    if transfer.wire is not None:
        return f"it travels as {transfer.wire}, which would round the parameter"
    if transfer.algorithm == NATIVE:
        return "TensorFlow's own all-reduce cannot be taken apart"
    if transfer.algorithm in ON_ONE_WORKER:
        return f"the {transfer.algorithm} completes all sums on one worker"
    if plan.deterministic and update.other_bits:
        return f"the plan is deterministic, and {update.other_bits}"
    return None


def _check_sharded(plan: Plan, model: Model) -> None:
    if not plan.sharded:
        return
    updates, reasons = element_updates(model)
    plan_names = {v.name: v.plan_name for v in model.variables}
    names = [update.gradient for update in plan.sharded]
    for sharded in plan.sharded:
        name = sharded.gradient
        what = f"the plan shards the update of {name!r}"
        if name not in updates:
            raise PlanError(f"{what}: {reasons.get(name, 'there is no such gradient')}")
        if (reason := reason_against_sharding(plan, model, updates[name])) is not None:
            raise PlanError(f"{what}: {reason}")
        if names.count(name) > 1 or sharded.slots != tuple(plan_names[slot] for slot in updates[name].slots):
            raise PlanError(f"{what} with other slots than it has, or twice")


def _check_transfer(what: str, transfer: Transfer, model: Model, by_name: Mapping[str, Gradient], plan: Plan) -> None:
    if not transfer.pieces:
        raise PlanError(f"{what} is empty")
    for piece in transfer.pieces:
        gradient = by_name.get(piece.gradient)
        if gradient is None:
            raise PlanError(f"{what} sends {piece.gradient!r}, which the program has no gradient of")
        if gradient.dtype != transfer.dtype:
            raise PlanError(f"{what} is of {transfer.dtype}, but {piece.gradient!r} is of {gradient.dtype}")
        if gradient.is_sparse and (len(transfer.pieces) > 1 or transfer.window == FORWARD):
            raise PlanError(f"{what} has the sparse gradient {piece.gradient!r}: it travels alone, and at once")
        if transfer.adds_slices and distinct_rows_node(model, gradient) is None:
            raise PlanError(
                f"{what} adds up slices of {piece.gradient!r}, which the program does not do, or not only: leave that "
                "out"
            )
        if transfer.adds_slices and plan.deterministic:
            raise PlanError(
                f"{what} adds up slices of {piece.gradient!r} on each worker, and so not in rank order, as the plan "
                "says: leave that out"
            )
        if gradient.is_sparse != (transfer.algorithm in SPARSE):
            raise PlanError(
                f"{what} sends {piece.gradient!r} by {transfer.algorithm}: {' and '.join(SPARSE)} are for sparse ones"
            )
        if transfer.algorithm == OWNERS and (reason := _reason_against_owners(plan, model, gradient.name)):
            raise PlanError(f"{what} divides the table of {gradient.name!r} between the workers: {reason}")
    if transfer.window not in (FORWARD, BACKWARD):
        raise PlanError(f"{what} is in the window {transfer.window!r}: there are {FORWARD!r} and {BACKWARD!r}")
    _check_wire(what, transfer.dtype, transfer.wire)
    if plan.deterministic and transfer.wire is not None:
        raise PlanError(f"{what} rounds values to {transfer.wire}, and the plan is deterministic")
    if transfer.algorithm not in SPARSE:
        _check_collective(what, transfer, plan)
    elif (transfer.elements, transfer.size_bytes, transfer.depth) != (None, None, 1):
        raise PlanError(
            f"{what} is of the rows of a sparse gradient, whose number is not known before, and is not cut: it has no "
            "elements, no bytes, and depth 1"
        )


def _check_wire(what: str, dtype: str, wire: str | None) -> None:
    if wire is not None and (wire not in WIRE_DTYPES or dtype not in NARROWABLE_DTYPES):
        raise PlanError(f"{what} sends {dtype} as {wire!r}, which is not possible")


def _reason_against_owners(plan: Plan, model: Model, name: str) -> str:
    """Why a table cannot be divided by rows; "" where it can."""
    updates, reasons = row_updates(model)
    if name not in updates:
        return reasons[name]
    if plan.workers < 2:
        return "there is one worker"
    if plan.deterministic and updates[name].other_bits:
        return f"the plan is deterministic, and {updates[name].other_bits}"
    return ""


def _check_collective(what: str, transfer: Transfer, plan: Plan) -> None:
    is_native = transfer.algorithm == NATIVE
    if not is_all_reduce(transfer.algorithm):
        raise PlanError(f"{what} is a {transfer.algorithm!r} all-reduce; there are {', '.join(ALL_REDUCE_NAMES)}")
    if transfer.depth < 1:
        raise PlanError(f"{what} has depth {transfer.depth}: it must be at least 1")
    if transfer.depth > MOST_CHUNKS:
        raise PlanError(
            f"{what} has depth {shown(transfer.depth)}: it must be at most {MOST_CHUNKS}, as each chunk has ops of its "
            "own on every worker"
        )
    if is_native and (transfer.dtype not in NATIVE_DTYPES or transfer.wire is not None or transfer.depth > 1):
        raise PlanError(f"{what} is a native all-reduce, which takes {', '.join(NATIVE_DTYPES)}, uncut, as they are")
    elements = sum(piece.elements or 0 for piece in transfer.pieces)
    if transfer.elements != elements:
        raise PlanError(f"{what} says {transfer.elements} elements, its pieces have {elements}")
    if plan.deterministic and not is_in_rank_order(transfer.algorithm, plan.workers):
        raise PlanError(
            f"{what} is a {transfer.algorithm} all-reduce, which does not add in rank order: the plan says so"
        )


def _check_pieces(gradient: Gradient, pieces: Sequence[Piece]) -> None:
    if gradient.is_sparse:
        if len(pieces) != 1 or pieces[0] != Piece(gradient.name, 0, None):
            raise PlanError(f"the sparse gradient {gradient.name!r} must travel whole, once")
        return
    position = 0
    for piece in pieces:
        if piece.elements is None or piece.start != position or (piece.elements == 0 and len(pieces) > 1):
            break
        position += piece.elements
    else:
        if pieces and position == gradient.size:
            return
    raise PlanError(
        f"the pieces of gradient {gradient.name!r} must be its {gradient.size} elements, each once; they are "
        + (", ".join(f"{p.start}:{p.start + (p.elements or 0)}" for p in pieces) or "not there")
    )
