"""`trainable` in `caramel.fit`: what Keras heeds counts, and what Keras would pass over is refused."""

import keras
import numpy as np
import pytest
from fit_common import AS_WRITTEN, both, compiled, dataset, same
from variants import each_once, in_soak

import caramel


def trained(model):
    caramel.fit(model, dataset(), workers=2, verbose=0, cluster=AS_WRITTEN)
    return model


def kernels(model):
    return [np.asarray(layer.kernel) for layer in model.layers[1:]]


def frozen():
    model = compiled()
    model.layers[1].trainable = False
    return model


def frozen_and_compiled():
    model = compiled()
    model.layers[1].trainable = False
    model.compile(keras.optimizers.SGD(0.1), model.loss)
    return model


@pytest.mark.parametrize("make", [frozen, *in_soak(frozen_and_compiled)], ids=lambda make: make.__name__)
def test_a_layer_that_is_frozen_before_the_first_training(make):
    first, second = both(dataset(), make=make, epochs=2)
    same(first, second)
    before, after = kernels(make()), kernels(second[1])
    np.testing.assert_array_equal(after[0], before[0])
    assert (after[1] != before[1]).any()


@pytest.mark.parametrize(
    "trained_by, change", each_once(["caramel.fit", "Keras' fit"], ["was made trainable", "was frozen"])
)
def test_a_change_after_a_training_needs_compile(trained_by, change):
    was = change == "was frozen"
    model = compiled()
    model.layers[1].trainable = was
    if trained_by == "Keras' fit":
        model.fit(dataset(), verbose=0)
    else:
        trained(model)
    model.layers[1].trainable = not was
    with pytest.raises(caramel.InputError) as caught:
        trained(model)
    assert change in str(caught.value) and "dense" in str(caught.value) and "model.compile(...)" in str(caught.value)
    model.layers[1].trainable = was
    trained(model)
    model.layers[1].trainable = not was
    model.compile(keras.optimizers.SGD(0.1), model.loss)
    before = kernels(model)
    after = kernels(trained(model))
    assert [(a == b).all() for a, b in zip(after, before)] == [was, False]


@pytest.mark.soak
def test_a_change_and_compile_between_trainings_is_that_of_keras():
    """The new optimizer begins anew, on one device and on several."""

    def in_two_phases(fit):
        model = compiled()
        fit(model)
        model.layers[1].trainable = False
        model.compile(keras.optimizers.Adam(0.05), model.loss)
        fit(model)
        model.layers[1].trainable = True
        model.compile(keras.optimizers.Adam(0.01), model.loss)
        return fit(model), model

    want = in_two_phases(lambda model: model.fit(dataset(), verbose=0))
    same(want, in_two_phases(lambda model: caramel.fit(model, dataset(), workers=3, verbose=0, cluster=AS_WRITTEN)))


def test_a_model_with_a_training_step_of_its_own():
    class Own(keras.Model):
        def train_step(self, data):
            return super().train_step(data)

    base = compiled()
    model = Own(base.inputs, base.outputs)
    model.compile(keras.optimizers.SGD(0.1), base.loss)
    trained(model)
    model.layers[1].trainable = False
    with pytest.raises(caramel.InputError, match="was frozen after"):
        trained(model)
