"""Running a graph several times at once, for somebody who is interrupted."""

import time
from concurrent.futures import Future

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from caramel.runtime.executor import SessionExecutor


def test_runs_after_an_interrupt_wait_for_those_before_it(monkeypatch):
    """What still runs could take an element of data that was made anew meanwhile."""
    seen = []

    def slowly(number):
        time.sleep(float(number))  # one thread is free before the other
        seen.append(int(number))
        return number

    with tf.Graph().as_default() as graph:
        for number in range(4):
            source = tf.constant(number) if number > 1 else tf.numpy_function(slowly, [number], tf.int32)
            made = tf.numpy_function(lambda n: seen.append(int(n)) or n, [source], tf.int32) if number > 1 else source
            tf.identity(made, name=f"number_{number}")
    executor = SessionExecutor(graph.as_graph_def(), "", config_pb2.ConfigProto())
    first, second = ([([f"number_{number}:0"], [], {}) for number in numbers] for numbers in ((0, 1), (2, 3)))
    result = Future.result

    def interrupted(self, *arguments):
        monkeypatch.setattr(Future, "result", result)
        raise KeyboardInterrupt

    monkeypatch.setattr(Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        executor.run_each(first, 60.0)
    np.testing.assert_equal(executor.run_each(second, 60.0), [[2], [3]])
    assert sorted(seen[:2]) == [0, 1] and sorted(seen[2:]) == [2, 3]
    executor.close()
