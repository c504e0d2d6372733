"""Computation beside all-reduces: what is timed is what is said to be."""

import re
from collections import Counter

import pytest
import tensorflow as tf

import caramel
from caramel.collectives.algorithms import Schedules
from caramel.contention import _Computation, measure_contention
from caramel.timing import AllReduceBench, build_for

v1 = tf.compat.v1


class SlowerTogether:
    """A bench on which products take 10 ms and all-reduces 100 ms; at once, 12.5 ms and 110 ms.

    Each worker's clock shows another time of day.
    """

    workers = 3
    devices = tuple(f"/job:worker/task:{rank}/device:CPU:0" for rank in range(3))

    def __init__(self):
        self.repeats = 0
        self.products = {}
        self.loaded = []

    @staticmethod
    def together_s(compute_s, reduce_s):
        return compute_s * 1.25, reduce_s + compute_s * 1.25 * (1 - 1 / 1.1)

    def load(self, size_bytes, builds, repeats):
        self.loaded.append(size_bytes)
        self.repeats = repeats

    def unload(self):
        self.loaded.append(None)

    def ends(self, name):
        return [f"{name}/{rank}:0" for rank in range(self.workers)]

    def extend(self, nodes):
        for made in nodes:
            if made.op == "MatMul":
                scope = made.name.split("/")[0]
                self.products[scope] = self.products.get(scope, 0) + 1 / self.workers

    def fetch(self, fetches, targets):
        if not fetches:
            return []
        computed = {name.split("/")[0] for name in fetches if "/end_" in name}
        is_reducing = any(name.startswith("beside") for name in fetches)
        compute_s = sum(self.products[scope] for scope in computed) * 0.010
        reduce_s = self.repeats * 0.100
        if computed and is_reducing:
            compute_s, reduce_s = self.together_s(compute_s, reduce_s)
        values = []
        for name in fetches:
            rank = int(re.search(r"(\d+):0$", name).group(1))
            passed_s = 0 if "/start_" in name else compute_s if "/end_" in name else reduce_s
            values.append(1e6 * rank + passed_s)
        return values


@pytest.mark.parametrize("all_reduce_s", [0.1, 0.05])
def test_what_is_measured(all_reduce_s):
    """Also with an all-reduce that takes longer here than it did before: then the computation is shorter."""
    bench = SlowerTogether()
    found = measure_contention(bench, 4096, dict.fromkeys(("beside_1", "beside_2"), (None, all_reduce_s)), rounds=3)
    assert list(found) == ["beside_1", "beside_2"]
    assert list(found.values()) == [(pytest.approx(0.2), pytest.approx(1.1))] * 2
    assert bench.loaded == [4096, None] * 2
    assert bench.repeats == round(0.3 / all_reduce_s)


class Stalling(SlowerTogether):
    """Beside computation, all-reduces lose packets and wait for 0.3 s in all; computation is not slower."""

    @staticmethod
    def together_s(compute_s, reduce_s):
        return compute_s, reduce_s + 0.3


def test_pauses_are_not_laid_to_a_computation_that_was_shorter():
    """0.3 s of all-reduces take 0.6 s."""
    found = measure_contention(Stalling(), 4096, {"beside": (None, 0.1)}, rounds=3)
    assert found["beside"] == (pytest.approx(0.0), pytest.approx(2.0))


def test_tensorflow_leaves_no_product_out():
    with AllReduceBench(caramel.InProcess(), 2) as bench:
        bench.load(4096, {"beside": build_for(Schedules(), bench, "ring", 1, 4096)}, 3)
        computation = _Computation(bench, 5)
        fetches = [*computation._starts, *computation._ends, *bench.ends("beside")]
        metadata = v1.RunMetadata()
        options = v1.RunOptions(output_partition_graphs=True)
        bench._executor._session.run(fetches, options=options, run_metadata=metadata)
        ops = Counter(node.op for graph in metadata.partition_graphs for node in graph.node)
        assert ops["MatMul"] + ops["_MklMatMul"] == 2 * 5  # as oneDNN's
        assert ops["Timestamp"] == 3 * 2
        durations = computation.durations(bench.ends("beside"))
        assert 0 < durations.compute_s < 60
        assert 0 < durations.reduce_s < 60
        assert computation.seconds() > 0
