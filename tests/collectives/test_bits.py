"""Whatever TensorFlow's optimizers do: sums are the rank-order left fold, and nothing that is emitted gets other bits.

Here a sample; `make soak` has every number of workers, algorithm and depth, and every switch of the optimizers.
"""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import rewriter_config_pb2

import caramel
from caramel.collectives.algorithms import ALGORITHMS
from caramel.netmodel.choice import is_in_rank_order

v1 = tf.compat.v1
Rewriter = rewriter_config_pb2.RewriterConfig
TOGGLES = [
    field.name
    for field in Rewriter.DESCRIPTOR.fields
    if field.enum_type is not None and field.enum_type.name == "Toggle" and "mixed_precision" not in field.name
]
"""All switches of TensorFlow's optimizers but automatic mixed precision, which is to change numbers."""

VALUES = {"off": Rewriter.OFF, "on": Rewriter.ON, "aggressive": Rewriter.AGGRESSIVE}
WORKERS = [*range(2, 18), 24, 32, 64]
IN_ORDER = ("shuffle", "star", "chain")


def arrays_of(workers, dtype=np.float32, size=None):
    rng = np.random.default_rng(workers)
    return (10 * rng.normal(size=(workers, size or 4 * workers + 3))).astype(dtype)


def reduced(arrays, switches=None, **options):
    """What every rank gets, with some of the optimizers' switches set."""
    workers = len(arrays)
    config = v1.ConfigProto(device_count={"CPU": workers}, inter_op_parallelism_threads=2)
    for name, value in (switches or {}).items():
        setattr(config.graph_options.rewrite_options, name, value)
    with tf.Graph().as_default():
        inputs = []
        for rank, array in enumerate(arrays):
            with tf.device(f"/device:CPU:{rank}"):
                inputs.append(v1.placeholder(tf.as_dtype(array.dtype), array.shape))
        results = caramel.all_reduce(inputs, **options)
        with v1.Session(config=config) as session:
            return session.run(results, dict(zip(inputs, arrays)))


def left_fold(arrays, mean):
    total = arrays[0]
    for array in arrays[1:]:
        total = total + array
    return total / total.dtype.type(len(arrays)) if mean else total


def check(workers, algorithm, depth, switches=None, mean=False):
    arrays = arrays_of(workers)
    reduction = "mean" if mean else "sum"
    results = reduced(arrays, switches, algorithm=algorithm, depth=depth, reduction=reduction, deterministic=True)
    for result in results:
        np.testing.assert_array_equal(result, left_fold(arrays, mean))


@pytest.mark.parametrize("algorithm", IN_ORDER)
@pytest.mark.parametrize("workers", [3, 10, 17])
def test_sums_are_the_left_fold(workers, algorithm):
    check(workers, algorithm, depth=1, mean=True)
    check(workers, algorithm, depth=3)


@pytest.mark.parametrize("algorithm", IN_ORDER)
@pytest.mark.parametrize("name", ["arithmetic_optimization", "constant_folding", "remapping"])
def test_sums_are_the_left_fold_with_aggressive_optimizers(name, algorithm):
    check(16, algorithm, 2, {name: Rewriter.AGGRESSIVE})


@pytest.mark.soak
@pytest.mark.parametrize(
    ("workers", "algorithm"), [(n, name) for n in WORKERS for name in ALGORITHMS if is_in_rank_order(name, n)]
)
def test_every_algorithm_and_depth(workers, algorithm):
    for depth in range(1, 9):
        for switches in ({}, {"disable_meta_optimizer": True}):
            check(workers, algorithm, depth, switches, mean=depth % 2 == 0)


@pytest.mark.soak
@pytest.mark.parametrize("workers", [10, 16, 64])
@pytest.mark.parametrize("name", TOGGLES)
def test_every_switch(name, workers):
    for value in VALUES.values():
        for algorithm in IN_ORDER:
            check(workers, algorithm, 2, {name: value})


EVERYTHING = dict.fromkeys(TOGGLES, Rewriter.AGGRESSIVE)


DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int32]
IN_EVERY_RUN = [
    *((name, np.float32) for name in ("star", "chain")),
    *(("shuffle", dtype) for dtype in DTYPES if dtype != np.float64),
]


@pytest.mark.parametrize(
    ("algorithm", "dtype"),
    [
        pytest.param(name, dtype, marks=[] if (name, dtype) in IN_EVERY_RUN else pytest.mark.soak)
        for name in ALGORITHMS
        for dtype in DTYPES
    ],
)
def test_no_emitted_op_gets_other_bits(algorithm, dtype):
    """Cuts, sums, divisions, casts and joins, as they are written and as every optimizer at its most makes them."""
    is_whole = dtype is np.int32
    wires = [None, "bfloat16", "float16"] if dtype in (np.float32, np.float64) else [None]
    for wire in wires:
        options = {"algorithm": algorithm, "depth": 2, "wire": wire, "reduction": "sum" if is_whole else "mean"}
        arrays = arrays_of(10, dtype, 650)
        plain = reduced(arrays, {"disable_meta_optimizer": True}, **options)
        for switches in ({}, EVERYTHING):
            for mine, theirs in zip(reduced(arrays, switches, **options), plain):
                np.testing.assert_array_equal(mine, theirs)


def trained_over_servers(arrays, algorithm, depth):
    """A variable after a step of one example for each worker, whose gradient is the example."""
    w = tf.Variable(np.zeros(arrays.shape[1], np.float32))

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.linalg.matvec(x, w))
        w.assign_sub(tape.gradient(loss, w))
        return loss

    context = caramel.capture(step, [tf.TensorSpec([None, arrays.shape[1]])])
    armodel = caramel.ARModel(context, len(arrays), deterministic=True, algorithm=algorithm, depth=depth)
    with armodel.session(caramel.LocalProcesses()) as session:
        session.step(arrays)
        session.write_back()
    return w.numpy()


@pytest.mark.soak
@pytest.mark.processes
@pytest.mark.parametrize("workers", [2, 10, 16])
@pytest.mark.parametrize("algorithm", IN_ORDER)
def test_over_servers(algorithm, workers):
    arrays = arrays_of(workers)
    wanted = -left_fold(arrays, mean=True)
    for depth in (1, 3):
        np.testing.assert_array_equal(trained_over_servers(arrays, algorithm, depth), wanted)


def trained(optimize_graph, wire):
    """Values after uneven steps in which gradients are cut, joined, weighted, gathered, postponed and applied."""
    rng = np.random.default_rng(5)
    workers, width = 10, 30
    a, b, c, table = (
        tf.Variable(rng.normal(size=shape).astype(np.float32)) for shape in (width, width, 3, (12, width))
    )
    variables = [a, b, c, table]

    def step(x, rows):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.linalg.matvec(x, a) + tf.linalg.matvec(x * b, a) + c[0] * x[:, 0])
            loss += tf.reduce_mean(tf.gather(table, rows) * x) + tf.reduce_mean(tf.gather(table, [0, 1]) * x[0, 0])
        for v, g in zip(variables, tape.gradient(loss, variables)):
            if isinstance(g, tf.IndexedSlices):
                v.scatter_sub(tf.IndexedSlices(0.1 * g.values, g.indices))
            else:
                v.assign_sub(0.1 * g)
        return loss

    specs = [tf.TensorSpec([None, width]), tf.TensorSpec([None], tf.int32)]
    context = caramel.capture(step, specs, loss_reduction="mean")
    postponed = [context.model.gradients[0].name]
    armodel = caramel.ARModel(context, workers, algorithm="shuffle", depth=2, postponed=postponed, wire=wire)
    with armodel.session(caramel.InProcess(caramel.RunOptions(optimize_graph=optimize_graph))) as session:
        for count in (10, 13, 17):
            session.step(
                rng.normal(size=(count, width)).astype(np.float32), rng.integers(0, 12, count).astype(np.int32)
            )
        return list(session.values().values())


@pytest.mark.parametrize("wire", [None, pytest.param("bfloat16", marks=pytest.mark.soak)])
def test_a_step_has_the_same_bits_with_the_optimizers_and_without(wire):
    for mine, theirs in zip(trained(True, wire), trained(False, wire)):
        np.testing.assert_array_equal(mine, theirs)
