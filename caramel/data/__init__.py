"""Training inputs from tf.data: from the user's dataset to a pipeline that runs on every worker."""
