"""A training step of a workload, without and with a reduction of its gradients; for any TensorFlow 2.x."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.training.workloads import Workload

MOMENTUM = 0.9

Reduce = Callable[[Sequence[Any]], Sequence[Any]]
"""Gradients of this worker -> their means over the workers."""


def apply(tf: Any, parameter: Any, momentum: Any, gradient: Any, learning_rate: float) -> Any:
    """Gradient descent with momentum, as TensorFlow's own ops do it; returns the op in a graph.

    Args:
        tf: TensorFlow.
        parameter: a resource variable.
        momentum: its momentum, likewise.
        gradient: a tensor, or slices: those of one row are added up.
        learning_rate: the step size.
    """
    options = {"var": parameter.handle, "accum": momentum.handle, "lr": learning_rate, "momentum": MOMENTUM}
    if isinstance(gradient, tf.IndexedSlices):
        rows, places = tf.unique(gradient.indices)
        values = tf.math.unsorted_segment_sum(gradient.values, places, tf.shape(rows)[0])
        return tf.raw_ops.ResourceSparseApplyMomentum(**options, grad=values, indices=rows)
    return tf.raw_ops.ResourceApplyMomentum(**options, grad=gradient)


class Replica:
    """One worker's copy of a workload, with its part of the batch.

    Args:
        tf: TensorFlow.
        workload: what is trained.
        workers: number of workers.
        rank: of this one.
    """

    def __init__(self, tf: Any, workload: Workload, workers: int, rank: int) -> None:
        self._tf = tf
        self._workload = workload
        self.parameters = {n: tf.Variable(d.value(n), name=n) for n, d in workload.parameters.items()}
        self._averages = {n: tf.Variable(d.value(n), False, name=n) for n, d in workload.averages.items()}
        self._momenta = {
            n: tf.Variable(tf.zeros_like(v), False, name=f"{n}/momentum") for n, v in self.parameters.items()
        }
        self._batch = workload.batch(tf, workers, rank)

    def step(
        self, reduce: Reduce, tape_of: Callable[[Any], Any] = lambda tape: tape, batch: Sequence[Any] | None = None
    ) -> Any:
        """One step; returns this worker's loss.

        Args:
            reduce: of the gradients.
            tape_of: what to make of the tape that computes them.
            batch: examples and labels; by default this worker's own.
        """
        tf = self._tf
        with tf.GradientTape() as tape:
            # A table is gathered from its variable, so that its gradient has only the rows that were used.
            values: Mapping[str, Any] = {**self.parameters, **self._averages}
            loss, updates = self._workload.loss(tf, values, *(self._batch if batch is None else batch))
        gradients = reduce(tape_of(tape).gradient(loss, list(self.parameters.values())))
        for (name, parameter), gradient in zip(self.parameters.items(), gradients):
            apply(tf, parameter, self._momenta[name], gradient, self._workload.learning_rate)
        for name, value in updates.items():
            self._averages[name].assign(value)
        return loss
