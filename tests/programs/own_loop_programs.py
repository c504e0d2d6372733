"""Training steps and loops of one's own, options of optimizers, and rewards."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from program_common import BATCH, COUNT, batched, images, variables_of

FEATURES, CLASSES = 5, 3


def table(seed=0):
    """Features and classes."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(COUNT, FEATURES))
    return x, np.argmax(x[:, :CLASSES], 1)


def network(*hidden):
    return keras.Sequential([keras.Input((FEATURES,)), *hidden, layers.Dense(8, "tanh"), layers.Dense(CLASSES)])


# -- Keras ----------------------------------------------------------------------------------------


def accumulated_gradients(train):
    """An optimizer that applies the sum of two steps' gradients, clips them, and averages the weights."""
    x, y = table(2)
    model = network(layers.Dropout(0.0))
    optimizer = keras.optimizers.Adam(
        1e-2, gradient_accumulation_steps=2, global_clipnorm=0.5, use_ema=True, ema_momentum=0.9
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["sparse_categorical_accuracy"])
    train.fit(model, x, y, batch_size=BATCH, epochs=2, shuffle=False)
    return variables_of(model, optimizer)


def mixed_precision(train):
    """Layers of float16, variables of float32 and a scaled loss."""
    x, y = images()
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        inputs = keras.Input((8, 8, 1))
        hidden = layers.Dense(8, activation="relu")(layers.Flatten()(layers.Conv2D(4, 3, activation="relu")(inputs)))
        model = keras.Model(inputs, layers.Activation("softmax", dtype="float32")(layers.Dense(3)(hidden)))
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"])
        train.fit(model, x.astype("float32"), y, batch_size=BATCH, shuffle=False)
    finally:
        keras.mixed_precision.set_global_policy("float64")
    return variables_of(model, model.optimizer)


# -- loops ----------------------------------------------------------------------------------------


def own_loop(train):
    """A step with penalties of weights, and a metric that counts in it."""
    model = network(layers.Dense(6, "relu", kernel_regularizer="l2"))
    optimizer = keras.optimizers.Adam(1e-2)
    optimizer.build(model.trainable_variables)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    accuracy = keras.metrics.SparseCategoricalAccuracy()

    def step(x, y):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = loss_fn(y, logits)
            loss += sum(model.losses)
        gradients = tape.gradient(loss, model.trainable_weights)
        optimizer.apply_gradients(zip(gradients, model.trainable_weights))
        accuracy.update_state(y, logits)
        return loss

    train.steps(step, batched(*table(3)))
    return [*variables_of(model, optimizer), *accuracy.variables]


def penalty_of_activity(train):
    """A mean, as Keras' losses compute it, and what a regulariser adds up over the batch."""
    model = network()
    optimizer = keras.optimizers.SGD(0.05)
    optimizer.build(model.trainable_variables)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    penalty = keras.regularizers.L2(1e-2)

    def step(x, y):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = loss_fn(y, logits) + penalty(logits)
        gradients = tape.gradient(loss, model.trainable_weights)
        optimizer.apply_gradients(zip(gradients, model.trainable_weights))
        return loss

    train.steps(step, batched(*table(9)))
    return variables_of(model, optimizer)


# -- rewards --------------------------------------------------------------------------------------


def actor_critic(train):
    """A policy that follows its advantages, normalised over the batch, and a critic that estimates returns."""
    rng = np.random.default_rng(5)
    inputs = keras.Input((FEATURES,))
    common = layers.Dense(8, activation="relu")(inputs)
    model = keras.Model(inputs, [layers.Dense(CLASSES)(common), layers.Dense(1)(common)])
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    huber = keras.losses.Huber(reduction="sum")

    def step(states, actions, returns):
        returns = (returns - tf.math.reduce_mean(returns)) / (tf.math.reduce_std(returns) + 1e-7)
        with tf.GradientTape() as tape:
            logits, values = model(states, training=True)
            values = tf.squeeze(values, 1)
            advantages = returns - tf.stop_gradient(values)
            chosen = tf.gather_nd(tf.nn.log_softmax(logits), actions[:, None], batch_dims=1)
            entropy = -tf.reduce_sum(tf.nn.softmax(logits) * tf.nn.log_softmax(logits))
            loss = -tf.reduce_sum(chosen * advantages) + huber(values[:, None], returns[:, None]) - 0.01 * entropy
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    data = (
        rng.normal(size=(COUNT, FEATURES)),
        rng.integers(0, CLASSES, COUNT),
        rng.normal(size=COUNT) + np.arange(COUNT),
    )
    train.steps(step, batched(*data))
    return variables_of(model, optimizer)


def proximal_policy(train):
    """Ratios of probabilities that are clipped; advantages normalised over the batch; two optimizers."""
    rng = np.random.default_rng(6)
    actor, critic = network(), keras.Sequential([keras.Input((FEATURES,)), layers.Dense(8, "tanh"), layers.Dense(1)])
    optimizers = [keras.optimizers.Adam(3e-3), keras.optimizers.Adam(1e-2)]
    for optimizer, model in zip(optimizers, (actor, critic)):
        optimizer.build(model.trainable_variables)

    def step(states, actions, old, advantages, returns):
        mean, variance = tf.nn.moments(advantages, 0)
        advantages = (advantages - mean) / tf.sqrt(variance + 1e-8)
        with tf.GradientTape() as tape:
            new = tf.reduce_sum(tf.one_hot(actions, CLASSES, dtype=old.dtype) * tf.nn.log_softmax(actor(states)), 1)
            ratio = tf.exp(new - old)
            limited = tf.where(advantages > 0, 1.2 * advantages, 0.8 * advantages)
            policy_loss = -tf.reduce_mean(tf.minimum(ratio * advantages, limited))
        optimizers[0].apply_gradients(
            zip(tape.gradient(policy_loss, actor.trainable_variables), actor.trainable_variables)
        )
        with tf.GradientTape() as tape:
            value_loss = tf.reduce_mean((returns - tf.squeeze(critic(states), 1)) ** 2)
        optimizers[1].apply_gradients(
            zip(tape.gradient(value_loss, critic.trainable_variables), critic.trainable_variables)
        )
        return policy_loss

    numbers = rng.normal(size=(3, COUNT)) + np.arange(COUNT) / 10
    data = rng.normal(size=(COUNT, FEATURES)), rng.integers(0, CLASSES, COUNT), -np.abs(numbers[0]), *numbers[1:]
    train.steps(step, batched(*data))
    return variables_of(actor, critic, *optimizers)


def deep_q_network(train):
    """Rewards to come, by a copy of the network that follows every second step; examples have weights."""
    rng = np.random.default_rng(7)
    model, target = network(), network()
    target.set_weights(model.get_weights())
    optimizer = keras.optimizers.Adam(2.5e-3, clipnorm=1.0)
    optimizer.build(model.trainable_variables)
    loss_fn = keras.losses.Huber()

    def step(states, actions, rewards, following, done, weights):
        wanted = rewards + 0.99 * tf.reduce_max(target(following), 1) * (1 - done)
        with tf.GradientTape() as tape:
            chosen = tf.reduce_sum(model(states) * tf.one_hot(actions, CLASSES, dtype=states.dtype), 1)
            loss = loss_fn(wanted[:, None], chosen[:, None], sample_weight=weights)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        if optimizer.iterations % 2 == 0:
            for mine, theirs in zip(target.variables, model.variables):
                mine.assign(theirs)
        return loss

    states, following = rng.normal(size=(2, COUNT, FEATURES))
    rewards, weights = rng.random((2, COUNT))
    done = (rng.random(COUNT) < 0.2).astype("float64")
    train.steps(step, batched(states, rng.integers(0, CLASSES, COUNT), rewards, following, done, weights))
    return variables_of(model, target, optimizer)


def transitions(train):
    """A training step of a model's own that takes batches of four parts."""

    class Learner(keras.Model):
        def __init__(self):
            super().__init__()
            self.network = network()

        def train_step(self, data):
            states, actions, rewards, following = data
            wanted = rewards + 0.9 * tf.reduce_max(tf.stop_gradient(self.network(following)), 1)
            with tf.GradientTape() as tape:
                chosen = tf.reduce_sum(self.network(states) * tf.one_hot(actions, CLASSES, dtype=states.dtype), 1)
                loss = tf.reduce_mean(tf.square(wanted - chosen))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
            return {"error": loss}

    rng = np.random.default_rng(10)
    states, following = rng.normal(size=(2, COUNT, FEATURES))
    parts = states, rng.integers(0, CLASSES, COUNT), rng.random(COUNT), following
    model = Learner()
    model.compile(optimizer=keras.optimizers.Adam(1e-2))
    train.fit(model, tf.data.Dataset.from_tensor_slices(parts).batch(BATCH))
    return variables_of(model, model.optimizer)
