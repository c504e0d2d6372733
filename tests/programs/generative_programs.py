"""Autoencoders, adversaries and diffusion. What a program would draw at random comes with its data, or counts 0 times."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from program_common import BATCH, COUNT, images, v1, variables_of

LATENT = 3


def with_latents(*shapes, seed=0, **options):
    """A dataset of images, and of normal numbers of each shape."""
    rng = np.random.default_rng(seed)
    arrays = [images(**options)[0] * 2 - 1, *(rng.normal(size=(COUNT, *shape)) for shape in shapes)]
    return tf.data.Dataset.from_tensor_slices(tuple(arrays)).batch(BATCH)


# -- autoencoders ---------------------------------------------------------------------------------


class Sampling(layers.Layer):
    """A normal distribution around a mean; here without its noise."""

    def __init__(self, **options):
        super().__init__(**options)
        self.seed = keras.random.SeedGenerator(5)

    def call(self, inputs):
        mean, log_variance = inputs
        noise = keras.random.normal(tf.shape(mean), seed=self.seed, dtype=mean.dtype)
        return mean + tf.exp(0.5 * log_variance) * noise * 0.0


def variational_autoencoder(train):
    """Reconstruction, and a divergence from the normal distribution."""

    class VAE(keras.Model):
        def __init__(self, encoder, decoder):
            super().__init__()
            self.encoder, self.decoder = encoder, decoder
            self.trackers = [keras.metrics.Mean(name=name) for name in ("loss", "reconstruction_loss", "kl_loss")]

        @property
        def metrics(self):
            return self.trackers

        def train_step(self, data):
            with tf.GradientTape() as tape:
                mean, log_variance, z = self.encoder(data)
                entropies = keras.losses.binary_crossentropy(data, self.decoder(z))
                reconstruction = tf.reduce_mean(tf.reduce_sum(entropies, axis=(1, 2)))
                divergences = -0.5 * (1 + log_variance - tf.square(mean) - tf.exp(log_variance))
                divergence = tf.reduce_mean(tf.reduce_sum(divergences, axis=1))
                total = reconstruction + divergence
            gradients = tape.gradient(total, self.trainable_weights)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_weights))
            for tracker, value in zip(self.trackers, (total, reconstruction, divergence)):
                tracker.update_state(value)
            return {tracker.name: tracker.result() for tracker in self.trackers}

    x, _ = images()
    inputs = keras.Input(x.shape[1:])
    hidden = layers.Conv2D(4, 3, activation="relu", strides=2, padding="same")(inputs)
    hidden = layers.Dense(5, activation="relu")(layers.Flatten()(hidden))
    mean, log_variance = layers.Dense(LATENT, name="mean")(hidden), layers.Dense(LATENT, name="log_variance")(hidden)
    encoder = keras.Model(inputs, [mean, log_variance, Sampling()([mean, log_variance])])
    latent = keras.Input((LATENT,))
    hidden = layers.Reshape((4, 4, 2))(layers.Dense(32, activation="relu")(latent))
    decoder = keras.Model(latent, layers.Conv2DTranspose(1, 3, strides=2, activation="sigmoid", padding="same")(hidden))
    model = VAE(encoder, decoder)
    model.compile(optimizer=keras.optimizers.Adam())
    train.fit(model, x, epochs=1, batch_size=BATCH, shuffle=False)
    return variables_of(model, model.optimizer)


def vector_quantization(train):
    """Codes from a table of its own, with `add_loss` for table and encoder."""

    class Quantizer(layers.Layer):
        def __init__(self, codes, width, beta=0.25):
            super().__init__()
            self.codes, self.width, self.beta = codes, width, beta

        def build(self, shape):
            self.table = self.add_weight(shape=(self.width, self.codes), initializer="uniform", name="table")

        def call(self, x):
            flat = tf.reshape(x, [-1, self.width])
            distances = (
                tf.reduce_sum(flat**2, 1, True) + tf.reduce_sum(self.table**2, 0) - 2 * tf.matmul(flat, self.table)
            )
            chosen = tf.one_hot(tf.argmin(distances, 1), self.codes, dtype=x.dtype)
            codes = tf.reshape(tf.matmul(chosen, self.table, transpose_b=True), tf.shape(x))
            commitment = tf.reduce_mean((tf.stop_gradient(codes) - x) ** 2)
            codebook = tf.reduce_mean((codes - tf.stop_gradient(x)) ** 2)
            self.add_loss(self.beta * commitment + codebook)
            return x + tf.stop_gradient(codes - x)

    class Trainer(keras.Model):
        def __init__(self, network, variance):
            super().__init__()
            self.network, self.variance = network, variance
            self.trackers = [keras.metrics.Mean(name=name) for name in ("loss", "reconstruction_loss", "vq_loss")]

        @property
        def metrics(self):
            return self.trackers

        def train_step(self, x):
            with tf.GradientTape() as tape:
                reconstruction = tf.reduce_mean((x - self.network(x)) ** 2) / self.variance
                total = reconstruction + sum(self.network.losses)
            gradients = tape.gradient(total, self.network.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.network.trainable_variables))
            for tracker, value in zip(self.trackers, (total, reconstruction, sum(self.network.losses))):
                tracker.update_state(value)
            return {tracker.name: tracker.result() for tracker in self.trackers}

    x, _ = images()
    inputs = keras.Input(x.shape[1:])
    codes = Quantizer(6, 3)(layers.Conv2D(3, 3, strides=2, padding="same")(inputs))
    network = keras.Model(inputs, layers.Conv2DTranspose(1, 3, strides=2, padding="same")(codes))
    model = Trainer(network, np.var(x))
    model.compile(optimizer=keras.optimizers.Adam())
    train.fit(model, x, epochs=1, batch_size=BATCH, shuffle=False)
    return variables_of(model, model.optimizer)


# -- adversaries ----------------------------------------------------------------------------------


def small_critic(activation=None):
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(4, 3, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Flatten(),
            layers.Dropout(0.0),
            layers.Dense(1, activation=activation),
        ]
    )


def small_generator():
    return keras.Sequential(
        [
            keras.Input((LATENT,)),
            layers.Dense(4 * 4 * 3, use_bias=False),
            layers.BatchNormalization(synchronized=True),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Reshape((4, 4, 3)),
            layers.Conv2DTranspose(1, 4, strides=2, padding="same", activation="tanh"),
        ]
    )


def dcgan(train):
    """A discriminator of real and made images in one batch, and a generator that misleads it."""

    class GAN(keras.Model):
        def __init__(self, discriminator, generator):
            super().__init__()
            self.discriminator, self.generator = discriminator, generator
            self.trackers = [keras.metrics.Mean(name="d_loss"), keras.metrics.Mean(name="g_loss")]

        def compile(self, d_optimizer, g_optimizer, loss_fn):
            super().compile()
            self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

        @property
        def metrics(self):
            return self.trackers

        def train_step(self, data):
            real, latents, more = data
            size = tf.shape(real)[0]
            made = self.generator(latents)
            both = tf.concat([made, real], axis=0)
            labels = tf.concat([tf.ones((size, 1)), tf.zeros((size, 1))], axis=0)
            labels += 0.0 * tf.random.uniform(tf.shape(labels))
            with tf.GradientTape() as tape:
                d_loss = self.loss_fn(labels, self.discriminator(both))
            gradients = tape.gradient(d_loss, self.discriminator.trainable_weights)
            self.d_optimizer.apply_gradients(zip(gradients, self.discriminator.trainable_weights))

            misleading = tf.zeros((size, 1))
            with tf.GradientTape() as tape:
                g_loss = self.loss_fn(misleading, self.discriminator(self.generator(more)))
            gradients = tape.gradient(g_loss, self.generator.trainable_weights)
            self.g_optimizer.apply_gradients(zip(gradients, self.generator.trainable_weights))
            for tracker, value in zip(self.trackers, (d_loss, g_loss)):
                tracker.update_state(value)
            return {tracker.name: tracker.result() for tracker in self.trackers}

    model = GAN(small_critic("sigmoid"), small_generator())
    optimizers = [keras.optimizers.Adam(1e-3, beta_1=0.5) for _ in range(2)]
    model.compile(*optimizers, keras.losses.BinaryCrossentropy())
    train.fit(model, with_latents((LATENT,), (LATENT,)), epochs=1)
    return variables_of(model, *optimizers)


def wasserstein_gan(train):
    """A critic with a penalty on its gradient by mixed images; two of its steps for each of the generator."""

    class WGAN(keras.Model):
        def __init__(self, critic, generator, extra_steps=2, weight=10.0):
            super().__init__()
            self.critic, self.generator = critic, generator
            self.extra_steps, self.weight = extra_steps, weight

        def compile(self, d_optimizer, g_optimizer, d_loss_fn, g_loss_fn):
            super().compile()
            self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer
            self.d_loss_fn, self.g_loss_fn = d_loss_fn, g_loss_fn

        def penalty(self, size, real, made):
            share = 0.5 + 0.0 * tf.random.uniform([size, 1, 1, 1], 0.0, 1.0, dtype=real.dtype)
            mixed = real + share * (made - real)
            with tf.GradientTape() as tape:
                tape.watch(mixed)
                scores = self.critic(mixed, training=True)
            gradients = tape.gradient(scores, [mixed])[0]
            norms = tf.sqrt(tf.reduce_sum(tf.square(gradients), axis=[1, 2, 3]))
            return tf.reduce_mean((norms - 1.0) ** 2)

        def train_step(self, data):
            real, latents = data
            size = tf.shape(real)[0]
            for step in range(self.extra_steps):
                with tf.GradientTape() as tape:
                    made = self.generator(latents[:, step], training=True)
                    scores = [self.critic(x, training=True) for x in (made, real)]
                    cost = self.d_loss_fn(real=scores[1], made=scores[0])
                    d_loss = cost + self.penalty(size, real, made) * self.weight
                gradients = tape.gradient(d_loss, self.critic.trainable_variables)
                self.d_optimizer.apply_gradients(zip(gradients, self.critic.trainable_variables))
            with tf.GradientTape() as tape:
                g_loss = self.g_loss_fn(self.critic(self.generator(latents[:, -1], training=True), training=True))
            gradients = tape.gradient(g_loss, self.generator.trainable_variables)
            self.g_optimizer.apply_gradients(zip(gradients, self.generator.trainable_variables))
            return {"d_loss": d_loss, "g_loss": g_loss}

    model = WGAN(small_critic(), small_generator())
    optimizers = [keras.optimizers.Adam(2e-3, beta_1=0.5, beta_2=0.9) for _ in range(2)]
    model.compile(
        *optimizers,
        lambda real, made: tf.reduce_mean(made) - tf.reduce_mean(real),
        lambda made: -tf.reduce_mean(made),
    )
    train.fit(model, with_latents((3, LATENT)), epochs=1)
    return variables_of(model, *optimizers)


def adversaries_of_tensorflow_1(train):
    """Placeholders, scopes, and a training op for each of two lists of variables."""

    def dense(x, units, name):
        kernel = v1.get_variable(f"{name}/kernel", [x.shape[1], units], tf.float64, v1.glorot_uniform_initializer())
        return tf.matmul(x, kernel) + v1.get_variable(f"{name}/bias", [units], tf.float64, v1.zeros_initializer())

    def generator(z):
        with v1.variable_scope("generator", reuse=v1.AUTO_REUSE):
            return dense(tf.nn.relu(dense(z, 6, "hidden")), 4, "out")

    def discriminator(x):
        with v1.variable_scope("discriminator", reuse=v1.AUTO_REUSE):
            return dense(tf.nn.relu(dense(x, 6, "hidden")), 1, "out")

    def build():
        v1.set_random_seed(2)
        x = v1.placeholder(tf.float64, [None, 4], name="x")
        z = v1.placeholder(tf.float64, [None, LATENT], name="z")
        real, made = discriminator(x), discriminator(generator(z))
        entropy = tf.nn.sigmoid_cross_entropy_with_logits
        d_loss = tf.reduce_mean(entropy(labels=tf.ones_like(real), logits=real))
        d_loss += tf.reduce_mean(entropy(labels=tf.zeros_like(made), logits=made))
        g_loss = tf.reduce_mean(entropy(labels=tf.ones_like(made), logits=made))
        pairs = []
        for scope, loss in (("discriminator", d_loss), ("generator", g_loss)):
            optimizer = v1.train.AdamOptimizer(1e-2, beta1=0.5, name=f"Adam_{scope}")
            pairs.append((optimizer, optimizer.compute_gradients(loss, v1.trainable_variables(scope))))
        with tf.control_dependencies([gradient for _, found in pairs for gradient, _ in found]):
            train_op = tf.group(*(optimizer.apply_gradients(found) for optimizer, found in pairs))
        return d_loss, train_op

    rng = np.random.default_rng(3)
    batches = [
        {"x:0": rng.normal(1, 1, (size, 4)), "z:0": rng.normal(size=(size, LATENT))} for size in (BATCH, BATCH, 10)
    ]
    return train.graph(build, batches)


# -- diffusion ------------------------------------------------------------------------------------


def diffusion(train):
    """A network that tells the noise in an image from the image and a time; an average of its weights follows it."""
    times = 20

    def network():
        image, time = keras.Input((8, 8, 1)), keras.Input((), dtype="int64")
        embedded = layers.Dense(4, activation="swish")(layers.Embedding(times, 6)(time))
        hidden = layers.Conv2D(4, 3, padding="same")(image)
        hidden = layers.Activation("swish")(layers.GroupNormalization(groups=2)(hidden))
        hidden = layers.Add()([hidden, layers.Reshape((1, 1, 4))(embedded)])
        down = layers.Conv2D(4, 3, strides=2, padding="same")(hidden)
        attended = layers.Reshape((4, 4, 4))(layers.Attention()([layers.Reshape((16, 4))(down)] * 2))
        up = layers.Concatenate()([layers.UpSampling2D(2, interpolation="nearest")(attended), hidden])
        return keras.Model([image, time], layers.Conv2D(1, 3, padding="same", kernel_initializer="zeros")(up))

    class Diffusion(keras.Model):
        def __init__(self, network, average, momentum=0.9):
            super().__init__()
            self.network, self.average, self.momentum = network, average, momentum
            kept = np.cumprod(1 - np.linspace(1e-3, 0.3, times))
            self.image_share, self.noise_share = tf.constant(np.sqrt(kept)), tf.constant(np.sqrt(1 - kept))

        def train_step(self, data):
            images, noise, t = data
            size = tf.shape(images)[0]
            with tf.GradientTape() as tape:
                shares = [tf.reshape(tf.gather(s, t), [size, 1, 1, 1]) for s in (self.image_share, self.noise_share)]
                predicted = self.network([shares[0] * images + shares[1] * noise, t], training=True)
                loss = self.loss(noise, predicted)
            gradients = tape.gradient(loss, self.network.trainable_weights)
            self.optimizer.apply_gradients(zip(gradients, self.network.trainable_weights))
            for weight, average in zip(self.network.weights, self.average.weights):
                average.assign(self.momentum * average + (1 - self.momentum) * weight)
            return {"noise_loss": loss}

    first, average = network(), network()
    average.set_weights(first.get_weights())
    model = Diffusion(first, average)
    model.compile(loss=keras.losses.MeanSquaredError(), optimizer=keras.optimizers.Adam(learning_rate=1e-3))
    drawn = tf.data.Dataset.from_tensor_slices(np.random.default_rng(4).integers(0, times, COUNT)).batch(BATCH)
    data = tf.data.Dataset.zip((with_latents((8, 8, 1)), drawn)).map(lambda pair, t: (*pair, t))
    train.fit(model, data, epochs=1)
    return variables_of(model, model.optimizer)
