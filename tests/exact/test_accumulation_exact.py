"""Gradients that a program adds up: N workers equal one device, with one all-reduce for each sum."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from exact_common import in_process
from exact_steps import Program, check, distributed, fresh
from variants import in_soak, mostly_in_soak

import caramel

SPECS = [tf.TensorSpec([None, 4], tf.float64, "x"), tf.TensorSpec([None], tf.float64, "y")]


def examples(count=12, steps=7, seed=3):
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(count, 4)), rng.normal(size=count)) for _ in range(steps)]


def parameter():
    return tf.Variable([1.0, -0.5, 0.25, 0.75], dtype=tf.float64, name="w")


def zeros(name="sum"):
    return tf.Variable(tf.zeros([4], tf.float64), name=name, trainable=False)


def loss_of(x, y, w, reduce=tf.reduce_mean):
    return reduce(tf.square(tf.linalg.matvec(x, w) - y))


def gradient_of(x, y, w, reduce=tf.reduce_mean):
    with tf.GradientTape() as tape:
        loss = loss_of(x, y, w, reduce)
    return loss, tape.gradient(loss, w)


def over_steps(form, reduce=tf.reduce_mean):
    """Applied every third step, with momentum and a clip, neither of which commutes with adding up."""

    def make():
        w, total, momentum = parameter(), zeros(), zeros("momentum")
        count = tf.Variable(0, dtype=tf.int64, name="count", trainable=False)

        def apply(g):
            momentum.assign(0.9 * momentum + tf.clip_by_norm(g, 0.5))
            w.assign_sub(0.1 * momentum)
            total.assign(tf.zeros_like(total))

        def step(x, y):
            loss, g = gradient_of(x, y, w, reduce)
            count.assign_add(1)
            if form == "assign_add":
                total.assign_add(g / 3.0)
                if count % 3 == 0:
                    apply(total.read_value())
            elif form == "assign":
                total.assign(total + g)
                if count % 3 == 0:
                    apply(total / 3.0)
            elif count % 3 == 0:
                apply((total + g) / 3.0)
            else:
                total.assign(total + g)
            return loss

        return Program(step, SPECS, {"w": w, "sum": total, "momentum": momentum, "count": count})

    return make


FORMS = ["assign_add", "assign", "branches"]


def conditions(armodel):
    """The all-reduces of the plan, and whether each only runs when its branch does."""
    graph = {n.name: n for n in armodel.graph_def.node}
    found = {}
    for number in range(len(armodel.plan.transfers)):
        seen, waiting = set(), [n for n in graph if n.startswith(f"caramel/transfer_{number}/")]
        assert waiting
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting += [i.lstrip("^").partition(":")[0] for i in graph[name].input]
        found[number] = any(graph[name].op == "Switch" for name in seen)
    return found


@pytest.mark.parametrize("workers", [*in_soak(2), 3])
@pytest.mark.parametrize("form", FORMS)
def test_over_steps(form, workers):
    """On even batches, then on uneven ones of two sizes."""
    armodel = check(over_steps(form), [*examples(), *examples(7, 3), *examples(11, 4)], workers)
    assert conditions(armodel) == {0: True}
    classes = dict(armodel.plan.variable_classes)
    assert classes == {
        "sum": "gradient accumulator",
        "w": "parameter",
        "momentum": "optimizer slot",
        "count": "hyperparameter or counter",
    }
    assert any("added up by each worker" in note for note in armodel.plan.notes)


@pytest.mark.parametrize("form", mostly_in_soak(FORMS, "assign"))
def test_a_summed_loss_over_steps(form):
    check(over_steps(form, tf.reduce_sum), examples(7), 3)


@pytest.mark.parametrize("reduce", [tf.reduce_mean, *in_soak(tf.reduce_sum)])
def test_a_checkpoint_between(reduce, tmp_path):
    """Saved with a sum that is not applied yet, by 3 workers; gone on with by 3, by 2 and by one device."""
    batches = examples(7, 7)
    program = fresh(over_steps("branches", reduce))
    _, want, _ = distributed(program, caramel.capture(program.step, program.specs), batches, 3)

    def session(workers):
        program = fresh(over_steps("branches", reduce))
        context = caramel.capture(program.step, program.specs)
        return program, caramel.ARModel(context, workers).session(in_process())

    program, first = session(3)
    with first:
        for batch in batches[:4]:
            first.step(*batch)
        first.save(tmp_path / "between")
        kept = first.values()["sum"]
        assert np.any(kept)
    for workers in (3, 2, 1):
        program, second = session(workers)
        with second:
            second.restore(tmp_path / "between")
            np.testing.assert_allclose(second.values()["sum"], kept, rtol=1e-12)
            for batch in batches[4:]:
                second.step(*batch)
            second.write_back()
        for name, value in want.items():
            np.testing.assert_allclose(program.variables[name], value, rtol=1e-8, err_msg=f"{name} {workers}")


def test_the_same_workers_go_on_with_the_same_bits(tmp_path):
    program = fresh(over_steps("branches"))
    batches = examples(7, 7)
    armodel = caramel.ARModel(caramel.capture(program.step, program.specs), 3)
    with armodel.session(in_process()) as session:
        for position, batch in enumerate(batches):
            if position == 4:
                session.save(tmp_path / "between")
            session.step(*batch)
        want = session.values()
    with armodel.session(in_process()) as session:
        session.restore(tmp_path / "between")
        for batch in batches[4:]:
            session.step(*batch)
        got = session.values()
    for name in want:
        np.testing.assert_array_equal(got[name], want[name])


def within_a_step(form):
    """Three micro-batches in a step: axis 0 of the inputs counts them."""

    def make():
        w, momentum = parameter(), zeros("momentum")

        def step(x, y):
            gradients, losses = [], []
            for part in range(3):
                loss, g = gradient_of(x[part], y[part], w)
                gradients.append(g)
                losses.append(loss)
            if form == "add_n":
                g = tf.add_n(gradients) / 3.0
            elif form == "plus":
                g = tf.zeros_like(w)
                for each in gradients:
                    g = g + each / 3.0
            else:
                g = (gradients[0] + gradients[1]) + gradients[2]
            momentum.assign(0.9 * momentum + tf.clip_by_norm(g, 0.5))
            w.assign_sub(0.1 * momentum)
            return tf.add_n(losses) / 3.0

        return Program(step, SPECS, {"w": w, "momentum": momentum}, {"loss_reduction": "mean", "loss": "output"})

    return make


def split_by_hand(program):
    """The same step on inputs [examples, ...], each micro-batch a third of the worker's."""
    inner = program.step

    def step(x, y):
        count = tf.shape(x)[0] // 3
        return inner(tf.reshape(x, [3, count, 4]), tf.reshape(y, [3, count]))

    return Program(step, program.specs, program.variables, program.options)


@pytest.mark.parametrize("workers", [2, *in_soak(4)])
@pytest.mark.parametrize("form", [*in_soak("add_n", "chain"), "plus"])
def test_within_a_step(form, workers):
    armodel = check(lambda: split_by_hand(within_a_step(form)()), examples(24), workers)
    assert len(armodel.plan.pieces) == 1


def test_gradients_that_are_also_used_alone_are_aggregated_alone():
    def make():
        w, norms = parameter(), tf.Variable(0.0, dtype=tf.float64, name="norms", trainable=False)

        def step(x, y):
            first, g = gradient_of(x, y, w)
            second, h = gradient_of(2.0 * x, y, w)
            norms.assign(tf.norm(g))
            w.assign_sub(0.1 * (g + h))
            return first + second

        return Program(step, SPECS, {"w": w, "norms": norms}, {"loss": "output"})

    armodel = check(make, examples(), 3)
    assert len(armodel.plan.pieces) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda total, g: total.assign(0.9 * total + g),
        lambda total, g: total.assign(tf.clip_by_norm(total + g, 1.0)),
        lambda total, g: total.assign_add(g * g),
        lambda total, g: total.assign(total + total + g),
    ],
    ids=["average", "clipped", "squares", "twice"],
)
def test_what_is_not_a_sum_of_gradients_is_no_accumulator(change):
    def make():
        w, total = parameter(), zeros()
        count = tf.Variable(0, dtype=tf.int64, name="count", trainable=False)

        def step(x, y):
            loss, g = gradient_of(x, y, w)
            count.assign_add(1)
            change(total, g)
            if count % 3 == 0:
                w.assign_sub(0.1 * total)
                total.assign(tf.zeros_like(total))
            return loss

        return Program(step, SPECS, {"w": w, "sum": total, "count": count})

    armodel = check(make, examples(), 2)
    assert dict(armodel.plan.variable_classes)["sum"] == "optimizer slot"


@pytest.mark.parametrize("workers", [*in_soak(2), 3])
@pytest.mark.parametrize("optimizer", [keras.optimizers.SGD, *in_soak(keras.optimizers.Adam)])
def test_keras(optimizer, workers):
    def make():
        model = keras.Sequential([keras.layers.Dense(3, dtype="float64"), keras.layers.Dense(1, dtype="float64")])
        model.build([None, 4])
        chosen = optimizer(0.05, gradient_accumulation_steps=3, clipnorm=1.0)
        chosen.build(model.trainable_variables)

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x)[:, 0] - y))
            chosen.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            return loss

        return Program(step, SPECS, {v.path: v for v in [*model.variables, *chosen.variables]})

    armodel = check(make, examples(steps=8), workers, unmoved=None)
    assert conditions(armodel) == {0: True} and len(armodel.plan.pieces) == 4
    assert sum(kind == "gradient accumulator" for _, kind in armodel.plan.variable_classes) == 4


def in_a_loop(form):
    """Micro-batches in a tf.range loop; with "steps", their sums are added up over steps as well."""

    def make():
        w, b, momentum, total = parameter(), tf.Variable(0.5, dtype=tf.float64, name="b"), zeros("momentum"), zeros()
        count = tf.Variable(0, dtype=tf.int64, name="count", trainable=False)

        def step(x, y):
            size = tf.shape(x)[0] // 3
            g, h = tf.zeros([4], tf.float64), tf.zeros([], tf.float64)
            loss_sum = tf.zeros([], tf.float64)
            for part in tf.range(3):
                rows = tf.range(part * size, (part + 1) * size)
                with tf.GradientTape() as tape:
                    prediction = tf.linalg.matvec(tf.gather(x, rows), w) + b
                    loss = tf.reduce_mean(tf.square(prediction - tf.gather(y, rows)))
                dw, db = tape.gradient(loss, (w, b))
                g, h, loss_sum = g + dw / 3.0, h + db / 3.0, loss_sum + loss / 3.0
            if form == "steps":
                total.assign_add(g)
                count.assign_add(1)
                if count % 2 == 0:
                    w.assign_sub(0.1 * tf.clip_by_norm(total, 0.5))
                    total.assign(tf.zeros_like(total))
            else:
                momentum.assign(0.9 * momentum + tf.clip_by_norm(g, 0.5))
                w.assign_sub(0.1 * momentum)
            b.assign_sub(0.1 * h)
            return loss_sum

        variables = {"w": w, "b": b, **({"sum": total, "count": count} if form == "steps" else {"momentum": momentum})}
        return Program(step, SPECS, variables, {"loss_reduction": "mean"})

    return make


@pytest.mark.parametrize("workers", [2, *in_soak(4)])
@pytest.mark.parametrize("form", ["momentum", "steps"])
def test_in_a_loop(form, workers):
    armodel = check(in_a_loop(form), examples(24, 8), workers, unmoved=["sum"] if form == "steps" else ())
    assert len(armodel.plan.pieces) == 2
    assert sum(conditions(armodel).values()) == (1 if form == "steps" else 0)


def with_its_norm(x, w, b, g):
    norm = tf.linalg.global_norm([g])
    (clipped,), _ = tf.clip_by_global_norm([g], 0.1, use_norm=norm)
    return norm, clipped


def with_its_entries(x, w, b, g):
    return g[0] * g[1], g


def beside_a_loss(x, w, b, g):
    with tf.GradientTape() as tape:
        loss = loss_of(x, b, w - 0.1 * tf.stop_gradient(g))
    return loss, tape.gradient(loss, w)


@pytest.mark.parametrize("change", [with_its_norm, with_its_entries, beside_a_loss], ids=lambda f: f.__name__)
def test_the_sum_of_a_loop_is_read_of_all_examples(change):
    def make():
        w = parameter()

        def step(x, y):
            total = tf.zeros([4], tf.float64)
            for scale in tf.constant([1.0, 2.0, 0.5], tf.float64):
                _, g = gradient_of(scale * x, y, w)
                total += g
            result, change_of_w = change(x, w, y, total)
            w.assign_sub(0.05 * change_of_w)
            return result

        return Program(step, SPECS, {"w": w}, {"loss": "output"})

    check(make, examples(), 3)


def through_the_sum_of_a_loop(w, x, y):
    with tf.GradientTape() as outer:
        total = tf.zeros([4], tf.float64)
        for scale in tf.constant([1.0, 2.0], tf.float64):
            _, g = gradient_of(scale * x, y, w)
            total += g
        loss = loss_of(x, y, w - 0.1 * total)
    w.assign_sub(0.1 * outer.gradient(loss, w))
    return loss


@pytest.mark.parametrize("reduction", [{}, {"loss_reduction": "mean"}], ids=["told", "given"])
def test_what_goes_through_the_sum_of_a_loop_once_more_is_refused(reduction):
    """It cannot be unrolled, as the loop of its gradients cannot."""
    w = parameter()
    step = tf.function(lambda x, y: through_the_sum_of_a_loop(w, x, y))
    with pytest.raises(caramel.UnsupportedError, match="is part of what is differentiated"):
        caramel.ARModel(caramel.capture(step, inputs=SPECS, **reduction), 2)


@pytest.mark.parametrize("count", [*in_soak(12), 7])
def test_a_gradient_that_is_added_up_and_used_alone(count):
    def make():
        w, total, norm = parameter(), zeros(), tf.Variable(0.0, dtype=tf.float64, name="norm", trainable=False)
        steps = tf.Variable(0, dtype=tf.int64, name="count", trainable=False)

        def step(x, y):
            loss, g = gradient_of(x, y, w)
            steps.assign_add(1)
            norm.assign(tf.norm(g))
            tf.cond(tf.math.is_finite(tf.norm(g)), lambda: total.assign_add(g), lambda: total.read_value())
            w.assign_sub(0.01 * g)
            if steps % 3 == 0:
                w.assign_sub(0.1 * tf.clip_by_norm(total, 0.5))
                total.assign(tf.zeros_like(total))
            return loss

        return Program(step, SPECS, {"w": w, "sum": total, "norm": norm, "count": steps})

    armodel = check(make, examples(count), [2, 3])
    assert len(armodel.plan.pieces) == 2
    assert dict(armodel.plan.variable_classes)["sum"] == "gradient accumulator"


def test_a_round_for_each_example():
    """A sum over the examples may have as many rounds as a worker has examples."""

    def make():
        w = parameter()

        def step(x, y):
            total, losses = tf.zeros([4], tf.float64), tf.zeros([], tf.float64)
            for number in tf.range(tf.shape(x)[0]):
                loss, g = gradient_of(x[number : number + 1], y[number : number + 1], w)
                total, losses = total + g, losses + loss
            w.assign_sub(0.01 * tf.clip_by_norm(total, 1.0))
            return losses

        return Program(step, SPECS, {"w": w}, {"loss_reduction": "sum"})

    check(make, examples(7), 3)
