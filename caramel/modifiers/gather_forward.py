"""Gather forward: the examples of all workers on each worker, where a loss compares them with each other."""

from __future__ import annotations

from collections.abc import Sequence

from caramel.graph.nodes import dtype_attribute
from caramel.modifiers.forward_nodes import ForwardNodes


class Gathering(ForwardNodes):
    """The workers' examples one after the other; of the gradient that comes back, each worker takes its own rows."""

    def emitted(self) -> tuple[list[str], dict[str, list[str]]]:
        """See `ForwardNodes.emitted`."""
        batches = self.forward_sum.batches
        # Rows of one batch; a worker without examples computes with one that is not its own.
        rows = [
            self._divided(rank, self.rows(rank, part, self.dtype, self.forward_sum.axis))
            for rank, part in enumerate(self.parts)
        ]
        own = self.weighted(rows, "sum", "int32")
        pieces = [self._batches(rank, "own", part) for rank, part in enumerate(self.parts)]
        joined = []
        for batch in range(batches):
            cut = [
                self._slice(rank, f"own/rows_{batch}", pieces[rank][batch], self._zero(rank, f"own/{batch}"), own[rank])
                for rank in self.ranks
            ]
            joined.append(self.joined(f"batch_{batch}", cut, self.forward_sum.axis))
        whole = joined[0] if batches == 1 else self.joined("batches", joined, self.forward_sum.axis)
        results = self.shared("gathered", whole)
        if not self.forward_sum.entries:
            return results, {}
        starts = self._starts(own)
        factors = [self.factor(rank) for rank in self.ranks]
        entering = {}
        for number, entry in enumerate(self.forward_sum.entries):
            entering[entry] = [
                self._own_rows(rank, f"entering_{number}", tensor, starts[rank], rows[rank], factors[rank])
                for rank, tensor in enumerate(self.entering(number, entry))
            ]
        return results, entering

    def _own_rows(self, rank: int, name: str, gradient: str, start: str, rows: str, factor: str | None) -> str:
        """A worker's rows of the gradient of the whole, times the factor."""
        none = self.add(rank, f"{name}/none", "ZerosLike", [self.parts[rank]], T=dtype_attribute(self.dtype))
        taken = []
        for batch, piece in enumerate(self._batches(rank, name, gradient)):
            # Rows that are not there, which only a worker without examples asks for, are zeros.
            padded = self._concat(rank, f"{name}/padded_{batch}", [piece, none])
            taken.append(self._slice(rank, f"{name}/rows_{batch}", padded, start, rows))
        mine = taken[0] if len(taken) == 1 else self._concat(rank, f"{name}/rows", taken)
        return mine if factor is None else self.product(rank, f"{name}/scaled", mine, factor)

    def _starts(self, own: Sequence[str]) -> list[str]:
        """The number of rows in front of each worker's."""
        int32 = dtype_attribute("int32")
        total = self._emitter.integers(0, 0)
        starts = [total]
        for rank in self.ranks[:-1]:
            total = self._emitter.add(0, f"start_{rank + 1}", "AddV2", [total, own[rank]], T=int32)
            starts.append(total)
        return [self._emitter.identity(rank, f"start/result_{rank}", starts[rank], "int32") for rank in self.ranks]

    def _divided(self, rank: int, rows: str) -> str:
        if self.forward_sum.batches == 1:
            return rows
        batches = self.constant(rank, "number_of_batches", self.forward_sum.batches, "int32")
        return self.add(rank, "rows_of_a_batch", "FloorDiv", [rows, batches], T=dtype_attribute("int32"))

    def _batches(self, rank: int, name: str, tensor: str) -> list[str]:
        """The batches along the axis of the examples."""
        batches = self.forward_sum.batches
        if batches == 1:
            return [tensor]
        axis = self.constant(rank, f"{name}/axis", self.forward_sum.axis, "int32")
        kind = dtype_attribute(self.dtype)
        split = self.add(rank, f"{name}/batches", "Split", [axis, tensor], T=kind, num_split=batches)
        return [f"{split}:{number}" if number else split for number in range(batches)]

    def _zero(self, rank: int, name: str) -> str:
        return self.constant(rank, f"{name}/from", 0, "int32")

    def _slice(self, rank: int, name: str, tensor: str, start: str, rows: str) -> str:
        """Rows of a tensor along the axis of the examples."""
        axis = self.constant(rank, f"{name}/axis", self.forward_sum.axis, "int32")
        end = self.add(rank, f"{name}/end", "AddV2", [start, rows], T=dtype_attribute("int32"))
        one = self.constant(rank, f"{name}/one", 1, "int32")
        places = self.add(rank, f"{name}/places", "Range", [start, end, one], Tidx=dtype_attribute("int32"))
        attributes = {"Tparams": dtype_attribute(self.dtype), "Tindices": dtype_attribute("int32")}
        return self.add(
            rank, name, "GatherV2", [tensor, places, axis], Taxis=dtype_attribute("int32"), batch_dims=0, **attributes
        )

    def _concat(self, rank: int, name: str, parts: Sequence[str]) -> str:
        axis = self.constant(rank, f"{name}/axis", self.forward_sum.axis, "int32")
        attributes = {"T": dtype_attribute(self.dtype), "Tidx": dtype_attribute("int32"), "N": len(parts)}
        return self.add(rank, name, "ConcatV2", [*parts, axis], **attributes)


class Shapes(ForwardNodes):
    """The shape of a worker's part with the number of all examples in place of its own."""

    def emitted(self) -> tuple[list[str], dict[str, list[str]]]:
        """See `ForwardNodes.emitted`."""
        axis, kind = self.forward_sum.axis, dtype_attribute(self.dtype)
        sizes = [self.entry(rank, "rows", part, axis, self.dtype) for rank, part in enumerate(self.parts)]
        totals = self.over_workers("rows", self.weighted(sizes, "sum"))
        results = []
        for rank, part in enumerate(self.parts):
            begins = [self.constant(rank, f"begin_{n}", [n], "int32") for n in (0, axis + 1)]
            lengths = [self.constant(rank, f"length_{n}", [n], "int32") for n in (axis, -1)]
            attributes = {"T": kind, "Index": dtype_attribute("int32")}
            front = self.add(rank, "front", "Slice", [part, begins[0], lengths[0]], **attributes)
            back = self.add(rank, "back", "Slice", [part, begins[1], lengths[1]], **attributes)
            place = self.constant(rank, "place", 0, "int32")
            shape = self.constant(rank, "one_entry", [1], "int32")
            total = self.add(rank, "total", "Reshape", [totals[rank], shape], T=kind, Tshape=dtype_attribute("int32"))
            attributes = {"T": kind, "Tidx": dtype_attribute("int32"), "N": 3}
            results.append(self.add(rank, "whole", "ConcatV2", [front, total, back, place], **attributes))
        return results, {}
