"""A step that changes Python state: refused by its name if the step uses it, since it would stay as it is at capture."""

import collections
import dataclasses
import functools
import itertools
import random
import types
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

import caramel

SPECS = [tf.TensorSpec([None, 2], tf.float64)]

count = 0
counts = {"steps": 0}


class Trainer:
    """A linear model whose step scales the gradient by what `scale` gives."""

    def __init__(self, scale=lambda trainer: 1.0):
        self.weights = tf.Variable(np.ones([2, 1]))
        self.scale = scale
        self.updates = 0
        self.history = []

    def step(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(x, self.weights) - 2.0))
        scale = tf.cast(self.scale(self), tf.float64)
        self.weights.assign_sub(0.1 * scale * tape.gradient(loss, self.weights))
        return loss

    def __call__(self, x):
        return self.step(x)


def stepping(scale):
    return Trainer(scale).step


def in_closure():
    updates = 0

    def scale(trainer):
        nonlocal updates
        updates += 1
        return 1.0 / updates

    return stepping(scale)


def in_self():
    def scale(trainer):
        trainer.updates += 1
        return 1.0 / trainer.updates

    return stepping(scale)


def in_self_of_a_callable():
    return Trainer(in_self().__self__.scale)


def in_global():
    def scale(trainer):
        global count
        count += 1
        return 1.0 / count

    return stepping(scale)


def in_global_dict():
    def scale(trainer):
        counts["steps"] += 1
        return 1.0 / counts["steps"]

    return stepping(scale)


def in_list():
    updates = [0]

    def scale(trainer):
        updates[0] += 1
        return 1.0 / updates[0]

    return stepping(scale)


def in_length_of_list():
    def scale(trainer):
        trainer.history.append(None)
        return 1.0 / len(trainer.history)

    return stepping(scale)


def in_namespace():
    adam = SimpleNamespace(state=SimpleNamespace(updates=0))

    def scale(trainer):
        adam.state.updates += 1
        return 1.0 / adam.state.updates

    return stepping(scale)


def in_dataclass():
    @dataclasses.dataclass
    class State:
        updates: int = 0

    state = State()

    def scale(trainer):
        state.updates += 1
        return 1.0 / state.updates

    return stepping(scale)


def in_slots():
    class State:
        __slots__ = ("updates",)

    state = State()
    state.updates = 0

    def scale(trainer):
        state.updates += 1
        return 1.0 / state.updates

    return stepping(scale)


def in_array():
    updates = np.zeros(3)

    def scale(trainer):
        updates[1] += 1
        return 1.0 / updates[1]

    return stepping(scale)


def in_function_attribute():
    def scale(trainer):
        scale.updates += 1
        return 1.0 / scale.updates

    scale.updates = 0
    return stepping(scale)


def in_default():
    def scale(trainer, updates=[0]):  # noqa: B006
        updates[0] += 1
        return 1.0 / updates[0]

    return stepping(scale)


def in_partial():
    def scale(updates, trainer):
        updates[0] += 1
        return 1.0 / updates[0]

    return stepping(functools.partial(scale, [0]))


def in_class():
    class State:
        updates = 0

    def scale(trainer):
        State.updates += 1
        return 1.0 / State.updates

    return stepping(scale)


def in_module():
    module = types.ModuleType("state_of_a_test")
    module.updates = 0
    namespace = {"state": module}
    exec("def scale(trainer):\n    state.updates += 1\n    return 1.0 / state.updates", namespace)
    return stepping(namespace["scale"])


def in_deque():
    rates = collections.deque([1.0, 0.5, 0.25])

    def scale(trainer):
        rates.rotate()
        return rates[0]

    return stepping(scale)


def in_count():
    numbers = itertools.count(1)
    return stepping(lambda trainer: 1.0 / next(numbers))


def in_cycle():
    numbers = itertools.cycle([1.0, 0.5])
    return stepping(lambda trainer: next(numbers))


def in_generator():
    def rates():
        rate = 1.0
        while True:
            yield rate
            rate *= 0.9

    numbers = rates()
    return stepping(lambda trainer: next(numbers))


def in_iterator():
    numbers = iter([1.0, 0.5, 0.25, 0.1])
    return stepping(lambda trainer: next(numbers))


def in_numpy_random():
    return stepping(lambda trainer: np.random.uniform())


def in_numpy_generator():
    generator = np.random.default_rng(0)
    return stepping(lambda trainer: generator.uniform())


def in_numpy_state():
    generator = np.random.RandomState(0)
    return stepping(lambda trainer: generator.uniform())


def in_python_random():
    return stepping(lambda trainer: random.random())


def in_python_generator():
    generator = random.Random(0)
    return stepping(lambda trainer: generator.random())


def shuffled_list():
    values = [1.0, 0.5, 0.25, 0.1, 0.7, 0.3, 0.9, 0.2]
    generator = np.random.default_rng(1)

    def scale(trainer):
        generator.shuffle(values)
        return values[0]

    return stepping(scale)


CHANGING = {
    in_closure: "updates",
    in_self: "updates",
    in_self_of_a_callable: "updates",
    in_global: "count",
    in_global_dict: "counts['steps']",
    in_list: "updates[0]",
    in_length_of_list: "history (its length)",
    in_namespace: "adam.state.updates",
    in_dataclass: "state.updates",
    in_slots: "state.updates",
    in_array: "updates",
    in_function_attribute: "scale.updates",
    in_default: "updates[0]",
    in_partial: "[0]",
    in_class: "State.updates",
    in_module: "state.updates",
    in_deque: "rates[0]",
    in_count: "numbers",
    in_cycle: "numbers",
    in_generator: "numbers",
    in_iterator: "numbers",
    in_numpy_random: "numpy.random",
    in_numpy_generator: "generator",
    in_numpy_state: "generator",
    in_python_random: "random",
    in_python_generator: "generator",
    shuffled_list: "values",
}


def captured(step, workers=1):
    return caramel.ARModel(caramel.capture(step, inputs=SPECS), workers)


@pytest.mark.parametrize("make, name", CHANGING.items(), ids=lambda v: getattr(v, "__name__", ""))
def test_state_that_the_step_uses_is_refused_by_its_name(make, name):
    with pytest.raises(caramel.CaptureError) as caught:
        captured(make())
    assert "in Python, and uses it" in str(caught.value) and "tf.Variable" in str(caught.value)
    assert name in str(caught.value)


def test_a_name_is_that_of_the_users_object():
    with pytest.raises(
        caramel.CaptureError, match=r"the training step 'step' changes \S*updates in Python, and uses it"
    ):
        captured(in_self())


UNUSED = {
    "a count": lambda trainer: setattr(trainer, "updates", trainer.updates + 1) or 1.0,
    "a list": lambda trainer: trainer.history.append(1) or 1.0,
    "a draw": lambda trainer: 1.0 + 0.0 * int(np.random.uniform()),
    "a draw of Python": lambda trainer: random.random() and 1.0,
}


def batches(steps=4):
    return [(x,) for x in np.random.default_rng(0).normal(size=(steps, 6, 2))]


def alone(step):
    for batch in batches():
        step(*batch)


@pytest.mark.parametrize("scale", UNUSED.values(), ids=UNUSED)
def test_what_the_step_changes_and_does_not_use_is_no_refusal(scale):
    want, got = Trainer(), Trainer(scale)
    alone(want.step)
    with captured(got.step, 3).session() as session:
        session.run(batches())
        session.write_back()
    np.testing.assert_allclose(got.weights, want.weights, rtol=1e-12)


@pytest.mark.parametrize("make", [in_closure, in_self, in_numpy_random, in_count], ids=lambda f: f.__name__)
def test_in_a_function_of_tensorflow_it_stays_as_it_is_on_one_device(make):
    """There a tf.function is traced once, too: the values of the trace are those of every step."""
    np.random.seed(3)
    want = make()
    alone(tf.function(want, input_signature=SPECS))
    np.random.seed(3)
    got = make()
    with captured(tf.function(got), 2).session() as session:
        session.run(batches())
        session.write_back()
    np.testing.assert_allclose(got.__self__.weights, want.__self__.weights, rtol=1e-12)


def test_a_step_that_makes_its_variables_in_its_first_call_is_no_refusal():
    class Lazy(Trainer):
        def __init__(self):
            super().__init__()
            self.bias = None

        def step(self, x):
            if self.bias is None:
                self.bias = tf.Variable(np.zeros([1]))
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(tf.matmul(x, self.weights) + self.bias))
            for variable, gradient in zip((self.weights, self.bias), tape.gradient(loss, (self.weights, self.bias))):
                variable.assign_sub(0.1 * gradient)
            return loss

    want, got = Lazy(), Lazy()
    alone(want.step)
    with captured(got.step, 2).session() as session:
        session.run(batches())
        session.write_back()
    np.testing.assert_allclose(got.bias, want.bias, rtol=1e-12)


def test_capture_leaves_random_numbers_of_python_where_the_step_has_left_them():
    """A second trace may draw: then the state is that after one."""
    np.random.seed(1)
    random.seed(1)
    captured(Trainer(lambda trainer: 1.0 + 0.0 * int(np.random.uniform() + random.random() < 0)).step)
    drawn = np.random.uniform(), random.random()
    np.random.seed(1)
    random.seed(1)
    np.random.uniform(), random.random()
    assert drawn == (np.random.uniform(), random.random())


def test_a_count_that_changes_nothing_yet_is_named_in_the_plan():
    """What a warm-up of 100 steps would do later is another step, which is never traced."""
    trainer = Trainer(lambda trainer: 1.0)

    def step(x):
        trainer.count = getattr(trainer, "count", 0) + 1
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.matmul(x, trainer.weights) ** 2)
        rate = 0.1 if trainer.count < 100 else 0.01
        trainer.weights.assign_sub(rate * tape.gradient(loss, trainer.weights))
        return loss

    trainer.count = 0
    notes = captured(step, 2).plan.notes
    assert any("changes" in note and "count in Python" in note and "not in each step" in note for note in notes)
