"""Shared by all tests: quiet TensorFlow, program files, TensorFlow 1's control flow, and a network for servers.

Nobody else should reach the servers that tests start.
"""

import contextlib
import gc
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# TensorFlow uses oneDNN, which joins ops, only on some processors; tests shall mean the same on all.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

# A busy machine may take long over an example, and a failure must be there again in the next run.
settings.register_profile("caramel", deadline=None, derandomize=True)
settings.load_profile("caramel")


# A shell without job control lets what it runs in the background ignore Ctrl-C, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish():
    """Modules stay: the garbage collector need not go through TensorFlow's again and again, nor often through graphs."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], 100)


@pytest.fixture(scope="module", autouse=True)
def _nothing_to_collect_twice():
    """So does what a file leaves behind: TensorFlow keeps each traced function that has a gradient of its own for ever."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def namespaces():
    """Skips where the kernel allows no network namespace."""
    prefix = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-Urn"]
    try:
        made = subprocess.run([*prefix, "true"], capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"cannot find out whether there are network namespaces: {error}")
    if made.returncode != 0:
        pytest.skip(f"the kernel allows no network namespace here: {made.stderr.strip()}")


@pytest.fixture(scope="session")
def listening_ports():
    """Function that gives the TCP ports on which something listens in the network namespace of a process."""

    def find(pid):
        lines = [
            line.split()
            for table in ("tcp", "tcp6")
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        ]
        return {int(fields[1].rpartition(":")[2], 16) for fields in lines if fields[3] == "0A"}

    return find


@pytest.fixture(scope="session")
def freeze():
    """Function that stops a process, and returns when all of its threads stand still: until then they may do a step."""

    def states(pid):
        for file in Path(f"/proc/{pid}/task").glob("*/stat"):
            with contextlib.suppress(FileNotFoundError):  # the thread has ended
                yield file.read_text().rpartition(")")[2].split()[0]

    def stop(pid, timeout_s=10.0):
        os.kill(pid, signal.SIGSTOP)
        deadline = time.monotonic() + timeout_s
        while set(states(pid)) != {"T"}:
            assert time.monotonic() < deadline, f"process {pid} goes on"
            time.sleep(0.01)

    return stop


@pytest.fixture
def old_control_flow():
    """Branches and loops of graphs are Switch, Merge and Enter, as in TensorFlow 1."""
    from tensorflow.compat import v1

    v1.disable_control_flow_v2()
    yield
    v1.enable_control_flow_v2()


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Function that writes a program file; modules and search path are as before afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    modules = set(sys.modules)

    def write_it(text, name="my_program.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    yield write_it
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


LEAST_SQUARES = """
    import numpy as np
    import tensorflow as tf

    def batches():
        rng = np.random.default_rng(0)
        for _ in range(4):
            x = rng.normal(size=(6, 3)).astype(np.float32)
            yield x, x @ np.array([1, 2, 3], np.float32)

    def endless_batches():
        while True:
            yield from batches()

    def program(data=batches):
        w = tf.Variable(tf.zeros([3]), name="w")

        @tf.function
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return loss

        specs = [tf.TensorSpec([None, 3], name="x"), tf.TensorSpec([None], name="y")]
        return {"step": step, "inputs": specs, "data": data()}

    def endless():
        return program(endless_batches)

    def broken():
        raise ValueError("nothing works")
"""


@pytest.fixture
def least_squares(write):
    """A program file of four steps, ``program``; ``endless`` is one without an end, ``broken`` raises an error."""
    return write(LEAST_SQUARES, "least_squares.py")


@pytest.fixture
def least_squares_losses(least_squares):
    """Function that gives the first and last loss of that program on so many workers of this process, as text."""
    from click.testing import CliRunner

    from caramel.cli.main import main

    def losses_of(workers):
        result = CliRunner().invoke(main, ["run", f"{least_squares}:program", "--workers", str(workers)])
        assert result.exit_code == 0, result.output
        return losses_in(result.output)

    return losses_of


def losses_in(output):
    """The first and the last loss in what ``caramel run`` says, as text."""
    return re.search(r"loss (\S+ -> \S+)", output)[1]


class Network:
    """A network namespace that lives as long as a process in it; commands run there side by side.

    Attributes:
        own: process ids that `others` leaves out.
    """

    def __init__(self):
        if shutil.which("unshare") is None or shutil.which("nsenter") is None:
            pytest.skip("there is no unshare and nsenter here to make a network namespace")
        is_root = os.geteuid() == 0
        self._holder = subprocess.Popen(
            ["unshare", "-n" if is_root else "-Urn", "sh", "-c", "echo made; exec sleep 3600"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if self._holder.stdout.readline() != "made\n":
            reason = self._holder.communicate()[1].strip()
            pytest.skip(f"the kernel allows no network namespace here: {reason}")
        kinds = ["--net"] if is_root else ["--user", "--net", "--preserve-credentials"]
        self.prefix = ["nsenter", f"--target={self._holder.pid}", *kinds]
        loopback = "from caramel.runtime.host.namespaces import _bring_up; _bring_up('lo')"
        subprocess.run([*self.prefix, sys.executable, "-c", loopback], check=True)
        self._started = []
        self.own = {self._holder.pid}

    def others(self):
        """Command line of each other process in the namespace, by its id."""
        namespace = os.readlink(f"/proc/{self._holder.pid}/ns/net")
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):  # no process, or one that has ended
                if entry.name.isdigit() and os.readlink(entry / "ns" / "net") == namespace:
                    found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
        return {pid: line for pid, line in found.items() if line and pid not in self.own}

    def left(self, patience_s=15):
        """The same, once they had time to end."""
        until_s = time.monotonic() + patience_s
        while (found := self.others()) and time.monotonic() < until_s:
            time.sleep(0.1)
        return found

    def start(self, *arguments, environment=None, stdin=subprocess.DEVNULL, **options):
        """Start Python in the namespace; its output is text. It ends with the test at the latest."""
        process = subprocess.Popen(
            [*self.prefix, sys.executable, *map(str, arguments)],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **(environment or {})},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        self._started.append(process)
        return process

    def run(self, *arguments, timeout=180, **options):
        """Run Python in the namespace to its end."""
        process = self.start(*arguments, **options)
        out, err = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def serve(self, *arguments, **options):
        """Start `caramel worker` and wait until it listens."""
        process = self.start("-m", "caramel", "worker", *arguments, **options)
        line = self.line_of(process)
        assert "caramel server ready" in line, (line, *self.end(process))
        return process

    def line_of(self, process, timeout=120):
        """The first line that a process says, or none if it says nothing in time."""
        return process.stdout.readline() if select.select([process.stdout], [], [], timeout)[0] else ""

    def end(self, process):
        """Kill a process; what it has said since."""
        process.kill()
        return process.communicate()

    def close(self):
        """End everything in it; some of what was started has started others."""
        for pid in self.others():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in (*self._started, self._holder):
            process.kill()
            process.wait()
            process.stdout.close()
            process.stderr.close()


@pytest.fixture
def network():
    """A network that only this test's processes reach."""
    made = Network()
    yield made
    made.close()
