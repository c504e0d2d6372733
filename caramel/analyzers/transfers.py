"""The simplest policy: every gradient is a transfer of its own, in program order."""

from __future__ import annotations

from caramel.model import Model
from caramel.plan import Transfer


def one_per_gradient(model: Model) -> tuple[Transfer, ...]:
    """A transfer for each gradient, by shuffle, at depth 1, in the backward window."""
    return tuple(
        Transfer(
            gradients=(gradient.name,),
            dtype=gradient.dtype,
            elements=gradient.size,
            size_bytes=gradient.size_bytes,
            algorithm="shuffle",
            depth=1,
            window="backward",
            wire=None,
            reason="Each gradient is all-reduced by itself as soon as it exists on every worker.",
        )
        for gradient in model.gradients
    )
