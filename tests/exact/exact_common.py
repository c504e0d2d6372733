"""What both oracles share: the cases, how a batch is split, how gradients are combined and results compared.

Written from the promised semantics alone. With N workers, a global batch of B examples of which worker r has b_r,
and g_r the gradient of worker r's loss on its own examples:

* a loss that is a mean over the batch: ``((w_0 g_0 + w_1 g_1) + w_2 g_2 + ...) / N`` with ``w_r = N b_r / B``
  (1 where the batch divides evenly, so that nothing is multiplied);
* a loss that is a sum over the batch: ``(g_0 + g_1) + g_2 + ...``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

import caramel
from caramel.runtime.host.run_options import RunOptions

STEPS = 20
BATCH = 12  # divisible by every number of workers that divides it evenly in a test: 1, 2, 3, 4
INPUTS = 16
CLASSES = 3
RTOL = 1e-8  # float64: what may differ between one large batch and the same batch in parts
GOLDEN = 0x9E3779B9  # from rank to rank, added to the seed of random state

# Features for which one large batch is the same mathematics, and those for which it is not.
SAME = ("schedule", "clip", "decay", "tied", "unused", "convolution")
LOCAL = ("norm", "dropout")

# Kernels and their order as written: no grappler, one thread in an op, one op at a time.
SERIAL = RunOptions(optimize_graph=False, intra_op_threads=1, inter_op_threads=1)


def serial_config() -> tf.compat.v1.ConfigProto:
    """The settings of SERIAL for a session of the oracle's own."""
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    config.use_per_session_threads = True  # otherwise the first session of the process decides for all
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config


@contextlib.contextmanager
def serial_functions():
    """The settings of SERIAL for tf.functions: no grappler."""
    before = tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": before})


@dataclass(frozen=True)
class Case:
    """Which program."""

    optimizer: str = "momentum"
    features: tuple[str, ...] = ()
    dtype: str = "float64"
    reduction: str = "mean"
    clip: float = 0.75  # global norm, where "clip" is one of the features
    seed: int = 11  # of dropout
    references: bool = False  # whether the variables of a TensorFlow 1 program are reference variables


@dataclass(frozen=True)
class Trained:
    """What training gave.

    Attributes:
        losses: of every step, over all workers.
        worker_losses: of every step, of each worker.
        values: every saved variable by its name, as worker 0 has it.
    """

    losses: list[float]
    worker_losses: list[tuple[float, ...]]
    values: dict[str, np.ndarray]


def sizes(total: int, workers: int) -> list[int]:
    """How many of `total` examples each worker gets: contiguous parts, the first ones larger by at most one."""
    return [total // workers + (rank < total % workers) for rank in range(workers)]


def split(arrays: Sequence[np.ndarray], workers: int) -> list[tuple[np.ndarray, ...]]:
    """Each worker's part of a global batch."""
    ends = np.cumsum([0, *sizes(len(arrays[0]), workers)])
    return [tuple(array[start:end] for array in arrays) for start, end in zip(ends[:-1], ends[1:])]


def combine(per_worker: Sequence[np.ndarray], examples: Sequence[int], reduction: str) -> np.ndarray:
    """One gradient from those of all workers, in rank order and in their own precision."""
    kind = per_worker[0].dtype.type
    workers, total = len(per_worker), sum(examples)
    weighted = reduction == "mean" and len(set(examples)) > 1
    terms = [
        gradient * kind(workers * count / total) if weighted else gradient
        for gradient, count in zip(per_worker, examples)
    ]
    result = terms[0]
    for term in terms[1:]:
        result = result + term
    return result / kind(workers) if reduction == "mean" else result


def combine_losses(losses: Sequence[float], examples: Sequence[int], reduction: str) -> float:
    """The loss over all workers."""
    if reduction == "sum":
        return float(np.sum(losses, dtype=np.float64))
    return float(np.average(np.asarray(losses, np.float64), weights=examples))


def batches(total: int, dtype: str, seed: int = 5, steps: int = STEPS) -> list[tuple[np.ndarray, np.ndarray]]:
    """A fresh batch of `total` examples for each step."""
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(size=(total, INPUTS)).astype(dtype), rng.integers(0, CLASSES, total).astype(np.int64))
        for _ in range(steps)
    ]


def in_process(options: RunOptions = SERIAL) -> caramel.InProcess:
    """A cluster in this process."""
    return caramel.InProcess(options=options)


def train(session: Any, data: Sequence[Any]) -> Trained:
    """Train a distributed session on batches that are tuples or dicts."""
    results = [session.step(*batch) if isinstance(batch, tuple) else session.step(batch) for batch in data]
    return Trained(
        [result.loss for result in results],
        [result.worker_losses for result in results],
        {name: np.asarray(value) for name, value in session.values().items()},
    )


def global_norm(gradients: Sequence[np.ndarray]) -> float:
    """The norm of all gradients together."""
    return float(np.sqrt(sum(np.sum(np.square(gradient, dtype=np.float64)) for gradient in gradients)))


def assert_clipped_in_some_steps(norms: Sequence[float], case: Case) -> None:
    """A case with clipping tests it, and, in other steps, the scale of the gradients, which clipping hides."""
    if "clip" in case.features:
        assert min(norms) < case.clip < max(norms)


def assert_bits(got: Mapping[str, Any], want: Mapping[str, Any]) -> None:
    """The same variables, of the same types, with the same bits."""
    assert set(got) == set(want)
    different = {}
    for name in want:
        mine, theirs = np.asarray(got[name]), np.asarray(want[name])
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape), name
        if not np.array_equal(mine, theirs):
            different[name] = f"{np.sum(mine != theirs)} of {mine.size}, by {np.max(np.abs(mine - theirs)):.2g}"
    assert not different


def assert_close(got: Mapping[str, Any], want: Mapping[str, Any]) -> None:
    """The same variables, with values that differ by no more than RTOL of them (or of the largest in the tensor)."""
    assert set(got) == set(want)
    for name in want:
        mine, theirs = np.asarray(got[name]), np.asarray(want[name])
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape), name
        largest = float(np.max(np.abs(theirs), initial=0))
        np.testing.assert_allclose(mine, theirs, rtol=RTOL, atol=1e-2 * RTOL * largest, err_msg=name)


def assert_same(got: Trained, want: Trained) -> None:
    """Bit for bit the same training."""
    assert got.worker_losses == want.worker_losses
    np.testing.assert_allclose(got.losses, want.losses, rtol=1e-12)
    assert_bits(got.values, want.values)


def assert_equivalent(got: Trained, want: Trained) -> None:
    """The same training in exact arithmetic."""
    np.testing.assert_allclose(got.losses, want.losses, rtol=RTOL)
    assert_close(got.values, want.values)


def assert_moved(initial: Mapping[str, Any], trained: Mapping[str, Any], but: Sequence[str] = ()) -> None:
    """Training changed every variable except those named, so that comparing them means something."""
    still = {name for name in initial if np.array_equal(initial[name], trained[name])}
    assert still == set(but)
