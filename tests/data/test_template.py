"""What one worker does with an element, run by itself for every rank."""

import numpy as np
import pytest
import tensorflow as tf
from variants import in_soak

from caramel.data import template as names
from caramel.data.dataset import training_data
from caramel.data.template import Sharding, make_template
from caramel.model import Input
from caramel.util.ranges import balanced

v1 = tf.compat.v1

INPUTS = [
    Input("y", "y", "int64", (None,), True, component=1),
    Input("x", "x", "float32", (None, 2), True, component=0),
    Input("rate", "rate", "float32", (), False, component=2),
]


def elements(sizes):
    """Batches of these sizes, of (x, y, rate): y counts all examples."""
    ends = np.cumsum([0, *sizes])
    ragged = tf.ragged.range(ends[:-1], ends[1:])
    dataset = tf.data.Dataset.from_tensor_slices(ragged).map(lambda row: tf.cast(row, tf.int64))
    return dataset.map(lambda y: (tf.cast(tf.stack([y, -y], 1), tf.float32), y, tf.constant(0.5)))


class Worker:
    """One worker's pipeline in a session."""

    def __init__(self, sizes, sharding, rank, workers):
        (source,) = training_data(elements(sizes)).sources(workers)
        made = make_template(source, INPUTS, sharding)
        graph_def = made.graph.to_graph_def()
        graph = tf.Graph()
        with graph.as_default():
            given = {
                f"{names.RANK}:0": tf.constant(rank, tf.int64),
                f"{names.WORKERS}:0": tf.constant(workers, tf.int64),
            }
            tf.import_graph_def(graph_def, given, name="")
        self.session = v1.Session(graph=graph)
        handles = [(c, graph.get_operation_by_name(f"{names.SOURCE}/{c.node}").outputs[0]) for c in source.constants]
        with graph.as_default():
            loads = [tf.raw_ops.AssignVariableOp(resource=handle, value=c.value) for c, handle in handles]
        self.session.run([*loads])
        for op in (names.CLEAR, names.BUILD, names.BEGIN):
            self.session.run(op, {f"{names.SOURCE}/seed:0": 1} if op == names.BUILD else {})

    def take(self, start=None):
        """The counts, and what is kept."""
        feeds = {} if start is None else {f"{names.START}:0": start}
        counts, _ = self.session.run([f"{names.COUNTS}:0", names.ADVANCE], feeds)
        return counts.tolist(), self.session.run([f"{names.ELEMENT}:{n}" for n in range(3)])


@pytest.mark.parametrize("workers", [*in_soak(1, 2), 3, *in_soak(5)])
def test_rows_are_those_that_feeding_gives(workers):
    sizes = [7, 5, 3, 1, 10]
    starts = np.cumsum([0, *sizes])
    for rank in range(workers):
        worker = Worker(sizes, Sharding.SLICE, rank, workers)
        for index, size in enumerate(sizes):
            begin, share = balanced(size, workers)[rank]
            counts, (y, x, rate) = worker.take()
            assert counts == [index, share, size, size]
            if share:
                want = np.arange(starts[index] + begin, starts[index] + begin + share)
            else:
                assert len(y) == 1 and starts[index] <= y[0] < starts[index + 1]  # one that is there
                want = y
            np.testing.assert_array_equal(y, want)
            np.testing.assert_array_equal(x, np.stack([want, -want], 1))
            assert rate == 0.5
        counts, (y_after, _, _) = worker.take()
        assert counts == [-1, 0, 0, 0]
        np.testing.assert_array_equal(y_after, y)  # what it had


def test_a_batch_without_examples():
    worker = Worker([0, 2], Sharding.SLICE, 0, 2)
    counts, (y, x, _) = worker.take()
    assert counts == [0, 0, 0, 0]
    assert x.shape == (0, 2)


@pytest.mark.parametrize("workers", [*in_soak(1, 2), 3, *in_soak(4)])
def test_one_of_n_batches(workers):
    sizes = [2, 3, 1, 4, 5]
    ends = np.cumsum([0, *sizes])
    for rank in range(workers):
        worker = Worker(sizes, Sharding.BATCHES, rank, workers)
        for first in range(0, len(sizes), workers):
            counts, (y, _, _) = worker.take()
            mine = first + rank
            last = min(mine, len(sizes) - 1)  # without one of its own, it keeps the last that is there
            share = sizes[mine] if mine < len(sizes) else 0
            assert counts == [first, share, sizes[last], sizes[last]]
            np.testing.assert_array_equal(y, np.arange(ends[last], ends[last + 1]))
        assert worker.take()[0][0] == -1


def test_every_element():
    worker = Worker([2, 3], Sharding.OWN, 1, 4)
    assert [worker.take()[0] for _ in range(3)] == [[0, 2, 2, 2], [1, 3, 3, 3], [-1, 0, 0, 0]]


@pytest.mark.parametrize("sharding", [Sharding.SLICE, Sharding.BATCHES])
def test_from_a_number_on(sharding):
    worker = Worker([1, 2, 3, 4, 5, 6, 7], sharding, 0, 2)
    assert worker.take(3)[0][0] == 3
    following = 4 if sharding is Sharding.SLICE else 5
    assert worker.take(0)[0][0] == following
    assert worker.take(2**40)[0][0] == -1
