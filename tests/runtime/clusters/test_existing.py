"""Servers that run already, started by `caramel worker`, and workers on hosts of a testbed."""

import re
import sys
import time
from pathlib import Path

import pytest
import tensorflow as tf

import caramel
from caramel.errors import ClusterError, InputError
from caramel.measure.netbench import Settings, measure_network
from caramel.runtime.clusters.local_processes import Host

ROOT = Path(__file__).resolve().parents[3]


MEASURE_AND_TRAIN = """
import tensorflow as tf
import caramel
from caramel.measure.netbench import Settings, measure_network

servers = caramel.Servers(["127.0.0.1:2222", "127.0.0.1:2223"])
settings = Settings(sizes=(64, 2**16), algorithms=("star", "native"), depths=(1,), rounds=2, contention=False)
network = measure_network(servers, [2], settings)
print(*(curve.algorithm for curve in network.curves))
with caramel.capture() as context:
    x = tf.compat.v1.placeholder(tf.float32, [None, 2], name="x")
    w = tf.compat.v1.get_variable("w", [2, 1], initializer=tf.compat.v1.ones_initializer())
    loss = tf.reduce_mean(tf.square(tf.matmul(x, w)))
    tf.compat.v1.train.GradientDescentOptimizer(0.01).minimize(loss)
with caramel.ARModel(context, 2, network=network).session(servers) as session:
    print(*(session.step({"x": [[1.0, 2.0], [3.0, 4.0]]}).loss for _ in range(2)))
batch = {"x": [[1.0, 2.0], [3.0, 4.0]]}
trace = caramel.trace(context, batch, workers=2, cluster=servers, runs=1, steps=1, orders=False, progress=False)
print(*trace.warnings)
try:
    caramel.ARModel(context, 3).session(servers)
except caramel.InputError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.processes
def test_measure_and_train_on_servers(network):
    cluster = "127.0.0.1:2222,127.0.0.1:2223"
    servers = [network.serve("--cluster", cluster, "--task", task) for task in range(2)]
    result = network.run("-c", MEASURE_AND_TRAIN)
    assert result.returncode == 0, result.stderr
    algorithms, losses, warning, error = result.stdout.splitlines()
    assert set(algorithms.split()) == {"star", "native"}
    first, second = map(float, losses.split())
    assert second < first
    assert "ops ran as many at a time as these servers run" in warning
    assert "there are 2 servers" in error
    for server in servers:
        server.terminate()
        assert "anyone who reaches" in server.communicate(timeout=60)[1]


INSIDE = """
import tensorflow as tf
import caramel
from caramel.measure.netbench import Settings, measure_network

with caramel.capture() as context:
    x = tf.compat.v1.placeholder(tf.float32, [None, 2], name="x")
    w = tf.compat.v1.get_variable("w", [2, 1], initializer=tf.compat.v1.ones_initializer())
    loss = tf.reduce_mean(tf.square(tf.matmul(x, w)))
    tf.compat.v1.train.GradientDescentOptimizer(0.01).minimize(loss)
model = caramel.ARModel(context, 2)
addresses = ["127.0.0.1:2222", "127.0.0.1:2223"]

def losses(**options):
    with model.session(caramel.Servers(addresses, task=0, **options)) as session:
        found = [session.step({"x": [[1.0, 2.0], [3.0, 4.0], [0.1, 0.7]]}).loss for _ in range(5)]
        return found, len(session.executor.pids())

def is_listening():
    with open("/proc/net/tcp") as file, open("/proc/net/tcp6") as more:
        rows = [line.split() for line in (*file, *more)]
    return any(row[1].endswith(":08AE") and row[3] == "0A" for row in rows)  # 2222

beside = losses()
assert beside[1] == 2 and not is_listening()
few = Settings(sizes=(64, 4096), algorithms=("star",), depths=(1,), rounds=1, contention=False)
measure_network(caramel.Servers(addresses, task=0, drives_inside=True), [2], few)
assert not is_listening()  # what is measured has a server that is stopped
inside = losses(drives_inside=True)
assert inside == (beside[0], 1) and is_listening()
assert losses(drives_inside=True) == losses() == inside  # there it stays
print("same")
"""


@pytest.mark.slow
@pytest.mark.processes
def test_a_server_in_the_drivers_process(network):
    """It computes what one beside it does, serves sessions one after the other, and is not there for measurements."""
    network.serve("--cluster", "127.0.0.1:2222,127.0.0.1:2223", "--task", 1)
    result = network.run("-c", INSIDE)
    assert (result.returncode, result.stdout) == (0, "same\n"), result.stderr


@pytest.mark.parametrize(
    ("addresses", "message"),
    [
        ([], "one or more addresses"),
        ("a:1", "list of one or more addresses"),
        (["host"], "'host' is no address"),
        (["host:0"], "is no address"),
        (["host:99999"], "is no address"),
        ([":22"], "is no address"),
        (["a:1", "a:1"], "an address is there twice"),
    ],
)
def test_bad_addresses(addresses, message):
    with pytest.raises(InputError, match=message):
        caramel.Servers(addresses)


@pytest.mark.slow
def worker(*tasks):
    return [f"/job:worker/task:{task}" for task in tasks]


def test_tasks_have_the_roles_that_the_cluster_gives_them():
    named = caramel.Servers(["a:1", "b:1", "c:1", "d:1"], parameter_servers=2)
    assert named.default_devices == tuple(worker(0, 1))
    named.check_roles(worker(0, 1), worker(2, 3))
    named.check_roles(worker(0, 1), worker(2))
    named.check_roles(worker(0, 1), worker(0, 3))  # one beside a worker
    for workers, servers, message in (
        (worker(0, 1, 2), worker(3), r"task 2 of the cluster \(c:1\) would be a worker"),
        (worker(0), worker(1, 2), r"task 1 of the cluster \(b:1\) would be a parameter server"),
    ):
        with pytest.raises(InputError, match=message):
            named.check_roles(workers, servers)
        caramel.Servers(named.addresses).check_roles(workers, servers)  # nothing says which is which
    with pytest.raises(InputError, match="parameter_servers must be at most 3, got 4"):
        caramel.Servers(named.addresses, parameter_servers=4)


def test_a_session_does_not_mix_them_up():
    named = caramel.Servers(["127.0.0.1:2222", "127.0.0.1:2223"], parameter_servers=1)
    w = tf.Variable(tf.ones([2, 1]), name="w")

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(x @ w)
        w.assign_sub(tape.gradient(loss, w))
        return loss

    with pytest.raises(InputError, match="task 1 of the cluster .* would be a worker"):
        caramel.ARModel(caramel.capture(step, [tf.TensorSpec([None, 2])]), 2).session(named)


def test_a_name_that_leads_nowhere_is_not_waited_for():
    with caramel.capture() as context:
        x = tf.compat.v1.placeholder(tf.float32, [None, 2], name="x")
        w = tf.compat.v1.get_variable("w", [2, 1], initializer=tf.compat.v1.ones_initializer())
        tf.compat.v1.train.GradientDescentOptimizer(0.01).minimize(tf.reduce_mean(tf.square(tf.matmul(x, w))))
    model = caramel.ARModel(context, 1)
    began_s = time.monotonic()
    with pytest.raises(ClusterError, match="did not answer .*, and these names do not resolve: nowhere.invalid. Start"):
        model.session(caramel.Servers(["nowhere.invalid:2222"]))
    assert time.monotonic() - began_s < 30


@pytest.mark.slow
@pytest.mark.processes
def test_workers_on_shaped_hosts():
    """Through a link of 100 Mbit/s, 1 MiB each way takes at least 84 ms less what the burst lets through."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.testbed import Testbed, UnavailableError

    try:
        testbed = Testbed(2, 12.5e6)
    except UnavailableError as error:
        pytest.skip(str(error))
    with testbed:
        hosts = tuple(Host(h.namespace, h.address) for h in testbed.hosts)
        settings = Settings(sizes=(64, 2**20), algorithms=("star",), depths=(1,), rounds=2, contention=False)
        network = measure_network(caramel.LocalProcesses(hosts=hosts), [2], settings)
        _, large = network.curves[0].samples
        assert large.time_s > 0.16
        with pytest.raises(InputError, match="2 hosts for 3 workers"):
            measure_network(caramel.LocalProcesses(hosts=hosts), [3], settings)


@pytest.mark.processes
def test_hosts_must_not_be_the_machine_itself():
    settings = Settings(sizes=(64, 128), algorithms=("star",), rounds=1, contention=False)
    here = tuple(Host("/proc/self/ns/net", f"127.0.0.{n}") for n in (2, 3))
    with pytest.raises(ClusterError, match=re.escape("/proc/self/ns/net is this machine's own network")):
        measure_network(caramel.LocalProcesses(hosts=here), [2], settings)
    gone = tuple(Host("/proc/1/ns/nothing", "127.0.0.1") for _ in range(2))
    with pytest.raises(ClusterError, match="cannot be entered"):
        measure_network(caramel.LocalProcesses(hosts=gone), [2], settings)


SAME_PROGRAM = """
import os
import sys
import numpy as np
import tensorflow as tf
import caramel

resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
    port_base=2222, gpus_per_node=2, gpus_per_task=1, auto_set_gpu=False
)
cluster = caramel.Servers.from_resolver(resolver)
if cluster.task != 0:
    cluster.serve()
with caramel.capture() as context:
    x = tf.compat.v1.placeholder(tf.float32, [None, 2], name="x")
    w = tf.compat.v1.get_variable("w", [2, 1], initializer=tf.compat.v1.ones_initializer())
    tf.compat.v1.train.GradientDescentOptimizer(0.01).minimize(tf.reduce_mean(tf.square(tf.matmul(x, w))))
model = caramel.ARModel(context, 2)
for _ in range(2):
    with model.session(cluster) as session, model.session(cluster) as other:
        driver, server = session.executor.pids()
        assert driver == os.getpid() and other.executor.pids() == (driver,)
        assert b"caramel.runtime.host.server" in open(f"/proc/{server}/cmdline", "rb").read()
        print([session.step({"x": np.ones([4, 2])}).loss for _ in range(2)], other.step({"x": np.ones([4, 2])}).loss)
"""


@pytest.mark.soak  # as the command with TF_CONFIG; test_membership has resolvers
@pytest.mark.slow
@pytest.mark.processes
def test_one_program_on_every_task_of_slurm(network):
    """Task 0 drives, the other serves; a second session uses the first one's server, and shares nothing else."""
    common = {
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_TASKS_PER_NODE": "2",
    }
    other = network.start("-c", SAME_PROGRAM, environment={**common, "SLURM_PROCID": "1"})
    assert "caramel server ready" in network.line_of(other)
    result = network.run("-c", SAME_PROGRAM, environment={**common, "SLURM_PROCID": "0"})
    assert result.returncode == 0, result.stderr
    losses = [float(text) for text in re.findall(r"[0-9.]+", result.stdout)]
    gradient = 2 * 2.0  # of each weight: mean of 2 * (w0 + w1)
    second = (2.0 - 0.01 * 2 * gradient) ** 2
    assert losses == pytest.approx([4.0, second, 4.0] * 2, rel=1e-6)
    assert other.poll() is None
