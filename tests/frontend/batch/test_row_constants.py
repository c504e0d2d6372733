"""Constants that follow from the number of examples, found by two traces."""

from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf

from caramel.errors import CaptureError
from caramel.frontend.attributes import PART_ATTRIBUTE
from caramel.frontend.batch.domain import Examples, Independent, Size, of_sizes
from caramel.frontend.batch.row_constants import of_part, row_constants
from caramel.graph.graph import Graph


def graph_of(made, rows):
    with tf.Graph().as_default() as graph:
        made(rows)
    definition = graph.as_graph_def()
    return Graph(definition.node, definition.library, definition.versions)


def found(made, rows=3, parts=2):
    return row_constants(graph_of(made, rows), graph_of(made, parts * rows), rows, parts)


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
@pytest.mark.parametrize("parts", [2, 5])
def test_constants(made, value, parts):
    assert found(made, parts=parts) == {("", "c"): value}


def test_what_is_the_same_is_the_programs_own():
    assert found(lambda n: tf.constant([3, 6], name="c")) == {}


def test_nodes_say_what_they_are_for_the_whole_batch():
    def made(n):
        @tf.autograph.experimental.do_not_convert
        def branch():
            return tf.constant(float(n))

        tf.constant(n, name="c")
        tf.cond(tf.compat.v1.placeholder(tf.bool, name="p"), branch, lambda: tf.constant(0.0), name="call")

    part, whole = graph_of(made, 3), graph_of(made, 12)
    marked = of_part(part, whole, row_constants(part, whole, 3, 4))
    assert tf.make_ndarray(marked["c"].attr[PART_ATTRIBUTE].tensor) == 12
    assert [n.name for n in marked if PART_ATTRIBUTE in n.attr] == ["c", "call"]
    assert marked["c"].attr["value"] == part["c"].attr["value"]


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
