"""Transfers that have no window yet: buckets, or parts of them, with what policies of packing have to know."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from caramel.analyzers.cost.network import Network
from caramel.analyzers.policies.batching import ready_order
from caramel.errors import InputError, PlanError, listed
from caramel.facts import BACKWARD, Boundaries, Boundary, Buckets, Piece, Scheduled
from caramel.simulator import wire_bytes
from caramel.util.units import format_time

MOST_PIECES = 10_000
"""Largest number of pieces of a gradient: more are a wrong partition size, not a plan (our choice)."""


@dataclass(frozen=True)
class PendingTransfer:
    """A transfer that has no window yet.

    Attributes:
        number: position in the order in which transfers are complete.
        pieces: pieces of gradients that travel together.
        size_bytes: bytes on the wire.
        duration_s: predicted seconds.
        ready_s: time when it is complete, in seconds.
        read_s: time when it is first read, in seconds; at the latest the end of the computation.
        kept_reason: reason why it cannot be postponed; "" where it can.
        reason: reason why the pieces travel together.
    """

    number: int
    pieces: tuple[Piece, ...]
    size_bytes: float
    duration_s: float
    ready_s: float
    read_s: float
    kept_reason: str
    reason: str

    @property
    def put_off_reason(self) -> str:
        """Why a queue puts it off to the next step."""
        return f"would not arrive in the step that makes it; read at {format_time(self.read_s)}"

    def level(self, boundaries: Boundaries) -> int:
        """The level of its gradients, see `Boundary`: what has a lower one goes first, whatever it is read for."""
        return boundaries.by_name[self.pieces[0].gradient].level


def pending_transfers_of(
    boundaries: Boundaries, buckets: Buckets, network: Network | None = None, partition_bytes: float = math.inf
) -> list[PendingTransfer]:
    """Transfers in the order in which they are complete.

    Args:
        boundaries: boundaries of all gradients.
        buckets: gradients that travel together.
        network: network that predicts the seconds of a transfer; None for transfers that take no time.
        partition_bytes: largest number of bytes of a transfer on the wire. Of larger buckets each gradient travels by
            itself, in equal parts if it is larger still and can be cut.

    Raises:
        InputError: the boundaries have numbers that cannot be, or a gradient is cut into too many pieces.
        PlanError: a bucket is empty, or has a gradient that there is not.
    """
    position = {g.name: n for n, g in enumerate(ready_order(boundaries))}
    _check_buckets(buckets, position)
    parts = [
        (pieces, reason)
        for bucket, reason in zip(buckets.buckets, buckets.reasons)
        for pieces in _cut([boundaries.by_name[name] for name in bucket], partition_bytes)
    ]
    parts.sort(key=lambda part: (max(position[p.gradient] for p in part[0]), part[0][0].start))
    return [_pending_transfer(boundaries, number, *part, network) for number, part in enumerate(parts)]


def _check_buckets(buckets: Buckets, known: Collection[str]) -> None:
    if len(buckets.buckets) != len(buckets.reasons):
        raise PlanError(
            f"there are {len(buckets.buckets)} buckets, but {len(buckets.reasons)} reasons: give each its own"
        )
    for number, bucket in enumerate(buckets.buckets):
        unknown = [name for name in bucket if name not in known]
        if unknown:
            raise PlanError(f"bucket {number} has gradient {unknown[0]!r}; there are only {listed(known)}")
        if not bucket:
            raise PlanError(f"bucket {number} is empty: leave it out")


def _pending_transfer(
    boundaries: Boundaries, number: int, pieces: tuple[Piece, ...], reason: str, network: Network | None
) -> PendingTransfer:
    gradients = [boundaries.by_name[p.gradient] for p in pieces]
    size_bytes = wire_bytes(boundaries, Scheduled(pieces, BACKWARD, ""))
    kept = [g for g in gradients if not g.is_postponable]
    return PendingTransfer(
        number=number,
        pieces=pieces,
        size_bytes=size_bytes,
        duration_s=0.0 if network is None else network.time_s(size_bytes),
        ready_s=min(max(g.ready_s for g in gradients), boundaries.compute_s),
        read_s=min(*(g.read_s for g in gradients), boundaries.compute_s),
        kept_reason=f"{kept[0].name!r} cannot be postponed: {kept[0].kept_reason}" if kept else "",
        reason=reason,
    )


def _cut(gradients: Sequence[Boundary], partition_bytes: float) -> list[tuple[Piece, ...]]:
    """The pieces of each transfer of a bucket: all in one, or where that is too large each gradient in equal parts."""
    if sum(g.size_bytes for g in gradients) <= partition_bytes:
        return [tuple(Piece(g.name, 0, g.elements) for g in gradients)]
    return [(piece,) for g in gradients for piece in _parts(g, partition_bytes)]


def _parts(gradient: Boundary, partition_bytes: float) -> list[Piece]:
    if gradient.elements is None or not gradient.divisible or gradient.size_bytes <= partition_bytes:
        return [Piece(gradient.name, 0, gradient.elements)]
    most = max(int(partition_bytes / gradient.item_bytes), 1)
    count = -(-gradient.elements // most)
    if count > MOST_PIECES:
        raise InputError(
            f"partition_bytes={partition_bytes:g} cuts gradient {gradient.name!r} into {count} pieces, more than "
            f"{MOST_PIECES}: raise it"
        )
    starts = [gradient.elements * n // count for n in range(count + 1)]
    return [Piece(gradient.name, start, end - start) for start, end in pairwise(starts)]
