"""Local server processes: nobody else reaches them, and none outlives what started it."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from variants import in_soak

import caramel
from caramel.errors import ClusterError, InputError
from caramel.runtime.clusters.launcher_client import LauncherClient
from caramel.runtime.clusters.local_processes import SharedProcesses
from caramel.runtime.host.environment import child_environment
from caramel.runtime.host.run_options import RunOptions

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.usefixtures("namespaces")]

SETTLE_S = 20.0
"""How long processes may take to end; they notice within a second, the rest is for a busy machine."""


# -- how servers are set up ------------------------------------------------------------------


def test_transfers_do_not_wait_for_computation():
    """One op that computes for long leaves threads for what arrives meanwhile, though only one was asked for."""
    graph = tf.Graph()
    with graph.as_default():
        with tf.device("/job:worker/task:0"):
            wide = tf.random.stateless_uniform([3000, 3000], [1, 2])
            product = tf.matmul(wide, wide)
            with tf.control_dependencies([product]):
                computed = tf.timestamp()
        with tf.device("/job:worker/task:1"):
            narrow = tf.random.stateless_uniform([300, 300], [1, 2])
            sent = tf.matmul(narrow, narrow)
        with tf.device("/job:worker/task:0"):
            added = tf.reduce_sum(sent) + 1
            with tf.control_dependencies([added]):
                arrived = tf.timestamp()
    options = RunOptions(optimize_graph=False, intra_op_threads=1, inter_op_threads=1)
    cluster = caramel.LocalProcesses(options=options)
    executor = cluster.start(graph.as_graph_def(), ("/job:worker/task:0", "/job:worker/task:1"), 60)
    try:
        fetches = [computed.name, arrived.name]
        executor.run(fetches, [], {}, 60)
        computed_s, arrived_s = executor.run(fetches, [], {}, 60)
    finally:
        executor.close()
    assert arrived_s < computed_s


def counting(workers):
    """A variable on each worker that each run adds one to."""
    graph = tf.Graph()
    added = []
    with graph.as_default():
        for rank in range(workers):
            with tf.device(f"/job:worker/task:{rank}"):
                variable = tf.Variable(0, name=f"count{rank}")
                added.append(tf.identity(variable.assign_add(1)).name)
        initialise = tf.group(*(v.initializer for v in graph.get_collection("variables"))).name
    return graph.as_graph_def(), added, initialise


def test_kept_servers_have_sessions_with_variables_of_their_own():
    graph_def, added, initialise = counting(2)
    devices = ("/job:worker/task:0", "/job:worker/task:1")
    with closing(SharedProcesses(caramel.LocalProcesses())) as kept:
        first, second = (kept.start(graph_def, devices, 60) for _ in range(2))
        assert first.pids() == second.pids() and len(first.pids()) == 3
        for session in (first, second):
            session.run([], [initialise], {}, 60)
        assert [first.run(added, [], {}, 60) for _ in range(2)] == [[1, 1], [2, 2]]
        assert second.run(added, [], {}, 60) == [1, 1]
        first.close()
        first.close()
        assert second.run(added, [], {}, 60) == [2, 2]
        with pytest.raises(InputError, match="servers that are kept are those of .*task:0.*task:1"):
            kept.start(tf.compat.v1.GraphDef(), (*devices, "/job:worker/task:2"), 60)
        kept.start(counting(1)[0], devices[:1], 60).close()  # some of them will do
        before = second.pids()
        os.kill(before[0], signal.SIGKILL)
        with pytest.raises(ClusterError, match="driver process ended"):
            second.run(added, [], {}, 60)
        second.close()
        third = kept.start(graph_def, devices, 60)
        third.run([], [initialise], {}, 60)
        assert third.run(added, [], {}, 60) == [1, 1]
        after = third.pids()
        assert not set(before) & set(after)
    assert not any(Path(f"/proc/{pid}").exists() for pid in after)
    with pytest.raises(ClusterError, match="closed"):
        third.run(added, [], {}, 60)


def test_a_launcher_that_cannot_be_started_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no python"))
    with pytest.raises(ClusterError, match="no process can be started for the workers: .*no python"):
        LauncherClient()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "number, how",
    [
        pytest.param(0, signal.SIGKILL, id="launcher", marks=pytest.mark.soak),
        pytest.param(1, signal.SIGKILL, id="coordinating server", marks=pytest.mark.soak),
        pytest.param(2, signal.SIGKILL, id="other server", marks=pytest.mark.soak),
        pytest.param(2, signal.SIGSTOP, id="a server is stopped"),
    ],
)
def test_kept_servers_start_again_if_one_has_ended(number, how, ours):
    """Whatever ended, and although nobody has asked it for anything since; who had a session has it no more.

    In every run, test_kept_servers_have_sessions_with_variables_of_their_own has a launcher that ended.
    """
    graph_def, added, initialise = counting(2)
    devices = ("/job:worker/task:0", "/job:worker/task:1")
    with closing(SharedProcesses(caramel.LocalProcesses())) as kept:
        closed, lost = (kept.start(graph_def, devices, 60) for _ in range(2))
        closed.close()
        before = lost.pids()
        os.kill(before[number], how)
        while number == 0 and Path(f"/proc/{before[0]}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)
        time.sleep(0.2)  # a launcher reaps its servers a moment after they ended
        found = kept.start(graph_def, devices, 60)
        assert not set(before) & set(found.pids())
        found.run([], [initialise], {}, 60)
        assert found.run(added, [], {}, 60) == [1, 1]
        with pytest.raises(ClusterError, match="closed"):
            lost.run(added, [], {}, 60)
        lost.close()
        assert found.run(added, [], {}, 60) == [2, 2]
        again = kept.start(graph_def, devices, 60)
        assert again.pids() == found.pids()
    ours()


@pytest.mark.parametrize("algorithms", [("native", "native"), *in_soak((("native", "ring", "native"),))])
def test_sessions_with_native_collectives_share_no_servers(algorithms):
    with caramel.capture() as context:
        x = tf.compat.v1.placeholder(tf.float32, [None, 3], name="x")
        w = tf.compat.v1.get_variable("w", [3], initializer=tf.compat.v1.ones_initializer())
        loss = tf.reduce_mean(tf.square(tf.linalg.matvec(x, w)))
        tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    with caramel.ARModel(context, 2, algorithm="ring").session() as here:
        expected = [here.step(x).loss for _ in range(3)]
    with closing(SharedProcesses(caramel.LocalProcesses())) as kept:
        losses, pids = [], []
        sessions = [caramel.ARModel(context, 2, algorithm=name).session(kept) for name in algorithms]
        for session in sessions:
            losses.append([session.step(x).loss for _ in range(3)])
            pids.append(session.executor.pids())
        for session in sessions:
            session.close()
    assert losses[0] == losses[-1]
    assert losses == [pytest.approx(expected, rel=1e-5)] * len(algorithms)
    assert len({pid for each in pids for pid in each}) == 3 * len(algorithms)


def test_the_transport_is_set_up_and_what_the_user_has_set_stays(monkeypatch):
    monkeypatch.delenv("GRPC_EXPERIMENTS", raising=False)
    monkeypatch.setenv("TF_GRPC_DEFAULT_OPTIONS", "grpc.use_local_subchannel_pool=1")
    executor = caramel.LocalProcesses().start(tf.compat.v1.GraphDef(), ("/job:worker/task:0",), 60)
    try:
        launcher = Path(f"/proc/{executor.launcher_pid}/environ").read_bytes().split(b"\0")
        libraries = [Path(f"/proc/{pid}/maps").read_text() for pid in executor.pids()]
    finally:
        executor.close()
    assert b"GRPC_EXPERIMENTS=tcp_rcv_lowat,tcp_frame_size_tuning" in launcher
    assert b"TF_GRPC_DEFAULT_OPTIONS=grpc.use_local_subchannel_pool=1" in launcher
    assert all("tensorflow" in each and "/sklearn/" not in each for each in libraries)  # which Keras would have brought
    assert "GRPC_EXPERIMENTS" not in os.environ
    assert "GRPC_EXPERIMENTS" not in child_environment()


# -- a life without accidents ----------------------------------------------------------------


def reachable(port):
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.settimeout(1.0)
                probe.connect((host, port))
                return True
        except OSError:
            pass
    return False


def test_isolation_training_and_close(compiled, batch, processes, ours, scratch, tmp_path, listening_ports):
    armodel = compiled()
    with armodel.session() as plain:
        expected = [plain.step(*batch).loss for _ in range(3)]
        values = plain.values()
    with armodel.session(caramel.LocalProcesses()) as session:
        workers = session._executor.worker_pids()
        launcher = session._executor.launcher_pid
        assert len(set(workers)) == 2
        assert session.executor.pids() == (launcher, *workers)
        everything = ours()
        assert {pid for pid, _ in everything} >= {launcher, *workers}

        here = os.readlink("/proc/self/ns/net")
        for pid in (launcher, *workers):
            assert os.readlink(f"/proc/{pid}/ns/net") != here
        inside = listening_ports(workers[0])
        assert len(inside) >= 2  # the servers do listen, on every interface of their namespace
        for port in inside - listening_ports(os.getpid()):
            assert not reachable(port)

        assert [session.step(*batch).loss for _ in range(3)] == pytest.approx(expected, rel=1e-6)
        for name, value in session.values().items():
            np.testing.assert_allclose(value, values[name], rtol=1e-6)
        assert session.evaluate(*batch)["worst"].shape == ()
        assert session.evaluate(fetches="w/Read/ReadVariableOp:0").shape == (3,)
        session.save(tmp_path / "saved")
        session.step(*batch)
        session.restore(tmp_path / "saved")
        assert session.step_count == 3
    assert processes.wait_until_gone(everything, SETTLE_S) == []
    assert list(scratch.iterdir()) == []
    with pytest.raises(caramel.ClusterError, match="closed"):
        session.step(*batch)
    session.close()  # closing twice does no harm


def test_an_exception_in_the_with_block(compiled, batch, processes, ours, scratch):
    with pytest.raises(ZeroDivisionError), compiled().session(caramel.LocalProcesses()) as session:
        session.step(*batch)
        everything = ours()
        assert len(everything) >= 3
        raise ZeroDivisionError
    assert processes.wait_until_gone(everything, SETTLE_S) == []
    assert list(scratch.iterdir()) == []


def test_a_session_beside_others_takes_free_ports():
    cluster = caramel.LocalProcesses(base_port=4000, allow_open_ports=True)
    beside = cluster.beside()
    assert beside.base_port is None and beside.allow_open_ports
    assert caramel.InProcess().beside() == caramel.InProcess()


def test_base_ports_are_used(compiled, batch, listening_ports):
    """In a namespace of its own every port is free, whatever the host uses."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        base = min(taken.getsockname()[1], 65534)
        with compiled().session(caramel.LocalProcesses(base_port=base)) as session:
            pids = session._executor.worker_pids()
            assert {base, base + 1} <= listening_ports(pids[0])
            assert session.step(*batch).step == 1


# -- the user's process ends -----------------------------------------------------------------

DRIVER = """
import os, signal, sys, time

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job starts with Ctrl-C ignored
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf
import caramel

v1 = tf.compat.v1
with caramel.capture(loss_reduction="mean") as context:
    x = v1.placeholder(tf.float32, [None, 3], "x")
    rounds = v1.placeholder_with_default(tf.constant(1, tf.int64), [], "rounds")
    z = tf.while_loop(lambda i, z: i < rounds, lambda i, z: (i + 1, z + 0.0), [tf.constant(0, tf.int64), x])[1]
    w = v1.get_variable("w", [3])
    v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.linalg.matvec(z, w) ** 2))
armodel = caramel.ARModel(context, 2)
how = sys.argv[1]
print("starting", flush=True)
session = armodel.session(caramel.LocalProcesses())
session.step(np.ones([4, 3], np.float32))
print("running", flush=True)
if how == "returns":
    sys.stdin.readline()
elif how == "steps":
    with session:
        session.step(x=np.ones([4, 3], np.float32), rounds=np.int64(10**9))  # for hours
else:
    time.sleep(600)
"""


@pytest.fixture
def driver(processes, scratch):
    """Function that starts a user's program, waits for a line of its output, and gives its processes."""
    started = []

    def start(how, line="running"):
        child = subprocess.Popen(
            [sys.executable, "-c", DRIVER, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append((child, []))
        while (said := child.stdout.readline().strip()) != line:
            assert said, "the program ended before its time"
        started[-1][1].extend(processes.below(child.pid))
        return child, started[-1][1]

    yield start
    for child, below in started:
        child.kill()
        child.communicate()
        for pid in processes.alive(below):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "how, number",
    [
        pytest.param("sleeps", signal.SIGKILL, marks=pytest.mark.soak),
        ("steps", signal.SIGKILL),
        pytest.param("steps", signal.SIGINT, marks=pytest.mark.soak),
    ],
    ids=["SIGKILL", "SIGKILL in a step", "Ctrl-C in a step"],
)
def test_the_user_s_process_is_killed(driver, processes, scratch, how, number):
    child, below = driver(how)
    assert len(below) >= 3  # launcher and two servers
    if how == "steps":
        time.sleep(1.0)
        assert child.poll() is None
    os.kill(child.pid, number)
    child.wait(SETTLE_S)
    assert processes.wait_until_gone(below, SETTLE_S) == []
    assert list(scratch.iterdir()) == []


def test_the_user_s_process_ends_without_closing(driver, processes, scratch):
    child, below = driver("returns")
    assert len(below) >= 3
    child.stdin.write("\n")
    child.stdin.flush()
    assert child.wait(SETTLE_S) == 0
    assert processes.wait_until_gone(below, SETTLE_S) == []
    assert list(scratch.iterdir()) == []


@pytest.mark.soak  # as where it is killed in a step
def test_the_user_s_process_is_killed_while_servers_start(driver, processes):
    child, _ = driver("sleeps", line="starting")
    deadline = time.monotonic() + SETTLE_S
    while not (below := processes.below(child.pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert below, "no launcher was started"
    (launcher, _), *_ = below
    time.sleep(1.0)  # somewhere in the launcher's own start
    below += processes.below(launcher)
    child.kill()
    child.wait()
    assert processes.wait_until_gone(below, SETTLE_S) == []
    assert processes.below(launcher) == []


# -- start-up that fails ---------------------------------------------------------------------


def test_servers_that_take_too_long(compiled, ours, scratch):
    start = time.monotonic()
    with pytest.raises(caramel.ClusterError, match=r"worker [01] .*did not start within 0\.01 s"):
        compiled().session(caramel.LocalProcesses(start_timeout_s=0.01))
    assert time.monotonic() - start < 40
    assert ours() == []
    assert list(scratch.iterdir()) == []


def test_a_graph_that_cannot_be_sent(ours):
    class Graph:
        """Of more than the 2 GiB that a protocol buffer may have."""

        node, library = (), tf.compat.v1.GraphDef().library

        def SerializeToString(self):
            raise ValueError("too large")

    with pytest.raises(ValueError, match="too large") as error:
        caramel.LocalProcesses().start(Graph(), ("/job:worker/task:0", "/job:worker/task:1"), 60)
    assert error.tb is not None  # what it keeps alive is stopped all the same
    assert ours() == []


@pytest.mark.parametrize("devices", [["/GPU:0", "/GPU:1"], ["/job:worker/task:0", "/job:worker/GPU:1"]])
def test_devices_that_are_no_processes(compiled, ours, devices):
    with pytest.raises(caramel.InputError, match=r"names no job and task.*/job:worker/task:0.*InProcess"):
        compiled(device_list=devices).session(caramel.LocalProcesses())
    assert ours() == []


def test_ports_beyond_the_last(compiled, ours):
    with pytest.raises(caramel.InputError, match=r"port 65536 .*worker 1.*base_port"):
        compiled().session(caramel.LocalProcesses(base_port=65535))
    assert ours() == []


def test_a_start_that_the_system_refuses(compiled, ours, scratch):
    """The reason is said: here that a log file's name is too long."""
    devices = [f"/job:{'w' * 300}/task:{task}" for task in range(2)]
    with pytest.raises(caramel.ClusterError, match=r"start failed: OSError: .*File name too long"):
        compiled(device_list=devices).session(caramel.LocalProcesses())
    assert ours() == []
    assert list(scratch.iterdir()) == []
