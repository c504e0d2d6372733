"""Updates that are postponed into the next step: the bits of a training in which nothing is."""

import itertools
import os
import subprocess
import sys

import exact_keras as k
import exact_tf1 as v1
import numpy as np
import pytest
import tensorflow as tf
from exact_common import LOCAL, SERIAL, Case, assert_bits, assert_equivalent, assert_same, batches, in_process, train
from variants import in_soak, mostly_in_soak

import caramel
from caramel.analyzers.step.postponement import postponement
from caramel.errors import CheckpointError, InputError, StepError

STEPS = 6
FEATURES = ["plain", "schedule", "decay", "tied", "unused", "convolution", *LOCAL]
"""All but the clip by a norm, which needs all gradients at once."""


def session_of(kind, case, workers, postponed, cluster=None, **options):
    """A session of a fresh program, and what makes a batch its input. All gradients are postponed for "all"."""
    context, program = kind.capture(case)
    if postponed == "all":
        postponed = [g.name for g in context.model.gradients]
    armodel = caramel.ARModel(context, workers, postponed=postponed, **options)
    feed = program.feed if kind is v1 else lambda batch: batch
    return armodel.session(cluster or in_process()), feed


def trained(kind, case, workers, postponed, data, cluster=None, **options):
    session, feed = session_of(kind, case, workers, postponed, cluster, **options)
    with session:
        return train(session, [feed(batch) for batch in data])


def names_of(kind, case):
    return [g.name for g in kind.capture(case)[0].model.gradients]


def case_of(optimizer, feature, dtype="float32"):
    return Case(optimizer, () if feature == "plain" else (feature,), dtype)


IN_EVERY_RUN = [("keras", "norm"), *(("tf1", name) for name in FEATURES if name not in ("plain", "norm"))]


@pytest.mark.parametrize(
    "kind, feature",
    [*IN_EVERY_RUN, *in_soak(*(c for c in itertools.product(["keras", "tf1"], FEATURES) if c not in IN_EVERY_RUN))],
)
def test_each_feature(kind, feature):
    kind = {"keras": k, "tf1": v1}[kind]
    case = case_of("adam", feature)
    data = batches(12, case.dtype, steps=STEPS)
    want = trained(kind, case, 2, (), data)
    assert_same(trained(kind, case, 2, "all", data), want)


@pytest.mark.parametrize(
    "optimizer",
    mostly_in_soak(sorted({*v1.OPTIMIZERS, *v1.FURTHER_OPTIMIZERS}), "adagrad da", "adam", "centered rmsprop", "ftrl"),
)
def test_each_optimizer(optimizer):
    """Of TensorFlow 1; those of Keras are in test_matrix_plans_exact.py."""
    case = case_of(optimizer, "schedule")
    data = batches(10, case.dtype, steps=STEPS)
    want = trained(v1, case, 3, (), data)
    assert_same(trained(v1, case, 3, "all", data), want)


@pytest.mark.parametrize(
    "kind, algorithm",
    [
        (v1, "ring"),
        *in_soak((v1, "native"), (v1, "shuffle"), (v1, "halving_doubling")),
        *in_soak((k, "ring"), (k, "shuffle"), (k, "halving_doubling"), (k, "native")),
    ],
    ids=lambda value: {v1: "tf1", k: "keras"}.get(value, value),
)
def test_one_gradient_by_itself(kind, algorithm):
    """The others travel in the step that makes them; batches are uneven, so gradients are weighted."""
    case = Case("adam", ("schedule", "decay", "tied"))
    names = names_of(kind, case)
    data = batches(7, case.dtype, steps=STEPS)
    want = kind.OneDevice(case).train(data)
    for name in (names[0], names[-1]):
        got = trained(kind, case, 3, [name], data, algorithm=algorithm)
        assert_equivalent(got, want)


@pytest.mark.parametrize("postponed", [slice(1, None), *in_soak(slice(0), slice(1), slice(None))], ids=str)
def test_deterministic_bits_do_not_depend_on_the_window(postponed):
    case = Case("momentum", ("schedule", "decay", "tied", *LOCAL), "float32")
    names = names_of(v1, case)
    data = batches(11, case.dtype, steps=STEPS)
    want = v1.MicroBatches(case, 3).train(data)
    assert_same(trained(v1, case, 3, names[postponed], data, deterministic=True), want)


KINDS = [pytest.param(v1, id="tf1"), pytest.param(k, id="keras", marks=pytest.mark.soak)]


@pytest.mark.parametrize("kind", KINDS)
def test_with_grappler(kind):
    case = Case("adam", ("schedule", "decay", "tied", *LOCAL), "float32")
    data = batches(12, case.dtype, steps=STEPS)
    want = trained(kind, case, 2, (), data, caramel.InProcess())
    assert_same(trained(kind, case, 2, "all", data, caramel.InProcess()), want)


@pytest.mark.parametrize("kind", KINDS)
def test_reading_values_in_between_changes_nothing(kind):
    case = Case("adam", ("schedule", "decay"), "float32")
    data = batches(12, case.dtype, steps=STEPS)
    want = trained(kind, case, 2, (), data)
    session, feed = session_of(kind, case, 2, "all")
    plain, _ = session_of(kind, case, 2, ())
    with session, plain:
        session.flush()
        losses = []
        for batch in data:
            losses.append(session.step(*_args(feed(batch))).loss)
            plain.step(*_args(feed(batch)))
            if len(losses) % 2:
                assert_bits(session.values(), plain.values())
                session.flush()
        assert losses == want.losses
        assert_bits(session.values(), want.values)


def _args(fed):
    return fed if isinstance(fed, tuple) else (fed,)


def test_a_learning_rate_that_is_assigned_holds_from_the_next_step_on():
    case = Case("momentum", ("tied",), "float32")
    data = batches(12, case.dtype, steps=STEPS)
    values = []
    for postponed in ((), "all"):
        session, _ = session_of(k, case, 2, postponed)
        with session:
            rate = next(name for name in session.values() if "learning_rate" in name)
            for number, batch in enumerate(data):
                session.step(*batch)
                session.assign({rate: np.float32(0.1 / (number + 1))})
            values.append(session.values())
    assert_bits(*values)


@pytest.mark.parametrize("kind", KINDS)
def test_saved_in_the_middle(kind, tmp_path):
    """The rest is the same in a fresh session, whether that one postpones or not, and of any number of workers."""
    case = Case("adam", ("schedule", "decay", "tied"))
    data = batches(12, case.dtype, steps=STEPS)
    want = kind.OneDevice(case).train(data)
    session, feed = session_of(kind, case, 2, "all")
    with session:
        for batch in data[:3]:
            session.step(*_args(feed(batch)))
        session.save(tmp_path / "half")
        for batch in data[3:]:
            session.step(*_args(feed(batch)))
        assert_equivalent_values(session.values(), want.values)
        session.restore(tmp_path / "half")  # what is pending is dropped
        rest = [session.step(*_args(feed(batch))).loss for batch in data[3:]]
        np.testing.assert_allclose(rest, want.losses[3:], rtol=1e-8)
        assert_equivalent_values(session.values(), want.values)
    for workers, postponed in ((3, "all"), (1, "all"), (2, ())):
        session, feed = session_of(kind, case, workers, postponed)
        with session:
            session.restore(tmp_path / "half")
            rest = [session.step(*_args(feed(batch))).loss for batch in data[3:]]
            np.testing.assert_allclose(rest, want.losses[3:], rtol=1e-8)
            assert_equivalent_values(session.values(), want.values)


def assert_equivalent_values(got, want):
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-8, atol=1e-10, err_msg=name)


def test_one_device_goes_on_from_a_checkpoint(tmp_path):
    case = Case("adam", ("schedule", "decay", "tied"))
    data = batches(12, case.dtype, steps=STEPS)
    want = v1.OneDevice(case).train(data)
    session, feed = session_of(v1, case, 2, "all")
    with session:
        for batch in data[:3]:
            session.step(feed(batch))
        session.save(tmp_path / "half")
    device = v1.OneDevice(case)
    device.restore(str(tmp_path / "half"))
    rest = device.train(data[3:])
    np.testing.assert_allclose(rest.losses, want.losses[3:], rtol=1e-8)
    assert_equivalent_values(rest.values, want.values)


def test_a_damaged_checkpoint_leaves_what_is_pending(tmp_path):
    case = Case("momentum", ("tied",), "float32")
    data = batches(12, case.dtype, steps=STEPS)
    want = trained(k, case, 2, (), data)
    session, _ = session_of(k, case, 2, "all")
    with session:
        session.step(*data[0])
        with pytest.raises(CheckpointError):
            session.restore(tmp_path / "nothing")
        for batch in data[1:]:
            session.step(*batch)
        assert_bits(session.values(), want.values)


def failing():
    """A program that fails in its forward pass where an example is infinite."""
    w, v = tf.Variable(tf.ones([3]), name="w"), tf.Variable(tf.ones([]), name="v")

    @tf.function(input_signature=[tf.TensorSpec([None, 3], name="x")])
    def step(x):
        with tf.GradientTape() as tape:
            h = tf.debugging.check_numerics(tf.linalg.matvec(x, w), "infinite")
            loss = tf.reduce_mean((v * h - 1) ** 2)
        dw, dv = tape.gradient(loss, [w, v])
        w.assign_sub(0.01 * dw)
        v.assign_sub(0.01 * dv)
        return loss

    return step


def test_after_a_failed_step_nothing_goes_on_but_a_restore(tmp_path):
    good, bad = np.ones([4, 3], np.float32), np.full([4, 3], np.inf, np.float32)
    with caramel.ARModel(caramel.capture(failing()), 2, postponed=["w"]).session(in_process()) as session:
        session.step(good)
        session.save(tmp_path / "one")
        saved = session.values()
        session.step(good)
        with pytest.raises(StepError, match="infinite"):
            session.step(bad)
        for call in (session.flush, session.values, lambda: session.step(good)):
            with pytest.raises(StepError, match="restore a checkpoint first"):
                call()
        session.restore(tmp_path / "one")
        assert_bits(session.values(), saved)
        second = session.step(good).loss
    with caramel.ARModel(caramel.capture(failing()), 2).session(in_process()) as session:
        session.step(good)
        assert session.step(good).loss == second


def test_an_evaluation_sees_all_updates():
    w = tf.Variable(tf.zeros([3]), name="w")

    @tf.function(input_signature=[tf.TensorSpec([None, 3], name="x")])
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, w) - 1) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    @tf.function(input_signature=[])
    def norm():
        return tf.reduce_sum(w)

    seen = []
    for postponed in ((), ["w"]):
        context = caramel.capture(step, evaluation=norm)
        with caramel.ARModel(context, 2, postponed=postponed).session(in_process()) as session:
            found = [session.evaluate()]
            for _ in range(3):
                session.step(np.eye(4, 3, dtype=np.float32))
                found.append(session.evaluate())
            seen.append(found)
    assert seen[0] == seen[1] and seen[0][0] == 0 and len(set(map(float, seen[0]))) == 4


@pytest.mark.soak  # as that of test_plans_exact.py, whose plan postpones, too
@pytest.mark.slow
@pytest.mark.processes
def test_on_server_processes(tmp_path):
    case = Case("adam", ("schedule", "decay", "tied", *LOCAL), "float32")
    data = batches(12, case.dtype, steps=STEPS)
    cluster = caramel.LocalProcesses(options=SERIAL)
    for kind in (v1, k):
        want = trained(kind, case, 2, (), data)
        assert_same(trained(kind, case, 2, "all", data, cluster), want)


@pytest.mark.parametrize(
    ("postponed", "message"),
    [
        (["first/kernel"], "also needs the gradient of"),
        (["nothing"], "there is no gradient 'nothing' to postpone; there are "),
    ],
)
def test_what_cannot_be_postponed_is_refused(postponed, message):
    context, _ = v1.capture(Case("adam", ("clip",)))
    with pytest.raises(InputError, match=message):
        caramel.ARModel(context, 2, postponed=postponed)


def reason_against_postponing(model, names):
    """None where they can be."""
    try:
        postponement(model, names)
    except InputError as error:
        return str(error)
    return None


def test_reasons():
    w, table = tf.Variable(tf.ones([3]), name="w"), tf.Variable(tf.ones([5, 3]), name="table")
    seen = tf.Variable(0.0, name="seen", trainable=False)
    specs = [tf.TensorSpec([None, 3], name="x"), tf.TensorSpec([None], tf.int32, name="rows")]

    def step(x, rows, effect):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.reduce_sum(x * w * tf.gather(table, rows), 1) ** 2)
        dw, dt = tape.gradient(loss, [w, table])
        table.scatter_sub(tf.IndexedSlices(0.1 * dt.values, dt.indices))
        return effect(loss, dw)

    def reason(effect):
        def program(x, rows):
            return step(x, rows, effect)

        model = caramel.capture(tf.function(program), specs, loss="loss").model
        return reason_against_postponing(model, ["w"]), reason_against_postponing(model, ["table"])

    def plain(loss, dw):
        w.assign_sub(0.1 * dw)
        return {"loss": loss}

    def returned(loss, dw):
        w.assign_sub(0.1 * dw)
        return {"loss": loss, "norm": tf.norm(dw)}

    def checked(loss, dw):
        tf.cond(tf.reduce_all(tf.math.is_finite(dw)), lambda: w.assign_sub(0.1 * dw), lambda: w.assign_sub(0.0 * w))
        return {"loss": loss}

    def asserted(loss, dw):
        with tf.control_dependencies([tf.debugging.assert_less(tf.norm(dw), 100.0)]):
            w.assign_sub(0.1 * dw)
        return {"loss": loss}

    def counted(loss, dw):
        seen.assign_add(tf.norm(dw))
        w.assign_sub(0.1 * dw)
        return {"loss": loss}

    assert reason(plain)[0] is None and reason(counted)[0] is None
    assert "is sparse" in reason(plain)[1]
    assert "the output 'norm', which every step gives back, depends on it" in reason(returned)[0]
    assert "is in a branch, or depends on one" in reason(checked)[0]
    assert "does in a function what would have to be moved" in reason(asserted)[0]


def regression(postponed, **options):
    """A step with Adam on a dataset that the workers read."""
    tf.keras.backend.clear_session(free_memory=False)  # the names of variables begin anew
    tf.keras.utils.set_random_seed(3)
    network = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(4, "tanh"), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.Adam(0.05)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).batch(8)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((network(x, training=True) - y) ** 2)
        trained = network.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained))
        return loss

    context = caramel.capture(step, data=data)
    names = [g.name for g in context.model.gradients]
    return caramel.ARModel(context, 2, postponed=names if postponed else (), **options)


@pytest.mark.parametrize("restored", [True, *in_soak(False)])
def test_data_on_the_workers(restored, tmp_path):
    """Saved in the middle of a pass: both the position of the data and what was pending."""
    values = []
    for postponed in (False, True):
        with regression(postponed).session(in_process()) as session:
            session.run(steps=3)
            session.save(tmp_path / f"half {postponed}")
            session.run(steps=4)
            values.append(session.values())
    with regression(restored).session(in_process()) as session:
        session.restore(tmp_path / f"half {restored}")
        session.run(steps=4)
        values.append(session.values())
    for other in values[1:]:
        assert_bits(other, values[0])


def test_fit():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(48, 3)).astype(np.float32)
    y = x.sum(1, keepdims=True)
    found = []
    for postponed in ((), ["sequential/a/kernel", "sequential/b/bias"]):
        tf.keras.backend.clear_session(free_memory=False)
        tf.keras.utils.set_random_seed(2)
        layers = [tf.keras.layers.Dense(4, "tanh", name="a"), tf.keras.layers.Dense(1, name="b")]
        model = tf.keras.Sequential([tf.keras.Input((3,)), *layers])
        model.compile("adam", "mse", metrics=["mae"])
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
        options = {"validation_data": (x, y), "verbose": 0, "cluster": in_process(), "batching": False}
        history = caramel.fit(model, data, workers=2, epochs=3, postponed=postponed, **options)
        found.append((history.history, model.get_weights(), int(model.optimizer.iterations.numpy())))
    assert found[0][0] == found[1][0] and found[0][2] == found[1][2] == 9
    for mine, its in zip(found[0][1], found[1][1]):
        np.testing.assert_array_equal(mine, its)


@pytest.mark.slow
@pytest.mark.processes
def test_exported(tmp_path):
    """The runner's checkpoint has what is pending, and goes on from one."""
    case = Case("adam", ("schedule", "decay", "tied"))
    (batch,) = batches(12, case.dtype, steps=1)
    context, program = v1.capture(case)
    names = [g.name for g in context.model.gradients]
    armodel = caramel.ARModel(context, 2, postponed=names)
    armodel.export(tmp_path / "out")
    fed = {i.name: np.asarray(a) for i, a in zip(context.model.inputs, program.feed(batch).values())}
    np.savez(tmp_path / "batch.npz", **fed)
    with armodel.session(in_process()) as session:
        for _ in range(2):
            session.step(program.feed(batch))
        session.save(tmp_path / "two")
    command = [sys.executable, str(tmp_path / "out" / "run.py"), "train", "--data", str(tmp_path / "batch.npz")]
    command += ["--steps", "3", "--restore", str(tmp_path / "two"), "--save", str(tmp_path / "five")]
    subprocess.run(command, check=True, capture_output=True, timeout=120, env={**os.environ, "PYTHONPATH": ""})
    with caramel.ARModel(context, 2, batching=False).session(in_process()) as session:
        for _ in range(5):
            session.step(program.feed(batch))
        want = session.values()
    reader = tf.train.load_checkpoint(str(tmp_path / "five"))
    for name, value in want.items():
        np.testing.assert_allclose(reader.get_tensor(name), value, rtol=1e-8, atol=1e-12, err_msg=name)


def follows_the_loss(x, w):
    """An average that waits for what the step gives back, which waits for the update."""
    average = v1_variable("average", [3])
    loss = tf.reduce_mean(tf.square(tf.reduce_sum(x * w, 1) - 1.0))
    train = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.control_dependencies([train]):
        loss = tf.identity(loss, name="given_back")
    with tf.control_dependencies([loss]):
        return loss, average.assign(w.read_value(), read_value=False)


def rate_after_its_decay(x, w):
    """What decays the rate is run because the rate is read after it, and for nothing else."""
    rate = v1_variable("rate", [], 0.1)
    with tf.control_dependencies([rate.assign(0.9 * rate)]):
        decayed = rate.read_value()
    loss = tf.reduce_mean(tf.square(tf.reduce_sum(x * w, 1) - 1.0))
    return loss, tf.compat.v1.train.MomentumOptimizer(decayed, 0.9).minimize(loss)


def v1_variable(name, shape, value=0.0):
    initializer = tf.compat.v1.constant_initializer(value)
    return tf.compat.v1.get_variable(name, shape, initializer=initializer, trainable=False, use_resource=True)


@pytest.mark.parametrize(
    ("build", "reason"), [(follows_the_loss, "the loss, which every step gives back"), (rate_after_its_decay, None)]
)
def test_what_waits_for_what(build, reason):
    results = []
    for postponed in ((), ("w",)):
        with tf.Graph().as_default() as graph:
            x = tf.compat.v1.placeholder(tf.float32, [None, 3], name="x")
            w = tf.compat.v1.get_variable("w", initializer=tf.ones([3]), use_resource=True)
            loss, step = build(x, w)
        context = caramel.capture(graph, train_op=step, loss=loss)
        said = reason_against_postponing(context.model, ["w"])
        assert reason in said if reason else said is None
        armodel = caramel.ARModel(context, 2, postponed=() if reason else postponed, deterministic=True)
        data = np.random.default_rng(0).normal(size=(STEPS, 4, 3)).astype(np.float32)
        with armodel.session(in_process()) as session:
            losses = [session.step({"x": batch}).loss for batch in data]
            results.append((losses, {name: value.tobytes() for name, value in session.values().items()}))
    assert results[0] == results[1]
