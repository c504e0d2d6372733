"""The in-graph contenders: they train as one device does, and send what they must."""

import dataclasses
import math
import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from run_metadata import metadata_of
from variants import each_once, in_soak, mostly_in_soak

import caramel
from benchmarks.training import ingraph
from benchmarks.training.ingraph import parameter_server, spread, tensorflow_collectives
from benchmarks.training.replicas import StepGraph
from benchmarks.training.workloads import BY_NAME, Workload
from caramel.errors import ClusterError, InputError
from caramel.graph.graph import node_of
from caramel.runtime.host.run_options import RunOptions

v1 = tf.compat.v1

ROOT = str(Path(__file__).resolve().parents[2])

STEPS = 4
ROWS = 50


def _mixed(layers, x):
    """A table, batch normalisation, and sizes that no number of workers divides."""
    words = layers.embedding("words", x % ROWS, ROWS, 9)  # most rows are read by several workers
    image = layers.conv("conv", layers.tf.reshape(words, [-1, 2, 3, 9]), 7, bias=False)
    image = layers.tf.nn.relu(layers.batch_norm("norm", image))
    return layers.dense("classes", layers.tf.reduce_mean(image, [1, 2]), 5)


MIXED = Workload("mixed", "small", 24, 5, (6,), "int32", _mixed, learning_rate=0.05)
MLP = dataclasses.replace(BY_NAME["mlp"], examples=24, learning_rate=0.01)

KINDS = {
    "ring": lambda *args, **options: tensorflow_collectives(*args, "ring", **options),
    "shuffle": lambda *args, **options: tensorflow_collectives(*args, "shuffle", **options),
    "recursive_hd": lambda *args, **options: tensorflow_collectives(*args, "recursive_hd", **options),
    "servers": lambda *args, **options: parameter_server(*args, **options),
    "half": lambda workload, workers, *args: parameter_server(workload, workers, *args, servers=workers // 2),
}


# -- what one device does ----------------------------------------------------------------------


class OneDevice:
    """Eager TensorFlow on one device, with the whole batch; with each worker's part where parts are normalised."""

    def __init__(self, workload, workers):
        self._workload = workload
        parts = workers if workload.averages else 1
        self._batches = [workload.batch(tf, parts, rank) for rank in range(parts)]
        self.parameters = {name: tf.Variable(d.value(name)) for name, d in workload.parameters.items()}
        self.momenta = {name: tf.Variable(tf.zeros(d.shape)) for name, d in workload.parameters.items()}
        self.averages = [
            {name: tf.Variable(d.value(name)) for name, d in workload.averages.items()} for _ in self._batches
        ]

    def step(self):
        """The loss, before the update."""
        found, losses = [], []
        for batch, averages in zip(self._batches, self.averages):
            with tf.GradientTape() as tape:
                loss, updates = self._workload.loss(tf, {**self.parameters, **averages}, *batch)
            found.append([tf.convert_to_tensor(g) for g in tape.gradient(loss, list(self.parameters.values()))])
            losses.append(float(loss))
            for name, value in updates.items():
                averages[name].assign(value)
        for name, *gradients in zip(self.parameters, *found):
            self.momenta[name].assign(0.9 * self.momenta[name] + tf.add_n(gradients) / len(found))
            self.parameters[name].assign_sub(self._workload.learning_rate * self.momenta[name])
        return sum(losses) / len(losses)


def handles(contender):
    """The variables, all in the graph of the session."""
    growing = contender._executor._growing
    growing.take_in([*growing._inside, *growing._outside])
    return [op for op in growing.graph.get_operations() if op.type == "VarHandleOp"]


def state(contender):
    """The values of all variables by name; several workers may have one."""
    found, variables = {}, handles(contender)
    with contender._executor._graph.as_default():
        reads = [tf.raw_ops.ReadVariableOp(resource=h.outputs[0], dtype=h.get_attr("dtype")).name for h in variables]
    for handle, value in zip(variables, contender._executor.run(reads, [], {}, 60.0)):
        found.setdefault(handle.name.partition("/")[2], []).append(value)
    return found


def check_state(contender, expected, copies, tolerance):
    """Parameters, momenta and moving averages are those of one device, on all workers that have them."""
    values = state(contender)
    wanted = {f"parameters/{name}": [value] * copies for name, value in expected.parameters.items()}
    wanted |= {f"parameters/{name}/momentum": [value] * copies for name, value in expected.momenta.items()}
    wanted |= {f"averages/{name}": [each[name] for each in expected.averages] for name in expected.averages[0]}
    assert {name for name in values if not name.startswith("batch")} == set(wanted)
    for name, all_expected in wanted.items():
        assert len(values[name]) == len(all_expected), name
        for found, one in zip(values[name], all_expected):
            scale = max(float(tf.reduce_max(tf.abs(one))), 1e-3)  # a true gradient of zero is one of rounding errors
            np.testing.assert_allclose(found, one, rtol=0, atol=tolerance * scale, err_msg=name)


def check_losses(contender, expected, tolerance=1e-4):
    losses = [expected.step() for _ in range(STEPS)]
    assert min(abs(a / b - 1) for a, b in zip(losses, losses[1:])) > 10 * tolerance  # each step changes something
    assert contender.run(STEPS).losses == pytest.approx(losses, rel=tolerance)


@pytest.fixture
def start():
    """Function that makes a contender, which is closed in the end."""
    made = []

    def start_it(kind, *args, **options):
        made.append(KINDS[kind](*args, **options))
        return made[-1]

    yield start_it
    for contender in made:
        contender.close()


def check_trains_as_one_device(contender, workload, workers):
    expected = OneDevice(workload, workers)
    check_losses(contender, expected)
    check_state(contender, expected, 1 if contender.name == "parameter_server" else workers, 1e-4)


@pytest.mark.parametrize(
    "kind_and_workload, workers",
    each_once([(k, w) for k in KINDS if k != "recursive_hd" for w in (MLP, MIXED)], [2, 3, 4]),
    ids=lambda value: f"{value[0]}-{value[1].name}" if isinstance(value, tuple) else None,
)
def test_trains_as_one_device_and_sends_only_what_it_must(start, kind_and_workload, workers):
    kind, workload = kind_and_workload
    contender = start(kind, workload, workers, caramel.InProcess())
    check_trains_as_one_device(contender, workload, workers)
    check_messages(contender, kind, workload, workers)


@pytest.mark.parametrize("workers", mostly_in_soak([2, 4], 4))
def test_recursive_hd_trains_as_one_device(start, workers):
    def network(layers, x):  # 10 classes could not be divided by 4
        return layers.dense("classes", layers.tf.nn.relu(layers.dense("dense", x, 48)), 12)

    workload = dataclasses.replace(MLP, classes=12, network=network)
    check_trains_as_one_device(start("recursive_hd", workload, workers, caramel.InProcess()), workload, workers)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "workers"),
    [
        ("mlp", "half", 2),
        *in_soak(
            ("vgg", "servers", 4),
            ("transformer", "servers", 3),
            ("vgg", "ring", 3),
            ("resnet", "shuffle", 2),
            ("inception", "half", 2),
            ("inception", "half", 4),
        ),
        *in_soak(("transformer", "ring", 2), ("transformer", "shuffle", 4), ("transformer", "recursive_hd", 2)),
        *in_soak(("tiny", "servers", 2), ("tiny", "ring", 2)),
    ],
)
def test_the_workloads_train_as_one_device(start, name, kind, workers):
    """By their losses: in deep networks, units switch by rounding after a step or two."""
    workload = dataclasses.replace(BY_NAME[name], examples=12)
    contender = start(kind, workload, workers, caramel.InProcess())
    check_losses(contender, OneDevice(workload, workers))
    check_messages(contender, kind, workload, workers)


def test_many_small_tensors():
    """Blocks as a ResNet's, so many that building the graph takes a while: only the long tests train it."""
    sizes = {name: math.prod(d.shape) for name, d in BY_NAME["tiny"].parameters.items()}
    assert len(sizes) == 209 and sum(name.endswith("kernel") for name in sizes) == 69 + 1
    assert sum(size == 32 for size in sizes.values()) == 2 * 69


# -- what is sent ------------------------------------------------------------------------------


def sent(contender):
    """Messages between workers in a step, as TensorFlow has cut its optimized graph: (from, to, bytes), counted."""
    metadata = metadata_of(contender._executor, *contender._losses, *contender._steps)
    outputs = {}
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            for output in node.output:
                described = output.tensor_description
                size = tf.as_dtype(described.dtype).size * math.prod(d.size for d in described.shape.dim)
                outputs[_rank(device.device), node.node_name, output.slot] = size
    found = Counter()
    for partition in metadata.partition_graphs:
        for node in partition.node:
            if node.op in ("_Send", "_HostSend"):
                ends = [_rank(node.attr[f"{end}_device"].s.decode()) for end in ("send", "recv")]
                name, _, slot = node.input[0].partition(":")
                found[(*ends, outputs[ends[0], name, int(slot or 0)])] += 1
    return found


def _rank(device):
    return int(device.rpartition(":")[2])


def messages(workers, triples):
    """Counted, without those that stay on a worker, and with the losses, which the driver gets beside worker 0."""
    losses = ((rank, 0, 4) for rank in range(workers))
    return Counter(triple for triple in (*triples, *losses) if triple[0] != triple[1])


def dense_bytes(workload):
    return [4 * math.prod(d.shape) for name, d in workload.parameters.items() if not workload.is_sparse(name)]


def rows_of(workload, workers):
    """Bytes of the indices, and of the rows, that each worker uses of the table."""
    count = workload.examples // workers * math.prod(workload.shape)
    return [(4 * count, 4 * count * d.shape[1]) for name, d in workload.parameters.items() if workload.is_sparse(name)]


def gathered(workload, workers):
    for sizes in rows_of(workload, workers):
        for size in sizes:
            yield from ((a, b, size) for a in range(workers) for b in range(workers))


def ring_messages(workload, workers):
    """Chunks, to the next worker, round twice but for the last step; padded to one size."""
    yield from gathered(workload, workers)
    for size in dense_bytes(workload):
        for rank in range(workers):
            yield from [(rank, (rank + 1) % workers, 4 * math.ceil(size / 4 / workers))] * (2 * (workers - 1))


def shuffle_messages(workload, workers):
    """To each worker its shard, of which the last has what is left over; from each the mean."""
    yield from gathered(workload, workers)
    for size in dense_bytes(workload):
        shard = 4 * (size // 4 // workers)
        for owner in range(workers):
            own = size - (workers - 1) * shard if owner == workers - 1 else shard
            for other in range(workers):
                yield from ((other, owner, own), (owner, other, own))


def halving_messages(workload, workers):
    """Half to the neighbour, a quarter across, and so on; and back."""
    yield from gathered(workload, workers)
    for size in dense_bytes(workload):
        for rank in range(workers):
            for hop in range(workers.bit_length() - 1):
                yield from [(rank, rank ^ (1 << hop), size >> (hop + 1))] * 2


def server_messages(workload, workers, servers):
    """Parameters to workers, gradients back; of a table, which rows, these rows, and their gradients."""
    for name, server in placed(workload, servers).items():
        size = 4 * math.prod(workload.parameters[name].shape)
        for rank in range(workers):
            if workload.is_sparse(name):
                ((indices, rows),) = rows_of(workload, workers)
                yield from ((rank, server, indices), (server, rank, rows), (rank, server, rows))
            else:
                yield from ((server, rank, size), (rank, server, size))


def placed(workload, servers):
    return spread({name: 4 * math.prod(d.shape) for name, d in workload.parameters.items()}, servers)


MESSAGES = {
    "ring": ring_messages,
    "shuffle": shuffle_messages,
    "recursive_hd": halving_messages,
    "servers": lambda workload, workers: server_messages(workload, workers, workers),
    "half": lambda workload, workers: server_messages(workload, workers, workers // 2),
}


def check_messages(contender, kind, workload, workers):
    """Those, and the losses, which the driver gets beside worker 0; nothing stays on a worker that is counted."""
    losses = ((rank, 0, 4) for rank in range(workers))
    wanted = Counter(each for each in (*MESSAGES[kind](workload, workers), *losses) if each[0] != each[1])
    assert sent(contender) == wanted


def test_recursive_hd_splits_where_the_gradient_is(start):
    workload = dataclasses.replace(MLP, classes=8, network=lambda layers, x: layers.dense("classes", x, 8))
    check_messages(start("recursive_hd", workload, 4, caramel.InProcess()), "recursive_hd", workload, 4)


@pytest.mark.parametrize("servers", mostly_in_soak([1, 2, 3], 2))
def test_parameters_and_momenta_are_on_the_first_workers(start, servers):
    contender = start("servers", MIXED, 3, caramel.InProcess(), servers=servers)
    found = {h.name.partition("/")[2]: _rank(h.device) for h in handles(contender) if "/parameters/" in h.name}
    where = placed(MIXED, servers)
    assert set(where.values()) == set(range(servers))
    assert found == {f"parameters/{n}{kind}": where[n] for n in where for kind in ("", "/momentum")}


@pytest.fixture(scope="module")
def graphs():
    """Of each kind, for two workers."""
    made = [ingraph.collectives_graph(MLP, 2, algorithm) for algorithm in ingraph.ALGORITHMS]
    made += [ingraph.collectives_graph(MIXED, 2, "ring"), ingraph.parameter_server_graph(MIXED, 2, 2)]
    return made


def test_every_op_is_on_the_device_of_a_worker(graphs):
    devices = {f"/job:worker/task:{rank}/device:CPU:0" for rank in range(2)}
    for graph in graphs:
        assert {node.device for node in graph.graph_def.node} == devices


def test_every_op_is_needed(graphs):
    for graph in graphs:
        read = {node_of(text) for node in graph.graph_def.node for text in node.input}
        wanted = {node_of(text) for text in (*graph.initialise, *graph.losses, *graph.steps)}
        assert {node.name for node in graph.graph_def.node} - read <= wanted


def test_an_update_is_where_its_parameter_is_and_waits_for_all_reads(graphs):
    """Of itself, not because its gradient happens to need them."""
    for graph in graphs:
        nodes = {node.name: node for node in graph.graph_def.node}
        updates = [node for node in nodes.values() if node.op.endswith("ApplyMomentum")]
        assert updates
        for update in updates:
            handle = update.input[0]
            reads = {
                n.name for n in nodes.values() if n.op in ("ReadVariableOp", "ResourceGather") and n.input[0] == handle
            }
            named = [nodes[text[1:]] for text in update.input if text.startswith("^")]
            awaited = {node.input[0] if node.op == "Identity" else node.name for node in named}
            assert reads and awaited == reads
            assert {nodes[name].device for name in (*reads, update.name)} == {nodes[handle].device}


def test_values_are_no_part_of_the_graph():
    workload = BY_NAME["mlp"]
    parameters = sum(dense_bytes(workload))
    assert ingraph.collectives_graph(workload, 4, "ring").graph_def.ByteSize() < parameters / 10


def test_parameters_are_spread_by_size():
    sizes = {"b": 4, "a": 4, "large": 12, "c": 2, "small": 1}
    assert spread(sizes, 2) == {"large": 0, "a": 1, "b": 1, "c": 1, "small": 1}
    assert spread(sizes, 3) == {"large": 0, "a": 1, "b": 2, "c": 1, "small": 2}
    assert spread(dict(reversed(sizes.items())), 3) == spread(sizes, 3)
    assert set(spread(sizes, 1).values()) == {0}


# -- a contender -------------------------------------------------------------------------------


class FakeCluster:
    """Steps that take 1, 2, 3 ... seconds, and lose as much on worker 0."""

    def __init__(self, clock):
        self.clock = clock
        self.closed = 0

    def start(self, graph_def, devices, timeout_s):
        assert devices == ("/job:worker/task:0", "/job:worker/task:1")
        return self

    def run(self, fetches, targets, feeds, timeout_s):
        if fetches:
            self.clock.steps += 1
            self.clock.now += self.clock.steps
        return [np.float32(self.clock.steps), np.float32(0)][: len(fetches)]

    def pids(self):
        return (7, 8)

    def close(self):
        self.closed += 1


def test_a_burst_has_times_from_start_to_start_and_mean_losses(monkeypatch):
    clock = SimpleNamespace(now=100.0, steps=0)
    monkeypatch.setattr(ingraph, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    cluster = FakeCluster(clock)
    contender = ingraph.InGraph("any", {}, StepGraph(None, ["i"], {}, ["a:0", "b:0"], ["s"]), cluster)
    assert contender.run(3) == ingraph.Burst((1.0, 2.0, 3.0), (0.5, 1.0, 1.5))
    assert contender.run(1) == ingraph.Burst((4.0,), (2.0,))
    assert contender.pids() == (7, 8)
    with pytest.raises(InputError, match="steps must be a whole number of at least 1, got 0"):
        contender.run(0)
    contender.close()
    contender.close()
    assert cluster.closed == 1


def test_names_and_settings(start):
    ring, servers = (start(kind, MLP, 2, caramel.InProcess()) for kind in ("ring", "half"))
    assert (ring.name, ring.settings) == ("tensorflow_collectives", {"algorithm": "ring"})
    assert (servers.name, servers.settings) == ("parameter_server", {"servers": 1})
    assert ring.pids() == (os.getpid(),)


def test_contenders_side_by_side_have_variables_of_their_own(start):
    first, second = (start("ring", MLP, 2, caramel.InProcess()) for _ in range(2))
    losses = [*first.run(2).losses, *second.run(1).losses, *first.run(1).losses, *second.run(2).losses]
    expected = OneDevice(MLP, 2)
    one, two, three = (expected.step() for _ in range(3))
    assert losses == pytest.approx([one, two, one, three, two, three], rel=1e-4)


def test_a_step_that_takes_too_long(start):
    workload = dataclasses.replace(BY_NAME["mlp"], examples=6400)
    contender = start("ring", workload, 2, caramel.InProcess(), step_timeout_s=0.001)
    with pytest.raises(ClusterError, match=r"^tensorflow_collectives, step 1 of 5: a worker did not answer after at"):
        contender.run(5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tensorflow_collectives(MLP, 1, None), "between 2 and the number of examples, 24, got 1"),
        (lambda: parameter_server(MLP, 25, None), "between 2 and the number of examples, 24, got 25"),
        (lambda: parameter_server(MLP, 1, None), "between 2 and the number of examples, 24, got 1"),
        (lambda: parameter_server(MLP, 2, None, servers=3), "servers must be between 1 and .*, 2, got 3"),
        (lambda: parameter_server(MLP, 2, None, servers=0), "servers must be between 1 and .*, 2, got 0"),
        (lambda: tensorflow_collectives(MLP, 2, None, "tree"), "one of ring, shuffle, recursive_hd, got 'tree'"),
        (lambda: tensorflow_collectives(MLP, 3, None, "recursive_hd"), "needs 2, 4, 8 ... workers, got 3"),
        (lambda: tensorflow_collectives(MLP, 4, None, "recursive_hd"), r"divided by 4.*classes/bias \(10\)"),
        (lambda: parameter_server(TWICE, 2, None), "words.* is gathered twice"),
    ],
)
def test_what_does_not_work_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def _twice(layers, x):
    rows = layers.embedding("words", x, 8000, 3) + layers.embedding("words", x, 8000, 3)
    return layers.dense("classes", layers.tf.reduce_mean(rows, 1), 5)


TWICE = dataclasses.replace(MIXED, network=_twice)


# -- in processes of their own -----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("kind", ["ring", *in_soak("half")])
def test_local_processes(start, namespaces, freeze, kind):
    options = RunOptions(intra_op_threads=1, inter_op_threads=2)
    contender = start(kind, MIXED, 3, caramel.LocalProcesses(options=options))
    check_losses(contender, OneDevice(MIXED, 3))
    driver, *servers = contender.pids()
    assert len({driver, *servers}) == 4 and os.getpid() not in (driver, *servers)
    assert {parent_of(pid) for pid in servers} == {driver} and parent_of(driver) == os.getpid()
    contender._step_timeout_s = 2.0
    freeze(servers[1])
    with pytest.raises(
        ClusterError,
        match=rf"step 1 of 2: worker 1 .*process {servers[1]}, is stopped by a signal: a worker did not answer",
    ):
        contender.run(2)
    contender.close()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in (driver, *servers))


def parent_of(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


SHARED = """
import sys
sys.path.insert(0, {root!r})
import caramel
from benchmarks.training.ingraph import parameter_server, tensorflow_collectives
from benchmarks.training.workloads import Workload

def network(layers, x):
    return layers.dense("classes", x, 3)

workload = Workload("any", "any", 8, 3, (5,), "float32", network, learning_rate=0.1)
cluster = caramel.Servers(["127.0.0.1:2222", "127.0.0.1:2223"])
all = [tensorflow_collectives(workload, 2, cluster) for _ in range(2)]
all += [parameter_server(workload, 2, cluster) for _ in range(2)]
for contender in all:
    print(*contender.run(2).losses)
for contender in all:
    print(*contender.run(2).losses)
    contender.close()
"""


@pytest.mark.soak  # as test_contenders_side_by_side_have_variables_of_their_own
@pytest.mark.slow
@pytest.mark.processes
def test_contenders_share_servers_but_no_variables(network):
    cluster = "127.0.0.1:2222,127.0.0.1:2223"
    for task in range(2):
        network.serve("--cluster", cluster, "--task", task)
    result = network.run("-c", SHARED.format(root=ROOT))
    assert result.returncode == 0, result.stderr
    lines = [[float(text) for text in line.split()] for line in result.stdout.splitlines()]
    first, last = lines[:4], lines[4:]
    assert first[0][0] > first[0][1] > last[0][0] > last[0][1]
    for losses in first:
        assert losses == pytest.approx(first[0], rel=1e-6)
    for losses in last:
        assert losses == pytest.approx(last[0], rel=1e-6)
