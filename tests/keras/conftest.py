"""For the tests of `caramel.fit`: Keras' iterators end with their test."""

import gc

import keras
import pytest


@pytest.fixture(autouse=True)
def _iterators_end():
    """Keras leaves its iterators to the garbage collector, where TensorFlow waits for the end of each.

    The thread that tunes an iterator may miss that it should end, and then sleeps on: about as long as it has lived, at
    most a minute.
    """
    yield
    gc.collect()


@pytest.fixture
def double():
    """Losses and metrics of float64, too, so that rounding hides no difference."""
    keras.config.set_floatx("float64")
    yield
    keras.config.set_floatx("float32")
