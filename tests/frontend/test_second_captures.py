"""A program that one process builds twice: Keras gives other numbers to its layers, and it has the same plan."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.facts import Trace


def _captured(units=4, build=None, inputs=None, **options):
    """A model built anew, whose layers Keras numbers as it likes."""
    keras.utils.set_random_seed(1)
    pixels = keras.Input((8,))
    hidden = keras.layers.Dense(units, "relu")(pixels)
    hidden = keras.layers.Dropout(0.2)(hidden) if build is None else build(hidden)
    shared = keras.layers.Dense(units)
    hidden = shared(shared(hidden))  # called twice: TensorFlow numbers the second call's ops
    model = keras.Model(pixels, keras.layers.Dense(3)(hidden))
    optimizer = keras.optimizers.Adam()
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    inputs = inputs or [tf.TensorSpec([None, 8]), tf.TensorSpec([None], tf.int32)]
    return caramel.capture(step, inputs=inputs, **options)


@pytest.fixture(scope="module")
def twice():
    return _captured(), _captured()


def test_the_digest_is_the_same(twice):
    first, second = (context.model for context in twice)
    assert [v.name for v in first.variables] != [v.name for v in second.variables]
    assert [v.plan_name for v in first.variables] == [v.plan_name for v in second.variables]
    assert first.digest == second.digest


def test_a_plan_serves_both_and_trains_as_before(twice):
    network = caramel.NetworkModel.from_link_rate(1e9)
    first = caramel.ARModel(twice[0], 2, network=network)
    second = caramel.ARModel(twice[1], 2, network=network)
    assert first.plan.to_json() == second.plan.to_json()
    applied = caramel.ARModel(twice[1], 2, plan=first.plan)
    rng = np.random.default_rng(0)
    batch = rng.normal(size=(6, 8)).astype(np.float32), rng.integers(0, 3, 6)
    losses, values = [], []
    for model in (second, applied):
        with model.session() as session:
            losses.append([session.step(*batch).loss for _ in range(2)])
            values.append(session.values())
    assert losses[0] == losses[1]
    own = {v.name for v in twice[1].model.variables}
    assert set(values[1]) <= own  # a session speaks of variables by the program's names
    for name, value in values[0].items():
        np.testing.assert_array_equal(value, values[1][name])


def test_explain_takes_both_names(twice):
    plan = caramel.ARModel(twice[1], 2).plan
    parameter = twice[1].model.variables[0]
    assert parameter.name != parameter.plan_name
    assert plan.explain(parameter.name).startswith(parameter.plan_name)
    assert repr(parameter.name) in plan.explain(parameter.plan_name)
    assert f"{parameter.plan_name} is {parameter.name}" in str(plan)
    of_file = caramel.Plan.from_json(plan.to_json())
    assert of_file.explain(parameter.plan_name)
    assert caramel.ARModel(twice[1], 2, plan=of_file).plan.explain(parameter.name)


def test_updates_are_postponed_by_either_name(twice):
    parameter = next(v for v in twice[1].model.variables if v.name.endswith("kernel"))
    plans = [caramel.ARModel(twice[1], 2, postponed=[name]).plan for name in (parameter.name, parameter.plan_name)]
    assert plans[0] == plans[1]
    assert plans[0].postponed == (parameter.plan_name,)


def test_names_that_a_person_gave_are_told_apart():
    def named(name):
        return lambda hidden: keras.layers.Dense(4, name=name)(hidden)

    one, other = (_captured(build=named(name)) for name in ("encoder_1", "encoder_2"))
    assert one.model.digest != other.model.digest
    plan = caramel.ARModel(one, 2).plan
    with pytest.raises(caramel.PlanError, match=r"names: 'encoder_2/kernel'.* in place of 'encoder_1/kernel'"):
        caramel.ARModel(other, 2, plan=plan)


def test_numbers_that_a_person_gave_stay():
    context = _captured(build=lambda hidden: keras.layers.Dense(4, name="dense_5000")(hidden))
    names = {gradient.name for gradient in context.model.gradients}
    assert "dense_5000/kernel" in names
    assert {"dense/kernel", "dense_1/kernel", "dense_2/kernel"} < names  # whatever Keras calls them here
    assert caramel.ARModel(context, 2).plan.explain("dense_5000/kernel").startswith("dense_5000/kernel")


@pytest.mark.parametrize(
    "other, what",
    [
        ({"units": 5}, r"variable 'dense/kernel' is parameter, float32 \[8, 5\], was parameter, float32 \[8, 4\]"),
        ({"build": keras.ops.relu}, "variables that are gone: 'seed_generator"),
        (
            {"inputs": [tf.TensorSpec([None, 8], name="images"), tf.TensorSpec([None], tf.int32)]},
            r"inputs that are gone: 'x'",
        ),
        ({"loss_reduction": "sum"}, "the loss is a sum, was a mean"),
        ({"build": lambda hidden: keras.layers.Dropout(0.3)(hidden)}, "constants, names or connections of ops differ"),
    ],
    ids=["units", "layer", "input", "reduction", "a number"],
)
def test_a_refusal_says_what_differs(twice, other, what):
    plan = caramel.ARModel(twice[0], 2).plan
    changed = _captured(**other)
    with pytest.raises(caramel.PlanError, match=what):
        caramel.ARModel(changed, 2, plan=caramel.Plan.from_json(plan.to_json()))
    step = twice[0].model
    trace = Trace(step.digest, {"a": 1.0}, {}, 1.0, 1.0, 1, 1, 1, "by hand", outline=step.outline)
    with pytest.raises(caramel.TraceError, match=what):
        caramel.ARModel(changed, 2, trace=trace)


def test_a_plan_of_an_earlier_version_says_that_it_does_not_know(twice):
    data = json.loads(caramel.ARModel(twice[0], 2).plan.to_json())
    del data["outline"]
    with pytest.raises(caramel.PlanError, match="does not say what it was made for"):
        caramel.ARModel(_captured(units=5), 2, plan=caramel.Plan.from_json(json.dumps(data)))


@pytest.mark.parametrize("saved, restored", [(0, 1), (1, 0)])
def test_a_checkpoint_serves_both(twice, tmp_path, saved, restored):
    rng = np.random.default_rng(1)
    batch = rng.normal(size=(6, 8)).astype(np.float32), rng.integers(0, 3, 6)
    with caramel.ARModel(twice[saved], 2, deterministic=True).session() as session:
        session.step(*batch)
        session.save(tmp_path / "first")
        wanted = [session.step(*batch).loss for _ in range(2)]
    with caramel.ARModel(twice[restored], 2, deterministic=True).session() as session:
        session.restore(tmp_path / "first")
        assert [session.step(*batch).loss for _ in range(2)] == wanted  # dropout of each worker included
        session.save(tmp_path / "second")
    own = {v.name for v in twice[restored].model.variables}
    assert own <= {name for name, _ in tf.train.list_variables(str(tmp_path / "second"))}


def test_a_checkpoint_of_another_program_is_refused(twice, tmp_path):
    with caramel.ARModel(_captured(units=5), 2).session() as session:
        session.save(tmp_path / "other")
    with (
        caramel.ARModel(twice[0], 2).session() as session,
        pytest.raises(caramel.CheckpointError, match="does not fit"),
    ):
        session.restore(tmp_path / "other")
