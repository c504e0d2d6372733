"""The variables of a model, its metrics and its optimizer are made without tracing its layers once more."""

from pathlib import Path

import keras
import numpy as np
import pytest
from fit_common import AS_WRITTEN, compiled, dataset, same

import caramel


class Counted(keras.layers.Layer):
    """Counts how often it is traced, which its model does once for itself."""

    traced = 0

    def call(self, x):
        Counted.traced += 1
        return x * 1.0


def counted(inputs, outputs):
    Counted.traced = 0
    return keras.Model(inputs, outputs)


def functional():
    x = keras.Input([4], dtype="float64")
    return counted(
        x, keras.layers.Dense(3, dtype="float64")(Counted(dtype="float64")(keras.layers.Dense(4, dtype="float64")(x)))
    )


def sequential():
    Counted.traced = 0
    model = keras.Sequential(
        [
            keras.Input([4], dtype="float64"),
            keras.layers.Dense(4, dtype="float64"),
            Counted(dtype="float64"),
            keras.layers.Dense(3, dtype="float64"),
        ]
    )
    Counted.traced = 0
    return model


def in_a_list():
    x = keras.Input([4], dtype="float64")
    return counted([x], [keras.layers.Dense(3, dtype="float64")(Counted(dtype="float64")(x))])


class OfItsOwn(keras.Model):
    """A model whose layers are not known before it is called."""

    def __init__(self):
        super().__init__()
        Counted.traced = 0
        self.parts = [
            keras.layers.Dense(4, dtype="float64"),
            Counted(dtype="float64"),
            keras.layers.Dense(3, dtype="float64"),
        ]

    def call(self, x):
        for part in self.parts:
            x = part(x)
        return x


DATA = np.random.default_rng(0).normal(size=(12, 4)), np.arange(12) % 3
OPTIONS = {"batch_size": 6, "shuffle": False, "verbose": 0, "epochs": 2}


def with_loss(make, optimizer="adam"):
    keras.utils.set_random_seed(3)
    model = make()
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


@pytest.mark.parametrize("make, once", [(functional, True), (sequential, True), (in_a_list, False), (OfItsOwn, False)])
def test_layers_are_traced_once_where_the_output_is_known(make, once):
    model = with_loss(make)
    got = caramel.fit(model, *DATA, workers=2, cluster=AS_WRITTEN, **OPTIONS)
    assert (Counted.traced == 1) == once
    other = with_loss(make)
    want = other.fit(*DATA, **OPTIONS)
    same((want, other), (got, model), rtol=1e-5)


@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_what_trains_nothing(method):
    model = with_loss(functional)
    given = DATA if method == "evaluate" else DATA[:1]
    got = getattr(caramel, method)(model, *given, workers=2, batch_size=6, verbose=0)
    assert Counted.traced == 1
    np.testing.assert_allclose(got, getattr(model, method)(*given, batch_size=6, verbose=0), rtol=1e-5)


def test_an_optimizer_that_scales_the_loss():
    model = with_loss(functional, keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)))
    got = caramel.fit(model, *DATA, workers=2, cluster=AS_WRITTEN, **OPTIONS)
    other = with_loss(functional, keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)))
    same((other.fit(*DATA, **OPTIONS), other), (got, model), rtol=1e-5)


class Momentum(keras.optimizers.Optimizer):
    """An optimizer as Keras' documentation shows how to write one: `build` makes what it needs, whenever it is called."""

    def __init__(self):
        super().__init__(learning_rate=0.1)

    def build(self, variables):
        super().build(variables)
        self.momentums = [self.add_variable_from_reference(v, "momentum") for v in variables]

    def update_step(self, gradient, variable, learning_rate):
        momentum = self.momentums[self._get_variable_index(variable)]
        self.assign(momentum, 0.9 * momentum + gradient)
        self.assign_sub(variable, 0.1 * momentum)


@pytest.mark.parametrize(
    "optimizer", [Momentum, lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), 2.0**10, 1)]
)
def test_an_optimizer_that_has_trained_goes_on(optimizer):
    """Batches of another size are another capture; the state of the first training is still there."""
    want, got = with_loss(functional, optimizer()), with_loss(functional, optimizer())
    for batch_size in (6, 4):
        want.fit(*DATA, **{**OPTIONS, "batch_size": batch_size})
        caramel.fit(got, *DATA, workers=2, cluster=AS_WRITTEN, **{**OPTIONS, "batch_size": batch_size})
    assert len(got.optimizer.variables) == len(want.optimizer.variables)
    for mine, theirs in zip([*got.variables, *got.optimizer.variables], [*want.variables, *want.optimizer.variables]):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-12, err_msg=mine.path)


def test_a_call_that_an_instance_was_given():
    """It returns something else than its class: losses are built for that."""
    want, got = with_loss(functional), with_loss(functional)
    for model in (want, got):
        model.call = lambda x, training=None, mask=None, model=model: [type(model).call(model, x)]
    same(
        (want.fit(*DATA, **OPTIONS), want),
        (caramel.fit(got, *DATA, workers=2, cluster=AS_WRITTEN, **OPTIONS), got),
        1e-5,
    )


def test_what_layers_say_of_batches_that_do_not_fit():
    model = with_loss(functional)
    with pytest.raises(caramel.InputError, match="cannot take batches .*incompatible with the layer"):
        caramel.fit(model, np.zeros((12, 5), "float32"), DATA[1], workers=2, **OPTIONS)


def test_a_loss_that_does_not_fit_the_output():
    model = compiled()
    model.compile("sgd", keras.losses.CategoricalCrossentropy())
    with pytest.raises(caramel.InputError, match="cannot take batches"):
        caramel.fit(model, dataset(), workers=2, verbose=0)


class Once(keras.layers.Layer):
    """Does something the first time that it trains, which is no part of a captured step."""

    seen = False

    def call(self, x, training=None):
        if training and not self.seen:
            self.seen = True
            return x + 0.0
        return x


def test_a_layer_that_does_something_once():
    def make():
        x = keras.Input([4], dtype="float64")
        return keras.Model(x, keras.layers.Dense(3, dtype="float64")(Once(dtype="float64")(x)))

    want, got = with_loss(make, "sgd"), with_loss(make, "sgd")
    with_keras, with_workers = (
        want.fit(*DATA, **OPTIONS),
        caramel.fit(got, *DATA, workers=2, cluster=AS_WRITTEN, **OPTIONS),
    )
    same((with_keras, want), (with_workers, got), rtol=1e-5)


class Broken(keras.Model):
    """Its step has a mistake."""

    def train_step(self, batch):
        return {"loss": self.undefined_thing}


def test_a_mistake_in_a_step_of_the_model_s_own():
    model = Broken(name="mine")
    model.compile("sgd")
    lines = Path(__file__).read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "self.undefined_thing}" in text)
    with pytest.raises(caramel.InputError, match=f"train_step of model 'mine' raises AttributeError at .*:{line}, for"):
        caramel.fit(model, *DATA, workers=2, **OPTIONS)
