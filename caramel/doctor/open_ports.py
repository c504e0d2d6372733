"""Ports of this machine on which TensorFlow's servers listen where strangers reach them."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from caramel.doctor.finding import Finding, ok, warning
from caramel.errors import listed

_LISTENS = "0A"
"""State of a listening socket in Linux' tables."""

_LIBRARY = re.compile(r"/tensorflow/[^\n]*\.so|/libtensorflow")
"""What the memory map of a process has that has loaded TensorFlow."""


@dataclass(frozen=True, order=True)
class OpenPort:
    """A port on which a process with TensorFlow listens for strangers.

    Attributes:
        port: its number.
        pid: process id.
        address: address at which it listens, which may be that of all interfaces.
    """

    port: int
    pid: int
    address: str

    @property
    def name(self) -> str:
        """The port for a message."""
        where = "every interface" if ipaddress.ip_address(self.address).is_unspecified else self.address
        return f"port {self.port} on {where} (process {self.pid})"


def check_open_ports(proc: Path = Path("/proc")) -> Iterator[Finding]:
    """Ports of processes that have loaded TensorFlow, and those processes that may not be looked into.

    Args:
        proc: directory with Linux' files about processes.
    """
    check = "open ports"
    found, hidden = open_ports(proc)
    unknown = f" (processes that could not be looked into: {hidden})" if hidden else ""
    if not found:
        yield ok(check, f"no TensorFlow server of this machine listens where others reach it{unknown}")
        return
    ports = listed(port.name for port in found)
    yield warning(
        check,
        f"processes with TensorFlow listen where others may reach them: {ports}{unknown}. A TensorFlow server runs any "
        "graph, file operations included, for anyone",
        "let a firewall admit the machines of the job only, or end these processes; SECURITY.md says more",
    )


def open_ports(proc: Path) -> tuple[list[OpenPort], int]:
    """The ports, and the number of processes that may not be looked into.

    Args:
        proc: directory with Linux' files about processes.
    """
    found: set[OpenPort] = set()
    hidden = 0
    for directory in proc.iterdir():
        if not directory.name.isdigit():
            continue
        try:
            if not _LIBRARY.search((directory / "maps").read_text(errors="replace")):
                continue
            sockets = _sockets(directory)
            found |= {
                OpenPort(port, int(directory.name), address)
                for inode, address, port in _listening(directory)
                if inode in sockets and _is_reached(address, directory)
            }
        except PermissionError:
            hidden += 1
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
    return sorted(found), hidden


def _sockets(directory: Path) -> set[str]:
    """Inodes of the sockets that a process has open."""
    inodes = set()
    for descriptor in (directory / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(descriptor)
            if target.startswith("socket:["):
                inodes.add(target[len("socket:[") : -1])
    return inodes


def _listening(directory: Path) -> Iterator[tuple[str, str, int]]:
    """Inode, address and port of each TCP socket that listens in the network namespace of a process."""
    for table in ("tcp", "tcp6"):
        file = directory / "net" / table
        for line in file.read_text().splitlines()[1:] if file.exists() else ():
            fields = line.split()
            if fields[3] == _LISTENS:
                address, _, port = fields[1].rpartition(":")
                yield fields[9], readable_address(address), int(port, 16)


def readable_address(digits: str) -> str:
    """An address of Linux' tables, as people write it.

    Args:
        digits: hexadecimal digits, words of four bytes in the order of a little-endian machine.

    >>> readable_address("0100007F"), readable_address("0" * 32), readable_address("0" * 16 + "FFFF00000100007F")
    ('127.0.0.1', '::', '::ffff:127.0.0.1')
    """
    packed = b"".join(bytes.fromhex(digits[at : at + 8])[::-1] for at in range(0, len(digits), 8))
    address = ipaddress.ip_address(packed)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(address) if mapped is None else f"::ffff:{mapped}"


def _is_reached(address: str, directory: Path) -> bool:
    """Whether others can reach what listens at an address in the network namespace of a process."""
    parsed = ipaddress.ip_address(address)
    mapped = getattr(parsed, "ipv4_mapped", None)
    if (mapped or parsed).is_loopback:
        return False
    return bool(_outside_addresses(directory))


def _outside_addresses(directory: Path) -> set[str]:
    """The addresses that a network namespace has besides those of loopback."""
    found = set()
    file = directory / "net" / "fib_trie"
    lines = file.read_text().splitlines() if file.exists() else []
    for before, line in itertools.pairwise(lines):
        if line.strip() == "/32 host LOCAL":
            found.add(before.split()[-1])
    file = directory / "net" / "if_inet6"
    for line in file.read_text().splitlines() if file.exists() else []:
        found.add(str(ipaddress.ip_address(bytes.fromhex(line.split()[0]))))
    return {address for address in found if not ipaddress.ip_address(address).is_loopback}
