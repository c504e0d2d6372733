"""What the user may ask of the collectives, and the choice for one transfer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from caramel.collectives.algorithms import ALGORITHMS, ALL_REDUCE_NAMES, NATIVE, all_reduce_named, schedule_maker
from caramel.collectives.dtypes import ITEM_BYTES, NARROWABLE_DTYPES, NATIVE_DTYPES, WIRE_DTYPES
from caramel.collectives.hierarchy import hierarchy_name, workers_on_host_of
from caramel.collectives.schedule import check
from caramel.errors import InputError
from caramel.netmodel.model import LARGE_BYTES, NetworkModel, default_depth
from caramel.netmodel.ranking import Candidate
from caramel.util.arguments import chunk_count, shown
from caramel.util.units import format_size

DEFAULT_ALGORITHM = "shuffle"
"""Name of the algorithm where neither the caller nor a network model decides."""

ALGORITHM_OF_FEW_BYTES = "star"
"""Name of that of small transfers: 2 (N - 1) messages, where a shuffle has 2 N (N - 1). Both add in rank order."""

FEW_BYTES = 2**17
"""Bytes that the root of a star may have to send and receive in a small transfer (our choice): about 1 ms of 1 Gbit/s,
or four messages."""


ON_ONE_WORKER = ("star", "chain", NATIVE)
"""Names of all-reduces whose sums are not completed on all workers alike, or nobody knows where."""


_FEW_WORKERS = 13
"""More add in rank order by an algorithm if so many do."""

_FEW_ON_HOST = 3
"""The same for the workers of a host in a hierarchy."""


def is_in_rank_order(algorithm: str, workers: int) -> bool:
    """Whether the symbolic sums of an algorithm are the rank-order left fold, at any size.

    Answered for some workers and a tensor of some elements for each rank, as the schedule of thousands is long; what is
    emitted is checked again, as it is (`Schedules.proved`).
    """
    on_host = workers_on_host_of(algorithm)
    if on_host is None:
        return _is_fold(algorithm, min(workers, _FEW_WORKERS))
    few = min(on_host, _FEW_ON_HOST)
    others = min(max(workers - on_host, 0), few + 1)
    return _is_fold(hierarchy_name(few), min(workers, few) + others)


@lru_cache
def _is_fold(algorithm: str, workers: int) -> bool:
    if algorithm == NATIVE:
        return False
    return check(schedule_maker(algorithm)(workers, 3 * workers + 1)).is_rank_order_fold


@dataclass(frozen=True)
class CollectiveOptions:
    """What the caller asked for.

    Attributes:
        algorithm: name of the algorithm of all transfers; None to choose.
        depth: number of chunks of all transfers; None to choose.
        deterministic: whether only algorithms that add in rank order are admitted.
        wire: element type of messages; None to send values as they are.
        network: network model to choose by; None without one.
        depth_by_threshold: whether the depth is `default_depth` of the bytes of a transfer and the network's threshold,
            where it is not given.
        is_what_if: whether nothing is emitted, so that a network may be extrapolated to other numbers of workers.
        is_spread: whether only algorithms are admitted whose sums are completed on all workers alike.
    """

    algorithm: str | None = None
    depth: int | None = None
    deterministic: bool = False
    wire: str | None = None
    network: NetworkModel | None = None
    depth_by_threshold: bool = False
    is_what_if: bool = False
    is_spread: bool = False
    _thresholds: dict[int, float] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.algorithm is not None:
            all_reduce_named(self.algorithm)
        if self.depth is not None:
            object.__setattr__(self, "depth", chunk_count(self.depth, "the depth of a collective"))
        if self.wire is not None and not (isinstance(self.wire, str) and self.wire in WIRE_DTYPES):
            raise InputError(f"the wire can have {' or '.join(WIRE_DTYPES)}, got {shown(self.wire)}")
        if self.wire is not None and self.deterministic:
            raise InputError(
                "deterministic=True and wire= exclude each other: which values are rounded depends on how the tensor "
                "is cut"
            )
        if self.algorithm == NATIVE and self.wire is not None:
            raise InputError("the native all-reduce sends values as they are: leave out wire=, or the algorithm")
        if self.algorithm == NATIVE and self.depth not in (None, 1):
            raise InputError("the native all-reduce is not cut in chunks: leave out the depth, or the algorithm")

    def check_workers(self, workers: int) -> None:
        """Check what depends on the number of workers.

        Raises:
            InputError: an algorithm that does not add in rank order, in deterministic mode; or a network
                model that was not measured for so many workers, or says nothing of them where nothing is emitted.
        """
        if self.deterministic and self.algorithm is not None and not is_in_rank_order(self.algorithm, workers):
            ordered = ", ".join(name for name in ALGORITHMS if is_in_rank_order(name, workers))
            raise InputError(
                f"{self.algorithm} does not add the workers' gradients in rank order, so its bits depend on how the "
                f"tensor is cut: with deterministic=True use one of {ordered}"
            )
        if self.network is not None:
            (self.network.require_prediction if self.is_what_if else self.network.require)(workers)

    def threshold_bytes(self, workers: int) -> float:
        """The largest size at which joining two transfers saves 20 % of their time; see `NetworkModel`.

        Args:
            workers: number of workers, at least 1.

        Raises:
            InputError: there is no network model, or it knows nothing about what is allowed.
        """
        if self.network is None:
            raise InputError("without a network model nothing is known about transfers")
        if workers not in self._thresholds:
            algorithm = self.algorithm
            if algorithm is None and workers > 1:
                allowed = [name for name in allowed_algorithms(self, workers, "float32") if name != NATIVE]
                algorithm = self.network.choose(LARGE_BYTES, workers, allowed=allowed, depth=1).algorithm
            self._thresholds[workers] = self.network.threshold_bytes(workers, algorithm)
        return self._thresholds[workers]

    def depth_of(self, workers: int, size_bytes: float) -> int | None:
        """The only depth for a transfer; None where it may be chosen.

        Args:
            workers: number of workers, at least 1.
            size_bytes: bytes on the wire.
        """
        if self.depth is None and self.depth_by_threshold and self.network is not None and workers > 1:
            return default_depth(size_bytes, self.threshold_bytes(workers))
        return self.depth

    def wire_for(self, dtype: str) -> str | None:
        """Element type of the messages for tensors of a dtype, if another one."""
        return self.wire if dtype in NARROWABLE_DTYPES else None


@dataclass(frozen=True)
class Collective:
    """The decision for one transfer.

    Attributes:
        algorithm: name of the collective.
        depth: number of chunks.
        reason: reason of the decision.
        predicted_s: predicted seconds of the transfer; None without a network model.
        occupied_s: seconds of these until the next transfer can begin; None if it waits for all of this one.
    """

    algorithm: str
    depth: int
    reason: str
    predicted_s: float | None = None
    occupied_s: float | None = None


def choose_collective(
    options: CollectiveOptions, workers: int, dtype: str, elements: int, *, between_steps: bool = False
) -> Collective:
    """Decide about one transfer.

    Args:
        options: options of the caller.
        workers: number of workers.
        dtype: element type.
        elements: number of elements.
        between_steps: whether nobody computes meanwhile, and nothing was sent in the steps before; else all workers
            compute meanwhile.

    Raises:
        InputError: the options do not fit the number of workers or the dtype.
    """
    allowed = allowed_algorithms(options, workers, dtype)
    size_bytes = elements * ITEM_BYTES[options.wire_for(dtype) or dtype]
    if options.network is None or workers == 1:
        return _by_size(options, workers, size_bytes)
    if options.algorithm is not None and options.depth is not None:
        return _as_asked(options.network, options.algorithm, options.depth, workers, size_bytes, not between_steps)
    depth = options.depth_of(workers, size_bytes)
    choice = options.network.choose(
        size_bytes, workers, allowed=allowed, depth=depth, is_beside=not between_steps, after_pause=between_steps
    )
    reason = choice.reason
    if options.depth is None and depth is not None:
        threshold = format_size(options.threshold_bytes(workers))
        reason = (
            f"depth {depth}: {format_size(size_bytes)} in pieces of the threshold of {threshold}, up to 8; {reason}"
        )
    return Collective(choice.algorithm, choice.depth, reason, choice.prediction.time_s, choice.occupied_s)


def _by_size(options: CollectiveOptions, workers: int, size_bytes: int) -> Collective:
    """The decision where nothing is known about the network, or nothing is sent."""
    if options.algorithm is not None:
        algorithm, why = options.algorithm, "as asked for"
    elif workers == 1:
        algorithm, why = DEFAULT_ALGORITHM, "one worker has nothing to send"
    elif 2 * (workers - 1) * size_bytes <= FEW_BYTES and not options.is_spread:
        algorithm = ALGORITHM_OF_FEW_BYTES
        why = f"few messages for few bytes ({format_size(size_bytes)}); no network model was given"
    else:
        algorithm, why = DEFAULT_ALGORITHM, "no network model was given"
    return Collective(algorithm, options.depth or 1, f"{algorithm}: {why}.")


def possible_collectives(
    options: CollectiveOptions, workers: int, dtype: str, size_bytes: float
) -> Sequence[Candidate]:
    """All candidates for one transfer, beside which all workers compute.

    Args:
        options: options of the caller, with a network model.
        workers: number of workers, at least 2.
        dtype: element type.
        size_bytes: bytes on the wire.

    Raises:
        InputError: the options do not fit, or nothing is known about what they allow.
    """
    network, algorithm = options.network, options.algorithm
    if network is None:
        raise InputError("without a network model nothing is known about transfers")
    allowed, depth = allowed_algorithms(options, workers, dtype), options.depth_of(workers, size_bytes)
    if algorithm is not None and depth is not None:
        return [network.candidate(algorithm, depth, workers, size_bytes, is_beside=True)]
    return network.candidates(size_bytes, workers, allowed=allowed, depth=depth, is_beside=True)


def allowed_algorithms(options: CollectiveOptions, workers: int, dtype: str) -> Sequence[str]:
    """Names of the algorithms that the options allow.

    Args:
        options: options of the caller.
        workers: number of workers.
        dtype: element type.

    Raises:
        InputError: the options do not fit the number of workers or the dtype.
    """
    options.check_workers(workers)
    further = options.network.further_algorithms(workers) if options.network is not None else ()
    asked = (options.algorithm,) if options.algorithm is not None else ()
    names = dict.fromkeys((*ALL_REDUCE_NAMES, *further, *asked))
    allowed = [name for name in names if _is_allowed(name, options, workers, dtype)]
    if options.algorithm is None:
        return allowed
    if options.algorithm not in allowed:
        raise InputError(f"the {options.algorithm} all-reduce cannot reduce {dtype}, only {', '.join(NATIVE_DTYPES)}")
    return [options.algorithm]


def _as_asked(
    network: NetworkModel, algorithm: str, depth: int, workers: int, size_bytes: int, is_beside: bool
) -> Collective:
    reason = f"{algorithm} at depth {depth}: as asked for."
    try:
        predicted_s = network.predict(algorithm, depth, workers, size_bytes, is_beside=is_beside).time_s
    except InputError:  # asked for, but not measured
        predicted_s = None
    return Collective(algorithm, depth, reason, predicted_s)


def _is_allowed(name: str, options: CollectiveOptions, workers: int, dtype: str) -> bool:
    if name == NATIVE:  # it neither cuts the tensor nor rounds what it sends
        is_as_asked = options.depth in (None, 1) and options.wire_for(dtype) is None
        if not is_as_asked or dtype not in NATIVE_DTYPES:
            return False
    if options.is_spread and name in ON_ONE_WORKER:
        return False
    return not options.deterministic or is_in_rank_order(name, workers)
