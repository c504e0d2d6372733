"""What is tuned: the limits of a plan whose transfers go by the priority of the next read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Protocol

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
from caramel.collectives.algorithms import NATIVE
from caramel.facts import Trace
from caramel.util.units import format_size

_SMALLEST_BYTES = 64 * 1024
_MOST_IN_FLIGHT, _MOST_DEPTH = 8, 8

_BEYOND = 2.0
"""How far no limit is beyond the largest one, on a logarithmic scale (our choice)."""


class Setting(Protocol):
    """What a trial tries."""

    def options(self, trace: Trace) -> Mapping[str, Any]:
        """Options of `caramel.ARModel` that make a plan with it.

        Args:
            trace: measured times of the program.
        """
        ...

    def point(self) -> Sequence[float]:
        """A point that is near those of like settings, on scales of any length; infinity where nothing limits it."""
        ...


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

    def options(self, trace: Trace) -> Mapping[str, Any]:
        """Options of `caramel.ARModel` with these limits.

        Args:
            trace: measured times of the program.
        """
        return {"analyzers": self.analyzers(trace), "depth": self.depth}

    def point(self) -> Sequence[float]:
        """The logarithms of all limits, with a depth as predicted below one of 1."""
        partition = math.inf if self.partition_bytes is None else self.partition_bytes
        depth = 0.5 if self.depth is None else self.depth
        return [math.log2(value) for value in (self.bucket_bytes, partition, self.in_flight, depth)]

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


def limits_for(total_bytes: int, depth: int | None = None, algorithm: str | None = None) -> Sequence[Limits]:
    """All limits to choose from.

    Args:
        total_bytes: bytes of all gradients.
        depth: number of chunks of each transfer, if that is given.
        algorithm: name of the all-reduce of each transfer, if that is given: TensorFlow's own is not cut.
    """
    largest = max(total_bytes, _SMALLEST_BYTES)
    steps = max(0, math.ceil(math.log(largest / _SMALLEST_BYTES, 4)))
    sizes = [_SMALLEST_BYTES * 4**n for n in range(steps + 1)]
    powers = [2**n for n in range(int(math.log2(_MOST_IN_FLIGHT)) + 1)]
    depths: Sequence[int | None] = [depth]
    if depth is None and algorithm != NATIVE:
        depths = [None, *(2**n for n in range(int(math.log2(_MOST_DEPTH)) + 1))]
    return [
        Limits(bucket, partition, in_flight, chunks)
        for bucket, partition, in_flight, chunks in product(sizes, [None, *sizes], powers, depths)
        if partition is None or _SMALLEST_BYTES <= partition < largest
    ]


def coordinates(settings: Sequence[Setting]) -> np.ndarray:
    """Each of some settings as a point, on scales from 0 to 1.

    Args:
        settings: the settings.

    Returns:
        An array of shape [settings, axes].
    """
    points = np.array([each.point() for each in settings], float)
    largest = np.max(points, axis=0, initial=0.0, where=np.isfinite(points))
    points = np.where(np.isfinite(points), points, largest + _BEYOND)
    low, high = points.min(axis=0), points.max(axis=0)
    scaled: np.ndarray = (points - low) / np.where(high > low, high - low, 1.0)
    return scaled
