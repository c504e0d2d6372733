"""Texts of small program files."""

STEP = """
    import numpy as np
    import tensorflow as tf

    def build():
        w = tf.Variable(tf.zeros([3]), name="w")

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
            w.assign_sub(0.01 * tape.gradient(loss, w))
            return loss

        batch = np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 1]], np.ones(5, np.float32)
        return {"step": step, "inputs": [tf.TensorSpec([None, 3]), tf.TensorSpec([None])], "data": [batch]}
"""
"""A step of least squares on one batch of five examples."""
