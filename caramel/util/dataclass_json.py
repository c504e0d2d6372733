"""Frozen dataclasses from parsed JSON: data that does not fit their annotations is refused."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from caramel.util.arguments import shown


def from_data(kind: Any, data: Any, where: str = "it") -> Any:
    """A value of some type. Fields that do not count when two records are compared are not written, nor read.

    Args:
        kind: a dataclass, ``int`` (at least 0), ``float`` (finite), ``bool``, ``str``, a tuple of these, a Mapping from
            ``str`` to one of them, or one of several or None.
        data: parsed JSON: dicts for dataclasses and mappings, lists for tuples.
        where: noun for the value in errors.

    Raises:
        TypeError: the data is of another type, or a field is missing or unknown.
    """
    if is_dataclass(kind):
        return _record(kind, data, where)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _one_of(arguments, data, where)
    if origin is Mapping:
        if not isinstance(data, Mapping):
            raise TypeError(f"{where} is {shown(data)}, no object")
        return {str(key): from_data(arguments[1], value, f"{where}.{shown(key)[1:-1]}") for key, value in data.items()}
    if origin is tuple:
        if not isinstance(data, (list, tuple)) or (arguments[-1] is not ... and len(data) != len(arguments)):
            raise TypeError(
                f"{where} is {shown(data)}, no list of {'any' if arguments[-1] is ... else len(arguments)} entries"
            )
        kinds = [arguments[0]] * len(data) if arguments[-1] is ... else arguments
        return tuple(
            from_data(item_kind, item, f"{where}[{n}]") for n, (item_kind, item) in enumerate(zip(kinds, data))
        )
    if not _CHECKS[kind](data):
        raise TypeError(f"{where} is {shown(data)}, no {_KIND_NAMES[kind]}")
    return data


def _one_of(kinds: Sequence[Any], data: Any, where: str) -> Any:
    if data is None and type(None) in kinds:
        return None
    *others, last = (kind for kind in kinds if kind is not type(None))
    for kind in others:
        with suppress(TypeError):
            return from_data(kind, data, where)
    return from_data(last, data, where)


def _record(kind: Any, data: Any, where: str) -> Any:
    if not isinstance(data, Mapping):
        raise TypeError(f"{where} is {shown(data)}, no object")
    names = [field.name for field in fields(kind) if field.compare]
    for fault, fields_at_fault in (("lacks", set(names) - set(data)), ("has an unknown", set(data) - set(names))):
        if fields_at_fault:
            raise TypeError(f"{where} {fault} {shown(sorted(map(str, fields_at_fault))[0])}")
    hints = _hints(kind)
    return kind(
        **{name: from_data(hints[name], data[name], name if where == "it" else f"{where}.{name}") for name in names}
    )


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _is_number(data: Any) -> bool:
    return isinstance(data, (int, float)) and not isinstance(data, bool)


_CHECKS: Mapping[Any, Callable[[Any], bool]] = {
    bool: lambda data: isinstance(data, bool),
    str: lambda data: isinstance(data, str),
    int: lambda data: isinstance(data, int) and not isinstance(data, bool) and data >= 0,
    float: lambda data: _is_number(data) and abs(data) <= sys.float_info.max,  # not so of infinity and nan
}
"""Function that tells whether a value is of a type, by type."""

_KIND_NAMES = {bool: "true or false", str: "text", int: "whole number of at least 0", float: "finite number"}
