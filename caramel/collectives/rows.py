"""Tables that are divided by rows: some ranks own them, each some rows; others look them up there, and send gradients.

Owners are the workers themselves, or parameter servers. Which of them a rank asks for how much follows from its
indices, so all messages are between two ranks, and of any size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caramel.collectives.lower import Emitter
from caramel.collectives.sparse import LoweredGather, joined_slices, sent_slices
from caramel.graph.graph import NodeDef, format_input
from caramel.graph.nodes import constant, dtype_attribute


@dataclass(frozen=True)
class LoweredLookup:
    """Nodes that look up rows.

    Attributes:
        nodes: pairs of a node and the rank whose device it is on.
        rows: name of the tensor of each rank with the rows that it looks up, shape [*indices, *row].
        gathers: for each owner the names of the nodes that read its part of the table, one for each rank that asks.
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
    owners: Sequence[int] | None = None,
) -> LoweredLookup:
    """Emit the lookup of rows at the ranks that have them.

    Each rank asks each owner for the rows that it has, every row once: 2 rounds. An index that is out of range is
    out of range at the owner that it goes to, too, so that its gather refuses it.

    Args:
        prefix: scope of the new nodes.
        indices: name of the indices of each rank that asks, of any shape.
        handles: name of the handle of each owner's part of the table.
        devices: device string of each rank.
        dtype: element type of the table.
        index_dtype: element type of the indices, an integer.
        owners: ranks of the owners; default: all that ask.

    Source:
        What parameter servers do with sparse parameters.
    """
    emitter = Emitter(prefix, devices, dtype)
    ranks = range(len(indices))
    owners = ranks if owners is None else owners
    if index_dtype not in _INDEX_DTYPES:
        indices = [emitter.cast(rank, f"wide_{rank}", text, "int64", index_dtype) for rank, text in enumerate(indices)]
        index_dtype = "int64"
    of_index, int32 = dtype_attribute(index_dtype), dtype_attribute("int32")
    wanted, places, order = [], [], []
    for rank in ranks:
        flat = emitter.add(
            rank, f"flat_{rank}", "Reshape", [indices[rank], emitter.integers(rank, [-1])], T=of_index, Tshape=int32
        )
        distinct = emitter.add(rank, f"distinct_{rank}", "Unique", [flat], T=of_index, out_idx=int32)
        shape = emitter.add(rank, f"shape_{rank}", "Shape", [indices[rank]], T=of_index, out_type=int32)
        places.append(emitter.add(rank, f"places_{rank}", "Reshape", [f"{distinct}:1", shape], T=int32, Tshape=int32))
        if len(owners) == 1:
            wanted.append([distinct])
            continue
        parts = _Parts(emitter, rank, distinct, index_dtype, len(owners))
        count = emitter.add(rank, f"count_{rank}", "Size", [distinct], T=of_index, out_type=int32)
        bounds = [emitter.integers(rank, 0), count, emitter.integers(rank, 1)]
        numbers = emitter.add(rank, f"numbers_{rank}", "Range", bounds, Tidx=int32)
        wanted.append(parts.local())
        order.append(parts.of("order", numbers, "int32"))
    gathers = [
        [
            emitter.add(
                owner,
                gather_of(place, rank),
                "ResourceGather",
                [handles[place], wanted[rank][place]],
                dtype=dtype_attribute(dtype),
                Tindices=of_index,
            )
            for rank in ranks
        ]
        for place, owner in enumerate(owners)
    ]
    rows = []
    for rank in ranks:
        stitched = gathers[0][rank]
        if len(owners) > 1:
            inputs = [*order[rank], *(of_owner[rank] for of_owner in gathers)]
            attributes = {"N": len(owners), "T": dtype_attribute(dtype)}
            stitched = emitter.add(rank, f"stitched_{rank}", "DynamicStitch", inputs, **attributes)
        attributes = {"Tparams": dtype_attribute(dtype), "Tindices": int32, "Taxis": int32, "batch_dims": 0}
        inputs = [stitched, places[rank], emitter.integers(rank, 0)]
        rows.append(emitter.add(rank, f"rows_{rank}", "GatherV2", inputs, **attributes))
    return LoweredLookup(tuple(emitter.out.nodes), tuple(rows), tuple(map(tuple, gathers)))


def gather_of(place: int, rank: int) -> str:
    """Last part of the name of the op that looks up rows for a rank; `caramel.runtime.row_errors` reads it, too.

    Args:
        place: place of the owner among the owners.
        rank: the rank that asks.
    """
    return f"gather_{place}_{rank}"


def lower_slices_to_owners(
    *,
    prefix: str,
    values: Sequence[str],
    indices: Sequence[str],
    devices: Sequence[str],
    dtype: str,
    index_dtype: str,
    mean: bool,
    wire: str | None = None,
    adds: bool = False,
    unites: bool = False,
    owners: Sequence[int] | None = None,
) -> LoweredGather:
    """Emit the transfer of the slices of a sparse gradient to the ranks that have their rows: 1 round.

    Each owner gets the slices of its rows of all ranks, in rank order, as an all-gather would bring them, with indices
    that count its own rows only.

    Args:
        prefix: scope of the new nodes.
        values: name of the values of each rank that sends some, shape [slices, ...].
        indices: name of the indices of each of them, shape [slices].
        devices: device string of each rank.
        dtype: element type of the values.
        index_dtype: ``"int32"`` or ``"int64"``.
        mean: whether the values are divided by the number of ranks that send some, before any are added up.
        wire: element type of the values in messages; None if it is ``dtype``.
        adds: whether each rank first adds up its slices of one index.
        unites: whether each owner adds up what it gets of one index.
        owners: ranks of the owners; default: all that send some.

    Returns:
        The nodes, and what each owner gets, in their order.

    Source:
        What parameter servers do with sparse parameters.
    """
    emitter = Emitter(prefix, devices, dtype)
    narrow = None if wire == dtype else wire
    owners = range(len(values)) if owners is None else owners
    sent, indices = sent_slices(emitter, values, indices, index_dtype, mean=mean, adds=adds, narrow=narrow)
    parts, places = [], []
    for rank, (value, index) in enumerate(zip(sent, indices)):
        of_rank = _Parts(emitter, rank, index, index_dtype, len(owners))
        parts.append(of_rank.of("values", value, narrow or dtype))
        places.append(of_rank.local())
    of_owners = [*zip(*parts)], [*zip(*places)]
    return joined_slices(emitter, *of_owners, index_dtype, narrow=narrow, unites=unites, ranks=owners)


_INDEX_DTYPES = ("int32", "int64")
"""Element types of indices that TensorFlow's gathers from variables take."""


class _Parts:
    """What a rank has of the rows of each owner.

    Args:
        emitter: collector of the nodes.
        rank: the rank.
        indices: its indices of rows, shape [indices].
        index_dtype: their element type.
        owners: number of owners.
    """

    def __init__(self, emitter: Emitter, rank: int, indices: str, index_dtype: str, owners: int) -> None:
        self._emitter, self._rank, self._dtype, self._owners = emitter, rank, index_dtype, owners
        of_index = dtype_attribute(index_dtype)
        made = constant(f"{emitter.prefix}/owners_{rank}", owners, index_dtype, emitter.devices[rank])
        emitter.out.nodes.append((made, rank))
        owner = emitter.add(rank, f"remainder_{rank}", "FloorMod", [indices, made.name], T=of_index)
        self._own = emitter.add(rank, f"quotient_{rank}", "FloorDiv", [indices, made.name], T=of_index)
        self._owner = (
            owner if index_dtype == "int32" else emitter.cast(rank, f"owner_{rank}", owner, "int32", index_dtype)
        )

    def of(self, name: str, tensor: str, dtype: str) -> list[str]:
        """A tensor with an entry for each index, in parts: those for the rows of each owner."""
        cut = self._emitter.add(
            self._rank,
            f"{name}_parts_{self._rank}",
            "DynamicPartition",
            [tensor, self._owner],
            num_partitions=self._owners,
            T=dtype_attribute(dtype),
        )
        return [format_input(cut, owner) for owner in range(self._owners)]

    def local(self) -> list[str]:
        """The indices for each owner, which count its own rows."""
        return self.of("indices", self._own, self._dtype)
