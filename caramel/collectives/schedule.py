"""A collective as data: which rank holds, sends and adds which chunk, in order.

A schedule is a straight-line program over values. Every value lives on one rank and stands for one
chunk of the flattened tensor. A step makes a value from others; reading a value of another rank is
a transfer. That is all a lowering needs, and all a checker needs to prove the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caramel.errors import InvariantError


@dataclass(frozen=True)
class Chunk:
    """A slice of the flattened tensor: elements ``start`` to ``start + size``."""

    start: int
    size: int


@dataclass(frozen=True)
class Step:
    """One value.

    Attributes:
        rank: where the value is made and lives.
        chunk: number of the chunk that it stands for.
        operation: ``"take"`` (the rank's own chunk), ``"add"`` (left fold of the operands in their
            order) or ``"copy"``.
        operands: earlier steps; reading one of another rank is a transfer.
    """

    rank: int
    chunk: int
    operation: str
    operands: tuple[int, ...] = ()


@dataclass(frozen=True)
class Schedule:
    """An all-reduce of one flattened tensor.

    Attributes:
        algorithm: its name.
        workers: number of ranks.
        size: elements of the tensor.
        chunks: slices that partition the tensor.
        steps: values in an order in which they can be made.
        results: for each rank and each chunk, the step with the reduced chunk.
    """

    algorithm: str
    workers: int
    size: int
    chunks: tuple[Chunk, ...]
    steps: tuple[Step, ...]
    results: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Proof:
    """What `check` found out about a schedule.

    Attributes:
        sends: number of messages that each rank sends.
        sent_elements: elements that each rank sends.
        received_elements: elements that each rank receives.
        is_rank_order_fold: whether every sum is ((g0 + g1) + g2) + ..., the order of one device
            that adds its micro-batches in turn.
    """

    sends: tuple[int, ...]
    sent_elements: tuple[int, ...]
    received_elements: tuple[int, ...]
    is_rank_order_fold: bool


def balanced(size: int, parts: int) -> tuple[Chunk, ...]:
    """Cut ``size`` elements into ``parts`` slices whose sizes differ by at most one.

    >>> [c.size for c in balanced(10, 4)]
    [3, 3, 2, 2]
    """
    whole, rest = divmod(size, parts)
    chunks, start = [], 0
    for part in range(parts):
        length = whole + (1 if part < rest else 0)
        chunks.append(Chunk(start, length))
        start += length
    return tuple(chunks)


# A symbolic value: the rank it came from, or the pair of the two values added.
_Term = int | tuple["_Term", "_Term"]


def check(schedule: Schedule) -> Proof:
    """Run the schedule on symbols and prove that it is an all-reduce.

    Raises:
        InvariantError: a step reads what does not exist yet or another chunk, the chunks do not
            partition the tensor, or some rank does not end with every contribution exactly once.
    """
    _check_partition(schedule)
    terms: list[_Term] = []
    sends = [0] * schedule.workers
    sent = [0] * schedule.workers
    received = [0] * schedule.workers
    arrived: set[tuple[int, int]] = set()
    for number, step in enumerate(schedule.steps):
        where = f"schedule {schedule.algorithm!r}: step {number} on rank {step.rank}"
        for operand in step.operands:
            if not 0 <= operand < number:
                raise InvariantError(f"{where} reads step {operand}, which is not made before it")
            source = schedule.steps[operand]
            if source.chunk != step.chunk:
                raise InvariantError(f"{where} reads chunk {source.chunk} for chunk {step.chunk}")
            size = schedule.chunks[step.chunk].size
            if source.rank != step.rank and (operand, step.rank) not in arrived and size > 0:
                arrived.add((operand, step.rank))
                sends[source.rank] += 1
                sent[source.rank] += size
                received[step.rank] += size
        terms.append(_term(step, terms, where))
    folds = _check_results(schedule, terms)
    return Proof(tuple(sends), tuple(sent), tuple(received), folds)


def _check_partition(schedule: Schedule) -> None:
    position = 0
    for number, chunk in enumerate(schedule.chunks):
        if chunk.start != position or chunk.size < 0:
            raise InvariantError(f"schedule {schedule.algorithm!r}: chunk {number} does not follow the one before it")
        position += chunk.size
    if position != schedule.size:
        raise InvariantError(f"schedule {schedule.algorithm!r}: chunks cover {position} of {schedule.size} elements")


def _term(step: Step, terms: Sequence[_Term], where: str) -> _Term:
    if step.operation == "take" and not step.operands:
        return step.rank
    if step.operation == "copy" and len(step.operands) == 1:
        return terms[step.operands[0]]
    if step.operation == "add" and step.operands:
        total = terms[step.operands[0]]
        for operand in step.operands[1:]:
            total = (total, terms[operand])
        return total
    raise InvariantError(f"{where} is not a valid {step.operation!r} of {len(step.operands)} operands")


def _contributors(term: _Term) -> list[int]:
    found, stack = [], [term]
    while stack:
        current = stack.pop()
        if isinstance(current, int):
            found.append(current)
        else:
            stack.extend(current)
    return sorted(found)


def _check_results(schedule: Schedule, terms: Sequence[_Term]) -> bool:
    everyone = list(range(schedule.workers))
    fold: _Term = 0
    for rank in everyone[1:]:
        fold = (fold, rank)
    checked: dict[int, bool] = {}
    if len(schedule.results) != schedule.workers:
        raise InvariantError(
            f"schedule {schedule.algorithm!r}: results for {len(schedule.results)} of {schedule.workers} ranks"
        )
    for rank, row in enumerate(schedule.results):
        if len(row) != len(schedule.chunks):
            raise InvariantError(
                f"schedule {schedule.algorithm!r}: rank {rank} has {len(row)} of {len(schedule.chunks)} chunks"
            )
        for chunk, number in enumerate(row):
            step = schedule.steps[number]
            if (step.rank, step.chunk) != (rank, chunk):
                raise InvariantError(
                    f"schedule {schedule.algorithm!r}: the result of chunk {chunk} on rank {rank} "
                    f"is chunk {step.chunk} on rank {step.rank}"
                )
            if _contributors(terms[number]) != everyone:
                raise InvariantError(
                    f"schedule {schedule.algorithm!r}: chunk {chunk} on rank {rank} has contributions of ranks "
                    f"{_contributors(terms[number])}, not of each of {schedule.workers} once"
                )
            checked[number] = terms[number] == fold
    return all(checked.values())
