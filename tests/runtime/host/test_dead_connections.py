"""Connections of a server of this process, some of which are its own."""

import os
import socket

import pytest

from caramel.runtime.host.dead_connections import end_dead_connections


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def connected(server):
    there = socket.create_connection(server.getsockname())
    return there, server.accept()[0]


def options_of(connection):
    return (
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
    )


def test_what_is_accepted_is_watched_once(listening):
    (there, here), (_, other) = connected(listening), connected(listening)
    descriptors = set(os.listdir("/proc/self/fd"))
    port = listening.getsockname()[1]
    assert end_dead_connections(port) == 2
    assert options_of(here) == options_of(other) == (1, 30_000)
    assert end_dead_connections(port) == 0
    assert options_of(there) == options_of(listening) == (0, 0)
    assert set(os.listdir("/proc/self/fd")) == descriptors
    here.setblocking(False)
    another = connected(listening)[1]
    assert end_dead_connections(port) == 1
    assert options_of(another) == (1, 30_000) and not here.getblocking() and another.getblocking()


def test_other_sockets_stay_as_they_are(listening):
    with socket.create_server(("127.0.0.1", 0)) as mine:
        _, here = connected(mine)
        assert end_dead_connections(listening.getsockname()[1]) == 0
        assert options_of(here) == (0, 0)
    a_pair = socket.socketpair()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(("127.0.0.1", 0))
        assert end_dead_connections(datagrams.getsockname()[1]) == 0
    for each in a_pair:
        each.close()
