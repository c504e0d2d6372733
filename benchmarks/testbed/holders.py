"""The processes that hold a testbed's network namespaces: one keeper, and below it a holder for each namespace.

Run as ``python -m benchmarks.testbed.holders OWNER COUNT`` by `benchmarks.testbed.namespaces`. The keeper prints the
holders' process ids in one line, or else what went wrong. It waits until its standard input says something or
closes, or until the owner has ended, however it ended. Then it ends the holders, and every process in their
namespaces, whoever started it; the kernel removes the namespaces with all that is in them.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

from benchmarks.testbed.lookup import NamespaceId, processes_in
from caramel.runtime.host.namespaces import die_with_parent, enter_network_namespace

_END_TIMEOUT_S = 5.0
"""A process that the kernel has not ended by then is stuck in it."""

_PAUSE_S = 0.01


def hold_namespace() -> tuple[int, str]:
    """Start a process in a network namespace of its own.

    Returns:
        Its process id, and why it has no such namespace (empty when it has).
    """
    keeper = os.getpid()
    answer, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            die_with_parent()
            if os.getppid() == keeper:
                os.write(tell, (enter_network_namespace() or "ready").encode())
                for stream in (0, 1, 2, answer, tell):
                    os.close(stream)
                while True:
                    signal.pause()
        finally:
            os._exit(1)
    os.close(tell)
    with open(answer) as file:
        said = file.read() or "the process that should hold a namespace ended"
    return pid, "" if said == "ready" else said


def end_processes_in(namespaces: set[NamespaceId], spared: int) -> None:
    """Kill every process in these network namespaces but for the spared one.

    It looks until it finds none twice in a row, because a process may start others while this one looks.
    """
    deadline_s, looks = time.monotonic() + _END_TIMEOUT_S, 0
    while looks < 2 and time.monotonic() < deadline_s:
        found = [pid for pid, _ in processes_in(namespaces) if pid != spared]
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        looks = 0 if found else looks + 1
        time.sleep(_PAUSE_S)


def _wait_for_end_of(owner: int) -> None:
    """Return when standard input has something to say, or the owner has ended.

    Both are needed: a process that the owner forked may hold the other end of the pipe open. The signal that
    `die_with_parent` asks for would come too early: when the owner's thread that built the testbed ends.
    """
    watched = select.poll()
    watched.register(0, select.POLLIN)
    try:
        watched.register(os.pidfd_open(owner), select.POLLIN)
    except ProcessLookupError:
        return
    if os.getppid() == owner:
        watched.poll()


def main(owner: int, count: int) -> None:
    """Hold namespaces until it is time to end them."""
    holders: list[int] = []
    for _ in range(count):
        pid, problem = hold_namespace()
        if problem:
            print(problem, flush=True)  # noqa: T201 (this is the answer)
            return  # the other holders die with this process
        holders.append(pid)
    # Held open, so that the kernel gives no inode number away while processes are looked up by it.
    open_files = [os.open(f"/proc/{pid}/ns/net", os.O_RDONLY) for pid in holders]
    print(*holders, flush=True)  # noqa: T201 (this is the answer)
    _wait_for_end_of(owner)
    for pid in holders:  # first, so that nothing can enter any more
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    end_processes_in({(s.st_dev, s.st_ino) for s in map(os.fstat, open_files)}, spared=owner)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
