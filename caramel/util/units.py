"""Sizes and rates as people write them; SI units everywhere else."""

from __future__ import annotations

import math
import re

from caramel.errors import InputError

_PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
"""Factor of a unit's prefix, by the prefix in lower case."""


def parse_rate(text: str) -> float:
    """Bytes per second from such as ``500mbit``, ``10 Gbit/s`` or ``62.5MB/s``.

    >>> parse_rate("500mbit"), parse_rate("10 Gbit/s"), parse_rate("62.5MB")
    (62500000.0, 1250000000.0, 62500000.0)

    Raises:
        InputError: the text cannot be read, or the rate is not positive and finite.
    """
    # A lower-case b could mean bits or bytes, so it is neither.
    match = re.fullmatch(
        r"\s*([0-9.]+(?:e[+-]?\d+)?)\s*((?i:[kmgt]i?))?((?i:bits?|bytes?)|bps|B)((?i:/s|ps))?\s*", text
    )
    if match is None:
        raise InputError(f"cannot read the rate {text!r}: write it like 500mbit, 10Gbit/s or 62.5MB/s")
    number, prefix, unit, _ = match.groups()
    rate = (
        _number(number, text)
        * _PREFIXES[(prefix or "").lower()]
        / (8 if unit.lower().startswith(("bit", "bps")) else 1)
    )
    if not (math.isfinite(rate) and rate > 0):
        raise InputError(f"the rate {text!r} must be positive and finite")
    return rate


def parse_size(text: str) -> int:
    """Bytes from such as ``64``, ``64B``, ``16KiB``, ``4MiB`` or ``1MB``.

    >>> parse_size("64"), parse_size("16KiB"), parse_size("1.5 MB")
    (64, 16384, 1500000)

    Raises:
        InputError: the text cannot be read, or the size is not a whole number of bytes.
    """
    match = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]i?)?(B|bytes?)?\s*", text, re.IGNORECASE)
    size = -1.0 if match is None else _number(match[1], text) * _PREFIXES[(match[2] or "").lower()]
    if not 0 <= size < 2**60 or size != int(size):
        raise InputError(f"cannot read the size {text!r}: write it like 64, 16KiB or 4MiB")
    return int(size)


def _number(digits: str, text: str) -> float:
    try:
        return float(digits)
    except ValueError as error:
        raise InputError(f"cannot read {text!r}: {digits!r} is not a number") from error


def format_size(size_bytes: float) -> str:
    """A size for people.

    >>> [format_size(n) for n in (64, 16384, 4 * 2**20, 1500)]
    ['64 B', '16 KiB', '4 MiB', '1.46 KiB']
    """
    if math.isinf(size_bytes):
        return "infinite"
    for unit in ("B", "KiB", "MiB"):
        if round(size_bytes, 1) < 1024:
            return f"{size_bytes:.0f} {unit}" if size_bytes >= 1000 else f"{size_bytes:.3g} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.0f} GiB" if size_bytes >= 1000 else f"{size_bytes:.3g} GiB"


def format_number(value: float) -> str:
    """A number with four digits, or with all that are before the point.

    >>> [format_number(value) for value in (0.12345, 513.27, 15190.4)]
    ['0.1235', '513.3', '15,190']
    """
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def format_time(time_s: float) -> str:
    """A time for people.

    >>> [format_time(t) for t in (12e-6, 0.0034, 2.5)]
    ['12 us', '3.4 ms', '2.5 s']
    """
    if time_s < 0.9995e-3:
        return f"{time_s * 1e6:.3g} us"
    return f"{time_s * 1e3:.3g} ms" if time_s < 0.9995 else f"{time_s:.3g} s"


def format_ms(time_s: float, digits: int = 4) -> str:
    """A time in milliseconds, so that times can be compared.

    >>> [format_ms(t) for t in (0.0123456, 1.5, 98.7654, 0.0)], format_ms(1.5, digits=3)
    (['12.35 ms', '1500 ms', '98,765 ms', '0 ms'], '1,500 ms')

    Args:
        time_s: the seconds.
        digits: number of significant digits; all digits before the point are shown.
    """
    time_ms = time_s * 1e3
    return f"{time_ms:.{digits}g} ms" if abs(time_ms) < 10**digits - 0.5 else f"{time_ms:,.0f} ms"


def more_or_less(ratio: float) -> str:
    """How much more or less than another something is.

    Args:
        ratio: the one over the other.

    >>> more_or_less(0.95), more_or_less(1.012)
    ('5.0% less', '1.2% more')
    """
    return f"{abs(ratio - 1):.1%} {'less' if ratio < 1 else 'more'}"
