"""Tables that are divided by rows: every rank has some rows, looks up those of others there, and sends their gradients.

Which ranks a rank asks for how much follows from its indices, so all messages are between two ranks, and of any size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from caramel.collectives.lower import Emitter
from caramel.collectives.schedule import ALIGNMENT_ELEMENTS
from caramel.collectives.sparse import LoweredGather, added_slices
from caramel.graph.graph import NodeDef, format_input
from caramel.graph.nodes import constant, dtype_attribute


def row_ranges(rows: int, row_elements: int, workers: int) -> tuple[range, ...]:
    """The rows that each rank has: equally many, but for the last ones.

    Cuts are at multiples of 64 elements, so that each element is where it was in a register, and each row is computed
    by the same instructions as in the whole table.

    Args:
        rows: number of rows of the table.
        row_elements: number of elements of a row.
        workers: number of ranks.

    Returns:
        The rows of each rank, in order; the last ranks of a small table may have none.
    """
    together = ALIGNMENT_ELEMENTS // math.gcd(ALIGNMENT_ELEMENTS, max(row_elements, 1))
    each = max(1, -(-rows // workers))
    each = -(-each // together) * together
    return tuple(range(min(rank * each, rows), min((rank + 1) * each, rows)) for rank in range(workers))


@dataclass(frozen=True)
class LoweredLookup:
    """Nodes that look up rows.

    Attributes:
        nodes: pairs of a node and the rank whose device it is on.
        rows: name of the tensor of each rank with the rows that it looks up, shape [*indices, *row].
        gathers: for each rank the names of the nodes that read its part of the table.
    """

    nodes: tuple[tuple[NodeDef, int], ...]
    rows: tuple[str, ...]
    gathers: tuple[tuple[str, ...], ...]


def lower_lookup(
    *,
    prefix: str,
    indices: Sequence[str],
    handles: Sequence[str],
    devices: Sequence[str],
    dtype: str,
    index_dtype: str,
    ranges: Sequence[range],
) -> LoweredLookup:
    """Emit the lookup of rows at the ranks that have them.

    Each rank asks each other one for the rows that it has, every row once: 2 rounds. An index that is out of range goes
    to the first or last rank, whose gather refuses it.

    Args:
        prefix: scope of the new nodes.
        indices: name of the indices of each rank, of any shape.
        handles: name of the handle of each rank's part of the table.
        devices: device string of each rank.
        dtype: element type of the table.
        index_dtype: ``"int32"`` or ``"int64"``.
        ranges: rows of each rank, see `row_ranges`.

    Source:
        What parameter servers do with sparse parameters.
    """
    emitter = Emitter(prefix, devices, dtype)
    ranks = range(len(devices))
    of_index, int32 = dtype_attribute(index_dtype), dtype_attribute("int32")
    wanted, places, order = [], [], []
    for rank in ranks:
        flat = emitter.add(
            rank, f"flat_{rank}", "Reshape", [indices[rank], emitter.integers(rank, [-1])], T=of_index, Tshape=int32
        )
        distinct = emitter.add(rank, f"distinct_{rank}", "Unique", [flat], T=of_index, out_idx=int32)
        parts = _Parts(emitter, rank, distinct, index_dtype, ranges)
        count = emitter.add(rank, f"count_{rank}", "Size", [distinct], T=of_index, out_type=int32)
        bounds = [emitter.integers(rank, 0), count, emitter.integers(rank, 1)]
        numbers = emitter.add(rank, f"numbers_{rank}", "Range", bounds, Tidx=int32)
        wanted.append(parts.local())
        order.append(parts.of("order", numbers, "int32"))
        shape = emitter.add(rank, f"shape_{rank}", "Shape", [indices[rank]], T=of_index, out_type=int32)
        places.append(emitter.add(rank, f"places_{rank}", "Reshape", [f"{distinct}:1", shape], T=int32, Tshape=int32))
    gathers = [
        [
            emitter.add(
                owner,
                f"gather_{owner}_{rank}",
                "ResourceGather",
                [handles[owner], wanted[rank][owner]],
                dtype=dtype_attribute(dtype),
                Tindices=of_index,
            )
            for rank in ranks
        ]
        for owner in ranks
    ]
    rows = []
    for rank in ranks:
        inputs = [*order[rank], *(gathers[owner][rank] for owner in ranks)]
        attributes = {"N": len(ranks), "T": dtype_attribute(dtype)}
        stitched = emitter.add(rank, f"stitched_{rank}", "DynamicStitch", inputs, **attributes)
        attributes = {"Tparams": dtype_attribute(dtype), "Tindices": int32, "Taxis": int32, "batch_dims": 0}
        inputs = [stitched, places[rank], emitter.integers(rank, 0)]
        rows.append(emitter.add(rank, f"rows_{rank}", "GatherV2", inputs, **attributes))
    return LoweredLookup(tuple(emitter.out.nodes), tuple(rows), tuple(map(tuple, gathers)))


def lower_slices_to_owners(
    *,
    prefix: str,
    values: Sequence[str],
    indices: Sequence[str],
    devices: Sequence[str],
    dtype: str,
    index_dtype: str,
    mean: bool,
    ranges: Sequence[range],
    wire: str | None = None,
    adds: bool = False,
) -> LoweredGather:
    """Emit the transfer of the slices of a sparse gradient to the ranks that have their rows: 1 round.

    Each rank gets the slices of its rows of all ranks, in rank order, as an all-gather would bring them, with indices
    that count from its first row.

    Args:
        prefix: scope of the new nodes.
        values: name of the values of each rank, shape [slices, ...].
        indices: name of the indices of each rank, shape [slices].
        devices: device string of each rank.
        dtype: element type of the values.
        index_dtype: ``"int32"`` or ``"int64"``.
        mean: whether the values are divided by the number of ranks, before any are added up.
        ranges: rows of each rank, see `row_ranges`.
        wire: element type of the values in messages; None if it is ``dtype``.
        adds: whether each rank first adds up its slices of one index.

    Source:
        What parameter servers do with sparse parameters.
    """
    emitter = Emitter(prefix, devices, dtype)
    workers = len(values)
    narrow = None if wire == dtype else wire
    parts, places = [], []
    for rank, (value, index) in enumerate(zip(values, indices)):
        if mean:
            value = emitter.divided(rank, f"share_{rank}", value, workers)
        if adds:
            value, index = added_slices(emitter, rank, value, index, index_dtype)
        if narrow is not None:
            value = emitter.cast(rank, f"send_{rank}", value, narrow, dtype)
        of_rank = _Parts(emitter, rank, index, index_dtype, ranges)
        parts.append(of_rank.of("values", value, narrow or dtype))
        places.append(of_rank.local())
    gathered, rows = [], []
    for owner in range(workers):
        joined = emitter.concat(owner, f"values_{owner}", [of_rank[owner] for of_rank in parts], narrow)
        gathered.append(joined if narrow is None else emitter.cast(owner, f"received_{owner}", joined, dtype, narrow))
        rows.append(emitter.concat(owner, f"indices_{owner}", [of_rank[owner] for of_rank in places], index_dtype))
    return LoweredGather(tuple(emitter.out.nodes), tuple(gathered), tuple(rows))


class _Parts:
    """What a rank has of the rows of each owner.

    Args:
        emitter: collector of the nodes.
        rank: the rank.
        indices: its indices of rows, shape [indices].
        index_dtype: their element type.
        ranges: rows of each owner.
    """

    def __init__(self, emitter: Emitter, rank: int, indices: str, index_dtype: str, ranges: Sequence[range]) -> None:
        self._emitter, self._rank, self._indices = emitter, rank, indices
        self._dtype, self._ranges = index_dtype, ranges
        of_index = dtype_attribute(index_dtype)
        rows = self._number("rows_of_one", len(ranges[0]))
        owner = emitter.add(rank, f"quotient_{rank}", "FloorDiv", [indices, rows], T=of_index)
        for name, op, bound in (("from", "Maximum", 0), ("to", "Minimum", len(ranges) - 1)):
            owner = emitter.add(rank, f"{name}_{rank}", op, [owner, self._number(f"{name}_bound", bound)], T=of_index)
        self._owner = emitter.cast(rank, f"owner_{rank}", owner, "int32", index_dtype)

    def of(self, name: str, tensor: str, dtype: str) -> list[str]:
        """A tensor with an entry for each index, in parts: those for the rows of each owner."""
        workers = len(self._ranges)
        cut = self._emitter.add(
            self._rank,
            f"{name}_parts_{self._rank}",
            "DynamicPartition",
            [tensor, self._owner],
            num_partitions=workers,
            T=dtype_attribute(dtype),
        )
        return [format_input(cut, owner) for owner in range(workers)]

    def local(self) -> list[str]:
        """The indices for each owner, counted from its first row."""
        return [
            self._emitter.add(
                self._rank,
                f"local_{self._rank}_{owner}",
                "Sub",
                [part, self._number(f"start_{owner}", owner * len(self._ranges[0]))],
                T=dtype_attribute(self._dtype),
            )
            for owner, part in enumerate(self.of("indices", self._indices, self._dtype))
        ]

    def _number(self, name: str, value: int) -> str:
        emitter, rank = self._emitter, self._rank
        made = constant(f"{emitter.prefix}/{name}_{rank}", value, self._dtype, emitter.devices[rank])
        emitter.out.nodes.append((made, rank))
        return made.name
