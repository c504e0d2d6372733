"""The specs with which a step is traced: for any number of examples, or for those of a worker's part."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from caramel.data.components import (
    EXAMPLES_ATTRIBUTE,
    are_arguments,
    arguments_of,
    check_arguments,
    components_of,
    examples_in_batches,
    is_dataset,
)
from caramel.data.dataset import TrainingData
from caramel.errors import CaptureError

__all__ = ["StepInputs", "inputs_of", "refusal_of_parts"]


@dataclass(frozen=True)
class StepInputs:
    """The inputs of a step, and how many examples a batch of it has.

    Attributes:
        specs: spec of each argument, or nests of them, with the number of examples left open where it may be; None
            where nothing says what the step takes.
        is_divided: for each spec, flattened, whether its first axis is that of the examples.
        examples: number of examples in every batch, of all workers together; None where it is not fixed.
        by_name: whether the components of a dataset are bound to the arguments by their names.
    """

    specs: Sequence[Any] | None
    is_divided: tuple[bool, ...] = ()
    examples: int | None = None
    by_name: bool = False

    def with_rows(self, rows: int | None) -> list[Any]:
        """The specs for so many examples; None leaves their number open."""
        return _with_rows(self.specs or (), self.is_divided, rows)


def inputs_of(
    function: Callable[..., Any],
    specs: Any,
    given: TrainingData | None,
    data: Any,
    replicated: Sequence[str],
) -> StepInputs:
    """The inputs of a training step.

    A number of examples that all specs of examples have is that of the batch of one device. A worker has a part of
    these, so that the step is traced with this number left open, or with that of a part.

    Args:
        function: a tf.function or a plain Python function.
        specs: the user's own specs of its arguments; None to use its input_signature, or those of the dataset.
        given: the dataset that the workers read; None where inputs are fed.
        data: the dataset as the user gave it.
        replicated: names of the arguments that every worker gets whole.

    Raises:
        InputError: the dataset's elements do not fit the specs.
        UnsupportedError: a component of the dataset is no dense tensor.
    """
    in_data = None
    if is_dataset(data):
        in_data = examples_in_batches(data.element_spec) or getattr(data, EXAMPLES_ATTRIBUTE, None)
    specs = specs if specs is not None else getattr(function, "input_signature", None)
    if specs is None:
        if given is None:
            return StepInputs(None)
        components_of(given.element_spec)  # refuses what is no dense tensor
        arguments = arguments_of(given.element_spec)
        is_divided = tuple(_has_axis(s) for s in tf.nest.flatten(arguments))
        return StepInputs(arguments, is_divided, in_data)
    own = [specs] if isinstance(specs, (tf.TensorSpec, Mapping)) else list(specs)
    by_name = given is not None and not are_arguments(own, given.element_spec)
    is_divided = _divided(function, own, replicated)
    sizes = {spec.shape[0] for spec, divided in zip(tf.nest.flatten(own), is_divided) if divided}
    (size,) = sizes if len(sizes) == 1 else (None,)
    opened = own if size is None else _with_rows(own, is_divided, None)
    if given is not None and not by_name:
        check_arguments(opened, given.element_spec)
    examples = in_data if sizes == {None} else size
    return StepInputs(opened, is_divided, examples, by_name)


def _has_axis(spec: Any) -> bool:
    return isinstance(spec, tf.TensorSpec) and bool(spec.shape.rank)


def _divided(function: Callable[..., Any], specs: Sequence[Any], replicated: Sequence[str]) -> tuple[bool, ...]:
    """For each spec, flattened, whether the first axis is that of the examples."""
    function = getattr(function, "python_function", function)
    try:
        names = [p.name for p in inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        names = []
    divided = []
    for position, argument in enumerate(specs):
        name = names[position] if position < len(names) else None
        for spec in tf.nest.flatten(argument):
            is_whole = getattr(spec, "name", None) in replicated or name in replicated
            divided.append(_has_axis(spec) and not is_whole)
    return tuple(divided)


def _with_rows(specs: Sequence[Any], is_divided: Sequence[bool], rows: int | None) -> list[Any]:
    changed = [
        tf.TensorSpec([rows, *spec.shape.as_list()[1:]], spec.dtype, spec.name) if divided else spec
        for spec, divided in zip(tf.nest.flatten(specs), is_divided, strict=True)
    ]
    return tf.nest.pack_sequence_as(specs, changed)  # type: ignore[no-any-return]


def refusal_of_parts(refusal: CaptureError, examples: int | None, parts: int) -> CaptureError:
    """A refusal of a step that cannot be traced for any number of examples, and why it is not for that of a part.

    Args:
        refusal: of the step.
        examples: number of examples in a batch; None if that is not fixed.
        parts: number of parts of a batch.

    Returns:
        The refusal itself where a part has a number of examples.
    """
    if examples is None or not refusal.may_pass_later or examples % parts == 0:
        return refusal
    refused = CaptureError(
        f"the {examples} examples of a batch do not divide between {parts} workers, and with any number of them "
        f"{refusal}"
    )
    refused.may_pass_later = True
    return refused
