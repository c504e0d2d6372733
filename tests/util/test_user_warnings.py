"""Warnings name the line of the user's that has called the library."""

import os

import keras
import numpy as np
import pytest

import caramel
from caramel.util.user_warnings import warn_user


def test_a_warning_of_this_very_line():
    with pytest.warns(UserWarning, match="said") as told:
        warn_user("said")
    assert os.path.samefile(told[0].filename, __file__)


def compiled():
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def batches():
    while True:
        yield np.ones([2, 2], np.float32), np.ones([2, 1], np.float32)


CALLS = {
    "fit": lambda: caramel.fit(compiled(), batches(), workers=1, steps_per_epoch=1, verbose=0),
    "evaluate": lambda: caramel.evaluate(compiled(), batches(), workers=1, steps=1, verbose=0),
    "predict": lambda: caramel.predict(compiled(), batches(), workers=1, steps=1, verbose=0),
}


@pytest.mark.parametrize("call", CALLS)
def test_warnings_from_deep_in_the_library(call):
    with pytest.warns(UserWarning, match="the batches are made in this process") as told:
        CALLS[call]()
    (file,) = {each.filename for each in told if "the batches are made" in str(each.message)}
    assert os.path.samefile(file, __file__)
