"""The simplest policy: every gradient is a transfer of its own, in program order."""

from __future__ import annotations

from caramel.model import Model
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
