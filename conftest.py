"""For all tests, doctests included: one thread inside an op, and no state left of TensorFlow and Keras.

TensorFlow has one pool of such threads for all sessions of a process, as large as the first session
asks for. Results that are compared bit for bit need the same number in every process, so it is fixed here.
"""

import os
import sys

import pytest

os.environ["TF_NUM_INTRAOP_THREADS"] = "1"


def _forget():
    tensorflow, keras = sys.modules.get("tensorflow"), sys.modules.get("keras")
    if tensorflow is not None:
        tensorflow.random.set_seed(None)  # one for the process; it changes even shuffles with a seed of their own
    if keras is not None:
        keras.backend.clear_session(free_memory=False)  # names, and the policy that it made from an earlier floatx


@pytest.fixture(autouse=True)
def _nothing_left():
    """What is global in TensorFlow and Keras is as in a fresh process, whatever ran before."""
    _forget()
    yield
    _forget()
