"""What measured numbers mean: clocks, versions, link rates. Nothing is measured here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from caramel.doctor.finding import Finding, ok, problem, warning
from caramel.util.units import format_time

CLOCKS_APART_S = 1.0
"""Difference of two clocks from which on it is said (our choice). No training needs a clock, but whoever compares the
logs of machines, or the ages of files, does."""

_SLOW = 0.25
"""Part of the middle rate below which a link is slow (our choice): estimates differ by a half from one to the next."""


@dataclass(frozen=True)
class LinkRate:
    """An estimated rate.

    Attributes:
        sender: noun for the one end, such as ``"worker 0"``.
        receiver: noun for the other end.
        bytes_per_s: bytes per second.
    """

    sender: str
    receiver: str
    bytes_per_s: float


def judged_clock(check: str, ahead_s: float, uncertainty_s: float) -> Finding:
    """Whether a clock is that of the driver.

    Args:
        check: noun for the clock.
        ahead_s: seconds by which it is ahead of the driver's.
        uncertainty_s: seconds by which that may be wrong.
    """
    certain_s = max(abs(ahead_s) - uncertainty_s, 0.0)
    bound = f"known to {format_time(max(uncertainty_s, 1e-6))}"
    if certain_s <= CLOCKS_APART_S:
        return ok(check, f"{format_time(abs(ahead_s))} from the driver's, {bound}")
    side = "ahead of" if ahead_s > 0 else "behind"
    return warning(
        check,
        f"{format_time(abs(ahead_s))} {side} the driver's, {bound}, so times in logs and of files do not compare",
        "let a time service set the clocks of both machines (chrony, systemd-timesyncd)",
    )


def judged_version(check: str, there: str | None, here: str) -> Finding:
    """Whether a server has the driver's TensorFlow.

    Args:
        check: noun for the server's version.
        there: its version; None if it does not say it.
        here: the driver's.
    """
    if there is None:
        return warning(check, "the server does not say which version it has", "look there: pip show tensorflow")
    if there == here:
        return ok(check, f"{there}, as the driver's")
    mend = f"install the same on both: pip install 'tensorflow=={here}' there"
    found = f"{there}, and the driver has {here}"
    is_near = there.split(".")[:2] == here.split(".")[:2]
    return warning(check, found, mend) if is_near else problem(check, found, mend)


def judged_rates(rates: Sequence[LinkRate]) -> Iterator[Finding]:
    """Estimated rates, and which are much below the others of their kind.

    Args:
        rates: rates of one kind of link; none give no finding.
    """
    if not rates:
        return
    middle = median(rate.bytes_per_s for rate in rates)
    for rate in rates:
        check = f"link from {rate.sender} to {rate.receiver}"
        text = f"about {format_bit_rate(rate.bytes_per_s)} (an estimate by one transfer)"
        if rate.bytes_per_s < _SLOW * middle:
            found = f"{text}, while the links of this kind have {format_bit_rate(middle)} in the middle"
            yield warning(
                check, found, "look for a slow port or cable, or for other traffic; caramel netbench measures"
            )
        else:
            yield ok(check, text)


def format_bit_rate(bytes_per_s: float) -> str:
    """A rate as network people say it.

    >>> format_bit_rate(12.5e6), format_bit_rate(1.5e9), format_bit_rate(1000)
    ('100 Mbit/s', '12 Gbit/s', '8 kbit/s')
    """
    bits = bytes_per_s * 8
    for factor, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s")):
        if bits >= 0.9995 * factor:
            return f"{bits / factor:.3g} {unit}"
    return f"{bits / 1e3:.3g} kbit/s"
