"""Words, sentences and sound: classes, masks, translation, and alignments."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from program_common import BATCH, COUNT, variables_of

WORDS = "a bad good film plot was the very dull fine actor story"


def reviews(count=COUNT, seed=0):
    """Sentences and whether there are more good words than bad ones."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(WORDS.split(), rng.integers(3, 9))) for _ in range(count)]
    return texts, np.array([text.count("good") + text.count("fine") > text.count("bad") for text in texts], "int32")


def padded(count, length, words, seed):
    """Sentences of word numbers from 1, with zeros behind; the workers' parts have other lengths."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(1, words, (count, length))
    return tokens * (np.arange(length) < rng.integers(2, length + 1, count)[:, None])


class TokensAndPositions(layers.Layer):
    """Embeds tokens and adds an embedding of their place."""

    def __init__(self, length, words, width, **options):
        super().__init__(**options)
        self.tokens = layers.Embedding(words, width)
        self.places = layers.Embedding(length, width)

    def call(self, x):
        return self.tokens(x) + self.places(ops.arange(ops.shape(x)[-1]))


class TransformerBlock(layers.Layer):
    """Self-attention and a small network, each added to its input and normalised."""

    def __init__(self, width, heads, hidden, **options):
        super().__init__(**options)
        self.attention = layers.MultiHeadAttention(heads, width)
        self.network = keras.Sequential([layers.Dense(hidden, "relu"), layers.Dense(width)])
        self.normals = [layers.LayerNormalization(epsilon=1e-6) for _ in range(2)]
        self.dropouts = [layers.Dropout(0.0) for _ in range(2)]

    def call(self, x):
        attended = self.dropouts[0](self.attention(x, x))
        middle = self.normals[0](x + attended)
        return self.normals[1](middle + self.dropouts[1](self.network(middle)))


# -- classes --------------------------------------------------------------------------------------


def text_classifier(train):
    """Raw text in the pipeline, whose vocabulary is learned first."""
    texts, labels = reviews()
    raw = tf.data.Dataset.from_tensor_slices((texts, labels)).batch(BATCH)
    vectorize = layers.TextVectorization(max_tokens=20, output_mode="int", output_sequence_length=8)
    vectorize.adapt(raw.map(lambda text, label: text))
    data = raw.map(lambda text, label: (vectorize(tf.expand_dims(text, -1)), label)).cache().prefetch(2)
    inputs = keras.Input((None,), dtype="int64")
    x = layers.Dropout(0.0)(layers.Embedding(20, 6)(inputs))
    x = layers.GlobalMaxPooling1D()(layers.Conv1D(6, 3, strides=2, padding="valid", activation="relu")(x))
    model = keras.Model(inputs, layers.Dense(1, activation="sigmoid", name="predictions")(x))
    model.compile(loss="binary_crossentropy", optimizer="adam", metrics=["accuracy"])
    train.fit(model, data, epochs=1)
    return variables_of(model, model.optimizer)


# -- models of language ---------------------------------------------------------------------------


def masked_language_model(train):
    """Words that are hidden, and sample weights that count only those."""
    rng = np.random.default_rng(5)
    y = padded(COUNT, 8, 14, 5)
    hidden = (rng.random(y.shape) < np.linspace(0.1, 0.6, COUNT)[:, None]) & (y > 0)
    x, weights = np.where(hidden, 14, y), hidden.astype("float64")

    class MaskedModel(keras.Model):
        def train_step(self, inputs):
            features, labels, weights = inputs
            with tf.GradientTape() as tape:
                predictions = self(features, training=True)
                loss = self.compute_loss(y=labels, y_pred=predictions, sample_weight=weights)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
            tracker.update_state(loss)
            return {"loss": tracker.result()}

        @property
        def metrics(self):
            return [tracker]

    tracker = keras.metrics.Mean(name="loss")
    inputs = keras.Input((8,), dtype="int64")
    encoded = TransformerBlock(6, 2, 8)(TokensAndPositions(8, 15, 6)(inputs))
    model = MaskedModel(inputs, layers.Dense(15, activation="softmax")(encoded))
    loss = keras.losses.SparseCategoricalCrossentropy(reduction="sum_over_batch_size")
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=loss)
    data = tf.data.Dataset.from_tensor_slices((x, y, weights)).batch(BATCH)
    train.fit(model, data, epochs=1)
    return variables_of(model, model.optimizer)


def translation(train):
    """An encoder and a decoder with attention between them; padding counts nowhere."""
    source, target = padded(COUNT, 6, 11, 7), padded(COUNT, 7, 13, 8)
    sources = keras.Input((None,), dtype="int64", name="source")
    targets = keras.Input((None,), dtype="int64", name="target")
    encoded = layers.Embedding(11, 5, mask_zero=True)(sources)
    encoded = layers.GRU(5, return_sequences=True)(encoded)
    decoded = layers.Embedding(13, 5, mask_zero=True)(targets)
    attended = layers.Attention()([decoded, encoded])
    outputs = layers.Dense(13, activation="softmax")(layers.Concatenate()([decoded, attended]))
    model = keras.Model([sources, targets], outputs)
    model.compile("rmsprop", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    data = tf.data.Dataset.from_tensor_slices((source, target))
    data = data.map(lambda s, t: ({"source": s, "target": t[:-1]}, t[1:])).batch(BATCH)
    train.fit(model, data)
    return variables_of(model, model.optimizer)


def masked_captions(train):
    """A loss and an accuracy of one's own that divide by the number of words that are none of the padding."""
    features, words = np.random.default_rng(9).normal(size=(COUNT, 4, 3)), padded(COUNT, 6, 10, 9)

    class Captions(keras.Model):
        def __init__(self):
            super().__init__()
            self.encoder = layers.Dense(6, activation="relu")
            self.embedding = TokensAndPositions(5, 10, 6)
            self.attention = layers.MultiHeadAttention(2, 3)
            self.normal = layers.LayerNormalization()
            self.out = layers.Dense(10)
            self.trackers = [keras.metrics.Mean(name="loss"), keras.metrics.Mean(name="acc")]

        def call(self, inputs, training=False):
            images, words = inputs
            words = self.embedding(words)
            return self.out(self.normal(words + self.attention(words, self.encoder(images), training=training)))

        def loss_and_accuracy(self, y, logits, mask):
            each = self.loss(y, logits)
            mask = tf.cast(mask, each.dtype)
            right = tf.cast(tf.equal(y, tf.argmax(logits, axis=2)), each.dtype) * mask
            return tf.reduce_sum(each * mask) / tf.reduce_sum(mask), tf.reduce_sum(right) / tf.reduce_sum(mask)

        def train_step(self, data):
            images, words = data
            before, after = words[:, :-1], words[:, 1:]
            with tf.GradientTape() as tape:
                logits = self((images, before), training=True)
                loss, accuracy = self.loss_and_accuracy(after, logits, tf.math.not_equal(after, 0))
            variables = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            for tracker, value in zip(self.trackers, (loss, accuracy)):
                tracker.update_state(value)
            return {tracker.name: tracker.result() for tracker in self.trackers}

        @property
        def metrics(self):
            return self.trackers

    model = Captions()
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=entropy)
    train.fit(model, tf.data.Dataset.from_tensor_slices((features, words)).batch(BATCH))
    return variables_of(model, model.optimizer)


# -- sound ----------------------------------------------------------------------------------------


def speech(train):
    """A convolution over a spectrogram, and a loss over all alignments."""
    rng = np.random.default_rng(10)
    waves, text = rng.normal(size=(COUNT, 96)).astype("float32"), padded(COUNT, 4, 6, 10)

    def spectrogram(wave, label):
        power = tf.abs(tf.signal.stft(wave, frame_length=16, frame_step=8, fft_length=16)) ** 0.5
        mean, deviation = tf.math.reduce_mean(power, 1, True), tf.math.reduce_std(power, 1, True)
        return (power - mean) / (deviation + 1e-10), label

    def alignments(y_true, y_pred):
        size = tf.shape(y_true)[0]
        frames = tf.fill([size], tf.shape(y_pred)[1])
        letters = tf.reduce_sum(tf.cast(y_true > 0, tf.int32), -1)
        y_pred = tf.cast(y_pred, tf.float32)  # TensorFlow's loss is of that type alone
        return tf.nn.ctc_loss(
            tf.cast(y_true, tf.int32), y_pred, letters, frames, logits_time_major=False, blank_index=0
        )

    inputs = keras.Input((11, 9))
    x = layers.Reshape((11, 9, 1))(inputs)
    x = layers.Conv2D(3, (3, 3), padding="same", use_bias=False)(x)
    x = layers.ReLU()(layers.BatchNormalization(synchronized=True)(x))
    x = layers.Reshape((11, 27))(x)
    model = keras.Model(inputs, layers.Dense(6)(layers.Dropout(0.0)(x)))
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=alignments)
    data = tf.data.Dataset.from_tensor_slices((waves, text)).map(spectrogram).batch(BATCH)
    train.fit(model, data)
    return variables_of(model, model.optimizer)
