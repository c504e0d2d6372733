"""Clusters: where a distributed graph runs. Two of them, behind one interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import tensorflow as tf

from caramel.errors import ClusterError, InputError
from caramel.graph.devices import Device, in_process_mapping
from caramel.graph.graph import NodeDef
from caramel.runtime.executor import Executor, RunOptions, SessionExecutor, has_native_collectives

_LAST_PORT = 65535


class Cluster(Protocol):
    """Starts what a distributed graph needs and gives an Executor for it."""

    def start(self, graph_def: Any, devices: tuple[str, ...], timeout_s: float) -> Executor:
        """Start the workers and load the graph.

        Args:
            graph_def: the distributed graph.
            devices: device string of each worker.
            timeout_s: how long a worker may take to answer.

        Raises:
            ClusterError: a worker cannot be started or reached.
        """


@dataclass(frozen=True)
class InProcess:
    """All workers are virtual devices of this process: no socket, no other process.

    Attributes:
        options: how TensorFlow runs the graph.
    """

    options: RunOptions = field(default_factory=RunOptions)

    def start(self, graph_def: Any, devices: tuple[str, ...], timeout_s: float) -> Executor:
        """Place each worker on a virtual CPU device (or a GPU that is here)."""
        placement = in_process_mapping(devices, len(tf.config.list_physical_devices("GPU")))
        placed = type(graph_def)()
        placed.CopyFrom(graph_def)
        cache: dict[str, str] = {"": ""}
        for node in placed.node:
            if node.device not in cache:
                cache[node.device] = placement.place(node.device)
            node.device = cache[node.device]
        leader = "/job:localhost/replica:0/task:0" if has_native_collectives(graph_def) else ""
        config = self.options.config(placement.cpu_count, leader)
        return InProcessExecutor(SessionExecutor(placed, "", config), cache, placement)


class InProcessExecutor:
    """A SessionExecutor that also places nodes that are added later."""

    def __init__(self, inner: SessionExecutor, cache: dict[str, str], placement: Any) -> None:
        self.run = inner.run
        self.close = inner.close
        self._inner = inner
        self._cache = cache
        self._placement = placement

    def extend(self, graph_def: bytes) -> None:
        """Place and add nodes."""
        added = tf.compat.v1.GraphDef.FromString(graph_def)
        for node in added.node:
            node.device = self._placement.place(node.device) if node.device else ""
        self._inner.extend(added.SerializeToString())


@dataclass(frozen=True)
class Host:
    """A network namespace of this machine that stands for a machine of its own.

    Attributes:
        namespace: path of the namespace, such as ``/proc/PID/ns/net``.
        address: its address, by which the others reach it.
    """

    namespace: str
    address: str


@dataclass(frozen=True)
class LocalProcesses:
    """Each worker is a TensorFlow server in a process of its own on this machine, over gRPC.

    TensorFlow servers listen on every interface and run any graph for anyone who reaches them, so
    the processes live in a network namespace of their own, which nothing else can reach.

    Attributes:
        allow_open_ports: start without a namespace where the kernel allows none.
        base_port: worker r listens on ``base_port + r``; default: free ports.
        hosts: namespaces that exist already, one for each worker, to emulate a network between
            them; needs root. The driver runs beside worker 0.
        start_timeout_s: how long the servers may take to start.
        options: how TensorFlow runs the graph.
    """

    allow_open_ports: bool = False
    base_port: int | None = None
    start_timeout_s: float = 120.0
    hosts: tuple[Host, ...] | None = None
    options: RunOptions = field(default_factory=RunOptions)

    def __post_init__(self) -> None:
        if self.base_port is not None and not 1 <= self.base_port <= _LAST_PORT:
            raise InputError(f"base_port must be between 1 and {_LAST_PORT}, got {self.base_port}")
        if self.start_timeout_s <= 0:
            raise InputError(f"start_timeout_s must be positive, got {self.start_timeout_s}")

    def start(self, graph_def: Any, devices: tuple[str, ...], timeout_s: float) -> Executor:
        """Start the servers and a driver beside them."""
        from caramel.runtime.processes import start_processes

        tasks = []
        for text in devices:
            device = Device.parse(text)
            if device.job is None or device.task is None:
                raise ClusterError(
                    f"device {text!r} names no job and task, so it cannot be a process of its own: "
                    "use a device such as /job:worker/task:0, or the cluster InProcess()"
                )
            if (device.job, device.task) not in tasks:
                tasks.append((device.job, device.task))
        if self.base_port is not None and self.base_port + len(tasks) - 1 > _LAST_PORT:
            first = _LAST_PORT + 1 - self.base_port
            raise InputError(
                f"port {_LAST_PORT + 1} for worker {first} does not exist: choose a base_port of at most "
                f"{_LAST_PORT + 1 - len(tasks)} for {len(tasks)} workers"
            )
        if self.hosts is not None and len(self.hosts) != len(tasks):
            raise InputError(f"there are {len(self.hosts)} hosts for {len(tasks)} workers: give one for each")
        return start_processes(graph_def, tasks, self, timeout_s)


@dataclass(frozen=True)
class Servers:
    """TensorFlow servers that run already, on machines of a network: ``caramel worker`` starts one.

    Servers run any graph for anyone who reaches them: use a network that only you can reach.

    Attributes:
        addresses: ``host:port`` of each worker, in order.
        options: how TensorFlow runs the graph.
    """

    addresses: tuple[str, ...]
    options: RunOptions = field(default_factory=RunOptions)

    def __post_init__(self) -> None:
        object.__setattr__(self, "addresses", checked_addresses(self.addresses))

    def start(self, graph_def: Any, devices: tuple[str, ...], timeout_s: float) -> Executor:
        """Open a session; the first worker coordinates the steps."""
        wanted = {Device.parse(text).worker for text in devices}
        there = {(JOB, task) for task in range(len(self.addresses))}
        if not wanted <= there:
            raise InputError(
                f"no server for {sorted(map(str, wanted - there))}, there are {len(self.addresses)} servers: "
                f"give an address for each, and use devices /job:{JOB}/task:0 and so on"
            )
        leader = f"/job:{JOB}/replica:0/task:0" if has_native_collectives(graph_def) else ""
        config = self.options.config(group_leader=leader)
        config.isolate_session_state = True
        config.operation_timeout_in_ms = int(timeout_s * 1000)
        return SessionExecutor(graph_def, f"grpc://{self.addresses[0]}", config)


JOB = "worker"


def checked_addresses(addresses: Sequence[str]) -> tuple[str, ...]:
    """Addresses of servers.

    Raises:
        InputError: none, the same twice, or one that is no host:port.
    """
    found = tuple(addresses)
    if isinstance(addresses, str) or not found:
        raise InputError(f"servers need a list of one or more addresses host:port, got {addresses!r}")
    for text in found:
        host, colon, port = text.rpartition(":")
        if not (host and colon and port.isdigit() and 1 <= int(port) <= _LAST_PORT):
            raise InputError(f"{text!r} is no address of a server: write host:port")
    if len(set(found)) < len(found):
        raise InputError(f"an address is there twice: {', '.join(found)}")
    return found


def placed_nodes(nodes: list[NodeDef]) -> bytes:
    """Nodes as the bytes of a GraphDef, for `Executor.extend`."""
    graph_def = tf.compat.v1.GraphDef()
    graph_def.node.extend(nodes)
    return bytes(graph_def.SerializeToString())
