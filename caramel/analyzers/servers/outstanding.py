"""The pulls that have not been received yet, and their properties, which follow as pulls are taken."""

from __future__ import annotations

import numpy as np

from caramel.analyzers.servers.pulls import PullProblem
from caramel.util.intervals import TIME_RESOLUTION_S

NEVER = int(np.iinfo(np.int64).max)
"""Ticks that stand for infinity: M+ of a pull after which no op needs a further one."""

_WORD_BITS = 64


class OutstandingPulls:
    """Pulls that are outstanding (R of the papers), with M, P and M+ in ticks.

    Algorithm 1 goes through the whole graph after each pull. Here a pull that is taken changes only the sets that
    it is in, and M+ is worked out for those pulls only that it is asked for.

    Attributes:
        is_outstanding: (pulls,) whether a pull is.
        pull_ticks: (pulls,) M of each: the time of its own transfer.
        compute_load: (pulls,) P of each: the time of the ops that wait for it and for no other outstanding one.

    Source:
        TicTac, section 4.1, Algorithm 1.
    """

    def __init__(self, problem: PullProblem, by_channel: bool = False) -> None:
        """All pulls of a step.

        Args:
            problem: one worker's step.
            by_channel: whether M of an op is the time of its most loaded channel (as in TAO), or of all of them (TAC):
                the earlier version of TicTac alone says that M "is computed independently for each channel and the max
                time is chosen".
        """
        members = problem.sets.members
        self.is_outstanding = np.ones(len(problem.pulls), dtype=bool)
        self.pull_ticks = _ticks([pull.time_s for pull in problem.pulls])
        self.compute_load = np.zeros(len(problem.pulls), dtype=np.int64)
        self._members = members
        self._words = np.ascontiguousarray(_packed(members).T)
        self._sets_of = [np.flatnonzero(column) for column in members.T]
        self._set_ticks = problem.sets.totals(_ticks([op.time_s for op in problem.ops]))
        self._left = members.sum(axis=1)
        # Of the positions of what is left in a set. When one is left, this is its position.
        self._position_sums = members @ np.arange(len(problem.pulls))
        channels = [pull.channel if by_channel else 0 for pull in problem.pulls]
        used = sorted(set(channels)) or [0]
        self._channels = [used.index(channel) for channel in channels]
        in_channel = np.equal.outer(np.arange(len(used)), np.array(self._channels, dtype=np.int64))
        self._loads = (in_channel * self.pull_ticks) @ members.T
        self._add_compute_load(np.flatnonzero(self._left == 1))

    def take(self, pull: int) -> None:
        """Receive a pull.

        Args:
            pull: position of an outstanding one.
        """
        sets = self._sets_of[pull]
        self._left[sets] -= 1
        self._position_sums[sets] -= pull
        self._loads[self._channels[pull], sets] -= self.pull_ticks[pull]
        self.is_outstanding[pull] = False
        self._add_compute_load(sets[self._left[sets] == 1])

    def communication(self) -> np.ndarray:
        """M of the ops of each set."""
        return self._loads.max(axis=0)

    def impending(self, fewest: int = 2) -> np.ndarray:
        """M+ of each pull: the least M of an op that waits for it and for others.

        Args:
            fewest: how many outstanding pulls such an op waits for at least.

        Returns:
            (pulls,) ticks; `NEVER` where there is no such op, and for what has been taken.
        """
        least = np.full(len(self.pull_ticks), NEVER)
        communication = self.communication()
        sets = np.flatnonzero(self._left >= fewest)
        # The largest first: what is written last is the least.
        for row in sets[np.argsort(-communication[sets], kind="stable")]:
            least[self._members[row]] = communication[row]
        least[~self.is_outstanding] = NEVER
        return least

    def with_least_impending(self, candidates: np.ndarray) -> np.ndarray:
        """Those pulls, out of some outstanding ones, whose M+ is the least.

        Args:
            candidates: (pulls,) whether a pull is one of them.

        Returns:
            (pulls,) whether a pull is one of them, and its M+ the least.
        """
        # Theirs is the least M of a set that has one of them: no need for M+ of each.
        shared = np.bitwise_or.reduce(self._words & _packed(candidates[None]).T, axis=0)
        sets = np.flatnonzero((shared != 0) & (self._left > 1))
        if not sets.size:
            return candidates
        communication = self._loads[:, sets].max(axis=0)
        joined = np.bitwise_or.reduce(self._words[:, sets[communication == communication.min()]], axis=1)
        return candidates & np.unpackbits(joined.view(np.uint8), count=len(candidates), bitorder="little").view(bool)

    def _add_compute_load(self, sets: np.ndarray) -> None:
        """Add the ops of sets with one pull left to the P of that pull."""
        np.add.at(self.compute_load, self._position_sums[sets], self._set_ticks[sets])


def _ticks(times_s: list[float]) -> np.ndarray:
    """Times in whole ticks."""
    return np.rint(np.array(times_s, dtype=np.float64) / TIME_RESOLUTION_S).astype(np.int64)


def _packed(rows: np.ndarray) -> np.ndarray:
    """Rows of bits as rows of words."""
    words = max(1, -(-rows.shape[1] // _WORD_BITS))
    padded = np.zeros((len(rows), words * _WORD_BITS // 8), dtype=np.uint8)
    padded[:, : -(-rows.shape[1] // 8)] = np.packbits(rows, axis=1, bitorder="little")
    return padded.view(np.uint64)
