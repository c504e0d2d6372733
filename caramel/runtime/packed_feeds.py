"""What is fed to one worker, in one array: TensorFlow sends each fed tensor on its own, and first of all to worker 0.

The array begins with whole numbers: for each tensor where its bytes begin and end, and its sizes. The bytes follow. On
the worker, placeholders become placeholders with a default, which is taken out of the array; so a tensor may still be
fed by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import tensorflow as tf

from caramel.graph import ops
from caramel.graph.devices import Device, host_of
from caramel.graph.graph import NodeDef, node_of, tensor_name
from caramel.graph.nodes import constant, dtype_attribute, node, shape_attribute
from caramel.modifiers.emission import own_name
from caramel.signature import Signature

_ALIGNMENT = 64
"""Bytes at whose multiples tensors begin in the array: TensorFlow makes no copy of a slice that begins there."""

_NUMBER_BYTES = 8

_MOST_BYTES = 2**31 - 1
"""Bytes of the largest array that a message of gRPC can carry."""


@dataclass(frozen=True)
class _Tensor:
    """A tensor that travels in an array.

    Attributes:
        name: its name.
        dtype: element type.
        rank: number of its axes.
    """

    name: str
    dtype: str
    rank: int

    @property
    def numbers(self) -> int:
        """How many whole numbers it has at the beginning of the array."""
        return 2 + self.rank


@dataclass(frozen=True)
class PackedFeeds:
    """The feeds of steps of a distributed graph, as one array for each worker.

    Attributes:
        arrays: name of the array to feed to each worker.
        tensors: what is in the array of each worker.
    """

    arrays: tuple[str, ...]
    tensors: tuple[tuple[_Tensor, ...], ...]

    @classmethod
    def of(cls, graph_def: Any, signatures: Sequence[Signature], name: str = "fed") -> PackedFeeds | None:
        """What can be packed; None where no worker is fed several tensors.

        Strings, tensors without a rank, and what may be left out travel by themselves.

        Args:
            graph_def: GraphDef with the placeholders.
            signatures: signature of each step of a run.
            name: name of the arrays, among those of a worker.
        """
        nodes = {n.name: n for n in graph_def.node}
        workers = range(signatures[0].workers)
        by_rank: list[list[_Tensor]] = [[] for _ in workers]
        for rank, signature in product(workers, signatures):
            fed = [feed.placeholders[rank] for feed in signature.feeds if not feed.optional]
            found = [_tensor(placeholder, nodes[node_of(placeholder)]) for placeholder in fed]
            by_rank[rank] += [each for each in found if each is not None]
            by_rank[rank] += [_Tensor(weight, "float64", 0) for weight in signature.weights[rank : rank + 1]]
        if max(map(len, by_rank), default=0) < 2:
            return None
        arrays = tuple(tensor_name(own_name(rank, name)) for rank in workers)
        return cls(arrays, tuple(map(tuple, by_rank)))

    def graph_def(self, graph_def: Any, devices: Sequence[str]) -> Any:
        """The graph whose placeholders take what they get out of the arrays.

        Args:
            graph_def: the distributed graph; it is not changed.
            devices: device string of each worker.
        """
        changed = type(graph_def)()
        changed.CopyFrom(graph_def)
        sources: dict[str, str] = {}
        for array, tensors, device in zip(self.arrays, self.tensors, devices):
            unpacking = _Unpacking(node_of(array), tensors, str(host_of(Device.parse(device))))
            changed.node.extend(unpacking.nodes)
            sources.update(unpacking.sources)
        for each in changed.node:
            if each.name in sources:
                each.op = "PlaceholderWithDefault"
                each.input[:] = [sources[each.name]]
        return changed

    def feeds(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What to feed instead; the tensors of a worker by themselves where one array would be too large.

        Args:
            feeds: arrays of a step, by tensor name.
        """
        packed = dict(feeds)
        for name, tensors in zip(self.arrays, self.tensors):
            arrays = [np.asarray(feeds[tensor.name]) for tensor in tensors]
            most = sum(array.nbytes + _ALIGNMENT + _NUMBER_BYTES * (2 + array.ndim) for array in arrays)
            if most <= _MOST_BYTES:
                for tensor in tensors:
                    del packed[tensor.name]
                packed[name] = _packed(arrays)
        return packed


def _tensor(name: str, placeholder: NodeDef) -> _Tensor | None:
    dtype, shape = ops.dtype_name(placeholder.attr["dtype"].type), placeholder.attr["shape"].shape
    if placeholder.op != "Placeholder" or dtype == "string" or shape.unknown_rank:
        return None
    return _Tensor(name, dtype, len(shape.dim))


def _packed(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """One array of bytes with the content of several."""
    at = _NUMBER_BYTES * sum(2 + array.ndim for array in arrays)
    numbers: list[int] = []
    for array in arrays:
        at = -(-at // _ALIGNMENT) * _ALIGNMENT
        numbers += [at, at + array.nbytes, *array.shape]
        at += array.nbytes
    packed = np.zeros(at, np.uint8)
    beginning = np.array(numbers, np.int64).view(np.uint8)
    packed[: len(beginning)] = beginning
    position = 0
    for array in arrays:
        begin, end = numbers[position : position + 2]
        packed[begin:end] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        position += 2 + array.ndim
    return packed


class _Unpacking:
    """The nodes that take tensors out of a worker's array.

    Args:
        name: name of the array's placeholder, and scope of the nodes.
        tensors: what is in the array.
        device: device of the nodes.

    Attributes:
        nodes: the nodes.
        sources: what each placeholder reads, by its name.
    """

    def __init__(self, name: str, tensors: Sequence[_Tensor], device: str) -> None:
        self.nodes: list[NodeDef] = []
        self._name, self._device = name, device
        count = sum(tensor.numbers for tensor in tensors)
        attributes = {"dtype": dtype_attribute("uint8"), "shape": shape_attribute((-1,))}
        array = self._add(node(name, "Placeholder", (), device, **attributes))
        own = self._slice("numbers/bytes", array, "uint8", self._numbers("numbers/begin", 0), count * _NUMBER_BYTES)
        self._all = self._cast("numbers", own, "int64")
        self.sources = {}
        position = 0
        for number, tensor in enumerate(tensors):
            scope = f"tensor_{number}"
            begin, end = (self._part(f"{scope}/{word}", position + n, 1) for n, word in enumerate(("begin", "end")))
            flat = self._cast(f"{scope}/flat", self._slice(f"{scope}/bytes", array, "uint8", begin, end), tensor.dtype)
            sizes = self._part(f"{scope}/sizes", position + 2, tensor.rank)
            kinds = {"T": dtype_attribute(tensor.dtype), "Tshape": dtype_attribute("int64")}
            self.sources[node_of(tensor.name)] = self._make(scope, "Reshape", [flat, sizes], **kinds)
            position += tensor.numbers

    def _add(self, node_def: NodeDef) -> str:
        self.nodes.append(node_def)
        return str(node_def.name)

    def _make(self, name: str, op: str, inputs: Sequence[str], **attributes: object) -> str:
        return self._add(node(f"{self._name}/{name}", op, inputs, self._device, **attributes))

    def _numbers(self, name: str, *numbers: int) -> str:
        return self._add(constant(f"{self._name}/{name}", np.array(numbers, np.int64), "int64", self._device))

    def _slice(self, name: str, tensor: str, dtype: str, begin: str, end: str | int) -> str:
        """Entries of a vector."""
        end = self._numbers(f"{name}/end", end) if isinstance(end, int) else end
        masks = dict.fromkeys(("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"), 0)
        kinds = {"T": dtype_attribute(dtype), "Index": dtype_attribute("int64")}
        inputs = [tensor, begin, end, self._numbers(f"{name}/stride", 1)]
        return self._make(name, "StridedSlice", inputs, **kinds, **masks)

    def _part(self, name: str, begin: int, count: int) -> str:
        """Some of the whole numbers."""
        return self._slice(name, self._all, "int64", self._numbers(f"{name}/from", begin), begin + count)

    def _cast(self, name: str, tensor: str, dtype: str) -> str:
        """A vector of bytes as one of another type."""
        if dtype == "uint8":
            return tensor
        kinds = {"SrcT": dtype_attribute("uint8"), "DstT": dtype_attribute(dtype)}
        if dtype == "bool":
            return self._make(name, "Cast", [tensor], **kinds)
        item_bytes = tf.as_dtype(dtype).size
        if item_bytes > 1:
            sizes = self._numbers(f"{name}/sizes", -1, item_bytes)
            shapes = {"T": dtype_attribute("uint8"), "Tshape": dtype_attribute("int64")}
            tensor = self._make(f"{name}/items", "Reshape", [tensor, sizes], **shapes)
        return self._make(name, "Bitcast", [tensor], T=dtype_attribute("uint8"), type=dtype_attribute(dtype))
