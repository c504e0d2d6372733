"""The functions of TensorFlow that are replaced while a program is watched, and what calls a `Recorder` from them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.client import session as session_module
from tensorflow.python.eager import execute
from tensorflow.python.eager.polymorphic_function import function_context
from tensorflow.python.framework import op_def_library
from tensorflow.python.ops import array_ops, custom_gradient, gradients_util
from tensorflow.python.ops.parallel_for import control_flow_ops as parallel_for

from caramel.errors import CaptureError
from caramel.frontend.captured import Gather
from caramel.frontend.recording import total_marks
from caramel.frontend.recording.own_ops import makes_op, reads_shape
from caramel.frontend.recording.recorder import Recorder, is_symbolic, is_tensor, is_variable
from caramel.frontend.recording.user_code import in_optimizer, user_location

_SIZE_READS = (
    *("__getitem__", "__iter__", "__eq__", "__str__", "__repr__", "dims", "as_list", "as_proto", "num_elements"),
    *("is_fully_defined", "is_compatible_with", "is_subtype_of", "most_specific_compatible_shape"),
)
"""What of `tf.TensorShape` says sizes."""

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


@contextmanager
def recording(
    gathers: Collection[Gather] = (),
    rows: tuple[int | None, int] | None = None,
    renamed: Mapping[str, str] | None = None,
    open_size: int | None = None,
    own_ops: list[Any] | None = None,
) -> Iterator[Recorder]:
    """Watch the program that this thread builds, for as long as the context lasts.

    Args:
        gathers: inputs of ops of the program that are to have the examples of all workers.
        rows: see `Recorder`.
        renamed: names that stand for others that the program gives to scopes.
        open_size: see `Recorder`.
        own_ops: see `Recorder`.

    Raises:
        CaptureError: another capture of this thread is under way, or the program runs a Session meanwhile.
    """
    if getattr(_active, "recorder", None) is not None:
        raise CaptureError("a capture is already under way in this thread: finish it first; captures do not nest")
    recorder = Recorder(gathers=gathers, rows=rows, renamed=renamed or {}, open_size=open_size, own_ops=own_ops)
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


@contextmanager
def unwatched() -> Iterator[None]:
    """What this thread does meanwhile is no part of the program that it captures."""
    recorder, _active.recorder = getattr(_active, "recorder", None), None
    try:
        yield
    finally:
        _active.recorder = recorder


def note_number(number: Any) -> None:
    """Note a number of Python that a step gives as a result, and which may follow from the number of examples."""
    recorder = getattr(_active, "recorder", None)
    if recorder is not None:
        recorder.numbers.append(number)


def _watched(original: Callable[..., Any], replacement: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is ``replacement(recorder, ...)`` in threads that capture, and the original in all others."""

    @functools.wraps(original)
    def either(*args: Any, **kwargs: Any) -> Any:
        recorder = getattr(_active, "recorder", None)
        return original(*args, **kwargs) if recorder is None else replacement(recorder, *args, **kwargs)

    return either


def _replacements() -> list[tuple[Any, str, Any]]:
    """Triples (owner, name, replacement) of the TensorFlow functions that are replaced while programs are watched."""
    triples = [*_of_gradients(), *_of_collectives(), *_of_ops(), *_of_graphs_and_sessions()]
    watched = [(owner, name, _watched(getattr(owner, name), replacement)) for owner, name, replacement in triples]
    return [*watched, *_size_reads()]


def _of_gradients() -> list[tuple[Any, str, Callable[..., Any]]]:
    """Replacements of what differentiates: losses, sources and results are marked."""
    original_helper = gradients_util._GradientsHelper
    original_tape = tf.GradientTape.gradient
    original_parallel = parallel_for._pfor_impl
    original_record = execute.record_gradient
    original_custom = custom_gradient._graph_mode_decorator

    def helper(recorder: Recorder, ys: Any, xs: Any, grad_ys: Any = None, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("src_graph") is not None:  # TensorFlow's own, for a function, branch or loop
            with recorder.differentiation():
                return original_helper(ys, xs, grad_ys, *args, **kwargs)
        seeds = recorder.seeds(ys) if grad_ys is None else None
        with recorder.differentiation():
            results = original_helper(ys, xs, grad_ys if seeds is None else seeds, *args, **kwargs)
        return recorder.mark(ys, list(xs) if isinstance(xs, (list, tuple)) else [xs], results, grad_ys, seeds)

    def gradient(
        recorder: Recorder,
        tape: Any,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        seeds = recorder.seeds(target) if output_gradients is None else None
        with recorder.differentiation():
            initial = output_gradients if seeds is None else seeds
            results = original_tape(tape, target, sources, initial, *args, **kwargs)
        flat = tf.nest.flatten(results, expand_composites=False)
        marked = recorder.mark(target, tf.nest.flatten(sources), flat, output_gradients, seeds)
        return tf.nest.pack_sequence_as(results, marked)

    def parallel(recorder: Recorder, *args: Any, **kwargs: Any) -> Any:
        return recorder.within_single_examples(lambda: original_parallel(*args, **kwargs))

    def recorded(_: Recorder, op_type: str, inputs: Any, attributes: Any, outputs: Any) -> Any:
        if not total_marks.record_gradient(op_type, inputs, outputs):
            original_record(op_type, inputs, attributes, outputs)

    def custom(recorder: Recorder, function: Any, args: Any, kwargs: Any) -> Any:
        watched = functools.wraps(function)(functools.partial(recorder.with_own_gradient, function))
        return original_custom(watched, args, kwargs)

    return [
        (gradients_util, "_GradientsHelper", helper),
        (tf.GradientTape, "gradient", gradient),
        *((tf.GradientTape, name, _jacobian(name)) for name in ("jacobian", "batch_jacobian")),
        (parallel_for, "_pfor_impl", parallel),
        (execute, "record_gradient", recorded),
        (custom_gradient, "_graph_mode_decorator", custom),
    ]


def _of_collectives() -> list[tuple[Any, str, Callable[..., Any]]]:
    """Replacements of what a program asks of all replicas: marks for values of the whole batch."""
    reducing = next(c for c in tf.distribute.ReplicaContext.__mro__ if "all_reduce" in vars(c))
    gathering = next(c for c in tf.distribute.ReplicaContext.__mro__ if "all_gather" in vars(c))
    original_all_reduce, original_all_gather = reducing.all_reduce, gathering.all_gather

    def all_reduce(recorder: Recorder, replica: Any, reduce_op: Any, value: Any, options: Any = None) -> Any:
        flat = tf.nest.flatten(value, expand_composites=False)
        if in_optimizer() or not all(is_tensor(tf.convert_to_tensor(each)) for each in flat):
            return original_all_reduce(replica, reduce_op, value, options)  # of gradients, which are summed anyway
        if recorder.cannot_exchange():
            return original_all_reduce(replica, reduce_op, value, options)
        kind = str(getattr(reduce_op, "value", reduce_op)).lower()
        summed = [total_marks.over_replicas(tf.convert_to_tensor(each), kind) for each in flat]
        return tf.nest.pack_sequence_as(value, summed)

    def all_gather(recorder: Recorder, replica: Any, value: Any, axis: Any, options: Any = None) -> Any:
        place = tf.get_static_value(axis) if tf.is_tensor(axis) else axis
        flat = [tf.convert_to_tensor(each) for each in tf.nest.flatten(value, expand_composites=False)]
        is_told = place is not None and all(is_symbolic(each) and each.shape.rank for each in flat)
        if not is_told or recorder.cannot_exchange():
            return original_all_gather(replica, value, axis, options)
        return tf.nest.pack_sequence_as(value, [total_marks.gathered(t, int(place) % t.shape.rank, 1) for t in flat])

    return [(reducing, "all_reduce", all_reduce), (gathering, "all_gather", all_gather)]


def _of_ops() -> list[tuple[Any, str, Callable[..., Any]]]:
    """Replacements of what makes ops: who made them is noted, and some are made in a way that can be followed."""
    original_helper = op_def_library._apply_op_helper
    original_batched, original_small = array_ops.batch_gather_nd, array_ops._constant_if_small

    def made(recorder: Recorder, op_type: str, name: Any = None, **keywords: Any) -> Any:
        return recorder.made_with(original_helper, op_type, {"name": name, **keywords})

    def batched(recorder: Recorder, params: Any, indices: Any, batch_dims: int, *args: Any, **kwargs: Any) -> Any:
        places = tf.convert_to_tensor(indices)
        if places.shape.rank is None or places.shape[-1] != 1:
            return original_batched(params, indices, batch_dims, *args, **kwargs)
        return tf.gather(params, tf.squeeze(places, -1), axis=batch_dims, batch_dims=batch_dims)  # one op, not thirty

    def small_constant(recorder: Recorder, value: Any, shape: Any, *args: Any, **kwargs: Any) -> Any:
        is_batch = recorder.rows is not None and np.ndim(shape) == 1 and len(shape) and shape[0] == recorder.rows[0]
        is_own = is_batch and not recorder.is_differentiating and makes_op()
        return None if is_own else original_small(value, shape, *args, **kwargs)  # None: then it is a Fill

    return [
        (op_def_library, "_apply_op_helper", made),
        (array_ops, "batch_gather_nd", batched),
        (array_ops, "_constant_if_small", small_constant),
    ]


def _of_graphs_and_sessions() -> list[tuple[Any, str, Callable[..., Any]]]:
    """Replacements around ops: each capture traces functions anew, scopes have names of its own, nothing runs."""
    original_context, original_scope = function_context.make_function_context, tf.Graph.name_scope

    def of_this_capture(recorder: Recorder, *args: Any, **kwargs: Any) -> Any:
        """What tells traces of a tf.function apart: one from before this capture was not watched."""
        key = original_context(*args, **kwargs)
        watched = key.context._replace(xla_context_id=(key.context.xla_context_id, recorder.trace))
        return key._replace(context=watched)

    def scope(recorder: Recorder, graph: Any, name: Any) -> Any:
        return original_scope(graph, recorder.scope(name))

    def run(recorder: Recorder, *args: Any, **kwargs: Any) -> Any:
        raise CaptureError(
            f"{user_location()}: a Session runs while the program is captured; capture only builds the graph. "
            "Move the running part out of the captured code (for a program file: under if __name__ == '__main__':)"
        )

    return [
        (function_context, "make_function_context", of_this_capture),
        (tf.Graph, "name_scope", scope),
        *((session_module.BaseSession, name, run) for name in _SESSION_RUNS),
    ]


def _size_reads() -> list[tuple[Any, str, Any]]:
    """The methods of static shapes that say sizes, which note that the program itself asks for one that is open."""
    is_known = tf.TensorShape.is_fully_defined

    def read_by(original: Callable[..., Any], is_item: bool) -> Callable[..., Any]:
        def read(recorder: Recorder, shape: Any, *args: Any) -> Any:
            value = original(shape, *args)
            if recorder.own_ops is None:  # nobody asks, and TensorFlow itself reads very many shapes
                return value
            shapes = [each for each in (shape, *args) if isinstance(each, tf.TensorShape)]
            is_told = is_item and (isinstance(value, int) or (isinstance(value, tf.TensorShape) and is_known(value)))
            if is_told or all(map(is_known, shapes)) or not reads_shape():
                return value
            recorder.asks_for_sizes = True
            if recorder.open_size is None:
                return value
            return original(*(_with_size(each, recorder.open_size) for each in (shape, *args)))

        return read

    replaced: list[tuple[Any, str, Any]] = []
    for name in _SIZE_READS:
        original = vars(tf.TensorShape)[name]
        if isinstance(original, property):
            watched = _watched(original.fget, read_by(original.fget, False))  # type: ignore[arg-type]
            replaced.append((tf.TensorShape, name, property(watched)))
        else:
            watched = _watched(original, read_by(original, name == "__getitem__"))
            replaced.append((tf.TensorShape, name, watched))
    return replaced


def _with_size(shape: Any, size: int) -> Any:
    """A static shape whose open sizes are said to be a number; what is no shape as it is."""
    if not isinstance(shape, tf.TensorShape) or shape._dims is None:
        return shape
    return tf.TensorShape([size if n is None else n for n in shape._dims])


def _jacobian(name: str) -> Callable[..., Any]:
    """A method of the tape, whose gradients with respect to variables are noted."""
    original = getattr(tf.GradientTape, name)

    def jacobian(recorder: Recorder, tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        if not any(is_variable(source) for source in tf.nest.flatten(sources)):
            results = original(tape, target, sources, *args, **kwargs)
            return recorder.mark_by_example(target, sources, results) if name == "batch_jacobian" else results

        def call() -> Any:
            recorder.note_single_examples(f"GradientTape.{name}")
            return original(tape, target, sources, *args, **kwargs)

        return recorder.within_single_examples(call)

    return jacobian
