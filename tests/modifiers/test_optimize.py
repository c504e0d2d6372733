"""Steps that are optimised once for all workers: what is, what is left alone, and what is checked."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.grappler import tf_optimizer

import caramel
from caramel.errors import InvariantError
from caramel.graph.graph import node_of
from caramel.graph.verify import verify_structure
from caramel.modifiers import optimize as module
from caramel.modifiers.emission import Purpose
from caramel.modifiers.optimize import is_optimizable, optimize
from caramel.runtime.executor import SessionExecutor

WORKERS = 3


def distributed(workers=WORKERS, hidden=lambda x: x, data=None, **options):
    w, v = tf.Variable([0.0, 0.0], name="w"), tf.Variable(0.0, name="v")

    def step(x, y):
        with tf.GradientTape() as tape:
            x = hidden(x) * (tf.constant(2.0) - 1.0)  # which is computed once, by the optimizers
            loss = tf.reduce_mean((tf.linalg.matvec(x, w) + v - y) ** 2)
        for variable, gradient in zip((w, v), tape.gradient(loss, [w, v])):
            variable.assign_sub(0.1 * gradient)
        return loss

    specs = [tf.TensorSpec([None, 2]), tf.TensorSpec([None])]
    context = caramel.capture(step, data=data) if data is not None else caramel.capture(step, specs)
    postponed = [g.name for g in context.model.gradients] if workers > 1 else []
    return caramel.ARModel(context, workers, postponed=postponed, **options).distributed


@pytest.fixture(scope="module")
def plain():
    return distributed()


def of_kind(graph, roles, purpose, rank=None):
    return {n.name for n in graph if roles[n.name].purpose is purpose and rank in (None, roles[n.name].rank)}


def test_all_workers_have_the_same_fewer_nodes(plain):
    before, after = plain.emission, plain.optimized.emission
    for rank in range(WORKERS):
        mine = of_kind(after.graph, after.roles, Purpose.REPLICA, rank)
        assert len(mine) < 0.9 * len(of_kind(before.graph, before.roles, Purpose.REPLICA, rank))
        assert {after.graph[name].device for name in mine} == {f"/job:worker/task:{rank}"}
    assert after.roles.keys() == set(after.graph.nodes)
    for purpose in (Purpose.COLLECTIVE, Purpose.STATE):
        names = of_kind(after.graph, after.roles, purpose)
        assert names == of_kind(before.graph, before.roles, purpose)
        assert all(after.graph[name] is before.graph[name] for name in names)


def test_what_others_read_keeps_its_name(plain):
    """Losses, what transfers read and what waits in another run are where they were."""
    graph = plain.optimized.emission.graph
    for name in (*plain.signature.step, *plain.signature.losses, *plain.signature.flush):
        assert node_of(name) in graph
    assert {n.name for n in graph if n.op == "VarHandleOp"} == {
        n.name for n in plain.emission.graph if n.op == "VarHandleOp"
    }


def test_variables_stay_those_of_their_worker(plain):
    graph = plain.optimized.emission.graph
    for node in plain.emission.graph:
        if node.op == "VarHandleOp":
            assert graph[node.name].attr["shared_name"].s == node.attr["shared_name"].s


def test_random_numbers_of_each_worker_stay_apart():
    made = distributed(hidden=lambda x: x + tf.random.normal(tf.shape(x), seed=3))
    seeds = []
    for graph in (made.emission.graph, made.optimized.emission.graph):
        drawing = [n for n in graph if "seed2" in n.attr]
        seeds.append(sorted((n.name, n.attr["seed2"].i) for n in drawing))
        assert len({seed for _, seed in seeds[-1]}) == WORKERS
    assert seeds[0] == seeds[1]


def test_functions_of_each_worker_are_for_tensorflow_to_optimise():
    """Workers call functions of their own, with seeds of their own, which nothing here would optimise."""

    def hidden(x):
        def body(n, y):
            return n + 1, y + tf.random.normal(tf.shape(y), seed=7)

        return tf.while_loop(lambda n, y: n < 3, body, [tf.constant(0), x])[1]

    made = distributed(hidden=hidden)
    assert is_optimizable(made.emission) and made.optimized is None


def test_steps_with_little_in_common_are_for_tensorflow_to_optimise(plain, monkeypatch):
    real = module._kind
    monkeypatch.setattr(module, "_kind", lambda rank, node: real(rank, node) + b"%d" % rank)
    assert optimize(plain.emission, plain.signature) is None


def test_values_that_are_fed_are_not_known():
    """A placeholder with a default may be fed, so the default is no constant."""
    v1 = tf.compat.v1
    with caramel.capture() as context:
        x = v1.placeholder(tf.float32, [None], "x")
        scale = v1.placeholder_with_default(np.float32(2.0), [], "scale")
        w = v1.get_variable("w", [], initializer=tf.ones_initializer())
        v1.train.GradientDescentOptimizer(0.0).minimize(tf.reduce_mean(w * x * (scale + 1.0)))
    with caramel.ARModel(context, 2).session() as session:
        data = np.ones(4, np.float32)
        assert session.distributed.graph_def != caramel.ARModel(context, 2).graph_def
        assert session.step({"x": data}).loss == 3.0
        assert session.step({"x": data, "scale": np.float32(4.0)}).loss == 5.0


@pytest.mark.parametrize("sharding", ["slice", "batches"])
def test_what_the_workers_read_is_not_known(sharding):
    x = np.arange(144, dtype=np.float32).reshape(72, 2)
    data = tf.data.Dataset.from_tensor_slices((x, x[:, 0])).batch(6)
    made = distributed(data=data, sharding=sharding)
    after = made.optimized.emission
    for name in of_kind(made.emission.graph, made.emission.roles, Purpose.INPUT):
        assert after.graph[name] is made.emission.graph[name]
    with caramel.Session(made, caramel.InProcess()) as session:
        losses = [session.step().loss for _ in range(4)]
    assert len(set(losses)) == 4


def test_steps_on_gpus_are_for_tensorflow_to_optimise():
    made = distributed(2, device_list=[f"/job:worker/task:{task}/device:GPU:0" for task in range(2)])
    assert not is_optimizable(made.emission)
    assert made.optimized is None


def test_one_worker():
    made = distributed(1)
    assert len(made.optimized.emission.graph) < len(made.emission.graph)


def test_an_op_on_a_gpu_is_for_tensorflow_to_optimise():
    def hidden(x):
        with tf.device("GPU:0"):
            return x * 2.0

    assert distributed(hidden=hidden).optimized is None


def test_a_node_that_is_gone_is_noticed(plain, monkeypatch):
    real = module._optimized

    def losing(graph_def, kept):
        found = real(graph_def, kept)
        lost = min(name for name in kept if not name.startswith("outside"))
        keeping = [node for node in found.node if node.name != lost]
        del found.node[:]
        found.node.extend(keeping)
        return found

    monkeypatch.setattr(module, "_optimized", losing)
    with pytest.raises(InvariantError, match="is gone"):
        optimize(plain.emission, plain.signature)


def test_a_write_that_is_gone_is_noticed(plain, monkeypatch):
    """A step that no longer updates anything would still be a graph."""
    real = module._optimized

    def losing(graph_def, kept):
        found = real(graph_def, kept)
        for node in found.node:
            if node.op == "NoOp":
                node.input[:] = []
        return found

    monkeypatch.setattr(module, "_optimized", losing)
    with pytest.raises(InvariantError, match="other ops write"):
        optimize(plain.emission, plain.signature)


@pytest.mark.parametrize(
    "error", [InvariantError("a cycle"), ImportError("no such module"), TypeError("other arguments"), ValueError("bad")]
)
def test_without_it_tensorflow_optimises_all(monkeypatch, caplog, error):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(tf_optimizer, "OptimizeGraph", fail)
    made = distributed()
    with caramel.Session(made, caramel.InProcess()) as session:
        assert session.distributed is made
        assert np.isfinite(session.step(np.ones((6, 2), np.float32), np.ones(6, np.float32)).loss)
    assert (
        f"TensorFlow optimises the graph of all workers when it first runs it: after optimize: {error}" in caplog.text
    )


def test_servers_with_gpus_are_started_again_for_tensorflow_to_optimise(plain, monkeypatch):
    """A GPU is only seen when the servers run; they then get the graph as it was emitted."""
    started, closed = [], []
    monkeypatch.setattr(SessionExecutor, "has_gpu", lambda executor: True)
    real = SessionExecutor.close
    monkeypatch.setattr(SessionExecutor, "close", lambda executor: (closed.append(executor), real(executor)))

    class Spied(caramel.InProcess):
        def start(self, graph_def, devices, timeout_s):
            started.append((self.options.optimize_graph, len(graph_def.node)))
            return super().start(graph_def, devices, timeout_s)

    with caramel.Session(plain, Spied()) as session:
        assert session.distributed is plain and len(closed) == 1
    assert started == [(False, len(plain.optimized.emission.graph)), (True, len(plain.emission.graph))]


def test_clusters_of_the_users_own_keep_what_they_have(plain):
    class Logged(caramel.InProcess):
        def __init__(self, log):
            super().__init__()
            object.__setattr__(self, "log", log)

        def start(self, *given):
            self.log.append("started")
            return super().start(*given)

    class Least(caramel.Cluster):
        def start(self, *given):
            return caramel.InProcess().start(*given)

    log = []
    with caramel.Session(plain, Logged(log)) as session:
        assert session.distributed is plain.optimized
    with caramel.Session(plain, Least()) as session:
        assert session.distributed is plain
    assert log == ["started"]


def test_a_loop_is_still_one_op():
    def hidden(x):
        return tf.while_loop(lambda n, y: n < 3, lambda n, y: (n + 1, y * 1.5), [tf.constant(0), x])[1]

    made = distributed(hidden=hidden)
    graph = made.optimized.emission.graph
    assert (
        {n.name for n in graph if "While" in n.op} == {n.name for n in made.emission.graph if "While" in n.op} != set()
    )
    verify_structure(graph, "test")


def test_a_session_that_is_not_to_optimise_does_not(plain):
    options = caramel.RunOptions(optimize_graph=False)
    with caramel.Session(plain, caramel.InProcess(options)) as session:
        assert session.distributed is plain


def test_a_cluster_of_the_users_own_runs_the_graph_as_ever(plain):
    class Own:
        """What looks like a cluster."""

        def start(self, *given):
            return caramel.InProcess().start(*given)

    with caramel.Session(plain, Own()) as session:
        assert session.distributed is plain


def test_unrolled_steps_are_copies_of_optimised_ones():
    made = distributed()
    batches = [(np.ones((6, 2), np.float32), np.ones(6, np.float32))] * 4
    with caramel.Session(made, caramel.InProcess()) as session:
        session.run(batches, steps_per_execution=4, progress=False)
        assert session._steps.unrolled.nodes < 0.95 * len(made.emission.graph.ancestors(made.signature.step))


_THREADS = """
import os
import tensorflow as tf
import caramel
v1 = tf.compat.v1
with caramel.capture() as context:
    x = v1.placeholder(tf.float32, [None], "x")
    w = v1.get_variable("w", [], initializer=tf.ones_initializer())
    v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean((w * x) ** 2))
distributed = caramel.ARModel(context, 2).distributed
before = len(os.listdir("/proc/self/task"))
assert distributed.optimized is not None
print(len(os.listdir("/proc/self/task")) - before)
"""


def test_no_threads_are_made_that_a_session_could_not_choose_any_more():
    """A process has one pool of threads for what is inside an op, as its first session wants it."""
    done = subprocess.run([sys.executable, "-c", _THREADS], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"


def test_an_assertion_in_a_loop_of_tensorflow_1_holds():
    """Its functions do not say that they have effects; TensorFlow would drop what only a result inside waits for."""
    v1 = tf.compat.v1
    with caramel.capture() as context:
        x = v1.placeholder(tf.float32, [None], "x")
        w = v1.get_variable("w", [], initializer=tf.ones_initializer())

        def body(number, y):
            with tf.control_dependencies([tf.debugging.assert_less(y, 100.0, "the data is too large")]):
                return number + 1, tf.identity(y) * 1.5

        y = tf.while_loop(lambda number, y: number < 3, body, [tf.constant(0), x])[1]
        v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(w * y))
    with caramel.ARModel(context, 2).session() as session:
        assert session.distributed.graph_def != caramel.ARModel(context, 2).graph_def
        session.step({"x": np.ones(4, np.float32)})
        with pytest.raises(caramel.StepError, match="the data is too large"):
            session.step({"x": np.full(4, 90.0, np.float32)})


def test_an_assertion_in_a_branch_of_tensorflow_1_holds():
    v1 = tf.compat.v1
    with caramel.capture() as context:
        x = v1.placeholder(tf.float32, [None], "x")
        w = v1.get_variable("w", [], initializer=tf.ones_initializer())
        with tf.control_dependencies([tf.debugging.assert_less(x, 100.0, "the data is too large")]):
            y = tf.identity(x)
        v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(w * y))
    with caramel.ARModel(context, 2).session() as session:
        session.step({"x": np.ones(4, np.float32)})
        with pytest.raises(caramel.StepError, match="the data is too large"):
            session.step({"x": np.full(4, 101.0, np.float32)})
