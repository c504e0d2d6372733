"""Lowering: from a proved schedule to NodeDefs, without TensorFlow's Python op layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from caramel.collectives.dtypes import BUFFER_ALIGNMENT_BYTES, ITEM_BYTES
from caramel.collectives.schedule import ALIGNMENT_ELEMENTS, Instruction, Schedule
from caramel.errors import InvariantError
from caramel.graph.graph import NodeDef, format_input
from caramel.graph.nodes import constant, dtype_attribute, node, shape_attribute


@dataclass(frozen=True)
class Request:
    """The tensors to reduce; a schedule, or TensorFlow, says how.

    Attributes:
        prefix: scope of the new nodes.
        sources: local tensor of each rank, shape [size].
        devices: device string of each rank.
        dtype: element type.
        size: number of elements of the tensor.
        mean: whether the sum is divided by the number of ranks.
        wire: element type of the messages; None if it is ``dtype``.
    """

    prefix: str
    sources: Sequence[str]
    devices: Sequence[str]
    dtype: str
    size: int
    mean: bool
    wire: str | None = None

    @property
    def workers(self) -> int:
        """Number of ranks."""
        return len(self.sources)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to add: there is one rank, or no element."""
        return self.workers == 1 or self.size == 0


OnSum = Callable[[int, int, int, str], str]
"""Function from the rank that has completed a sum, its first element, their number, and the tensor, to the tensor that
all ranks get in its place. That may be one which is made later on."""


@dataclass
class Lowered:
    """Nodes of one all-reduce.

    Attributes:
        nodes: pairs of a node and the rank whose device it is on.
        results: name of the tensor with the reduced value of each rank.
    """

    nodes: list[tuple[NodeDef, int]] = field(default_factory=list)
    results: list[str] = field(default_factory=list)


class Emitter:
    """Adds nodes under one scope, each on the device of its rank.

    Args:
        prefix: scope of the new nodes.
        devices: device string of each rank.
        dtype: element type of the tensors.
    """

    def __init__(self, prefix: str, devices: Sequence[str], dtype: str) -> None:
        self.prefix = prefix
        self.devices = devices
        self.dtype = dtype
        self.out = Lowered()
        self._constants: dict[tuple[int, str, object], str] = {}

    def add(self, rank: int, name: str, op: str, inputs: Sequence[str], **attributes: object) -> str:
        """Add a node; returns its name."""
        new_node = node(f"{self.prefix}/{name}", op, inputs, self.devices[rank], **attributes)
        self.out.nodes.append((new_node, rank))
        return new_node.name

    def added(self, rank: int, name: str, inputs: Sequence[str]) -> str:
        """The sum of two tensors, which TensorFlow's optimizers leave as it is.

        Without the attribute the arithmetic optimizer makes one AddN of a chain of AddV2. AddN adds eight inputs at a
        time, so from ten ranks on its sum is not the left fold.
        """
        attributes = {"T": dtype_attribute(self.dtype), "_grappler_do_not_remove": True}
        return self.add(rank, name, "AddV2", inputs, **attributes)

    def integers(self, rank: int, value: int | Sequence[int]) -> str:
        """An int32 constant on a rank, made once."""
        key = (rank, "int32", value if isinstance(value, int) else tuple(value))
        if key not in self._constants:
            name = f"{self.prefix}/constant_{rank}_{len(self._constants)}"
            new_node = constant(name, np.asarray(value, np.int32), "int32", self.devices[rank])
            self.out.nodes.append((new_node, rank))
            self._constants[key] = name
        return self._constants[key]

    def divided(self, rank: int, name: str, source: str, divisor: float, divisor_name: str = "divisor") -> str:
        """The tensor divided by a number; there is one divisor of a name on a rank."""
        inputs = [source, self._divisor(rank, divisor_name, divisor)]
        return self.add(rank, name, "RealDiv", inputs, T=dtype_attribute(self.dtype))

    def _divisor(self, rank: int, name: str, value: float) -> str:
        """A scalar to divide by, hidden from TensorFlow's optimizers.

        They turn a division by a constant into a multiplication by its reciprocal, which rounds
        differently.
        """
        key = (rank, name, value)
        if key not in self._constants:
            default = constant(f"{self.prefix}/{name}_{rank}/default", value, self.dtype, self.devices[rank])
            self.out.nodes.append((default, rank))
            self._constants[key] = self.add(
                rank,
                f"{name}_{rank}",
                "PlaceholderWithDefault",
                [default.name],
                dtype=dtype_attribute(self.dtype),
                shape=shape_attribute(()),
            )
        return self._constants[key]

    def reshape(self, rank: int, name: str, source: str, shape: Sequence[int]) -> str:
        """The tensor in another shape."""
        return self.add(
            rank,
            name,
            "Reshape",
            [source, self.integers(rank, shape)],
            T=dtype_attribute(self.dtype),
            Tshape=dtype_attribute("int32"),
        )

    def concat(self, rank: int, name: str, parts: Sequence[str], dtype: str | None = None) -> str:
        """Tensors one after the other along axis 0."""
        return self.add(
            rank,
            name,
            "ConcatV2",
            [*parts, self.integers(rank, 0)],
            T=dtype_attribute(dtype or self.dtype),
            Tidx=dtype_attribute("int32"),
            N=len(parts),
        )

    def split(self, rank: int, name: str, source: str, sizes: Sequence[int]) -> list[str]:
        """Parts of the given sizes along axis 0."""
        split_name = self.add(
            rank,
            name,
            "SplitV",
            [source, self.integers(rank, sizes), self.integers(rank, 0)],
            T=dtype_attribute(self.dtype),
            Tlen=dtype_attribute("int32"),
            num_split=len(sizes),
        )
        return [format_input(split_name, n) for n in range(len(sizes))]

    def joined(self, rank: int, name: str, parts: Sequence[str], dtype: str | None = None) -> str:
        """Tensors one after the other along axis 0, by a node only if there are several."""
        return parts[0] if len(parts) == 1 else self.concat(rank, name, parts, dtype)

    def parted(self, rank: int, name: str, source: str, sizes: Sequence[int]) -> list[str]:
        """A flat tensor as tensors of the given sizes, by a node only if there are several."""
        return [source] if len(sizes) == 1 else self.split(rank, name, source, sizes)

    def slice(self, rank: int, name: str, source: str, start: int, size: int) -> str:
        """A range of a flat tensor."""
        return self.add(
            rank,
            name,
            "Slice",
            [source, self.integers(rank, [start]), self.integers(rank, [size])],
            T=dtype_attribute(self.dtype),
            Index=dtype_attribute("int32"),
        )

    def identity(self, rank: int, name: str, source: str, dtype: str | None = None) -> str:
        """The tensor, on the rank's device."""
        return self.add(rank, name, "Identity", [source], T=dtype_attribute(dtype or self.dtype))

    def cast(self, rank: int, name: str, source: str, wanted: str, given: str) -> str:
        """The tensor in another dtype."""
        return self.add(rank, name, "Cast", [source], SrcT=dtype_attribute(given), DstT=dtype_attribute(wanted))

    def rounded(self, rank: int, name: str, source: str, dtype: str) -> str:
        """The tensor with the nearest numbers that another dtype has; infinite ones where it has none as large."""
        return self.cast(rank, name, self.cast(rank, f"{name}_{dtype}", source, dtype, self.dtype), self.dtype, dtype)


def lower_unchanged(request: Request) -> Lowered:
    """Emit an all-reduce of which nothing is left to do: every rank's result is its own tensor."""
    emitter = Emitter(request.prefix, request.devices, request.dtype)
    emitter.out.results = [emitter.identity(r, f"result_{r}", s) for r, s in enumerate(request.sources)]
    return emitter.out


def lower(schedule: Schedule, request: Request, on_sum: OnSum | None = None) -> Lowered:
    """Emit a schedule as SplitV, Slice, AddV2, RealDiv, Identity, Cast and ConcatV2 nodes.

    Additions are in the tensors' own dtype whatever the wire; whoever completes a sum goes on with the
    rounded value that the others receive. Where float16 is summed or sent, a mean begins to be divided
    before the sum, so that no sum is too large.

    Args:
        schedule: the checked schedule, for the number of workers and the size of the request.
        request: tensors to reduce; as they are on the wire if there is ``on_sum``.
        on_sum: what each completed sum is replaced by; see `complete_sums`.

    Returns:
        The nodes, and the reduced flat tensor of each rank.
    """
    return lower_unchanged(request) if request.is_done else _Lowering(schedule, request, on_sum).run()


class _Lowering:
    def __init__(self, schedule: Schedule, request: Request, on_sum: OnSum | None = None) -> None:
        self.schedule = schedule
        self.on_sum = on_sum
        self.emit = Emitter(request.prefix, request.devices, request.dtype)
        self.sources = request.sources
        self.mean = request.mean
        self.wire = None if request.wire == request.dtype else request.wire
        self.divisor: float = schedule.workers
        self.divisor_name = "divisor"
        self.local: dict[int, str] = {}  # tensor of each value where it lives
        self.on_wire: dict[int, str] = {}  # the same as it is sent
        self.arrived: dict[tuple[int, int], str] = {}  # (value, reader's rank): after the wire
        self.contributions: list[int] = []
        self.passed_on = self._passed_on()

    def _passed_on(self) -> set[int]:
        """Values that some other rank reads."""
        values = set()
        for instruction in self.schedule.instructions:
            for operand in instruction.operands:
                if self.schedule.instructions[operand].rank != instruction.rank:
                    values.add(operand)
        return values

    def run(self) -> Lowered:
        if self.mean and "float16" in (self.emit.dtype, self.wire):
            # Its largest number is 65504: a sum of gradients may not fit although their mean does. A power of two
            # in front leaves the bits of all sums that did fit as they are.
            power = 1 << (self.schedule.workers - 1).bit_length()
            self.sources = [self.emit.divided(r, f"share_{r}", source, power) for r, source in enumerate(self.sources)]
            self.divisor, self.divisor_name = self.schedule.workers / power, "last_divisor"
        self._cut_sources()
        parts = self._parts_of_values()
        for number, instruction in enumerate(self.schedule.instructions):
            self.contributions.append(self._contributions_of(instruction))
            if instruction.size == 0:
                continue
            if instruction.operation == "add":
                self.local[number] = self._sum(number, instruction)
            elif instruction.operation == "join":
                self.local[number] = self._join(f"join_{number}", instruction.rank, instruction.operands)
            elif instruction.operation == "copy":
                self._copy(number, instruction)
            if number in parts:
                self._cut(number, parts[number])
        for rank, row in enumerate(self.schedule.results):
            self.emit.out.results.append(self._result(rank, row))
        return self.emit.out

    def _contributions_of(self, instruction: Instruction) -> int:
        """The number of ranks whose contributions the next value has."""
        if instruction.operation == "take":
            return 1
        counts = [self.contributions[o] for o in instruction.operands]
        if instruction.operation == "add":
            return sum(counts)
        if len(set(counts)) > 1:
            where = f"{self.schedule.algorithm}: instruction {len(self.contributions)}"
            raise InvariantError(f"{where} joins complete and partial sums")
        return counts[0]

    # -- cutting -----------------------------------------------------------------------------

    def _cut_sources(self) -> None:
        """The ranks' own contributions."""
        wanted: dict[int, list[int]] = {}
        for number, instruction in enumerate(self.schedule.instructions):
            if instruction.operation == "take" and instruction.size > 0:
                wanted.setdefault(instruction.rank, []).append(number)
        for rank, numbers in wanted.items():
            self._pieces(rank, f"own_{rank}", self.sources[rank], (0, self.schedule.size), numbers)

    def _parts_of_values(self) -> dict[int, list[int]]:
        parts: dict[int, list[int]] = {}
        for number, instruction in enumerate(self.schedule.instructions):
            if instruction.operation == "part" and instruction.size > 0:
                parts.setdefault(instruction.operands[0], []).append(number)
        return parts

    def _cut(self, value: int, numbers: Sequence[int]) -> None:
        whole = self.schedule.instructions[value]
        self._pieces(whole.rank, f"cut_{value}", self.local[value], (whole.start, whole.size), numbers)

    def _pieces(self, rank: int, name: str, source: str, whole: tuple[int, int], numbers: Sequence[int]) -> None:
        """Tensors for ranges of a tensor: by one SplitV where they tile it, otherwise by Slices."""
        instructions = self.schedule.instructions
        ranges = sorted({(instructions[n].start, instructions[n].size) for n in numbers})
        if ranges == [whole]:
            tensors = {whole: source}
        elif self._tile(ranges, whole) and self._is_shared(ranges, whole):
            tensors = dict(zip(ranges, self.emit.split(rank, name, source, [size for _, size in ranges])))
        else:
            tensors = {
                (start, size): self.emit.slice(rank, f"{name}_{start}_{size}", source, start - whole[0], size)
                for start, size in ranges
            }
        for number in numbers:
            self.local[number] = tensors[instructions[number].start, instructions[number].size]

    def _is_shared(self, ranges: Sequence[tuple[int, int]], whole: tuple[int, int]) -> bool:
        """Whether SplitV is as good as Slices: it copies everything unless the very end is aligned, too."""
        is_cut_for_sharing = len(ranges) > 1 and all(
            (start - whole[0]) % ALIGNMENT_ELEMENTS == 0 for start, _ in ranges
        )
        return not is_cut_for_sharing or whole[1] * ITEM_BYTES[self.emit.dtype] % BUFFER_ALIGNMENT_BYTES == 0

    @staticmethod
    def _tile(ranges: Sequence[tuple[int, int]], whole: tuple[int, int]) -> bool:
        position = whole[0]
        for start, size in ranges:
            if start != position:
                return False
            position += size
        return position == whole[0] + whole[1]

    # -- messages ----------------------------------------------------------------------------

    def _sent(self, value: int) -> str:
        """A value as it leaves its rank."""
        if self.wire is None:
            return self.local[value]
        if value not in self.on_wire:
            rank = self.schedule.instructions[value].rank
            self.on_wire[value] = self.emit.cast(rank, f"send_{value}", self.local[value], self.wire, self.emit.dtype)
        return self.on_wire[value]

    def _read(self, value: int, rank: int) -> str:
        """A value as an op of a rank reads it; another device makes it a message."""
        if self.schedule.instructions[value].rank == rank:
            return self.local[value]
        if self.wire is None:
            return self._sent(value)
        if (value, rank) not in self.arrived:
            name = f"receive_{value}_{rank}"
            self.arrived[value, rank] = self.emit.cast(rank, name, self._sent(value), self.emit.dtype, self.wire)
        return self.arrived[value, rank]

    def _copy(self, number: int, instruction: Instruction) -> None:
        """Nothing to emit unless the copy is passed on: then it must exist on its rank."""
        operand = instruction.operands[0]
        if number in self.passed_on:
            held = self.emit.identity(instruction.rank, f"hold_{number}", self._sent(operand), self.wire)
            if self.wire is None:
                self.local[number] = held
            else:
                self.on_wire[number] = held
                self.local[number] = self.emit.cast(
                    instruction.rank, f"held_{number}", held, self.emit.dtype, self.wire
                )
        else:
            self.local[number] = self._read(operand, instruction.rank)

    # -- arithmetic --------------------------------------------------------------------------

    def _sum(self, number: int, instruction: Instruction) -> str:
        rank = instruction.rank
        total = self._read(instruction.operands[0], rank)
        for position, operand in enumerate(instruction.operands[1:], start=1):
            inputs = [total, self._read(operand, rank)]
            total = self.emit.added(rank, f"sum_{number}_{position}", inputs)
        if self.contributions[number] < self.schedule.workers:
            return total
        if self.mean and self.divisor != 1:
            total = self.emit.divided(rank, f"mean_{number}", total, self.divisor, self.divisor_name)
        if self.on_sum is not None:
            return self.on_sum(rank, instruction.start, instruction.size, total)
        if self.wire is not None:
            self.on_wire[number] = self.emit.cast(rank, f"send_{number}", total, self.wire, self.emit.dtype)
            total = self.emit.cast(rank, f"rounded_{number}", self.on_wire[number], self.emit.dtype, self.wire)
        return total

    def _join(self, name: str, rank: int, values: Sequence[int]) -> str:
        parts = [self._read(v, rank) for v in values if self.schedule.instructions[v].size > 0]
        return self.emit.joined(rank, name, parts)

    def _result(self, rank: int, row: Sequence[int]) -> str:
        full = [v for v in row if self.schedule.instructions[v].size > 0]
        joined = self._join(f"result_{rank}", rank, full)
        # A result that is just another rank's tensor is pinned where it arrives.
        return joined if len(full) > 1 else self.emit.identity(rank, f"result_{rank}", joined)
