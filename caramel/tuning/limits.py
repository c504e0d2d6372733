"""What is tuned: the limits of a plan whose transfers go by the priority of the next read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from caramel.analyzers.analyzer import Analyzer
from caramel.analyzers.policies.batching import fixed
from caramel.analyzers.policies.best_order import best_order
from caramel.analyzers.policies.control_edges import serialization
from caramel.analyzers.policies.packing import priority
from caramel.analyzers.policies.transfers import adaptive_depth
from caramel.analyzers.step.boundaries import boundaries
from caramel.analyzers.step.dependencies import dependencies
from caramel.analyzers.step.op_times import given_trace
from caramel.facts import Trace
from caramel.util.units import format_size

_SMALLEST_BYTES = 64 * 1024
_MOST_IN_FLIGHT, _MOST_DEPTH = 8, 8


@dataclass(frozen=True)
class Limits:
    """Limits by which gradients travel.

    Attributes:
        bucket_bytes: bytes up to which gradients travel together.
        partition_bytes: largest number of bytes of a transfer; None to cut nothing.
        in_flight: number of transfers of a window that may be under way at once: the credit, in transfers.
        depth: number of chunks of a transfer; None for what the network model says is best.
    """

    bucket_bytes: int
    partition_bytes: int | None
    in_flight: int
    depth: int | None

    def __str__(self) -> str:
        cut = "uncut" if self.partition_bytes is None else f"cut at {format_size(self.partition_bytes)}"
        depth = "depth as predicted" if self.depth is None else f"depth {self.depth}"
        return f"buckets of {format_size(self.bucket_bytes)}, {cut}, {self.in_flight} in flight, {depth}"

    def analyzers(self, trace: Trace) -> list[Analyzer]:
        """The analyzers that plan within these limits.

        Args:
            trace: measured times of the program.

        Source:
            ByteScheduler, section 4: priority, partition size and credit.
        """
        return [
            dependencies(),
            given_trace(trace),
            best_order(True),
            serialization(),
            boundaries(),
            fixed(self.bucket_bytes),
            priority(self.partition_bytes),
            adaptive_depth(self.in_flight),
        ]


def limits_for(total_bytes: int, depth: int | None = None) -> Sequence[Limits]:
    """All limits to choose from.

    Args:
        total_bytes: bytes of all gradients.
        depth: number of chunks of each transfer, if that is given.
    """
    largest = max(total_bytes, _SMALLEST_BYTES)
    steps = max(0, math.ceil(math.log(largest / _SMALLEST_BYTES, 4)))
    sizes = [_SMALLEST_BYTES * 4**n for n in range(steps + 1)]
    powers = [2**n for n in range(int(math.log2(_MOST_IN_FLIGHT)) + 1)]
    depths = [None, *(2**n for n in range(int(math.log2(_MOST_DEPTH)) + 1))] if depth is None else [depth]
    return [
        Limits(bucket, partition, in_flight, chunks)
        for bucket, partition, in_flight, chunks in product(sizes, [None, *sizes], powers, depths)
        if partition is None or _SMALLEST_BYTES <= partition < largest
    ]


def coordinates(limits: Sequence[Limits]) -> np.ndarray:
    """Each of some limits as a point, on logarithmic scales from 0 to 1.

    Args:
        limits: the limits.

    Returns:
        An array of shape [limits, 4].
    """
    largest = max(each.bucket_bytes for each in limits)
    values = np.array(
        [
            [
                each.bucket_bytes / _SMALLEST_BYTES,
                (4 * largest if each.partition_bytes is None else each.partition_bytes) / _SMALLEST_BYTES,
                each.in_flight,
                0.5 if each.depth is None else each.depth,
            ]
            for each in limits
        ]
    )
    logarithms = np.log2(values)
    low, high = logarithms.min(axis=0), logarithms.max(axis=0)
    scaled: np.ndarray = (logarithms - low) / np.where(high > low, high - low, 1.0)
    return scaled
