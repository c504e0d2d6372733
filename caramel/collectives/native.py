"""TensorFlow's own collective op as a further choice: it is measured and chosen like the others."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from caramel.collectives.lower import Emitter, Lowered
from caramel.graph.devices import Device
from caramel.graph.nodes import dtype_attribute


def group_key(devices: Sequence[str]) -> int:
    """A number for a group of devices: the same for the same ones, and for others another."""
    return zlib.crc32("\n".join(devices).encode()) & 0x7FFFFFFF


def is_on_gpus(devices: Sequence[str]) -> bool:
    """Whether every device is a GPU."""
    return all(Device.parse(d).type == "GPU" for d in devices)


def lower_native(
    *,
    prefix: str,
    size: int,
    sources: Sequence[str],
    devices: Sequence[str],
    dtype: str,
    mean: bool,
    instance: int,
    after: Sequence[str] = (),
) -> Lowered:
    """Emit a CollectiveReduceV2 on every worker.

    The workers' servers and the session need ``experimental.collective_group_leader`` in their
    configuration; `caramel.runtime` sets it. The hint is ``nccl`` where all devices are GPUs, else ``ring``.

    Args:
        prefix: scope of the new nodes.
        size: elements of the tensor; TensorFlow's op crashes the process where there are none.
        sources: the local, flat tensor of each rank.
        devices: the device of each rank.
        dtype: element type, one of `caramel.collectives.dtypes.NATIVE_DTYPES`.
        mean: whether to divide the sum by the number of ranks.
        instance: number of the collective, different for each in a graph.
        after: for each rank an op that must run first, for collectives that need one order everywhere.

    Returns:
        The nodes, and the reduced flat tensor of each rank. The order of additions is that of a ring.
    """
    emitter = Emitter(prefix, devices, dtype)
    if len(sources) == 1 or size == 0:
        emitter.out.results = [emitter.identity(r, f"result_{r}", s) for r, s in enumerate(sources)]
        return emitter.out
    if mean and dtype == "float16":  # a sum of gradients may be too large although their mean is not
        kind = dtype_attribute(dtype)
        sources = [
            emitter.add(r, f"share_{r}", "RealDiv", [source, emitter.divisor(r, len(sources))], T=kind)
            for r, source in enumerate(sources)
        ]
        mean = False
    for rank, source in enumerate(sources):
        made = emitter.add(
            rank,
            f"result_{rank}",
            "CollectiveReduceV2",
            [
                source,
                emitter.integers(rank, len(sources)),
                emitter.integers(rank, group_key(devices)),
                emitter.integers(rank, instance),
                *(f"^{name}" for name in after[rank : rank + 1]),
            ],
            T=dtype_attribute(dtype),
            merge_op=b"Add",
            final_op=b"Div" if mean else b"Id",
            communication_hint=b"nccl" if is_on_gpus(devices) else b"ring",
            Nordering_token=0,
        )
        emitter.out.results.append(made)
    return emitter.out
