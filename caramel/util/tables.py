"""Tables as text for a terminal."""

from __future__ import annotations

import html
import io
import textwrap
from collections.abc import Collection, Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

WIDTH = 100
"""Columns of text for a terminal."""


_RULE = box.Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
"""A table with a line below its head, and no others."""


def counted(number: int, noun: str) -> str:
    """A number of things.

    Args:
        number: the number.
        noun: what they are, of which the plural has an s.

    >>> counted(1, "worker"), counted(2, "worker")
    ('1 worker', '2 workers')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def wrapped(line: str, width: int = WIDTH) -> str:
    """A line in as many as it needs, those after the first indented; words that are longer stay whole.

    Args:
        line: the text.
        width: number of columns.

    >>> print(wrapped("note: a few words", width=12))
    note: a few
      words
    """
    return textwrap.fill(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def wrapped_lines(text: str) -> str:
    """Each line of a text in as many as it needs; see `wrapped`.

    Args:
        text: the text.
    """
    return "\n".join(map(wrapped, text.splitlines()))


def fitted(rows: Sequence[Sequence[str]], right: Collection[int] = (), width: int = WIDTH) -> str:
    """Rows with their columns below each other, and what does not fit into one line in several.

    Args:
        rows: see `aligned`.
        right: see `aligned`.
        width: number of columns of the text.

    >>> print(fitted([("name", "bytes"), ("first, second", "8")], right={1}, width=13))
    name    bytes
    -------------
    first,      8
    second
    """
    table = Table(box=_RULE, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for number, cell in enumerate(rows[0]):
        table.add_column(cell, justify="right" if number in right else "left", no_wrap=number in right, overflow="fold")
    for row in rows[1:]:
        table.add_row(*map(escape, row))
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False, legacy_windows=False)
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def preformatted(text: str) -> str:
    """Text for a terminal as HTML, for notebooks.

    >>> preformatted("a < b")
    '<pre>a &lt; b</pre>'
    """
    return f"<pre>{html.escape(text, quote=False)}</pre>"


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = (), rule: bool = False) -> str:
    """Rows with their columns below each other, two spaces apart.

    Args:
        rows: cells of each row, at least one; all rows have as many cells as the first, which is the head.
        right: numbers of the columns that are aligned to the right.
        rule: whether to draw a line below the head.

    >>> print(aligned([("name", "bytes"), ("first", "8"), ("w", "1024")], right={1}, rule=True))
    name   bytes
    -----  -----
    first      8
    w       1024
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]
    if rule:
        lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)
