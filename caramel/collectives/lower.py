"""Lowering: from a proved schedule to NodeDefs, without TensorFlow's Python op layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from caramel.collectives.schedule import Schedule
from caramel.graph.graph import NodeDef, format_input
from caramel.graph.nodes import constant, dtype_attribute, node, shape_attribute


@dataclass
class Lowered:
    """Nodes of one all-reduce.

    Attributes:
        nodes: each with the rank whose device it is on.
        results: for each rank the tensor with the reduced value, in the shape of the source.
    """

    nodes: list[tuple[NodeDef, int]] = field(default_factory=list)
    results: list[str] = field(default_factory=list)


def lower(
    schedule: Schedule,
    *,
    prefix: str,
    sources: Sequence[str],
    devices: Sequence[str],
    dtype: str,
    shape: Sequence[int],
    mean: bool,
) -> Lowered:
    """Emit a schedule as Reshape, SplitV, AddV2, RealDiv, Identity and ConcatV2 nodes.

    Args:
        schedule: the checked schedule; its size is the number of elements of ``shape``.
        prefix: scope of the new nodes.
        sources: the local tensor of each rank.
        devices: the device of each rank.
        dtype: element type.
        shape: static shape of the tensor.
        mean: whether to divide the sum by the number of ranks.

    Returns:
        The nodes and the reduced tensor of each rank.
    """
    return _Lowering(schedule, prefix, sources, devices, dtype, shape, mean).run()


class _Lowering:
    def __init__(
        self,
        schedule: Schedule,
        prefix: str,
        sources: Sequence[str],
        devices: Sequence[str],
        dtype: str,
        shape: Sequence[int],
        mean: bool,
    ) -> None:
        self.schedule = schedule
        self.prefix = prefix
        self.sources = sources
        self.devices = devices
        self.dtype = dtype
        self.shape = tuple(shape)
        self.mean = mean
        self.full = [n for n, chunk in enumerate(schedule.chunks) if chunk.size > 0]
        self.out = Lowered()
        self.values: list[str] = []

    def run(self) -> Lowered:
        if self.schedule.workers == 1 or not self.full:
            for rank, source in enumerate(self.sources):
                self.out.results.append(
                    self._add(rank, f"result_{rank}", "Identity", [source], T=dtype_attribute(self.dtype))
                )
            return self.out
        pieces = [self._pieces(rank) for rank in range(self.schedule.workers)]
        contributors: list[int] = []
        for number, step in enumerate(self.schedule.steps):
            contributors.append(1 if step.operation == "take" else sum(contributors[o] for o in step.operands))
            if step.chunk not in self.full:
                self.values.append("")
            elif step.operation == "take":
                self.values.append(pieces[step.rank][step.chunk])
            elif step.operation == "copy":
                self.values.append(self.values[step.operands[0]])  # the reader's device makes it a transfer
            else:
                self.values.append(self._sum(number, contributors[number] == self.schedule.workers))
        for rank in range(self.schedule.workers):
            self.out.results.append(self._result(rank))
        return self.out

    def _add(self, rank: int, name: str, op: str, inputs: Sequence[str], **attributes: object) -> str:
        made = node(f"{self.prefix}/{name}", op, inputs, self.devices[rank], **attributes)
        self.out.nodes.append((made, rank))
        return made.name

    def _constant(self, rank: int, name: str, value: object, dtype: str) -> str:
        made = constant(f"{self.prefix}/{name}", value, dtype, self.devices[rank])
        self.out.nodes.append((made, rank))
        return made.name

    def _reshape(self, rank: int, name: str, source: str, shape: Sequence[int]) -> str:
        size = self._constant(rank, f"{name}/shape", _int32(shape), "int32")
        return self._add(
            rank, name, "Reshape", [source, size], T=dtype_attribute(self.dtype), Tshape=dtype_attribute("int32")
        )

    def _pieces(self, rank: int) -> list[str]:
        """The rank's own chunks; empty ones are not made."""
        flat = self.sources[rank]
        if self.shape != (self.schedule.size,):
            flat = self._reshape(rank, f"flat_{rank}", flat, [self.schedule.size])
        if len(self.full) == 1:
            return [flat if n in self.full else "" for n in range(len(self.schedule.chunks))]
        sizes = self._constant(
            rank, f"split_{rank}/sizes", _int32([self.schedule.chunks[n].size for n in self.full]), "int32"
        )
        axis = self._constant(rank, f"split_{rank}/axis", _int32(0), "int32")
        split = self._add(
            rank,
            f"split_{rank}",
            "SplitV",
            [flat, sizes, axis],
            T=dtype_attribute(self.dtype),
            Tlen=dtype_attribute("int32"),
            num_split=len(self.full),
        )
        return [
            format_input(split, self.full.index(n)) if n in self.full else "" for n in range(len(self.schedule.chunks))
        ]

    def _sum(self, number: int, complete: bool) -> str:
        step = self.schedule.steps[number]
        total = self.values[step.operands[0]]
        for position, operand in enumerate(step.operands[1:], start=1):
            name = f"sum_{number}_{position}"
            total = self._add(step.rank, name, "AddV2", [total, self.values[operand]], T=dtype_attribute(self.dtype))
        if complete and self.mean:
            count = self._count(step.rank)
            total = self._add(step.rank, f"mean_{number}", "RealDiv", [total, count], T=dtype_attribute(self.dtype))
        return total

    def _count(self, rank: int) -> str:
        """The number of workers, hidden from TensorFlow's optimizers.

        They turn a division by a constant into a multiplication by its reciprocal, which rounds
        differently.
        """
        default = self._constant(rank, f"count_{rank}/default", self.schedule.workers, self.dtype)
        return self._add(
            rank,
            f"count_{rank}",
            "PlaceholderWithDefault",
            [default],
            dtype=dtype_attribute(self.dtype),
            shape=shape_attribute(()),
        )

    def _result(self, rank: int) -> str:
        parts = [self.values[self.schedule.results[rank][n]] for n in self.full]
        if len(parts) == 1:
            # Reshape would keep a foreign buffer's device ambiguous; this pins the arrival.
            joined = self._add(rank, f"arrived_{rank}", "Identity", parts, T=dtype_attribute(self.dtype))
        else:
            axis = self._constant(rank, f"join_{rank}/axis", _int32(0), "int32")
            joined = self._add(
                rank,
                f"join_{rank}",
                "ConcatV2",
                [*parts, axis],
                T=dtype_attribute(self.dtype),
                Tidx=dtype_attribute("int32"),
                N=len(parts),
            )
        if self.shape == (self.schedule.size,):
            return joined
        return self._reshape(rank, f"result_{rank}", joined, self.shape)


def _int32(value: object) -> object:
    import numpy as np

    return np.asarray(value, np.int32)
