"""What sparse gradients cost: bytes, lookups and updates, with whole tables or with divided ones."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from caramel.analyzers.cost.network import Network
from caramel.analyzers.step.row_updates import SLICE_OPS, row_updates
from caramel.analyzers.step.sparse_slices import different_part, distinct_part
from caramel.facts import Trace
from caramel.graph.graph import node_of
from caramel.model import Gradient, Model


@dataclass(frozen=True)
class TableCosts:
    """What the tables of a step cost.

    Attributes:
        model: the single-device step.
        trace: measured times of the step, of one worker's batch.
        network: network with the element type on the wire.
        divided: names of the gradients of whose tables each worker has some rows.
    """

    model: Model
    trace: Trace
    network: Network
    divided: Collection[str]

    def sent_bytes(self, gradient: Gradient) -> float:
        """Bytes of the all-reduce that sends as much as the transfer of a sparse gradient.

        Everybody gets the rows of all others, N - 1 times their bytes; or of a divided table (N - 1) / N of them. An
        all-reduce sends 2 (N - 1) / N.
        """
        part = distinct_part(self.model, gradient, self.trace, self.network.options.deterministic)
        times = 1 if gradient.name in self.divided else self.network.workers
        return part * self._slice_bytes(gradient) * times / 2

    def _slice_bytes(self, gradient: Gradient) -> float:
        """Bytes of a worker's slices, and of their indices."""
        index_bytes = self.trace.op_bytes.get(node_of(gradient.indices), 0) if gradient.indices else 0
        return self.trace.op_bytes.get(node_of(gradient.tensor), gradient.size_bytes) + index_bytes

    def waits_s(self) -> dict[str, float]:
        """Seconds that a step waits for the rows of divided tables, by the op that looks them up."""
        if self.trace.runs == 0 or not self.network.is_known or self.network.workers == 1:
            return {}
        waits_s = {}
        for gradient in self.model.gradients:
            for lookup in row_updates(self.model)[0][gradient.name].lookups if gradient.name in self.divided else ():
                rows_bytes = self.trace.op_bytes.get(lookup.node, 0)
                # Each row once; there are as many messages in front of it that say which.
                part = different_part(self.model, gradient, self.trace)
                waits_s[lookup.node] = self.network.time_s(part * rows_bytes / 2) + self.network.time_s(0)
        return waits_s

    def times(self, name: str, op: str) -> float:
        """How many times as long as in the trace an op of an update takes.

        With whole tables each worker has the slices of all workers to work on. With divided ones it has as many as its
        own, and works on its part of all rows.

        Args:
            name: name of the gradient.
            op: name of the op.
        """
        workers = self.network.workers
        if name in self.divided:
            return 1 / workers if op in row_updates(self.model)[0][name].whole else 1.0
        is_of_slices = self.model.graph[op].op in SLICE_OPS and name in self._sparse_names
        return workers if is_of_slices else 1.0

    @property
    def _sparse_names(self) -> frozenset[str]:
        return frozenset(g.name for g in self.model.gradients if g.is_sparse and not g.shared_rows)
