"""What a process that just runs graphs loads."""

import subprocess
import sys

import pytest

from caramel.runtime.environment import child_environment

CODE = """
import gc, sys
from caramel.runtime.environment import load_tensorflow

tf = load_tensorflow()
assert callable(tf.distribute.Server) and load_tensorflow() is tf
print(*{name.partition(".")[0] for name in sys.modules} & {"tensorflow", "keras", "sklearn", "matplotlib"})
assert gc.isenabled() and gc.get_freeze_count() > 100_000
import keras
print(*tf.keras.layers.Dense(2)(tf.ones([3, 4])).shape, keras.__name__)
"""


@pytest.mark.slow
def test_tensorflow_comes_without_keras_until_somebody_wants_it():
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, env=child_environment(), timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["tensorflow", "3", "2", "keras"]


def test_tensorflow_that_is_loaded_already_stays_as_it_is():
    code = "import sys, tensorflow; from caramel.runtime.environment import load_tensorflow as f; print(f() is tensorflow, 'keras' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=child_environment(), timeout=120
    )
    assert done.stdout.split() == ["True", "True"], done.stderr
