"""Hosts with shaped links: what they reach, how fast, and that nothing stays behind."""

import contextlib
import gc
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.testbed import Counters, Testbed, TestbedError, UnavailableError, commands
from benchmarks.testbed.shaping import shape
from caramel.errors import InputError
from caramel.util.units import parse_rate

ROOT = Path(__file__).resolve().parents[2]
MBIT = 1e6 / 8  # bytes per second
PYTHON = [sys.executable, "-I", "-S", "-c"]


@pytest.fixture(scope="session")
def _available():
    try:
        Testbed(2, 100 * MBIT).close()
    except UnavailableError as error:
        pytest.skip(f"no testbed can be built here: {error}")


@pytest.fixture
def testbed(_available):
    with Testbed(2, 100 * MBIT) as built:
        yield built


def processes_in(namespaces):
    """Process ids in these namespaces, given by inode number."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if (entry / "ns/net").stat().st_ino in namespaces:
                    found.append(int(entry.name))
    return found


def inodes(testbed):
    """Namespaces of the hosts, by inode number."""
    return {os.stat(host.namespace).st_ino for host in testbed.hosts}


@contextlib.contextmanager
def held(*paths):
    """Inode numbers of namespaces that stay: the kernel soon gives the number of one that is gone to another."""
    files = [os.open(path, os.O_RDONLY) for path in paths]
    try:
        yield {os.fstat(file).st_ino for file in files}
    finally:
        for file in files:
            os.close(file)


def keepers(owner):
    """Child processes of a process that hold a testbed."""
    children = Path(f"/proc/{owner}/task").glob("*/children")
    pids = [pid for file in children for pid in file.read_text().split()]
    return [int(pid) for pid in pids if b"benchmarks.testbed.holders" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def holders(owner):
    """All processes that a process has to hold its testbeds."""
    found = keepers(owner)
    for keeper in list(found):
        found += [int(pid) for pid in Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()]
    return found


def await_end(pids, timeout_s=20.0):
    """Wait until processes have ended, and say which have not."""
    deadline_s = time.monotonic() + timeout_s
    while left := [pid for pid in pids if alive(pid)]:
        if time.monotonic() > deadline_s:
            break
        time.sleep(0.02)
    return left


def until_there(find, count, timeout_s=10.0):
    """What is found when there are so many, or in the end."""
    deadline_s = time.monotonic() + timeout_s
    while len(found := find()) < count and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return found


def alive(pid):
    """Whether a process runs still; a dead one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


RECEIVER = """
import socket, sys
with socket.create_server((sys.argv[1], 0)) as server:
    print(server.getsockname()[1], flush=True)
    connection, _ = server.accept()
buffer = bytearray(1 << 20)
while header := connection.recv(8, socket.MSG_WAITALL):
    left = int.from_bytes(header, "big")
    while left:
        left -= connection.recv_into(buffer, min(left, len(buffer)))
    connection.sendall(b"!")
"""

SENDER = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
def take(size):
    begin_s = time.monotonic()
    connection.sendall(size.to_bytes(8, "big") + bytes(size))
    connection.recv(1)
    return time.monotonic() - begin_s
take(2000000)  # TCP has found its window
for size in map(int, sys.argv[3:]):
    times = []
    for _ in range(5):
        time.sleep(0.05)  # the link is idle and the bucket full
        times.append(take(size))
    print(sorted(times)[2])
"""


def message_times_s(testbed, *sizes):
    """How long messages take from host 0 to host 1, over a connection that is warm: medians."""
    address = testbed.hosts[1].address
    receiver = testbed.hosts[1].popen([*PYTHON, RECEIVER, address], stdout=subprocess.PIPE, text=True)
    port = receiver.stdout.readline().strip()
    done = testbed.hosts[0].run([*PYTHON, SENDER, address, port, *map(str, sizes)], 20)
    receiver.communicate(timeout=5)
    return [float(line) for line in done.stdout.split()]


@contextlib.contextmanager
def within_the_rate(testbed, rank, counter):
    """What passes a host's link meanwhile is no more than its filter allows, however busy the machine is."""
    begin_s, before = time.monotonic(), getattr(testbed.hosts[rank].counters(), counter)
    yield
    passed = getattr(testbed.hosts[rank].counters(), counter) - before
    allowed = testbed.rate_bytes_per_s * (time.monotonic() - begin_s) + testbed.burst_bytes
    assert passed <= 1.01 * allowed


def best_of_three(measure, enough):
    """The best of at most three measurements; a busy machine may spoil some."""
    best = 0.0
    for _ in range(3):
        best = max(best, measure())
        if best >= enough:
            break
    return best


def assert_rate(testbed, sender=0, receiver=1):
    """A stream uses the rate of the links, and no more."""
    with within_the_rate(testbed, sender, "sent_bytes"):
        enough = 0.8 * testbed.rate_bytes_per_s
        assert best_of_three(lambda: testbed.measure_rate_bytes_per_s(sender, receiver, 1.0), enough) >= enough


def test_hosts_reach_one_another_and_nobody_else(testbed):
    connect = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)"
    accept = "import socket, sys; s = socket.create_server((sys.argv[1], 7000)); print(1, flush=True); s.accept()"
    for here, there in (testbed.hosts, testbed.hosts[::-1]):
        server = there.popen([*PYTHON, accept, there.address], stdout=subprocess.PIPE)
        server.stdout.readline()
        here.run([*PYTHON, connect, there.address, "7000"], 10)
        server.communicate(timeout=5)
        assert server.returncode == 0
    with socket.create_server(("127.0.0.1", 0)) as machine, pytest.raises(TestbedError, match="refused"):
        testbed.hosts[0].run([*PYTHON, connect, "127.0.0.1", str(machine.getsockname()[1])], 10)
    with pytest.raises(TestbedError, match="unreachable"):
        testbed.hosts[0].run([*PYTHON, connect, "192.0.2.1", "80"], 10)


def test_names_and_addresses(testbed):
    assert [(h.rank, h.name, h.address) for h in testbed.hosts] == [
        (0, "host0", "10.77.0.1"),
        (1, "host1", "10.77.0.2"),
    ]
    assert len(inodes(testbed)) == 2
    assert os.stat("/proc/self/ns/net").st_ino not in inodes(testbed)
    for host in testbed.hosts:
        shown = host.run(["ip", "-o", "-4", "address"], 5).stdout
        assert f"{host.address}/24" in shown and "127.0.0.1/8" in shown


@pytest.mark.parametrize("rate_mbit", [100, 400])
def test_a_stream_has_the_rate_of_the_link(_available, rate_mbit):
    with Testbed(2, rate_mbit * MBIT) as testbed:
        assert testbed.rate_bytes_per_s == rate_mbit * MBIT
        assert_rate(testbed, 0, 1)
        assert_rate(testbed, 1, 0)


def test_small_messages_are_shaped_too(testbed):
    small_s, large_s = message_times_s(testbed, 64 << 10, 256 << 10)
    assert small_s >= 0.003
    assert large_s >= 0.017


def test_receiving_is_limited_as_well_as_sending(_available):
    with Testbed(3, 100 * MBIT) as testbed:

        def together():
            with ThreadPoolExecutor() as pool:
                return sum(pool.map(lambda sender: testbed.measure_rate_bytes_per_s(sender, 2, 1.0), (0, 1)))

        with within_the_rate(testbed, 2, "received_bytes"):
            assert best_of_three(together, 80 * MBIT) >= 80 * MBIT


def test_the_rate_can_be_changed(testbed):
    testbed.set_rate(200 * MBIT)
    assert testbed.rate_bytes_per_s == 200 * MBIT
    assert_rate(testbed)
    testbed.set_rate(None)
    assert testbed.rate_bytes_per_s is None and testbed.burst_bytes is None
    shown = [host.run(["tc", "qdisc", "show", "dev", "eth0"], 5).stdout for host in testbed.hosts]
    assert all("noqueue" in text and "tbf" not in text for text in shown)
    assert best_of_three(lambda: testbed.measure_rate_bytes_per_s(seconds=1.0), 250 * MBIT) >= 250 * MBIT
    testbed.set_rate(50 * MBIT)
    assert_rate(testbed)


def test_counters_count_what_passes(testbed):
    before = [host.counters() for host in testbed.hosts]
    message_times_s(testbed)  # the 2 MB that warm the connection
    sent, received = (
        Counters(now.sent_bytes - then.sent_bytes, now.received_bytes - then.received_bytes)
        for now, then in zip([host.counters() for host in testbed.hosts], before)
    )
    assert 2.0e6 <= sent.sent_bytes <= 2.3e6
    assert 2.0e6 <= received.received_bytes <= 2.3e6
    assert sent.received_bytes < 0.2e6 and received.sent_bytes < 0.2e6


@pytest.mark.parametrize(
    "arguments",
    [
        {"hosts": 0},
        {"hosts": 251},
        {"hosts": 2, "rate_bytes_per_s": 0},
        {"hosts": 2, "rate_bytes_per_s": -1.0},
        {"hosts": 2, "rate_bytes_per_s": float("nan")},
        {"hosts": 2, "rate_bytes_per_s": float("inf")},
        {"hosts": 2, "rate_bytes_per_s": 1e6, "burst_bytes": 100},
        {"hosts": 2, "burst_bytes": 20000},
    ],
)
def test_arguments_that_do_not_fit(arguments):
    with pytest.raises(InputError):
        Testbed(**arguments)


def test_measurements_and_commands_that_do_not_fit(testbed):
    for arguments in ((0, 0), (0, 2), (-1, 1), (0, 1, 0.0), (0, 1, float("inf"))):
        with pytest.raises(InputError):
            testbed.measure_rate_bytes_per_s(*arguments)
    for rate in (0, float("nan")):
        with pytest.raises(InputError):
            testbed.set_rate(rate)
    with pytest.raises(InputError, match="list"):
        testbed.hosts[0].popen("sleep 1")
    with pytest.raises(InputError, match="shell"):
        testbed.hosts[0].popen(["sleep 1"], shell=True)


def test_a_command_that_fails_or_hangs(testbed):
    with pytest.raises(TestbedError, match="host1: .*ended with 3: no luck"):
        testbed.hosts[1].run(["sh", "-c", "echo no luck >&2; exit 3"], 5)
    with pytest.raises(TestbedError, match="no-such-program"):
        testbed.hosts[1].run(["no-such-program"], 5)
    with pytest.raises(TestbedError, match="did not end within 0.2 s"):
        testbed.hosts[1].run(["sh", "-c", "sleep 60 & sleep 60"], 0.2)
    assert len(await_end([pid for pid in processes_in(inodes(testbed)) if pid not in holders(os.getpid())])) == 0


def test_rates_as_text():
    assert parse_rate("500mbit") == parse_rate("0.5Gbit") == parse_rate("62.5MB") == parse_rate(" 62500 kB") == 62.5e6
    for text in ("", "500", "mbit", "-5mbit", "5mb", "0mbit"):
        with pytest.raises(InputError):
            parse_rate(text)


def test_the_burst_follows_the_timer_of_the_kernel(monkeypatch):
    monkeypatch.setattr(time, "clock_getres", lambda clock: 1e-9)
    assert [shape(rate * MBIT).burst_bytes for rate in (10, 100, 1000)] == [16384, 16384, 62500]
    monkeypatch.setattr(time, "clock_getres", lambda clock: 0.004)  # HZ = 250, no high-resolution timers
    assert [shape(rate * MBIT).burst_bytes for rate in (10, 100, 1000)] == [16384, 50000, 500000]
    assert shape(100 * MBIT, 4000).burst_bytes == 4000


@pytest.mark.parametrize("failing", [1, 2, 3, 6, 7, 14])
def test_a_failure_while_building_leaves_nothing_behind(_available, monkeypatch, failing):
    original, seen = commands.run_tool, []

    def run_tool(namespace, command):
        seen.append(os.open(namespace, os.O_RDONLY))
        if len(seen) == failing:
            command = ["ip", "link", "set", "no-such-device", "up"]
        original(namespace, command)

    monkeypatch.setattr(commands, "run_tool", run_tool)
    with pytest.raises(TestbedError, match='ip link set no-such-device up failed: Cannot find device "no-such-device"'):
        Testbed(2, 100 * MBIT)
    spaces = {os.fstat(file).st_ino for file in seen}  # open, so that no other namespace has their numbers
    left = processes_in(spaces)
    for file in seen:
        os.close(file)
    assert len(seen) == failing
    assert keepers(os.getpid()) == []
    assert left == []


def test_closing_ends_everything(_available):
    with Testbed(2) as testbed, held(*(host.namespace for host in testbed.hosts)) as spaces:
        shell = testbed.hosts[0].popen(["sh", "-c", "sleep 60 & sleep 60"])
        away = testbed.hosts[1].popen(["sh", "-c", "setsid sleep 60 & exit 0"])  # in neither group nor session
        away.wait(5)
        everything = [*holders(os.getpid()), *processes_in(spaces)]
        testbed.close()
        assert processes_in(spaces) == [] and await_end(everything, 0) == []
    assert shell.returncode == -signal.SIGKILL
    testbed.close()
    for use in (testbed.hosts[0].counters, lambda: testbed.hosts[0].popen(["true"]), lambda: testbed.set_rate(None)):
        with pytest.raises(TestbedError, match="closed"):
            use()


def test_a_forgotten_testbed_closes(_available):
    testbed = Testbed(1)
    with held(testbed.hosts[0].namespace) as spaces:
        del testbed
        gc.collect()
        assert processes_in(spaces) == []


def test_the_thread_that_built_it_may_end(_available):
    built = []
    thread = threading.Thread(target=lambda: built.append(Testbed(1)))
    thread.start()
    thread.join()
    with built[0] as testbed:
        time.sleep(0.1)
        testbed.hosts[0].run(["true"], 5)


def test_a_keeper_that_was_killed_is_reported(_available):
    testbed = Testbed(1)
    before = set(keepers(os.getpid()))
    (keeper,) = before
    os.kill(keeper, signal.SIGKILL)
    assert await_end(before) == []
    with pytest.raises(TestbedError, match="was ended"):
        testbed.hosts[0].popen(["true"])
    testbed.close()


OWNER = """
import os, subprocess, sys, time
from benchmarks.testbed import Testbed
testbed = Testbed(2, 1e7)
started = [testbed.hosts[0].popen(["sleep", "60"]), testbed.hosts[1].popen(["sh", "-c", "setsid sleep 60 & sleep 60"])]
if os.fork() == 0:  # a fork has the same pipes open
    time.sleep(60)
print(*[host.namespace for host in testbed.hosts], flush=True)
time.sleep(60)
"""


def test_a_killed_owner_leaves_nothing_behind(_available):
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as owner:
        try:
            with held(*owner.stdout.readline().split()) as spaces:
                everything = until_there(lambda: {*holders(owner.pid), *processes_in(spaces)}, 4 + 4)
                assert len(everything) == 4 + 4  # keeper and holders; two sleeps, a shell and its sleep
                owner.kill()
                assert await_end(everything) == []
                assert processes_in(spaces) == []
        finally:
            os.killpg(owner.pid, signal.SIGKILL)  # the fork


def test_two_testbeds_do_not_disturb_each_other(_available):
    with Testbed(2, 50 * MBIT) as slow:
        with Testbed(2, 200 * MBIT) as fast:
            assert not inodes(slow) & inodes(fast)
            assert_rate(fast)
            sleeper = slow.hosts[0].popen(["sleep", "60"])
        assert sleeper.poll() is None
        assert_rate(slow)


def run_command_line(*arguments, uid=0):
    """Run the command line, as this user from when it is imported: its files may be root's own."""
    code = "import os, sys; from benchmarks.testbed.__main__ import main; os.setuid(int(sys.argv.pop(1))); main()"
    return subprocess.run(
        [sys.executable, "-c", code, str(uid), *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
    )


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user")
def test_others_than_root_are_refused():
    done = run_command_line("--hosts", "2", uid=65534)
    assert done.returncode == 1
    assert done.stderr == "Error: building a testbed needs root, and this is user 65534: run it with sudo\n"


def test_a_missing_tool_is_named(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UnavailableError, match="ip and tc and nsenter not found: .*install iproute2 util-linux"):
        Testbed(2)


def test_a_kernel_without_the_parts_is_named(_available, monkeypatch, testbed):
    with pytest.raises(UnavailableError, match="qdisc.*sch_tbf"):
        commands.run_tool(testbed.hosts[0].namespace, ["tc", "qdisc", "add", "dev", "eth0", "root", "no-such-kind"])


def test_the_command_line(_available):
    done = run_command_line("--hosts", "2", "--rate", "200mbit", "--seconds", "0.3")
    assert done.returncode == 0, done.stderr
    assert "10.77.0.2" in done.stdout and "200.0 Mbit/s set" in done.stdout
    assert re.search(r"host1 to host0: \d+", done.stdout)
    assert "write it like 500mbit" in run_command_line("--rate", "5").stderr
