"""The way of worker 0's values to the others."""

from collections import Counter

import pytest
import tensorflow as tf
from run_metadata import metadata_of

import caramel
from caramel.graph.graph import node_of
from caramel.modifiers.save_restore import BROADCAST

v1 = tf.compat.v1

WORKERS = 5


@pytest.fixture
def session():
    with caramel.capture() as context:
        x = v1.placeholder(tf.float32, [None, 3], name="x")
        w = v1.get_variable("w", [3, 5], initializer=v1.random_normal_initializer(seed=1))
        b = v1.get_variable("b", [5], initializer=v1.random_normal_initializer(seed=2))
        loss = tf.reduce_mean(tf.square(tf.matmul(x, w) + b))
        v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    with caramel.ARModel(context, WORKERS).session(caramel.InProcess()) as made:
        yield made


def test_every_worker_passes_values_on_to_one_other(session):
    """As TensorFlow runs it, after its own graph optimizers: a link carries each value once."""
    metadata = metadata_of(session.executor, BROADCAST)
    values = Counter()
    for graph in metadata.partition_graphs:
        made = {node.name: node for node in graph.node}
        for node in graph.node:
            source = made[node_of(node.input[0])] if node.op in ("_Send", "_HostSend") else None
            if source is not None and source.op != "Const":  # which stands for a control edge
                ranks = [int(node.attr[end].s.decode().rpartition(":")[2]) for end in ("send_device", "recv_device")]
                values[tuple(ranks)] += 1
    kept = 4  # w, b and their momenta
    assert values == {(rank, rank + 1): kept for rank in range(WORKERS - 1)}
