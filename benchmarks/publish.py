"""``python -m benchmarks.publish``: write what `benchmarks.training` measured into the documents.

A table stands between ``<!-- NAME -->`` and ``<!-- /NAME -->``, with a name of `TABLES`. What is written by hand around
the tables stays.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click

from benchmarks.output import errors_for_click
from benchmarks.training.findings import findings
from benchmarks.training.grid import cells
from benchmarks.training.plots import write_plots
from benchmarks.training.records import Cell, Row, by_cell, load
from benchmarks.training.report import ablation_table, cell_table, misses, overview, summary
from caramel.errors import InputError
from caramel.writing import write_whole

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
PLOTS = ROOT / "docs/images"
DOCUMENTS = (ROOT / "README.md", ROOT / "docs/benchmarks.md", ROOT / "docs/training.md")


def _cell_tables(rows: Sequence[Row]) -> str:
    return "\n\n".join(f"## {cell}\n\n{cell_table(list(those.values()))}" for cell, those in by_cell(rows).items())


TABLES: Mapping[str, Callable[[Sequence[Row]], str]] = {
    "steps": overview,
    "targets": lambda rows: summary(findings(rows, cells())),
    "misses": lambda rows: misses(findings(rows, cells()), rows),
    "ablations": ablation_table,
    "cells": _cell_tables,
}
"""By name."""

_MARK = re.compile(r"<!-- (/?)(\w+) -->\n")


def published(text: str, rows: Sequence[Row]) -> str:
    """A document with its tables as they follow from what was measured.

    Args:
        text: of the document.
        rows: of all cells.

    Raises:
        InputError: a mark has no other one, or names no table.
    """
    parts, end = [], 0
    marks = list(_MARK.finditer(text))
    for start, stop in zip(marks[::2], [*marks[1::2], None]):
        if start[1] or stop is None or not stop[1] or start[2] != stop[2] or start[2] not in TABLES:
            line = text.count("\n", 0, start.start()) + 1
            names = ", ".join(TABLES)
            raise InputError(
                f"line {line}: '<!-- NAME -->' and '<!-- /NAME -->' must follow, NAME being one of {names}"
            )
        parts += [text[end : start.end()], "\n", TABLES[start[2]](rows), "\n\n"]
        end = stop.start()
    return "".join([*parts, text[end:]])


def measured(folder: Path = RESULTS) -> list[Row]:
    """The rows of all training steps that are published, in the order of cells.

    These are those of all ``training*.json`` but the ``*_quick.json``. Of a cell that is in several files, what was
    measured last counts. A record that does not say when is older than all that do; of several such, the one whose
    name is last in the alphabet counts, as the times of files change whenever they are copied.

    Args:
        folder: of the records.

    Raises:
        InputError: a file is no record.
    """
    last: dict[Cell, tuple[str, list[Row]]] = {}
    for path in sorted(folder.glob("training*.json")):
        if path.stem.endswith("_quick"):
            continue
        for cell, those in by_cell(load(path).rows).items():
            rows = list(those.values())
            began_at = max((row.origin.began_at or "" for row in rows if row.origin is not None), default="")
            if cell not in last or began_at >= last[cell][0]:
                last[cell] = began_at, rows
    order = cells()
    return [row for cell in sorted(last, key=order.index) for row in last[cell][1]]


@click.command()
@errors_for_click
def main() -> None:
    """Write tables and plots of the training steps in benchmarks/results into the documents."""
    rows = measured()
    for document in DOCUMENTS:
        try:
            text = published(document.read_text(encoding="utf-8"), rows)
        except InputError as error:
            raise InputError(f"{document}: {error}") from error
        write_whole(document, text)
        click.echo(f"{document}")
    for plot in write_plots(rows, PLOTS):
        click.echo(f"{plot}")


if __name__ == "__main__":
    sys.exit(main(prog_name="python -m benchmarks.publish"))
