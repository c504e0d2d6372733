"""Updates of which each worker makes a part: as on one device, and with the bits of whole updates."""

import itertools
import math
import re
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from exact_common import SERIAL, in_process
from exact_matrix import FEATURE, OPTIMIZERS, SOME_OPTIMIZERS, batches, program
from exact_plans import random_plan
from exact_steps import alone, fresh, trained, values_of
from variants import in_soak, mostly_in_soak

import caramel
from caramel.analyzers.step.element_updates import element_updates
from caramel.errors import PlanError
from caramel.facts import Trace
from caramel.graph.shapes import sizes
from caramel.modifiers.update_shards import divisions
from caramel.runtime.host.run_options import RunOptions

WHOLE = {"adafactor", "lamb"}
"""Optimizers whose updates need more than one element at a time."""

APPROXIMATE = {"ftrl"}
"""Those with functions whose last bits depend on where in a tensor an element is."""

NOT_IN_DETERMINISTIC = {
    *WHOLE,
    *APPROXIMATE,
    "adamw",
    "nadam",
    "adamax",
    "rmsprop",
    "rmsprop_centered",
    "adagrad",
    "adadelta",
}
"""Those whose bits may differ once TensorFlow has optimised the graph."""

OPTIMIZED = RunOptions(intra_op_threads=1, inter_op_threads=1)


def check(optimizer, feature, workers, seed, together=(), options=SERIAL, exact=True, sharded=1.0):
    """A training with sharded updates, against one with whole updates under the same plan, and one device."""
    make, data = program(optimizer, feature), batches(FEATURE[feature], steps=5)

    def plan_of(context):
        return {"plan": random_plan(context, workers, seed, sharded=sharded)}

    def whole(context):
        return {"plan": replace(plan_of(context)["plan"], sharded=())}

    losses, values, armodel = trained(make, data, workers, plan_of, options)
    _, plain, _ = trained(make, data, workers, whole, options)
    for name, value in plain.items():
        if exact and optimizer not in APPROXIMATE:
            np.testing.assert_array_equal(values[name], value, err_msg=name)
        else:
            np.testing.assert_allclose(values[name], value, rtol=1e-9, atol=1e-12, err_msg=name)
    want_losses, want = alone(make, data)
    np.testing.assert_allclose(losses, want_losses, rtol=1e-7)
    for name, value in want.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-6, atol=1e-8, err_msg=name)
    is_native = any(transfer.algorithm == "native" for transfer in armodel.plan.transfers)
    for count in () if is_native else together:
        _, got, _ = trained(make, data, workers, plan_of, options, count)
        for name, value in values.items():
            np.testing.assert_array_equal(got[name], value, err_msg=name)
    return armodel


@pytest.mark.parametrize("optimizer", mostly_in_soak(sorted(OPTIMIZERS), *SOME_OPTIMIZERS))
def test_optimizer(optimizer):
    armodel = check(optimizer, "schedule", 3, seed=1)
    model, plan = armodel.model, armodel.plan
    if optimizer in WHOLE:
        assert not plan.sharded
        return
    assert len(plan.sharded) == len(model.gradients)
    slots = [slot for update in plan.sharded for slot in update.slots]
    assert len(slots) == len(set(slots)) and bool(slots) == (optimizer != "sgd")
    assert_memory(armodel)


def assert_memory(armodel):
    """Each worker has variables for its own part of the slots only, and together they have all of it."""
    plan = armodel.plan
    nodes = {node.name: node for node in armodel.graph_def.node}
    for name, division in divisions(armodel.model, plan).items():
        shards = division.shards
        variable = armodel.model.variable_by_name[name]
        found = [sizes(nodes[f"worker_{r}/{variable.node}"].attr["shape"].shape) for r in range(plan.workers)]
        assert found == [(sum(s.size for s in shards if s.rank == r),) for r in range(plan.workers)]
        assert sum(math.prod(shape) for shape in found) == variable.size
        position = 0
        for shard in shards:
            assert shard.start == position
            position += shard.size
        assert position == variable.size


@pytest.mark.parametrize("feature", mostly_in_soak(sorted(FEATURE), "everything", "ema_overwrite", "shared"))
def test_feature(feature):
    check("adam", feature, 3, seed=2)


@pytest.mark.parametrize(
    "optimizer, workers, seed",
    [("momentum", 2, 3), ("adam", 5, 4), *in_soak(*itertools.product(sorted(OPTIMIZERS), [2, 4, 8], [5, 6]))],
)
def test_random_plans(optimizer, workers, seed):
    check(optimizer, "uneven", workers, seed, together=(2,))


@pytest.mark.parametrize(
    "optimizer, seed",
    [("adam", 1), ("momentum", 4), *in_soak(*itertools.product(sorted(set(OPTIMIZERS) - WHOLE), range(6, 10)))],
)
def test_beside_updates_that_wait_for_the_next_step(optimizer, seed):
    armodel = check(optimizer, "schedule", 3, seed, together=(2, 3), sharded=0.5)
    assert armodel.plan.sharded
    if seed in (1, 4):
        assert armodel.plan.postponed


@pytest.mark.parametrize(
    "optimizer, feature, seed",
    [
        ("adam", "ema", 1),
        ("nesterov", "uneven", 2),
        ("rmsprop", "clipvalue", 3),
        ("adamw", "weight_decay", 1),
        *in_soak(*itertools.product(sorted(set(OPTIMIZERS) - WHOLE), ["ema_overwrite", "shared", "sum"], range(4, 8))),
    ],
)
def test_that_wait_for_the_next_step(optimizer, feature, seed):
    """But where the parameter is also written without its gradient: a decay of weights comes first, in its own step."""
    armodel = check(optimizer, feature, 3, seed, together=(2,))
    waiting = {update.gradient for update in armodel.plan.sharded} & set(armodel.plan.postponed)
    assert bool(waiting) == (feature != "weight_decay") or seed > 3


@pytest.mark.parametrize("optimizer", mostly_in_soak(sorted(OPTIMIZERS), "adam", "adamw", "rmsprop"))
def test_on_a_graph_that_is_optimised(optimizer):
    """TensorFlow's optimizers may group operands otherwise, if the plan is not to be deterministic."""
    check(optimizer, "weight_decay", 3, seed=7, options=OPTIMIZED, exact=False)


@pytest.mark.parametrize("optimizer", mostly_in_soak(sorted(OPTIMIZERS), "adam", "adamw", "rmsprop", "adadelta"))
def test_deterministic_plans_keep_their_bits(optimizer):
    """On optimised graphs, too: updates of which that is not certain are made as a whole."""
    make, data = program(optimizer, "plain"), batches(FEATURE["plain"], steps=5)
    found = {}
    for shard in (False, True):
        made = fresh(make)
        context = caramel.capture(made.step, made.specs, **made.options)
        armodel = caramel.ARModel(context, 3, deterministic=True, shard_updates=shard)
        with armodel.session(in_process(OPTIMIZED)) as session:
            session.run(data, progress=False)
            session.write_back()
        found[shard] = values_of(made)
    for name, value in found[False].items():
        np.testing.assert_array_equal(found[True][name], value, err_msg=name)
    assert bool(armodel.plan.sharded) == (optimizer not in NOT_IN_DETERMINISTIC)
    if optimizer in NOT_IN_DETERMINISTIC - WHOLE:
        assert any("the plan is deterministic, and" in note for note in armodel.plan.notes)


# -- programs of one's own -----------------------------------------------------------------------


def two_variables():
    rng = np.random.default_rng(2)
    return [tf.Variable(rng.normal(size=shape), name=name) for name, shape in (("a", [4, 3]), ("b", [3]))]


def loss_of(x, a, b):
    return tf.reduce_mean((x @ a + b - 1.0) ** 2)


def gradients_of(x, a, b):
    with tf.GradientTape() as tape:
        loss = loss_of(x, a, b)
    return loss, tape.gradient(loss, [a, b])


def nothing_given_back(a, b):
    def step(x):
        _, (da, db) = gradients_of(x, a, b)
        a.assign_sub(0.1 * da)
        b.assign_sub(0.1 * db)

    return step


def one_read_for_all(a, b):
    def step(x):
        now = tf.convert_to_tensor(b)
        with tf.GradientTape() as tape:
            tape.watch(b)
            loss = loss_of(x, a, tf.convert_to_tensor(b))
        da, db = tape.gradient(loss, [a, b])
        a.assign_sub(0.1 * da)
        b.assign(now - 0.1 * db)
        return loss + 0.0 * tf.reduce_sum(now)

    return step


def one_after_the_other(a, b):
    def step(x):
        loss, (da, db) = gradients_of(x, a, b)
        with tf.control_dependencies([a.assign_sub(0.1 * da)]):
            b.assign_sub(0.1 * db)
        return loss

    return step


def by_another_gradient(a, b):
    def step(x):
        loss, (da, db) = gradients_of(x, a, b)
        a.assign_sub(0.1 * da)
        b.assign_sub(0.1 * tf.norm(da) * db)
        return loss

    return step


def read_after(a, b):
    def step(x):
        loss, (da, db) = gradients_of(x, a, b)
        a.assign_sub(0.1 * da)
        b.assign_sub(0.1 * db)
        return {"loss": loss, "norm": tf.norm(a), "sum": tf.reduce_sum(b)}

    return step


OWN = {
    nothing_given_back: {"a", "b"},
    one_read_for_all: {"a", "b"},
    one_after_the_other: {"a"},
    by_another_gradient: set(),
    read_after: {"a", "b"},
}
"""Steps, and which of their updates can be sharded."""


@pytest.mark.parametrize("postponed", [False, True])
@pytest.mark.parametrize("algorithm", ["shuffle", "ring"])
@pytest.mark.parametrize("make", OWN)
def test_steps_of_one_s_own(make, algorithm, postponed):
    data = [np.random.default_rng(seed).normal(size=(8, 4)) for seed in range(4)]
    alone = two_variables()
    step, results = make(*alone), []
    for x in data:
        results.append(step(tf.constant(x)))
    variables = two_variables()
    options = {"loss_reduction": "mean", "loss": "loss" if make is read_after else None}
    context = caramel.capture(make(*variables), [tf.TensorSpec([None, 4], tf.float64)], **options)
    more = {}
    if postponed:
        if make not in (nothing_given_back, one_read_for_all, one_after_the_other):
            return
        more = {"postponed": ["b" if make is one_after_the_other else "a"]}
    armodel = caramel.ARModel(context, 4, algorithm=algorithm, shard_updates=True, **more)
    found = {update.gradient for update in armodel.plan.sharded}
    assert found == OWN[make], armodel.plan.notes
    assert set(armodel.plan.postponed) == set(more.get("postponed", ()))
    with armodel.session(in_process()) as session:
        given = [session.step(x) for x in data]
        values = session.values()
    for variable in alone:
        np.testing.assert_allclose(values[variable.name[:-2]], variable.numpy(), rtol=1e-9, err_msg=variable.name)
    if make is read_after:
        for want, got in zip(results, given):
            np.testing.assert_allclose(got.outputs["norm"], want["norm"], rtol=1e-9)
            np.testing.assert_allclose(got.outputs["sum"], want["sum"], rtol=1e-9)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_training_op_that_is_the_update_itself(ordered):
    v1 = tf.compat.v1
    data = [np.random.default_rng(seed).normal(size=(8, 4)) for seed in range(4)]

    def build():
        x = v1.placeholder(tf.float64, [None, 4], "x")
        a, b = (
            v1.get_variable(n, initializer=np.full(s, 0.3), use_resource=True) for n, s in (("a", [4, 3]), ("b", [3]))
        )
        loss = loss_of(x, a, b)
        da, db = tf.gradients(loss, [a, b])
        first = a.assign_sub(0.1 * da, read_value=False)
        with tf.control_dependencies([first] if ordered else []):
            train = b.assign_sub(0.1 * db, read_value=False)
        return x, loss, train if ordered else tf.group(first, train), [a, b]

    with tf.Graph().as_default():
        x, _, train, variables = build()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for batch in data:
                session.run(train, {x: batch})
            want = session.run({v.op.name: v for v in variables})
    with tf.Graph().as_default():
        with caramel.capture() as context:
            _, context.loss, context.train_op, _ = build()
        armodel = caramel.ARModel(context, 4, algorithm="shuffle", shard_updates=True)
        assert armodel.plan.sharded
        with armodel.session(in_process()) as session:
            for batch in data:
                session.step({"x:0": batch})
            values = session.values()
    for name, value in want.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-9, err_msg=name)


@pytest.mark.parametrize("algorithm", [None, "star", "chain", "ring"])
def test_each_worker_has_as_much(algorithm):
    """Where all sums are completed on one worker, nothing is sharded; if nobody asks for that, it is not chosen."""
    _, armodel = sessions(4, algorithm=algorithm, is_checked=False)
    shards = {name: division.shards for name, division in divisions(armodel.model, armodel.plan).items()}
    if algorithm in ("star", "chain"):
        assert not shards and f"the {algorithm} all-reduce, which was asked for" in " ".join(armodel.plan.notes)
        return
    of_each = [sum(s.size for each in shards.values() for s in each if s.rank == rank) for rank in range(4)]
    assert max(of_each) - min(of_each) <= 2 * len(shards) and min(of_each) > 0


def small(optimizer=None):
    """A compiled Keras model."""
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(7, "tanh", name="first"), keras.layers.Dense(1, name="second")]
    model = keras.Sequential([keras.Input([5]), *layers])
    model.compile(optimizer or keras.optimizers.Adam(0.01), "mse")
    return model


def data(examples=24):
    x = np.random.default_rng(1).normal(size=(examples, 5)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def test_fit_with_sharded_updates_is_fit():
    x, y = data()
    made, plain = small(), small()
    history = caramel.fit(made, x, y, batch_size=8, epochs=3, shuffle=False, verbose=0, workers=4, shard_updates=True)
    want = plain.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0)
    assert len(history.plan.sharded) == 4
    np.testing.assert_allclose(history.history["loss"], want.history["loss"], rtol=1e-5)
    for got, expected in zip(made.optimizer.variables, plain.optimizer.variables):
        np.testing.assert_allclose(got.numpy(), expected.numpy(), rtol=1e-4, atol=1e-7, err_msg=got.path)


def sessions(workers, is_checked=True, **options):
    """A model's variables, and a session with sharded updates of its step."""
    model = small()
    specs = [tf.TensorSpec([None, 5]), tf.TensorSpec([None, 1])]
    context = caramel.capture(tf.function(lambda x, y: model.train_step((x, y))), specs)
    armodel = caramel.ARModel(context, workers, shard_updates=True, **options)
    assert len(armodel.plan.sharded) == 4 or not is_checked
    return model, armodel


def test_state_goes_to_another_number_of_workers_and_back(tmp_path):
    """Through checkpoints with the names and shapes of one device: 2 workers, 4, one, and 3 with `assign`."""
    x, y = data()
    straight = small()
    straight.build([None, 5])
    for number, workers in enumerate((2, 4, 1, 3)):
        _, armodel = sessions(workers) if workers > 1 else (None, plain_session())
        with armodel.session() as session:
            if number:
                session.restore(tmp_path / f"after_{number - 1}")
            session.step(x, y)
            values = session.values()
            session.save(tmp_path / f"after_{number}")
        assert {name: value.shape for name, value in values.items()} == {
            v.name: v.shape for v in armodel.model.variables if v.saved
        }
    wanted = small()
    for _ in range(4):
        wanted.train_step((tf.constant(x), tf.constant(y)))
    arrays = [v.numpy() for v in (*wanted.trainable_variables, *wanted.optimizer.variables)]
    for array in arrays:
        assert any(array.shape == v.shape and np.allclose(array, v, rtol=1e-4, atol=1e-6) for v in values.values())
    _, armodel = sessions(3)
    with armodel.session() as session:
        session.assign(values)
        for name, value in session.values().items():
            np.testing.assert_array_equal(value, values[name], err_msg=name)


def plain_session():
    model = small()
    specs = [tf.TensorSpec([None, 5]), tf.TensorSpec([None, 1])]
    return caramel.ARModel(caramel.capture(tf.function(lambda x, y: model.train_step((x, y))), specs), 1)


def test_evaluations_see_whole_slots():
    x, y = data()
    model = small()
    model.optimizer.build(model.trainable_variables)
    (moments,) = (v for v in model.optimizer.variables if v.path.endswith("first_kernel_momentum"))
    specs = [tf.TensorSpec([None, 5]), tf.TensorSpec([None, 1])]
    step = tf.function(lambda x, y: model.train_step((x, y)))
    context = caramel.capture(step, specs, evaluation=lambda: tf.convert_to_tensor(moments) + 0.0, evaluation_inputs=[])
    with caramel.ARModel(context, 3, shard_updates=True).session() as session:
        session.step(x, y)
        values = session.values()
        seen = session.evaluate()
    (name,) = (n for n in values if n.endswith("first_kernel_momentum"))
    np.testing.assert_array_equal(seen, values[name])
    assert seen.shape == (5, 7)


def test_a_plan_says_what_is_sharded_and_can_be_edited(tmp_path):
    _, armodel = sessions(3)
    plan = armodel.plan
    assert "4 sharded updates: " in plan.table() and "8 slots" in plan.table()
    plan.save(tmp_path / "plan.json")
    assert caramel.Plan.load(tmp_path / "plan.json").sharded == plan.sharded
    context = armodel.context
    assert caramel.ARModel(context, 3, plan=tmp_path / "plan.json").plan.sharded == plan.sharded
    assert "sharded" not in plain_session().plan.to_json()
    fewer = replace(plan, sharded=plan.sharded[:1], proof=())
    assert len(caramel.ARModel(context, 3, plan=fewer).plan.sharded) == 1
    first = plan.sharded[0]
    for bad, message in (
        (replace(first, slots=first.slots[:1]), "with other slots than it has"),
        (replace(first, gradient="nothing"), "'nothing': there is no such gradient"),
    ):
        with pytest.raises(PlanError, match=message):
            caramel.ARModel(context, 3, plan=replace(plan, sharded=(bad,), proof=()))
    with pytest.raises(PlanError, match="or twice"):
        caramel.ARModel(context, 3, plan=replace(plan, sharded=(first, first), proof=()))
    for change, message in (
        ({"algorithm": "native", "depth": 1}, "own all-reduce"),
        ({"wire": "bfloat16"}, "round the"),
    ):
        moved = replace(plan, transfers=tuple(replace(t, **change) for t in plan.transfers), proof=())
        with pytest.raises(PlanError, match=message):
            caramel.ARModel(context, 3, plan=moved)


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"clipnorm": 0.1}, "does not work on one element at a time|of shape"),
        ({"global_clipnorm": 0.1}, "does not work on one element at a time"),
        ({"gradient_accumulation_steps": 2}, "in a branch|one element|another type|of shape"),
    ],
)
def test_what_cannot_be_sharded_is_said(options, reason):
    model = small(keras.optimizers.Adam(0.01, **options))
    specs = [tf.TensorSpec([None, 5]), tf.TensorSpec([None, 1])]
    context = caramel.capture(tf.function(lambda x, y: model.train_step((x, y))), specs)
    plan = caramel.ARModel(context, 3, shard_updates=True).plan
    (note,) = (note for note in plan.notes if "updates are not sharded" in note)
    assert not plan.sharded and note.startswith("4 of 4") and re.search(reason, note), note


@pytest.mark.slow
@pytest.mark.processes
def test_over_processes():
    x, y = data()
    want = small()
    want.fit(x, y, batch_size=24, epochs=3, shuffle=False, verbose=0)
    _, armodel = sessions(3, algorithm="ring", depth=2)
    with armodel.session(caramel.LocalProcesses()) as session:
        session.run([(x, y)] * 3, steps_per_execution=3, progress=False)
        values = session.values()
    for variable in want.trainable_variables:
        assert any(
            variable.shape == value.shape and np.allclose(variable.numpy(), value, rtol=1e-4, atol=1e-6)
            for value in values.values()
        )


def heavy_updates(model, updates_s):
    """A trace in which updates take so long, and everything else a millisecond together."""
    updating = {name for update in element_updates(model)[0].values() for name in update.nodes}
    others = [node.name for node in model.graph if node.name not in updating]
    op_s = {name: 1e-3 / len(others) for name in others} | {name: updates_s / len(updating) for name in updating}
    step_s = sum(op_s.values())
    return Trace(model.digest, op_s, {}, step_s, step_s, 2, 1, None, "by hand")


@pytest.mark.parametrize("updates_s, is_sharded", [(0.05, True), (1e-7, False)])
def test_the_plan_shards_where_that_is_predicted_to_be_faster(updates_s, is_sharded):
    _, armodel = sessions(4)
    context, network = armodel.context, caramel.NetworkModel.from_costs(1e-5, 1e-9)
    trace = heavy_updates(context.model, updates_s)
    plans = {
        how: caramel.ARModel(context, 4, trace=trace, network=network, shard_updates=how).plan
        for how in (False, "all", "auto")
    }
    steps_s = {how: plan.prediction.timeline.iteration_s for how, plan in plans.items()}
    assert bool(plans["auto"].sharded) == is_sharded and not plans[False].sharded
    assert steps_s["auto"] <= min(steps_s[False], steps_s["all"]) * (1 if is_sharded else 1.005)
    assert (steps_s["all"] < 0.7 * steps_s[False]) == is_sharded
    (note,) = (note for note in plans["auto"].notes if "updates are sharded" in note)
    assert ("without" in note) == is_sharded
    unknown = caramel.ARModel(context, 4, shard_updates="auto").plan
    assert not unknown.sharded and "no update is sharded: nothing is predicted" in " ".join(unknown.notes)


@pytest.mark.parametrize("value", ["some", 2, ["kernel"]])
def test_values_that_shard_updates_does_not_take(value):
    _, armodel = sessions(2)
    with pytest.raises(caramel.InputError, match="shard_updates must be 'all' or 'auto'"):
        caramel.ARModel(armodel.context, 2, shard_updates=value)
    with pytest.raises(caramel.InputError, match="leave out shard_updates="):
        caramel.ARModel(armodel.context, 2, shard_updates=True, plan=armodel.plan)
