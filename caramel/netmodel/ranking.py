"""Which of several all-reduces is taken for a transfer, once their times are predicted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from caramel.collectives.algorithms import NATIVE, all_reduce_named
from caramel.collectives.all_reduce import AllReduce
from caramel.util.units import format_ms

_LEAST_NATIVE_SPEEDUP = 1.5
"""Ratio of the delay of the best other all-reduce to that of `native` from which on `native` is chosen, see `best_of`
(our choice: TensorFlow's own ring on processors was never so much faster)."""

_EQUAL_DELAY_RATIO = 1.03
"""Ratio of two delays beside computation up to which they count as equal: times that differ by less may be in any order
the next time they are measured."""

_EQUAL_SHARE_MARGIN = 0.05
"""Difference of two processor shares, as fractions of the processors' time, up to which they count as equal; those with
fewer chunks, and so with fewer messages, are then the surer ones."""

_SUITABLE_DELAY_RATIO = 1.25
"""Ratio to the least delay up to which an all-reduce is taken because it suits what `best_of` says: a step in which
several meet, or one after a pause. Measured one after the other, all-reduces do not meet on links as those of a step
do, on workers that are not in step. On four hosts with links of 50 Mbit/s, where all are about as fast from 128 KiB on,
steps of a VGG-like network took 0.80 s with rings, 0.83 s with halving-doubling and 0.84 s with shuffles; of a ResNet
0.72 s, 0.80 s and 0.76 s. On four hosts with links of 7.4 Mbit/s, 443 KiB after 60 steps without a message took 0.81 s
with rings, 1.04 s with shuffles and 1.26 s with halving-doubling, which are equal where one follows the other (our
choice)."""

_COUNTED_LAG_FRACTION = 0.25
"""Fraction that counts of the seconds between the time when an all-reduce lets the next one begin and the time when its
results are there. A window has about four transfers, and all but the last one wait at their end while others travel. On
eight hosts with links of 58 Mbit/s, steps of a Transformer took 1.14 s with seven rings, each of which takes 20 %
longer than halving-doubling in four chunks and delays the next one less, and 1.25 s with three of the latter and three
rings (our choice)."""

_MOST_ONE_SENDER_SHARE = 0.25
"""Processor share, as a fraction of the processors' time, up to which an all-reduce with one sender is preferred. Where
all-reduces take more, they do not wait for links, but for processors, once for each round. Steps of that VGG-like
network, with 13 KB in front of 2 MB, took 0.92 s with a ring for the 13 KB, in each round of which a worker was late,
and 0.83 s with a shuffle (our choice)."""


NEAR_DELAY_RATIO = max(_EQUAL_DELAY_RATIO, _SUITABLE_DELAY_RATIO)
"""Ratio to the least delay of those that `best_of` looks at, but for TensorFlow's own all-reduce."""


def delay_s(time_s: Any, channel_s: Any) -> Any:
    """Seconds that an all-reduce is taken to add to a step, as one of several that follow each other.

    Args:
        time_s: seconds of the all-reduce; a number, or an array of them.
        channel_s: seconds of these for which the next one waits.
    """
    return channel_s + _COUNTED_LAG_FRACTION * (time_s - channel_s)


@dataclass(frozen=True)
class Prediction:
    """Predicted time of one all-reduce.

    Attributes:
        time_s: predicted seconds.
        basis: ``"measured"`` (inside what was measured), ``"extrapolated"`` (another size or number of
            workers than measured) or ``"given"`` (by hand).
    """

    time_s: float
    basis: str


@dataclass(frozen=True)
class Candidate:
    """An all-reduce that may be chosen.

    Attributes:
        prediction: predicted time.
        algorithm: name of the collective.
        depth: number of chunks.
        occupied_s: predicted seconds until the next one can begin as if nothing were under way; None: it waits for all
            of this one.
        slowdown: factor that computation has in the predicted time.
        processor_share: fraction of its progress that computation loses meanwhile.
    """

    prediction: Prediction
    algorithm: str
    depth: int
    occupied_s: float | None = None
    slowdown: float = 1.0
    processor_share: float = 0.0

    @property
    def row(self) -> AllReduce:
        """What is known of the algorithm."""
        return all_reduce_named(self.algorithm)

    @property
    def time_s(self) -> float:
        """Predicted seconds."""
        return self.prediction.time_s

    @property
    def alone_s(self) -> float:
        """Predicted seconds without computation."""
        return self.time_s / self.slowdown

    @property
    def channel_s(self) -> float:
        """Predicted seconds for which the next one waits."""
        return self.time_s if self.occupied_s is None else self.occupied_s

    @property
    def delay_s(self) -> float:
        """Seconds that it is taken to add to a step, as one of several transfers that follow each other."""
        return float(delay_s(self.time_s, self.channel_s))

    def __str__(self) -> str:
        return f"{self.algorithm} at depth {self.depth} with {format_ms(self.time_s)}"


@dataclass(frozen=True)
class Choice:
    """An algorithm and a depth for a transfer.

    Attributes:
        algorithm: name of the collective.
        depth: number of chunks.
        prediction: predicted time.
        occupied_s: predicted seconds until the next transfer can begin, see `Candidate`.
        processor_share: fraction of its progress that computation loses meanwhile.
        explain: function that gives `reason`; a planner makes thousands of choices and shows few.
    """

    algorithm: str
    depth: int
    prediction: Prediction
    occupied_s: float | None = None
    processor_share: float = 0.0
    explain: Callable[[], str] | None = field(default=None, compare=False, repr=False)

    @property
    def reason(self) -> str:
        """Reason of the choice, with the predicted time of the next best."""
        return "" if self.explain is None else self.explain()


def measured_if_any(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Those that were measured, or all if none was.

    What was given up at smaller sizes, far behind, must not come back as the extension of its line.
    """
    return [c for c in candidates if c.prediction.basis == "measured"] or candidates


def best_of(
    candidates: Sequence[Candidate],
    size_bytes: float,
    is_beside: bool = False,
    prefers_one_sender: bool = False,
) -> Choice:
    """The one with the least predicted delay; of equally fast ones the smaller depth, then the first.

    By itself that is its time, else see `Candidate.delay_s`.

    `native` is only chosen where it is 1.5 times as fast as any other.

    Args:
        candidates: candidates, at least one.
        size_bytes: bytes on the wire.
        is_beside: whether all workers compute meanwhile. Of those that delay up to 3 % longer than the fastest it is
            then the one that takes least from computation, or with fewer chunks and a share that is at most 5
            percentage points above it.
        prefers_one_sender: whether several all-reduces meet on links, beside computation; or one comes after a pause,
            when messages of several senders to one worker are more than its link holds until the connections have found
            their pace. Of those that delay up to 25 % longer than the fastest it is one with one sender (see
            `AllReduce`) that takes at most a quarter of the processors' time; if there is none, one with two rounds
            that takes more.
    """
    delays = {id(c): c.delay_s for c in candidates}
    others_s = min((delays[id(c)] for c in candidates if c.algorithm != NATIVE), default=math.inf)
    eligible = [c for c in candidates if c.algorithm != NATIVE or _LEAST_NATIVE_SPEEDUP * delays[id(c)] <= others_s]
    ranked: Sequence[Candidate] = sorted(eligible, key=lambda c: (delays[id(c)], c.depth))
    suited, why = _suitable(ranked) if prefers_one_sender else (ranked, "")
    first = suited[0]
    chosen = first
    if is_beside:
        tied = [c for c in suited if delays[id(c)] <= _EQUAL_DELAY_RATIO * delays[id(first)]]
        most = min(c.processor_share for c in tied) + _EQUAL_SHARE_MARGIN
        chosen = min((c for c in tied if c.processor_share <= most), key=lambda c: (c.depth, c.processor_share))

    def explain() -> str:
        reason = _reason(ranked, size_bytes)
        if first is not ranked[0]:
            reason += f" {first} is an all-reduce {why}."
        if chosen is not first and not (chosen.processor_share or first.processor_share):
            reason += f" {chosen} takes fewer chunks."
        elif chosen is not first:
            how = "fewer chunks, and " if chosen.processor_share >= first.processor_share else ""
            reason += (
                f" {chosen} takes {how}{chosen.processor_share:.0%} of the processors' time from computation, instead "
                f"of {first.processor_share:.0%}."
            )
        return reason

    return Choice(chosen.algorithm, chosen.depth, chosen.prediction, chosen.occupied_s, chosen.processor_share, explain)


def _suitable(ranked: Sequence[Candidate]) -> tuple[Sequence[Candidate], str]:
    """The candidates that suit where others meet, or the first messages after a pause; and why. All if none does."""
    near = [c for c in ranked if c.delay_s <= _SUITABLE_DELAY_RATIO * ranked[0].delay_s]
    most = _MOST_ONE_SENDER_SHARE
    if one_sender := [c for c in near if c.row.has_one_sender and c.processor_share <= most]:
        return one_sender, "in which a worker receives from one other only"
    few_rounds = [c for c in near if c.row.has_two_rounds and c.processor_share > most]
    return few_rounds or ranked, "with few rounds, each of which waits for processors"


def _reason(ranked: Sequence[Candidate], size_bytes: float) -> str:
    first = ranked[0]
    what = f"{first.algorithm} at depth {first.depth}"
    time = f"{format_ms(first.time_s)} ({first.prediction.basis})"
    if first.occupied_s is None:
        text = f"{what} has the least predicted time for {size_bytes:.0f} bytes, {time}"
    else:
        text = (
            f"{what} delays a step with several transfers least at {size_bytes:.0f} bytes, by "
            f"{format_ms(first.delay_s)}: it takes {time}, and the next transfer waits for "
            f"{format_ms(first.occupied_s)} of these"
        )
    if len(ranked) > 1:
        delay = "" if first.occupied_s is None else f", which delays it by {format_ms(ranked[1].delay_s)}"
        text += f"; next best is {ranked[1]}{delay}"
    return text + "."
