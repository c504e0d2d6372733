"""What the measurements should show, and whether they do."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from benchmarks.statistics import LEAST_ROUNDS, Ratio, geometric_mean, paired_ratio
from benchmarks.training.grid import is_core
from benchmarks.training.names import ABLATIONS, MIRRORED, OURS, PEERS, SWEPT
from benchmarks.training.processor_bound import processor_bound_s, processor_s
from benchmarks.training.records import MOST_DRIFT, Cell, Row, by_cell, drift

MOST_OF_PEER = 1.03
SPEED_UP = 1.6

KEPT, MISSED, INCOMPLETE, WITHDRAWN = "kept", "MISSED", "not all measured", "withdrawn"

PAPERS_POLICY = "caramel_paper"

PROGRAMS_WITHOUT_BUCKETS = frozenset({"3b606b5bdd2d", "5cd73cd4904e", "c31bcd3f0593", "f5b25b1a23bb"})
"""Versions of this library in which the paper's policy took the first jump of a network for its threshold, and so sent
each gradient by itself."""


@dataclass(frozen=True)
class Targets:
    """What cells of one kind should show.

    Attributes:
        about: which cells the limits are about, for people.
        is_about: the same.
        mean_of_limit: most of step / limit in the geometric mean.
        worst_of_limit: most of step / limit in any cell.
        mean_of_bound: most of step / the bound that counts processors, in the geometric mean of all cells; None where
            they have nothing to do.
        worst_of_bound: most of it in any cell.
        share_of_gap: least part of the best swept peer's distance to the limit that is closed.
        predicted_within: part of a step by which a prediction may be wrong.
        share_predicted: least part of the cells whose predictions are not.
        most_minutes: that measuring the cells may take; None for as many as it takes.
        most_processor: a cell is left out where the processor time that a step needs, over the cores, is a larger part
            of the limit (`processor_s`); None to leave out none.
    """

    about: str
    is_about: Callable[[Cell], bool]
    mean_of_limit: float
    worst_of_limit: float
    share_of_gap: float
    predicted_within: float
    share_predicted: float
    mean_of_bound: float | None = None
    worst_of_bound: float | None = None
    most_minutes: int | None = None
    most_processor: float | None = None


COMPUTED = Targets(
    "4 workers, rho 1 and 2",
    is_core,
    mean_of_limit=1.10,
    worst_of_limit=1.25,
    share_of_gap=0.70,
    predicted_within=0.10,
    share_predicted=0.80,
    mean_of_bound=1.06,
    worst_of_bound=1.20,
    most_minutes=100,
)
"""Of networks that the machine's processors compute."""

ACCELERATED = Targets(
    "4 and 8 workers, rho 0.5 to 2",
    lambda cell: cell.workers <= 8 and cell.rho <= 2.0,
    mean_of_limit=1.03,
    worst_of_limit=1.08,
    share_of_gap=0.90,
    predicted_within=0.05,
    share_predicted=0.90,
    most_processor=0.7,
)
"""Of networks on emulated accelerators."""

_LIKELY_PEERS = tuple(name for each in SWEPT.items() for name in each)

Rows = Mapping[str, Row]
T = TypeVar("T")

_MOST_NAMED = 10
"""Cells that are all named in a note."""

Missing = Sequence[tuple[Cell, str]]
"""Cells that say nothing, and why."""


@dataclass(frozen=True)
class Finding:
    """One thing that the measurements should show.

    Attributes:
        what: it is.
        value: what was measured; None if nothing was.
        shown: the same for people.
        target: for people.
        verdict: kept, missed, not all measured (what was measured does not miss it), or withdrawn.
        notes: where it was missed, and what is left out.
    """

    what: str
    value: float | None
    shown: str
    target: str
    verdict: str
    notes: tuple[str, ...]


def findings(rows: Iterable[Row], expected: Iterable[Cell] = (), targets: Targets = COMPUTED) -> list[Finding]:
    """All of them.

    Args:
        rows: of all cells.
        expected: cells that should be among them; those that are not count as not measured.
        targets: of cells of this kind.
    """
    cells: dict[Cell, Rows] = {cell: {} for cell in expected}
    cells.update(by_cell(rows))
    busy = _busy(cells, targets)
    everywhere, cells = cells, {cell: each for cell, each in cells.items() if cell not in busy}
    core = {cell: each for cell, each in cells.items() if targets.is_about(cell)}
    return [
        *_left_out(busy, targets),
        _failures(everywhere),
        *_over_limit(core, targets),
        _gap_closed(core, cells, targets),
        _slower(everywhere),
        _speed_up(cells),
        _predictions(cells, targets),
        *_over_bound(cells, targets),
        *(_gain(cells, name) for name in ABLATIONS if any(name in each for each in cells.values())),
        _disturbed(cells),
        *([] if targets.most_minutes is None else [_minutes(core, targets.about, targets.most_minutes)]),
    ]


def best_peer(rows: Rows, names: Iterable[str] = _LIKELY_PEERS) -> Row | None:
    """The fastest one of some peers.

    Args:
        rows: of a cell, by contender.
        names: of the peers; those that users would take instead, with chosen settings or with their defaults.
    """
    found = [rows[name] for name in names if name in rows and rows[name].time_s is not None]
    return min(found, key=lambda row: row.time_s or 0.0, default=None)


def is_withdrawn(row: Row) -> bool:
    """Whether a row is of the paper's policy, by a version in which that policy did something else."""
    return row.contender == PAPERS_POLICY and row.program in PROGRAMS_WITHOUT_BUCKETS


def against(row: Row, other: Row) -> Ratio:
    """The times of one contender over those of another one, round by round.

    Args:
        row: without an error.
        other: of the same cell, without an error.
    """
    return paired_ratio(row.times_s, other.times_s)


# -- each of them ----------------------------------------------------------------------------------


def _busy(cells: Mapping[Cell, Rows], targets: Targets) -> Mapping[Cell, float]:
    """Cells that say more of the machine's processors than of the accelerators, and the part of the limit they need."""
    if targets.most_processor is None:
        return {}

    def part(rows: Rows) -> float:
        needed_s = processor_s(rows)
        if needed_s is None:
            raise _Missing("the processor time of a byte is not known")
        return needed_s / _get(rows, OURS, "limit_s")

    found, _ = _of_each(cells, part)
    return {cell: each for cell, each in found.items() if each > targets.most_processor}


def _left_out(busy: Mapping[Cell, float], targets: Targets) -> list[Finding]:
    if targets.most_processor is None:
        return []
    what = f"cells left out, whose processor time over the cores is more than {targets.most_processor:g} of the limit"
    notes = tuple(f"{cell}: {each:.2f}" for cell, each in busy.items())
    return [Finding(what, float(len(busy)), str(len(busy)), "none", KEPT, notes)]


def _failures(cells: Mapping[Cell, Rows]) -> Finding:
    failed: list[str] = []
    missing: list[tuple[Cell, str]] = []
    for cell, rows in cells.items():
        if OURS not in rows:
            missing.append((cell, f"{OURS} was not measured"))
        elif rows[OURS].error is not None:
            failed.append(f"{cell}: {rows[OURS].error}")
    shown = f"{len(failed)} of {len(cells) - len(missing)}"
    return _finding("cells in which this library failed", float(len(failed)), shown, "0", not failed, missing, failed)


def _over_limit(core: Mapping[Cell, Rows], targets: Targets) -> list[Finding]:
    found, missing = _of_each(core, lambda rows: _get(rows, OURS) / _get(rows, OURS, "limit_s"))
    names = tuple(f"step / limit, {kind} of {targets.about}" for kind in ("geometric mean", "the worst"))
    most = tuple(f"at most {each:.2f}" for each in (targets.mean_of_limit, targets.worst_of_limit))
    if not found:
        return [_nothing(what, target, missing) for what, target in zip(names, most)]
    mean, worst = geometric_mean(list(found.values())), max(found.values())
    over = [f"{cell}: {ratio:.3f}" for cell, ratio in found.items() if ratio > targets.worst_of_limit]
    return [
        _finding(names[0], mean, f"{mean:.3f}", most[0], mean <= targets.mean_of_limit, missing),
        _finding(names[1], worst, f"{worst:.3f}", most[1], not over, missing, over),
    ]


def _over_bound(cells: Mapping[Cell, Rows], targets: Targets) -> list[Finding]:
    if targets.mean_of_bound is None or targets.worst_of_bound is None:
        return []

    def ratio(rows: Rows) -> float:
        bound_s = processor_bound_s(rows)
        if bound_s is None:
            raise _Missing("the processor time of a byte is not known")
        return _get(rows, OURS) / bound_s

    found, missing = _of_each(cells, ratio)
    names = tuple(f"step / the bound that counts processors, {kind}" for kind in ("geometric mean", "the worst"))
    most = tuple(f"at most {each:.2f}" for each in (targets.mean_of_bound, targets.worst_of_bound))
    if not found:
        return [_nothing(what, target, missing) for what, target in zip(names, most)]
    mean, worst = geometric_mean(list(found.values())), max(found.values())
    over = [f"{cell}: {each:.3f}" for cell, each in found.items() if each > targets.worst_of_bound]
    shown = f"{mean:.3f} over {_cells(len(found))}"
    return [
        _finding(names[0], mean, shown, most[0], mean <= targets.mean_of_bound, missing),
        _finding(names[1], worst, f"{worst:.3f}", most[1], not over, missing, over),
    ]


def _gap_closed(core: Mapping[Cell, Rows], cells: Mapping[Cell, Rows], targets: Targets) -> Finding:
    what = f"share of the best swept peer's distance to the limit that is closed, median of {targets.about}"
    target = f"at least {targets.share_of_gap:.0%}"

    def gap(rows: Rows, names: Iterable[str] = _LIKELY_PEERS) -> tuple[float, float]:
        peer = best_peer(rows, names)
        if peer is None:
            raise _Missing("no swept peer has a time")
        peer_s, ours_s, limit_s = _get(rows, peer.contender), _get(rows, OURS), _get(rows, OURS, "limit_s")
        return peer_s - ours_s, peer_s - limit_s

    found, missing = _of_each(core, gap)
    everywhere, _ = _of_each(cells, gap)
    beside_all, _ = _of_each(core, lambda rows: gap(rows, PEERS))
    shares, all_shares, shares_beside_all = (
        [closed / whole for closed, whole in those.values() if whole > 0] for those in (found, everywhere, beside_all)
    )
    notes = [f"{cell}: left out, the peer is at the limit" for cell, (_, whole) in found.items() if whole <= 0]
    if len(all_shares) > len(shares):
        notes.append(f"of all {_cells(len(all_shares))}: {statistics.median(all_shares):.1%}")
    if shares_beside_all and any(name in rows for rows in core.values() for name in set(PEERS) - set(_LIKELY_PEERS)):
        share = statistics.median(shares_beside_all)
        notes.append(f"beside the best of all peers, TensorFlow's all-reduces and parameter servers too: {share:.1%}")
    if not shares:
        return _nothing(what, target, missing, notes)
    share = statistics.median(shares)
    shown = f"{share:.1%} over {_cells(len(shares))}"
    return _finding(what, share, shown, target, share >= targets.share_of_gap, missing, notes)


def _slower(cells: Mapping[Cell, Rows]) -> Finding:
    """By the lower bounds of the ratios: whoever is slower than that is so for sure."""
    what = "step / that of any peer, the largest lower 95 % bound"
    ratios: dict[tuple[Cell, str], Ratio] = {}
    missing: list[tuple[Cell, str]] = []
    for cell, rows in cells.items():
        # A cell without peers, too, says nothing of this.
        for name in [name for name in PEERS if name in rows] or [MIRRORED]:
            try:
                ratio = _against(rows, OURS, name)
                if not ratio.has_bounds:
                    raise _Missing(f"no bound of fewer than {LEAST_ROUNDS} rounds")
                ratios[cell, name] = ratio
            except _Missing as error:
                missing.append((cell, str(error)))
    target = f"at most {MOST_OF_PEER:.2f}"
    if not ratios:
        return _nothing(what, target, missing)
    worst = max(ratios, key=lambda each: ratios[each].low)
    slower = [
        f"{cell}: {r.median:.3f} of the time of {name}, at least {r.low:.3f}"
        for (cell, name), r in ratios.items()
        if r.low > MOST_OF_PEER
    ]
    low = ratios[worst].low
    unsure = {key: ratio for key, ratio in ratios.items() if ratio.high > MOST_OF_PEER}
    above = f"the upper bound is above {MOST_OF_PEER:.2f} in {len(unsure)} of {len(ratios)} pairs"
    shown = f"{low:.3f} ({worst[1]}); {above}"
    notes = [*slower, *(f"{cell}: at most {r.high:.3f} of the time of {name}" for (cell, name), r in unsure.items())]
    return _finding(what, low, shown, target, not slower, missing, notes)


def _speed_up(cells: Mapping[Cell, Rows]) -> Finding:
    what = f"speed-up over {PEERS[MIRRORED]} with its defaults, geometric mean where the limit allows {SPEED_UP}"

    def times(rows: Rows) -> tuple[float, float, float]:
        return _get(rows, MIRRORED), _get(rows, OURS), _get(rows, OURS, "limit_s")

    found, missing = _of_each(cells, times)
    allowed = [theirs / ours for theirs, ours, limit in found.values() if theirs / limit >= SPEED_UP]
    notes = [
        f"{cell}: left out, the limit allows {theirs / limit:.2f}, reached {theirs / ours:.2f}"
        for cell, (theirs, ours, limit) in found.items()
        if theirs / limit < SPEED_UP
    ]
    if not allowed:
        return _nothing(what, f"at least {SPEED_UP}", missing, notes)
    mean = geometric_mean(allowed)
    shown = f"{mean:.2f} over {_cells(len(allowed))}"
    return _finding(what, mean, shown, f"at least {SPEED_UP}", mean >= SPEED_UP, missing, notes)


def _predictions(cells: Mapping[Cell, Rows], targets: Targets) -> Finding:
    what = f"cells whose step is predicted within {targets.predicted_within:.0%}"
    found, missing = _of_each(cells, lambda rows: _get(rows, OURS, "predicted_s") / _get(rows, OURS) - 1)
    target = f"at least {targets.share_predicted:.0%}"
    if not found:
        return _nothing(what, target, missing)
    off = [f"{cell}: off by {each:+.1%}" for cell, each in found.items() if abs(each) > targets.predicted_within]
    share = 1 - len(off) / len(found)
    shown = f"{share:.0%} of {_cells(len(found))}"
    return _finding(what, share, shown, target, share >= targets.share_predicted, missing, off)


def _gain(cells: Mapping[Cell, Rows], name: str) -> Finding:
    what = f"step with {ABLATIONS[name]} / complete, geometric mean"
    found, missing = _of_each(cells, lambda rows: _against(rows, name, OURS))
    target = "above 1"
    if not found:
        return _nothing(what, target, missing)
    mean = geometric_mean([each.median for each in found.values()])
    gaining = sum(each.median > 1 for each in found.values())
    shown = f"{mean:.3f}, above 1 in {gaining} of {_cells(len(found))}"
    below = [f"{cell}: {each.median:.3f}" for cell, each in found.items() if each.median <= 1]
    finding = _finding(what, mean, shown, target, mean > 1, missing, below)
    old = [cell for cell in found if is_withdrawn(cells[cell][name])]
    if not old:
        return finding
    note = (
        f"{_cells(len(old))} were measured with a threshold at the first jump of the network, with which that policy "
        "never made a bucket: this says nothing of the paper's rules until they are measured anew"
    )
    return replace(finding, verdict=WITHDRAWN, notes=(note, *finding.notes))


def _disturbed(cells: Mapping[Cell, Rows]) -> Finding:
    longest = {cell: drift(rows.values()) for cell, rows in cells.items() if rows}
    notes = [f"{cell}: {each - 1:.0%}" for cell, each in longest.items() if each > MOST_DRIFT]
    what = f"cells in which computation alone took {MOST_DRIFT - 1:.0%} longer in one round than in another"
    missing = [(cell, "not measured") for cell, rows in cells.items() if not rows]
    return _finding(what, float(len(notes)), f"{len(notes)} of {len(longest)}", "0", not notes, missing, notes)


def _minutes(core: Mapping[Cell, Rows], about: str, most: int) -> Finding:
    """How long the cells took that the limits are about, with all that was prepared for them."""

    def took_s(rows: Rows) -> float:
        for row in rows.values():
            if row.origin is None or row.origin.took_s is None:
                raise _Missing("not recorded")
            return row.origin.took_s
        raise _Missing("not measured")

    what = f"minutes that measuring took, {about}"
    target = f"at most {most}"
    found, missing = _of_each(core, took_s)
    if not found:
        return replace(_nothing(what, target, missing), shown="not recorded" if core else "nothing")
    minutes = sum(found.values()) / 60
    shown = f"{minutes:.0f} for {_cells(len(found))}"
    return _finding(what, minutes, shown, target, minutes <= most, missing)


# -- what they share -------------------------------------------------------------------------------


class _Missing(Exception):
    """Why a cell says nothing."""


def _get(rows: Rows, name: str, attribute: str = "time_s") -> float:
    if name not in rows:
        raise _Missing(f"{name} was not measured")
    if rows[name].error is not None:
        raise _Missing(f"{name} failed")
    value: float | None = getattr(rows[name], attribute)
    if value is None:
        raise _Missing(f"{name} has no {attribute}")
    return value


def _against(rows: Rows, name: str, other: str) -> Ratio:
    _get(rows, name), _get(rows, other)
    return against(rows[name], rows[other])


def _of_each(cells: Mapping[Cell, Rows], value: Callable[[Rows], T]) -> tuple[dict[Cell, T], Missing]:
    """The value of each cell that has one, and why the others have none."""
    found: dict[Cell, T] = {}
    missing: list[tuple[Cell, str]] = []
    for cell, rows in cells.items():
        try:
            found[cell] = value(rows)
        except _Missing as error:
            missing.append((cell, str(error)))
    return found, missing


def _finding(
    what: str,
    value: float,
    shown: str,
    target: str,
    is_kept: bool,
    missing: Missing,
    notes: Sequence[str] = (),
) -> Finding:
    verdict = MISSED if not is_kept else INCOMPLETE if missing else KEPT
    return Finding(what, value, shown, target, verdict, (*notes, *_by_reason(missing)))


def _nothing(what: str, target: str, missing: Missing, notes: Sequence[str] = ()) -> Finding:
    return Finding(what, None, "nothing", target, INCOMPLETE, (*notes, *_by_reason(missing)))


def _by_reason(missing: Missing) -> list[str]:
    """Each reason once: a grid that is half measured lacks the same of many cells."""
    cells: dict[str, dict[Cell, None]] = {}
    for cell, reason in missing:
        cells.setdefault(reason, {})[cell] = None
    return [f"{reason}: {_named(list(those))}" for reason, those in cells.items()]


def _named(cells: Sequence[Cell]) -> str:
    """Cells by their names, of many the first ones."""
    shown = cells if len(cells) <= _MOST_NAMED else cells[: _MOST_NAMED // 2]
    names = "; ".join(map(str, shown))
    return names if len(shown) == len(cells) else f"{names}; and {len(cells) - len(shown)} more"


def _cells(count: int) -> str:
    return f"{count} cell{'s' if count > 1 else ''}"
