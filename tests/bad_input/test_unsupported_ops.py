"""Programs that are fine on one device and cannot be replicated: refused by the name of the op."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import function

import caramel

v1 = tf.compat.v1


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


def test_a_step_that_writes_a_lookup_table(refused):
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
    keys = tf.constant([1], tf.int64)

    def scaled(x):
        with tf.control_dependencies([table.insert(keys, tf.constant([2.0]))]):
            return x * table.lookup(keys)

    with refused(caramel.UnsupportedError, "LookupTableInsertV2", "state"):
        caramel.ARModel(a_step(scaled), 2)


def dataset():
    return tf.data.Dataset.from_tensor_slices((np.ones([8, 3], np.float32), np.ones([8], np.float32))).batch(4)


def test_an_iterator_in_a_step(refused):
    iterator = iter(dataset().repeat())
    with refused(caramel.UnsupportedError, "iterator", "data=", "IteratorGetNext"):
        caramel.ARModel(a_step(lambda x: x + next(iterator)[0]), 2)


# -- variables -------------------------------------------------------------------------------


def test_a_choice_between_reference_variables(compiled, line, minimize, refused):
    def build():
        either = [v1.get_variable(name, [3], use_resource=False) for name in ("one", "other")]
        chosen = tf.raw_ops.RefSelect(index=0, inputs=[v._ref() for v in either], name="chosen")
        minimize(line(transform=lambda x: x * tf.stop_gradient(chosen)).loss)

    with refused(caramel.UnsupportedError, "'chosen'", "(RefSelect)", "counterpart", "variables' values"):
        compiled(build)


def test_a_gradient_in_an_accumulator_of_references(compiled, line, minimize, refused):
    def build():
        gathered = tf.raw_ops.ConditionalAccumulator(dtype=tf.float32, shape=[3], name="gathered")
        taken = tf.raw_ops.AccumulatorTakeGradient(handle=gathered, num_required=1, dtype=tf.float32)
        minimize(line(transform=lambda x: x * taken).loss)

    with refused(caramel.UnsupportedError, "'gathered'", "(ConditionalAccumulator)", "out of the training step"):
        compiled(build)


def test_a_loop_that_writes_a_reference_variable(compiled, line, minimize, refused, old_control_flow):
    def build():
        counter = v1.get_variable("counter", [], use_resource=False, trainable=False)

        def loop(x):
            added = v1.while_loop(lambda i: i < 3.0, lambda i: i + v1.assign_add(counter, 1.0), [0.0], name="my_loop")
            return x * added

        minimize(line(transform=loop, use_resource=False).loss)

    with refused(caramel.UnsupportedError, "'my_loop/", "Enter)", "enable_control_flow_v2()"):
        compiled(build)


def test_a_write_of_one_of_several_variables(compiled, line, minimize, refused, old_control_flow):
    def build():
        one, other = (v1.get_variable(name, [], use_resource=True, trainable=False) for name in ("one", "other"))
        choice = v1.placeholder(tf.bool, [], "choice")
        sides = [tf.raw_ops.Switch(data=v.handle, pred=choice) for v in (one, other)]
        either = tf.raw_ops.Merge(inputs=[sides[0].output_false, sides[1].output_true], name="either").output
        written = tf.raw_ops.AssignVariableOp(resource=either, value=1.0, name="written")
        with tf.control_dependencies([written]):
            minimize(line(transform=tf.identity).loss)

    with refused(caramel.UnsupportedError, "'written'", "(AssignVariableOp)", "'either'", "which variable"):
        compiled(build)


def test_a_reference_variable_in_no_collection(compiled, line, minimize, refused):
    def build():
        hidden = v1.get_variable("hidden", [3], trainable=False, collections=[], use_resource=False)
        minimize(line(transform=lambda x: x * hidden).loss)

    with refused(caramel.UnsupportedError, "'hidden'", "collection"):
        compiled(build)


def test_a_reference_variable_without_a_static_shape(compiled, refused):
    def build():
        x = v1.placeholder(tf.float32, [None, 3], "x")
        free = v1.Variable(tf.zeros([3]), name="free", validate_shape=False, use_resource=False)
        v1.assign(free, v1.placeholder_with_default(tf.zeros([3]), [None]), validate_shape=False)
        v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.linalg.matvec(x, free) ** 2))

    with refused(caramel.UnsupportedError, "'free'", "static shape"):
        compiled(build)


def test_a_training_average_after_the_step_of_reference_variables(compiled, line, minimize, refused):
    def build():
        program = line(use_resource=False)
        mean = v1.get_variable("mean", [3], use_resource=False, trainable=False)
        with tf.control_dependencies([minimize(program.loss)]):
            v1.assign(mean, program.weights, name="later")

    with refused(caramel.CaptureError, "'later'", "runs after", "train_op="):
        compiled(build)


def test_a_step_where_tensorflow_does_not_run_eagerly(refused):
    context = a_step(tf.identity)
    with refused(caramel.CaptureError, "eagerly", "with caramel.capture()"), tf.Graph().as_default():
        caramel.ARModel(context, 2)


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


def test_a_python_function_inside_a_function(refused):
    with refused(caramel.UnsupportedError, "'StatefulPartitionedCall/my_python'", "state or effects", "feed"):
        caramel.ARModel(a_step(tf.function(through_python)), 2)


def test_a_python_function_inside_a_loop(refused):
    def loop(x):
        for _ in tf.range(2):
            x = through_python(x)
        return x

    with refused(caramel.UnsupportedError, "EagerPyFunc", "in function", "called by", "While"):
        caramel.ARModel(a_step(tf.function(loop)), 2)


def test_a_gradient_in_a_loop(refused):
    weights = tf.Variable(tf.zeros([3]), name="w")

    def step(x, y):
        for _ in tf.range(tf.cast(tf.reduce_sum(weights), tf.int32)):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.linalg.matvec(x, weights) - y) ** 2)
            weights.assign_sub(0.1 * tape.gradient(loss, weights))

    with refused(caramel.UnsupportedError, "While", "add it to a sum", "constant number of rounds"):
        caramel.ARModel(caramel.capture(step, [tf.TensorSpec([None, 3]), tf.TensorSpec([None])]), 2)


def test_a_gradient_in_a_loop_of_many_rounds(refused):
    """They would be too many nodes."""
    weights = tf.Variable(tf.zeros([3]), name="w")

    def step(x, y):
        loss = tf.constant(0.0)
        for _ in tf.range(65):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.linalg.matvec(x, weights) - y) ** 2)
            weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    with refused(caramel.UnsupportedError, "While", "add it to a sum", "constant number of rounds"):
        caramel.ARModel(caramel.capture(step, [tf.TensorSpec([None, 3]), tf.TensorSpec([None])]), 2)


def conditional(change):
    """A step that updates in a branch."""
    weights = tf.Variable(tf.zeros([3]), name="w")

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, weights) - y) ** 2)
        change(weights, tape, loss, x)
        return loss

    return caramel.capture(step, [tf.TensorSpec([None, 3], name="x"), tf.TensorSpec([None], name="y")])


def test_an_update_in_a_branch_that_only_some_workers_take(refused):
    def change(weights, tape, loss, x):
        gradient = tape.gradient(loss, weights)
        tf.cond(tf.reduce_max(x) > 1.0, lambda: weights.assign_sub(0.1 * gradient), lambda: weights.read_value())

    with refused(caramel.UnsupportedError, "'w'", "differs between workers", "'x'", "drift apart"):
        caramel.ARModel(conditional(change), 2)


def test_a_gradient_in_a_branch_that_only_some_workers_take(refused):
    fresh = tf.Variable(0.0, name="fresh")

    def change(weights, tape, loss, x):
        def differentiate():
            with tf.GradientTape() as inner:
                value = tf.reduce_mean(tf.square(tf.reduce_mean(x, 1) - fresh))
            return inner.gradient(value, fresh)

        gradient = tape.gradient(loss, weights)
        least = tf.raw_ops.NthElement(input=tf.reduce_sum(x, 1), n=0)
        more = tf.cond(least > 0, differentiate, lambda: tf.zeros([]))
        weights.assign_sub(0.1 * gradient)
        fresh.assign_sub(0.1 * more)

    context = conditional(change)
    context.loss_reduction = "mean"
    context.loss = "output"
    with refused(caramel.UnsupportedError, "'fresh'", "branch", "differs between workers", "'x'"):
        caramel.ARModel(context, 2)


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


def test_a_loop_of_tensorflow_1_that_the_step_does_not_need(compiled, line, minimize, old_control_flow):
    def build():
        program = line()
        minimize(program.loss)
        v1.while_loop(lambda i, z: i < 3, lambda i, z: (i + 1, z * 2.0), [0, program.x])

    assert compiled(build).plan.reduction == "mean"


def defined():
    """A function that is called by an op of its own name."""

    @function.Defun(tf.float32, func_name="my_function")
    def double(x):
        return x * 2.0

    return double


@pytest.mark.parametrize("is_finished", [False, True])
@pytest.mark.parametrize("where", ["forward", "after the gradient"])
def test_a_function_that_is_an_op(line, minimize, refused, where, is_finished):
    def build():
        if where == "forward":
            minimize(line(transform=lambda x: tf.ensure_shape(defined()(x), [None, 3])).loss)
            return
        program, optimizer = line(), v1.train.GradientDescentOptimizer(0.1)
        ((gradient, weights),) = optimizer.compute_gradients(program.loss)
        optimizer.apply_gradients([(tf.ensure_shape(defined()(gradient), [3]), weights)])

    if is_finished:
        with tf.Graph().as_default() as graph:
            build()
        context = caramel.capture(graph)
    else:
        with caramel.capture() as context:
            build()
    with refused(caramel.UnsupportedError, "'my_function'", "calls function", "tf.function"):
        caramel.ARModel(context, 2)


def test_a_gradient_in_the_loss_beside_a_function_that_is_an_op(compiled, line, refused):
    def build():
        program = line(transform=lambda x: tf.ensure_shape(defined()(x), [None, 3]))
        (gradient,) = tf.gradients(program.loss, [program.weights])
        loss = program.loss + tf.reduce_sum(gradient)
        v1.train.GradientDescentOptimizer(0.1).minimize(loss)

    with refused(caramel.UnsupportedError, "'my_function'", "calls function", "tf.function"):
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


def test_a_learning_rate_from_data_in_a_graph(compiled, line, minimize, refused):
    def build():
        program = line()
        minimize(program.loss, rate=0.1 * tf.reduce_max(tf.compat.v1.get_default_graph().get_tensor_by_name("x:0")))

    with refused(caramel.UnsupportedError, "update_w", "'w'", "differs between workers", "'x'", "replicated="):
        compiled(build)


def second(x):
    """The second least number, which no sum over the workers tells."""
    return tf.raw_ops.NthElement(input=tf.reshape(x, [-1]), n=1)


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
        (lambda w, g, loss, x: w.assign_sub(0.1 * second(x) * g), "'x'"),
        (lambda w, g, loss, x: w.assign_sub(0.1 * g + 1e-3 * second(x)), "'x'"),
        (lambda w, g, loss, x: w.assign_sub(0.1 * g + tf.random.normal([3], seed=1, name="noise")), "noise"),
    ],
    ids=["rate from data", "data in the update", "noise in the update"],
)
def test_an_update_that_differs_between_workers(refused, change, source):
    with refused(caramel.UnsupportedError, "'w'", "differs between workers", source, "drift apart", "gradients"):
        caramel.ARModel(updating(change), 2)


def test_an_update_through_a_statistic_that_differs_between_workers(refused):
    mean = tf.Variable(0.0, trainable=False, name="running_mean")

    def change(w, g, loss, x):
        mean.assign(0.9 * mean + 0.1 * second(x))
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
