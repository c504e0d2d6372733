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
        ((X, Y), {"cluster": "processes"}, ["caramel.LocalProcesses()", "got 'processes'"]),
        ((X.tolist(), Y), {}, ["x is a list of what is no array", "np.asarray"]),
        ((X, Y), {"validation_data": UNBATCHED}, ["validation_data", "dataset.batch(size)"]),
        ((X, Y), {"validation_data": dataset().repeat()}, ["validation_data has no end", "validation_steps="]),
    ],
    ids=["network", "cluster", "lists", "unbatched validation", "endless validation"],
)
def test_before_anything_is_traced(given, options, words, monkeypatch):
    monkeypatch.setattr("caramel.keras.fit.captured_training", never)
    with pytest.raises(caramel.InputError) as caught:
        caramel.fit(compiled(), *given, workers=2, verbose=0, **options)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_no_targets():
    with pytest.raises(caramel.InputError, match="There are no targets: give y="):
        caramel.fit(compiled(), X, workers=2, verbose=0)


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
