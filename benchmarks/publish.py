"""``python -m benchmarks.publish``: write what the benchmarks' records say into the documents.

A table stands between ``<!-- NAME -->`` and ``<!-- /NAME -->``, with a name of `TABLES` (of training steps), or
``SET/NAME`` with one of `SETS`, or a name of `RECORDS`. What is written by hand around the tables stays.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks import (
    build,
    collectives,
    depths,
    driver_inside,
    first_step,
    local_steps,
    lost_workers,
    mixtures,
    papers,
    planner_speed,
    planning,
    pull_orders,
    schedulers,
    shared_hosts,
    short_steps,
    tuning_replay,
    versions,
)
from benchmarks.output import errors_for_click
from benchmarks.published import calibrations_table, figure_9_table, gaps_table
from benchmarks.training import prediction_errors
from benchmarks.training.findings import ACCELERATED, COMPUTED, Targets, findings
from benchmarks.training.grid import cells, emulated_cells, is_core
from benchmarks.training.plots import write_plots
from benchmarks.training.records import Cell, Row, by_cell, load
from benchmarks.training.report import ablation_table, cell_table, misses, overview, summary
from caramel.errors import InputError
from caramel.util.text_files import write_whole

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
PLOTS = ROOT / "docs/images"
DOCUMENTS = tuple(
    ROOT / "docs" / name
    for name in (
        *(
            "benchmarks/results.md",
            "benchmarks/cells.md",
            "benchmarks/all-reduces.md",
            "benchmarks/large-models.md",
            "benchmarks/short-steps.md",
            "benchmarks/local-steps.md",
            "benchmarks/parameter-servers.md",
            "benchmarks/schedulers.md",
            "benchmarks/accelerators.md",
        ),
        *("benchmarks/predictions.md", "validation.md", "reference/versions.md", "how-to/clusters.md"),
        *("papers.md", "papers/caramel.md", "papers/tictac.md", "papers/bytescheduler.md"),
    )
)


@dataclass(frozen=True)
class RecordSet:
    """Records that are published together.

    Attributes:
        pattern: of their files' names.
        cells: that they should have.
        where: follows the name of each cell.
        targets: of cells of this kind.
    """

    pattern: str
    cells: tuple[Cell, ...]
    where: str = ""
    targets: Targets = COMPUTED


SETS: Mapping[str, RecordSet] = {
    "": RecordSet("training*.json", tuple(cells())),
    # Times of two machines in one table would show their difference, not that of the contenders.
    "slower": RecordSet("slower*.json", tuple(c for c in cells() if is_core(c)), ", on the slower machine"),
    "owners": RecordSet("owners*.json", (Cell("transformer", 8, 1.0),), ", embedding tables at owners"),
    "emulated": RecordSet("emulated*.json", tuple(emulated_cells()), ", emulated accelerators", ACCELERATED),
}
"""By what stands before the name of a table."""


def _cell_tables(rows: Sequence[Row], of: RecordSet) -> str:
    return "\n\n".join(
        f"## {cell}{of.where}\n\n{cell_table(list(those.values()))}" for cell, those in by_cell(rows).items()
    )


TABLES: Mapping[str, Callable[[Sequence[Row], RecordSet], str]] = {
    "steps": lambda rows, _: overview(rows),
    "targets": lambda rows, of: summary(findings(rows, of.cells, of.targets)),
    "misses": lambda rows, of: misses(findings(rows, of.cells, of.targets), rows),
    "ablations": lambda rows, _: ablation_table(rows),
    "cells": _cell_tables,
    "contenders": lambda rows, _: "\n\n".join(cell_table(list(those.values())) for those in by_cell(rows).values()),
}
"""By name."""

PREDICTED = str(RESULTS / "predicted_steps.json")
"""Record with the plans of its cells beside it."""

RECORDS: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "build": ("build.json", build.table),
    "collectives_local": ("collectives_local.json", collectives.record_table),
    "collectives_shaped": ("collectives_shaped.json", collectives.record_table),
    "shared_hosts": ("shared_hosts.json", shared_hosts.table),
    "depths": ("depths_shaped.json", lambda record: depths.table(depths.cells_of(record))),
    "planner_speed": ("planner_speed.json", planner_speed.table),
    "figure_9": ("published.json", figure_9_table),
    "calibrations": ("published.json", calibrations_table),
    "gaps": ("published.json", gaps_table),
    "versions": ("versions.json", versions.table),
    "first_step": ("first_step.json", first_step.table),
    "short_steps": ("short_steps.json", short_steps.table),
    "driver_inside": ("driver_inside.json", driver_inside.table),
    "local_times": ("sync_every.json", local_steps.times_table),
    "local_losses": ("sync_every.json", local_steps.losses_table),
    "pull_orders": ("pull_orders.json", pull_orders.cells_table),
    "schedulers_steps": ("schedulers.json", schedulers.steps_table),
    "schedulers_predicted": ("schedulers.json", schedulers.predictions_table),
    "mixtures": ("mixtures.json", mixtures.table),
    "tuning_replay": ("tuning_replay.json", tuning_replay.table),
    "lost_workers": ("lost_workers.json", lost_workers.table),
    "predicted_steps": ("predicted_steps.json", lambda _: prediction_errors.table(prediction_errors.kept(PREDICTED))),
    **{name: ("papers.json", table) for name, table in papers.TABLES.items()},
}
"""Files of `RESULTS`, and what makes a table of what is in them, by name."""

RECORD_PLOTS: Mapping[str, tuple[str, Callable[[Any, Path], None]]] = {
    "collectives_local": ("collectives_local.json", collectives.plot),
    "collectives_shaped": ("collectives_shaped.json", collectives.plot),
    "depths": (
        "depths_shaped.json",
        lambda record, path: depths.plot(depths.cells_of(record), str(path), "ring on 4 workers, links of 500 Mbit/s"),
    ),
    "planning": ("planning.json", lambda record, path: planning.plot(planning.curves_of(record), str(path))),
    **{name: ("papers.json", draw) for name, draw in papers.PLOTS.items()},
}
"""Files of `RESULTS`, and what draws what is in them, by the name of the picture."""

_MARK = re.compile(r"<!-- (/?)((?:\w+/)?\w+) -->\n")


def published(text: str, rows: Mapping[str, Sequence[Row]]) -> str:
    """A document with its tables as they follow from what was measured.

    Args:
        text: of the document.
        rows: of each of `SETS`.

    Raises:
        InputError: a mark has no other one, or names no table or no set.
    """
    parts, end = [], 0
    marks = list(_MARK.finditer(text))
    for start, stop in zip(marks[::2], [*marks[1::2], None]):
        table = _table(start[2], rows)
        if start[1] or stop is None or not stop[1] or start[2] != stop[2] or table is None:
            line = text.count("\n", 0, start.start()) + 1
            raise InputError(
                f"line {line}: '<!-- NAME -->' and '<!-- /NAME -->' must follow, NAME being one of "
                f"{', '.join((*RECORDS, *TABLES))}, or SET/NAME with one of the last {len(TABLES)} and a SET of "
                f"{', '.join(filter(None, SETS))}"
            )
        parts += [text[end : start.end()], "\n", table, "\n\n"]
        end = stop.start()
    return "".join([*parts, text[end:]])


def _table(name: str, rows: Mapping[str, Sequence[Row]]) -> str | None:
    """The table of that name, None if there is none."""
    if name in RECORDS:
        file, table_of = RECORDS[name]
        return table_of(json.loads((RESULTS / file).read_text(encoding="utf-8")))
    group, _, name = name.rpartition("/")
    return TABLES[name](rows[group], SETS[group]) if name in TABLES and group in SETS else None


def measured(folder: Path = RESULTS, group: str = "") -> list[Row]:
    """The rows of all training steps of a set, in the order of cells.

    Those of ``*_quick.json`` are left out. Of a cell that is in several files of the set, what was measured last
    counts. A record that does not say when is older than all that do; of several such, the one whose name is last in
    the alphabet counts, as the times of files change whenever they are copied.

    Args:
        folder: of the records.
        group: one of `SETS`.

    Raises:
        InputError: a file is no record.
    """
    last: dict[Cell, tuple[str, list[Row]]] = {}
    for path in sorted(folder.glob(SETS[group].pattern)):
        if path.stem.endswith("_quick"):
            continue
        for cell, those in by_cell(load(path).rows).items():
            rows = list(those.values())
            began_at = max((row.origin.began_at or "" for row in rows if row.origin is not None), default="")
            if cell not in last or began_at >= last[cell][0]:
                last[cell] = began_at, rows
    order = [*cells(), *emulated_cells()]
    return [row for cell in sorted(last, key=order.index) for row in last[cell][1]]


@click.command()
@errors_for_click
def main() -> None:
    """Write tables and plots of the records in benchmarks/results into the documents."""
    rows = {group: measured(group=group) for group in SETS}
    for document in DOCUMENTS:
        try:
            text = published(document.read_text(encoding="utf-8"), rows)
        except InputError as error:
            raise InputError(f"{document}: {error}") from error
        write_whole(document, text)
        click.echo(f"{document}")
    kinds = {"": "training", "emulated": "emulated"}
    drawn = [plot for group, kind in kinds.items() for plot in write_plots(rows[group], PLOTS, kind)]
    for plot in (*drawn, *write_record_plots(PLOTS)):
        click.echo(f"{plot}")


def write_record_plots(folder: Path) -> list[Path]:
    """Draw the records of `RECORD_PLOTS`, as PNG files.

    Args:
        folder: where to write them.
    """
    paths = []
    for name, (file, draw) in RECORD_PLOTS.items():
        paths.append(folder / f"{name}.png")
        draw(json.loads((RESULTS / file).read_text(encoding="utf-8")), paths[-1])
    return paths


if __name__ == "__main__":
    sys.exit(main(prog_name="python -m benchmarks.publish"))
