"""All-reduce as a function on the tensors of a graph under construction."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, TypeVar, cast

import numpy as np
import tensorflow as tf

from caramel.collectives.algorithms import Schedules
from caramel.collectives.dtypes import ITEM_BYTES
from caramel.collectives.emit import emit_all_reduce
from caramel.collectives.lower import Lowered, Request
from caramel.collectives.sparse import LoweredGather, lower_all_gather
from caramel.errors import InputError
from caramel.netmodel.choice import CollectiveOptions, choose_collective
from caramel.netmodel.file import as_network
from caramel.netmodel.model import NetworkModel
from caramel.util.arguments import worker_count

_INSTANCE_NUMBERS = count(2**20)
"""Numbers by which TensorFlow tells the collectives of a process apart; smaller ones are transfers of a plan."""

_CALLS_COLLECTION = "caramel/all_reduce"
"""Name of the graph collection with one entry for each call of `all_reduce`."""


_Function = TypeVar("_Function", bound=Callable[..., Any])


def _as_written(function: _Function) -> _Function:
    """A function that AutoGraph leaves alone in a tf.function: to convert all that it calls takes many seconds."""
    return cast("_Function", tf.autograph.experimental.do_not_convert(function))


@_as_written
def all_reduce(
    tensors: Sequence[Any],
    *,
    algorithm: str | None = None,
    depth: int | None = None,
    reduction: str = "mean",
    weights: Sequence[Any] | None = None,
    wire: str | None = None,
    deterministic: bool = False,
    network: NetworkModel | str | os.PathLike[str] | None = None,
    devices: Sequence[str] | None = None,
    name: str = "all_reduce",
) -> list[Any]:
    """Reduce the tensors of all workers, one per worker, to one value that each worker gets.

    Args:
        tensors: tensor of each rank: a tf.Tensor of a tf.Graph, all with one static shape and dtype, or a
            tf.IndexedSlices, which are gathered, not made dense.
        algorithm: ``"shuffle"``, ``"star"``, ``"ring"``, ``"halving_doubling"``, ``"chain"``,
            ``"native"``, or ``"hierarchy_K"`` for hosts of K workers, such as ``"hierarchy_4"``; default: the fastest
            by ``network``; without one a star for few bytes, else a shuffle.
        depth: number of chunks that travel in a pipeline, at least 1; default: chosen like ``algorithm``.
        reduction: ``"mean"`` or ``"sum"``.
        weights: number or scalar tensor of each rank with which its tensor is multiplied first; for
            a weighted mean of uneven batches N b_r / B. Not for integers.
        wire: ``"bfloat16"`` or ``"float16"``, the dtype of rounded values to send;
            `docs/explanation/algorithms.md` has the bound.
        deterministic: whether to add in rank order, so that the bits do not depend on anything else.
        network: network model to choose by, or the file of one.
        devices: device of each rank; default: that of its tensor.
        name: scope of the new ops.

    Returns:
        The reduced tensor (or IndexedSlices) of each rank, on its device.

    Raises:
        InputError: tensors that do not fit together, or an option that does not exist or fit.

    With ``"native"`` the result of every rank must be used in the same step, or the others wait for it; and
    between processes, servers and session need
    ``ConfigProto.experimental.collective_group_leader``; clusters of this library set it.

    Examples:
        >>> import tensorflow as tf
        >>> import caramel
        >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        ...     parts = [tf.constant([1.0, 2.0]), tf.constant([3.0, 6.0])]
        ...     reduced = caramel.all_reduce(parts, devices=["/device:CPU:0", "/device:CPU:0"])
        ...     print(*session.run(reduced))
        [2. 4.] [2. 4.]
    """
    if not tensors:
        raise InputError("an all-reduce needs at least one tensor")
    is_sparse = _are_sparse(tensors)
    values = [t.values for t in tensors] if is_sparse else list(tensors)
    if reduction not in ("mean", "sum"):
        raise InputError(f"the reduction must be 'mean' or 'sum', got {reduction!r}")
    worker_count(len(values), "the number of tensors")
    options = CollectiveOptions(algorithm, depth, deterministic, wire, as_network(network))
    dtype = _common_dtype(values)
    if reduction == "mean" and values[0].dtype.is_integer:
        raise InputError(f"the mean of {dtype} tensors is no {dtype}: use reduction='sum', or cast them")
    rank_devices = _devices(values, devices)
    graph = values[0].graph
    prefix = graph.unique_name(name)
    with graph.as_default(), tf.name_scope(f"{prefix}/"):
        values = _weighted(values, weights, rank_devices)
        if is_sparse:
            return _gathered(tensors, values, rank_devices, dtype, reduction == "mean", options, prefix)
        return _reduced(values, rank_devices, dtype, reduction == "mean", options, prefix)


def _reduced(
    values: Sequence[Any], devices: Sequence[str], dtype: str, mean: bool, options: CollectiveOptions, prefix: str
) -> list[Any]:
    """Reduce dense tensors."""
    shape = _common_shape(values)
    size = shape.num_elements()
    chosen = choose_collective(options, len(values), dtype, size)
    graph = values[0].graph
    flat = [_on(device, tf.reshape, value, [-1]) for device, value in zip(devices, values)]
    sources = [f"source_{rank}" for rank in range(len(flat))]
    lowered = emit_all_reduce(
        Schedules(),
        chosen.algorithm,
        chosen.depth,
        Request(prefix, sources, devices, dtype, size, mean, options.wire_for(dtype)),
        turn=len(graph.get_collection(_CALLS_COLLECTION)),
        instance=next(_INSTANCE_NUMBERS),
        in_rank_order=options.deterministic,
    )
    graph.add_to_collection(_CALLS_COLLECTION, prefix)
    results = _imported(graph, lowered, dict(zip(sources, flat)), lowered.results)
    return [_on(device, tf.reshape, result, shape) for device, result in zip(devices, results)]


def _on(device: str, function: Any, *args: Any) -> Any:
    with tf.device(device):
        return function(*args)


def _are_sparse(tensors: Sequence[Any]) -> bool:
    sparse = [isinstance(t, tf.IndexedSlices) for t in tensors]
    if any(sparse) and not all(sparse):
        raise InputError(
            f"rank {sparse.index(not sparse[0])} has a {'dense' if sparse[0] else 'sparse'} tensor, rank 0 has not: "
            "convert them to one kind"
        )
    return sparse[0]


def _common_dtype(values: Sequence[Any]) -> str:
    for rank, value in enumerate(values):
        if not isinstance(value, tf.Tensor) or not hasattr(value, "graph"):
            raise InputError(
                f"rank {rank} has {type(value).__name__}, not a tensor of a graph: build the all-reduce inside a "
                "tf.Graph or tf.function"
            )
        if value.graph is not values[0].graph:
            raise InputError(f"the tensor of rank {rank} is in another graph than that of rank 0: make all in one")
        if value.dtype != values[0].dtype:
            raise InputError(
                f"rank {rank} has dtype {value.dtype.name}, rank 0 has {values[0].dtype.name}: cast them to one dtype"
            )
    dtype = values[0].dtype.name
    if dtype not in ITEM_BYTES:
        raise InputError(f"tensors of {dtype} cannot be reduced; possible are {', '.join(ITEM_BYTES)}")
    return dtype


def _common_shape(values: Sequence[Any]) -> tf.TensorShape:
    shape = values[0].shape
    for rank, value in enumerate(values):
        if not value.shape.is_fully_defined():
            raise InputError(f"rank {rank} has the unknown shape {value.shape}: set a static shape (tf.ensure_shape)")
        if value.shape != shape:
            raise InputError(f"rank {rank} has shape {value.shape}, rank 0 has {shape}: they must be equal")
    return shape


def _devices(values: Sequence[Any], devices: Sequence[str] | None) -> list[str]:
    if devices is not None:
        if len(devices) != len(values):
            raise InputError(f"there are {len(devices)} devices for {len(values)} tensors: give one for each")
        return list(devices)
    for rank, value in enumerate(values):
        if not value.device:
            raise InputError(f"the tensor of rank {rank} is on no device: make it under tf.device, or give devices=")
    return [value.device for value in values]


def _weighted(values: Sequence[Any], weights: Sequence[Any] | None, devices: Sequence[str]) -> list[Any]:
    if weights is None:
        return list(values)
    if len(weights) != len(values):
        raise InputError(f"there are {len(weights)} weights for {len(values)} tensors: give one for each")
    if values[0].dtype.is_integer:
        raise InputError(f"{values[0].dtype.name} tensors cannot be weighted: cast them to floating point")
    for rank, weight in enumerate(weights):
        if (weight.shape.rank if tf.is_tensor(weight) else np.ndim(weight)) != 0:
            raise InputError(f"the weight of rank {rank} must be a scalar, got {weight!r}")
    return [_on(d, _times, v, w) for v, w, d in zip(values, weights, devices)]


def _times(value: Any, weight: Any) -> Any:
    return tf.multiply(value, tf.cast(weight, value.dtype))


def _gathered(
    slices: Sequence[Any],
    values: Sequence[Any],
    devices: Sequence[str],
    dtype: str,
    mean: bool,
    options: CollectiveOptions,
    prefix: str,
) -> list[Any]:
    """Gather the slices of all ranks."""
    if options.algorithm is not None or options.depth is not None:
        raise InputError("sparse tensors are gathered from all ranks at once: leave out algorithm= and depth=")
    _check_slices(slices)
    ranks = range(len(values))
    sources = {f"values_{r}": values[r] for r in ranks} | {f"indices_{r}": slices[r].indices for r in ranks}
    lowered = lower_all_gather(
        prefix=prefix,
        values=[f"values_{r}" for r in ranks],
        indices=[f"indices_{r}" for r in ranks],
        devices=devices,
        dtype=dtype,
        index_dtype=slices[0].indices.dtype.name,
        mean=mean,
        wire=options.wire_for(dtype),
    )
    gathered = _imported(values[0].graph, lowered, sources, [*lowered.values, *lowered.indices])
    return [tf.IndexedSlices(gathered[r], gathered[len(values) + r], slices[r].dense_shape) for r in ranks]


def _check_slices(slices: Sequence[Any]) -> None:
    for rank, rank_slices in enumerate(slices):
        if rank_slices.indices.dtype != slices[0].indices.dtype or not rank_slices.values.shape[1:].is_compatible_with(
            slices[0].values.shape[1:]
        ):
            raise InputError(f"the slices of rank {rank} do not fit those of rank 0: {rank_slices} and {slices[0]}")
        if (rank_slices.dense_shape is None) != (slices[0].dense_shape is None):
            raise InputError(f"rank {rank} and rank 0 must both have a dense_shape, or neither")
        if rank_slices.dense_shape is not None:
            shape, first_shape = (tf.get_static_value(x.dense_shape) for x in (rank_slices, slices[0]))
            if shape is not None and first_shape is not None and list(shape) != list(first_shape):
                raise InputError(f"rank {rank} has the dense shape {shape.tolist()}, rank 0 has {first_shape.tolist()}")


def _imported(graph: Any, lowered: Lowered | LoweredGather, sources: dict[str, Any], names: Sequence[str]) -> list[Any]:
    """Add the nodes to the graph; the tensors of some names."""
    graph_def = tf.compat.v1.GraphDef()
    graph_def.node.extend(node_def for node_def, _ in lowered.nodes)
    # What is imported lowers the whole graph's version to its own, and TensorFlow makes later ops as it did then.
    graph_def.versions.CopyFrom(graph.graph_def_versions)
    with tf.control_dependencies(None), tf.device(None):
        tf.import_graph_def(graph_def, input_map={f"{k}:0": v for k, v in sources.items()}, name="")
    return [graph.get_tensor_by_name(f"{text}:0") for text in names]
