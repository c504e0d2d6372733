"""Gradient functions of the program's own, in networks whose other gradients no analysis follows."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import caramel

SPECS = [tf.TensorSpec([None, 6, 6, 2]), tf.TensorSpec([None], tf.int64)]


@tf.custom_gradient
def halved_back(values):
    return tf.identity(values), lambda upstream: 0.5 * upstream * tf.sigmoid(values)


@tf.custom_gradient
def scaled_by_a_mean(values):
    return tf.identity(values), lambda upstream: upstream * tf.reduce_mean(values)


@tf.custom_gradient
def scaled_by_the_number(values):
    return tf.identity(values), lambda upstream: upstream * tf.cast(tf.shape(values)[0], values.dtype)


@tf.custom_gradient
def centred_back(values):
    return tf.identity(values), lambda upstream: upstream - tf.reduce_mean(upstream, 0, keepdims=True)


def model_of(function, is_called=False, is_ratio=False):
    """The Model of a network in which the gradients that enter the function have passed a normalisation of the batch."""
    called = tf.function(function) if is_called else function
    layers = keras.layers
    network = keras.Sequential(
        [
            keras.Input([6, 6, 2]),
            layers.Conv2D(4, 3),
            layers.BatchNormalization(),
            layers.Lambda(called),
            layers.Conv2D(4, 3),
            layers.BatchNormalization(axis=3),
            layers.Lambda(called),
            layers.GlobalAveragePooling2D(),
            layers.Dense(3),
        ]
    )

    def step(x, y):
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, network(x, training=True))
            weights = tf.cast(y > 0, losses.dtype)
            loss = tf.reduce_sum(losses * weights) / tf.reduce_sum(weights) if is_ratio else tf.reduce_mean(losses)
        for variable, gradient in zip(network.trainable_variables, tape.gradient(loss, network.trainable_variables)):
            variable.assign_sub(0.1 * gradient)
        return loss

    return caramel.capture(step, SPECS).model_for(2)


@pytest.mark.parametrize("is_called", [False, True], ids=["inline", "in a function"])
@pytest.mark.parametrize("is_ratio", [False, True], ids=["mean", "ratio"])
@pytest.mark.parametrize("function", [tf.nn.silu, halved_back])
def test_functions_of_each_example_are_taken(function, is_called, is_ratio):
    model = model_of(function, is_called, is_ratio)
    assert len(model.forward_sums) == (2 if is_ratio else 0)
    assert not any("_caramel" in name for node in model.graph for name in node.attr)


@pytest.mark.parametrize("is_ratio", [False, True], ids=["mean", "ratio"])
@pytest.mark.parametrize("function", [scaled_by_a_mean, scaled_by_the_number, centred_back])
def test_functions_of_the_batch_are_refused(function, is_ratio):
    with pytest.raises(caramel.CaptureError, match=r"comes from a tf\.custom_gradient"):
        model_of(function, is_ratio=is_ratio)


NETWORKS = {"ResNet50": 161, "EfficientNetB0": 213}
"""Trainable variables of networks of Keras: shortcuts and moments along an axis by its number; swish and attention."""


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_of_keras_need_no_sums(name):
    """Each worker normalises its own part, without a transfer of its own."""
    network = getattr(keras.applications, name)(weights=None, input_shape=(32, 32, 3), classes=10)
    network.compile("sgd", keras.losses.SparseCategoricalCrossentropy())

    def step(x, y):
        return network.train_step((x, y))["loss"]

    model = caramel.capture(step, [tf.TensorSpec([None, 32, 32, 3]), tf.TensorSpec([None], tf.int64)]).model_for(4)
    assert model.forward_sums == () and len(model.gradients) == len(network.trainable_variables)
    assert model.reduction.kind == "mean" and np.all([gradient.dtype == "float32" for gradient in model.gradients])
