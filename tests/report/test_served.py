"""The lanes of steps with parameter servers: what is predicted of them, and what TensorFlow's messages say."""

import json

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.facts import Trace
from caramel.measure.step_stats import Message, Row, TracedStep, traced_step
from caramel.plan import Plan
from caramel.report.chrome_trace import trace_events
from caramel.report.content import Report, advice
from caramel.report.measured import measured_timeline
from caramel.report.page import report_page
from caramel.report.predicted import predicted_timeline
from caramel.report.profile import profiled_step
from caramel.report.what_helps import what_ifs


def named(bars, kind):
    return [bar.name for bar in bars if bar.kind == kind]


@pytest.fixture(scope="module")
def served(context):
    """The program for two workers and two servers, with a prediction from made-up times."""
    op_s = {node.name: 1e-3 for node in context.model.graph if node.op in ("MatMul", "ReluGrad", "AssignSubVariableOp")}
    step_s = sum(op_s.values())
    trace = Trace(context.model.digest, op_s, {}, step_s, step_s, 1, 1, 4, "made up")
    network = caramel.NetworkModel.from_link_rate(2e5)
    model = caramel.PSModel(context, 2, 2, trace=trace, network=network)
    model.context, model.made_up, model.network = context, trace, network
    return model


# -- predicted -----------------------------------------------------------------------------------


def test_predicted_lanes_add_up_to_the_figures(served):
    figures, step = served.plan.servers.prediction, predicted_timeline(served.plan)
    assert step.iteration_s == figures.step_s and [lanes.rank for lanes in step.servers] == [0, 1]
    for lanes in step.workers:
        computing = [bar for bar in lanes.computation if bar.kind == "compute"]
        assert sum(bar.time_s for bar in computing) == pytest.approx(figures.compute_s)
        ends = [bar.end_s for bar in lanes.computation]
        assert all(a == pytest.approx(b.start_s) for a, b in zip(ends, lanes.computation[1:]))
        assert ends[-1] == pytest.approx(step.iteration_s)
        pulls = [bar for bar in lanes.link if bar.kind == "pull"]
        assert list(dict.fromkeys(bar.name.split()[2] for bar in pulls)) == list(served.plan.servers.pulls)
        by_server = [sum(bar.time_s for bar in pulls if bar.name.endswith(f"server {k}")) for k in range(2)]
        assert max(by_server) == pytest.approx(figures.pull_s)
        assert sorted(named(lanes.link, "push")) == [
            "push of first to server 0",
            "push of first to server 1",
            "push of second to server 0",
        ]
    assert [len(lanes.computation) for lanes in step.servers] == [2, 1]  # each adds up and updates what it has


def test_stalls_name_what_they_wait_for(served):
    (lanes, _) = predicted_timeline(served.plan).workers
    ends = {bar.name: bar.end_s for bar in lanes.link}
    causes = [bar for bar in lanes.computation if bar.kind == "stall" and bar.cause is not None]
    assert causes[0].cause == f"pull of {served.plan.servers.pulls[0]} from server " + causes[0].cause[-1]
    assert all(ends[bar.cause] == pytest.approx(bar.end_s) for bar in causes)


def test_a_plan_from_a_file_has_the_same_lanes(served):
    assert predicted_timeline(Plan.from_json(served.plan.to_json())) == predicted_timeline(served.plan)


def test_without_a_prediction_there_are_none(context):
    assert predicted_timeline(caramel.PSModel(context, 2, 1).plan) is None


def test_pages_and_traces_show_them(served):
    step = predicted_timeline(served.plan)
    report = Report("a title", served.plan, "1.0", step)
    page = report_page(report)
    for text in ("pulls of parameters", "pushes of gradients", "server 1 adds up and updates", "pull of first from"):
        assert text in page
    assert f"Order of pulls ({served.plan.servers.ordering}): 2 parameters" in page and "<li>first</li>" in page
    assert advice(report)[0].startswith("A worker waits for the p")
    events = json.loads(trace_events(served.plan, [step]))["traceEvents"]
    processes = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert processes == {"worker 0", "worker 1", "server 0", "server 1"}
    assert {"pull", "push", "update"} <= {event.get("cat") for event in events}
    assert any("pull of" in event.get("args", {}).get("waits for", "") for event in events)


def test_what_would_help_is_planned_anew(served):
    found = {each.change: each for each in what_ifs(served.plan, served.facts)}
    now_s = served.plan.servers.prediction.step_s
    faster = found["Links twice as fast: each message takes half the time"]
    assert faster.step_s < now_s and faster.gain == pytest.approx(1 - faster.step_s / now_s)
    assert found["Pulls in no order (--ordering none)"].step_s == served.plan.servers.prediction.unordered_s >= now_s
    assert found["Nothing to send: more than this, no faster link can gain"].step_s == pytest.approx(
        served.plan.servers.prediction.compute_s
    )
    assert not any("Twice as many servers" in change for change in found)  # there are two variables
    reduced = caramel.what_if(served.context, 2, trace=served.made_up, network=served.network).prediction
    all_reduces = found["All-reduces instead of servers (without --servers)"]
    assert all_reduces.step_s == pytest.approx(reduced.timeline.iteration_s)
    page = report_page(Report("a title", served.plan, "1.0", predicted_timeline(served.plan), tuple(found.values())))
    assert "Pulls are put in an order anew each time" in page


def test_nothing_is_known_of_changes_without_times(context):
    model = caramel.PSModel(context, 2, 1)
    assert what_ifs(model.plan, model.facts) == ()


# -- measured ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unordered(context):
    return caramel.PSModel(context, 2, 1, ordering="none")


def device(model, rank):
    return f"{[*model.plan.devices, *model.plan.server_devices][rank].replace('/task', '/replica:0/task')}/device:CPU:0"


def a_row(model, name, rank, start_ns, end_ns):
    return Row(name, device(model, rank), start_ns, end_ns, end_ns, None)


@pytest.fixture(scope="module")
def ends(unordered):
    """The node of the server that reads `first`, that of worker 1 which makes its gradient, a product there, and the update."""
    emission = unordered.distributed.emission
    (read,) = (
        n
        for n in emission.graph
        if n.name.startswith("server_0/") and n.op == "ReadVariableOp" and "first" in n.input[0]
    )
    gradient = emission.gradients[1, "first"].partition(":")[0]
    used = next(n.name for n in emission.graph if n.name.startswith("worker_1/") and n.op == "MatMul")
    (update,) = (
        n.name
        for n in emission.graph
        if n.name.startswith("server_0/") and n.op == "AssignSubVariableOp" and "first" in n.input[0]
    )
    return read.name, gradient, used, update


def a_step(model, ends, server_is_ahead_ns=0):
    """Worker 1 asks for `first` at 20, and has it at 80; the server reads it at 30. The gradient goes from 150 to 190."""
    read, gradient, used, update = ends
    rows = (
        a_row(model, read, 2, 10 + server_is_ahead_ns, 30 + server_is_ahead_ns),
        a_row(model, used, 1, 0, 10),
        a_row(model, used, 1, 80, 100),
        a_row(model, gradient, 1, 100, 150),
        a_row(model, update, 2, 195 + server_is_ahead_ns, 200 + server_is_ahead_ns),
    )
    messages = (
        Message(f"edge_7_{read}", device(model, 2), device(model, 1), 20, 80, 512),
        Message(f"edge_12_{gradient}", device(model, 1), device(model, 2), 40, 190 + server_is_ahead_ns, 512),
        Message("edge_3_something/else", device(model, 2), device(model, 1), 20, 90, 4),
    )
    return TracedStep(rows, None, messages)


def test_pulls_and_pushes_are_on_the_link_of_their_worker(unordered, ends):
    timeline = measured_timeline(unordered.distributed, a_step(unordered, ends))
    idle, worker = timeline.workers
    assert idle.link == ()
    assert [(bar.kind, bar.name) for bar in worker.link] == [
        ("pull", "pull of first from server 0"),
        ("push", "push of first to server 0"),
    ]
    times_ns = [round(1e9 * time_s) for bar in worker.link for time_s in (bar.start_s, bar.end_s)]
    assert times_ns == [30, 80, 150, 190]  # not before the server has it, and not before the gradient is there
    assert [(round(1e9 * time_s), size) for time_s, size in worker.received] == [(80, 512)]
    (waiting, *_) = (bar for bar in worker.computation if bar.kind == "stall" and bar.cause is not None)
    assert (round(1e9 * waiting.start_s), round(1e9 * waiting.end_s)) == (30, 80)
    assert waiting.cause == "pull of first from server 0"
    assert timeline.has_one_clock and any("no account" in note for note in timeline.notes)  # `second` did not come
    profile = profiled_step(timeline).workers[1]
    assert round(1e9 * profile.communication_s) == 50 + 40 and round(1e9 * profile.compute_s) == 10 + 20 + 50


def test_a_servers_own_clock_says_nothing_of_pushes(unordered, ends):
    timeline = measured_timeline(unordered.distributed, a_step(unordered, ends, server_is_ahead_ns=10**6))
    (bar,) = timeline.workers[1].link
    assert bar.kind == "pull" and round(1e9 * bar.start_s) == 20 and not timeline.has_one_clock
    assert any("What workers push is not shown" in note for note in timeline.notes)


def test_servers_have_lanes_of_what_they_do(unordered, ends):
    (server,) = measured_timeline(unordered.distributed, a_step(unordered, ends)).servers
    assert server.rank == 0 and server.link == () and [bar.kind for bar in server.computation] == ["other", "update"]


def test_in_one_process_nothing_is_sent(unordered, batch):
    with unordered.session(caramel.InProcess()) as session:
        found = caramel.profile(session, lambda count: [[batch]] * count, steps=2)
    assert found.median("rho") == 0.0 and found.median("efficiency") is None
    assert any("nothing is sent" in note for note in found.notes)


@pytest.mark.processes
@pytest.mark.parametrize("ordering", ["none", "tic"])
def test_workers_receive_and_send_what_the_plan_says(context, batch, ordering):
    model = caramel.PSModel(context, 2, 2, ordering=ordering)
    with model.session(caramel.LocalProcesses()) as session:
        steps = [measured_timeline(model.distributed, traced_step(session, batch)) for _ in range(6)]
    complete = [step for step in steps if not any("no account" in note for note in step.notes)]
    assert complete  # TensorFlow may say nothing of some
    for step in complete:
        assert [sum(size for _, size in lanes.received) for lanes in step.workers] == [
            model.plan.servers.pulled_bytes
        ] * 2
        for lanes in step.workers:
            assert {name.split()[2] for name in named(lanes.link, "pull")} == {"first", "second"}
            assert all(0 <= bar.start_s <= bar.end_s <= step.iteration_s + 1e-9 for bar in lanes.link)
    assert any(
        {name.split()[2] for name in named(lanes.link, "push")} == {"first", "second"}
        for step in steps
        for lanes in step.workers
    )
    assert any(bar.kind == "update" for step in steps for lanes in step.servers for bar in lanes.computation)


@pytest.mark.slow
@pytest.mark.processes
def test_rows_that_are_looked_up_are_named():
    table = tf.Variable(np.ones([50, 4], np.float32), name="table")

    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.gather(table, ids) ** 2)
        gradient = tape.gradient(loss, table)
        table.scatter_sub(tf.IndexedSlices(0.1 * gradient.values, gradient.indices))
        return loss

    model = caramel.PSModel(caramel.capture(step, [tf.TensorSpec([None], tf.int32)]), 2, 1)
    with model.session(caramel.LocalProcesses()) as session:
        steps = [measured_timeline(model.distributed, traced_step(session, np.arange(8, dtype="i4"))) for _ in range(6)]
    names = {name for step in steps for lanes in step.workers for name in named(lanes.link, "pull")}
    assert "pull of rows of table from server 0" in names
    assert "push of table to server 0" in {n for s in steps for lanes in s.workers for n in named(lanes.link, "push")}
