"""A training step of your own: a network of plain variables learns a function of three numbers.

On one device:                    python $file
By the command, on two workers:   caramel run $file:program --steps 200 --workers 2
"""

import numpy as np
import tensorflow as tf

BATCH = 64  # examples in a step of all workers together
RATE = 0.1


def examples(count, seed):
    """Change this: inputs and targets, the examples in front."""
    rng = np.random.default_rng(seed)
    inputs = rng.uniform(-1, 1, size=(count, 3)).astype(np.float32)
    return inputs, np.sin(2 * inputs[:, 0]) + inputs[:, 1] * inputs[:, 2]


def batches():
    """Batches of one pass over the data; the command starts it again as often as needed."""
    inputs, targets = examples(1024, seed=1)
    for start in range(0, len(inputs), BATCH):
        yield inputs[start : start + BATCH], targets[start : start + BATCH]


def program():
    """The training program of one device: variables, a step, and what to report at the end."""
    initial = tf.random.stateless_normal([3, 32], seed=[1, 2])
    hidden = tf.Variable(initial, name="hidden")
    bias = tf.Variable(tf.zeros([32]), name="bias")
    output = tf.Variable(tf.random.stateless_normal([32], seed=[3, 4]) / 6, name="output")
    variables = [hidden, bias, output]

    def predict(inputs):
        """Change this: what the network says of each example."""
        return tf.linalg.matvec(tf.tanh(inputs @ hidden + bias), output)

    @tf.function
    def step(inputs, targets):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((predict(inputs) - targets) ** 2)
        for variable, gradient in zip(variables, tape.gradient(loss, variables)):
            variable.assign_sub(RATE * gradient)  # or an optimizer's apply_gradients
        return loss

    @tf.function
    def evaluate(inputs, targets):
        return {"error": tf.reduce_mean(tf.abs(predict(inputs) - targets))}

    specs = [tf.TensorSpec([None, 3]), tf.TensorSpec([None])]  # one for each argument; None: the number of examples
    return {
        "step": step,
        "inputs": specs,
        "data": batches,
        "evaluation": {"function": evaluate, "inputs": specs, "data": examples(256, seed=2)},
    }


def main(epochs=12):
    """Train on one device; the last loss and the error."""
    parts = program()
    for _ in range(epochs):
        for batch in parts["data"]():
            loss = parts["step"](*batch)
    return float(loss), float(parts["evaluation"]["function"](*parts["evaluation"]["data"])["error"])


if __name__ == "__main__":
    last, error = main()
    print(f"loss {last:.4f}, error {error:.4f}")
