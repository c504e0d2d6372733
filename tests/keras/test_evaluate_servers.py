"""`caramel.evaluate` and `predict` with parameter servers, from which workers only pull: the results of the model."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from variants import in_soak

import caramel
from caramel.compiler.distributed_model import forward_pass
from caramel.compiler.options import CompileOptions
from caramel.errors import InputError, UnsupportedError
from caramel.frontend.capture_options import CaptureOptions
from caramel.frontend.context import Context
from caramel.keras.train_step import NOTHING

layers = keras.layers
RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(25, 8, 8, 1)).astype(np.float32)
WORDS = RNG.integers(0, 30, (25, 6)).astype(np.int32)
LABELS = RNG.integers(0, 3, 25)


def images():
    body = [layers.Conv2D(4, 3, activation="relu"), layers.BatchNormalization(), layers.Flatten(), layers.Dropout(0.3)]
    return keras.Sequential([keras.Input([8, 8, 1]), *body, layers.Dense(3)]), IMAGES


def words():
    body = [layers.Embedding(30, 4, mask_zero=True), layers.LSTM(5), layers.Dense(3)]
    return keras.Sequential([keras.Input([6], dtype="int32"), *body]), WORDS


def two_outputs():
    x = keras.Input([8, 8, 1])
    hidden = layers.Dense(6, "relu")(layers.Flatten()(x))
    return keras.Model(x, {"first": layers.Dense(3)(hidden), "second": layers.Dense(3)(hidden)}), IMAGES


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = keras.Sequential([layers.Flatten(), layers.Dense(7, "tanh")])
        self.scale = self.add_weight(shape=[7], initializer="ones", name="scale")
        self.head = layers.Dense(3)

    def call(self, x):
        return self.head(self.inner(x) * self.scale)


MODELS = {"images": images, "words": words, "two outputs": two_outputs, "subclassed": lambda: (Subclassed(), IMAGES)}


def compiled(make):
    keras.utils.set_random_seed(3)
    model, x = make()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    y = {"first": LABELS, "second": LABELS} if make is two_outputs else LABELS
    metrics = {name: ["accuracy"] for name in y} if isinstance(y, dict) else ["accuracy"]
    model.compile("adam", loss, metrics=metrics)
    model.fit(x, y, batch_size=10, verbose=0)  # its values are no longer those of the initialisers
    return model, x, y


def assert_same(got, want):
    keras.tree.map_structure(np.testing.assert_array_equal, got, want)


@pytest.mark.parametrize(
    "name, workers, servers, ordering",
    [
        ("images", 3, 2, "tic"),
        *in_soak(("images", 1, 1, None)),
        ("words", 2, 2, "none"),
        *in_soak(("words", 3, 1, "read")),
        *in_soak(("two outputs", 2, 3, "tio")),
        *in_soak(("subclassed", 2, 2, "random")),
    ],
)
def test_results_are_those_of_workers_that_have_the_model(name, workers, servers, ordering):
    model, x, y = compiled(MODELS[name])
    plain = {"workers": workers, "verbose": 0, "batch_size": 10}
    served = {**plain, "servers": servers, "ordering": ordering}
    assert_same(caramel.predict(model, x, **served), caramel.predict(model, x, **plain))
    want = caramel.evaluate(model, x, y, return_dict=True, **plain)
    assert caramel.evaluate(model, x, y, return_dict=True, **served) == want
    alone = model.evaluate(x, y, batch_size=10, verbose=0, return_dict=True)
    assert want == pytest.approx(alone, rel=1e-5)


def test_values_are_those_of_the_model_in_every_call():
    model, x, y = compiled(images)
    options = {"workers": 2, "verbose": 0, "servers": 2}
    before = caramel.predict(model, x, **options)
    model.fit(x, y, verbose=0)
    after = caramel.predict(model, x, **options)
    assert not np.allclose(before, after)
    np.testing.assert_allclose(after, model.predict(x, verbose=0), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.processes
def test_over_server_processes(namespaces):
    model, x, y = compiled(images)
    options = {"workers": 2, "verbose": 0, "cluster": caramel.LocalProcesses()}
    want = model.evaluate(x, y, verbose=0)
    assert caramel.evaluate(model, x, y, servers=2, **options) == pytest.approx(want, rel=1e-5)
    beside = caramel.evaluate(model, x, y, servers=1, server_list=["/job:worker/task:1"], **options)
    assert beside == pytest.approx(want, rel=1e-5)


def forward(servers, **options):
    """The forward pass of a chain of layers, and what its plan says of servers."""
    weights = [tf.Variable(tf.ones([4, 4]), name=name) for name in ("first", "second", "third")]

    def step(x):
        for weight in weights:
            x = tf.tanh(x @ weight)
        return {"y": x, NOTHING: tf.constant(0.0)}

    options_of_capture = CaptureOptions(loss=NOTHING, loss_reduction="mean", trains=False)
    context = Context(step, [tf.TensorSpec([None, 4], name="x")], options_of_capture)
    return forward_pass(context, CompileOptions(workers=2, servers=servers, **options))


def test_workers_pull_all_variables_in_the_order_in_which_they_are_read():
    distributed = forward(2)
    servers = distributed.plan.servers
    assert servers.pulls == ("first", "second", "third") and servers.ordering == "tic"
    assert servers.pulled_bytes == 3 * 64 and servers.pushed_bytes == 0
    assert sorted(home.servers for home in servers.homes) == [(0,), (0,), (1,)]  # none is there twice
    held = {node.name for node in distributed.emission.graph if node.op == "VarHandleOp"}
    assert {name.partition("/")[0] for name in held} == {"server_0", "server_1"}  # workers have none


@pytest.mark.parametrize(
    "options, message",
    [
        ({"servers": 0}, "servers must be a whole number of at least 1"),
        ({"servers": 50}, r"servers=50: there are \d+ variables"),
        ({"servers": 2, "ordering": "tac"}, "ordering='tac' goes by times of a training step, and this is none"),
        ({"servers": 2, "ordering": "fast"}, "ordering"),
        ({"servers": 2, "pulls_in_flight": 0}, "pulls_in_flight"),
        ({"ordering": "tic"}, "ordering= is of parameter servers: give servers=, too"),
        ({"servers": 2, "server_list": ["/job:worker/task:0"]}, "server_list has 1 entries"),
    ],
)
@pytest.mark.parametrize("call", [caramel.evaluate, *in_soak(caramel.predict)])
def test_what_does_not_fit(call, options, message):
    model, x, y = compiled(two_outputs)
    data = (x, y) if call is caramel.evaluate else (x,)
    with pytest.raises(InputError, match=message):
        call(model, *data, workers=2, verbose=0, **options)


def test_a_model_without_variables():
    model = keras.Sequential([keras.Input([3]), layers.ReLU()])
    with pytest.raises(UnsupportedError, match="no variable that servers could have"):
        caramel.predict(model, np.ones([4, 3], np.float32), workers=2, verbose=0, servers=1)
