"""Constants that follow from the number of examples, found by two traces."""

from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf

from caramel.errors import CaptureError
from caramel.frontend.batch.domain import Examples, Independent, Size, of_sizes
from caramel.frontend.batch.row_constants import FACTOR, row_constants
from caramel.graph.graph import Graph


def graph_of(made, rows):
    with tf.Graph().as_default() as graph:
        made(rows)
    definition = graph.as_graph_def()
    return Graph(definition.node, definition.library, definition.versions)


def found(made, rows=3):
    return row_constants(graph_of(made, rows), graph_of(made, FACTOR * rows), rows)


def sized(*pairs):
    return of_sizes(tuple(Size(Fraction(c), Fraction(p)) for c, p in pairs))


@pytest.mark.parametrize(
    "made, value",
    [
        (lambda n: tf.constant(n, name="c"), sized((1, 1))),
        (lambda n: tf.constant([n, 4], name="c"), sized((1, 1), (4, 0))),
        (lambda n: tf.constant(5 * n * n, name="c"), sized((5, 2))),
        (lambda n: tf.constant(1.0 / n, name="c"), sized((1, -1))),
        (lambda n: tf.constant(n / 12, tf.float64, name="c"), sized((Fraction(1, 12), 1))),
        (lambda n: tf.constant(n + 1, name="c"), Independent(None)),
        (lambda n: tf.constant(np.arange(n), name="c"), Independent(None)),
        (lambda n: tf.constant(np.zeros([n, 2]), name="c"), Examples(0, repeated=True)),
        (lambda n: tf.constant(np.eye(n), name="c"), Independent(None)),
    ],
)
def test_constants(made, value):
    assert found(made) == {("", "c"): value}


def test_what_is_the_same_is_the_programs_own():
    assert found(lambda n: tf.constant([3, 6], name="c")) == {}


def test_constants_in_functions():
    def made(n):
        @tf.function
        def inner(x):
            return x * float(n)

        inner(tf.constant(2.0, name="outer"))

    ((function, _),) = values = found(made)
    assert function and list(values.values()) == [sized((1, 1))]


@pytest.mark.parametrize(
    "made",
    [
        lambda n: [tf.constant(0) for _ in range(n)],
        lambda n: tf.constant(0.0) if n == 3 else tf.zeros([300, 300]),
        lambda n: tf.unstack(tf.compat.v1.placeholder(tf.float32, [n, 2])),
    ],
)
def test_other_ops_for_another_number(made):
    with pytest.raises(CaptureError, match="for one number of examples and not for another"):
        found(made)
