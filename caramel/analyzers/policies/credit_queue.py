"""ByteScheduler's queue: what is ready leaves by priority, while the bytes under way are within a credit.

This knows links and bytes only.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

from caramel.errors import InputError
from caramel.util.arguments import byte_count
from caramel.util.intervals import TIME_TOLERANCE


class Task(NamedTuple):
    """What is to be sent.

    Attributes:
        name: its name.
        priority: rank of the task; of what is ready the least is sent first, of equals the one that is given first.
        ready_s: time from which on it can be sent, in seconds.
        size_bytes: bytes on the link.
        can_wait: whether it is better left out than sent too late; see `send_by_credit`.
    """

    name: str
    priority: tuple[float, ...]
    ready_s: float
    size_bytes: float
    can_wait: bool = False


class Sent(NamedTuple):
    """When a task was sent.

    Attributes:
        number: place of the task among those that were given.
        task: the task.
        queued_s: time at which it was given to the link, which nothing can take back; its bytes are taken off the
            credit.
        start_s: time at which it has the link.
        left_s: time at which it leaves the link to the next one.
        arrived_s: time at which it has arrived; its bytes are given back to the credit.
    """

    number: int
    task: Task
    queued_s: float
    start_s: float
    left_s: float
    arrived_s: float


@dataclass(frozen=True)
class Link:
    """A link that serves tasks in the order in which they are given to it, one after the other.

    Attributes:
        channel_s: function from bytes to the seconds for which a task has the link.
        lag_s: function from bytes to the seconds from then until the task has arrived.
        free_s: time from which on the link is free, in seconds.
    """

    channel_s: Callable[[float], float]
    lag_s: Callable[[float], float] = lambda size_bytes: 0.0
    free_s: float = 0.0


def check_credit(partition_bytes: float, credit_bytes: float) -> None:
    """Check that a part can be sent.

    Args:
        partition_bytes: largest number of bytes of a part.
        credit_bytes: bytes that may be under way at once.

    Raises:
        InputError: it cannot: the credit is smaller than a part.
    """
    if credit_bytes < partition_bytes:
        raise InputError(
            f"credit_bytes={credit_bytes:g} is less than partition_bytes={partition_bytes:g}: a piece of that size "
            "could never be sent. Raise the credit, or cut into smaller pieces"
        )


def send_by_credit(tasks: Sequence[Task], credit_bytes: float, link: Link, until_s: float = math.inf) -> list[Sent]:
    """When each task is sent, and in which order.

    Whenever something is ready or has arrived, the ready task of the least priority is looked at. If its bytes are
    within what is left of the credit, it is given to the link, and the next one is looked at. If not, it stays in the
    queue, where one that is ready later may go before it; nothing of a greater priority passes it. A task of more bytes
    than the whole credit is sent when nothing is under way, or it would wait for ever.

    As printed, line 16 compares with ``>``, so that a task of just the credit is never sent; and a task that does not
    fit has left the queue, and is lost.

    Args:
        tasks: tasks in any order.
        credit_bytes: bytes that may be under way at once; infinity for a queue in the order of the ready times.
        link: link that takes them.
        until_s: time after which tasks that can wait may not arrive: they are left out when their turn comes, and those
            behind them go on.

    Returns:
        The tasks that are sent, in the order in which they are given to the link.

    Raises:
        InputError: the credit is not positive.

    Source:
        ByteScheduler, section 4.2, algorithm 1, lines 5 to 20.

    >>> tasks = [Task(str(n), (-n,), float(n), 1.0) for n in (1, 2, 3, 4)]
    >>> [sent.task.name for sent in send_by_credit(tasks, 1, Link(lambda size: 4.0))]
    ['1', '4', '3', '2']
    >>> [sent.task.name for sent in send_by_credit(tasks, 2, Link(lambda size: 4.0))]
    ['1', '2', '4', '3']
    """
    whole_credit = left_bytes = byte_count(credit_bytes, "credit_bytes")
    coming = deque(sorted(enumerate(tasks), key=lambda pair: (pair[1].ready_s, pair[0])))
    queue: list[tuple[tuple[float, ...], int]] = []
    under_way: list[tuple[float, int]] = []
    sent: list[Sent] = []
    now_s, free_s = 0.0, link.free_s
    while coming or queue:
        present_s = now_s + TIME_TOLERANCE * abs(now_s)
        while coming and coming[0][1].ready_s <= present_s:
            number, task = coming.popleft()
            now_s = max(now_s, task.ready_s)
            heappush(queue, (task.priority, number))
        while under_way and under_way[0][0] <= present_s:
            arrived_s, number = heappop(under_way)
            now_s = max(now_s, arrived_s)
            left_bytes += tasks[number].size_bytes
        if not under_way:
            left_bytes = whole_credit  # whatever sums of fractions have lost
        if queue and (tasks[queue[0][1]].size_bytes <= left_bytes or not under_way):
            number = heappop(queue)[1]
            task = tasks[number]
            start_s = max(now_s, free_s)
            left_s = start_s + link.channel_s(task.size_bytes)
            arrived_s = left_s + link.lag_s(task.size_bytes)
            if arrived_s > until_s and task.can_wait:
                continue
            sent.append(Sent(number, task, now_s, start_s, left_s, arrived_s))
            heappush(under_way, (arrived_s, number))
            free_s, left_bytes = left_s, left_bytes - task.size_bytes
        else:
            following_s = coming[0][1].ready_s if coming else math.inf
            now_s = min(following_s, under_way[0][0]) if under_way else following_s
    return sent
