"""What runs and travels in a real step of this library: ops and messages of all workers."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

from caramel.measure.step_stats import Message as TracedMessage
from caramel.measure.step_stats import Row, TracedStep, with_all_messages
from caramel.measure.step_stats import step_of as traced_step_of

_TASK = re.compile(r"/task:(\d+)")
_TRANSFER = re.compile(r"transfer_(\d+)")
_WARM_UP_STEPS = 4
_SPARE_STEPS = 2


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


def step_of(traced: TracedStep, start_ns: int) -> Step:
    """What ran in a step.

    Args:
        traced: rows and messages of the step.
        start_ns: when the step was called.
    """
    works = tuple(_work(row, start_ns) for row in traced.rows)
    between = (message for message in traced.messages if _task(message.source) != _task(message.target))
    messages = tuple(_message(message, start_ns) for message in between)
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
    """Traced steps of a session, with all messages: a few more are traced than asked for, see `with_all_messages`.

    Args:
        session: of an ARModel.
        count: how many, after some that are not traced.
    """
    session.run(steps=_WARM_UP_STEPS, progress=False)
    tried: list[tuple[TracedStep, int]] = []

    def run(*call: Any) -> Any:
        start_ns = time.time_ns()
        values, metadata = session.executor.run_traced(*call)
        tried.append((traced_step_of(metadata), start_ns))
        return values

    full: list[TracedStep] = []
    while len(full) < count:
        for _ in range(count + _SPARE_STEPS):
            session.step_by(run)
        full = with_all_messages([step for step, _ in tried])
    return [step_of(step, start_ns) for step, start_ns in tried if step in full][:count]
