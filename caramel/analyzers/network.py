"""The network as planners see it: the time of a transfer with the best algorithm and depth."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from caramel.collectives.dtypes import ITEM_BYTES
from caramel.netmodel.choice import CollectiveOptions, choose_collective
from caramel.netmodel.line import Line, Sample, fit_line, threshold_bytes

_SMALLEST_PLANNED_BYTES = 2**16
"""Sizes below do not decide about a plan; in this range the line is to be right (our choice)."""


@dataclass(frozen=True)
class Network:
    """What a transfer takes with so many workers.

    Attributes:
        options: what the caller asked of the collectives; with a network model, or without.
        workers: number of workers.
    """

    options: CollectiveOptions
    workers: int
    _times: dict[float, float] = field(default_factory=dict, compare=False, repr=False)

    @property
    def is_known(self) -> bool:
        """Whether times can be predicted."""
        return self.options.network is not None or self.workers == 1

    def time_s(self, size_bytes: float) -> float:
        """Predicted seconds of one all-reduce of so many bytes on the wire.

        Raises:
            InputError: the network model knows nothing about what is allowed.
        """
        if size_bytes not in self._times:
            # The bytes are those of the wire, so any element type does that is sent as it is.
            elements = -(-int(size_bytes) // ITEM_BYTES["float32"])
            found = choose_collective(self._unwired, self.workers, "float32", elements)
            self._times[size_bytes] = found.predicted_s or 0.0
        return self._times[size_bytes]

    @cached_property
    def _unwired(self) -> CollectiveOptions:
        options = self.options
        return CollectiveOptions(options.algorithm, options.depth, options.deterministic, None, options.network)

    def line(self, total_bytes: float) -> Line:
        """A line through the times of transfers between 64 KiB and all bytes of a step.

        Args:
            total_bytes: of all gradients.
        """
        last = max(total_bytes, 2 * _SMALLEST_PLANNED_BYTES)
        sizes = [_SMALLEST_PLANNED_BYTES]
        while sizes[-1] * 2 < last:
            sizes.append(sizes[-1] * 2)
        times = [Sample(size, self.time_s(size)) for size in [*sizes, int(last)]]
        return Line(0.0, 0.0) if self.workers == 1 else fit_line(times)

    @cached_property
    def threshold_bytes(self) -> float:
        """The smallest x with f(2x) / (2 f(x)) > 0.8 (Caramel, section 4.2)."""
        return 0.0 if self.workers == 1 else threshold_bytes(self.time_s)
