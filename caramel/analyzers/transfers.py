"""The simplest policy: every gradient is a transfer of its own, in program order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from caramel.analyzers.postponement import postponement
from caramel.collectives.algorithms import ALL_GATHER
from caramel.model import Gradient, Model
from caramel.netmodel.choice import CollectiveOptions, choose_collective
from caramel.plan import Transfer


def one_per_gradient(model: Model, workers: int, options: CollectiveOptions) -> tuple[Transfer, ...]:
    """A transfer for each gradient, in the backward window.

    Args:
        model: the single-device step.
        workers: number of workers.
        options: how to choose algorithm, depth and wire.

    Raises:
        InputError: the options do not fit the number of workers or a gradient.
    """
    transfers = []
    for gradient in model.gradients:
        if gradient.is_sparse:
            transfers.append(_sparse(gradient, options))
            continue
        collective = choose_collective(options, workers, gradient.dtype, gradient.size)
        transfers.append(
            Transfer(
                gradients=(gradient.name,),
                dtype=gradient.dtype,
                elements=gradient.size,
                size_bytes=gradient.size_bytes,
                algorithm=collective.algorithm,
                depth=collective.depth,
                window="backward",
                wire=options.wire_for(gradient.dtype),
                predicted_s=collective.predicted_s,
                reason=f"Each gradient is all-reduced by itself as soon as it exists; {collective.reason}",
            )
        )
    return tuple(transfers)


def in_forward_window(model: Model, transfers: Sequence[Transfer], postponed: Sequence[str]) -> tuple[Transfer, ...]:
    """The same transfers, those of some gradients in the next step.

    Args:
        model: the single-device step.
        transfers: all in the backward window.
        postponed: names of the gradients.

    Raises:
        InputError: a gradient cannot be postponed and stay exact.
    """
    postponement(model, postponed)
    reason = "It was asked to travel in the next step"
    return tuple(
        replace(t, window="forward", reason=f"{reason}; {t.reason}") if set(t.gradients) & set(postponed) else t
        for t in transfers
    )


def _sparse(gradient: Gradient, options: CollectiveOptions) -> Transfer:
    return Transfer(
        gradients=(gradient.name,),
        dtype=gradient.dtype,
        elements=None,
        size_bytes=None,
        algorithm=ALL_GATHER,
        depth=1,
        window="backward",
        wire=options.wire_for(gradient.dtype),
        predicted_s=None,
        reason="A sparse gradient: every worker gets the rows of all workers, in rank order; nothing is made dense.",
    )
