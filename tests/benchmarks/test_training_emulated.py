"""Emulated accelerators: blocks take their time and no processor, for all contenders alike, and train as they should."""

import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner

import caramel
from benchmarks.published_layers import layers_by_network
from benchmarks.training.__main__ import main
from benchmarks.training.accelerated import Accelerated, with_sleep
from benchmarks.training.accelerators import marked, slept
from benchmarks.training.findings import ACCELERATED, findings
from benchmarks.training.grid import emulated_cells, link_rate, on_links
from benchmarks.training.ingraph import parameter_server, tensorflow_collectives
from benchmarks.training.ours import captured
from benchmarks.training.profiles import (
    COMPUTATION_S,
    EMULATED,
    PROFILES,
    TOTAL_BYTES,
    Block,
    Blocks,
    modules_of,
    sleeping,
)
from benchmarks.training.records import Cell, Origin, Row
from benchmarks.training.steps import Replica
from benchmarks.training.workloads import BY_NAME
from caramel.errors import InvariantError

v1 = tf.compat.v1

BLOCKS = (Block((5, 300), 0.004, 0.008), Block((40,), 0.006, 0.006), Block((7, 1, 9), 0.004, 0.01))
BRANCHES = ((BLOCKS[0],), (BLOCKS[1], BLOCKS[2], Block((20,), 0.005, 0.003)), (Block((3,), 0.002, 0.002),))
SMALL = replace(EMULATED["resnet50"], network=Blocks(BRANCHES), examples=16, learning_rate=0.5)
ALL = [block for module in BRANCHES for block in module]
ALONE_S = sum(block.time_s for block in ALL)


def without_time(workload):
    return replace(workload, network=replace(workload.network, sleep=lambda tf, after, time_s, is_alone: after))


# -- profiles --------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", PROFILES)
def test_blocks_keep_what_a_profile_says(profile):
    layers = layers_by_network()[profile]
    blocks = [block for module in modules_of(profile) for block in module]
    assert sum(block.time_s for block in blocks) == pytest.approx(COMPUTATION_S)
    assert 4 * sum(map(sum, (block.sizes for block in blocks))) == pytest.approx(TOTAL_BYTES, rel=1e-3)
    sizes = [size for block in blocks for size in block.sizes]
    assert len(sizes) == len(layers) and 9 <= len(blocks) <= 46
    assert min(min(block.forward_s, block.backward_s) for block in blocks) >= 0.0014
    scale = COMPUTATION_S / sum(layer.forward_s + layer.backward_s for layer in layers)
    ends_s = np.cumsum([scale * layer.forward_s for layer in layers])
    # A block ends where one of its layers does, and has that layer's tensor for its last one.
    places = np.cumsum([len(block.sizes) for block in blocks])
    np.testing.assert_allclose(np.cumsum([block.forward_s for block in blocks]), ends_s[places - 1])
    kept = [4 * size / TOTAL_BYTES for size in sizes]
    told = [layer.parameter_bytes / sum(each.parameter_bytes for each in layers) for layer in layers]
    np.testing.assert_allclose(kept, told, atol=64 / TOTAL_BYTES)


@pytest.mark.parametrize("rho", [0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("workers", [4, 16])
def test_links_make_rho(rho, workers):
    rates = set()
    for workload in EMULATED.values():
        on = on_links(workload, workers, rho)
        rate = link_rate(on, rho)
        rates.add(rate)
        payload = rate * 1448 / 1514
        assert on.sent_bytes(workers) / payload == pytest.approx(rho * COMPUTATION_S, rel=1e-3)
    assert len(rates) == 1  # links of one rate are measured once


def test_cells_begin_with_those_that_the_limits_are_about():
    cells = emulated_cells()
    assert len({*cells}) == len(cells) == 6 * 4 * 3
    assert [ACCELERATED.is_about(cell) for cell in cells] == [True] * 36 + [False] * 36


def test_gradients_are_those_of_the_network():
    given = without_time(SMALL)
    replica = Replica(tf, given, 1, 0)
    rng = np.random.default_rng(1)
    for parameter in replica.parameters.values():
        parameter.assign(rng.standard_normal(parameter.shape))
    weights = tf.range(1.0, 9.0) / 8.0
    x, label = given.batch(tf, 1, 0)
    with tf.GradientTape() as tape:
        logits = x
        for name, parameter in replica.parameters.items():
            place = int(name.rpartition("layer")[2])  # in its block
            logits += (1 - 1e-3 * place) * tf.reduce_sum(parameter) / float(np.sqrt(parameter.shape[0])) * weights
        wanted_loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(label, logits))
    wanted = tape.gradient(wanted_loss, list(replica.parameters.values()))
    found = []
    loss = replica.step(lambda gradients: found.extend(gradients) or gradients)
    np.testing.assert_allclose(loss, wanted_loss, rtol=1e-6)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-7)


def test_no_two_gradients_are_equal():
    """An optimizer of graphs would make one of them, and Horovod sent only half of the bytes."""
    block = Block((30, 30, 30, 7), 0.004, 0.008)
    replica = Replica(tf, without_time(replace(SMALL, network=Blocks(((block,), (block, block))))), 1, 0)
    found = []
    replica.step(lambda gradients: found.extend(gradients) or gradients)
    values = [gradient.numpy().tobytes() for gradient in found]
    assert len(values) == 12
    for branch in range(3):
        assert len({*values[4 * branch : 4 * branch + 4]}) == 4


# -- ops that sleep --------------------------------------------------------------------------------


def least_of_three(run):
    """The least seconds of three runs, and their least processor time; the first run gets ready."""
    run()
    found = []
    for _ in range(3):
        time.sleep(0.2)  # an element is not made before it is asked for
        before_s, before_processor_s = time.perf_counter(), time.process_time()
        run()
        found.append((time.perf_counter() - before_s, time.process_time() - before_processor_s))
    return tuple(map(min, zip(*found)))


@pytest.mark.parametrize(("is_alone", "time_s"), [(False, 0.35), (True, 0.2)])
def test_marks_become_ops_that_take_time_and_no_processor(is_alone, time_s):
    with tf.Graph().as_default() as graph:
        first = marked(tf, tf.constant(1.0), 0.05, is_alone)
        second = marked(tf, first, 0.15, is_alone)
        beside = marked(tf, tf.constant(1.0), 0.15, is_alone)
        with tf.control_dependencies([second, beside]):
            result = tf.identity(tf.constant(7.0), name="result")
        checked = tf.debugging.check_numerics(result, "a check of somebody's")
    given = graph.as_graph_def()
    replaced = with_sleep(given)
    names = [tensor.op.name for tensor in (first, second, beside)]
    ops = {node.name: node.op for node in replaced.node}
    assert [ops[name] for name in names] == ["IteratorGetNext"] * 3 and ops[checked.op.name] == "CheckNumerics"
    assert {node.name: node.op for node in given.node}[names[0]] == "CheckNumerics"  # what was given is as it was
    assert with_sleep(given.__class__()) == given.__class__()
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(replaced, name="")
        with v1.Session() as session:
            took_s, processor_s = least_of_three(lambda: session.run(checked.name))
    assert time_s - 0.001 <= took_s < time_s + 0.1  # with a lock one after the other, though they need not wait
    assert processor_s < 0.1


def test_peers_have_the_same_ops():
    @tf.function
    def step():
        late = slept(tf, slept(tf, tf.constant(0.0), 0.05, False), 0.05, False)
        return late, [slept(tf, tf.constant(0.0), 0.05, False) for _ in range(3)]

    took_s, _ = least_of_three(lambda: float(step()[0]))
    assert 0.249 <= took_s < 0.35
    assert sleeping(BY_NAME["mlp"]) is BY_NAME["mlp"]


# -- training --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one_device():
    replica = Replica(tf, without_time(SMALL), 1, 0)
    step = tf.function(lambda: replica.step(lambda gradients: gradients))
    return [float(step()) for _ in range(4)]


@pytest.mark.soak
def test_it_is_traced_planned_and_trained(one_device):
    hosts = Accelerated(caramel.InProcess())
    context = captured(SMALL)
    trace = caramel.trace(context, workers=2, cluster=hosts, runs=5, steps=3, statistic="least", progress=False)
    times_s = np.sort([*trace.op_s.values()])[-2 * len(ALL) :]
    asked_s = np.sort([each for block in ALL for each in (block.forward_s, block.backward_s)])
    assert np.all(times_s > asked_s - 0.0005) and ALONE_S * 0.92 <= times_s.sum() < ALONE_S * 2
    assert trace.step_s >= ALONE_S * 0.92
    network = caramel.NetworkModel.from_costs(1e-4, 1e-8)
    model = caramel.ARModel(context, 2, trace=trace, network=network)
    with model.session(hosts) as session:
        begin_s = time.perf_counter()
        losses = [result.loss for result in session.run(steps=4, progress=False)]
        took_s = time.perf_counter() - begin_s
        session.steps_together(2)  # nodes that are added to the graph
        begin_s = time.perf_counter()
        session.steps_together(2)
        assert time.perf_counter() - begin_s > 2 * ALONE_S * 0.92
    np.testing.assert_allclose(losses, one_device, rtol=1e-5)
    assert took_s > 4 * ALONE_S * 0.92
    assert any(abs(a / b - 1) > 1e-3 for a, b in pairwise(losses))  # a wrong sum would be seen


def test_no_mark_stays_where_nothing_takes_its_place():
    @tf.function
    def inner(x):
        return marked(tf, x, 0.05, True)

    with tf.Graph().as_default() as graph:
        inner(tf.constant(0.0))
    with pytest.raises(InvariantError, match="in a function"):
        with_sleep(graph.as_graph_def())


@pytest.mark.parametrize(
    "arguments", [("--workload", "vgg16"), ("--emulated", "--workload", "mlp"), ("--emulated", "--core")]
)
def test_emulated_workloads_are_measured_by_themselves(arguments, tmp_path):
    done = CliRunner().invoke(main, [*arguments, "--results", str(tmp_path / "r.json")])
    assert done.exit_code != 0 and "emulated" in done.output and not (tmp_path / "r.json").exists()


@pytest.mark.parametrize("make", [tensorflow_collectives, parameter_server])
def test_peers_in_a_graph_train_the_same(make, one_device):
    contender = make(SMALL, 2, Accelerated(caramel.InProcess()))
    burst = contender.run(4)
    contender.close()
    np.testing.assert_allclose(burst.losses, one_device, rtol=1e-5)
    assert min(burst.times_s) > ALONE_S * 0.92


def test_hosts_are_shared_with_their_accelerators():
    graph = tf.Graph()
    with graph.as_default(), tf.device("/job:worker/task:0"):
        done = marked(tf, tf.constant(0.0), 0.05, True)
    given = Accelerated(caramel.InProcess())
    with given.shared() as shared:
        for cluster in (given, shared, given.as_written(), given.for_transfers(3), given.with_options(given.options)):
            executor = cluster.start(graph.as_graph_def(), ("/job:worker/task:0",), 60.0)
            try:
                executor.run([done.name], [], {}, 60.0)
                begin_s = time.perf_counter()
                executor.run([done.name], [], {}, 60.0)
                assert time.perf_counter() - begin_s >= 0.049
            finally:
                executor.close()


# -- what is made of the times -----------------------------------------------------------------------


def row(cell, name, time_s, processor_s):
    return Row(
        *(cell.workload, cell.workers, cell.rho, 64, 1e7, (1e7,), name, {}, (time_s,) * 5, time_s),
        *(0.9, 1.0, 0.95, time_s, processor_s, (processor_s,), 7e6, (7e6,), (7e6,), (3.0, 2.0), "abc", None),
        origin=Origin(None, None, {"cores": 2}),
    )


def test_cells_of_busy_processors_are_left_out_by_name():
    """Twice the bytes that were sent must be: 0.2 s of computation and 0.3 s for the bytes of one, 1.3 s of the other."""
    quiet, busy = Cell("vgg16", 8, 2.0), Cell("gnmt", 8, 2.0)
    rows = [row(cell, "compute", 0.9, 0.2) for cell in (quiet, busy)]
    rows += [row(quiet, "caramel", 1.02, 0.5), row(busy, "caramel", 1.5, 1.5), row(busy, "mwms", 1.5, 1.6)]
    left_out, failed, mean, worst, *_ = findings(rows, [quiet, busy], ACCELERATED)
    assert (left_out.value, left_out.notes) == (1.0, ("gnmt, 8 workers, rho 2: 1.40",))
    assert failed.shown == "0 of 2" and mean.value == pytest.approx(1.02)
    assert (mean.verdict, worst.verdict) == ("kept", "kept") and "0.5 to 2" in mean.what
    everything = findings(rows, [quiet, busy])
    assert not any("left out" in each.what for each in everything)
