"""Watching a program while it builds its graph: record its differentiations, and refuse what a capture cannot have.

While a `Recorder` is active, every call of `tf.gradients` and `GradientTape.gradient` that asks for
the gradient of a variable gets its results through one Identity each. Everything after the
differentiation reads that Identity, and nothing inside it does: it is the one place where the
gradient of this device can be replaced by the mean over all workers.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
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

_GRADIENT_OP_TYPE = "CaramelGradient"
"""Op type under which TensorFlow differentiates an Identity that carries a gradient."""

_SESSION_RUNS = ("run", "_call_tf_sessionrun")
"""Methods that run a session: `run`, and the one that the functions of `make_callable` call."""

_active = threading.local()
"""``recorder``: the Recorder of this thread's capture, if one is under way. Threads capture independently."""

_patching = threading.Lock()
"""Held while TensorFlow's functions are replaced or put back."""

_replaced: list[tuple[Any, str, Any]] = []
"""Triples (owner, name, original) of what is replaced at present."""

_captures_under_way: list[Recorder] = []
"""The recorders of all threads; the functions are replaced as long as there is one."""

_numbers = count()
"""Numbers of calls and gradients. No two captures share a number: a tf.function that a second capture meets again keeps
the numbers of its first trace."""

_gradients_by_number: WeakValueDictionary[int, MarkedGradient] = WeakValueDictionary()
"""Gradients of variables by their number, for as long as the graphs that contain them live."""


@dataclass
class MarkedGradient:
    """One gradient of one variable in one call.

    Attributes:
        variable: the variable object; for a reference variable it may be the reference.
        call: number of the call, in program order.
        location: ``file:line`` of the user's call.
        differentiated_again: whether another differentiation goes through the gradient: it is not a constant there.
    """

    variable: Any
    call: int
    location: str
    differentiated_again: bool = False


@dataclass
class Recorder:
    """Record of a program's differentiations while it was watched.

    The recorder marks them in the graph by attributes, which outlast whatever becomes of the functions
    that the program is made of.

    Attributes:
        graphs: graph of each differentiated tensor, in program order.
        kept_gradients: gradients that the recorder keeps alive, because their graphs may not live on.
        call: number of the last differentiation.
        vectorised_depth: number of nested loops that TensorFlow vectorises at this moment.
        synchronised: name scopes (layers) in which the program adds up values over all replicas.
    """

    graphs: list[Any] = field(default_factory=list)
    kept_gradients: list[MarkedGradient] = field(default_factory=list)
    call: int = 0
    vectorised_depth: int = 0
    synchronised: list[str] = field(default_factory=list)

    @property
    def gradients(self) -> Mapping[int, MarkedGradient]:
        """The recorded gradients by their number."""
        return _gradients_by_number

    def mark(self, target: Any, sources: list[Any], gradients: list[Any], weights: Any = None) -> list[Any]:
        """Pass gradients through marked Identities; the gradients of variables can be aggregated there.

        Args:
            target: tensor, or nest of tensors, that is differentiated.
            sources: tensors and variables with respect to which it is differentiated.
            gradients: gradient for each source.
            weights: initial gradients that the caller gave for the target (``grad_ys``, ``output_gradients``).

        Returns:
            The gradients, marked.
        """
        by_tensor = [_is_tensor(s) and not _is_variable(s) and not self.vectorised_depth for s in sources]
        gradients = [
            self._marked_by_tensor(s, r) if is_one and _is_tensor(r) else r
            for s, r, is_one in zip(sources, gradients, by_tensor)
        ]
        wanted = [_is_variable(s) and _is_symbolic(r) for s, r in zip(sources, gradients)]
        if not any(wanted):
            return gradients
        if self.vectorised_depth:
            _refuse_single_examples("a gradient inside tf.vectorized_map (or pfor)")
        self.call = next(_numbers)
        location = user_location()
        marked = []
        for source, gradient, is_wanted in zip(sources, gradients, wanted):
            marked.append(self._marked(source, gradient, location) if is_wanted else gradient)
        targets = tf.nest.flatten(target)
        flat_weights = [None] * len(targets) if weights is None else tf.nest.flatten(weights)
        for tensor, weight in zip(targets, flat_weights):
            if _is_symbolic(tensor):
                self._mark_target(tensor if weight is None else _weighted(tensor, weight))
        return marked

    def _marked(self, source: Any, gradient: Any, location: str) -> Any:
        number = attr_value_pb2.AttrValue(i=next(_numbers))
        is_sparse = isinstance(gradient, tf.IndexedSlices)
        values = _carried(gradient.values if is_sparse else gradient, number)
        marked_gradient = MarkedGradient(source, self.call, location)
        _gradients_by_number[number.i] = marked_gradient
        self.kept_gradients.append(marked_gradient)
        graph = tf.compat.v1.get_default_graph()
        if not hasattr(graph, "_caramel_marks"):
            graph._caramel_marks = []
        graph._caramel_marks.append(marked_gradient)
        if not is_sparse:
            return values
        indices = tf.identity(gradient.indices, name="caramel_indices")
        indices.op._set_attr(INDICES_ATTRIBUTE, number)
        return tf.IndexedSlices(values, indices, gradient.dense_shape)

    def _marked_by_tensor(self, source: Any, gradient: Any) -> Any:
        """A gradient with respect to a tensor, marked together with the tensor.

        Where the tensor is the same on all workers, the gradient should be that of all examples.
        """
        number = attr_value_pb2.AttrValue()
        number.list.i.append(next(_numbers))
        with record.stop_recording():
            noted = tf.identity(source, name="caramel_source")
        noted.op._set_attr(SOURCE_ATTRIBUTE, number)
        number.list.s.append(user_location().encode())
        carried = tf.identity(gradient, name="caramel_result")
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
    """The product of a target and its given initial gradient, which the program in effect differentiates."""
    with tensor.graph.as_default():
        return tf.multiply(tensor, tf.cast(weight, tensor.dtype), name="caramel_weighted")


def _carried(tensor: Any, number: Any) -> Any:
    """A tensor behind a marked Identity that records when it is differentiated."""
    graph = tf.compat.v1.get_default_graph()
    with record.stop_recording(), graph.gradient_override_map({"Identity": _GRADIENT_OP_TYPE}):
        carried = tf.identity(tensor, name="caramel_gradient")
    carried.op._set_attr(GRADIENT_ATTRIBUTE, number)

    def backward(*upstream: Any) -> list[Any]:
        _note_passed(number.i)
        return list(upstream)

    record.record_operation(_GRADIENT_OP_TYPE, [carried], [tensor], backward)  # for tapes
    return carried


@tf.RegisterGradient(_GRADIENT_OP_TYPE)  # type: ignore[untyped-decorator]  # for tf.gradients, and inside functions
def _differentiated(op: Any, upstream: Any) -> Any:
    _note_passed(op.get_attr(GRADIENT_ATTRIBUTE))
    return upstream


def _note_passed(number: int) -> None:
    if number in _gradients_by_number:
        _gradients_by_number[number].differentiated_again = True


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


def _in_optimizer() -> bool:
    """Whether a Keras optimizer is among the callers."""
    files = (os.path.basename(frame.f_code.co_filename) for frame, _ in traceback.walk_stack(None))
    return any("optimizer" in file for file in files)


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
    """Watch the program that this thread builds, for as long as the context lasts.

    Raises:
        CaptureError: another capture of this thread is under way, or the program runs a Session meanwhile.
    """
    if getattr(_active, "recorder", None) is not None:
        raise CaptureError("a capture is already under way in this thread: finish it first; captures do not nest")
    recorder = Recorder()
    with _patching:
        if not _captures_under_way:
            for owner, name, replacement in _replacements():
                _replaced.append((owner, name, getattr(owner, name)))
                setattr(owner, name, replacement)
        _captures_under_way.append(recorder)
    _active.recorder = recorder
    try:
        yield recorder
    finally:
        _active.recorder = None
        with _patching:
            _captures_under_way[:] = [r for r in _captures_under_way if r is not recorder]
            while not _captures_under_way and _replaced:
                owner, name, original = _replaced.pop()
                setattr(owner, name, original)


def _watched(original: Callable[..., Any], replacement: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is ``replacement(recorder, ...)`` in threads that capture, and the original in all others."""

    @functools.wraps(original)
    def either(*args: Any, **kwargs: Any) -> Any:
        recorder = getattr(_active, "recorder", None)
        return original(*args, **kwargs) if recorder is None else replacement(recorder, *args, **kwargs)

    return either


def _replacements() -> list[tuple[Any, str, Any]]:
    """Triples (owner, name, replacement) of the TensorFlow functions that are replaced while programs are watched."""
    original_helper = gradients_util._GradientsHelper
    original_tape = tf.GradientTape.gradient
    original_parallel = parallel_for._pfor_impl
    context = next(c for c in tf.distribute.ReplicaContext.__mro__ if "all_reduce" in vars(c))
    original_all_reduce = context.all_reduce

    def helper(recorder: Recorder, ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
        results = original_helper(ys, xs, *args, **kwargs)
        if kwargs.get("src_graph") is not None:
            return results  # TensorFlow's own, for a function, branch or loop
        weights = args[0] if args else kwargs.get("grad_ys")
        return recorder.mark(ys, list(xs) if isinstance(xs, (list, tuple)) else [xs], results, weights)

    def gradient(recorder: Recorder, tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        results = original_tape(tape, target, sources, *args, **kwargs)
        flat = tf.nest.flatten(results, expand_composites=False)
        weights = args[0] if args else kwargs.get("output_gradients")
        marked = recorder.mark(target, tf.nest.flatten(sources), flat, weights)
        return tf.nest.pack_sequence_as(results, marked)

    def parallel(recorder: Recorder, *args: Any, **kwargs: Any) -> Any:
        recorder.vectorised_depth += 1
        try:
            return original_parallel(*args, **kwargs)
        finally:
            recorder.vectorised_depth -= 1

    def all_reduce(recorder: Recorder, *args: Any, **kwargs: Any) -> Any:
        if not _in_optimizer():  # it adds up gradients, which is what is done with them here anyway
            scope = tf.compat.v1.get_default_graph().get_name_scope()
            if scope or not recorder.synchronised:  # else it is the gradient of one before
                recorder.synchronised.append(scope or user_location())
        return original_all_reduce(*args, **kwargs)

    def run(recorder: Recorder, *args: Any, **kwargs: Any) -> Any:
        raise CaptureError(
            f"{user_location()}: a Session runs while the program is captured; capture only builds the graph. "
            "Move the running part out of the captured code (for a program file: under if __name__ == '__main__':)"
        )

    pairs: list[tuple[Any, str, Callable[..., Any]]] = [
        (gradients_util, "_GradientsHelper", helper),
        (tf.GradientTape, "gradient", gradient),
        *((tf.GradientTape, name, _jacobian(name)) for name in ("jacobian", "batch_jacobian")),
        (parallel_for, "_pfor_impl", parallel),
        (context, "all_reduce", all_reduce),
        *((session_module.BaseSession, name, run) for name in _SESSION_RUNS),
    ]
    return [(owner, name, _watched(getattr(owner, name), replacement)) for owner, name, replacement in pairs]


def _jacobian(name: str) -> Callable[..., Any]:
    """A method of the tape that refuses variables."""
    original = getattr(tf.GradientTape, name)

    def jacobian(_: Recorder, tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        if any(_is_variable(source) for source in tf.nest.flatten(sources)):
            _refuse_single_examples(f"GradientTape.{name}")
        return original(tape, target, sources, *args, **kwargs)

    return jacobian
