"""Digests of steps whose graph has functions, which TensorFlow numbers in the order in which a process traces them."""

import keras
import numpy as np
import tensorflow as tf

import caramel


def context():
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,), dtype="int64")
    hidden = keras.layers.Embedding(9, 4)(inputs)
    hidden = keras.layers.Bidirectional(keras.layers.LSTM(3))(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile("adam", "mse")
    data = tf.data.Dataset.from_tensor_slices((np.zeros([8, 6], np.int64), np.zeros([8, 1], np.float32))).batch(4)
    return caramel.capture(lambda *batch: model.train_step(batch), data=data)


def test_loops_that_were_traced_later():
    first = context()
    assert first.model.graph.library.function, "there is no function, so this tests nothing"
    for size in range(3):  # something else is traced meanwhile
        tf.function(lambda x: tf.while_loop(lambda i: i < 3, lambda i: i + 1, [x])).get_concrete_function(
            tf.constant(size)
        )
    second = context()
    names = [{f.signature.name for f in each.model.graph.library.function} for each in (first, second)]
    assert names[0] != names[1], "the functions have the same names, so this tests nothing"
    assert first.model.digest == second.model.digest


def test_another_loop_is_another_program():
    digests = set()
    for units in (3, 5):
        keras.backend.clear_session()
        model = keras.Sequential([keras.Input((6, 2)), keras.layers.LSTM(units), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        data = tf.data.Dataset.from_tensor_slices((np.zeros([8, 6, 2], np.float32), np.zeros([8, 1], np.float32)))
        digests.add(caramel.capture(lambda *batch, m=model: m.train_step(batch), data=data.batch(4)).model.digest)
    assert len(digests) == 2
