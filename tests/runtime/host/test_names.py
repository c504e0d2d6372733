"""Names of hosts."""

import socket

from caramel.runtime.host.names import is_this_machine, numbers_of, unknown_hosts


def test_numbers():
    assert "127.0.0.1" in numbers_of("localhost")
    assert numbers_of("127.0.0.9") == ("127.0.0.9",)
    assert numbers_of("a" * 64 + ".invalid") == numbers_of("nowhere.invalid") == ()


def test_unknown_hosts_are_named_once():
    assert unknown_hosts(["nowhere.invalid:1", "localhost:2", "nowhere.invalid:3"]) == ["nowhere.invalid"]


def test_this_machine():
    assert all(map(is_this_machine, ("localhost", "127.0.0.1", socket.gethostname())))
    # 192.0.2.0/24 is for documents: nobody has one
    assert not any(map(is_this_machine, ("127.0.0.2", "192.0.2.1", "nowhere.invalid")))


def test_an_address_of_this_machine():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing; the system chooses the interface
        own = probe.getsockname()[0]
    assert is_this_machine(own)
