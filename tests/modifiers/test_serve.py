"""The graph with parameter servers: who has what, who waits for whom, and that the verifier sees what is wrong."""

import re

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.errors import InvariantError
from caramel.graph.devices import Device
from caramel.graph.graph import copied, node_of
from caramel.modifiers.emission import replica_name, server_name
from caramel.modifiers.server_checks import verify_served

SPECS = [tf.TensorSpec([None, 4], tf.float32), tf.TensorSpec([None, 1], tf.float32)]


def deep(layers=6):
    matrices = [tf.Variable(np.eye(4, dtype=np.float32), name=f"matrix_of_{'abcdefgh'[n]}") for n in range(layers)]

    def step(x, y):
        with tf.GradientTape() as tape:
            for matrix in matrices:
                x = tf.tanh(x @ matrix)
            loss = tf.reduce_mean((tf.reduce_sum(x, 1, keepdims=True) - y) ** 2)
        for matrix, gradient in zip(matrices, tape.gradient(loss, matrices)):
            matrix.assign_sub(0.1 * gradient)
        return loss

    return caramel.capture(step, SPECS)


BATCH = np.ones([6, 4], np.float32), np.ones([6, 1], np.float32)


@pytest.fixture(scope="module")
def model():
    return caramel.PSModel(deep(), 3, servers=2, pulls_in_flight=2)


def test_parameters_and_updates_are_on_servers_only(model):
    graph = {n.name: n for n in model.graph_def.node}
    devices = {str(Device.parse(text)) for text in model.plan.servers.devices}
    for variable in model.model.variables:
        assert not any(replica_name(rank, variable.node) in graph for rank in range(3))
        there = [graph[server_name(k, variable.node)] for k in range(2) if server_name(k, variable.node) in graph]
        assert len(there) == 1 and there[0].device in devices
    writes = [n for n in model.graph_def.node if n.op == "AssignSubVariableOp"]
    assert len(writes) == 6 and all(n.device in devices for n in writes)


def test_each_server_sends_in_the_order_of_the_plan(model):
    """A send waits for the receiver of the last one but one before it on the same way, and for nothing else."""
    graph = {n.name: n for n in model.graph_def.node}
    home = model.plan.servers.home_by_variable
    for server in range(2):
        turns = [turn for turn, name in enumerate(model.plan.servers.pulls) if home[name].servers == (server,)]
        for rank in range(3):
            names = [f"caramel/pull/{turn}_from_{server}_to_{rank}" for turn in turns]
            for position, name in enumerate(names):
                awaited = [text for text in graph[f"{name}/send"].input if text.startswith("^")]
                assert awaited == ([f"^{names[position - 2]}/receive"] if position >= 2 else [])


def test_no_order_has_no_such_nodes():
    free = caramel.PSModel(deep(), 3, servers=2, ordering="none")
    assert free.plan.servers.pulls == () and not any(n.name.startswith("caramel/pull/") for n in free.graph_def.node)


def test_parameters_are_received_in_the_order_of_the_plan():
    """With one at a time, whatever the threads do: in traced steps each begins after the one before has ended."""
    model = caramel.PSModel(deep(8), 2, servers=1, pulls_in_flight=1, ordering="tic")
    received = []

    def note(metadata):
        stats = tf.compat.v1.RunMetadata.FromString(metadata).step_stats
        found = {}
        for device in stats.dev_stats:
            for each in device.node_stats:
                match = re.fullmatch(r"caramel/pull/(\d+)_from_0_to_(\d)/receive", each.node_name)
                if match:
                    found[each.all_start_micros, int(match[1]), int(match[2])] = None
        received.append([[turn for _, turn, rank in sorted(found) if rank == of] for of in range(2)])

    with model.session(caramel.InProcess(caramel.RunOptions(inter_op_threads=4))) as session:
        session.step(*BATCH)
        for _ in range(10):
            session.trace_next(note)
            session.step(*BATCH)
    assert received == [[[*range(8)]] * 2] * 10


def changed(emission, name, inputs):
    return emission.extended([], {name: copied(emission.graph[name], inputs)})


def test_a_sum_without_one_worker_is_found(model):
    emission = model.distributed.emission
    verify_served(emission)
    (added, *_) = [n for n in emission.graph if re.fullmatch(r"caramel/push_\d+/sum_1", n.name)]
    lacking = changed(emission, added.name, [added.input[0], added.input[0]])
    with pytest.raises(InvariantError, match="lacks a worker's 'matrix_of"):
        verify_served(lacking)


def test_a_worker_that_reads_another_is_found(model):
    emission = model.distributed.emission
    name = next(n.name for n in emission.graph if n.name.startswith("worker_1/") and n.op == "Tanh")
    other = emission.graph["worker_0/" + node_of(emission.graph[name].input[0]).removeprefix("worker_1/")]
    with pytest.raises(InvariantError, match=r"worker_1/.* of worker 1 reads 'worker_0/.*' of worker 0"):
        verify_served(changed(emission, name, [other.name]))


def test_a_write_on_a_worker_is_found(model):
    emission = model.distributed.emission
    write = next(n for n in emission.graph if n.op == "AssignSubVariableOp")
    original = re.sub(r"^server_\d/", "", write.name)
    own = copied(write)
    own.name = replica_name(0, original)
    with_write = emission.extended([(own, emission.roles[write.name])])
    with pytest.raises(InvariantError, match="a worker writes 'matrix_of"):
        verify_served(with_write)


def test_a_read_that_does_not_wait_for_the_write_before_it_is_found():
    w = tf.Variable([1.0, 2.0, 3.0, 4.0], name="w")

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, w)[:, None] - y) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss, w.read_value()

    emission = caramel.PSModel(caramel.capture(step, SPECS), 2, servers=1).distributed.emission
    verify_served(emission)
    reads = [n for n in emission.graph if n.op == "ReadVariableOp" and n.name.startswith("server_0/")]
    (late,) = [n for n in reads if len(n.input) > 1]
    with pytest.raises(InvariantError, match=r"'server_0/Read/.*' does not wait for 'server_0/AssignSub"):
        verify_served(changed(emission, late.name, [late.input[0]]))


def test_the_servers_count_on_from_the_workers(model):
    roles = model.distributed.emission.roles
    ranks = {roles[n.name].rank for n in model.distributed.emission.graph if n.name.startswith("server_")}
    assert ranks == {3, 4}
    assert model.signature.step[3:] == ("caramel/server_0/step", "caramel/server_1/step")
    assert model.signature.servers == model.plan.servers.devices == ("/job:worker/task:3", "/job:worker/task:4")
