"""What runs and travels in a real step of this library: ops and messages of all workers."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

from caramel.measure.step_stats import Message as TracedMessage
from caramel.measure.step_stats import Row, parsed_messages, parsed_rows

_TASK = re.compile(r"/task:(\d+)")
_TRANSFER = re.compile(r"transfer_(\d+)")
_WARM_UP_STEPS = 4


@dataclass(frozen=True)
class Work:
    """An op that ran.

    Attributes:
        rank: the worker.
        kind: ``"forward"``, ``"backward"``, ``"update"`` or ``"transfer"``.
        start_s: seconds after the step began.
        end_s: likewise.
        node: name of its node; empty where it does not matter.
    """

    rank: int
    kind: str
    start_s: float
    end_s: float
    node: str = ""


@dataclass(frozen=True)
class Message:
    """A tensor that came from another worker.

    Attributes:
        rank: who received it.
        transfer: number of the transfer that it belongs to; None if to none.
        size_bytes: of the tensor.
        end_s: when it was there, in seconds after the step began.
    """

    rank: int
    transfer: int | None
    size_bytes: int
    end_s: float


@dataclass(frozen=True)
class Step:
    """A traced step.

    Attributes:
        works: all ops.
        messages: all that workers sent to each other.
        step_s: seconds from the call of the step to the end of the last op or message.
    """

    works: tuple[Work, ...]
    messages: tuple[Message, ...]
    step_s: float


def step_of(metadata: bytes, start_ns: int) -> Step:
    """What ran in a step.

    Args:
        metadata: a serialized RunMetadata.
        start_ns: when the step was called.

    Raises:
        TraceError: the metadata is damaged.
    """
    works = tuple(_work(row, start_ns) for row in parsed_rows(metadata))
    traced = (message for message in parsed_messages(metadata) if _task(message.source) != _task(message.target))
    messages = tuple(_message(message, start_ns) for message in traced)
    return Step(works, messages, max(max(w.end_s for w in works), max((m.end_s for m in messages), default=0.0)))


def _work(row: Row, start_ns: int) -> Work:
    start_s, end_s = (row.start_ns - start_ns) / 1e9, (row.end_ns - start_ns) / 1e9
    return Work(_task(row.device), kind_of(row.node), start_s, end_s, row.node)


def _message(message: TracedMessage, start_ns: int) -> Message:
    transfer = _TRANSFER.search(message.tensor)
    number = None if transfer is None else int(transfer[1])
    return Message(_task(message.target), number, message.size_bytes, (message.end_ns - start_ns) / 1e9)


def _task(device: str) -> int:
    found = _TASK.search(device)
    return 0 if found is None else int(found[1])


def kind_of(node: str) -> str:
    """What an op is for, by its name.

    >>> [kind_of(name) for name in ("worker_1/gradient_tape/MatMul", "worker_1/MatMul", "caramel/transfer_0/sum_1")]
    ['backward', 'forward', 'transfer']
    """
    if not node.startswith("worker_"):
        return "transfer"
    if "gradient_tape" in node:
        return "backward"
    return "update" if "Apply" in node else "forward"


def traced_steps(session: Any, count: int) -> list[Step]:
    """Traced steps of a session.

    Args:
        session: of an ARModel.
        count: how many, after some that are not traced.
    """
    session.run(steps=_WARM_UP_STEPS, progress=False)
    found: list[Step] = []

    def run(*call: Any) -> Any:
        start_ns = time.time_ns()
        values, metadata = session.executor.run_traced(*call)
        found.append(step_of(metadata, start_ns))
        return values

    for _ in range(count):
        session.step_by(run)
    return found
