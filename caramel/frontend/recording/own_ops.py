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
from typing import Any

from caramel.errors import CaptureError
from caramel.frontend.recording.user_code import is_library

_SHAPE_OPS = frozenset({"Shape", "ShapeN", "Size", "Rank"})

_FUNCTIONS_FOR_ALL = (("tensorflow", ""), ("keras", "src/ops"), ("keras", "src/backend"), ("keras", "src/utils"))
"""Folders of the functions that make ops for whoever calls them, by package."""


def check_is_the_same(opened: Sequence[Any], told: Sequence[Any], examples: int) -> None:
    """Check that a step does the same whether its own code knows the number of examples or not.

    Args:
        opened: the ops of its own code, with the number left open.
        told: the same, where the code was told the number of examples in the batches of one device.
        examples: that number.

    Raises:
        CaptureError: it does not.
    """
    sizes = _Sizes()
    kept = [[op for op in made if not sizes.is_size(op)] for made in (opened, told)]
    if len(kept[0]) == len(kept[1]) and all(map(sizes.do_the_same, *kept)):
        return
    refusal = CaptureError(
        f"the step asks in Python for the number of examples and makes other ops where it is not known than for "
        f"{examples}: use tf.shape(x)[0]"
    )
    refusal.may_pass_later = True
    raise refusal


def is_own() -> bool:
    """Whether the program's own code makes the op that is made now, by functions of TensorFlow or of `keras.ops`."""
    frame = sys._getframe(1)
    while frame is not None and (place := _place_of(frame.f_code.co_filename)) is None:
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None and bool(place)


@functools.cache
def _place_of(filename: str) -> bool | None:
    """Whether a file is the program's own; None for what makes ops for whoever calls it."""
    folders = [os.path.dirname(os.path.abspath(__file__))]
    for package, folder in _FUNCTIONS_FOR_ALL:
        if package in sys.modules:
            folders.append(os.path.join(os.path.dirname(str(sys.modules[package].__file__)), *folder.split("/")))
    path = os.path.abspath(filename)
    is_for_all = any(path.startswith(os.path.join(folder, "")) for folder in folders)
    return None if is_for_all else not is_library(filename)


class _Sizes:
    """What is made of constants and of the shapes of tensors, in the graphs of two traces."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, bool], bool] = {}

    def is_size(self, op: Any, of_shapes: bool = True) -> bool:
        """Whether an op is made of constants only, or of shapes as well."""
        key = id(op), of_shapes
        if key not in self._known:
            self._known[key] = False  # while it is looked for: loops
            is_source = op.type == "Const" or (of_shapes and op.type in _SHAPE_OPS)
            is_plain = bool(op.inputs) and op.type not in _SHAPE_OPS and not op.op_def.is_stateful
            self._known[key] = is_source or (is_plain and all(self.is_size(t.op, of_shapes) for t in op.inputs))
        return self._known[key]

    def do_the_same(self, first: Any, second: Any) -> bool:
        """Whether two ops do the same, where what is made of sizes may be a constant in one of them only."""
        if first.type != second.type or _numbers(first) != _numbers(second) or len(first.inputs) != len(second.inputs):
            return False
        if first.type == "Const":
            return bool(first.get_attr("value") == second.get_attr("value"))
        pairs = zip(first.inputs, second.inputs)
        return all(self.do_the_same(a.op, b.op) for a, b in pairs if self.is_size(a.op, of_shapes=False))


def _numbers(op: Any) -> Mapping[str, Any]:
    """The attributes of an op that are numbers; seeds follow from how many ops there are."""
    return {
        name: (value.i, value.b, value.f, tuple(value.list.i))
        for name, value in op.node_def.attr.items()
        if not name.startswith("_")
        and name not in ("seed", "seed2")
        and (value.WhichOneof("value") in ("i", "b", "f") or value.list.i)
    }
