"""What each transfer would cost in its other window, against all places where it could be."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from policy_common import anything, boundaries, gradient, line

from caramel.analyzers.analyzer import analyse
from caramel.analyzers.cost.network import Network
from caramel.analyzers.optimal import prediction
from caramel.analyzers.optimal.local_search import LocalSearch
from caramel.analyzers.policies.batching import single
from caramel.analyzers.policies.packing import paper_packing
from caramel.facts import BACKWARD, FORWARD, Boundaries, InFlight, Piece, Schedule, Scheduled, Trace
from caramel.netmodel.choice import CollectiveOptions
from caramel.netmodel.contention import Contention
from caramel.netmodel.line import Curve, Sample
from caramel.netmodel.model import NetworkModel
from caramel.plan import Transfers
from caramel.simulator import simulate

NETWORK = line(1.0, 0.5)


def planned(boundaries):
    return analyse([single(), paper_packing()], [boundaries, NETWORK], [Schedule])[Schedule]


def everywhere(boundaries, schedule, number):
    """Times of the step with a transfer at each place of its other window; none if it cannot be there."""
    mine = schedule.transfers[number]
    window = FORWARD if mine.window == BACKWARD else BACKWARD
    if window == FORWARD and not all(boundaries.by_name[p.gradient].is_postponable for p in mine.pieces):
        return []
    moved, rest = Scheduled(mine.pieces, window, ""), [t for t in schedule.transfers if t is not mine]
    times = []
    for place in range(len(rest) + 1):
        transfers = (*rest[:place], moved, *rest[place:])
        windows = [t.window for t in transfers]
        if windows == sorted(windows, reverse=True):  # "forward" comes first
            times.append(simulate(boundaries, Schedule(transfers, ""), NETWORK.time_s).iteration_s)
    return times


@settings(max_examples=60)
@given(anything(5))
def test_the_best_of_all_places(boundaries):
    schedule = planned(boundaries)
    found = prediction._alternatives(boundaries, schedule, NETWORK, None)
    assert found == tuple(
        min(everywhere(boundaries, schedule, number), default=None) for number in range(len(schedule.transfers))
    )


@settings(max_examples=60)
@given(anything(5))
def test_of_many_transfers_one_of_the_places(boundaries):
    schedule = planned(boundaries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prediction, "_MOST_SIMULATED_TRANSFERS", 1)
        found = prediction._alternatives(boundaries, schedule, NETWORK, None)
    for number, time_s in enumerate(found):
        times = everywhere(boundaries, schedule, number)
        assert time_s in times if times else time_s is None


def test_the_place_that_is_tried_first_is_where_it_belongs(monkeypatch):
    """Four gradients by themselves: in the forward window each goes before what is read later."""
    monkeypatch.setattr(prediction, "_MOST_SIMULATED_TRANSFERS", 1)
    model = boundaries(*(gradient(f"w{n}", 20 + n, 18 - 3 * n) for n in range(4)), compute_s=24)
    windows = {"w1": FORWARD, "w3": FORWARD}
    order = ("w3", "w1", "w0", "w2")
    made = tuple(Scheduled((Piece(name, 0, 4),), windows.get(name, BACKWARD), "") for name in order)
    seen = []

    def simulated(search, windows, scales):
        names = [(bucket.pieces[0][0], window) for window, of in zip("fb", windows) for bucket in of]
        seen.append([(model.gradients[gradient].name, window) for gradient, window in names])
        return [1.0]

    monkeypatch.setattr(LocalSearch, "_times_s", simulated)
    prediction._alternatives(model, Schedule(made, ""), NETWORK, None)
    f, b = "f", "b"
    assert seen == [
        [("w1", f), ("w0", b), ("w2", b), ("w3", b)],
        [("w3", f), ("w0", b), ("w1", b), ("w2", b)],
        [("w3", f), ("w1", f), ("w0", f), ("w2", b)],
        [("w3", f), ("w2", f), ("w1", f), ("w0", b)],
    ]


def test_a_step_is_predicted_with_as_many_transfers_under_way_as_were_asked_for():
    """Each has the channel for 2 and arrives 6 later, so three one after the other take 24, and all at once 12."""
    sizes = (2**12, 2**13)
    curves = (Curve.fitted(2, "ring", 1, [Sample(size, 4.0) for size in sizes]),)
    known = NetworkModel("a test", curves, contentions=tuple(Contention(2, "ring", 1, s, 0.0, 2.0, 0.5) for s in sizes))
    network = Network(CollectiveOptions("ring", 1, network=known), 2)
    model = boundaries(*(gradient(f"w{n}", 0, 0, 2**12) for n in range(3)), compute_s=1)
    plan = Schedule(tuple(Scheduled((Piece(f"w{n}", 0, 2**12),), BACKWARD, "") for n in range(3)), "")
    known_times = {
        Trace: Trace("", {}, {}, 1.0, 1.0, 1, 2, None, "a test"),
        Network: network,
        Boundaries: model,
        Schedule: plan,
    }
    found = {None: prediction.predict(known_times)}
    for in_flight in (InFlight(), InFlight(2, 2), InFlight(1, 1)):
        found[in_flight] = prediction.predict({**known_times, Transfers: Transfers((), in_flight)})
    assert [each.timeline.iteration_s for each in found.values()] == [12, 12, 16, 24]
    # The first one in the forward window: it does not wait for the others there.
    assert [found[InFlight(most, most)].alternatives[0] for most in (2, 1)] == [12, 18]
    # A schedule that was made for a limit is predicted with that, whatever is usual; alternatives, too.
    limited = {**known_times, Schedule: replace(plan, in_flight=InFlight(credit_bytes=2**12))}
    for facts in (limited, {**limited, Transfers: Transfers((), InFlight(credit_bytes=2**12))}):
        by_credit = prediction.predict(facts)
        assert (by_credit.timeline.iteration_s, by_credit.alternatives[0]) == (24, 18)
    assert prediction.predict({**limited, Transfers: Transfers((), InFlight())}).timeline.iteration_s == 12


def test_of_very_many_transfers_no_alternatives_are_simulated(monkeypatch):
    monkeypatch.setattr(prediction, "_MOST_TRANSFERS_WITH_ALTERNATIVES", 3)
    for count, alternatives in ((3, 3), (4, 0)):
        model = boundaries(*(gradient(f"w{n}", n) for n in range(count)))
        plan = Schedule(tuple(Scheduled((Piece(g.name, 0, 4),), BACKWARD, "") for g in model.gradients), "")
        assert len(prediction._alternatives(model, plan, NETWORK, None)) == alternatives
