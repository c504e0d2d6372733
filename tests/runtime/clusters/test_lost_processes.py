"""Servers and drivers that are killed, stopped or cut off: an error within seconds that names them, and nothing left."""

import os
import re
import select
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from variants import in_soak

ROOT = Path(__file__).resolve().parents[3]

pytestmark = [pytest.mark.processes, pytest.mark.slow]

BOUND_S = 10.0
"""Seconds after which the error is out."""

ADDRESSES = [f"127.0.0.1:{port}" for port in (2222, 2223, 2224)]

STEPS = """
import sys
import numpy as np
import tensorflow as tf
import caramel

v1 = tf.compat.v1
with caramel.capture() as context:
    x = v1.placeholder(tf.float32, [None, 2], name="x")
    w = v1.get_variable("w", [2, 1], initializer=v1.ones_initializer())
    v1.train.GradientDescentOptimizer(0.01).minimize(tf.reduce_mean(tf.square(tf.matmul(x, w))))
cluster = caramel.Servers(sys.argv[1].split(","))
print("begins", flush=True)
try:
    model = caramel.ARModel(context, len(cluster.addresses))
    if sys.argv[2] == "late":
        sys.stdin.readline()
    with model.session(cluster, step_timeout_s=5 if sys.argv[2] == "late" else 600) as session:
        for number in range(10**9):
            session.step({"x": np.ones([6, 2])})
            if number == 2:
                print("runs", flush=True)
                if sys.argv[2] == "ends":
                    break
            if sys.argv[2] == "between":
                sys.stdin.readline()
except caramel.ClusterError as error:
    print("lost:", error, flush=True)
"""

FIT = """
import sys
import keras
import numpy as np
import caramel

class Runs(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            print("runs", flush=True)

cluster = caramel.Servers(sys.argv[1].split(","))
model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
model.compile("sgd", "mse")
print("begins", flush=True)
try:
    caramel.fit(model, np.ones([6 * 10**5, 2]), np.ones([6 * 10**5, 1]), workers=len(cluster.addresses), batch_size=6,
                cluster=cluster, verbose=0, callbacks=[Runs()])
except caramel.ClusterError as error:
    print("lost:", error, flush=True)
"""


CLOSES = """
import sys, threading, time
import numpy as np
import tensorflow as tf
import caramel

v1 = tf.compat.v1
with caramel.capture(loss_reduction="mean") as context:
    x = v1.placeholder(tf.float32, [None, 2], name="x")
    rounds = v1.placeholder_with_default(tf.constant(1, tf.int64), [], "rounds")
    z = tf.while_loop(lambda i, z: i < rounds, lambda i, z: (i + 1, z + 0.0), [tf.constant(0, tf.int64), x])[1]
    w = v1.get_variable("w", [2, 1], initializer=v1.ones_initializer())
    v1.train.GradientDescentOptimizer(0.01).minimize(tf.reduce_mean(tf.square(tf.matmul(z, w))))
cluster = caramel.Servers(sys.argv[1].split(","))
session = caramel.ARModel(context, len(cluster.addresses)).session(cluster)
session.step({"x": np.ones([6, 2])})

def step():
    try:
        session.step({"x": np.ones([6, 2]), "rounds": np.int64(10**12)})  # for hours
    except caramel.ClusterError as error:
        print("lost:", error, flush=True)

stepping = threading.Thread(target=step)
stepping.start()
time.sleep(1)
print("runs", flush=True)
session.close()
stepping.join()
"""


class Job:
    """Servers and a driver, each started by a function like `subprocess.Popen` of its host.

    Args:
        starts: for each server the function that starts Python there.
        addresses: addresses of the servers.
        program: program of the driver.
        mode: argument of the program.
        driver_starts: the same function for the driver; default: it is beside the first server.
    """

    def __init__(self, starts, addresses, program=STEPS, mode="steps", driver_starts=None):
        cluster = ",".join(addresses)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.servers = [
            start(["-m", "caramel", "worker", "--cluster", cluster, "--task", str(task)], pipes)
            for task, start in enumerate(starts)
        ]
        for server in self.servers:
            assert "caramel server ready" in line_of(server, 60)
        self.driver = (driver_starts or starts[0])(["-c", program, cluster, mode], pipes)

    def await_line(self, text):
        while (line := line_of(self.driver, 120)) != text + "\n":
            assert line, (self.driver.kill(), self.driver.communicate())

    def go_on(self, steps):
        self.driver.stdin.write("\n" * steps)
        self.driver.stdin.flush()

    def lose(self, task, how):
        """Send a server a signal; the driver's error."""
        self.servers[task].send_signal(how)
        return self.error()

    def error(self, within_s=BOUND_S):
        """The driver's error, which is to come soon, and its end without a traceback."""
        line = line_of(self.driver, within_s)
        assert line, f"nothing was said within {within_s} s"
        assert self.driver.wait(timeout=10) == 0
        assert "Traceback" not in self.driver.stderr.read()
        return line


def line_of(process, timeout_s):
    """The next line that a process says, or none if it says nothing in time; nothing is read ahead."""
    until_s, text = time.monotonic() + timeout_s, ""
    while not text.endswith("\n") and select.select([process.stdout], [], [], max(until_s - time.monotonic(), 0))[0]:
        read = os.read(process.stdout.fileno(), 1).decode()
        if not read:
            break
        text += read
    return text


@pytest.fixture
def job(network):
    """Function that starts three servers and a driver in one network."""

    def start(program=STEPS, mode="steps"):
        return Job(
            [lambda arguments, pipes: network.start(*arguments, stdin=subprocess.PIPE)] * 3, ADDRESSES, program, mode
        )

    return start


def names(said, task):
    """Whether a message has the rank of a worker and its host."""
    return re.search(rf"worker {task}\b", said) is not None and ADDRESSES[task] in said


HOW = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}
FAST = [("killed", 2)]


@pytest.mark.parametrize("how, task", [*FAST, *in_soak(*((h, t) for h in HOW for t in range(3) if (h, t) not in FAST))])
def test_during_steps(job, how, task):
    job = job()
    job.await_line("runs")
    said = job.lose(task, HOW[how])
    assert re.match(r"lost: step \d+ cannot go on: ", said) and names(said, task), said
    assert "restore the last checkpoint" in said


@pytest.mark.parametrize("how", [*in_soak(*HOW)])
def test_between_steps(job, how):
    """It is lost while the driver waits for something else, and the next step says so at once."""
    job = job(mode="between")
    job.go_on(2)
    job.await_line("runs")
    job.servers[1].send_signal(HOW[how])
    time.sleep(9)
    job.go_on(1)
    assert names(job.error(within_s=3), 1)


@pytest.mark.parametrize("how", in_soak(*HOW))
def test_in_a_fit(job, how):
    job = job(FIT)
    job.await_line("runs")
    assert names(job.lose(1, HOW[how]), 1)


@pytest.mark.soak
def test_one_that_is_stopped_before_the_session_opens(job):
    """The kernel takes connections for it, and nobody answers. The driver waits for it as for one that has to start."""
    job = job(mode="late")
    job.await_line("begins")
    job.servers[2].send_signal(signal.SIGSTOP)
    job.go_on(1)
    said = job.error(within_s=20)
    assert f"worker 2 at {ADDRESSES[2]} did not answer within 5 s" in said and "caramel worker" in said


def test_a_link_that_goes_down(testbed):
    """Without a reset of connections, as when a cable is pulled."""
    hosts = testbed.hosts[:2]
    job = Job([partial(start_on, host) for host in hosts], [f"{host.address}:2222" for host in hosts])
    job.await_line("runs")
    cut(hosts[1])
    assert f"worker 1 at {hosts[1].address}:2222" in job.error()


@pytest.fixture
def testbed():
    """Three hosts with a link each."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.testbed import Testbed, UnavailableError

    try:
        testbed = Testbed(3)
    except UnavailableError as error:
        pytest.skip(str(error))
    with testbed:
        yield testbed


def cut(host):
    """Take a host's link down; no connection is reset."""
    from benchmarks.testbed.host import INTERFACE

    host.run(["ip", "link", "set", "dev", INTERFACE, "down"], 10)


def start_on(host, arguments, pipes):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    return host.popen([sys.executable, *arguments], env=environment, **pipes)


# -- drivers that are gone ----------------------------------------------------------------------


def another(job, network, mode="steps"):
    """A second driver on the servers of a job."""
    return network.start("-c", STEPS, ",".join(ADDRESSES), mode, stdin=subprocess.PIPE)


def test_a_driver_that_is_killed_leaves_nothing(job, network):
    """What it had is freed, and the next one trains."""
    job = job()
    job.await_line("runs")
    second = another(job, network)
    assert line_of(second, 60) == "begins\n"
    said = line_of(second, 60)
    assert said.startswith(f"lost: another driver uses these servers: process {job.driver.pid} on "), said
    job.driver.kill()
    for server in job.servers:
        said = line_of(server, 20)
        assert re.fullmatch(rf"the driver, process {job.driver.pid} on .*, has ended without closing .*\n", said), said
    third = another(job, network)
    assert [line_of(third, 60) for _ in range(2)] == ["begins\n", "runs\n"]
    third.send_signal(signal.SIGSTOP)  # busy, or stopped: its names are still there
    assert not any(line_of(server, 5) for server in job.servers)


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["steps", *in_soak("between")])
def test_a_driver_that_is_cut_off_leaves_nothing(testbed, mode):
    """Servers hear nothing from it, not even that its connections have ended."""
    *hosts, last = testbed.hosts
    addresses = [f"{host.address}:2222" for host in hosts]
    job = Job([partial(start_on, host) for host in hosts], addresses, mode=mode, driver_starts=partial(start_on, last))
    job.await_line("runs" if mode == "steps" else "begins")
    if mode == "between":
        job.go_on(2)
        job.await_line("runs")
    cut(last)
    if mode == "steps":
        assert re.search(rf"worker [01] at ({'|'.join(addresses)})", job.error())
    for server in job.servers:
        said = line_of(server, 60)
        assert re.fullmatch(rf"the driver, process {job.driver.pid} on .*, has ended without closing .*\n", said), said


@pytest.mark.soak  # as test_a_driver_that_is_killed_leaves_nothing
def test_a_driver_that_closes_its_session_is_no_matter(job):
    job = job(mode="ends")
    job.await_line("runs")
    assert job.driver.wait(timeout=30) == 0
    assert not any(line_of(server, 6) for server in job.servers)


@pytest.mark.soak  # as test_closing_ends_a_call_of_another_thread
def test_closing_ends_a_step_that_takes_hours(job):
    """Where all servers are there, what it has on them is freed as well."""
    job = job(CLOSES)
    job.await_line("runs")
    assert "session was closed" in job.error(within_s=25)
    assert not any(line_of(server, 6) for server in job.servers)
