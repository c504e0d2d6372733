"""For the tests of `caramel.fit`: what they share is importable, and Keras' iterators end with their test."""

import gc
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # under --import-mode=importlib no directory is on the path


@pytest.fixture(autouse=True)
def _iterators_end():
    """Keras leaves its iterators to the garbage collector, where TensorFlow waits for the end of each.

    The thread that tunes an iterator may miss that it should end, and then sleeps on: about as long as it has lived, at
    most a minute.
    """
    yield
    gc.collect()
