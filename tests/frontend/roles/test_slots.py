"""Variables whose handles a step gives to ops itself, as optimizers of TensorFlow 1 do with their slots."""

import gc

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.frontend.programs import naming

v1 = tf.compat.v1


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


@pytest.mark.parametrize("position", ["first", "last"])
def test_what_an_assignment_returned_is_no_variable(monkeypatch, position):
    """It has the handle of the variable, and another name; wherever it is among all objects."""
    kernel = tf.Variable(np.ones((3, 3)), name="kernel")
    optimizer = v1.train.MomentumOptimizer(0.1, 0.9)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ kernel) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, kernel), kernel)])
        return loss

    tf.function(step)(np.ones((2, 3)))
    kept = [v.assign(tf.zeros_like(v)) for v in optimizer.variables()]
    objects = [each for each in gc.get_objects() if all(each is not k for k in kept)]
    objects = [*kept, *objects] if position == "first" else [*objects, *kept]
    monkeypatch.setattr(naming.gc, "get_objects", lambda: objects)
    context = caramel.capture(step, [tf.TensorSpec([None, 3], tf.float64)])
    assert {v.name for v in context.model.variables} == {"kernel", "kernel/Momentum"}


def test_variables_that_were_never_made_are_no_matter():
    with pytest.raises(ValueError, match="shape") as error:
        tf.Variable([1.0, 2.0], shape=[3])
    assert error.value.__traceback__ is not None  # keeps what has no handle yet
    assert len(caramel.capture(make_step(2)).model.variables) == 4
