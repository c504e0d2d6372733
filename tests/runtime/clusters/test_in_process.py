"""Workers as virtual devices of this process: placement, device strings, isolation."""

import os
import threading
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import tensorflow as tf
from variants import mostly_in_soak

import caramel
from caramel.errors import InputError
from caramel.graph.devices import in_process_mapping
from caramel.runtime.clusters import in_process as cluster_module
from caramel.runtime.clusters.base import workers_of, workers_on_host
from caramel.runtime.clusters.local_processes import Host
from caramel.runtime.feeds import bound_arrays, split_batch
from caramel.runtime.host.run_options import RunOptions

v1 = tf.compat.v1


def pinned(x):
    """Ops that the user pins to the GPU and to the host."""
    with tf.device("/GPU:0"):
        x = tf.negative(x, name="on_gpu")
    with tf.device("/CPU:0"):
        x = tf.negative(x, name="on_cpu")
    with tf.device("/device:GPU:1"):
        return tf.identity(tf.abs(x, name="on_second_gpu"))


GPUS = [f"/job:worker/task:{r}/device:GPU:0" for r in range(2)]


def devices_of(graph_def, name):
    return [node.device for rank in range(2) for node in graph_def.node if node.name == f"worker_{rank}/{name}"]


def test_device_strings_survive(compiled):
    graph_def = compiled(between=pinned, device_list=[d.replace("/device:", "/") for d in GPUS]).graph_def
    assert devices_of(graph_def, "on_gpu") == GPUS
    assert devices_of(graph_def, "on_cpu") == [d.replace("GPU", "CPU") for d in GPUS]
    assert devices_of(graph_def, "w") == GPUS
    assert {node.device for node in graph_def.node} == {*GPUS, *(d.replace("GPU", "CPU") for d in GPUS)}


def test_device_strings_of_the_user_survive_the_default_device_list(compiled):
    graph_def = compiled(between=pinned).graph_def
    tasks = [f"/job:worker/task:{r}" for r in range(2)]
    assert devices_of(graph_def, "on_gpu") == [f"{t}/device:GPU:0" for t in tasks]
    assert devices_of(graph_def, "on_cpu") == [f"{t}/device:CPU:0" for t in tasks]
    assert devices_of(graph_def, "on_second_gpu") == [f"{t}/device:GPU:1" for t in tasks]
    assert devices_of(graph_def, "w") == tasks


def test_device_strings_of_a_step_function_survive():
    w = tf.Variable(tf.zeros([3]), name="w")

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(pinned(x), w) - y) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    context = caramel.capture(step, [tf.TensorSpec([None, 3], name="x"), tf.TensorSpec([None], name="y")])
    graph_def = caramel.ARModel(context, 2, device_list=GPUS).graph_def
    assert devices_of(graph_def, "on_gpu") == GPUS
    assert devices_of(graph_def, "on_cpu") == [d.replace("GPU", "CPU") for d in GPUS]


DEVICE_LISTS = {
    "default": None,
    "gpus of tasks": GPUS,
    "gpus of one task": ["/job:worker/task:0/GPU:0", "/job:worker/task:0/GPU:1"],
    "bare gpus": ["/GPU:0", "/GPU:1"],
    "bare cpus": ["/CPU:0", "/CPU:1"],
    "cpus of one task": ["/job:worker/task:0/CPU:0", "/job:worker/task:0/CPU:1"],
    "two jobs": ["/job:a/task:0", "/job:b/task:0/GPU:0"],
    "sparse task numbers": ["/job:worker/task:7", "/job:worker/task:3"],
}


@pytest.mark.parametrize(
    "name", mostly_in_soak([*DEVICE_LISTS], "gpus of tasks", "bare gpus", "two jobs", "sparse task numbers")
)
def test_every_device_list_runs_on_a_machine_without_gpu(compiled, batch, name):
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("there is a GPU here")
    with compiled().session() as plain:
        expected = [plain.step(*batch).loss for _ in range(3)]
    # The pinned ops change no value: two signs, and absolute values of what is not negative.
    armodel = compiled(between=pinned, device_list=DEVICE_LISTS[name])
    before = armodel.graph_def.SerializeToString(deterministic=True)
    with armodel.session() as session:
        assert [session.step(*batch).loss for _ in range(3)] == expected
        assert session.evaluate(*batch)["worst"].shape == ()
    assert armodel.graph_def.SerializeToString(deterministic=True) == before  # placing it leaves the model alone


def test_the_only_process_is_this_one(compiled):
    with compiled().session() as session:
        assert session.executor.pids() == (os.getpid(),)


@pytest.fixture
def spied(monkeypatch):
    """The executors that clusters of this process make."""
    made = []
    original = cluster_module.InProcessExecutor

    def executor(graph_def, placement, config):
        made.append(original(graph_def, placement, config))
        return made[-1]

    monkeypatch.setattr(cluster_module, "InProcessExecutor", executor)
    return made


def where_ops_ran(executor, signature, batch):
    """Device of every op of one step, from TensorFlow's own trace."""
    feeds = split_batch(signature, bound_arrays(signature.feeds, batch, {})).feeds
    _, metadata = executor.run_traced(signature.losses, signature.step, feeds, 60.0)
    found = {}
    for device in v1.RunMetadata.FromString(metadata).step_stats.dev_stats:
        for node in device.node_stats:
            found.setdefault(node.node_name.partition(":")[0], set()).add(device.device.rpartition("/device:")[2])
    return found


@pytest.mark.parametrize("name", ["default", "gpus of tasks", "two jobs", "sparse task numbers"])
def test_ops_run_on_their_own_worker(compiled, batch, spied, name):
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("there is a GPU here")
    armodel = compiled(workers=2, between=pinned, device_list=DEVICE_LISTS[name])
    with armodel.session(caramel.InProcess(RunOptions(optimize_graph=False))):
        ran = where_ops_ran(spied[0], armodel.signature, batch)
    for rank in range(2):
        for op in ("on_cpu", "on_gpu", "on_second_gpu", "Mean"):
            assert ran[f"worker_{rank}/{op}"] == {f"CPU:{rank}"}, op
    own = {name: devices for name, devices in ran.items() if name.startswith(("worker_0/", "worker_1/"))}
    assert len(own) > 20
    for op, devices in own.items():
        assert devices == {f"CPU:{op[len('worker_')]}"}, op


def test_three_workers_have_three_devices(compiled, batch, spied):
    armodel = compiled(workers=3)
    with armodel.session(caramel.InProcess(RunOptions(optimize_graph=False))):
        ran = where_ops_ran(spied[0], armodel.signature, batch)
    used = {device for devices in ran.values() for device in devices}
    assert used == {"CPU:0", "CPU:1", "CPU:2"}


def test_gpus_that_are_here_are_used():
    """What the mapping does on a machine with 2 GPUs (no GPU is needed to ask it)."""
    placement = in_process_mapping(GPUS, local_gpus=2)
    assert [placement.place(d) for d in GPUS] == ["/device:GPU:0", "/device:GPU:1"]
    assert placement.place("/job:worker/task:1/device:CPU:0") == "/device:CPU:1"
    bare = in_process_mapping(["/GPU:0", "/GPU:1"], local_gpus=2)
    assert [bare.place(d) for d in ("/device:GPU:0", "/device:GPU:1")] == ["/device:GPU:0", "/device:GPU:1"]
    one = in_process_mapping(["/job:worker/task:0/GPU:0", "/job:worker/task:0/GPU:1"], local_gpus=2)
    assert [one.place(f"/job:worker/task:0/device:GPU:{n}") for n in range(2)] == ["/device:GPU:0", "/device:GPU:1"]


@pytest.mark.parametrize("parts", [None, [tf.config.LogicalDeviceConfiguration(1024)] * 2], ids=["whole", "parts"])
def test_native_all_reduces_need_a_gpu_for_each_worker(compiled, monkeypatch, parts):
    """Two parts of one GPU are two devices, and still one for NCCL."""
    for name in ("list_physical_devices", "get_visible_devices"):
        monkeypatch.setattr(tf.config, name, lambda kind: ["the only GPU"])
    monkeypatch.setattr(tf.config, "get_logical_device_configuration", lambda gpu: parts)
    armodel = compiled(device_list=GPUS, algorithm="native")
    with pytest.raises(caramel.InputError, match="2 workers take turns on the GPUs .* another algorithm"):
        armodel.session()


def ran_at_once(threads, timeout_s):
    """How many of two ops that wait for each other met; one by one neither does."""
    both = threading.Barrier(2)

    def met():
        try:
            both.wait(timeout_s)
        except threading.BrokenBarrierError:
            return 0
        return 1

    cluster = caramel.InProcess(options=RunOptions(inter_op_threads=threads))
    with tf.Graph().as_default() as graph:
        results = [v1.py_func(met, [], tf.int64).name for _ in range(2)]
        executor = cluster.start(graph.as_graph_def(), ("/job:worker/task:0",), 60.0)
    try:
        return sum(executor.run(results, [], {}, 60.0))
    finally:
        executor.close()


def test_one_op_at_a_time_whatever_other_sessions_have():
    assert ran_at_once(2, 30.0) == 2
    assert ran_at_once(1, 0.5) == 0
    assert ran_at_once(2, 30.0) == 2


def sockets():
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


def test_no_socket_and_no_process(compiled, batch, processes, ours):
    before = sockets()
    with compiled().session() as session:
        session.step(*batch)
        assert sockets() <= before
        assert ours() == []


def test_two_sessions_share_nothing(compiled, batch):
    armodel = compiled()
    with armodel.session() as one, armodel.session() as other:
        one.run([batch] * 3)
        assert other.step_count == 0
        np.testing.assert_array_equal(other.values()["w"], np.zeros(3))
        assert other.step(*batch).step == 1
        assert one.values()["global_step"] == 3


def test_evaluations_of_the_same_tensors_in_other_structures(compiled):
    pair = namedtuple("pair", "first second")
    names = ("w/Read/ReadVariableOp:0",) * 2
    with compiled().session() as session:
        found = [
            session.evaluate(fetches=fetches)
            for fetches in (list(names), names, pair(*names), dict(enumerate(names)), OrderedDict(enumerate(names)))
        ]
    assert [type(each) for each in found] == [list, tuple, pair, dict, OrderedDict]


def test_closing_twice_does_no_harm(compiled, batch):
    session = compiled().session()
    session.step(*batch)
    session.close()
    session.close()


def test_a_session_that_cannot_start_is_closed(compiled, monkeypatch, spied):
    armodel = compiled()
    monkeypatch.setattr(
        type(armodel.model.values), "load", lambda self: (_ for _ in ()).throw(caramel.CaptureError("no values"))
    )
    with pytest.raises(caramel.CaptureError, match="no values"):
        armodel.session()
    with pytest.raises(RuntimeError, match="closed"):
        spied[0]._session.run([])


def test_nothing_here_says_how_many_workers_there_are():
    with pytest.raises(InputError, match="say how many workers: workers=N"):
        workers_of(caramel.InProcess(), None)
    assert workers_of(caramel.InProcess(), 3) == (3, None)


def test_servers_say_how_many_workers_there_are():
    servers = caramel.Servers(["a:1", "b:1"], workers=(1, 2))
    assert workers_of(servers, None) == (3, servers.default_devices)
    assert workers_of(servers, 2) == (2, servers.default_devices[:2])
    assert workers_of(servers, 1) == (1, None)
    assert workers_of(caramel.Servers(["a:1", "b:1"]), None) == (2, None)
    with pytest.raises(InputError, match="workers has 1 entries for 2 servers"):
        caramel.Servers(["a:1", "b:1"], workers=(2,))


def test_servers_say_which_workers_share_a_host():
    """Addresses that differ in the port only, and workers of one server."""
    servers = caramel.Servers(["a:1", "a:2", "b:1"], workers=(1, 2, 3))
    assert servers.hosts_of(servers.default_devices) == ("a", "a", "a", "b", "b", "b")
    assert servers.hosts_of(["/job:worker/task:2", "/job:worker/task:0"]) == ("b", "a")
    assert servers.hosts_of(["/job:worker/task:3"]) == ()
    assert caramel.InProcess().hosts_of(["/device:CPU:0"]) == ()
    tasks = ["/job:worker/task:0", "/job:worker/task:1/device:CPU:0", "/job:worker/task:1/device:CPU:1"]
    assert len(set(caramel.LocalProcesses().hosts_of(tasks))) == 1
    hosts = (Host("/proc/1/ns/net", "10.0.0.1"), Host("/proc/2/ns/net", "10.0.0.2"))
    assert caramel.LocalProcesses(hosts=hosts).hosts_of(tasks) == tuple(hosts[n].namespace for n in (0, 1, 1))


@pytest.mark.parametrize(
    ("hosts", "number"),
    [
        ("aabb", 2),
        ("aaabbbcc", 3),
        ("aaab", 3),
        ("abb", 1),
        ("abab", 1),
        ("aabbba", 1),
        ("abcd", 1),
        ("aaaa", 4),
        ("", 1),
    ],
)
def test_as_many_workers_on_each_host(hosts, number):
    assert workers_on_host(hosts) == number
