"""Lowered collectives, run by TensorFlow on virtual devices, against NumPy."""

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from scheduled import SCHEDULED
from variants import mostly_in_soak

from caramel.collectives.algorithms import schedule_maker
from caramel.collectives.halving_doubling import core_size
from caramel.collectives.lower import Request, lower
from caramel.collectives.schedule import check, in_chunks
from caramel.collectives.sparse import lower_all_gather

v1 = tf.compat.v1
DTYPES = ["float16", "bfloat16", "float32", "float64", "int32", "int64", "complex64"]
STANDARD = {
    "SplitV",
    "Slice",
    "AddV2",
    "RealDiv",
    "Identity",
    "ConcatV2",
    "Cast",
    "Const",
    "PlaceholderWithDefault",
}


def lowered(schedule, dtype, mean, wire=None):
    sources = [f"source_{rank}" for rank in range(schedule.workers)]
    devices = [f"/device:CPU:{rank}" for rank in range(schedule.workers)]
    return lower(schedule, Request("reduce", sources, devices, dtype, schedule.size, mean, wire))


def all_reduce(schedule, arrays, mean=False, wire=None):
    """What every rank gets."""
    dtype = tf.as_dtype(arrays[0].dtype).name
    graph = tf.Graph()
    with graph.as_default():
        for rank, array in enumerate(arrays):
            with tf.device(f"/device:CPU:{rank}"):
                v1.placeholder(dtype, array.shape, name=f"source_{rank}")  # a constant would be folded away
        made = lowered(schedule, dtype, mean, wire)
        graph_def = graph.as_graph_def()
        graph_def.node.extend(n for n, _ in made.nodes)
    with tf.Graph().as_default() as whole:
        tf.import_graph_def(graph_def, name="")
        for result in made.results:
            assert tuple(whole.get_tensor_by_name(f"{result}:0").shape) == arrays[0].shape
        with v1.Session(config=v1.ConfigProto(device_count={"CPU": len(arrays)})) as session:
            feeds = {f"source_{rank}:0": array for rank, array in enumerate(arrays)}
            return session.run([f"{n}:0" for n in made.results], feeds)


def partitions(schedule):
    """The graphs of the devices after grappler; nothing is fed or fetched, which would also be sent."""
    graph = tf.Graph()
    with graph.as_default():
        for rank in range(schedule.workers):
            with tf.device(f"/device:CPU:{rank}"):
                tf.identity(tf.random.uniform([schedule.size]) * 2, name=f"source_{rank}")
        graph_def = graph.as_graph_def()
        made = lowered(schedule, "float32", mean=True)
        graph_def.node.extend(n for n, _ in made.nodes)
    with tf.Graph().as_default() as whole:
        tf.import_graph_def(graph_def, name="")
        for rank, result in enumerate(made.results):
            with tf.device(f"/device:CPU:{rank}"):
                used = tf.reduce_sum(whole.get_tensor_by_name(f"{result}:0"))
                tf.print(used, output_stream="file:///dev/null", name=f"done_{rank}")
        metadata = v1.RunMetadata()
        with v1.Session(config=v1.ConfigProto(device_count={"CPU": schedule.workers})) as session:
            targets = [op for op in whole.get_operations() if op.type == "PrintV2"]
            session.run(targets, options=v1.RunOptions(output_partition_graphs=True), run_metadata=metadata)
    return metadata.partition_graphs


def random_arrays(workers, size, dtype, seed=0):
    rng = np.random.default_rng(seed)
    kind = tf.as_dtype(dtype).as_numpy_dtype
    values = [rng.normal(scale=10, size=size) for _ in range(workers)]
    if dtype == "complex64":
        values = [v + 1j * rng.normal(size=size) for v in values]
    return [v.astype(kind) for v in values]


@pytest.mark.parametrize("name", SCHEDULED)
@pytest.mark.parametrize("workers", mostly_in_soak([1, 2, 3, 5, 8, 13], 1, 2, 3, 8))
def test_every_algorithm_at_awkward_sizes(name, workers):
    for size in (0, 1, workers - 1, workers, 3 * workers + 1):
        for depth in (1, 3):
            arrays = random_arrays(workers, size, "float64", seed=size)
            results = all_reduce(in_chunks(schedule_maker(name), workers, size, depth), arrays)
            for result in results:
                np.testing.assert_array_equal(result, results[0])
                np.testing.assert_allclose(result, sum(arrays), rtol=1e-13, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["shuffle", "star", "chain"])
def test_the_rank_order_fold_in_every_dtype(name, dtype):
    kind = tf.as_dtype(dtype).as_numpy_dtype
    for workers in (2, 3, 5):
        arrays = random_arrays(workers, 17, dtype)
        total = arrays[0]
        for array in arrays[1:]:
            total = (total + array).astype(kind)
        for depth in (1, 4):
            schedule = in_chunks(schedule_maker(name), workers, 17, depth)
            for result in all_reduce(schedule, arrays):
                np.testing.assert_array_equal(result, total)
            if dtype.startswith(("float", "bfloat")):
                for result in all_reduce(schedule, arrays, mean=True):
                    np.testing.assert_array_equal(result, (total / kind(workers)).astype(kind))


@pytest.mark.parametrize("name", ["ring", "halving_doubling"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_other_orders_in_every_dtype(name, dtype):
    arrays = random_arrays(4, 19, dtype)
    exact = sum(a.astype(np.complex128 if dtype == "complex64" else np.float64) for a in arrays)
    if dtype.startswith("int"):
        exact = sum(arrays)
    tolerance = {"float16": 1e-2, "bfloat16": 5e-2, "float32": 1e-5, "float64": 1e-13, "complex64": 1e-5}.get(dtype, 0)
    results = all_reduce(schedule_maker(name)(4, 19), arrays)
    for result in results:
        np.testing.assert_array_equal(result, results[0])
        np.testing.assert_allclose(result.astype(exact.dtype), exact, rtol=tolerance, atol=tolerance * 20)


@pytest.mark.parametrize("name", SCHEDULED)
@pytest.mark.parametrize("workers", [1, 2, 5, 7, 8])
def test_only_standard_ops_where_the_schedule_says(name, workers):
    """No op is on a worker that the schedule does not name, and no message but its own is sent."""
    for depth in (1, 3):
        schedule = in_chunks(schedule_maker(name), workers, 40, depth)
        made = lowered(schedule, "float32", mean=True)
        assert {n.op for n, _ in made.nodes} <= STANDARD
        ranks = {n.name: rank for n, rank in made.nodes}
        ranks.update((f"source_{rank}", rank) for rank in range(workers))
        for node, rank in made.nodes:
            assert node.device == f"/device:CPU:{rank}"
        sent = Counter()
        for tensor, rank in {(t, r) for n, r in made.nodes for t in n.input}:
            source = ranks[tensor.partition(":")[0]]
            if source != rank:
                sent[source] += 1
        assert tuple(sent[r] for r in range(workers)) == check(schedule).sends


@pytest.mark.parametrize("name", SCHEDULED)
def test_tensorflow_sends_just_the_messages_of_the_schedule(name):
    """After grappler and partitioning: what really crosses devices, and how many bytes."""
    for workers, size in ((4, 64), (5, 64), (7, 100)):
        schedule = in_chunks(schedule_maker(name), workers, size, 2)
        sent = Counter()
        for partition in partitions(schedule):
            for node in partition.node:
                if node.op == "_Send":
                    sent[int(node.attr["send_device"].s.decode().rpartition(":")[2])] += 1
        assert tuple(sent[r] for r in range(workers)) == check(schedule).sends


@pytest.mark.parametrize(("wire", "unit"), [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
@pytest.mark.parametrize("name", SCHEDULED)
@pytest.mark.parametrize("workers", [2, 3, 4, 7])
def test_a_narrow_wire_keeps_replicas_identical_within_the_bound(name, workers, wire, unit):
    """The bound of docs/explanation/algorithms.md: (hops + 1) roundings of sums of absolute values."""
    size = 101
    arrays = random_arrays(workers, size, "float32")
    schedule = schedule_maker(name)(workers, size)
    results = all_reduce(schedule, arrays, mean=True, wire=wire)
    exact = sum(a.astype(np.float64) for a in arrays) / workers
    magnitude = sum(np.abs(a.astype(np.float64)) for a in arrays) / workers
    levels = len(core_size(workers)[1])
    hops_of = {"shuffle": 1, "star": 1, "ring": workers - 1, "chain": workers - 1, "halving_doubling": levels}
    hops = hops_of.get(name, 2)  # in a hierarchy in the host, then between hosts
    bound = ((1 + unit) ** (hops + 1) - 1) * magnitude + 1e-5 * magnitude
    for result in results:
        np.testing.assert_array_equal(result, results[0])
        assert (np.abs(result - exact) <= bound).all()
    kind = tf.as_dtype(wire).as_numpy_dtype
    np.testing.assert_array_equal(results[0].astype(kind).astype(np.float32), results[0])


@pytest.mark.parametrize("name", ["shuffle", "star", "chain"])
@pytest.mark.parametrize("workers", [9, 12])
def test_many_ranks_are_added_in_order(name, workers):
    """TensorFlow's AddN adds eight at a time; its optimizers must not put one there."""
    arrays = random_arrays(workers, 40, "float32")
    fold = arrays[0]
    for array in arrays[1:]:
        fold = fold + array
    for result in all_reduce(schedule_maker(name)(workers, 40), arrays):
        np.testing.assert_array_equal(result, fold)


@pytest.mark.parametrize("size", [4 * 4096, 4 * 4096 + 5, 5 * 4096 + 64])
def test_long_tensors_are_cut_without_copies(size):
    """SplitV copies everything where the very end is not aligned; Slices copy only the last piece."""
    made = lowered(schedule_maker("shuffle")(4, size), "float32", mean=False)
    ops = {n.op for n, _ in made.nodes}
    assert ("SplitV" in ops) == (size * 4 % 64 == 0)
    arrays = random_arrays(4, size, "float64")
    for result in all_reduce(schedule_maker("shuffle")(4, size), arrays):
        np.testing.assert_allclose(result, sum(arrays), rtol=1e-13, atol=1e-12)


def test_a_wire_of_the_same_type_is_no_wire():
    schedule = schedule_maker("ring")(3, 10)
    assert [n for n, _ in lowered(schedule, "float32", True, "float32").nodes] == [
        n for n, _ in lowered(schedule, "float32", True).nodes
    ]


def test_empty_shards_are_not_sent():
    made = lowered(schedule_maker("shuffle")(5, 2), "float32", mean=True)
    assert {rank for n, rank in made.nodes if n.op == "AddV2"} == {0, 1}


@pytest.mark.parametrize("mean", [True, False])
def test_slices_are_divided_before_they_are_added_up(mean):
    """The sum of one worker's slices of a row may not fit although the mean over the workers does."""
    workers, slices = 4, 100
    graph = tf.Graph()
    with graph.as_default():
        for rank in range(workers):
            with tf.device(f"/device:CPU:{rank}"):
                v1.placeholder(tf.float16, [None, 1], name=f"values_{rank}")
                v1.placeholder(tf.int32, [None], name=f"indices_{rank}")
        made = lower_all_gather(
            prefix="gather",
            values=[f"values_{rank}" for rank in range(workers)],
            indices=[f"indices_{rank}" for rank in range(workers)],
            devices=[f"/device:CPU:{rank}" for rank in range(workers)],
            dtype="float16",
            index_dtype="int32",
            mean=mean,
            adds=True,
        )
        graph_def = graph.as_graph_def()
        graph_def.node.extend(n for n, _ in made.nodes)
    each = 1024.0 if mean else 256.0
    feeds = {f"values_{rank}:0": np.full((slices, 1), 0.0 if rank else each, np.float16) for rank in range(workers)}
    feeds.update({f"indices_{rank}:0": np.full(slices, 7, np.int32) for rank in range(workers)})
    with tf.Graph().as_default():
        tf.import_graph_def(graph_def, name="")
        with v1.Session(config=v1.ConfigProto(device_count={"CPU": workers})) as session:
            fetches = [f"{name}:0" for name in (*made.values, *made.indices)]
            found = session.run(fetches, feeds)
    for values, indices in zip(found[:workers], found[workers:]):
        np.testing.assert_array_equal(values[:, 0], [25600.0, 0, 0, 0])
        np.testing.assert_array_equal(indices, [7] * workers)
