"""Embedding tables of which each worker has some rows: as on one device, and with the bits of whole tables."""

import itertools
import math
import re
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from exact_common import SERIAL, in_process
from exact_matrix import OPTIMIZERS
from exact_plans import random_plan
from exact_steps import Program, alone, fresh, trained, values_of
from variants import in_soak, mostly_in_soak

import caramel
from caramel.analyzers.step.row_updates import row_updates
from caramel.compiler.divided_tables import with_divided_tables
from caramel.errors import InvariantError, PlanError
from caramel.facts import Trace
from caramel.graph.graph import copied
from caramel.graph.shapes import sizes
from caramel.modifiers.aggregate import verify_aggregated
from caramel.modifiers.emission import replica_name
from caramel.modifiers.update_shards import divisions

ROWS, WIDTH, PLACES = 37, 8, 3

WHOLE = {"adafactor", "lamb", "adagrad", "adadelta", "rmsprop", "rmsprop_centered"}
"""Keras' optimizers that look at all rows before they update any; some of them to divide slices."""

V1 = tf.compat.v1.train

TF1_OPTIMIZERS = {
    "GradientDescent": lambda: V1.GradientDescentOptimizer(0.1),
    "Momentum": lambda: V1.MomentumOptimizer(0.1, 0.9),
    "Nesterov": lambda: V1.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "Adagrad": lambda: V1.AdagradOptimizer(0.1),
    "Adam": lambda: V1.AdamOptimizer(0.01),
    "RMSProp": lambda: V1.RMSPropOptimizer(0.01),
    "RMSPropCentered": lambda: V1.RMSPropOptimizer(0.01, momentum=0.5, centered=True),
    "Ftrl": lambda: V1.FtrlOptimizer(0.1),
    "Adadelta": lambda: V1.AdadeltaOptimizer(1.0),
    "ProximalAdagrad": lambda: V1.ProximalAdagradOptimizer(0.1),
    "ProximalGradientDescent": lambda: V1.ProximalGradientDescentOptimizer(0.1),
}


def examples(count=13, steps=5, rows=ROWS, seed=3, dtype=np.float64):
    """Global batches, in which some rows come often, and some are asked for by one worker only."""
    rng = np.random.default_rng(seed)
    often = lambda: np.where(rng.random((count, PLACES)) < 0.4, 3, rng.integers(0, rows, (count, PLACES)))  # noqa: E731
    return [(often().astype(np.int32), rng.normal(size=(count, 1)).astype(dtype)) for _ in range(steps)]


def keras_program(optimizer, rows=ROWS, width=WIDTH, lookups=1, **options):
    """A step with an Embedding of Keras, which is looked up in several times."""

    def make():
        chosen = OPTIMIZERS[optimizer](**options)
        inputs = keras.Input([PLACES], dtype="int32")
        table = keras.layers.Embedding(rows, width, dtype="float64", name="table")
        flat = keras.layers.Flatten(dtype="float64")
        found = [flat(table(inputs))]
        if lookups == 2:
            found.append(flat(table(keras.ops.flip(inputs[:, :2], axis=1))))
        hidden = found[0] if lookups == 1 else keras.layers.Concatenate(dtype="float64")(found)
        dense = keras.layers.Dense(1, "tanh", dtype="float64", bias_initializer="glorot_uniform")
        model = keras.Model(inputs, dense(hidden))
        chosen.build(model.trainable_variables)

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            chosen.apply_gradients(zip(gradients, model.trainable_variables))
            return loss

        specs = [tf.TensorSpec([None, PLACES], tf.int32), tf.TensorSpec([None, 1], tf.float64)]
        return Program(step, specs, {v.path: v for v in [*model.variables, *chosen.variables]})

    return make


def divided(context, plan):
    """The plan with all tables divided that can be."""
    names = row_updates(context.model)[0]
    return replace(plan, transfers=with_divided_tables(plan.transfers, names), proof=())


def check(make, data, workers, seed, together=(), rtol_of_whole=0):
    """A training with divided tables: whole tables under the same plan, in bits, and one device but for rounding."""

    def in_parts(context):
        return {"plan": divided(context, random_plan(context, workers, seed))}

    losses, values, armodel = trained(make, data, workers, in_parts)
    _, whole, _ = trained(make, data, workers, lambda c: {"plan": random_plan(c, workers, seed)})
    for name, value in whole.items():
        np.testing.assert_allclose(values[name], value, rtol=rtol_of_whole, atol=0, err_msg=name)
    want_losses, want = alone(make, data)
    np.testing.assert_allclose(losses, want_losses, rtol=1e-7)
    for name, value in want.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-6, atol=1e-9, err_msg=name)
    is_native = any(transfer.algorithm == "native" for transfer in armodel.plan.transfers)
    for count in () if is_native else together:
        _, got, _ = trained(make, data, workers, in_parts, together=count)
        for name, value in values.items():
            np.testing.assert_array_equal(got[name], value, err_msg=f"{name}, {count} steps in a run")
    return armodel


def assert_memory(armodel, tables=1):
    """Each worker has its rows only, of the table and of its slots, and together they have all."""
    plan, model = armodel.plan, armodel.model
    nodes = {node.name: node for node in armodel.graph_def.node}
    found = divisions(model, plan)
    assert sum(model.variable_by_name[name].kind.value == "parameter" for name in found) == tables
    for name, division in found.items():
        variable = model.variable_by_name[name]
        shapes = [sizes(nodes[f"worker_{r}/{variable.node}"].attr["shape"].shape) for r in range(plan.workers)]
        assert sum(math.prod(shape) for shape in shapes) == variable.size
        assert {shape[1:] for shape in shapes} == {variable.shape[1:]}
        assert max(shape[0] for shape in shapes) - min(shape[0] for shape in shapes) <= 1
        assert division.is_by_rows


@pytest.mark.parametrize("optimizer", mostly_in_soak(sorted(OPTIMIZERS), "adafactor", "amsgrad", "ftrl", "lion"))
def test_keras_optimizer(optimizer):
    if optimizer in WHOLE:
        made = fresh(keras_program(optimizer))
        armodel = caramel.ARModel(caramel.capture(made.step, made.specs), 3, shard_embeddings=True)
        (reason,) = row_updates(armodel.model)[1].values()
        assert not divisions(armodel.model, armodel.plan) and "does not work on one row at a time" in reason
        assert any("1 of 1 embedding tables are not divided" in note and reason in note for note in armodel.plan.notes)
        return
    assert_memory(check(keras_program(optimizer), examples(), 3, seed=1, together=(2,)))


@pytest.mark.parametrize(
    "optimizer, rows, width, workers",
    [
        ("momentum", 7, 4, 3),
        ("adam", 130, 1, 2),
        ("sgd", 1000, 3, 5),
        *in_soak(("momentum", 200, 5, 2), ("momentum", 64, 64, 4)),
        *in_soak(*itertools.product(["sgd", "adam", "ftrl"], [7, 100, 1001], [1, 3, 8, 64], [2, 3, 8])),
    ],
)
def test_tables_of_any_size(optimizer, rows, width, workers):
    rtol = 1e-12 if optimizer == "ftrl" else 0  # of its powers the last bit depends on where in a tensor they are
    check(keras_program(optimizer, rows, width), examples(rows=rows), workers, rows, (3,), rtol)


@pytest.mark.parametrize("seed", [1, *in_soak(*range(2, 30))])
def test_several_lookups_under_random_plans(seed):
    check(keras_program("adam", lookups=2), examples(), 2 + seed % 3, seed, together=(2, 3))


def tf1_session(optimizer, width=WIDTH, **options):
    """A step of TensorFlow 1 with int64 indices and a table whose initial value is given."""
    graph = tf.Graph()
    with graph.as_default(), caramel.capture() as context:
        ids = tf.compat.v1.placeholder(tf.int64, [None, PLACES], "ids")
        y = tf.compat.v1.placeholder(tf.float32, [None, 1], "y")
        first = np.random.default_rng(1).normal(size=(300, width)).astype(np.float32) / math.sqrt(width)
        table = tf.compat.v1.get_variable("table", initializer=first, use_resource=True)
        hidden = tf.reduce_sum(tf.nn.embedding_lookup(table, ids), axis=1)
        weights = tf.compat.v1.get_variable("w", initializer=first[:width, :1], use_resource=True)
        context.loss = tf.reduce_mean((hidden @ weights[: tf.shape(hidden)[1]] - y) ** 2)
        context.train_op = TF1_OPTIMIZERS[optimizer]().minimize(context.loss)
    return context


@pytest.mark.parametrize("width", [5, *in_soak(1, 8, 33)])
@pytest.mark.parametrize("optimizer", mostly_in_soak(TF1_OPTIMIZERS, "Adam", "Ftrl"))
def test_tf1_optimizer(optimizer, width):
    """In deterministic mode with the bits of whole tables, also where a kernel of TensorFlow has a square root."""
    data = [(ids.astype(np.int64), y) for ids, y in examples(14, rows=300, dtype=np.float32)]
    found = {}
    for workers, shard in ((1, False), (3, False), (3, True)):
        armodel = caramel.ARModel(tf1_session(optimizer, width), workers, deterministic=True, shard_embeddings=shard)
        assert bool(divisions(armodel.model, armodel.plan)) == shard, armodel.plan.notes
        with armodel.session(in_process(SERIAL)) as session:
            losses = [session.step({"ids:0": ids, "y:0": y}).loss for ids, y in data]
            found[workers, shard] = losses, session.values()
    assert_memory(armodel)
    one, whole, apart = found[1, False], found[3, False], found[3, True]
    np.testing.assert_allclose(apart[0], one[0], rtol=1e-5)
    for name, value in one[1].items():
        np.testing.assert_array_equal(apart[1][name], whole[1][name], err_msg=name)
        np.testing.assert_allclose(apart[1][name], value, rtol=1e-4, atol=1e-6, err_msg=name)


# -- state, evaluations, and `fit` ---------------------------------------------------------------


def sessions(workers, optimizer="adam", **options):
    """A program, and its model for some workers with divided tables."""
    made = fresh(keras_program(optimizer))
    context = caramel.capture(made.step, made.specs, **made.options)
    return made, caramel.ARModel(context, workers, shard_embeddings=workers > 1, **options)


def test_state_goes_to_another_number_of_workers_and_back(tmp_path):
    """Through checkpoints with the names and shapes of one device: 2 workers, 4, one, and 3 with `assign`."""
    data = examples(steps=4)
    want_losses, want = alone(keras_program("adam"), data)
    for number, workers in enumerate((2, 4, 1, 3)):
        made, armodel = sessions(workers)
        with armodel.session(in_process()) as session:
            if number:
                session.restore(tmp_path / f"after_{number - 1}")
            assert session.step(*data[number]).loss == pytest.approx(want_losses[number], rel=1e-7)
            values = session.values()
            session.save(tmp_path / f"after_{number}")
            session.write_back()
        assert {name: value.shape for name, value in values.items()} == {
            v.name: v.shape for v in armodel.model.variables if v.saved
        }
    for name, value in values_of(made).items():
        np.testing.assert_allclose(value, want[name], rtol=1e-6, atol=1e-9, err_msg=name)
    _, armodel = sessions(3)
    with armodel.session(in_process()) as session:
        session.assign(values)
        for name, value in session.values().items():
            np.testing.assert_array_equal(value, values[name], err_msg=name)


def small(optimizer=None, rows=50):
    """A compiled Keras model with a table."""
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(3)
    table = keras.layers.Embedding(rows, 4, name="table")
    model = keras.Sequential([keras.Input([PLACES], dtype="int32"), table, keras.layers.Flatten()])
    model.add(keras.layers.Dense(1, name="last"))
    model.compile(optimizer or keras.optimizers.Adam(0.01), "mse")
    return model


def captured(model, **options):
    """The step of a compiled model on arrays, as a program."""
    model.optimizer.build(model.trainable_variables)
    specs = [tf.TensorSpec([None, PLACES], tf.int32), tf.TensorSpec([None, 1])]
    return caramel.capture(tf.function(lambda x, y: model.train_step((x, y))), specs, **options)


def test_fit_with_divided_tables_is_fit():
    x, y = (np.concatenate(arrays) for arrays in zip(*examples(12, 3, 50, dtype=np.float32)))
    made, plain = small(), small()
    options = {"batch_size": 8, "epochs": 3, "shuffle": False, "verbose": 0, "validation_data": (x[:8], y[:8])}
    history = caramel.fit(made, x, y, workers=4, shard_embeddings=True, **options)
    want = plain.fit(x, y, **options)
    assert [t.algorithm for t in history.plan.transfers].count("owners") == 1
    for name, values in want.history.items():
        np.testing.assert_allclose(history.history[name], values, rtol=1e-5, err_msg=name)
    for got, expected in zip(made.variables + made.optimizer.variables, plain.variables + plain.optimizer.variables):
        np.testing.assert_allclose(got.numpy(), expected.numpy(), rtol=1e-4, atol=1e-7, err_msg=got.path)
    np.testing.assert_allclose(
        caramel.predict(made, x, workers=3, verbose=0, batch_size=8), plain.predict(x, verbose=0), rtol=1e-4, atol=1e-6
    )


def test_evaluations_see_whole_tables():
    (x, y), *_ = examples(12, 1, 50, dtype=np.float32)
    model = small()
    table = model.get_layer("table").embeddings

    def look_up(ids):
        return {"rows": tf.gather(tf.convert_to_tensor(table), ids), "size": tf.shape(tf.convert_to_tensor(table))}

    context = captured(model, evaluation=look_up, evaluation_inputs=[tf.TensorSpec([None], tf.int32)])
    with caramel.ARModel(context, 3, shard_embeddings=True).session(in_process()) as session:
        session.step(x, y)
        values = session.values()
        seen = session.evaluate(np.arange(50, dtype=np.int32))
    np.testing.assert_array_equal(seen["rows"], values["sequential/table/embeddings"])
    np.testing.assert_array_equal(seen["size"], [50, 4])


@pytest.mark.parametrize("together", [1, 2])
@pytest.mark.parametrize("rows, worker, row", [([3, 50], 1, 50), ([-1, 0], 0, -1), ([53, 7], 0, 53), ([7, -4], 1, -4)])
def test_rows_that_are_not_there_are_refused_as_on_one_device(rows, worker, row, together):
    """Under their own numbers, which their owners do not know."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), caramel.capture() as context:
        ids = v1.placeholder(tf.int32, [None], "ids")
        table = v1.get_variable("table", initializer=np.ones([50, 4], np.float32), use_resource=True)
        context.loss = tf.reduce_mean(tf.nn.embedding_lookup(table, ids) ** 2)
        context.train_op = V1.GradientDescentOptimizer(0.1).minimize(context.loss)
    armodel = caramel.ARModel(context, 2, shard_embeddings=True)
    assert divisions(armodel.model, armodel.plan)
    message = rf"is not in \[0, 25\).*\(worker {worker} looks up row {row} of 'table', which has 50\)"
    with armodel.session(in_process()) as session, pytest.raises(caramel.StepError, match=message):
        session.run([{"ids:0": np.array(rows, np.int32)}] * 2, steps_per_execution=together, progress=False)


@pytest.mark.slow
@pytest.mark.processes
def test_over_processes():
    data = examples()
    _, want = alone(keras_program("momentum"), data)
    made, armodel = sessions(3, "momentum")
    with armodel.session(caramel.LocalProcesses()) as session:
        session.run(data, steps_per_execution=2, progress=False)
        session.write_back()
    for name, value in values_of(made).items():
        np.testing.assert_allclose(value, want[name], rtol=1e-6, atol=1e-9, err_msg=name)


# -- plans ---------------------------------------------------------------------------------------


def test_a_plan_says_what_is_divided_and_can_be_edited(tmp_path):
    _, armodel = sessions(3)
    plan, context = armodel.plan, armodel.context
    (number,) = (n for n, transfer in enumerate(plan.transfers) if transfer.algorithm == "owners")
    assert "1 divided embedding table: " in plan.table() and "owners" in plan.table()
    assert "each row of 1 embedding tables is on one worker" in " ".join(plan.proof)
    assert "the rows of the table that it has" in plan.explain(plan.transfers[number].gradients[0])
    plan.save(tmp_path / "plan.json")
    assert caramel.ARModel(context, 3, plan=tmp_path / "plan.json").plan.transfers == plan.transfers
    transfers = [replace(transfer, algorithm="owners") for transfer in plan.transfers]
    with pytest.raises(PlanError, match="all_gather and owners are for sparse ones"):
        caramel.ARModel(context, 3, plan=replace(plan, transfers=tuple(transfers), proof=()))
    _, other = sessions(3, "adamw")
    assert "owners" in {transfer.algorithm for transfer in other.plan.transfers}
    with pytest.raises(PlanError, match="divides the table of .*deterministic"):
        caramel.ARModel(other.context, 3, plan=replace(other.plan, deterministic=True, proof=()))


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"clipnorm": 0.1}, "does not work on one row at a time"),
        ({"global_clipnorm": 0.1}, "does not work on one row at a time"),
        ({"gradient_accumulation_steps": 2}, "in a branch|one row|another type|adds up several"),
    ],
)
def test_what_cannot_be_divided_is_said(options, reason):
    plan = caramel.ARModel(captured(small(keras.optimizers.Adam(0.01, **options))), 3, shard_embeddings=True).plan
    (note,) = (note for note in plan.notes if "embedding table" in note)
    assert "owners" not in {transfer.algorithm for transfer in plan.transfers}
    assert "is divided" in note or re.search(f"1 of 1 .*({reason})", note), note


def own_step(body):
    """A step with a table and a sparse update of its own."""
    table = tf.Variable(np.random.default_rng(2).normal(size=(40, 8)), name="table")

    def step(ids):
        with tf.GradientTape() as tape:
            rows = tf.gather(table, ids)
            loss = tf.reduce_mean(tf.reduce_sum(rows**2, axis=-1))
        return body(table, loss, tape.gradient(loss, table), ids)

    return table, step


def scattered(table, loss, gradient, ids):
    table.scatter_sub(tf.IndexedSlices(0.1 * gradient.values, gradient.indices))
    return loss


def looked_up_without_a_gradient(table, loss, gradient, ids):
    seen = tf.reduce_mean(tf.gather(table, (ids * 7 + 3) % 40))
    table.scatter_sub(tf.IndexedSlices(0.1 * gradient.values, gradient.indices))
    return loss + seen


def looked_up_again(table, loss, gradient, ids):
    table.scatter_sub(tf.IndexedSlices(0.1 * gradient.values, gradient.indices))
    return loss + 0.0 * tf.reduce_mean(tf.gather(table, ids))


def all_of_it_given_back(table, loss, gradient, ids):
    table.scatter_sub(tf.IndexedSlices(0.1 * gradient.values, gradient.indices))
    return {"loss": loss, "table": table.read_value()}


def by_its_norm(table, loss, gradient, ids):
    table.scatter_sub(tf.IndexedSlices(0.1 * gradient.values / tf.norm(gradient.values), gradient.indices))
    return loss


OWN = {
    scattered: "",
    looked_up_without_a_gradient: "",
    looked_up_again: "looks up rows after their update",
    all_of_it_given_back: "each step gives back the result of op",
    by_its_norm: "does not work on one row at a time",
}


@pytest.mark.parametrize("body", OWN)
def test_steps_of_one_s_own(body):
    data = [np.random.default_rng(seed).integers(0, 40, (8, 2)).astype(np.int32) for seed in range(4)]
    table, step = own_step(body)
    losses = [step(tf.constant(ids)) for ids in data]
    again, step = own_step(body)
    loss = "loss" if body is all_of_it_given_back else None
    context = caramel.capture(step, [tf.TensorSpec([None, 2], tf.int32)], loss=loss, loss_reduction="mean")
    armodel = caramel.ARModel(context, 4, shard_embeddings=True)
    reasons = row_updates(armodel.model)[1]
    assert bool(divisions(armodel.model, armodel.plan)) == (not OWN[body]), reasons
    assert not OWN[body] or OWN[body] in reasons["table"]
    with armodel.session(in_process()) as session:
        for ids, want in zip(data, losses):
            got = session.step(ids)
            np.testing.assert_allclose(got.loss, want["loss"] if loss else want, rtol=1e-9)
        np.testing.assert_allclose(session.values()["table"], table.numpy(), rtol=1e-9)


@pytest.mark.parametrize("how", ["embedding_lookup", "int16", "partly"])
@pytest.mark.parametrize("workers", [2, 3])
def test_other_ways_to_look_up(how, workers):
    """By `tf.nn.embedding_lookup` in a tf.function, by indices that TensorFlow's gathers from variables do not take, and
    with an update of some rows only, chosen by a vector, which is not one of rows."""
    data = [np.random.default_rng(seed).integers(0, 40, (12, 2)).astype(np.int32) for seed in range(4)]

    def build():
        table = tf.Variable(np.random.default_rng(2).normal(size=(40, 8)), name="table")
        is_free = tf.constant(np.arange(40) % 3 > 0)

        @tf.function
        def step(ids):
            with tf.GradientTape() as tape:
                if how == "int16":
                    rows = tf.gather(tf.convert_to_tensor(table), tf.cast(ids, tf.int16))
                else:
                    rows = tf.nn.embedding_lookup(table, ids)
                loss = tf.reduce_mean(tf.reduce_sum(rows**2, axis=-1))
            gradient = tape.gradient(loss, table)
            values, indices = 0.1 * gradient.values, tf.cast(gradient.indices, tf.int32)
            if how == "partly":
                values = tf.raw_ops.Select(condition=tf.gather(is_free, indices), x=values, y=0.0 * values)
            table.scatter_sub(tf.IndexedSlices(values, indices))
            return loss

        return table, step

    table, step = build()
    for ids in data:
        step(tf.constant(ids))
    again, step = build()
    context = caramel.capture(step, [tf.TensorSpec([None, 2], tf.int32)])
    for shard in (False, True):
        armodel = caramel.ARModel(context, workers, shard_embeddings=shard)
        assert bool(divisions(armodel.model, armodel.plan)) == (shard and how != "partly"), armodel.plan.notes
        with armodel.session(in_process()) as session:
            for ids in data:
                session.step(ids)
            np.testing.assert_allclose(session.values()["table"], table.numpy(), rtol=1e-9)


@pytest.mark.parametrize("shard", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
def test_rows_that_a_program_looks_up_once(optimizer, shard):
    """One device has one slice for each row then, whose square is that of a sum; so the workers' slices are added up."""

    def make():
        chosen = OPTIMIZERS[optimizer]()
        start = np.random.default_rng(4).normal(size=(ROWS, WIDTH))
        table = keras.Variable(start, dtype="float64", name="table")
        chosen.build([table])

        def step(ids, y):
            with tf.GradientTape() as tape:
                different, places = tf.unique(tf.reshape(ids, [-1]))
                rows = tf.gather(tf.gather(tf.convert_to_tensor(table), different), tf.reshape(places, tf.shape(ids)))
                loss = tf.reduce_mean((tf.reduce_sum(rows, axis=[1, 2]) - y[:, 0]) ** 2)
            chosen.apply_gradients(zip(tape.gradient(loss, [table.value]), [table]))
            return loss

        specs = [tf.TensorSpec([None, PLACES], tf.int32), tf.TensorSpec([None, 1], tf.float64)]
        variables = {v.path: v for v in [table, *chosen.variables]}
        return Program(step, specs, variables, {"loss_reduction": "mean"})

    data = examples(12)
    want_losses, want = alone(make, data)
    made = fresh(make)
    context = caramel.capture(made.step, made.specs, **made.options)
    armodel = caramel.ARModel(context, 3, shard_embeddings=shard)
    assert bool(divisions(armodel.model, armodel.plan)) == (shard and optimizer != "adagrad")
    with armodel.session(in_process()) as session:
        losses = [session.step(*batch).loss for batch in data]
        session.write_back()
    np.testing.assert_allclose(losses, want_losses, rtol=1e-7)
    for name, value in values_of(made).items():
        np.testing.assert_allclose(value, want[name], rtol=1e-6, atol=1e-9, err_msg=name)


def traced(model, rows_bytes, slices_s):
    """A trace of a step that sends so many bytes of slices, and takes so long for each op of their update."""
    (gradient,) = (g for g in model.gradients if g.is_sparse)
    (update,) = row_updates(model)[0].values()
    op_s = {node.name: 1e-6 for node in model.graph}
    op_s |= dict.fromkeys(update.nodes, slices_s)
    op_bytes = {gradient.tensor.split(":")[0]: rows_bytes, gradient.indices.split(":")[0]: rows_bytes // 8}
    op_bytes |= {lookup.node: rows_bytes for lookup in update.lookups}
    step_s = sum(op_s.values())
    return Trace(model.digest, op_s, op_bytes, step_s, step_s, 2, 1, None, "by hand")


@pytest.mark.parametrize("workers, rows_bytes, is_divided", [*in_soak((8, 4_000_000, True)), (2, 400, False)])
def test_the_plan_divides_where_that_is_predicted_to_be_faster(workers, rows_bytes, is_divided):
    """Many rows and many workers: all-gathered, each worker gets the rows of all others."""
    context = captured(small())
    network = caramel.NetworkModel.from_costs(1e-3, 1e-9)
    trace = traced(context.model, rows_bytes, 1e-7)
    plans = {
        how: caramel.ARModel(context, workers, trace=trace, network=network, shard_embeddings=how).plan
        for how in (False, "all", "auto", None)
    }
    steps_s = {how: plan.prediction.timeline.iteration_s for how, plan in plans.items()}
    found = {how: "owners" in {t.algorithm for t in plan.transfers} for how, plan in plans.items()}
    assert found == {False: False, "all": True, "auto": is_divided, None: is_divided}
    assert steps_s["auto"] == min(steps_s[False], steps_s["all"]) and (steps_s["all"] < steps_s[False]) == is_divided
    assert plans[None] == plans["auto"]
    (note,) = (note for note in plans["auto"].notes if "embedding table" in note)
    assert ("are divided: predicted" in note) == is_divided
    unknown = caramel.ARModel(context, workers, shard_embeddings="auto").plan
    assert "no embedding table is divided: nothing is predicted" in " ".join(unknown.notes)


@pytest.mark.parametrize("options", [{}, {"policy": "paper"}, {"network": None}])
def test_what_divides_no_table_unasked(options):
    """Nothing is predicted, or it is said how to choose; and the plan says nothing of it."""
    context = captured(small())
    known = {"network": caramel.NetworkModel.from_costs(1e-3, 1e-9)} if options else {}
    if options.keys() & {"policy", "network"}:
        known["trace"] = traced(context.model, 4_000_000, 1e-7)
    plan = caramel.ARModel(context, 8, **{**known, **options}).plan
    assert "owners" not in {t.algorithm for t in plan.transfers}
    assert not [note for note in plan.notes if "embedding table" in note]


def test_tables_and_updates_are_divided_together():
    data = examples()
    _, want = alone(keras_program("adam"), data)
    made, armodel = sessions(3, shard_updates=True)
    assert armodel.plan.sharded and "owners" in {t.algorithm for t in armodel.plan.transfers}
    with armodel.session(in_process()) as session:
        session.run(data, steps_per_execution=2, progress=False)
        session.write_back()
    for name, value in values_of(made).items():
        np.testing.assert_allclose(value, want[name], rtol=1e-6, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("value", ["some", 2, ["table"]])
def test_values_that_shard_embeddings_does_not_take(value):
    _, armodel = sessions(2)
    with pytest.raises(caramel.InputError, match="shard_embeddings must be 'all' or 'auto' or 'none'"):
        caramel.ARModel(armodel.context, 2, shard_embeddings=value)
    with pytest.raises(caramel.InputError, match="leave out shard_embeddings="):
        caramel.ARModel(armodel.context, 2, shard_embeddings=True, plan=armodel.plan)


def test_a_program_without_tables():
    model = keras.Sequential([keras.Input([PLACES]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    specs = [tf.TensorSpec([None, PLACES]), tf.TensorSpec([None, 1])]
    context = caramel.capture(tf.function(lambda x, y: model.train_step((x, y))), specs)
    plan = caramel.ARModel(context, 2, shard_embeddings=True).plan
    assert "no embedding table is divided: there is none with a sparse gradient" in plan.notes


@pytest.mark.parametrize("is_whole", [True, False])
def test_no_row_is_updated_before_it_was_looked_up(is_whole):
    """Also where a lookup has no gradient, so that only an edge keeps the update behind it."""
    _, step = own_step(looked_up_without_a_gradient)
    context = caramel.capture(step, [tf.TensorSpec([None, 2], tf.int32)], loss_reduction="mean")
    emission = caramel.ARModel(context, 3, shard_embeddings=True).distributed.emission
    (table,) = row_updates(emission.model)[0].values()
    name = replica_name(1, table.writers[0])
    edges = [text for text in emission.graph[name].input if text.startswith("^") and "/lookup_1/" in text]
    assert len(edges) == 3
    kept = [text for text in emission.graph[name].input if is_whole or text != edges[2]]
    emission = emission.extended([], {name: copied(emission.graph[name], kept)})
    if is_whole:
        assert verify_aggregated(emission) is emission
        return
    with pytest.raises(InvariantError, match=f"{name}' may update rows before '{edges[2][1:]}' has them"):
        verify_aggregated(emission)
