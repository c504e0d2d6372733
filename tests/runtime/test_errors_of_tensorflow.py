"""What is left of TensorFlow's messages."""

import pytest
import tensorflow as tf

from caramel.runtime.executor import caramel_error

WITH_REQUEST = 'The same RunCallable (Master) request was received twice. {}   session_handle: "2722" feed {{ tensor_content: "x" }}'


@pytest.mark.parametrize("mark", ["goo.gle/debugonly", "goo.gle/debugstr", ""])
def test_no_request_with_all_that_was_fed(mark):
    error = tf.errors.AbortedError(None, None, WITH_REQUEST.format(mark))
    said = str(caramel_error(error, "in a step"))
    assert "received twice." in said and "feed" not in said and "goo.gle" not in said and "session_handle" not in said


def test_all_else_of_the_line_stays():
    error = tf.errors.InvalidArgumentError(None, None, "assertion failed: [x] [1 2]\n\t [[{{node Assert}}]]")
    assert str(caramel_error(error, "")) == "the program failed in op 'Assert': assertion failed: [x] [1 2]"
