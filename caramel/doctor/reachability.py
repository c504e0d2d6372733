"""Whether the address of a server is known, and whether something listens there; TensorFlow is not needed."""

from __future__ import annotations

import socket

from caramel.doctor.finding import Finding, problem

_CONNECT_S = 2.0
"""Seconds that a connection may take (our choice): within a building it takes less than one thousandth."""


def why_unreachable(check: str, address: str, start: str) -> Finding | None:
    """The finding about an address at which there is no server; None where one accepts connections.

    Args:
        check: noun for the server.
        address: its address ``host:port``.
        start: command that starts it.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        places = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return problem(
            check, f"{host!r} has no address ({reason})", "correct the name, or make it known (DNS, /etc/hosts)"
        )
    last: OSError | None = None
    for family, kind, protocol, _, place in places[:4]:
        with socket.socket(family, kind, protocol) as connection:
            connection.settimeout(_CONNECT_S)
            try:
                connection.connect(place)
                return None
            except OSError as error:
                last = error
    shown = str(places[0][4][0])
    where = address if shown == host else f"{address} ({shown})"
    if isinstance(last, ConnectionRefusedError):
        return problem(check, f"nothing listens at {where}", f"start it there: {start}")
    if isinstance(last, TimeoutError):
        found = f"{where} has not accepted a connection within {_CONNECT_S:g} s"
        return problem(check, found, "start the machine, or let its firewall admit this one")
    reason = last.strerror if last is not None and last.strerror else str(last)
    return problem(check, f"there is no way to {where} ({reason})", "check the route and the firewalls")


def is_here(address: str) -> bool:
    """Whether a server that accepts connections is on this very machine: both ends of one have the same address.

    Args:
        address: address ``host:port`` of the server.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S) as connection:
            return bool(connection.getsockname()[0] == connection.getpeername()[0])
    except OSError:
        return False
