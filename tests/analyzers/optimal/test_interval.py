"""Between which seconds a step is: from the spread of the trace's steps, the errors of the network, and the rest."""

import math
import statistics

import pytest
from policy_common import boundaries, gradient

from caramel.analyzers.cost.network import Network
from caramel.analyzers.cost.simulate import simulate_on
from caramel.analyzers.optimal.interval import MODEL_ERROR, interval_of
from caramel.facts import BACKWARD, FORWARD, Piece, Schedule, Scheduled, Trace
from caramel.netmodel.choice import CollectiveOptions
from caramel.netmodel.contention import Contention
from caramel.netmodel.line import Curve, Sample
from caramel.netmodel.model import NetworkModel

STEPS_S = (1.0, 1.1, 0.9, 1.0)
SPREAD = statistics.stdev(STEPS_S)  # their mean is 1

MODEL = boundaries(gradient("last", 12, 10), gradient("first", 20, 1), compute_s=20)
SCHEDULE = Schedule(
    tuple(Scheduled((Piece(name, 0, 4),), window, "") for name, window in (("last", FORWARD), ("first", BACKWARD))), ""
)


def trace(steps_s=STEPS_S):
    return Trace("", {}, {}, 1.0, 1.0, 1, 2, None, "a test", plain_steps_s=steps_s)


def ring(*times_s, contentions=(), factor=1.0):
    """A network with times of transfers of 2, 4 and 6 bytes."""
    samples = [Sample(2 * n + 2, factor * time_s) for n, time_s in enumerate(times_s)]
    known = NetworkModel("a test", (Curve.fitted(2, "ring", 1, samples),), contentions=contentions)
    return Network(CollectiveOptions("ring", 1, network=known), 2)


def found(network, model=MODEL, traced=None):
    step = simulate_on(network, model, SCHEDULE)
    return step.iteration_s, interval_of(step, traced or trace(), network, model, SCHEDULE, None)


def test_without_transfers_it_is_the_spread_of_the_steps():
    network = Network(CollectiveOptions("ring", 1), 1)
    step_s, interval = found(network)
    assert step_s == 20
    assert (interval.trace, interval.network, interval.model) == (pytest.approx(SPREAD), 0, MODEL_ERROR)
    factor = math.exp(1.96 * math.hypot(SPREAD, MODEL_ERROR))
    assert (interval.low_s, interval.high_s) == (pytest.approx(20 / factor), pytest.approx(20 * factor))


@pytest.mark.parametrize("slowdown", [None, 1.5])
def test_the_error_of_the_network_is_what_a_slower_network_does(slowdown):
    """4 bytes take 6 s, and their neighbours say 5; the first gradient's transfer is exposed, the last one's is not."""
    contended = () if slowdown is None else (Contention(2, "ring", 1, 4, 0.25, slowdown),)
    network, error = ring(3.0, 6.0, 7.0, contentions=contended), 1 / 6
    assert network.interpolation_error(4.0) == pytest.approx(error)
    step_s, interval = found(network)
    slow_s, fast_s = (
        simulate_on(ring(3.0, 6.0, 7.0, contentions=contended, factor=f), MODEL, SCHEDULE).iteration_s
        for f in (1 + error, 1 - error)
    )
    assert interval.network == pytest.approx((slow_s - fast_s) / 2 / step_s) and slow_s > step_s > fast_s
    slow_s, fast_s = (simulate_on(network, MODEL.scaled(f), SCHEDULE).iteration_s for f in (1 + SPREAD, 1 - SPREAD))
    assert interval.trace == pytest.approx((slow_s - fast_s) / 2 / step_s)


def test_the_error_of_a_curve_leaves_each_size_out_in_turn():
    """4 bytes: 5 for 6. 6 bytes: 9.5 for 7."""
    curve = Curve.fitted(2, "ring", 1, [Sample(size, time_s) for size, time_s in ((2, 3), (4, 6), (6, 7), (8, 13))])
    assert curve.interpolation_error == pytest.approx(math.sqrt(((5 / 6 - 1) ** 2 + (9.5 / 7 - 1) ** 2) / 2))
    assert Curve.fitted(2, "ring", 1, curve.samples[:2]).interpolation_error == 0


@pytest.mark.parametrize("steps_s", [(), (1.0,), (0.0, 0.0)])
def test_a_trace_without_several_steps_has_no_part(steps_s):
    _, interval = found(ring(3.0, 6.0, 7.0), traced=trace(steps_s))
    assert interval.trace == 0


def test_a_wild_trace_still_has_an_interval():
    step_s, interval = found(ring(3.0, 6.0, 7.0), traced=trace((1e-3, 1e-3, 5.0)))
    assert 0 < interval.low_s < step_s < interval.high_s < math.inf


def test_a_step_of_no_time():
    _, interval = found(Network(CollectiveOptions("ring", 1), 1), boundaries(gradient("last", 0), gradient("first", 0)))
    assert (interval.low_s, interval.high_s, interval.trace, interval.network) == (0, 0, 0, 0)
