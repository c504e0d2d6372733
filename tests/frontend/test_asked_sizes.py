"""Whether a step does the same whether its own code knows the number of examples or not."""

import pytest
import tensorflow as tf

import caramel
from caramel.frontend.recording.watching import recording

ROWS = tf.constant([[1.0], [2.0], [3.0], [4.0]])
FIXED = [tf.TensorSpec([4, 1], name="x")]


def asks(step, specs):
    with recording(own_ops=[]) as recorder:
        tf.function(step).get_concrete_function(*specs)
    return recorder.asks_for_sizes


OPEN = [tf.TensorSpec([None, 1])]


@pytest.mark.parametrize(
    "step, is_asked",
    [
        (lambda x: x.shape[0], True),
        (lambda x: x.shape[-1], False),
        (lambda x: (x.shape[1:], x)[1], False),
        (lambda x: (x.shape[:1], x)[1], True),
        (lambda x: x.shape.as_list(), True),
        (lambda x: x.shape.num_elements(), True),
        (lambda x: list(x.shape), True),
        (lambda x: tuple(x.shape)[1], True),
        (lambda x: max(x.shape[1:]), False),
        (lambda x: (x.shape == [4, 1], x)[1], True),
        (lambda x: (x.shape.is_fully_defined(), x)[1], True),
        (lambda x: (x.shape.dims, x)[1], True),
        (lambda x: (str(x.shape), x)[1], True),
        (lambda x: x.shape.rank, False),
        (lambda x: tf.reshape(x, [-1]) + tf.ones_like(tf.squeeze(x, 1)), False),
        (lambda x: tf.keras.ops.shape(x)[0] + 0, False),
    ],
)
def test_what_asks(step, is_asked):
    assert asks(step, OPEN) is is_asked
    assert not asks(step, FIXED)


@pytest.mark.parametrize("specs, is_asked", [(OPEN, True), (FIXED, False)])
def test_code_that_is_typed_in_asks_too(specs, is_asked):
    typed: dict = {}
    exec("def step(x):\n    return x[x.shape[0] or 0:]", typed)
    assert asks(typed["step"], specs) is is_asked


def context(made):
    w = tf.Variable([[0.5]])

    def step(x):
        with tf.GradientTape() as tape:
            loss = made(x, w)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    return caramel.capture(step, FIXED)


def mean(values):
    return tf.reduce_mean(tf.square(values))


@pytest.mark.parametrize(
    "made, is_other",
    [
        (lambda x, w: mean(x @ w), False),
        (lambda x, w: mean((x @ w)[: x.shape[0]]), True),
        (lambda x, w: mean(x @ w) + mean(ROWS[x.shape[0] - 1 if x.shape[0] else 0 :] @ w), True),
        (lambda x, w: mean(x @ w) * (x.shape[0] or 1), True),
        (lambda x, w: mean(tf.reshape(x @ w, [x.shape[0] or -1, 1])), True),
        (lambda x, w: mean(tf.reshape(x @ w, [x.shape[0] or tf.shape(x)[0], 1])), False),
        (lambda x, w: mean(tf.tanh(x @ w) if x.shape[0] else x @ w), True),
        (lambda x, w: mean((x @ w)[x.shape.as_list()[0] or 0 : 3]), True),
        (lambda x, w: mean(x @ w) * (2.0 if x.shape == [4, 1] else 1.0), True),
        (lambda x, w: mean(x @ w) - (mean(w), mean(x))[bool(x.shape[0])], True),
        (lambda x, w: mean(tf.einsum("ij,jk->ik" if x.shape[0] else "ij,jk->i", x, w)), True),
        (lambda x, w: mean(tf.nn.dropout(x @ w, 0.5, noise_shape=[x.shape[0] or tf.shape(x)[0], 1])), False),
    ],
)
def test_steps_that_do_something_else(made, is_other):
    """The shape of an open step says which it was."""
    captured = context(made)
    if is_other:
        with pytest.raises(caramel.CaptureError, match="asks in Python for the number of examples"):
            captured.model  # noqa: B018
    try:
        captured.for_workers(2)
    except caramel.CaptureError as refusal:  # it has other ops for a part than for the batch
        assert is_other and "for one number of examples" in str(refusal)
        return
    with_parts = captured.for_workers(2)
    assert (with_parts is not captured) is is_other
    assert with_parts.model.inputs[0].shape == ((2, 1) if is_other else (None, 1))
