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


def test_bidirectional_layers_that_are_built_again():
    """Their two layers have the number of the one that they were given, behind another word."""
    keras.backend.clear_session(free_memory=False)
    found = []
    for _ in range(3):
        layers = [keras.layers.Bidirectional(keras.layers.LSTM(3)), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input([4, 2]), *layers])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)

        def step(x, y, model=model, optimizer=optimizer):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            return loss

        specs = [tf.TensorSpec([None, 4, 2]), tf.TensorSpec([None, 1])]
        captured = caramel.capture(lambda x, y, step=step: step(x, y), specs).model
        found.append((captured.digest, [variable.plan_name for variable in captured.variables]))
    assert found[0] == found[1] == found[2]
    assert "sequential/bidirectional/backward_lstm/lstm_cell/bias" in found[0][1]
