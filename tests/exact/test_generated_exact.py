"""Generated training steps: whatever a program is put together from, N workers equal one device."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from exact_matrix import OPTIMIZERS
from exact_steps import Program, check
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

WIDTH, ROWS = 4, 6
SPECS = [
    tf.TensorSpec([None, WIDTH], tf.float64, "x"),
    tf.TensorSpec([None], tf.int32, "row"),
    tf.TensorSpec([None], tf.float64, "y"),
]

BLOCKS = [
    "dense",
    "again",
    "function",
    "nested",
    "branch",
    "loop",
    "reading_loop",
    "look_up",
    "gru",
    "residual",
    "split",
]
OPTIONS = [
    {},
    {"clipnorm": 0.3},
    {"global_clipnorm": 0.5},
    {"use_ema": True, "ema_momentum": 0.8, "ema_overwrite_frequency": 2},
    {"weight_decay": 0.02},
    {"gradient_accumulation_steps": 2},
]
RECIPES = st.fixed_dictionaries(
    {
        "blocks": st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=4),
        "dtype": st.sampled_from(["float64", "float64", "complex128"]),
        "optimizer": st.sampled_from([*OPTIMIZERS, "by hand", "by hand"]),
        "options": st.sampled_from(OPTIONS),
        "reduction": st.sampled_from(["mean", "mean", "sum"]),
        "micro": st.sampled_from([1, 1, 2]),
        "skip": st.booleans(),
        "whole_in_function": st.booleans(),
        "workers": st.integers(1, 5),
        "count": st.integers(5, 13),
    }
)


class Blocks:
    """Blocks [examples, WIDTH] -> [examples, WIDTH], with their variables."""

    def __init__(self, names, count):
        self.rng = np.random.default_rng(len(names) * 7 + len(names[0]))
        self.count = count
        self.variables, self.calls, self.keras = [], [], []
        for number, name in enumerate(names):
            self.calls.append(getattr(self, name)(number))

    def variable(self, shape, name):
        made = keras.Variable(self.rng.normal(size=shape) * 0.5, name=name, dtype="float64")
        self.variables.append(made)
        return made.value

    def dense(self, number):
        w, b = self.variable([WIDTH, WIDTH], f"w{number}"), self.variable([WIDTH], f"b{number}")
        self.last = lambda h, row: tf.tanh(h @ w + b)
        return self.last

    def again(self, number):
        """The block before once more: shared weights."""
        return getattr(self, "last", None) or self.dense(number)

    def function(self, number):
        w = self.variable([WIDTH, WIDTH], f"w{number}")
        call = tf.function(lambda h: tf.tanh(h @ w))
        return lambda h, row: call(h)

    def nested(self, number):
        w = self.variable([WIDTH], f"w{number}")
        inner = tf.function(lambda h: tf.sin(h * w))
        outer = tf.function(lambda h: inner(h) + inner(-0.5 * h))
        return lambda h, row: outer(h)

    def branch(self, number):
        w, v = self.variable([WIDTH, WIDTH], f"w{number}"), self.variable([WIDTH], f"v{number}")
        even = lambda: tf.equal(self.count % 2, 0)  # noqa: E731
        return lambda h, row: tf.cond(even(), lambda: tf.tanh(h @ w) * v, lambda: h * v)

    def loop(self, number):
        w = self.variable([WIDTH, WIDTH], f"w{number}")

        def call(h, row):
            value = tf.convert_to_tensor(w)
            return tf.while_loop(lambda i, z: i < 2, lambda i, z: (i + 1, tf.tanh(z @ value)), [0, h])[1]

        return call

    def reading_loop(self, number):
        w = self.variable([WIDTH, WIDTH], f"w{number}")
        return lambda h, row: tf.while_loop(lambda i, z: i < 2, lambda i, z: (i + 1, tf.tanh(z @ w)), [0, h])[1]

    def look_up(self, number):
        table = self.variable([ROWS, WIDTH], f"table{number}")
        return lambda h, row: h + tf.gather(table, row)

    def gru(self, number):
        layer = keras.layers.GRU(WIDTH, dtype="float64", name=f"gru{number}")
        layer.build([None, 2, WIDTH // 2])
        self.variables += layer.trainable_variables
        return lambda h, row: layer(tf.reshape(h, [-1, 2, WIDTH // 2]))

    def residual(self, number):
        w = self.variable([WIDTH, WIDTH], f"w{number}")
        return lambda h, row: h + tf.nn.relu(h @ w)

    def split(self, number):
        w, v = self.variable([WIDTH // 2, WIDTH], f"w{number}"), self.variable([WIDTH // 2, WIDTH], f"v{number}")

        def call(h, row):
            left, right = tf.split(h, 2, axis=1)
            return tf.tanh(left @ w) * tf.sigmoid(right @ v)

        return call

    def __call__(self, x, row):
        for call in self.calls:
            x = call(x, row)
        return x


class ByHand:
    """Momentum with a clip, written by hand, in the middle of what optimizers do."""

    def __init__(self, variables):
        self.slots = [
            tf.Variable(tf.zeros_like(v.value), trainable=False, name=f"slot_{n}") for n, v in enumerate(variables)
        ]

    def apply_gradients(self, pairs):
        pairs = list(pairs)
        clipped, _ = tf.clip_by_global_norm([g for g, _ in pairs], 2.0)
        for slot, g, (_, v) in zip(self.slots, clipped, pairs):
            slot.assign(0.7 * slot + tf.convert_to_tensor(g))
            v.value.assign_sub(0.05 * slot)


def program(recipe):
    """The program of a recipe."""

    def make():
        count = tf.Variable(0, dtype=tf.int64, trainable=False, name="count")
        blocks = Blocks(recipe["blocks"], count)
        by_hand = recipe["optimizer"] == "by hand"
        optimizer = ByHand(blocks.variables) if by_hand else OPTIMIZERS[recipe["optimizer"]](**recipe["options"])
        if not by_hand:
            optimizer.build(blocks.variables)
        slots = optimizer.slots if by_hand else optimizer.variables
        skipped = tf.Variable(0, dtype=tf.int64, trainable=False, name="skipped")
        reduce = tf.reduce_mean if recipe["reduction"] == "mean" else tf.reduce_sum

        def differentiate(x, row, y, scale):
            with tf.GradientTape() as tape:
                error = tf.reduce_sum(blocks(scale * x, row), 1) - y
                if recipe["dtype"] == "complex128":
                    turned = tf.cast(error, tf.complex128) * tf.constant(0.6 + 0.8j, tf.complex128)
                    loss = reduce(tf.square(tf.abs(turned)))
                else:
                    loss = reduce(tf.square(error))
            return loss, tape.gradient(loss, [v.value for v in blocks.variables])

        def update(gradients):
            optimizer.apply_gradients(zip(gradients, blocks.variables))

        def step(x, row, y):
            loss, gradients = differentiate(x, row, y, 1.0)
            for number in range(1, recipe["micro"]):
                _, more = differentiate(x, row, y, 1.0 + 0.5 * number)
                gradients = [tf.convert_to_tensor(a) + tf.convert_to_tensor(b) for a, b in zip(gradients, more)]
            if recipe["skip"]:
                limit = 3.0 if recipe["reduction"] == "mean" else 60.0
                small = tf.reduce_all([tf.reduce_all(tf.abs(tf.convert_to_tensor(g)) < limit) for g in gradients])
                wanted = small | (count % 2 == 0)  # some steps may be skipped, never all
                tf.cond(wanted, lambda: (update(gradients), 0)[1], lambda: (skipped.assign_add(1), 0)[1])
            else:
                update(gradients)
            count.assign_add(1)
            return loss

        whole = tf.function(step) if recipe["whole_in_function"] else step
        named = {f"{n}:{v.name}": v for n, v in enumerate([*blocks.variables, *slots, count, skipped])}
        return Program(whole, SPECS, named, {"loss_reduction": recipe["reduction"], "loss": "output"})

    return make


def examples(count, steps=4):
    rng = np.random.default_rng(count)
    return [
        (rng.normal(size=(count, WIDTH)), rng.integers(0, ROWS, count).astype(np.int32), rng.normal(size=count))
        for _ in range(steps)
    ]


def run(recipe):
    check(program(recipe), examples(recipe["count"]), recipe["workers"], rtol=1e-7, unmoved=None)


COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=3, derandomize=True, **COMMON)
@given(RECIPES)
def test_some(recipe):
    run(recipe)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(10))  # for several processes, and none for longer than a hanging test may take
@settings(max_examples=40, derandomize=False, **COMMON)
@given(RECIPES)
def test_many(part, recipe):
    run(recipe)
