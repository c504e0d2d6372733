"""Steps in which every worker trains by itself: as that many models do, each alone, with DiLoCo's formula in numpy."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from exact_common import in_process
from exact_matrix import OPTIMIZERS, SOME_OPTIMIZERS
from exact_steps import Program, alone, fresh, trained, values_of
from variants import each_once, in_soak, mostly_in_soak

import caramel
from caramel.analyzers.plan_checks import verify_plan
from caramel.errors import InvariantError
from caramel.modifiers.exchange import verify_alone
from caramel.util.ranges import balanced
from caramel.util.units import format_ms

EXACTLY = {"sync_every": 1, "outer_learning_rate": 1.0, "outer_momentum": 0.0}
"""With plain gradient descent this is the training of one device: the mean of what all would do next."""


def dense(optimizer="sgd", hidden=None, total=0.0):
    """A step with a dense layer or what is given instead; of the sum of the losses, divided, where a total is."""

    def make():
        chosen = OPTIMIZERS[optimizer]()
        inputs = keras.Input([4], dtype="float64")
        middle = keras.layers.Dense(5, "tanh", dtype="float64")(inputs) if hidden is None else hidden()(inputs)
        model = keras.Model(inputs, keras.layers.Dense(1, dtype="float64")(middle))
        chosen.build(model.trainable_variables)

        def step(x, y):
            with tf.GradientTape() as tape:
                errors = (model(x, training=True) - y) ** 2
                loss = tf.reduce_sum(errors) / total if total else tf.reduce_mean(errors)
            gradients = tape.gradient(loss, model.trainable_variables)
            chosen.apply_gradients(zip(gradients, model.trainable_variables))
            return loss

        variables = {v.path: v for v in model.variables}
        variables |= {f"{number} {v.path}": v for number, v in enumerate(chosen.variables)}  # Keras' may have one name
        return Program(step, [tf.TensorSpec([None, width], tf.float64) for width in (4, 1)], variables)

    return make


def lookup(optimizer):
    """A step with a table, whose gradient is sparse."""

    def make():
        chosen = OPTIMIZERS[optimizer]()
        table = tf.Variable(np.random.default_rng(1).normal(size=(9, 3)), name="table")
        chosen.build([table])

        def step(rows, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.reduce_sum(tf.gather(table, rows), [1, 2]) - y) ** 2)
            chosen.apply_gradients([(tape.gradient(loss, table), table)])
            return loss

        specs = [tf.TensorSpec([None, 2], tf.int32), tf.TensorSpec([None], tf.float64)]
        return Program(step, specs, {"table": table, **{v.path: v for v in chosen.variables}})

    return make


def batches(steps=7, count=12, seed=3):
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(count, 4)), rng.normal(size=(count, 1))) for _ in range(steps)]


def rows(steps=7, count=12):
    rng = np.random.default_rng(5)
    return [(rng.integers(0, 9, (count, 2)).astype(np.int32), rng.normal(size=count)) for _ in range(steps)]


def parts(batch, workers):
    """Each worker's rows of a batch."""
    return [tuple(array[start : start + size] for array in batch) for start, size in balanced(len(batch[0]), workers)]


def oracle(make, data, workers, every, learning_rate, momentum, names):
    """Losses, the parameters after a last exchange, and what each worker has of the rest."""
    program = fresh(make)
    step = tf.function(program.step, input_signature=program.specs)
    states = [values_of(program) for _ in range(workers)]
    anchor = {name: states[0][name] for name in names}
    speed = {name: np.zeros_like(value) for name, value in anchor.items()}
    losses = []
    for number, batch in enumerate(data, 1):
        of_workers = []
        for rank, part in enumerate(parts(batch, workers)):
            for name, value in states[rank].items():
                program.variables[name].assign(value)
            of_workers.append(float(step(*part)))
            states[rank] = values_of(program)
        losses.append(np.mean(of_workers))
        if number % every == 0 or number == len(data):
            for name in names:
                difference = np.mean([anchor[name] - state[name] for state in states], axis=0)
                speed[name] = momentum * speed[name] + difference
                anchor[name] = anchor[name] - learning_rate * (difference + momentum * speed[name])
                for state in states:
                    state[name] = anchor[name]
    return losses, states


def trained_locally(make, data, workers, together=1, **options):
    """Losses, values written back, and the model of a training with local steps."""
    return trained(make, data, workers, lambda context: options, together=together)


def parameters(armodel):
    return [name for exchange in armodel.plan.local.exchanges for name in exchange.parameters]


def close(got, want, rtol=1e-9):
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=rtol, atol=1e-12, err_msg=name)


# -- the mathematics -----------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", mostly_in_soak([*OPTIMIZERS], *SOME_OPTIMIZERS))
@pytest.mark.parametrize("workers, every", [(3, 3), *in_soak((1, 2), (2, 1), (4, 5), (8, 100))])
def test_workers_train_as_models_do_that_are_alone(optimizer, workers, every):
    """Seven steps, so that the last exchange comes before it is due."""
    data = batches(count=24)
    losses, values, armodel = trained_locally(dense(optimizer), data, workers, sync_every=every)
    want_losses, states = oracle(dense(optimizer), data, workers, every, 0.7, 0.5, parameters(armodel))
    np.testing.assert_allclose(losses, want_losses, rtol=1e-9)
    close(values, states[0])


@pytest.mark.parametrize("optimizer", ["sgd", "adam", *in_soak("adagrad", "ftrl")])
def test_tables_with_sparse_gradients(optimizer):
    losses, values, armodel = trained_locally(lookup(optimizer), rows(), 3, sync_every=2, outer_momentum=0.5)
    assert parameters(armodel) == ["table"]
    want_losses, states = oracle(lookup(optimizer), rows(), 3, 2, 0.7, 0.5, ["table"])
    np.testing.assert_allclose(losses, want_losses, rtol=1e-9)
    close(values, states[0])


@pytest.mark.parametrize("algorithm", ["shuffle", "star", "ring", "halving_doubling", "chain"])
def test_the_exchange_may_take_any_all_reduce(algorithm):
    data = batches()
    chosen = trained_locally(dense("adam"), data, 4, sync_every=3, algorithm=algorithm, depth=2)
    assert {e.algorithm for e in chosen[2].plan.local.exchanges} == {algorithm}
    close(chosen[1], trained_locally(dense("adam"), data, 4, sync_every=3)[1])


@pytest.mark.parametrize("count", [12, 10])
@pytest.mark.parametrize("total", [0.0, 12.0])
def test_an_exchange_in_each_step_is_one_device(count, total):
    """With means, with sums over a constant, and where batches do not divide evenly: each example counts the same."""
    data = batches(count=count)
    losses, values, _ = trained_locally(dense(total=total), data, 4, **EXACTLY)
    want_losses, want = alone(dense(total=total), data)
    np.testing.assert_allclose(losses, want_losses, rtol=1e-9)
    close(values, want)


def test_a_loss_over_what_counts_is_that_of_the_whole_batch():
    """Its denominator is summed over the workers in each step, so that each counted entry counts the same."""

    def make():
        w = tf.Variable(np.ones([4, 1]), name="w")

        def step(x, y):
            with tf.GradientTape() as tape:
                counts = tf.cast(y > 0, tf.float64)
                loss = tf.reduce_sum(counts * (x @ w - y) ** 2) / tf.reduce_sum(counts)
            w.assign_sub(0.05 * tape.gradient(loss, w))
            return loss

        return Program(step, [tf.TensorSpec([None, width], tf.float64) for width in (4, 1)], {"w": w})

    losses, values, armodel = trained_locally(make, batches(), 3, **EXACTLY)
    assert any("of the whole batch" in note for note in armodel.plan.notes)
    want_losses, want = alone(make, batches())
    np.testing.assert_allclose(losses, want_losses, rtol=1e-9)
    close(values, want)


def test_statistics_and_slots_are_each_workers_own():
    def normalised():
        return keras.layers.BatchNormalization(dtype="float64")

    data = batches()
    losses, values, armodel = trained_locally(dense("adam", normalised), data, 3, sync_every=2)
    want_losses, states = oracle(dense("adam", normalised), data, 3, 2, 0.7, 0.5, parameters(armodel))
    np.testing.assert_allclose(losses, want_losses, rtol=1e-9)
    close(values, states[0])  # worker 0's
    assert not np.allclose(states[1]["batch_normalization/moving_mean"], states[0]["batch_normalization/moving_mean"])


# -- runs, state, data ---------------------------------------------------------------------------


@pytest.mark.parametrize("together", [2, 3, 4, 5])
def test_steps_in_one_run_are_the_same_steps(together):
    """Also where an exchange comes in the middle of what would be one run."""
    data = batches(steps=11)
    single = trained_locally(dense("adam"), data, 3, sync_every=4)
    several = trained_locally(dense("adam"), data, 3, together, sync_every=4)
    assert single[0] == several[0]
    for name, value in single[1].items():
        np.testing.assert_array_equal(several[1][name], value, err_msg=name)


def test_a_checkpoint_goes_on_as_if_nothing_had_happened(tmp_path):
    data = batches(steps=10)
    context = caramel.capture((program := fresh(dense("adam"))).step, program.specs)
    armodel = caramel.ARModel(context, 3, sync_every=3)
    with armodel.session(in_process()) as session:
        session.run(data[:5], progress=False)
        path, saved = session.save(tmp_path / "saved"), session.values()
        session.run(data[5:], progress=False)
        want = session.values()
    with armodel.session(in_process()) as session:
        session.run(data[:2], progress=False)  # what is there is replaced
        session.restore(path)
        session.run(data[5:], progress=False)
        got = session.values()
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)
    for workers, options in ((2, {"sync_every": 3}), (1, {})):  # worker 0's state, for other numbers of workers
        with caramel.ARModel(context, workers, **options).session(in_process()) as session:
            session.restore(path)
            assert session.step_count == 5
            for name, value in saved.items():
                np.testing.assert_array_equal(session.values()[name], value, err_msg=name)


def test_the_momentum_of_exchanges_is_saved(tmp_path):
    """Without slots and statistics, nothing else is needed to go on with another number of workers."""
    data = batches(steps=8)
    program = fresh(dense("sgd"))
    context = caramel.capture(program.step, program.specs)
    with caramel.ARModel(context, 4, **{**EXACTLY, "outer_momentum": 0.8}).session(in_process()) as session:
        session.run(data[:4], progress=False)
        path = session.save(tmp_path / "saved")
        session.run(data[4:], progress=False)
        want = session.values()
    with caramel.ARModel(context, 2, **{**EXACTLY, "outer_momentum": 0.8}).session(in_process()) as session:
        session.restore(path)
        session.run(data[4:], progress=False)
        close(session.values(), want)
    with caramel.ARModel(context, 2, **EXACTLY).session(in_process()) as session:
        session.restore(path)
        session.run(data[4:], progress=False)
        assert not np.allclose(session.values()["dense/kernel"], want["dense/kernel"])


def test_values_that_are_assigned_stay():
    """What was trained before does not come back with the next exchange."""
    program = fresh(dense("sgd"))
    context = caramel.capture(program.step, program.specs)
    data, found = batches(steps=6), []
    armodel = caramel.ARModel(context, 2, sync_every=3, outer_learning_rate=0.5, outer_momentum=0.0)
    for first in (data[:3], []):
        with armodel.session(in_process()) as session:
            session.run(first, progress=False)
            session.assign({name: np.full_like(v, 0.3) for name, v in session.values().items() if "kernel" in name})
            session.assign({name: np.zeros_like(v) for name, v in session.values().items() if "bias" in name})
            session.run(data[3:], progress=False)
            found.append(session.values())
    close(found[0], {name: value for name, value in found[1].items() if "dense" in name})


@pytest.mark.parametrize("sharding", ["slice", "batches"])
def test_data_on_the_workers(sharding):
    data = batches(steps=6)
    program = fresh(dense("adam"))
    dataset = tf.data.Dataset.from_tensor_slices(tuple(map(np.concatenate, zip(*data)))).batch(12)
    context = caramel.capture(program.step, data=dataset)
    armodel = caramel.ARModel(context, 3, sync_every=2, sharding=sharding)
    with armodel.session(in_process()) as session:
        losses = [r.loss for r in session.run(progress=False, steps_per_execution=2)]
        session.write_back()
    given = data
    if sharding == "batches":  # a worker's batch is one of three
        given = [tuple(map(np.concatenate, zip(*data[n : n + 3]))) for n in (0, 3)]
    want_losses, states = oracle(dense("adam"), given, 3, 2, 0.7, 0.5, parameters(armodel))
    np.testing.assert_allclose(losses, want_losses, rtol=1e-9)
    close(values_of(program), states[0])


def test_fit_exchanges_at_the_end_of_each_epoch(capsys):
    """So that what validates it, and what it returns, is one model."""
    data = batches(steps=5)
    x, y = map(np.concatenate, zip(*data))

    def model():
        keras.backend.clear_session(free_memory=False)
        keras.utils.set_random_seed(7)
        made = keras.Sequential([keras.Input([4]), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)])
        made.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
        return made

    options = {"batch_size": 12, "epochs": 3, "shuffle": False, "verbose": 0, "validation_data": (x, y)}
    made = model()
    history = caramel.fit(made, x, y, workers=3, cluster=in_process(), sync_every=2, **{**options, "verbose": 2})
    assert "after 2 steps" in (said := capsys.readouterr().out) and "not the training of one device" in said
    own, want = model(), []
    states = [[w.copy() for w in own.get_weights()] for _ in range(3)]
    velocities = [[np.zeros_like(w) for w in own.get_weights()] for _ in range(3)]
    anchor, speed = [w.copy() for w in own.get_weights()], [np.zeros_like(w) for w in own.get_weights()]
    for _ in range(3):
        for number, batch in enumerate(data, 1):
            for rank, (part_x, part_y) in enumerate(parts(batch, 3)):
                own.set_weights(states[rank])
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((own(part_x) - part_y) ** 2)
                gradients = [g.numpy() for g in tape.gradient(loss, own.trainable_variables)]
                velocities[rank] = [0.9 * v - 0.05 * g for v, g in zip(velocities[rank], gradients)]
                states[rank] = [w + v for w, v in zip(states[rank], velocities[rank])]
            if number in (2, 4, 5):
                means = [np.mean([a - s[n] for s in states], axis=0) for n, a in enumerate(anchor)]
                speed = [0.5 * s + d for s, d in zip(speed, means)]
                anchor = [a - 0.7 * (d + 0.5 * s) for a, d, s in zip(anchor, means, speed)]
                states = [[a.copy() for a in anchor] for _ in states]
        own.set_weights(anchor)
        want.append(float(np.mean((own.predict(x, verbose=0) - y) ** 2)))
    np.testing.assert_allclose(history.history["val_loss"], want, rtol=1e-4)
    for got, value in zip(made.get_weights(), anchor):
        np.testing.assert_allclose(got, value, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.processes
def test_exported(tmp_path):
    """The runner exchanges as the session does, and goes on from its checkpoint with the momentum."""
    data = batches(steps=1)[0]
    program = fresh(dense("adam"))
    context = caramel.capture(program.step, program.specs)
    armodel = caramel.ARModel(context, 2, sync_every=2)
    armodel.export(tmp_path / "out")
    np.savez(tmp_path / "batch.npz", **{i.name: a for i, a in zip(context.model.inputs, data)})
    with armodel.session(in_process()) as session:
        session.run([data] * 5, progress=False)
        session.save(tmp_path / "five")
        want = {}
        for steps in (2, 2, 1):  # it exchanges before it saves
            session.run([data] * steps, progress=False)
            want = session.values()
    command = [sys.executable, str(tmp_path / "out" / "run.py"), "train", "--data", str(tmp_path / "batch.npz")]
    command += ["--steps", "5", "--restore", str(tmp_path / "five"), "--save", str(tmp_path / "ten")]
    subprocess.run(command, check=True, capture_output=True, timeout=120, env={**os.environ, "PYTHONPATH": ""})
    reader = tf.train.load_checkpoint(str(tmp_path / "ten"))
    close({name: reader.get_tensor(name) for name in want}, want)


@pytest.mark.parametrize("optimizer, data", each_once(["adam", "sgd"], ["arrays", "a dataset"]))
def test_a_second_fit_goes_on(optimizer, data):
    """With the slots of all workers, and the momentum; a value that was changed meanwhile makes all begin anew."""
    x, y = map(np.concatenate, zip(*batches(steps=4)))

    def fit(model, *epochs):
        given = (x, y) if data == "arrays" else (tf.data.Dataset.from_tensor_slices((x, y)).batch(12),)
        size = {"batch_size": 12, "shuffle": False} if data == "arrays" else {}
        options = {"workers": 3, "cluster": in_process(), "sync_every": 3, "verbose": 0, **size}
        return [caramel.fit(model, *given, epochs=each, **options).history["loss"] for each in epochs]

    def model():
        keras.backend.clear_session(free_memory=False)
        keras.utils.set_random_seed(7)
        made = keras.Sequential([keras.Input([4]), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)])
        made.compile(OPTIMIZERS[optimizer](), "mse", metrics=["mae"])
        return made

    whole, parted, changed = model(), model(), model()
    (losses,), (first, second) = fit(whole, 4), fit(parted, 2, 2)
    assert losses == [*first, *second]
    for got, value in zip(parted.get_weights(), whole.get_weights()):
        np.testing.assert_array_equal(got, value)
    fit(changed, 2)
    changed.set_weights([w * 0 for w in changed.get_weights()])
    (after,) = fit(changed, 1)
    fresh_one = model()
    fresh_one.set_weights([w * 0 for w in fresh_one.get_weights()])
    if optimizer == "sgd":  # of Adam worker 0's slots go on
        assert after == fit(fresh_one, 1)[0]


# -- plans, and what is refused ------------------------------------------------------------------


def context_of(make=None):
    program = fresh(make or dense("adam"))
    return caramel.capture(program.step, program.specs)


def test_a_plan_of_it_can_be_saved_and_applied():
    context = context_of()
    plan = caramel.ARModel(context, 3, sync_every=4, outer_momentum=0.5).plan
    again = caramel.Plan.from_json(plan.to_json())
    assert again == plan and again.digest == plan.digest
    assert "after 4 steps" in str(again) and "not the training of one device" in " ".join(str(again).split())
    armodel = caramel.ARModel(context, 3, plan=again)
    assert armodel.distributed.signature.sync_every == 4
    assert "local" not in json.loads(caramel.ARModel(context, 3).plan.to_json())


def test_an_exchange_on_a_known_network_is_predicted():
    network = caramel.NetworkModel.from_costs(1e-3, 1e-9)
    plan = caramel.ARModel(context_of(), 3, sync_every=4, network=network, algorithm="ring", depth=1).plan
    (exchange,) = plan.local.exchanges
    assert exchange.predicted_s == pytest.approx(2 * 2 * (1e-3 + exchange.size_bytes / 3 * 1e-9))  # 2 (N - 1) messages
    assert f"an exchange is predicted to take {format_ms(exchange.predicted_s)}" in " ".join(plan.notes)


def test_what_is_checked_and_explained():
    armodel = caramel.ARModel(context_of(), 3, sync_every=4)
    assert "no step has anything of another worker" in armodel.plan.proof and "checked: " in str(armodel.plan)
    assert verify_plan(armodel.plan, armodel.model) == [
        "each parameter is exchanged once, with collectives that may be used"
    ]
    said = armodel.plan.explain("dense_1/kernel")
    assert (
        said.startswith("dense_1/kernel: its gradient does not travel") and "together with 3 other parameters" in said
    )
    with pytest.raises(caramel.InputError, match="no parameter 'nothing'; it has dense/kernel"):
        armodel.plan.explain("nothing")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"sync_every": 0}, "after 0 steps"),
        ({"learning_rate": 0.0}, "learning rate"),
        ({"momentum": 1.0}, "momentum"),
        ({"exchanges": ()}, "is not exchanged"),
    ],
)
def test_a_damaged_plan_is_refused(change, message):
    context = context_of()
    plan = caramel.ARModel(context, 3, sync_every=4).plan
    with pytest.raises(caramel.PlanError, match=message):
        caramel.ARModel(context, 3, plan=replace(plan, local=replace(plan.local, **change)))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"dtype": "float32"}, "is of float32"),
        ({"elements": 3}, "says 3 elements"),
        ({"algorithm": "nothing"}, "exchange 0: .*'nothing'"),
        ({"depth": 0}, "exchange 0: .*depth"),
        ({"parameters": ()}, "is not exchanged"),
    ],
)
def test_a_damaged_exchange_is_refused(change, message):
    context = context_of()
    plan = caramel.ARModel(context, 3, sync_every=4).plan
    (one,) = plan.local.exchanges
    local = replace(plan.local, exchanges=(replace(one, **change),))
    with pytest.raises(caramel.PlanError, match=message):
        caramel.ARModel(context, 3, plan=replace(plan, local=local))
    text = json.loads(plan.to_json())
    text["local"]["exchanges"][0].pop("dtype")
    with pytest.raises(caramel.PlanError):
        caramel.Plan.from_json(json.dumps(text))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"sync_every": 0}, "sync_every"),
        ({"sync_every": 2.5}, "sync_every"),
        ({"sync_every": 2, "outer_momentum": 1}, "outer_momentum must be at least 0 and less than 1"),
        ({"sync_every": 2, "outer_learning_rate": -1.0}, "outer_learning_rate must be a positive number"),
        ({"sync_every": 2, "outer_learning_rate": float("nan")}, "outer_learning_rate"),
        ({"outer_momentum": 0.5}, "give sync_every="),
        ({"outer_learning_rate": 0.7}, "outer_learning_rate= is of the exchange"),
        ({"sync_every": 2, "deterministic": True}, "exclude each other"),
        ({"sync_every": 2, "shard_updates": True}, "leave out shard_updates="),
        ({"sync_every": 2, "shard_embeddings": True}, "leave out shard_embeddings="),
        ({"sync_every": 2, "policy": "paper"}, "leave out policy="),
        ({"sync_every": 2, "scheduling": False}, "leave out scheduling="),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(caramel.InputError, match=message):
        caramel.ARModel(context_of(), 2, **options)


@pytest.mark.soak
def test_no_step_reads_what_is_another_workers():
    emission = caramel.ARModel(context_of(), 2, sync_every=2).distributed.emission
    assert verify_alone(emission) is emission
    step = emission.graph["caramel/worker_0/step"]
    changed = type(step)()
    changed.CopyFrom(step)
    changed.input.append("^caramel/worker_1/step")
    with pytest.raises(InvariantError, match="of another worker"):
        verify_alone(emission.extended([], {step.name: changed}))
