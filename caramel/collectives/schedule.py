"""A collective as data: which rank holds, sends, adds and joins which part of the tensor, in order.

A schedule is a straight-line program over values. Every value lives on one rank and stands for a
range of the flattened tensor. An instruction makes a value from earlier ones; reading a value of
another rank is a message. That is all a lowering needs, and all a checker needs to prove the result
and to count what it costs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from caramel.errors import InputError, InvariantError
from caramel.util.ranges import balanced


@dataclass(frozen=True)
class Instruction:
    """An instruction that makes one value.

    Attributes:
        rank: number of the rank on which the value is made and lives.
        start: position of the first element of the flattened tensor for which the value stands.
        size: number of elements.
        operation: ``"take"`` (the rank's own contribution), ``"part"`` (a part of a value of the same
            rank), ``"add"`` (left fold of the operands in their order), ``"join"`` (the operands one
            after the other) or ``"copy"`` (a value of another rank, to use or to pass on).
        operands: numbers of earlier instructions.
    """

    rank: int
    start: int
    size: int
    operation: str
    operands: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """One past the last element."""
        return self.start + self.size


@dataclass(frozen=True)
class Schedule:
    """An all-reduce of one flattened tensor.

    Attributes:
        algorithm: name of the algorithm.
        workers: number of ranks.
        size: number of elements of the tensor.
        instructions: instructions in an order in which they can run.
        results: numbers of the values of each rank that, one after the other, are the reduced tensor.
    """

    algorithm: str
    workers: int
    size: int
    instructions: tuple[Instruction, ...]
    results: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Proof:
    """What `check` proves about a schedule.

    Attributes:
        rounds: number of messages one after the other on the longest path.
        sends: number of messages that each rank sends.
        sent_elements: number of elements that each rank sends.
        received_elements: number of elements that each rank receives.
        is_rank_order_fold: whether every sum is ((g0 + g1) + g2) + ..., the order of one device
            that adds its micro-batches in turn.
    """

    rounds: int
    sends: tuple[int, ...]
    sent_elements: tuple[int, ...]
    received_elements: tuple[int, ...]
    is_rank_order_fold: bool


class Builder:
    """Writes a schedule instruction by instruction; ranges are checked as it goes.

    Args:
        workers: number of ranks.
        size: number of elements of the tensor.
    """

    def __init__(self, workers: int, size: int) -> None:
        if workers < 1:
            raise InputError(f"a collective needs at least 1 worker, got {workers}")
        if size < 0:
            raise InputError(f"a collective needs a size of at least 0 elements, got {size}")
        self.workers = workers
        self.size = size
        self.instructions: list[Instruction] = []

    def _append(self, instruction: Instruction) -> int:
        self.instructions.append(instruction)
        return len(self.instructions) - 1

    def take(self, rank: int, start: int, size: int) -> int:
        """The rank's own contribution to a range."""
        return self._append(Instruction(rank, start, size, "take"))

    def part(self, value: int, start: int, size: int) -> int:
        """A part of a value, on the same rank; the value itself if it is all of it."""
        source = self.instructions[value]
        if (start, size) == (source.start, source.size):
            return value
        return self._append(Instruction(source.rank, start, size, "part", (value,)))

    def add(self, rank: int, values: Sequence[int]) -> int:
        """The sum of values of one range, added from left to right; the value itself if it is the only one."""
        first = self.instructions[values[0]]
        if len(values) == 1 and first.rank == rank:
            return values[0]
        return self._append(Instruction(rank, first.start, first.size, "add", tuple(values)))

    def join(self, rank: int, values: Sequence[int]) -> int:
        """Values of adjacent ranges as one."""
        if len(values) == 1:
            return values[0]
        first, last = self.instructions[values[0]], self.instructions[values[-1]]
        return self._append(Instruction(rank, first.start, last.end - first.start, "join", tuple(values)))

    def copy(self, rank: int, value: int) -> int:
        """A value of another rank; the value itself on its own rank."""
        source = self.instructions[value]
        if source.rank == rank:
            return value
        return self._append(Instruction(rank, source.start, source.size, "copy", (value,)))

    def schedule(self, algorithm: str, results: Sequence[Sequence[int]]) -> Schedule:
        """The finished schedule."""
        return Schedule(
            algorithm, self.workers, self.size, tuple(self.instructions), tuple(tuple(row) for row in results)
        )


ALIGNMENT_ELEMENTS = 64
"""Number of elements whose multiples lie at multiples of `BUFFER_ALIGNMENT_BYTES` for every dtype: cuts are there."""
_ALIGNED_RANGE_ELEMENTS = 64 * ALIGNMENT_ELEMENTS
"""Number of elements of the shortest ranges whose cuts are aligned."""


def cuts(size: int, parts: int) -> tuple[tuple[int, int], ...]:
    """Cut a tensor of ``size`` elements into ``parts`` ranges (start, size) of nearly equal size.

    Sizes differ by at most one element. Ranges so long that it matters less than copying (4096 elements
    or more) begin at multiples of `ALIGNMENT_ELEMENTS`, and differ by less than two of them.

    >>> cuts(10, 4) == balanced(10, 4)
    True
    >>> cuts(10_001, 2)
    ((0, 5056), (5056, 4945))
    """
    if size < parts * _ALIGNED_RANGE_ELEMENTS:
        return balanced(size, parts)
    ranges = [
        (start * ALIGNMENT_ELEMENTS, length * ALIGNMENT_ELEMENTS)
        for start, length in balanced(-(-size // ALIGNMENT_ELEMENTS), parts)
    ]
    last_start, _ = ranges[-1]
    return (*ranges[:-1], (last_start, size - last_start))


class Algorithm(Protocol):
    """A function that makes the schedule of an all-reduce."""

    def __call__(self, workers: int, size: int, turn: int = 0) -> Schedule:
        """Make it; a rank that has more to do than others is another one each turn."""


def in_chunks(make: Algorithm, workers: int, size: int, depth: int, turn: int = 0) -> Schedule:
    """Cut the tensor in ``depth`` chunks that are reduced independently, and so in a pipeline.

    While one chunk is added on the processors, another travels (Caramel, section 4.4).

    Args:
        make: the algorithm.
        workers: number of ranks.
        size: number of elements of the tensor.
        depth: number of chunks, at least 1; chunks that would be empty are left out.
        turn: turn of the first chunk; each following chunk has the next one.

    Raises:
        InputError: depth < 1.
    """
    if depth < 1:
        raise InputError(f"the depth of a collective must be at least 1, got {depth}")
    if depth == 1 or size <= 1:
        return make(workers, size, turn)
    instructions: list[Instruction] = []
    results: list[list[int]] = [[] for _ in range(workers)]
    algorithm = ""
    for number, (start, length) in enumerate(cuts(size, min(depth, size))):
        chunk = make(workers, length, turn + number)
        algorithm = chunk.algorithm
        offset = len(instructions)
        instructions.extend(
            replace(i, start=i.start + start, operands=tuple(o + offset for o in i.operands))
            for i in chunk.instructions
        )
        for rank, row in enumerate(chunk.results):
            results[rank].extend(number + offset for number in row)
    return Schedule(algorithm, workers, size, tuple(instructions), tuple(tuple(row) for row in results))


def complete_sums(schedule: Schedule) -> tuple[Instruction, ...]:
    """The instructions that complete sums, which tile the tensor: each element is completed on one rank, once.

    Args:
        schedule: a proved schedule of at least two ranks.

    Raises:
        InvariantError: an element is completed twice, or never.
    """
    counts: list[int] = []  # contributions in each value
    complete: list[Instruction] = []
    for instruction in schedule.instructions:
        if instruction.operation == "take":
            counts.append(1)
        elif instruction.operation == "add":
            counts.append(sum(counts[operand] for operand in instruction.operands))
            if counts[-1] == schedule.workers and instruction.size:
                complete.append(instruction)
        else:
            counts.append(counts[instruction.operands[0]])
    complete.sort(key=lambda instruction: instruction.start)
    ends = [0, *(instruction.end for instruction in complete)]
    if ends[-1] != schedule.size or any(end != i.start for end, i in zip(ends, complete)):
        raise InvariantError(f"{schedule.algorithm}: its sums are not completed once each")
    return tuple(complete)


# -- the checker ---------------------------------------------------------------------------------

_MOST_CONTRIBUTORS = 100
"""Number of contributions of a sum that a message names."""


@dataclass(frozen=True)
class _Segment:
    """A range of elements in which a value is one symbolic sum.

    Attributes:
        start: position of the first element.
        end: one past the position of the last element.
        term: number of the symbolic sum.
    """

    start: int
    end: int
    term: int


class _Terms:
    """Symbolic sums, each distinct one once.

    The ranks in a sum are the bits of one integer; a sum in which some rank is more than once is
    remembered as such for good, so no number of further additions can hide it.
    """

    def __init__(self, workers: int) -> None:
        self.ranks: list[int] = [1 << rank for rank in range(workers)]
        self.parts: list[tuple[int, int] | None] = [None] * workers
        self.repeated: list[bool] = [False] * workers
        self.everyone = (1 << workers) - 1
        self._sums: dict[tuple[int, int], int] = {}

    def sum(self, left: int, right: int) -> int:
        key = (left, right)
        if key not in self._sums:
            self._sums[key] = len(self.ranks)
            twice = self.ranks[left] & self.ranks[right] != 0
            self.repeated.append(twice or self.repeated[left] or self.repeated[right])
            self.ranks.append(self.ranks[left] | self.ranks[right])
            self.parts.append(key)
        return self._sums[key]

    def is_everyone_once(self, term: int) -> bool:
        """Whether every rank is in a sum, and none twice."""
        return self.ranks[term] == self.everyone and not self.repeated[term]

    def contributors(self, term: int) -> list[int]:
        """The first ranks in a sum, each as often as it contributes."""
        ranks: list[int] = []
        stack = [term]
        while stack and len(ranks) < _MOST_CONTRIBUTORS:
            parts = self.parts[term := stack.pop()]
            if parts is None:
                ranks.append(term)
            else:
                stack += [parts[1], parts[0]]
        return sorted(ranks)


def check(schedule: Schedule) -> Proof:
    """Run the schedule on symbols and prove that it is an all-reduce.

    Raises:
        InvariantError: an instruction reads what does not exist yet or does not fit, or some rank
            does not end with every contribution to every element exactly once.
    """
    terms = _Terms(schedule.workers)
    values: list[tuple[_Segment, ...]] = []
    rounds: list[int] = []
    sends, sent, received = ([0] * schedule.workers for _ in range(3))
    arrived: set[tuple[int, int]] = set()
    for number, instruction in enumerate(schedule.instructions):
        where = f"schedule {schedule.algorithm!r}: instruction {number} on rank {instruction.rank}"
        _check_operands(schedule, number, where)
        longest = 0
        for operand in instruction.operands:
            source = schedule.instructions[operand]
            crosses = source.rank != instruction.rank and source.size > 0
            longest = max(longest, rounds[operand] + crosses)
            if crosses and (operand, instruction.rank) not in arrived:
                arrived.add((operand, instruction.rank))
                sends[source.rank] += 1
                sent[source.rank] += source.size
                received[instruction.rank] += source.size
        rounds.append(longest)
        values.append(_value(instruction, [values[o] for o in instruction.operands], terms, where))
    folds = _check_results(schedule, values, terms)
    used = [rounds[number] for row in schedule.results for number in row]  # _check_results knows that they exist
    return Proof(max(used, default=0), tuple(sends), tuple(sent), tuple(received), folds)


def _check_operands(schedule: Schedule, number: int, where: str) -> None:
    instruction = schedule.instructions[number]
    if not 0 <= instruction.rank < schedule.workers:
        raise InvariantError(f"{where}: there are only {schedule.workers} ranks")
    if instruction.start < 0 or instruction.size < 0 or instruction.end > schedule.size:
        raise InvariantError(
            f"{where} makes elements {instruction.start} to {instruction.end} of a tensor of {schedule.size}"
        )
    counts = {"take": (0, 0), "part": (1, 1), "copy": (1, 1), "add": (1, None), "join": (1, None)}
    least, most = counts.get(instruction.operation, (-1, -1))
    count = len(instruction.operands)
    if least < 0 or count < least or (most is not None and count > most):
        raise InvariantError(f"{where} is not a valid {instruction.operation!r} of {count} operands")
    for operand in instruction.operands:
        if not 0 <= operand < number:
            raise InvariantError(f"{where} reads instruction {operand}, which does not come before it")
        source = schedule.instructions[operand]
        same = (source.start, source.size) == (instruction.start, instruction.size)
        if instruction.operation in ("add", "copy") and not same:
            raise InvariantError(
                f"{where} reads elements {source.start} to {source.end} for {instruction.start} to {instruction.end}"
            )
        if instruction.operation == "part" and source.rank != instruction.rank:
            raise InvariantError(f"{where} takes a part of a value of rank {source.rank}: cut it there, then send it")


def _value(
    instruction: Instruction, operands: Sequence[tuple[_Segment, ...]], terms: _Terms, where: str
) -> tuple[_Segment, ...]:
    if instruction.size == 0:
        return ()
    if instruction.operation == "take":
        return (_Segment(instruction.start, instruction.end, instruction.rank),)
    if instruction.operation in ("part", "copy"):
        cut = _clipped(operands[0], instruction.start, instruction.end)
        return _covering(cut, instruction, where)
    if instruction.operation == "join":
        return _covering(tuple(s for operand in operands for s in operand), instruction, where)
    total = operands[0]
    for operand in operands[1:]:
        total = _added(total, operand, terms)
    return total


def _clipped(segments: Sequence[_Segment], start: int, end: int) -> tuple[_Segment, ...]:
    return tuple(
        _Segment(max(s.start, start), min(s.end, end), s.term) for s in segments if s.start < end and s.end > start
    )


def _covering(segments: tuple[_Segment, ...], instruction: Instruction, where: str) -> tuple[_Segment, ...]:
    position = instruction.start
    for segment in segments:
        if segment.start != position:
            raise InvariantError(f"{where} has no element {position}, or has it out of order")
        position = segment.end
    if position != instruction.end:
        raise InvariantError(f"{where} ends at element {position}, not at {instruction.end}")
    return segments


def _added(left: Sequence[_Segment], right: Sequence[_Segment], terms: _Terms) -> tuple[_Segment, ...]:
    """Element by element, where either side changes."""
    edges = sorted({s.start for s in (*left, *right)} | {s.end for s in (*left, *right)})
    lefts, rights = iter(left), iter(right)
    a, b = next(lefts), next(rights)
    segments = []
    for start, end in itertools.pairwise(edges):
        while a.end <= start:
            a = next(lefts)
        while b.end <= start:
            b = next(rights)
        segments.append(_Segment(start, end, terms.sum(a.term, b.term)))
    return tuple(segments)


def _check_results(schedule: Schedule, values: Sequence[tuple[_Segment, ...]], terms: _Terms) -> bool:
    name = f"schedule {schedule.algorithm!r}"
    everyone = tuple(range(schedule.workers))
    fold = 0
    for rank in everyone[1:]:
        fold = terms.sum(fold, rank)
    if len(schedule.results) != schedule.workers:
        raise InvariantError(f"{name}: results for {len(schedule.results)} of {schedule.workers} ranks")
    folds = True
    for rank, row in enumerate(schedule.results):
        position = 0
        for number in row:
            if not 0 <= number < len(schedule.instructions):
                raise InvariantError(f"{name}: a result of rank {rank} is instruction {number}, which does not exist")
            instruction = schedule.instructions[number]
            if instruction.rank != rank:
                raise InvariantError(f"{name}: a result of rank {rank} is on rank {instruction.rank}")
            if instruction.start != position:
                raise InvariantError(f"{name}: the results of rank {rank} have no element {position}, or out of order")
            position = instruction.end
            for segment in values[number]:
                if not terms.is_everyone_once(segment.term):
                    raise InvariantError(
                        f"{name}: elements {segment.start} to {segment.end} on rank {rank} have contributions of ranks "
                        f"{terms.contributors(segment.term)}, not of each of {schedule.workers} once"
                    )
                folds = folds and segment.term == fold
        if position != schedule.size:
            raise InvariantError(f"{name}: the results of rank {rank} end at element {position} of {schedule.size}")
    return folds
