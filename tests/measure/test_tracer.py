"""What a trace has, and that nothing is sent between the workers whose step is traced."""

import os
import statistics
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.compiler.distributed_model import computation_alone
from caramel.facts import Trace
from caramel.graph.graph import Graph, node_of
from caramel.measure.step_stats import Row, TracedStep, ready_orders, traced_step
from caramel.measure.trace_file import check_trace, load_trace, save_trace
from caramel.measure.trace_summary import least_s, mean_s, node_times, predicted_step_s, varies, with_orders
from caramel.runtime.clusters.local_processes import SharedProcesses
from caramel.runtime.host.run_options import RunOptions
from caramel.runtime.session import Session

v1 = tf.compat.v1

NAMED = caramel.InProcess(RunOptions(optimize_graph=False))


def test_a_trace(mlp, batch, tmp_path):
    trace = caramel.trace(mlp, *batch, workers=2, runs=3, steps=4, description="here")
    model = mlp.model
    assert trace.model_digest == model.digest
    assert (trace.runs, trace.workers, trace.examples) == (3, 2, 4)
    assert trace.description == "here; mean of 3 runs"
    assert [w for w in trace.warnings if "something else ran" not in w] == []  # as may well be where tests run
    assert set(trace.op_s) <= {n.name for n in model.graph}
    assert {"first", "second"} <= set(trace.op_s)
    assert {g.tensor.partition(":")[0] for g in model.gradients} <= set(trace.op_s)
    assert all(time_s >= 0 for time_s in trace.op_s.values())
    assert trace.step_s == statistics.median(trace.plain_steps_s) > 0 and len(trace.plain_steps_s) == 4
    assert 0 < trace.predicted_s <= 2 * sum(trace.op_s.values())
    assert (trace.op_bytes["first"], trace.op_bytes["second"]) == (4 * 64 * 4, 4 * 3 * 4)
    save_trace(trace, tmp_path / "trace.json")
    loaded = load_trace(tmp_path / "trace.json")
    assert loaded == trace
    check_trace(loaded, model)


def test_the_expensive_op_is_expensive():
    with caramel.capture() as context:
        x = v1.placeholder(tf.float32, [None, 1000], "x")
        w = v1.get_variable("w", [1000, 1000])
        u = v1.get_variable("u", [10, 1])  # so small a product stays far behind also beside other programs
        wide = tf.matmul(tf.matmul(x, w, name="large")[:, :10], u, name="small")
        v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(wide**2))
    for statistic in ("mean", "least"):
        trace = caramel.trace(context, np.ones((1000, 1000), np.float32), runs=5, steps=1, statistic=statistic)
        assert trace.op_s["large"] > 10 * trace.op_s["small"]
        assert trace.description.endswith(f"; {statistic} of 5 runs")


PLAIN = Trace("digest", {}, {}, 9.0, 9.0, 2, 1, None, "here", warnings=("loops",))


@pytest.mark.parametrize(
    ("plain_s", "again_s", "step_s", "is_disturbed"),
    [
        ([1.0, 1.1, 1.2], [1.0, 1.1, 1.2], 1.1, False),
        ([1.5, 1.6, 1.7], [1.0, 1.1, 1.2], 1.1, True),  # the host was slower while ops were traced
        ([1.0, 1.1, 1.2], [1.5, 1.6, 1.7], 1.1, True),  # or later
        ([1.2, 1.21, 1.22], [1.1, 1.11, 1.12], 1.11, False),  # apart, but near
        ([1.0, 2.0, 3.0], [0.5, 1.1, 2.5], 1.1, False),  # single steps differ as much
        ([1.0, 1.1, 1.2], None, 1.1, False),  # nothing to order
    ],
)
def test_of_plain_steps_measured_twice_the_less_counts(plain_s, again_s, step_s, is_disturbed):
    ordered_s = {} if again_s is None else {"none": again_s, "total": [2.0, 4.0, 3.0]}
    found = with_orders(PLAIN, plain_s, ordered_s)
    assert found.step_s == step_s and found.plain_steps_s in (tuple(plain_s), tuple(again_s or ()))
    assert statistics.median(found.plain_steps_s) == step_s
    assert found.ordered_step_s == ({} if again_s is None else {"none": sorted(again_s)[1], "total": 3.0})
    assert found.warnings[0] == "loops" and len(found.warnings) == 1 + is_disturbed
    if is_disturbed:
        assert f"{plain_s[1]:.3g} s between traced ones and {again_s[1]:.3g} s later" in found.warnings[1]


class Spied(caramel.InProcess):
    """Remembers how TensorFlow was to run."""

    seen: ClassVar[list[RunOptions]] = []

    def start(self, graph_def, devices, timeout_s):
        self.seen.append(self.options)
        return super().start(graph_def, devices, timeout_s)


@pytest.mark.parametrize("workers", [1, 3])
def test_traced_steps_run_one_op_at_a_time_on_each_worker_and_plain_steps_as_in_training(mlp, batch, workers):
    Spied.seen.clear()
    wanted = RunOptions(inter_op_threads=8)
    caramel.trace(mlp, *batch, workers=workers, cluster=Spied(wanted), runs=1, steps=1, orders=False)
    assert Spied.seen == [
        wanted.as_written(),
        RunOptions(optimize_graph=False, inter_op_threads=workers, transfer_threads=0),
    ]
    # Plain steps run as they are, too, but have been optimised before.


def two_towers():
    """Two gradients that do not need each other."""
    with caramel.capture() as context:
        x = v1.placeholder(tf.float32, [None, 4], "x")
        towers = [v1.get_variable(name, [4, 64], initializer=v1.ones_initializer()) for name in "uv"]
        loss = sum(tf.reduce_mean(tf.matmul(x, tower) ** 2) for tower in towers)
        v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    return context


def test_the_pace_of_each_order(mlp, batch):
    """Steps with the threads of training, whose ops have the names of the Model."""
    Spied.seen.clear()
    wanted = RunOptions(inter_op_threads=8)
    trace = caramel.trace(two_towers(), batch[0], workers=2, cluster=Spied(wanted), runs=2, steps=1)
    assert set(trace.pace) == {"none", "total", "updates"} == set(trace.ordered_step_s)
    for pace in trace.pace.values():
        assert len(pace) == 51 and (pace[0], pace[-1]) == (0, 1)
        assert list(pace) == sorted(pace)
    assert Spied.seen.count(wanted.as_written()) == 2 * 3  # half of them with steps that are optimised before
    assert set(caramel.trace(mlp, *batch, workers=2, runs=1, steps=1).pace) == {"none"}, "it has one order anyway"
    assert caramel.trace(mlp, *batch, workers=2, runs=1, steps=1, orders=False).pace == {}


def test_threads_of_servers():
    """As many as are asked for, or as there are cores, and those for transfers; in process there are no others."""
    cores = len(os.sched_getaffinity(0))
    threads = [
        options.server_config().inter_op_parallelism_threads
        for options in (RunOptions(), RunOptions(inter_op_threads=2), RunOptions(transfer_threads=0))
    ]
    assert threads == [cores + 6, 8, cores]
    assert RunOptions(inter_op_threads=2).config().inter_op_parallelism_threads == 2


def test_uneven_shares(mlp, batch):
    trace = caramel.trace(mlp, *batch, workers=3, runs=1, steps=1)  # 3, 3 and 2 examples
    assert trace.examples == 3
    assert trace.op_bytes["second"] == 3 * 3 * 4


def test_a_part_of_the_job(mlp, batch):
    assert caramel.trace(mlp, *batch, workers=4, workers_on_host=2, runs=1, steps=1).examples == 2
    trace = caramel.trace(mlp, {"x": batch[0], "y": batch[1]}, workers=3, workers_on_host=2, runs=1, steps=1)
    assert trace.examples == 3
    assert trace.op_bytes["second"] == 3 * 3 * 4


def test_old_names_of_the_numbers_of_workers(mlp, batch):
    def numbers(**named):
        trace = caramel.trace(mlp, *batch, runs=1, steps=1, orders=False, **named)
        return trace.workers, trace.examples

    with pytest.warns(DeprecationWarning, match=r"job_workers= is the old name of workers="):
        assert numbers(workers=2, job_workers=4) == numbers(workers_on_host=2, workers=4) == (2, 2)
    with pytest.warns(DeprecationWarning):
        assert numbers(job_workers=4) == numbers(workers_on_host=1, workers=4) == (1, 2)
    with pytest.raises(caramel.InputError, match="job_workers= is the old name"):
        numbers(job_workers=4, workers_on_host=1)
    assert numbers() == (1, 8) and numbers(workers=2) == numbers(workers_on_host=2) == (2, 4)


@pytest.mark.parametrize(("sharding", "examples"), [("slice", 2), ("batches", 8)])
def test_a_part_of_the_job_with_a_dataset(sharding, examples):
    w = tf.Variable(tf.ones([4]), name="w")

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.linalg.matvec(x, w) ** 2)
        w.assign_sub(1e-6 * tape.gradient(loss, w))
        return loss

    data = tf.data.Dataset.from_tensor_slices(np.ones([64, 4], np.float32)).batch(8)
    context = caramel.capture(step, data=data)
    trace = caramel.trace(context, workers=4, workers_on_host=2, runs=2, steps=2, sharding=sharding)
    assert trace.examples == examples


@pytest.mark.parametrize("workers", [1, 3])
def test_nothing_is_sent(mlp, workers):
    computation = computation_alone(mlp, workers)
    graph = Graph.from_graph_def(computation.graph_def)
    for rank in range(workers):
        loss = node_of(computation.signature.losses[rank])
        needed = graph.ancestors([f"caramel/worker_{rank}/step", loss])
        assert len(needed) == len(mlp.model.graph) + 1
        assert {name.removeprefix("caramel/").partition("/")[0] for name in needed} == {f"worker_{rank}"}


def test_each_worker_applies_its_own_gradient(batch):
    with caramel.capture() as context:
        x = v1.placeholder(tf.float32, [None, 4], "x")
        w = v1.get_variable("w", [4], initializer=v1.zeros_initializer())
        v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_mean(tf.linalg.matvec(x, w)))
    computation = computation_alone(context, 2)
    (read,) = [n.name for n in computation.model.graph if n.op == "ReadVariableOp"][:1]
    with Session(computation, caramel.InProcess()) as session:
        session.step(batch[0])
        values = session.executor.run([f"worker_{r}/{read}:0" for r in range(2)], [], {}, 60.0)
    np.testing.assert_allclose(values, [-batch[0][:4].mean(0), -batch[0][4:].mean(0)], rtol=1e-6)


# -- loops ---------------------------------------------------------------------------------------


def test_a_loop_has_the_time_of_all_ops_of_all_rounds(looping, batch):
    context = looping()
    graph = context.model.graph
    (loop,) = [n.name for n in graph if n.op in ("While", "StatelessWhile") and "gradients" not in n.name]
    with Session(computation_alone(context, 2), NAMED) as session:
        step = traced_step(session, batch[0])
    names = {f"worker_1/{n.name}" for n in graph} - {f"worker_1/{loop}"}
    rows = [row for row in step.rows if row.node.startswith(f"worker_1/{loop}/") and row.node not in names]
    inside = [row for row in rows if row.node.endswith("/inside")]
    assert len(inside) == 3
    times = node_times(graph, [step], 2)
    assert times[loop].shape == (1, 2)
    assert times[loop][0, 1] == pytest.approx(sum(row.time_s for row in rows))


def test_a_loop_is_doubtful(looping, batch):
    context = looping()
    trace = caramel.trace(context, batch[0], runs=2, steps=1)
    assert " in loops or branches" in trace.warnings[0]
    assert any(n.name in trace.warnings[0] for n in context.model.graph if n.op in ("While", "StatelessWhile"))
    assert trace.predicted_s > 0


def test_what_varies():
    steady, wild = np.full((4, 2), 0.1), np.array([[0.1, 0.1], [0.5, 0.5], [np.nan, np.nan], [0.1, 0.1]])
    assert not varies(steady, 1.0)
    assert varies(wild, 1.0)
    assert not varies(wild, 1000.0)  # so little of the step is no matter


# -- numbers by hand -----------------------------------------------------------------------------


def test_a_time_out_of_many():
    times = np.array([[9.0, 11.0], [1.0, 2.0], [3.0, 4.0]])
    assert mean_s(times) == 5.0
    assert least_s(times) == 1.5


def test_an_op_that_does_not_always_run():
    some = np.array([[np.nan, np.nan], [4.0, 2.0], [2.0, np.nan], [np.nan, np.nan]])
    assert mean_s(some) == pytest.approx((3.0 + 1.0) / 4)
    assert least_s(some) == 2.0


def test_times_of_nodes():
    graph = Graph([SimpleNamespace(name=name, op="MatMul", input=[], attr={}) for name in ("a", "b", "c")])

    def row(name, time_s):
        return Row(name, "", 0, 0, round(time_s * 1e9), None)

    runs = [
        TracedStep((row("worker_0/a", 1), row("worker_1/a", 2), row("worker_0/a", 3), row("worker_0/x", 9))),
        TracedStep((row("worker_1/b", 4),)),
    ]
    times = node_times(graph, runs, 2)
    assert list(times) == ["a", "b"]
    np.testing.assert_array_equal(times["a"], [[4.0, 2.0], [np.nan, np.nan]])
    np.testing.assert_array_equal(times["b"], [[np.nan, np.nan], [np.nan, 4.0]])


@pytest.mark.parametrize(
    ("workers", "threads", "expected"), [(1, 1, 6.0), (1, 2, 5.0), (2, 1, 12.0), (2, 2, 6.0), (2, 9, 5.0)]
)
def test_prediction(workers, threads, expected):
    nodes = {"a": [], "b": ["a"], "c": ["a", "^b"], "d": ["a:1"]}
    graph = Graph([SimpleNamespace(name=name, op="MatMul", input=inputs, attr={}) for name, inputs in nodes.items()])
    assert [node_of(text) for text in graph["d"].input] == ["a"]
    op_s = {"a": 1.0, "b": 2.0, "c": 2.0, "d": 1.0}
    assert predicted_step_s(graph, op_s, workers, threads) == expected


# -- refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ([], {}, r"pass the arrays of one step after the context, for the inputs x \(float32\[None, 4\]\), y"),
        ([np.ones((8, 4), np.float32)], {}, "1 array was given"),
        (None, {"runs": 0}, "runs must be a whole number of at least 1"),
        (None, {"steps": 0}, "steps must be a whole number of at least 1"),
        (None, {"workers": 0}, "workers must be a whole number of at least 1"),
        (None, {"workers": 2, "workers_on_host": 3}, "fewer workers than the 3"),
        (None, {"statistic": "median"}, "'mean' or 'least'"),
        (None, {"cluster": "processes"}, "a cluster such as"),
        (None, {"cluster": caramel.InProcess}, "a cluster such as"),
        (None, {"cluster": SharedProcesses(caramel.LocalProcesses())}, "a cluster such as"),
        (None, {"device_list": ["/job:worker/task:0"] * 2}, "2 entries for 1 workers"),
        (None, {"sharding": "slice2"}, "goes with a dataset"),
    ],
)
def test_refused(mlp, batch, arguments, options, message):
    with pytest.raises(caramel.InputError, match=message):
        caramel.trace(mlp, *(batch if arguments is None else arguments), **{"runs": 1, "steps": 1, **options})


def test_no_context(mlp):
    with pytest.raises(caramel.InputError, match="what caramel.capture returned"):
        caramel.trace(mlp.model)


# -- orders of a real session --------------------------------------------------------------------


def ordered_program():
    """Gradients of u, v and w one after the other, by control edges."""
    with caramel.capture() as context:
        x = v1.placeholder(tf.float32, [None, 4], "x")
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        found = []
        loss = 0.0
        for name in "uvw":
            with tf.control_dependencies([g for g, _ in found[-1:]]):
                variable = v1.get_variable(name, [4], initializer=v1.ones_initializer())
                part = tf.reduce_mean(tf.linalg.matvec(x, variable) ** 2)
                found.append((tf.gradients(part, variable)[0], variable))
                loss += part
        optimizer.apply_gradients(found)
        context.loss = loss
    return context


def test_orders_of_a_session(batch):
    context = ordered_program()
    gradients = context.model.gradients
    producers = {g.name: [node_of(g.tensor)] for g in gradients}
    with caramel.ARModel(context, 2).session(NAMED) as session:
        steps = [traced_step(session, batch[0]) for _ in range(3)]
        assert steps[-1].result.step == 3
    found = ready_orders(steps, {**producers, "other": ["nowhere"]}, 2)
    assert found.missing == (("other",),) * 2
    assert found.common == ("u", "v", "w")
    assert found.distinct == (1, 1)


@pytest.mark.soak  # as test_on_processes of `caramel trace`
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.usefixtures("namespaces")
def test_on_processes(mlp, batch):
    cluster = caramel.LocalProcesses()
    trace = caramel.trace(mlp, *batch, workers=2, cluster=cluster, runs=2, steps=2)
    assert {"first", "second"} <= set(trace.op_s)
    assert trace.op_bytes["first"] == 4 * 64 * 4
    assert "LocalProcesses" in trace.description
    context = ordered_program()
    producers = {g.name: [node_of(g.tensor)] for g in context.model.gradients}
    named = caramel.LocalProcesses(options=RunOptions(optimize_graph=False))
    with caramel.ARModel(context, 2).session(named) as session:
        steps = [traced_step(session, batch[0]) for _ in range(3)]
    assert {row.device.partition("/device")[0][-1] for row in steps[0].rows} == {"0", "1"}
    found = ready_orders(steps, producers, 2)
    assert found.missing == ((), ())
    assert found.common == ("u", "v", "w")
