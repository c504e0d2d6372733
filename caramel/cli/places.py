"""Where a command runs: what its options, files and the environment say of the cluster, before TensorFlow is loaded."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

import click

from caramel.cli.quiet import load_quietly
from caramel.errors import InputError
from caramel.graph.devices import WORKER_JOB, cpu_count, devices_on_servers, other_than_default
from caramel.runtime.host.environment import prepare_server
from caramel.runtime.host.membership import LAST_PORT, Membership, checked_addresses, from_tf_config
from caramel.util.arguments import whole_number

if TYPE_CHECKING:
    from caramel.runtime.clusters.base import Cluster

_logger = logging.getLogger(__name__)

IN_PROCESS, PROCESSES, TF_CONFIG, SLURM, RAY = "in-process", "processes", "tf-config", "slurm", "ray"
"""Values of ``--cluster`` that are no addresses."""

_KINDS = (IN_PROCESS, PROCESSES, TF_CONFIG, SLURM, RAY)


@dataclass(frozen=True)
class Place:
    """Where a command runs.

    Attributes:
        kind: value of ``--cluster``.
        hosts: value of ``--hosts``, which then says the cluster.
        task: value of ``--task``.
        base_port: value of ``--base-port``.
        allow_open_ports: value of ``--allow-open-ports``.
        threads: value of ``--threads``.
        with_ps: whether the job ``ps`` of TF_CONFIG takes part.
        parameter_servers: number of tasks for parameter servers, besides those of workers and after them.
    """

    kind: str
    hosts: str | None = None
    task: int | None = None
    base_port: int | None = None
    allow_open_ports: bool = False
    threads: int | None = None
    with_ps: bool = False
    parameter_servers: int = 0

    @property
    def name(self) -> str:
        """What messages and files call it."""
        return self.kind if self.hosts is None else self.hosts

    @property
    def options(self) -> list[str]:
        """The options that say this place, for a command line."""
        where = ["--cluster", self.kind] if self.hosts is None else ["--hosts", self.hosts]
        values = {"--task": self.task, "--base-port": self.base_port, "--threads": self.threads}
        given = [part for name, value in values.items() if value is not None for part in (name, str(value))]
        return [*where, *given, *(["--allow-open-ports"] if self.allow_open_ports else [])]

    def is_kind(self, kind: str) -> bool:
        """Whether ``--cluster`` says the cluster, and is this."""
        return self.hosts is None and self.kind == kind

    @property
    def starts_servers(self) -> bool:
        """Whether the command may start servers: all of them, or that of its own task."""
        return self.task is not None or (self.hosts is None and self.kind in (PROCESSES, TF_CONFIG, SLURM))

    def check(self, workers: int) -> None:
        """Refuse what is wrong whatever the program is.

        Args:
            workers: number of workers.

        Raises:
            CaramelError: the cluster cannot be that of these options.
        """
        if self.hosts is None and ":" not in self.kind and self.kind not in _KINDS:
            raise click.UsageError(f"--cluster takes {', '.join(_KINDS)} or HOST:PORT,HOST:PORT,..., got {self.kind!r}")
        if self.task is not None and self.hosts is None and self.kind in _KINDS:
            raise click.UsageError("--task belongs to --hosts FILE or --cluster HOST:PORT,HOST:PORT,...")
        if self.threads is not None and not self.starts_servers:
            raise click.UsageError(
                f"--threads belongs to servers that this command starts, and it starts none ({self.name}); "
                "caramel worker --threads N does"
            )
        if self.base_port is None:
            return
        if self.hosts is not None or self.kind not in (PROCESSES, SLURM):
            raise click.UsageError(f"--base-port belongs to --cluster {PROCESSES} or {SLURM}, and it is {self.name}")
        tasks = workers + self.parameter_servers
        last = LAST_PORT + 1 - tasks
        reason = f"each of {tasks} workers has a port, up to {LAST_PORT}"
        whole_number(self.base_port, "--base-port", most=last, reason=reason)

    @cached_property
    def membership(self) -> Membership | None:
        """The servers, where they are known by their addresses; notes about their description are printed.

        Raises:
            InputError: the description is damaged, or one of its hosts does not exist.
        """
        found = self._described()
        if found is None:
            return None
        for note in found.notes:
            _logger.warning("note: %s", note)
        last = len(found.addresses) - 1
        if found.task is not None and not 0 <= found.task <= last:
            raise click.UsageError(f"--task must be between 0 and {last}, got {found.task}")
        return found

    @property
    def servers(self) -> Membership:
        """The servers, for a command that needs their addresses.

        Raises:
            click.UsageError: ``--cluster`` names none.
            InputError: see `membership`.
        """
        if self.membership is None:
            raise click.UsageError(
                f"--cluster takes HOST:PORT,HOST:PORT,..., {TF_CONFIG} or {SLURM}, got {self.kind!r}"
            )
        return self.membership

    def _described(self) -> Membership | None:
        if self.hosts is not None:
            from caramel.runtime.host.hosts_file import check_hosts, from_hosts_file

            found = from_hosts_file(self.hosts)
            if self.task is None:  # else all are started at once, and names may be made with their hosts
                check_hosts(found, self.hosts)
            return replace(found, task=self.task)
        if self.kind == TF_CONFIG:
            return from_tf_config(with_ps=self.with_ps)
        if self.kind == SLURM:
            from caramel.runtime.host.slurm import from_slurm

            return from_slurm(base_port=self.base_port)
        return Membership(checked_addresses(self.kind.split(",")), self.task) if ":" in self.kind else None

    def size(self, workers: int | None, devices: Sequence[str] = ()) -> tuple[int, tuple[str, ...]]:
        """The number of workers, and their devices; none where the default ones will do.

        Args:
            workers: value of ``--workers``.
            devices: values of ``--device``.

        Raises:
            InputError: nothing says how many workers there are, or parameter servers leave none.
        """
        servers = self.parameter_servers
        listed = () if self.membership is None else devices_on_servers(self.membership.workers)
        found = 0 if self.membership is None else self.membership.parameter_servers
        if found:
            self._check_roles(workers, len(listed) - found)
        known = listed[: max(len(listed) - (found or servers), 0)]
        if listed and not known:
            raise InputError(f"--servers {servers} of the {len(listed)} tasks of the cluster leave no worker")
        if workers is None and not devices and self.is_kind(RAY):
            from caramel.runtime.clusters.ray_servers import number_of_nodes

            nodes = number_of_nodes()
            if nodes <= servers:
                raise InputError(f"--servers {servers} of the {nodes} nodes of the Ray cluster leave no worker")
            workers = nodes - servers
        if workers is None:
            if not (devices or known):
                raise click.UsageError(f"say how many workers: --workers N (--cluster {self.name} does not say it)")
            workers = len(devices or known)
        whole_number(workers, "--workers")
        if known and not devices and workers > len(known):
            raise InputError(
                f"--workers {workers}: the cluster ({self.name}) has {len(known)} worker{'s' * (len(known) != 1)}. "
                "Give a server for each, or several devices of a server (--device)"
            )
        return workers, tuple(devices) or other_than_default(known, workers) or ()

    def _check_roles(self, workers: int | None, named: int) -> None:
        """Refuse numbers that would make a parameter server of a worker, or the other way round.

        Args:
            workers: value of ``--workers``.
            named: number of workers that the description of the cluster names.
        """
        assert self.membership is not None
        found, servers = self.membership.parameter_servers, self.parameter_servers
        if servers > found or (workers is not None and servers and workers != named):
            asked = f"--servers {servers}" + ("" if workers is None else f" --workers {workers}")
            raise InputError(
                f"{asked}: the cluster has {named} tasks for workers and {found} in the job ps. Take as many workers "
                "and at most as many servers, or name devices (--device, --server-device)"
            )

    @property
    def serves(self) -> bool:
        """Whether this process is one of several that the same command started, and not the one that drives."""
        says_task = self.task is not None or self.is_kind(SLURM)
        return says_task and self.membership is not None and bool(self.membership.task)

    def serve(self, devices: Sequence[str] = ()) -> NoReturn:
        """Run this task's server until the driver has ended, and end this process with it.

        Args:
            devices: device string of each worker; empty for the default ones.
        """
        assert self.membership is not None
        number = cpu_count(devices, (WORKER_JOB, self.membership.task)) if devices else None
        serve(self.membership, number, self.threads, exits_with_driver=True)

    def cluster(self, workers: int, trains: bool = False) -> Cluster:
        """The cluster, and TensorFlow loaded. What is started for it ends with the command.

        Args:
            workers: number of workers.
            trains: whether the command trains and ends: then the server of its own task is in this process.

        Raises:
            CaramelError: there is none, or this process is not the one that drives it.
        """
        membership = self.membership  # before TensorFlow is loaded, because the description may be wrong
        if self.is_kind(RAY):
            from caramel.runtime.clusters.ray_servers import ray_membership

            membership = click.get_current_context().with_resource(ray_membership(workers + self.parameter_servers))
        drives_inside = trains and membership is not None and membership.task == 0
        if drives_inside:
            prepare_server()
        load_quietly()  # the program imports Keras if it needs it
        from caramel.runtime.clusters.existing import Servers
        from caramel.runtime.clusters.in_process import InProcess
        from caramel.runtime.clusters.local_processes import LocalProcesses
        from caramel.runtime.host.run_options import RunOptions

        options = RunOptions.with_threads(self.threads)
        if membership is None and self.kind == IN_PROCESS:
            return InProcess()
        if membership is None:
            return LocalProcesses(allow_open_ports=self.allow_open_ports, base_port=self.base_port, options=options)
        servers = Servers(
            membership.addresses,
            options,
            membership.task,
            workers=membership.workers,
            parameter_servers=membership.parameter_servers,
            drives_inside=drives_inside,
        )
        servers.check_drives()
        if membership.task == 0:
            _logger.warning("anyone who reaches %s can run any graph there", membership.addresses[0])
        return servers


def refuse_two_descriptions(is_cluster_given: bool, hosts: str | None) -> None:
    """Refuse two descriptions of a cluster.

    Args:
        is_cluster_given: whether ``--cluster`` is given.
        hosts: value of ``--hosts``.

    Raises:
        click.UsageError: both are given.
    """
    if is_cluster_given and hosts is not None:
        raise click.UsageError("--hosts and --cluster exclude each other")


def serve(
    membership: Membership,
    devices: int | None,
    threads: int | None,
    exits_with_driver: bool = False,
    exits_with_input: bool = False,
    as_json: bool = False,
) -> NoReturn:
    """Run the server of a task.

    Args:
        membership: the cluster, with a task.
        devices: number of virtual CPU devices; None for as many as the task has workers.
        threads: number of ops that it runs at once; None for the default.
        exits_with_driver: whether to end once the driver that used it has ended.
        exits_with_input: whether to end once standard input has ended.
        as_json: whether lines on standard output are for programs.

    Raises:
        ClusterError: the port cannot be used.
    """
    from caramel.runtime.host.server import serve_forever

    assert membership.task is not None
    prepare_server()
    load_quietly()
    _logger.warning("anyone who reaches %s can run any graph here", membership.addresses[membership.task])
    number = membership.workers[membership.task] if devices is None else devices
    serve_forever(membership.addresses, membership.task, number, threads, exits_with_driver, exits_with_input, as_json)


def own_tasks(membership: Membership) -> list[int]:
    """The servers that are on this machine.

    Args:
        membership: the cluster.
    """
    from caramel.runtime.host.names import host_of_address, is_this_machine

    return [task for task, address in enumerate(membership.addresses) if is_this_machine(host_of_address(address))]
