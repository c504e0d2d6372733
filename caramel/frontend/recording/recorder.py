"""The record of a program while it builds its graph: its differentiations, and ops that are to have more examples.

While a `Recorder` is active (see `caramel.frontend.recording.watching`), every call of
`tf.gradients` and `GradientTape.gradient` that asks for the gradient of a variable gets its results
through one Identity each. Everything after the differentiation reads that Identity, and nothing
inside it does: it is the one place where the gradient of this device can be replaced by the mean
over all workers.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.eager import record
from tensorflow.python.framework import op_def_registry

from caramel.frontend.attributes import (
    CUSTOM_ATTRIBUTE,
    GRADIENT_ATTRIBUTE,
    INDICES_ATTRIBUTE,
    MADE_ATTRIBUTE,
    OWN_RESULTS_ATTRIBUTE,
    RESULT_ATTRIBUTE,
    SEED_ATTRIBUTE,
    SINGLE_ATTRIBUTE,
    SOURCE_ATTRIBUTE,
    TARGETS_ATTRIBUTE,
    UPSTREAM_ATTRIBUTE,
)
from caramel.frontend.captured import Gather
from caramel.frontend.recording import total_marks
from caramel.frontend.recording.automatic_names import renamed_scope
from caramel.frontend.recording.own_ops import makes_op
from caramel.frontend.recording.user_code import user_location
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

_numbers = count()
"""Numbers of calls and gradients. No two captures share a number: a tf.function that a second capture meets again keeps
the numbers of its first trace."""

_gradients_by_number: WeakValueDictionary[int, MarkedGradient] = WeakValueDictionary()
"""Gradients of variables by their number, for as long as the graphs that contain them live."""


_SEEDED = (tf.float32, tf.float64)
"""Types of losses whose gradients begin with ones that workers may scale."""


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
        own_functions: number of calls of such functions so far.
        own_gradient_depth: number of these gradient functions that run at this moment: what they differentiate is part
            of the differentiation that calls them.
        trace: number of the capture, for which functions are traced anew.
        gathers: inputs of ops that are to have the examples of all workers.
        rows: number of examples of a whole batch, where the program may have it as a number, which is to stand for that
            of a worker's part, or None; and that of a part. None where the program is traced for any number.
        asks_for_sizes: whether the program has asked in Python for sizes that are not known.
        open_size: what such a size is said to be; None for nothing.
        numbers: numbers of Python that are results of the step, as they are noted.
        out_of_reach: where the program asks for values of all replicas in a place where they cannot be had.
        own_ops: the ops that the program's own code makes, gradients apart, as they are made; None where nobody asks.
        is_differentiating: whether a gradient is made at this moment.
        has_halves: whether an op of the program gives float16.
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
    own_functions: int = 0
    own_gradient_depth: int = 0
    trace: int = field(default_factory=lambda: next(_numbers))
    gathers: Collection[Gather] = ()
    rows: tuple[int | None, int] | None = None
    asks_for_sizes: bool = False
    open_size: int | None = None
    own_ops: list[Any] | None = None
    numbers: list[Any] = field(default_factory=list)
    out_of_reach: list[str] = field(default_factory=list)
    has_halves: bool = False
    made: Counter[str] = field(default_factory=Counter)
    scopes: set[str] = field(default_factory=set)
    renamed: Mapping[str, str] = field(default_factory=dict)
    _gathered: dict[tuple[int, int | None, Any], tuple[Any, Any]] = field(default_factory=dict)
    is_differentiating: bool = False
    _is_gathering: bool = False

    @property
    def differentiated_again(self) -> frozenset[int]:
        """Numbers of the gradients through which another differentiation goes."""
        return frozenset(number for number, each in self.gradients.items() if each.differentiated_again)

    @property
    def gradients(self) -> Mapping[int, MarkedGradient]:
        """The recorded gradients by their number."""
        return _gradients_by_number

    def seeds(self, target: Any) -> Any:
        """The ones with which the differentiation of a tensor, or of a nest of tensors, begins, to be marked.

        Args:
            target: what is differentiated.

        Returns:
            None where TensorFlow is to make them itself: they matter for numbers that float16 does not hold.
        """
        tensors = tf.nest.flatten(target)
        is_plain = all(is_tensor(each) and is_symbolic(each) and each.dtype in _SEEDED for each in tensors)
        if not self.has_halves or not is_plain or self.own_gradient_depth or self.vectorised_depth:
            return None
        with record.stop_recording():
            made = [tf.identity(tf.ones_like(each), name="caramel_seed") for each in tensors]
        return tf.nest.pack_sequence_as(target, made)

    def mark(
        self, target: Any, sources: list[Any], gradients: list[Any], weights: Any = None, seeds: Any = None
    ) -> list[Any]:
        """Pass gradients through marked Identities; the gradients of variables can be aggregated there.

        Args:
            target: tensor, or nest of tensors, that is differentiated.
            sources: tensors and variables with respect to which it is differentiated.
            gradients: gradient for each source.
            weights: initial gradients that the caller gave for the target (``grad_ys``, ``output_gradients``).
            seeds: initial gradients in place of those that TensorFlow would make; see `seeds`.

        Returns:
            The gradients, marked.
        """
        if self.own_gradient_depth:
            return gradients
        by_tensor = [
            is_tensor(s) and not is_variable(s) and not self.vectorised_depth and is_tensor(r)
            for s, r in zip(sources, gradients)
        ]
        if any(by_tensor):
            self.call = next(_numbers)
            gradients = [
                self._marked_by_tensor(s, r) if is_one else r for s, r, is_one in zip(sources, gradients, by_tensor)
            ]
            if weights is None:
                self._mark_targets(target)
        wanted = [is_variable(s) and is_symbolic(r) for s, r in zip(sources, gradients)]
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
            if is_symbolic(tensor):
                self.graphs.append(tensor.graph)
                self._mark_target(tensor if weight is None else _weighted(tensor, weight))
        for seed in [] if seeds is None else tf.nest.flatten(seeds):
            seed.op._set_attr(SEED_ATTRIBUTE, attr_value_pb2.AttrValue(i=self.call))
        return marked

    def _mark_targets(self, target: Any) -> None:
        for tensor in tf.nest.flatten(target):
            if is_tensor(tensor):
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
        if self.vectorised_depth or not (is_tensor(target) and is_tensor(source) and is_tensor(jacobian)):
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

    def cannot_exchange(self) -> bool:
        """Whether values of all replicas cannot be had here, for which the program asks; it is noted where."""
        what = "tf.vectorized_map" if self.vectorised_depth else "a function with a gradient of its own"
        is_out_of_reach = bool(self.vectorised_depth or self.custom_depth)
        if is_out_of_reach:
            self.out_of_reach.append(f"{user_location()} (in {what})")
        return is_out_of_reach

    def scope(self, name: Any) -> Any:
        """The name of a scope that the program opens; one with a slash is of what is there already.

        Args:
            name: as it has given it.
        """
        if not isinstance(name, str) or "/" in name:
            return name
        self.scopes.add(name)
        return renamed_scope(name, self.renamed)

    @contextmanager
    def differentiation(self) -> Iterator[None]:
        """While gradients are made, which are no ops of the program's own code."""
        before, self.is_differentiating = self.is_differentiating, True
        try:
            yield
        finally:
            self.is_differentiating = before

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
        self.has_halves = self.has_halves or any(output.dtype == tf.float16 for output in op.outputs)
        if self.own_ops is not None and not self.is_differentiating and makes_op():
            self.own_ops.append(op)
        if not self.custom_depth:  # else the function's own gradient knows nothing of what becomes of the op
            op._set_attr(MADE_ATTRIBUTE, attr_value_pb2.AttrValue(s=place.encode()))
            total_marks.mark(op)
        return result

    def _with_own_rows(self, op_type: str, keywords: dict[str, Any]) -> dict[str, Any]:
        """The inputs of an op with the number of a worker's examples in place of that of a whole batch."""
        place = _SHAPE_INPUTS.get(op_type)
        if self.rows is None or place is None:
            return keywords
        batch, own = self.rows
        if batch == own and (self.is_differentiating or not makes_op()):
            return keywords  # traced for the whole batch, whose size stands in shapes that a part has otherwise
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
        self.own_functions += 1
        number = self.own_functions
        for place, each in enumerate(tf.nest.flatten(result)):
            if is_tensor(each):
                _extend(each.op, OWN_RESULTS_ATTRIBUTE, number, place, each.value_index)

        def marked(*upstream: Any, **given: Any) -> Any:
            entering = [
                _marked(each, "caramel_upstream", UPSTREAM_ATTRIBUTE, number, n) for n, each in enumerate(upstream)
            ]
            self.own_gradient_depth += 1
            try:
                own = own_gradient(*entering, **given)
            finally:
                self.own_gradient_depth -= 1
            return tf.nest.map_structure(lambda each: _marked(each, "caramel_custom", CUSTOM_ATTRIBUTE, number), own)

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
        return tf.nest.map_structure(lambda each: _of_single_examples(each) if is_tensor(each) else each, results)

    def _is_one_row(self, tensor: Any, rank: int) -> bool:
        """Whether a tensor has one entry along the first axis of what it is repeated to, or has no such axis."""
        shape = tf.convert_to_tensor(tensor).shape
        return shape.rank is not None and (shape.rank < rank or shape[0] == 1)

    def _with_gathered(self, op_type: str, keywords: dict[str, Any], wanted: Mapping[int, Gather]) -> dict[str, Any]:
        changed = dict(keywords)
        position = 0
        arguments = op_def_registry.get(op_type).input_arg
        for argument in arguments:
            value = changed[argument.name]
            dtype = _dtype_of(argument, arguments, keywords)
            is_list = bool(argument.number_attr or argument.type_list_attr)  # else a list makes one tensor
            values = list(value) if is_list else [value]
            for number in range(len(values)):
                if position + number in wanted:
                    values[number] = self._whole(values[number], wanted[position + number], dtype)
            position += len(values)
            changed[argument.name] = values if is_list else values[0]
        return changed

    def _whole(self, tensor: Any, gather: Gather, dtype: Any) -> Any:
        key = id(tensor), gather.axis, None if tf.is_tensor(tensor) else dtype
        if key not in self._gathered:
            given = tf.convert_to_tensor(tensor, key[-1])
            if gather.axis is None:
                whole = total_marks.sized(given, 0 if self.rows is None else self.rows[1])
            else:
                whole = total_marks.gathered(given, gather.axis, gather.batches)
            self._gathered[key] = tensor, whole  # the tensor, too: its number is free again once it is gone
        return self._gathered[key][1]

    def _mark_target(self, tensor: Any) -> None:
        _extend(tensor.op, TARGETS_ATTRIBUTE, self.call, tensor.value_index)


def _dtype_of(argument: Any, arguments: Iterable[Any], keywords: Mapping[str, Any]) -> Any:
    """The dtype that an input has which is no tensor yet; None where nothing says it.

    Args:
        argument: the input in the op's definition.
        arguments: all inputs in the op's definition.
        keywords: inputs and attributes by name.
    """
    if argument.type:
        return argument.type
    alike = [keywords[a.name] for a in arguments if a.type_attr and a.type_attr == argument.type_attr]
    known = (getattr(value, "dtype", None) for value in (keywords.get(argument.type_attr), *alike))
    return next((tf.as_dtype(dtype) for dtype in known if dtype is not None), keywords.get(argument.type_attr))


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


def _marked_identity(tensor: Any, name: str, attribute: str) -> Any:
    marked = tf.identity(tensor, name=name)
    marked.op._set_attr(attribute, attr_value_pb2.AttrValue(b=True))
    return marked


def _marked(tensor: Any, name: str, attribute: str, *numbers: int) -> Any:
    """An Identity of a tensor with a list of numbers; what is no tensor stays as it is."""
    if not is_tensor(tensor):
        return tensor
    marked = tf.identity(tensor, name=name)
    _extend(marked.op, attribute, *numbers)
    return marked


def _extend(op: Any, attribute: str, *numbers: int) -> None:
    """Add numbers to an attribute that is a list of them."""
    marks = attr_value_pb2.AttrValue()
    if attribute in op.node_def.attr:
        marks.CopyFrom(op.node_def.attr[attribute])
    marks.list.i.extend(numbers)
    op._set_attr(attribute, marks)


def is_tensor(value: Any) -> bool:
    """Whether this is a tensor of a graph, dense and of numbers."""
    return isinstance(value, tf.Tensor) and is_symbolic(value) and value.dtype not in (tf.resource, tf.variant)


def is_symbolic(tensor: Any) -> bool:
    """Whether this is a tensor of a graph (not None, not an eager value)."""
    if isinstance(tensor, tf.IndexedSlices):
        tensor = tensor.values
    return tf.is_tensor(tensor) and not isinstance(tensor, tf.__internal__.EagerTensor)


def is_variable(source: Any) -> bool:
    handle = getattr(source, "handle", None)
    if handle is not None and getattr(handle, "dtype", None) == tf.resource:
        return True
    # A reference variable, or the reference itself, which is what optimizers differentiate by.
    return getattr(getattr(source, "op", None), "type", None) in ops.REFERENCE_VARIABLES
