"""Names that Keras numbers by itself, counted anew for each program.

Keras numbers what has no name of its own (``dense``, ``dense_1``, ``adam_2``) over a whole process. A program that is
built a second time has other names then, although it is the same. In a captured program the numbers of each kind begin
at 0 and have no gaps; their order is kept.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any

_DIRECTIONS = ("forward_", "backward_")
"""Beginnings of the names of the layers of keras.layers.Bidirectional."""

_NUMBERED = re.compile(r"(.+?)(?:_(\d+))?")

_OTHER_KINDS = ("SeedGenerator", "Variable")
"""Classes of Keras that number their objects and have no common ancestor with layers."""


def counted_anew(names: Iterable[str], counts: Mapping[str, int] | None = None) -> dict[str, str]:
    """The names that Keras has numbered, with the numbers that they get; only those that change.

    >>> import keras
    >>> names = ["dense_4", "dense_2", "adam_1", "encoder_7", "dropout", "dense_300"]
    >>> counted_anew(names, {"dense": 5, "adam": 2, "dropout": 1})
    {'dense_2': 'dense', 'dense_4': 'dense_1', 'adam_1': 'adam'}
    >>> counted_anew(["forward_lstm_3", "backward_lstm_3"])
    {'lstm_3': 'lstm'}

    Args:
        names: of layers, optimizers and whatever else a program uses, those that a person gave among them.
        counts: how many names of each kind Keras has given, so that a person must have given one with a greater number;
            None where that is not known.
    """
    kinds = _kinds()
    numbers: dict[str, set[int]] = {}
    for name in dict.fromkeys(names):
        kind, number = _parts(_split(name)[1])
        if kind in kinds and (counts is None or number < counts.get(kind, 0)):
            numbers.setdefault(kind, set()).add(number)
    changes = {}
    for kind, found in numbers.items():
        for place, number in enumerate(sorted(found)):
            if place != number:
                changes[_joined(kind, number)] = _joined(kind, place)
    return changes


def counts_so_far() -> Mapping[str, int] | None:
    """How many names of each kind Keras has given in this process; None where this version of it does not tell."""
    keras: Any = sys.modules.get("keras")
    get_uid = getattr(getattr(keras, "backend", None), "get_uid", None)  # counts on when it is asked, so it is not
    state = getattr(get_uid, "__globals__", {}).get("global_state")
    read = getattr(state, "get_global_attribute", None)
    found = read("object_name_uids") if callable(read) else None
    return dict(found) if isinstance(found, Mapping) else None


def renamed_scope(name: str, changes: Mapping[str, str]) -> str:
    """The name that a scope gets, of which a layer or optimizer has given the name.

    Args:
        name: its name in the program.
        changes: see `counted_anew`.
    """
    direction, rest = _split(name)
    return direction + changes[rest] if rest in changes else name


class Renaming:
    """The names that variables get where those of Keras are counted anew.

    Args:
        changes: names that Keras has numbered, with those that they get; see `counted_anew`.
    """

    def __init__(self, changes: Mapping[str, str]) -> None:
        self._changes = changes
        each = "|".join(sorted(map(re.escape, changes), key=len, reverse=True))
        self._within = re.compile(f"(?<![^_])(?:{each})(?=_)") if changes else None

    def of(self, name: str) -> str:
        """The name that a variable gets.

        >>> names = Renaming({"dense_2": "dense", "adam_1": "adam"})
        >>> names.of("dense_2/kernel"), names.of("adam_1/dense_2_kernel_momentum"), names.of("my_dense/kernel")
        ('dense/kernel', 'adam/dense_kernel_momentum', 'my_dense/kernel')
        >>> Renaming({"lstm_3": "lstm"}).of("bidirectional/forward_lstm_3/lstm_cell/kernel")
        'bidirectional/forward_lstm/lstm_cell/kernel'

        Args:
            name: the program's own.
        """
        return "/".join(map(self._part, name.split("/")))

    def _part(self, part: str) -> str:
        """One part of a name; optimizers write the names of variables into those of what they keep for each."""
        if self._within is None or _split(part)[1] in self._changes:
            return renamed_scope(part, self._changes)
        return self._within.sub(lambda found: self._changes[found.group()], part)


def parts_of(names: Collection[str]) -> set[str]:
    """The parts of the names of variables."""
    return {part for name in names for part in name.split("/")}


def _split(name: str) -> tuple[str, str]:
    """What a bidirectional layer puts in front of the names of its two layers, and the rest."""
    direction = next((each for each in _DIRECTIONS if name.startswith(each)), "")
    return direction, name.removeprefix(direction)


def _parts(name: str) -> tuple[str, int]:
    match = _NUMBERED.fullmatch(name)
    if match is None or match[2] is None:
        return name, 0
    is_written_so = match[2] == str(int(match[2])) and match[2] != "0"
    return (match[1], int(match[2])) if is_written_so else (name, 0)


def _joined(kind: str, number: int) -> str:
    return f"{kind}_{number}" if number else kind


def _kinds() -> set[str]:
    """The names that Keras numbers: those of all classes, the user's own among them, as it writes them."""
    keras: Any = sys.modules.get("keras")
    if keras is None:
        return set()
    roots = [keras.Operation, keras.Optimizer, keras.Loss, keras.Metric]
    found = {_snake(name) for name in _OTHER_KINDS}
    stack, seen = list(roots), set(roots)
    while stack:
        kind = stack.pop()
        found.add(_snake(kind.__name__))
        new = [each for each in type.__subclasses__(kind) if each not in seen]
        seen.update(new)
        stack += new
    return found


@cache
def _snake(name: str) -> str:
    """A class name as Keras writes it into the names of its objects: ``Conv2DTranspose`` is ``conv2d_transpose``."""
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()
