"""A bound of a step that counts processors, too: where they are short, no order of transfers helps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from benchmarks.training.names import COMPUTATIONS, OURS, computation_of
from benchmarks.training.profiles import EMULATED
from benchmarks.training.records import Row
from benchmarks.training.workloads import BY_NAME, Workload

Rows = Mapping[str, Row]
"""Of a cell, by contender."""


def workload_of(row: Row) -> Workload | None:
    """What was trained, with as many examples; None where there is no such workload any more.

    Args:
        row: of a contender.
    """
    known = {**BY_NAME, **EMULATED}
    return replace(known[row.workload], examples=row.examples) if row.workload in known else None


def least_byte_s(rows: Rows) -> float | None:
    """The least processor seconds that a contender of a cell needed for a byte that it sent; None if nobody says.

    That is what its step needed more than the computation alone, in its own TensorFlow. Messages are counted with
    their bytes: how many there were is not known of all contenders.

    Args:
        rows: of a cell.
    """
    found = []
    for name, row in rows.items():
        alone = rows.get(computation_of(name))
        if name in COMPUTATIONS or alone is None or alone.error is not None or row.error is not None:
            continue
        if row.processor_s is not None and alone.processor_s is not None and row.sent_bytes:
            found.append((row.processor_s - alone.processor_s) / (row.sent_bytes * row.workers))
    return max(min(found), 0.0) if found else None


def processor_s(rows: Rows) -> float | None:
    """The processor seconds, over the cores, that a step of a cell needs by what was measured; None if not known.

    That of the computation alone, of whoever computes it with the least, and for each byte that must be sent as little
    as any contender of the cell needed.

    Args:
        rows: of a cell.
    """
    row = next(iter(rows.values()), None)
    workload, byte_s = None if row is None else workload_of(row), least_byte_s(rows)
    cores = None if row is None or row.origin is None else row.origin.versions.get("cores")
    alone = [each.processor_s for name, each in rows.items() if name in COMPUTATIONS and each.processor_s is not None]
    if row is None or workload is None or byte_s is None or not alone or not isinstance(cores, int):
        return None
    return (min(alone) + byte_s * row.workers * workload.sent_bytes(row.workers)) / cores


def processor_bound_s(rows: Rows) -> float | None:
    """The seconds that a step takes with the cell's processors, and on its links; None if not known.

    The larger one of the limit and of `processor_s`. Who computes the same with less, or sends fewer messages, may be
    below it.

    Args:
        rows: of a cell.
    """
    ours, needed_s = rows.get(OURS), processor_s(rows)
    return None if ours is None or ours.limit_s is None or needed_s is None else max(ours.limit_s, needed_s)
