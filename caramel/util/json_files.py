"""JSON documents of this library: kind and version in front, and errors that say what is wrong with a damaged one."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from caramel.errors import CaramelError
from caramel.util.arguments import shown
from caramel.util.text_files import read_text

MOST_BYTES = 200_000_000
"""Size from which on a document is refused before it is read (our choice).

The largest are traces, with about 200 bytes for each op: this is one of a million ops. A ResNet-152 has 24,450.
"""


@dataclass(frozen=True)
class JsonFormat:
    """One kind of document.

    Attributes:
        noun: noun for it in messages, such as ``"trace"``.
        version: number that this library writes and reads.
        error: class of the errors.
        maker: command or function that makes such a document, such as ``"caramel trace"``.
        anew: advice about a document that cannot be read, such as ``"trace anew"``.
        kind: text under ``"kind"``; None where documents have none.
    """

    noun: str
    version: int
    error: type[CaramelError]
    maker: str
    anew: str
    kind: str | None = None

    def write(self, content: Mapping[str, Any], *, sort_keys: bool = True) -> str:
        """The text of a document; the same content always gives the same text.

        Args:
            content: values of the document besides kind and version, by key.
            sort_keys: whether keys are sorted; otherwise they stand as they come.
        """
        kind = {} if self.kind is None else {"kind": self.kind}
        data = {**kind, "version": self.version, **content}
        return json.dumps(data, indent=1, sort_keys=sort_keys, allow_nan=False)

    def read(self, text: str, name: str) -> dict[str, Any]:
        """The values of a document besides kind and version, by key.

        Args:
            text: JSON text of the document.
            name: noun for this document in messages, such as ``"the trace 'trace.json'"``.

        Raises:
            CaramelError: of the format's class: it is damaged, something else, or of another version.
        """
        if not isinstance(text, str):
            raise self.error(f"{name} is no {self.noun}: it is read from JSON text, got {shown(text)}")
        try:
            data: Any = json.loads(text, object_pairs_hook=_without_repetition, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise self.error(f"{name} is damaged or no {self.noun}: {error}; {self.anew}") from error
        if not isinstance(data, dict) or "version" not in data or data.pop("kind", None) != self.kind:
            raise self.error(f"{name} is not a {self.noun}; {self.maker} makes one")
        version = data.pop("version")
        if type(version) is not int or version != self.version:
            raise self.error(
                f"{name} has version {shown(version)}, this library reads version {self.version}: {self.anew}"
            )
        return data

    def text_of(self, path: str | os.PathLike[str]) -> str:
        """The text of a document's file.

        Args:
            path: path of the file.

        Raises:
            CaramelError: of the format's class: it cannot be read, or is too large for such a document.
        """
        return read_text(path, f"the {self.noun}", self.error, MOST_BYTES)

    @contextmanager
    def reading(self, name: str) -> Iterator[None]:
        """Turn errors about a value of a document into an error that says that the document is damaged.

        Args:
            name: noun for the document in messages.

        Raises:
            CaramelError: of the format's class.
        """
        try:
            yield
        except (
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            ArithmeticError,
            RecursionError,
            CaramelError,
        ) as error:
            problem = f"{shown(error.args[0])} is missing" if isinstance(error, KeyError) else str(error)
            raise self.error(f"{name} is damaged: {problem}; {self.anew}") from error


def only_keys(data: Any, known: Iterable[str], where: str = "it") -> dict[str, Any]:
    """An object that has no other keys; a key that nobody reads is a mistake of whoever wrote it.

    Args:
        data: parsed JSON.
        known: names of the keys that it may have.
        where: noun for the object in the error.

    Raises:
        ValueError: it is no object, or has another key.
    """
    if not isinstance(data, dict):
        raise ValueError(f"{where} is {shown(data)}, no object")
    unknown = [key for key in data if key not in set(known)]
    if unknown:
        raise ValueError(f"{where} has an unknown {shown(unknown[0])}")
    return data


def _without_repetition(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object without repeated names, of which Python would silently take the last."""
    entries = dict(pairs)
    if len(entries) < len(pairs):
        seen: set[str] = set()
        repeated = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"{shown(repeated)} is there twice in one object")
    return entries


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


# -- values --------------------------------------------------------------------------------------


def number(value: Any, most: float | None = None) -> float:
    """A finite number of at least 0.

    Args:
        value: the value.
        most: largest value that makes sense; None for any.

    Raises:
        ValueError: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{_short(value)} should be a number of at least 0")
    if most is not None and value > most:
        raise ValueError(f"{_short(value)} should be a number of at most {most:g}")
    return float(value)


def whole(value: Any, least: int, most: int | None = None) -> int:
    """A whole number in a range.

    Raises:
        ValueError: it is something else.
    """
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or value < least or (most is not None and value > most):
        span = f"of at least {least}" if most is None else f"between {least} and {most}"
        raise ValueError(f"{_short(value)} should be a whole number {span}")
    return int(value)


def text(value: Any) -> str:
    """A text.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, str):
        raise ValueError(f"{_short(value)} should be a text")
    return value


def sequence(value: Any, read_item: Callable[[Any], Any]) -> tuple[Any, ...]:
    """The items of a list.

    Args:
        value: object to read.
        read_item: function that reads one of its items.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, list):
        raise ValueError(f"{_short(value)} should be a list")
    return tuple(read_item(item) for item in value)


def mapping(value: Any, read_value: Callable[[Any], Any]) -> dict[str, Any]:
    """Values by name.

    Args:
        value: object to read.
        read_value: function that reads one of its values.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{_short(value)} should map names to values")
    return {name: read_value(item) for name, item in value.items()}


def _short(value: Any) -> str:
    return shown(value if isinstance(value, str) else shown(value, 20), 22)
