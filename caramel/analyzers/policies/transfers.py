"""Transfers: algorithm and depth for every all-reduce of a schedule; and the simplest schedules."""

from __future__ import annotations

from collections.abc import Sequence

from caramel.analyzers.analyzer import Analyzer
from caramel.analyzers.cost.in_flight import usual_in_flight
from caramel.analyzers.cost.network import Network
from caramel.collectives.algorithms import ALL_GATHER
from caramel.errors import InputError, PlanError, listed
from caramel.facts import BACKWARD, FORWARD, Buckets, Dependencies, InFlight, Piece, Schedule, Scheduled
from caramel.model import Gradient, Model
from caramel.netmodel.choice import CollectiveOptions, choose_collective
from caramel.plan import Transfer, Transfers


def adaptive_depth(in_flight: int | None = None) -> Analyzer:
    """The best algorithm and depth for each transfer by the network model.

    Args:
        in_flight: number of transfers of each window that may be under way at once on a worker; default: what the
            schedule was made for, else no limit where nothing is postponed, else `ORDERED_IN_FLIGHT`. Packings are
            always chosen for the default.

    Source:
        Caramel, section 4.4.
    """

    def run(model: Model, schedule: Schedule, network: Network) -> Transfers:
        return make_transfers(model, schedule, network, in_flight)

    return Analyzer("adaptive depth", (Model, Schedule, Network), Transfers, run)


def make_transfers(model: Model, schedule: Schedule, network: Network, in_flight: int | None) -> Transfers:
    """Choose a collective for each transfer.

    Args:
        model: the single-device step.
        schedule: pieces that travel together, with their windows, in their order.
        network: network by which collectives are chosen.
        in_flight: number of transfers of each window that may be under way at once; None for the default, see
            `adaptive_depth`.

    Raises:
        PlanError: the schedule names gradients that do not exist, or several element types together.
        InputError: the options do not fit the number of workers or a gradient.
    """
    by_name = {g.name: g for g in model.gradients}
    transfers = tuple(_transfer(by_name, scheduled, network) for scheduled in schedule.transfers)
    limits = usual_in_flight(schedule) if in_flight is None else InFlight(in_flight, in_flight)
    # What limits go with an order is part of the policy; of the usual ones there is nothing to say.
    notes = () if schedule.in_flight is None else (f"schedule: {schedule.reason}",)
    return Transfers(transfers, limits, notes)


def _transfer(by_name: dict[str, Gradient], scheduled: Scheduled, network: Network) -> Transfer:
    names = [p.gradient for p in scheduled.pieces]
    if not names:
        raise PlanError("a transfer of the schedule is empty")
    if unknown := [name for name in names if name not in by_name]:
        raise PlanError(f"the schedule sends {unknown[0]!r}; there are gradients {listed(list(by_name), 8)}")
    gradients = [by_name[name] for name in names]
    dtypes = list(dict.fromkeys(g.dtype for g in gradients))
    if len(dtypes) > 1:
        raise PlanError(f"the schedule sends {listed(names, 3)} together, which are {' and '.join(dtypes)}")
    options = network.options
    if gradients[0].is_sparse:
        return _sparse(gradients[0], options, scheduled)
    if None in [p.elements for p in scheduled.pieces]:
        raise PlanError(f"the schedule does not say how many elements of {listed(names, 3)} it sends")
    elements = sum(p.elements or 0 for p in scheduled.pieces)
    collective = choose_collective(options, network.workers, dtypes[0], elements)
    return Transfer(
        pieces=scheduled.pieces,
        dtype=dtypes[0],
        elements=elements,
        size_bytes=elements * gradients[0].item_bytes,
        algorithm=collective.algorithm,
        depth=collective.depth,
        window=scheduled.window,
        wire=options.wire_for(dtypes[0]),
        predicted_s=collective.predicted_s,
        reason=f"{scheduled.reason}; {collective.reason}",
    )


_SPARSE_REASON = "A sparse gradient: every worker gets the rows of all workers, in rank order; nothing is made dense."
_SAME_ROWS_REASON = "A sparse gradient whose rows no example chooses: every worker adds up the slices of all workers."


def _sparse(gradient: Gradient, options: CollectiveOptions, scheduled: Scheduled) -> Transfer:
    return Transfer(
        pieces=scheduled.pieces,
        dtype=gradient.dtype,
        elements=None,
        size_bytes=None,
        algorithm=ALL_GATHER,
        depth=1,
        window=scheduled.window,
        wire=options.wire_for(gradient.dtype),
        predicted_s=None,
        reason=_SAME_ROWS_REASON if gradient.shared_rows else _SPARSE_REASON,
    )


def whole_gradient(gradient: Gradient) -> Piece:
    """The piece that has all elements of a gradient."""
    return Piece(gradient.name, 0, None if gradient.is_sparse else gradient.size)


def as_they_are(postponed: Sequence[str] = ()) -> Analyzer:
    """A schedule of `Buckets` in the backward window, but for gradients that are named by hand.

    Args:
        postponed: names of gradients whose buckets travel in the next step.
    """

    def run(model: Model, dependencies: Dependencies, buckets: Buckets) -> Schedule:
        by_name = {g.name: g for g in model.gradients}
        if unknown := [name for name in postponed if name not in by_name]:
            raise InputError(f"there is no gradient {unknown[0]!r} to postpone; there are {listed(list(by_name), 8)}")
        for name in postponed:
            if dependencies.kept_reasons[name]:
                raise InputError(dependencies.kept_reasons[name])
        postponed_names = set(postponed)
        scheduled: dict[str, list[Scheduled]] = {FORWARD: [], BACKWARD: []}
        for bucket, reason in zip(buckets.buckets, buckets.reasons):
            for window in (FORWARD, BACKWARD):
                names = [name for name in bucket if (name in postponed_names) == (window == FORWARD)]
                if names:
                    why = f"It was asked to travel in the next step; {reason}" if window == FORWARD else reason
                    scheduled[window].append(
                        Scheduled(tuple(whole_gradient(by_name[name]) for name in names), window, why)
                    )
        # What is read first comes first, and that is what was ready last.
        return Schedule(
            (*reversed(scheduled[FORWARD]), *scheduled[BACKWARD]), "as asked for" if postponed else "backward only"
        )

    return Analyzer(
        "windows by hand" if postponed else "backward window", (Model, Dependencies, Buckets), Schedule, run
    )
