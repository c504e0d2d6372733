"""Files that list the hosts of a cluster."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import caramel
from caramel.errors import InputError
from caramel.runtime.host.hosts_file import check_hosts, from_hosts_file, parsed_hosts
from caramel.runtime.host.membership import Membership


def test_ports_and_workers_have_defaults(tmp_path):
    file = tmp_path / "hosts.txt"
    file.write_text(
        "# ours\n\nhost0\n  host1:2223 # the new one\nhost2   workers=4\n[fe80::1]:2224\tworkers=2\n[::1]\n"
    )
    found = from_hosts_file(file)
    assert found.addresses == ("host0:2222", "host1:2223", "host2:2222", "[fe80::1]:2224", "[::1]:2222")
    assert found.workers == (1, 1, 4, 2, 1)
    assert found.task is None


def test_workers_of_a_host_are_devices_of_its_server(tmp_path):
    (tmp_path / "hosts.txt").write_text("host0\nhost1 workers=2\n")
    servers = caramel.Servers.from_hosts_file(tmp_path / "hosts.txt", task=1)
    assert servers == caramel.Servers(["host0:2222", "host1:2222"], task=1, workers=(1, 2))
    assert servers.default_devices == (
        "/job:worker/task:0",
        "/job:worker/task:1/device:CPU:0",
        "/job:worker/task:1/device:CPU:1",
    )


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "hosts lists no host"),
        ("# nothing\n", "hosts lists no host"),
        ("host0\nhost 1\n", "hosts, line 2: 'host 1' is no host: write HOST, HOST:PORT"),
        ("host0 slots=2", "line 1: 'host0 slots=2' is no host"),
        ("host0:", "'host0:' is no host"),
        ("host0:0", "line 1: there is no port 0"),
        ("host0:65536", "there is no port 65536"),
        ("host0 workers=0", "0 workers on a host"),
        ("host0 workers=9999", "9999 workers on a host"),
        ("host0\nhost1\n\nhost0:2222", "line 4: host0:2222 is in line 1 already"),
        ("fe80::1", "'fe80::1' is no host"),
        ("user@host0/x", "is no host"),
    ],
)
def test_lines_that_are_no_hosts(text, message):
    with pytest.raises(InputError, match=re.escape(message)):
        parsed_hosts(text, "hosts")


def test_files_that_are_none(tmp_path):
    with pytest.raises(InputError, match=r"missing.txt' cannot be read: No such file"):
        from_hosts_file(tmp_path / "missing.txt")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="it is no text"):
        from_hosts_file(tmp_path / "binary")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        from_hosts_file(tmp_path)


@given(
    st.lists(
        st.tuples(st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True), st.integers(1, 65535), st.integers(1, 256)),
        min_size=1,
        unique_by=lambda entry: entry[:2],
    )
)
def test_what_is_written_is_read(entries):
    text = "\n".join(f"{host}:{port} workers={workers}" for host, port, workers in entries)
    found = parsed_hosts(text, "hosts")
    assert found.addresses == tuple(f"{host}:{port}" for host, port, _ in entries)
    assert found.workers == tuple(workers for *_, workers in entries)


def test_hosts_that_do_not_resolve_are_named():
    known = Membership(("127.0.0.1:1", "localhost:1"))
    check_hosts(known, "hosts.txt")
    unknown = Membership(("localhost:1", "no-such-host.invalid:1", "neither.invalid:1"))
    with pytest.raises(InputError, match=re.escape("no-such-host.invalid, neither.invalid. Correct")):
        check_hosts(unknown, "hosts.txt")
