"""Variables whose handles a step gives to ops itself, as optimizers of TensorFlow 1 do with their slots."""

import gc

import numpy as np
import tensorflow as tf

import caramel
from caramel.frontend import naming


def make_step(count):
    rng = np.random.default_rng(0)
    kernels = [tf.Variable(rng.normal(size=(3, 3)), name=f"kernel_{n}") for n in range(count)]
    slots = [tf.Variable(tf.zeros_like(k), trainable=False, name=f"slot_{n}") for n, k in enumerate(kernels)]

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float64)])
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.add_n([x @ k for k in kernels]) ** 2)
        for kernel, slot, gradient in zip(kernels, slots, tape.gradient(loss, kernels)):
            tf.raw_ops.ResourceApplyMomentum(
                var=kernel.handle,
                accum=slot.handle,
                lr=tf.constant(0.1, tf.float64),
                grad=gradient,
                momentum=tf.constant(0.9, tf.float64),
            )
        return loss

    return step


def test_they_are_found_by_their_names():
    model = caramel.capture(make_step(2)).model
    assert {v.name for v in model.variables} == {"kernel_0", "kernel_1", "slot_0", "slot_1"}


def test_all_objects_are_looked_through_once_for_many_of_them(monkeypatch):
    count = 0
    original = gc.get_objects

    class Counting:
        @staticmethod
        def get_objects():
            nonlocal count
            count += 1
            return original()

    step = make_step(6)
    monkeypatch.setattr(naming, "gc", Counting)
    assert len(caramel.capture(step).model.variables) == 12
    assert count == 1
