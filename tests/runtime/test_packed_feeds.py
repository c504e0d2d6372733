"""What is fed to a worker in one array: the tensors that it is made of, and the same steps."""

from types import SimpleNamespace

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies
from hypothesis.extra import numpy as arrays_of

import caramel
from caramel.runtime.packed_feeds import PackedFeeds
from caramel.signature import Feed

v1 = tf.compat.v1

DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32"]
DTYPES += ["float64", "bfloat16", "complex64", "complex128"]

DEVICE = "/job:worker/task:0/device:CPU:0"


def packed_for(placeholders):
    """The feeds of one worker, and the graph of its placeholders."""
    with tf.Graph().as_default() as graph:
        for name, (dtype, shape) in placeholders.items():
            v1.placeholder(dtype, shape, name)
    feeds = tuple(Feed(n, tf.as_dtype(d).name, None, True, False, (f"{n}:0",)) for n, (d, _) in placeholders.items())
    signature = SimpleNamespace(workers=1, feeds=feeds, weights=())  # as far as packing looks at it
    return PackedFeeds.of(graph.as_graph_def(), [signature]), graph.as_graph_def()


@strategies.composite
def some_arrays(draw):
    def one(dtype):
        shape = draw(arrays_of.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
        plain = np.frombuffer(draw(strategies.binary(min_size=16, max_size=16)), np.uint8)
        count = int(np.prod(shape))
        if dtype == "bool":
            return np.resize(plain % 2, count).astype(bool).reshape(shape)
        item_bytes = tf.as_dtype(dtype).size
        return np.resize(plain, count * item_bytes).view(tf.as_dtype(dtype).as_numpy_dtype).reshape(shape)

    return [one(draw(strategies.sampled_from(DTYPES))) for _ in range(draw(strategies.integers(2, 5)))]


@hypothesis.given(some_arrays())
@hypothesis.settings(max_examples=60, deadline=None)
def test_arrays_arrive_as_they_are(arrays):
    """Of every element type and shape, not a number among them, and empty."""
    wanted = {f"x{n}": array for n, array in enumerate(arrays)}
    kinds = {name: (array.dtype, [None] * array.ndim) for name, array in wanted.items()}
    packed, graph_def = packed_for(kinds)
    changed = packed.graph_def(graph_def, [DEVICE])
    for node in changed.node:
        node.device = ""
    feeds = packed.feeds({f"{name}:0": array for name, array in wanted.items()})
    assert [*feeds] == ["caramel/worker_0/fed:0"]
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(changed, name="")
    with v1.Session(graph=graph) as session:
        found = session.run({name: f"{name}:0" for name in wanted}, feeds)
        (alone,) = session.run(["x0:0"], {"x0:0": arrays[0]})
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()
    assert alone.tobytes() == arrays[0].tobytes()


def test_what_travels_by_itself():
    kinds = {"text": ("string", [None]), "any": ("float32", None), "x": ("float32", [None]), "y": ("int32", [])}
    packed, graph_def = packed_for(kinds)
    fed = {
        "text:0": np.array([b"a"]), "any:0": np.float32([[1]]), "x:0": np.float32([1, 2]), "y:0": np.int32(3)
    }  # fmt: skip
    assert {*packed.feeds(fed)} == {"text:0", "any:0", "caramel/worker_0/fed:0"}
    ops = {node.name: node.op for node in packed.graph_def(graph_def, [DEVICE]).node}
    assert (ops["text"], ops["any"], ops["x"]) == ("Placeholder", "Placeholder", "PlaceholderWithDefault")
    assert all(node.op == "Placeholder" for node in graph_def.node)


def test_one_tensor_needs_no_array():
    assert packed_for({"x": ("float32", [None])})[0] is None


PROGRAM_INPUTS = {
    "x": np.arange(28, dtype=np.float32).reshape(7, 4) / 28,
    "at": np.arange(7, dtype=np.int32),
    "flags": np.arange(7) % 2 == 0,
    "rate": np.float32(0.1),
}


@pytest.fixture(scope="module")
def context():
    with caramel.capture(loss_reduction="mean") as found:
        x = v1.placeholder(tf.float32, [None, 4], "x")
        at = v1.placeholder(tf.int32, [None], "at")
        flags = v1.placeholder(tf.bool, [None], "flags")
        rate = v1.placeholder(tf.float32, [], "rate")
        w = v1.get_variable("w", [4, 3], initializer=v1.ones_initializer())
        value = tf.matmul(x, w)[:, 0] * tf.cast(at, tf.float32) + tf.cast(flags, tf.float32)
        v1.train.GradientDescentOptimizer(rate).minimize(tf.reduce_mean(value**2))
    return found


@pytest.mark.processes
@pytest.mark.slow
def test_steps_are_the_same_bits_with_one_feed_for_each_worker(context, monkeypatch):
    """With batches that do not divide evenly, so weights travel, too."""
    from caramel.runtime.clusters.launcher_client import ProcessExecutor

    fed = []
    original = ProcessExecutor.run
    monkeypatch.setattr(ProcessExecutor, "run", lambda self, *call: fed.append([*call[2]]) or original(self, *call))
    armodel = caramel.ARModel(context, 3, deterministic=True)

    def trained(cluster):
        with armodel.session(cluster) as session:
            losses = [session.step(PROGRAM_INPUTS).loss for _ in range(3)]
            return losses, session.values()["w"]

    one, other = trained(caramel.LocalProcesses()), trained(caramel.InProcess())
    assert one[0] == other[0] and one[1].tobytes() == other[1].tobytes()
    steps = [names for names in fed if names and not names[0].startswith(("caramel/restore", "caramel/save"))]
    assert steps == [[f"caramel/worker_{rank}/fed:0" for rank in range(3)]] * 3


def test_what_is_too_large_for_one_message_travels_by_itself(monkeypatch):
    monkeypatch.setattr("caramel.runtime.packed_feeds._MOST_BYTES", 300)
    packed, graph_def = packed_for({"x": ("float32", [None]), "y": ("int32", [None])})
    changed = packed.graph_def(graph_def, [DEVICE])
    for node in changed.node:
        node.device = ""
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(changed, name="")
    with v1.Session(graph=graph) as session:
        for count, names in ((10, ["caramel/worker_0/fed:0"]), (20, ["x:0", "y:0"])):
            feeds = packed.feeds({"x:0": np.ones(count, np.float32), "y:0": np.arange(count, dtype=np.int32)})
            assert [*feeds] == names and all(array.nbytes <= 300 for array in feeds.values())
            x, y = session.run(["x:0", "y:0"], feeds)
            assert x.tolist() == [1.0] * count and y.tolist() == [*range(count)]
