"""Options that a caller gives with a program to capture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from caramel.errors import InputError


@dataclass(frozen=True)
class CaptureOptions:
    """The options of `caramel.capture`, which describes each of them; and whether the program trains at all.

    Raises:
        InputError: ``loss_reduction`` is neither ``"mean"`` nor ``"sum"``.
    """

    loss: Any = None
    train_op: Any = None
    loss_reduction: str | None = None
    replicated: Sequence[Any] = ()
    evaluation: Any = None
    evaluation_inputs: Sequence[Any] | None = None
    checkpoint: Any = None
    data: Any = None
    gradients: Any = None
    values: Any = None
    trains: bool = True

    def __post_init__(self) -> None:
        if self.loss_reduction not in (None, "mean", "sum"):
            raise InputError(f"loss_reduction must be 'mean' or 'sum', got {self.loss_reduction!r}")
        object.__setattr__(self, "replicated", tuple(self.replicated))
