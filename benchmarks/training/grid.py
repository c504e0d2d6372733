"""What is measured, in which order, and how contenders take turns."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.testbed.shaping import PAYLOAD
from benchmarks.training.contender import SETTLING_STEPS, Contender, Settings
from benchmarks.training.entry import Conditions, Entry, checked_burst, step_time_s
from benchmarks.training.meters import Meter
from benchmarks.training.names import MIRRORED, OURS
from benchmarks.training.profiles import COMPUTATION_S, EMULATED, TOTAL_BYTES
from benchmarks.training.records import Cell, Row, Tried
from benchmarks.training.workloads import BY_NAME, Workload
from caramel.errors import CaramelError, ClusterError, InputError, in_one_line

CORE_WORKERS = 4
CORE_RHOS = (1.0, 2.0)
"""The cells that the limits are about."""

FEW = ("vgg", "transformer")
"""The workloads of other numbers of workers: dense gradients only, and sparse ones too."""

QUICK = ("vgg", "resnet")
"""Those of a quick run: few large gradients and many small ones, on links of one rate, which are measured once."""

MULTIPLE = 8
"""Of the examples of a batch, so that up to as many workers have equal parts."""

_FEWEST, _MOST = 1 / 16, 8
"""Of a workload's own number of examples. On slow processors few do; links of yet another rate take long to measure."""

_RATE_UNIT = 1e5
"""Bits per second, of which links that are chosen have a whole number."""

_LONGEST_S = 0.8
"""Of the computation of a step for which links are chosen."""


# -- which cells -----------------------------------------------------------------------------------


def cells(quick: bool = False, core: bool = False, workloads: Sequence[str] = tuple(BY_NAME)) -> list[Cell]:
    """The cells in the order in which they are measured: what the limits are about comes first.

    Args:
        quick: just a few workloads, on one kind of network.
        core: only what the limits are about.
        workloads: names of those that are wanted.
    """
    if quick:
        wanted = [name for name in QUICK if name in workloads] or workloads
        return [Cell(name, CORE_WORKERS, 1.0) for name in wanted]
    found = [Cell(name, CORE_WORKERS, rho) for rho in CORE_RHOS for name in workloads]
    if not core:
        found += [Cell(name, CORE_WORKERS, 0.5) for name in workloads]
        found += [Cell(name, workers, 1.0) for workers in (2, 8) for name in FEW if name in workloads]
    return found


def emulated_cells() -> list[Cell]:
    """Those with emulated accelerators: first what the limits are about, then more hosts and slower links."""
    first = [Cell(name, workers, rho) for workers in (4, 8) for rho in (1.0, 2.0, 0.5) for name in EMULATED]
    further = [Cell(name, workers, 4.0) for workers in (4, 8) for name in EMULATED]
    return first + further + [Cell(name, 16, rho) for rho in (1.0, 2.0, 0.5, 4.0) for name in EMULATED]


def on_links(workload: Workload, workers: int, rho: float) -> Workload:
    """An emulated workload with links on which sending takes so many times as long as computing.

    The links are the same for all of them, as their totals are.

    Args:
        workload: of `EMULATED`.
        workers: number of workers.
        rho: as for `link_rate`.
    """
    sent_bytes = 2 * (workers - 1) / workers * TOTAL_BYTES
    bits_per_s = 8 * sent_bytes / (rho * COMPUTATION_S) / PAYLOAD
    return replace(workload, link_bits_per_s=bits_per_s * min(rho, 1.0))


def is_core(cell: Cell) -> bool:
    """Whether the limits are about a cell."""
    return cell.workers == CORE_WORKERS and cell.rho in CORE_RHOS


def link_rate(workload: Workload, rho: float) -> float:
    """Bytes of frames per second of the links: more only where little time is to go into sending.

    >>> link_rate(BY_NAME["vgg"], 0.5) == 2 * link_rate(BY_NAME["vgg"], 1.0) == 2 * link_rate(BY_NAME["vgg"], 2.0)
    True

    Args:
        workload: what is trained.
        rho: seconds that the links need for what must be sent in a step, over seconds of computation.

    Raises:
        InputError: rho is not positive and finite.
    """
    if not (math.isfinite(rho) and rho > 0):
        raise InputError(f"rho must be positive and finite, not {rho:g}")
    return workload.link_bits_per_s / 8 / min(rho, 1.0)


def with_rho(workload: Workload, workers: int, fixed_s: float, example_s: float, rho: float) -> Workload:
    """The workload with so many examples that the computation takes 1 / rho of the links' time.

    Where examples bring about as many bytes as time, or a step takes long without any, that would be a number far
    from the workload's own, and one that depends on the least error of these times. Then the links are made for the
    workload's own examples, or for as many as take no longer than steps shall.

    Args:
        workload: what is trained; what a step sends may grow with its examples.
        workers: number of workers.
        fixed_s: seconds that a step of all workers takes without examples.
        example_s: seconds that each example adds.
        rho: as for `link_rate`.

    Returns:
        The workload with a multiple of 8 examples and the bits per second of its links.

    Raises:
        InputError: a number is not positive (or zero, for `fixed_s`) and finite, or there is nothing to send.
    """
    if not (math.isfinite(example_s) and example_s > 0 and math.isfinite(fixed_s) and fixed_s >= 0):
        raise InputError(
            f"the time of an example must be positive and finite, and that without any not negative; they are "
            f"{example_s:g} s and {fixed_s:g} s"
        )
    rate = PAYLOAD * link_rate(workload, rho)
    always_bytes, more_bytes = (replace(workload, examples=n * workers).sent_bytes(workers) for n in (0, 1))
    example_bytes = (more_bytes - always_bytes) / workers
    if workload.sent_bytes(workers) <= 0:
        raise InputError(f"no batch makes rho {rho:g} where a step sends nothing")
    free_s = always_bytes / rate / rho - fixed_s  # for the examples to compute in, beside their own bytes
    left_s = example_s - example_bytes / rate / rho
    wanted = free_s / left_s if left_s > 0 else math.inf
    if _FEWEST * workload.examples <= wanted <= _MOST * workload.examples:
        return replace(workload, examples=max(round(wanted / MULTIPLE), 1) * MULTIPLE)
    examples = max(int(min(workload.examples, (_LONGEST_S - fixed_s) / example_s) / MULTIPLE), 1) * MULTIPLE
    sent_bytes = always_bytes + examples * example_bytes
    needed_rate = sent_bytes / rho / (fixed_s + examples * example_s) / PAYLOAD
    link_bits_per_s = max(round(needed_rate * 8 * min(rho, 1.0) / _RATE_UNIT), 1) * _RATE_UNIT
    return replace(workload, examples=examples, link_bits_per_s=link_bits_per_s)


def fitted_times(small: tuple[int, float], large: tuple[int, float]) -> tuple[float, float]:
    """The seconds of a step without examples, and those of each example, from steps of two sizes.

    >>> fitted_times((100, 0.75), (200, 1.25))
    (0.25, 0.005)

    Args:
        small: examples, and the seconds of their step.
        large: the same with more examples.

    Returns:
        Both. Where steps grow more than their examples do, or not at all, nothing is taken to be fixed.
    """
    (few, few_s), (many, many_s) = small, large
    example_s = (many_s - few_s) / (many - few)
    fixed_s = few_s - few * example_s
    return (fixed_s, example_s) if fixed_s >= 0 and example_s > 0 else (0.0, many_s / many)


# -- one cell --------------------------------------------------------------------------------------


def run_cell(
    cell: Cell,
    contenders: Sequence[Contender],
    conditions: Conditions,
    read: Meter,
    rounds: int,
    steps: int,
    show: Callable[[int, str], None] = lambda done, text: None,
) -> list[Row]:
    """Measure all contenders in turn, each round beginning with another one.

    A contender that fails, or whose first losses are not those of MultiWorkerMirroredStrategy (or of another peer, if
    that fails), has an error in its row, is closed, and takes no further part.

    Args:
        cell: what they train.
        contenders: which have not run a step yet, so that their losses begin where the others' do.
        conditions: of the cell.
        read: what is measured beside the times.
        rounds: how often each is measured, after a burst that is not recorded.
        steps: that follow each other and count, after one that does not.
        show: is called with the number of bursts so far, of (rounds + 1) * contenders, and what comes next.

    Returns:
        The contenders' rows, in their order.

    Raises:
        InputError: two contenders have one name, or there are no rounds or steps.
    """
    entries = [Entry(contender) for contender in contenders]
    names = [entry.name for entry in entries]
    if len(set(names)) < len(names) or min(rounds, steps) < 1:
        raise InputError(f"{rounds} rounds of {steps} steps of {names}: at least one of each, and no name twice")
    for number, entry in enumerate(entries):
        show(number, f"{cell}: {entry.name}")
        entry.warm_up()
    # A fault of this library must not look like one of its peers.
    judges = sorted(entries, key=lambda each: (each.name.startswith(OURS), each.name != MIRRORED))
    reference = next((each for each in judges if each.is_comparable), None)
    if reference is not None:
        for entry in entries:
            entry.compare(reference)
    for number in range(rounds):
        alive = [entry for entry in entries if entry.error is None]
        first = number % max(len(alive), 1)
        for place, entry in enumerate(alive[first:] + alive[:first]):
            show((number + 1) * len(entries) + place, f"{cell}: {entry.name}")
            entry.measure(steps, read)
    times_s = {entry.name: entry.time_s for entry in entries}
    return [entry.row(cell, conditions, times_s) for entry in entries]


# -- settings --------------------------------------------------------------------------------------


def sweep(
    candidates: Sequence[tuple[Settings, Callable[[], Contender]]], bursts: int = 3, steps: int = 2
) -> tuple[Tried, ...]:
    """Try settings, each with contenders made for this alone.

    Args:
        candidates: settings, and what makes a contender of them.
        bursts: that count, after two steps that do not.
        steps: of each, after one that does not count.

    Raises:
        InputError: there are no candidates, bursts or steps.
    """
    if not candidates or min(bursts, steps) < 1:
        raise InputError(f"{bursts} bursts of {steps} steps of {len(candidates)} settings: at least one of each")
    return tuple(_try(settings, make, bursts, steps) for settings, make in candidates)


def best_of(tried: Sequence[Tried]) -> Settings:
    """The settings with the least time, the first of equal ones.

    Raises:
        ClusterError: none works.
    """
    working = [each for each in tried if each.time_s is not None]
    if not working:
        first = f"; the first one: {tried[0].error}" if tried else ""
        raise ClusterError(f"none of {len(tried)} settings works{first}")
    return min(working, key=lambda each: each.time_s or 0.0).settings


def _try(settings: Settings, make: Callable[[], Contender], bursts: int, steps: int) -> Tried:
    try:
        contender = make()
        try:
            checked_burst(contender, SETTLING_STEPS)
            found = [checked_burst(contender, steps + 1) for _ in range(bursts)]
        finally:
            contender.close()
    except CaramelError as error:
        return Tried(settings, None, in_one_line(error))
    return Tried(settings, statistics.median(map(step_time_s, found)), None)
