"""TensorFlow's own collective op as a further choice: it is measured and chosen like the others."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from caramel.collectives.lower import Emitter, Lowered, Request, lower_unchanged
from caramel.graph.devices import Device
from caramel.graph.nodes import dtype_attribute
from caramel.graph.ops import NATIVE_ALL_REDUCE


def group_key(devices: Sequence[str]) -> int:
    """A number for a group of devices: the same for the same ones, and for others another."""
    return zlib.crc32("\n".join(devices).encode()) & 0x7FFFFFFF


def is_on_gpus(devices: Sequence[str]) -> bool:
    """Whether every device is a GPU."""
    return all(Device.parse(d).type == "GPU" for d in devices)


def lower_native(request: Request, instance: int, after: Sequence[str] = ()) -> Lowered:
    """Emit a CollectiveReduceV2 on every worker.

    The workers' servers and the session need ``experimental.collective_group_leader`` in their
    configuration; `caramel.runtime` sets it. The hint is ``nccl`` where all devices are GPUs, else ``ring``.
    There is no op where there is no element: it would crash the process.

    Args:
        request: tensors to reduce, of one of `caramel.collectives.dtypes.NATIVE_DTYPES`; its wire has no effect.
        instance: number of the collective, different for each in a graph.
        after: name of an op of each rank that must run first, for collectives that need one order everywhere.

    Returns:
        The nodes, and the reduced flat tensor of each rank. The order of additions is that of a ring.
    """
    if request.is_done:
        return lower_unchanged(request)
    emitter = Emitter(request.prefix, request.devices, request.dtype)
    sources, mean = request.sources, request.mean
    if mean and request.dtype == "float16":  # a sum of gradients may be too large although their mean is not
        sources = [emitter.divided(r, f"share_{r}", source, request.workers) for r, source in enumerate(sources)]
        mean = False
    for rank, source in enumerate(sources):
        reduced = emitter.add(
            rank,
            f"result_{rank}",
            NATIVE_ALL_REDUCE,
            [
                source,
                emitter.integers(rank, request.workers),
                emitter.integers(rank, group_key(request.devices)),
                emitter.integers(rank, instance),
                *(f"^{name}" for name in after[rank : rank + 1]),
            ],
            T=dtype_attribute(request.dtype),
            merge_op=b"Add",
            final_op=b"Div" if mean else b"Id",
            communication_hint=b"nccl" if is_on_gpus(request.devices) else b"ring",
            Nordering_token=0,
        )
        emitter.out.results.append(reduced)
    return emitter.out
