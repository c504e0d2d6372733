"""`caramel.all_reduce` on tensors of a graph: values, places, sparse tensors, and bad input."""

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.collectives.algorithms import ALGORITHMS
from caramel.errors import InputError

v1 = tf.compat.v1
EVERYTHING = [*ALGORITHMS, "native"]


def on_ranks(make, workers):
    """A tensor for each rank, on its device."""
    tensors = []
    for rank in range(workers):
        with tf.device(f"/device:CPU:{rank}"):
            tensors.append(make(rank))
    return tensors


def run(graph, results, workers, feeds=None):
    config = v1.ConfigProto(device_count={"CPU": workers})
    config.experimental.collective_group_leader = "/job:localhost/replica:0/task:0"
    with v1.Session(graph=graph, config=config) as session:
        return session.run(results, feeds or {})


def reduced(arrays, **options):
    """What every rank gets for arrays that TensorFlow cannot fold away."""
    with tf.Graph().as_default() as graph:
        sources = on_ranks(lambda r: v1.placeholder(arrays[r].dtype, arrays[r].shape), len(arrays))
        results = caramel.all_reduce(sources, **options)
        for source, result in zip(sources, results):
            assert result.shape == source.shape
            assert result.device == source.device
        return run(graph, results, len(arrays), dict(zip(sources, arrays)))


def random_arrays(workers, shape, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(scale=3, size=shape).astype(dtype) for _ in range(workers)]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("algorithm", EVERYTHING)
@pytest.mark.parametrize(("workers", "shape"), [(1, (3,)), (2, ()), (3, (4, 5)), (5, (0, 2)), (4, (2, 3, 7))])
def test_every_algorithm(algorithm, workers, shape, reduction):
    arrays = random_arrays(workers, shape, np.float64)
    want = np.sum(arrays, axis=0) / (workers if reduction == "mean" else 1)
    for result in reduced(arrays, algorithm=algorithm, reduction=reduction):
        np.testing.assert_allclose(result, want, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("version", [None, 27])
def test_the_graph_keeps_its_version(version):
    """A graph of an older version, where an op meant something else, shall mean the same after an all-reduce.

    Without a version, TensorFlow takes a graph for one from before 2017, in which placeholders of shape () may be of any.
    """
    with tf.Graph().as_default() as graph:
        if version is not None:
            older = v1.GraphDef()
            older.versions.producer = version
            tf.import_graph_def(older)
        before = graph.as_graph_def().versions
        for _ in range(2):
            sources = on_ranks(lambda _: v1.placeholder(tf.float32, []), 2)
            assert [source.shape.rank for source in sources] == [0, 0]
            results = caramel.all_reduce(sources)
            assert graph.as_graph_def().versions == before
        assert before.producer == (version or tf.version.GRAPH_DEF_VERSION)
        assert run(graph, results, 2, dict(zip(sources, [np.float32(1), np.float32(4)]))) == [2.5, 2.5]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "int64"])
def test_native_in_every_dtype(dtype):
    kind = tf.as_dtype(dtype).as_numpy_dtype
    arrays = [np.arange(10).astype(kind) + kind(rank) for rank in range(3)]
    for result in reduced(arrays, algorithm="native", reduction="sum"):
        np.testing.assert_array_equal(result, sum(arrays))


def test_the_mean_of_native_divides():
    arrays = [np.full(5, x, np.float32) for x in (1.0, 2.0, 4.0)]
    for result in reduced(arrays, algorithm="native"):
        np.testing.assert_array_equal(result, np.float32(7.0) / np.float32(3.0))


@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize("algorithm", ["shuffle", "ring", "halving_doubling", "native"])
def test_a_mean_in_float16_fits_where_the_sum_does_not(algorithm, workers):
    """As the mean over the batch of one device does; the largest float16 is 65504."""
    arrays = [np.full(7, 60000 - 2000 * rank, np.float16) for rank in range(workers)]
    want = np.mean(arrays, axis=0, dtype=np.float64)
    for result in reduced(arrays, algorithm=algorithm):
        np.testing.assert_allclose(result, want, rtol=2.0**-10)
    if algorithm != "native":
        for result in reduced([a.astype(np.float32) for a in arrays], algorithm=algorithm, wire="float16"):
            np.testing.assert_allclose(result, want, rtol=2.0**-9)


def test_a_weighted_mean():
    """Batches of 4, 2 and 1 examples: weights N b_r / B."""
    arrays = random_arrays(3, (6,), np.float64)
    shares = np.array([4, 2, 1])
    weights = 3 * shares / 7
    want = np.average(arrays, axis=0, weights=shares)
    for result in reduced(arrays, weights=list(weights), algorithm="ring"):
        np.testing.assert_allclose(result, want, rtol=1e-13)


@pytest.mark.parametrize("algorithm", ["shuffle", "star", "chain"])
@pytest.mark.parametrize("depth", [1, 2, 5, 8])
def test_deterministic_bits(algorithm, depth):
    arrays = random_arrays(5, (37,))
    fold = arrays[0]
    for array in arrays[1:]:
        fold = fold + array
    for result in reduced(arrays, algorithm=algorithm, depth=depth, deterministic=True, reduction="sum"):
        np.testing.assert_array_equal(result, fold)


def test_the_wire():
    arrays = random_arrays(4, (50,))
    results = reduced(arrays, algorithm="ring", wire="bfloat16")
    exact = np.mean(np.array(arrays, np.float64), axis=0)
    size = np.mean(np.abs(np.array(arrays, np.float64)), axis=0)
    for result in results:
        np.testing.assert_array_equal(result, results[0])
        assert np.all(np.abs(result - exact) <= ((1 + 2.0**-8) ** 4 - 1) * size + 1e-6)
        assert np.any(result != exact.astype(np.float32))
    whole = reduced([a.astype(np.float16) for a in arrays], algorithm="ring", wire="bfloat16")
    np.testing.assert_array_equal(whole, reduced([a.astype(np.float16) for a in arrays], algorithm="ring"))


def test_several_in_one_graph_and_in_a_function():
    @tf.function
    def step(x, y):
        with tf.device("/device:CPU:0"):
            left, right = tf.identity(x), tf.identity(y)
        with tf.device("/device:CPU:0"):
            first = caramel.all_reduce([left, right], algorithm="shuffle", reduction="sum")
            second = caramel.all_reduce([first[0] * 2.0, first[1]], algorithm="ring", reduction="sum")
        return second[0]

    assert step(tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0])).numpy().tolist() == [12.0, 18.0]


def test_a_network_decides():
    network = caramel.NetworkModel.from_costs(alpha_s=1.0, beta_s_per_byte=1e-12)
    with tf.Graph().as_default() as graph:
        sources = on_ranks(lambda r: v1.placeholder(tf.float32, [64]), 8)
        caramel.all_reduce(sources, network=network, name="mine")
    ops = [op.name for op in graph.get_operations() if op.type == "ConcatV2"]
    # Halving-doubling has the fewest messages of 8 workers; it joins once per level and rank.
    assert len(ops) == 3 * 8 and all(name.startswith("mine/") for name in ops)


def test_every_op_is_in_the_scope_and_on_the_device_of_a_worker():
    with tf.Graph().as_default() as graph:
        sources = on_ranks(lambda r: v1.placeholder(tf.float32, [2, 3]), 2)
        given = {op.name for op in graph.get_operations()}
        with tf.name_scope("outer"):
            for _ in range(2):
                caramel.all_reduce(sources, weights=[0.5, np.float64(1.5)], name="mine")
        made = [op for op in graph.get_operations() if op.name not in given]
    assert {op.name.rpartition("/mine")[0] for op in made} == {"outer"}
    assert {op.name.split("/")[1] for op in made} == {"mine", "mine_1"}
    assert {op.device for op in made} == {source.device for source in sources}


def test_the_graph_is_that_of_the_tensors():
    with tf.Graph().as_default() as graph:
        sources = on_ranks(lambda r: v1.placeholder(tf.float32, [3]), 2)
    results = caramel.all_reduce(sources, weights=[1.0, 2.0], reduction="sum")
    got = run(graph, results, 2, {source: np.full(3, rank + 1.0) for rank, source in enumerate(sources)})
    np.testing.assert_array_equal(got, np.full((2, 3), 5.0))


# -- sparse ------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
def test_sparse_tensors_are_gathered(workers, reduction, index_dtype):
    rng = np.random.default_rng(1)
    counts = [0 if rank == 1 else 3 + rank for rank in range(workers)]
    values = [rng.normal(size=(count, 2)) for count in counts]
    places = [rng.integers(0, 6, size=count).astype(index_dtype) for count in counts]
    want = np.zeros((6, 2))
    for value, place in zip(values, places):
        np.add.at(want, place, value / (workers if reduction == "mean" else 1))
    with tf.Graph().as_default() as graph:
        fed = on_ranks(lambda r: (v1.placeholder(tf.float64, [None, 2]), v1.placeholder(index_dtype, [None])), workers)
        slices = [tf.IndexedSlices(v, i, tf.constant([6, 2], tf.int64)) for v, i in fed]
        results = caramel.all_reduce(slices, reduction=reduction)
        assert all(isinstance(r, tf.IndexedSlices) for r in results)
        assert [r.values.device for r in results] == [s.values.device for s in slices]
        assert not any(op.type in ("UnsortedSegmentSum", "ScatterNd") for op in graph.get_operations())
        feeds = {t: a for (v, i), a, p in zip(fed, values, places) for t, a in ((v, a), (i, p))}
        got = run(graph, [(r.values, r.indices) for r in results], workers, feeds)
    for value, place in got:
        dense = np.zeros((6, 2))
        np.add.at(dense, place, value)
        np.testing.assert_allclose(dense, want, rtol=1e-13, atol=1e-14)
        np.testing.assert_array_equal(value, got[0][0])  # the same order everywhere
        np.testing.assert_array_equal(place, got[0][1])


def test_sparse_tensors_on_a_narrow_wire():
    values = random_arrays(2, (3, 4))
    with tf.Graph().as_default() as graph:
        fed = on_ranks(lambda r: v1.placeholder(tf.float32, [3, 4]), 2)
        places = on_ranks(lambda r: tf.constant([0, 2, 1]), 2)
        results = caramel.all_reduce([tf.IndexedSlices(v, i) for v, i in zip(fed, places)], wire="bfloat16")
        got = run(graph, [r.values for r in results], 2, dict(zip(fed, values)))
    kind = tf.bfloat16.as_numpy_dtype
    want = np.concatenate([(v / np.float32(2)).astype(kind).astype(np.float32) for v in values])
    for value in got:
        np.testing.assert_array_equal(value, want)


# -- bad input ---------------------------------------------------------------------------------


def fails(message, make, workers=2, **options):
    with tf.Graph().as_default(), pytest.raises(InputError, match=message):
        caramel.all_reduce(on_ranks(make, workers), **options)


def test_bad_tensors():
    fails("rank 1 has shape \\(3,\\), rank 0 has \\(2,\\)", lambda r: tf.zeros([2 + r]))
    fails("rank 1 has dtype float64, rank 0 has float32", lambda r: tf.zeros([2], [tf.float32, tf.float64][r]))
    fails("rank 0 has the unknown shape", lambda r: v1.placeholder(tf.float32, [None, 2]))
    fails("rank 0 has the unknown shape", lambda r: v1.placeholder(tf.float32))
    fails("tensors of string cannot be reduced", lambda r: tf.constant(["a"]))
    fails("tensors of bool cannot be reduced", lambda r: tf.constant([True]), reduction="sum")
    fails("mean of int32 tensors is no int32", lambda r: tf.constant([1]))
    fails("rank 0 has ndarray, not a tensor of a graph", lambda r: np.zeros(3))
    fails("rank 1 has a dense tensor|rank 1 has a sparse tensor", _dense_then_sparse)
    with tf.Graph().as_default():
        with pytest.raises(InputError, match="at least one tensor"):
            caramel.all_reduce([])
        with pytest.raises(InputError, match="rank 0 is on no device"):
            caramel.all_reduce([tf.zeros([2]), tf.zeros([2])])
    with pytest.raises(InputError, match="not a tensor of a graph"):
        caramel.all_reduce([tf.zeros([2]), tf.zeros([2])])
    with tf.Graph().as_default():
        first = on_ranks(lambda r: tf.zeros([2]), 1)
    fails("tensor of rank 1 is in another graph than that of rank 0", lambda r: tf.zeros([2]) if r else first[0])


def _dense_then_sparse(rank):
    return tf.IndexedSlices(tf.zeros([1]), tf.zeros([1], tf.int32)) if rank else tf.zeros([2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "tree"}, "no all-reduce algorithm 'tree'; there are shuffle, star, ring, .*native"),
        ({"depth": 0}, "depth .* at least 1, got 0"),
        ({"depth": -3}, "depth .* at least 1, got -3"),
        ({"depth": 1.5}, "depth .* whole number"),
        ({"depth": True}, "depth .* whole number"),
        ({"reduction": "max"}, "'mean' or 'sum', got 'max'"),
        ({"wire": "int8"}, "bfloat16 or float16, got 'int8'"),
        ({"wire": "bfloat16", "deterministic": True}, "exclude each other"),
        ({"algorithm": "ring", "deterministic": True}, "rank order.*use one of shuffle, star, chain"),
        ({"algorithm": "halving_doubling", "deterministic": True}, "rank order"),
        ({"algorithm": "native", "deterministic": True}, "rank order"),
        ({"algorithm": "native", "wire": "float16"}, "leave out wire="),
        ({"algorithm": "native", "depth": 2}, "not cut in chunks"),
        ({"weights": [1.0]}, "1 weights for 4 tensors"),
        ({"devices": ["/CPU:0"]}, "1 devices for 4 tensors"),
    ],
)
def test_bad_options(options, message):
    fails(message, lambda r: tf.zeros([2]), workers=4, **options)


def test_bad_weights():
    fails("int32 tensors cannot be weighted", lambda r: tf.constant([1]), reduction="sum", weights=[1, 2])
    fails("weight of rank 1 must be a scalar", lambda r: tf.zeros([2]), weights=[1.0, [1.0, 2.0]])


def test_options_that_mean_nothing_for_sparse_tensors():
    def slices(rank):
        return tf.IndexedSlices(tf.zeros([1, 2]), tf.zeros([1], tf.int32), tf.constant([4 + rank, 2]))

    fails("leave out algorithm= and depth=", slices, algorithm="ring")
    fails("leave out algorithm= and depth=", slices, depth=2)
    fails("rank 1 has the dense shape \\[5, 2\\], rank 0 has \\[4, 2\\]", slices)


def test_native_groups_do_not_meet():
    """Two pairs of workers, then all four, in one graph."""
    with tf.Graph().as_default() as graph:
        sources = on_ranks(lambda r: v1.placeholder(tf.float32, [3]), 4)
        left = caramel.all_reduce(sources[:2], algorithm="native", reduction="sum")
        right = caramel.all_reduce(sources[2:], algorithm="native", reduction="sum")
        everything = caramel.all_reduce([*left, *right], algorithm="native", reduction="sum")
        feeds = {source: np.full(3, float(rank)) for rank, source in enumerate(sources)}
        got = run(graph, [*left, *right, *everything], 4, feeds)
    assert [g[0] for g in got] == [1.0, 1.0, 5.0, 5.0, *[12.0] * 4]


def test_the_work_goes_around():
    """Several small all-reduces by star have different roots."""
    with tf.Graph().as_default() as graph:
        sources = on_ranks(lambda r: v1.placeholder(tf.float32, [3]), 3)
        for _ in range(3):
            caramel.all_reduce(sources, algorithm="star")
    assert len({op.device for op in graph.get_operations() if op.type == "AddV2"}) == 3


def test_a_file_of_a_network(tmp_path):
    from caramel.netmodel.file import save

    save(caramel.NetworkModel.from_costs(1e-3, 1e-9), tmp_path / "network.json")
    with tf.Graph().as_default():
        caramel.all_reduce(on_ranks(lambda r: tf.zeros([2]), 2), network=tmp_path / "network.json")
    fails("cannot be read", lambda r: tf.zeros([2]), network=tmp_path / "missing.json")


def test_native_does_not_reduce_complex_numbers():
    fails("native all-reduce cannot reduce complex64", lambda r: tf.zeros([2], tf.complex64), algorithm="native")


def test_a_network_of_another_size(tmp_path):
    from caramel.netmodel.line import Curve, Sample

    curve = Curve.fitted(2, "ring", 1, [Sample(64, 1e-3), Sample(4096, 2e-3)])
    network = caramel.NetworkModel("measured", (curve,))
    fails("measured with 2 workers, not with 3", lambda r: tf.zeros([2]), workers=3, network=network)
