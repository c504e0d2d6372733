"""The network model: what it predicts and on what basis, and that its choice is the least of all that is known."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caramel.collectives.algorithms import ALGORITHMS, NATIVE
from caramel.errors import InputError
from caramel.netmodel.costs import Cost
from caramel.netmodel.line import Curve, Sample
from caramel.netmodel.model import NetworkModel, default_depth

NAMES = [*ALGORITHMS, NATIVE]
SIZES = (64, 4096, 2**18, 2**22)


def curve(workers, algorithm, depth, a=1e-4, b=1e-9, sizes=SIZES):
    return Curve.fitted(workers, algorithm, depth, [Sample(size, a + b * size) for size in sizes])


def network(*curves, gamma=0.0):
    return NetworkModel("a test", tuple(curves), gamma)


def true_curve(cost, workers, algorithm, depth):
    times = [Sample(size, cost.time_s(algorithm, workers, depth, size)) for size in SIZES]
    return Curve.fitted(workers, algorithm, depth, times)


@st.composite
def lines(draw):
    return draw(st.floats(1e-6, 1e-2)), draw(st.floats(1e-12, 1e-7))


def curves(workers, algorithms=NAMES):
    """Curves of some algorithms; native in one piece only."""
    keys = [(name, depth) for name in algorithms for depth in (1, 2, 4) if name != NATIVE or depth == 1]
    return st.dictionaries(st.sampled_from(keys), lines(), min_size=1, max_size=8).map(
        lambda found: [curve(workers, name, depth, *line) for (name, depth), line in found.items()]
    )


# -- depth and threshold -------------------------------------------------------------------------


@given(st.floats(0, 1e12), st.floats(1e-3, 1e12))
def test_default_depth(size, threshold):
    assert default_depth(size, threshold) == min(max(math.floor(size / threshold), 1), 8)


@pytest.mark.parametrize(
    ("size", "threshold", "depth"),
    [
        (0, 100, 1),
        (99, 100, 1),
        (199, 100, 1),
        (200, 100, 2),
        (800, 100, 8),
        (10**9, 100, 8),
        (10**9, math.inf, 1),
        (10**9, 0, 8),
        (0, math.inf, 1),
    ],
)
def test_default_depth_at_the_edges(size, threshold, depth):
    found = default_depth(size, threshold)
    assert found == depth and isinstance(found, int)


def test_default_depth_of_nothing_that_costs_nothing():
    assert 1 <= default_depth(0, 0) <= 8


@given(lines())
def test_threshold_of_a_named_algorithm(line):
    a, b = line
    found = network(curve(4, "ring", 1, a, b), curve(4, "star", 1)).threshold_bytes(4, "ring")
    assert found == pytest.approx(1.5 * a / b, rel=1e-5, abs=1)


def test_threshold_of_the_fastest():
    """The fastest for 4 MiB, which is not the fastest for little."""
    model = network(curve(4, "star", 1, 1e-5, 1e-8), curve(4, "ring", 1, 1e-4, 1e-9))
    assert model.threshold_bytes(4) == pytest.approx(1.5e5, rel=1e-5)
    assert model.threshold_bytes(4, "star") == pytest.approx(1.5e3, rel=1e-3)


# -- where a model comes from --------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("workers", [1, 2, 7, 64])
def test_given_costs(name, workers):
    model = NetworkModel.from_costs(1e-4, 1e-9, 2e-10)
    assert model.given == Cost(1e-4, 1e-9, 2e-10)
    for depth in (1, 3) if name != NATIVE else (1,):
        prediction = model.predict(name, depth, workers, 10**6)
        assert prediction.basis == "given"
        assert prediction.time_s == pytest.approx(Cost(1e-4, 1e-9, 2e-10).time_s(name, workers, depth, 10**6))
    model.require(workers)
    assert model.workers == () and model.warnings == ()


def test_link_rate():
    """A ring of two sends each byte once: the time is the messages' latencies and bytes over rate."""
    model = NetworkModel.from_link_rate(125e6, 5e-5)
    assert model.predict("ring", 1, 2, 10**6).time_s == pytest.approx(2 * 5e-5 + 10**6 / 125e6)
    assert model.predict("ring", 1, 4, 10**6).time_s == pytest.approx(6 * 5e-5 + 1.5 * 10**6 / 125e6)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, -math.inf])
def test_bad_costs_by_hand(bad):
    for place in range(3):
        costs = [1e-4, 1e-9, 1e-10]
        costs[place] = bad
        with pytest.raises(InputError):
            NetworkModel.from_costs(*costs)
    with pytest.raises(InputError):
        NetworkModel.from_link_rate(bad)
    with pytest.raises(InputError):
        NetworkModel.from_link_rate(1e6, bad)


def test_no_rate():
    with pytest.raises(InputError, match="rate"):
        NetworkModel.from_link_rate(0.0)


def test_measured_for_these_numbers_of_workers():
    model = network(curve(8, "ring", 1), curve(2, "star", 1), curve(2, "ring", 1))
    assert model.workers == (2, 8)
    for workers in (1, 2, 8):
        model.require(workers)
    for workers in (3, 4, 16):
        with pytest.raises(InputError, match=rf"{workers}\D.*2.*8|2.*8.*\D{workers}\b"):
            model.require(workers)


def test_steps_of_other_numbers_of_workers_are_predicted_up_to_four_times_the_largest():
    several = network(curve(2, "ring", 1), curve(8, "ring", 1))
    for workers in (1, 2, 5, 8, 9, 32):
        several.require_prediction(workers)
        assert several.is_known_for(workers) == (workers in (1, 2, 8))
    with pytest.raises(InputError, match=r"2, 8 workers, and predicts steps of up to 32 .*not of 33"):
        several.require_prediction(33)
    alone = network(curve(4, "ring", 1), curve(4, "star", 1))
    alone.require_prediction(4)
    with pytest.raises(InputError, match=r"with 4 workers, which says nothing of 8: measure with another number"):
        alone.require_prediction(8)
    apart = network(curve(2, "ring", 1), curve(4, "star", 1))  # no all-reduce was measured with two numbers
    with pytest.raises(InputError, match="says nothing of 8"):
        apart.require_prediction(8)
    NetworkModel.from_costs(1e-4, 1e-9).require_prediction(10_000)


def test_costs_of_what_was_measured_with_several_numbers_of_workers():
    cost = Cost(1e-4, 2e-9, 1e-10)
    true = [true_curve(cost, n, "ring", 1) for n in (2, 4, 8)] + [true_curve(cost, n, "chain", 4) for n in (2, 8)]
    model = network(*true, true_curve(cost, 4, "star", 1), true_curve(cost, 4, "ring", 2), gamma=1e-10)
    assert set(model.costs) == {("ring", 1), ("chain", 4)}
    for found in model.costs.values():
        assert found.alpha_s == pytest.approx(1e-4, rel=1e-6)
        assert found.beta_s_per_byte == pytest.approx(2e-9, rel=1e-6)
        assert found.gamma_s_per_byte == 1e-10


def test_one_worker_adds_nothing_to_costs():
    model = network(curve(1, "ring", 1, 1e-6, 1e-12), curve(4, "ring", 1))
    assert model.costs == {}
    with pytest.raises(InputError, match="ring"):
        model.predict("ring", 1, 16, 1000)


def test_models_of_different_numbers_of_workers_are_merged():
    two, four = network(curve(2, "ring", 1), gamma=2e-9), network(curve(4, "ring", 1), gamma=1e-9)
    both = two.merged(four)
    assert (both.workers, both.curves, both.gamma_s_per_byte) == ((2, 4), two.curves + four.curves, 1e-9)


def test_what_both_have_measured_is_not_merged():
    """A file of it could not be read again."""
    with pytest.raises(InputError, match="ring at depth 1 on 2 workers"):
        network(curve(2, "ring", 1)).merged(network(curve(2, "ring", 2), curve(2, "ring", 1)))


def test_no_costs_at_all():
    with pytest.raises(InputError, match="above 0"):
        NetworkModel.from_costs(0.0, 0.0)


# -- predictions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "basis"),
    [(64, "measured"), (5000, "measured"), (2**22, "measured"), (63, "extrapolated"), (2**22 + 1, "extrapolated")],
)
def test_basis_of_a_size(size, basis):
    prediction = network(curve(4, "ring", 1)).predict("ring", 1, 4, size)
    assert prediction.basis == basis
    assert prediction.time_s == pytest.approx(1e-4 + 1e-9 * max(size, 64))  # no less than was measured


def test_measurements_before_lines():
    """Where no line fits, what was measured is what is predicted."""
    times = (1e-4, 1e-4, 9e-3, 1e-2)
    jumping = Curve.fitted(4, "ring", 1, [Sample(size, time) for size, time in zip(SIZES, times)])
    model = network(jumping)
    assert model.warnings == (jumping.warning,)
    for size in (64, 1000, 10**6):
        assert model.predict("ring", 1, 4, size).time_s == pytest.approx(np.interp(size, SIZES, times))


@pytest.mark.parametrize("name", NAMES)
def test_another_number_of_workers(name):
    cost = Cost(1e-4, 2e-9, 1e-10)
    model = network(*(true_curve(cost, n, name, 1) for n in (2, 4, 8)), gamma=1e-10)
    for workers in (3, 16):
        prediction = model.predict(name, 1, workers, 10**6)
        assert prediction.basis == "extrapolated"
        assert prediction.time_s == pytest.approx(cost.time_s(name, workers, 1, 10**6), rel=1e-6)
    assert model.predict(name, 1, 4, 10**6).basis == "measured"


@pytest.mark.parametrize(
    ("name", "depth", "workers"), [("star", 1, 4), ("native", 2, 4), ("ring", 1, 8), ("tree", 1, 4)]
)
def test_nothing_is_known(name, depth, workers):
    with pytest.raises(InputError, match=name):
        network(curve(4, "ring", 1)).predict(name, depth, workers, 1000)


# -- choices -------------------------------------------------------------------------------------


def candidates(found, size):
    """(time, depth, place, algorithm) of all that may be chosen for a size, by the measured lines alone."""
    for name in {c.algorithm for c in found}:
        own = {c.depth: c.line for c in found if c.algorithm == name}
        for depth, line in own.items():
            yield line.a_s + line.b_s_per_byte * size, depth, NAMES.index(name), name


def by_itself(found, size, allowed=NAMES):
    """Those candidates, native only where it is 1.5 times as fast as any other."""
    all_of_them = [each for each in candidates(found, size) if each[-1] in allowed]
    others = min((time for time, *_, name in all_of_them if name != NATIVE), default=math.inf)
    return [each for each in all_of_them if each[-1] != NATIVE or 1.5 * each[0] <= others]


@given(curves(4), st.integers(64, 2**22))
def test_the_choice_is_the_least(found, size):
    choice = network(*found).choose(size, 4)
    all_of_them = by_itself(found, size)
    least = min(time for time, *_ in all_of_them)
    assert choice.prediction.time_s == pytest.approx(least)
    assert choice.prediction.basis == "measured"
    assert choice.algorithm in choice.reason
    assert choice.depth in {
        depth for time, depth, _, name in all_of_them if name == choice.algorithm and time <= least * (1 + 1e-9)
    }


@given(curves(4), st.integers(64, 2**22), st.sets(st.sampled_from(NAMES)))
def test_the_choice_among_the_allowed(found, size, allowed):
    known = {c.algorithm for c in found}
    if not known & allowed:
        with pytest.raises(InputError, match=sorted(known)[0]) as info:
            network(*found).choose(size, 4, allowed=allowed)
        assert all(name in str(info.value) for name in known)
        return
    choice = network(*found).choose(size, 4, allowed=allowed)
    assert choice.algorithm in allowed
    least = min(time for time, *_ in by_itself(found, size, allowed))
    assert choice.prediction.time_s == pytest.approx(least)


@given(curves(4), st.integers(64, 2**22), st.sampled_from([1, 2, 4]))
def test_the_choice_at_one_depth(found, size, depth):
    """Among what was measured at it; otherwise on a line between depths, or with a start for each chunk beyond."""
    fitting = {c.algorithm: c.line.time_s(size) for c in found if c.depth == depth}
    is_measured = bool(fitting)
    if not is_measured:
        for name in {c.algorithm for c in found} - {NATIVE}:
            known = {c.depth: c for c in found if c.algorithm == name}
            if min(known) > depth:
                continue
            times = {d: c.line.time_s(size) for d, c in known.items()}
            starts = {d: c.line.time_s(c.samples[0].size_bytes) for d, c in known.items()}
            low, high = min(known), max(known)
            if depth < high:  # 2, between 1 and 4
                fitting[name] = times[1] * 2 / 3 + times[4] / 3
            else:
                start = max(starts[high] - starts[low], 0) / (high - low) if high > low else starts[high] / high
                fitting[name] = times[high] + (depth - high) * start
    if not fitting:
        with pytest.raises(InputError, match=f"depth {depth}.*{found[0].algorithm} at depth {found[0].depth}"):
            network(*found).choose(size, 4, depth=depth)
        return
    choice = network(*found).choose(size, 4, depth=depth)
    assert choice.depth == depth
    least = min((time for name, time in fitting.items() if name != NATIVE), default=math.inf)
    native = fitting.get(NATIVE, math.inf)
    assert choice.prediction.time_s == pytest.approx(native if 1.5 * native <= least else least)
    assert choice.prediction.basis == ("measured" if is_measured else "extrapolated")


@pytest.mark.parametrize(("slower", "chosen"), [(1.49, "ring"), (1.51, NATIVE)])
def test_native_is_chosen_only_where_it_is_much_faster(slower, chosen):
    known = network(curve(4, NATIVE, 1), curve(4, "ring", 1, slower * 1e-4, slower * 1e-9))
    assert known.choose(10**6, 4).algorithm == chosen
    assert known.choose(10**6, 4, allowed=["ring", NATIVE]).algorithm == chosen
    assert known.choose(10**6, 4, allowed=[NATIVE]).algorithm == NATIVE
    assert network(curve(4, NATIVE, 1)).choose(10**6, 4).algorithm == NATIVE


@given(st.permutations(NAMES), st.integers(2, 6))
def test_ties_go_to_the_smaller_depth_and_the_first_name(names, many):
    tied = names[:many]
    both = [curve(4, name, depth) for name in tied for depth in ((1, 2) if name != NATIVE else (1,))]
    choice = network(*both).choose(10**6, 4)
    assert (choice.depth, choice.algorithm) == (1, min(tied, key=NAMES.index))


def test_a_smaller_depth_before_an_earlier_name():
    model = network(curve(4, "shuffle", 2), curve(4, "chain", 1), curve(4, "chain", 2))
    choice = model.choose(10**6, 4)
    assert (choice.algorithm, choice.depth) == ("chain", 1)


@pytest.mark.parametrize("size", [1000, 2.5 * 150_000, 4_000_000])
def test_nothing_is_cut_where_only_whole_tensors_were_measured(size):
    """Chunks are not assumed to cost nothing."""
    choice = network(curve(4, "ring", 1)).choose(size, 4)  # the threshold is 150 kB
    assert (choice.algorithm, choice.depth) == ("ring", 1)
    assert choice.prediction.time_s == pytest.approx(1e-4 + 1e-9 * size)


def test_native_is_never_cut():
    assert network(curve(4, NATIVE, 1)).choose(4 * 2**20, 4).depth == 1


def test_the_threshold_is_the_algorithm_s_own():
    model = network(curve(4, "ring", 1, 1e-4, 1e-9), curve(4, "star", 1, 1e-6, 1e-7))  # 150 kB, 15 B
    assert model.choose(200_000, 4).depth == 1


def test_depths_that_were_measured_are_compared():
    model = network(curve(4, "ring", 1, 1e-4, 2e-9), curve(4, "ring", 2, 2e-4, 1e-9))
    assert [model.choose(size, 4).depth for size in (50_000, 150_000, 4_000_000)] == [1, 2, 2]


def test_choice_for_other_numbers_of_workers():
    cost, slow = Cost(1e-4, 2e-9, 0.0), Cost(1e-4, 9e-9, 0.0)
    model = network(*(true_curve(c, n, m, 1) for c, m in ((cost, "ring"), (slow, "shuffle")) for n in (2, 4)))
    choice = model.choose(10**6, 16)
    assert (choice.algorithm, choice.prediction.basis) == ("ring", "extrapolated")
    assert choice.prediction.time_s == pytest.approx(cost.time_s("ring", 16, 1, 10**6), rel=1e-6)
    with pytest.raises(InputError, match="16 workers"):
        network(curve(4, "ring", 1)).choose(10**6, 16)


@given(st.floats(1e-6, 1e-2), st.floats(1e-12, 1e-7), st.floats(0, 1e-8), st.integers(2, 17), st.integers(1, 2**28))
def test_choice_with_given_costs(alpha, beta, gamma, workers, size):
    model, cost = NetworkModel.from_costs(alpha, beta, gamma), Cost(alpha, beta, gamma)
    choice = model.choose(size, workers)
    assert choice.prediction.basis == "given"
    assert choice.algorithm in NAMES and 1 <= choice.depth <= 8
    assert choice.prediction.time_s == pytest.approx(cost.time_s(choice.algorithm, workers, choice.depth, size))
    assert choice.prediction.time_s <= min(cost.time_s(name, workers, 1, size) for name in NAMES) * (1 + 1e-9)
    for depth in (1, 3):
        best = min(cost.time_s(name, workers, depth, size) for name in ALGORITHMS)
        assert model.choose(size, workers, depth=depth).prediction.time_s == pytest.approx(best)


@pytest.mark.parametrize("size", [0, 1])
def test_nothing_to_send(size):
    choice = network(curve(4, "ring", 1)).choose(size, 4)
    assert (choice.depth, choice.prediction.basis) == (1, "extrapolated")
    assert choice.prediction.time_s >= 0


def test_no_tensorflow_is_needed_to_choose():
    program = """
import sys
from caramel.netmodel.choice import CollectiveOptions, choose_collective
from caramel.netmodel.file import from_json, to_json
from caramel.netmodel.model import NetworkModel
from caramel.netmodel.report import as_text
network = NetworkModel.from_link_rate(1e9)
assert from_json(to_json(network)) == network and as_text(network, (4,))
for wire in ("float16", "bfloat16", None):
    choose_collective(CollectiveOptions(network=network, wire=wire), 4, "float32", 1000)
assert "tensorflow" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
