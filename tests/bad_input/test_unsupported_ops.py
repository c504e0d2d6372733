"""Programs that are fine on one device and cannot be replicated: refused by the name of the op."""

import numpy as np
import pytest
import tensorflow as tf

import caramel

v1 = tf.compat.v1


@pytest.fixture
def old_control_flow():
    v1.disable_control_flow_v2()
    yield
    v1.enable_control_flow_v2()


def a_table():
    initializer = tf.lookup.KeyValueTensorInitializer(tf.constant([1, 2], tf.int64), tf.constant([0.5, 2.0]))
    return tf.lookup.StaticHashTable(initializer, 0.0, name="scales")


def a_step(transform):
    """A training step that passes its examples through ``transform``, captured."""
    weights = tf.Variable(tf.zeros([3]), name="w")

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(transform(x), weights) - y) ** 2)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    return caramel.capture(step, [tf.TensorSpec([None, 3]), tf.TensorSpec([None])])


def through_python(x):
    return tf.ensure_shape(tf.py_function(lambda a: a, [x], tf.float32, name="my_python"), [None, 3])


def through_numpy(x):
    return tf.ensure_shape(tf.numpy_function(lambda a: a, [x], tf.float32, name="my_numpy"), [None, 3])


# -- Python functions ------------------------------------------------------------------------


@pytest.mark.parametrize("transform, op", [(through_python, "'my_python'"), (through_numpy, "'my_numpy'")])
def test_a_python_function_in_a_graph(compiled, line, minimize, refused, transform, op):
    with refused(caramel.UnsupportedError, op, "PyFunc", "out of the training step"):
        compiled(lambda: minimize(line(transform=transform).loss))


@pytest.mark.parametrize("transform, op", [(through_python, "EagerPyFunc"), (through_numpy, "PyFunc")])
def test_a_python_function_in_a_step(refused, transform, op):
    with refused(caramel.UnsupportedError, op, "out of the training step"):
        caramel.ARModel(a_step(transform), 2)


def test_a_python_function_in_an_evaluation(captured, line, minimize, refused):
    with caramel.capture() as context:
        program = line()
        minimize(program.loss)
        context.evaluation = through_python(program.x)
    with refused(caramel.UnsupportedError, "'my_python'", "EagerPyFunc"):
        caramel.ARModel(context, 2)


def test_a_check_of_numbers_is_nothing_to_refuse(compiled, line, minimize):
    def build():
        minimize(line(transform=lambda x: tf.debugging.check_numerics(x, "the data")).loss)

    assert compiled(build).plan.reduction == "mean"


# -- tables and iterators --------------------------------------------------------------------


def test_a_lookup_table_in_a_graph(compiled, line, minimize, refused):
    def build():
        table = a_table()
        minimize(line(transform=lambda x: x * table.lookup(tf.constant([1], tf.int64))).loss)

    with refused(caramel.UnsupportedError, "scales", "HashTableV2", "out of the training step"):
        compiled(build)


def test_a_lookup_table_in_a_step(refused):
    table = a_table()
    context = a_step(lambda x: x * table.lookup(tf.constant([1], tf.int64), name="find"))
    with refused(caramel.UnsupportedError, "lookup table", "outside the step", "LookupTableFindV2"):
        caramel.ARModel(context, 2)


def dataset():
    return tf.data.Dataset.from_tensor_slices((np.ones([8, 3], np.float32), np.ones([8], np.float32))).batch(4)


@pytest.mark.parametrize("kind", ["one_shot", "initializable"])
def test_an_iterator_in_a_graph(compiled, refused, kind):
    def build():
        x, y = getattr(v1.data, f"make_{kind}_iterator")(dataset()).get_next()
        weights = v1.get_variable("w", [3], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean((tf.linalg.matvec(x, weights) - y) ** 2)
        v1.train.GradientDescentOptimizer(0.1).minimize(loss)

    # There is no tf.function to call in another way here: the advice has to be about the data.
    with refused(caramel.UnsupportedError, "Iterator", "feed") as caught:
        compiled(build)
    assert "tf.function" not in str(caught.value)


def test_an_iterator_in_a_step(refused):
    iterator = iter(dataset().repeat())
    with refused(caramel.UnsupportedError, "iterator", "outside the step", "IteratorGetNext"):
        caramel.ARModel(a_step(lambda x: x + next(iterator)[0]), 2)


# -- variables -------------------------------------------------------------------------------


def test_a_reference_variable(compiled, line, minimize, refused):
    with refused(caramel.UnsupportedError, "'w'", "reference variable", "enable_resource_variables()"):
        compiled(lambda: minimize(line(use_resource=False).loss))


def test_a_reference_variable_that_is_no_parameter(compiled, line, minimize, refused):
    def build():
        counter = v1.get_variable("old_counter", [], use_resource=False, trainable=False)
        with tf.control_dependencies([v1.assign_add(counter, 1.0)]):
            minimize(line(transform=tf.identity).loss)

    with refused(caramel.UnsupportedError, "'old_counter'", "reference variable", "enable_resource_variables()"):
        compiled(build)


def test_a_partitioned_variable(compiled, refused):
    def build():
        x = v1.placeholder(tf.float32, [None, 4], "x")
        split = v1.get_variable("split", [4, 1], partitioner=v1.fixed_size_partitioner(2))
        v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.matmul(x, tf.convert_to_tensor(split)) ** 2))

    with refused(caramel.UnsupportedError, "'split/part_0'", "partitioned variable", "without a partitioner"):
        compiled(build)


def test_a_variable_without_a_static_shape(compiled, refused):
    def build():
        x = v1.placeholder(tf.float32, [None, 3], "x")
        free = v1.Variable(tf.zeros([3]), name="free", shape=tf.TensorShape([None]))
        v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.linalg.matvec(x, free) ** 2))

    with refused(caramel.UnsupportedError, "'free'", "static shape"):
        compiled(build)


def test_a_variable_in_no_collection(compiled, line, minimize, refused):
    def build():
        hidden = v1.get_variable("hidden", [3], trainable=False, collections=[])
        minimize(line(transform=lambda x: x * hidden).loss)

    with refused(caramel.UnsupportedError, "'hidden'", "collection"):
        compiled(build)


# -- functions and control flow --------------------------------------------------------------


def test_a_variable_passed_into_a_function_of_a_graph(compiled, line, minimize, refused):
    def build():
        scale = v1.get_variable("scale", [3], initializer=tf.ones_initializer())
        scaled = tf.function(lambda x: x * scale)
        minimize(line(transform=scaled).loss)

    with refused(caramel.UnsupportedError, "'StatefulPartitionedCall'", "variable", "function", "tf.function"):
        compiled(build)


def test_a_variable_passed_into_a_function_of_a_step(refused):
    scale = tf.Variable(tf.ones([3]), name="scale")
    with refused(caramel.UnsupportedError, "StatefulPartitionedCall", "variable", "function", "tf.function"):
        caramel.ARModel(a_step(tf.function(lambda x: x * scale)), 2)


def test_a_python_function_inside_a_function(refused):
    with refused(caramel.UnsupportedError, "EagerPyFunc", "in function", "called by"):
        caramel.ARModel(a_step(tf.function(through_python)), 2)


def test_a_differentiation_inside_a_function(refused):
    weights = tf.Variable(tf.zeros([3]), name="w")

    @tf.function
    def gradient(x, y, w):
        with tf.GradientTape() as tape:
            tape.watch(w)
            loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
        return tape.gradient(loss, w)

    def step(x, y):
        weights.assign_sub(gradient(x, y, weights.read_value()))

    with refused(caramel.CaptureError, "no gradient"):
        caramel.ARModel(caramel.capture(step, [tf.TensorSpec([None, 3]), tf.TensorSpec([None])]), 2)


def test_a_loop_of_tensorflow_1(compiled, line, minimize, refused, old_control_flow):
    def build():
        def loop(x):
            return v1.while_loop(lambda i, z: i < 3, lambda i, z: (i + 1, z * 2.0), [0, x], name="my_loop")[1]

        minimize(line(transform=loop).loss)

    with refused(caramel.UnsupportedError, "'my_loop/", "(Enter)", "enable_control_flow_v2()"):
        compiled(build)


def test_a_branch_of_tensorflow_1(compiled, line, minimize, refused, old_control_flow):
    def build():
        def branch(x):
            return v1.cond(tf.reduce_sum(x) > 0, lambda: x, lambda: -x, name="my_branch")

        minimize(line(transform=branch).loss)

    with refused(caramel.UnsupportedError, "'my_branch/", "(Switch)", "enable_control_flow_v2()"):
        compiled(build)


# -- devices ---------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["/job:ps/task:0", "/job:worker/task:1", "/task:3"])
def test_an_op_that_is_pinned_to_another_process(compiled, line, minimize, refused, device):
    def build():
        def far(x):
            with tf.device(device):
                return tf.negative(x, name="far_away")

        minimize(line(transform=far).loss)

    with refused(caramel.UnsupportedError, "'far_away'", "pinned", device.partition("/task")[0]):
        compiled(build)


# -- gradients and updates -------------------------------------------------------------------


def embedding(convert):
    rows = v1.placeholder(tf.int32, [None], "rows")
    y = v1.placeholder(tf.float32, [None], "y")
    table = v1.get_variable("table", [5, 1], initializer=tf.zeros_initializer())
    loss = tf.reduce_mean((tf.nn.embedding_lookup(1.0 * table if convert else table, rows)[:, 0] - y) ** 2)
    v1.train.GradientDescentOptimizer(0.1).minimize(loss)


def test_a_sparse_gradient_of_a_graph(compiled, refused):
    with refused(caramel.UnsupportedError, "'table'", "sparse", "IndexedSlices", f"{__file__}:"):
        compiled(lambda: embedding(convert=False))


def sparse_step(convert):
    table = tf.Variable(tf.zeros([5, 1]), name="table")

    def step(rows, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.gather(1.0 * table if convert else table, rows)[:, 0] - y) ** 2)
        gradient = tape.gradient(loss, table)
        if convert:
            table.assign_sub(0.1 * gradient)
        else:
            table.scatter_sub(gradient)
        return loss

    return caramel.capture(step, [tf.TensorSpec([None], tf.int32), tf.TensorSpec([None])])


def test_a_sparse_gradient_of_a_step(refused):
    with refused(caramel.UnsupportedError, "'table'", "sparse", "IndexedSlices") as caught:
        caramel.ARModel(sparse_step(convert=False), 2)
    assert f"{__file__}:" in str(caught.value)  # the user's line, not that of code that AutoGraph generated


@pytest.mark.parametrize("kind", ["graph", "step"])
def test_the_advice_about_sparse_gradients_helps(compiled, kind):
    """The message says: look up in the table times 1.0."""
    if kind == "graph":
        armodel = compiled(lambda: embedding(convert=True))
    else:
        armodel = caramel.ARModel(sparse_step(convert=True), 2)
    with armodel.session() as session:
        session.step(np.array([0, 0, 1, 2], np.int32), np.ones(4, np.float32))
        np.testing.assert_allclose(session.values()["table"][:, 0], [0.1, 0.05, 0.05, 0, 0], rtol=1e-6)


def test_a_learning_rate_from_the_local_loss_in_a_graph(compiled, line, minimize, refused):
    def build():
        program = line()
        minimize(program.loss, rate=0.1 * tf.stop_gradient(program.loss))

    with refused(caramel.UnsupportedError, "update_w", "'w'", "differs between workers", "'x'", "replicated="):
        compiled(build)


def updating(change):
    weights = tf.Variable(tf.zeros([3]), name="w")

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, weights) - y) ** 2)
        change(weights, tape.gradient(loss, weights), loss, x)
        return loss

    return caramel.capture(step, [tf.TensorSpec([None, 3], name="x"), tf.TensorSpec([None], name="y")])


@pytest.mark.parametrize(
    "change, source",
    [
        (lambda w, g, loss, x: w.assign_sub(0.1 * loss * g), "'x'"),
        (lambda w, g, loss, x: w.assign_sub(0.1 * g + 1e-3 * tf.reduce_mean(x)), "'x'"),
        (lambda w, g, loss, x: w.assign_sub(0.1 * g + tf.random.normal([3], seed=1, name="noise")), "noise"),
    ],
    ids=["rate from the loss", "data in the update", "noise in the update"],
)
def test_an_update_that_differs_between_workers(refused, change, source):
    with refused(caramel.UnsupportedError, "'w'", "differs between workers", source, "drift apart", "gradients"):
        caramel.ARModel(updating(change), 2)


def test_an_update_through_a_statistic_that_differs_between_workers(refused):
    mean = tf.Variable(0.0, trainable=False, name="running_mean")

    def change(w, g, loss, x):
        mean.assign(0.9 * mean + 0.1 * tf.reduce_mean(x))
        w.assign_sub(0.1 * g * mean)

    with refused(caramel.UnsupportedError, "'w'", "differs between workers", "'running_mean'"):
        caramel.ARModel(updating(change), 2)


def test_an_update_from_an_input_that_all_workers_share(refused):
    """What the message advises: list the input in replicated=."""
    weights = tf.Variable(tf.zeros([3]), name="w")

    def step(x, rates):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.linalg.matvec(x, weights) + 1.0)
        weights.assign_sub(rates * tape.gradient(loss, weights))
        return loss

    specs = [tf.TensorSpec([None, 3], name="x"), tf.TensorSpec([3], name="rates")]
    with refused(caramel.UnsupportedError, "'rates'", "replicated="):
        caramel.ARModel(caramel.capture(step, specs), 2)
    assert caramel.ARModel(caramel.capture(step, specs, replicated=["rates"]), 2).plan.workers == 2
