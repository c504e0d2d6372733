"""Arrays of tensors of every kind."""

import numpy as np
import pytest
import tensorflow as tf

from caramel.util.arrays import array_of, same_values

DTYPES = [tf.float32, tf.bfloat16, tf.float16, tf.int64, tf.bool, tf.complex64, tf.string]


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (0,)])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_of_a_tensor(dtype, shape):
    ones = np.ones(shape)
    tensor = tf.fill(shape, "text") if dtype is tf.string else tf.constant(ones.astype(dtype.as_numpy_dtype))
    array = array_of(tensor)
    assert isinstance(array, np.ndarray)
    assert array.shape == shape and array.dtype == dtype.as_numpy_dtype
    np.testing.assert_array_equal(array, tensor.numpy())


def test_of_an_array_and_a_variable():
    array = np.zeros(())
    assert array_of(array) is array
    assert array_of(tf.Variable(3.0, dtype=tf.bfloat16).read_value()) == 3


def test_a_large_tensor_is_not_copied():
    tensor = tf.ones(1000)
    assert np.shares_memory(array_of(tensor), array_of(tensor))


@pytest.mark.parametrize("dtype", ["float32", tf.bfloat16.as_numpy_dtype, "complex64"])
def test_what_is_no_number_is_equal_to_itself(dtype):
    values = np.array([1.0, np.nan]).astype(dtype)
    assert same_values(values, values.copy()) and not same_values(values, np.array([1.0, 2.0]).astype(dtype))


@pytest.mark.parametrize("dtype", [object, "S4", "U4"])
def test_texts_are_compared_as_texts(dtype):
    texts = np.array(["a", "b"]).astype(dtype)
    assert same_values(texts, texts.copy()) and not same_values(texts, np.array(["a", "c"]).astype(dtype))
