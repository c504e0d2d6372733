"""Several steps that are one run of the session: the bits of as many runs of one step."""

import itertools
import warnings

import exact_keras as k
import exact_tf1 as v1
import numpy as np
import pytest
import tensorflow as tf
from exact_common import LOCAL, SERIAL, Case, assert_same, in_process, train
from exact_common import batches as plain_batches
from exact_matrix import FEATURE, OPTIMIZERS, batches, program
from exact_plans import random_plan
from exact_steps import fresh, values_of
from variants import in_soak, mostly_in_soak

import caramel
from caramel.runtime.host.run_options import RunOptions

OPTIMIZED = RunOptions(intra_op_threads=1, inter_op_threads=1)
"""One op at a time, on a graph that TensorFlow has optimised."""


def bits(make, data, workers, seed, together, options=SERIAL):
    """Losses and values of a training under a random plan, in runs of so many steps."""
    made = fresh(make)
    context = caramel.capture(made.step, made.specs, **made.options)
    plan = random_plan(context, workers, seed, deterministic=True)
    armodel = caramel.ARModel(context, workers, plan=plan)
    with armodel.session(in_process(options)) as session:
        results = session.run(data, steps_per_execution=together, progress=False)
        session.write_back()
        assert session.step_count == len(data)
    return [(r.step, r.loss, r.worker_losses, r.examples) for r in results], values_of(made), plan


def check_bits(optimizer, feature, workers, seed, together=(2, 3), options=SERIAL):
    make, data = program(optimizer, feature), batches(FEATURE[feature], steps=7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the steps are not run one by one
        results, want, plan = bits(make, data, workers, seed, 1, options)
        for count in together:
            got_results, got, _ = bits(make, data, workers, seed, count, options)
            np.testing.assert_equal(got_results, results)  # some losses are not numbers where a step overflows
            for name, value in want.items():
                np.testing.assert_array_equal(got[name], value, err_msg=name)
    return plan


@pytest.mark.parametrize("optimizer", mostly_in_soak(sorted(OPTIMIZERS), "nesterov", "adafactor"))
def test_optimizer(optimizer):
    plan = check_bits(optimizer, "schedule", 3, seed=1)
    assert plan.postponed and max(len(pieces) for pieces in plan.pieces.values()) > 1


@pytest.mark.parametrize("feature", mostly_in_soak(sorted(FEATURE), "everything", "embedding_clipped", "recurrent"))
def test_feature(feature):
    check_bits("adam", feature, 2, seed=2, options=OPTIMIZED)


@pytest.mark.parametrize("workers, seed", [(1, 3), *in_soak((2, 4), (4, 5), (5, 6), (8, 7))])
def test_numbers_of_workers(workers, seed):
    check_bits("momentum", "branch", workers, seed, together=(4, 7))


@pytest.mark.parametrize(
    "kind, feature",
    [("keras", "norm"), ("tf1", "norm"), *in_soak(*itertools.product(["keras", "tf1"], [*LOCAL, "tied", "schedule"]))],
)
@pytest.mark.filterwarnings("ignore:each step is a run of its own")  # TensorFlow 1 draws from states of its ops
def test_what_is_local_to_workers(kind, feature):
    kind = {"keras": k, "tf1": v1}[kind]
    case = Case("adam", (feature,), "float32")
    data = plain_batches(11, case.dtype, steps=6)
    want, got = (trained_together(kind, case, data, together) for together in (1, 4))
    assert_same(got, want)


def trained_together(kind, case, data, together):
    context, made = kind.capture(case)
    armodel = caramel.ARModel(context, 3, postponed=[g.name for g in context.model.gradients], deterministic=True)
    with armodel.session(in_process()) as session:
        fed = [made.feed(batch) if kind is v1 else batch for batch in data]

        class InRuns:
            """What `train` needs of a session, where steps are made together."""

            def __getattr__(self, name):
                return getattr(session, name)

            def step(self, *args):
                if not self.results:
                    self.results = session.run(fed, steps_per_execution=together, progress=False)
                return self.results.pop(0)

            results = ()

        return train(InRuns() if together > 1 else session, fed)


def draws(x):
    """Random numbers of each worker, from a state that is a variable."""
    return tf.random.normal(tf.shape(x), seed=3)


@pytest.mark.parametrize("sharding", ["slice", *in_soak("batches", "own")])
@pytest.mark.parametrize("workers", [3, *in_soak(1, 2, 4)])
def test_data_on_the_workers(sharding, workers):
    """Batches of 4, the last one of 3, over some passes: workers have unequally many examples, or none.

    With data of their own some end before others, and go on with the last element that they had.
    """
    x = np.random.default_rng(0).normal(size=(23, 3)).astype(np.float32)

    def dataset(seed=5):
        return tf.data.Dataset.from_tensor_slices((x, x.sum(1))).shuffle(23, seed=seed).batch(4)

    def trained(together):
        tf.random.set_seed(1)
        w, steps = tf.Variable([0.1, 0.2, 0.3], name="w"), tf.Variable(0, name="steps", dtype=tf.int64)
        mean = tf.Variable([0.0] * 3, name="mean", trainable=False)
        generator = tf.random.Generator.from_seed(4)

        def step(x, y):
            mean.assign(0.9 * mean + 0.1 * tf.reduce_mean(x, 0))
            with tf.GradientTape() as tape:
                noisy = x - mean + generator.normal(tf.shape(x), stddev=0.1)
                loss = tf.reduce_mean((tf.linalg.matvec(noisy, w) - y) ** 2)
            w.assign_sub(0.1 * tape.gradient(loss, w))
            steps.assign_add(1)
            return {"loss": loss, "mean": tf.identity(mean)}

        own = sharding == "own"
        context = caramel.capture(step, data=(lambda workers, rank: dataset(rank).take(6 - rank)) if own else dataset())
        options = {} if own else {"sharding": sharding}
        found = []
        with caramel.ARModel(context, workers, deterministic=True, **options).session(in_process()) as session:
            found += session.run(steps_per_execution=together, progress=False)
            found += session.run(steps=9, steps_per_execution=together, progress=False)
            found += session.run(steps_per_execution=together, progress=False)
            values = session.values()
        return found, values

    results, want = trained(1)
    for together in (2, 5):
        got_results, got = trained(together)
        assert [(r.step, r.loss, r.worker_examples) for r in got_results] == [
            (r.step, r.loss, r.worker_examples) for r in results
        ]
        for mine, theirs in zip(got_results, results):
            np.testing.assert_array_equal(mine.outputs["mean"], theirs.outputs["mean"])
        np.testing.assert_equal(got, want)
