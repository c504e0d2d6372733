"""Shuffled data in `caramel.fit`: the batches of every epoch of every call are those of Keras' own fit."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_common import AS_WRITTEN
from variants import in_soak

import caramel

FEATURES, COUNT, BATCH = 4, 40, 8
STEPS = COUNT // BATCH


def examples():
    x = np.random.default_rng(0).normal(size=(COUNT, FEATURES))
    return tf.data.Dataset.from_tensor_slices((x, (x.sum(1) > 0).astype("int64")))


def shuffled(**options):
    return examples().shuffle(COUNT, **{"seed": 5, **options})


def always(x, y):
    return x[0] > -100.0


def chosen_from_two():
    return tf.data.Dataset.choose_from_datasets([shuffled(), examples()], tf.data.Dataset.range(2).repeat(COUNT))


DATA = {
    "seeded": lambda: shuffled().batch(BATCH),
    "unseeded": lambda: shuffled(seed=None).batch(BATCH),
    "small buffer": lambda: examples().shuffle(7, seed=3).batch(BATCH),
    "once only": lambda: shuffled(reshuffle_each_iteration=False).batch(BATCH),
    "unknown length": lambda: shuffled().filter(always).batch(BATCH),
    "unknown length, unseeded": lambda: shuffled(seed=None).filter(always).batch(BATCH),
    "after batch": lambda: examples().batch(BATCH).shuffle(STEPS, seed=2),
    "after repeat": lambda: examples().repeat(2).shuffle(30, seed=2).batch(BATCH),
    "twice": lambda: shuffled().batch(BATCH).shuffle(STEPS, seed=9),
    "prefetched": lambda: examples().cache().shuffle(COUNT, seed=5).batch(BATCH).prefetch(2),
    "pairs of two": lambda: tf.data.Dataset.zip((shuffled(), shuffled(seed=6))).map(lambda a, b: a).batch(BATCH),
    "chosen from two": lambda: chosen_from_two().batch(BATCH),
}
"""Datasets of which a pass draws an order once, when it begins."""

DATA_OF_SEVERAL_ORDERS = {
    "before repeat": lambda: shuffled().repeat(2).batch(BATCH),
    "cached": lambda: shuffled().cache().batch(BATCH),
    "one after the other": lambda: shuffled().concatenate(shuffled(seed=6)).batch(BATCH),
}
"""Datasets of which a pass draws orders later, too, or only once for all passes."""


class Stop(keras.callbacks.Callback):
    """Ends the training at a batch of an epoch."""

    def __init__(self, epoch, batch):
        super().__init__()
        self.at = epoch, batch

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == self.at:
            self.model.stop_training = True


class StopAfter(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = epoch == 1


CALLS = {
    "one call": [{"epochs": 3}],
    "several calls": [{}, {"epochs": 2}, {"epochs": 2, "initial_epoch": 1}],
    "some steps": [{"epochs": 2, "steps_per_epoch": 3}, {"epochs": 2, "steps_per_epoch": 2}, {}],
    "a pass of steps": [{"epochs": 2, "steps_per_epoch": STEPS}, {}],
    "too many steps": [{"epochs": 2, "steps_per_epoch": 14}, {}],
    "stopped in an epoch": [{"epochs": 3, "callbacks": lambda: [Stop(1, 2)]}, {}],
    "stopped at the last batch": [{"epochs": 3, "callbacks": lambda: [Stop(1, STEPS - 1)]}, {}],
    "stopped at the last of some steps": [
        {"epochs": 3, "steps_per_epoch": STEPS, "callbacks": lambda: [Stop(1, STEPS - 1)]},
        {"steps_per_epoch": 3},
    ],
    "stopped after an epoch": [{"epochs": 3, "callbacks": lambda: [StopAfter()]}, {}],
    "weights of classes": [{"epochs": 2, "class_weight": {0: 0.5, 1: 2.0}}, {}],
}


def compiled(at_once=1):
    model = keras.Sequential([keras.Input([FEATURES], dtype="float64"), keras.layers.Dense(2, dtype="float64")])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1.0), loss, jit_compile=False, steps_per_execution=at_once)
    return model


def losses(fits, by_keras, at_once=1, workers=3):
    """The losses of all epochs of some calls of fit, the last of which is Keras' in any case.

    `fits` is a function of a function like fit, which it calls as often as it likes.
    """
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    model = compiled(at_once)
    found = []

    def fit(data, callbacks=list, by_keras=by_keras, **options):
        options = {"callbacks": callbacks(), "verbose": 0, **options}
        history = (
            model.fit(data, **options)
            if by_keras
            else caramel.fit(model, data, workers=workers, cluster=AS_WRITTEN, **options)
        )
        found.append(history.history["loss"])

    fits(fit)
    return found


def check(fits, **options):
    want, got = (losses(fits, by_keras, **options) for by_keras in (True, False))
    assert [len(call) for call in got] == [len(call) for call in want]
    assert len({round(loss, 12) for call in want for loss in call}) == sum(map(len, want))  # each has its own order
    for mine, theirs in zip(got, want):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def calls_of(make, calls, then_keras=True):
    def fits(fit):
        data = make()
        for options in calls:
            fit(data, **options)
        if then_keras:
            fit(data, by_keras=True, epochs=2)

    return fits


FAST = [
    ("unknown length, unseeded", "several calls"),
    ("after batch", "stopped at the last of some steps"),
    ("after repeat", "too many steps"),
    ("twice", "stopped in an epoch"),
    ("seeded", "weights of classes"),
]


@pytest.mark.filterwarnings("ignore:Your input ran out of data", "ignore:the data ended")
@pytest.mark.parametrize("data, calls", [*FAST, *in_soak(*((d, c) for d in DATA for c in CALLS if (d, c) not in FAST))])
def test_orders_are_those_of_keras(data, calls):
    check(calls_of(DATA[data], CALLS[calls]))


@pytest.mark.parametrize("data", ["before repeat", *in_soak("cached", "one after the other")])
def test_orders_of_whole_passes_that_draw_several(data):
    """TensorFlow reads ahead, so that only of a pass to its end it is known how many orders it has drawn."""
    check(calls_of(DATA_OF_SEVERAL_ORDERS[data], [{"epochs": 2}, {"epochs": 2}], then_keras=False))


@pytest.mark.parametrize("calls", ["one call", *in_soak("several calls", "some steps")])
def test_several_steps_at_once(calls):
    check(calls_of(DATA["seeded"], CALLS[calls]), at_once=2)


VALIDATED = {
    "seeded": {},
    "twice": {},
    "unknown length": {},
    "some steps": {"validation_steps": 2},
    "all steps": {"validation_steps": STEPS},
    "some epochs": {"validation_freq": 2},
}


@pytest.mark.parametrize("case", ["seeded", *in_soak(*(c for c in VALIDATED if c != "seeded"))])
def test_a_validation_on_the_same_dataset_draws_orders_too(case):
    def fits(fit):
        data = DATA.get(case, DATA["seeded"])()
        fit(data, epochs=4, validation_data=data, **VALIDATED[case])
        fit(data)
        fit(data, by_keras=True)

    check(fits)


@pytest.mark.soak  # as the next test, and test_a_validation_on_the_same_dataset_draws_orders_too
def test_parts_of_one_shuffle_to_train_and_to_validate_on():
    def fits(fit):
        data = shuffled()
        fit(data.take(24).batch(BATCH), validation_data=data.skip(24).batch(BATCH), epochs=3)

    check(fits)


def test_batches_of_one_shuffle_are_made_for_each_call():
    def fits(fit):
        data = shuffled()
        for size in (8, 5):
            fit(data.batch(size))

    check(fits)


def test_parts_of_data_that_is_shuffled_once_only():
    """The pass over the part to validate on draws nothing for that to train on, which is shuffled again."""

    def fits(fit):
        data = shuffled(reshuffle_each_iteration=False)
        train = data.take(24).shuffle(24, seed=1).batch(BATCH)
        fit(train, validation_data=data.skip(24).batch(BATCH), epochs=2)
        fit(train)

    check(fits)


def test_shuffles_that_were_read_differently_often_are_refused():
    base = shuffled()
    model = compiled()
    caramel.fit(model, base.batch(BATCH), workers=2, verbose=0)
    both = tf.data.Dataset.zip((base, shuffled(seed=6))).map(lambda a, b: a).batch(BATCH)
    with pytest.raises(caramel.InputError, match="several shuffles, of which one has been read for another dataset"):
        caramel.fit(model, both, workers=2, verbose=0)


@pytest.mark.soak  # as the test before
def test_repeated_shuffles_that_were_read_for_another_dataset_are_refused():
    base = shuffled()
    model = compiled()
    caramel.fit(model, base.batch(BATCH), workers=2, verbose=0)
    with pytest.raises(
        caramel.InputError, match="were read for another dataset, too, and draw more than once in a pass"
    ):
        caramel.fit(model, base.repeat(2).batch(BATCH), workers=2, verbose=0)
