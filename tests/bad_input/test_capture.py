"""Programs that cannot be turned into a Model: a role is missing, or there are several candidates."""

import inspect

import numpy as np
import pytest
import tensorflow as tf

import caramel

v1 = tf.compat.v1

SPECS = [tf.TensorSpec([None, 3], tf.float32, "x"), tf.TensorSpec([None], tf.float32, "y")]


def a_step(loss_of=None, update=None):
    """A training step on a variable ``w``; the parts that are given replace the usual ones."""
    weights = tf.Variable(tf.zeros([3]), name="w")
    loss_of = loss_of or (lambda p, y: tf.reduce_mean((p - y) ** 2))
    update = update or (lambda w, gradient, loss: w.assign_sub(0.1 * gradient))

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(tf.linalg.matvec(x, weights), y)
        update(weights, tape.gradient(loss, weights), loss)
        return loss

    return step


# -- optimizer and loss ----------------------------------------------------------------------


@pytest.mark.parametrize("make", [tf.RaggedTensor.from_tensor, tf.sparse.from_dense])
def test_a_step_that_returns_no_dense_tensor(make, refused):
    step = a_step()

    def returning(x, y):
        return {"loss": step(x, y), "rest": make(x)}

    with refused(caramel.CaptureError, "the step returns a", "Tensor as 'rest'", "to_tensor()"):
        _ = caramel.capture(returning, SPECS).model


@pytest.mark.parametrize("build", [lambda line: line(), lambda line: None], ids=["only a loss", "nothing at all"])
def test_a_graph_without_optimizer(compiled, line, refused, build):
    with refused(caramel.CaptureError, "no training op", "optimizer", "minimize", "train_op="):
        compiled(lambda: build(line))


def test_a_finished_graph_without_optimizer(line, refused):
    with tf.Graph().as_default() as graph:
        line()
    with refused(caramel.CaptureError, "no training op", "minimize"):
        caramel.ARModel(caramel.capture(graph), 2)


def test_a_graph_without_loss(compiled, line, refused):
    def build():
        program = line()
        v1.train.GradientDescentOptimizer(0.1).apply_gradients([(tf.ones([3]), program.weights)])

    with refused(caramel.CaptureError, "no gradient", "loss", "minimize"):
        compiled(build)


def test_a_finished_graph_without_loss(line, refused):
    with tf.Graph().as_default() as graph:
        v1.train.GradientDescentOptimizer(0.1).apply_gradients([(tf.ones([3]), line().weights)])
    with refused(caramel.CaptureError, "no differentiation", "capture"):
        caramel.ARModel(caramel.capture(graph), 2)


def test_a_step_without_loss(refused):
    weights = tf.Variable(tf.zeros([3]))

    def step(x, y):
        weights.assign_sub(0.1 * tf.ones([3]))

    with refused(caramel.CaptureError, "no gradient", "loss", "GradientTape.gradient"):
        caramel.ARModel(caramel.capture(step, SPECS), 2)


def test_a_step_without_update(refused):
    step = a_step(update=lambda w, gradient, loss: None)
    with refused(caramel.CaptureError, "uses no gradient") as caught:
        caramel.ARModel(caramel.capture(step, SPECS), 2)
    # What to do must be something that a step can do: train_op= goes with graphs only.
    assert "train_op" not in str(caught.value)


def test_a_with_block_that_raised_captures_nothing_and_blocks_nothing(compiled, line, minimize):
    with pytest.raises(ZeroDivisionError), caramel.capture():
        raise ZeroDivisionError
    assert compiled(lambda: minimize(line().loss)).plan.workers == 2


def test_a_loss_that_is_not_in_the_graph(compiled, line, minimize, refused):
    with refused(caramel.CaptureError, "loss", "'nowhere:0'", "not in the captured graph"):
        compiled(lambda: minimize(line().loss), loss="nowhere:0")


def test_a_loss_that_is_an_op_without_a_result(compiled, line, minimize, refused):
    with refused(caramel.CaptureError, "loss", "'nothing'", "an op without a result"):
        compiled(lambda: (minimize(line().loss), tf.no_op("nothing")), loss="nothing")


def test_a_loss_that_is_no_output_of_the_step(refused):
    with refused(caramel.CaptureError, "loss='accuracy'", "not an output", "output"):
        caramel.ARModel(caramel.capture(a_step(), SPECS, loss="accuracy"), 2)


# -- several training ops --------------------------------------------------------------------


def two_training_ops(line):
    program = line()
    slow = v1.train.GradientDescentOptimizer(0.1).minimize(program.loss, name="slow")
    fast = v1.train.GradientDescentOptimizer(0.5).minimize(program.loss, name="fast")
    return slow, fast


def test_two_training_ops(compiled, line, refused):
    with refused(caramel.CaptureError, "two training ops", "slow", "fast", "train_op="):
        compiled(lambda: two_training_ops(line))


@pytest.mark.parametrize("name, rate", [("slow", 0.1), ("fast", 0.5)])
@pytest.mark.parametrize("by", ["name", "operation"])
def test_train_op_says_which_of_two(line, name, rate, by):
    with caramel.capture() as context:
        ops = dict(zip(("slow", "fast"), two_training_ops(line)))
        context.train_op = name if by == "name" else ops[name]
    x, y = np.eye(3, dtype=np.float32)[[0, 1, 2, 0]], np.ones(4, np.float32)
    with caramel.ARModel(context, 2).session() as session:
        session.step(x, y)
        # The gradient of the mean squared error at zero is -2 x.T y / B.
        np.testing.assert_allclose(session.values()["w"], rate * 2 * x.T @ y / 4, rtol=1e-6)


def test_two_training_ops_of_a_finished_graph(line, refused):
    with tf.Graph().as_default() as graph:
        two_training_ops(line)
    with refused(caramel.CaptureError, "two training ops", "slow", "fast", "train_op="):
        caramel.ARModel(caramel.capture(graph), 2)
    assert caramel.ARModel(caramel.capture(graph, train_op="fast"), 2).plan.workers == 2


def test_train_op_that_is_not_there(compiled, line, minimize, refused):
    with refused(caramel.CaptureError, "train_op", "'medium'", "not in the captured graph"):
        compiled(lambda: minimize(line().loss), train_op="medium")


# -- inputs ----------------------------------------------------------------------------------


def test_a_placeholder_of_unknown_rank(compiled, line, minimize, refused):
    def build():
        minimize(line(shape=None, transform=lambda x: tf.reshape(x, [-1, 3])).loss)

    with refused(caramel.CaptureError, "'x'", "unknown rank", "split", "[None, ...]", "replicated="):
        compiled(build)


def test_an_argument_of_unknown_rank(refused):
    specs = [tf.TensorSpec(None, tf.float32, "x"), SPECS[1]]
    step = a_step()
    with refused(caramel.CaptureError, "'x'", "unknown rank", "split", "replicated="):
        caramel.ARModel(caramel.capture(lambda x, y: step(tf.reshape(x, [-1, 3]), y), specs), 2)


def test_an_input_of_unknown_rank_that_is_replicated(compiled, line, minimize):
    def build():
        scale = v1.placeholder(tf.float32, None, "scale")
        minimize(line(transform=lambda x: x * tf.reshape(scale, [])).loss)

    armodel = compiled(build, replicated=["scale"])
    with armodel.session() as session:
        assert session.step(x=np.ones((4, 3), np.float32), y=np.ones(4, np.float32), scale=np.float32(2)).examples == 4


def test_a_replicated_input_that_is_not_there(compiled, line, minimize, refused):
    with refused(caramel.CaptureError, "replicated input", "'z'"):
        compiled(lambda: minimize(line().loss), replicated=["z"])
    with refused(caramel.CaptureError, "replicated input", "'z'", "x, y"):
        _ = caramel.capture(a_step(), SPECS, replicated=["z"]).model


# -- mean or sum -----------------------------------------------------------------------------


def root(p, y):
    return tf.sqrt(tf.reduce_mean((p - y) ** 2))


def least(y):
    """A number that an op finds that is not known to treat each example by itself."""
    return tf.raw_ops.NthElement(input=y, n=0)


def from_the_first_target(p, y):
    return tf.reduce_mean((p - least(y)) ** 2)


def root_in_a_loop(p, y):
    return tf.while_loop(lambda n, _: n < 1, lambda n, _: (n + 1, root(p, y)), (0, tf.constant(0.0)))[1]


@pytest.mark.parametrize(
    "loss_of, words",
    [(from_the_first_target, ["NthElement", "or 'sum'"]), (root_in_a_loop, ["Sqrt", "which is another"])],
)
def test_a_loss_whose_reduction_cannot_be_told(refused, loss_of, words):
    with refused(caramel.CaptureError, "mean or a sum", "loss_reduction='mean'", *words):
        caramel.ARModel(caramel.capture(a_step(loss_of=loss_of), SPECS), 2)


@pytest.mark.parametrize("kind, factor", [("mean", 1.0), ("sum", 2.0)])
def test_loss_reduction_says_how_gradients_combine(kind, factor):
    context = caramel.capture(a_step(loss_of=root), SPECS, loss_reduction=kind)
    armodel = caramel.ARModel(context, 2)
    assert armodel.plan.reduction == kind
    assert "loss_reduction=" in armodel.plan.reduction_reason
    # Both workers get the same examples, so both have the same gradient.
    x, y = np.tile(np.eye(3, dtype=np.float32), (2, 1)), np.ones(6, np.float32)
    with armodel.session() as session:
        result = session.step(x, y)
        assert result.loss == pytest.approx(factor)  # sqrt(mean(1)) on each worker
        # d/dw sqrt(mean (x w - y)^2) at w = 0 is -x.T y / (B * 1) = -1/3 for each weight.
        np.testing.assert_allclose(session.values()["w"], factor * 0.1 / 3 * np.ones(3), rtol=1e-5)


def test_a_graph_whose_reduction_cannot_be_told(compiled, line, minimize, refused):
    def build():
        minimize(line(transform=lambda x: x * least(x[:, 0])).loss)

    with refused(caramel.CaptureError, "mean or a sum", "NthElement", "loss_reduction="):
        compiled(build)
    assert compiled(build, loss_reduction="sum").plan.reduction == "sum"


# -- what a capture must not do --------------------------------------------------------------


def run(session, loss):
    session.run(loss)


def evaluate(session, loss):
    loss.eval(session=session)


def call(session, loss):
    session.make_callable(loss)()


@pytest.mark.parametrize("use", [run, evaluate, call])
def test_a_session_run_during_capture_names_the_line(compiled, line, minimize, refused, use):
    def build():
        program = line()
        with v1.Session() as session:
            use(session, program.loss)
        minimize(program.loss)

    source, start = inspect.getsourcelines(use)
    with refused(caramel.CaptureError, f"{__file__}:{start + 1}", "Session", "captur", "__main__"):
        compiled(build)


def test_sessions_run_again_after_a_capture(compiled, line, minimize):
    compiled(lambda: minimize(line().loss))
    with tf.Graph().as_default(), v1.Session() as session:
        assert session.run(tf.constant(3)) == 3


def test_nested_capture(line, minimize, refused):
    with caramel.capture() as outer:
        minimize(line().loss)
        with refused(caramel.CaptureError, "already under way", "nest"), caramel.capture():
            pass
        with refused(caramel.CaptureError, "already under way", "nest"):
            _ = caramel.capture(a_step(), SPECS).model
    assert caramel.ARModel(outer, 2).plan.workers == 2  # the outer one goes on as if nothing had been


def test_a_context_captures_once(captured, line, minimize, refused):
    context = captured(lambda: minimize(line().loss))
    with refused(caramel.CaptureError, "already", "new one"), context:
        pass


def test_a_with_block_around_a_given_program(refused):
    with refused(caramel.InputError, "no 'with' block"), caramel.capture(a_step(), SPECS):
        pass


def test_two_graphs_in_one_capture(compiled, line, minimize, refused):
    def build():
        minimize(line().loss)
        with tf.Graph().as_default():
            minimize(line().loss)

    with refused(caramel.CaptureError, "several tf.Graphs"):
        compiled(build)


def test_a_step_that_raises_while_it_is_traced(refused):
    def broken(x, y):
        raise ValueError("the labels are upside down")

    with refused(caramel.CaptureError, "'broken'", "ValueError", "the labels are upside down", __file__):
        caramel.ARModel(caramel.capture(broken, SPECS), 2)


def test_a_function_that_two_captures_share():
    """It keeps the marks that it got when the first capture traced it."""
    one, other = tf.Variable([1.0, 2.0], name="one"), tf.Variable(1.0, name="other")

    def differentiation(variable):
        @tf.function
        def gradient(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(tf.reduce_sum(x * variable, 1)))
            return loss, tape.gradient(loss, variable)

        return gradient

    of_one, of_other = differentiation(one), differentiation(other)

    def first(x):
        loss, g = of_other(x)
        other.assign_sub(0.1 * g)
        return loss

    def second(x):
        one.assign_sub(0.1 * of_one(x)[1])
        return first(x)

    for step, names in ((first, ["other"]), (second, ["one", "other"]), (first, ["other"])):
        context = caramel.capture(step, [tf.TensorSpec([None, 2], name="x")], loss="output", loss_reduction="mean")
        assert [g.parameter for g in context.model.gradients] == names
