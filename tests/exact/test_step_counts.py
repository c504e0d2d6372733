"""The number of steps after a restore, where the program's own counter counts something else."""

import numpy as np
import pytest
import tensorflow as tf
from variants import mostly_in_soak

import caramel

STEPS = 7


def added_up(net, optimizer):
    """Applies the gradients of two steps at once."""
    sums = [tf.Variable(tf.zeros(v.shape), trainable=False, name=f"sum_{n}") for n, v in enumerate(net)]
    count = tf.Variable(0, dtype=tf.int64, trainable=False, name="count")

    def apply(gradients):
        for total, gradient in zip(sums, gradients):
            total.assign_add(gradient / 2)
        count.assign_add(1)

        def update():
            optimizer.apply_gradients([(total.read_value(), v) for total, v in zip(sums, net)])
            for total in sums:
                total.assign(tf.zeros_like(total))
            return 1

        tf.cond(count % 2 == 0, update, lambda: 0)

    return apply


def twice(net, optimizer):
    def apply(gradients):
        for part in gradients:
            optimizer.apply_gradients([(g / 2, v) for g, v in zip([part] * len(net), net)])

    return apply


def now_and_then(net, optimizer):
    """As where a loss is scaled, and overflows."""

    def apply(gradients):
        fits = tf.reduce_all(tf.abs(gradients[0]) < 30)
        tf.cond(fits, lambda: optimizer.apply_gradients(zip(gradients, net)) is None, lambda: True)

    return apply


KINDS = {"added up": (added_up, 3), "twice": (twice, 7), "now and then": (now_and_then, None)}


def program(kind):
    import keras

    w = tf.Variable([0.0, 0.0, 0.0], name="w")
    optimizer = keras.optimizers.Adam(0.05)
    optimizer.build([w])
    apply = KINDS[kind][0]([w], optimizer)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
        apply(tape.gradient(loss, [w]))
        return loss

    return caramel.capture(step, [tf.TensorSpec([None, 3]), tf.TensorSpec([None])])


@pytest.mark.parametrize("kind", mostly_in_soak(KINDS, "added up", "now and then"))
def test_all_steps_count(kind, tmp_path):
    rng = np.random.default_rng(0)
    batches = [(rng.normal(size=(4, 3)).astype("f"), np.full(4, 5.0 * n, "f")) for n in range(2 * STEPS)]
    with caramel.ARModel(program(kind), 2).session() as session:
        session.run(batches[:STEPS], progress=False)
        session.save(tmp_path / "saved")
        session.run(batches[STEPS:], progress=False)
        want = session.values()
    applied = next(int(value) for name, value in want.items() if name.endswith("iteration"))
    assert applied != 2 * STEPS or kind == "twice"
    with caramel.ARModel(program(kind), 3).session() as session:
        session.restore(tmp_path / "saved")
        assert session.step_count == STEPS
        results = session.run(batches[session.step_count :], progress=False)
        assert results[-1].step == session.step_count == 2 * STEPS
        np.testing.assert_allclose(session.values()["w"], want["w"], rtol=1e-4, atol=1e-5)
