"""Cores, memory and network namespaces of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from caramel.doctor.finding import Finding, ok, warning
from caramel.runtime.host.environment import usable_cores
from caramel.runtime.host.namespaces import why_no_network_namespace
from caramel.util.units import format_size

_LITTLE_BYTES = 2 * 2**30
"""Free memory below which a process of TensorFlow with a small model may not start (our choice): it needs 0.5 GiB, and
a driver has a server beside it."""

_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Files with the limit of a container's memory, of both versions of Linux' control groups."""


def check_cores() -> Iterator[Finding]:
    """Cores that this process may use."""
    cores, everything = usable_cores(), os.cpu_count() or 1
    text = f"{cores} core{'s' if cores > 1 else ''}"
    if cores < everything:
        text += f" of {everything} that the machine has"
    if cores == 1:
        yield warning("cores", text, "a server sends while it computes: give it a second core if you can")
    else:
        yield ok("cores", text)


def check_memory() -> Iterator[Finding]:
    """Memory that this process may use."""
    total_bytes, available_bytes = memory()
    limit_bytes = memory_limit(_LIMITS)
    text = f"{format_size(available_bytes)} of {format_size(total_bytes)} are free"
    usable_bytes = available_bytes
    if limit_bytes is not None and limit_bytes < total_bytes:
        text += f", and this process may have {format_size(limit_bytes)}"
        usable_bytes = min(available_bytes, limit_bytes)
    if usable_bytes < _LITTLE_BYTES:
        yield warning("memory", text, "every worker has all variables, and TensorFlow needs 0.5 GiB: make room")
    else:
        yield ok("memory", text)


def memory(file: Path = Path("/proc/meminfo")) -> tuple[int, int]:
    """Bytes of memory in all, and bytes that are available.

    Args:
        file: file with them, as Linux has it.
    """
    lines = dict(line.split(":", 1) for line in file.read_text().splitlines() if ":" in line)
    total, available = (int(lines[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    return total, available


def memory_limit(files: tuple[Path, ...]) -> int | None:
    """Bytes that this container may have; None if there is no limit.

    Args:
        files: files that may have it, the first one that exists counts.
    """
    for file in files:
        if file.is_file():
            text = file.read_text().strip()
            return None if text == "max" else int(text)
    return None


def check_namespaces() -> Iterator[Finding]:
    """Whether local server processes can be hidden from others. It forks this process: call it before threads start."""
    reason = why_no_network_namespace()
    if reason is None:
        yield ok("network namespaces", "allowed, so --cluster processes runs servers that nobody else reaches")
    else:
        yield warning(
            "network namespaces",
            f"{reason}, so --cluster processes, and netbench on it, refuse to start servers that all could reach",
            "allow namespaces (a container needs CAP_SYS_ADMIN, or user namespaces), use --cluster in-process, or say "
            "--allow-open-ports in a network that only you can reach",
        )
