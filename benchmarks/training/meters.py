"""What is measured beside the time: processor time, and bytes on the links."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.testbed.host import Host
from benchmarks.testbed.lookup import namespace_id


@dataclass(frozen=True)
class Reading:
    """Of some processes and all links, so far or in a step.

    Attributes:
        processor_s: seconds that the processes on each host have used, and at the end those on none of them, such as of
            this machine's own network; empty if one of them has ended.
        sent_bytes: of each host.
        received_bytes: of each host.
    """

    processor_s: tuple[float, ...]
    sent_bytes: tuple[float, ...]
    received_bytes: tuple[float, ...]

    def since(self, before: Reading, steps: int) -> Reading:
        """What a step has used on the way from an earlier reading to this one."""

        def used(after: Sequence[float], before: Sequence[float]) -> tuple[float, ...]:
            return tuple((late - early) / steps for late, early in zip(after, before))

        return Reading(
            used(self.processor_s, before.processor_s),
            used(self.sent_bytes, before.sent_bytes),
            used(self.received_bytes, before.received_bytes),
        )


Meter = Callable[[Sequence[int]], Reading]
"""Reads what processes with these ids, and all links, have used so far."""


def meter_of(hosts: Sequence[Host]) -> Meter:
    """What reads these hosts."""
    places = {namespace_id(host.namespace): host.rank for host in hosts}

    def place(pid: int) -> int:
        return places.get(namespace_id(f"/proc/{pid}/ns/net"), len(hosts))

    def read(pids: Sequence[int]) -> Reading:
        counters = [host.counters() for host in hosts]
        sent, received = (tuple(getattr(c, name) for c in counters) for name in ("sent_bytes", "received_bytes"))
        return Reading(_by_place(processor_times_s(pids), place, len(hosts) + 1), sent, received)

    return read


def _by_place(times_s: Mapping[int, float] | None, place: Callable[[int], int], places: int) -> tuple[float, ...]:
    if times_s is None:
        return ()
    totals = [0.0] * places
    try:
        for pid, time_s in times_s.items():
            totals[place(pid)] += time_s
    except OSError:  # it has ended meanwhile
        return ()
    return tuple(totals)


def processor_times_s(pids: Sequence[int]) -> Mapping[int, float] | None:
    """Seconds of processor time that processes have used so far, in user and kernel mode.

    Args:
        pids: the processes; one that is named twice counts once.

    Returns:
        Of each; None when one of them has ended.
    """
    found = {}
    for pid in sorted(set(pids)):
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        # The second field, the command's name, may itself have blanks and parentheses.
        fields = text.rpartition(")")[2].split()
        found[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found
