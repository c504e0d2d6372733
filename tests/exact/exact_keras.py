"""A Keras 3 training step with features to choose from, and what it must do on N workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from exact_common import (
    CLASSES,
    GOLDEN,
    INPUTS,
    Case,
    Trained,
    assert_clipped_in_some_steps,
    combine,
    combine_losses,
    global_norm,
    in_process,
    serial_functions,
    split,
    train,
)

import caramel

OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": lambda rate, **options: keras.optimizers.SGD(rate, **options),
    "momentum": lambda rate, **options: keras.optimizers.SGD(rate, momentum=0.9, **options),
    "nesterov": lambda rate, **options: keras.optimizers.SGD(rate, momentum=0.9, nesterov=True, **options),
    "adam": lambda rate, **options: keras.optimizers.Adam(rate, **options),
}
RATES = {"sgd": 0.1, "momentum": 0.02, "nesterov": 0.02, "adam": 0.01}


class Program:
    """A model, its optimizer and its loss. Every new one starts from the same values."""

    def __init__(self, case: Case):
        keras.backend.clear_session(free_memory=False)  # the same names every time
        keras.utils.set_random_seed(7)
        self.case = case
        self.model = build_model(case)
        self.optimizer = build_optimizer(case)
        reduction = "sum_over_batch_size" if case.reduction == "mean" else "sum"
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction, dtype=case.dtype)
        self.specs = [tf.TensorSpec([None, INPUTS], case.dtype), tf.TensorSpec([None], tf.int64)]

    @property
    def trained(self) -> list[keras.Variable]:
        """The trainable variables that have a gradient."""
        return [each for each in self.model.trainable_variables if "unused" not in each.path]

    @property
    def local(self) -> list[keras.Variable]:
        """Batch-norm statistics and random states: of each worker."""
        return self.model.non_trainable_variables

    def differentiate(self, x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """The loss and its gradients."""
        with tf.GradientTape() as tape:
            loss = self.loss(y, self.model(x, training=True))
        return loss, tape.gradient(loss, self.trained)

    def apply(self, gradients: Sequence[tf.Tensor]) -> None:
        """The update."""
        self.optimizer.apply_gradients(zip(gradients, self.trained))

    def step(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        """The training step, as a user writes it."""
        loss, gradients = self.differentiate(x, y)
        self.apply(gradients)
        return loss

    def build(self) -> None:
        """Make the optimizer's variables."""
        self.optimizer.build(self.trained)

    def variables(self) -> list[keras.Variable]:
        """Everything that a checkpoint of the model and its optimizer has."""
        return [*self.model.variables, *self.optimizer.variables]

    def values(self) -> dict[str, np.ndarray]:
        """Every variable by its path."""
        return {each.path: each.numpy() for each in self.variables()}

    def checkpoint(self) -> tf.train.Checkpoint:
        """A Checkpoint of the program's objects."""
        return tf.train.Checkpoint(model=self.model, optimizer=self.optimizer)


def build_model(case: Case) -> keras.Model:
    """A small classifier."""
    features, layers = case.features, keras.layers

    def dense(units, name, **options):
        bias = keras.initializers.RandomNormal(stddev=0.3)
        return layers.Dense(units, name=name, bias_initializer=bias, dtype=case.dtype, **options)

    inputs = hidden = keras.Input([INPUTS], dtype=case.dtype)
    if "convolution" in features:
        hidden = layers.Reshape([4, 4, 1], dtype=case.dtype)(hidden)
        hidden = layers.Conv2D(4, 3, padding="same", name="convolution", dtype=case.dtype)(hidden)
        if "norm" in features:
            hidden = layers.BatchNormalization(momentum=0.9, name="image_norm", dtype=case.dtype)(hidden)
        hidden = layers.ReLU(dtype=case.dtype)(hidden)
        hidden = layers.MaxPooling2D(dtype=case.dtype)(hidden)
        hidden = layers.Flatten(dtype=case.dtype)(hidden)
    hidden = dense(8, "first", activation="tanh")(hidden)
    if "norm" in features:
        hidden = layers.BatchNormalization(momentum=0.9, name="norm", dtype=case.dtype)(hidden)
    if "tied" in features:
        tied = dense(8, "tied", activation="tanh")
        hidden = tied(tied(hidden))
    if "dropout" in features:
        hidden = layers.Dropout(0.3, seed=case.seed, name="dropout", dtype=case.dtype)(hidden)
    outputs = dense(CLASSES, "last")(hidden)
    if "unused" in features:
        outputs = [outputs, dense(2, "unused")(hidden)]
    model = keras.Model(inputs, outputs, name="model")
    return FirstOutput(model) if "unused" in features else model


class FirstOutput(keras.Model):
    """A model of which only the first output is used: the last layer of the second has no gradient."""

    def __init__(self, whole: keras.Model):
        super().__init__(name="first_output")
        self.whole = whole

    def call(self, inputs, training=False):
        """The first output."""
        return self.whole(inputs, training=training)[0]


def build_optimizer(case: Case) -> keras.optimizers.Optimizer:
    """The optimizer; a summed loss has larger gradients and gets a lower rate."""
    rate = RATES[case.optimizer] / (1 if case.reduction == "mean" else 10)
    if "schedule" in case.features:
        rate = keras.optimizers.schedules.ExponentialDecay(rate, decay_steps=4, decay_rate=0.8, staircase=True)
    options: dict[str, Any] = {}
    if "clip" in case.features:
        options["global_clipnorm"] = case.clip
    if "decay" in case.features:
        options["weight_decay"] = 0.02
    return OPTIMIZERS[case.optimizer](rate, **options)


class OneDevice:
    """The step alone, unmodified, as a tf.function."""

    def __init__(self, case: Case):
        self.program = Program(case)
        self.program.build()
        self.step = tf.function(self.program.step, input_signature=self.program.specs)

    def train(self, data: Sequence[Any]) -> Trained:
        """Steps, each with a whole batch."""
        with serial_functions():
            losses = [float(self.step(*batch)) for batch in data]
        return Trained(losses, [(loss,) for loss in losses], self.program.values())


class MicroBatches:
    """The program on micro-batches: each rank's gradients by themselves, combined by numpy, applied once.

    What is local to a rank (batch-norm statistics and random states) is put into the variables for its micro-batch
    and taken out again.
    """

    def __init__(self, case: Case, workers: int):
        self.case = case
        self.program = program = Program(case)
        program.build()
        self.differentiate = tf.function(program.differentiate, input_signature=program.specs)
        specs = [tf.TensorSpec(each.shape, each.dtype) for each in program.trained]
        self.apply = tf.function(lambda *gradients: program.apply(gradients), input_signature=specs)
        self.workers = workers
        self.norms: list[float] = []
        self.spread()

    def spread(self) -> None:
        """Give every rank the local state that the variables have now, random state with the rank's offset."""
        ranks, local = range(self.workers), self.program.local
        self.local = [[offset(each.path, each.numpy(), rank) for each in local] for rank in ranks]

    def step(self, batch: Sequence[np.ndarray]) -> tuple[tuple[float, ...], float]:
        """One step: the losses of all ranks, and over all ranks."""
        parts = split(batch, self.workers)
        losses, gradients = [], []
        for rank, part in enumerate(parts):
            self.put(rank)
            loss, mine = self.differentiate(*part)
            self.local[rank] = [each.numpy() for each in self.program.local]
            losses.append(float(loss))
            gradients.append([each.numpy() for each in mine])
        self.put(0)
        examples = [len(part[0]) for part in parts]
        combined = [combine(each, examples, self.case.reduction) for each in zip(*gradients)]
        self.norms.append(global_norm(combined))
        self.apply(*combined)
        return tuple(losses), combine_losses(losses, examples, self.case.reduction)

    def put(self, rank: int) -> None:
        """Give the variables what is local to a rank."""
        for variable, value in zip(self.program.local, self.local[rank]):
            variable.assign(value)

    def values(self) -> dict[str, np.ndarray]:
        """Every variable of worker 0."""
        return self.program.values()

    def train(self, data: Sequence[Any]) -> Trained:
        """Steps, each with a global batch."""
        results = [self.step(batch) for batch in data]
        assert_clipped_in_some_steps(self.norms, self.case)
        return Trained([loss for _, loss in results], [losses for losses, _ in results], self.values())


def offset(path: str, value: np.ndarray, rank: int) -> np.ndarray:
    """What a local variable starts from on worker `rank`: random state is (seed, counter).

    The sum wraps around as the state's own type does: uint32 in some versions of Keras, int64 in others.
    """
    if not path.endswith("seed_generator_state"):
        return value
    return value + np.array([rank * GOLDEN % 2**32, 0], value.dtype)


def capture(case: Case, **options: Any) -> tuple[caramel.Context, Program]:
    """Capture the program's step."""
    program = Program(case)
    # A plain function is traced twice where its Python values change; exact_steps.py captures such functions.
    return caramel.capture(tf.function(program.step), inputs=program.specs, **options), program


def distributed(case: Case, workers: int, data: Sequence[Any], cluster: Any = None, **options: Any) -> Trained:
    """Train the program on N workers."""
    context, _ = capture(case, **options)
    with caramel.ARModel(context, workers).session(cluster or in_process()) as session:
        return train(session, data)
