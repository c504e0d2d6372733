"""A program of TensorFlow 1 as it was written then: trained by itself, and by Caramel as it is.

Run as ``references_program.py DIRECTORY``; what came out is left in the directory.
"""

import os
import sys

import numpy as np
import tensorflow.compat.v1 as tf

import caramel

STEPS = 12


def build():
    """A network with batch normalisation by hand, decay of weights and rate, and an average of the weights."""
    tf.set_random_seed(3)
    x = tf.placeholder(tf.float64, [None, 6], name="x")
    y = tf.placeholder(tf.float64, [None], name="y")
    training = tf.get_variable("training", [], tf.float64, tf.ones_initializer(), trainable=False)
    with tf.variable_scope("hidden"):
        kernel = tf.get_variable("kernel", [6, 4], tf.float64, tf.glorot_uniform_initializer())
        bias = tf.get_variable("bias", [4], tf.float64, tf.zeros_initializer())
        hidden = tf.tanh(tf.matmul(x, kernel) + bias)
    scale = tf.Variable(np.ones(4), name="scale")
    weights = tf.Variable(scale.initialized_value() * 0.5, name="weights")
    guess = tf.reduce_sum(hidden * scale * weights, axis=1) * training
    loss = tf.reduce_mean(tf.square(guess - y), name="loss") + 1e-3 * tf.nn.l2_loss(kernel)
    seen = tf.get_variable("seen", [4], tf.float64, tf.zeros_initializer(), trainable=False)
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign(seen, seen * 0.5 + 0.5 * tf.abs(scale)))

    step = tf.train.get_or_create_global_step()
    rate = tf.train.exponential_decay(0.05, step, 4, 0.8, staircase=True)
    optimizer = tf.train.AdamOptimizer(rate)
    pairs = optimizer.compute_gradients(loss)
    clipped, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], 1.0)
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train = optimizer.apply_gradients(zip(clipped, [of for _, of in pairs]), global_step=step)
    average = tf.train.ExponentialMovingAverage(0.9, step)
    with tf.control_dependencies([train]):
        train = average.apply(tf.trainable_variables())
    return x, y, loss, guess, train


def data():
    rng = np.random.default_rng(1)
    batches = [rng.normal(size=(12, 6)) for _ in range(2 * STEPS)]
    return [(batch, np.sin(batch.sum(axis=1))) for batch in batches]


def alone(directory):
    """All steps on one device, with a checkpoint in the middle that the other run starts from."""
    x, y, loss, guess, train = build()
    assert {v.op.type for v in tf.global_variables()} == {"VariableV2"}
    saver = tf.train.Saver()
    losses = []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for number, (inputs, targets) in enumerate(data()):
            if number == STEPS:
                saver.save(session, os.path.join(directory, "middle"))
            feed = {x: inputs, y: targets}
            losses.append(session.run(loss, feed))  # by itself: in one run, it might see weights that are new already
            session.run(train, feed)
        values = {v.op.name: session.run(v) for v in tf.global_variables()}
        guesses = session.run(guess, {x: data()[0][0]})
    return losses[STEPS:], guesses, values


def distributed(directory):
    """The second half of the steps on three workers, and what they saved read again by one device."""
    with caramel.capture() as context:
        x, y, loss, guess, context.train_op = build()
        context.loss, context.evaluation = loss, guess
        saver = tf.train.Saver()
    as_written = caramel.InProcess(options=caramel.RunOptions(optimize_graph=False))
    with caramel.ARModel(context, 3).session(as_written) as session:
        session.restore(os.path.join(directory, "middle"))
        assert session.step_count == STEPS
        losses = [session.step({x: inputs, y: targets}).loss for inputs, targets in data()[STEPS:]]
        guesses = session.evaluate({x: data()[0][0]})
        session.save(os.path.join(directory, "end"))
    with tf.Session(graph=context.graph) as session:
        saver.restore(session, os.path.join(directory, "end"))
        with context.graph.as_default():
            values = {v.op.name: session.run(v) for v in tf.global_variables()}
    return losses, guesses, values


def main(directory):
    for how in (alone, distributed):
        tf.reset_default_graph()
        losses, guesses, values = how(directory)
        results = {name.replace("/", "."): value for name, value in values.items()}
        np.savez(os.path.join(directory, how.__name__), losses=losses, guesses=guesses, **results)


if __name__ == "__main__":
    tf.disable_v2_behavior()  # for the whole process
    main(sys.argv[1])
