"""Results: as JSON, and as tables in Markdown; errors as a command says them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import click

from caramel.errors import CaramelError
from caramel.util.text_files import write_whole
from caramel.util.units import format_size

P = ParamSpec("P")
R = TypeVar("R")


def errors_for_click(function: Callable[P, R]) -> Callable[P, R]:
    """Let a command end with the message of a `CaramelError`, without a traceback."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except CaramelError as error:
            raise click.ClickException(str(error)) from error

    return wrapped


def write_json(data: Any, path: str | os.PathLike[str]) -> None:
    """Write JSON, whole or not at all."""
    write_whole(path, json.dumps(data, indent=1) + "\n")


def markdown_row(cells: Iterable[str]) -> str:
    """A row of a table."""
    return "| " + " | ".join(cells) + " |"


def markdown_table(head: Sequence[str], rows: Iterable[Iterable[str]] = ()) -> str:
    """A table; without rows its head alone, for rows that follow one by one.

    >>> print(markdown_table(["workers", "size"], [["2", "64 B"]]))
    | workers | size |
    |---|---|
    | 2 | 64 B |
    """
    return "\n".join([markdown_row(head), "|" + "---|" * len(head), *map(markdown_row, rows)])


def size_axis(panel: Any, most_bytes: float) -> None:
    """A horizontal axis of sizes, in units that people read.

    Args:
        panel: the panel of a matplotlib figure.
        most_bytes: largest size.
    """
    panel.set_xscale("log", base=2)
    ticks = [2**exponent for exponent in range(6, 40, 4) if 2**exponent <= most_bytes]
    panel.set_xticks(ticks, [format_size(tick) for tick in ticks], fontsize=8)
    panel.set_xlabel("size of the tensor")
