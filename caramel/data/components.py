"""The tensors of a dataset's elements, and which of the program's inputs takes which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf
from tensorflow.python.util import nest

from caramel.errors import InputError, UnsupportedError, listed
from caramel.model import Input


@dataclass(frozen=True)
class Component:
    """One tensor of a dataset's elements.

    Attributes:
        path: path in the element, such as ``0`` or ``images``; empty if the tensor is the element.
        dtype: TensorFlow's name of the element type.
        shape: static shape, with None for unknown sizes; None if the rank is unknown.
    """

    path: str
    dtype: str
    shape: tuple[int | None, ...] | None

    @property
    def description(self) -> str:
        """Name, dtype and shape, for messages."""
        name = f"component {self.path!r}" if self.path else "the element"
        return f"{name} ({self.dtype}{'' if self.shape is None else list(self.shape)})"


def is_dataset(value: Any) -> bool:
    """Whether a value is a tf.data.Dataset."""
    return isinstance(value, tf.data.Dataset)


def components_of(element_spec: Any) -> tuple[Component, ...]:
    """The tensors of a dataset's elements, flattened as TensorFlow does.

    Raises:
        UnsupportedError: a component is no dense tensor.
        InputError: there is no component.
    """
    components = []
    for path, spec in nest.flatten_with_joined_string_paths(element_spec):
        if not isinstance(spec, tf.TensorSpec):
            kind = type(spec).__name__.removesuffix("Spec")
            raise UnsupportedError(
                f"component {path or 'of the element'!r} of the dataset's elements is a {kind}: only dense tensors can "
                "be split over the workers. Convert it in the pipeline, as in dataset.map(lambda x: x.to_tensor())"
            )
        components.append(Component(path, spec.dtype.name, _dimensions(spec.shape)))
    if not components:
        raise InputError("the dataset's elements have no tensor")
    return tuple(components)


def _dimensions(shape: tf.TensorShape) -> tuple[int | None, ...] | None:
    return None if shape.rank is None else tuple(shape.as_list())


def arguments_of(element_spec: Any) -> list[Any]:
    """The specs of a step's arguments for a dataset's elements: a tuple is the list of arguments.

    The number of examples is left open, because a worker gets a part of them.
    """
    arguments = list(element_spec) if is_tuple_of_parts(element_spec) else [element_spec]
    return tf.nest.map_structure(_open_batch, arguments)  # type: ignore[no-any-return]


EXAMPLES_ATTRIBUTE = "_caramel_examples"
"""Attribute of a dataset with the number of examples in every element, where its shapes do not say it."""


def examples_in_batches(element_spec: Any) -> int | None:
    """The number of examples in every element of a dataset; None if it varies, or nothing says so."""
    sizes = {
        spec.shape[0] for spec in tf.nest.flatten(element_spec) if getattr(spec, "shape", None) and spec.shape.rank
    }
    (size,) = sizes if len(sizes) == 1 else (None,)
    return size


def arguments_of_rows(element_spec: Any, rows: int) -> list[Any]:
    """The specs of a step's arguments as in `arguments_of`, for a worker that takes so many examples."""

    def with_rows(spec: Any) -> Any:
        if not isinstance(spec, tf.TensorSpec) or not spec.shape.rank:
            return spec
        return tf.TensorSpec([rows, *spec.shape.as_list()[1:]], spec.dtype, spec.name)

    return tf.nest.map_structure(with_rows, arguments_of(element_spec))  # type: ignore[no-any-return]


def is_tuple_of_parts(element_spec: Any) -> bool:
    """Whether a dataset's elements are tuples, each part of which is an argument of a step."""
    return isinstance(element_spec, tuple) and not hasattr(element_spec, "_fields")


def _open_batch(spec: Any) -> Any:
    if not isinstance(spec, tf.TensorSpec) or not spec.shape.rank:
        return spec
    return tf.TensorSpec([None, *spec.shape.as_list()[1:]], spec.dtype, spec.name)


def are_arguments(specs: Sequence[Any], element_spec: Any) -> bool:
    """Whether a dataset's elements have the structure of a step's arguments; if not, a dict may name them."""
    if not isinstance(element_spec, Mapping):
        return True
    try:
        tf.nest.assert_same_structure(list(specs), [element_spec])
    except (TypeError, ValueError):
        return False
    return True


def check_arguments(specs: Sequence[Any], element_spec: Any) -> None:
    """Check that the input specs that a user gave take the dataset's elements.

    Raises:
        InputError: naming what does not fit.
    """
    arguments = list(element_spec) if is_tuple_of_parts(element_spec) else [element_spec]
    try:
        tf.nest.assert_same_structure(list(specs), arguments)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the dataset's elements have the structure {_structure(arguments)}, inputs= has "
            f"{_structure(list(specs))}: give them the same structure, or leave out inputs="
        ) from error
    for component, spec in zip(components_of(element_spec), tf.nest.flatten(list(specs))):
        _check_fits(component, spec.name or component.path, spec.dtype.name, _dimensions(spec.shape))


def _structure(value: Any) -> Any:
    return tf.nest.map_structure(lambda spec: getattr(getattr(spec, "dtype", None), "name", "?"), value)


def bind_by_position(inputs: Sequence[Input], components: Sequence[Component]) -> tuple[Input, ...]:
    """A step's inputs, in flattened order, each bound to the component at its position."""
    return tuple(replace(input_, component=number) for number, input_ in enumerate(inputs[: len(components)]))


def bind_by_name_or_order(inputs: Sequence[Input], unused: Sequence[str], element_spec: Any) -> tuple[Input, ...]:
    """The placeholders of a graph, bound to components by the names of a dict or the order of a tuple.

    Args:
        inputs: placeholders that a step needs.
        unused: names of other placeholders, which a dict may have, too.
        element_spec: structure of the dataset's elements, as `tf.data.Dataset.element_spec`.

    Raises:
        InputError: a placeholder has no component, or a component no placeholder.
    """
    components = components_of(element_spec)
    if isinstance(element_spec, Mapping):
        names = {c.path: number for number, c in enumerate(components)}
        strange = [name for name in names if name not in {i.name for i in inputs} and name not in unused]
        if strange:
            raise InputError(
                f"the dataset's elements have {strange[0]!r}, which is no input of the program; "
                f"its inputs are {listed((i.name for i in inputs), 8)}"
            )
    else:
        chosen = [i.name for i in inputs if not i.optional]
        if len(components) != len(chosen):
            chosen = [i.name for i in inputs]
        if len(components) != len(chosen):
            raise InputError(
                f"the dataset's elements have {len(components)} tensors for the inputs {listed(chosen, 8)}: "
                "give as many, or a dict by the inputs' names"
            )
        names = {name: number for number, name in enumerate(chosen)}
    bound = tuple(replace(i, component=names.get(i.name)) for i in inputs)
    check_inputs(bound, components)
    return bound


def check_inputs(inputs: Sequence[Input], components: Sequence[Component]) -> None:
    """Check that inputs from a dataset take its components.

    Raises:
        InputError: naming what does not fit.
    """
    for input_ in inputs:
        if input_.component is None:
            if input_.split and not input_.optional:
                raise InputError(
                    f"input {input_.name!r} is split over the workers but not in the dataset's elements: put it there, "
                    "or list it in replicated= if every worker gets the same array"
                )
            continue
        component = components[input_.component]
        _check_fits(component, input_.name, input_.dtype, input_.shape, first=0 if not input_.split else 1)


def _check_fits(
    component: Component, name: str, dtype: str, shape: tuple[int | None, ...] | None, first: int = 1
) -> None:
    """Check dtype and dimensions from ``first`` on; the number of examples is compared when the sharding is known."""
    if component.dtype != dtype:
        raise InputError(
            f"input {name!r} takes {dtype}, but the dataset gives {component.description}: cast it in a map"
        )
    component_shape, input_shape = component.shape, shape
    if component_shape is None or input_shape is None:
        return
    pairs = zip(component_shape[first:], input_shape[first:])
    if len(component_shape) != len(input_shape) or any(None not in (a, b) and a != b for a, b in pairs):
        raise InputError(
            f"input {name!r} takes shape {list(input_shape)}, but the dataset gives {component.description}"
        )
