"""Losses that are no sum or mean of the workers' losses: the numbers of one device with the whole batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from exact_common import in_process
from exact_plans import random_plan
from variants import mostly_in_soak

import caramel

v1 = tf.compat.v1
FEATURES, CLASSES = 4, 3
BATCHES = {"even": 12, "uneven": 13, "fewer examples than workers": 2}


def batches(size, steps=3):
    rng = np.random.default_rng(size)
    for _ in range(steps):
        x = rng.normal(size=(size, FEATURES)) + np.arange(size)[:, None] / 4  # workers see other means
        mask = (np.arange(size) % 3 > 0) | (np.arange(size) == 0)
        yield x, np.abs(rng.normal(size=size)) + 0.5, mask & (np.arange(size) != 1)


# -- losses; each takes the outputs (B, 3), targets (B,) and a mask (B,) ----------------------------------


def errors(outputs, y):
    return tf.reduce_sum((outputs - y[:, None]) ** 2, 1)


def chosen_mean(outputs, y, mask):
    return tf.reduce_mean(tf.boolean_mask(errors(outputs, y), mask))


def chosen_mean_of_outputs(outputs, y, mask):
    outputs, y = tf.boolean_mask(outputs, mask), tf.boolean_mask(y, mask)
    return tf.reduce_mean((outputs - y[:, None]) ** 2)


def chosen_by_where(outputs, y, mask):
    places = tf.where(mask)[:, 0]
    return tf.reduce_mean(tf.gather(outputs, places) ** 2) + tf.reduce_mean(tf.gather_nd(y, tf.where(mask)))


def chosen_sum_over_number(outputs, y, mask):
    kept = tf.boolean_mask(errors(outputs, y), mask)
    return tf.reduce_sum(kept) / tf.cast(tf.size(kept), kept.dtype)


def chosen_sum_over_shape(outputs, y, mask):
    kept = tf.boolean_mask(outputs, mask)
    rows, columns = tf.unstack(tf.cast([tf.shape(kept)[0], tf.shape(kept)[1]], kept.dtype))
    return tf.reduce_sum(kept**2) / (rows * columns)


def ratio(outputs, y, mask):
    weights = tf.cast(mask, outputs.dtype)
    return tf.reduce_sum(weights * errors(outputs, y)) / tf.reduce_sum(weights)


def ratio_and_small_number(outputs, y, mask):
    weights = tf.cast(mask, outputs.dtype)
    return tf.reduce_sum(weights * errors(outputs, y)) / (tf.reduce_sum(weights) + 1e-7)


def scaled_weights(outputs, y, mask):
    weights = tf.cast(mask, outputs.dtype)
    weights *= tf.cast(tf.size(mask), outputs.dtype) / tf.reduce_sum(weights)
    return tf.reduce_mean(weights * errors(outputs, y))


def learned_ratio(outputs, y, mask):
    gates = tf.sigmoid(outputs[:, 0])
    return tf.reduce_sum(gates * errors(outputs, y)) / tf.reduce_sum(gates)


def dice(outputs, y, mask):
    p = tf.sigmoid(outputs[:, 0])
    return 1 - 2 * tf.reduce_sum(p * y) / (tf.reduce_sum(p) + tf.reduce_sum(y) + 1.0)


def root(outputs, y, mask):
    return tf.sqrt(tf.reduce_mean(errors(outputs, y)))


def root_by_size(outputs, y, mask):
    return tf.sqrt(tf.reduce_sum(errors(outputs, y)) / tf.cast(tf.shape(y)[0], y.dtype))


def product(outputs, y, mask):
    return tf.reduce_mean(outputs[:, 0] * y) * tf.reduce_mean(outputs[:, 1])


def correlation(outputs, y, mask):
    p = outputs[:, 0]
    p, t = p - tf.reduce_mean(p), y - tf.reduce_mean(y)
    return -tf.reduce_sum(p * t) / tf.sqrt(tf.reduce_sum(p**2) * tf.reduce_sum(t**2) + 1e-3)


def relative(outputs, y, mask):
    """A mean goes into the values of single examples."""
    loss = errors(outputs, y)
    return tf.reduce_mean(tf.sqrt(loss / tf.reduce_mean(loss) + 1.0))


def class_weights(outputs, y, mask):
    """The rarer a class is in the batch, the more its examples count."""
    labels = tf.one_hot(tf.cast(y * 2, tf.int32) % CLASSES, CLASSES, dtype=outputs.dtype)
    weights = 1 / (tf.reduce_sum(labels, 0) + 1)
    losses = tf.nn.softmax_cross_entropy_with_logits(labels, outputs)
    return tf.reduce_sum(tf.reduce_sum(labels * weights, 1) * losses)


def product_of_vectors(outputs, y, mask):
    return tf.tensordot(y, errors(outputs, y), 1) / tf.reduce_sum(y)


def root_of_l2(outputs, y, mask):
    return tf.sqrt(tf.nn.l2_loss(outputs - y[:, None]))


def with_penalty(outputs, y, mask):
    """Means are penalised."""
    return tf.reduce_mean(errors(outputs, y)) + tf.reduce_sum(tf.reduce_mean(outputs, 0) ** 2)


def centred(outputs, y, mask):
    """A term with a quadratic form of means for each output, and one with a sum."""
    covariance = tf.matmul(outputs, outputs, transpose_a=True) / tf.cast(tf.shape(y)[0], y.dtype)
    return tf.reduce_sum(covariance**2) * 1e-3 + tf.reduce_sum(errors(outputs, y))


def number(y):
    return tf.cast(tf.shape(y)[0], y.dtype)


def root_of_sum_by_size(outputs, y, mask):
    """The size stands beside the root, and its gradient has the size in it, too."""
    return tf.sqrt(tf.reduce_sum(errors(outputs, y))) / number(y)


def unbiased_variance(outputs, y, mask):
    p = outputs[:, 0]
    return tf.reduce_sum((p - tf.reduce_mean(p)) ** 2) / (number(y) - 1) + tf.reduce_mean(y * p)


def penalty_for_each_example(outputs, y, mask):
    return tf.reduce_sum(errors(outputs, y)) + 0.1 * number(y) * tf.reduce_mean(outputs) ** 2


def chosen_and_a_root(outputs, y, mask):
    """The mean over chosen examples weighs the workers otherwise than by their examples."""
    return tf.reduce_mean(tf.boolean_mask(outputs[:, 0], mask) + tf.sqrt(tf.reduce_mean(outputs[:, 1] ** 2)))


def chosen_and_centred(outputs, y, mask):
    centred_outputs = tf.boolean_mask(outputs[:, 0], mask) - tf.reduce_mean(outputs[:, 0])
    return tf.abs(tf.reduce_sum(centred_outputs)) + tf.reduce_mean(errors(outputs, y))


def chosen_of_centred(outputs, y, mask):
    return tf.reduce_mean(tf.abs(tf.boolean_mask(outputs, mask) - tf.reduce_mean(outputs, 0)))


def z_scores(outputs, y, mask):
    """Looks like batch normalisation, and is none."""
    p = outputs[:, :1]
    p = (p - tf.reduce_mean(p, 0)) / (tf.math.reduce_std(p, 0) + 1e-8)
    return tf.reduce_mean(tf.nn.relu(p) * y[:, None])


def root_mean_square(outputs, y, mask):
    return tf.reduce_mean(tf.nn.relu(outputs * tf.math.rsqrt(tf.reduce_mean(outputs**2, 0) + 1e-3)) * y[:, None])


def standard_targets(outputs, y, mask):
    targets = y[:, None] / tf.math.reduce_std(y[:, None], 0)
    return tf.reduce_mean((outputs - targets) ** 2)


def chosen_between_means(outputs, y, mask):
    scale = tf.reduce_mean(y) * 0.1
    return tf.reduce_mean(tf.where(mask, scale * 2.0, scale) * outputs[:, 0])


def cross_correlation(outputs, y, mask):
    """Of the columns of two views."""
    one, other = (v - tf.reduce_mean(v, 0) for v in (outputs, outputs * y[:, None]))
    matrix = tf.matmul(one, other, transpose_a=True) / number(y)
    on_diagonal = tf.reduce_sum((1 - tf.linalg.diag_part(matrix)) ** 2)
    return on_diagonal + 0.05 * tf.reduce_sum((matrix - tf.linalg.diag(tf.linalg.diag_part(matrix))) ** 2)


def classes(y):
    """A class of each example."""
    return tf.cast(tf.floor(y * 7), tf.int32) % CLASSES


def entry_of_each(outputs, y, mask):
    """The output of an action, by the number of the example and that of the action."""
    places = tf.stack([tf.range(tf.shape(outputs)[0]), classes(y)], axis=1)
    return tf.reduce_mean((tf.gather_nd(outputs, places) - y) ** 2)


def entry_by_columns(outputs, y, mask):
    actions = tf.cast(classes(y), tf.int64)[:, None]
    places = tf.concat([tf.range(tf.shape(outputs, tf.int64)[0])[:, None], actions], 1)
    return tf.reduce_sum(tf.gather_nd(tf.nn.log_softmax(outputs), places) * y) / tf.reduce_sum(y)


def entry_of_each_batched(outputs, y, mask):
    return tf.reduce_mean((tf.gather_nd(outputs, classes(y)[:, None], batch_dims=1) - y) ** 2)


def first_entry_of_each(outputs, y, mask):
    count = tf.shape(outputs)[0]
    places = tf.stack([tf.range(count), tf.zeros([count], tf.int32)], axis=-1)
    return tf.sqrt(tf.reduce_mean((tf.gather_nd(outputs, places) - y) ** 2))


LOSSES = [
    entry_of_each,
    entry_by_columns,
    entry_of_each_batched,
    first_entry_of_each,
    root_of_sum_by_size,
    unbiased_variance,
    penalty_for_each_example,
    chosen_and_a_root,
    chosen_and_centred,
    chosen_of_centred,
    z_scores,
    root_mean_square,
    standard_targets,
    chosen_between_means,
    cross_correlation,
    chosen_mean,
    chosen_mean_of_outputs,
    chosen_by_where,
    chosen_sum_over_number,
    chosen_sum_over_shape,
    ratio,
    ratio_and_small_number,
    scaled_weights,
    learned_ratio,
    dice,
    root,
    root_by_size,
    product,
    correlation,
    relative,
    class_weights,
    product_of_vectors,
    root_of_l2,
    with_penalty,
    centred,
]


IN_EVERY_RUN = [
    entry_by_columns,
    entry_of_each_batched,
    root_of_sum_by_size,
    penalty_for_each_example,
    chosen_and_a_root,
    chosen_of_centred,
    z_scores,
    chosen_between_means,
    cross_correlation,
    chosen_by_where,
    chosen_sum_over_shape,
    scaled_weights,
    dice,
    correlation,
    class_weights,
    with_penalty,
    centred,
]


class Program:
    """Two layers and a step of one's own."""

    def __init__(self, loss, *, penalty=0.0, optimizer=None):
        rng = np.random.default_rng(1)
        self.first = tf.Variable(rng.normal(size=(FEATURES, 5)) / 3, name="first", dtype=tf.float64)
        self.second = tf.Variable(rng.normal(size=(5, CLASSES)) / 3, name="second", dtype=tf.float64)
        self.variables = [self.first, self.second]
        self.optimizer = optimizer or keras.optimizers.SGD(0.02)
        self.optimizer.build([self.first, self.second])
        self.loss, self.penalty = loss, penalty

    def step(self, x, y, mask):
        with tf.GradientTape() as tape:
            loss = self.loss(tf.tanh(x @ self.first) @ self.second, y, mask)
            if self.penalty:
                loss += self.penalty * tf.add_n([tf.nn.l2_loss(v) for v in self.variables])
        self.optimizer.apply(tape.gradient(loss, self.variables), self.variables)
        return loss


SPECS = [tf.TensorSpec([None, FEATURES], tf.float64), tf.TensorSpec([None], tf.float64), tf.TensorSpec([None], tf.bool)]


@pytest.fixture(autouse=True)
def _double():
    keras.config.set_floatx("float64")
    yield
    keras.config.set_floatx("float32")


def one_device(program, data):
    losses = [float(program.step(*(tf.constant(a) for a in batch))) for batch in data]
    return losses, [v.numpy() for v in program.variables]


def distributed(program, data, workers, *, seed=None, cluster=None):
    """Trained on several workers, with the default plan or a random one."""
    context = caramel.capture(program.step, SPECS)
    plan = None if seed is None else random_plan(context, workers, seed)
    with caramel.ARModel(context, workers, plan=plan).session(cluster=cluster or in_process()) as session:
        losses = [session.step(*batch).loss for batch in data]
        values = session.values()
    return losses, [values[v.name.partition(":")[0]] for v in program.variables]


def check(make, data):
    """Three workers train what ``make()`` makes as one device does."""
    assert_same(distributed(make(), data, 3), one_device(make(), data))


def assert_same(got, want):
    np.testing.assert_allclose(got[0], want[0], rtol=1e-9, err_msg="losses")
    for mine, theirs in zip(got[1], want[1]):
        np.testing.assert_allclose(mine, theirs, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("loss", mostly_in_soak(LOSSES, *IN_EVERY_RUN), ids=lambda loss: loss.__name__)
@pytest.mark.parametrize("size", mostly_in_soak(list(BATCHES.values()), BATCHES["uneven"]))
def test_loss(loss, size):
    data = list(batches(size))
    assert_same(distributed(Program(loss), data, 3), one_device(Program(loss), data))


@pytest.mark.parametrize(
    "loss",
    mostly_in_soak([chosen_mean, ratio, scaled_weights, learned_ratio, relative], ratio),
    ids=lambda loss: loss.__name__,
)
def test_loss_and_penalty(loss):
    data = list(batches(13))
    got, want = Program(loss, penalty=0.1), Program(loss, penalty=0.1)
    assert_same(distributed(got, data, 4), one_device(want, data))


@pytest.mark.parametrize("seed", mostly_in_soak(list(range(6)), 4))
@pytest.mark.parametrize("loss", mostly_in_soak([dice, relative], relative), ids=lambda loss: loss.__name__)
def test_loss_with_any_plan(loss, seed):
    """Collectives of both passes, postponed updates and enforced orders go together."""
    data = list(batches(13))
    make = lambda: Program(loss, penalty=0.1, optimizer=keras.optimizers.Adam(0.02, global_clipnorm=1.0))  # noqa: E731
    assert_same(distributed(make(), data, 3, seed=seed), one_device(make(), data))


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.processes
def test_loss_in_processes():
    data = list(batches(13))
    got = distributed(Program(relative), data, 3, cluster=caramel.LocalProcesses())
    assert_same(got, one_device(Program(relative), data))


class Averaging(Program):
    """A step that also keeps averages of the loss, and of the loss over the number of examples."""

    def __init__(self, loss):
        super().__init__(loss)
        self.averages = [
            tf.Variable(0.0, trainable=False, dtype=tf.float64, name=name) for name in ("average", "by_size")
        ]
        self.total = tf.Variable(0.0, trainable=False, dtype=tf.float64, name="total")
        self.variables += self.averages  # compared, too
        self.variables.append(self.total)

    def step(self, x, y, mask):
        trained = [self.first, self.second]
        with tf.GradientTape() as tape:
            sum_of_all = tf.reduce_sum(errors(tf.tanh(x @ self.first) @ self.second, y))
            loss = tf.sqrt(sum_of_all)
        self.optimizer.apply(tape.gradient(loss, trained), trained)
        self.averages[0].assign(0.9 * self.averages[0] + 0.1 * loss)
        self.averages[1].assign_add(sum_of_all / number(y))
        self.total.assign_add(loss * number(y))
        return loss


def test_variables_that_are_written_from_a_loss_of_the_whole_batch():
    data = list(batches(13))
    assert_same(distributed(Averaging(None), data, 3), one_device(Averaging(None), data))


def rate_by_the_loss(program, loss, gradients):
    """The smaller the loss, the smaller the steps."""
    for variable, gradient in zip(program.variables, gradients):
        variable.assign_sub(0.02 * tf.minimum(loss, 1.0) * gradient)


def guarded(program, loss, gradients):
    """A step whose loss is too large, or not finite, changes nothing."""
    is_good = tf.math.is_finite(loss) & (loss < 3.3)
    for variable, gradient in zip(program.variables, gradients):
        variable.assign_sub(tf.where(is_good, 0.02 * gradient, tf.zeros_like(gradient)))


def branched(program, loss, gradients):
    tf.cond(loss < 3.3, lambda: program.optimizer.apply(gradients, program.variables), lambda: None)


class Deciding(Program):
    """A step whose loss decides what becomes of its gradients."""

    def __init__(self, loss, update):
        super().__init__(loss)
        self.update = update

    def step(self, x, y, mask):
        with tf.GradientTape() as tape:
            loss = self.loss(tf.tanh(x @ self.first) @ self.second, y, mask)
        self.update(self, loss, tape.gradient(loss, self.variables))
        return loss


def mean(outputs, y, mask):
    return tf.reduce_mean(errors(outputs, y))


@pytest.mark.parametrize("loss", mostly_in_soak([mean, ratio], mean), ids=lambda loss: loss.__name__)
@pytest.mark.parametrize("update", [rate_by_the_loss, guarded, branched], ids=lambda update: update.__name__)
def test_updates_that_depend_on_the_loss(loss, update):
    data = list(batches(13))
    got, want = (run(Deciding(loss, update), data, *more) for run, *more in ((distributed, 3), (one_device,)))
    assert_same(got, want)


# -- graphs of TensorFlow 1 ----------------------------------------------------------------------


def build_graph(loss, penalty=0.1):
    x = v1.placeholder(tf.float64, [None, FEATURES], "x")
    y = v1.placeholder(tf.float64, [None], "y")
    mask = v1.placeholder(tf.bool, [None], "mask")
    start = v1.random_uniform_initializer(-0.5, 0.5, seed=2, dtype=tf.float64)
    w = v1.get_variable("w", [FEATURES, CLASSES], tf.float64, initializer=start)
    value = loss(x @ w, y, mask)
    value += penalty * tf.nn.l2_loss(w) if penalty else 0.0
    return v1.train.MomentumOptimizer(0.02, 0.9).minimize(value), value


def graph(loss, watched=True, penalty=0.1):
    """The context of a program of TensorFlow 1 with a loss."""
    if not watched:
        with tf.Graph().as_default() as finished:
            train_op, value = build_graph(loss, penalty)
        return caramel.capture(finished, train_op=train_op, loss=value)
    with caramel.capture() as context:
        context.train_op, context.loss = build_graph(loss, penalty)
    return context


def fed(data):
    return [dict(zip(("x:0", "y:0", "mask:0"), batch)) for batch in data]


def graph_on_one_device(loss, data):
    with tf.Graph().as_default(), v1.Session() as session:
        train_op, value = build_graph(loss)
        session.run(v1.global_variables_initializer())
        losses = [session.run([value, train_op], feed)[0] for feed in fed(data)]
        return losses, {v.op.name: session.run(v) for v in v1.global_variables()}


def trained_graph(loss, data, workers):
    with caramel.ARModel(graph(loss), workers).session(cluster=in_process()) as session:
        return [session.step(feed).loss for feed in fed(data)], session.values()


@pytest.mark.parametrize(
    "loss",
    mostly_in_soak([chosen_mean, ratio, learned_ratio, dice, relative], learned_ratio),
    ids=lambda loss: loss.__name__,
)
def test_loss_of_a_graph(loss):
    data = list(batches(13))
    got, want = trained_graph(loss, data, 3), graph_on_one_device(loss, data)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-9)
    for name, value in want[1].items():
        np.testing.assert_allclose(got[1][name], value, rtol=1e-8, atol=1e-11, err_msg=name)


def test_a_finished_graph_does_not_say_where_gradients_enter():
    with pytest.raises(caramel.CaptureError, match="mean or a sum over the batch"):
        caramel.ARModel(graph(learned_ratio, watched=False), 2)
    model = caramel.ARModel(graph(scaled_weights, watched=False, penalty=0), 2)  # no gradient goes through the weights
    assert model.plan.reduction == "sum"


@pytest.mark.parametrize("loss", [chosen_mean, ratio])
def test_a_mask_that_leaves_nothing(loss):
    """0 / 0, as on one device."""
    ((x, y, mask),) = batches(6, steps=1)
    data = [(x, y, np.zeros_like(mask)), (x, y, mask)]
    got, want = distributed(Program(loss), data, 2), one_device(Program(loss), data)
    assert np.isnan(want[0][0])
    assert_same(got, want)


# -- what is refused -----------------------------------------------------------------------------


def test_the_plan_names_what_is_summed():
    model = caramel.ARModel(caramel.capture(Program(root).step, SPECS), 2)
    assert any("summed over the workers in the forward pass" in note for note in model.plan.notes)


def test_a_sum_within_a_loop_is_refused():
    def loss(outputs, y, mask):
        return tf.while_loop(
            lambda n, value: n < 2, lambda n, value: (n + 1, value + tf.sqrt(tf.reduce_mean(outputs**2))), (0, y[0] * 0)
        )[1]

    with pytest.raises(caramel.CaptureError, match="mean or a sum over the batch"):
        caramel.ARModel(caramel.capture(Program(loss).step, SPECS), 2)


def test_what_is_given_by_the_caller_stays():
    """With loss_reduction= nothing travels in the forward pass."""
    context = caramel.capture(Program(root).step, SPECS, loss_reduction="mean")
    assert context.model.forward_sums == ()


def test_what_enters_in_a_function_that_stays_compiled_is_refused():
    """The gradient of a convolution that the program compiles stays a function, in which nothing can be scaled."""
    kernel = tf.Variable(tf.ones([3, 3, 2, 2]), name="kernel")

    def convolved(x):
        return tf.nn.conv2d(x, kernel, 1, "VALID")

    def step(loss_of, x):
        with tf.GradientTape() as tape:
            loss = tf.function(loss_of, jit_compile=True)(x)
        kernel.assign_sub(tape.gradient(loss, kernel))
        return loss

    def masked(x):
        mask = tf.cast(x[:, 0, 0, 0] > 0, x.dtype)
        return tf.reduce_sum(mask * tf.reduce_mean(convolved(x) ** 2, [1, 2, 3])) / tf.reduce_sum(mask)

    def mean(x):
        return tf.reduce_mean(convolved(x) ** 2)

    specs = [tf.TensorSpec([None, 6, 6, 2], tf.float32, "x")]
    caramel.ARModel(caramel.capture(lambda x: step(mean, x), specs), 2)
    with pytest.raises(caramel.CaptureError, match="RealDiv"):
        caramel.ARModel(caramel.capture(lambda x: step(masked, x), specs), 2)
