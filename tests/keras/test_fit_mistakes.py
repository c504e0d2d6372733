"""What users get wrong: each is answered before anything is traced or trained, with what to do."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_common import CLASSES, arrays, compiled, dataset

import caramel

pytestmark = pytest.mark.usefixtures("double")

X, Y = arrays(24)
UNBATCHED = tf.data.Dataset.from_tensor_slices((X, Y))


def without_vocabulary():
    word = keras.Input((1,), dtype="string")
    numbers = keras.layers.StringLookup()(word)
    vectors = keras.layers.Flatten()(keras.layers.Embedding(5, 2)(numbers))
    model = keras.Model(word, keras.layers.Dense(1)(vectors))
    model.compile("sgd", "mse")
    return model


def never(*_):
    raise AssertionError("nothing is to be traced")


@pytest.mark.parametrize(
    "given, options, words",
    [
        ((X, Y), {"network": "nowhere.json"}, ["network model 'nowhere.json' cannot be read"]),
        (
            (X, Y),
            {"cluster": caramel.Servers(["a:1"])},
            ["workers=2: the cluster has 1 worker. Give a server for each"],
        ),
        ((X, Y), {"cluster": "processes"}, ["caramel.LocalProcesses()", "got 'processes'"]),
        ((X.tolist(), Y), {}, ["x is a list of what is no array", "np.asarray"]),
        ((X, Y), {"validation_data": UNBATCHED}, ["validation_data", "dataset.batch(size)"]),
        ((X, Y), {"validation_data": dataset().repeat()}, ["validation_data has no end", "validation_steps="]),
    ],
    ids=["network", "few servers", "cluster", "lists", "unbatched validation", "endless validation"],
)
def test_before_anything_is_traced(given, options, words, monkeypatch):
    monkeypatch.setattr("caramel.keras.fit.captured_training", never)
    with pytest.raises(caramel.InputError) as caught:
        caramel.fit(compiled(), *given, workers=2, verbose=0, **options)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_no_targets():
    with pytest.raises(caramel.InputError, match="There are no targets: give y="):
        caramel.fit(compiled(), X, workers=2, verbose=0)


@pytest.mark.parametrize("call", [caramel.evaluate, caramel.predict])
@pytest.mark.parametrize("option", [{"policy": "p3"}, {"trace": "trace.json"}])
def test_options_of_training_are_not_needed_without_any(call, option):
    with pytest.raises(caramel.InputError, match="leave it out: workers have the values of the model here"):
        call(compiled(), X, workers=2, verbose=0, **option)


@pytest.mark.parametrize("call, name", [(caramel.evaluate, "stepz"), (caramel.predict, "batchsize")])
def test_arguments_that_evaluate_and_predict_do_not_have(call, name):
    with pytest.raises(caramel.InputError, match=f"has no argument '{name}': did you mean"):
        call(compiled(), X, workers=2, verbose=0, **{name: 3})


def test_a_layer_without_a_vocabulary():
    with pytest.raises(caramel.CaptureError, match=r"no vocabulary. Call its adapt\(data\) first"):
        caramel.fit(without_vocabulary(), tf.constant([["a"]] * 8), np.ones((8, 1)), workers=2, verbose=0)


@pytest.mark.filterwarnings("ignore:the batches are made")
def test_a_layer_without_a_vocabulary_in_the_pipeline():
    lookup = keras.layers.StringLookup()

    def numbered(word, x):
        return x + tf.cast(lookup(word), x.dtype), tf.cast(0, tf.int64) % CLASSES

    data = tf.data.Dataset.from_tensor_slices((["a"] * len(X), X)).map(numbered).batch(8)
    with pytest.raises(caramel.DataError, match="no vocabulary: call its adapt"):
        caramel.fit(compiled(), data, workers=2, verbose=0)


@pytest.mark.parametrize(
    ("length", "said"),
    [(lambda self: None, "'NoneType' object"), (None, "num_batches"), (lambda self: -1, ">= 0")],
)
def test_a_pydataset_that_does_not_say_how_long_it_is(length, said):
    methods = {"__getitem__": lambda self, number: (X[:8], Y[:8])} | ({} if length is None else {"__len__": length})
    batches = type("Batches", (keras.utils.PyDataset,), methods)()
    with pytest.raises(caramel.InputError, match=f"Batches does not say how many batches.*{said}.*let __len__ return"):
        caramel.fit(compiled(), batches, workers=2, verbose=0)


def test_a_generator_that_is_used_up_ends_the_training():
    batches = [(X[n : n + 8], Y[n : n + 8]) for n in (0, 8, 16)]
    epochs = Epochs()
    with pytest.warns(UserWarning, match="the data has ended.*steps_per_epoch=.*PyDataset"):
        history = caramel.fit(
            compiled(), (batch for batch in batches), workers=2, epochs=5, verbose=0, callbacks=[epochs]
        )
    assert len(history.history["loss"]) == 1
    assert epochs.seen == ["begin 0", "end 0", "begin 1", "end 1"]


class Epochs(keras.callbacks.Callback):
    """What a callback is told of epochs."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_begin(self, epoch, logs=None):
        self.seen.append(f"begin {epoch}")

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(f"end {epoch}")


def test_batches_of_another_shape_than_the_first():
    batches = [(X[:8], Y[:8]), (X[:8], Y[:8]), (X[:8, :2], Y[:8])]
    with pytest.raises(caramel.InputError, match=r"takes arrays of shape \['batch', 5\], got \[8, 2\]"):
        caramel.fit(compiled(), (batch for batch in batches), workers=2, verbose=0)
