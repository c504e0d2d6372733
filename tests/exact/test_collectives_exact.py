"""Every all-reduce gives what one device gives; in rank order, the bits of one device with micro-batches."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from exact_common import BATCH, SAME, SERIAL, Case, assert_equivalent, assert_same, batches, in_process, train
from exact_tf1 import MicroBatches, OneDevice, capture, distributed
from variants import each_once, in_soak, mostly_in_soak

import caramel
from caramel.graph.graph import Graph
from caramel.graph.nodes import node
from caramel.netmodel.line import Curve, Sample

ALGORITHMS = ["shuffle", "star", "ring", "halving_doubling", "chain", "hierarchy_2", "native"]
IN_ORDER = ["shuffle", "star", "chain"]


SHAPES = [(4, 8), (2, 1), (3, 4), (4, 1), (1, 1)]  # workers and depth


@pytest.mark.parametrize(
    "algorithm, shape",
    [
        *each_once([a for a in ALGORITHMS if a != "native"], SHAPES),
        ("native", (3, 1)),
        *in_soak(*(("native", (workers, 1)) for workers in (1, 2, 4))),
    ],
)
def test_equals_one_device(algorithm, shape):
    workers, depth = shape
    case = Case("adam", ("clip", "tied", "decay"), clip=1.0)
    data = batches(BATCH, case.dtype)
    options = {"algorithm": algorithm, "depth": depth}
    assert_equivalent(distributed(case, workers, data, armodel=options), OneDevice(case).train(data))


@pytest.mark.parametrize(
    "algorithm, depth",
    [("chain", 3), *in_soak(*(c for c in itertools.product(IN_ORDER, [1, 3, 8]) if c != ("chain", 3)))],
)
def test_in_rank_order_has_the_bits_of_micro_batches(algorithm, depth):
    case = Case("adam", SAME, "float32", clip=1.4)
    data = batches(BATCH, case.dtype)
    options = {"algorithm": algorithm, "depth": depth, "deterministic": True}
    assert_same(distributed(case, 4, data, armodel=options), MicroBatches(case, 4).train(data))


def test_a_deterministic_choice_has_the_same_bits_whatever_the_network():
    case = Case("momentum", ("clip", "tied"), "float32", clip=1.0)
    data = batches(BATCH, case.dtype)
    want = MicroBatches(case, 3).train(data)
    for alpha, beta in ((1e-3, 1e-12), (1e-9, 1e-6)):
        network = caramel.NetworkModel.from_costs(alpha, beta)
        options = {"network": network, "deterministic": True}
        assert_same(distributed(case, 3, data, armodel=options), want)


@pytest.mark.parametrize("algorithm", ["ring", *in_soak("halving_doubling")])
def test_another_order_has_other_bits(algorithm):
    """Otherwise the tests above could not fail."""
    case = Case("adam", SAME, "float32", clip=1.4)
    data = batches(BATCH, case.dtype)
    with pytest.raises(AssertionError):
        assert_same(distributed(case, 4, data, armodel={"algorithm": algorithm}), MicroBatches(case, 4).train(data))


@pytest.mark.parametrize("algorithm", mostly_in_soak(ALGORITHMS, "ring", "native"))
def test_uneven_batches_equal_the_whole_batch(algorithm):
    case = Case("adam", ("clip", "decay"))
    data = batches(10, case.dtype)
    assert_equivalent(distributed(case, 4, data, armodel={"algorithm": algorithm}), OneDevice(case).train(data))


def bucketed(context, workers, sizes, **options):
    """An ARModel whose gradients travel in buckets of the given numbers of gradients."""
    plan = caramel.ARModel(context, workers, batching=False, **options).plan
    transfers, rest = [], list(plan.transfers)
    for count in sizes:
        taken, rest = rest[:count], rest[count:]
        transfers.append(
            replace(
                taken[0],
                pieces=tuple(p for t in taken for p in t.pieces),
                elements=sum(t.elements for t in taken),
                size_bytes=sum(t.size_bytes for t in taken),
            )
        )
    assert not rest
    return caramel.ARModel(context, workers, plan=replace(plan, transfers=tuple(transfers)))


@pytest.mark.parametrize("algorithm", mostly_in_soak(ALGORITHMS, "ring", "native"))
def test_buckets_equal_one_device(algorithm):
    case = Case("momentum", ("clip", "decay"), clip=1.0)
    data = batches(BATCH, case.dtype)
    context, program = capture(case)
    count = len(context.model.gradients)
    with bucketed(context, 3, [2, count - 2], algorithm=algorithm).session(in_process()) as session:
        assert_equivalent(train(session, [program.feed(b) for b in data]), OneDevice(case).train(data))


@pytest.mark.parametrize("depth", [*in_soak(1), 3])
@pytest.mark.parametrize("algorithm", mostly_in_soak(IN_ORDER, "shuffle"))
def test_the_bits_do_not_depend_on_buckets(algorithm, depth):
    case = Case("adam", ("clip", "decay"), "float32", clip=1.0)
    data = batches(BATCH, case.dtype)
    want = MicroBatches(case, 4).train(data)
    context, program = capture(case)
    count = len(context.model.gradients)
    for sizes in ([count], [1, count - 1], [count - 2, 2]):
        armodel = bucketed(context, 4, sizes, algorithm=algorithm, depth=depth, deterministic=True)
        with armodel.session(in_process()) as session:
            assert_same(train(session, [program.feed(b) for b in data]), want)


def replica_values(session, armodel, rank):
    """Every variable of one worker, in the order of the graph."""
    handles = [n for n in armodel.graph_def.node if n.op == "VarHandleOp" and n.name.startswith(f"worker_{rank}/")]
    reads = []
    for number, handle in enumerate(handles):
        name = f"test/read_{rank}_{number}"
        dtype = handle.attr["dtype"]
        reads.append(node(name, "ReadVariableOp", [handle.name], handle.device, dtype=dtype))
    session._executor.extend(Graph(reads).to_bytes())
    return session._executor.run([f"{n.name}:0" for n in reads], [], {}, 60.0)


@pytest.mark.parametrize("wire", ["bfloat16", *in_soak("float16")])
def test_a_narrow_wire_keeps_replicas_identical_and_the_loss_close(wire):
    case = Case("momentum", ("decay",), "float32")
    data = batches(BATCH, case.dtype)
    want = OneDevice(case).train(data)
    context, program = capture(case)
    armodel = caramel.ARModel(context, 4, algorithm="ring", wire=wire)
    assert {t.wire for t in armodel.plan.transfers} == {wire}
    with armodel.session(in_process()) as session:
        got = train(session, [program.feed(b) for b in data])
        copies = [replica_values(session, armodel, rank) for rank in range(4)]
    assert len(copies[0]) >= 4
    for other in copies[1:]:
        for mine, its in zip(copies[0], other):
            np.testing.assert_array_equal(mine, its)
    np.testing.assert_allclose(got.losses, want.losses, rtol=0.05)
    assert any(not np.array_equal(got.values[n], want.values[n]) for n in want.values)


def measured(workers):
    small = Curve.fitted(workers, "star", 1, [Sample(64, 1e-4), Sample(2**20, 1e-2)])
    large = Curve.fitted(workers, "ring", 2, [Sample(64, 1e-3), Sample(2**20, 1.1e-3)])
    return caramel.NetworkModel("measured somewhere", (small, large))


def test_a_measured_network_decides_transfer_by_transfer(tmp_path):
    from caramel.netmodel.file import save

    context, _ = capture(Case("momentum", ("decay",), "float32"))
    save(measured(3), tmp_path / "network.json")
    plan = caramel.ARModel(context, 3, batching=False, network=tmp_path / "network.json").plan
    crossing = (1e-3 - 1e-4) / ((1e-2 - 1e-4) / 2**20)
    for transfer in plan.transfers:
        assert transfer.algorithm == ("star" if transfer.size_bytes < crossing else "ring")
        assert transfer.depth == (1 if transfer.algorithm == "star" else 2)
        assert transfer.predicted_s == pytest.approx(
            measured(3).predict(transfer.algorithm, transfer.depth, 3, transfer.size_bytes).time_s
        )
        assert "least predicted time" in plan.explain(transfer.gradients[0])
    assert "measured somewhere" in plan.table()
    assert caramel.Plan.from_json(plan.to_json()) == plan


def test_a_network_of_another_number_of_workers_is_refused():
    context, _ = capture(Case("momentum", ("decay",), "float32"))
    with pytest.raises(caramel.InputError, match="measured with 3 workers, not with 4.*caramel netbench --workers 4"):
        caramel.ARModel(context, 4, network=measured(3))
    caramel.ARModel(context, 1, network=measured(3))  # nothing travels


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("algorithm", [*in_soak("shuffle"), "native"])
def test_over_processes(algorithm):
    """The nodes of all schedules are alike; TensorFlow's own all-reduce meets its servers in another way."""
    case = Case("adam", ("clip", "tied"), clip=1.0)
    data = batches(BATCH, case.dtype)
    processes = caramel.LocalProcesses(options=SERIAL)
    assert_equivalent(distributed(case, 3, data, processes, {"algorithm": algorithm}), OneDevice(case).train(data))
