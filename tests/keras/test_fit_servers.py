"""`caramel.fit` with parameter servers: the history of all-reduces in rank order, and sessions that share servers."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from variants import in_soak

import caramel
from caramel.compiler.server_tasks import server_tasks
from caramel.errors import InputError
from caramel.runtime.clusters.base import workers_of


def made():
    keras.utils.set_random_seed(1)
    layers = [
        keras.Input([8]),
        keras.layers.Dense(16, "relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(3),
    ]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(48, 8)).astype(np.float32), rng.integers(0, 3, 48)


def histories(data, *calls, **options):
    """History of each of some calls of fit on one model, and its weights at the end."""
    model = made()
    common = {"workers": 2, "batch_size": 12, "verbose": 0, "deterministic": True, "shuffle": False, **options}
    found = [caramel.fit(model, *data, **common, **call).history for call in calls]
    return found, model.get_weights()


def assert_same(got, want):
    assert got[0] == want[0]
    for mine, theirs in zip(got[1], want[1]):
        np.testing.assert_array_equal(mine, theirs)


CALLS = {"epochs": 2, "validation_split": 0.25}, {"epochs": 1, "validation_split": 0.25}


def test_the_history_is_that_of_all_reduces(data):
    assert_same(histories(data, *CALLS, servers=2), histories(data, *CALLS))


def test_the_servers_are_said(data, capsys):
    caramel.fit(made(), *data, workers=2, batch_size=12, verbose=2, servers=1)
    assert "caramel: the parameter server has 19 variables" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("is_evaluated_first", [True, *in_soak(False)])
def test_sessions_with_and_without_servers_on_the_same_processes(data, namespaces, is_evaluated_first):
    model, alone = made(), made()
    where = {"workers": 2, "cluster": caramel.LocalProcesses(), "batch_size": 12, "verbose": 0}
    if is_evaluated_first:
        caramel.evaluate(model, *data, **where)
    fitted = caramel.fit(model, *data, **where, servers=1, deterministic=True, shuffle=False, validation_split=0.25)
    evaluated = caramel.evaluate(model, *data, **where)
    again = caramel.fit(model, *data, **where, servers=1, deterministic=True, shuffle=False, validation_split=0.25)
    options = {"workers": 2, "batch_size": 12, "verbose": 0, "deterministic": True, "shuffle": False}
    want = caramel.fit(alone, *data, **options, validation_split=0.25)
    assert fitted.history == want.history
    np.testing.assert_allclose(
        evaluated, caramel.evaluate(alone, *data, workers=2, batch_size=12, verbose=0), rtol=1e-6
    )
    assert again.history == caramel.fit(alone, *data, **options, validation_split=0.25).history


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.processes
def test_a_server_beside_a_worker_and_then_one_of_its_own(data, namespaces):
    """The processes of the first session are kept; the second one needs one more."""
    model, alone = made(), made()
    options = {"workers": 2, "batch_size": 12, "verbose": 0, "deterministic": True, "shuffle": False}
    served = {**options, "cluster": caramel.LocalProcesses(), "servers": 1}
    for further in ({"server_list": ["/job:worker/task:1"]}, {}):
        got = caramel.fit(model, *data, **served, **further)
        assert got.history == caramel.fit(alone, *data, **options).history


ADDRESSES = [f"127.0.0.1:{port}" for port in range(2222, 2226)]


@pytest.mark.parametrize(
    "servers, tasks, known, expected",
    [(0, ADDRESSES, 0, 4), (2, ADDRESSES, 0, 2), (2, ADDRESSES, 2, 2), (1, ADDRESSES, 2, 2), (3, ADDRESSES, 1, 1)],
)
def test_servers_of_a_cluster_are_no_workers(servers, tasks, known, expected):
    cluster = caramel.Servers(tasks, parameter_servers=known)
    assert workers_of(cluster, None, servers) == (expected, None)
    assert workers_of(cluster, 1, servers) == (1, None)


def test_servers_leave_a_worker():
    with pytest.raises(InputError, match="4 parameter servers of the 4 tasks of the cluster leave no worker"):
        workers_of(caramel.Servers(ADDRESSES), None, 4)


def test_how_many_tasks_options_ask_for(tmp_path):
    variables = [tf.Variable(tf.ones([3]), name=name) for name in "ab"]

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(x @ tf.stack(variables, 1))
        for variable, gradient in zip(variables, tape.gradient(loss, variables)):
            variable.assign_sub(gradient)
        return loss

    context = caramel.capture(step, [tf.TensorSpec([None, 3])])
    plan = caramel.PSModel(context, 2, 2, server_list=["/job:worker/task:1", "/job:worker/task:2"]).plan
    plan.save(tmp_path / "plan.json")
    caramel.ARModel(context, 2).plan.save(tmp_path / "other.json")
    assert server_tasks({}) is None and server_tasks({"plan": tmp_path / "other.json"}) is None
    assert server_tasks({"servers": 3}) == 3
    assert server_tasks({"servers": 1, "server_list": ["/job:worker/task:0"]}) == 0
    assert server_tasks({"plan": plan}) == server_tasks({"plan": tmp_path / "plan.json"}) == 1


FIT = """
import sys
import keras, numpy as np
import caramel

model = keras.Sequential([keras.Input([8]), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
x = np.ones([24, 8], np.float32)
caramel.fit(model, x, x[:, :1], batch_size=8, verbose=2, servers=2, cluster=caramel.Servers(sys.argv[1].split(",")))
print("evaluated", caramel.evaluate(model, x, x[:, :1], workers=2, verbose=0, cluster=caramel.Servers(sys.argv[1].split(","))))
"""


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.processes
def test_the_number_of_workers_follows_from_the_cluster(network):
    cluster = ",".join(ADDRESSES)
    for task in range(4):
        network.serve("--cluster", cluster, "--task", task)
    result = network.run("-c", FIT, cluster)
    assert result.returncode == 0, result.stderr
    assert "caramel: 2 parameter servers have" in result.stdout and "evaluated" in result.stdout
