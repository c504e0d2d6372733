"""Layers in plain TensorFlow, any 2.x: so all contenders compute the same, whatever Keras they have."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

_EPSILON = 1e-3
_KEPT = 0.9
"""The part of a moving average that stays in each step."""


@dataclass(frozen=True)
class Declared:
    """A variable: its shape and its first value, He's normal distribution for ``scale`` > 0."""

    shape: tuple[int, ...]
    scale: float
    fill: float

    def value(self, name: str) -> np.ndarray:
        """The same in every process."""
        if self.scale == 0:
            return np.full(self.shape, self.fill, np.float32)
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        return (self.scale * rng.standard_normal(self.shape)).astype(np.float32)


class Layers:
    """Makes layers from the values of variables.

    Args:
        tf: TensorFlow.
        values: of all variables by name; None to find out which there are.

    Attributes:
        parameters: the variables that are trained, as they were declared.
        averages: moving averages, likewise.
        updates: new values of the averages.
        indices: the largest index + 1 that a parameter is gathered with, by name: its gradient is sparse.
    """

    def __init__(self, tf: Any, values: Mapping[str, Any] | None = None) -> None:
        self.tf = tf
        self._values = values
        self.parameters: dict[str, Declared] = {}
        self.averages: dict[str, Declared] = {}
        self.updates: dict[str, Any] = {}
        self.sparse: set[str] = set()

    def _declare(
        self, where: dict[str, Declared], name: str, shape: tuple[int, ...], scale: float = 0.0, fill: float = 0.0
    ) -> Any:
        where[name] = Declared(shape, scale, fill)
        return self.tf.zeros(shape) if self._values is None else self._values[name]

    def conv(self, name: str, x: Any, filters: int, size: int = 3, stride: int = 1, bias: bool = True) -> Any:
        """A convolution of images with as many pixels (over the stride)."""
        channels = int(x.shape[-1])
        scale = (2 / (size * size * channels)) ** 0.5
        kernel = self._declare(self.parameters, f"{name}/kernel", (size, size, channels, filters), scale)
        y = self.tf.nn.conv2d(x, kernel, stride, "SAME")
        return self.tf.nn.bias_add(y, self._declare(self.parameters, f"{name}/bias", (filters,))) if bias else y

    def dense(self, name: str, x: Any, units: int) -> Any:
        """A dense layer on the last dimension."""
        width = int(x.shape[-1])
        kernel = self._declare(self.parameters, f"{name}/kernel", (width, units), (2 / width) ** 0.5)
        flat = self.tf.reshape(x, [-1, width])
        y = self.tf.nn.bias_add(self.tf.matmul(flat, kernel), self._declare(self.parameters, f"{name}/bias", (units,)))
        if len(x.shape) == 2:
            return y
        return self.tf.reshape(y, self.tf.concat([self.tf.shape(x)[:-1], [units]], 0))

    def batch_norm(self, name: str, x: Any) -> Any:
        """Batch normalisation of images; each worker has its own averages."""
        channels = (int(x.shape[-1]),)
        gamma = self._declare(self.parameters, f"{name}/gamma", channels, fill=1.0)
        beta = self._declare(self.parameters, f"{name}/beta", channels)
        y, mean, variance = self.tf.compat.v1.nn.fused_batch_norm(x, gamma, beta, epsilon=_EPSILON)
        for kind, value, fill in (("mean", mean, 0.0), ("variance", variance, 1.0)):
            old = self._declare(self.averages, f"{name}/{kind}", channels, fill=fill)
            self.updates[f"{name}/{kind}"] = _KEPT * old + (1 - _KEPT) * value
        return y

    def layer_norm(self, name: str, x: Any) -> Any:
        """Layer normalisation of the last dimension."""
        width = (int(x.shape[-1]),)
        gamma = self._declare(self.parameters, f"{name}/gamma", width, fill=1.0)
        beta = self._declare(self.parameters, f"{name}/beta", width)
        mean, variance = self.tf.nn.moments(x, [-1], keepdims=True)
        return (x - mean) * self.tf.math.rsqrt(variance + _EPSILON) * gamma + beta

    def embedding(self, name: str, indices: Any, rows: int, width: int) -> Any:
        """Rows of a table; its gradient has only these rows."""
        self.sparse.add(name)
        return self.tf.gather(self._declare(self.parameters, name, (rows, width), 0.05), indices)

    def table(self, name: str, rows: int, width: int) -> Any:
        """All rows of a table."""
        return self._declare(self.parameters, name, (rows, width), 0.05)

    def flat(self, name: str, size: int) -> Any:
        """A flat parameter, all zeros at first."""
        return self._declare(self.parameters, name, (size,))
