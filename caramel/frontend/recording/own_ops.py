"""The ops that a program's own code makes, to tell whether it does the same where it does not know a size.

One device traces a step for batches of a fixed number of examples. With that number left open, Python gets None for it,
of which most programs make what they make of the number itself, but not all: ``table[:None]`` is the whole table, and
``if x.shape[0]`` takes the other branch. So a step that asks is traced once more, still open, and its own code is told
the number. What TensorFlow and Keras make of shapes inside is not compared: they know what to do with an open one.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

import tensorflow as tf

from caramel.errors import CaptureError
from caramel.frontend.recording.user_code import is_library
from caramel.graph.nodes import settings_of

_SHAPE_OPS = frozenset({"Shape", "ShapeN", "Size", "Rank"})

_OPS_FOR_ALL = (("tensorflow", ""), ("keras", "src/ops"), ("keras", "src/backend"), ("keras", "src/utils"))
"""Folders of the functions that make ops for whoever calls them, by package."""

_CALLS_FOR_ALL = (("tensorflow", "python/autograph"),)
"""Folders of what calls functions in place of the program's own code, where AutoGraph has converted that."""


def check_is_the_same(opened: Sequence[Any], told: Sequence[Any], examples: int, same_results: bool) -> None:
    """Check that a step does the same whether its own code knows the number of examples or not.

    Args:
        opened: the ops of its own code, with the number left open.
        told: the same, where the code was told the number of examples in the batches of one device.
        examples: that number.
        same_results: whether both gave the same results, as far as these are no tensors of such ops.

    Raises:
        CaptureError: it does not.
    """
    if same_results and _Twins().are_alike(opened, told):
        return
    refusal = CaptureError(
        f"the step asks in Python for the number of examples and makes other ops where it is not known than for "
        f"{examples}: use tf.shape(x)[0]"
    )
    refusal.may_pass_later = True
    raise refusal


def check_has_the_same(part: Sequence[Any], whole: Sequence[Any]) -> None:
    """Check that a step makes the same of a worker's part of the batch as of all of it, constants apart.

    Args:
        part: the ops of its own code, traced for a part.
        whole: the same, traced for the whole batch.

    Raises:
        CaptureError: it does not.
    """
    if not _Twins(has_constants=False).are_alike(part, whole):
        raise CaptureError(
            "the step makes other ops, or takes other tensors, for one number of examples than for another: the parts "
            "of several workers have other numbers than the batch of one device"
        )


def makes_op() -> bool:
    """Whether the program's own code makes the op that is made now, by functions of TensorFlow or of `keras.ops`."""
    return _is_own(_OPS_FOR_ALL)


def reads_shape() -> bool:
    """Whether the program's own code calls the method of a static shape that is called now."""
    return _is_own(_CALLS_FOR_ALL)


def _is_own(passed_over: tuple[tuple[str, str], ...]) -> bool:
    """Whether a frame of the program is the innermost one, but for those of some folders."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and (place := _place_of_frame(frame, passed_over)) is None:
        frame = frame.f_back
    return frame is not None and bool(place)


def _place_of_frame(frame: FrameType, passed_over: tuple[tuple[str, str], ...]) -> bool | None:
    filename = frame.f_code.co_filename
    if filename.startswith("<"):  # typed in, or executed from a text
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        return None if filename.startswith("<frozen") else package not in ("tensorflow", "keras", "caramel")
    return _place_of(filename, passed_over)


@functools.cache
def _place_of(filename: str, passed_over: tuple[tuple[str, str], ...]) -> bool | None:
    """Whether a file is the program's own; None for one that is passed over."""
    folders = [os.path.dirname(os.path.abspath(__file__))]
    for package, folder in passed_over:
        if package in sys.modules:
            folders.append(os.path.join(os.path.dirname(str(sys.modules[package].__file__)), *folder.split("/")))
    path = os.path.abspath(filename)
    is_passed_over = any(path.startswith(os.path.join(folder, "")) for folder in folders)
    return None if is_passed_over else not is_library(filename)


class _Twins:
    """The ops of two traces of one step, and which of them stand for each other.

    Args:
        has_constants: whether constants must be the same, where they are constants in both.
    """

    def __init__(self, has_constants: bool = True) -> None:
        self._has_constants = has_constants
        self._is_size: dict[tuple[int, bool], bool] = {}
        self._twin_of: dict[int, Any] = {}
        self._captures: dict[int, dict[int, Any]] = {}

    def are_alike(self, opened: Sequence[Any], told: Sequence[Any]) -> bool:
        """Whether both make the same ops of the same tensors, sizes apart."""
        kept = [[op for op in made if not self.is_size(op)] for made in (opened, told)]
        return len(kept[0]) == len(kept[1]) and all(map(self._are_twins, *kept))

    def is_size(self, op: Any, of_shapes: bool = True) -> bool:
        """Whether an op is made of constants only, or of shapes as well."""
        key = id(op), of_shapes
        if key not in self._is_size:
            self._is_size[key] = False  # while it is looked for: loops
            is_source = op.type == "Const" or (of_shapes and op.type in _SHAPE_OPS)
            is_plain = bool(op.inputs) and op.type not in _SHAPE_OPS and not op.op_def.is_stateful
            self._is_size[key] = is_source or (is_plain and all(self.is_size(t.op, of_shapes) for t in op.inputs))
        return self._is_size[key]

    def _are_twins(self, first: Any, second: Any) -> bool:
        if not self._do_the_same(first, second) or not all(map(self._are_the_same, first.inputs, second.inputs)):
            return False
        return self._paired(first, second)

    def _do_the_same(self, first: Any, second: Any) -> bool:
        """Whether two ops do the same, where what is made of sizes may be a constant in one of them only."""
        if (
            first.type != second.type
            or _settings(first) != _settings(second)
            or len(first.inputs) != len(second.inputs)
        ):
            return False
        if first.type == "Const":
            return not self._has_constants or bool(first.get_attr("value") == second.get_attr("value"))
        pairs = zip(first.inputs, second.inputs)
        return all(self._do_the_same(a.op, b.op) for a, b in pairs if self.is_size(a.op, of_shapes=False))

    def _are_the_same(self, first: Any, second: Any) -> bool:
        """Whether two tensors stand for each other; what is made of sizes does."""
        first, second = self._source(first), self._source(second)
        if isinstance(first, tf.__internal__.EagerTensor) or isinstance(second, tf.__internal__.EagerTensor):
            return first is second
        if self.is_size(first.op) or self.is_size(second.op):
            return self.is_size(first.op) == self.is_size(second.op)
        if first.value_index != second.value_index:
            return False
        if first.op.type == second.op.type == "Placeholder":
            return bool(first.op.name == second.op.name)
        return self._paired(first.op, second.op)

    def _paired(self, first: Any, second: Any) -> bool:
        """Whether no other op stands for one of two."""
        return self._twin_of.setdefault(id(first), second) is second and (
            self._twin_of.setdefault(id(second), first) is first
        )

    def _source(self, tensor: Any) -> Any:
        """The tensor that a function has captured, in place of its argument for it."""
        while not isinstance(tensor, tf.__internal__.EagerTensor) and tensor.op.type == "Placeholder":
            graph = tensor.graph
            if id(graph) not in self._captures:
                pairs = getattr(graph, "captures", ())
                self._captures[id(graph)] = {id(internal): external for external, internal in pairs}
            outer = self._captures[id(graph)].get(id(tensor))
            if outer is None:
                break
            tensor = outer
        return tensor


def _settings(op: Any) -> Mapping[str, Any]:
    """The attributes of an op that are numbers or texts; seeds follow from how many ops there are."""
    left_out = ("seed", "seed2", "shared_name", "container")
    return {name: value for name, value in settings_of(op.node_def).items() if name not in left_out}
