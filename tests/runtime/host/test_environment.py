"""What a process that just runs graphs loads."""

import gc
import subprocess
import sys

import pytest
from variants import in_soak

from caramel.runtime.host.environment import child_environment, load_tensorflow

CODE = """
import gc, sys
from caramel.runtime.host.environment import load_tensorflow

tf = load_tensorflow()
assert callable(tf.distribute.Server) and load_tensorflow() is tf
print(*set(sys.modules) & set("tensorflow keras sklearn matplotlib".split()))
assert gc.isenabled() and gc.get_freeze_count() > 100_000
{then}
print(*Dense(2)(tf.ones([3, 4])).shape)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "then",
    [
        *in_soak("from keras.layers import Dense", "from tensorflow.keras.layers import Dense"),
        "Dense = tf.keras.layers.Dense; tf.optimizers.Adam",
    ],
)
def test_tensorflow_comes_without_keras_until_somebody_wants_it(then):
    command = [sys.executable, "-c", CODE.format(then=then)]
    done = subprocess.run(command, capture_output=True, text=True, env=child_environment(), timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["tensorflow", "3", "2"]


def test_tensorflow_that_is_loaded_already_stays_as_it_is():
    import tensorflow

    before = dict(sys.modules), gc.get_freeze_count()
    assert load_tensorflow() is tensorflow
    assert (dict(sys.modules), gc.get_freeze_count()) == before
