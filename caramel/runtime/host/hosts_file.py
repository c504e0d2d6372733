"""Hosts files: the servers of a cluster, one host a line.

::

    # name or address, port (2222 unless it is said), number of workers (1 unless it is said)
    host0
    host1:2223
    host2  workers=2
"""

from __future__ import annotations

import os
import re

from caramel.errors import InputError, listed
from caramel.runtime.host.membership import LAST_PORT, Membership
from caramel.runtime.host.names import unknown_hosts
from caramel.util.arguments import MOST_WORKERS, shown

DEFAULT_PORT = 2222
"""Port of a host whose line names none."""

_LINE = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\s:\[\]/]+)(?::(?P<port>\d{1,5}))?(?:\s+workers=(?P<workers>\d{1,4}))?"
)

_EXAMPLE = "HOST, HOST:PORT or HOST:PORT workers=2"

_MOST_BYTES = 1 << 20
"""Bytes of a file that may be one of hosts: a thousand hosts take less than a tenth of it."""


def from_hosts_file(path: str | os.PathLike[str]) -> Membership:
    """The cluster that a hosts file lists.

    Args:
        path: path of the file.

    Raises:
        InputError: it cannot be read, a line is no host, or a host is there twice.
    """
    name = os.fspath(path)
    try:
        with open(path, "rb") as file:
            text = file.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise InputError(f"{shown(name)} is no hosts file: it has more than {_MOST_BYTES:,} bytes")
        return parsed_hosts(text.decode(), name)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InputError(f"the hosts file {name!r} cannot be read: {reason}") from error


def parsed_hosts(text: str, where: str) -> Membership:
    """The cluster of a hosts file's text.

    Args:
        text: text of the file.
        where: name of the file, for messages.

    Raises:
        InputError: a line is no host, or a host is there twice.

    >>> parsed_hosts("host0\\nhost1:2223 workers=2  # two sockets\\n", "hosts.txt")
    Membership(addresses=('host0:2222', 'host1:2223'), task=None, notes=(), workers=(1, 2))
    """
    lines_of: dict[str, int] = {}
    workers: list[int] = []
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        found = _LINE.fullmatch(entry)
        place = f"{where}, line {number}"
        if found is None:
            raise InputError(f"{place}: {shown(entry)} is no host: write {_EXAMPLE}")
        port, count = int(found["port"] or DEFAULT_PORT), int(found["workers"] or 1)
        if not 1 <= port <= LAST_PORT:
            raise InputError(f"{place}: there is no port {port}: take one from 1 to {LAST_PORT}")
        if not 1 <= count <= MOST_WORKERS:
            raise InputError(f"{place}: {count} workers on a host: take a number from 1 to {MOST_WORKERS}")
        address = f"{found['host']}:{port}"
        if address in lines_of:
            raise InputError(
                f"{place}: {address} is in line {lines_of[address]} already: give it another port, or write workers=2"
            )
        lines_of[address] = number
        workers.append(count)
    if not workers:
        raise InputError(f"{where} lists no host: write {_EXAMPLE}, one a line")
    return Membership(tuple(lines_of), workers=tuple(workers))


def check_hosts(membership: Membership, where: str) -> None:
    """Refuse hosts whose names lead nowhere.

    Args:
        membership: the cluster.
        where: noun for its description in the message.

    Raises:
        InputError: there is one.
    """
    unknown = unknown_hosts(membership.addresses)
    if unknown:
        are = "hosts whose names do" if len(unknown) > 1 else "a host whose name does"
        raise InputError(
            f"{where} lists {are} not resolve from here: {listed(unknown)}. Correct it, or write an IP address"
        )
