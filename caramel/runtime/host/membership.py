"""Who is in a cluster: the addresses of its servers, and which of them is this process's own.

All tasks run under the job ``worker``, the chief as its task 0, so that ``/job:worker/task:r`` is
rank r whatever a cluster calls its tasks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caramel.errors import InputError, listed

JOB = "worker"
LAST_PORT = 65535

_CHIEFS = ("chief", "master")
"""What the first worker is called where it has a name of its own; ``master`` is the older one."""

_WITHOUT_PART = ("ps", "evaluator")
_VARIABLE = "TF_CONFIG"
_EXAMPLE = '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'


@dataclass(frozen=True)
class Membership:
    """The servers of a cluster.

    Attributes:
        addresses: ``host:port`` of each worker, in order.
        task: which of them is this process's own; None if none is.
        notes: what was left out of the cluster's description, for its reader.
    """

    addresses: tuple[str, ...]
    task: int | None = None
    notes: tuple[str, ...] = ()


def checked_addresses(addresses: Sequence[str]) -> tuple[str, ...]:
    """Addresses of servers.

    Raises:
        InputError: none, the same twice, or one that is no host:port.
    """
    if isinstance(addresses, str) or not isinstance(addresses, Sequence) or not addresses:
        raise InputError(f"servers need a list of one or more addresses host:port, got {addresses!r}")
    found = tuple(addresses)
    for text in found:
        host, _, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
        is_host = host and "/" not in host and not any(c.isspace() for c in host)
        if not (is_host and port.isascii() and port.isdigit() and 1 <= int(port) <= LAST_PORT):
            raise InputError(f"{text!r} is no address of a server: write host:port")
    twice = [text for position, text in enumerate(found) if text in found[:position]]
    if twice:
        raise InputError(f"an address is there twice, {twice[0]!r} in {', '.join(found)}: each worker needs its own")
    return found


def from_tf_config(text: str | None = None) -> Membership:
    """The cluster that TF_CONFIG describes.

    Args:
        text: its JSON text; None reads the environment variable.

    Raises:
        InputError: it is not set, no JSON, or describes no cluster of workers.
    """
    if text is None:
        text = os.environ.get(_VARIABLE, "")
        if not text.strip():
            raise InputError(f"the environment variable {_VARIABLE} is not set: set it to {_EXAMPLE} or the like")
    if not isinstance(text, str):
        raise InputError(f"{_VARIABLE} is JSON text, got {type(text).__name__}: give it as json.dumps makes it")
    try:
        config = json.loads(text, object_pairs_hook=_without_repetition)
    except json.JSONDecodeError as error:
        near = text[max(error.pos - 20, 0) : error.pos + 20]
        raise InputError(
            f"{_VARIABLE} is no JSON: {error.msg} at line {error.lineno}, column {error.colno}, near {near!r}. "
            f"It looks like {_EXAMPLE}"
        ) from error
    if not isinstance(config, dict) or not isinstance(config.get("cluster"), dict):
        missing = not isinstance(config, dict) or "cluster" not in config
        raise InputError(
            f"{_VARIABLE} {'has no' if missing else 'needs an object as its'} 'cluster' with the addresses of the "
            f"workers: it looks like {_EXAMPLE}"
        )
    task = config.get("task") or {}
    if not isinstance(task, dict) or (task and not {"type", "index"} <= set(task)):
        raise InputError(
            f"{_VARIABLE} has the task {json.dumps(task)}: it needs 'type' and 'index', such as "
            '{"type": "worker", "index": 0}; leave it out where no server runs'
        )
    return from_jobs(config["cluster"], task.get("type"), task.get("index"), _VARIABLE)


def _without_repetition(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; of a name that is there twice, Python would silently take the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{_VARIABLE} has {twice!r} twice in one object: join the two")
    return found


def from_resolver(resolver: Any) -> Membership:
    """The cluster that one of TensorFlow's cluster resolvers finds.

    Args:
        resolver: anything with ``cluster_spec()`` and perhaps ``task_type`` and ``task_id``.

    Raises:
        InputError: it finds none, or none of workers.
    """
    name = type(resolver).__name__
    if isinstance(resolver, type) or not callable(getattr(resolver, "cluster_spec", None)):
        raise InputError(
            f"{resolver!r} has no cluster_spec(): give a resolver such as "
            "tf.distribute.cluster_resolver.SlurmClusterResolver()"
        )
    try:
        spec = resolver.cluster_spec()
        # Only after cluster_spec() does Slurm's resolver know which task this is.
        task_type, task_index = getattr(resolver, "task_type", None), getattr(resolver, "task_id", None)
    except Exception as error:  # resolvers ask other programs, and fail in their own ways
        raise InputError(f"{name} finds no cluster: {type(error).__name__}: {error}") from error
    jobs = spec.as_dict() if hasattr(spec, "as_dict") else spec
    if not isinstance(jobs, Mapping):
        raise InputError(f"{name}.cluster_spec() gave {spec!r}, which is no tf.train.ClusterSpec")
    return from_jobs(jobs, task_type, task_index, name)


def from_jobs(jobs: Mapping[str, Any], task_type: Any, task_index: Any, where: str) -> Membership:
    """The workers among the jobs of a cluster, the chief in front.

    Args:
        jobs: by the job's name the addresses of its tasks: a list, or an object by task number.
        task_type: job of this process; None or "" if it is in none.
        task_index: its number in that job.
        where: what to call the source in a message.

    Raises:
        InputError: the jobs are no cluster of workers, or the task is not in it.
    """
    unknown = [job for job in jobs if job not in (*_CHIEFS, JOB, *_WITHOUT_PART)]
    if unknown:
        raise InputError(
            f"{where} has the job {unknown[0]!r}: gradients are all-reduced between the tasks of the job 'worker' and "
            "one 'chief'; call it so, or leave it out"
        )
    tasks = {job: _addresses(job, found, where) for job, found in jobs.items()}
    chiefs = [address for job in _CHIEFS for address in tasks.get(job, ())]
    if len(chiefs) > 1:
        raise InputError(f"{where} has {len(chiefs)} chiefs ({', '.join(chiefs)}): make one of them the chief")
    workers = [*chiefs, *tasks.get(JOB, ())]
    if not workers:
        there = listed(map(repr, jobs)) or "nothing"
        raise InputError(f"{where} has no workers in its cluster, only {there}: name them under 'worker'")
    try:
        addresses = checked_addresses(workers)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    notes = tuple(
        f"{where}: the job {job!r} ({listed(tasks[job])}) takes no part: gradients are all-reduced between workers"
        for job in _WITHOUT_PART
        if tasks.get(job)
    )
    if not task_type and task_index is None:
        return Membership(addresses, None, notes)
    return Membership(addresses, _task(tasks, len(chiefs), task_type, task_index, where), notes)


def _addresses(job: str, found: Any, where: str) -> list[str]:
    """Addresses of a job's tasks in their order."""
    if isinstance(found, Mapping):
        numbers = {str(number): address for number, address in found.items()}
        if sorted(numbers) != sorted(str(number) for number in range(len(numbers))):
            raise InputError(
                f"{where} has tasks {listed(sorted(numbers))} of the job {job!r}: number them from 0 without a gap"
            )
        found = [numbers[str(number)] for number in range(len(numbers))]
    if not isinstance(found, (list, tuple)) or not all(isinstance(address, str) for address in found):
        raise InputError(f"{where} has {found!r} as the job {job!r}: it needs a list of addresses host:port")
    return list(found)


def _task(tasks: Mapping[str, Sequence[str]], chiefs: int, task_type: Any, task_index: Any, where: str) -> int:
    """Rank of a task of a job."""
    if task_type in _WITHOUT_PART:
        raise InputError(
            f"{where} makes this process task {task_index} of the job {task_type!r}, which takes no part: gradients "
            "are all-reduced between workers. Start nothing here"
        )
    if task_type not in (*_CHIEFS, JOB) or not tasks.get(task_type):
        there = listed(repr(job) for job, found in tasks.items() if found)
        raise InputError(
            f"{where} makes this process a {task_type!r}, but the cluster has only {there}: correct the task"
        )
    text = str(task_index)
    is_number = not isinstance(task_index, bool) and text.isascii() and text.isdigit()
    if not is_number or int(text) >= len(tasks[task_type]):
        raise InputError(
            f"{where} makes this process task {task_index!r} of the job {task_type!r}, whose {len(tasks[task_type])} "
            f"tasks have the numbers 0 to {len(tasks[task_type]) - 1}: correct the index"
        )
    return int(text) + (chiefs if task_type == JOB else 0)
