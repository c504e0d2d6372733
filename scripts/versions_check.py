"""Train in each of the ways in which people do, and compare with one device; `make matrix` runs it beside the wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import keras
import numpy as np
import tensorflow as tf

import caramel

v1 = tf.compat.v1
RNG = np.random.default_rng(0)
X = RNG.normal(size=(48, 12)).astype(np.float32)
Y = RNG.integers(0, 3, 48)


def compiled() -> keras.Model:
    """A model with layers of several kinds, always with the same initial weights."""
    keras.utils.set_random_seed(3)
    pixels = keras.Input((12,))
    hidden = keras.layers.Reshape((4, 3))(pixels)
    hidden = keras.layers.Conv1D(8, 2, activation="relu")(hidden)
    hidden = keras.layers.LayerNormalization()(hidden)
    hidden = keras.layers.Flatten()(hidden)
    hidden = keras.layers.Dense(16, "tanh")(hidden)
    model = keras.Model(pixels, keras.layers.Dense(3)(hidden))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model


def close(got: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted):
        np.testing.assert_allclose(one, other, atol=1e-4 * np.abs(other).max() + 1e-7)


def fit() -> None:
    """Arrays, a dataset, evaluate and predict; planned where the network is known."""
    plain, ours, planned = compiled(), compiled(), compiled()
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(12)
    wanted = plain.fit(data, epochs=2, shuffle=False, verbose=0)
    history = caramel.fit(ours, X, Y, batch_size=12, epochs=2, shuffle=False, verbose=0, workers=2)
    network = caramel.NetworkModel.from_link_rate(1e9)
    again = caramel.fit(planned, data, epochs=2, verbose=0, workers=2, network=network)
    assert again.plan.prediction is not None
    for found, model in ((history, ours), (again, planned)):
        close(model.get_weights(), plain.get_weights())
        for name in ("loss", "accuracy"):
            np.testing.assert_allclose(found.history[name], wanted.history[name], rtol=1e-4)
    np.testing.assert_allclose(
        caramel.evaluate(ours, data, workers=2, verbose=0), plain.evaluate(data, verbose=0), rtol=1e-4
    )
    np.testing.assert_allclose(caramel.predict(ours, X, workers=2, verbose=0), plain.predict(X, verbose=0), atol=1e-4)


def whole_batch() -> None:
    """Losses that need values of the whole batch in the forward pass, and synchronised batch normalisation."""

    def trained(distributed):
        keras.utils.set_random_seed(5)
        pixels = keras.Input((12,), dtype="float64")
        hidden = keras.layers.Dense(6, dtype="float64")(pixels)
        hidden = keras.layers.BatchNormalization(synchronized=True, dtype="float64")(hidden)
        model = keras.Model(pixels, keras.layers.Dense(4, dtype="float64")(hidden))
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)

        def step(x, y):
            with tf.GradientTape() as tape:
                vectors = tf.math.l2_normalize(model(x, training=True), 1)
                alike = tf.matmul(vectors, vectors, transpose_b=True)
                same = tf.cast(y[:, None] == y[None, :], vectors.dtype)
                chosen = tf.boolean_mask(vectors, y > 0)
                loss = tf.reduce_mean((alike - same) ** 2) + tf.reduce_mean(chosen**2) + tf.reduce_sum(vectors) / 100
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            return loss

        batch = X.astype(np.float64), Y
        if distributed:
            specs = [tf.TensorSpec([None, 12], tf.float64), tf.TensorSpec([None], tf.int64)]
            with caramel.ARModel(caramel.capture(step, specs), 3).session() as session:
                losses = [session.step(*batch).loss for _ in range(3)]
                session.write_back()
        else:
            losses = [float(step(*map(tf.constant, batch))) for _ in range(3)]
        return [*model.get_weights(), np.array(losses)]

    close(trained(True), trained(False))


def tf1() -> None:
    """Graph code of TensorFlow 1, with a checkpoint that its own Saver reads."""

    def build():
        x = v1.placeholder(tf.float64, [None, 12], name="x")
        y = v1.placeholder(tf.int64, [None], name="y")
        w = v1.get_variable("w", [12, 3], tf.float64, v1.initializers.constant(0.01, tf.float64))
        b = v1.get_variable("b", [3], tf.float64, v1.initializers.zeros(tf.float64))
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=tf.matmul(x, w) + b))
        return x, y, loss, v1.train.AdamOptimizer(0.01).minimize(loss)

    with tf.Graph().as_default():
        x, y, _, train = build()
        saver = v1.train.Saver()
        with v1.Session() as session, tempfile.TemporaryDirectory() as folder:
            session.run(v1.global_variables_initializer())
            for _ in range(3):
                session.run(train, {x: X, y: Y})
            wanted = session.run(v1.trainable_variables())
            with caramel.capture() as context:
                build()
            with caramel.ARModel(context, 2).session() as distributed:
                for _ in range(3):
                    distributed.step(X, Y)
                prefix = os.path.join(folder, "last")
                distributed.save(prefix)
                values = distributed.values()
            close([values["w"], values["b"]], wanted)
            saver.restore(session, prefix)
            close(session.run(v1.trainable_variables()), wanted)


def processes() -> None:
    """A step of one's own over server processes, traced, planned, exported and run without this library."""
    initial = np.full([12, 3], 0.01, np.float32)
    w = tf.Variable(initial, name="w")

    def step(x, y):
        with tf.GradientTape() as tape:
            logits = tf.matmul(x, w)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    context = caramel.capture(step, [tf.TensorSpec([None, 12]), tf.TensorSpec([None], tf.int64)])
    place = caramel.LocalProcesses(allow_open_ports=True)
    trace = caramel.trace(context, X, Y, workers=2, runs=2, steps=2, cluster=place)
    network = caramel.NetworkModel.from_link_rate(1e9)
    model = caramel.ARModel(context, 2, trace=trace, network=network)
    with model.session(place) as session:
        losses = [session.step(X, Y).loss for _ in range(3)]
        value = session.values()["w"]
    wanted = [float(step(tf.constant(X), tf.constant(Y))) for _ in range(3)]
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    close([value], [w.numpy()])
    with tempfile.TemporaryDirectory() as folder:
        target = os.path.join(folder, "exported")
        model.export(target)
        np.savez(os.path.join(folder, "batch.npz"), x=X, y=Y)
        done = subprocess.run(
            [sys.executable, os.path.join(target, "run.py"), "--help"], capture_output=True, text=True, check=True
        )
        assert "usage" in done.stdout.lower()


def command() -> None:
    """The command is there."""
    done = subprocess.run([sys.executable, "-m", "caramel", "--version"], capture_output=True, text=True, check=True)
    assert caramel.__version__ in done.stdout


if __name__ == "__main__":
    assert "site-packages" in caramel.__file__, caramel.__file__
    for check in (fit, whole_batch, tf1, processes, command):
        check()
        print(f"{check.__name__}: right", flush=True)
