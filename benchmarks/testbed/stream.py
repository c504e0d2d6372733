"""One TCP stream between two hosts; run as a program on each of them.

``stream.py receive ADDRESS WARM_UP_S WINDOW_S`` prints the port it listens on, and at the end the payload bytes per
second of the window after the warm-up. ``stream.py send ADDRESS PORT`` sends until the receiver has enough.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time

_ACCEPT_TIMEOUT_S = 10.0
_READ_BYTES = 1 << 20
_WRITE_BYTES = 1 << 17


def receive(address: str, warm_up_s: float, window_s: float) -> None:
    """Take one connection and measure it."""
    with socket.create_server((address, 0)) as server:
        server.settimeout(_ACCEPT_TIMEOUT_S)
        print(server.getsockname()[1], flush=True)  # noqa: T201 (this is the answer)
        connection, _ = server.accept()
    with connection:
        _read_for(connection, warm_up_s)
        print(_read_for(connection, window_s), flush=True)  # noqa: T201 (this is the answer)


def _read_for(connection: socket.socket, seconds: float) -> float:
    """Bytes per second that arrive."""
    buffer = memoryview(bytearray(_READ_BYTES))
    begin_s, total_bytes = time.monotonic(), 0
    while (left_s := begin_s + seconds - time.monotonic()) > 0:
        connection.settimeout(left_s)
        try:
            count = connection.recv_into(buffer)
        except TimeoutError:
            break
        if count == 0:
            raise ConnectionError("the sender ended")
        total_bytes += count
    return total_bytes / (time.monotonic() - begin_s)


def send(address: str, port: int) -> None:
    """Send until the other side closes the connection."""
    block = bytes(_WRITE_BYTES)
    with socket.create_connection((address, port), _ACCEPT_TIMEOUT_S) as connection:
        connection.settimeout(None)
        with contextlib.suppress(ConnectionError):
            while True:
                connection.sendall(block)


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
    else:
        send(sys.argv[2], int(sys.argv[3]))
