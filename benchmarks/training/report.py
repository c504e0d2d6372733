"""What was measured, as tables in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from benchmarks.output import markdown_table
from benchmarks.statistics import Ratio, geometric_mean
from benchmarks.training.findings import (
    COMPUTED,
    INCOMPLETE,
    MISSED,
    Finding,
    Targets,
    against,
    best_peer,
    findings,
    is_withdrawn,
)
from benchmarks.training.names import (
    ABLATIONS,
    COMPUTATIONS,
    COMPUTE,
    HOROVOD,
    HOROVOD_BEST,
    MIRRORED,
    MIRRORED_BEST,
    OURS,
    PEERS,
    SWEPT,
    TITLES,
)
from benchmarks.training.processor_bound import processor_bound_s, workload_of
from benchmarks.training.records import MOST_DRIFT, Cell, Row, by_cell, drift

NONE = "-"
NOT_RECORDED = "not recorded"

HEAD = (
    "contender",
    "settings",
    "time [ms]",
    "25 to 75 % [ms]",
    "of limit",
    "of naive limit",
    "processor [s]",
    "predicted [ms]",
    "off",
    "sent [MB]",
)


def report(rows: Sequence[Row], expected: Sequence[Cell] = (), targets: Targets = COMPUTED) -> str:
    """All of it.

    Args:
        rows: of all cells.
        expected: the cells that should have been measured.
        targets: of cells of this kind.
    """
    parts = ["## Targets", summary(findings(rows, expected, targets)), "## Steps in short", overview(rows)]
    costs = ablation_table(rows)
    if costs:
        parts += ["## What each optimisation brings", costs]
    parts.append("## All cells")
    for cell, those in by_cell(rows).items():
        parts += [f"### {cell}", cell_table(list(those.values()))]
    return "\n\n".join(parts) + "\n"


def summary(found: Sequence[Finding]) -> str:
    """What should be and what is, and below it where it is not.

    Args:
        found: what `findings` gives.
    """
    table = markdown_table(
        ("what", "measured", "target", "verdict"), [(f.what, f.shown, f.target, f.verdict) for f in found]
    )
    notes = [f"- {f.what}:\n" + "\n".join(f"  - {note}" for note in f.notes) for f in found if f.notes]
    return "\n\n".join([table, *(["\n".join(notes)] if notes else [])])


def misses(found: Sequence[Finding], rows: Sequence[Row]) -> str:
    """Targets that are not kept, and cells in which a peer's median is below that of this library.

    Args:
        found: what `findings` gives.
        rows: of all cells.
    """
    faster = []
    for cell, those in by_cell(rows).items():
        ours_s = those[OURS].time_s if OURS in those else None
        peers = [(TITLES[n], those[n].time_s) for n in PEERS if n in those] if ours_s is not None else []
        told = [
            f"{title} {_ms(time_s)} ms" for title, time_s in peers if time_s is not None and time_s < (ours_s or 0.0)
        ]
        if told:
            faster.append(f"{cell}: {_ms(ours_s)} ms; {'; '.join(told)}")
    missed, open_ = (
        [f"{f.what}: {f.shown} (target: {f.target})" for f in found if f.verdict == verdict]
        for verdict in (MISSED, INCOMPLETE)
    )
    lists = (
        ("Targets that are missed", missed or ["none"]),
        ("Targets that are not missed as far as it was measured, but not all was", open_),
        ("Cells in which the median step of a peer is shorter than this library's", faster or ["none"]),
    )
    return "\n\n".join(f"{title}:\n\n" + "\n".join(f"- {each}" for each in those) for title, those in lists if those)


def overview(rows: Sequence[Row]) -> str:
    """A line for each cell: this library, the limit, and what users would take instead.

    Processor time is that of all processes for a step, beside that of computation alone. Below it there is with what
    the cells were measured, if that is not the same for all.

    Args:
        rows: of all cells.
    """
    peers = (MIRRORED, MIRRORED_BEST, HOROVOD, HOROVOD_BEST)
    head = (
        "workload",
        "workers",
        "rho",
        "rho, measured",
        "computation [ms]",
        "limit [ms]",
        "this library [ms]",
        "of the limit",
        "of the bound with processors",
        "processor, alone [s]",
    )
    lines = []
    for cell, those in by_cell(rows).items():
        ours, peer = those.get(OURS), best_peer(those)
        time_s, compute_s, limit_s = (None, None, None) if ours is None else (ours.time_s, ours.compute_s, ours.limit_s)
        of_limit = of_bound = gap = NONE
        bound_s = processor_bound_s(those)
        if time_s is not None and bound_s is not None:
            of_bound = f"{time_s / bound_s:.2f}"
        if time_s is not None and limit_s is not None:
            of_limit = f"{time_s / limit_s:.2f}"
            if peer is not None and peer.time_s is not None and peer.time_s > limit_s:
                gap = f"{(peer.time_s - time_s) / (peer.time_s - limit_s):.0%}"
        theirs = [_time(those.get(name)) for name in peers]
        effort = ", ".join(_processor(those.get(name)) for name in (OURS, COMPUTE))
        shown = (_rho(ours), _ms(compute_s), _ms(limit_s), _time(ours), of_limit, of_bound, effort, *theirs, gap)
        lines.append((cell.workload, str(cell.workers), f"{cell.rho:g}", *shown))
    table = markdown_table((*head, *(f"{TITLES[name]} [ms]" for name in peers), "gap closed"), lines)
    return "\n\n".join(
        [
            table,
            *_differing("versions of the program", rows, _program),
            *_differing("machines or kernels", rows, _machine),
        ]
    )


def _differing(what: str, rows: Sequence[Row], value: Callable[[Row], str]) -> list[str]:
    """Which cells were measured with which of several; nothing where all were with one."""
    found: dict[str, dict[Cell, None]] = {}
    for row in rows:
        found.setdefault(value(row), {})[row.cell] = None
    if len(found) < 2:
        return []
    most = max(found, key=lambda name: len(found[name]))
    told = [
        f"- {name}: {f'the other {len(those)}' if name == most else '; '.join(map(str, those))}"
        for name, those in sorted(found.items(), key=lambda each: each[0] == most)
    ]
    return [f"These cells are of {len(found)} {what}:\n\n" + "\n".join(told)]


def _time(row: Row | None) -> str:
    return NONE if row is None else _ms(row.time_s) if row.error is None else _lost(row)


def cell_table(rows: Sequence[Row]) -> str:
    """The contenders of a cell.

    Args:
        rows: of one cell.
    """
    ours = next((row for row in rows if row.contender == OURS), rows[0])
    facts = [
        f"{ours.examples} examples",
        f"links of {ours.link_bytes_per_s * 8 / 1e6:.4g} Mbit/s of payload",
        f"computation alone {_ms(ours.compute_s)} ms",
        f"limit {_ms(ours.limit_s)} ms",
        f"naive limit {_ms(ours.naive_limit_s)} ms",
        f"rho as measured {_rho(ours)}",
    ]
    parts = [f"{', '.join(facts)}.", _origin(rows), markdown_table(HEAD, map(_fields, rows))]
    notes = [f"- {row.contender} {_lost(row)}: {row.error}" for row in rows if row.error is not None]
    if (longest := drift(rows)) > MOST_DRIFT:
        notes.append(
            f"- disturbed: computation alone took {longest - 1:.0%} longer in one round than in another; --retry "
            "measures the cell once more"
        )
    return "\n\n".join([*parts, *(["\n".join(notes)] if notes else [])])


def measured_rho(row: Row | None) -> float | None:
    """The time that the links needed for what had to be sent, over that of computation alone.

    Sent must be what `Workload.sent_bytes` says, as for the nominal rho; None where the computation is not known.

    Args:
        row: of a contender of the cell; None without one.
    """
    workload = None if row is None else workload_of(row)
    if row is None or row.compute_s is None or workload is None:
        return None
    return workload.sent_bytes(row.workers) / row.link_bytes_per_s / row.compute_s


def _rho(row: Row | None) -> str:
    rho = measured_rho(row)
    return NONE if rho is None else f"{rho:.2f}"


def _origin(rows: Sequence[Row]) -> str:
    """When and with what a cell was measured, and where settings come from."""
    origin = rows[0].origin
    began_at, took_s = (None, None) if origin is None else (origin.began_at, origin.took_s)
    facts = [f"Measured: {began_at or NOT_RECORDED}", f"took: {NOT_RECORDED if took_s is None else f'{took_s:.0f} s'}"]
    swept = [row for row in rows if row.contender in SWEPT]
    if swept:
        chosen = dict.fromkeys(row.swept_in or NOT_RECORDED for row in swept)
        facts.append(f"peers' settings chosen in: {', '.join(chosen)}")
    facts += [f"program: {_program(rows[0])}", f"machine: {_machine(rows[0])}"]
    return f"{'; '.join(facts)}."


def _lost(row: Row) -> str:
    return "cannot run" if row.is_absent else "failed"


def _program(row: Row) -> str:
    commit = None if row.origin is None else row.origin.commit
    return row.program if commit is None else f"{row.program}, commit {commit}"


def _machine(row: Row) -> str:
    versions = {} if row.origin is None else row.origin.versions
    processor = versions.get("processor", f"processor {NOT_RECORDED}")
    named = {"cores": "{} cores", "kernel": "Linux {}"}
    return ", ".join(
        [str(processor), *(text.format(versions[name]) for name, text in named.items() if name in versions)]
    )


def _fields(row: Row) -> list[str]:
    settings = ", ".join(f"{name} {value}" for name, value in row.settings.items()).replace("|", "\\|")
    if row.time_s is None:
        return [row.contender, settings or NONE, _lost(row), *[NONE] * (len(HEAD) - 3)]
    low_s, high_s = np.percentile(row.times_s, [25, 75])
    # What sends nothing is not what the limits are about.
    limits = (None, None) if row.contender in COMPUTATIONS else (row.limit_s, row.naive_limit_s)
    return [
        row.contender,
        settings or NONE,
        _ms(row.time_s),
        f"{_ms(low_s)} to {_ms(high_s)}",
        *(NONE if limit_s is None else f"{row.time_s / limit_s:.2f}" for limit_s in limits),
        _processor(row),
        _ms(row.predicted_s),
        NONE if row.predicted_s is None else f"{row.predicted_s / row.time_s - 1:+.1%}",
        NONE if row.sent_bytes is None else f"{row.sent_bytes / 1e6:.2f}",
    ]


def _processor(row: Row | None) -> str:
    return NONE if row is None or row.processor_s is None else f"{row.processor_s:.2f}"


def _ms(time_s: float | None) -> str:
    return NONE if time_s is None else f"{time_s * 1e3:.4g}"


def ablation_costs(rows: Sequence[Row]) -> Mapping[Cell, Mapping[str, Ratio]]:
    """Time without each optimisation over that of the complete library, where both are known and not withdrawn.

    Args:
        rows: of all cells.
    """
    found: dict[Cell, dict[str, Ratio]] = {}
    for cell, those in by_cell(rows).items():
        ours = those.get(OURS)
        if ours is None or ours.time_s is None:
            continue
        for name in ABLATIONS:
            if name in those and those[name].time_s is not None and not is_withdrawn(those[name]):
                found.setdefault(cell, {})[name] = against(those[name], ours)
    return found


def ablation_table(rows: Sequence[Row]) -> str:
    """The same as a table, empty without any.

    Args:
        rows: of all cells.
    """
    costs = ablation_costs(rows)
    if not costs:
        return ""
    names = [name for name in ABLATIONS if any(name in each for each in costs.values())]
    those = by_cell(rows)
    lines = [
        [str(cell), *(_interval(each.get(name), those[cell].get(name)) for name in names)]
        for cell, each in costs.items()
    ]
    medians = [[each[name].median for each in costs.values() if name in each] for name in names]
    lines.append(["geometric mean", *(f"{geometric_mean(each):.3f}" for each in medians)])
    head = ("time / complete (95 % bounds)", *(ABLATIONS[name] for name in names))
    return markdown_table(head, lines)


def _interval(ratio: Ratio | None, row: Row | None) -> str:
    if row is not None and is_withdrawn(row):
        return "withdrawn"
    return _time(row) if ratio is None else f"{ratio.median:.3f} ({ratio.bounds(3)})"
