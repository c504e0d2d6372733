"""What workers have counted in a metric, as one device would have."""

import keras
import numpy as np
import pytest

from caramel.keras.metrics import _SummedVariable
from caramel.model import VariableClass


@pytest.mark.parametrize("kind", [VariableClass.TOTAL, VariableClass.STATISTICS])
def test_infinite_counts_stay_infinite(kind):
    """Also where a worker without an example of its own computed with the one that is infinite."""
    variable = keras.Variable(1.0)
    counted = _SummedVariable(variable, "count_0", kind)
    counted.reset()
    other = 0.0 if kind is VariableClass.TOTAL else 1.0
    for states, examples in (([np.inf, other + 2.0], [1, 1]), ([np.inf, np.inf], [1, 0]), ([np.inf, np.inf], [1, 1])):
        counted.after([np.float32(state) for state in states], examples)
        assert variable.numpy() == np.inf
    counted.reset()


@pytest.mark.parametrize("kind", [VariableClass.TOTAL, VariableClass.STATISTICS])
def test_an_example_that_another_worker_has_does_not_count(kind):
    variable = keras.Variable(1.0)
    counted = _SummedVariable(variable, "count_0", kind)
    counted.reset()
    other = 0.0 if kind is VariableClass.TOTAL else 1.0
    counted.after([np.float32(3.0), np.float32(other + 5.0)], [2, 2])
    assert variable.numpy() == 8.0
    counted.after([np.float32(4.0), np.float32(other + 6.0)], [1, 0])
    assert variable.numpy() == 9.0
