"""The cluster of a Slurm job step: one server for each of its tasks, on the nodes that Slurm's variables name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from caramel.errors import InputError
from caramel.runtime.host.membership import LAST_PORT, Membership
from caramel.util.arguments import shown

_FIRST_PORT = 20_000
"""Below the ports that Linux gives to connections (32768 and up)."""

_PORTS = 10_000
"""Number of ports from which that of a job is taken by its number, as other jobs may share its nodes."""

_MOST_HOSTS = 65_536
"""The largest number of hosts of a list: 16 times what Slurm's largest installations have."""

_PART = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def expanded_nodes(text: str) -> list[str]:
    """The hosts of a list in Slurm's notation, in their order.

    A part in brackets stands for each of its numbers, with as many digits as are written; there may be several parts
    in a name.

    Args:
        text: list such as SLURM_JOB_NODELIST.

    Raises:
        InputError: it is no such list.

    Source:
        ``man scontrol``, hostlist expressions.

    >>> expanded_nodes("login,node[08-10,12],rack[1-2]slot[0,3]")[1:6]
    ['node08', 'node09', 'node10', 'node12', 'rack1slot0']
    """
    hosts: list[str] = []
    for entry in _entries(text):
        pieces = _PART.split(entry)  # text outside of brackets, and what is in them, in turn
        if not entry or any(mark in piece for piece in pieces[::2] for mark in "[]") or any(map(str.isspace, entry)):
            raise _no_list(text)
        choices = [[piece] if n % 2 == 0 else list(_numbers(piece, text)) for n, piece in enumerate(pieces)]
        for combination in product(*choices):
            hosts.append("".join(combination))
            if len(hosts) > _MOST_HOSTS:
                raise _no_list(text)
    return hosts


def _entries(text: str) -> list[str]:
    """The parts of a list between commas that are in no brackets."""
    return re.split(r",(?![^\[]*\])", text)


def _numbers(ranges: str, text: str) -> Iterator[str]:
    """The numbers of ``1-3,7``, each with the digits of the range's first."""
    for part in ranges.split(","):
        found = _RANGE.fullmatch(part)
        if found is None:
            raise _no_list(text)
        first, last = found[1], found[2] or found[1]
        if not int(first) <= int(last) < int(first) + _MOST_HOSTS:
            raise _no_list(text)
        yield from (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))


def _no_list(text: str) -> InputError:
    return InputError(f"{shown(text)} is no list of Slurm's nodes, such as node[01-04,7],login")


def expanded_tasks(text: str) -> list[int]:
    """The number of tasks on each node, of a list such as SLURM_TASKS_PER_NODE.

    Args:
        text: the list.

    Raises:
        InputError: it is no such list.

    >>> expanded_tasks("2(x3),1")
    [2, 2, 2, 1]
    """
    numbers: list[int] = []
    for part in text.split(","):
        found = _TASKS.fullmatch(part)
        if found is None or int(found[2] or 1) > _MOST_HOSTS:
            raise InputError(f"{shown(text)} says no numbers of tasks as Slurm does, such as 2(x3),1")
        numbers += [int(found[1])] * int(found[2] or 1)
    return numbers


def from_slurm(variables: Mapping[str, str] | None = None, base_port: int | None = None) -> Membership:
    """The cluster of the job step in which this process is a task.

    Args:
        variables: environment variables; None reads those of this process.
        base_port: port of the first task on each node; the next ones there take the ports after it. Default: one
            that the number of the job chooses.

    Raises:
        InputError: this is no task of a job, or its variables do not fit together.
    """
    given = os.environ if variables is None else variables
    nodes = expanded_nodes(_first(given, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"))
    number = _number(given, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    task = _number(given, "SLURM_PROCID")
    tasks = _tasks_of_nodes(given, len(nodes), number)
    if task >= number:
        raise InputError(
            f"SLURM_PROCID is {task}, and there are {number} tasks: the step has the numbers 0 to {number - 1}"
        )
    node_of = _nodes_of_tasks(tasks, given.get("SLURM_DISTRIBUTION", ""))
    if (own := given.get("SLURM_NODEID", "")).isdecimal() and int(own) != node_of[task]:
        raise InputError(
            f"Slurm has put task {task} on node {own} of the step, not on node {node_of[task]}: start the tasks with "
            "srun --distribution=block or cyclic"
        )
    first = _port_of_job(given) if base_port is None else base_port
    if first + max(tasks) - 1 > LAST_PORT:
        raise InputError(f"there are no {max(tasks)} ports from {first} on: take a base port that is less")
    addresses = [f"{nodes[node]}:{first + node_of[:rank].count(node)}" for rank, node in enumerate(node_of)]
    is_task = "SLURM_STEP_NODELIST" in given or number == 1
    note = "Slurm: SLURM_STEP_NODELIST is not set, so srun may be missing in front of this command"
    return Membership(tuple(addresses), task, () if is_task else (note,))


def _tasks_of_nodes(given: Mapping[str, str], nodes: int, number: int) -> list[int]:
    """The number of tasks on each node; where Slurm does not say it, as many on each."""
    names = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    text = next((given[name] for name in names if given.get(name)), None)
    if text is None and number % nodes == 0:
        return [number // nodes] * nodes
    tasks = [] if text is None else expanded_tasks(text)
    if len(tasks) != nodes or sum(tasks) != number:
        raise InputError(
            f"Slurm's variables do not fit together: {nodes} nodes and {number} tasks, and {text or 'nothing'} says "
            "how many are on each. Start this command with srun"
        )
    return tasks


def _nodes_of_tasks(tasks: Sequence[int], distribution: str) -> list[int]:
    """The node of each task.

    Args:
        tasks: number of tasks on each node.
        distribution: how Slurm says that it deals them out: ``cyclic`` gives each node one in turn while it takes any,
            otherwise a node gets all of its tasks before the next one does.
    """
    in_blocks = [(node, turn) for node, count in enumerate(tasks) for turn in range(count)]
    if distribution.partition(":")[0] == "cyclic":
        in_blocks.sort(key=lambda place: (place[1], place[0]))
    return [node for node, _ in in_blocks]


def _port_of_job(given: Mapping[str, str]) -> int:
    job = given.get("SLURM_JOB_ID", "")
    return _FIRST_PORT + (int(job) % _PORTS if job.isascii() and job.isdecimal() else 0)


def _first(given: Mapping[str, str], *names: str) -> str:
    for name in names:
        if given.get(name):
            return given[name]
    raise InputError(f"this is no task of Slurm, as {names[-1]} is not set: start the command with srun")


def _number(given: Mapping[str, str], *names: str) -> int:
    text = _first(given, *names)
    if not (text.isascii() and text.isdecimal()):
        raise InputError(f"{names[-1]} of Slurm is {shown(text)}, and should be a number: start the command with srun")
    return int(text)
