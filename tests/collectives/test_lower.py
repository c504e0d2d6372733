"""Lowered collectives, run by TensorFlow on virtual devices, against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from caramel.collectives.lower import lower
from caramel.collectives.shuffle import shuffle
from caramel.graph.graph import parse_input

v1 = tf.compat.v1
DTYPES = ["float16", "bfloat16", "float32", "float64", "complex64"]


def all_reduce(arrays, mean, dtype):
    workers, shape = len(arrays), arrays[0].shape
    devices = [f"/device:CPU:{rank}" for rank in range(workers)]
    graph = tf.Graph()
    with graph.as_default():
        for rank, array in enumerate(arrays):
            with tf.device(devices[rank]):
                v1.placeholder(dtype, array.shape, name=f"source_{rank}")  # a constant would be folded away
        lowered = lower(
            shuffle(workers, arrays[0].size),
            prefix="reduce",
            sources=[f"source_{rank}" for rank in range(workers)],
            devices=devices,
            dtype=dtype,
            shape=shape,
            mean=mean,
        )
        graph_def = graph.as_graph_def()
        graph_def.node.extend(n for n, _ in lowered.nodes)
    for made, rank in lowered.nodes:
        assert made.device == devices[rank]
    with tf.Graph().as_default() as whole:
        tf.import_graph_def(graph_def, name="")
        for result in lowered.results:
            assert tuple(whole.get_tensor_by_name(f"{parse_input(result)[0]}:0").shape) == shape
        with v1.Session(config=v1.ConfigProto(device_count={"CPU": workers})) as session:
            feeds = {f"source_{rank}:0": array for rank, array in enumerate(arrays)}
            return session.run([f"{name}:0" for name in lowered.results], feeds), lowered


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8])
def test_mean_and_sum_in_every_dtype(workers, dtype):
    rng = np.random.default_rng(workers)
    numpy_dtype = tf.as_dtype(dtype).as_numpy_dtype
    for shape in ((), (1,), (workers - 1,), (workers,), (2, 3), (0, 3), (3, workers, 2), (17,)):
        arrays = [np.asarray(rng.normal(size=shape)).astype(numpy_dtype) for _ in range(workers)]
        total = arrays[0]
        for array in arrays[1:]:
            total = (total + array).astype(numpy_dtype)
        for mean in (False, True):
            expected = (total / numpy_dtype(workers)).astype(numpy_dtype) if mean and workers > 1 else total
            results, _ = all_reduce(arrays, mean, dtype)
            for result in results:
                if dtype == "complex64":  # complex division rounds differently in NumPy
                    np.testing.assert_allclose(result, expected, rtol=1e-6)
                else:
                    np.testing.assert_array_equal(result, expected)


def test_empty_shards_are_not_sent():
    _, lowered = all_reduce([np.ones(2, np.float32)] * 5, True, "float32")
    owners = {rank for n, rank in lowered.nodes if n.op == "AddV2"}
    assert owners == {0, 1}


def test_only_standard_ops():
    _, lowered = all_reduce([np.ones((4, 5), np.float32)] * 3, True, "float32")
    standard = {"Reshape", "SplitV", "AddV2", "RealDiv", "Identity", "ConcatV2", "Const", "PlaceholderWithDefault"}
    assert {n.op for n, _ in lowered.nodes} <= standard
