"""What ``python -m benchmarks.device`` times: steps of this library and of MirroredStrategy on the same devices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from benchmarks.device_programs import Sizes, program

OURS, ALONE = "Caramel", "one device"
"""This library on all devices, and on the first one alone."""

MIRRORED, MIRRORED_HUB = "MirroredStrategy", "MirroredStrategy, reduced on one device"
"""TensorFlow's strategy as it comes, and with the reduction that needs no collective ops."""

CONTENDERS = (OURS, ALONE, MIRRORED, MIRRORED_HUB)

_WARM_UP_STEPS = 3

Turn = Callable[[int], float]
"""Number of steps -> seconds that they took, waited for."""


@contextmanager
def _session(name: str, sizes: Sizes, devices: Sequence[str]) -> Iterator[Turn]:
    """Steps of this library."""
    import tensorflow as tf

    import caramel

    one = program(name, sizes, dropout=0.1)
    (batch,) = one.batches(1, sizes.examples)
    context = caramel.capture(tf.function(one.step), one.inputs)
    with caramel.ARModel(context, len(devices), device_list=devices).session() as session:

        def turn(steps: int) -> float:
            begin_s = time.perf_counter()
            for _ in range(steps):
                loss = session.step(*batch).loss
            _check(loss)
            return time.perf_counter() - begin_s

        yield turn


@contextmanager
def _mirrored(name: str, sizes: Sizes, devices: Sequence[str], is_hub: bool) -> Iterator[Turn]:
    """Steps of MirroredStrategy, which gets each batch from the host, as this library does."""
    import tensorflow as tf

    options = {"cross_device_ops": tf.distribute.ReductionToOneDevice()} if is_hub else {}
    strategy = tf.distribute.MirroredStrategy([device.removeprefix("/") for device in devices], **options)
    with strategy.scope():
        one = program(name, sizes, dropout=0.1)
    (batch,) = one.batches(1, sizes.examples)
    parts = [np.split(array, len(devices)) for array in batch]

    def replica_step(x: Any, label: Any) -> Any:
        trained = one.model.trainable_variables
        with tf.GradientTape() as tape:
            loss = one.loss(label, one.model(x, training=True)) / len(devices)
        one.optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained))
        return loss

    def on_all(x: Any, label: Any) -> Any:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(replica_step, args=(x, label)), axis=None)

    step = tf.function(on_all)

    def part(array: Sequence[np.ndarray], context: Any) -> Any:
        rank = context.replica_id_in_sync_group
        with tf.device(devices[rank]):
            return tf.constant(array[rank])

    def turn(steps: int) -> float:
        begin_s = time.perf_counter()
        for _ in range(steps):
            given = [
                strategy.experimental_distribute_values_from_function(lambda context, array=array: part(array, context))
                for array in parts
            ]
            loss = step(*given)
        _check(float(loss))
        tf.test.experimental.sync_devices()
        return time.perf_counter() - begin_s

    yield turn


def _check(loss: float) -> None:
    if not np.isfinite(loss):
        raise ValueError(f"the loss is {loss}")


def measure(
    name: str, sizes: Sizes, devices: Sequence[str], contenders: Sequence[str], say: Callable[[str], None]
) -> dict[str, Any]:
    """The seconds of a step in each round; contenders take turns.

    Args:
        name: of a network.
        sizes: of what is trained.
        devices: of the workers.
        contenders: some of `CONTENDERS`.
        say: told when a contender is ready.
    """
    makers = {
        OURS: lambda: _session(name, sizes, devices),
        ALONE: lambda: _session(name, sizes, devices[:1]),
        MIRRORED: lambda: _mirrored(name, sizes, devices, is_hub=False),
        MIRRORED_HUB: lambda: _mirrored(name, sizes, devices, is_hub=True),
    }
    with ExitStack() as opened:
        turns: dict[str, Turn] = {}
        for contender in contenders:
            turns[contender] = opened.enter_context(makers[contender]())
            turns[contender](1)
            say(f"{contender} is ready")
        # Seeds of the next contender's model make TensorFlow get functions that there are ready once more.
        for turn in turns.values():
            turn(_WARM_UP_STEPS)
        times_s: dict[str, list[float]] = {contender: [] for contender in contenders}
        for _ in range(sizes.rounds):
            for contender, turn in turns.items():
                times_s[contender].append(turn(sizes.steps) / sizes.steps)
    return {"times_s": times_s, "failures": []}
