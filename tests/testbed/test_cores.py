"""Hosts keep to their cores."""

import os
import subprocess
import sys
import time

import pytest

from benchmarks.testbed import Testbed, TestbedError, UnavailableError
from benchmarks.testbed.cores import SharedCores, cores_of
from caramel.errors import InputError

SETTLE_S = 20.0


@pytest.mark.parametrize("hosts", range(1, 9))
@pytest.mark.parametrize("count", range(1, 9))
def test_all_hosts_have_as_many_cores(hosts, count):
    cores = [10 + n for n in range(count)]
    given = [cores_of(rank, hosts, cores) for rank in range(hosts)]
    assert len({len(each) for each in given}) == 1
    users = [sum(core in each for each in given) for core in cores]
    assert max(users) - min(users) <= 1  # with more hosts than cores, or a core that is left over
    if hosts <= count:
        assert max(users) == 1
        assert len(given[0]) == count // hosts


def test_hosts_and_cores_that_are_not_there():
    for arguments in ((2, 2, [0]), (-1, 2, [0]), (0, 1, [])):
        with pytest.raises(InputError):
            cores_of(*arguments)


@pytest.fixture
def testbed():
    try:
        built = Testbed(2)
    except UnavailableError as error:
        pytest.skip(f"no testbed can be built here: {error}")
    with built:
        if len(os.sched_getaffinity(0)) < 2:
            pytest.skip("there is only one core")
        yield built


def settles(pid, wanted):
    """Whether all threads of a process come to be on these cores."""
    deadline_s = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline_s:
        if all(os.sched_getaffinity(int(t)) == set(wanted) for t in os.listdir(f"/proc/{pid}/task")):
            return True
        time.sleep(0.1)
    return False


PATIENT = [sys.executable, "-I", "-S", "-c"]
THREADS = "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start(); time.sleep(600)"


def test_processes_of_a_host_keep_to_its_cores(testbed):
    cores = sorted(os.sched_getaffinity(0))
    before = [host.popen([*PATIENT, THREADS]) for host in testbed.hosts]
    outside = subprocess.Popen([*PATIENT, THREADS])
    try:
        with SharedCores(testbed) as shared:
            after = [host.popen([*PATIENT, THREADS]) for host in testbed.hosts]
            for rank in range(2):
                for process in (before[rank], after[rank]):
                    assert settles(process.pid, cores_of(rank, 2, cores))
            shared.close()  # once more is no error
        assert os.sched_getaffinity(outside.pid) == set(cores)
        assert os.sched_getaffinity(0) == set(cores)
    finally:
        outside.kill()
        outside.wait()


def test_a_testbed_that_is_closed_has_no_hosts(testbed):
    testbed.close()
    with pytest.raises(TestbedError, match="closed"):
        SharedCores(testbed)


def test_a_process_that_moves_to_another_host_moves_to_its_cores(testbed):
    """Servers begin as forks of a process on the first host."""
    cores = sorted(os.sched_getaffinity(0))
    moves = (
        "import ctypes, sys, time; sys.stdin.readline(); "
        "file = open(sys.argv[1]); assert ctypes.CDLL(None).setns(file.fileno(), 0) == 0; time.sleep(600)"
    )
    command = [*PATIENT, moves, testbed.hosts[1].namespace]
    process = testbed.hosts[0].popen(command, stdin=subprocess.PIPE, text=True)
    with SharedCores(testbed):
        assert settles(process.pid, cores_of(0, 2, cores))
        process.stdin.write("go\n")
        process.stdin.flush()
        assert settles(process.pid, cores_of(1, 2, cores))
