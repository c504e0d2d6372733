"""A whole ResNet-50 under a plan with everything in it, against one device that adds up micro-batches."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exact_common import RTOL, combine, in_process, split

import caramel
from caramel.facts import BACKWARD, FORWARD, Trace

WORKERS = 4
EXAMPLES = 32
STEPS = 2
SPECS = [tf.TensorSpec([None, 32, 32, 3], tf.float64), tf.TensorSpec([None], tf.int64)]


class Program:
    """The model, always from the same values, and its step with momentum."""

    def __init__(self) -> None:
        keras.backend.clear_session(free_memory=False)
        keras.utils.set_random_seed(7)
        self.model = keras.applications.ResNet50(weights=None, input_shape=(32, 32, 3), classes=10)
        self.optimizer = keras.optimizers.SGD(1e-3, momentum=0.9)
        self.optimizer.build(self.model.trainable_variables)
        self.loss = keras.losses.SparseCategoricalCrossentropy()

    def differentiate(self, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = self.loss(y, self.model(x, training=True))
        return loss, tape.gradient(loss, self.model.trainable_variables)

    def step(self, x: Any, y: Any) -> Any:
        loss, gradients = self.differentiate(x, y)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))
        return loss

    def values(self) -> dict[str, np.ndarray]:
        return {v.path: v.numpy() for v in (*self.model.variables, *self.optimizer.variables)}


def micro_batches(data: Any) -> tuple[list[tuple[float, ...]], dict[str, np.ndarray]]:
    """One device: each worker's part with the statistics of batch normalisation that are its own, and one update."""
    program = Program()
    differentiate = tf.function(program.differentiate, input_signature=SPECS)
    statistics = program.model.non_trainable_variables
    own = [[v.numpy() for v in statistics]] * WORKERS
    losses = []
    for batch in data:
        gradients, step_losses = [], []
        for rank, part in enumerate(split(batch, WORKERS)):
            for variable, value in zip(statistics, own[rank]):
                variable.assign(value)
            loss, mine = differentiate(*part)
            own[rank] = [v.numpy() for v in statistics]
            step_losses.append(float(loss))
            gradients.append([each.numpy() for each in mine])
        losses.append(tuple(step_losses))
        combined = [combine(each, [EXAMPLES // WORKERS] * WORKERS, "mean") for each in zip(*gradients)]
        program.optimizer.apply_gradients(zip(map(tf.constant, combined), program.model.trainable_variables))
    for variable, value in zip(statistics, own[0]):
        variable.assign(value)
    return losses, program.values()


def made_up_trace(model: Any) -> Trace:
    """Convolutions of 1 ms, all other ops of 10 us."""
    op_s = {node.name: 1e-3 if node.op.startswith("Conv2D") else 1e-5 for node in model.graph}
    step_s = sum(op_s.values())
    return Trace(model.digest, op_s, {}, step_s, step_s, 1, 1, EXAMPLES // WORKERS, "made up")


@pytest.fixture
def in_float64():
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(before[0])
    keras.config.set_dtype_policy(before[1])


@pytest.mark.soak
def test_resnet50_under_a_complete_plan(in_float64):
    rng = np.random.default_rng(5)
    data = [(rng.normal(size=(EXAMPLES, 32, 32, 3)), rng.integers(0, 10, EXAMPLES)) for _ in range(STEPS)]
    want_losses, want = micro_batches(data)

    program = Program()
    before = program.values()
    context = caramel.capture(program.step, SPECS)
    # All gradients take about as long to send as the computation, so they need both windows.
    network = caramel.NetworkModel.from_link_rate(1.5e9, 1e-5)
    armodel = caramel.ARModel(context, WORKERS, trace=made_up_trace(context.model), network=network)
    plan = armodel.plan
    assert {t.window for t in plan.transfers} == {FORWARD, BACKWARD}
    assert plan.edges and 0 < len(plan.postponed) < len(plan.pieces) == len(program.model.trainable_variables)
    assert any(len(t.pieces) > 1 for t in plan.transfers)

    with armodel.session(in_process()) as session:
        losses = [session.step(*batch).worker_losses for batch in data]
        session.flush()
        session.write_back()
    np.testing.assert_allclose(losses, want_losses, rtol=RTOL)
    got = program.values()
    assert set(got) == set(want)
    # Batch normalisation takes off again what a bias adds before it: these gradients are 0 but for rounding.
    idle = {name for name in want if "conv" in name and "bias" in name}
    assert len(idle) == 2 * 53  # each with its momentum
    assert max(np.max(np.abs(values[name])) for values in (got, want) for name in idle) < 1e-12
    for name in set(want) - idle:
        # Fifty layers pass on what the first ones round, so small elements differ by a part of the large ones.
        error, largest = np.max(np.abs(got[name] - want[name])), np.max(np.abs(want[name]))
        assert error <= RTOL * largest, (name, error, largest)
    moved = [name for name, value in got.items() if not np.array_equal(value, before[name])]
    assert len(moved) == len(got) - 1  # all but the learning rate
