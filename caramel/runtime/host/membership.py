"""The members of a cluster: the addresses of its servers, and which of them is this process's own.

All tasks run under the job ``worker``, the chief as its task 0, so that ``/job:worker/task:r`` is
rank r whatever a cluster calls its tasks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from caramel.errors import InputError, listed
from caramel.graph.devices import WORKER_JOB
from caramel.util.arguments import shown

LAST_PORT = 65535
"""The largest number of a port."""

_CHIEF_JOBS = ("chief", "master")
"""Jobs of a first worker that is named apart from the others; ``master`` is the older name."""

_PS_JOB = "ps"
"""Job of parameter servers."""

_IGNORED_JOBS = (_PS_JOB, "evaluator")
"""Jobs that take no part, but for parameter servers where there are to be some."""

_TF_CONFIG = "TF_CONFIG"
"""Name of the environment variable that describes a cluster."""

_TF_CONFIG_EXAMPLE = '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'


@dataclass(frozen=True)
class Membership:
    """The servers of a cluster.

    Attributes:
        addresses: address ``host:port`` of each worker, in order.
        task: number of the worker that is this process's own; None if none is.
        notes: parts of the cluster's description that were left out, one sentence each.
        workers: number of workers of each server; empty for one each.
        parameter_servers: how many of the last servers are parameter servers, as far as the description says.
    """

    addresses: tuple[str, ...]
    task: int | None = None
    notes: tuple[str, ...] = ()
    workers: tuple[int, ...] = ()
    parameter_servers: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        if not self.workers:
            object.__setattr__(self, "workers", (1,) * len(self.addresses))


def checked_addresses(addresses: Sequence[str]) -> tuple[str, ...]:
    """Addresses of servers.

    Raises:
        InputError: there is no address, one is there twice, or one is no host:port.
    """
    if isinstance(addresses, str) or not isinstance(addresses, Sequence) or not addresses:
        raise InputError(f"servers need a list of one or more addresses host:port, got {shown(addresses)}")
    listed_addresses = tuple(addresses)
    for text in listed_addresses:
        host, _, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
        is_host = host and "/" not in host and not any(c.isspace() for c in host)
        if not (is_host and port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= LAST_PORT):
            raise InputError(f"{shown(text)} is no address of a server: write host:port")
    repeated = [text for position, text in enumerate(listed_addresses) if text in listed_addresses[:position]]
    if repeated:
        raise InputError(
            f"an address is there twice, {repeated[0]!r} in {', '.join(listed_addresses)}: each worker needs its own"
        )
    return listed_addresses


def from_tf_config(text: str | None = None, with_ps: bool = False) -> Membership:
    """The cluster that TF_CONFIG describes.

    Args:
        text: JSON text of TF_CONFIG; None reads the environment variable.
        with_ps: see `from_jobs`.

    Raises:
        InputError: it is not set, no JSON, or describes no cluster of workers.
    """
    if text is None:
        text = os.environ.get(_TF_CONFIG, "")
        if not text.strip():
            raise InputError(
                f"the environment variable {_TF_CONFIG} is not set: set it to {_TF_CONFIG_EXAMPLE} or the like"
            )
    if not isinstance(text, str):
        raise InputError(f"{_TF_CONFIG} is JSON text, got {type(text).__name__}: give it as json.dumps makes it")
    try:
        config = json.loads(text, object_pairs_hook=_without_repetition)
        json.dumps(config)  # lists in lists in lists that can be read may be too deep for messages
    except InputError:  # said already
        raise
    except json.JSONDecodeError as error:
        excerpt = text[max(error.pos - 20, 0) : error.pos + 20]
        raise InputError(
            f"{_TF_CONFIG} is no JSON: {error.msg} at line {error.lineno}, column {error.colno}, near {excerpt!r}. "
            f"It looks like {_TF_CONFIG_EXAMPLE}"
        ) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists in lists in lists
        raise InputError(f"{_TF_CONFIG} cannot be read: {error}. It looks like {_TF_CONFIG_EXAMPLE}") from error
    if not isinstance(config, dict) or not isinstance(config.get("cluster"), dict):
        missing = not isinstance(config, dict) or "cluster" not in config
        raise InputError(
            f"{_TF_CONFIG} {'has no' if missing else 'needs an object as its'} 'cluster' with the addresses of the "
            f"workers: it looks like {_TF_CONFIG_EXAMPLE}"
        )
    task = config.get("task") or {}
    if not isinstance(task, dict) or (task and not {"type", "index"} <= set(task)):
        raise InputError(
            f"{_TF_CONFIG} has the task {json.dumps(task)[:200]}: it needs 'type' and 'index', such as "
            '{"type": "worker", "index": 0}; leave it out where no server runs'
        )
    return from_jobs(config["cluster"], task.get("type"), task.get("index"), _TF_CONFIG, with_ps)


def _without_repetition(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object without repeated names, of which Python would silently take the last."""
    entries = dict(pairs)
    if len(entries) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{_TF_CONFIG} has {repeated!r} twice in one object: join the two")
    return entries


def from_resolver(resolver: Any, with_ps: bool = False) -> Membership:
    """The cluster that one of TensorFlow's cluster resolvers finds.

    Args:
        resolver: anything with ``cluster_spec()`` and perhaps ``task_type`` and ``task_id``.
        with_ps: see `from_jobs`.

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
    return from_jobs(jobs, task_type, task_index, name, with_ps)


def from_jobs(
    jobs: Mapping[str, Any], task_type: Any, task_index: Any, where: str, with_ps: bool = False
) -> Membership:
    """The workers among the jobs of a cluster, the chief in front.

    Args:
        jobs: addresses of the tasks of each job, by its name: a list, or an object by task number.
        task_type: job of this process; None or "" if it is in none.
        task_index: number of the task in that job.
        where: noun for the source in messages.
        with_ps: whether the tasks of the job ``ps`` take part, as parameter servers: as the last ones.

    Raises:
        InputError: the jobs are no cluster of workers, or the task is not in it.
    """
    unknown = [job for job in jobs if job not in (*_CHIEF_JOBS, WORKER_JOB, *_IGNORED_JOBS)]
    if unknown:
        raise InputError(
            f"{where} has the job {shown(unknown[0])}: gradients are all-reduced between the tasks of the job "
            "'worker' and one 'chief'; call it so, or leave it out"
        )
    tasks = {job: _addresses(job, addresses_of_job, where) for job, addresses_of_job in jobs.items()}
    chiefs = [address for job in _CHIEF_JOBS for address in tasks.get(job, ())]
    if len(chiefs) > 1:
        raise InputError(f"{where} has {len(chiefs)} chiefs ({', '.join(chiefs)}): make one of them the chief")
    workers = [*chiefs, *tasks.get(WORKER_JOB, ())]
    if not workers:
        job_names = listed(map(repr, jobs)) or "nothing"
        raise InputError(f"{where} has no workers in its cluster, only {job_names}: name them under 'worker'")
    servers = tasks.get(_PS_JOB, ()) if with_ps else ()
    try:
        addresses = checked_addresses([*workers, *servers])
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    notes = tuple(
        f"{where}: the job {job!r} ({listed(tasks[job])}) takes no part: {_why_ignored(job)}"
        for job in _IGNORED_JOBS
        if tasks.get(job) and not (job == _PS_JOB and with_ps)
    )
    if not task_type and task_index is None:
        return Membership(addresses, None, notes, parameter_servers=len(servers))
    if task_type == _PS_JOB and with_ps:
        own = len(workers) + _index(tasks, task_type, task_index, where)
    else:
        own = _task(tasks, len(chiefs), task_type, task_index, where)
    return Membership(addresses, own, notes, parameter_servers=len(servers))


def _why_ignored(job: str) -> str:
    return "it is for parameter servers (--servers K)" if job == _PS_JOB else "workers evaluate"


def _addresses(job: str, addresses: Any, where: str) -> list[str]:
    """Addresses of a job's tasks in their order."""
    if isinstance(addresses, Mapping):
        numbers = {str(number): address for number, address in addresses.items()}
        if sorted(numbers) != sorted(str(number) for number in range(len(numbers))):
            raise InputError(
                f"{where} has tasks {listed(sorted(numbers))} of the job {job!r}: number them from 0 without a gap"
            )
        addresses = [numbers[str(number)] for number in range(len(numbers))]
    if not isinstance(addresses, (list, tuple)) or not all(isinstance(address, str) for address in addresses):
        raise InputError(
            f"{where} has {shown(addresses)} as the job {shown(job)}: it needs a list of addresses host:port"
        )
    return list(addresses)


def _task(tasks: Mapping[str, Sequence[str]], chiefs: int, task_type: Any, task_index: Any, where: str) -> int:
    """Rank of a task of a job."""
    if task_type in _IGNORED_JOBS:
        raise InputError(
            f"{where} makes this process task {shown(task_index)} of the job {task_type!r}, which takes no part: "
            f"{_why_ignored(task_type)}. Start nothing here"
        )
    if task_type not in (*_CHIEF_JOBS, WORKER_JOB) or not tasks.get(task_type):
        job_names = listed(repr(job) for job, addresses in tasks.items() if addresses)
        raise InputError(
            f"{where} makes this process a {shown(task_type)}, but the cluster has only {job_names}: correct the task"
        )
    return _index(tasks, task_type, task_index, where) + (chiefs if task_type == WORKER_JOB else 0)


def _index(tasks: Mapping[str, Sequence[str]], task_type: str, task_index: Any, where: str) -> int:
    """Number of a task in its job."""
    text = shown(task_index) if isinstance(task_index, int) else str(task_index)
    is_number = not isinstance(task_index, bool) and text.isascii() and text.isdigit()
    if not is_number or int(text) >= len(tasks[task_type]):
        raise InputError(
            f"{where} makes this process task {shown(task_index)} of the job {task_type!r}, whose "
            f"{len(tasks[task_type])} tasks have the numbers 0 to {len(tasks[task_type]) - 1}: correct the index"
        )
    return int(text)
