"""Series, tables, recommendations and graphs."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from program_common import BATCH, COUNT, variables_of

# -- series ---------------------------------------------------------------------------------------


def waves(count, length, seed=0):
    """Sines with noise, and whether they are fast."""
    rng = np.random.default_rng(seed)
    fast = rng.integers(0, 2, count)
    times = np.arange(length)[None] * (0.3 + 0.5 * fast[:, None]) + rng.uniform(0, 6, (count, 1))
    return (np.sin(times) + 0.1 * rng.normal(size=times.shape))[..., None], fast


def weather(train):
    """An LSTM over windows of one long series."""
    rng = np.random.default_rng(1)
    series = np.cumsum(rng.normal(size=(60, 3)), 0)
    series = (series - series.mean(0)) / series.std(0)
    data = keras.utils.timeseries_dataset_from_array(series[:-8], series[8:, 0], 8, sampling_rate=2, batch_size=20)
    inputs = keras.Input((4, 3))
    model = keras.Model(inputs, layers.Dense(1)(layers.LSTM(5)(inputs)))
    model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.001), loss="mse", metrics=["mae"])
    train.fit(model, data)
    return variables_of(model, model.optimizer)


def series_transformer(train):
    """Attention and convolutions over a series, without positions."""
    x, y = waves(COUNT, 10)
    inputs = keras.Input(x.shape[1:])
    attended = layers.LayerNormalization(epsilon=1e-6)(layers.MultiHeadAttention(2, 4)(inputs, inputs)) + inputs
    hidden = layers.Conv1D(4, 1, activation="relu")(attended)
    hidden = layers.Conv1D(1, 1)(hidden) + attended
    pooled = layers.GlobalAveragePooling1D(data_format="channels_last")(hidden)
    model = keras.Model(inputs, layers.Dense(2, activation="softmax")(layers.Dense(5, activation="relu")(pooled)))
    rate = keras.optimizers.schedules.ExponentialDecay(1e-2, 2, 0.5, staircase=True)
    loss = "sparse_categorical_crossentropy"
    model.compile(loss=loss, optimizer=keras.optimizers.Adam(rate), metrics=["sparse_categorical_accuracy"])
    train.fit(model, x, y, batch_size=BATCH, shuffle=False)
    return variables_of(model, model.optimizer)


def anomalies(train):
    """An autoencoder of series that are normal; the last tenth is for validation."""
    x, _ = waves(40, 12, 2)
    model = keras.Sequential(
        [
            layers.Input(x.shape[1:]),
            layers.Conv1D(6, 5, padding="same", strides=2, activation="relu"),
            layers.Dropout(rate=0.0),
            layers.Conv1DTranspose(6, 5, padding="same", strides=2, activation="relu"),
            layers.Conv1DTranspose(1, 5, padding="same"),
        ]
    )
    model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.001), loss="mse")
    stop = keras.callbacks.EarlyStopping(monitor="val_loss", patience=5, mode="min")
    train.fit(model, x, x, batch_size=BATCH, validation_split=0.1, callbacks=[stop], shuffle=False)
    return variables_of(model, model.optimizer)


# -- tables ---------------------------------------------------------------------------------------


def frauds(train):
    """Few examples of one class, which count more."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(COUNT, 5)), (np.arange(COUNT) % 9 == 1).astype("float64")[:, None]
    model = keras.Sequential(
        [keras.Input((5,)), layers.Dense(8, "relu"), layers.Dropout(0.0), layers.Dense(1, activation="sigmoid")]
    )
    metrics = [
        keras.metrics.FalseNegatives(name="fn"),
        keras.metrics.Precision(name="precision"),
        keras.metrics.Recall(name="recall"),
    ]
    model.compile(optimizer=keras.optimizers.Adam(1e-2), loss="binary_crossentropy", metrics=metrics)
    weights = {0: 1.0 / np.sum(y == 0), 1: 1.0 / np.sum(y == 1)}
    train.fit(model, x, y, batch_size=BATCH, class_weight=weights, shuffle=False)
    return variables_of(model, model.optimizer)


def patients(train):
    """Numbers and words of a table, encoded in the pipeline or by the model."""
    rng = np.random.default_rng(4)
    table = {
        "age": rng.uniform(20, 80, (COUNT, 1)),
        "pressure": rng.normal(120, 15, (COUNT, 1)),
        "pain": rng.choice(["none", "typical", "other"], (COUNT, 1)),
        "ward": rng.integers(10, 14, (COUNT, 1)),
    }
    target = rng.integers(0, 2, (COUNT, 1))
    words = layers.StringLookup(output_mode="one_hot")
    words.adapt(table["pain"])
    data = tf.data.Dataset.from_tensor_slices((table, target)).batch(BATCH)
    data = data.map(lambda row, label: ({**row, "pain": words(row["pain"])}, label))

    inputs = {name: keras.Input((1,), name=name) for name in ("age", "pressure")}
    inputs |= {"pain": keras.Input((4,), name="pain"), "ward": keras.Input((1,), name="ward", dtype="int64")}
    encoded = [inputs["pain"]]
    for name in ("age", "pressure"):
        normalization = layers.Normalization()
        normalization.adapt(table[name])
        encoded.append(normalization(inputs[name]))
    wards = layers.IntegerLookup(vocabulary=[10, 11, 12, 13], output_mode="int")
    encoded.append(layers.Flatten()(layers.Embedding(5, 2)(wards(inputs["ward"]))))
    hidden = layers.Dense(6, activation="relu")(layers.concatenate(encoded))
    model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(layers.Dropout(0.0)(hidden)))
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    train.fit(model, data)
    return variables_of(model, model.optimizer)


def tickets(train):
    """Two texts and tags in, a priority and a department out, with losses that weigh differently."""
    rng = np.random.default_rng(5)
    titles, bodies = rng.integers(0, 12, (COUNT, 4)), rng.integers(0, 12, (COUNT, 7))
    tags = rng.integers(0, 2, (COUNT, 3)).astype("float64")
    priorities, departments = rng.random((COUNT, 1)), keras.utils.to_categorical(rng.integers(0, 4, COUNT), 4)

    title, body = (keras.Input((None,), name=name) for name in ("title", "body"))
    marks = keras.Input((3,), name="tags")
    hidden = [
        layers.LSTM(4)(layers.Embedding(12, 4)(title)),
        layers.GlobalAveragePooling1D()(layers.Embedding(12, 4)(body)),
        marks,
    ]
    hidden = layers.concatenate(hidden)
    outputs = {
        "priority": layers.Dense(1, name="priority")(hidden),
        "department": layers.Dense(4, name="department")(hidden),
    }
    model = keras.Model([title, body, marks], outputs)
    model.compile(
        optimizer=keras.optimizers.RMSprop(1e-3),
        loss={
            "priority": keras.losses.BinaryCrossentropy(from_logits=True),
            "department": keras.losses.CategoricalCrossentropy(from_logits=True),
        },
        loss_weights={"priority": 1.0, "department": 0.2},
    )
    x = {"title": titles, "body": bodies, "tags": tags}
    y = {"priority": priorities, "department": departments}
    train.fit(model, x, y, batch_size=BATCH, shuffle=False)
    return variables_of(model, model.optimizer)


# -- recommendations ------------------------------------------------------------------------------


def movie_ratings(train):
    """Embeddings of users and movies, whose products are contracted over both axes: over the batch, too."""
    rng = np.random.default_rng(6)
    x = np.stack([rng.integers(0, 7, COUNT), rng.integers(0, 9, COUNT)], 1)

    class Recommender(keras.Model):
        def __init__(self, users, movies, size=4):
            super().__init__()
            decay = keras.regularizers.l2(1e-3)
            self.users = layers.Embedding(users, size, "he_normal", embeddings_regularizer=decay)
            self.user_bias = layers.Embedding(users, 1)
            self.movies = layers.Embedding(movies, size, "he_normal", embeddings_regularizer=decay)
            self.movie_bias = layers.Embedding(movies, 1)

        def call(self, inputs):
            users, movies = inputs[:, 0], inputs[:, 1]
            product = ops.tensordot(self.users(users), self.movies(movies), 2)
            return ops.nn.sigmoid(product + self.user_bias(users) + self.movie_bias(movies))

    model = Recommender(7, 9)
    model.compile(loss=keras.losses.BinaryCrossentropy(), optimizer=keras.optimizers.Adam(0.001))
    train.fit(model, x, rng.random(COUNT), batch_size=BATCH, shuffle=False)
    return variables_of(model, model.optimizer)


# -- graphs ---------------------------------------------------------------------------------------

NODES, EDGES = 20, 60


def graph(seed=8):
    """Features of the nodes, edges with both ends, and a class for each node."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(NODES, 5)), rng.integers(0, NODES, (2, EDGES)), rng.integers(0, 3, NODES)


def graph_convolution(train):
    """All nodes pass messages along the edges; the examples of a batch are the numbers of some nodes."""
    features, edges, classes = graph()

    def network(width):
        return keras.Sequential([layers.Dropout(0.0), layers.Dense(width, "gelu")])

    class Convolution(layers.Layer):
        def __init__(self, width):
            super().__init__()
            self.prepare, self.update = network(width), network(width)

        def call(self, inputs):
            nodes, edges, weights = inputs
            messages = self.prepare(tf.gather(nodes, edges[1])) * tf.expand_dims(weights, -1)
            received = tf.math.unsorted_segment_mean(messages, edges[0], num_segments=NODES)
            return tf.nn.l2_normalize(self.update(tf.concat([nodes, received], 1)), axis=-1)

    class Classifier(keras.Model):
        def __init__(self):
            super().__init__()
            self.features, self.edges = tf.constant(features), tf.constant(edges)
            self.weights_of_edges = tf.ones(EDGES, tf.float64) / EDGES
            self.before, self.after = network(6), network(6)
            self.normal = layers.BatchNormalization(synchronized=True)
            self.convolutions = [Convolution(6), Convolution(6)]
            self.out = layers.Dense(3)

        def call(self, numbers):
            x = self.before(self.normal(self.features))
            for convolution in self.convolutions:
                x = x + convolution((x, self.edges, self.weights_of_edges))
            return self.out(tf.gather(self.after(x), numbers))

    model = Classifier()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=[keras.metrics.SparseCategoricalAccuracy(name="acc")])
    train.fit(model, np.arange(NODES), classes, batch_size=7, shuffle=False)
    return variables_of(model, model.optimizer)


def graph_attention(train):
    """Neighbours count as much as a softmax over the edges says; a training step of its own."""
    features, edges, classes = graph(9)

    class Attention(layers.Layer):
        def __init__(self, width):
            super().__init__()
            self.width = width

        def build(self, shape):
            self.kernel = self.add_weight(shape=(shape[0][-1], self.width), initializer="glorot_uniform", name="kernel")
            self.scores = self.add_weight(shape=(2 * self.width, 1), initializer="glorot_uniform", name="scores")

        def call(self, inputs):
            nodes, edges = inputs
            nodes = tf.matmul(nodes, self.kernel)
            pairs = tf.reshape(tf.gather(nodes, edges), (-1, 2 * self.width))
            scores = tf.squeeze(tf.nn.leaky_relu(tf.matmul(pairs, self.scores)), -1)
            scores = tf.exp(tf.clip_by_value(scores, -2, 2))
            sums = tf.math.unsorted_segment_sum(scores, edges[:, 0], tf.reduce_max(edges[:, 0]) + 1)
            shares = scores / tf.gather(sums, edges[:, 0])
            neighbours = tf.gather(nodes, edges[:, 1]) * shares[:, None]
            return tf.math.unsorted_segment_sum(neighbours, edges[:, 0], tf.shape(nodes)[0])

    class Network(keras.Model):
        def __init__(self):
            super().__init__()
            self.nodes, self.edges = tf.constant(features), tf.constant(edges.T)
            self.before, self.out = layers.Dense(6, activation="relu"), layers.Dense(3)
            self.attentions = [Attention(6) for _ in range(2)]

        def call(self, inputs):
            nodes, edges = inputs
            x = self.before(nodes)
            for attention in self.attentions:
                x = attention([x, edges]) + x
            return self.out(x)

        def train_step(self, data):
            indices, labels = data
            with tf.GradientTape() as tape:
                outputs = tf.gather(self([self.nodes, self.edges]), indices)
                loss = self.compiled_loss_of(labels, outputs)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
            self.accuracy.update_state(labels, outputs)
            return {"loss": loss, "accuracy": self.accuracy.result()}

        compiled_loss_of = staticmethod(keras.losses.SparseCategoricalCrossentropy(from_logits=True))

        @property
        def metrics(self):
            return [self.accuracy]

    model = Network()
    model.accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
    model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9))
    train.fit(model, np.arange(NODES), classes, batch_size=7, shuffle=False)
    return variables_of(model, model.optimizer)
