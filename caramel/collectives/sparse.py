"""Sparse gradients, of which nothing is made dense.

Where examples choose the rows, everybody gets everybody's indices and values. Where all ranks have the same rows,
slices are added up one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caramel.collectives.lower import Emitter
from caramel.graph.graph import NodeDef
from caramel.graph.nodes import dtype_attribute


@dataclass(frozen=True)
class LoweredGather:
    """Nodes that aggregate slices.

    Attributes:
        nodes: pairs of a node and the rank whose device it is on.
        values: name of the tensor of each rank with the aggregated values.
        indices: name of the tensor of each rank with their indices.
    """

    nodes: tuple[tuple[NodeDef, int], ...]
    values: tuple[str, ...]
    indices: tuple[str, ...]


def lower_all_gather(
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
) -> LoweredGather:
    """Emit an all-gather of the slices of a sparse gradient, in rank order.

    Adding up the gathered slices, index by index, gives the sum over the ranks (or the mean: the values
    are divided where they are made, before any are added up, as their sum may be too large for float16).
    How many slices a rank has may differ from rank to rank and from step to step. Each rank sends its
    values and its indices to N - 1 others: 1 round.

    Args:
        prefix: scope of the new nodes.
        values: name of the values of each rank, shape [slices, ...].
        indices: name of the indices of each rank, shape [slices].
        devices: device string of each rank.
        dtype: element type of the values.
        index_dtype: ``"int32"`` or ``"int64"``.
        mean: whether the values are divided by the number of ranks.
        wire: element type of the values in messages; None if it is ``dtype``. All ranks go on with the
            rounded values.
        adds: whether each rank first adds up its slices of one index; fewer are left, in the order in which
            their indices come first.
        unites: whether each rank adds up the slices of one index that it gets.

    Source:
        The direct all-gather; Caramel leaves sparse gradients out.
    """
    emitter = Emitter(prefix, devices, dtype)
    workers = len(values)
    if workers == 1:
        copies = [emitter.identity(0, "values_0", values[0]), emitter.identity(0, "indices_0", indices[0], index_dtype)]
        return LoweredGather(tuple(emitter.out.nodes), (copies[0],), (copies[1],))
    narrow = None if wire == dtype else wire
    sent, indices = sent_slices(emitter, values, indices, index_dtype, mean=mean, adds=adds, narrow=narrow)
    return joined_slices(emitter, [sent] * workers, [indices] * workers, index_dtype, narrow=narrow, unites=unites)


def sent_slices(
    emitter: Emitter,
    values: Sequence[str],
    indices: Sequence[str],
    index_dtype: str,
    *,
    mean: bool,
    adds: bool,
    narrow: str | None,
) -> tuple[list[str], list[str]]:
    """The values and indices of each rank as it sends them.

    Args:
        emitter: collector of the nodes.
        values: name of the values of each rank.
        indices: name of the indices of each rank.
        index_dtype: their element type.
        mean: whether the values are divided by the number of ranks, before any are added up.
        adds: whether each rank adds up its slices of one index.
        narrow: element type of the values in messages; None if it is their own.
    """
    if mean:
        values = [emitter.divided(rank, f"share_{rank}", tensor, len(values)) for rank, tensor in enumerate(values)]
    if adds:
        summed = [added_slices(emitter, rank, *slices, index_dtype) for rank, slices in enumerate(zip(values, indices))]
        values, indices = [value for value, _ in summed], [index for _, index in summed]
    if narrow is not None:
        values = [emitter.cast(rank, f"send_{rank}", text, narrow, emitter.dtype) for rank, text in enumerate(values)]
    return list(values), list(indices)


def joined_slices(
    emitter: Emitter,
    values: Sequence[Sequence[str]],
    indices: Sequence[Sequence[str]],
    index_dtype: str,
    *,
    narrow: str | None,
    unites: bool,
    ranks: Sequence[int] | None = None,
) -> LoweredGather:
    """What each rank gets of all ranks, in rank order.

    Args:
        emitter: collector of the nodes.
        values: for each rank the names of the values that it gets, one of each rank that sends some.
        indices: for each rank the names of their indices.
        index_dtype: element type of these.
        narrow: element type of the values in messages; None if it is their own.
        unites: whether each rank adds up what it gets of one index.
        ranks: the ranks that get something; default: rank 0 and those after it.
    """
    gathered, places = [], []
    ranks = range(len(values)) if ranks is None else ranks
    for rank, of_ranks, places_of_ranks in zip(ranks, values, indices):
        joined = emitter.joined(rank, f"values_{rank}", of_ranks, narrow)
        if narrow is not None:
            joined = emitter.cast(rank, f"received_{rank}", joined, emitter.dtype, narrow)
        gathered.append(joined)
        places.append(emitter.joined(rank, f"indices_{rank}", places_of_ranks, index_dtype))
    if unites:
        gathered, places = united_slices(emitter, ranks, gathered, places, index_dtype)
    return LoweredGather(tuple(emitter.out.nodes), tuple(gathered), tuple(places))


def lower_slice_sum(
    *,
    prefix: str,
    values: Sequence[str],
    indices: Sequence[str],
    devices: Sequence[str],
    dtype: str,
    index_dtype: str,
    mean: bool,
    wire: str | None = None,
) -> LoweredGather:
    """Emit the sum over the ranks of slices whose indices are the same on every rank, in the same order.

    Every rank gets the values of all others and adds them up in rank order: 1 round. The number of slices may
    differ from step to step, so they cannot be cut into the chunks of an all-reduce.

    Args:
        prefix: scope of the new nodes.
        values: name of the values of each rank, shape [slices, ...].
        indices: name of the indices of each rank, shape [slices].
        devices: device string of each rank.
        dtype: element type of the values.
        index_dtype: ``"int32"`` or ``"int64"``.
        mean: whether the values are divided by the number of ranks, before they are added up.
        wire: element type of the values in messages; None if it is ``dtype``.
    """
    emitter = Emitter(prefix, devices, dtype)
    workers = len(values)
    narrow = wire if wire != dtype and workers > 1 else None
    sent, _ = sent_slices(emitter, values, indices, index_dtype, mean=mean and workers > 1, adds=False, narrow=narrow)
    sums = []
    for rank in range(workers):
        received = sent
        if narrow is not None:
            received = [emitter.cast(rank, f"from_{r}_{rank}", text, dtype, narrow) for r, text in enumerate(sent)]
        total = emitter.identity(rank, f"values_{rank}_0", received[0])
        for source, text in enumerate(received[1:], 1):
            total = emitter.added(rank, f"values_{rank}_{source}", [total, text])
        sums.append(total)
    places = [emitter.identity(rank, f"indices_{rank}", text, index_dtype) for rank, text in enumerate(indices)]
    return LoweredGather(tuple(emitter.out.nodes), tuple(sums), tuple(places))


def united_slices(
    emitter: Emitter, ranks: Sequence[int], values: Sequence[str], indices: Sequence[str], index_dtype: str
) -> tuple[list[str], list[str]]:
    """The slices of each of some ranks, those of one index added up; see `added_slices`."""
    united = [
        added_slices(emitter, rank, value, index, index_dtype, "united")
        for rank, value, index in zip(ranks, values, indices)
    ]
    return [value for value, _ in united], [index for _, index in united]


def added_slices(
    emitter: Emitter, rank: int, values: str, indices: str, index_dtype: str, name: str = "added"
) -> tuple[str, str]:
    """A rank's slices, those of one index added up; and their indices, each once.

    Args:
        emitter: collector of the nodes.
        rank: the rank.
        values: its values, shape [slices, ...].
        indices: their indices, shape [slices].
        index_dtype: element type of the indices.
        name: beginning of the names of the nodes.
    """
    int32 = dtype_attribute("int32")
    of_index = dtype_attribute(index_dtype)
    different = emitter.add(rank, f"{name}_rows_{rank}", "Unique", [indices], T=of_index, out_idx=int32)
    count = emitter.add(rank, f"{name}_count_{rank}", "Size", [different], T=of_index, out_type=int32)
    total = emitter.add(
        rank,
        f"{name}_{rank}",
        "UnsortedSegmentSum",
        [values, f"{different}:1", count],
        T=dtype_attribute(emitter.dtype),
        Tindices=int32,
        Tnumsegments=int32,
    )
    return total, different
