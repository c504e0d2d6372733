"""Which processes are in network namespaces."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator

NamespaceId = tuple[int, int]
"""Device and inode number."""


def namespace_id(path: str) -> NamespaceId:
    """That of a namespace's file.

    Raises:
        OSError: it is not there any more.
    """
    status = os.stat(path)
    return status.st_dev, status.st_ino


def processes_in(namespaces: Collection[NamespaceId]) -> Iterator[tuple[int, NamespaceId]]:
    """Process ids of all processes in some namespaces, and in which each is."""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended, or is not ours to look at
                found = namespace_id(f"/proc/{name}/ns/net")
                if found in namespaces:
                    yield int(name), found
