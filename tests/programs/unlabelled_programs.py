"""Networks that learn from other networks, or from two views of an image."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from program_common import BATCH, images, variables_of


def encoder(width=5, side=8):
    return keras.Sequential(
        [
            keras.Input((side, side, 1)),
            layers.Conv2D(4, 3, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(width),
        ]
    )


def two_views():
    """A dataset of pairs of views."""
    pixels, _ = images()
    rng = np.random.default_rng(1)
    views = [pixels + 0.1 * rng.normal(size=pixels.shape) for _ in range(2)]
    return tf.data.Dataset.zip(tuple(tf.data.Dataset.from_tensor_slices(v).batch(BATCH) for v in views))


def distillation(train):
    """A small network imitates a larger one, and learns the classes."""

    class Distiller(keras.Model):
        def __init__(self, student, teacher):
            super().__init__()
            self.student, self.teacher = student, teacher

        def compile(self, optimizer, metrics, student_loss, distillation_loss, alpha=0.1, temperature=3):
            super().compile(optimizer=optimizer, metrics=metrics)
            self.student_loss, self.distillation_loss = student_loss, distillation_loss
            self.alpha, self.temperature = alpha, temperature

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, allow_empty=False, training=True):
            taught = self.teacher(x, training=False)
            own = self.student_loss(y, y_pred)
            soft = [ops.softmax(logits / self.temperature, axis=1) for logits in (taught, y_pred)]
            return self.alpha * own + (1 - self.alpha) * self.distillation_loss(*soft) * self.temperature**2

        def call(self, x):
            return self.student(x)

    x, y = images()
    teacher = keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), layers.Dense(9, "relu"), layers.Dense(3)])
    teacher.trainable = False
    model = Distiller(encoder(3), teacher)
    model.compile(
        keras.optimizers.Adam(),
        [keras.metrics.SparseCategoricalAccuracy()],
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        keras.losses.KLDivergence(),
    )
    train.fit(model, x, y, epochs=1, batch_size=BATCH, shuffle=False)
    return variables_of(model, model.optimizer)


def simclr(train):
    """Two views of an image are alike, of all in the batch; a linear probe learns classes of some images."""

    class Contrastive(keras.Model):
        def __init__(self):
            super().__init__()
            self.temperature = 0.2
            self.encoder = encoder()
            self.head = keras.Sequential([keras.Input((5,)), layers.Dense(5, activation="relu"), layers.Dense(5)])
            self.probe = keras.Sequential([keras.Input((5,)), layers.Dense(3)])

        def compile(self, contrastive_optimizer, probe_optimizer):
            super().compile()
            self.contrastive_optimizer, self.probe_optimizer = contrastive_optimizer, probe_optimizer
            self.probe_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            self.trackers = [keras.metrics.Mean(name="c_loss"), keras.metrics.Mean(name="p_loss")]
            self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="p_acc")

        @property
        def metrics(self):
            return [*self.trackers, self.accuracy]

        def contrastive_loss(self, first, second):
            first, second = ops.normalize(first, axis=1), ops.normalize(second, axis=1)
            similarities = ops.matmul(first, ops.transpose(second)) / self.temperature
            labels = ops.arange(ops.shape(first)[0])
            each = keras.losses.sparse_categorical_crossentropy
            found = [each(labels, s, from_logits=True) for s in (similarities, ops.transpose(similarities))]
            return ops.mean(ops.concatenate(found, axis=0))

        def train_step(self, data):
            first, second, labels = data
            with tf.GradientTape() as tape:
                loss = self.contrastive_loss(*(self.head(self.encoder(x, training=True)) for x in (first, second)))
            variables = self.encoder.trainable_weights + self.head.trainable_weights
            self.contrastive_optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            with tf.GradientTape() as tape:
                logits = self.probe(self.encoder(first, training=False))
                probe_loss = self.probe_loss(labels, logits)
            variables = self.probe.trainable_weights
            self.probe_optimizer.apply_gradients(zip(tape.gradient(probe_loss, variables), variables))
            self.accuracy.update_state(labels, logits)
            for tracker, value in zip(self.trackers, (loss, probe_loss)):
                tracker.update_state(value)
            return {metric.name: metric.result() for metric in self.metrics}

    labels = tf.data.Dataset.from_tensor_slices(images()[1]).batch(BATCH)
    model = Contrastive()
    optimizers = [keras.optimizers.Adam(), keras.optimizers.Adam()]
    model.compile(*optimizers)
    train.fit(model, tf.data.Dataset.zip((two_views(), labels)).map(lambda views, y: (*views, y)), epochs=1)
    return variables_of(model, *optimizers)


def nt_xent(train):
    """All views of a batch in one matrix of similarities, in which none is its own negative."""
    model = encoder()
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)

    def step(first, second):
        with tf.GradientTape() as tape:
            z = tf.math.l2_normalize(model(tf.concat([first, second], 0), training=True), 1)
            size = tf.shape(first)[0]
            logits = tf.matmul(z, z, transpose_b=True) / 0.5
            logits -= 1e9 * tf.eye(2 * size, dtype=logits.dtype)
            labels = tf.concat([tf.range(size, 2 * size), tf.range(size)], 0)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    train.steps(step, [tuple(view.numpy() for view in views) for views in two_views()])
    return variables_of(model, optimizer)


def barlow_twins(train):
    """The features of two views correlate over the batch, each with itself alone."""

    class Twins(keras.Model):
        def __init__(self):
            super().__init__()
            self.encoder = keras.Sequential([encoder(), layers.BatchNormalization(synchronized=True), layers.Dense(4)])
            self.tracker = keras.metrics.Mean(name="loss")

        @property
        def metrics(self):
            return [self.tracker]

        def train_step(self, data):
            with tf.GradientTape() as tape:
                first, second = (self.encoder(view, training=True) for view in data)
                size = tf.cast(tf.shape(first)[0], first.dtype)
                normal = [(z - tf.reduce_mean(z, 0)) / tf.math.reduce_std(z, 0) for z in (first, second)]
                correlations = tf.matmul(normal[0], normal[1], transpose_a=True) / size
                on = tf.reduce_sum(tf.square(tf.linalg.diag_part(correlations) - 1))
                off = tf.reduce_sum(tf.square(correlations - tf.linalg.diag(tf.linalg.diag_part(correlations))))
                loss = on + 5e-3 * off
            gradients = tape.gradient(loss, self.encoder.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.encoder.trainable_variables))
            self.tracker.update_state(loss)
            return {"loss": self.tracker.result()}

    model = Twins()
    model.compile(optimizer=keras.optimizers.Adam(1e-3))
    train.fit(model, two_views(), epochs=1)
    return variables_of(model, model.optimizer)


def decorrelated_features(train):
    """Two views have the same features, and no feature goes with another over the batch."""
    model = encoder()
    optimizer = keras.optimizers.SGD(0.05)
    optimizer.build(model.trainable_variables)

    def step(first, second):
        with tf.GradientTape() as tape:
            one, other = model(first, training=True), model(second, training=True)
            products = tf.matmul(one, one, transpose_a=True) / tf.cast(tf.shape(one)[0], one.dtype)
            between = products * (1 - tf.eye(5, dtype=one.dtype))
            loss = tf.reduce_mean(tf.square(one - other)) + 0.1 * tf.reduce_sum(tf.square(between))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    train.steps(step, [tuple(view.numpy() for view in views) for views in two_views()])
    return variables_of(model, optimizer)


def byol(train):
    """A predictor of what a slower copy of the network says of the other view."""

    class Bootstrap(keras.Model):
        def __init__(self):
            super().__init__()
            self.online, self.target, self.predictor = encoder(), encoder(), layers.Dense(5)
            self.predictor.build((None, 5))
            self.target.set_weights(self.online.get_weights())
            self.target.trainable = False
            self.tracker = keras.metrics.Mean(name="loss")

        @property
        def metrics(self):
            return [self.tracker]

        def train_step(self, data):
            first, second = data
            with tf.GradientTape() as tape:
                loss = 0.0
                for one, other in ((first, second), (second, first)):
                    predicted = tf.math.l2_normalize(self.predictor(self.online(one, training=True)), -1)
                    wanted = tf.stop_gradient(tf.math.l2_normalize(self.target(other, training=True), -1))
                    loss += tf.reduce_mean(2 - 2 * tf.reduce_sum(predicted * wanted, -1))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
            for slow, fast in zip(self.target.variables, self.online.variables):
                slow.assign(0.95 * slow + 0.05 * fast)
            self.tracker.update_state(loss)
            return {metric.name: metric.result() for metric in self.metrics}

    model = Bootstrap()
    model.compile(optimizer=keras.optimizers.Lion(1e-3))
    train.fit(model, two_views(), epochs=1)
    return variables_of(model, model.optimizer)


def nearest_neighbours(train):
    """The positive of an image is its nearest neighbour in a queue of what earlier batches have given."""

    class Neighbours(keras.Model):
        def __init__(self, length=20):
            super().__init__()
            self.encoder = encoder()
            start = np.random.default_rng(2).normal(size=(length, 5))
            self.queue = keras.Variable(start / np.linalg.norm(start, axis=1, keepdims=True), trainable=False)
            self.tracker = keras.metrics.Mean(name="loss")

        @property
        def metrics(self):
            return [self.tracker]

        def nearest(self, z):
            similarities = ops.matmul(z, ops.transpose(self.queue))
            return z + ops.stop_gradient(ops.take(self.queue, ops.argmax(similarities, 1), axis=0) - z)

        def train_step(self, data):
            with tf.GradientTape() as tape:
                first, second = (ops.normalize(self.encoder(view, training=True), axis=1) for view in data)
                logits = ops.matmul(self.nearest(first), ops.transpose(second)) / 0.1
                labels = ops.arange(ops.shape(first)[0])
                loss = ops.mean(keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True))
            gradients = tape.gradient(loss, self.encoder.trainable_weights)
            self.optimizer.apply_gradients(zip(gradients, self.encoder.trainable_weights))
            size = ops.shape(first)[0]
            self.queue.assign(ops.concatenate([first, self.queue[:-size]], axis=0))
            self.tracker.update_state(loss)
            return {"loss": self.tracker.result()}

    model = Neighbours()
    model.compile(optimizer=keras.optimizers.Adam())
    train.fit(model, two_views(), epochs=1)
    return variables_of(model, model.optimizer)
