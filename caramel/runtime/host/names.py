"""Names of hosts: whether they lead anywhere, and whether that is this very machine."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

_MOST_AT_ONCE = 32
"""Number of names that are looked up at once; a broken name server takes seconds for each."""


def host_of_address(address: str) -> str:
    """The host of an address ``host:port``.

    >>> host_of_address("host0:2222"), host_of_address("[::1]:2222")
    ('host0', '::1')
    """
    return address.rpartition(":")[0].strip("[]")


def numbers_of(host: str) -> tuple[str, ...]:
    """The IP addresses that a name leads to; none if it leads nowhere.

    Args:
        host: name or IP address of a host.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # the latter of labels that no name can have
        return ()
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


def unknown_hosts(addresses: Iterable[str]) -> list[str]:
    """The hosts whose names lead nowhere, each once.

    Args:
        addresses: addresses ``host:port``.
    """
    hosts = list(dict.fromkeys(host_of_address(address) for address in addresses))
    with ThreadPoolExecutor(min(len(hosts), _MOST_AT_ONCE) or 1) as pool:
        return [host for host, numbers in zip(hosts, pool.map(numbers_of, hosts)) if not numbers]


def is_this_machine(host: str) -> bool:
    """Whether a host is the machine of this process.

    Of the loopback addresses only 127.0.0.1 and ::1 count, and this machine's own name: others, such as 127.0.0.2,
    may be the ends of tunnels.

    Args:
        host: name or IP address of a host.
    """
    if host in ("localhost", socket.gethostname()):
        return True
    return any(map(_is_own, numbers_of(host)))


def _is_own(number: str) -> bool:
    """Whether an IP address is one of this machine's: only then can a socket be bound to it."""
    address = ipaddress.ip_address(number.partition("%")[0])
    if address.is_loopback:
        return number in ("127.0.0.1", "::1")
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((number, 0))
        except OSError:
            return False
    return True
