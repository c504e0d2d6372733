"""The network of digits_keras.py as a TensorFlow 1 program: placeholders, get_variable, minimize.

Run it alone on one device:            python examples/digits_tf1.py
The same file on 4 workers:            caramel run examples/digits_tf1.py:build --workers 4 --steps 300
"""

import tensorflow.compat.v1 as tf

import digits

tf.disable_v2_behavior()  # reference variables and control flow as they were then

BATCH = 96


def convolution(name, inputs, filters, padding):
    """A 3 x 3 convolution with ReLU."""
    with tf.variable_scope(name):
        kernel = tf.get_variable(
            "kernel", [3, 3, inputs.shape[3], filters], initializer=tf.glorot_uniform_initializer()
        )
        bias = tf.get_variable("bias", [filters], initializer=tf.zeros_initializer())
        return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(inputs, kernel, strides=1, padding=padding), bias))


def dense(name, inputs, units):
    """A dense layer."""
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [inputs.shape[1], units], initializer=tf.glorot_uniform_initializer())
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
        return tf.matmul(inputs, kernel) + bias


def build():
    """Build the graph of one device."""
    tf.set_random_seed(1)
    train, test = digits.load()
    x = tf.placeholder(tf.float32, [None, 8, 8, 1], name="images")
    y = tf.placeholder(tf.int64, [None], name="labels")
    hidden = convolution("conv1", x, 32, "SAME")
    hidden = convolution("conv2", hidden, 32, "VALID")
    hidden = tf.nn.max_pool2d(hidden, 2, 2, "VALID")
    hidden = tf.nn.relu(dense("dense1", tf.reshape(hidden, [-1, 3 * 3 * 32]), 128))
    logits = dense("dense2", hidden, 10)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits), name="loss")
    accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32), name="accuracy")
    step = tf.train.get_or_create_global_step()
    rate = tf.train.exponential_decay(2e-3, step, 100, 0.9)
    train_op = tf.train.AdamOptimizer(rate).minimize(loss, global_step=step)

    def batches():
        for images, labels in digits.batches(*train, BATCH):
            yield {x: images, y: labels}

    return {
        "data": batches,
        "evaluation": {"outputs": {"accuracy": accuracy}, "data": {x: test[0], y: test[1]}},
        "loss": loss,
        "train_op": train_op,
    }


def main(steps=300):
    """Train on one device; returns the losses and the test accuracy."""
    with tf.Graph().as_default():
        parts = build()
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            losses = [
                float(session.run([parts["loss"], parts["train_op"]], batch)[0])
                for batch, _ in zip(parts["data"](), range(steps))
            ]
            evaluation = parts["evaluation"]
            return losses, float(session.run(evaluation["outputs"]["accuracy"], evaluation["data"]))


if __name__ == "__main__":
    found, result = main()
    print(f"loss {found[0]:.4f} -> {found[-1]:.4f}, test accuracy {result:.2%}")
