"""A network model for people to read."""

from __future__ import annotations

from collections.abc import Sequence

from caramel.errors import InputError
from caramel.netmodel.model import NetworkModel
from caramel.util.tables import aligned
from caramel.util.units import format_size, format_time

_SHOWN_SIZES = (64, 2**12, 2**16, 2**20, 2**22, 2**25)
"""Bytes of the transfers whose choices are shown."""


def as_text(network: NetworkModel, workers: Sequence[int] = ()) -> str:
    """What was measured, what was fitted, what does not fit, and what would be chosen.

    Args:
        network: network model.
        workers: numbers of workers whose choices are shown, besides those that were measured.
    """
    blocks = [f"network: {network.description}"]
    if network.curves:
        blocks.append(aligned([_CURVE_HEADER, *(_row(network, n) for n in range(len(network.curves)))]))
    if network.costs:
        rows = [("algorithm", "depth", "alpha", "beta", "gamma")]
        for (algorithm, depth), cost in network.costs.items():
            per_byte = (f"{cost.beta_s_per_byte * 1e9:.3g} ns/B", f"{cost.gamma_s_per_byte * 1e9:.3g} ns/B")
            rows.append((algorithm, str(depth), format_time(cost.alpha_s), *per_byte))
        blocks.append("for other numbers of workers (extrapolated):\n" + aligned(rows))
    for number in sorted({*network.workers, *workers}):
        blocks.append(_choices(network, number))
    if network.contentions:
        beside = [("workers", "algorithm", "depth", "bytes", "processor share", "slowdown", "occupancy")]
        for contention in network.contentions:
            size, share = format_size(contention.size_bytes), f"{contention.processor_share:.0%}"
            kind = (str(contention.workers), contention.algorithm, str(contention.depth))
            occupancy = "" if contention.occupancy is None else f"{contention.occupancy:.3g}"
            beside.append((*kind, size, share, f"{contention.slowdown:.3g}", occupancy))
        blocks.append("all-reduces while all workers compute:\n" + aligned(beside))
    if network.warnings:
        blocks.append("\n".join([_UNFIT, *(f"  warning: {warning}" for warning in network.warnings)]))
    return "\n\n".join(blocks)


_UNFIT = """\
Some lines miss what was measured. Plans take the measured times; only what is predicted of larger transfers, or of
other numbers of workers, is unsafe. A quieter machine helps, or larger sizes (--size):"""

_CURVE_HEADER = ("workers", "algorithm", "depth", "a", "b", "1/b", "threshold", "worst residual", "valid")
"""Titles of the columns that `_row` fills."""


def _row(network: NetworkModel, number: int) -> tuple[str, ...]:
    curve = network.curves[number]
    b = curve.line.b_s_per_byte
    sample, residual = curve.worst
    first, last = curve.valid_bytes
    return (
        str(curve.workers),
        curve.algorithm,
        str(curve.depth),
        format_time(curve.line.a_s),
        f"{b * 1e9:.3g} ns/B",
        "-" if b == 0 else f"{1e-6 / b:.4g} MB/s",
        format_size(curve.line.threshold_bytes),
        f"{residual:+.0%} at {format_size(sample.size_bytes)}",
        f"{format_size(first)} to {format_size(last)}",
    )


def _choices(network: NetworkModel, workers: int) -> str:
    try:
        threshold = format_size(network.threshold_bytes(workers))
    except (InputError, OverflowError):
        threshold = "unknown"  # nothing was measured at depth 1
    rows = [("bytes", "algorithm", "depth", "predicted", "basis")]
    for size in _SHOWN_SIZES:
        choice = network.choose(size, workers)
        time = format_time(choice.prediction.time_s)
        rows.append((format_size(size), choice.algorithm, str(choice.depth), time, choice.prediction.basis))
    return f"choices for {workers} workers (threshold {threshold}):\n" + aligned(rows)
