"""What was measured, on disk: written after every cell, so that a run that was interrupted can go on."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.output import write_json
from benchmarks.training.contender import Settings
from benchmarks.training.names import COMPUTE
from caramel.errors import InputError
from caramel.util.arguments import shown
from caramel.util.dataclass_json import from_data
from caramel.util.json_files import MOST_BYTES
from caramel.util.text_files import read_text

VERSION = 2
"""Of the file: another one when what a row says changes."""

MOST_DRIFT = 1.15
"""Computation alone takes about as long in every round; where it does not, something else ran on the machine."""

_MEASURED = ("caramel", "benchmarks/testbed", "benchmarks/training")
"""Folders on which the times depend."""

_TOLD = ("findings.py", "plots.py", "report.py")
"""What only says what was measured."""

_MACHINE = ("kernel", "processor")
"""Versions in which cells that are kept may differ from others: each cell says on what it was measured."""

_GIT_TIMEOUT_S = 20.0

_ANEW = "to measure anew, name another file or remove this one"


@dataclass(frozen=True)
class Cell:
    """What all contenders train, and on what.

    Attributes:
        workload: its name.
        workers: number of workers, each on a host of its own.
        rho: seconds that the links need for what must be sent in a step, over seconds of computation; nominal.
    """

    workload: str
    workers: int
    rho: float

    @property
    def key(self) -> str:
        """Its name in the record.

        >>> Cell("vgg", 4, 0.5).key
        'vgg/4/0.5'
        """
        return f"{self.workload}/{self.workers}/{self.rho:g}"

    def __str__(self) -> str:
        return f"{self.workload}, {self.workers} workers, rho {self.rho:g}"


@dataclass(frozen=True)
class Origin:
    """When a cell was measured, and on what; older records do not say all of it.

    Attributes:
        began_at: when its measuring began, in UTC, such as ``2026-01-31T23:59:59Z``.
        took_s: seconds from then, or from the end of the cell before it, to its end; what is prepared for several cells
            counts for the first one of them.
        versions: of what was measured, and of the machine; see `versions_here`.
        commit: of the repository; see `commit_here`.
    """

    began_at: str | None
    took_s: float | None
    versions: Settings
    commit: str | None = None


@dataclass(frozen=True)
class Row:
    """One contender in one cell.

    Attributes:
        workload: of the cell.
        workers: of the cell.
        rho: of the cell.
        examples: of a batch of the whole job.
        link_bytes_per_s: measured payload rate of a link, the median of all links; nominal if nothing was measured.
        links_bytes_per_s: of each host's link to the next host.
        contender: its name.
        settings: what was chosen for it.
        times_s: seconds of a step in each round, in the order of the rounds; as far as it came.
        time_s: their median; None with an error.
        compute_s: median seconds of computation alone, in the contender's own TensorFlow; None if not measured.
        limit_s: no step can take less, by a bound that knows when gradients exist; None if not known.
        naive_limit_s: the longer one of computation alone and of what must be sent over a link.
        predicted_s: what the plan says; None for who has none.
        processor_s: median seconds of processor time of all its processes for a step.
        host_processor_s: the same of the processes on each host, and at the end of those on none, so that these add up
            to all. The last one is 0: what drives a graph of several workers is on the first host, and of the process
            that measures, which waits meanwhile, nothing is counted.
        sent_bytes: median bytes that a host sent for a step, headers included, as the mean over the hosts.
        host_sent_bytes: the same of each host.
        host_received_bytes: likewise.
        losses: of the first steps.
        program: which version of this library and benchmark measured it; see `program_here`.
        error: why there is no time, in one line.
        predicted_at_computation_s: what the plan says where computation takes as long as it did in the cell, in one
            graph of all workers; None for who has none, or where that was not measured.
        is_absent: whether the reason is that it cannot run at all where the others were measured.
        swept_in: key of the cell in which its settings were chosen; None where they were not, or an older record does
            not say.
        origin: of the cell; None in an older record.
    """

    workload: str
    workers: int
    rho: float
    examples: int
    link_bytes_per_s: float
    links_bytes_per_s: tuple[float, ...]
    contender: str
    settings: Settings
    times_s: tuple[float, ...]
    time_s: float | None
    compute_s: float | None
    limit_s: float | None
    naive_limit_s: float | None
    predicted_s: float | None
    processor_s: float | None
    host_processor_s: tuple[float, ...]
    sent_bytes: float | None
    host_sent_bytes: tuple[float, ...]
    host_received_bytes: tuple[float, ...]
    losses: tuple[float, ...]
    program: str
    error: str | None
    predicted_at_computation_s: float | None = None
    is_absent: bool = False
    swept_in: str | None = None
    origin: Origin | None = None

    @property
    def cell(self) -> Cell:
        """Its cell."""
        return Cell(self.workload, self.workers, self.rho)


def drift(rows: Iterable[Row]) -> float:
    """The longest round of computation alone over its shortest one; 1 where it was not measured.

    Args:
        rows: of a cell.
    """
    times = next((row.times_s for row in rows if row.contender == COMPUTE), ())
    return max(times) / min(times) if times else 1.0


@dataclass(frozen=True)
class Tried:
    """Settings that a contender was tried with.

    Attributes:
        settings: which.
        time_s: median seconds of a step; None with an error.
        error: why there is none, in one line.
        cell: key of the cell before which it was tried; None in an older record.
    """

    settings: Settings
    time_s: float | None
    error: str | None
    cell: str | None = None


@dataclass(frozen=True)
class Record:
    """All that was measured.

    Attributes:
        versions: of what was measured, and of the machine.
        settings: how it was measured.
        cells: the rows of each cell that is finished, by its key, in the order in which they were finished first.
        sweeps: settings that were tried, by workload and contender.
        version: of the file.
    """

    versions: Settings
    settings: Settings
    cells: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)
    sweeps: Mapping[str, Mapping[str, tuple[Tried, ...]]] = field(default_factory=dict)
    version: int = VERSION

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of all cells, each with its origin: as far as it is known, where the cell does not say."""
        found = (row for rows in self.cells.values() for row in rows)
        return tuple(replace(row, origin=row.origin or Origin(None, None, self.versions)) for row in found)

    def unfinished(self, cells: Iterable[Cell], retry: bool = False) -> list[Cell]:
        """Those of some cells that are still to be measured.

        Args:
            cells: in the order in which they are measured.
            retry: whether a cell in which a contender failed, or that was disturbed, is to be measured once more. Who
                cannot run at all has not failed: that would be so again.
        """

        def is_finished(cell: Cell) -> bool:
            rows = self.cells.get(cell.key)
            if rows is None or not retry:
                return rows is not None
            return drift(rows) <= MOST_DRIFT and all(row.error is None or row.is_absent for row in rows)

        return [cell for cell in cells if not is_finished(cell)]

    def with_cell(self, rows: Iterable[Row]) -> Record:
        """The record with one cell more; a cell that is there already is replaced where it stands.

        Raises:
            InputError: no rows, or those of several cells.
        """
        made = tuple(rows)
        keys = sorted({row.cell.key for row in made})
        if len(keys) != 1:
            raise InputError(f"the rows of one cell are needed, not those of {keys}")
        return replace(self, cells={**self.cells, keys[0]: made})


def by_cell(rows: Iterable[Row]) -> Mapping[Cell, Mapping[str, Row]]:
    """The rows of each cell by contender, both in the order of the rows."""
    found: dict[Cell, dict[str, Row]] = {}
    for row in rows:
        found.setdefault(row.cell, {})[row.contender] = row
    return found


def now() -> str:
    """The time as records have it, which sorts as text.

    >>> len(now()), now()[-1]
    (20, 'Z')
    """
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def versions_here(**others: int | float | str | bool) -> Settings:
    """What the times depend on and the settings do not say.

    Args:
        others: further versions, such as of the peers.
    """
    try:
        tensorflow = version("tensorflow")
    except PackageNotFoundError:
        tensorflow = "none"
    here = {"tensorflow": tensorflow, "python": platform.python_version(), "kernel": platform.release()}
    here |= {"machine": platform.machine(), "processor": _processor()}
    return {**here, "cores": len(os.sched_getaffinity(0)), **others}


def _processor() -> str:
    """Its name, and its widest vectors: virtual machines often hide which model it is."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    found = dict(re.findall(r"^(model name|flags)\s*: (.*)$", text, re.MULTILINE))
    flags = found.get("flags", "").split()
    vectors = next((name for name in ("avx512f", "avx2", "avx") if name in flags), "")
    return f"{found.get('model name', 'unknown')} {vectors}".rstrip()


def program_here() -> str:
    """What tells this version of the library and of its benchmark from others: a digest of their files.

    Where a change moved files and changed nothing that runs, ``benchmarks/results/same_programs.json`` names the older
    version that this one is the same program as, and how that was shown.
    """
    digest = hashlib.sha256()
    root = Path(__file__).parents[2]
    for path in sorted(path for folder in _MEASURED for path in (root / folder).rglob("*.py")):
        if path.name not in _TOLD or path.parent.name != "training":
            digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    here = digest.hexdigest()[:12]
    table = root / "benchmarks/results/same_programs.json"
    same = json.loads(table.read_text(encoding="utf-8")) if table.exists() else {}
    return str(same[here]["same_as"]) if here in same else here


def commit_here() -> str | None:
    """The commit of the files that are measured, with a ``+`` if they are not as committed; None without one."""
    root = Path(__file__).parents[2]

    def git(*arguments: str) -> str:
        # Whoever measures is root, and the files may be somebody else's.
        command = ["git", "-c", f"safe.directory={root}", *arguments]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True, timeout=_GIT_TIMEOUT_S)
        return done.stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "--", *_MEASURED) else "")
    except (OSError, subprocess.SubprocessError):
        return None


def save(record: Record, path: str | os.PathLike[str]) -> None:
    """Write a record, whole or not at all.

    Raises:
        InputError: it cannot be written; what was there is untouched.
    """
    try:
        write_json(asdict(record), path)
    except OSError as error:
        raise InputError(f"the record {os.fspath(path)!r} cannot be written: {error.strerror}") from error


def load(path: str | os.PathLike[str]) -> Record:
    """Read a record.

    Args:
        path: the file.

    Raises:
        InputError: it cannot be read, or is no record or one of another version.
    """
    name = os.fspath(path)
    text = read_text(path, "the record", InputError, MOST_BYTES)
    try:
        data = json.loads(text)
        found = data["version"]
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise InputError(f"{name!r} is no record of training steps: {_ANEW}") from error
    if found != VERSION:
        raise InputError(
            f"the record {name!r} is of version {shown(found)}, and this program's are of {VERSION}: {_ANEW}"
        )
    try:
        record: Record = from_data(Record, _completed(data), "the record")
    except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise InputError(f"the record {name!r} is damaged: {error}; {_ANEW}") from error
    for key, rows in record.cells.items():
        if not rows or any(row.cell.key != key for row in rows):
            raise InputError(f"the record {name!r} is damaged: cell {key!r} lacks rows or has others'; {_ANEW}")
    return record


def _completed(data: Any) -> Any:
    """Parsed JSON of a record, with what older records lack; what is damaged stays so."""

    def each(kind: Any, found: Any) -> Any:
        defaults = {each.name: each.default for each in fields(kind) if each.default is not MISSING}
        if not isinstance(found, list):
            return found
        return [{**defaults, **one} if isinstance(one, dict) else one for one in found]

    def entries(found: Any, change: Callable[[Any], Any]) -> Any:
        return {name: change(one) for name, one in found.items()} if isinstance(found, dict) else found

    cells = entries(data.get("cells"), lambda rows: each(Row, rows))
    sweeps = entries(data.get("sweeps"), lambda found: entries(found, lambda tried: each(Tried, tried)))
    return {**data, "cells": cells, "sweeps": sweeps}


def resume(path: str | os.PathLike[str], new: Record, program: str, is_any_program: bool = False) -> Record:
    """The record of a file, to go on with; without one the new record, which is written at once.

    Args:
        path: the file.
        new: a record without cells.
        program: which measures the other cells.
        is_any_program: whether cells may stay that another program has measured, or this one with another kernel or on
            another processor, which older records do not name.

    Raises:
        InputError: the file is no record, or one with cells of other versions, settings or programs; or a new one
            cannot be written.
    """
    found = load(path) if Path(path).exists() else new
    if found.cells:
        programs = sorted({row.program for row in found.rows} - {program})
        if programs and not is_any_program:
            raise InputError(
                f"the record {os.fspath(path)!r} has cells that another version of this program has measured "
                f"({', '.join(programs)}, and this is {program}): {_ANEW}, or keep them with --any-program"
            )
        differences = [*_differences(found.settings, new.settings), *_differences(found.versions, new.versions)]
        if differences:
            name = os.fspath(path)
            raise InputError(f"the record {name!r} was measured otherwise ({'; '.join(differences)}): {_ANEW}")
        machines = [row.origin.versions for row in found.rows if row.origin is not None]
        others = dict.fromkeys(text for each in machines for text in _differences(each, new.versions, _MACHINE))
        if others and not is_any_program:
            raise InputError(
                f"the record {os.fspath(path)!r} has cells that were measured on another machine "
                f"({'; '.join(others)}): {_ANEW}, or keep them with --any-program"
            )
        return found
    save(new, path)  # whether that can be done is better known before hours of measuring
    return new


def _differences(there: Settings, here: Settings, names: Collection[str] = ()) -> list[str]:
    """In what they differ, for people.

    Args:
        there: some settings.
        here: others.
        names: of those that are compared; by default all but those of the machine.
    """

    def said(settings: Settings, name: str) -> str:
        return repr(settings[name]) if name in settings else "not given"

    compared = set(names) or {*there, *here} - {*_MACHINE}
    found = sorted(name for name in compared if said(there, name) != said(here, name))
    return [f"{name} is {said(there, name)} there and {said(here, name)} here" for name in found]
