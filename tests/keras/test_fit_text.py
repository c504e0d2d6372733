"""Lookup tables and seeds of layers, in pipelines and in models: each worker has a copy, and trains as one device."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_common import AS_WRITTEN, same
from variants import each_once, in_soak, mostly_in_soak

import caramel

layers = keras.layers
rng = np.random.default_rng(0)
WORDS = ["good", "bad", "fine", "ugly", "film"]
TEXTS = np.array([" ".join(rng.choice(WORDS, 6)) for _ in range(30)])
GENRES = rng.choice(["drama", "comedy", "western", "unknown"], 30)
YEARS = rng.integers(1990, 2000, 30)
LABELS = np.array(["good" in text for text in TEXTS], "int64")
IMAGES = rng.uniform(size=(30, 8, 8, 1)).astype("float32")


def lookups():
    vectorize = layers.TextVectorization(20, output_sequence_length=8)
    vectorize.adapt(TEXTS)
    genre = layers.StringLookup(vocabulary=["drama", "comedy", "western"], output_mode="one_hot")
    year = layers.IntegerLookup(vocabulary=list(range(1990, 1998)))
    return vectorize, genre, year


def classifier(texts, genres, years):
    hidden = layers.GlobalAveragePooling1D()(layers.Embedding(20, 4)(texts))
    year = layers.Flatten()(layers.Embedding(10, 2)(years))
    return layers.Dense(2)(layers.Concatenate()([hidden, genres, year]))


def compiled(build):
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(4)
    model = build()
    model.compile(
        keras.optimizers.Adam(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    return model


def of_numbers():
    inputs = keras.Input([8], dtype="int64"), keras.Input([4]), keras.Input([], dtype="int64")
    return keras.Model(list(inputs), classifier(*inputs))


def of_text():
    inputs = keras.Input([], dtype="string"), keras.Input([], dtype="string"), keras.Input([], dtype="int64")
    return keras.Model(list(inputs), classifier(*(layer(x) for layer, x in zip(lookups(), inputs))))


def in_numbers():
    vectorize, genre, year = lookups()
    batches = tf.data.Dataset.from_tensor_slices((TEXTS, GENRES, YEARS, LABELS)).batch(8)
    return batches.map(lambda text, g, y, label: ((vectorize(text), genre(g), year(y)), label))


def in_text():
    return tf.data.Dataset.from_tensor_slices(((TEXTS, GENRES, YEARS), LABELS)).batch(8)


def both_on(make_data, build, workers, **options):
    alone, distributed = compiled(build), compiled(build)
    want = alone.fit(make_data(), epochs=2, verbose=0)
    got = caramel.fit(distributed, make_data(), epochs=2, verbose=0, workers=workers, **options)
    return (want, alone), (got, distributed)


@pytest.mark.parametrize("workers", [4, *in_soak(1, 2)])
@pytest.mark.parametrize("kind", ["pipeline", "model"])
def test_text(kind, workers):
    make_data, build = {"pipeline": (in_numbers, of_numbers), "model": (in_text, of_text)}[kind]
    same(*both_on(make_data, build, workers, cluster=AS_WRITTEN), rtol=1e-4)


@pytest.mark.processes
@pytest.mark.soak  # as test_text, and test_on_processes in test_fit.py
@pytest.mark.parametrize("kind", ["model", "pipeline"])
def test_text_over_server_processes(kind):
    make_data, build = {"pipeline": (in_numbers, of_numbers), "model": (in_text, of_text)}[kind]
    same(*both_on(make_data, build, 3, cluster=caramel.LocalProcesses()), rtol=1e-4)


def augmented():
    augment = keras.Sequential([layers.RandomFlip("horizontal", seed=1), layers.RandomTranslation(0.1, 0.1, seed=2)])
    batches = tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)).batch(8)
    return batches.map(lambda image, label: (augment(image, training=True), label))


def of_images():
    return keras.Sequential([keras.Input([8, 8, 1]), layers.Flatten(), layers.Dense(2)])


@pytest.mark.parametrize("workers", [2, *in_soak(1, 4)])
def test_augmentation_in_the_pipeline(workers):
    """All workers draw the same, and of that each takes its part."""
    same(*both_on(augmented, of_images, workers, cluster=AS_WRITTEN), rtol=1e-4)


def test_a_generator_in_the_pipeline():
    def make_data():
        generator = tf.random.Generator.from_seed(7)
        batches = tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)).batch(8)
        return batches.map(lambda image, label: (image + generator.normal(tf.shape(image), stddev=0.1), label))

    same(*both_on(make_data, of_images, 2, cluster=AS_WRITTEN), rtol=1e-4)


def test_predictions_and_checkpoints_of_a_model_with_tables(tmp_path):
    model = compiled(of_text)
    caramel.fit(model, in_text(), verbose=0, workers=2, cluster=AS_WRITTEN)
    want = model.predict(in_text(), verbose=0)
    np.testing.assert_allclose(caramel.predict(model, in_text(), verbose=0, workers=2), want, rtol=1e-5)
    step, variables = own_step()
    context = caramel.capture(step, data=pairs())
    with caramel.ARModel(context, 2).session() as session:
        session.run(steps=2)
        session.save(tmp_path / "saved")
        session.run(steps=1)
        after = session.values()
    with caramel.ARModel(context, 3).session() as session:
        session.restore(tmp_path / "saved")
        session.run(steps=1)
        for name, value in session.values().items():
            np.testing.assert_allclose(value, after[name], rtol=1e-5, err_msg=name)
    assert not any("tables" in name for name in after)


def pairs():
    return tf.data.Dataset.from_tensor_slices((GENRES, LABELS.astype("float32"))).batch(6)


def own_step(default=3):
    """A weight for each genre, by a table of TensorFlow's own."""
    initializer = tf.lookup.KeyValueTensorInitializer(["drama", "comedy", "western"], tf.constant([0, 1, 2], tf.int64))
    table = tf.lookup.StaticHashTable(initializer, default)
    w = tf.Variable(tf.zeros([4]), name="w")

    def step(genre, label):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.gather(w, table.lookup(genre)) - label) ** 2)
        w.assign_sub(0.5 * tf.convert_to_tensor(tape.gradient(loss, w)))
        return loss

    return step, [w]


@pytest.mark.parametrize("fed", [True, False])
@pytest.mark.parametrize("workers", [3, *in_soak(1)])
def test_a_table_in_a_step_of_ones_own(workers, fed):
    step, (want,) = own_step()
    compiled_step = tf.function(step)
    for batch in pairs():
        compiled_step(*batch)
    step, (got,) = own_step()
    specs = [tf.TensorSpec([None], tf.string), tf.TensorSpec([None])]
    context = caramel.capture(step, inputs=specs) if fed else caramel.capture(step, data=pairs())
    with caramel.ARModel(context, workers).session() as session:
        session.run([tuple(map(np.asarray, batch)) for batch in pairs()] if fed else None)
        session.write_back()
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_an_exported_program_has_its_tables(tmp_path):
    import subprocess
    import sys

    step, _ = own_step()
    context = caramel.capture(step, inputs=[tf.TensorSpec([None], tf.string), tf.TensorSpec([None])])
    model = caramel.ARModel(context, 2)
    model.export(tmp_path / "exported")
    with model.session() as session:
        want = session.step(GENRES[:6], LABELS[:6].astype("float32")).loss
    np.savez(tmp_path / "data.npz", genre=GENRES[:6].astype("U"), label=LABELS[:6].astype("float32"))
    done = subprocess.run(
        [sys.executable, "run.py", "train", "--data", str(tmp_path / "data.npz"), "--steps", "1"],
        cwd=tmp_path / "exported",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert f"{want:.4g}"[:5] in done.stdout


def test_what_cannot_be_copied():
    table = tf.lookup.experimental.DenseHashTable(tf.int64, tf.int64, -1, 0, -2)
    w = tf.Variable(1.0)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(w * tf.cast(x, tf.float32))
        w.assign_sub(tape.gradient(loss, w))
        table.insert(x, x)
        return loss

    with pytest.raises(caramel.UnsupportedError, match="LookupTableInsert"):
        caramel.capture(step, inputs=[tf.TensorSpec([None], tf.int64)]).model  # noqa: B018


# -- text of any length, in the model ------------------------------------------------------------

UNEVEN_TEXTS = np.array([" ".join(rng.choice(WORDS, count)) for count in rng.integers(1, 9, 30)])
OF_A_LENGTH = {
    "words": {"output_sequence_length": 8},
    "pairs of words": {"output_sequence_length": 10, "ngrams": 2},
    "characters": {"output_sequence_length": 12, "split": "character"},
    "which words": {"output_mode": "multi_hot"},
    "how many": {"output_mode": "count"},
}


OF_EACH_KIND = ("which words", "pairs of words", "characters")


def of_texts(options, regularizer=None):
    def build():
        vectorize = layers.TextVectorization(20, **options)
        vectorize.adapt(UNEVEN_TEXTS)
        text = keras.Input([1], dtype="string")
        found = vectorize(text)
        if options.get("output_mode") is None:
            found = layers.GlobalAveragePooling1D()(layers.Embedding(20, 4)(found))
        return keras.Model(text, layers.Dense(2, kernel_regularizer=regularizer)(found))

    return build


def texts_alone():
    return tf.data.Dataset.from_tensor_slices(UNEVEN_TEXTS[:, None]).batch(7)


def uneven():
    return tf.data.Dataset.from_tensor_slices((UNEVEN_TEXTS[:, None], LABELS)).batch(8)


@pytest.mark.parametrize("mode, regularizer", each_once(list(OF_A_LENGTH), [None, "l2"], first=OF_EACH_KIND))
def test_texts_of_any_length_in_the_model(mode, regularizer):
    """What each worker makes of its texts is as long as on one device, whatever the lengths of its own ones are."""
    first, second = both_on(uneven, of_texts(OF_A_LENGTH[mode], regularizer), 3)
    same(first, second, rtol=1e-4)
    want = first[1].evaluate(uneven(), verbose=0)
    assert caramel.evaluate(first[1], uneven(), workers=3, verbose=0) == pytest.approx(want, rel=1e-5)
    predicted = caramel.predict(first[1], texts_alone(), workers=3, verbose=0)
    np.testing.assert_allclose(predicted, first[1].predict(texts_alone(), verbose=0), rtol=1e-5, atol=1e-6)


class Words(layers.Layer):
    """The numbers of the words of each text, filled up to the longest."""

    def call(self, texts):
        found = tf.strings.split(tf.squeeze(texts, -1)).to_tensor()
        return tf.strings.to_hash_bucket_fast(found, 20)

    def compute_output_spec(self, texts):
        return keras.KerasTensor([None, None], "int64")


def of_ragged():
    text = keras.Input([1], dtype="string")
    return keras.Model(text, layers.Dense(2)(layers.GlobalAveragePooling1D()(layers.Embedding(20, 4)(Words()(text)))))


@pytest.mark.parametrize("build", [of_texts({}), of_ragged], ids=["TextVectorization", "to_tensor"])
def test_texts_that_are_filled_up_to_the_longest_are_refused(build):
    """The longest text of a worker's part may be shorter than that of the batch, and means over words count them all."""
    alone, single = compiled(build), compiled(build)
    alone.fit(uneven(), verbose=0)
    caramel.fit(single, uneven(), workers=1, verbose=0)
    np.testing.assert_allclose(single.get_weights()[-1], alone.get_weights()[-1], rtol=1e-4)
    model = compiled(build)
    with pytest.raises(caramel.CaptureError, match="fills up to the longest of its examples.*give a length"):
        caramel.fit(model, uneven(), workers=3, verbose=0)
    for call in (caramel.evaluate, caramel.predict):
        data = (uneven(),) if call is caramel.evaluate else (texts_alone(),)
        call(model, *data, workers=1, verbose=0)  # with one there is nothing to combine
        with pytest.raises(caramel.CaptureError, match="value of the whole batch"):
            call(model, *data, workers=3, verbose=0)


def test_texts_that_the_dataset_fills_up_are_those_of_one_device():
    def data():
        vectorize = layers.TextVectorization(20)
        vectorize.adapt(UNEVEN_TEXTS)
        return tf.data.Dataset.from_tensor_slices((UNEVEN_TEXTS, LABELS)).batch(8).map(lambda t, y: (vectorize(t), y))

    def build():
        numbers = keras.Input([None], dtype="int64")
        return keras.Model(numbers, layers.Dense(2)(layers.GlobalAveragePooling1D()(layers.Embedding(20, 4)(numbers))))

    same(*both_on(data, build, 3), rtol=1e-4)


CODES = rng.integers(0, 6, (30, 3))
OF_CODES = {
    "which": lambda: layers.CategoryEncoding(num_tokens=6, output_mode="multi_hot"),
    "how many": lambda: layers.CategoryEncoding(num_tokens=6, output_mode="count"),
    "which of a vocabulary": lambda: layers.IntegerLookup(vocabulary=[1, 2, 4], output_mode="multi_hot"),
}


@pytest.mark.parametrize("name", mostly_in_soak(list(OF_CODES), "which", "which of a vocabulary"))
def test_codes_of_each_example(name):
    """How many classes there are is given, though TensorFlow looks at the largest of the batch, too."""

    def build():
        codes = keras.Input([3], dtype="int64")
        return keras.Model(codes, layers.Dense(2, kernel_regularizer="l2")(OF_CODES[name]()(codes)))

    def data():
        return tf.data.Dataset.from_tensor_slices((CODES, LABELS)).batch(8)

    first, second = both_on(data, build, 3)
    same(first, second, rtol=1e-4)
    alone = first[1]
    assert caramel.evaluate(alone, data(), workers=3, verbose=0) == pytest.approx(
        alone.evaluate(data(), verbose=0), rel=1e-5
    )
    predicted = caramel.predict(alone, CODES, batch_size=7, workers=3, verbose=0)
    np.testing.assert_allclose(predicted, alone.predict(CODES, verbose=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("output_mode", mostly_in_soak(["one_hot", "int"], "one_hot"))
@pytest.mark.parametrize("shape", mostly_in_soak([[], [1]], []))
def test_crossed_features(output_mode, shape):
    def build():
        one, other = keras.Input(shape, dtype="int64"), keras.Input(shape, dtype="int64")
        crossed = layers.HashedCrossing(7, output_mode=output_mode)((one, other))
        inputs = layers.Reshape([-1])(crossed) if output_mode == "one_hot" else layers.Reshape([1])(crossed)
        return keras.Model((one, other), layers.Dense(2)(inputs))

    def data():
        features = tuple(CODES[:, column].reshape([-1, *shape]) for column in (0, 1))
        return tf.data.Dataset.from_tensor_slices((features, LABELS)).batch(8)

    same(*both_on(data, build, 3), rtol=1e-4)
