"""Every Keras optimizer with every feature of a step that is the same mathematics on one device with the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from exact_steps import Program

layers = keras.layers
FEATURES, CLASSES, ROWS, WIDTH = 6, 3, 7, 4
SPECS = [
    tf.TensorSpec([None, FEATURES], tf.float64, "x"),
    tf.TensorSpec([None, 2], tf.int32, "rows"),
    tf.TensorSpec([None], tf.int64, "y"),
]

OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": lambda **o: keras.optimizers.SGD(0.1, **o),
    "momentum": lambda **o: keras.optimizers.SGD(0.05, momentum=0.9, **o),
    "nesterov": lambda **o: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, **o),
    "adam": lambda **o: keras.optimizers.Adam(0.01, **o),
    "amsgrad": lambda **o: keras.optimizers.Adam(0.01, amsgrad=True, **o),
    "adamw": lambda **o: keras.optimizers.AdamW(0.01, **o),
    "rmsprop": lambda **o: keras.optimizers.RMSprop(0.01, **o),
    "rmsprop_centered": lambda **o: keras.optimizers.RMSprop(0.01, momentum=0.5, centered=True, **o),
    "adagrad": lambda **o: keras.optimizers.Adagrad(0.05, **o),
    "adadelta": lambda **o: keras.optimizers.Adadelta(1.0, **o),
    "adafactor": lambda **o: keras.optimizers.Adafactor(0.05, **o),
    "adamax": lambda **o: keras.optimizers.Adamax(0.01, **o),
    "lion": lambda **o: keras.optimizers.Lion(0.01, **o),
    "nadam": lambda **o: keras.optimizers.Nadam(0.01, **o),
    "ftrl": lambda **o: keras.optimizers.Ftrl(0.05, **o),
    "lamb": lambda **o: keras.optimizers.Lamb(0.01, **o),
}

SOME_OPTIMIZERS = ("momentum", "amsgrad", "rmsprop_centered", "adafactor", "lion", "ftrl", "lamb")
"""Those that do most, of each kind one: for what every run tests, where `make soak` tests all."""


@dataclass(frozen=True)
class Feature:
    """What a program has besides the plainest.

    Attributes:
        options: of the optimizer.
        hidden: from x to hidden values, in the place of a dense layer; makes its layers and returns a function.
        wrap: puts the optimizer into another.
        constraint: of the first kernel.
        count: examples in a batch.
        overflows: (step, example) whose inputs are infinite.
        reduction: of the loss.
        twice: whether the step has two losses, differentiated one after the other.
        looks_up: whether a table is looked up in.
        capture: options of `caramel.capture`.
    """

    options: dict[str, Any] = field(default_factory=dict)
    hidden: Callable[[], Callable[[Any], Any]] | None = None
    wrap: Callable[[Any], Any] | None = None
    constraint: Any = None
    count: int = 12
    overflows: Sequence[tuple[int, int]] = ()
    reduction: str = "sum_over_batch_size"
    twice: bool = False
    looks_up: bool = False
    capture: dict[str, Any] = field(default_factory=dict)


def dense(units=WIDTH, activation="tanh", **options):
    return layers.Dense(units, activation, dtype="float64", bias_initializer="glorot_uniform", **options)


def shared():
    first, again = dense(), dense()
    return lambda x: again(again(first(x)))


def recurrent():
    reshape = layers.Reshape([3, 2], dtype="float64")
    cell = layers.GRU(WIDTH, dtype="float64")
    return lambda x: cell(reshape(x))


def attention():
    reshape = layers.Reshape([3, 2], dtype="float64")
    attend = layers.MultiHeadAttention(2, 3, use_bias=False, dtype="float64")
    norm, flat = layers.LayerNormalization(dtype="float64"), layers.Flatten(dtype="float64")

    def call(x):
        tokens = reshape(x)
        return flat(norm(tokens + attend(tokens, tokens)))

    return call


class Called(keras.layers.Layer):
    """Its weights are used inside a tf.function, a branch, or a loop."""

    def __init__(self, how):
        super().__init__(dtype="float64")
        self.how = how

    def build(self, shape):
        self.kernel = self.add_weight(shape=[shape[-1], shape[-1]], initializer="glorot_uniform", name="kernel")
        self.scale = self.add_weight(shape=[shape[-1]], initializer="random_normal", name="scale")
        self.count = self.add_weight(shape=[], dtype="int64", initializer="zeros", trainable=False, name="count")

    def call(self, x):
        if self.how == "function":
            return tf.function(lambda z: tf.tanh(z @ self.kernel.value) * self.scale.value)(x)
        if self.how == "branch":
            even = tf.equal(self.count.value % 2, 0)
            self.count.assign(self.count.value + 1)
            return tf.cond(
                even, lambda: tf.tanh(x @ self.kernel.value) * self.scale.value, lambda: x * self.scale.value
            )
        kernel, scale = self.kernel.value, self.scale.value
        return tf.while_loop(
            lambda i, z: i < 3, lambda i, z: (i + 1, tf.tanh(z @ kernel) + scale), [0, x], maximum_iterations=3
        )[1]


FEATURE: dict[str, Feature] = {
    "plain": Feature(),
    "uneven": Feature(count=13),
    "sum": Feature(reduction="sum", count=13),
    "accumulation": Feature({"gradient_accumulation_steps": 3}, count=13),
    "ema": Feature({"use_ema": True, "ema_momentum": 0.9}),
    "ema_overwrite": Feature({"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 3}),
    "clipnorm": Feature({"clipnorm": 0.1}),
    "clipvalue": Feature({"clipvalue": 0.05}),
    "global_clipnorm": Feature({"global_clipnorm": 0.2}),
    "weight_decay": Feature({"weight_decay": 0.01}),
    "loss_scale_factor": Feature({"loss_scale_factor": 64.0}),
    "schedule": Feature(),  # see `program`
    "everything": Feature(
        {"gradient_accumulation_steps": 2, "global_clipnorm": 0.2, "use_ema": True, "weight_decay": 0.01}, count=13
    ),
    "loss_scaling": Feature(
        wrap=lambda o: keras.optimizers.LossScaleOptimizer(o, initial_scale=2.0**8, dynamic_growth_steps=2),
        overflows=[(1, 0), (5, -1)],
    ),
    "constraint": Feature(constraint=keras.constraints.MaxNorm(0.7)),
    "embedding": Feature(looks_up=True, count=13),
    "embedding_clipped": Feature({"global_clipnorm": 0.2}, looks_up=True),
    "shared": Feature(hidden=shared),
    "recurrent": Feature(hidden=recurrent),
    "attention": Feature(hidden=attention),
    "function": Feature(hidden=lambda: Called("function")),
    "branch": Feature(hidden=lambda: Called("branch")),
    "loop": Feature(hidden=lambda: Called("loop"), capture={"loss_reduction": "mean"}),
    "two_losses": Feature(twice=True, capture={"loss": "output"}),
}


def batches(feature: Feature, steps: int = 7, seed: int = 3) -> list[tuple[Any, ...]]:
    """Global batches."""
    rng = np.random.default_rng(seed)
    found = []
    for step in range(steps):
        x = rng.normal(size=(feature.count, FEATURES))
        for at, example in feature.overflows:
            if at == step:
                x[example] = np.inf
        rows = rng.integers(0, ROWS, (feature.count, 2)).astype(np.int32)
        found.append((x, rows, rng.integers(0, CLASSES, feature.count)))
    return found


def program(optimizer: str, name: str) -> Callable[[], Program]:
    """A training step with a Keras optimizer and a feature."""
    feature = FEATURE[name]

    def make() -> Program:
        inner = OPTIMIZERS[optimizer](**feature.options)
        if name == "schedule":
            rate = float(inner.learning_rate)
            inner.learning_rate = keras.optimizers.schedules.ExponentialDecay(rate, 2, 0.8)
        chosen = feature.wrap(inner) if feature.wrap else inner
        inputs = keras.Input([FEATURES], dtype="float64")
        rows = keras.Input([2], dtype="int32")
        hidden = (feature.hidden or dense)()(inputs)
        if feature.looks_up:
            table = layers.Embedding(ROWS, WIDTH, dtype="float64")
            hidden = layers.Concatenate(dtype="float64")([hidden, layers.Flatten(dtype="float64")(table(rows))])
        last = dense(CLASSES, None, kernel_constraint=feature.constraint)
        model = keras.Model([inputs, rows], last(hidden))
        chosen.build(model.trainable_variables)
        loss_of = keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, dtype="float64", reduction=feature.reduction
        )

        def update(x, rows, y):
            with tf.GradientTape() as tape:
                loss = loss_of(y, model([x, rows], training=True))
                scaled = chosen.scale_loss(loss)
            gradients = tape.gradient(scaled, model.trainable_variables)
            chosen.apply_gradients(zip(gradients, model.trainable_variables))
            return loss

        def step(x, rows, y):
            loss = update(x, rows, y)
            return loss + update(0.5 * x, rows, y) if feature.twice else loss

        variables = {v.path: v for v in [*model.variables, *chosen.variables]}
        return Program(step, SPECS, variables, feature.capture)

    return make
