"""Watching a program while it builds its graph: where it differentiates, and what it must not do.

While a `Recorder` is active, every call of `tf.gradients` and `GradientTape.gradient` that asks for
the gradient of a variable gets its results through one Identity each. Everything after the
differentiation reads that Identity, and nothing inside it does: it is the one place where the
gradient of this device can be replaced by the mean over all workers.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.client import session as session_module
from tensorflow.python.ops import gradients_util
from tensorflow.python.util import tf_stack

from caramel.errors import CaptureError
from caramel.graph import ops

GRADIENT_ATTRIBUTE = "_caramel_gradient"
"""Attribute of the Identity that carries a gradient out of the differentiation: its number."""

INDICES_ATTRIBUTE = "_caramel_indices"
"""The same for the indices of a sparse gradient."""

TARGETS_ATTRIBUTE = "_caramel_targets"
"""Attribute of an op that is differentiated: (number of the call, index of the output), one after the other."""

_SESSION_RUNS = ("run", "_call_tf_sessionrun")
"""Ways to run a session: `run`, and what the functions of `make_callable` call."""

_lock = threading.Lock()


@dataclass(frozen=True)
class MarkedGradient:
    """One gradient of one variable in one call.

    Attributes:
        variable: the variable object; of a reference variable it may be the reference.
        node: name of the Identity that carries it (its values, where it is sparse), as it was when made.
        call: number of the call, in program order.
        location: ``file:line`` of the user's call.
    """

    variable: Any
    node: str
    call: int
    location: str


@dataclass
class Recorder:
    """What a program did while it was watched.

    What it saw is marked in the graph by attributes, which outlast whatever becomes of the functions
    that the program is made of.
    """

    gradients: list[MarkedGradient] = field(default_factory=list)
    """By their number."""
    graphs: list[Any] = field(default_factory=list)
    """Where was differentiated, in program order."""
    calls: int = 0

    def mark(self, target: Any, sources: list[Any], results: list[Any], weights: Any = None) -> list[Any]:
        """Pass the gradients of variables through marked Identities; leave the others alone.

        Args:
            target: what is differentiated.
            sources: by what.
            results: the gradients.
            weights: the gradients that the caller gave for the target (``grad_ys``, ``output_gradients``).
        """
        wanted = [_is_variable(s) and _is_symbolic(r) for s, r in zip(sources, results)]
        if not any(wanted):
            return results
        self.calls += 1
        location = user_location()
        marked = []
        for source, result, is_wanted in zip(sources, results, wanted):
            marked.append(self._marked(source, result, location) if is_wanted else result)
        targets = tf.nest.flatten(target)
        given = [None] * len(targets) if weights is None else tf.nest.flatten(weights)
        for tensor, weight in zip(targets, given):
            if _is_symbolic(tensor):
                self._mark_target(tensor if weight is None else _weighted(tensor, weight))
        return marked

    def _marked(self, source: Any, result: Any, location: str) -> Any:
        number = attr_value_pb2.AttrValue(i=len(self.gradients))
        is_sparse = isinstance(result, tf.IndexedSlices)
        values = tf.identity(result.values if is_sparse else result, name="caramel_gradient")
        values.op._set_attr(GRADIENT_ATTRIBUTE, number)
        self.gradients.append(MarkedGradient(source, values.op.name, self.calls, location))
        if not is_sparse:
            return values
        indices = tf.identity(result.indices, name="caramel_indices")
        indices.op._set_attr(INDICES_ATTRIBUTE, number)
        return tf.IndexedSlices(values, indices, result.dense_shape)

    def _mark_target(self, tensor: Any) -> None:
        self.graphs.append(tensor.graph)
        marks = attr_value_pb2.AttrValue()
        if TARGETS_ATTRIBUTE in tensor.op.node_def.attr:
            marks.CopyFrom(tensor.op.node_def.attr[TARGETS_ATTRIBUTE])
        marks.list.i.extend((self.calls, tensor.value_index))
        tensor.op._set_attr(TARGETS_ATTRIBUTE, marks)


def _weighted(tensor: Any, weight: Any) -> Any:
    """What is really differentiated where the gradient of the target was given: their product."""
    with tensor.graph.as_default():
        return tf.multiply(tensor, tf.cast(weight, tensor.dtype), name="caramel_weighted")


def _is_symbolic(tensor: Any) -> bool:
    """Whether this is a tensor of a graph (not None, not an eager value)."""
    if isinstance(tensor, tf.IndexedSlices):
        tensor = tensor.values
    return tf.is_tensor(tensor) and not isinstance(tensor, tf.__internal__.EagerTensor)


def _is_variable(source: Any) -> bool:
    handle = getattr(source, "handle", None)
    if handle is not None and getattr(handle, "dtype", None) == tf.resource:
        return True
    # A reference variable, or the reference itself, which is what optimizers differentiate by.
    return getattr(getattr(source, "op", None), "type", None) in ops.REFERENCE_VARIABLES


def user_location() -> str:
    """``file:line`` of the innermost caller outside TensorFlow, Keras and this library."""
    for frame in reversed(tf_stack.extract_stack()):  # maps code that AutoGraph made to the user's own lines
        if not is_library(frame.filename):
            return f"{frame.filename}:{frame.lineno}"
    return "unknown location"


def is_library(filename: str) -> bool:
    """Whether a file belongs to TensorFlow, Keras, this library or the interpreter itself."""
    libraries = tuple(
        os.path.dirname(os.path.abspath(module.__file__)) + os.sep
        for name in ("tensorflow", "keras", "caramel")
        if (module := sys.modules.get(name)) is not None and module.__file__
    )
    return filename.startswith("<") or os.path.abspath(filename).startswith(libraries)


@contextmanager
def recording() -> Iterator[Recorder]:
    """Watch the program for as long as the context lasts.

    Raises:
        CaptureError: another capture is under way, or the program runs a Session meanwhile.
    """
    if not _lock.acquire(blocking=False):
        raise CaptureError("a capture is already under way in this process: finish it first; captures do not nest")
    recorder = Recorder()
    original_helper = gradients_util._GradientsHelper
    original_tape = tf.GradientTape.gradient
    original_runs = {name: getattr(session_module.BaseSession, name) for name in _SESSION_RUNS}

    def helper(ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
        results = original_helper(ys, xs, *args, **kwargs)
        weights = args[0] if args else kwargs.get("grad_ys")
        return recorder.mark(ys, list(xs) if isinstance(xs, (list, tuple)) else [xs], results, weights)

    def gradient(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        results = original_tape(tape, target, sources, *args, **kwargs)
        flat = tf.nest.flatten(results, expand_composites=False)
        weights = args[0] if args else kwargs.get("output_gradients")
        marked = recorder.mark(target, tf.nest.flatten(sources), flat, weights)
        return tf.nest.pack_sequence_as(results, marked)

    def run(session: Any, *args: Any, **kwargs: Any) -> Any:
        raise CaptureError(
            f"{user_location()}: a Session runs while the program is captured; capture only builds the graph. "
            "Move the running part out of the captured code (for a program file: under if __name__ == '__main__':)"
        )

    gradients_util._GradientsHelper = helper
    tf.GradientTape.gradient = gradient
    for name in _SESSION_RUNS:
        setattr(session_module.BaseSession, name, run)
    try:
        yield recorder
    finally:
        gradients_util._GradientsHelper = original_helper
        tf.GradientTape.gradient = original_tape
        for name, method in original_runs.items():
            setattr(session_module.BaseSession, name, method)
        _lock.release()
