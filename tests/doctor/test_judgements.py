"""What is made of what was measured, and checks that fail or hang."""

import re
import time

import pytest
from packaging.specifiers import SpecifierSet

from caramel.doctor import versions
from caramel.doctor.finding import State, bounded, guarded, ok
from caramel.doctor.judgements import LinkRate, judged_clock, judged_rates, judged_version
from caramel.doctor.machine import check_memory, memory, memory_limit
from caramel.doctor.open_ports import open_ports
from caramel.doctor.reachability import why_unreachable


@pytest.mark.parametrize(
    ("ahead_s", "uncertainty_s", "state", "words"),
    [
        (0.0, 0.0, "ok", "0 us from"),
        (0.9, 0.001, "ok", "900 ms from"),
        (-0.9, 0.001, "ok", "900 ms from"),
        (1.5, 0.6, "ok", "known to 600 ms"),  # the question may have taken all of the round trip
        (1.5, 0.4, "warning", "1.5 s ahead of"),
        (-90.0, 0.001, "warning", "90 s behind"),
    ],
)
def test_clocks(ahead_s, uncertainty_s, state, words):
    finding = judged_clock("clock", ahead_s, uncertainty_s)
    assert finding.state == state and words in finding.found


@pytest.mark.parametrize(
    ("there", "state"), [("2.21.0", "ok"), ("2.21.1", "warning"), ("2.20.0", "problem"), (None, "warning")]
)
def test_versions_of_servers(there, state):
    finding = judged_version("TensorFlow", there, "2.21.0")
    assert finding.state == state
    assert bool(finding.mend) is (state != "ok")


def test_one_slow_link():
    rates = [LinkRate("worker 0", f"worker {n}", rate) for n, rate in enumerate([1e8, 0.9e8, 0.2e8, 1.1e8])]
    found = list(judged_rates(rates))
    assert [finding.state.value for finding in found] == ["ok", "ok", "warning", "ok"]
    assert "about 160 Mbit/s (an estimate" in found[2].found and "760 Mbit/s" in found[2].found


@pytest.mark.parametrize(
    ("version", "allowed", "state"),
    [
        ("2.20.0", ">=2.16,<2.22", "ok"),
        ("2.22.0", ">=2.16,<2.22", "problem"),
        ("2.21.0-rc1", ">=2.16,<2.22", "ok"),
        ("unknown", ">=2.16,<2.22", "problem"),
        (None, ">=2.16,<2.22", "problem"),
        ("2.22.0", None, "ok"),
    ],
)
def test_versions_here(version, allowed, state):
    finding = versions.judged("tensorflow", version, None if allowed is None else SpecifierSet(allowed))
    assert finding.state == state
    assert ("'tensorflow>=2.16,<2.22'" in finding.mend) is (state == "problem")


def test_ranges_of_the_package(monkeypatch):
    monkeypatch.setattr(versions.metadata, "metadata", lambda name: {"Requires-Python": ">=3.10"})
    requirements = ["tensorflow<2.22,>=2.16", "keras>=3.2", 'tensorflow==1; extra == "old"']
    monkeypatch.setattr(versions.metadata, "requires", lambda name: requirements)
    assert {name: str(allowed) for name, allowed in versions.allowed_ranges().items()} == {
        "python": ">=3.10",
        "tensorflow": "<2.22,>=2.16",
        "keras": ">=3.2",
    }


def test_the_package_is_not_installed(monkeypatch):
    def missing(name):
        raise versions.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(versions.metadata, "metadata", missing)
    assert [finding.state.value for finding in versions.check_versions()] == ["warning", "ok", "ok", "ok"]


def test_memory(tmp_path, monkeypatch):
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:       2000 kB\nMemFree: 1 kB\nMemAvailable:    1000 kB\n")
    assert memory(file) == (2000 * 1024, 1000 * 1024)
    limit = tmp_path / "limit"
    assert memory_limit((limit,)) is None
    for text, wanted in (("max\n", None), ("1048576\n", 2**20)):
        limit.write_text(text)
        assert memory_limit((tmp_path / "none", limit)) == wanted
    monkeypatch.setattr("caramel.doctor.machine.memory_limit", lambda files: 2**20)
    (finding,) = check_memory()
    assert finding.state == "warning" and "may have 1 MiB" in finding.found


def process(proc, pid, maps, address):
    """A process of a made-up /proc that listens at an address, in a namespace with an address of its own."""
    (proc / pid / "fd").mkdir(parents=True)
    (proc / pid / "net").mkdir()
    (proc / pid / "fd" / "3").symlink_to("socket:[77]")
    (proc / pid / "maps").write_text(maps)
    head = "sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode"
    zeros = "0" * 32
    lines = [
        f"0: {address}:08AE {zeros}:0000 {state} 0:0 0:0 0 0 0 {inode}" for state, inode in (("0A", 77), ("01", 78))
    ]
    (proc / pid / "net" / "tcp6").write_text("\n".join([head, *lines]))
    (proc / pid / "net" / "fib_trie").write_text(
        "  |-- 127.0.0.1\n     /32 host LOCAL\n  |-- 10.1.2.3\n     /32 host LOCAL\n"
    )


def test_open_ports(tmp_path):
    library = "7f0 r-xp 00 08:01 1 /lib/python3/site-packages/tensorflow/libtensorflow_cc.so.2\n"
    process(tmp_path, "11", library, "0" * 32)
    process(tmp_path, "12", library, "0" * 16 + "FFFF00000100007F")  # loopback
    process(tmp_path, "13", "7f0 r-xp 00 08:01 1 /lib/libc.so\n", "0" * 32)  # no TensorFlow
    process(tmp_path, "14", library, "0" * 32)
    (tmp_path / "14" / "net" / "fib_trie").write_text("  |-- 127.0.0.1\n     /32 host LOCAL\n")  # loopback only
    (tmp_path / "self").mkdir()
    found, hidden = open_ports(tmp_path)
    assert [(port.port, port.pid, port.address) for port in found] == [(2222, 11, "::")] and hidden == 0


def test_a_check_that_fails_hides_no_other():
    def fails():
        yield ok("first", "seen")
        raise KeyError("nothing")

    first, failed = guarded("the check", fails)
    assert first == ok("first", "seen")
    assert failed.state is State.WARNING and "KeyError" in failed.found


def test_a_check_that_hangs_hides_no_other():
    def hangs():
        time.sleep(5)
        return []

    began_s = time.monotonic()
    checks = [("hangs", hangs, ()), ("hangs, too", hangs, ()), ("other", lambda: [ok("other", "seen")], ())]
    hung, too, other = bounded(checks, 0.3)
    assert time.monotonic() - began_s < 3
    assert [finding.state.value for finding in (*hung, *too, *other)] == ["problem", "problem", "ok"]
    assert "has not ended within 0.3 s" in hung[0].found


def test_a_finding_is_one_line():
    finding = judged_version("TensorFlow of worker 1", "2.20.0\nor so", "2.21.0")
    assert re.fullmatch(r"problem  TensorFlow of worker 1: 2\.20\.0 or so, .*\. Mend: [^\n]*", finding.line())


def test_no_address_and_no_listener():
    assert "'nowhere.invalid' has no address" in why_unreachable("worker 0", "nowhere.invalid:1", "start").found
    assert why_unreachable("worker 0", "127.0.0.1:1", "the command").mend == "start it there: the command"


def test_rates_inside_this_machine_are_no_measure_of_links():
    from caramel.doctor.cluster import _measured

    links = [("this process", f"worker {n}", lambda rate=rate: rate) for n, rate in enumerate([1e9, 1e7, 1.1e7, 1e6])]
    found = list(_measured(links, time.monotonic() + 60, {"this process", "worker 0"}))
    assert [finding.state.value for finding in found] == ["ok", "ok", "ok", "warning"]
    late = list(_measured(links, time.monotonic() - 1, ()))
    assert len(late) == 1 and "4 more links were left" in late[0].found


def test_which_servers_are_here():
    import socket

    from caramel.doctor.reachability import is_here

    with socket.create_server(("127.0.0.1", 0)) as server:
        assert is_here(f"127.0.0.1:{server.getsockname()[1]}")
    assert not is_here("127.0.0.1:1")


def test_nothing_is_measured_where_somebody_trains(monkeypatch):
    from caramel.doctor import cluster

    monkeypatch.setattr(cluster, "others_at", lambda target, task: {"process 5 on host0"})
    (finding,) = cluster._check_rates(cluster.Members(("host0:1", "host1:1")), [0, 1])
    assert finding.state == "warning" and "process 5 on host0" in finding.found
