"""Policies of batching: which gradients travel together. Each is an analyzer that provides `Buckets`.

All of them take gradients in the order in which they are ready; of two that are ready at one time the one that
`Boundaries` names first. A bucket has one element type and one level, so there is an open bucket for each pair of them.
Sparse gradients travel alone. Buckets are given in the order in which they are complete.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from caramel.analyzers.analyzer import Analyzer
from caramel.analyzers.cost.network import Network
from caramel.facts import Boundaries, Boundary, Buckets
from caramel.netmodel.line import LARGE_DOUBLING_RATIO
from caramel.simulator import check_boundaries
from caramel.util.arguments import byte_count
from caramel.util.units import format_size, format_time

DEFAULT_THRESHOLD_BYTES = 25 * 2**20
"""Bytes of a bucket of PyTorch's DistributedDataParallel by default; near the best in most simulations."""

_Key = tuple[str, int]


def single() -> Analyzer:
    """Every gradient alone, as in wait-free backpropagation (WFBP).

    Source:
        MG-WFBP, section II.C.
    """
    return Analyzer("each gradient alone", (Boundaries,), Buckets, _single)


def fixed(threshold_bytes: float = DEFAULT_THRESHOLD_BYTES) -> Analyzer:
    """Buckets of at least a fixed size: a bucket is closed by the gradient with which it reaches the threshold.

    Args:
        threshold_bytes: bytes of a bucket on the wire from which on it is closed; 0 for each gradient alone, infinity
            for one bucket of each element type and level.

    Raises:
        InputError: the threshold is negative or not a number.
    """
    threshold = byte_count(threshold_bytes, "threshold_bytes", is_zero_allowed=True)

    def run(boundaries: Boundaries) -> Buckets:
        return _fixed(boundaries, threshold)

    return Analyzer(f"buckets of {format_size(threshold)}", (Boundaries,), Buckets, run)


def paper_batching(threshold_bytes: float | None = None) -> Analyzer:
    """Caramel's batching: small gradients join while the network is busy with others.

    A gradient of more than the threshold travels alone. Others join the open bucket, which is sent when its size
    exceeds the threshold, or when the channel would otherwise be idle before the next gradient is ready. The queue of
    the channel is that of the backward pass alone, without updates.

    The paper leaves open what a large gradient does to the open bucket. Here it stays open: neither of the two reasons
    to send it holds, and the large transfer is just the time in which more can join. Where several buckets are open,
    that with the oldest gradient is sent first.

    Args:
        threshold_bytes: bytes on the wire above which a gradient or a bucket is large; None for the smallest x with
            f(2x) / (2 f(x)) > 0.8, where f is the network's.

    Raises:
        InputError: the threshold is negative or not a number; the analyzer: there is no network model.

    Source:
        Caramel, section 4.2.
    """
    by_hand = None if threshold_bytes is None else byte_count(threshold_bytes, "threshold_bytes", is_zero_allowed=True)

    def run(boundaries: Boundaries, network: Network) -> Buckets:
        network.must_be_known("Caramel's batching")
        threshold = network.threshold_bytes if by_hand is None else by_hand
        return _PaperBatching(boundaries, network.time_s, threshold, by_hand is None).run()

    return Analyzer("Caramel's batching", (Boundaries, Network), Buckets, run)


def mg_wfbp() -> Analyzer:
    """MG-WFBP's merging: a gradient waits for the next one if that loses less than the start of a transfer.

    Say transfers take T(x) = a + b x, a bucket could start at s, and the next gradient is ready at r. Sent apart, both
    have arrived at max(s + T(x), r) + T(y), and merged at max(s, r) + T(x + y). Merged is earlier just if r - s < a
    (the paper's equations 27 and 28). This is decided for each gradient in turn, by what has been decided before (its
    algorithm 1); so it looks one gradient ahead, and is not always the best choice of buckets. a and b are those of a
    line through the network's times.

    Source:
        MG-WFBP, section IV, theorem 1 and algorithm 1; a gradient is what is a layer there.
    """
    return Analyzer("MG-WFBP's merging", (Boundaries, Network), Buckets, _mg_wfbp)


# -- what all of them do -------------------------------------------------------------------------


def ready_order(boundaries: Boundaries) -> tuple[Boundary, ...]:
    """Gradients in the order in which they are ready; at one time in the order of the boundaries.

    Args:
        boundaries: boundaries of all gradients.

    Raises:
        InputError: a number of the boundaries cannot be.
    """
    check_boundaries(boundaries)
    return tuple(sorted(boundaries.gradients, key=lambda g: g.ready_s))


def _key(gradient: Boundary) -> _Key:
    return gradient.kind, gradient.level


def _sum_bytes(gradients: Sequence[Boundary]) -> float:
    return sum(g.size_bytes for g in gradients)


class _OpenBuckets:
    """Open and closed buckets; gradients come in the order in which they are ready."""

    def __init__(self) -> None:
        self.open: dict[_Key, list[Boundary]] = {}  # that with the oldest gradient first
        self._closed: list[tuple[tuple[Boundary, ...], str]] = []
        self._position: dict[str, int] = {}

    def add(self, gradient: Boundary) -> Sequence[Boundary]:
        """Put a gradient into the open bucket of its kind, which is returned."""
        self._position[gradient.name] = len(self._position)
        bucket = self.open.setdefault(_key(gradient), [])
        bucket.append(gradient)
        return bucket

    def add_alone(self, gradient: Boundary, reason: str) -> None:
        """Make a gradient a bucket of its own."""
        self._position[gradient.name] = len(self._position)
        self._closed.append(((gradient,), reason))

    def close(self, key: _Key, reason: str) -> Sequence[Boundary]:
        """Close an open bucket, which is returned."""
        bucket = self.open.pop(key)
        of = "" if len(bucket) == 1 else f"{len(bucket)} gradients, "
        self._closed.append((tuple(bucket), f"{of}{format_size(_sum_bytes(bucket))}: {reason}"))
        return bucket

    def result(self, last_reason: str) -> Buckets:
        """All of them in the order in which they are complete; what is still open is closed."""
        for key in tuple(self.open):
            self.close(key, last_reason)
        closed = sorted(self._closed, key=lambda bucket: self._position[bucket[0][-1].name])
        names = tuple(tuple(g.name for g in gradients) for gradients, _ in closed)
        return Buckets(names, tuple(reason for _, reason in closed))


_SPARSE_REASON = "a sparse gradient travels alone"
_LAST_REASON = "no gradient of this element type and level is left"


def _single(boundaries: Boundaries) -> Buckets:
    buckets = _OpenBuckets()
    for gradient in ready_order(boundaries):
        alone = f"each gradient travels alone, this one of {format_size(gradient.size_bytes)}"
        buckets.add_alone(gradient, _SPARSE_REASON if gradient.elements is None else alone)
    return buckets.result(_LAST_REASON)


def _fixed(boundaries: Boundaries, threshold_bytes: float) -> Buckets:
    buckets = _OpenBuckets()
    for gradient in ready_order(boundaries):
        if gradient.elements is None:
            buckets.add_alone(gradient, _SPARSE_REASON)
        elif _sum_bytes(buckets.add(gradient)) >= threshold_bytes:
            buckets.close(_key(gradient), f"the threshold of {format_size(threshold_bytes)} is reached")
    return buckets.result(_LAST_REASON)


class _Channel:
    """The channel: the time when all transfers that are queued so far have arrived, in seconds."""

    def __init__(self, time_s: Callable[[float], float]) -> None:
        self._time_s = time_s
        self.idle_s = 0.0

    def send(self, size_bytes: float, ready_s: float) -> None:
        self.idle_s = max(self.idle_s, ready_s) + self._time_s(size_bytes)


# -- Caramel, section 4.2 ----------------------------------------------------------------------


class _PaperBatching:
    def __init__(
        self, boundaries: Boundaries, time_s: Callable[[float], float], threshold_bytes: float, is_fitted: bool
    ) -> None:
        self._order = ready_order(boundaries)
        self._channel = _Channel(time_s)
        self._buckets = _OpenBuckets()
        self._threshold_bytes = threshold_bytes
        origin = f"f(2x) / (2 f(x)) = {LARGE_DOUBLING_RATIO:g}" if is_fitted else "set by hand"
        self._threshold_text = f"the threshold of {format_size(threshold_bytes)} ({origin})"

    def run(self) -> Buckets:
        following = [*(g.ready_s for g in self._order[1:]), math.inf]
        for gradient, next_s in zip(self._order, following):
            self._take(gradient)
            # Gradients that are ready at the same time follow at once, so nothing is idle between them.
            while self._buckets.open and (idle_s := max(self._channel.idle_s, gradient.ready_s)) < next_s:
                self._send(next(iter(self._buckets.open)), gradient.ready_s, _idle_reason(idle_s, next_s))
        return self._buckets.result(_LAST_REASON)

    def _take(self, gradient: Boundary) -> None:
        if gradient.elements is None:
            self._buckets.add_alone(gradient, _SPARSE_REASON)
            self._channel.send(gradient.size_bytes, gradient.ready_s)
        elif gradient.size_bytes > self._threshold_bytes:
            large = f"{format_size(gradient.size_bytes)} exceed {self._threshold_text}, so it travels alone"
            self._buckets.add_alone(gradient, large)
            self._channel.send(gradient.size_bytes, gradient.ready_s)
        elif _sum_bytes(self._buckets.add(gradient)) > self._threshold_bytes:
            self._send(_key(gradient), gradient.ready_s, f"{self._threshold_text} is exceeded")

    def _send(self, key: _Key, ready_s: float, reason: str) -> None:
        self._channel.send(_sum_bytes(self._buckets.close(key, reason)), ready_s)


def _idle_reason(idle_s: float, next_s: float) -> str:
    if math.isinf(next_s):
        return "no gradient follows"
    idle, until = format_time(idle_s), format_time(next_s)
    return f"the channel would be idle from {idle} until the next gradient is ready at {until}"


# -- MG-WFBP -------------------------------------------------------------------------------------


def _mg_wfbp(boundaries: Boundaries, network: Network) -> Buckets:
    network.must_be_known("MG-WFBP's merging")
    order = ready_order(boundaries)
    line = network.line(_sum_bytes(order))
    channel, buckets = _Channel(line.time_s), _OpenBuckets()
    for gradient, following in zip(order, _followers(order)):
        if gradient.elements is None:
            buckets.add_alone(gradient, _SPARSE_REASON)
            channel.send(gradient.size_bytes, gradient.ready_s)
            continue
        bucket = buckets.add(gradient)
        start_s = max(channel.idle_s, gradient.ready_s)
        if following is None or following.ready_s - start_s >= line.a_s:
            reason = _LAST_REASON if following is None else _waiting_reason(following, start_s, line.a_s)
            buckets.close(_key(gradient), reason)
            channel.send(_sum_bytes(bucket), gradient.ready_s)
    return buckets.result(_LAST_REASON)


def _followers(order: Sequence[Boundary]) -> list[Boundary | None]:
    """For each gradient the next one that may travel with it."""
    followers: list[Boundary | None] = []
    next_by_key: dict[_Key, Boundary] = {}
    for gradient in reversed(order):
        followers.append(next_by_key.get(_key(gradient)))
        if gradient.elements is not None:
            next_by_key[_key(gradient)] = gradient
    return followers[::-1]


def _waiting_reason(following: Boundary, start_s: float, a_s: float) -> str:
    away, saved = format_time(following.ready_s - start_s), format_time(a_s)
    return f"the next gradient, {following.name!r}, is {away} away, and merging saves only {saved}"
