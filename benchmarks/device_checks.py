"""What ``python -m benchmarks.device`` checks of a network: weights, bits, and where ops are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks.device_programs import DIGITS, Program, Sizes, program
from benchmarks.placements import logging_options, placements_of
from caramel.errors import CaramelError

MOST_OFF = 1e-8
"""By how much a weight in float64 may differ, in units of the largest change of any: as in ``tests/exact``."""

_TIMEOUT_S = 300.0

# -- the same weights ------------------------------------------------------------------------------


def _trained(model: Any, batches: Sequence[Any], optimize_graph: bool = False) -> Any:
    """The losses of all steps by worker, and the values afterwards, as worker 0 has them."""
    import caramel

    with model.session(caramel.InProcess(caramel.RunOptions(optimize_graph=optimize_graph))) as session:
        losses = [session.step(*batch).worker_losses for batch in batches]
        return losses, {name: np.asarray(value) for name, value in session.values().items()}


def check_weights(name: str, sizes: Sizes, devices: Sequence[str]) -> dict[str, Any]:
    """Weights in float64 on all devices against those of Keras on one device that has the whole batch.

    Args:
        name: of a network.
        sizes: of what is trained.
        devices: of the workers.
    """
    import tensorflow as tf

    import caramel

    one = program(name, sizes, "float64", together=True)
    batches = one.batches(sizes.checked_steps, sizes.checked_examples)
    before = {v.path: v.numpy() for v in one.model.trainable_variables}
    context = caramel.capture(tf.function(one.step), one.inputs)
    _, ours = _trained(caramel.ARModel(context, len(devices), device_list=devices), batches, optimize_graph=True)
    step = tf.function(one.step, input_signature=one.inputs)
    for batch in batches:
        step(*batch)
    off = largest_difference(ours, one.values(), before)
    return {"off": off, "most_off": MOST_OFF, "failures": [] if off <= MOST_OFF else [f"weights are off by {off:.2g}"]}


def largest_difference(
    ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray], before: Mapping[str, np.ndarray]
) -> float:
    """The largest difference of an element of any variable, in units of the largest change of a weight.

    Args:
        ours: values, by name.
        theirs: values that they should have.
        before: values of the weights before the training.

    Raises:
        CaramelError: names are different, a value is no finite number, or the training has changed no weight.
    """
    if set(ours) != set(theirs):
        raise CaramelError(f"variables differ: {sorted(set(ours) ^ set(theirs))[:5]}")
    change = max(float(np.max(np.abs(theirs[n] - value), initial=0)) for n, value in before.items())
    numbers = [n for n, value in theirs.items() if np.issubdtype(value.dtype, np.floating)]
    off = max(float(np.max(np.abs(ours[n] - theirs[n]), initial=0)) for n in numbers)
    if not change > 0 or not np.isfinite(off):
        raise CaramelError(f"the training has changed weights by {change}, and they are off by {off}: nothing is shown")
    return off / change


# -- the same bits ---------------------------------------------------------------------------------


def micro_batches(one: Program, workers: int, batches: Sequence[Any]) -> Any:
    """Train on one device, adding up the gradients of each worker's part of the batch in the order of ranks.

    What each worker has of its own (statistics of batch normalisation) is worker 0's in the end.

    Args:
        one: network.
        workers: number of parts; they are of one size.
        batches: of all workers.

    Returns:
        The losses of all steps by part, and the values afterwards.
    """
    import tensorflow as tf

    differentiate = tf.function(one.differentiate, input_signature=one.inputs)
    update = tf.function(lambda gradients: one.optimizer.apply_gradients(zip(gradients, one.model.trainable_variables)))
    losses = []
    for batch in batches:
        found, parts = [], []
        for rank, part in enumerate(zip(*(np.split(array, workers) for array in batch))):
            loss, gradients = differentiate(*part)
            found.append(float(loss))
            parts.append(gradients)
            if rank == 0:
                local = [v.numpy() for v in one.model.non_trainable_variables]
        for variable, value in zip(one.model.non_trainable_variables, local):
            variable.assign(value)
        update([_mean(each) for each in zip(*parts)])
        losses.append(tuple(found))
    return losses, one.values()


def _mean(parts: Sequence[Any]) -> Any:
    """The mean of the gradients of one parameter, added in the order of ranks; slices one after the other."""
    import tensorflow as tf

    if isinstance(parts[0], tf.IndexedSlices):
        values = tf.concat([part.values for part in parts], 0) / len(parts)
        return tf.IndexedSlices(values, tf.concat([part.indices for part in parts], 0), parts[0].dense_shape)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total / len(parts)


def check_bits(name: str, sizes: Sizes, devices: Sequence[str]) -> dict[str, Any]:
    """Bits in deterministic mode, in float32: under several plans, twice, and on one device in micro-batches.

    Args:
        name: of a network.
        sizes: of what is trained.
        devices: of the workers.
    """
    import tensorflow as tf

    import caramel

    one = program(name, sizes)
    batches = one.batches(sizes.checked_steps, sizes.checked_examples)
    before = one.values()
    context = caramel.capture(tf.function(one.step), one.inputs)
    plans: dict[str, dict[str, Any]] = {
        "buckets": {},
        "no buckets": {"batching": False},
        "half in the next step": {"postponed": every_second(context)},
    }
    if name == DIGITS:
        plans["no buckets, 3 chunks"] = {"batching": False, "depth": 3}
    found = {}
    for plan, options in plans.items():
        model = caramel.ARModel(context, len(devices), device_list=devices, deterministic=True, **options)
        found[plan] = _trained(model, batches)
        if not options:
            found[f"{plan}, again"] = _trained(model, batches)
    one.put(before)
    found["one device, micro-batches"] = micro_batches(one, len(devices), batches)
    (first, wanted), *others = found.items()
    differing = {other: differences(each, wanted) for other, each in others}
    failures = [f"{other}: not the bits of {first!r}: {differs[0]}" for other, differs in differing.items() if differs]
    return {
        "compared": list(found),
        "differing": {other: len(differs) for other, differs in differing.items()},
        "variables": len(wanted[1]),
        "failures": failures + unmoved(wanted[1], before),
    }


def unmoved(values: Mapping[str, np.ndarray], before: Mapping[str, np.ndarray]) -> list[str]:
    """What is wrong if the training has changed no value, or has left something that is no finite number.

    Args:
        values: by name, after the training.
        before: likewise.
    """
    if all(np.array_equal(values[name], before[name]) for name in values):
        return ["the training has changed nothing, so the same bits say nothing"]
    return [f"{name} is not finite" for name, value in values.items() if not np.all(np.isfinite(value))][:1]


def every_second(context: Any) -> list[str]:
    """Every second gradient that may travel in the next step."""
    return [gradient.name for gradient in context.model.gradients if gradient.indices is None][::2]


def differences(found: Any, wanted: Any) -> list[str]:
    """What has other bits, in words.

    Args:
        found: losses, and values by name.
        wanted: likewise.
    """
    differs = [] if found[0] == wanted[0] else [f"losses {found[0]}, not {wanted[0]}"]
    for name in sorted(found[1].keys() | wanted[1].keys()):
        if name not in found[1] or name not in wanted[1]:
            differs.append(f"{name} is only on one side")
            continue
        mine, theirs = found[1][name], wanted[1][name]
        if mine.dtype != theirs.dtype or mine.shape != theirs.shape or mine.tobytes() != theirs.tobytes():
            differs.append(name)
    return differs


# -- placement -------------------------------------------------------------------------------------


def emitted(name: str, context: Any) -> dict[str, dict[str, Any]]:
    """Options of `caramel.ARModel` whose graphs have ops of other kinds; of large networks those with the most.

    Args:
        name: of a network.
        context: of its step.
    """
    most = {"half in the next step": {"postponed": every_second(context)}}
    if name != DIGITS:
        return most
    return {
        **most,
        "defaults": {},
        "deterministic": {"deterministic": True},
        "sharded updates": {"shard_updates": True},
        "bfloat16 on the wire": {"wire": "bfloat16"},
        **{algorithm: {"algorithm": algorithm} for algorithm in ("ring", "halving_doubling", "star", "chain")},
    }


def check_placement(name: str, sizes: Sizes, devices: Sequence[str]) -> dict[str, Any]:
    """Where the ops of emitted graphs are: those of steps, first values, evaluation and what is read and written.

    Args:
        name: of a network.
        sizes: of it.
        devices: of the workers.
    """
    import tensorflow as tf

    import caramel

    one = program(name, sizes, dropout=0.1)
    context = caramel.capture(tf.function(one.step), one.inputs)
    graphs: dict[str, Any] = {}
    failures, on_host = [], Counter[str]()
    for title, options in emitted(name, context).items():
        model = caramel.ARModel(context, len(devices), device_list=devices, **options)
        cluster = caramel.InProcess(logging_options())
        found = placements_of(model.graph_def, devices, cluster, _TIMEOUT_S)
        failures += [f"{title}: {wrong}" for wrong in found.failures]
        on_host.update(found.on_host)
        graphs[title] = asdict(found)
    return {"graphs": graphs, "on_host": sorted(on_host), "failures": failures}
