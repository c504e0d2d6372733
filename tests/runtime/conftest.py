"""A small model to run, and what can be said of processes on Linux."""

import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

X = np.arange(12, dtype=np.float32).reshape(4, 3) / 12
Y = np.ones(4, np.float32)


@pytest.fixture(scope="session")
def batch():
    """Four examples."""
    return X, Y


@pytest.fixture
def compiled():
    """Function that compiles linear regression; ``between`` changes the examples on their way."""
    import tensorflow as tf

    import caramel

    v1 = tf.compat.v1

    def compile_it(workers=2, between=None, replicated=(), **options):
        with caramel.capture(replicated=replicated) as context:
            x = v1.placeholder(tf.float32, [None, 3], "x")
            y = v1.placeholder(tf.float32, [None], "y")
            weights = v1.get_variable("w", [3], initializer=tf.zeros_initializer())
            count = v1.train.get_or_create_global_step()
            error = tf.linalg.matvec(x if between is None else between(x), weights, name="predict") - y
            v1.train.MomentumOptimizer(0.1, 0.9).minimize(tf.reduce_mean(error**2), global_step=count)
            context.evaluation = {"worst": tf.reduce_max(tf.abs(error))}
        return caramel.ARModel(context, workers, **options)

    return compile_it


class Processes:
    """Processes by id and start time, so that an id that is used again is another process."""

    @staticmethod
    def stat(pid):
        """Name, state, parent and start time of a process, or None."""
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        fields = text.rpartition(")")[2].split()
        return fields[0], int(fields[1]), int(fields[19])

    def below(self, pid):
        """All descendants of a process, as (id, start time)."""
        everyone = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit() and (found := self.stat(int(entry))) is not None and found[0] != "Z":
                everyone[int(entry)] = found
        found, waiting = [], [pid]
        while waiting:
            parent = waiting.pop()
            children = [p for p, (_, above, _) in everyone.items() if above == parent]
            found += [(p, everyone[p][2]) for p in children]
            waiting += children
        return sorted(found)

    def alive(self, processes):
        """Those that still run."""
        found = []
        for pid, start in processes:
            now = self.stat(pid)
            if now is not None and now[0] != "Z" and now[2] == start:
                found.append(pid)
        return found

    def wait_until_gone(self, processes, timeout_s=20.0):
        """Ids of those that are still there after the timeout."""
        deadline = time.monotonic() + timeout_s
        while (left := self.alive(processes)) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left


@pytest.fixture(scope="session")
def processes():
    """Looks at the machine's processes."""
    if not sys.platform.startswith("linux"):
        pytest.skip("looks into /proc")
    return Processes()


@pytest.fixture
def ours(processes):
    """Function that gives the processes that this test has started; none may be left in the end."""
    before = set(processes.below(os.getpid()))
    seen = set()  # who loses its parent is below this process no longer

    def started():
        found = [p for p in processes.below(os.getpid()) if p not in before]
        seen.update(found)
        return found

    yield started
    started()
    left = processes.wait_until_gone(sorted(seen))
    for pid in left:
        os.kill(pid, 9)
    assert left == [], "processes are left behind"


@pytest.fixture
def scratch(tmp_path_factory, monkeypatch):
    """The directory for temporary files, of this process and of those that it starts."""
    place = tmp_path_factory.mktemp("scratch")
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return place
