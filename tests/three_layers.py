"""A small step of three dense layers, captured."""

import tensorflow as tf

import caramel


def three_layers(width):
    """The context of a step whose layers have twice, three times and four times ``width`` outputs."""
    weights = [tf.Variable(tf.ones([width * n, width * n + width]), name=f"w{n}") for n in (1, 2, 3)]

    def step(x):
        with tf.GradientTape() as tape:
            y = x
            for weight in weights:
                y = tf.nn.tanh(y @ weight)
            loss = tf.reduce_mean(y**2)
        for weight, gradient in zip(weights, tape.gradient(loss, weights)):
            weight.assign_sub(0.1 * gradient)
        return loss

    return caramel.capture(step, [tf.TensorSpec([None, width])])
