"""A TensorFlow 1 training program with features to choose from, and what it must do on N workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

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
    serial_config,
    split,
    train,
)
from tensorflow.core.framework import attr_value_pb2

import caramel

v1 = tf.compat.v1

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "gradient descent": lambda rate: v1.train.GradientDescentOptimizer(rate),
    "momentum": lambda rate: v1.train.MomentumOptimizer(rate, 0.9),
    "nesterov": lambda rate: v1.train.MomentumOptimizer(rate, 0.9, use_nesterov=True),
    "adam": lambda rate: v1.train.AdamOptimizer(rate),
}
RATES = {"gradient descent": 0.1, "momentum": 0.02, "nesterov": 0.02, "adam": 0.01}


def own(value: Any) -> tf.Tensor:
    """A number in the type of the variables, for optimizers that do not convert it themselves."""
    return tf.cast(value, v1.trainable_variables()[0].dtype.base_dtype)


FURTHER_OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "rmsprop": lambda rate: v1.train.RMSPropOptimizer(rate, 0.9, 0.5),
    "centered rmsprop": lambda rate: v1.train.RMSPropOptimizer(rate, 0.9, 0.5, centered=True),
    "adagrad": lambda rate: v1.train.AdagradOptimizer(rate),
    "adadelta": lambda rate: v1.train.AdadeltaOptimizer(rate, 0.9, 1e-3),
    "ftrl": lambda rate: v1.train.FtrlOptimizer(rate, l1_regularization_strength=1e-3, l2_regularization_strength=1e-3),
    "proximal gradient descent": lambda rate: v1.train.ProximalGradientDescentOptimizer(
        own(rate), own(1e-3), own(1e-3)
    ),
    "proximal adagrad": lambda rate: v1.train.ProximalAdagradOptimizer(own(rate), 0.1, own(1e-3), own(1e-3)),
    "adagrad da": lambda rate: v1.train.AdagradDAOptimizer(rate, v1.train.get_global_step(), 0.1, 1e-3, 1e-3),
}
RATES |= {"rmsprop": 0.005, "centered rmsprop": 0.005, "adagrad": 0.1, "adadelta": 0.5, "ftrl": 0.1}
RATES |= {"proximal gradient descent": 0.1, "proximal adagrad": 0.1, "adagrad da": 0.1}

AVERAGE = "average"  # of the weights after each step; TensorFlow can only initialise it with the old control flow


@dataclass(frozen=True)
class Program:
    """What the program built. `gradients` are the outputs of differentiation; `updates` the batch norm's."""

    x: tf.Tensor
    y: tf.Tensor
    loss: tf.Tensor
    logits: tf.Tensor
    gradients: list[tf.Tensor]
    updates: list[Any]
    train_op: Any

    def feed(self, batch: Sequence[np.ndarray]) -> dict[tf.Tensor, np.ndarray]:
        """The feed_dict of one batch."""
        return {self.x: batch[0], self.y: batch[1]}


def build(case: Case, joined: bool = True) -> Program:
    """Build the program in the default graph.

    Args:
        case: which one.
        joined: the train_op includes the batch norm's updates, as programs have it. The oracle runs them with the
            forward pass instead, since it runs the train_op by itself.
    """
    with v1.variable_scope(v1.get_variable_scope(), use_resource=not case.references, auxiliary_name_scope=False):
        return _build(case, joined)


def _build(case: Case, joined: bool) -> Program:
    features, dtype = case.features, tf.as_dtype(case.dtype)
    v1.set_random_seed(7)
    matrix = v1.glorot_uniform_initializer()
    vector = v1.random_normal_initializer(stddev=0.3)

    def variable(name, shape, initializer=None, **options):
        initializer = initializer or (vector if len(shape) == 1 else matrix)
        return v1.get_variable(name, shape, dtype, initializer, **options)

    x = v1.placeholder(dtype, [None, INPUTS], name="x")
    y = v1.placeholder(tf.int64, [None], name="y")
    hidden = x
    if "convolution" in features:
        images = tf.reshape(x, [-1, 4, 4, 1])
        images = tf.nn.conv2d(images, variable("convolution/kernel", [3, 3, 1, 4]), 1, "SAME")
        images = tf.nn.relu(tf.nn.bias_add(images, variable("convolution/bias", [4])))
        hidden = tf.reshape(tf.nn.max_pool2d(images, 2, 2, "VALID"), [-1, INPUTS])
    hidden = tf.tanh(tf.matmul(hidden, variable("first/kernel", [INPUTS, 8])) + variable("first/bias", [8]))
    updates = []
    if "norm" in features:
        hidden, updates = batch_norm(hidden, variable)
    if "tied" in features:
        tied = variable("tied/kernel", [8, 8])
        hidden = tf.tanh(tf.matmul(tf.tanh(tf.matmul(hidden, tied)), tied, transpose_b=True))
    if "dropout" in features:
        hidden = v1.nn.dropout(hidden, rate=0.3, seed=case.seed)
    if "unused" in features:
        variable("unused", [3])
    logits = tf.matmul(hidden, variable("last/kernel", [8, CLASSES])) + variable("last/bias", [CLASSES])
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    loss = tf.reduce_mean(each) if case.reduction == "mean" else tf.reduce_sum(each)
    if "decay" in features:
        kernels = [each for each in v1.trainable_variables() if each.op.name.endswith("kernel")]
        loss += 0.01 * tf.add_n([tf.nn.l2_loss(kernel) for kernel in kernels])

    step = v1.train.get_or_create_global_step()
    rate = RATES[case.optimizer] / (1 if case.reduction == "mean" else 10)
    if "schedule" in features:
        rate = v1.train.exponential_decay(rate, step, decay_steps=4, decay_rate=0.8, staircase=True)
    optimizer = (OPTIMIZERS | FURTHER_OPTIMIZERS)[case.optimizer](rate)
    pairs = [(gradient, of) for gradient, of in optimizer.compute_gradients(loss) if gradient is not None]
    gradients, variables = (list(each) for each in zip(*pairs))
    applied = gradients
    if "clip" in features:
        applied, _ = tf.clip_by_global_norm(gradients, case.clip)
    with tf.control_dependencies(updates if joined else []):
        train_op = optimizer.apply_gradients(zip(applied, variables), global_step=step)
    if AVERAGE in features:
        with tf.control_dependencies([train_op]):
            train_op = tf.train.ExponentialMovingAverage(0.9, step).apply(v1.trainable_variables())
    return Program(x, y, loss, logits, gradients, updates, train_op)


def batch_norm(inputs: tf.Tensor, variable: Callable[..., Any]) -> tuple[tf.Tensor, list[Any]]:
    """Batch normalisation, as each worker makes it of its own part: the outputs, and updates of the moving averages."""
    shape = [inputs.shape[1]]
    mean, variance = tf.nn.moments(inputs, [0])
    gamma = variable("norm/gamma", shape, v1.ones_initializer())
    beta = variable("norm/beta", shape)
    moving_mean = variable("norm/moving_mean", shape, v1.zeros_initializer(), trainable=False)
    moving_variance = variable("norm/moving_variance", shape, v1.ones_initializer(), trainable=False)
    outputs = tf.nn.batch_normalization(inputs, mean, variance, beta, gamma, 1e-3)
    updates = [
        moving_mean.assign(moving_mean * 0.9 + mean * 0.1),
        moving_variance.assign_sub((moving_variance - variance) * 0.1),
    ]
    return outputs, updates


class OneDevice:
    """The program alone, unmodified, in a session of its own."""

    def __init__(self, case: Case, joined: bool = True, rank: int = 0, config: Any = None):
        self.graph = v1.Graph()
        with self.graph.as_default():
            self.program = build(case, joined)
            self.variables = v1.global_variables()
            self.initializer = v1.global_variables_initializer()
            self.saver = v1.train.Saver()
        offset_seeds(self.graph, rank)
        if case.references and joined:
            self._update_after_the_loss()
        self.session = v1.Session(graph=self.graph, config=config or serial_config())
        self.session.run(self.initializer)

    def _update_after_the_loss(self) -> None:
        """Reading a reference variable copies nothing, and nothing orders the loss's own reads before the update.

        The gradient of the weights' norm, say, does not wait for the norm, which might see the new weights.
        """
        for op in self.graph.get_operations():
            if op.type.startswith("Apply"):
                op._add_control_input(self.program.loss.op)

    def values(self) -> dict[str, np.ndarray]:
        """Every variable by name."""
        names = [variable.op.name for variable in self.variables]
        return {name: np.asarray(value) for name, value in zip(names, self.session.run(self.variables))}

    def load(self, values: dict[str, np.ndarray]) -> None:
        """Give every variable a value."""
        initializers = [variable.initializer for variable in self.variables]
        feeds = {each.inputs[1]: values[variable.op.name] for each, variable in zip(initializers, self.variables)}
        self.session.run(initializers, feeds)

    def save(self, prefix: str) -> str:
        """A checkpoint by tf.train.Saver."""
        with self.graph.as_default():
            return self.saver.save(self.session, prefix)

    def restore(self, prefix: str) -> None:
        """The same, back."""
        with self.graph.as_default():
            self.saver.restore(self.session, prefix)

    def train(self, data: Sequence[Any]) -> Trained:
        """Steps, each with a whole batch."""
        program = self.program
        losses = [self.session.run([program.loss, program.train_op], program.feed(batch))[0] for batch in data]
        return Trained([float(loss) for loss in losses], [(float(loss),) for loss in losses], self.values())


class MicroBatches:
    """The program on micro-batches: each rank's gradients by themselves, combined by numpy, applied once.

    Every rank is one device with the whole program: its own statistics of batch norm and its own random ops. Before
    the update all see the same parameters; the combined gradients take the place of each one's own.
    """

    def __init__(self, case: Case, workers: int, config: Any = None):
        self.case = case
        self.norms: list[float] = []
        self.devices = [OneDevice(case, joined=False, rank=rank, config=config) for rank in range(workers)]
        self.load(self.devices[0].values())

    def load(self, values: dict[str, np.ndarray]) -> None:
        """Give every rank the same values."""
        for device in self.devices:
            device.load(values)

    def values(self) -> dict[str, np.ndarray]:
        """Every variable of worker 0."""
        return self.devices[0].values()

    def step(self, batch: Sequence[np.ndarray]) -> tuple[tuple[float, ...], float]:
        """One step: the losses of all ranks, and over all ranks."""
        parts = split(batch, len(self.devices))
        losses, gradients = [], []
        for device, part in zip(self.devices, parts):
            program = device.program
            fetches = {"loss": program.loss, "gradients": program.gradients, "updates": program.updates}
            result = device.session.run(fetches, program.feed(part))
            losses.append(result["loss"])
            gradients.append(result["gradients"])
        examples = [len(part[0]) for part in parts]
        combined = [combine(each, examples, self.case.reduction) for each in zip(*gradients)]
        self.norms.append(global_norm(combined))
        for device in self.devices:
            program = device.program
            device.session.run(program.train_op, dict(zip(program.gradients, combined)))
        return tuple(float(loss) for loss in losses), combine_losses(losses, examples, self.case.reduction)

    def train(self, data: Sequence[Any]) -> Trained:
        """Steps, each with a global batch."""
        results = [self.step(batch) for batch in data]
        assert_clipped_in_some_steps(self.norms, self.case)
        return Trained([loss for _, loss in results], [losses for losses, _ in results], self.values())


def offset_seeds(graph: tf.Graph, rank: int) -> None:
    """Give the random ops of a graph the seeds that they have on worker `rank`."""
    for op in graph.get_operations() if rank else ():
        if op.type in ("RandomUniform", "TruncatedNormal", "RandomStandardNormal"):
            seed = (op.get_attr("seed2") + rank * GOLDEN) % 2**63
            op._set_attr("seed2", attr_value_pb2.AttrValue(i=seed))


def capture(case: Case, **options: Any) -> tuple[caramel.Context, Program]:
    """Capture the program as it is built."""
    with caramel.capture(**options) as context:
        program = build(case)
        if AVERAGE in case.features:
            context.train_op = program.train_op
    return context, program


def distributed(
    case: Case,
    workers: int,
    data: Sequence[Any],
    cluster: Any = None,
    armodel: dict[str, Any] | None = None,
    **options: Any,
) -> Trained:
    """Train the program on N workers; options of capture, and of ARModel."""
    context, program = capture(case, **options)
    with caramel.ARModel(context, workers, **(armodel or {})).session(cluster or in_process()) as session:
        return train(session, [program.feed(batch) for batch in data])


def trained_alone(
    make: Callable[[], Sequence[Any]], data: Sequence[Sequence[np.ndarray]]
) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses of a graph on one device, and what its variables are after that, by name.

    Args:
        make: builds it; gives its placeholders, its loss and its step.
        data: arrays for the placeholders, a tuple for each step.
    """
    with tf.Graph().as_default(), v1.Session() as session:
        *inputs, loss, step = make()
        session.run(v1.global_variables_initializer())
        losses = [session.run([loss, step], dict(zip(inputs, batch)))[0] for batch in data]
        variables = v1.global_variables()
        return losses, dict(zip([v.op.name for v in variables], session.run(variables)))
