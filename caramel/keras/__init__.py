"""What `caramel.fit` is made of: the training step of a Keras model, its metrics, its callbacks, its epochs."""
