"""Live tuning: the planner's plan first, the fastest kept, failures noted, noise no gain."""

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.errors import InputError, StepError
from caramel.measure.in_turn import is_gain
from caramel.tuning import live
from caramel.tuning.pull_limits import PullLimits


def program():
    rng = np.random.default_rng(0)
    shapes = {"a": [200, 200], "b": [200, 200], "c": [200, 50]}
    weights = {n: tf.Variable(rng.normal(size=s).astype(np.float32) / 20, name=n) for n, s in shapes.items()}

    def step(x):
        with tf.GradientTape() as tape:
            hidden = tf.tanh(tf.tanh(x @ weights["a"]) @ weights["b"]) @ weights["c"]
            loss = tf.reduce_mean(hidden**2)
        for weight, gradient in zip(weights.values(), tape.gradient(loss, list(weights.values()))):
            weight.assign_sub(0.1 * gradient)
        return loss

    return caramel.capture(step, [tf.TensorSpec([None, 200])])


BATCH = [np.ones([16, 200], np.float32)]
NETWORK = caramel.NetworkModel.from_costs(1e-4, 1e-8)


@pytest.fixture(scope="module")
def context():
    return program()


@pytest.fixture(scope="module")
def trace(context):
    return caramel.trace(context, BATCH[0], workers=2, runs=2, steps=2, orders=False)


def tuned(context, measured, **options):
    defaults = {"trials": 4, "steps": 2, "cluster": caramel.InProcess(), "batches": [BATCH]}
    return caramel.tune(context, 2, **{"trace": measured, "network": NETWORK, **defaults, **options})


def test_real_trials(context, trace):
    said = []
    found = tuned(context, trace, on_trial=said.append)
    assert found.trials == tuple(said) and len(said) <= 5
    assert said[0].limits is None and all(trial.limits is not None for trial in said[1:])
    assert all(trial.step_s > 0 for trial in said)
    assert (found.limits is None) == (not is_gain(found.ratios) if found.ratios else True)
    assert caramel.ARModel(context, 2, plan=found.plan).plan.transfers == found.plan.transfers
    assert "the planner's plan" in found.table() and found.result() in str(found)


def test_real_trials_with_servers(context, trace):
    found = tuned(context, trace, servers=2, trials=5)
    assert found.trials[0].limits is None and all(t.step_s > 0 for t in found.trials), found.table()
    assert all(isinstance(t.limits, PullLimits) for t in found.trials[1:]) and len(found.trials) > 1
    assert caramel.ARModel(context, 2, plan=found.plan).plan.servers == found.plan.servers


@pytest.fixture
def timed(monkeypatch):
    """Function that sets the times of plans, and of rounds in turn; it returns the plans that were timed."""

    def set_times(time_of, ratios=(0.8,) * 5):
        seen = []

        def step_s(model, cluster, batches, steps):
            seen.append(model.plan)
            return time_of(len(seen) - 1, model.plan)

        monkeypatch.setattr(live, "_step_s", step_s)
        monkeypatch.setattr(live, "_in_turn", lambda *arguments: tuple(ratios))
        return seen

    return set_times


def test_each_order_of_pulls_is_tried_once_and_the_fastest_kept(context, trace, timed):
    """Of these layers all rules have one order, so there are five windows, and no order."""
    seen = timed(lambda number, plan: 1.0 if plan.servers.pulls else 0.5)
    found = tuned(context, trace, servers=1, trials=20)
    assert found.plan.servers.pulls == () and found.limits == PullLimits("none", None)
    tried = [(plan.servers.pulls, plan.servers.in_flight if plan.servers.pulls else None) for plan in seen]
    assert len(set(tried)) == len(tried) == 6
    assert any("tuned by 5 trials" in note for note in found.plan.notes)


def test_the_fastest_trial_is_kept(context, trace, timed):
    seen = timed(lambda number, plan: 1.0 - 0.1 * number)
    found = tuned(context, trace)
    assert found.plan.transfers == seen[-1].transfers and found.limits == found.trials[-1].limits
    assert found.ratios == (0.8,) * 5 and "0.800 of its time in 5 rounds" in found.result()
    assert any(note.startswith("tuned by 4 trials: 0.800 of the time") for note in found.plan.notes)
    assert len({(plan.transfers, plan.in_flight) for plan in seen}) == len(seen)  # none is tried twice


@pytest.mark.parametrize("ratios", [(1.02, 0.99, 1.0, 1.01, 0.98), (0.995,) * 5, (0.7, 0.7, 0.7, 1.1, 1.1)])
def test_noise_is_no_gain(context, trace, timed, ratios):
    seen = timed(lambda number, plan: 1.0 - 0.01 * number, ratios)
    found = tuned(context, trace)
    assert found.limits is None and found.plan.transfers == seen[0].transfers
    assert "is no gain beyond noise" in found.result() and not is_gain(ratios)


def test_nothing_is_faster(context, trace, timed):
    timed(lambda number, plan: 1.0 + number)
    found = tuned(context, trace)
    assert found.limits is None and found.ratios == () and "no trial was faster" in found.result()


def test_trials_that_fail(context, trace, timed):
    def time_of(number, plan):
        if number in (1, 3):
            raise StepError("a worker is gone")
        return 1.0 - 0.1 * number

    timed(time_of)
    found = tuned(context, trace)
    assert [trial.step_s is None for trial in found.trials] == [False, True, False, True, False]
    assert found.trials[1].error == "a worker is gone" and "failed" in found.table()
    assert found.limits == found.trials[4].limits


def test_the_planner_s_plan_has_to_run(context, trace, timed):
    def time_of(number, plan):
        raise StepError("no")

    timed(time_of)
    with pytest.raises(StepError, match="no"):
        tuned(context, trace)


def test_options_hold_in_all_trials(context, trace, timed):
    seen = timed(lambda number, plan: 1.0 - 0.1 * number)
    tuned(context, trace, deterministic=True, depth=2)
    assert all(plan.deterministic for plan in seen)
    assert {transfer.depth for plan in seen for transfer in plan.transfers} == {2}


@pytest.mark.parametrize("given, is_divided", [({}, True), ({"shard_embeddings": False}, False)])
def test_trials_divide_the_tables_that_the_planner_divides(timed, given, is_divided):
    """So that what is compared are the limits alone."""
    table = tf.Variable(np.ones([5000, 64], np.float32), name="table")
    weight = tf.Variable(np.ones([64, 1], np.float32), name="weight")

    def step(rows):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.reduce_sum(tf.nn.embedding_lookup(table, rows), 1) @ weight) ** 2)
        for variable, gradient in zip((table, weight), tape.gradient(loss, [table, weight])):
            if isinstance(gradient, tf.IndexedSlices):
                variable.scatter_sub(tf.IndexedSlices(0.1 * gradient.values, gradient.indices))
            else:
                variable.assign_sub(0.1 * gradient)
        return loss

    context = caramel.capture(step, [tf.TensorSpec([None, 20], tf.int32)])
    rows = np.arange(2000, dtype=np.int32).reshape(100, 20)
    measured = caramel.trace(context, rows, workers=8, runs=2, steps=2, orders=False)
    seen = timed(lambda number, plan: 1.0 - 0.1 * number)
    network = caramel.NetworkModel.from_costs(1e-4, 1e-8)
    caramel.tune(context, 8, trace=measured, network=network, cluster=caramel.InProcess(), trials=2, **given)
    divided = ["owners" in {transfer.algorithm for transfer in plan.transfers} for plan in seen]
    assert len(seen) > 1 and divided == [is_divided] * len(seen)


def test_all_trials_fail(context, trace, timed):
    def time_of(number, plan):
        if number:
            raise StepError("a worker is gone")
        return 1.0

    timed(time_of)
    assert tuned(context, trace).result().endswith("all trials failed, the last one with: a worker is gone")


_NOT_OPTIONS = [
    ({"trials": 0}, "trials"),
    ({"steps": 0}, "steps"),
    ({"seed": -1}, "seed must be a whole number of at least 0"),
    ({"seed": 2**32}, "seed must be"),
    ({"policy": "paper", "batching": False}, "leave out batching=, policy=: trials decide"),
    ({"plan": "plan.json"}, "leave out plan="),
    ({"sync_every": 5}, "leave out sync_every="),
    ({"servers": 1, "ordering": "tic", "pulls_in_flight": 3}, "leave out ordering=, pulls_in_flight="),
    ({"trace": None}, "give trace= and network="),
    ({"network": None}, "give trace= and network="),
    ({"batches": 5}, "batches is a list of batches, or a function that gives so many, got 5"),
    ({"batches": []}, "batches is a list of batches"),
]


@pytest.mark.parametrize("options, message", _NOT_OPTIONS)
def test_options_that_do_not_fit(context, trace, options, message):
    with pytest.raises(InputError, match=message):
        tuned(context, trace, **options)
    with pytest.raises(InputError, match="there is nothing to tune"):
        caramel.tune(context, 1, trace=trace, network=NETWORK, cluster=caramel.InProcess())
