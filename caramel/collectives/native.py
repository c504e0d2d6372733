"""TensorFlow's own collective op as a further choice: it is measured and chosen like the others."""

from __future__ import annotations

from collections.abc import Sequence

from caramel.collectives.lower import Emitter, Lowered
from caramel.graph.nodes import dtype_attribute

GROUP_KEY = 1
"""Number of the group of all workers; a graph has no other."""


def lower_native(
    *,
    prefix: str,
    size: int,
    sources: Sequence[str],
    devices: Sequence[str],
    dtype: str,
    mean: bool,
    instance: int,
    hint: str = "ring",
) -> Lowered:
    """Emit a CollectiveReduceV2 on every worker.

    The workers' servers and the session need ``experimental.collective_group_leader`` in their
    configuration; `caramel.runtime` sets it.

    Args:
        prefix: scope of the new nodes.
        size: elements of the tensor; TensorFlow's op crashes the process where there are none.
        sources: the local, flat tensor of each rank.
        devices: the device of each rank.
        dtype: element type, one of `caramel.collectives.algorithms.NATIVE_DTYPES`.
        mean: whether to divide the sum by the number of ranks.
        instance: number of the collective, different for each in a graph.
        hint: ``"ring"``, or ``"nccl"`` where all devices are GPUs.

    Returns:
        The nodes, and the reduced flat tensor of each rank. The order of additions is that of a ring.
    """
    emitter = Emitter(prefix, devices, dtype)
    if len(sources) == 1 or size == 0:
        emitter.out.results = [emitter.identity(r, f"result_{r}", s) for r, s in enumerate(sources)]
        return emitter.out
    for rank, source in enumerate(sources):
        made = emitter.add(
            rank,
            f"result_{rank}",
            "CollectiveReduceV2",
            [
                source,
                emitter.integers(rank, len(sources)),
                emitter.integers(rank, GROUP_KEY),
                emitter.integers(rank, instance),
            ],
            T=dtype_attribute(dtype),
            merge_op=b"Add",
            final_op=b"Div" if mean else b"Id",
            communication_hint=hint.encode(),
            Nordering_token=0,
        )
        emitter.out.results.append(made)
    return emitter.out
