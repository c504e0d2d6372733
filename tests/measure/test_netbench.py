"""Measuring a network: on virtual devices, where it is quick; that wrong results are noticed."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from run_metadata import metadata_of
from variants import in_soak

import caramel
from caramel.collectives.algorithms import ALGORITHMS, ALL_REDUCE_NAMES, NATIVE, Schedules
from caramel.collectives.schedule import check, in_chunks
from caramel.errors import ClusterError, InputError, InvariantError
from caramel.measure.all_reduce_bench import ELEMENT_BYTES, AllReduceBench, build_for
from caramel.measure.netbench import Settings, _expected_s, _sizes_beside, measure_network
from caramel.netmodel.file import load, save
from caramel.netmodel.line import Sample
from caramel.runtime.host.run_options import RunOptions

v1 = tf.compat.v1
SIZES = (64, 2**16)
MEASURED = ("shuffle", "ring", "native")


@pytest.fixture(scope="module")
def short():
    """Steps are short and rivals few: that makes times less exact, which no test looks at, and graphs smaller."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("caramel.measure.netbench.repetitions", lambda size_bytes, expected_s: 2)
        patch.setattr("caramel.measure.contention_bench._MAX_REPEATS", 2)
        patch.setattr("caramel.measure.contention_bench._MAX_PRODUCTS", 8)
        yield


@pytest.fixture(scope="module")
def network(short):
    settings = Settings(sizes=SIZES, algorithms=MEASURED, depths=(1, 2), rounds=1, candidates=2)
    # TensorFlow's optimizers take most of the time where a graph grows as this one; other tests here have them.
    cluster = caramel.InProcess(RunOptions(optimize_graph=False))
    return measure_network(cluster, [2, 3], settings, "virtual devices")


def test_the_hierarchy_of_shared_hosts_is_measured(short, monkeypatch):
    """Of two workers on each of two hosts; not where all are on one, where it is a shuffle, or where others are asked."""
    monkeypatch.setattr(caramel.InProcess, "hosts_of", lambda self, devices: [int(d[-1]) // 2 for d in devices])
    cluster = caramel.InProcess(RunOptions(optimize_graph=False))
    settings = Settings(SIZES, ("shuffle",), (1,), rounds=1, contention=False)
    network = measure_network(cluster, [2, 4], settings)
    assert {(c.workers, c.algorithm) for c in network.curves} == {(2, "shuffle"), (4, "shuffle"), (4, "hierarchy_2")}
    without = measure_network(cluster, [4], replace(settings, hierarchy=False))
    assert {c.algorithm for c in without.curves} == {"shuffle"}


def test_devices_that_are_given(short):
    settings = Settings(SIZES, ("star",), (1,), rounds=1, contention=False)
    given = [f"/device:CPU:{rank}" for rank in (2, 0, 1)]
    cluster = caramel.InProcess(RunOptions(optimize_graph=False))
    network = measure_network(cluster, [2, 3], settings, device_list=given)
    assert network.workers == (2, 3)
    with AllReduceBench(cluster, 2, device_list=given) as bench:
        assert [device[-5:] for device in bench.devices] == ["CPU:2", "CPU:0"]
    for bad, message in ((given[:1], "2 workers need as many devices, got 1"), (given[:1] * 2, "give each worker its")):
        with pytest.raises(InputError, match=message):
            measure_network(cluster, [2], settings, device_list=bad)


def test_everything_is_measured(network):
    assert network.workers == (2, 3)
    assert {(c.algorithm, c.depth) for c in network.curves} == {
        *((name, depth) for name in MEASURED[:2] for depth in (1, 2)),
        ("native", 1),
    }
    for curve in network.curves:
        assert {s.size_bytes for s in curve.samples} <= set(SIZES)
        assert len(curve.samples) >= 2
        assert all(0 < s.time_s < 1 for s in curve.samples)
    assert 0 < network.gamma_s_per_byte < 1e-8
    measured = list(dict.fromkeys((c.workers, c.size_bytes) for c in network.contentions))
    assert measured == [(2, 2**16), (2, 64), (3, 2**16), (3, 64)]
    for workers, size in measured:
        chosen = network.choose(size, workers)
        kinds = [(c.algorithm, c.depth) for c in network.contentions if (c.workers, c.size_bytes) == (workers, size)]
        assert (chosen.algorithm, chosen.depth) in kinds
        assert ("shuffle", 1) in kinds  # has few rounds, and may win where several are under way
        assert len(set(kinds)) == len(kinds)
    kinds = {
        size: {(c.algorithm, c.depth) for c in network.contentions if (c.workers, c.size_bytes) == (3, size)}
        for size in (64, 2**16)
    }
    assert kinds[2**16] <= kinds[64]
    for each in network.contentions:
        assert 0 <= each.processor_share <= 0.95
        assert each.slowdown >= 1
        assert each.occupancy is None or each.occupancy > 0  # None: of so few products none lasts long enough
    assert any(each.occupancy is not None for each in network.contentions)


@pytest.mark.parametrize(
    ("sizes", "beside"),
    [
        ((64, 2**12, 2**14, 2**18, 2**20, 2**22, 2**25), [2**22, 2**18, 2**12]),
        ((2**12, 2**20, 2**22), [2**22, 2**12]),  # 1 MiB is too like 4 MiB, and there is nothing in between
        ((64, 2**20), [2**20, 64]),
        ((2**23, 2**24), [2**23, 64]),  # 64 bytes are always measured
    ],
)
def test_sizes_that_are_measured_beside_computation(sizes, beside):
    assert _sizes_beside(Settings(sizes=sizes)) == beside
    assert _sizes_beside(Settings(sizes=sizes, sizes_beside=2)) == [beside[0], beside[-1]]
    assert _sizes_beside(Settings(sizes=sizes, contention=False)) == []
    assert min(Settings(sizes=sizes).sizes) == 64


def test_what_is_not_wanted_is_not_measured():
    settings = Settings(sizes=(64, 256), algorithms=("star",), depths=(1,), rounds=1, contention=False)
    assert measure_network(caramel.InProcess(), [2], settings).contentions == ()


def test_it_can_be_used(network, tmp_path):
    save(network, tmp_path / "network.json")
    assert load(tmp_path / "network.json") == network
    for workers in (2, 3):
        assert network.choose(2**10, workers).prediction.basis == "measured"
    assert network.choose(2**10, 6).prediction.basis == "extrapolated"


@pytest.mark.parametrize(
    ("algorithm", "depth"), [*((name, depth) for name in ALGORITHMS for depth in (1, 2)), (NATIVE, 1)]
)
def test_tensorflow_optimises_nothing_away(algorithm, depth):
    """After grappler and partitioning, a step has all messages of all its all-reduces."""
    workers, size_bytes = 3, 2**16
    with AllReduceBench(caramel.InProcess(), workers, uses_native=algorithm == NATIVE) as bench:
        bench.load(size_bytes, {"one": build_for(Schedules(), bench, algorithm, depth, size_bytes)})
        targets, repeats = bench._targets["one"]
        metadata = metadata_of(bench._executor, *targets)
    ops = Counter(node.op for graph in metadata.partition_graphs for node in graph.node)
    assert repeats > 1
    if algorithm == NATIVE:
        assert ops["CollectiveReduceV2"] == repeats * workers
    else:
        sends = check(in_chunks(ALGORITHMS[algorithm], workers, size_bytes // ELEMENT_BYTES, depth)).sends
        assert ops["_Send"] == repeats * sum(sends)


class TwoAtMost(caramel.InProcess):
    """A cluster on which no more than two workers start."""

    def start(self, graph_def, devices, timeout_s):
        if len(devices) > 2:
            raise ClusterError("no third worker")
        return super().start(graph_def, devices, timeout_s)


def test_what_is_done_is_handed_out_whatever_happens_to_the_next():
    seen = []
    settings = Settings(sizes=(64, 256), algorithms=("star",), depths=(1,), rounds=1)
    with pytest.raises(ClusterError, match="no third worker"):
        measure_network(TwoAtMost(), [3, 2], settings, on_network=seen.append)
    assert [each.workers for each in seen] == [(2,)]


def test_what_has_no_rival_is_not_timed_again():
    with AllReduceBench(caramel.InProcess(), 2) as bench:
        bench.load(64, {"alone": build_for(Schedules(), bench, "ring", 1, 64)})
        assert len(bench.measure(3)["alone"]) == 3


@pytest.mark.parametrize(("step_s", "rounds"), [(0.5, 7), (1.0, 5), (4.0, 2), (60.0, 2)])
def test_long_steps_are_timed_less_often(monkeypatch, step_s, rounds):
    with AllReduceBench(caramel.InProcess(), 2) as bench:
        bench.load(64, {name: build_for(Schedules(), bench, name, 1, 64) for name in ("ring", "star")})
        monkeypatch.setattr(bench, "_timed", lambda targets: step_s)
        assert {len(times) for times in bench.measure(7).values()} == {2 * rounds}  # both are equally fast
        assert {len(times) for times in bench.measure(7, prune=False).values()} == {7}


@pytest.mark.parametrize("bytes_per_s", [8e6, 8e5])
def test_a_burst_is_no_rate(monkeypatch, bytes_per_s):
    """A link that was idle lets 32 KB through at once: steps of 16 or 48 KB take as long as their bytes, the first not."""
    now_s, filled_s, left_bytes, step_bytes = 0.0, 0.0, 32e3, 16e3 if bytes_per_s > 1e6 else 48e3

    def run(targets):
        nonlocal now_s, filled_s, left_bytes
        left_bytes = min(left_bytes + bytes_per_s * (now_s - filled_s), 32e3) - step_bytes
        filled_s = now_s
        now_s += max(-left_bytes, 0.0) / bytes_per_s + 1e-5

    with AllReduceBench(caramel.InProcess(), 2) as bench, monkeypatch.context() as patch:
        patch.setattr(bench, "_run", run)
        patch.setattr("caramel.measure.all_reduce_bench.time.perf_counter", lambda: now_s)
        times_s = []
        for _ in range(3):
            now_s += 1.0
            times_s.append(bench._timed(["step"]))
    assert times_s == pytest.approx([step_bytes / bytes_per_s] * 3, rel=0.02)


def test_sizes_that_take_too_long_are_left_out():
    sizes = (64, 2**25, 2**26, 2**27)  # 32 MiB take more than some milliseconds on any machine
    settings = Settings(sizes, ("star",), (1,), rounds=1, contention=False, longest_s=1e-3)
    (curve,) = measure_network(caramel.InProcess(), [2], settings).curves
    assert [sample.size_bytes for sample in curve.samples] == [64, 2**25]


@pytest.mark.parametrize(
    ("times_s", "expected_s"), [([], 0.0), ([1.0], 0.0), ([1.0, 2.0], 4.0), ([9.0, 1.0, 2.0], 4.0), ([2.0, 1.0], 1.0)]
)
def test_how_long_a_larger_size_will_take(times_s, expected_s):
    """By a line through the last two: here each size is 10 bytes larger, and 20 bytes more are asked for."""
    fastest = [Sample(10 * number, time_s) for number, time_s in enumerate(times_s)]
    assert _expected_s(fastest, 10 * len(times_s) + 10) == expected_s


def test_wrong_results_are_noticed():
    with AllReduceBench(caramel.InProcess(), 2) as bench:
        right = build_for(Schedules(), bench, "ring", 1, 64)

        def wrong(repetition, scope, sources):
            lowered = right(repetition, scope, sources)
            lowered.results = list(sources)
            return lowered

        bench.load(64, {"right": right, "wrong": wrong})
        with pytest.raises(InvariantError, match=r"wrong gave \[1.0, 2.0\] instead of 1.5"):
            bench.measure(1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": (64,)}, "at least 2 different sizes"),
        ({"sizes": (1, 64)}, "at least 4 bytes"),
        ({"algorithms": ("tree",)}, "no all-reduce algorithm 'tree'"),
        ({"algorithms": ()}, "at least one algorithm"),
        ({"sizes": ("64", "4096")}, "size must be a whole number.*'64'"),
        ({"depths": (0,)}, "depth must be a whole number of at least 1"),
        ({"depths": ("2",)}, "depth must be a whole number.*'2'"),
        ({"depths": ()}, "at least one depth"),
        ({"rounds": 0}, "rounds must be a whole number of at least 1"),
        ({"rounds": "3"}, "rounds must be a whole number.*'3'"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(InputError, match=message):
        Settings(**options)


def test_settings_from_numpy_can_be_saved(tmp_path):
    settings = Settings(sizes=2 ** np.array([6, 9]), algorithms=("star",), depths=np.array([1]), rounds=np.int64(1))
    network = measure_network(caramel.InProcess(), np.array([2]), settings)
    save(network, tmp_path / "network.json")
    assert load(tmp_path / "network.json") == network
    with pytest.raises(InputError, match="number of workers must be a whole number.*'2'"):
        measure_network(caramel.InProcess(), ["2"], settings)


def test_one_worker_has_nothing_to_measure():
    with pytest.raises(InputError, match="at least 2 workers, got 1"):
        measure_network(caramel.InProcess(), [1])
    with pytest.raises(InputError, match="at least one number of workers"):
        measure_network(caramel.InProcess(), [])


@pytest.mark.soak  # as test_measure_and_train_on_servers, in the tests of clusters
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("algorithms", [("shuffle", NATIVE), *in_soak((ALL_REDUCE_NAMES,))], ids=["some", "all"])
def test_on_processes(algorithms):
    settings = Settings(sizes=(64, 2**20), algorithms=algorithms, depths=(1,), rounds=1)
    network = measure_network(caramel.LocalProcesses(), [2], settings)
    assert {c.algorithm for c in network.curves} == {*algorithms}
    assert {c.algorithm for c in network.contentions} >= {"shuffle"}


def test_sizes_for_which_there_is_no_time_are_left_out():
    settings = Settings((64, 2**12, 2**14, 2**16), ("star",), (1,), rounds=1, contention=False, budget_s=1e-6)
    (curve,) = measure_network(caramel.InProcess(), [2], settings).curves
    assert [sample.size_bytes for sample in curve.samples] == [64, 2**12]


@pytest.mark.parametrize("budget_s", [0.0, -1.0, float("nan")])
def test_a_budget_that_is_none(budget_s):
    with pytest.raises(caramel.InputError, match="budget_s must be positive"):
        Settings(budget_s=budget_s)
