"""What ``python -m benchmarks.device`` trains: networks with their steps, and the devices that it makes for them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.networks import TRANSFORMER, digits, transformer
from benchmarks.placements import HOST
from caramel.errors import CaramelError

DIGITS, RESNET = "digits", "ResNet50"
NETWORKS = (DIGITS, TRANSFORMER, RESNET)
"""What is trained; what takes longest comes last."""

_EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@dataclass(frozen=True)
class Sizes:
    """How much a process trains.

    Attributes:
        workers: number of logical devices.
        checked_steps: number of steps after which weights are compared.
        checked_examples: of the batch of all workers in these.
        examples: of the batch of all workers in steps that are timed.
        rounds: how often each contender has its turn.
        steps: in a turn.
        side_pixels: height and width of ResNet's images.
        layers: number of the Transformer's blocks.
        width: of the Transformer.
        heads: of the Transformer's attention.
        vocabulary: number of the Transformer's tokens.
        memory_mib: MiB of each logical device of a GPU.
    """

    workers: int = 4
    checked_steps: int = 3
    checked_examples: int = 32
    examples: int = 128
    rounds: int = 7
    steps: int = 10
    side_pixels: int = 64
    layers: int = 4
    width: int = 256
    heads: int = 4
    vocabulary: int = 30_522
    memory_mib: int = 4096


SMALL = Sizes(
    checked_steps=2, checked_examples=8, examples=8, rounds=2, steps=2, side_pixels=32, layers=1, width=16, heads=2,
    vocabulary=50,
)  # fmt: skip
"""For a machine with few cores and no accelerator."""


@dataclass(frozen=True)
class Program:
    """A network with its training step, for one device.

    Attributes:
        model: of Keras.
        optimizer: of its step.
        loss: labels and outputs -> the mean loss.
        batches: number of batches and examples -> the batches.
    """

    model: Any
    optimizer: Any
    loss: Callable[[Any, Any], Any]
    batches: Callable[[int, int], list[tuple[np.ndarray, np.ndarray]]]

    @property
    def inputs(self) -> list[Any]:
        """Specs of what a step takes."""
        import tensorflow as tf

        given = self.model.inputs[0]
        return [tf.TensorSpec([None, *given.shape[1:]], given.dtype), tf.TensorSpec([None], tf.int64)]

    def differentiate(self, x: Any, label: Any) -> tuple[Any, list[Any]]:
        """The loss and its gradients."""
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = self.loss(label, self.model(x, training=True))
        return loss, tape.gradient(loss, self.model.trainable_variables)

    def step(self, x: Any, label: Any) -> Any:
        """A training step, as people write it."""
        loss, gradients = self.differentiate(x, label)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))
        return loss

    def values(self) -> dict[str, np.ndarray]:
        """The value of each variable, by its path."""
        return {v.path: v.numpy() for v in (*self.model.variables, *self.optimizer.variables)}

    def put(self, values: Mapping[str, np.ndarray]) -> None:
        """Give each variable a value, by its path."""
        for variable in (*self.model.variables, *self.optimizer.variables):
            variable.assign(values[variable.path])


def program(name: str, sizes: Sizes, dtype: str = "float32", together: bool = False, dropout: float = 0.0) -> Program:
    """A network with the same random values each time.

    Args:
        name: one of `NETWORKS`.
        sizes: of it.
        dtype: of its variables.
        together: whether batch normalisation is over the batch of all workers.
        dropout: rate of the Transformer's.
    """
    import keras

    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)
    keras.utils.set_random_seed(0)
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    if name == DIGITS:
        model, optimizer = digits(), keras.optimizers.Adam(2e-3)
    elif name == RESNET:
        shape = (sizes.side_pixels, sizes.side_pixels, 3)
        model = keras.applications.ResNet50(weights=None, input_shape=shape, classes=10)
        for layer in model.layers:
            if isinstance(layer, keras.layers.BatchNormalization):
                layer.synchronized = together
    else:
        model = transformer(sizes.layers, sizes.width, sizes.heads, sizes.vocabulary, dropout)
        optimizer = keras.optimizers.Adam(1e-4)
    optimizer.build(model.trainable_variables)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=name == DIGITS)
    return Program(model, optimizer, loss, partial(_batches, name, model))


def _batches(name: str, model: Any, number: int, examples: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Handwritten digits, or random examples."""
    given = model.inputs[0]
    shape, dtype = given.shape[1:], given.dtype
    if name == DIGITS:
        if str(_EXAMPLES) not in sys.path:
            sys.path.append(str(_EXAMPLES))
        import digits as handwritten  # type: ignore[import-not-found]

        endless = handwritten.batches(*handwritten.load()[0], examples)
        return [(x.astype(dtype), label) for _, (x, label) in zip(range(number), endless)]
    rng = np.random.default_rng(0)
    tokens = model.layers[1].input_dim if name == TRANSFORMER else 0
    classes = model.output_shape[-1]
    found = []
    for _ in range(number):
        x = rng.integers(0, tokens, (examples, *shape)) if tokens else rng.random((examples, *shape))
        found.append((x.astype(dtype), rng.integers(0, classes, examples)))
    return found


def divide(platform: str, sizes: Sizes) -> list[str]:
    """Make logical devices of the first device of this process; their names.

    Args:
        platform: kind of device, ``"gpu"`` or ``"cpu"``.
        sizes: how many, and how much memory each of a GPU has.

    Raises:
        CaramelError: TensorFlow does not have them afterwards.
    """
    import tensorflow as tf

    kind = platform.upper()
    memory = {} if kind == HOST else {"memory_limit": sizes.memory_mib}
    parts = [tf.config.LogicalDeviceConfiguration(**memory)] * sizes.workers
    first = tf.config.list_physical_devices(kind)[0]
    if kind != HOST:
        tf.config.set_visible_devices([first], kind)
    tf.config.set_logical_device_configuration(first, parts)
    there = len(tf.config.list_logical_devices(kind))
    if there != sizes.workers:
        raise CaramelError(f"TensorFlow has {there} logical devices of kind {kind}, not {sizes.workers}")
    return [f"/{kind}:{rank}" for rank in range(sizes.workers)]
