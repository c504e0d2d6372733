"""Weights of classes in `caramel.fit`, against Keras' own fit on one device."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_common import AS_WRITTEN, CLASSES, FEATURES, arrays, both, dataset, dense, made, same

import caramel

pytestmark = pytest.mark.usefixtures("double")


def test_weights_of_classes():
    weights = {0: 0.3, 2: 2.0}
    make = made(dense, weighted_metrics=["accuracy"], metrics=["accuracy"])
    same(*both(dataset(59), make, epochs=2, class_weight=weights))


def test_weights_of_classes_for_one_hot_targets():
    x, y = arrays(59)
    data = tf.data.Dataset.from_tensor_slices((x, np.eye(CLASSES)[y])).batch(12)
    make = made(dense, lambda: keras.losses.CategoricalCrossentropy(from_logits=True))
    same(*both(data, make, epochs=2, class_weight={0: 0.3, 1: 2.0, 2: 1.5}))


def test_classes_without_a_weight_count_one():
    """Keras fails for those above the highest that has one. The second weights and number of workers are numpy's."""
    histories = []
    from_numpy = dict(zip(np.arange(3), np.array([0.3, 1.0, 1.0])))
    for workers, weights in ((2, {0: 0.3}), (np.int64(2), from_numpy)):
        trained = caramel.fit(
            made(dense)(), dataset(59), workers=workers, verbose=0, class_weight=weights, cluster=AS_WRITTEN
        )
        histories.append(trained.history)
    np.testing.assert_allclose(histories[0]["loss"], histories[1]["loss"], rtol=1e-12)


@pytest.mark.soak  # as test_classes_without_a_weight_count_one
def test_numbers_from_numpy_are_as_good_as_python_s():
    options = {"workers": 2, "epochs": 2, "initial_epoch": 1, "class_weight": {0: 0.3, 2: 2.0}}
    from_numpy = {**{name: np.int64(options[name]) for name in ("workers", "epochs", "initial_epoch")}}
    from_numpy["class_weight"] = dict(zip(np.array([0, 2]), np.array([0.3, 2.0])))
    histories = [caramel.fit(made(dense)(), dataset(59), verbose=0, **given).history for given in (options, from_numpy)]
    assert histories[0] == histories[1]


def test_targets_below_all_classes_count_one():
    """Keras does so with arrays; with a dataset it fails for them."""
    x, y = arrays(60)
    signs = np.where(y == 0, -1, 1)

    def make():
        return made(lambda: keras.Sequential([keras.Input([FEATURES]), keras.layers.Dense(1)]), "hinge")()

    alone = make().fit(x, signs, batch_size=12, shuffle=False, verbose=0, class_weight={1: 2.5})
    data = tf.data.Dataset.from_tensor_slices((x, signs)).batch(12)
    history = caramel.fit(make(), data, workers=2, verbose=0, class_weight={1: 2.5}, cluster=AS_WRITTEN)
    np.testing.assert_allclose(history.history["loss"], alone.history["loss"], rtol=1e-6)


@pytest.mark.parametrize("weights", [{-1: 0.5, 1: 2.5}, {-1: 0.5}, {1.0: 2.5, False: 0.5}, {True: 2.5}])
def test_names_of_classes_are_those_of_keras(weights):
    x, y = arrays(60)
    signs = np.where(y == 0, -1, 1)

    def make():
        return made(lambda: keras.Sequential([keras.Input([FEATURES]), keras.layers.Dense(1)]), "hinge")()

    options = {"batch_size": 12, "shuffle": False, "verbose": 0, "class_weight": weights}
    alone, history = make().fit(x, signs, **options), caramel.fit(make(), x, signs, workers=2, **options)
    np.testing.assert_allclose(history.history["loss"], alone.history["loss"], rtol=1e-6)


@pytest.mark.parametrize("weights", [{"a": 1.0}, {0.5: 1.0}, {float("nan"): 1.0}, [1.0, 2.0], [0, 1]])
def test_weights_of_what_is_no_class(weights):
    with pytest.raises(caramel.InputError, match="class_weight"):
        caramel.fit(made(dense)(), dataset(), workers=2, verbose=0, class_weight=weights)


def test_weights_that_are_no_numbers():
    with pytest.raises(caramel.InputError, match="the weight of class 0 in class_weight must be a number, got 'a'"):
        caramel.fit(made(dense)(), dataset(20), workers=2, verbose=0, class_weight={0: "a"})


def test_weights_of_classes_beside_those_of_examples():
    data = dataset().map(lambda x, y: (x, y, tf.ones_like(x[:, 0])))
    with pytest.raises(caramel.InputError, match="without sample weights"):
        caramel.fit(made(dense)(), data, workers=2, verbose=0, class_weight={0: 2.0})


def test_no_weights_of_classes():
    """As in Keras, where an empty dict has no effect."""
    history = caramel.fit(made(dense)(), dataset(), workers=2, verbose=0, class_weight={})
    want = caramel.fit(made(dense)(), dataset(), workers=2, verbose=0)
    np.testing.assert_allclose(history.history["loss"], want.history["loss"], rtol=1e-6)
