"""`caramel.fit` takes no compiled loss at its word: what the graph does not tell, the caller has to say."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_common import CLASSES, FEATURES, arrays, both, dataset, same
from variants import mostly_in_soak

import caramel
from caramel.frontend.roles.tensor_reductions import Reductions
from caramel.keras import captured_steps


@pytest.fixture
def untold(monkeypatch):
    """Nothing can be told from the graph."""
    monkeypatch.setattr(Reductions, "reduction_of", lambda *given: (None, "op 'X' is not known"))


def model_with(loss, body=None, kind=keras.Model, dtype="float64"):
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(4)
    before = keras.config.floatx()
    keras.config.set_floatx(dtype)
    try:
        inputs = keras.Input([FEATURES])
        hidden = keras.layers.Dense(6, "tanh")(inputs)
        hidden = hidden if body is None else body()(hidden)
        model = kind(inputs, keras.layers.Dense(CLASSES)(hidden))
        model.compile(keras.optimizers.SGD(0.02), loss() if isinstance(loss, type) else loss)
    finally:
        keras.config.set_floatx(before)
    return model


def vectors(count=59, batch=12):
    x, y = arrays(count)
    return tf.data.Dataset.from_tensor_slices((x, np.eye(CLASSES)[y])).batch(batch)


def entropy(reduction="sum_over_batch_size", **options):
    return keras.losses.CategoricalCrossentropy(from_logits=True, reduction=reduction, dtype="float64", **options)


@pytest.mark.parametrize("kind", ["sum_over_batch_size", "sum"])
def test_what_a_loss_of_keras_declares_says_nothing_of_the_model(untold, kind):
    """The model may mix the examples of a batch before the loss looks at each."""
    with pytest.raises(caramel.CaptureError, match="cannot tell whether the loss is a mean or a sum.*loss_reduction="):
        caramel.fit(model_with(entropy(kind)), vectors(), workers=2, verbose=0)


class Numbered(keras.layers.Layer):
    """Adds the least of all examples to each: an op of which the analysis knows nothing."""

    def call(self, x):
        return x + tf.raw_ops.NthElement(input=x[:, 0], n=0)


def test_a_model_that_mixes_examples_is_refused():
    with pytest.raises(caramel.CaptureError, match="NthElement .*not known to treat each example by itself"):
        caramel.fit(model_with("mse", Numbered), vectors(), workers=2, verbose=0)


def largest(y, predicted):
    return tf.reduce_max(tf.square(y - predicted))


class Whole(keras.losses.Loss):
    def call(self, y, predicted):
        return tf.reduce_mean(tf.square(y - predicted)) ** 2


class Added(keras.layers.Layer):
    def call(self, x):
        self.add_loss(0.01 * tf.reduce_sum(tf.square(x)))
        return x


class Masked(keras.layers.Layer):
    supports_masking = True

    def compute_mask(self, x, mask=None):
        return keras.ops.any(x > 0, -1)

    def call(self, x):
        return x


class Own(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return tf.reduce_max(super().compute_loss(x, y, y_pred, sample_weight))


class OwnStep(keras.Model):
    def train_step(self, data):
        return super().train_step(data)


REFUSED = {
    "function": lambda: model_with(largest),
    "scalar": lambda: model_with(Whole),
    "dice": lambda: model_with(keras.losses.Dice),
    "tversky": lambda: model_with(keras.losses.Tversky),
    "circle": lambda: model_with(keras.losses.Circle()),
    "axis": lambda: model_with(keras.losses.CosineSimilarity(axis=0)),
    "per weight": lambda: model_with(entropy("mean_with_sample_weight")),
    "add_loss": lambda: model_with(entropy(), Added),
    "activity": lambda: model_with(entropy(), lambda: keras.layers.ActivityRegularization(0.1)),
    "weights": lambda: model_with(entropy("sum"), lambda: keras.layers.Dense(4, kernel_regularizer="l2")),
    "mask": lambda: model_with(entropy(), Masked),
    "own loss": lambda: model_with(entropy(), kind=Own),
    "own step": lambda: model_with(entropy(), kind=OwnStep),
}


@pytest.mark.parametrize("name", mostly_in_soak(list(REFUSED), *(n for n in REFUSED if n not in ("tversky", "circle"))))
def test_a_loss_that_leaves_a_doubt_does_not(untold, name):
    data = vectors()
    if name == "circle":
        data = data.map(lambda x, y: (x, tf.argmax(y, -1)))
    with pytest.raises(caramel.CaptureError, match="cannot tell whether the loss is a mean or a sum.*'X'"):
        caramel.fit(REFUSED[name](), data, workers=2, verbose=0)


def test_a_class_that_does_not_count(untold):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    with pytest.raises(caramel.CaptureError, match="cannot tell whether the loss is a mean or a sum"):
        caramel.fit(model_with(loss), dataset(), workers=2, verbose=0)


@pytest.mark.parametrize("name", mostly_in_soak([n for n in REFUSED if n != "circle"], "own loss"))
def test_the_graph_tells_and_nothing_is_taken_for_granted(name):
    """As above, with the analysis itself: what is no mean or sum of the workers' losses is that of the whole batch."""
    same(*both(vectors(), make=REFUSED[name]))


def test_other_errors_stand(monkeypatch):
    """A step that cannot be replicated for another reason is captured once, and refused for it."""
    captured = []
    original = captured_steps.Context
    monkeypatch.setattr(
        captured_steps, "Context", lambda *args, **kwargs: captured.append(kwargs) or original(*args, **kwargs)
    )

    class Python(keras.layers.Layer):
        def call(self, x):
            return tf.ensure_shape(tf.numpy_function(np.copy, [x], x.dtype), x.shape)

    with pytest.raises(caramel.UnsupportedError, match="PyFunc"):
        caramel.fit(model_with(entropy(), Python), vectors(), workers=2, verbose=0)
    assert len(captured) == 1


@pytest.mark.parametrize("kind", mostly_in_soak(["sum_over_batch_size", "mean", "sum"], "sum"))
def test_what_the_caller_says_counts(untold, kind):
    said = "sum" if kind == "sum" else "mean"
    model, alone = model_with(entropy(kind)), model_with(entropy(kind))
    want = alone.fit(vectors(), verbose=0)
    got = caramel.fit(model, vectors(), workers=2, verbose=0, loss_reduction=said)
    same((want, alone), (got, model))


def test_what_the_caller_says_counts_for_added_terms_too(untold):
    history = caramel.fit(model_with(entropy(), Added), vectors(), workers=2, verbose=0, loss_reduction="mean")
    assert np.isfinite(history.history["loss"]).all()
