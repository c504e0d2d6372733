"""Values of every kind where another kind is wanted: each is an error of the library, never one of Python's."""

import math
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.facts import Trace
from caramel.measure.netbench import Settings
from caramel.netmodel.file import load as load_network
from caramel.netmodel.file import save as save_network
from caramel.netmodel.line import Curve, Sample
from caramel.util.units import parse_size

WRONG = {
    "5": 5,
    "-1": -1,
    "1.5": 1.5,
    "nan": math.nan,
    "inf": math.inf,
    "1e30": 1e30,
    "100000": 100_000,
    "5000 digits": 10**5000,
    "None": None,
    "dict": {},
    "list": [],
    "list of None": [None],
    "nested": [[]],
    "text": "x",
    "no text": "",
    "bytes": b"x",
    "NUL": "a\0b",
    "surrogate": "\ud800",
    "object": object(),
    "array": np.zeros(2),
    "function": len,
}

OPTIONS = [
    "serialization",
    "batching",
    "scheduling",
    "analyzers",
    "device_list",
    "sharding",
    "uneven_batches",
    "statistics",
    "network",
    "algorithm",
    "depth",
    "deterministic",
    "wire",
    "postponed",
    "trace",
    "policy",
    "plan",
]


def only_errors_of_the_library(call):
    """Run it; it may also be right."""
    try:
        call()
    except caramel.CaramelError as error:
        assert 10 < len(str(error)) < 700, str(error)


@pytest.fixture(scope="module")
def context():
    with caramel.capture(loss_reduction="mean") as captured:
        x = tf.compat.v1.placeholder(tf.float32, [None, 3], "x")
        w = tf.compat.v1.get_variable("w", [3], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(tf.linalg.matvec(x, w) ** 2)
        tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    return captured


@pytest.fixture(scope="module")
def model(context):
    return caramel.ARModel(context, 2)


@pytest.fixture(scope="module")
def session(model):
    with model.session() as started:
        yield started


@pytest.mark.parametrize("value", WRONG.values(), ids=WRONG)
def test_options_of_a_model(context, value):
    for option in OPTIONS:
        only_errors_of_the_library(lambda option=option: caramel.ARModel(context, 2, **{option: value}))


@pytest.mark.parametrize("value", WRONG.values(), ids=WRONG)
def test_uses_of_a_session(model, session, value):
    for method in (session.step, session.run, session.evaluate, session.assign, session.restore, caramel.Plan.load):
        only_errors_of_the_library(lambda method=method: method(value))
    batch = np.ones((4, 3), np.float32)
    only_errors_of_the_library(lambda: session.step(x=value))
    only_errors_of_the_library(lambda: session.run([(batch,)], steps=value))
    only_errors_of_the_library(lambda: session.assign({"w": value}))
    only_errors_of_the_library(lambda: model.session(step_timeout_s=value).close())
    if value is not None:  # the default
        with pytest.raises(caramel.InputError, match="a session runs on a cluster"):
            model.session(value)
    assert np.array_equal(session.evaluate(fetches="w/Read/ReadVariableOp:0"), session.values()["w"])  # it goes on


@pytest.mark.parametrize("value", WRONG.values(), ids=WRONG)
def test_networks_and_clusters(value):
    network = caramel.NetworkModel.from_link_rate(1e9)
    for call in (
        lambda: network.predict("ring", 1, value, 100),
        lambda: network.predict("ring", value, 2, 100),
        lambda: network.predict(value, 1, 2, 100),
        lambda: network.predict("ring", 1, 2, value),
        lambda: network.choose(value, 2),
        lambda: network.choose(100, value),
        lambda: network.choose(100, 2, depth=value),
        lambda: network.threshold_bytes(value),
        lambda: caramel.NetworkModel.from_link_rate(value),
        lambda: caramel.NetworkModel.from_costs(value, 1e-9),
        lambda: caramel.LocalProcesses(base_port=value),
        lambda: caramel.LocalProcesses(start_timeout_s=value),
        lambda: caramel.Servers(value),
        lambda: caramel.Servers([value]),
        lambda: caramel.load_trace(value),
        lambda: load_network(value),
        lambda: caramel.Plan.from_json(value),
    ):
        only_errors_of_the_library(call)


# -- what is said ----------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [0, -1.0, math.nan, math.inf, 1e30, 1e-4, 2_000_001, "600", None, True])
def test_timeouts(model, refused, timeout):
    """0 milliseconds would be no timeout at all, and the system counts milliseconds in 32 bits."""
    with refused(caramel.InputError, "step_timeout_s", "positive", "from 0.001 to 2,000,000", repr(timeout)):
        model.session(step_timeout_s=timeout)
    with refused(caramel.InputError, "start_timeout_s", repr(timeout)):
        caramel.LocalProcesses(start_timeout_s=timeout)


def test_the_longest_and_the_shortest_timeout(model):
    model.session(step_timeout_s=2_000_000).close()
    caramel.LocalProcesses(start_timeout_s=0.001)


def test_too_many_workers_and_chunks(context, refused):
    with refused(caramel.InputError, "number_of_workers", "at most 256", "100000", "square"):
        caramel.ARModel(context, 100_000)
    with refused(caramel.InputError, "depth", "at most 256", "100000", "every worker"):
        caramel.ARModel(context, 2, depth=100_000)
    with tf.Graph().as_default():
        tensors = [tf.constant([1.0])] * 257
        with refused(caramel.InputError, "number of tensors", "at most 256"):
            caramel.all_reduce(tensors, devices=["/device:CPU:0"] * 257)


def test_predictions_go_further_than_graphs(refused):
    network = caramel.NetworkModel.from_costs(1e-4, 1e-9)
    # A ring of N takes 2 (N - 1) messages, one after the other.
    assert network.predict("ring", 1, 10_000, 0).time_s == pytest.approx(2 * 9_999 * 1e-4)
    for workers in (10_001, 100_000):
        with refused(caramel.InputError, "1 worker (at most 10,000)", str(workers)):
            network.predict("ring", 1, workers, 0)
        with refused(caramel.InputError, "1 worker (at most 10,000)", str(workers)):
            network.choose(4, workers)


@pytest.mark.parametrize("size, said", [("9999TiB", "at most 2,147,483,647"), ("0", "at least 1")])
def test_sizes_that_no_message_carries(refused, size, said):
    with refused(caramel.InputError, "each size", said):
        Settings(sizes=(64, parse_size(size)))


def test_terabytes():
    assert parse_size("3TiB") == 3 * 2**40 and parse_size("2 TB") == 2 * 10**12


@pytest.mark.parametrize(
    "option, value, words",
    [
        ("plan", 5, ["caramel.Plan", "path", "5"]),
        ("plan", {}, ["caramel.Plan", "path", "{}"]),
        ("network", {}, ["caramel.NetworkModel", "path", "{}"]),
        ("analyzers", 5, ["analyzers must be a list", "5"]),
        ("policy", ["paper"], ["policy must be 'optimal' or 'paper' or 'bytescheduler' or 'p3'", "['paper']"]),
        ("batching", "yes", ["batching must be True or False", "'yes'"]),
    ],
)
def test_options_of_another_kind(context, refused, option, value, words):
    with refused(caramel.InputError, *words):
        caramel.ARModel(context, 2, **{option: value})


def test_assigning_nothing(session, refused):
    for values in (None, 5, [("w", 1.0)]):
        with refused(caramel.InputError, "assign takes a dict", repr(values)):
            session.assign(values)


def test_a_nul_in_a_path(model, session, refused):
    calls = {
        caramel.InputError: [session.save, session.restore, caramel.capture, load_network],
        caramel.PlanError: [caramel.Plan.load, model.plan.save],
        caramel.TraceError: [caramel.load_trace],
        caramel.ExportError: [model.export],
    }
    for kind, methods in calls.items():
        for method in methods:
            with refused(kind, r"'a\x00b'", "NUL"):
                method("a\0b")


def test_errors_about_a_given_file_name_it(context, model, refused, tmp_path):
    path = tmp_path / "plan.json"
    caramel.ARModel(context, 3).plan.save(path)
    with refused(caramel.PlanError, str(path), "3 workers, not for 2"):
        caramel.ARModel(context, 2, plan=path)
    network = tmp_path / "network.json"
    save_network(
        caramel.NetworkModel("here", (Curve.fitted(4, "ring", 1, [Sample(64, 1e-3), Sample(4096, 2e-3)]),)), network
    )
    with refused(caramel.InputError, str(network), "measured with 4 workers, not with 2"):
        caramel.ARModel(context, 2, network=network)
    trace = tmp_path / "trace.json"
    made = Trace("f" * 64, {"MatMul": 1e-3}, {}, 1e-3, 1e-3, 1, 1, None, "elsewhere")
    caramel.save_trace(made, trace)
    with refused(caramel.TraceError, str(trace), "another program"):
        caramel.ARModel(context, 2, trace=trace)
    digest = context.model.digest
    for times, said in (
        ({"op_s": {"a": -1.0}}, "op 'a': '-1.0' should be"),
        ({"op_s": {"a": math.nan}}, "op 'a': 'nan' should be"),
        ({"op_s": {"a": 2.0**31}}, "at most 1e+09"),
        ({"step_s": None}, "step_s"),
        ({"op_s": {}}, "has no time of any of its ops"),
    ):
        with refused(caramel.TraceError, "elsewhere", said, "trace anew"):
            caramel.ARModel(context, 2, trace=replace(made, model_digest=digest, **times))


def test_a_class_in_place_of_a_cluster(model, refused):
    with refused(caramel.InputError, "caramel.InProcess()", "the class InProcess: it has no parentheses"):
        model.session(caramel.InProcess)
