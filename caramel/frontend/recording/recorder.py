"""Watching a program while it builds its graph: record its differentiations, and refuse what a capture cannot have.

While a `Recorder` is active, every call of `tf.gradients` and `GradientTape.gradient` that asks for
the gradient of a variable gets its results through one Identity each. Everything after the
differentiation reads that Identity, and nothing inside it does: it is the one place where the
gradient of this device can be replaced by the mean over all workers.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.client import session as session_module
from tensorflow.python.eager import execute, record
from tensorflow.python.eager.polymorphic_function import function_context
from tensorflow.python.framework import op_def_library, op_def_registry
from tensorflow.python.ops import array_ops, custom_gradient, gradients_util
from tensorflow.python.ops.parallel_for import control_flow_ops as parallel_for
from tensorflow.python.util import tf_stack

from caramel.errors import CaptureError
from caramel.frontend.attributes import (
    CUSTOM_ATTRIBUTE,
    GRADIENT_ATTRIBUTE,
    INDICES_ATTRIBUTE,
    MADE_ATTRIBUTE,
    RESULT_ATTRIBUTE,
    SINGLE_ATTRIBUTE,
    SOURCE_ATTRIBUTE,
    TARGETS_ATTRIBUTE,
)
from caramel.frontend.captured import Gather
from caramel.frontend.recording import total_marks
from caramel.frontend.recording.automatic_names import renamed_scope
from caramel.graph import ops

_GRADIENT_OP_TYPE = "CaramelGradient"
"""Op type under which TensorFlow differentiates an Identity that carries a gradient."""

_SHAPE_INPUTS = {
    "Reshape": "shape",
    "Fill": "dims",
    "RandomStandardNormal": "shape",
    "RandomUniform": "shape",
    "BroadcastTo": "shape",
    "Tile": "multiples",
}
"""Name of the input with a shape, by the type of the op."""

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
        vectorised_depth: number of nested loops that TensorFlow vectorises at this moment, or that go over the elements
            of what is differentiated.
        single_examples: for each place with gradients of single examples why they cannot be aggregated.
        custom_depth: number of nested functions that run at this moment and have a gradient function of their own.
        own_gradient_depth: number of these gradient functions that run at this moment: what they differentiate is part
            of the differentiation that calls them.
        trace: number of the capture, for which functions are traced anew.
        gathers: inputs of ops that are to have the examples of all workers.
        rows: number of examples of a whole batch and of a worker's part, where the program may have the former in it
            as a number, which is to stand for the latter; else None.
        made: number of ops of each type that the program has made.
        scopes: names under which the program has made ops, as it has given them.
        renamed: names that stand for some of these.
    """

    graphs: list[Any] = field(default_factory=list)
    kept_gradients: list[MarkedGradient] = field(default_factory=list)
    call: int = 0
    vectorised_depth: int = 0
    single_examples: list[str] = field(default_factory=list)
    custom_depth: int = 0
    own_gradient_depth: int = 0
    trace: int = field(default_factory=lambda: next(_numbers))
    gathers: Collection[Gather] = ()
    rows: tuple[int, int] | None = None
    made: Counter[str] = field(default_factory=Counter)
    scopes: set[str] = field(default_factory=set)
    renamed: Mapping[str, str] = field(default_factory=dict)
    _gathered: dict[tuple[int, int | None], tuple[Any, Any]] = field(default_factory=dict)
    _is_gathering: bool = False

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
        if self.own_gradient_depth:
            return gradients
        by_tensor = [
            _is_tensor(s) and not _is_variable(s) and not self.vectorised_depth and _is_tensor(r)
            for s, r in zip(sources, gradients)
        ]
        if any(by_tensor):
            self.call = next(_numbers)
            gradients = [
                self._marked_by_tensor(s, r) if is_one else r for s, r, is_one in zip(sources, gradients, by_tensor)
            ]
            if weights is None:
                self._mark_targets(target)
        wanted = [_is_variable(s) and _is_symbolic(r) for s, r in zip(sources, gradients)]
        if not any(wanted):
            return gradients
        if self.vectorised_depth:
            self.note_single_examples("a gradient inside tf.vectorized_map (or pfor)")
            return gradients
        self.call = next(_numbers)
        location = user_location()
        marked = []
        for source, gradient, is_wanted in zip(sources, gradients, wanted):
            marked.append(self._marked(source, gradient, location) if is_wanted else gradient)
        targets = tf.nest.flatten(target)
        flat_weights = [None] * len(targets) if weights is None else tf.nest.flatten(weights)
        for tensor, weight in zip(targets, flat_weights):
            if _is_symbolic(tensor):
                self.graphs.append(tensor.graph)
                self._mark_target(tensor if weight is None else _weighted(tensor, weight))
        return marked

    def _mark_targets(self, target: Any) -> None:
        for tensor in tf.nest.flatten(target):
            if _is_tensor(tensor):
                self._mark_target(tensor)

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

    def mark_by_example(self, target: Any, source: Any, jacobian: Any) -> Any:
        """The Jacobian of each example, marked together with what it is of.

        Args:
            target: tensor that is differentiated.
            source: tensor with respect to which it is, with the examples along the same axis.
            jacobian: what ``batch_jacobian`` returned.
        """
        if self.vectorised_depth or not (_is_tensor(target) and _is_tensor(source) and _is_tensor(jacobian)):
            return jacobian
        self.call = next(_numbers)
        self._mark_targets(target)
        return self._marked_by_tensor(source, jacobian, is_by_example=True)

    def _marked_by_tensor(self, source: Any, gradient: Any, *, is_by_example: bool = False) -> Any:
        """A gradient with respect to a tensor, marked together with the tensor.

        Where the tensor is the same on all workers, the gradient should be that of all examples.
        """
        number = attr_value_pb2.AttrValue()
        number.list.i.append(next(_numbers))
        with record.stop_recording():
            noted = tf.identity(source, name="caramel_source")
        noted.op._set_attr(SOURCE_ATTRIBUTE, number)
        number.list.i.extend((self.call, int(is_by_example)))
        number.list.s.append(user_location().encode())
        return total_marks.carried(gradient, "caramel_result", RESULT_ATTRIBUTE, number)

    def scope(self, name: Any) -> Any:
        """The name of a scope that the program opens; one with a slash is of what is there already.

        Args:
            name: as it has given it.
        """
        if not isinstance(name, str) or "/" in name:
            return name
        self.scopes.add(name)
        return renamed_scope(name, self.renamed)

    def made_with(self, make: Callable[..., Any], op_type: str, keywords: dict[str, Any]) -> Any:
        """Make an op of the program, some inputs of which are to be those of all workers.

        Args:
            make: function that makes an op, as `op_def_library._apply_op_helper` does.
            op_type: type of the op.
            keywords: its inputs and attributes by name.
        """
        if self._is_gathering:
            return make(op_type, **keywords)
        keywords = self._with_own_rows(op_type, keywords)
        place = f"{op_type}/{self.made[op_type]}"
        self.made[op_type] += 1
        wanted = {g.position: g for g in self.gathers if g.op == place}
        if wanted:
            self._is_gathering = True
            try:
                keywords = self._with_gathered(op_type, keywords, wanted)
            finally:
                self._is_gathering = False
        result = make(op_type, **keywords)
        op = result[2]
        op._set_attr(MADE_ATTRIBUTE, attr_value_pb2.AttrValue(s=place.encode()))
        if not self.custom_depth:
            total_marks.mark(op)
        return result

    def _with_own_rows(self, op_type: str, keywords: dict[str, Any]) -> dict[str, Any]:
        """The inputs of an op with the number of a worker's examples in place of that of a whole batch."""
        place = _SHAPE_INPUTS.get(op_type)
        if self.rows is None or place is None:
            return keywords
        batch, own = self.rows
        shape = tf.get_static_value(keywords[place])
        if shape is None or np.ndim(shape) != 1 or len(shape) == 0 or shape[0] != batch:
            return keywords
        source = keywords.get("tensor")
        if source is not None and (
            source.shape.rank in (None, 0) or (source.shape[0] or 0) % own or not source.shape[0]
        ):
            return keywords
        repeated = keywords.get("input")  # of what is made as long as a batch, one row only may be there
        if repeated is not None and not self._is_one_row(repeated, len(shape)):
            return keywords
        return {**keywords, place: np.array([own, *shape[1:]], np.asarray(shape).dtype)}

    def note_single_examples(self, what: str) -> None:
        """Note gradients of which each example or element has one, which one worker can use like any other values.

        Args:
            what: what makes them, for the refusal by several workers.
        """
        self.single_examples.append(
            f"{user_location()}: {what} with respect to a variable is one for each example or element, which cannot be "
            "aggregated over the workers. Differentiate the loss, a mean or sum over the batch, with "
            "GradientTape.gradient or tf.gradients; what is only looked at belongs into an evaluation"
        )

    def with_own_gradient(self, function: Callable[..., Any], *args: Any) -> Any:
        """What a function under `tf.custom_gradient` returns, its gradient function with marked results.

        The function's ops have no gradient functions behind which marks could stand.
        """
        self.custom_depth += 1
        try:
            result, own_gradient = function(*args)
        finally:
            self.custom_depth -= 1
        spec = inspect.getfullargspec(own_gradient)

        def marked(*upstream: Any, **given: Any) -> Any:
            self.own_gradient_depth += 1
            try:
                own = own_gradient(*upstream, **given)
            finally:
                self.own_gradient_depth -= 1
            return tf.nest.map_structure(_of_custom_gradient, own)

        def marked_with_variables(*upstream: Any, variables: Any = None) -> Any:
            return marked(*upstream, **({} if variables is None else {"variables": variables}))

        takes_variables = "variables" in (*spec.args, *spec.kwonlyargs) or spec.varkw is not None
        return result, marked_with_variables if takes_variables else marked

    def within_single_examples(self, call: Callable[[], Any]) -> Any:
        """The results of a loop over elements; marked, if gradients of single examples are made in it."""
        before = len(self.single_examples)
        self.vectorised_depth += 1
        try:
            results = call()
        finally:
            self.vectorised_depth -= 1
        if self.vectorised_depth or len(self.single_examples) == before:
            return results
        return tf.nest.map_structure(lambda each: _of_single_examples(each) if _is_tensor(each) else each, results)

    def _is_one_row(self, tensor: Any, rank: int) -> bool:
        """Whether a tensor has one entry along the first axis of what it is repeated to, or has no such axis."""
        shape = tf.convert_to_tensor(tensor).shape
        return shape.rank is not None and (shape.rank < rank or shape[0] == 1)

    def _with_gathered(self, op_type: str, keywords: dict[str, Any], wanted: Mapping[int, Gather]) -> dict[str, Any]:
        changed = dict(keywords)
        position = 0
        for argument in op_def_registry.get(op_type).input_arg:
            value = changed[argument.name]
            is_list = bool(argument.number_attr or argument.type_list_attr)  # else a list makes one tensor
            values = list(value) if is_list else [value]
            for number in range(len(values)):
                if position + number in wanted:
                    values[number] = self._whole(values[number], wanted[position + number])
            position += len(values)
            changed[argument.name] = values if is_list else values[0]
        return changed

    def _whole(self, tensor: Any, gather: Gather) -> Any:
        key = id(tensor), gather.axis
        if key not in self._gathered:
            given = tf.convert_to_tensor(tensor)
            if gather.axis is None:
                whole = total_marks.sized(given)
            else:
                whole = total_marks.gathered(given, gather.axis, gather.batches)
            self._gathered[key] = tensor, whole  # the tensor, too: its number is free again once it is gone
        return self._gathered[key][1]

    def _mark_target(self, tensor: Any) -> None:
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
    total_marks.number(carried.op)

    def backward(*upstream: Any) -> list[Any]:
        _note_passed(number.i)
        return [total_marks.entered(each, carried.op) for each in upstream]

    record.record_operation(_GRADIENT_OP_TYPE, [carried], [tensor], backward)  # for tapes
    return carried


@tf.RegisterGradient(_GRADIENT_OP_TYPE)  # type: ignore[untyped-decorator]  # for tf.gradients, and inside functions
def _differentiated(op: Any, upstream: Any) -> Any:
    _note_passed(op.get_attr(GRADIENT_ATTRIBUTE))
    return total_marks.entered(upstream, op)


def _note_passed(number: int) -> None:
    if number in _gradients_by_number:
        _gradients_by_number[number].differentiated_again = True


def _of_single_examples(tensor: Any) -> Any:
    return _marked_identity(tensor, "caramel_single_examples", SINGLE_ATTRIBUTE)


def _of_custom_gradient(gradient: Any) -> Any:
    return _marked_identity(gradient, "caramel_custom", CUSTOM_ATTRIBUTE) if _is_tensor(gradient) else gradient


def _marked_identity(tensor: Any, name: str, attribute: str) -> Any:
    marked = tf.identity(tensor, name=name)
    marked.op._set_attr(attribute, attr_value_pb2.AttrValue(b=True))
    return marked


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
def recording(
    gathers: Collection[Gather] = (), rows: tuple[int, int] | None = None, renamed: Mapping[str, str] | None = None
) -> Iterator[Recorder]:
    """Watch the program that this thread builds, for as long as the context lasts.

    Args:
        gathers: inputs of ops of the program that are to have the examples of all workers.
        rows: see `Recorder`.
        renamed: names that stand for others that the program gives to scopes.

    Raises:
        CaptureError: another capture of this thread is under way, or the program runs a Session meanwhile.
    """
    if getattr(_active, "recorder", None) is not None:
        raise CaptureError("a capture is already under way in this thread: finish it first; captures do not nest")
    recorder = Recorder(gathers=gathers, rows=rows, renamed=renamed or {})
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
    original_helper_of_ops = op_def_library._apply_op_helper
    original_record = execute.record_gradient
    context = next(c for c in tf.distribute.ReplicaContext.__mro__ if "all_reduce" in vars(c))
    original_all_reduce = context.all_reduce
    gathering = next(c for c in tf.distribute.ReplicaContext.__mro__ if "all_gather" in vars(c))
    original_all_gather = gathering.all_gather
    original_scope = tf.Graph.name_scope
    original_custom, original_context = custom_gradient._graph_mode_decorator, function_context.make_function_context
    original_batched, original_small = array_ops.batch_gather_nd, array_ops._constant_if_small

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
        return recorder.within_single_examples(lambda: original_parallel(*args, **kwargs))

    def all_reduce(recorder: Recorder, replica: Any, reduce_op: Any, value: Any, options: Any = None) -> Any:
        flat = tf.nest.flatten(value, expand_composites=False)
        if _in_optimizer() or not all(_is_tensor(tf.convert_to_tensor(each)) for each in flat):
            return original_all_reduce(replica, reduce_op, value, options)  # of gradients, which are summed anyway
        kind = str(getattr(reduce_op, "value", reduce_op)).lower()
        summed = [total_marks.over_replicas(tf.convert_to_tensor(each), kind) for each in flat]
        return tf.nest.pack_sequence_as(value, summed)

    def all_gather(recorder: Recorder, replica: Any, value: Any, axis: Any, options: Any = None) -> Any:
        place = tf.get_static_value(axis) if tf.is_tensor(axis) else axis
        flat = [tf.convert_to_tensor(each) for each in tf.nest.flatten(value, expand_composites=False)]
        if place is None or not all(_is_symbolic(each) and each.shape.rank for each in flat):
            return original_all_gather(replica, value, axis, options)
        return tf.nest.pack_sequence_as(value, [total_marks.gathered(t, int(place) % t.shape.rank, 1) for t in flat])

    def made(recorder: Recorder, op_type: str, name: Any = None, **keywords: Any) -> Any:
        return recorder.made_with(original_helper_of_ops, op_type, {"name": name, **keywords})

    def recorded(_: Recorder, op_type: str, inputs: Any, attributes: Any, outputs: Any) -> Any:
        if not total_marks.record_gradient(op_type, inputs, outputs):
            original_record(op_type, inputs, attributes, outputs)

    def batched(recorder: Recorder, params: Any, indices: Any, batch_dims: int, *args: Any, **kwargs: Any) -> Any:
        places = tf.convert_to_tensor(indices)
        if places.shape.rank is None or places.shape[-1] != 1:
            return original_batched(params, indices, batch_dims, *args, **kwargs)
        return tf.gather(params, tf.squeeze(places, -1), axis=batch_dims, batch_dims=batch_dims)  # one op, not thirty

    def small_constant(recorder: Recorder, value: Any, shape: Any, *args: Any, **kwargs: Any) -> Any:
        is_batch = recorder.rows is not None and np.ndim(shape) == 1 and len(shape) and shape[0] == recorder.rows[0]
        return None if is_batch else original_small(value, shape, *args, **kwargs)  # None: then it is a Fill

    def custom(recorder: Recorder, function: Any, args: Any, kwargs: Any) -> Any:
        watched = functools.wraps(function)(functools.partial(recorder.with_own_gradient, function))
        return original_custom(watched, args, kwargs)

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

    pairs: list[tuple[Any, str, Callable[..., Any]]] = [
        (gradients_util, "_GradientsHelper", helper),
        (tf.GradientTape, "gradient", gradient),
        *((tf.GradientTape, name, _jacobian(name)) for name in ("jacobian", "batch_jacobian")),
        (parallel_for, "_pfor_impl", parallel),
        (context, "all_reduce", all_reduce),
        (gathering, "all_gather", all_gather),
        (op_def_library, "_apply_op_helper", made),
        (execute, "record_gradient", recorded),
        (custom_gradient, "_graph_mode_decorator", custom),
        (function_context, "make_function_context", of_this_capture),
        (tf.Graph, "name_scope", scope),
        (array_ops, "batch_gather_nd", batched),
        (array_ops, "_constant_if_small", small_constant),
        *((session_module.BaseSession, name, run) for name in _SESSION_RUNS),
    ]
    return [(owner, name, _watched(getattr(owner, name), replacement)) for owner, name, replacement in pairs]


def _jacobian(name: str) -> Callable[..., Any]:
    """A method of the tape, whose gradients with respect to variables are noted."""
    original = getattr(tf.GradientTape, name)

    def jacobian(recorder: Recorder, tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        if not any(_is_variable(source) for source in tf.nest.flatten(sources)):
            results = original(tape, target, sources, *args, **kwargs)
            return recorder.mark_by_example(target, sources, results) if name == "batch_jacobian" else results

        def call() -> Any:
            recorder.note_single_examples(f"GradientTape.{name}")
            return original(tape, target, sources, *args, **kwargs)

        return recorder.within_single_examples(call)

    return jacobian
