"""Ends of a server's connections whose other machine is gone without a word: switched off, or its cable was pulled.

gRPC's servers wait for such a one for hours. The kernel of the other machine answers for a process that is busy or
stopped, so only machines that cannot be reached lose their connections.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

_IDLE_S, _INTERVAL_S = 10, 5
"""Seconds without data until the other machine is asked whether it is there, and from one question to the next."""

_TIMEOUT_S = 30
"""Seconds without an answer, to a question or to data, after which a connection has ended."""


def end_dead_connections(port: int) -> int:
    """Have the kernel end what is connected to a port of this process and does not answer for half a minute.

    To be called now and then, since it holds for the connections of the moment. Kernels other than Linux do nothing.

    Args:
        port: port that this process listens at.

    Returns:
        Number of connections that were not watched yet.
    """
    found = 0
    for descriptor in _descriptors():
        with suppress(OSError), _duplicate(descriptor) as connection:  # closed meanwhile, or no socket
            if not _is_accepted(connection, port) or connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _INTERVAL_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _TIMEOUT_S * 1000)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            found += 1
    return found


def _descriptors() -> list[int]:
    """What this process has open; nothing where the kernel does not say it."""
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return []


def _duplicate(descriptor: int) -> socket.socket:
    """Another descriptor of a socket, which nobody else closes.

    Raises:
        OSError: it is no socket, or closed.
    """
    mine = os.dup(descriptor)
    try:
        return socket.socket(fileno=mine)
    except OSError:
        os.close(mine)
        raise


def _is_accepted(connection: socket.socket, port: int) -> bool:
    """Whether a socket is a connection to a port.

    Raises:
        OSError: it is connected to nobody.
    """
    connection.getpeername()
    return connection.type == socket.SOCK_STREAM and connection.getsockname()[1:2] == (port,)
