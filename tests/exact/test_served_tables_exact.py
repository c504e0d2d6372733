"""Tables of which each parameter server has some rows: the bits of all-reduces, in any number of parts."""

import re
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from exact_common import in_process
from exact_matrix import OPTIMIZERS, SOME_OPTIMIZERS
from exact_servers import NETWORK, THREADS, assert_bits, assert_close, check, reduced, run, served, traced, with_homes
from exact_steps import Program, alone, captured, fresh, values_of
from test_divided_tables_exact import OWN, TF1_OPTIMIZERS, WHOLE, examples, keras_program, own_step
from variants import in_soak, mostly_in_soak

import caramel
from caramel.analyzers.servers.split import split_step
from caramel.errors import PlanError
from caramel.graph.shapes import sizes
from caramel.server_plan import ServerPart


def home_of(plan, name="table"):
    """The home of the table."""
    return next(home for home in plan.servers.homes if home.variables[0].startswith(name))


def assert_rows(model, name="table"):
    """Each server has its rows only, of the table and of its slots, and together they have all."""
    home, nodes = home_of(model.plan, name), {node.name: node for node in model.graph_def.node}
    assert home.rows and not home.sizes
    for variable in (v for v in model.model.variables if v.plan_name in home.variables):
        shapes = [sizes(nodes[f"server_{server}/{variable.node}"].attr["shape"].shape) for server in home.servers]
        assert [shape[0] for shape in shapes] == [*home.rows] and sum(home.rows) == variable.shape[0]
        assert {shape[1:] for shape in shapes} == {variable.shape[1:]}
        assert max(home.rows) - min(home.rows) <= 1


def assert_no_whole_table(model, name="table"):
    """No op of a step reads all of the table, or of what a server has of it."""
    home = home_of(model.plan, name)
    (table,) = (v for v in model.model.variables if v.plan_name == home.variables[0])
    handles = {f"server_{server}/{table.node}" for server in home.servers}
    of_step = model.distributed.emission.graph.ancestors([f"caramel/server_{s}/step" for s in home.servers])
    readers = [n for n in model.graph_def.node if n.name in of_step and handles & {*n.input}]
    assert readers and not [n.name for n in readers if n.op == "ReadVariableOp"]
    assert home.pulled_bytes == 0 and table.plan_name not in model.plan.servers.pulls


NO_BITS = {"adamax", "adamw", "ftrl", "nadam"}
"""Optimizers whose updates TensorFlow may group otherwise in a part, so that deterministic mode keeps them whole."""

LOOKED_UP = {"momentum", "sgd"}
"""Optimizers whose updates read no more of a table than some rows."""


@pytest.mark.parametrize("servers", [2, *in_soak(3)])
@pytest.mark.parametrize(
    "optimizer",
    mostly_in_soak(
        sorted(OPTIMIZERS.keys() - {"rmsprop_centered"}),  # Keras' looks up too far
        *(name for name in SOME_OPTIMIZERS if name != "rmsprop_centered"),
    ),
)
def test_an_optimizer_of_keras(optimizer, servers):
    make, data = keras_program(optimizer), examples()
    model = check(make, data, 3, servers, unmoved=None)
    if optimizer in NO_BITS:
        assert not home_of(model.plan).is_divided
        got, model = served(make, data, 3, servers, deterministic=False)
        assert_close(got, alone(make, data))
    if optimizer in WHOLE:
        assert not home_of(model.plan).is_divided
        return
    assert_rows(model)
    if optimizer in LOOKED_UP:
        assert_no_whole_table(model)


@pytest.mark.parametrize(
    "rows, width, workers, servers",
    [(7, 1, 2, 3), (2, 5, 3, 4), (1, 8, 2, 2), (9, 3, 1, 2), *in_soak((64, 33, 1, 3), (5, 4, 4, 5), (101, 7, 5, 3))],
)
def test_tables_of_any_size(rows, width, workers, servers):
    """Also with fewer rows than servers, and one row."""
    rng = np.random.default_rng(1)
    data = [(rng.integers(0, rows, (11, 3)).astype(np.int32), rng.normal(size=(11, 1))) for _ in range(4)]
    model = check(keras_program("adam", rows=rows, width=width), data, workers, servers, unmoved=None)
    assert len(home_of(model.plan).parts) == min(rows, servers)


@pytest.mark.parametrize("together", [1, 2])
def test_several_lookups_and_steps_in_one_run(together):
    make, data = keras_program("momentum", lookups=2), examples(steps=4)
    got, model = served(make, data, 3, 2, together)
    assert len(split_step(model.model).lookups) == 2
    assert_rows(model)
    assert_no_whole_table(model)
    assert_bits(got, reduced(make, data, 3))


@pytest.mark.parametrize("total", [12, 7])
def test_batches_that_do_not_divide_evenly(total):
    make, data = keras_program("adam"), examples(total)
    assert_rows(check(make, data, 5, 3, unmoved=None))


@pytest.mark.parametrize("name", mostly_in_soak([*TF1_OPTIMIZERS], "Adam", "Ftrl", "RMSPropCentered"))
def test_an_optimizer_of_tensorflow_1(name):
    def make():
        start = np.random.default_rng(4).normal(size=(31, 5))
        table, bias = tf.Variable(start, name="table"), tf.Variable(0.5, dtype="float64", name="bias")
        optimizer = TF1_OPTIMIZERS[name]()

        def step(ids, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.reduce_sum(tf.gather(table, ids), axis=[1, 2]) + bias - y[:, 0]) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, [table, bias]), [table, bias]))
            return loss

        step(tf.zeros([1, 3], tf.int32), tf.zeros([1, 1], tf.float64))  # makes the slots
        table.assign(start)
        bias.assign(0.5)
        for variable in optimizer.variables():
            variable.assign(tf.fill(variable.shape, tf.cast(0.1, variable.dtype)))
        slots = {v.name: v for v in optimizer.variables()}
        specs = [tf.TensorSpec([None, 3], tf.int32), tf.TensorSpec([None, 1], tf.float64)]
        return Program(step, specs, {"table": table, "bias": bias, **slots})

    data = examples(11, rows=31)
    want = reduced(make, data, 3)
    got, model = served(make, data, 3, 2)
    assert_rows(model)
    assert_bits(got, want)


@pytest.mark.parametrize("body", OWN)
def test_a_step_of_ones_own(body):
    """With one server, which has all of the table, whatever the step does with it."""
    data = [np.random.default_rng(seed).integers(0, 40, (8, 2)).astype(np.int32) for seed in range(4)]
    table, step = own_step(body)
    losses = [step(tf.constant(ids)) for ids in data]
    _, again = own_step(body)
    loss = "loss" if isinstance(losses[0], dict) else None
    context = caramel.capture(again, [tf.TensorSpec([None, 2], tf.int32)], loss=loss, loss_reduction="mean")
    model = caramel.PSModel(context, 4, 1)
    with model.session(in_process(THREADS)) as session:
        for ids, want in zip(data, losses):
            got = session.step(ids)
            np.testing.assert_allclose(got.loss, want["loss"] if loss else want, rtol=1e-9)
            if loss:
                np.testing.assert_allclose(got.outputs["table"][0], want["table"], rtol=1e-9)
        np.testing.assert_allclose(session.values()["table"], table.numpy(), rtol=1e-9)


def two_variables(body):
    """The same steps beside a bias, so that there can be two servers."""

    def make():
        table = tf.Variable(np.random.default_rng(2).normal(size=(40, 8)), name="table")
        bias = tf.Variable(np.full(8, 0.3), name="bias")

        def step(ids):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.reduce_sum((tf.gather(table, ids) + bias) ** 2, axis=[1, 2]))
            gradient, of_bias = tape.gradient(loss, [table, bias])
            bias.assign_sub(0.01 * of_bias)
            return body(table, loss, gradient, ids)

        return Program(step, [tf.TensorSpec([None, 2], tf.int32)], {"table": table, "bias": bias})

    return make


def rows_squared_given_back(table, loss, gradient, ids):
    table.scatter_sub(tf.IndexedSlices(0.1 * gradient.values, gradient.indices))
    return {"loss": loss, "squares": tf.reduce_sum(gradient.values**2)}


def read_twice(table, loss, gradient, ids):
    """A second lookup, by a read of its own, which comes before the update without needing it."""
    seen = tf.reduce_mean(tf.gather(tf.convert_to_tensor(table), (ids * 7 + 3) % 40))
    table.scatter_sub(tf.IndexedSlices(0.1 * gradient.values, gradient.indices))
    return loss + seen


def read_for_all_of_it(table, loss, gradient, ids):
    """A read of which rows are looked up, and whose mean is taken, too."""
    value = tf.convert_to_tensor(table)
    seen = tf.reduce_mean(tf.gather(value, (ids * 7 + 3) % 40)) + 0.1 * tf.reduce_mean(value)
    table.scatter_sub(tf.IndexedSlices(0.1 * gradient.values, gradient.indices))
    return loss + seen


def columns_of_a_read(table, loss, gradient, ids):
    """A lookup along the second axis, which is not one of rows."""
    seen = tf.reduce_mean(tf.gather(tf.convert_to_tensor(table), ids % 8, axis=1))
    table.scatter_sub(tf.IndexedSlices(0.1 * gradient.values, gradient.indices))
    return loss + seen


def looked_up_by_what_was_updated(table, loss, gradient, ids):
    """The read is before the update, and the rows that are looked up in it depend on the updated table."""
    value = tf.convert_to_tensor(table)
    table.scatter_sub(tf.IndexedSlices(0.1 * gradient.values, gradient.indices))
    row = tf.cast(tf.abs(table.read_value()[0, 0]) * 10, tf.int32) % 40
    return loss + tf.reduce_mean(tf.gather(value, (ids + row) % 40))


def entries_of_rows(table, loss, gradient, ids):
    """A lookup of numbers in rows, by pairs."""
    seen = tf.reduce_mean(table.gather_nd(tf.stack([ids[:, 0], ids[:, 1] % 8], axis=1)))
    table.scatter_sub(tf.IndexedSlices(0.1 * gradient.values, gradient.indices))
    return loss + seen


BESIDE = {
    **{body: not reason for body, reason in OWN.items()},
    rows_squared_given_back: False,
    read_twice: True,
    read_for_all_of_it: False,
    columns_of_a_read: False,
    looked_up_by_what_was_updated: False,
    entries_of_rows: False,
}


@pytest.mark.parametrize("body", BESIDE, ids=lambda body: body.__name__)
def test_a_step_of_ones_own_on_two_servers(body):
    make = two_variables(body)
    data = [(np.random.default_rng(seed).integers(0, 40, (8, 2)).astype(np.int32),) for seed in range(4)]
    made = fresh(make)
    loss = "loss" if body.__name__ in ("rows_squared_given_back", "all_of_it_given_back") else None
    options = {"loss": loss, "loss_reduction": "mean"}
    context = caramel.capture(made.step, made.specs, **options)
    model = caramel.PSModel(context, 4, 2, deterministic=True)
    assert bool(home_of(model.plan).rows) == BESIDE[body], model.plan.explain("table")
    other = fresh(make)
    whole = caramel.ARModel(caramel.capture(other.step, other.specs, **options), 4, deterministic=True)
    assert_bits(run(made, model, data), run(other, whole, data))
    device = fresh(make)
    for (ids,) in data:
        device.step(tf.constant(ids))
    for name, value in values_of(device).items():
        np.testing.assert_allclose(values_of(made)[name], value, rtol=1e-9, err_msg=name)


@pytest.mark.parametrize("how", ["int16", "int64", "unsigned"])
def test_other_indices(how):
    """Of a read of the whole table, with types that gathers from variables do not all take."""
    dtype = {"int16": tf.int16, "int64": tf.int64, "unsigned": tf.uint16}[how]

    def make():
        table = tf.Variable(np.random.default_rng(2).normal(size=(40, 8)), name="table")
        bias = tf.Variable(np.full(8, 0.3), name="bias")

        def step(ids):
            with tf.GradientTape() as tape:
                rows = tf.gather(tf.convert_to_tensor(table), tf.cast(ids, tf.int32 if how == "unsigned" else dtype))
                loss = tf.reduce_mean(tf.reduce_sum((rows + bias) ** 2, axis=[1, 2]))
            gradient, of_bias = tape.gradient(loss, [table, bias])
            bias.assign_sub(0.01 * of_bias)
            table.scatter_sub(tf.IndexedSlices(0.1 * gradient.values, tf.cast(gradient.indices, tf.int32)))
            return loss

        return Program(step, [tf.TensorSpec([None, 2], tf.int32)], {"table": table, "bias": bias})

    data = [(np.random.default_rng(seed).integers(0, 40, (8, 2)).astype(np.int32),) for seed in range(3)]
    model = check(make, data, 4, 2)
    assert_rows(model)


@pytest.mark.parametrize("source, target", [(2, 3), (3, 0), (0, 2), *in_soak((2, 1), (1, 2))])
def test_checkpoints_between_numbers_of_servers(source, target, tmp_path):
    """Also to and from all-reduces, whose tables are whole."""
    make, data = keras_program("adam"), examples(steps=6)
    _, context = captured(make)

    def model_of(servers):
        if servers:
            return caramel.PSModel(context, 3, servers, deterministic=True)
        return caramel.ARModel(context, 3, deterministic=True)

    with model_of(source).session(in_process(THREADS)) as session:
        session.run(data[:3], progress=False)
        session.save(tmp_path / "half")
        saved = session.values()
        losses = [result.loss for result in session.run(data[3:], progress=False)]
        want = losses, session.values()
    with model_of(target).session(in_process(THREADS)) as session:
        session.run(data[:1], progress=False)
        session.restore(tmp_path / "half")
        assert_bits(([], session.values()), ([], saved))
        losses = [result.loss for result in session.run(data[3:], progress=False)]
        assert_bits((losses, session.values()), want)


def test_values_that_are_assigned():
    make, data = keras_program("adam"), examples(steps=2)
    made, context = captured(make)
    rows = np.random.default_rng(9).normal(size=(37, 8))
    found = {}
    for servers in (0, 2):
        kind = {"servers": servers} if servers else {}
        with caramel.ARModel(context, 3, deterministic=True, **kind).session(in_process(THREADS)) as session:
            session.run(data, progress=False)
            session.assign({"table/embeddings": rows})
            np.testing.assert_array_equal(session.values()["table/embeddings"], rows)
            losses = [result.loss for result in session.run(data, progress=False)]
            found[servers] = losses, session.values()
    assert_bits(found[2], found[0])


@pytest.mark.parametrize("rows, worker, row", [([3, 37], 1, 37), ([53, 7], 0, 53)])
@pytest.mark.parametrize("servers", [1, 2])
def test_rows_that_are_not_there_are_refused_as_on_one_device(servers, rows, worker, row):
    _, context = captured(keras_program("sgd"))
    model = caramel.PSModel(context, 2, servers, deterministic=True)
    with model.session(in_process(THREADS)) as session:
        ids = np.array([[n] * 3 for n in rows], np.int32)
        with pytest.raises(caramel.StepError, match=re.escape(f"worker {worker} looks up row {row} of 'table/embed")):
            session.step(ids, np.zeros((2, 1)))


def test_rows_that_are_counted_from_the_end_are_found():
    """As Keras does; so the last row of the table is that of -1."""
    data = [(np.array([[-1, 0, -37], [36, -2, 5]], np.int32), np.ones((2, 1)))] * 2
    got, model = served(keras_program("sgd"), data, 2, 2)
    assert_rows(model)
    assert_bits(got, reduced(keras_program("sgd"), data, 2))


# -- reads of a whole table that are no lookups of rows ------------------------------------------


class Whole:
    """A table that is read as a whole, another one, and what a step does with them."""

    def __init__(self):
        self.table = tf.Variable(np.arange(80.0).reshape(40, 2) / 100, name="table")
        self.other = tf.Variable(np.arange(80.0).reshape(40, 2) / 50, name="other")
        self.bias = tf.Variable(np.full(2, 0.3), name="bias")
        self.count = tf.Variable(0, name="count", trainable=False)

    def loss(self, rows):
        return tf.reduce_mean(tf.reduce_sum((rows + self.bias) ** 2, axis=-1))

    def train(self, ids, rows_of, learned=("table", "bias")):
        variables = [getattr(self, name) for name in learned]
        with tf.GradientTape() as tape:
            loss = self.loss(rows_of(ids))
        for variable, gradient in zip(variables, tape.gradient(loss, variables)):
            variable.assign_sub(0.01 * tf.convert_to_tensor(gradient))
        return loss

    def by_what_counts(self, ids):
        """A read gives the place in a constant, and the rows of a table that was read."""
        schedule = tf.constant([1.0, 0.5, 0.25, 0.125], tf.float64)
        place = tf.convert_to_tensor(self.count)
        row = lambda ids: tf.gather(tf.convert_to_tensor(self.table), place) + 0.0 * tf.cast(ids, tf.float64)  # noqa: E731
        loss = self.train(ids, row) * tf.gather(schedule, place)
        self.count.assign_add(1)
        return loss

    def by_what_follows(self, ids):
        """The indices follow from a variable that the step writes, so that only servers have them."""
        following = (self.count + 1) % 4
        row = lambda ids: tf.gather(tf.convert_to_tensor(self.table), following) + 0.0 * tf.cast(ids, tf.float64)  # noqa: E731
        loss = self.train(ids, row)
        self.count.assign(following)
        return loss

    def after_a_branch(self, ids):
        """The table is written in a branch that only some steps take, and read after that."""

        def shrink():
            self.table.assign(self.table * 0.9)
            return tf.constant(1.0)

        with tf.control_dependencies([tf.cond(self.count % 2 == 0, shrink, lambda: tf.constant(0.0))]):
            loss = self.train(ids, lambda ids: tf.gather(tf.convert_to_tensor(self.table), ids[:, 0]))
        self.count.assign_add(1)
        return loss

    def crossed(self, ids):
        """Each table is looked up, as it was at first, by what the update of the other one gives."""
        table, other = tf.convert_to_tensor(self.table), tf.convert_to_tensor(self.other)
        loss = self.train(ids, lambda ids: tf.cast(ids, tf.float64), ["bias"])
        self.table.assign_sub(0.1 * tf.reduce_sum(self.bias) * tf.ones_like(table))
        self.other.assign_sub(0.2 * tf.reduce_sum(self.bias) * tf.ones_like(other))
        places = [tf.cast(tf.abs(v.read_value()[0, 0]) * 9, tf.int32) for v in (self.table, self.other)]
        seen = tf.gather(table, (ids + places[1]) % 40), tf.gather(other, (ids + places[0]) % 40)
        return loss + tf.reduce_mean(seen[0]) + tf.reduce_mean(seen[1])


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("name", ["by_what_counts", "by_what_follows", "after_a_branch", "crossed"])
def test_reads_that_are_no_lookups_of_rows(name, servers):
    def make():
        parts = Whole()
        variables = {v.name.partition(":")[0]: v for v in (parts.table, parts.other, parts.bias, parts.count)}
        specs = [tf.TensorSpec([None, 2], tf.int32)]
        return Program(getattr(parts, name), specs, variables, {"loss_reduction": "mean"})

    data = [(np.random.default_rng(seed).integers(0, 40, (8, 2)).astype(np.int32),) for seed in range(3)]
    check(make, data, 2, servers, unmoved=None)


def test_fit_with_divided_tables_is_fit():
    def trained(**options):
        keras.utils.set_random_seed(3)
        layers = [keras.layers.Embedding(300, 16), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(2)]
        model = keras.Sequential([keras.Input([6], dtype="int32"), *layers])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
        rng = np.random.default_rng(5)
        x, y = rng.integers(0, 300, (64, 6)), rng.integers(0, 2, 64)
        fit = caramel.fit if options else lambda model, *args, **kwargs: model.fit(*args, **kwargs)
        kept = {"epochs": 2, "batch_size": 16, "shuffle": False, "verbose": 0, "validation_data": (x[:10], y[:10])}
        history = fit(model, x, y, **kept, **options).history
        return history, model.get_weights(), model.predict(x, verbose=0)

    want_history, want, predicted = trained()
    history, got, again = trained(workers=2, servers=2, cluster=caramel.InProcess())
    for name, values in want_history.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-4, err_msg=name)
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(again, predicted, rtol=1e-3, atol=1e-4)


def test_evaluations_see_whole_tables():
    make, data = keras_program("adam"), examples(steps=2)
    made, context = captured(make)
    table = made.variables["table/embeddings"]
    total = tf.function(lambda: tf.reduce_sum(table.value), input_signature=[])
    some = tf.function(lambda ids: tf.gather(table.value, ids), input_signature=[tf.TensorSpec([None], tf.int32)])
    with caramel.PSModel(context, 3, 2).session(in_process(THREADS)) as session:
        session.run(data, progress=False)
        whole = session.values()["table/embeddings"]
        np.testing.assert_allclose(session.evaluate(fetches=total), whole.sum(), rtol=1e-12)
        np.testing.assert_array_equal(session.evaluate(np.array([36, 3], np.int32), fetches=some), whole[[36, 3]])


def test_a_plan_says_what_is_divided(tmp_path):
    made, context = captured(keras_program("adam"))
    plan = caramel.PSModel(context, 3, 2, trace=traced(context), network=NETWORK).plan
    plan.save(tmp_path / "plan.json")
    assert caramel.Plan.load(tmp_path / "plan.json") == plan
    assert "19 rows on server 0, 18 rows on server 1" in plan.explain("table/embeddings")
    assert plan.servers.prediction.step_s > 0


def test_any_homes_have_the_same_bits():
    """Whatever a plan says of which servers have rows, in which order."""
    make, data = keras_program("adam"), examples(steps=3)
    made, context = captured(make)
    plan = caramel.PSModel(context, 3, 3, deterministic=True).plan
    want = reduced(make, data, 3)
    for servers, rows in (((2, 0), (19, 18)), ((1,), (None,)), ((1,), (37,)), ((2, 0, 1), (13, 12, 12))):

        def moved(home, servers=servers, rows=rows):
            return (
                replace(home, parts=tuple(ServerPart(s, rows=n) for s, n in zip(servers, rows))) if home.rows else home
            )

        made, context = captured(make)
        model = caramel.PSModel(context, 3, plan=with_homes(plan, moved))
        assert home_of(model.plan).servers == servers
        assert_bits(run(made, model, data), want)


WRONG = {
    "a row too few": ([ServerPart(0, rows=19), ServerPart(1, rows=17)], "are not all of its 37 rows"),
    "not one by one": ([ServerPart(0, rows=20), ServerPart(1, rows=17)], "are not all of its 37 rows, dealt out"),
    "elements": ([ServerPart(0, 148), ServerPart(1, 148)], "are not all of its 37 rows"),
    "both": ([ServerPart(0, 152, 19), ServerPart(1, 144, 18)], "are not all of its 37 rows"),
    "a part and a whole": ([ServerPart(0, rows=37), ServerPart(1)], "are not all of its 37 rows"),
    "whole on two": ([ServerPart(0), ServerPart(1)], "one server has it, or each a part"),
    "no rows": ([ServerPart(0, rows=37), ServerPart(1, rows=0)], "are not all of its 37 rows"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_plan_is_refused(name):
    _, context = captured(keras_program("adam"))
    parts, message = WRONG[name]
    plan = caramel.PSModel(context, 3, 2).plan
    wrong = with_homes(plan, lambda home: replace(home, parts=tuple(parts)) if home.rows else home)
    with pytest.raises(PlanError, match=message):
        caramel.PSModel(context, 3, plan=wrong)


def test_rows_of_what_is_no_table_are_refused():
    _, context = captured(keras_program("adam"))
    plan = caramel.PSModel(context, 3, 2).plan
    parts = (ServerPart(0, rows=12), ServerPart(1, rows=12))
    wrong = with_homes(plan, lambda h: replace(h, parts=parts) if h.variables[0] == "dense/kernel" else h)
    with pytest.raises(PlanError, match="each part of .* has a number of elements|needs all of it|cannot be divided"):
        caramel.PSModel(context, 3, plan=wrong)


def test_a_table_that_is_used_whole_is_pulled_once_and_looked_up_in_there():
    """The rows and all of the table are of one read: nothing is gained by asking for rows."""

    def make():
        start = np.random.default_rng(4).normal(size=(9, 4))
        table, bias = tf.Variable(start, name="table"), tf.Variable(np.zeros(9), name="bias")

        def step(ids):
            with tf.GradientTape() as tape:
                value = tf.convert_to_tensor(table)
                rows = tf.reduce_sum(tf.gather(value, ids), axis=1)
                logits = tf.matmul(rows, value, transpose_b=True) + bias  # tied
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(ids[:, 0], logits))
            for variable, gradient in zip([table, bias], tape.gradient(loss, [table, bias])):
                variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))
            return loss

        return Program(step, [tf.TensorSpec([None, 2], tf.int32)], {"table": table, "bias": bias})

    data = [(np.random.default_rng(seed).integers(0, 9, (8, 2)).astype(np.int32),) for seed in range(3)]
    model = check(make, data, 2, 2)
    assert not split_step(model.model).lookups
    assert "table" in model.plan.servers.pulls


def test_default_options_of_the_cluster():
    make, data = keras_program("adam"), examples()
    made, context = captured(make)
    with caramel.PSModel(context, 3, 2).session() as session:
        losses = [result.loss for result in session.run(data, progress=False)]
        session.write_back()
    assert_close((losses, values_of(made)), alone(make, data))
