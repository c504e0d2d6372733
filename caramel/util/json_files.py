"""JSON documents of this library: kind and version in front, and errors that say what is wrong with a damaged one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from caramel.errors import CaramelError


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
        try:
            data: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self.error(f"{name} is damaged or no {self.noun}: {error}; {self.anew}") from error
        if not isinstance(data, dict) or "version" not in data or data.pop("kind", None) != self.kind:
            raise self.error(f"{name} is not a {self.noun}; {self.maker} makes one")
        version = data.pop("version")
        if type(version) is not int or version != self.version:
            raise self.error(f"{name} has version {version!r}, this library reads version {self.version}: {self.anew}")
        return data

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
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, CaramelError) as error:
            problem = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
            raise self.error(f"{name} is damaged: {problem}; {self.anew}") from error


# -- values --------------------------------------------------------------------------------------


def number(value: Any) -> float:
    """A finite number of at least 0.

    Raises:
        ValueError: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{_short(value)} should be a number of at least 0")
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


def texts(value: Any) -> tuple[str, ...]:
    """A list of texts.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, list):
        raise ValueError(f"{_short(value)} should be a list")
    return tuple(text(item) for item in value)


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
    return repr(str(value)[:20])
