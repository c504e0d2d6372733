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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.client import session as session_module
from tensorflow.python.eager import record
from tensorflow.python.ops import gradients_util
from tensorflow.python.ops.parallel_for import control_flow_ops as parallel_for
from tensorflow.python.util import tf_stack

from caramel.errors import CaptureError, UnsupportedError
from caramel.frontend.attributes import (
    GRADIENT_ATTRIBUTE,
    INDICES_ATTRIBUTE,
    RESULT_ATTRIBUTE,
    SOURCE_ATTRIBUTE,
    TARGETS_ATTRIBUTE,
)
from caramel.graph import ops

_DIFFERENTIABLE = "CaramelGradient"
"""The op type under which an Identity with a gradient is differentiated."""

_SESSION_RUNS = ("run", "_call_tf_sessionrun")
"""Ways to run a session: `run`, and what the functions of `make_callable` call."""

_lock = threading.Lock()

_numbers = count()
"""Numbers of calls and gradients. No two captures share any: a tf.function that the second meets again keeps those
that it got when it was traced."""

_marks: WeakValueDictionary[int, MarkedGradient] = WeakValueDictionary()
"""Gradients of variables by their number, for as long as the graphs live that have them."""


@dataclass
class MarkedGradient:
    """One gradient of one variable in one call.

    Attributes:
        variable: the variable object; of a reference variable it may be the reference.
        call: number of the call, in program order.
        location: ``file:line`` of the user's call.
        passed: whether another differentiation goes through it: it is not a constant to that.
    """

    variable: Any
    call: int
    location: str
    passed: bool = False


@dataclass
class Recorder:
    """What a program did while it was watched.

    What it saw is marked in the graph by attributes, which outlast whatever becomes of the functions
    that the program is made of.
    """

    graphs: list[Any] = field(default_factory=list)
    """Where was differentiated, in program order."""
    kept: list[MarkedGradient] = field(default_factory=list)
    """Gradients, of which the graphs may not live on."""
    call: int = 0
    """Number of the last call."""
    parallel: int = 0
    """Depth of loops that are being vectorised."""

    @property
    def gradients(self) -> Mapping[int, MarkedGradient]:
        """By their number."""
        return _marks

    def mark(self, target: Any, sources: list[Any], results: list[Any], weights: Any = None) -> list[Any]:
        """Pass gradients through marked Identities; those of variables are what can be aggregated.

        Args:
            target: what is differentiated.
            sources: by what.
            results: the gradients.
            weights: the gradients that the caller gave for the target (``grad_ys``, ``output_gradients``).
        """
        by_tensor = [_is_tensor(s) and not _is_variable(s) and not self.parallel for s in sources]
        results = [
            self._marked_by_tensor(s, r) if is_one and _is_tensor(r) else r
            for s, r, is_one in zip(sources, results, by_tensor)
        ]
        wanted = [_is_variable(s) and _is_symbolic(r) for s, r in zip(sources, results)]
        if not any(wanted):
            return results
        if self.parallel:
            _refuse_single_examples("a gradient inside tf.vectorized_map (or pfor)")
        self.call = next(_numbers)
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
        number = attr_value_pb2.AttrValue(i=next(_numbers))
        is_sparse = isinstance(result, tf.IndexedSlices)
        values = _carried(result.values if is_sparse else result, number)
        seen = MarkedGradient(source, self.call, location)
        _marks[number.i] = seen
        self.kept.append(seen)
        graph = tf.compat.v1.get_default_graph()
        if not hasattr(graph, "_caramel_marks"):
            graph._caramel_marks = []
        graph._caramel_marks.append(seen)
        if not is_sparse:
            return values
        indices = tf.identity(result.indices, name="caramel_indices")
        indices.op._set_attr(INDICES_ATTRIBUTE, number)
        return tf.IndexedSlices(values, indices, result.dense_shape)

    def _marked_by_tensor(self, source: Any, result: Any) -> Any:
        """A gradient by a tensor, with a note of which: what is the same on all workers should give one of all."""
        number = attr_value_pb2.AttrValue()
        number.list.i.append(next(_numbers))
        with record.stop_recording():
            noted = tf.identity(source, name="caramel_source")
        noted.op._set_attr(SOURCE_ATTRIBUTE, number)
        number.list.s.append(user_location().encode())
        carried = tf.identity(result, name="caramel_result")
        carried.op._set_attr(RESULT_ATTRIBUTE, number)
        return carried

    def _mark_target(self, tensor: Any) -> None:
        self.graphs.append(tensor.graph)
        marks = attr_value_pb2.AttrValue()
        if TARGETS_ATTRIBUTE in tensor.op.node_def.attr:
            marks.CopyFrom(tensor.op.node_def.attr[TARGETS_ATTRIBUTE])
        marks.list.i.extend((self.call, tensor.value_index))
        tensor.op._set_attr(TARGETS_ATTRIBUTE, marks)


def _weighted(tensor: Any, weight: Any) -> Any:
    """What is really differentiated where the gradient of the target was given: their product."""
    with tensor.graph.as_default():
        return tf.multiply(tensor, tf.cast(weight, tensor.dtype), name="caramel_weighted")


def _carried(tensor: Any, number: Any) -> Any:
    """A tensor by a marked Identity that tells its recorder when it is differentiated."""
    graph = tf.compat.v1.get_default_graph()
    with record.stop_recording(), graph.gradient_override_map({"Identity": _DIFFERENTIABLE}):
        carried = tf.identity(tensor, name="caramel_gradient")
    carried.op._set_attr(GRADIENT_ATTRIBUTE, number)

    def backward(*upstream: Any) -> list[Any]:
        _note_passed(number.i)
        return list(upstream)

    record.record_operation(_DIFFERENTIABLE, [carried], [tensor], backward)  # for tapes
    return carried


@tf.RegisterGradient(_DIFFERENTIABLE)  # type: ignore[untyped-decorator]  # for tf.gradients, and inside functions
def _differentiated(op: Any, upstream: Any) -> Any:
    _note_passed(op.get_attr(GRADIENT_ATTRIBUTE))
    return upstream


def _note_passed(number: int) -> None:
    if number in _marks:
        _marks[number].passed = True


def _refuse_single_examples(what: str) -> None:
    raise UnsupportedError(
        f"{user_location()}: {what} with respect to a variable is one for each example or element, which cannot be "
        "aggregated over the workers. Differentiate the loss, a mean or sum over the batch, with "
        "GradientTape.gradient or tf.gradients; what is only looked at belongs into an evaluation"
    )


def _is_tensor(value: Any) -> bool:
    """Whether this is a tensor of a graph, dense and of numbers."""
    return isinstance(value, tf.Tensor) and _is_symbolic(value) and value.dtype not in (tf.resource, tf.variant)


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
    replaced = []
    try:
        for owner, name, replacement in _replacements(recorder):
            replaced.append((owner, name, getattr(owner, name)))
            setattr(owner, name, replacement)
        yield recorder
    finally:
        for owner, name, original in reversed(replaced):
            setattr(owner, name, original)
        _lock.release()


def _replacements(recorder: Recorder) -> list[tuple[Any, str, Any]]:
    """(owner, name, function) of what is replaced in TensorFlow while a program is watched."""
    original_helper = gradients_util._GradientsHelper
    original_tape = tf.GradientTape.gradient
    original_parallel = parallel_for._pfor_impl

    def helper(ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
        results = original_helper(ys, xs, *args, **kwargs)
        if kwargs.get("src_graph") is not None:
            return results  # TensorFlow's own, for a function, branch or loop
        weights = args[0] if args else kwargs.get("grad_ys")
        return recorder.mark(ys, list(xs) if isinstance(xs, (list, tuple)) else [xs], results, weights)

    def gradient(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        results = original_tape(tape, target, sources, *args, **kwargs)
        flat = tf.nest.flatten(results, expand_composites=False)
        weights = args[0] if args else kwargs.get("output_gradients")
        marked = recorder.mark(target, tf.nest.flatten(sources), flat, weights)
        return tf.nest.pack_sequence_as(results, marked)

    def parallel(*args: Any, **kwargs: Any) -> Any:
        recorder.parallel += 1
        try:
            return original_parallel(*args, **kwargs)
        finally:
            recorder.parallel -= 1

    def run(session: Any, *args: Any, **kwargs: Any) -> Any:
        raise CaptureError(
            f"{user_location()}: a Session runs while the program is captured; capture only builds the graph. "
            "Move the running part out of the captured code (for a program file: under if __name__ == '__main__':)"
        )

    return [
        (gradients_util, "_GradientsHelper", helper),
        (tf.GradientTape, "gradient", gradient),
        *((tf.GradientTape, name, _jacobian(name)) for name in ("jacobian", "batch_jacobian")),
        (parallel_for, "_pfor_impl", parallel),
        *((session_module.BaseSession, name, run) for name in _SESSION_RUNS),
    ]


def _jacobian(name: str) -> Any:
    """A method of the tape that refuses variables."""
    original = getattr(tf.GradientTape, name)

    def jacobian(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        if any(_is_variable(source) for source in tf.nest.flatten(sources)):
            _refuse_single_examples(f"GradientTape.{name}")
        return original(tape, target, sources, *args, **kwargs)

    return jacobian
