"""The networks that are trained: real architectures, so small that a step takes about half a second on two cores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from benchmarks.training.layers import Declared, Layers
from caramel.util.ranges import balanced

_WORDS = 8000
_WORD_WIDTH = 16
_NAMED_WORDS = 500
_LENGTH = 64
"""Words in a sequence."""

_ITEM_BYTES = 4
_INDEX_BYTES = 4


@dataclass(frozen=True)
class Workload:
    """A network with a loss, and its data.

    Attributes:
        name: short.
        title: for people.
        examples: in a batch of the whole job, whatever the number of workers.
        classes: number of classes.
        shape: of one example.
        dtype: of the examples.
        network: (layers, examples) -> logits.
        learning_rate: of gradient descent with momentum.
        link_bits_per_s: of Ethernet frames, where computing takes no longer than sending: so few that moving the bytes
            takes little processor time. What sends more for each example needs more; see also `grid.with_rho`.
    """

    name: str
    title: str
    examples: int
    classes: int
    shape: tuple[int, ...]
    dtype: str
    network: Callable[[Layers, Any], Any]
    learning_rate: float = 0.002
    link_bits_per_s: float = 50e6

    def loss(self, tf: Any, values: Mapping[str, Any], x: Any, label: Any) -> tuple[Any, Mapping[str, Any]]:
        """The mean loss of a batch, and the new moving averages by name.

        Args:
            tf: TensorFlow.
            values: of all variables.
            x: examples.
            label: class of each, int32.
        """
        layers = Layers(tf, values)
        logits = self.network(layers, x)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits)
        return tf.reduce_mean(losses), layers.updates

    def batch(self, tf: Any, workers: int, rank: int) -> tuple[Any, Any]:
        """A worker's part of the batch, always the same one, made where it is needed: links are slow.

        Args:
            tf: TensorFlow.
            workers: number of workers.
            rank: of this one.
        """
        shape = (self.examples, *self.shape)
        if self.dtype == "int32":
            x = tf.random.stateless_uniform(shape, (1, 1), 0, _WORDS, tf.int32)
        else:
            x = tf.random.stateless_normal(shape, (1, 1))
        label = tf.random.stateless_uniform(shape[:1], (1, 2), 0, self.classes, tf.int32)
        first, count = balanced(self.examples, workers)[rank]
        return x[first : first + count], label[first : first + count]

    @property
    def _declared(self) -> Layers:
        return _layers_of(self.network, self.shape, self.dtype)

    @property
    def parameters(self) -> Mapping[str, Declared]:
        """The variables that are trained, in the order in which they are first used."""
        return self._declared.parameters

    @property
    def averages(self) -> Mapping[str, Declared]:
        """Moving averages, of which each worker has its own."""
        return self._declared.averages

    def is_sparse(self, name: str) -> bool:
        """Whether a parameter's gradient has only the rows that were used."""
        return name in self._declared.sparse

    def sent_bytes(self, workers: int) -> float:
        """What each worker must send in a step: by all-reduces, and all-gathers of sparse gradients as they are.

        What adds up a sparse gradient's slices of one row before it sends them may send less.
        """
        total = 0.0
        for name, declared in self.parameters.items():
            if self.is_sparse(name):
                rows = self.examples / workers * self.shape[0]
                total += (workers - 1) * rows * (declared.shape[1] * _ITEM_BYTES + _INDEX_BYTES)
            else:
                total += 2 * (workers - 1) / workers * _ITEM_BYTES * float(np.prod(declared.shape))
        return total


@cache
def _layers_of(network: Callable[[Layers, Any], Any], shape: tuple[int, ...], dtype: str) -> Layers:
    """What a network declares, whatever the number of examples: workloads are made anew for each of these."""
    import tensorflow as tf

    with tf.Graph().as_default():
        layers = Layers(tf)
        network(layers, tf.zeros((2, *shape), dtype))
    return layers


def _vgg(layers: Layers, x: Any) -> Any:
    """VGG (Simonyan and Zisserman 2015): pairs of convolutions, then dense layers with most of the parameters."""
    tf = layers.tf
    for number, width in enumerate((24, 48, 96)):
        for half in range(2):
            x = tf.nn.relu(layers.conv(f"conv{number}_{half}", x, width))
        x = tf.nn.max_pool2d(x, 2, 2, "SAME")
    x = tf.reshape(x, [-1, int(np.prod(x.shape[1:]))])
    for number in range(2):
        x = tf.nn.relu(layers.dense(f"dense{number}", x, 320))
    return layers.dense("classes", x, 10)


def _residual(layers: Layers, name: str, x: Any, width: int, stride: int) -> Any:
    tf = layers.tf
    y = tf.nn.relu(layers.batch_norm(f"{name}/norm0", layers.conv(f"{name}/conv0", x, width, 3, stride, bias=False)))
    y = layers.batch_norm(f"{name}/norm1", layers.conv(f"{name}/conv1", y, width, bias=False))
    if stride > 1 or int(x.shape[-1]) != width:
        x = layers.batch_norm(f"{name}/norm2", layers.conv(f"{name}/conv2", x, width, 1, stride, bias=False))
    return tf.nn.relu(x + y)


def _resnet(layers: Layers, x: Any) -> Any:
    """ResNet-20 for small images (He et al. 2016, section 4.2), half as wide again."""
    tf = layers.tf
    x = tf.nn.relu(layers.batch_norm("norm", layers.conv("conv", x, 24, bias=False)))
    for stage, width in enumerate((24, 48, 96)):
        for block in range(3):
            x = _residual(layers, f"stage{stage}/block{block}", x, width, 2 if stage and not block else 1)
    return layers.dense("classes", tf.reduce_mean(x, [1, 2]), 10)


def _inception(layers: Layers, x: Any) -> Any:
    """Modules of four branches (Szegedy et al. 2015) with batch normalisation."""
    tf = layers.tf

    def unit(name: str, x: Any, width: int, size: int, stride: int = 1) -> Any:
        y = layers.conv(f"{name}/conv", x, width, size, stride, bias=False)
        return tf.nn.relu(layers.batch_norm(f"{name}/norm", y))

    x = unit("stem1", unit("stem0", x, 32, 3, 2), 64, 3)
    for number, width in enumerate((32, 32, 48, 48)):
        name = f"module{number}"
        five = unit(f"{name}/five1", unit(f"{name}/five0", x, width, 1), width, 5)
        three = unit(f"{name}/three2", unit(f"{name}/three1", unit(f"{name}/three0", x, width, 1), width, 3), width, 3)
        pooled = unit(f"{name}/pool0", tf.nn.avg_pool2d(x, 3, 1, "SAME"), width, 1)
        x = tf.concat([unit(f"{name}/one0", x, width, 1), five, three, pooled], -1)
        if number == 1:
            x = tf.nn.max_pool2d(x, 3, 2, "SAME")
    x = unit("top", x, 256, 3, 2)
    return layers.dense("classes", tf.reduce_mean(x, [1, 2]), 10)


def _transformer(layers: Layers, x: Any) -> Any:
    """An encoder (Vaswani et al. 2017) that names one word of many.

    The gradient of its embedding is sparse. Words have few numbers and are projected, as in ALBERT (Lan et al. 2020):
    with rows as wide as the layers, a network that is as small as this one would send little else.
    """
    tf, width, heads = layers.tf, 128, 4
    words = layers.embedding("words", x, _WORDS, _WORD_WIDTH)
    hidden = layers.dense("projection", words, width) + layers.table("places", _LENGTH, width)
    for number in range(3):
        name = f"block{number}"
        parts = []
        for kind in ("query", "key", "value"):
            part = layers.dense(f"{name}/{kind}", hidden, width)
            parts.append(tf.transpose(tf.reshape(part, [-1, _LENGTH, heads, width // heads]), [0, 2, 1, 3]))
        scores = tf.nn.softmax(tf.matmul(parts[0], parts[1], transpose_b=True) / (width // heads) ** 0.5)
        mixed = tf.reshape(tf.transpose(tf.matmul(scores, parts[2]), [0, 2, 1, 3]), [-1, _LENGTH, width])
        hidden = layers.layer_norm(f"{name}/norm0", hidden + layers.dense(f"{name}/mixed", mixed, width))
        inner = tf.nn.relu(layers.dense(f"{name}/wide", hidden, 4 * width))
        hidden = layers.layer_norm(f"{name}/norm1", hidden + layers.dense(f"{name}/narrow", inner, width))
    return layers.dense("classes", tf.reduce_mean(hidden, 1), _NAMED_WORDS)


def _mlp(layers: Layers, x: Any) -> Any:
    """Wide dense layers."""
    for number in range(3):
        x = layers.tf.nn.relu(layers.dense(f"dense{number}", x, 560))
    return layers.dense("classes", x, 10)


def _tiny(layers: Layers, x: Any) -> Any:
    """A deep, narrow residual network: 209 tensors, most of a few dozen numbers."""
    tf = layers.tf
    x = tf.nn.relu(layers.batch_norm("norm", layers.conv("conv", x, 32, bias=False)))
    for block in range(34):
        x = _residual(layers, f"block{block}", x, 32, 1)
    return layers.dense("classes", tf.reduce_mean(x, [1, 2]), 10)


_IMAGE = (32, 32, 3)

WORKLOADS: Sequence[Workload] = (
    Workload("vgg", "VGG-like, large dense layers", 1400, 10, _IMAGE, "float32", _vgg),
    Workload("resnet", "ResNet-20, half as wide again", 256, 10, _IMAGE, "float32", _resnet),
    Workload("inception", "Inception-like, four branches", 560, 10, _IMAGE, "float32", _inception),
    Workload(
        "transformer",
        "Transformer encoder, sparse embedding",
        640,
        _NAMED_WORDS,
        (_LENGTH,),
        "int32",
        _transformer,
        link_bits_per_s=75e6,
    ),
    Workload("mlp", "wide MLP", 64000, 10, (256,), "float32", _mlp),
    Workload("tiny", "69 convolutions, 209 small tensors", 560, 10, (8, 8, 3), "float32", _tiny),
)

_NARROW = 32
"""Numbers in each layer of a workload whose steps are short."""


def _narrow(layers: Layers, x: Any, count: int) -> Any:
    for number in range(count - 1):
        x = layers.tf.nn.relu(layers.dense(f"dense{number}", x, _NARROW))
    return layers.dense("classes", x, _NARROW)


SHORT: Sequence[Workload] = tuple(
    Workload(
        f"dense{count}",
        f"{count} dense layers of {_NARROW}",
        32,
        _NARROW,
        (_NARROW,),
        "float32",
        partial(_narrow, count=count),
    )
    for count in (3, 51, 200)
)
"""Networks whose computation takes next to nothing: what is left of a step is what running it costs."""

BY_NAME: Mapping[str, Workload] = {w.name: w for w in WORKLOADS}

ALL_BY_NAME: Mapping[str, Workload] = {**BY_NAME, **{w.name: w for w in SHORT}}
