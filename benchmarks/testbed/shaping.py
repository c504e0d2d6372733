"""Rates of links, and the token bucket filter (tbf) that keeps them."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from caramel.errors import InputError

_BURST_S = 0.5e-3
"""How long a link that has been idle may send unshaped.

Measured on Linux 6.18: with this, the payload of one TCP stream has 96 % of 100 and 500 Mbit/s (what Ethernet, IP and
TCP headers leave) and 93 to 95 % of 1000 Mbit/s, no less at 500 Mbit/s when all cores are busy; and 256 KiB at
500 Mbit/s take 4.2 of the 4.4 ms that they should. A burst of a kernel's tick (4 ms) lets them through in 0.7 ms.
"""

_LEAST_BURST_BYTES = 16 * 1024
"""Below this, shaping costs more timer interrupts and gains nothing: measured at 100 Mbit/s, where 64 KiB take 4.4 of
5.5 ms with 16 KiB, and 256 KiB take 20.9 of 21.9 ms."""

LONG_BURST_BYTES = 32 * 1024
"""A burst for slow links, on which training steps are compared. The kernel passes packets on in bundles of three
quarters of it, and the fewer, the less processor time they take. Messages that are shorter, which are few, are not
slowed."""

PAYLOAD = 1448 / 1514
"""Of an Ethernet frame with a TCP segment, the part that TCP carries."""

_PACKET_BYTES = 1514
"""An Ethernet frame as the filter counts it; tbf drops whatever is longer than its burst."""

_QUEUE_S = 5e-3
_LEAST_QUEUE_BYTES = 256 * 1024
"""The queue of a link, about that of a switch's port. With 50 ms, streams that meet share a link less evenly (three
into one 500 Mbit/s host: 51, 40 and 5 % instead of 24, 31 and 40 %)."""

_LONGEST_PACKET_BYTES = 65536
"""The kernel hands TCP segments to a device in such bundles, unless told to make them shorter."""


def checked_rate(rate_bytes_per_s: float) -> float:
    """The rate itself.

    Raises:
        InputError: it is not positive and finite.
    """
    if not (math.isfinite(rate_bytes_per_s) and rate_bytes_per_s > 0):
        raise InputError(f"a link's rate must be positive and finite, not {rate_bytes_per_s:g} bytes per second")
    return rate_bytes_per_s


@dataclass(frozen=True)
class Shape:
    """What the token bucket filter at each end of a link does.

    Attributes:
        rate_bytes_per_s: the rate, of Ethernet frames.
        burst_bytes: how much passes unshaped when the link has been idle.
        queue_bytes: how much waits before packets are dropped.
    """

    rate_bytes_per_s: float
    burst_bytes: int
    queue_bytes: int


def shape(rate_bytes_per_s: float, burst_bytes: int | None = None) -> Shape:
    """The filter for a rate.

    A bucket must hold what passes between two interrupts of the kernel's timer, and should hold no more: a message
    as long as the burst passes as if there were no limit. With high-resolution timers that is `_BURST_S`, without
    them a tick of the kernel (1 / HZ), which is then what the clock's resolution says.

    Raises:
        InputError: the rate is not positive and finite, or the burst shorter than a packet.
    """
    rate = checked_rate(rate_bytes_per_s)
    if burst_bytes is None:
        timer_s = max(_BURST_S, time.clock_getres(time.CLOCK_MONOTONIC))
        burst_bytes = max(math.ceil(rate * timer_s), _LEAST_BURST_BYTES)
    elif burst_bytes < _PACKET_BYTES:
        raise InputError(f"a burst of {burst_bytes} bytes lets no packet through: at least {_PACKET_BYTES} are needed")
    return Shape(rate, burst_bytes, max(math.ceil(rate * _QUEUE_S), _LEAST_QUEUE_BYTES, burst_bytes))


def packet_command(interface: str, wanted: Shape | None) -> list[str]:
    """The command that limits the bundles of segments which an interface is handed.

    The filter takes bundles that are longer than its burst apart, packet by packet, on the processor: at 500 Mbit/s
    that costs four hosts in a ring two whole cores, and the rate (37 to 72 % of it instead of 95 %).
    """
    longest = _LONGEST_PACKET_BYTES if wanted is None else min(wanted.burst_bytes * 3 // 4, _LONGEST_PACKET_BYTES)
    return ["ip", "link", "set", "dev", interface, "gso_max_size", str(max(longest, 2 * _PACKET_BYTES))]


def shaping_command(interface: str, wanted: Shape | None) -> list[str]:
    """The command that makes an interface send like this from now on, or unshaped."""
    command = ["tc", "qdisc", "replace", "dev", interface, "root"]
    if wanted is None:
        return [*command, "noqueue"]
    rate, burst, queue = f"{wanted.rate_bytes_per_s * 8:.0f}bit", str(wanted.burst_bytes), str(wanted.queue_bytes)
    return [*command, "tbf", "rate", rate, "burst", burst, "limit", queue]
