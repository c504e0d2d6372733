"""What is left of TensorFlow's messages."""

import pytest
import tensorflow as tf

from caramel.runtime.executor import caramel_error

WITH_REQUEST = 'RunStep cancelled by a peer. {}   session_handle: "2722" feed {{ tensor_content: "x" }}'


@pytest.mark.parametrize("mark", ["goo.gle/debugonly", "goo.gle/debugstr", ""])
def test_no_request_with_all_that_was_fed(mark):
    error = tf.errors.AbortedError(None, None, WITH_REQUEST.format(mark))
    said = str(caramel_error(error, "in a step"))
    assert (
        "cancelled by a peer." in said and "feed" not in said and "goo.gle" not in said and "session_handle" not in said
    )


def test_all_else_of_the_line_stays():
    error = tf.errors.InvalidArgumentError(None, None, "assertion failed: [x] [1 2]\n\t [[{{node Assert}}]]")
    assert str(caramel_error(error, "")) == "the program failed in op 'Assert': assertion failed: [x] [1 2]"


def test_a_step_that_is_sent_again_is_no_cause():
    """TensorFlow says so once a worker is lost; what is lost is said beside it."""
    message = "The same RunCallable (Master) request was received twice. request { x: 1 }"
    said = str(caramel_error(tf.errors.AbortedError(None, None, message), "in a step"))
    assert said.startswith("a worker cannot be reached any more. Start what is gone once more")
