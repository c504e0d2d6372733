"""Pushes: what servers get of workers."""

from __future__ import annotations

from collections.abc import Sequence

from caramel.analyzers.servers.placement import gradient_servers
from caramel.analyzers.step.sparse_slices import are_distinct
from caramel.collectives.lower import Emitter
from caramel.collectives.push import lower_push
from caramel.collectives.rows import lower_slices_to_owners
from caramel.collectives.sparse import added_slices, sent_slices
from caramel.graph.graph import tensor_name
from caramel.model import Gradient
from caramel.modifiers.emission import Purpose
from caramel.modifiers.served import Served
from caramel.server_plan import Home


class Pushes:
    """The gradients of all workers on servers, each made once somebody asks for it.

    Args:
        served: the step in the making.
    """

    def __init__(self, served: Served) -> None:
        self._step = served
        self._sums: dict[tuple[int, str, str], str] = {}

    def summed(self, server: int, gradient: Gradient, tensor: str) -> str:
        """A gradient of all workers on a server: its elements of a dense one, values or indices of a sparse one."""
        servers = gradient_servers(self._step.model, gradient, self._step.servers.home_by_variable)
        there = server if server in servers else servers[0]
        key = there, gradient.name, tensor
        if key not in self._sums:
            number, home = self._step.model.gradients.index(gradient), self._step.divided_home(gradient)
            if gradient.is_sparse and home is not None:
                self._push_rows(number, gradient, home)
            elif gradient.is_sparse:
                self._push_slices(there, number, gradient)
            elif home is not None:
                self._push_parts(number, gradient, home)
            else:
                sources = [self._step.emission.gradients[rank, gradient.name] for rank in range(self._step.workers)]
                self._sums[key] = self._pushed(there, f"caramel/push_{number}", gradient, sources)
        return self._sums[key]

    def _pushed(self, server: int, prefix: str, gradient: Gradient, sources: Sequence[str]) -> str:
        emitter = Emitter(prefix, self._step.devices, gradient.dtype)
        mean = self._step.emission.plan.reduction == "mean"
        there = self._step.workers + server
        total = lower_push(emitter, sources, there, mean=mean)
        if gradient.is_rounded:
            total = emitter.rounded(there, "rounded", total, "float16")
        self._step.collect(emitter)
        return total

    def _push_parts(self, number: int, gradient: Gradient, home: Home) -> None:
        """Send each server the elements that it has."""
        emitter = Emitter(f"caramel/push_{number}", self._step.devices, gradient.dtype)
        cut = []
        for rank in range(self._step.workers):
            source = self._step.emission.gradients[rank, gradient.name]
            flat = emitter.reshape(rank, f"flat_{rank}", source, (gradient.size,))
            cut.append(emitter.parted(rank, f"parts_{rank}", flat, home.sizes))
        self._step.collect(emitter)
        for position, (server, sources) in enumerate(zip(home.servers, zip(*cut))):
            total = self._pushed(server, f"caramel/push_{number}/part_{position}", gradient, sources)
            self._sums[server, gradient.name, tensor_name(gradient.tensor)] = total

    def _push_rows(self, number: int, gradient: Gradient, home: Home) -> None:
        """Send each server the slices of the rows that it has."""
        assert gradient.indices is not None and gradient.index_dtype is not None
        ranks = range(self._step.workers)
        lowered = lower_slices_to_owners(
            prefix=f"caramel/push_{number}",
            values=[self._step.emission.gradients[rank, gradient.name] for rank in ranks],
            indices=[self._step.emission.indices[rank, gradient.name] for rank in ranks],
            devices=self._step.devices,
            dtype=gradient.dtype,
            index_dtype=gradient.index_dtype,
            mean=self._step.emission.plan.reduction == "mean" and self._step.workers > 1,
            unites=are_distinct(self._step.model, gradient) and self._step.workers > 1,
            owners=[self._step.workers + server for server in home.servers],
        )
        for node_def, rank in lowered.nodes:
            self._step.add(node_def, rank, Purpose.COLLECTIVE)
        for server, values, indices in zip(home.servers, lowered.values, lowered.indices):
            self._sums[server, gradient.name, tensor_name(gradient.tensor)] = values
            self._sums[server, gradient.name, tensor_name(gradient.indices)] = indices

    def _push_slices(self, server: int, number: int, gradient: Gradient) -> None:
        """Send a server the slices of a sparse gradient."""
        assert gradient.indices is not None and gradient.index_dtype is not None
        ranks = range(self._step.workers)
        values = [self._step.emission.gradients[rank, gradient.name] for rank in ranks]
        indices = [self._step.emission.indices[rank, gradient.name] for rank in ranks]
        there = self._step.workers + server
        emitter = Emitter(f"caramel/push_{number}", self._step.devices, gradient.dtype)
        mean = self._step.emission.plan.reduction == "mean" and self._step.workers > 1
        sent, places = sent_slices(emitter, values, indices, gradient.index_dtype, mean=mean, adds=False, narrow=None)
        if gradient.shared_rows:  # the same rows everywhere
            total, rows = lower_push(emitter, sent, there, mean=False), places[0]
        else:
            total, rows = sent[0], places[0]
            if self._step.workers > 1:
                total = emitter.concat(there, "values", sent)
                rows = emitter.concat(there, "indices", places, gradient.index_dtype)
            if are_distinct(self._step.model, gradient) and self._step.workers > 1:
                total, rows = added_slices(emitter, there, total, rows, gradient.index_dtype)
        self._step.collect(emitter)
        self._sums[server, gradient.name, tensor_name(gradient.tensor)] = total
        self._sums[server, gradient.name, tensor_name(gradient.indices)] = rows
