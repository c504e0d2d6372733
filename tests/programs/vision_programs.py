"""Images: classes, files, transfer, segmentation, distances, and what a pipeline makes of images."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from program_common import BATCH, COUNT, images, variables_of

# -- classes --------------------------------------------------------------------------------------


def image_classifier(train):
    """A small convolutional network on arrays."""
    x, y = images()
    model = keras.Sequential(
        [
            keras.Input(x.shape[1:]),
            layers.Conv2D(4, 3, activation="relu"),
            layers.BatchNormalization(synchronized=True),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dropout(0.0),
            layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    train.fit(model, x, y, batch_size=BATCH, epochs=1, shuffle=False)
    return variables_of(model, model.optimizer)


def files_of_images(folder, count=COUNT):
    """PNGs in one folder for each class; their paths and classes."""
    pixels, labels = images(count)
    paths = []
    for number, (image, label) in enumerate(zip(pixels, labels)):
        path = folder / f"class{label}" / f"{number:02}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(tf.io.encode_png(tf.cast(image * 255, tf.uint8)).numpy())
        paths.append(str(path))
    return paths, labels


def image_files(train):
    """A pipeline that reads, decodes and resizes files."""
    paths, labels = files_of_images(train.folder)

    def load(path, label):
        image = tf.io.decode_png(tf.io.read_file(path), channels=1)
        return tf.image.resize(tf.image.convert_image_dtype(image, tf.float32), (6, 6)), label

    data = tf.data.Dataset.from_tensor_slices((paths, labels)).shuffle(COUNT, seed=5)
    data = data.map(load, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH).prefetch(tf.data.AUTOTUNE)
    model = keras.Sequential(
        [keras.Input((6, 6, 1)), layers.Conv2D(3, 3, activation="relu"), layers.Flatten(), layers.Dense(3)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.RMSprop(1e-3), loss=loss, metrics=["accuracy"])
    train.fit(model, data, epochs=1)
    return variables_of(model, model.optimizer)


def transfer_learning(train):
    """A head on a frozen base, then all of it with a small learning rate; images from folders."""
    files_of_images(train.folder)
    options = {"image_size": (8, 8), "color_mode": "grayscale", "batch_size": BATCH}
    data = keras.utils.image_dataset_from_directory(train.folder, seed=2, **options)
    base = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(4, 3, activation="relu"),
            layers.BatchNormalization(synchronized=True),
            layers.Conv2D(4, 3, activation="relu"),
        ]
    )
    base.trainable = False
    inputs = keras.Input((8, 8, 1))
    x = base(layers.Rescaling(1 / 255)(inputs), training=False)
    outputs = layers.Dense(3)(layers.Dropout(0.0)(layers.GlobalAveragePooling2D()(x)))
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    train.fit(model, data, epochs=1)

    base.trainable = True
    model.compile(keras.optimizers.Adam(1e-4), loss, metrics=["accuracy"])
    train.fit(model, data, epochs=1)
    return variables_of(model, model.optimizer)


# -- a class for each pixel -----------------------------------------------------------------------


def segmentation(train):
    """Down and up again, with connections across: a class for each pixel."""
    x, _ = images(channels=3)
    y = (x.mean(-1, keepdims=True) > 0.5).astype("int32") + (x[..., :1] > 0.8)

    inputs = keras.Input(x.shape[1:])
    first = layers.Activation("relu")(
        layers.BatchNormalization(synchronized=True)(layers.Conv2D(4, 3, padding="same")(inputs))
    )
    down = layers.MaxPooling2D(3, strides=2, padding="same")(first)
    down = layers.SeparableConv2D(6, 3, padding="same")(down)
    down = layers.Activation("relu")(layers.BatchNormalization(synchronized=True)(down))
    up = layers.Conv2DTranspose(4, 3, strides=2, padding="same", activation="relu")(down)
    up = layers.Concatenate()([up, first])
    up = layers.Add()(
        [layers.Conv2DTranspose(4, 3, padding="same")(up), layers.UpSampling2D(2)(layers.Conv2D(4, 1)(down))]
    )
    model = keras.Model(inputs, layers.Conv2D(3, 3, activation="softmax", padding="same")(up))
    metrics = ["accuracy", keras.metrics.MeanIoU(3, sparse_y_pred=False)]
    model.compile(keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy", metrics=metrics)

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return -(-COUNT // BATCH)

        def __getitem__(self, index):
            examples = slice(index * BATCH, (index + 1) * BATCH)
            return x[examples], y[examples]

    train.fit(model, Batches(), epochs=1, shuffle=False)
    return variables_of(model, model.optimizer)


# -- distances ------------------------------------------------------------------------------------


def metric_learning(train):
    """Each anchor should be nearest to its own positive, of all in the batch."""
    classes, steps = 8, 3
    x, y = images(60, channels=3, classes=4)

    class Pairs(keras.utils.PyDataset):
        def __len__(self):
            return steps

        def __getitem__(self, index):
            rng = np.random.default_rng(index)
            places = [rng.choice(np.flatnonzero(y == label % 4), 2, replace=False) for label in range(classes)]
            first, second = np.array(places).T
            return x[first], x[second]

    class Embedder(keras.Model):
        def train_step(self, data):
            anchors, positives = data
            with tf.GradientTape() as tape:
                similarities = (
                    tf.einsum("ae,pe->ap", self(anchors, training=True), self(positives, training=True)) / 0.2
                )
                labels = tf.range(tf.shape(anchors)[0])
                loss = self.compute_loss(y=labels, y_pred=similarities)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
            for metric in self.metrics:
                if metric.name == "loss":
                    metric.update_state(loss)
                else:
                    metric.update_state(labels, similarities)
            return {metric.name: metric.result() for metric in self.metrics}

    inputs = keras.Input((8, 8, 3))
    hidden = layers.GlobalAveragePooling2D()(layers.Conv2D(8, 3, strides=2, activation="relu")(inputs))
    model = Embedder(inputs, layers.UnitNormalization()(layers.Dense(4)(hidden)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=[keras.metrics.SparseCategoricalAccuracy()])
    train.fit(model, Pairs(), epochs=1)
    return variables_of(model, model.optimizer)


def siamese_network(train):
    """Anchors nearer to positives than to negatives, by a margin; one network for all three."""
    x, y = images(60)
    rng = np.random.default_rng(4)
    triplets = [(a, rng.choice(np.flatnonzero(y == y[a])), rng.choice(np.flatnonzero(y != y[a]))) for a in range(COUNT)]
    data = tf.data.Dataset.zip(tuple(tf.data.Dataset.from_tensor_slices(x[list(p)]) for p in zip(*triplets)))
    data = data.batch(BATCH).prefetch(2)

    class Distances(layers.Layer):
        def call(self, anchor, positive, negative):
            return (
                keras.ops.sum(keras.ops.square(anchor - positive), -1),
                keras.ops.sum(keras.ops.square(anchor - negative), -1),
            )

    class Siamese(keras.Model):
        def __init__(self, network, margin=0.5):
            super().__init__()
            self.network, self.margin = network, margin
            self.tracker = keras.metrics.Mean(name="loss")

        def call(self, inputs):
            return self.network(inputs)

        def loss_of(self, data):
            near, far = self.network(data)
            return tf.maximum(near - far + self.margin, 0.0)

        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = self.loss_of(data)
            gradients = tape.gradient(loss, self.network.trainable_weights)
            self.optimizer.apply_gradients(zip(gradients, self.network.trainable_weights))
            self.tracker.update_state(loss)
            return {"loss": self.tracker.result()}

        @property
        def metrics(self):
            return [self.tracker]

    embedding = keras.Sequential(
        [keras.Input(x.shape[1:]), layers.Conv2D(4, 3, activation="relu"), layers.Flatten(), layers.Dense(4)]
    )
    inputs = [keras.Input(x.shape[1:], name=name) for name in ("anchor", "positive", "negative")]
    model = Siamese(keras.Model(inputs, Distances()(*(embedding(i) for i in inputs))))
    model.compile(optimizer=keras.optimizers.Adam(1e-3))
    train.fit(model, data, epochs=1)
    return variables_of(model, model.optimizer)


# -- what a pipeline does -------------------------------------------------------------------------


def augmentation(train):
    """Keras' random layers in the pipeline."""
    x, y = images()
    random = keras.Sequential(
        [
            layers.RandomFlip("horizontal", seed=1),
            layers.RandomContrast(0.2, seed=2),
            layers.RandomBrightness(0.2, value_range=(0, 1), seed=3),
        ]
    )
    data = tf.data.Dataset.from_tensor_slices((x.astype("float32"), y)).batch(BATCH)
    data = data.map(lambda images, labels: (random(images, training=True), labels)).prefetch(2)
    model = keras.Sequential(
        [keras.Input(x.shape[1:]), layers.Conv2D(4, 3, activation="relu"), layers.GlobalMaxPooling2D(), layers.Dense(3)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True), loss, metrics=["accuracy"])
    train.fit(model, data, epochs=1)
    return variables_of(model, model.optimizer)


def mixup(train):
    """Two shuffles of the same examples, mixed by shares from a beta distribution."""
    x, y = images()
    y = keras.utils.to_categorical(y, 3)
    both = [tf.data.Dataset.from_tensor_slices((x, y)).shuffle(COUNT, seed=s).batch(BATCH) for s in (1, 2)]

    def mixed(first, second):
        size = tf.shape(first[0])[0]
        one, other = (tf.random.gamma([size], 0.4, seed=s, dtype=first[0].dtype) for s in (3, 4))
        share = one / (one + other)
        by_image = tf.reshape(share, (size, 1, 1, 1))
        by_label = tf.cast(tf.reshape(share, (size, 1)), second[1].dtype)
        return (
            first[0] * by_image + second[0] * (1 - by_image),
            first[1] * by_label + second[1] * (1 - by_label),
        )

    data = tf.data.Dataset.zip(tuple(both)).map(mixed)
    model = keras.Sequential(
        [keras.Input(x.shape[1:]), layers.Flatten(), layers.Dense(8, "relu"), layers.Dense(3, "softmax")]
    )
    model.compile(
        optimizer="adam", loss=keras.losses.CategoricalCrossentropy(label_smoothing=0.1), metrics=["accuracy"]
    )
    train.fit(model, data, epochs=1)
    return variables_of(model, model.optimizer)
