"""Workers as TensorFlow servers in processes of this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from caramel.errors import InputError, listed
from caramel.graph.devices import Device, cpu_count, task_name
from caramel.runtime.clusters.base import Cluster, has_gpu, with_options
from caramel.runtime.clusters.launcher_client import LauncherClient, LaunchSettings, ProcessExecutor, start_servers
from caramel.runtime.executor import Executor, has_native_collectives
from caramel.runtime.host.membership import LAST_PORT
from caramel.runtime.host.run_options import RunOptions
from caramel.runtime.host.server import START_TIMEOUT_S
from caramel.util.arguments import flag, timeout_s, whole_number


@dataclass(frozen=True)
class Host:
    """A network namespace of this machine that stands for a machine of its own.

    Attributes:
        namespace: path of the namespace, such as ``/proc/PID/ns/net``.
        address: address by which the others reach it.
    """

    namespace: str
    address: str


@dataclass(frozen=True, kw_only=True)
class LocalProcesses(Cluster):
    """Each task is a TensorFlow server in a process of its own on this machine, over gRPC.

    A task's process has as many virtual CPU devices as the workers' device strings name: with
    ``/job:worker/task:0/device:CPU:0`` and ``/job:worker/task:0/device:CPU:1``, two workers share it.

    TensorFlow servers listen on every interface and run any graph for anyone who reaches them, so
    the processes live in a network namespace of their own, which nothing else can reach.

    Attributes:
        allow_open_ports: whether to start without a namespace where the kernel allows none.
        base_port: port of the first task; the next listens on ``base_port + 1``; default: free ports.
        hosts: namespaces that exist already, one for each task, to emulate a network between
            them; needs root. The driver runs beside the first.
        start_timeout_s: seconds that the servers may take to start.
        options: options with which TensorFlow runs the graph.

    Examples:
        >>> import caramel
        >>> caramel.LocalProcesses(base_port=2222).tasks(["/job:worker/task:0", "/job:worker/task:1"])
        [('worker', 0), ('worker', 1)]
    """

    allow_open_ports: bool = False
    base_port: int | None = None
    start_timeout_s: float = START_TIMEOUT_S
    hosts: tuple[Host, ...] | None = None
    options: RunOptions = field(default_factory=RunOptions)

    def __post_init__(self) -> None:
        flag(self.allow_open_ports, "allow_open_ports")
        if self.base_port is not None:
            whole_number(self.base_port, "base_port", most=LAST_PORT, reason="it is the last port")
        object.__setattr__(self, "start_timeout_s", timeout_s(self.start_timeout_s, "start_timeout_s"))

    def start(self, graph_def: Any, devices: tuple[str, ...], timeout_s: float) -> Executor:
        """Start the servers and a driver beside them."""
        tasks = self.tasks(devices)
        leader = task_name(*tasks[0]) if has_native_collectives(graph_def) else ""
        configs = self.configs(devices, leader)
        client = start_servers(self.launch_settings(configs, tasks))
        return ProcessExecutor(client, graph_def, configs[0], devices, timeout_s)

    def for_transfers(self, threads: int) -> LocalProcesses:
        """See `Cluster.for_transfers`."""
        return replace(self, options=self.options.for_transfers(threads))

    def with_options(self, options: RunOptions) -> LocalProcesses:
        """Other servers with other options; ports that were asked for are those of the servers that run."""
        return replace(self.beside(), options=options)

    def beside(self) -> LocalProcesses:
        """See `Cluster.beside`."""
        return replace(self, base_port=None)

    def as_written(self) -> LocalProcesses | None:
        """See `Cluster.as_written`."""
        return None if has_gpu() else with_options(self, self.options.as_written())

    @contextmanager
    def shared(self) -> Iterator[Cluster]:
        """Servers for several sessions; they are stopped at the end."""
        processes = SharedProcesses(self)
        try:
            yield processes
        finally:
            processes.close()

    def launch_settings(self, configs: Sequence[bytes], tasks: Sequence[tuple[str, int]]) -> LaunchSettings:
        """The settings of a launcher.

        Args:
            configs: serialized ConfigProto of each task.
            tasks: job and task of each server.
        """
        return LaunchSettings(
            tuple(configs),
            tuple(tasks),
            None if self.hosts is None else tuple((h.namespace, h.address) for h in self.hosts),
            self.allow_open_ports,
            self.base_port,
            self.start_timeout_s,
        )

    def hosts_of(self, devices: Sequence[str]) -> tuple[str, ...]:
        """See `Cluster.hosts_of`: namespaces stand for hosts, and without any there is one host."""
        tasks = self.tasks(devices)
        places = ["this machine"] * len(tasks) if self.hosts is None else [host.namespace for host in self.hosts]
        by_task = dict(zip(tasks, places))
        parsed = (Device.parse(text) for text in devices)
        return tuple(by_task[device.job or "", device.task or 0] for device in parsed)

    def configs(self, devices: Sequence[str], leader: str) -> list[bytes]:
        """A serialized ConfigProto for each task.

        Args:
            devices: device string of each worker.
            leader: name of the task that leads TensorFlow's own collectives; empty without any.
        """
        tasks = self.tasks(devices)
        return [self.options.server_config(cpu_count(devices, task), leader).SerializeToString() for task in tasks]

    def tasks(self, devices: Sequence[str]) -> list[tuple[str, int]]:
        """Job and task of each server, in the order of the workers.

        Args:
            devices: device string of each worker.

        Raises:
            InputError: one names no job or task, or there are no such ports, or not as many hosts.
        """
        tasks: list[tuple[str, int]] = []
        for text in devices:
            device = Device.parse(text)
            if device.job is None or device.task is None:
                raise InputError(
                    f"device {text!r} names no job and task, so it cannot be a process of its own: "
                    "use a device such as /job:worker/task:0, or the cluster InProcess()"
                )
            if (device.job, device.task) not in tasks:
                tasks.append((device.job, device.task))
        if self.base_port is not None and self.base_port + len(tasks) - 1 > LAST_PORT:
            first = LAST_PORT + 1 - self.base_port
            raise InputError(
                f"port {LAST_PORT + 1} for worker {first} does not exist: choose a base_port of at most "
                f"{LAST_PORT + 1 - len(tasks)} for {len(tasks)} workers"
            )
        if self.hosts is not None and len(self.hosts) != len(tasks):
            raise InputError(f"there are {len(self.hosts)} hosts for {len(tasks)} workers: give one for each")
        return tasks


class SharedProcesses(Cluster):
    """Servers of `LocalProcesses` for several sessions, at once or one after the other; started with the first one.

    Sessions have variables of their own. If the launcher or a server ends, all of them are lost, and the next session
    starts everything again. A session with TensorFlow's own collective ops has servers of its own: those of two
    sessions are in each other's way.

    Args:
        cluster: cluster whose servers are shared.

    Attributes:
        options: options with which TensorFlow runs the graphs.
    """

    def __init__(self, cluster: LocalProcesses) -> None:
        self.options = cluster.options
        self._cluster = cluster
        self._client: LauncherClient | None = None
        self._tasks: list[tuple[str, int]] = []
        self._configs: list[bytes] = []

    def start(self, graph_def: Any, devices: tuple[str, ...], timeout_s: float) -> Executor:
        """Open a session; see `Cluster.start`.

        Raises:
            InputError: the servers that were started first lack some of these devices.
            ClusterError: a worker cannot be started or reached.
        """
        return self.start_with(self.options, graph_def, devices, timeout_s)

    def start_with(self, options: RunOptions, graph_def: Any, devices: tuple[str, ...], timeout_s: float) -> Executor:
        """Open a session with other options than the servers'; see `start`.

        Args:
            options: options with which TensorFlow runs the graph.
            graph_def: the distributed graph.
            devices: device string of each worker.
            timeout_s: seconds that a worker may take to answer.
        """
        if has_native_collectives(graph_def):
            # The servers that are kept have the ports that were asked for.
            own = replace(self._cluster, base_port=None, options=options)
            return own.start(graph_def, devices, timeout_s)
        tasks, configs = self._cluster.tasks(devices), self._cluster.configs(devices, "")
        if self._client is None or not self._client.is_well():
            self.close()  # what is left of them
            self._client = start_servers(self._cluster.launch_settings(configs, tasks))
            self._tasks, self._configs = tasks, configs
        elif not dict(zip(tasks, configs)).items() <= dict(zip(self._tasks, self._configs)).items():
            raise InputError(
                f"the servers that are kept are those of {listed(task_name(*task) for task in self._tasks)}, each "
                f"with as many devices as the first session had; {listed(devices)} need others"
            )
        config = replace(self._cluster, options=options).configs(devices, "")[0]
        return ProcessExecutor(self._client, graph_def, config, devices, timeout_s, is_alone=False)

    def as_written(self) -> Cluster | None:
        """See `Cluster.as_written`."""
        return None if has_gpu() else _AsWritten(self)

    def close(self) -> None:
        """Stop the servers; nothing happens the second time."""
        if self._client is not None:
            self._client.close()


class _AsWritten(Cluster):
    """Servers that are shared, for sessions whose graphs are to run as they are.

    Args:
        servers: the servers.
    """

    def __init__(self, servers: SharedProcesses) -> None:
        self.options = servers.options.as_written()
        self._servers = servers

    def start(self, graph_def: Any, devices: tuple[str, ...], timeout_s: float) -> Executor:
        """Open a session; see `SharedProcesses.start`."""
        return self._servers.start_with(self.options, graph_def, devices, timeout_s)
