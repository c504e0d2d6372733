"""Plans in which every worker trains by itself, and exchanges parameters now and then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from caramel.analyzers.step.local_variables import exchangeable, with_local_state
from caramel.collectives.dtypes import ITEM_BYTES
from caramel.compiler.options import CompileOptions
from caramel.compiler.plan_parts import bare_plan, counts_differ, notes_of_workers
from caramel.data.pipeline import Pipeline
from caramel.errors import UnsupportedError, listed
from caramel.local_plan import Exchange, LocalSteps
from caramel.model import Model, Variable
from caramel.netmodel.choice import choose_collective
from caramel.plan import Plan
from caramel.util.units import format_ms

MOST_BYTES = 2**24
"""Bytes of a transfer that has more than one parameter."""


def local_steps(model: Model, options: CompileOptions) -> LocalSteps:
    """The exchanges that options ask for.

    Args:
        model: the single-device step.
        options: options of the caller, with ``sync_every``.

    Raises:
        UnsupportedError: the step has no parameter that can be exchanged.
    """
    assert options.sync_every is not None
    parameters = exchangeable(model)
    if not parameters:
        raise UnsupportedError("sync_every= exchanges what workers have trained, and the step trains no parameter")
    odd = [v for v in parameters if not v.dtype.startswith(("float", "bfloat", "complex"))]
    if odd:
        raise UnsupportedError(
            f"sync_every= takes means of parameters, but {listed([v.name for v in odd], 3)} has {odd[0].dtype}"
        )
    buckets = tuple(_exchange(bucket, options) for bucket in _buckets(parameters))
    return LocalSteps(options.sync_every, *options.outer_step, buckets)


def _buckets(parameters: Sequence[Variable]) -> Iterator[list[Variable]]:
    """Parameters of one element type that follow each other, of some bytes."""
    bucket: list[Variable] = []
    size_bytes = 0
    for v in sorted(parameters, key=lambda v: v.dtype):
        own_bytes = v.size * v.item_bytes
        if bucket and (v.dtype != bucket[0].dtype or size_bytes + own_bytes > MOST_BYTES):
            yield bucket
            bucket, size_bytes = [], 0
        bucket.append(v)
        size_bytes += own_bytes
    if bucket:
        yield bucket


def _exchange(bucket: Sequence[Variable], options: CompileOptions) -> Exchange:
    dtype, elements = bucket[0].dtype, sum(v.size for v in bucket)
    collective = choose_collective(options.collectives, options.workers, dtype, elements, between_steps=True)
    return Exchange(
        parameters=tuple(v.plan_name for v in bucket),
        dtype=dtype,
        elements=elements,
        size_bytes=elements * ITEM_BYTES[dtype],
        algorithm=collective.algorithm,
        depth=collective.depth,
        wire=options.collectives.wire_for(dtype),
        predicted_s=collective.predicted_s,
        reason=collective.reason,
    )


def local_plan(model: Model, devices: Sequence[str], pipeline: Pipeline | None, options: CompileOptions) -> Plan:
    """A plan in which every worker trains by itself.

    Args:
        model: the single-device step.
        devices: device string of each worker.
        pipeline: the workers' input pipelines, if they read a dataset.
        options: options of the caller, with ``sync_every``.

    Raises:
        UnsupportedError: the step has no parameter that can be exchanged.
    """
    network = options.collectives.network
    local = local_steps(model, options)
    plan = replace(
        bare_plan(model, devices, pipeline),
        weighted=options.uneven_batches == "weight" and counts_differ(model, len(devices), pipeline),
        statistics=options.statistics,
        network=None if network is None else network.description,
        local=local,
    )
    notes = [*model.notes, *notes_of_workers(with_local_state(model), plan)]
    if model.forward_sums:
        notes.append(
            f"{len(model.forward_sums)} values of the forward pass are of the whole batch, so the workers send each "
            "other something in every step"
        )
    times_s = [e.predicted_s for e in local.exchanges if e.predicted_s is not None]
    if len(times_s) == len(local.exchanges):
        notes.append(f"an exchange is predicted to take {format_ms(sum(times_s))}, if its transfers follow each other")
    return replace(plan, notes=(*notes, *(() if pipeline is None else pipeline.notes)))
