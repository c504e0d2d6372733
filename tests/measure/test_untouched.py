"""Tracing changes nothing of the user's: values, positions in data, graphs, batches, and global randomness."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import caramel

v1 = tf.compat.v1


def keras_program():
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(3),
        ]
    )
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_function(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return model, optimizer, step


SPECS = [tf.TensorSpec([None, 4], name="x"), tf.TensorSpec([None], tf.int64, name="y")]


def values_of(variables):
    return {v.path: v.numpy().copy() for v in variables}


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, strict=True, err_msg=name)


def test_keras(batch, untouched):
    model, optimizer, step = keras_program()
    step(*batch)  # moments and statistics are no zeros then
    variables = [*model.variables, *optimizer.variables, model.layers[2].seed_generator.state]
    assert any(np.any(v) for v in optimizer.variables)
    before, given = values_of(variables), [array.copy() for array in batch]
    context = caramel.capture(step, SPECS)
    trace = untouched(lambda: caramel.trace(context, *batch, workers=2, runs=2, steps=2))
    assert_equal(values_of(variables), before)
    for array, copy in zip(batch, given):
        np.testing.assert_array_equal(array, copy, strict=True)
    assert trace.runs == 2


def test_a_graph_and_its_session(batch, untouched):
    with v1.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], "x")
        y = v1.placeholder(tf.int64, [None], "y")
        w = v1.get_variable("w", [4, 3], initializer=v1.random_normal_initializer())
        logits = tf.nn.dropout(tf.matmul(x, w), rate=0.5)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        train = v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, v1.train.get_or_create_global_step())
        variables, start = v1.global_variables(), v1.global_variables_initializer()
    session = v1.Session(graph=graph)
    session.run(start)
    session.run(train, {x: batch[0], y: batch[1]})
    before = session.run(variables)
    context = caramel.capture(graph)
    assert context.model is not None
    as_it_was = graph.as_graph_def().SerializeToString(deterministic=True)
    untouched(lambda: caramel.trace(context, *batch, workers=2, runs=2, steps=2))
    for value, expected in zip(session.run(variables), before):
        np.testing.assert_array_equal(value, expected, strict=True)
    assert graph.as_graph_def().SerializeToString(deterministic=True) == as_it_was
    session.close()


def numbers(count=12):
    return tf.data.Dataset.from_tensor_slices(np.arange(count * 4, dtype=np.float32).reshape(count, 4))


def test_a_dataset_and_its_iterator(untouched):
    weights = tf.Variable(tf.ones([4]), name="w")

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.linalg.matvec(x, weights) ** 2)
        weights.assign_sub(1e-6 * tape.gradient(loss, weights))
        return loss

    dataset = numbers().shuffle(12, seed=1, reshuffle_each_iteration=True).batch(4)
    alike = numbers().shuffle(12, seed=1, reshuffle_each_iteration=True).batch(4)
    iterator, expected = iter(dataset), iter(alike)
    np.testing.assert_array_equal(next(iterator), next(expected))
    context = caramel.capture(step, data=dataset)
    trace = untouched(lambda: caramel.trace(context, workers=2, runs=4, steps=4))  # 14 steps on 3 batches
    assert trace.examples == 2
    np.testing.assert_array_equal(next(iterator), next(expected))
    np.testing.assert_array_equal(next(iterator), next(expected))
    np.testing.assert_array_equal(weights, np.ones(4, np.float32))


@pytest.mark.parametrize("make", [v1.data.make_one_shot_iterator, v1.data.make_initializable_iterator])
def test_an_iterator_of_a_graph(make):
    with v1.Graph().as_default() as graph:
        iterator = make(numbers().batch(2))
        x = iterator.get_next()
        w = v1.get_variable("w", [4], initializer=v1.ones_initializer())
        loss = tf.reduce_mean(tf.linalg.matvec(x, w) ** 2)
        v1.train.GradientDescentOptimizer(1e-6).minimize(loss)
        begin = [v1.global_variables_initializer()]
        if make is v1.data.make_initializable_iterator:
            begin.append(iterator.initializer)
        with v1.Session() as session:
            session.run(begin)
            first = session.run(x)
            caramel.trace(caramel.capture(graph), runs=2, steps=2)
            second = session.run(x)
    np.testing.assert_array_equal(first.ravel(), np.arange(8))
    np.testing.assert_array_equal(second.ravel(), np.arange(8, 16))
