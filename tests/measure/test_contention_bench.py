"""Computation beside all-reduces: what is timed is what is said to be."""

import re
from collections import Counter

import pytest
import tensorflow as tf
from run_metadata import metadata_of

import caramel
from caramel.collectives.algorithms import Schedules
from caramel.facts import BACKWARD, Boundaries, Boundary, Piece, Schedule, Scheduled
from caramel.measure.all_reduce_bench import AllReduceBench, build_for
from caramel.measure.contention_bench import _Computation, measure_contention
from caramel.simulator import simulate

v1 = tf.compat.v1


class SlowerTogether:
    """A bench on which products take 10 ms and all-reduces 100 ms; at once, 12.5 ms and 110 ms.

    Of several all-reduces at once each one more takes 60 ms, whatever else goes on.

    Each worker's clock shows another time of day.
    """

    workers = 3
    computing_threads = 1
    devices = tuple(f"/job:worker/task:{rank}/device:CPU:0" for rank in range(3))

    def __init__(self):
        self.repeats = self.products = 0
        self.loaded = []
        self.mostly_covered = []
        self.is_at_once = False

    @staticmethod
    def together_s(compute_s, reduce_s):
        return compute_s * 1.25, reduce_s + compute_s * 1.25 * (1 - 1 / 1.1)

    @staticmethod
    def at_once_s(count):
        return 0.110 + (count - 1) * 0.060

    def load(self, size_bytes, builds, repeats, at_once=False):
        self.loaded.append((size_bytes, repeats, at_once))
        self.repeats = repeats
        self.is_at_once = at_once

    def unload(self):
        self.loaded.append(None)

    def ends(self, name):
        return [f"{name}/{rank}:0" for rank in range(self.workers)]

    def extend(self, nodes):
        assert sum(made.op == "MatMul" for made in nodes) == self.workers  # each in a loop

    def fetch(self, fetches, targets, feeds=None):
        if feeds:
            (self.products,) = feeds.values()
        if not fetches:
            return []
        assert all(name.startswith(("beside", "at_once", "contention")) for name in fetches)
        computed = {name.split("/")[0] for name in fetches if "/end_" in name}
        is_reducing = any(name.startswith(("beside", "at_once")) for name in fetches)
        compute_s = len(computed) * self.products * 0.010
        reduce_s = self.repeats * 0.100
        if computed and is_reducing:
            compute_s, reduce_s = self.together_s(compute_s, reduce_s)
            if self.is_at_once:
                reduce_s = self.at_once_s(self.repeats)
                compute_s = min(compute_s, self.products * 0.010 + 0.2 * reduce_s)
                self.mostly_covered.append(compute_s > 0.8 * reduce_s)
        values = []
        for name in fetches:
            rank = int(re.search(r"(\d+):0$", name).group(1))
            passed_s = 0 if "/start_" in name else compute_s if "/end_" in name else reduce_s
            values.append(1e6 * rank + passed_s)
        return values


@pytest.mark.parametrize("all_reduce_s", [0.1, 0.05])
def test_what_is_measured(all_reduce_s):
    """Also with an all-reduce that takes longer here than it did before: then the computation is shorter.

    What all-reduces take from computation is that of several at once: a fifth of their time, over their number.
    """
    bench = SlowerTogether()
    found = measure_contention(bench, 4096, dict.fromkeys(("beside_1", "beside_2"), (None, all_reduce_s)), rounds=3)
    assert list(found) == ["beside_1", "beside_2"]
    count = max(round(0.3 / all_reduce_s), 4)
    assert [vars(each) for each in found.values()] == [
        {
            "processor_share": pytest.approx(0.2 * bench.at_once_s(count) / count / 0.110),
            "slowdown": pytest.approx(1.1),
            "occupancy": pytest.approx(0.6),
        }
    ] * 2
    repeats = round(0.3 / all_reduce_s)
    assert bench.loaded == [(4096, repeats, False), None, (4096, max(repeats, 4), True), None] * 2
    assert bench.mostly_covered[-2:] == [True] * 2


@pytest.mark.parametrize(("all_reduce_s", "count"), [(1e-3, 32), (0.05, 6), (0.1, 4), (2.0, 4)])
def test_so_many_are_under_way_at_once(all_reduce_s, count):
    bench = SlowerTogether()
    measure_contention(bench, 4096, {"beside": (None, all_reduce_s)}, rounds=1)
    assert bench.loaded[2] == (4096, count, True)


def test_several_at_once_are_measured_beside_computation_all_the_time():
    """They were expected to take a hundredth of it, so that the first computation is over long before them."""
    bench = SlowerTogether()
    found = measure_contention(bench, 4096, {"beside": (None, 1e-3)}, rounds=2)
    assert bench.mostly_covered == [False] + [True] * 2
    assert found["beside"].occupancy == pytest.approx(0.6)


def test_the_simulator_gives_the_time_that_was_measured():
    """Occupancy and slowdown mean there what they mean here."""
    found = measure_contention(SlowerTogether(), 4096, {"beside": (None, 0.05)}, rounds=1)["beside"]
    gradients = tuple(Boundary(f"g{n}", "float32", 1024, 4096.0, 0.0, 0.0) for n in range(6))
    plan = Schedule(tuple(Scheduled((Piece(g.name, 0, 1024),), BACKWARD, "") for g in gradients), "")
    channel_s, lag_s = found.occupancy * 0.1, (found.slowdown - found.occupancy) * 0.1
    step = simulate(Boundaries(gradients, 0.0), plan, lambda size: channel_s, lambda size: lag_s)
    assert step.iteration_s == pytest.approx(0.110 + 5 * 0.060)


class NeverCovered(SlowerTogether):
    """Of several all-reduces at once each takes half an hour, longer than any computation."""

    def fetch(self, fetches, targets, feeds=None):
        values = super().fetch(fetches, targets, feeds)
        reducing = [self.is_at_once and "at_once" in name for name in fetches]
        return [value + 1800 * is_longer for value, is_longer in zip(values, reducing)]


def test_without_computation_beside_all_of_them_nothing_is_said_of_several_at_once():
    found = measure_contention(NeverCovered(), 4096, {"beside": (None, 0.1)}, rounds=2)["beside"]
    assert (found.slowdown, found.occupancy) == (pytest.approx(1.1), None)


class Stalling(SlowerTogether):
    """Beside computation, all-reduces lose packets and wait for 0.3 s in all; computation is not slower."""

    @staticmethod
    def together_s(compute_s, reduce_s):
        return compute_s, reduce_s + 0.3


def test_pauses_are_not_laid_to_a_computation_that_was_shorter():
    """0.3 s of all-reduces take 0.6 s."""
    found = measure_contention(Stalling(), 4096, {"beside": (None, 0.1)}, rounds=3)
    assert (found["beside"].processor_share, found["beside"].slowdown) == (pytest.approx(0.0), pytest.approx(2.0))


@pytest.mark.parametrize("products", [0, 1, 5])
@pytest.mark.parametrize(("threads", "loops"), [(1, 1), (2, 2), (3, 2)])
def test_tensorflow_leaves_no_product_out(products, threads, loops):
    with AllReduceBench(caramel.InProcess(caramel.RunOptions(inter_op_threads=threads)), 2) as bench:
        bench.load(4096, {"beside": build_for(Schedules(), bench, "ring", 1, 4096)}, 3)
        computation = _Computation(bench)
        fetches = [*computation._starts, *computation._ends, *bench.ends("beside")]
        computation.seconds(products)
        metadata = metadata_of(bench._executor, *fetches)
        ops = Counter(node.op for graph in metadata.partition_graphs for node in graph.node)
        assert ops["MatMul"] + ops["_MklMatMul"] == 2 * loops  # as oneDNN's
        assert ops["Timestamp"] == 3 * 2
        runs = [stats.node_name for device in metadata.step_stats.dev_stats for stats in device.node_stats]
        assert sum(name.endswith("/multiply") for name in runs) == 2 * loops * products
        durations = computation.durations(products, bench.ends("beside"))
        assert 0 < durations.compute_s < 60
        assert 0 < durations.reduce_s < 60
        assert 0 < computation.seconds(products) < 60
        assert 0 < computation.reduce_seconds(bench.ends("beside")) < 60


def test_all_reduces_at_once_have_the_same_root_and_wait_for_none_of_each_other():
    with AllReduceBench(caramel.InProcess(), 3) as bench:
        for at_once in (False, True):
            bench.load(4096, {"found": build_for(Schedules(), bench, "star", 1, 4096)}, 4, at_once)
            metadata = metadata_of(bench._executor, *bench.ends("found"))
            nodes = {node.name: node for graph in metadata.partition_graphs for node in graph.node}
            adding = [n.device for n in nodes.values() if "reduce_" in n.name and n.op in ("AddN", "AddV2", "Add")]
            assert (len(set(adding)) == 1) == at_once
            assert len(adding) == 4 * 2  # two additions each; none is taken for another
            clocks = [n for n in nodes.values() if n.op == "Timestamp"]
            assert len(clocks) == 3
            waits = [sum(text.startswith("^") for text in n.input) for n in clocks]
            assert waits == [4 if at_once else 1] * 3
            bench.unload()
