"""The unrolled steps of a session: their nodes are added to its graph when they are first wanted."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caramel.compiler.distributed_model import DistributedModel
from caramel.graph.graph import Graph
from caramel.graph.nodes import node
from caramel.modifiers.emission import own_name
from caramel.modifiers.unroll import MOST_NODES, Unrolling
from caramel.modifiers.unrolled_elements import TakenElements
from caramel.runtime.feeds import Batch, step_feeds, step_fetches
from caramel.runtime.packed_feeds import PackedFeeds
from caramel.signature import Signature
from caramel.util.user_warnings import warn_user

_EMPTY_RUNS = 9

_MOST_FED_BYTES = 2**30
"""Bytes of what is fed in a run to workers elsewhere; a message of gRPC can have almost twice as many."""


@dataclass(frozen=True)
class StepsTogether:
    """Steps that are one run.

    Attributes:
        single: signature of a step that runs by itself.
        signatures: signature of each step; the first ones may be run without the others.
        elements: how the workers take their elements; None without a dataset.
        packed: what is fed to each worker in one array; None where each tensor is fed by itself.
    """

    single: Signature
    signatures: tuple[Signature, ...]
    elements: TakenElements | None
    packed: PackedFeeds | None

    def run_of(self, batches: Sequence[Batch]) -> tuple[list[str], list[str], Mapping[str, Any]]:
        """What to fetch, to run and to feed for the first steps.

        Args:
            batches: batch of each of them, with the placeholders of a step that runs by itself.
        """
        signatures = self.signatures[: len(batches)]
        feeds: dict[str, Any] = {}
        for signature, batch in zip(signatures, batches):
            own = dict(zip(_placeholders(self.single), _placeholders(signature)))
            of_step = Batch({own[name]: array for name, array in batch.feeds.items()}, batch.shares, batch.reduction)
            feeds |= step_feeds(signature, of_step, is_packed=self.packed is not None)
        if self.packed is not None:
            feeds = self.packed.feeds(feeds)
        fetches = [name for signature in signatures for name in step_fetches(signature)]
        return fetches, [name for signature in signatures for name in signature.step], feeds


class UnrolledSteps:
    """What a session has of unrolled steps.

    Args:
        distributed: distributed model of the session.
        extend: function that adds nodes to the session's graph.
        is_elsewhere: whether the workers are in other processes.
    """

    def __init__(self, distributed: DistributedModel, extend: Callable[[bytes], None], is_elsewhere: bool) -> None:
        self._signature = distributed.signature
        self._unrolling = Unrolling(distributed.emission, distributed.signature)
        self._extend = extend
        self._is_elsewhere = is_elsewhere
        self._said_why_not = self._has_empty_run = False
        self._by_count: dict[int, StepsTogether] = {}

    def most(self, steps: int) -> int:
        """Number of steps that may be one run; a warning says once why it is 1.

        Args:
            steps: wanted number of steps, more than 1.
        """
        reason = self._unrolling.reason
        if reason is None and self._unrolling.most_steps == 1:
            reason = f"two copies of it have more than {MOST_NODES:,} nodes"
        if reason is None:
            return min(steps, self._unrolling.most_steps)
        if not self._said_why_not:
            warn_user(f"each step is a run of its own, as it cannot be unrolled: {reason}")
            self._said_why_not = True
        return 1

    def fits(self, batches: Sequence[Batch]) -> bool:
        """Whether batches can be fed in one run: to workers elsewhere they travel in one message.

        Args:
            batches: batch of each step.
        """
        size = sum(np.asarray(array).nbytes for batch in batches for array in batch.feeds.values())
        return not self._is_elsewhere or size <= _MOST_FED_BYTES

    @property
    def nodes(self) -> int:
        """Number of nodes of each step."""
        return self._unrolling.nodes

    def empty_run_s(self, run: Callable[[Sequence[str]], object]) -> float:
        """Seconds of a run in which every worker does nothing.

        Args:
            run: function that runs ops.
        """
        nodes = [
            node(own_name(rank, "nothing"), "NoOp", (), device) for rank, device in enumerate(self._signature.devices)
        ]
        if not self._has_empty_run:
            self._extend(Graph(nodes).to_bytes())
            self._has_empty_run = True
        times_s = []
        for _ in range(_EMPTY_RUNS):
            begin_s = time.perf_counter()
            run([each.name for each in nodes])
            times_s.append(time.perf_counter() - begin_s)
        return statistics.median(times_s)

    @property
    def is_used(self) -> bool:
        """Whether there are nodes of unrolled steps in the session's graph."""
        return bool(self._by_count)

    def has(self, count: int) -> bool:
        """Whether nodes of so many steps are in the session's graph."""
        return count in self._by_count

    def elements(self, count: int) -> TakenElements:
        """How the workers take their elements for steps, whose nodes are in the session's graph then.

        Args:
            count: number of steps.
        """
        found = self.steps(count).elements
        assert found is not None
        return found

    def steps(self, count: int) -> StepsTogether:
        """Steps whose nodes are in the session's graph.

        Args:
            count: number of steps.
        """
        if count not in self._by_count:
            unrolled = self._unrolling.steps(count)
            graph_def, packed = unrolled.nodes.to_graph_def(), None
            if self._is_elsewhere and unrolled.elements is None:  # of these, any number of steps may be run
                packed = PackedFeeds.of(graph_def, unrolled.signatures, f"fed_{count}")
            if packed is not None:
                graph_def = packed.graph_def(graph_def, self._signature.devices)
            self._extend(graph_def.SerializeToString(deterministic=True))
            self._by_count[count] = StepsTogether(self._signature, unrolled.signatures, unrolled.elements, packed)
        return self._by_count[count]


def _placeholders(signature: Signature) -> list[str]:
    """What the driver may feed of the inputs, for all workers."""
    return [name for feed in signature.feeds for name in feed.placeholders]
