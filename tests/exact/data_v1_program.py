"""A program of TensorFlow 1 that reads from tf.data, in a process without TensorFlow 2's behaviour.

Run as ``data_v1_program.py KIND...``, of {"one shot", "reinitializable", "placeholders", "own"}: trains on one device and
on workers, compares, and prints what it compared.
"""

import os
import sys
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

import caramel

BEFORE, STEPS = 7, 10
AS_WRITTEN = caramel.InProcess(options=caramel.RunOptions(optimize_graph=False))
rng = np.random.default_rng(0)
X, Y = rng.normal(size=(23, 3)), rng.normal(size=23)


def dataset():
    """Two passes are ten batches, the last of each smaller; branches in a function."""
    examples = tf.data.Dataset.from_tensor_slices((X, Y)).map(
        lambda x, y: (tf.cond(y > 0, lambda: x * 2, lambda: x), y), num_parallel_calls=2
    )
    return examples.shuffle(23, seed=4).batch(5)


def part(workers, rank):
    """Every worker's own rows; it is called in a graph without the program's seed."""
    tf.set_random_seed(3)
    return dataset().map(lambda x, y: (x[rank::workers], y[rank::workers]))


def step_on(x, y):
    """The loss and the training op."""
    w = tf.get_variable("w", [3], tf.float64, tf.zeros_initializer())
    loss = tf.reduce_mean((tf.reduce_sum(x * w, 1) - y) ** 2, name="loss")
    return loss, tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss, tf.train.get_or_create_global_step())


def build(kind, context=None):
    """The program, and what begins a pass over its data.

    Args:
        kind: how it reads; placeholders become an iterator where they are not Caramel's to fill.
        context: to say what the data is.
    """
    tf.set_random_seed(3)
    if kind == "one shot":
        return *step_on(*dataset().repeat(2).make_one_shot_iterator().get_next()), tf.no_op()
    if kind == "reinitializable":
        iterator = tf.data.Iterator.from_structure(dataset().output_types, dataset().output_shapes)
        begin = iterator.make_initializer(dataset())
        return *step_on(*iterator.get_next()), begin
    if context is None:
        iterator = tf.data.make_initializable_iterator(dataset())
        return *step_on(*iterator.get_next()), iterator.initializer
    loss, train_op = step_on(tf.placeholder(tf.float64, [None, 3], "x"), tf.placeholder(tf.float64, [None], "y"))
    if kind == "own":
        context.data = part
    else:
        context.data = dataset().map(lambda x, y: {"y": y, "x": x})
    return loss, train_op, tf.no_op()


def one_device(kind):
    """The losses and the trained weights."""
    with tf.Graph().as_default(), tf.Session() as session:
        loss, train_op, begin = build(kind)
        session.run(tf.global_variables_initializer())
        losses = []
        while len(losses) < STEPS:
            session.run(begin)
            try:
                while len(losses) < STEPS:
                    losses.append(session.run([loss, train_op])[0])
            except tf.errors.OutOfRangeError:
                pass
        (w,) = tf.trainable_variables()
        assert w.op.type == "VariableV2", w.op.type
        return losses, session.run(w)


def workers(kind, number, prefix):
    """The same by workers, in a session and another that goes on from its checkpoint."""
    with caramel.capture() as context:
        build(kind, context)
    model = caramel.ARModel(context, number)
    with model.session(AS_WRITTEN) as session:
        losses = [result.loss for result in session.run(steps=BEFORE)]
        session.save(prefix)
    with model.session(AS_WRITTEN) as session:
        session.restore(prefix)
        losses += [result.loss for result in session.run(steps=STEPS - BEFORE)]
        return losses, session.values()["w"]


def main(kinds):
    assert not tf.executing_eagerly()
    for kind in kinds:
        want = one_device(kind)
        with tempfile.TemporaryDirectory() as directory:
            got = workers(kind, 2, os.path.join(directory, "saved"))
        np.testing.assert_allclose(got[0], want[0], rtol=1e-8, err_msg=kind)
        np.testing.assert_allclose(got[1], want[1], rtol=1e-8, err_msg=kind)
        print("the same:", kind)


if __name__ == "__main__":
    tf.disable_v2_behavior()  # for the whole process
    sys.exit(main(sys.argv[1:]))
