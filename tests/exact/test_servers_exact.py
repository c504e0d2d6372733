"""Parameter servers: as one device with the whole batch, and with the bits of all-reduces in rank order.

Every program runs with several ops at a time, so that a read and an update without an order would come in any.
"""

import exact_keras as k
import exact_tf1 as v1
import keras
import numpy as np
import pytest
import tensorflow as tf
import test_accumulation_exact as accumulation
import test_dtypes_exact as dtypes
import test_functions_exact as functions
import test_generated_exact as generated
import test_several_train_ops_exact as several
import test_sparse_exact as sparse
import test_v1_optimizers_exact as v1_optimizers
from exact_common import (
    BATCH,
    LOCAL,
    SAME,
    SERIAL,
    Case,
    assert_equivalent,
    assert_same,
    in_process,
    serial_functions,
    train,
)
from exact_common import batches as classified
from exact_matrix import FEATURE, OPTIMIZERS, SOME_OPTIMIZERS, batches, program
from exact_servers import (
    NETWORK,
    THREADS,
    assert_bits,
    assert_close,
    assert_on_servers,
    check,
    random_homes,
    reduced,
    run,
    served,
    traced,
)
from exact_steps import Program, alone, captured, fresh, values_of
from hypothesis import given, settings
from test_evaluation_exact import HELD_OUT, INPUT, WHAT
from test_evaluation_exact import Program as Evaluated
from test_evaluation_exact import batches as rows_of_numbers
from variants import each_once, in_soak, mostly_in_soak

import caramel

BY_TIMES = ("tac", "tao", "best", "reverse")
ORDERINGS = [*BY_TIMES, "tic", "tio", "random", "none"]

# -- optimizers and what programs do with them ---------------------------------------------------


@pytest.mark.parametrize(
    "optimizer, servers, workers", each_once([*OPTIMIZERS], [1, 2, 3], [1, 3], first=SOME_OPTIMIZERS)
)
def test_optimizer(optimizer, servers, workers):
    check(program(optimizer, "uneven"), batches(FEATURE["uneven"]), workers, servers, unmoved=None)


WITH_SGD = ("sum", "constraint", "attention", "two_losses", "branch", "loop")
IN_EVERY_RUN = [(name, "sgd" if name in WITH_SGD else "adam") for name in sorted(FEATURE)[::2]]
"""Every other feature: what a step does is followed as for all-reduces, whose tests have the others."""


@pytest.mark.parametrize(
    "feature, optimizer",
    [*IN_EVERY_RUN, *in_soak(*((f, o) for f in FEATURE for o in OPTIMIZERS if (f, o) not in IN_EVERY_RUN))],
)
def test_feature(feature, optimizer):
    """With two servers, and with three workers, whose batches of 13 examples do not divide evenly."""
    check(program(optimizer, feature), batches(FEATURE[feature]), 3, 2, unmoved=None)


@pytest.mark.soak
@pytest.mark.parametrize("workers, servers", [(1, 1), (1, 2), (2, 3), (5, 4)])
@pytest.mark.parametrize("feature", FEATURE)
def test_any_number_of_workers_and_servers(feature, workers, servers):
    check(program("adam", feature), batches(FEATURE[feature]), workers, servers, unmoved=None)


# -- steps of one's own --------------------------------------------------------------------------

X, Y = SPECS = [tf.TensorSpec([None, 4], tf.float64, "x"), tf.TensorSpec([None], tf.float64, "y")]


def examples(count=12, steps=7, seed=3):
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(count, 4)), rng.normal(size=count)) for _ in range(steps)]


def parameter(shape, name, dtype="float64", **options):
    value = np.random.default_rng(sum(map(ord, name))).normal(size=shape)
    return tf.Variable(tf.cast(value, dtype), name=name, **options)


def adversaries():
    """A discriminator, and a generator that reads what the first one's optimizer has made of it in the same step."""
    d, g = (keras.Variable(np.linspace(-1, 1, n * 4).reshape(4, n), name=name, dtype="float64") for n, name in NAMES)
    optimizers = [OPTIMIZERS["adam"](), OPTIMIZERS["momentum"]()]
    for optimizer, variable in zip(optimizers, (d, g)):
        optimizer.build([variable])

    def step(x, z):
        made = lambda: tf.tanh(z[:, None] * x) @ g.value  # noqa: E731
        with tf.GradientTape() as tape:
            first = tf.reduce_mean(tf.nn.softplus(-x @ d.value)) + tf.reduce_mean(tf.nn.softplus(made() @ d.value))
        optimizers[0].apply_gradients([(tape.gradient(first, d.value), d)])
        with tf.GradientTape() as tape:
            second = tf.reduce_mean(tf.nn.softplus(-made() @ d.value))
        optimizers[1].apply_gradients([(tape.gradient(second, g.value), g)])
        return first + second

    variables = {"d": d, "g": g}
    variables |= {f"{n} {v.path}": v for n, optimizer in enumerate(optimizers) for v in optimizer.variables}
    return Program(step, SPECS, variables, {"loss": "output", "loss_reduction": "mean"})


NAMES = ((1, "d"), (4, "g"))


def read_again():
    """What the step gives back is computed from a parameter after its update."""
    w, b = parameter([4], "w"), parameter([], "b")

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, w) + b - y) ** 2)
        for variable, gradient in zip((w, b), tape.gradient(loss, (w, b))):
            variable.assign_sub(0.1 * gradient)
        return loss + 0.5 * tf.reduce_mean((tf.linalg.matvec(x, w) + b - y) ** 2)

    return Program(step, SPECS, {"w": w, "b": b}, {"loss": "output", "loss_reduction": "mean"})


def written_twice():
    """An update, and then another write that reads the first one's result: a projection; and an average of both."""
    w, b = parameter([3, 4], "w"), parameter([3], "b")
    average = tf.Variable(tf.zeros([3, 4], tf.float64), name="average", trainable=False)
    count = tf.Variable(0, dtype=tf.int64, name="count", trainable=False)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.reduce_sum(tf.tanh(tf.matmul(x, w, transpose_b=True) + b), 1) - y) ** 2)
        g, h = tape.gradient(loss, (w, b))
        w.assign_sub(0.2 * g)
        w.assign(w / tf.maximum(tf.norm(w), 1.0))
        b.assign_sub(0.2 * h + 0.01 * tf.reduce_sum(w, 1))
        average.assign(0.9 * average + 0.1 * w)
        count.assign_add(1)
        return loss

    return Program(step, SPECS, {"w": w, "b": b, "average": average, "count": count})


def every_third_step():
    """An update in a branch, with a slot that moves in each step, and one that moves in the branch."""
    w, v = parameter([4], "w"), parameter([4], "v")
    moment, seen = (tf.Variable(tf.zeros([4], tf.float64), name=n, trainable=False) for n in ("moment", "seen"))
    count = tf.Variable(0, dtype=tf.int64, name="count", trainable=False)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, w * v) - y) ** 2)
        g, h = tape.gradient(loss, (w, v))
        moment.assign(0.5 * moment + g)
        v.assign_sub(0.05 * h)
        if count % 3 == 2:
            w.assign_sub(0.1 * moment)
            seen.assign(seen + v)
        count.assign_add(1)
        return loss

    return Program(step, SPECS, {"w": w, "v": v, "moment": moment, "seen": seen, "count": count})


def of_many_shapes():
    """Scalars, parameters of one element and of none, a gradient that is none, what is frozen, and what only decays."""
    shapes = {"scalar": [], "one": [1], "ones": [1, 1, 1], "none": [0], "no_columns": [3, 0], "wide": [2, 4]}
    trained = {name: parameter(shape, name) for name, shape in shapes.items()}
    unused, decays = parameter([5], "unused"), parameter([3], "decays")
    frozen = parameter([4], "frozen", trainable=False)

    def step(x, y):
        with tf.GradientTape() as tape:
            t = trained
            hidden = tf.reduce_sum(tf.tanh(x * frozen @ tf.transpose(t["wide"])), 1) * t["scalar"] + t["one"][0]
            hidden += t["ones"][0, 0, 0] + tf.reduce_sum(t["none"]) + tf.reduce_sum(t["no_columns"])
            loss = tf.reduce_mean((hidden - y) ** 2)
        gradients = tape.gradient(loss, [*trained.values(), unused])
        assert gradients[-1] is None
        for variable, gradient in zip(trained.values(), gradients):
            variable.assign_sub(0.1 * gradient)
        decays.assign(0.9 * decays)
        return loss

    return Program(step, SPECS, {**trained, "unused": unused, "decays": decays, "frozen": frozen})


def two_gradients_of_one_parameter():
    w = parameter([4], "w")
    slot = tf.Variable(tf.zeros([4], tf.float64), name="slot", trainable=False)

    def step(x, y):
        with tf.GradientTape(persistent=True) as tape:
            first = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
            second = tf.reduce_mean(tf.abs(tf.linalg.matvec(tf.sin(x), w)))
        g, h = tape.gradient(first, w), tape.gradient(second, w)
        slot.assign(0.9 * slot + tf.clip_by_norm(g, 1.0))
        w.assign_sub(0.1 * slot + 0.05 * tf.sign(h))
        return first

    return Program(step, SPECS, {"w": w, "slot": slot}, {"loss": "output"})


def a_loop_over_time():
    """A while loop that takes variables, of which one is read within it, and one before."""
    w, v, start = parameter([4, 4], "w"), parameter([4], "v"), parameter([4], "start")

    def step(x, y):
        with tf.GradientTape() as tape:
            state, kernel = tf.zeros_like(x) + start, tf.convert_to_tensor(w)
            for n in tf.range(3):
                state = tf.tanh(state @ kernel + x * v * tf.cast(n, tf.float64))
            loss = tf.reduce_mean((tf.reduce_sum(state, 1) - y) ** 2)
        for variable, gradient in zip((w, v, start), tape.gradient(loss, (w, v, start))):
            variable.assign_sub(0.1 * gradient)
        return loss

    return Program(step, SPECS, {"w": w, "v": v, "start": start}, {"loss_reduction": "mean"})


OWN = {
    f.__name__: f
    for f in (
        adversaries,
        read_again,
        written_twice,
        every_third_step,
        two_gradients_of_one_parameter,
        a_loop_over_time,
    )
}


@pytest.mark.parametrize("workers", [*in_soak(1, 2), 3])
@pytest.mark.parametrize("make", OWN.values(), ids=OWN)
def test_a_step_of_ones_own(make, workers):
    """On even batches, then on uneven ones."""
    check(make, [*examples(), *examples(7)], workers, [1, 2])


@pytest.mark.parametrize("workers, servers", [(3, 2), *in_soak((1, 1), (2, 6))])
def test_parameters_of_any_shape(workers, servers):
    nothing = ("unused", "frozen", "none", "no_columns")
    check(of_many_shapes, examples(), workers, servers, unmoved=nothing)


@pytest.mark.parametrize("make", functions.PROGRAMS.values(), ids=functions.PROGRAMS)
def test_functions_branches_and_loops(make):
    data = [*functions.examples(), *functions.examples(count=7)]
    check(make, data, 3, [1, *([2] if len(make().variables) > 1 else [])])


def test_all_servers_skip_an_update_or_none():
    """An example of the first worker, and one of another, make the gradient infinite."""
    data = functions.examples()
    for position in (1, 4):
        data[position][0][position] = np.inf
    check(functions.a_skipped_update, data, 3, [1, 2])


@pytest.mark.parametrize("form", mostly_in_soak(accumulation.FORMS, "assign"))
def test_gradients_that_are_added_up_over_steps(form):
    check(accumulation.over_steps(form), [*examples(), *examples(7, 3)], 3, [1, 2])


# -- tables --------------------------------------------------------------------------------------


def rows_once(optimizer):
    """A table in which each row is looked up once, however often an example has it."""

    def make():
        chosen = OPTIMIZERS[optimizer]()
        table = keras.Variable(np.random.default_rng(4).normal(size=(11, 3)), dtype="float64", name="table")
        scale = keras.Variable(1.5, dtype="float64", name="scale")
        chosen.build([table, scale])

        def step(rows, y):
            with tf.GradientTape() as tape:
                different, places = tf.unique(tf.reshape(rows, [-1]))
                found = tf.gather(tf.gather(tf.convert_to_tensor(table), different), tf.reshape(places, tf.shape(rows)))
                loss = tf.reduce_mean((scale.value * tf.reduce_sum(found, [1, 2]) - y) ** 2)
            chosen.apply_gradients(zip(tape.gradient(loss, [table.value, scale.value]), [table, scale]))
            return loss

        variables = {v.path: v for v in [table, scale, *chosen.variables]}
        return Program(step, sparse.SPECS, variables, {"loss_reduction": "mean"})

    return make


def looked_up_and_whole():
    """A table that is looked up in with a sparse gradient, and of which a norm is taken without one."""
    table, w = sparse.table_of(), parameter([], "w")

    def step(rows, y):
        with tf.GradientTape() as tape:
            loss = sparse.loss_of(table, rows, w * y)
        g, h = tape.gradient(loss, (table, w))
        table.scatter_sub(tf.IndexedSlices(0.1 * g.values, g.indices))
        w.assign_sub(0.01 * h / (1.0 + tf.norm(table)))
        return loss

    return Program(step, sparse.SPECS, {"table": table, "w": w})


@pytest.mark.parametrize("make", sparse.PROGRAMS.values(), ids=sparse.PROGRAMS)
def test_a_step_with_a_table(make):
    check(make, [*sparse.examples(), *sparse.examples(count=7)], 3, [1, *([2] if len(make().variables) > 1 else [])])


@pytest.mark.parametrize("workers", [1, 3])
def test_a_table_that_is_looked_up_in_and_used_whole(workers):
    check(looked_up_and_whole, [*sparse.examples(), *sparse.examples(count=7)], workers, [1, 2])


@pytest.mark.parametrize("optimizer", ["sgd", "adam", *in_soak("adagrad", "lamb", "ftrl")])
def test_rows_that_a_program_looks_up_once(optimizer):
    check(rows_once(optimizer), sparse.examples(), 3, [1, 2])


@pytest.mark.parametrize("rows, tables", each_once(list(sparse.ROWS_OF_PLACES), [1, 2]))
def test_rows_that_no_example_chooses(rows, tables):
    """They are the same on all workers, also where they follow from the shape of examples: servers go on with them."""
    adam = sparse.NOT_LINEAR_IN_SLICES["adam"]
    check(sparse.with_places(adam, sparse.ROWS_OF_PLACES[rows], tables), sparse.sentences(), 3, [1, 2])


@pytest.mark.parametrize("workers", [*in_soak(2), 3])
@pytest.mark.parametrize("optimizer", mostly_in_soak(list(sparse.KERAS), "adam", "clipped"))
def test_an_embedding_of_keras(optimizer, workers):
    check(sparse.keras_with(sparse.KERAS[optimizer]), sparse.examples(count=13), workers, [1, 3])


# -- dtypes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, workers, servers", each_once([*dtypes.CASES], [2, 3], [1, 2]))
def test_dtypes(name, workers, servers):
    """Half, bfloat16, complex and mixed precision: bit for bit as micro-batches."""
    make = dtypes.CASES[name]
    data = dtypes.batches(make().specs)
    want = dtypes.by_micro_batches(make, workers, data)
    case = make()
    model = caramel.PSModel(caramel.capture(case.step, case.specs), workers, servers, deterministic=True)
    with model.session(in_process(SERIAL)) as session:
        session.run(data, progress=False)
        session.write_back()
    for key, value in want.items():
        np.testing.assert_array_equal(np.asarray(case.variables[key]), value, err_msg=key)


# -- what each worker has of its own -------------------------------------------------------------


def normalised(statistics="local"):
    """A step with batch normalisation and dropout of Keras."""
    inputs = keras.Input([4], dtype="float64")
    hidden = keras.layers.Dense(5, "tanh", dtype="float64")(inputs)
    hidden = keras.layers.BatchNormalization(momentum=0.8, dtype="float64")(hidden)
    hidden = keras.layers.Dropout(0.3, seed=5, dtype="float64")(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1, dtype="float64")(hidden))
    chosen = OPTIMIZERS["adam"]()
    chosen.build(model.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True)[:, 0] - y) ** 2)
        chosen.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    return Program(step, SPECS, {v.path: v for v in [*model.variables, *chosen.variables]})


@pytest.mark.parametrize("statistics", ["local", "mean"])
def test_statistics_and_random_state_are_each_workers_own(statistics):
    data = [*examples(), *examples(7)]
    want = reduced(normalised, data, 3, statistics=statistics)
    for servers in (1, 2):
        got, model = served(normalised, data, 3, servers, statistics=statistics)
        assert_bits(got, want)
        homes = [name for home in model.plan.servers.homes for name in home.variables]
        assert not [name for name in homes if "moving" in name or "seed" in name]
        assert_on_servers(model, servers)


# -- TensorFlow 1 --------------------------------------------------------------------------------


@pytest.mark.parametrize("references", [False, *in_soak(True)])
@pytest.mark.parametrize("optimizer", mostly_in_soak([*v1.OPTIMIZERS], "adam"))
@pytest.mark.parametrize("workers, servers", [(3, 2), *in_soak((1, 1), (2, 3))])
def test_a_graph_of_tensorflow_1(optimizer, workers, servers, references):
    """With what each worker has of its own: the bits of micro-batches."""
    case = Case(optimizer, (*SAME, *LOCAL), "float32", clip=1.4, references=references)
    data = classified(BATCH, case.dtype)
    options = {"servers": servers, "deterministic": True}
    assert_same(v1.distributed(case, workers, data, armodel=options), v1.MicroBatches(case, workers).train(data))


@pytest.mark.parametrize("optimizer", mostly_in_soak([*v1.FURTHER_OPTIMIZERS], "adagrad da", "centered rmsprop"))
def test_the_other_optimizers_of_tensorflow_1(optimizer):
    case = Case(optimizer, ("schedule", "tied") if optimizer != "proximal gradient descent" else ("tied",))
    data = classified(BATCH + 1, case.dtype)
    assert_equivalent(v1.distributed(case, 3, data, armodel={"servers": 2}), v1.OneDevice(case).train(data))


@pytest.mark.parametrize("total, reduction", [(7, "mean"), *in_soak((7, "sum"), (12, "sum"))])
def test_uneven_and_summed_batches_of_a_graph_of_tensorflow_1(total, reduction):
    case = Case("momentum", ("clip", "tied"), "float32", reduction, clip=1.2 if reduction == "mean" else BATCH)
    data = classified(total, case.dtype)
    options = {"servers": 2, "deterministic": True}
    assert_same(v1.distributed(case, 3, data, armodel=options), v1.MicroBatches(case, 3).train(data))


@pytest.mark.parametrize("workers, servers", [(3, 2), *in_soak((1, 1))])
def test_two_train_ops_of_a_graph_of_tensorflow_1(workers, servers):
    with tf.Graph().as_default():
        with caramel.capture() as context:
            x, context.train_op, context.loss = several.build()
        with caramel.PSModel(context, workers, servers).session(in_process(THREADS)) as session:
            for batch in several.BATCHES:
                session.step({"x:0": batch})
            values = session.values()
    for name, value in several.one_device().items():
        np.testing.assert_allclose(values[name], value, rtol=1e-9, err_msg=name)


@pytest.mark.parametrize("name, workers", each_once([*v1_optimizers.OPTIMIZERS], [3, 1]))
def test_an_optimizer_of_tensorflow_1_in_a_step_function(name, workers):
    data, found = classified(12, "float64"), []
    for model in (caramel.ARModel, caramel.PSModel):
        _, step = v1_optimizers.program(name)
        context = caramel.capture(step, inputs=[tf.TensorSpec([None, 16], tf.float64), tf.TensorSpec([None], tf.int64)])
        with model(context, workers, deterministic=True).session(in_process()) as session:
            found.append(train(session, data))
    want, got = found
    assert got.losses == want.losses
    for mine, theirs in zip(got.values.values(), want.values.values(), strict=True):  # slots get new names
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("features", [(*SAME, *LOCAL), *in_soak((("convolution", "norm"),))])
def test_a_keras_step(features):
    case = Case("adam", features, "float32", clip=1.9)
    data = classified(BATCH, case.dtype)
    with serial_functions():
        with caramel.PSModel(k.capture(case)[0], 3, 2, deterministic=True).session(in_process()) as session:
            got = train(session, data)
        assert_same(got, k.MicroBatches(case, 3).train(data))


# -- data, evaluations, several steps in a run ---------------------------------------------------


@pytest.mark.parametrize("sharding, together", [("slice", 1), ("batches", 2)])
def test_data_on_the_workers(sharding, together):
    data = examples(steps=6)
    given = data
    if sharding == "batches":  # a worker's batch is one of three
        given = [tuple(map(np.concatenate, zip(*data[n : n + 3]))) for n in (0, 3)]
    made = fresh(written_twice)
    dataset = tf.data.Dataset.from_tensor_slices(tuple(map(np.concatenate, zip(*data)))).batch(12)
    model = caramel.PSModel(caramel.capture(made.step, data=dataset), 3, 2, sharding=sharding)
    with model.session(in_process(THREADS)) as session:
        losses = [r.loss for r in session.run(progress=False, steps_per_execution=together)]
        session.write_back()
    assert_close((losses, values_of(made)), alone(written_twice, given))


@pytest.mark.parametrize("what", mostly_in_soak(WHAT, "lookup_in_a_loop", "branch"))
def test_evaluations(what):
    """Before a step and after it: one that was declared, and one that is added to the running graph."""
    device, made = Evaluated(), Evaluated()
    context = caramel.capture(made.step, INPUT, evaluation=getattr(made, what), evaluation_inputs=INPUT)
    function = tf.function(getattr(made, what), input_signature=INPUT)
    with caramel.PSModel(context, 3, 1, statistics="mean").session(in_process(THREADS)) as session:
        for x in [None, *rows_of_numbers()]:
            if x is not None:
                session.step(x)
                device.step(tf.constant(x))
            want = tf.nest.flatten(getattr(device, what)(tf.constant(HELD_OUT)))
            for got in (session.evaluate(HELD_OUT), session.evaluate(HELD_OUT, fetches=function)):
                for mine, theirs in zip(tf.nest.flatten(got), want, strict=True):
                    np.testing.assert_allclose(mine, theirs, rtol=1e-9)


@pytest.mark.parametrize("together", [2, *in_soak(3, 4)])
@pytest.mark.parametrize("feature", ["embedding", *in_soak(*(name for name in FEATURE if name != "embedding"))])
def test_steps_in_one_run_are_the_same_steps(feature, together):
    make, data = program("adam", feature), batches(FEATURE[feature])
    assert_bits(served(make, data, 3, 2, together)[0], reduced(make, data, 3))


@pytest.mark.parametrize("name", OWN)
def test_steps_of_ones_own_in_one_run(name):
    make, data = OWN[name], [*examples(), *examples(7)]
    assert_bits(served(make, data, 3, 2, 3)[0], reduced(make, data, 3))


# -- orders --------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_flight", [1, *in_soak(2, 5)])
@pytest.mark.parametrize("feature", ["embedding", *in_soak("attention", "two_losses", "branch", "loop", "everything")])
def test_no_order_changes_a_bit(feature, in_flight):
    make, data = program("adam", feature), batches(FEATURE[feature], steps=4)
    want = reduced(make, data, 3)
    for ordering in ORDERINGS:
        made, context = captured(make)
        known = {"trace": traced(context), "network": NETWORK} if ordering in BY_TIMES else {}
        options = {"ordering": ordering, "pulls_in_flight": in_flight, "deterministic": True, **known}
        model = caramel.PSModel(context, 3, 2, **options)
        got = run(made, model, data)
        plan = model.plan.servers
        assert plan.ordering == ordering or ordering == "best", plan.ordering
        assert bool(plan.pulls) == (ordering != "none") and (plan.in_flight == in_flight or ordering == "none")
        assert (plan.prediction is not None) == bool(known)
        assert_bits(got, want)


def test_the_default_order_goes_by_times_where_they_are_known():
    _, context = captured(program("adam", "plain"))
    known = {"trace": traced(context), "network": NETWORK}
    assert caramel.PSModel(context, 2).plan.servers.ordering == "tic"
    default, best = (caramel.PSModel(context, 2, 2, ordering=name, **known).plan for name in (None, "best"))
    assert default == best and default.servers.prediction is not None


@pytest.mark.parametrize("make", OWN.values(), ids=OWN)
def test_no_order_changes_a_bit_of_a_step_of_ones_own(make):
    want = reduced(make, examples(steps=4), 2)
    for ordering in ("tic", "tio", "random", "none"):
        assert_bits(served(make, examples(steps=4), 2, 2, ordering=ordering, pulls_in_flight=1)[0], want)


WHOLE = {"adafactor", "lamb"}
"""Keras' optimizers that look at all elements of a parameter before they update any."""


def large(optimizer="momentum", size=(16, 9), **options):
    """A program with a parameter that is large enough to be divided, and one that is not."""

    def make():
        rng = np.random.default_rng(3)
        w = keras.Variable(rng.normal(size=size) / size[0], name="w", dtype="float64")
        b = keras.Variable(rng.normal(size=size[1]), name="b", dtype="float64")
        chosen = OPTIMIZERS[optimizer](**options)
        chosen.build([w, b])

        def step(x, y):
            with tf.GradientTape() as tape:
                hidden = tf.repeat(x, size[0] // 4, axis=1) @ w.value + b.value
                loss = tf.reduce_mean((tf.reduce_mean(tf.tanh(hidden), 1) - y) ** 2)
            chosen.apply_gradients(zip(tape.gradient(loss, [w.value, b.value]), [w, b]))
            return loss

        return Program(step, SPECS, {v.path: v for v in [w, b, *chosen.variables]})

    return make


@pytest.mark.parametrize("optimizer, servers, workers", each_once([*OPTIMIZERS], [2, 3], [3, 1], first=SOME_OPTIMIZERS))
def test_parts_of_large_parameters(optimizer, servers, workers):
    """In deterministic mode with the bits of whole ones, else but for the last bit."""
    data = [*examples(), *examples(7)]
    check(large(optimizer), data, workers, servers, unmoved=None)
    got, model = served(large(optimizer), data, workers, servers, deterministic=False)
    assert_on_servers(model, servers)
    home = model.plan.servers.home_by_variable["w"]
    assert home.is_divided == (optimizer not in WHOLE), model.plan
    assert not home.is_divided or ("in parts" in model.plan.explain("w") and len(home.parts) == servers)
    assert_close(got, alone(large(optimizer), data))


@pytest.mark.parametrize("size", [(4, 32), *in_soak(((4, 33),), ((400, 1),), ((4, 2001),))])
def test_parts_of_any_size(size):
    check(large("momentum", size), examples(), 3, [2, 3], deterministic=False)


@pytest.mark.parametrize("options", [{"global_clipnorm": 0.1}, {"clipnorm": 0.1}])
def test_what_cannot_be_divided_stays_whole(options):
    model = check(large("sgd", **options), examples(), 3, [2, 3], deterministic=False)
    assert not any(home.is_divided for home in model.plan.servers.homes)


@pytest.mark.parametrize("servers, together", [(2, 2), *in_soak((3, 3))])
def test_parts_in_several_steps_of_one_run(servers, together):
    assert_bits(served(large(), examples(), 3, servers, together)[0], reduced(large(), examples(), 3))


ALL_OF_TENSORFLOW_1 = v1.OPTIMIZERS | v1.FURTHER_OPTIMIZERS


@pytest.mark.parametrize("size", [(16, 9), *in_soak(((200, 1001),))])
@pytest.mark.parametrize("optimizer", mostly_in_soak([*ALL_OF_TENSORFLOW_1], "momentum", "adagrad da"))
def test_parts_of_a_graph_of_tensorflow_1(optimizer, size):
    """Whose training op has the updates as control inputs; in deterministic mode with the bits of whole parameters."""

    def build():
        x = tf.compat.v1.placeholder(tf.float64, [None, size[0]], "x")
        first = np.linspace(-1, 1, size[0] * size[1]).reshape(size)
        w = tf.compat.v1.get_variable("w", initializer=first, use_resource=True)
        b = tf.compat.v1.get_variable("b", initializer=np.zeros(size[1]), use_resource=True)
        tf.compat.v1.train.get_or_create_global_step()
        loss = tf.reduce_mean((tf.tanh(x @ w) + b - 1.0) ** 2)
        return x, loss, ALL_OF_TENSORFLOW_1[optimizer](0.1).minimize(loss)

    data = [(np.random.default_rng(seed).normal(size=(12, size[0])),) for seed in range(4)]
    found = []
    for options in ({"deterministic": True}, {"deterministic": True, "servers": 2}, {"servers": 2}):
        with tf.Graph().as_default(), caramel.capture() as context:
            _, context.loss, context.train_op = build()
        model = caramel.ARModel(context, 3, **options)
        with model.session(in_process(THREADS)) as session:
            losses = [session.step(*batch).loss for batch in data]
            found.append((losses, session.values()))
    assert model.plan.servers.home_by_variable["w"].is_divided
    assert_bits(found[1], found[0])
    assert_close(found[2], v1.trained_alone(build, data))


@pytest.mark.parametrize("seed", [1, 2, *in_soak(*range(3, 12))])
@pytest.mark.parametrize(
    "feature", ["embedding", "parts", *in_soak("plain", "global_clipnorm", "ema", "loss_scaling", "shared")]
)
def test_any_homes_have_the_same_bits(feature, seed):
    """Whatever a plan says of where variables are, in which parts, and in which order they are pulled."""
    make = large() if feature == "parts" else program("adam", feature)
    data = examples(steps=4) if feature == "parts" else batches(FEATURE[feature], steps=4)
    made, context = captured(make)
    plan = caramel.PSModel(context, 3, 3 if feature != "parts" else 2).plan
    changed = random_homes(plan, seed)
    model = caramel.PSModel(context, 3, plan=changed)
    assert model.plan.servers == changed.servers != plan.servers
    assert_bits(run(made, model, data), reduced(make, data, 3))
    assert_on_servers(model, len(plan.servers.devices))


# -- the same thing, and other places ------------------------------------------------------------


def test_armodel_with_servers_is_psmodel():
    _, context = captured(program("adam", "plain"))
    options = {"ordering": "tio", "pulls_in_flight": 3, "deterministic": True, "uneven_batches": "refuse"}
    one, other = caramel.PSModel(context, 3, 2, **options), caramel.ARModel(context, 3, servers=2, **options)
    assert one.plan == other.plan and one.plan.digest == other.plan.digest
    assert one.graph_def.SerializeToString(deterministic=True) == other.graph_def.SerializeToString(deterministic=True)
    assert one.plan.servers.in_flight == 3 and one.plan.servers.ordering == "tio"
    assert isinstance(one, caramel.ARModel) and one.distributed.signature == one.signature


@pytest.mark.parametrize(
    "options",
    [
        {"server_list": ["/job:worker/task:0", "/job:worker/task:2"]},
        {"server_list": ["/job:worker/task:2", "/job:worker/task:3"]},
        {
            "device_list": [f"/job:worker/task:0/device:CPU:{n}" for n in range(3)],
            "server_list": ["/job:worker/task:0/device:CPU:0", "/job:ps/task:0"],
        },
    ],
    ids=["beside workers", "beside one worker", "on another job"],
)
def test_servers_may_be_anywhere(options):
    make, data = program("adam", "embedding"), batches(FEATURE["embedding"], steps=4)
    got, model = served(make, data, 3, 2, **options)
    assert list(model.plan.servers.devices) == options["server_list"]
    assert_bits(got, reduced(make, data, 3))


def test_with_the_graph_optimizers_on():
    """Default options of the cluster: grappler, and as many threads as there are."""
    make, data = program("adam", "embedding"), batches(FEATURE["embedding"])
    made, context = captured(make)
    with caramel.PSModel(context, 3, 2).session() as session:
        losses = [result.loss for result in session.run(data, progress=False)]
        session.write_back()
    assert_close((losses, values_of(made)), alone(make, data))


# -- generated programs --------------------------------------------------------------------------


def generated_as_served(recipe):
    """A recipe with one server or two."""
    make, data = generated.program(recipe), generated.examples(recipe["count"])
    servers = 1 + recipe["count"] % 2
    got, _ = served(make, data, recipe["workers"], servers, ordering=["tic", "random", "none"][recipe["count"] % 3])
    assert_bits(got, reduced(make, data, recipe["workers"]))
    assert_close(got, alone(make, data), 1e-7)


@settings(max_examples=3, derandomize=True, **generated.COMMON)
@given(generated.RECIPES)
def test_some_generated_programs(recipe):
    generated_as_served(recipe)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(10))
@settings(max_examples=40, derandomize=False, **generated.COMMON)
@given(generated.RECIPES)
def test_many_generated_programs(part, recipe):
    generated_as_served(recipe)
