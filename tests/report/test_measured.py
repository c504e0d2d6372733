"""Measured steps: whose ops they are, what they are for, and when transfers are under way."""

import pytest

import caramel
from caramel.graph.graph import node_of
from caramel.measure.step_stats import Row, TracedStep, traced_step
from caramel.report.measured import kinds_of_nodes, measured_timeline

NAMED = caramel.RunOptions(optimize_graph=False)


def ops_of(kinds, kind, graph):
    return {graph[name].op for name, of in kinds.items() if of == kind}


def test_kinds_follow_from_the_graph(context):
    graph = context.model.graph
    kinds = kinds_of_nodes(context.model)
    assert {"MatMul", "Relu", "SquaredDifference", "Square", "Pow", "Mean"} & ops_of(kinds, "forward pass", graph) >= {
        "MatMul",
        "Relu",
    }
    assert "ReluGrad" in ops_of(kinds, "backward pass", graph) and "AssignSubVariableOp" in ops_of(
        kinds, "update", graph
    )
    products = [kinds[node.name] for node in graph if node.op == "MatMul"]
    assert sorted(products) == ["backward pass"] * 3 + ["forward pass"] * 2


def is_product(graph, bar):
    return bar.name in graph and graph[bar.name].op == "MatMul"


@pytest.fixture(scope="module")
def model(context):
    """The program for three workers, with one transfer in each window."""
    return caramel.ARModel(context, 3, postponed=["second"], algorithm="shuffle")


@pytest.fixture(scope="module")
def measured(model, batch):
    """A real step of three workers in this process, and its lanes."""
    with model.session(caramel.InProcess(NAMED)) as session:
        for _ in range(3):
            step = traced_step(session, batch)
    return step, measured_timeline(model.distributed, step, ["a note"])


def test_every_worker_computes_and_sends_everything(model, measured):
    step, timeline = measured
    assert timeline.source == "measured" and timeline.notes == ("a note",)
    own = [row for row in step.rows if row.node.startswith(("worker_", "caramel/"))]  # not TensorFlow's arguments
    length_ns = max(row.end_ns for row in own) - min(row.start_ns for row in own)
    assert timeline.iteration_s == pytest.approx(length_ns / 1e9, abs=1e-9)
    assert [lanes.rank for lanes in timeline.workers] == [0, 1, 2]
    for lanes in timeline.workers:
        assert {bar.transfer for bar in lanes.link} == set(range(len(model.plan.transfers)))
        kinds = [bar.kind for bar in lanes.computation if is_product(model.model.graph, bar)]
        assert sorted(kinds) == ["backward pass"] * 3 + ["forward pass"] * 2
        for bar in (*lanes.computation, *lanes.link):
            assert -1e-9 <= bar.start_s <= bar.end_s <= timeline.iteration_s + 1e-9


def test_transfers_of_the_backward_window_begin_after_the_first_gradient(model, measured):
    _, timeline = measured
    (backward,) = [n for n, t in enumerate(model.plan.transfers) if t.window == "backward"]
    bars = [bar for lanes in timeline.workers for bar in lanes.computation if is_product(model.model.graph, bar)]
    first_s = min(bar.end_s for bar in bars if bar.kind == "backward pass")
    starts = {bar.transfer: bar.start_s for lanes in timeline.workers for bar in lanes.link}
    assert starts[backward] >= first_s > starts[1 - backward]


@pytest.mark.parametrize("optimize", [True, False])
def test_constants_of_a_transfer_are_not_its_beginning(context, batch, optimize):
    model = caramel.ARModel(context, 3)
    with model.session(caramel.InProcess(caramel.RunOptions(optimize_graph=optimize))) as session:
        step = [traced_step(session, batch) for _ in range(3)][-1]
    of_transfers = {row.node: row for row in step.rows if row.node.startswith("caramel/transfer_0/")}
    own_ns = [row.start_ns for name, row in of_transfers.items() if "/flat_" in name or "/pack_" in name]
    assert any(row.start_ns < min(own_ns) for row in of_transfers.values())  # constants, whatever they became
    timeline = measured_timeline(model.distributed, step)
    zero_ns = min(row.start_ns for row in step.rows if row.node.startswith(("worker_", "caramel/")))
    gradients = {node_of(tensor) for tensor in model.distributed.emission.pieces.values()}
    ready_ns = [row.end_ns for row in step.rows if row.node in gradients]  # from then on there is something to send
    for lanes in timeline.workers:
        assert lanes.link[0].start_s >= (min(own_ns + ready_ns) - zero_ns) / 1e9 - 1e-9


def test_stalls_are_where_no_op_runs(measured):
    _, timeline = measured
    for lanes in timeline.workers:
        busy = [bar for bar in lanes.computation if bar.kind != "stall"]
        for stall in (bar for bar in lanes.computation if bar.kind == "stall"):
            assert not any(bar.start_s < stall.end_s and bar.end_s > stall.start_s for bar in busy)


@pytest.mark.processes
def test_workers_receive_what_the_all_reduces_send(context, batch):
    model = caramel.ARModel(context, 2, algorithm="ring")
    with model.session(caramel.LocalProcesses(options=NAMED)) as session:
        steps = [measured_timeline(model.distributed, traced_step(session, batch)) for _ in range(6)]
    received = [[sum(size for _, size in lanes.received) for lanes in step.workers] for step in steps]
    complete = [model.plan.bytes_per_step] * 2  # a ring of two workers sends each element once
    assert complete in received
    for step, sizes in zip(steps, received):  # TensorFlow may say nothing of one of them
        assert sizes == complete or any("no account" in note for note in step.notes)


def test_clocks_that_differ_begin_at_zero_each(context):
    model = caramel.ARModel(context, 2)
    node = next(node.name for node in context.model.graph if node.op == "MatMul")

    def row(rank, start_ns, end_ns, task):
        return Row(f"worker_{rank}/{node}", f"/job:worker/task:{task}/device:CPU:0", start_ns, end_ns, end_ns, None)

    rows = row(0, 10, 20, 0), row(1, 10_000, 10_030, 1)
    apart = measured_timeline(model.distributed, TracedStep(rows))
    assert [lanes.computation[0].start_s for lanes in apart.workers] == [0.0, 0.0]
    assert apart.iteration_s == pytest.approx(30e-9) and "clocks" in apart.notes[0]
    for other, start_s in ((row(1, 15, 45, 1), 5e-9), (row(1, 10_000, 10_030, 0), 9990e-9)):  # of one process, the last
        together = measured_timeline(model.distributed, TracedStep((rows[0], other)))
        starts = [next(bar.start_s for bar in lanes.computation if bar.kind != "stall") for lanes in together.workers]
        assert starts == pytest.approx([0.0, start_s]) and together.notes == () and together.has_one_clock
