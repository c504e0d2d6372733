"""Shared by all tests: quiet TensorFlow, and no state of Keras from one test to the next."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
