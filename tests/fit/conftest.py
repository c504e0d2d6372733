"""Makes what the tests share importable: under --import-mode=importlib no directory is on the path."""

import sys
from pathlib import Path

import keras
import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _keras_forgets():
    """Keras keeps the policy that it made from a test's floatx, whatever floatx is later."""
    yield
    keras.backend.clear_session()
