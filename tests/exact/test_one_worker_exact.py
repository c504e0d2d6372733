"""With one worker nothing is refused for the way in which examples are combined: the step is that of one device."""

import numpy as np
import pytest
import tensorflow as tf

import caramel

v1 = tf.compat.v1
rng = np.random.default_rng(0)
BATCHES = [(rng.normal(size=(8, 3)).astype("float32"), rng.integers(-1, 2, 8)) for _ in range(3)]
SPECS = [tf.TensorSpec([None, 3]), tf.TensorSpec([None], tf.int64)]


def masked_mean(x, y, w):
    kept = y >= 0
    return tf.reduce_mean(tf.boolean_mask(tf.linalg.matvec(x, w), kept) ** 2)


def ratio(x, y, w):
    weights = tf.cast(y >= 0, tf.float32)
    return tf.reduce_sum(weights * tf.linalg.matvec(x, w) ** 2) / tf.reduce_sum(weights)


def contrastive(x, y, w):
    logits = tf.matmul(x * w, x, transpose_b=True)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(tf.shape(x)[0]), logits))


def largest(x, y, w):
    return tf.reduce_max(tf.linalg.matvec(x, w) ** 2)


def sum_and_regulariser(x, y, w):
    return tf.reduce_sum(tf.linalg.matvec(x, w) ** 2) / 8 + 0.1 * tf.reduce_sum(w**2)


def fixed(x, y, w):
    return tf.reduce_mean(tf.reshape(x * w, [8, -1]) ** 2)


LOSSES = [masked_mean, ratio, contrastive, largest, sum_and_regulariser, fixed]


def program(loss_of):
    w = tf.Variable([0.5, -0.25, 1.0], name="w")

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(x, y, w)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    return step, w


def with_an_unknown_op(x, y, w):
    return tf.reduce_mean(tf.linalg.matvec(x, w) ** 2) * tf.raw_ops.NthElement(input=tf.cast(y, tf.float32), n=0)


@pytest.mark.parametrize("loss_of", [*LOSSES, with_an_unknown_op], ids=lambda f: f.__name__)
def test_a_loss_of_the_whole_batch(loss_of):
    step, want = program(loss_of)
    alone = tf.function(step)
    losses = [float(alone(*map(tf.constant, batch))) for batch in BATCHES]
    step, got = program(loss_of)
    context = caramel.capture(step, inputs=SPECS)
    with caramel.ARModel(context, 1).session() as session:
        results = session.run(BATCHES)
        session.write_back()
    np.testing.assert_allclose(got, want, rtol=1e-6)
    np.testing.assert_allclose([result.loss for result in results], losses, rtol=1e-6)


def test_with_several_it_is_refused_as_before():
    step, _ = program(with_an_unknown_op)
    with pytest.raises(caramel.CaptureError, match="mean or a sum"):
        caramel.ARModel(caramel.capture(step, inputs=SPECS), 2)


def test_the_plan_says_so():
    """It says nothing of workers that are not there."""
    step, _ = program(with_an_unknown_op)
    plan = caramel.ARModel(caramel.capture(step, inputs=SPECS), 1).plan
    assert any("with one worker there is nothing to aggregate" in note for note in plan.notes)
    assert not [note for note in plan.notes if "workers" in note]


def test_it_can_be_traced(tmp_path):
    """No gradient of it is aggregated, so there is no pace either."""
    context = caramel.capture(program(with_an_unknown_op)[0], inputs=SPECS)
    trace = caramel.trace(context, *BATCHES[0], workers=1, runs=1, steps=1, progress=False)
    caramel.save_trace(trace, tmp_path / "trace.json")
    assert caramel.ARModel(context, 1, trace=tmp_path / "trace.json").plan.transfers == ()


def test_a_step_without_gradients_is_refused_all_the_same():
    w = tf.Variable([1.0, 2.0, 3.0])

    def step(x, y):
        w.assign_add(tf.reduce_mean(x, 0))
        return tf.reduce_mean(x)

    with pytest.raises(caramel.CaptureError, match="no gradient"):
        caramel.ARModel(caramel.capture(step, inputs=SPECS), 1)


def test_python_code_is_refused_all_the_same():
    w = tf.Variable([1.0, 2.0, 3.0])

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_max(tf.linalg.matvec(x, w) ** 2)
        w.assign_sub(tape.gradient(loss, w))
        tf.py_function(print, [loss], [])
        return loss

    with pytest.raises(caramel.UnsupportedError, match="EagerPyFunc"):
        caramel.ARModel(caramel.capture(step, inputs=SPECS), 1)


def clipped(gradients):
    """The mean of the gradients of all examples, none of which is longer than 1."""
    length = tf.norm(gradients, axis=1, keepdims=True)
    return tf.reduce_mean(gradients / tf.maximum(length, 1.0), 0)


def losses_of(x, y, w):
    return (tf.linalg.matvec(x, w) - tf.cast(y, tf.float32)) ** 2


def by_jacobian(x, y, w, **options):
    with tf.GradientTape() as tape:
        losses = losses_of(x, y, w)
    return clipped(tape.jacobian(losses, w, **options)), tf.reduce_mean(losses)


def of_one(x, y, w):
    with tf.GradientTape() as tape:
        loss = losses_of(x[None], y[None], w)[0]
    return tape.gradient(loss, w), loss


def in_a_vectorised_map(x, y, w):
    gradients, losses = tf.vectorized_map(lambda pair: of_one(*pair, w), (x, y))
    return clipped(gradients), tf.reduce_mean(losses)


def in_a_map(x, y, w):
    kinds = (tf.float32, tf.float32)
    gradients, losses = tf.map_fn(lambda pair: of_one(*pair, w), (x, y), fn_output_signature=kinds)
    return clipped(gradients), tf.reduce_mean(losses)


@tf.function
def losses_in_a_function(x, y, w):
    return losses_of(x, y, w)


def by_jacobian_of_a_function(x, y, w):
    with tf.GradientTape() as tape:
        losses = losses_in_a_function(x, y, w)
    return clipped(tape.jacobian(losses, w)), tf.reduce_mean(losses)


def by_jacobian_in_a_loop(x, y, w):
    gradient, loss = tf.zeros_like(w), tf.zeros([])
    for n in tf.range(2):
        gradient, loss = by_jacobian(x * tf.cast(n + 1, x.dtype), y, w)
    return gradient, loss


def in_a_branch(x, y, w):
    def gradient(scale):
        with tf.GradientTape() as tape:
            loss = scale * tf.reduce_mean(losses_of(x, y, w))
        return tape.gradient(loss, w), loss

    least = tf.raw_ops.NthElement(input=tf.reduce_sum(x, 1), n=0)
    return tf.cond(least > 0.0, lambda: gradient(1.0), lambda: gradient(0.5))


def in_steps_within_a_loop(x, y, w):
    """As many as the weights say."""
    moved, loss = tf.identity(w), tf.zeros([])
    for _ in tf.range(2 + tf.cast(w[0] > 0.0, tf.int32)):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(losses_of(x, y, w + 0.1 * moved))
        moved -= 0.1 * tf.nn.l2_normalize(tape.gradient(loss, w))
    return w - moved, loss


INSIDE = {
    "jacobian": (by_jacobian, "jacobian.*one for each example"),
    "jacobian in a loop": (
        lambda x, y, w: by_jacobian(x, y, w, experimental_use_pfor=False),
        "jacobian.*one for each example",
    ),
    "jacobian of a function": (by_jacobian_of_a_function, "jacobian.*one for each example"),
    "jacobian within a loop": (by_jacobian_in_a_loop, "jacobian.*one for each example"),
    "vectorized_map": (in_a_vectorised_map, "vectorized_map.*one for each example"),
    "map_fn": (in_a_map, "does more with it than add it to a sum"),
    "branch": (in_a_branch, "in a branch whose condition differs"),
    "loop": (in_steps_within_a_loop, "does more with it than add it to a sum"),
}


@pytest.mark.parametrize("kind", INSIDE)
def test_gradients_that_several_workers_cannot_aggregate(kind):
    """Of single examples, or within a loop or branch."""
    change, refusal = INSIDE[kind]

    def build():
        w = tf.Variable([0.5, -0.25, 1.0], name="w")

        def step(x, y):
            gradient, loss = change(x, y, w)
            w.assign_sub(0.3 * gradient)
            return loss

        return step, w

    step, want = build()
    alone = tf.function(step)
    losses = [float(alone(*map(tf.constant, batch))) for batch in BATCHES]
    step, got = build()
    context = caramel.capture(step, inputs=SPECS)
    model = caramel.ARModel(context, 1)
    with model.session() as session:
        results = session.run(BATCHES)
        session.write_back()
    np.testing.assert_allclose(got, want, rtol=1e-6)
    np.testing.assert_allclose([result.loss for result in results], losses, rtol=1e-6)
    assert any("with one worker" in note for note in model.plan.notes)
    with pytest.raises(caramel.UnsupportedError, match=refusal):
        caramel.ARModel(context, 2)


@pytest.mark.parametrize(("trains", "workers"), [(True, 2), (False, 1)])
def test_gradients_of_single_examples_that_the_step_does_not_use(trains, workers):
    w, seen = tf.Variable([0.5, -0.25, 1.0], name="w"), tf.Variable(0.0, name="seen", trainable=False)

    def step(x, y):
        by_jacobian(x, y, w)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(losses_of(x, y, w))
        if trains:
            w.assign_sub(0.1 * tape.gradient(loss, w))
        seen.assign_add(1.0)
        return loss

    context = caramel.capture(step, inputs=SPECS)
    if trains:
        assert len(caramel.ARModel(context, workers).plan.transfers) == 1
    else:
        with pytest.raises(caramel.CaptureError, match="no gradient of a variable was computed"):
            caramel.ARModel(context, workers)


def test_gradients_of_single_examples_without_a_loss():
    w = tf.Variable([0.5, -0.25, 1.0])
    context = caramel.capture(lambda x, y: [w.assign_sub(by_jacobian(x, y, w)[0]), None][1], inputs=SPECS)
    with pytest.raises(caramel.CaptureError, match="pass it as loss="):
        caramel.ARModel(context, 1)


@pytest.mark.parametrize("workers", [1, 4])
def test_two_losses(workers):
    """Of an actor and a critic; the step returns nothing."""

    def build():
        critic, actor = tf.Variable(tf.ones([3, 1]), name="critic"), tf.Variable(tf.ones([3, 1]), name="actor")

        def step(x, y):
            with tf.GradientTape() as one, tf.GradientTape() as two:
                first = tf.reduce_mean(tf.square(tf.matmul(x, critic) - 1.0))
                second = tf.reduce_mean(tf.square(tf.matmul(x, actor) - tf.stop_gradient(tf.matmul(x, critic))))
            critic.assign_sub(0.1 * one.gradient(first, critic))
            actor.assign_sub(0.1 * two.gradient(second, actor))

        return step, [critic, actor]

    step, want = build()
    alone = tf.function(step)
    for batch in BATCHES:
        alone(*map(tf.constant, batch))
    for options in ({}, {"loss": "Mean_1:0"}, {"loss": "Mean_1"}):
        step, got = build()
        context = caramel.capture(step, inputs=SPECS, **options)
        with caramel.ARModel(context, workers).session() as session:
            session.run(BATCHES)
            session.write_back()
        for one, other in zip(got, want):
            np.testing.assert_allclose(one, other, rtol=1e-5)
        said = [note for note in context.model_for(workers).notes if "several tensors" in note]
        assert len(said) == (0 if options else 1)
    step, _ = build()
    with pytest.raises(caramel.CaptureError, match="no tensor that it differentiates: these are Mean:0, Mean_1:0"):
        caramel.capture(step, inputs=SPECS, loss="Mean_7:0").model  # noqa: B018


@pytest.mark.parametrize("workers", [1, 2])
def test_the_number_of_examples_is_known_where_batches_have_one(workers):
    """Noise of a static shape: of the rows of a worker. It is multiplied by 0 with several, which draw their own."""
    x = rng.normal(size=(48, 4)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices(x).batch(16, drop_remainder=True)

    def build():
        tf.random.set_seed(1)
        w = tf.Variable(tf.fill([4, 2], 0.3), name="w")

        def step(x):
            with tf.GradientTape() as tape:
                mean = tf.matmul(x, w)
                code = mean + (0.5 if workers == 1 else 0.0) * tf.random.normal(shape=mean.shape, seed=2)
                loss = tf.reduce_mean(tf.square(code - 1.0))
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return loss

        return step, w

    step, want = build()
    alone = tf.function(step)
    for batch in data:
        alone(batch)
    step, got = build()
    with caramel.ARModel(caramel.capture(step, data=data), workers).session() as session:
        session.run()
        session.write_back()
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"replicated": ["rate"]}], ids=["as it is", "replicated"])
@pytest.mark.parametrize("workers", [1, 3])
def test_an_input_without_a_rank_takes_a_number(workers, options):
    def build():
        x = v1.placeholder(tf.float32, [None, 3], "x")
        rate = v1.placeholder(tf.float32, name="rate")
        w = v1.get_variable("w", initializer=tf.constant([0.5, -0.25, 1.0]))
        loss = tf.reduce_mean(tf.square(tf.linalg.matvec(x / rate, w) - 1.0))
        return v1.train.GradientDescentOptimizer(0.1).minimize(loss), w

    with tf.Graph().as_default(), v1.Session() as session:
        train, w = build()
        session.run(v1.global_variables_initializer())
        for x, _ in BATCHES:
            session.run(train, {"x:0": x, "rate:0": 0.5})
        want = session.run(w)
    with caramel.capture(**options) as context:
        build()
    with caramel.ARModel(context, workers).session() as session:
        for x, _ in BATCHES:
            session.step({"x": x, "rate": np.float32(0.5)})
        np.testing.assert_allclose(session.values()["w"], want, rtol=1e-5)
        if workers > 1 and not options:
            with pytest.raises(caramel.InputError, match="'rate'"):
                session.step({"x": BATCHES[0][0], "rate": np.ones(8, np.float32)})


def test_calls_in_the_old_way():
    """The gradient of TensorFlow's CTC loss has loops whose bodies are called by an op that has their name."""
    labels = rng.integers(1, 4, (8, 2))
    sounds = rng.normal(size=(8, 6, 3)).astype("float32")

    def build():
        w = tf.Variable(tf.fill([3, 5], 0.1) * tf.reshape(tf.range(15.0), [3, 5]), name="w")

        def step(x, y):
            with tf.GradientTape() as tape:
                lengths = tf.fill([tf.shape(x)[0]], 2), tf.fill([tf.shape(x)[0]], 6)
                losses = tf.nn.ctc_loss(y, tf.einsum("btc,cd->btd", x, w), *lengths, logits_time_major=False)
                loss = tf.reduce_mean(losses)
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return loss

        return step, w

    step, want = build()
    tf.function(step)(sounds, labels.astype("int32"))
    for workers in (1, 2):
        step, got = build()
        specs = [tf.TensorSpec([None, 6, 3]), tf.TensorSpec([None, 2], tf.int32)]
        context = caramel.capture(step, inputs=specs, loss_reduction="mean")
        with caramel.ARModel(context, workers).session() as session:
            session.step(sounds, labels.astype("int32"))
            session.write_back()
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("examples", [None, 8], ids=["open", "fixed"])
@pytest.mark.parametrize("way", ["fed", "data"])
def test_inputs_may_have_other_numbers_of_examples(way, examples):
    """As labelled ones beside more of others."""
    batches = [
        (x, rng.normal(size=8).astype("float32"), rng.normal(size=(20, 3)).astype("float32")) for x, _ in BATCHES
    ]
    specs = [tf.TensorSpec([examples, 3]), tf.TensorSpec([examples]), tf.TensorSpec([examples and 20, 3])]

    def made():
        w = tf.Variable([0.5, -0.25, 1.0], name="w")

        def step(x, y, others):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
                loss += 0.1 * tf.reduce_mean(tf.linalg.matvec(others, w) ** 2)
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return loss

        return step, w

    step, alone = made()
    want = [float(tf.function(step)(*batch)) for batch in batches]
    step, mine = made()
    stacked = tuple(np.stack(arrays) for arrays in zip(*batches))
    data = {} if way == "fed" else {"data": tf.data.Dataset.from_tensor_slices(stacked)}
    context = caramel.capture(step, specs if way == "fed" or examples is None else None, **data)
    with caramel.ARModel(context, 1).session() as session:
        losses = [session.step(*(batch if way == "fed" else ())).loss for batch in batches]
        session.write_back()
    np.testing.assert_array_equal(losses, np.float32(want))
    np.testing.assert_array_equal(mine, alone)
