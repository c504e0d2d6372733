"""The programs of the README, as they stand there, with what they take for granted."""

import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import caramel

README = Path(__file__).resolve().parents[2] / "README.md"
FIT, GRAPH, STEP = re.findall(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.slow


def executed(program, **names):
    """What a program leaves."""
    exec(compile(program, str(README), "exec"), names)
    return names


def test_a_keras_model():
    import keras

    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    x, y = np.ones([300, 4], np.float32), np.ones([300, 3], np.float32)
    before = model.get_weights()
    history = executed(FIT, model=model, x=x, y=y)["history"].history
    assert len(history["val_loss"]) == 10 and history["loss"][-1] < history["loss"][0]
    assert not np.array_equal(model.get_weights()[0], before[0])


def test_a_graph_of_tensorflow_1(tmp_path, monkeypatch):
    v1 = tf.compat.v1

    def build_my_graph():
        images = v1.placeholder(tf.float32, [None, 4], name="images")
        labels = v1.placeholder(tf.int64, [None], name="labels")
        w = v1.get_variable("w", [4, 3])
        loss = v1.losses.sparse_softmax_cross_entropy(labels, images @ w)
        v1.train.GradientDescentOptimizer(0.1).minimize(loss)

    class Batch:
        images, labels = np.eye(4, dtype=np.float32), np.array([0, 1, 2, 0])

    monkeypatch.chdir(tmp_path)
    left = executed(GRAPH, caramel=caramel, build_my_graph=build_my_graph, batches=[Batch] * 3)
    assert left["loss"] > 0 and (tmp_path / "checkpoints" / "last.index").exists()


def test_a_step_of_ones_own():
    w = tf.Variable(tf.zeros([3, 5]))

    def step(images, labels):
        with tf.GradientTape() as tape:
            logits = tf.reduce_mean(images, [1, 2]) @ w
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    assert "steps=1000" in STEP
    batches = [(np.ones([8, 224, 224, 3], np.float32), np.arange(8) % 5)] * 2
    executed(STEP.replace("steps=1000", "steps=2"), caramel=caramel, tf=tf, step=step, batches=batches)
    assert np.abs(w.numpy()).max() > 0
