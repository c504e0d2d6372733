"""The servers of a cluster, and the ways between them."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf

from caramel.doctor.directories import check_here, judged_others, seen_by, shared_with_first
from caramel.doctor.finding import Check, Finding, State, bounded, guarded, ok, problem, warning
from caramel.doctor.judgements import LinkRate, judged_clock, judged_rates, judged_version
from caramel.doctor.probe import TIMEOUT_S, Probe, reason_of
from caramel.doctor.reachability import is_here, why_unreachable
from caramel.errors import listed
from caramel.graph.devices import WORKER_JOB, task_name
from caramel.runtime.host.presence import others_at

CHECKPOINTS = "checkpoint directory"
"""Noun for it in findings."""

_DRIVER = "this process"

_LIMIT_S = 30.0
"""Seconds that all questions to one server may take: each has a limit of its own, and few are left unanswered."""

_MOST_PAIRS = 8
"""Number of servers up to which every way from one to another is tried; with more, that from each to the next."""

_RATES_S = 20.0
"""Seconds after which no further link is measured."""


@dataclass(frozen=True)
class Members:
    """The servers of a cluster.

    Attributes:
        addresses: address ``host:port`` of each, in order.
        own_task: number of the task that TF_CONFIG says this process is; None without it. Task 0 drives, and starts its
            own server where that does not run.
    """

    addresses: tuple[str, ...]
    own_task: int | None = None

    def start_command(self, task: int) -> str:
        """The command that starts a server."""
        if self.own_task is not None:
            return "caramel worker (with its TF_CONFIG)"
        return f"caramel worker --cluster {','.join(self.addresses)} --task {task}"


def check_cluster(members: Members, checkpoint_directory: str | None) -> Iterator[Finding]:
    """All that can be found out about a cluster from here.

    Args:
        members: the servers.
        checkpoint_directory: directory for checkpoints, or None.
    """
    there = []
    checks: list[Check] = [(_named(task), _check_server, (members, task)) for task in range(len(members.addresses))]
    for task, findings in enumerate(bounded(checks, _LIMIT_S)):
        yield from findings
        if not any(finding.state is State.PROBLEM and finding.check == _named(task) for finding in findings):
            there.append(task)
    if 0 in there and _is_to_start(members, 0):
        there.remove(0)
    yield from _check_directories(members, there, checkpoint_directory)
    yield from _check_ways(members, there)
    if there:
        yield from guarded("link rates", _check_rates, members, there)


def _named(task: int) -> str:
    return f"worker {task}"


def _is_to_start(members: Members, task: int) -> bool:
    """Whether a server does not run yet because the driver starts it."""
    return task == members.own_task == 0 and why_unreachable("", members.addresses[task], "") is not None


def _check_server(members: Members, task: int) -> Iterator[Finding]:
    """One server by itself."""
    check, address = _named(task), members.addresses[task]
    if _is_to_start(members, task):
        yield ok(check, f"nothing listens at {address} yet: the driver starts this server itself, on this machine")
        return
    unreachable = why_unreachable(check, address, members.start_command(task))
    if unreachable is not None:
        yield unreachable
        return
    try:
        with Probe(address) as probe:
            names = probe.tasks()
            yield _judged_task(check, address, task, names)
            yield judged_version(f"TensorFlow of {check}", probe.version(), tf.__version__)
            reading = probe.clock()
            yield judged_clock(f"clock of {check}", reading.ahead_s, reading.uncertainty_s)
    except tf.errors.OpError as error:
        yield _unanswered(check, address, error, members.start_command(task))


def _judged_task(check: str, address: str, task: int, names: Sequence[str]) -> Finding:
    """Whether a server is the one that the list of addresses says."""
    wanted = task_name(WORKER_JOB, task)
    if set(names) == {wanted}:
        devices = f"{len(names)} device{'s' if len(names) > 1 else ''}"
        return ok(check, f"answers at {address}, with {devices}")
    found = listed(sorted(set(names))) or "of no name"
    return problem(
        check,
        f"the server at {address} is {found}, and this list makes it {wanted}",
        "give the addresses in the order in which the servers were started (--cluster, --task)",
    )


def _unanswered(check: str, address: str, error: Any, start: str) -> Finding:
    """The finding about a server that listens but does not answer."""
    if error.error_code in (tf.errors.DEADLINE_EXCEEDED, tf.errors.UNAVAILABLE):
        found = f"{address} accepts connections, but has not answered within {TIMEOUT_S:g} s"
        return problem(check, found, f"it is stopped, or no TensorFlow server: end it there, then {start}")
    return problem(check, f"{address} answers with an error: {reason_of(error)}", f"restart it there: {start}")


def _check_directories(members: Members, there: Sequence[int], path: str | None) -> Iterator[Finding]:
    """Directories through which the driver and worker 0 exchange values."""
    checkpoints = [] if path is None else [(CHECKPOINTS, os.path.abspath(path))]
    for check, place in (*checkpoints, ("temporary directory", tempfile.gettempdir())):
        here = guarded(check, check_here, check, place)
        yield from here
        if 0 not in there or any(finding.state is not State.OK for finding in here):
            continue
        first, at_first = members.addresses[0], f"{check} at {_named(0)}"
        (findings,) = bounded([(at_first, _shared_with_first, (members, at_first, place, first))], _LIMIT_S)
        yield from findings
        others = [task for task in there if task != 0]
        if others and check == CHECKPOINTS:
            at_others = f"{check} at other workers"
            yield from guarded(at_others, _seen_by_others, at_others, place, members, others)


def _shared_with_first(members: Members, check: str, place: str, address: str) -> Iterator[Finding]:
    try:
        yield from shared_with_first(check, place, address)
    except tf.errors.OpError as error:
        yield _unanswered(check, address, error, members.start_command(0))


def _seen_by_others(check: str, place: str, members: Members, others: Sequence[int]) -> Iterator[Finding]:
    def seen_by_task(task: int) -> bool | Finding:
        try:
            return seen_by(place, members.addresses[task])
        except tf.errors.OpError as error:
            return _unanswered(check, members.addresses[task], error, members.start_command(task))

    with ThreadPoolExecutor(len(others)) as pool:
        answers = dict(zip(others, pool.map(seen_by_task, others)))
    yield from (answer for answer in answers.values() if isinstance(answer, Finding))
    if seen := {task: answer for task, answer in answers.items() if isinstance(answer, bool)}:
        yield judged_others(check, place, seen)


def _check_ways(members: Members, there: Sequence[int]) -> Iterator[Finding]:
    """Whether servers reach each other."""
    if len(there) < 2:
        return
    is_all = len(there) <= _MOST_PAIRS
    checks: list[Check] = []
    for position, task in enumerate(there):
        following = there[(position + 1) % len(there)]
        others = [other for other in there if other != task] if is_all else [following]
        checks.append((f"way from {_named(task)}", _check_ways_from, (members, task, others)))
    found = [finding for findings in bounded(checks, _LIMIT_S) for finding in findings]
    if found:
        yield from found
    else:
        yield ok("ways between servers", "all reach each other" if is_all else "each reaches the next one")


def _check_ways_from(members: Members, task: int, others: Sequence[int]) -> Iterator[Finding]:
    """The servers that one does not reach."""
    for other in others:
        try:
            with Probe(members.addresses[task], task_name(WORKER_JOB, other)) as probe:
                probe.reach()
        except tf.errors.OpError:
            yield problem(
                f"way from {_named(task)} to {_named(other)}",
                f"{members.addresses[task]} has not reached {members.addresses[other]} within {TIMEOUT_S:g} s",
                "both must have been started with the same list of addresses, which that machine resolves and reaches",
            )


def _check_rates(members: Members, there: Sequence[int]) -> Iterator[Finding]:
    """Estimated rates, one link after the other; none where somebody trains."""
    users = others_at(f"grpc://{members.addresses[there[0]]}", task_name(WORKER_JOB, there[0]))
    if users:
        yield warning(
            "link rates", f"another driver uses these servers: {listed(sorted(users))}", "wait until it has ended"
        )
        return
    until_s = time.monotonic() + _RATES_S
    following = list(zip(there, [*there[1:], there[0]])) if len(there) > 1 else []
    kinds = (
        [(_DRIVER, _named(task), partial(_with, members, task, None, Probe.rate_to)) for task in there],
        [(_named(task), _DRIVER, partial(_with, members, task, None, Probe.rate_from)) for task in there],
        [
            (_named(task), _named(other), partial(_with, members, task, other, Probe.rate_between))
            for task, other in following
        ],
    )
    inside = {_named(task) for task in there if is_here(members.addresses[task])} | {_DRIVER}
    for links in kinds:
        yield from _measured(links, until_s, inside)


def _measured(
    links: Sequence[tuple[str, str, Callable[[], float]]], until_s: float, inside: Collection[str]
) -> Iterator[Finding]:
    """Findings about links of one kind, those that can be measured until a time.

    Args:
        links: sender, receiver and function that measures, of each link.
        until_s: time on the monotonic clock.
        inside: names of those that are on this machine, between which there is no link.
    """
    rates: list[LinkRate] = []
    for number, (sender, receiver, measure) in enumerate(links):
        if time.monotonic() > until_s:
            yield ok(
                "link rates", f"{len(links) - number} more links were left to caramel netbench, which takes its time"
            )
            break
        try:
            rates.append(LinkRate(sender, receiver, measure()))
        except tf.errors.OpError as error:
            found = f"a small transfer failed: {reason_of(error)}"
            yield warning(f"link from {sender} to {receiver}", found, "see what is said about these servers")
    for is_inside in (True, False):
        yield from judged_rates([rate for rate in rates if ({rate.sender, rate.receiver} <= set(inside)) is is_inside])


def _with(members: Members, task: int, other: int | None, measure: Callable[[Probe], float]) -> float:
    through = None if other is None else task_name(WORKER_JOB, other)
    with Probe(members.addresses[task], through) as probe:
        return measure(probe)
