"""Options of the collectives, and the choice for one transfer."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caramel.collectives.algorithms import ALGORITHMS, NATIVE, schedule_maker
from caramel.collectives.schedule import check
from caramel.errors import InputError
from caramel.netmodel.choice import CollectiveOptions, choose_collective, is_in_rank_order
from caramel.netmodel.line import Curve, Sample
from caramel.netmodel.model import NetworkModel

NAMES = [*ALGORITHMS, NATIVE]
IN_ORDER = ["shuffle", "star", "chain"]


def network(workers=4, **lines):
    """A model measured in one piece: a in us and b in ns for each algorithm."""
    sizes = (64, 4096, 2**18, 2**22)
    return NetworkModel(
        "a test",
        tuple(
            Curve.fitted(workers, name, 1, [Sample(size, a * 1e-6 + b * 1e-9 * size) for size in sizes])
            for name, (a, b) in lines.items()
        ),
    )


# Fastest without bound: native, then ring, then halving_doubling; of those in rank order the chain.
ALL = network(
    shuffle=(100, 9), star=(100, 8), ring=(100, 2), halving_doubling=(100, 3), chain=(100, 7), native=(100, 1)
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "tree"}, "tree.*shuffle, star, ring, halving_doubling, chain"),
        ({"algorithm": "Ring"}, "Ring.*shuffle"),
        ({"algorithm": ""}, "shuffle"),
        ({"algorithm": 3}, "3"),
        ({"depth": 0}, "depth.*0"),
        ({"depth": -1}, "depth.*-1"),
        ({"depth": 1.5}, r"depth.*1\.5"),
        ({"depth": True}, "depth.*True"),
        ({"depth": "2"}, "depth.*2"),
        ({"depth": [2]}, "depth"),
        ({"wire": "int8"}, "int8.*float16|float16.*int8"),
        ({"wire": ""}, "float16"),
        ({"wire": 16}, "16"),
        ({"wire": "float16", "deterministic": True}, "wire|float16"),
        ({"algorithm": NATIVE, "wire": "float16"}, "native"),
        ({"algorithm": NATIVE, "depth": 2}, "native"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InputError, match=message):
        CollectiveOptions(**options)


@pytest.mark.parametrize("algorithm", [None, *NAMES])
def test_good_options(algorithm):
    CollectiveOptions(algorithm=algorithm, depth=1)
    CollectiveOptions(algorithm=algorithm, network=ALL)
    if algorithm != NATIVE:
        CollectiveOptions(algorithm=algorithm, depth=8, wire="bfloat16")
        CollectiveOptions(algorithm=algorithm, wire="float16")


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "hierarchy_2", "hierarchy_3", "hierarchy_5"])
def test_whether_many_workers_add_in_rank_order_follows_from_few(algorithm):
    for workers in range(1, 20):
        proof = check(schedule_maker(algorithm)(workers, 3 * workers + 1))
        assert is_in_rank_order(algorithm, workers) == proof.is_rank_order_fold, workers
    began_s = time.perf_counter()
    is_in_rank_order(algorithm, 10_000)
    assert time.perf_counter() - began_s < 5


@pytest.mark.parametrize("workers", [4, 5, 8, 13])
@pytest.mark.parametrize("algorithm", NAMES)
def test_deterministic_algorithms(algorithm, workers):
    options = CollectiveOptions(algorithm=algorithm, deterministic=True)
    assert algorithm == NATIVE or is_in_rank_order(algorithm, workers) == (algorithm in IN_ORDER)
    if algorithm in IN_ORDER:
        options.check_workers(workers)
        return
    for refuse in (options.check_workers, lambda n: choose_collective(options, n, "float32", 1000)):
        with pytest.raises(InputError, match="shuffle, star(,| and| or) chain"):
            refuse(workers)


def test_a_network_of_other_workers():
    options = CollectiveOptions(network=ALL)
    options.check_workers(4)
    options.check_workers(1)
    with pytest.raises(InputError, match=r"\b8\b.*\b4\b|\b4\b.*\b8\b"):
        options.check_workers(8)
    CollectiveOptions(network=NetworkModel.from_costs(1e-4, 1e-9)).check_workers(8)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int32"])
@pytest.mark.parametrize("options", [{}, {"deterministic": True}, {"wire": "float16"}])
def test_without_a_network(options, dtype):
    for elements, algorithm in ((0, "star"), (1, "star"), (10**8, "shuffle")):
        found = choose_collective(CollectiveOptions(**options), 4, dtype, elements)
        assert (found.algorithm, found.depth, found.predicted_s) == (algorithm, 1, None)
        assert "no network model" in found.reason


@pytest.mark.parametrize("workers", [2, 3, 8, 65])
def test_few_bytes_without_a_network(workers):
    """The root of a star gets and sends all of them, once from and to each of the others."""
    most = 2**17 // (2 * (workers - 1) * 4)
    found = [choose_collective(CollectiveOptions(), workers, "float32", most + more).algorithm for more in (0, 1)]
    assert found == ["star", "shuffle"]
    assert choose_collective(CollectiveOptions(algorithm="ring"), workers, "float32", 1).algorithm == "ring"
    assert choose_collective(CollectiveOptions(wire="float16"), workers, "float32", 2 * most).algorithm == "star"


@pytest.mark.parametrize("algorithm", [None, "ring"])
def test_one_worker_with_a_network(algorithm):
    """Whose model has nothing to say then."""
    found = choose_collective(CollectiveOptions(algorithm=algorithm, network=ALL), 1, "float32", 1000)
    assert (found.algorithm, found.depth) == (algorithm or "shuffle", 1)
    assert ("as asked for" if algorithm else "one worker") in found.reason
    assert "no network model" not in found.reason


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_was_asked_for_is_taken(algorithm):
    for model in (None, NetworkModel.from_costs(1e-4, 1e-9)):
        found = choose_collective(CollectiveOptions(algorithm=algorithm, depth=3, network=model), 4, "float32", 1000)
        assert (found.algorithm, found.depth) == (algorithm, 3)
    found = choose_collective(CollectiveOptions(algorithm=algorithm), 4, "float32", 10**6)
    assert (found.algorithm, found.depth) == (algorithm, 1)
    assert choose_collective(CollectiveOptions(depth=5), 4, "float32", 10**6).depth == 5


@pytest.mark.parametrize("algorithm", NAMES)
def test_an_asked_algorithm_is_predicted(algorithm):
    found = choose_collective(CollectiveOptions(algorithm=algorithm, network=ALL), 4, "float32", 10**5)
    assert found.algorithm == algorithm
    assert found.predicted_s == pytest.approx(ALL.choose(400_000, 4, allowed=[algorithm]).prediction.time_s)


@given(st.integers(16, 2**20), st.booleans(), st.sampled_from([None, "float16", "bfloat16"]), st.booleans())
def test_the_choice_is_the_network_s(elements, deterministic, wire, is_complex):
    """Its best of what the options and the dtype leave over, for the bytes that travel."""
    if deterministic:
        wire = None
    options = CollectiveOptions(deterministic=deterministic, wire=wire, network=ALL)
    dtype = "complex64" if is_complex else "float32"
    found = choose_collective(options, 4, dtype, elements)
    is_much_faster = 1.5 * (1e-4 + 1e-9 * 4 * elements) <= 1e-4 + 2e-9 * 4 * elements  # than a ring
    is_native = is_much_faster and not (is_complex or wire)
    expected = "chain" if deterministic else NATIVE if is_native else "ring"
    assert found.algorithm == expected
    best = ALL.choose(elements * (8 if is_complex else 2 if wire else 4), 4, allowed=[expected])
    assert (found.depth, found.predicted_s) == (best.depth, pytest.approx(best.prediction.time_s))


CROSSING = network(star=(10, 10), ring=(100, 1))  # the ring is faster from 10 kB on


@pytest.mark.parametrize(("wire", "algorithm"), [(None, "ring"), ("float16", "star"), ("bfloat16", "star")])
def test_bytes_on_the_wire_decide(wire, algorithm):
    found = choose_collective(CollectiveOptions(wire=wire, network=CROSSING), 4, "float32", 3500)
    assert found.algorithm == algorithm


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("float16", 2), ("bfloat16", 2), ("float32", 4), ("float64", 8), ("int64", 8), ("complex128", 16)],
)
def test_bytes_of_a_dtype(dtype, size):
    found = choose_collective(CollectiveOptions(network=CROSSING, depth=1), 4, dtype, 3500)
    assert found.predicted_s == pytest.approx(min(1e-5 + 1e-8 * 3500 * size, 1e-4 + 1e-9 * 3500 * size))


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_native_cannot_be_asked_for_complex_numbers(dtype):
    with pytest.raises(InputError, match=rf"native.*{dtype}|{dtype}.*native"):
        choose_collective(CollectiveOptions(algorithm=NATIVE), 4, dtype, 1000)


SHARED = network(shuffle=(100, 9), ring=(400, 2), hierarchy_2=(100, 2), hierarchy_4=(100, 8))
"""Hosts of two workers were measured, and as if they had four."""


def test_a_measured_hierarchy_is_chosen():
    chosen = choose_collective(CollectiveOptions(network=SHARED), 4, "float32", 2**16)
    assert chosen.algorithm == "hierarchy_2" and chosen.predicted_s == pytest.approx(100e-6 + 2e-9 * 2**18)
    in_order = choose_collective(CollectiveOptions(network=SHARED, deterministic=True), 4, "float32", 2**16)
    assert in_order.algorithm == "hierarchy_4"  # all four workers on one host: a shuffle
    asked = CollectiveOptions(network=SHARED, algorithm="hierarchy_4")
    assert choose_collective(asked, 4, "float32", 2**16).algorithm == "hierarchy_4"


def test_a_hierarchy_that_is_asked_for():
    chosen = choose_collective(CollectiveOptions(algorithm="hierarchy_2"), 4, "float32", 2**16)
    assert chosen.algorithm == "hierarchy_2" and "as asked for" in chosen.reason
    with pytest.raises(InputError, match="hierarchy_2 does not add the workers' gradients in rank order"):
        CollectiveOptions(algorithm="hierarchy_2", deterministic=True).check_workers(4)
    CollectiveOptions(algorithm="hierarchy_2", deterministic=True).check_workers(2)
    with pytest.raises(InputError, match="no all-reduce algorithm 'hierarchy_1'"):
        CollectiveOptions(algorithm="hierarchy_1")


def test_nothing_is_left():
    fast = network(ring=(100, 1))
    with pytest.raises(InputError, match="ring"):
        choose_collective(CollectiveOptions(deterministic=True, network=fast), 4, "float32", 1000)
    with pytest.raises(InputError, match="native"):
        choose_collective(CollectiveOptions(network=network(native=(100, 1))), 4, "complex64", 1000)


@pytest.mark.parametrize("workers", [2, 3])
def test_small_numbers_of_workers(workers):
    """Whatever adds in rank order is admitted; two workers leave but one order."""
    model = network(workers, **{name: (100, 9 - n) for n, name in enumerate(NAMES)})
    found = choose_collective(CollectiveOptions(deterministic=True, network=model), workers, "float32", 1000)
    assert is_in_rank_order(found.algorithm, workers)


@pytest.mark.parametrize(
    ("workers", "ratio", "between", "alone"),
    [
        (4, 1.2, "ring", "halving_doubling"),
        (4, 1.3, "halving_doubling", "halving_doubling"),
        (2, 1.2, "halving_doubling", "halving_doubling"),
    ],
)
def test_after_a_pause_one_sender_is_preferred(workers, ratio, between, alone):
    """Connections that were idle begin slowly, and several senders to one worker are then too much for its link."""
    times_s = {"halving_doubling": 1.0, "ring": ratio}
    curves = [
        Curve.fitted(workers, name, 1, [Sample(64, 1e-3), Sample(2**20, time_s)]) for name, time_s in times_s.items()
    ]
    network = NetworkModel("", tuple(curves))
    assert network.choose(2**20, workers).algorithm == alone
    chosen = choose_collective(CollectiveOptions(network=network), workers, "float32", 2**18, between_steps=True)
    assert chosen.algorithm == between and chosen.predicted_s == pytest.approx(times_s[between])
