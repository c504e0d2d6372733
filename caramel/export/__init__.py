"""Export: a directory that trains with TensorFlow alone."""
