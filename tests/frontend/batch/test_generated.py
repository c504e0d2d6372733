"""Generated losses: whatever the analysis concludes holds when the batch is cut.

Each loss is a chain of ops drawn from a pool that has those which mix examples in ways easily taken
for harmless ones. Nearly all such losses are neither a mean nor a sum; what matters is that none is
said to be one that is not.
"""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from caramel.frontend.rewrites.inline import inline
from caramel.frontend.roles.tensor_reductions import Reductions
from caramel.graph.graph import Graph
from caramel.model import Input

v1 = tf.compat.v1
C = 4
CUTS = ((2, 4), (3, 3), (4, 2))


def count(t):
    return tf.cast(tf.shape(t)[0], tf.float32)


def rank_two(t):
    """Any tensor as rows: what has the examples in front keeps them there."""
    return tf.reshape(t, [tf.shape(t)[0], -1]) if t.shape.rank and t.shape.rank > 2 else t


def texts(t):
    """A text for each row, of three decimals."""
    return tf.strings.as_string(rank_two(t)[:, 0], 3)


def words(t):
    """Its parts between ones: of one row there are more than of another."""
    return tf.strings.split(texts(t), "1")


def numbers(found):
    return tf.cast(tf.strings.to_hash_bucket_fast(found, 7), tf.float32)


def counts_of(t, classes):
    codes = tf.cast(tf.abs(rank_two(t)) * 3.0, tf.int32) % C
    found = tf.math.bincount(codes, minlength=classes, maxlength=classes, axis=-1)
    return tf.cast(found, tf.float32)


UNARY = {
    "tanh": tf.tanh,
    "square": lambda t: t * t,
    "half": lambda t: 0.5 * t,
    "add one": lambda t: t + 1.0,
    "transpose": lambda t: tf.transpose(t),
    "mean all": tf.reduce_mean,
    "sum all": tf.reduce_sum,
    "mean 0": lambda t: tf.reduce_mean(t, 0),
    "sum 0": lambda t: tf.reduce_sum(t, 0),
    "mean last": lambda t: tf.reduce_mean(t, -1),
    "sum last": lambda t: tf.reduce_sum(t, -1),
    "mean 0 kept": lambda t: tf.reduce_mean(t, 0, keepdims=True),
    "max 0": lambda t: tf.reduce_max(t, 0),
    "max last": lambda t: tf.reduce_max(t, -1),
    "softmax": lambda t: tf.nn.softmax(t),
    "divide by size": lambda t: t / count(t),
    "times size": lambda t: t * count(t),
    "divide by size - 1": lambda t: t / (count(t) - 0.5),
    "divide by root of size": lambda t: t / tf.sqrt(count(t)),
    "flat": lambda t: tf.reshape(t, [-1]),
    "pairs": lambda t: tf.reshape(t, [-1, 2]),
    "rows of four": lambda t: tf.reshape(t, [-1, C]),
    "back to rows": lambda t: tf.reshape(t, [tf.shape(t)[0], -1]),
    "expand 0": lambda t: t[None],
    "expand 1": lambda t: tf.expand_dims(t, 1),
    "expand last": lambda t: t[..., None],
    "squeeze": tf.squeeze,
    "reverse": lambda t: t[::-1],
    "first": lambda t: t[:1],
    "without first": lambda t: t[1:],
    "last column": lambda t: t[..., -1:],
    "roll": lambda t: tf.roll(t, 1, 0),
    "cumsum": lambda t: tf.cumsum(t, 0),
    "cumsum last": lambda t: tf.cumsum(t, -1),
    "sort": lambda t: tf.sort(t, axis=0),
    "sort last": lambda t: tf.sort(t, axis=-1),
    "doubled": lambda t: tf.concat([t, 2.0 * t], 0),
    "doubled and halved": lambda t: tf.split(tf.concat([t, 2.0 * t], 0), 2)[0],
    "wider": lambda t: tf.concat([t, 2.0 * t], -1),
    "stacked": lambda t: tf.stack([t, tf.tanh(t)]),
    "stacked at the end": lambda t: tf.stack([t, tf.tanh(t)], -1),
    "tiled": lambda t: tf.tile(t, [1] * (t.shape.rank - 1) + [2]),
    "tiled 0": lambda t: tf.tile(t, [2] + [1] * (t.shape.rank - 1)),
    "ones": tf.ones_like,
    "zeros": tf.zeros_like,
    "in steps between its bounds": lambda t: tf.quantization.quantize_and_dequantize_v2(t, 0.0, 0.0, num_bits=4),
    "in steps": lambda t: tf.quantization.quantize_and_dequantize_v2(t, -1.0, 1.0, num_bits=4, range_given=True),
    "mapped until one is large": lambda t: tf.while_loop(
        lambda i, goes_on, a: tf.logical_and(i < tf.shape(t)[0], goes_on),
        lambda i, goes_on, a: (i + 1, tf.reduce_max(t[i]) < 0.6, a.write(i, tf.reduce_sum(t[i]))),
        (0, True, tf.TensorArray(tf.float32, tf.shape(t)[0], element_shape=())),
    )[2].stack(),
    "filled": lambda t: tf.fill([tf.shape(t)[0]], 0.5),
    "padded": lambda t: tf.pad(t, [[0, 0]] * (t.shape.rank - 1) + [[1, 0]]),
    "padded 0": lambda t: tf.pad(t, [[1, 0]] + [[0, 0]] * (t.shape.rank - 1)),
    "norm": lambda t: tf.sqrt(tf.reduce_sum(t * t, -1, keepdims=True) + 1e-3),
    "norm 0": lambda t: tf.sqrt(tf.reduce_sum(t * t, 0, keepdims=True) + 1e-3),
    "positive": lambda t: tf.nn.relu(t - 0.3),
    "masked": lambda t: tf.where(t > 0.4, t, tf.zeros_like(t)),
    "selected": lambda t: tf.boolean_mask(t, tf.reshape(t, [tf.shape(t)[0], -1])[:, 0] > 0.4),
    "a column written": lambda t: tf.transpose(
        tf.tensor_scatter_nd_update(tf.transpose(rank_two(t)), [[1]], tf.transpose(rank_two(t))[:1])
    ),
    "a row written": lambda t: tf.tensor_scatter_nd_update(t, [[1]], 2.0 * t[:1]),
    "gram": lambda t: tf.matmul(rank_two(t), rank_two(t), transpose_b=True),
    "covariance": lambda t: tf.matmul(rank_two(t), rank_two(t), transpose_a=True),
    "dense": lambda t: tf.tensordot(t, tf.ones([t.shape[-1], C]) * 0.3, 1),
    "mapped": lambda t: tf.map_fn(lambda e: tf.reduce_max(e), t),
    "as many columns as rows": lambda t: rank_two(t)[:, : tf.shape(t)[0] - 2],
    "repeated by the size": lambda t: tf.tile(rank_two(t), [1, tf.shape(t)[0]]),
    "broadcast to a square": lambda t: tf.broadcast_to(t[..., :1], [tf.shape(t)[0], tf.shape(t)[0]]),
    "broadcast to rows": lambda t: tf.broadcast_to(0.7, tf.shape(t)),
    "the entry at the size": lambda t: tf.gather(t, tf.shape(t)[0] - 3, axis=-1),
    "counted": lambda t: t * tf.cast(tf.range(tf.shape(t)[0]), tf.float32)[:, None],
    "rows of the size": lambda t: tf.ones([tf.shape(t)[0], C]) * t[..., :1],
    "largest of the last": lambda t: tf.math.top_k(t, 2)[0],
    "one hot": lambda t: tf.one_hot(tf.cast(t * 3.0, tf.int32), C),
    "arg max": lambda t: tf.cast(tf.argmax(t, -1), tf.float32),
    "arg max 0": lambda t: tf.cast(tf.argmax(t, 0), tf.float32),
    "looked up": lambda t: tf.gather(tf.linspace(0.0, 1.0, 9), tf.cast(tf.clip_by_value(t, 0, 1) * 3.0, tf.int32)),
    "batch normalised": lambda t: t / tf.sqrt(tf.reduce_mean(t * t) + 1.0),
    "counted positive": lambda t: t / (1.0 + tf.reduce_sum(tf.cast(t > 0.4, tf.float32))),
    "by the mean's sign": lambda t: tf.cond(tf.reduce_mean(t) > 0.5, lambda: t, lambda: 2.0 * t),
    "by the size": lambda t: tf.cond(tf.shape(t)[0] > 3, lambda: t, lambda: 2.0 * t),
    "looped by the size": lambda t: tf.while_loop(
        lambda i, a: i < tf.shape(t)[0], lambda i, a: (i + 1, tf.tanh(a + t)), [0, tf.zeros_like(t)]
    )[1],
    "looped over": lambda t: tf.while_loop(
        lambda i, a: i < tf.shape(t)[0], lambda i, a: (i + 1, a + t[i]), [0, tf.zeros_like(t[0])]
    )[1],
    "scanned": lambda t: tf.scan(lambda a, e: 0.5 * a + e, t),
    "looped": lambda t: tf.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, tf.tanh(a + t)), [0, tf.zeros_like(t)])[
        1
    ],
    "cut to integers": lambda t: tf.cast(tf.cast(3.0 * t, tf.int32), tf.float32),
    "divided by a part of the size": lambda t: t / tf.cast(tf.cast(0.75 * count(t), tf.int32), tf.float32),
    "divided by the size as integers are": lambda t: t * tf.cast(12 // tf.shape(t)[0], tf.float32),
    "all sizes": lambda t: t / tf.cast(tf.reduce_prod(tf.shape(t)[...]), tf.float32),
    "times rows of the size": lambda t: t * tf.reshape(tf.stack([count(t), 2.0 * count(t)]), [2, 1])[:1],
    "times a part of the sizes": lambda t: t * tf.split(tf.linspace(0.1, 1.0, C) * count(t), 2)[0][0],
    "times padded sizes": lambda t: (
        t * tf.pad((tf.linspace(0.1, 1.0, C) * count(t))[2:], [[1, 1]], constant_values=3.0)
    ),
    "times sizes that are chosen": lambda t: t * tf.where(tf.shape(t)[0] > 3, 2.0 * count(t), count(t)),
    "times as many as there are": lambda t: t * tf.reduce_sum(tf.linspace(0.1, 1.0, C)[: tf.shape(t)[0] - 2]),
    "padded with a number": lambda t: tf.pad(t, [[0, 0]] * (t.shape.rank - 1) + [[1, 0]], constant_values=0.5),
    "a list with one entry": lambda t: (
        t + tf.TensorArray(tf.float32, tf.shape(t)[0], element_shape=()).write(0, 0.5).stack()
    ),
    "a list of all": lambda t: tf.TensorArray(tf.float32, tf.shape(t)[0]).unstack(t).stack(),
    "the first of a list": lambda t: tf.TensorArray(tf.float32, tf.shape(t)[0]).unstack(t).read(0),
    "less the root of the mean": lambda t: t - tf.sqrt(tf.reduce_mean(t * t, 0)),
    "less the mean": lambda t: t - tf.reduce_mean(t, 0),
    "bounded by the largest": lambda t: t * tf.minimum(2.0, tf.maximum(0.3, tf.reduce_max(t))),
    "bounded in vain": lambda t: t * tf.minimum(0.7, tf.maximum(0.7, tf.reduce_max(t))),
    "how many of each": lambda t: counts_of(t, C),
    "how many, up to the largest": lambda t: counts_of(t, None),
    "words of a length": lambda t: numbers(words(t).to_tensor("", [None, 3])),
    "words up to the longest": lambda t: numbers(words(t).to_tensor("")),
    "words on end": lambda t: numbers(words(t).values),
    "number of words": lambda t: t * tf.cast(tf.size(words(t).values), tf.float32),
    "words of each": lambda t: tf.cast(words(t).row_lengths(), tf.float32),
    "words before": lambda t: tf.cast(words(t).row_splits, tf.float32),
    "longest text": lambda t: t * tf.cast(words(t).bounding_shape()[1], tf.float32),
    "how many of each word": lambda t: tf.cast(
        tf.math.bincount(
            words(t).with_values(tf.strings.to_hash_bucket_fast(words(t).values, C)), minlength=C, maxlength=C, axis=-1
        ),
        tf.float32,
    ),
    "pairs of words": lambda t: numbers(tf.strings.ngrams(words(t), 2).to_tensor("", [None, 3])),
    "characters": lambda t: numbers(tf.strings.unicode_split(texts(t), "UTF-8").to_tensor("", [None, 4])),
    "gradient": lambda t: tf.gradients(tf.reduce_sum(tf.tanh(t) * t), t)[0],
    "gradient of mean": lambda t: tf.gradients(tf.reduce_mean(tf.tanh(t) * t), t)[0],
}

BINARY = {
    "add": tf.add,
    "multiply": tf.multiply,
    "divide": lambda a, b: a / (b * b + 1.0),
    "maximum": tf.maximum,
    "matmul": tf.matmul,
    "matmul at": lambda a, b: tf.matmul(a, b, transpose_a=True),
    "matmul bt": lambda a, b: tf.matmul(a, b, transpose_b=True),
    "concat": lambda a, b: tf.concat([a, b], 0),
    "concat last": lambda a, b: tf.concat([a, b], -1),
    "stack": lambda a, b: tf.stack([a, b]),
    "einsum": lambda a, b: tf.einsum("i...,i...->...", a, b),
    "outer": lambda a, b: tf.einsum("i...,j...->ij...", a, b),
    "where": lambda a, b: tf.where(a > b, a, b),
}

steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(sorted(UNARY)), st.integers(0, 7)),
        st.tuples(st.sampled_from(sorted(BINARY)), st.integers(0, 7), st.integers(0, 7)),
    ),
    min_size=1,
    max_size=7,
)
ends = st.sampled_from([[], [("mean all", 0)], [("mean all", 0)], [("sum all", 0)]])


def built(program, x, u):
    """The loss of a program; steps that do not fit are left out."""
    tensors = [x, x[:, 0], u]
    for name, *arguments in program:
        chosen = [tensors[-1 - (a % len(tensors))] for a in arguments]
        try:
            made = (UNARY if len(chosen) == 1 else BINARY)[name](*chosen)
        except (ValueError, TypeError, IndexError, tf.errors.InvalidArgumentError):
            continue
        if made is not None and made.dtype == tf.float32 and made.shape.rank is not None and made.shape.rank < 6:
            tensors.append(made)
    return tensors[-1]


def parts(program, always=False):
    """(conclusion, reason, values of whole batches and of their parts); None where a batch does not fit."""
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, [None, C], name="x")
        u = tf.constant(np.linspace(-1, 1, C), tf.float32)
        loss = built(program, x, u)
    nodes = inline(Graph.from_graph_def(graph.as_graph_def(add_shapes=True)))
    inputs = [Input("x", "x", "float32", (None, C), True)]
    kind, reason = Reductions(nodes.graph, inputs).reduction_of(nodes.tensor(loss.name))
    if kind is None and not always:
        return None, reason, []
    batch = np.random.default_rng(0).uniform(0.1, 1, (6, C)).astype(np.float32)
    values = []
    with v1.Session(graph=graph) as session:
        for cut, _ in CUTS:
            try:
                values.append([np.sum(session.run(loss, {x: b})) for b in (batch, batch[:cut], batch[cut:])])
            except tf.errors.InvalidArgumentError:
                continue  # a shape that this number of examples does not fit
    return kind, reason, values


def check_what_is_concluded(program, end):
    kind, reason, values = parts(program + end)
    for (cut, rest), (whole, first, second) in zip(CUTS, values):
        expected = (cut * first + rest * second) / (cut + rest) if kind == "mean" else first + second
        np.testing.assert_allclose(whole, expected, rtol=1e-3, atol=1e-5, err_msg=f"{kind}: {reason}\n{program}")


def generated(count):
    """Settings with so many programs, the same in each run."""
    return settings(max_examples=count, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


test_what_is_concluded_holds = generated(20)(given(steps, ends)(check_what_is_concluded))
test_what_is_concluded_of_many_holds = pytest.mark.soak(generated(300)(given(steps, ends)(check_what_is_concluded)))


@pytest.mark.parametrize(
    "chain",
    [
        ["less the mean", "mapped"],
        ["less the mean", "a list of all"],
        ["less the mean", "positive", "batch normalised", "mapped"],
        ["selected", "a list of all"],
        ["selected", "mapped"],
        ["selected", "zeros", "add one", "sum all"],
        ["divide by size", "selected"],
        ["gradient of mean", "square", "selected"],
        ["in steps between its bounds", "mapped"],
        ["mapped until one is large"],
    ],
    ids="; ".join,
)
def test_what_rules_may_forget(chain):
    """What is known of the examples behind two ops together, where each by itself is told from others."""
    check_what_is_concluded([("half", 2), *((name, 0) for name in chain)], [("mean all", 0)])


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.sampled_from(["tanh", "square", "dense", "softmax", "half", "positive", "norm", "wider"]), max_size=5)
)
def test_examples_by_themselves_are_followed(names):
    """Chains that treat each example by itself, then a mean: always told."""
    kind, reason, _ = parts([("half", 2), *((name, 0) for name in names), ("mean all", 0)])
    assert kind == "mean", reason
