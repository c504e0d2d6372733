"""Existing clusters: TensorFlow servers on the machines of a network."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

import tensorflow as tf

from caramel.errors import ClusterError, InputError, listed
from caramel.graph.devices import WORKER_JOB, Device, cpu_count, default_devices, devices_on_servers, task_name
from caramel.runtime.clusters.attendance import attend
from caramel.runtime.clusters.base import Cluster, has_gpu, with_options
from caramel.runtime.clusters.driver_server import OwnServer, is_listening
from caramel.runtime.clusters.heartbeat import Heartbeats, Member
from caramel.runtime.clusters.servers_executor import ServersExecutor
from caramel.runtime.clusters.versions import check_versions
from caramel.runtime.executor import Executor, SessionExecutor, caramel_error, has_native_collectives
from caramel.runtime.host.hosts_file import from_hosts_file
from caramel.runtime.host.membership import Membership, checked_addresses, from_resolver, from_tf_config
from caramel.runtime.host.names import host_of_address, unknown_hosts
from caramel.runtime.host.presence import new_name, others_at
from caramel.runtime.host.run_options import RunOptions
from caramel.runtime.host.server import GROUP_LEADER, START_TIMEOUT_S, is_inside, serve_forever, serve_inside
from caramel.util.arguments import whole_number

_logger = logging.getLogger(__name__)

_CLOSING_S = 0.3
"""Seconds in which the kernel closes all sockets of a process that ends: connections may go before what listens."""

_START = "Start each of them on its machine (caramel worker), and check that this machine reaches it"


@dataclass(frozen=True)
class Servers(Cluster):
    """TensorFlow servers on machines of a network: ``caramel worker`` starts one.

    Servers run any graph for anyone who reaches them: use a network that only you can reach.

    Attributes:
        addresses: address ``host:port`` of each server, in order.
        options: options with which TensorFlow runs the graph.
        task: number of the server that is this process's own, if any. Task 0 drives: if nothing listens
            at its address, a session starts that server beside this process and stops it at the end.
            The others `serve`.
        notes: parts of the cluster's description that were left out, one sentence each.
        workers: number of workers of each server, which has a virtual CPU device for each; empty for one each.
        parameter_servers: how many of the last servers are for parameters, as far as the description of the cluster
            says; 0 where it says nothing.
        drives_inside: whether the server of task 0 that a session starts is in this very process, for processes that do
            nothing else: a step's call, and what is fed, need not travel to it. It cannot be stopped, so it goes on
            until the process ends. Where there are GPUs it is beside this process all the same.

    Examples:
        >>> import caramel
        >>> caramel.Servers(["host0:2222", "host1:2222"]).addresses
        ('host0:2222', 'host1:2222')
        >>> caramel.Servers.from_tf_config(
        ...     '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 1}}'
        ... ).task
        1
    """

    addresses: tuple[str, ...]
    options: RunOptions = field(default_factory=RunOptions)
    task: int | None = None
    notes: tuple[str, ...] = ()
    workers: tuple[int, ...] = ()
    parameter_servers: int = 0
    drives_inside: bool = False

    tracing_warning = (  # their threads are as many as they were started with
        "ops ran as many at a time as these servers run, not one on each worker: those that shared a core seem to "
        "take longer"
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "addresses", checked_addresses(self.addresses))
        if self.task is not None and not 0 <= self.task < len(self.addresses):
            raise InputError(f"task must be between 0 and {len(self.addresses) - 1}, got {self.task}")
        numbers = tuple(whole_number(number, "workers of a server") for number in self.workers)
        if numbers and len(numbers) != len(self.addresses):
            raise InputError(f"workers has {len(numbers)} entries for {len(self.addresses)} servers: give one for each")
        object.__setattr__(self, "workers", numbers or (1,) * len(self.addresses))
        most = len(self.addresses) - 1
        whole_number(self.parameter_servers, "parameter_servers", least=0, most=most, reason="one server is a worker's")

    @property
    def default_devices(self) -> tuple[str, ...]:
        """The device of each worker, server after server."""
        return devices_on_servers(self.workers[: len(self.workers) - self.parameter_servers])

    def check_roles(self, workers: Sequence[str], servers: Sequence[str]) -> None:
        """See `Cluster.check_roles`."""
        if not self.parameter_servers:
            return
        first = len(self.addresses) - self.parameter_servers
        tasks, of_servers = ({Device.parse(text).task or 0 for text in each} for each in (workers, servers))
        wrong = {task: "a worker" for task in tasks if task >= first}
        wrong |= {task: "a parameter server" for task in of_servers - tasks if task < first}
        for task, what in sorted(wrong.items()):
            raise InputError(
                f"task {task} of the cluster ({self.addresses[min(task, len(self.addresses) - 1)]}) would be {what}, "
                f"and by its description (job ps) the last {self.parameter_servers} of {len(self.addresses)} tasks are "
                f"parameter servers: take {first} workers, and at most {self.parameter_servers} servers, or say which "
                "task is what (device_list=, server_list=)"
            )

    def hosts_of(self, devices: Sequence[str]) -> tuple[str, ...]:
        """See `Cluster.hosts_of`: servers whose addresses differ in the port only share a host."""
        tasks = [Device.parse(text).task or 0 for text in devices]
        if max(tasks, default=0) >= len(self.addresses):
            return ()  # starting says what is wrong
        return tuple(host_of_address(self.addresses[task]) for task in tasks)

    @classmethod
    def from_tf_config(
        cls, text: str | None = None, *, with_ps: bool = False, options: RunOptions | None = None
    ) -> Servers:
        """The cluster that TF_CONFIG describes; a chief is task 0, in front of the workers.

        Args:
            text: JSON text of TF_CONFIG; None reads the environment variable.
            with_ps: whether the tasks of the job ``ps`` take part, as parameter servers: as the last ones.
            options: options with which TensorFlow runs the graph.

        Raises:
            InputError: it is not set, damaged, or describes no cluster of workers.
        """
        return cls._of(from_tf_config(text, with_ps), options)

    @classmethod
    def from_hosts_file(
        cls, path: str | os.PathLike[str], *, task: int | None = None, options: RunOptions | None = None
    ) -> Servers:
        """The cluster that a hosts file lists, one host a line: ``HOST``, ``HOST:PORT`` or ``HOST:PORT workers=2``.

        Args:
            path: path of the file. Without a port a host has 2222, and without a number of workers one.
            task: number of the server that is this process's own, if any.
            options: options with which TensorFlow runs the graph.

        Raises:
            InputError: it cannot be read, a line is no host, or a host is there twice.
        """
        return cls._of(replace(from_hosts_file(path), task=task), options)

    @classmethod
    def from_resolver(cls, resolver: Any, *, with_ps: bool = False, options: RunOptions | None = None) -> Servers:
        """The cluster that a resolver finds; a chief is task 0, in front of the workers.

        Args:
            resolver: one of ``tf.distribute.cluster_resolver``, or anything with ``cluster_spec()``. Its
                ``task_type`` and ``task_id``, where it has them, say which task this process is.
            with_ps: see `from_tf_config`.
            options: options with which TensorFlow runs the graph.

        Raises:
            InputError: it finds none, or none of workers.
        """
        return cls._of(from_resolver(resolver, with_ps), options)

    @classmethod
    def _of(cls, membership: Membership, options: RunOptions | None) -> Servers:
        known = membership.notes, membership.workers, membership.parameter_servers
        return cls(membership.addresses, options or RunOptions(), membership.task, *known)

    def serve(self, devices: int | None = None) -> NoReturn:
        """Run this process's own server until the process is ended, as ``caramel worker`` does.

        Args:
            devices: number of virtual CPU devices, for as many replicas in this process; default: as `workers` says.

        Raises:
            InputError: none of the servers is this process's own, or there is no such number of devices.
            ClusterError: the port cannot be used.
        """
        if self.task is None:
            raise InputError("which server to run is not known: make the cluster with a task")
        number = self.workers[self.task] if devices is None else whole_number(devices, "devices")
        serve_forever(self.addresses, self.task, number)

    def check_drives(self) -> None:
        """Refuse where this process should serve.

        Raises:
            InputError: this process is another task than task 0.
        """
        if self.task:
            raise InputError(
                f"this process is task {self.task} of the cluster ({self.addresses[self.task]}), and task 0 "
                f"({self.addresses[0]}) drives it: run `caramel worker` here, and the program on task 0 alone"
            )

    def own_server(self, devices: Sequence[str]) -> OwnServer | None:
        """Start the server of task 0 if it is this process's own and nothing listens at its address.

        Args:
            devices: device string of each worker.

        Returns:
            The server, where it has to be stopped.

        Raises:
            ClusterError: it does not start.
        """
        if self.task != 0 or is_listening(self.addresses[0]):
            return None
        config = self.options.server_config(cpu_count(devices, (WORKER_JOB, 0)), GROUP_LEADER)
        if self.drives_inside and not has_gpu():
            serve_inside(self.addresses, config)
            return None
        return OwnServer(self.addresses, config)

    def for_transfers(self, threads: int) -> Servers:
        """See `Cluster.for_transfers`."""
        return replace(self, options=self.options.for_transfers(threads))

    def with_options(self, options: RunOptions) -> Servers:
        """The same servers with other options of the session."""
        return replace(self, options=options)

    def as_written(self) -> Servers | None:
        """See `Cluster.as_written`; the servers may have GPUs, which is seen when they run."""
        return None if has_gpu() else with_options(self, self.options.as_written())

    @contextmanager
    def held(self, workers: int) -> Iterator[None]:
        """Keep the driver's own server, if it starts one, beside this process; see `Cluster.held`."""
        own = replace(self, drives_inside=False).own_server(default_devices(workers))
        try:
            yield
        finally:
            if own is not None:
                own.stop()

    def start(self, graph_def: Any, devices: tuple[str, ...], timeout_s: float) -> Executor:
        """Open a session; the first worker coordinates the steps."""
        self.check_drives()
        known_tasks = {(WORKER_JOB, task) for task in range(len(self.addresses))}
        missing = [repr(text) for text in devices if Device.parse(text).process not in known_tasks]
        if missing:
            raise InputError(
                f"no server for {listed(missing)}, there are {len(self.addresses)} servers: "
                f"give an address for each, and use devices /job:{WORKER_JOB}/task:0 and so on"
            )
        own = self.own_server(devices)
        members = self._members()
        heartbeats = Heartbeats(members, new_name())
        is_free = False
        try:
            self._await(heartbeats, timeout_s)
            self._check_free(members[0])
            check_versions(members)
            is_free = True
            is_own = own is not None or is_inside(self.addresses[0])
            attend(members[1:] if is_own else members)
            return ServersExecutor(
                lambda: self._session(graph_def, devices, timeout_s), heartbeats, partial(self._named, heartbeats), own
            )
        except BaseException:
            heartbeats.stop(is_closed=not is_free)  # without a session nothing is left
            if own is not None:
                own.stop()
            raise

    def _members(self) -> list[Member]:
        return [
            Member(f"worker {task} at {address}", f"grpc://{address}", task_name(WORKER_JOB, task))
            for task, address in enumerate(self.addresses)
        ]

    def _await(self, heartbeats: Heartbeats, timeout_s: float) -> None:
        """Wait until all servers answer, which may have to start yet.

        Raises:
            ClusterError: one does not.
        """
        most_s = min(timeout_s, START_TIMEOUT_S)
        try:
            heartbeats.await_all(most_s, partial(self._say_for_whom, most_s=most_s))
        except ClusterError as error:
            raise ClusterError(
                f"{error}: {self._named(heartbeats) or 'something else listens there'}. {_START}"
            ) from None

    def _say_for_whom(self, names: str, most_s: float) -> None:
        """Say for which servers this waits.

        Raises:
            ClusterError: the name of one leads nowhere, and nothing says that its host starts at the same time.
        """
        if self.task is None and unknown_hosts(self.addresses):
            raise ClusterError(f"{names} did not answer within some seconds")
        _logger.warning("waiting for %s, at most %g s", names, most_s)

    @staticmethod
    def _check_free(first: Member) -> None:
        """Refuse servers that another process uses.

        Raises:
            ClusterError: one does.
        """
        try:
            others = others_at(first.target, first.task)
        except tf.errors.OpError as error:
            raise caramel_error(error, "while opening the session") from error
        if others:
            raise ClusterError(
                f"another driver uses these servers: {listed(sorted(others))}. Wait until it has ended, or end it: two "
                "at once are in each other's way"
            )

    def _named(self, heartbeats: Heartbeats) -> str:
        """The servers that cannot be reached, as a clause."""
        silent = self._silent()
        if not silent:
            time.sleep(_CLOSING_S)
            silent = self._silent()
        if not silent:
            return heartbeats.doubtful()
        unknown = unknown_hosts(self.addresses)
        names = f", and these names do not resolve: {listed(unknown)}" if unknown else ""
        return f"from here nothing listens at {listed(silent)}{names}"

    def _silent(self) -> list[str]:
        """The addresses at which nothing listens."""
        with ThreadPoolExecutor(len(self.addresses)) as pool:
            listening = list(pool.map(is_listening, self.addresses))
        return [
            f"{address} (worker {task})"
            for task, (address, listens) in enumerate(zip(self.addresses, listening))
            if not listens
        ]

    def _session(self, graph_def: Any, devices: tuple[str, ...], timeout_s: float) -> SessionExecutor:
        config = self.options.config(group_leader=GROUP_LEADER if has_native_collectives(graph_def) else "")
        return SessionExecutor.on_servers(graph_def, f"grpc://{self.addresses[0]}", config, devices, timeout_s)
