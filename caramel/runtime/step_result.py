"""What a step gives, of the whole batch and of each worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from caramel.dealing import in_order
from caramel.runtime.feeds import Batch, combined_value
from caramel.signature import Signature
from caramel.util.tables import fitted, preformatted, wrapped


@dataclass(frozen=True)
class StepResult:
    """The result of one step.

    Attributes:
        step: number of steps that the variables have seen, this one included.
        loss: loss of the whole batch: the weighted mean of the workers' losses, or their sum, as the reported loss
            is a mean or a sum over the batch. Of a complex loss this is the real part, which its gradient descends.
        worker_losses: loss of each worker.
        examples: number of examples in the step (0 where no input is split).
        worker_examples: number of examples of each worker.
        outputs: further results of the step function: the values of each worker, by name. Where examples have entries
            of their own, these are one after the other as in the batch.

    Examples:
        >>> import tensorflow as tf
        >>> import caramel
        >>> w = tf.Variable([0.0, 0.0], name="w")
        >>> def step(x, y):
        ...     with tf.GradientTape() as tape:
        ...         loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
        ...     w.assign_sub(0.1 * tape.gradient(loss, w))
        ...     return loss
        >>> context = caramel.capture(step, [tf.TensorSpec([None, 2]), tf.TensorSpec([None])])

        >>> with caramel.ARModel(context, 2).session() as session:
        ...     result = session.step([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [1.0, 2.0, 3.0])
        >>> result.step, result.examples, result.worker_examples
        (1, 3, (2, 1))
        >>> result.worker_losses
        (2.5, 9.0)
    """

    step: int
    loss: float
    worker_losses: tuple[float, ...]
    examples: int
    worker_examples: tuple[int, ...]
    outputs: Mapping[str, tuple[np.ndarray, ...]]

    def _repr_html_(self) -> str:
        """The result in a notebook: of the whole batch, and of each worker."""
        rows = [("", "loss", "examples"), ("all", f"{self.loss:.6g}", f"{self.examples:,}")]
        for rank, (loss, examples) in enumerate(zip(self.worker_losses, self.worker_examples)):
            rows.append((f"worker {rank}", f"{loss:.6g}", f"{examples:,}"))
        outputs = [wrapped(f"outputs: {', '.join(self.outputs)}")] if self.outputs else []
        return preformatted("\n".join([f"step {self.step:,}", fitted(rows, right={1, 2}), *outputs]))


def step_results(
    signature: Signature, batches: Sequence[Batch], values: Sequence[np.ndarray], steps_before: int
) -> list[StepResult]:
    """The results of steps that have run.

    Args:
        signature: signature of a step.
        batches: batch of each step.
        values: values of `caramel.runtime.feeds.step_fetches`, step after step.
        steps_before: number of steps that the variables had seen before.
    """
    workers, names = signature.workers, [name for name, _ in signature.outputs]
    fetched = workers * (1 + len(names))
    results = []
    for number, batch in enumerate(batches):
        own = values[number * fetched : (number + 1) * fetched]
        losses = tuple(float(np.sum(np.asarray(value).real, dtype=np.float64)) for value in own[:workers])
        outputs = {name: tuple(own[n * workers : (n + 1) * workers]) for n, name in enumerate(names, 1)}
        for name, axis, count in signature.dealt_outputs:
            outputs[name] = in_order(outputs[name], batch.shares, axis, count)
        loss = combined_value(losses, batch.shares, signature.reported)
        results.append(StepResult(steps_before + number + 1, loss, losses, sum(batch.shares), batch.shares, outputs))
    return results
