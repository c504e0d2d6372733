"""Computation that takes time and no processor, as on an accelerator: a block of ops is an op that sleeps.

An accelerator computes one block after the other, in the order in which they are ready: each holds a lock meanwhile.

An element of a `tf.data` pipeline that sleeps is such an op, in TensorFlow as it is. It needs an iterator, which a step
that this library captures cannot have. So a step has a mark instead, an op that checks a scalar, and whoever starts a
graph for it replaces the marks. Peers that run no graph of this library have the sleeping op itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

Sleep = Callable[[Any, Any, float, bool], Any]
"""TensorFlow, a scalar that is waited for, seconds, whether no other block can be ready meanwhile -> a scalar that is
there so much later."""

WOKEN_S = 0.0003
"""So much longer than it was asked to takes a sleep: the kernel wakes a thread late, and another thread goes on."""

MARK = re.compile(r"computed elsewhere for (\d+) us(, one block at a time)?")
"""The message of a mark."""

_LANE = "accelerator"

_ELEMENT: dict[str, Any] = {"output_types": ["float32"], "output_shapes": [[]]}


def asked_us(time_s: float) -> int:
    """Microseconds that a block of so many seconds is asked to sleep."""
    return max(round((time_s - WOKEN_S) * 1e6), 1)


def marked(tf: Any, after: Any, time_s: float, is_alone: bool) -> Any:
    """A mark, for graphs that are started on `Accelerated` hosts; see `Sleep`."""
    order = "" if is_alone else ", one block at a time"
    return tf.raw_ops.CheckNumerics(tensor=after, message=f"computed elsewhere for {asked_us(time_s)} us{order}")


def slept(tf: Any, after: Any, time_s: float, is_alone: bool) -> Any:
    """The sleeping op; see `Sleep`."""
    return sleep_for(tf, after, asked_us(time_s), is_alone)


def sleep_for(tf: Any, after: Any, time_us: int, is_alone: bool) -> Any:
    """The sleeping op of so many microseconds; see `Sleep`. A lock takes processor time, where it has nothing to do."""
    iterator = tf.raw_ops.OneShotIterator(dataset_factory=_factory(tf, time_us), **_ELEMENT)
    if is_alone:
        with tf.control_dependencies([after]):
            return tf.raw_ops.IteratorGetNext(iterator=iterator, **_ELEMENT)[0]
    lane = tf.raw_ops.MutexV2(shared_name=_LANE)
    with tf.control_dependencies([after]):
        lock = tf.raw_ops.MutexLock(mutex=lane)
    with tf.control_dependencies([lock]):
        element = tf.raw_ops.IteratorGetNext(iterator=iterator, **_ELEMENT)[0]
    with tf.control_dependencies([element]):
        unlocked = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
    with tf.control_dependencies([unlocked]):
        return tf.identity(element)


def _factory(tf: Any, time_us: int) -> Any:
    """A function that makes a pipeline whose every element takes so long, and none of them before it is asked for."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    options.experimental_optimization.inject_prefetch = False
    serialized = options._to_proto().SerializeToString()

    def make() -> Any:
        element = tf.raw_ops.TensorDataset(components=[tf.constant(0.0)], output_shapes=[[]])
        endless = tf.raw_ops.RepeatDataset(input_dataset=element, count=-1, **_ELEMENT)
        slow = tf.raw_ops.SleepDataset(
            input_dataset=endless, sleep_microseconds=tf.constant(time_us, "int64"), **_ELEMENT
        )
        return tf.raw_ops.OptionsDataset(input_dataset=slow, serialized_options=serialized, **_ELEMENT)

    return tf.function(make).get_concrete_function()
