"""`caramel.fit` on arrays, against Keras' own fit on one device: the same arguments, in the same places."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_common import AS_WRITTEN, CLASSES, FEATURES, arrays, compiled, made, same
from variants import in_soak

import caramel
from caramel.keras.arrays import Arrays

pytestmark = pytest.mark.usefixtures("double")

X, Y = arrays(59)
WEIGHTS = np.random.default_rng(7).uniform(0.5, 2.0, 59)


def both_on(*given, make=compiled, workers=2, **options):
    """Histories and models of Keras' fit and of ours."""
    options = {"shuffle": False, "verbose": 0, "epochs": 2, **options}
    alone, distributed = make(), make()
    want = alone.fit(*given, **options)
    got = caramel.fit(distributed, *given, workers=workers, cluster=AS_WRITTEN, **options)
    return (want, alone), (got, distributed)


# -- in order --------------------------------------------------------------------------------

OPTIONS = {
    "defaults": {},
    "batches": {"batch_size": 12},
    "one batch": {"batch_size": 100},
    "weights": {"batch_size": 12, "sample_weight": WEIGHTS},
    "class weights": {"batch_size": 12, "class_weight": {0: 0.5, 2: 3.0}},
    "split": {"batch_size": 12, "validation_split": 0.25},
    "split with weights": {"batch_size": 12, "validation_split": 0.1, "sample_weight": WEIGHTS},
    "split and data": {"batch_size": 12, "validation_split": 0.25, "validation_data": (X[:7], Y[:7])},
    "validation batches": {
        "batch_size": 12,
        "validation_split": 0.5,
        "validation_batch_size": 4,
        "validation_steps": 2,
    },
    "steps": {"steps_per_epoch": 4},
    "steps and batches": {"batch_size": 12, "steps_per_epoch": 3},
    "initial epoch": {"batch_size": 12, "initial_epoch": 1, "epochs": 3},
    "no callbacks": {"batch_size": 12, "callbacks": None},
}


FAST = ("batches", "split with weights", "class weights", "steps and batches")


@pytest.mark.parametrize("name", [*FAST, *in_soak(*(name for name in OPTIONS if name not in FAST))])
def test_arguments(name):
    same(*both_on(X, Y, **OPTIONS[name]))


@pytest.mark.parametrize("workers", [4, *in_soak(1, 3)])
def test_numbers_of_workers(workers):
    same(*both_on(X, Y, batch_size=12, validation_split=0.2, workers=workers))


def test_arguments_by_place():
    """x, y, batch_size, epochs, verbose, callbacks, validation_split."""
    seen = []

    class Seen(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append((epoch, dict(logs)))

    model = compiled()
    caramel.fit(model, X, Y, 12, 2, 0, [Seen()], 0.25, workers=2, cluster=AS_WRITTEN)
    assert [epoch for epoch, _ in seen] == [0, 1]
    assert set(seen[0][1]) == {"accuracy", "loss", "val_accuracy", "val_loss"}


@pytest.mark.parametrize(
    "given",
    [
        (tf.constant(X), tf.constant(Y)),
        (X.astype("float32"), Y.astype("int32")),
        (X, Y[:, None]),
        (np.asfortranarray(X), Y),
        (X[::-1], Y[::-1]),
    ],
    ids=["tensors", "narrower", "a column", "columns first", "a view"],
)
def test_kinds_of_arrays(given):
    same(*both_on(*given, batch_size=12))


def two_inputs_two_outputs():
    first, second = keras.Input([FEATURES], name="first"), keras.Input([2], name="second")
    hidden = keras.layers.Concatenate()([first, second])
    outputs = {
        "classes": keras.layers.Dense(CLASSES, name="classes")(hidden),
        "number": keras.layers.Dense(1, name="number")(hidden),
    }
    return keras.Model({"first": first, "second": second}, outputs)


def losses():
    """Made in double precision, as the model is."""
    return {"classes": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "number": "mse"}


@pytest.mark.parametrize("weights", [{"classes": WEIGHTS, "number": WEIGHTS[::-1].copy()}, *in_soak(None, WEIGHTS)])
def test_dicts_of_arrays(weights):
    x = {"first": X, "second": X[:, :2] ** 2}
    y = {"classes": Y, "number": X.sum(1, keepdims=True)}
    same(*both_on(x, y, make=made(two_inputs_two_outputs, losses), batch_size=12, sample_weight=weights))


def two_inputs():
    first, second = keras.Input([FEATURES]), keras.Input([2])
    return keras.Model([first, second], keras.layers.Dense(CLASSES)(keras.layers.Concatenate()([first, second])))


@pytest.mark.parametrize("kind", [list, *in_soak(tuple)])
def test_lists_of_arrays(kind):
    same(*both_on(kind([X, X[:, :2] ** 2]), Y, make=made(two_inputs), batch_size=12, validation_split=0.2))


def test_inputs_alone():
    """The model adds its loss itself."""

    class Reconstruction(keras.layers.Layer):
        def call(self, x):
            self.add_loss(keras.ops.mean(x**2))
            return x

    def make():
        keras.backend.clear_session(free_memory=False)
        keras.utils.set_random_seed(4)
        model = keras.Sequential([keras.Input([FEATURES]), keras.layers.Dense(3), Reconstruction()])
        model.compile(keras.optimizers.SGD(0.1))
        return model

    same(*both_on(X, make=make, batch_size=12))


# -- shuffled --------------------------------------------------------------------------------


def orders(calls=(3,), workers=2, seed=5, shuffle=True, batch_size=8, numbers=range(24)):
    """For each epoch the sums of the numbers of the examples in each batch: the loss is their mean."""
    x = np.array(numbers, dtype=np.float64)[:, None]
    keras.utils.set_random_seed(seed or 5)
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.0), "mae")
    if seed is None:
        tf.random.set_seed(None)
    found = []

    class Losses(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            found.append([])

        def on_train_batch_end(self, batch, logs=None):
            found[-1].append(logs["loss"])

    for epochs in calls:
        caramel.fit(
            model, x, np.zeros_like(x), batch_size=batch_size, epochs=epochs, shuffle=shuffle, verbose=0,
            callbacks=[Losses()], workers=workers, cluster=AS_WRITTEN,
        )  # fmt: skip
    means = [np.array(epoch) * np.arange(1, len(epoch) + 1) for epoch in found]  # Keras' running means, as sums
    return [np.round(np.diff(np.concatenate([[0], sums])) * batch_size, 6).tolist() for sums in means]


def test_every_epoch_has_every_example_in_another_order():
    epochs = orders()
    assert [sum(batches) for batches in epochs] == [pytest.approx(24 * 23 / 2)] * 3
    assert len({tuple(batches) for batches in epochs}) == 3
    ordered = [sum(range(8 * k, 8 * k + 8)) for k in range(3)]
    assert ordered not in epochs


@pytest.mark.soak  # as test_numbers_of_workers and test_orders_follow_from_the_seed
def test_orders_do_not_depend_on_the_number_of_workers():
    first, *others = [orders(workers=n) for n in (1, 2, 3)]
    for other in others:
        np.testing.assert_allclose(other, first)


def test_orders_follow_from_the_seed():
    assert orders() == orders()
    assert orders() != orders(seed=6)


def test_every_call_has_orders_of_its_own():
    epochs = orders(calls=(1, 2))
    assert len({tuple(batches) for batches in epochs}) == 3


def test_orders_within_batches_alone():
    epochs = orders(shuffle="batch")
    for batches in epochs:
        np.testing.assert_allclose(batches, [sum(range(8 * k, 8 * k + 8)) for k in range(3)])
    dataset = Arrays.of(np.arange(20), None, None).dataset(8, "batch")
    first, second = ([batch.numpy().tolist() for (batch,) in dataset] for _ in range(2))
    for batches in (first, second):
        assert [sorted(batch) for batch in batches] == [[*range(8)], [*range(8, 16)], [*range(16, 20)]]
    assert first != second and first[0] != sorted(first[0])


@pytest.mark.parametrize("shuffle", [True, "batch"])
def test_orders_without_any_seed(shuffle):
    """All workers have the same one: together they have each example once, of which the sum of powers is the proof."""
    numbers = [2.0**power for power in range(18)]
    for batches in orders(seed=None, shuffle=shuffle, batch_size=6, numbers=numbers):
        assert sum(batches) == sum(numbers), batches


# -- bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "options", "words"),
    [
        ((X, Y[:-1]), {}, ["same number of examples", "x has 59", "y has 58"]),
        ((X, Y), {"sample_weight": WEIGHTS[:3]}, ["sample_weight has 3"]),
        ((X, Y), {"validation_split": 0.999}, ["validation_split=0.999 of 59", "none on one side"]),
        ((X, Y), {"validation_split": 1.0}, ["between 0 and 1", "1.0"]),
        ((X, Y), {"validation_split": "a"}, ["between 0 and 1", "'a'"]),
        ((X, Y), {"batch_size": 0}, ["batch_size must be a whole number of at least 1"]),
        ((X, Y), {"class_weight": {0: 1.0}, "sample_weight": WEIGHTS}, ["class_weight and sample_weight"]),
        ((X[:0], Y[:0]), {}, ["empty"]),
        ((np.array(3.0), Y), {}, ["first dimension"]),
        ((np.array([object()] * 59), Y), {}, ["Python objects"]),
        ((tf.data.Dataset.from_tensors((X, Y)), Y), {}, ["y goes with arrays"]),
        ((tf.data.Dataset.from_tensors((X, Y)),), {"validation_split": 0.3}, ["validation_split", "validation_data="]),
        ((tf.data.Dataset.from_tensors((X, Y)),), {"sample_weight": WEIGHTS}, ["sample_weight goes with arrays"]),
        ((None,), {}, ["arrays", "tf.data.Dataset"]),
    ],
)
def test_what_is_no_data(given, options, words):
    with pytest.raises(caramel.InputError) as caught:
        caramel.fit(compiled(), *given, workers=2, verbose=0, **options)
    for word in words:
        assert word in str(caught.value)


def test_a_batch_size_beside_batches_has_no_effect():
    """As in Keras, which says nothing."""
    batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(20)
    with pytest.warns(UserWarning, match="batch_size has no effect, as in Keras") as warned:
        history = caramel.fit(compiled(), batches, batch_size=3, workers=2, verbose=0, shuffle=False)
    want = caramel.fit(compiled(), batches, workers=2, verbose=0, shuffle=False)
    assert history.history["loss"] == want.history["loss"]
    assert [w.filename for w in warned if "batch_size" in str(w.message)] == [__file__]
