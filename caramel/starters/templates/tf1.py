"""A graph of TensorFlow 1: placeholders, variables, minimize. It learns a function of three numbers.

On one device:                    python $file
By the command, on two workers:   caramel run $file:program --steps 200 --workers 2
"""

import numpy as np
import tensorflow.compat.v1 as tf

BATCH = 64  # examples in a step of all workers together


def examples(count, seed):
    """Change this: inputs and targets, the examples in front."""
    rng = np.random.default_rng(seed)
    inputs = rng.uniform(-1, 1, size=(count, 3)).astype(np.float32)
    return inputs, np.sin(2 * inputs[:, 0]) + inputs[:, 1] * inputs[:, 2]


def program():
    """Change this: build your graph of one device, as before. The command finds variables and training op in it."""
    tf.set_random_seed(1)
    x = tf.placeholder(tf.float32, [None, 3], name="x")
    y = tf.placeholder(tf.float32, [None], name="y")
    with tf.variable_scope("hidden"):
        kernel = tf.get_variable("kernel", [3, 32], initializer=tf.random_normal_initializer(seed=1))
        bias = tf.get_variable("bias", [32], initializer=tf.zeros_initializer())
        hidden = tf.tanh(tf.matmul(x, kernel) + bias)
    with tf.variable_scope("output"):
        kernel = tf.get_variable("kernel", [32, 1], initializer=tf.glorot_uniform_initializer(seed=2))
        predicted = tf.squeeze(tf.matmul(hidden, kernel), 1)
    loss = tf.reduce_mean(tf.square(predicted - y), name="loss")
    step = tf.train.get_or_create_global_step()
    train_op = tf.train.MomentumOptimizer(0.02, 0.9).minimize(loss, global_step=step)

    def batches():
        inputs, targets = examples(1024, seed=1)
        for start in range(0, len(inputs), BATCH):
            yield {x: inputs[start : start + BATCH], y: targets[start : start + BATCH]}

    inputs, targets = examples(256, seed=2)
    error = tf.reduce_mean(tf.abs(predicted - y))
    return {
        "data": batches,  # a function: it is called anew for each pass over the data
        "evaluation": {"outputs": {"error": error}, "data": {x: inputs, y: targets}},
        "loss": loss,
        "train_op": train_op,
    }


def main(epochs=12):
    """Train on one device; the last loss and the error."""
    with tf.Graph().as_default():
        parts = program()
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for _ in range(epochs):
                for batch in parts["data"]():
                    loss, _ = session.run([parts["loss"], parts["train_op"]], batch)
            evaluation = parts["evaluation"]
            return float(loss), float(session.run(evaluation["outputs"]["error"], evaluation["data"]))


if __name__ == "__main__":
    last, error = main()
    print(f"loss {last:.4f}, error {error:.4f}")
