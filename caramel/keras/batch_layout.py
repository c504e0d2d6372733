"""How the tensors of a batch stand in what a Keras model's steps take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BatchLayout:
    """What a step's argument is made of.

    Attributes:
        is_alone: whether a batch is its only part, as of a dataset whose elements are no tuples, and no tuple of one.
        template: structure of the parts with None where the user has given None, as the target of an output without a
            loss; None if there is no such place. No tensor stands for it.
    """

    is_alone: bool = False
    template: Any = None

    def given(self, parts: Sequence[Any]) -> Any:
        """What a step takes.

        >>> BatchLayout().given(["x", "y"]), BatchLayout(is_alone=True).given(["x"])
        (('x', 'y'), 'x')
        >>> BatchLayout(template=(0, (0, None))).given(["x", ("y",)])
        ('x', ('y', None))

        Args:
            parts: the parts of a batch, in structures of tensors.
        """
        whole = tuple(parts) if self.template is None else _with_none(self.template, tuple(parts))
        return whole[0] if self.is_alone else whole


def without_none(parts: Any) -> Any:
    """A structure of arrays without the places at which there is None.

    >>> without_none(("x", None, {"a": "w", "b": None}))
    ('x', {'a': 'w'})

    Args:
        parts: tuples and dicts of arrays and None.
    """
    if isinstance(parts, tuple):
        return tuple(without_none(part) for part in parts if part is not None)
    if isinstance(parts, Mapping):
        return {name: without_none(part) for name, part in parts.items() if part is not None}
    return parts


def template_of(parts: Any) -> Any:
    """The `BatchLayout.template` of some parts, which `without_none` takes out of them.

    >>> template_of(("x", ("y", None))), template_of(("x", "y"))
    ((0, (0, None)), None)

    Args:
        parts: tuples and dicts of arrays and None.
    """
    return _places(parts) if _has_none(parts) else None


def _places(parts: Any) -> Any:
    if isinstance(parts, tuple):
        return tuple(map(_places, parts))
    if isinstance(parts, Mapping):
        return {name: _places(part) for name, part in parts.items()}
    return None if parts is None else 0


def _has_none(parts: Any) -> bool:
    if isinstance(parts, tuple):
        return any(map(_has_none, parts))
    return any(map(_has_none, parts.values())) if isinstance(parts, Mapping) else parts is None


def _with_none(template: Any, parts: Any) -> Any:
    if isinstance(template, tuple):
        left = iter(parts)
        return tuple(None if place is None else _with_none(place, next(left)) for place in template)
    if isinstance(template, Mapping):
        return {name: None if place is None else _with_none(place, parts[name]) for name, place in template.items()}
    return parts
