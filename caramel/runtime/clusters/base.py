"""The interface of every kind of cluster, which is where a distributed graph runs."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from typing import Any, TypeVar

import tensorflow as tf

from caramel.errors import InputError
from caramel.graph.devices import Device, other_than_default
from caramel.runtime.executor import Executor
from caramel.runtime.host.run_options import RunOptions
from caramel.util.arguments import shown, whole_number


class Cluster(ABC):
    """Starts the workers of a distributed graph and gives an Executor for it. A new kind of cluster is a subclass.

    Attributes:
        options: options with which TensorFlow runs the graph.
        tracing_warning: reason to doubt times that are traced there; "" if there is none.
        is_elsewhere: whether workers are in other processes, so that what is fed travels to them.
        parameter_servers: how many of its last tasks are for parameters, as far as its description says.

    Examples:
        >>> import caramel
        >>> isinstance(caramel.InProcess(), caramel.Cluster)
        True
    """

    options: RunOptions = RunOptions()
    tracing_warning: str = ""
    is_elsewhere: bool = True
    parameter_servers: int = 0

    @property
    def default_devices(self) -> tuple[str, ...]:
        """The device of each worker that the cluster has room for; empty where it takes as many as are asked for."""
        return ()

    @abstractmethod
    def start(self, graph_def: Any, devices: tuple[str, ...], timeout_s: float) -> Executor:
        """Start the workers and load the graph.

        Args:
            graph_def: the distributed graph.
            devices: device string of each worker.
            timeout_s: seconds that a worker may take to answer.

        Raises:
            ClusterError: a worker cannot be started or reached.
        """

    def with_options(self, options: RunOptions) -> Cluster:
        """The same cluster for a session with other options, beside those that are open.

        Raises:
            InputError: there is no such thing.
        """
        raise InputError(f"measuring needs a cluster such as caramel.InProcess(), got {self!r}")

    def beside(self) -> Cluster:
        """The same cluster for a session beside those that are open: where each has servers, with other ports."""
        return self

    def as_written(self) -> Cluster | None:
        """The same cluster, on the same servers, for graphs that TensorFlow's optimizers shall leave as they are.

        None where there is no such thing, or where they would do something else there than here: for GPUs. Where these
        turn out to be elsewhere (`Executor.has_gpu`), the session starts the cluster itself instead.
        """
        return None

    def for_transfers(self, threads: int) -> Cluster:
        """The same cluster, whose servers have so many threads for transfers, if it starts any.

        Args:
            threads: number of threads of a server besides those that compute. What the options say has precedence.
        """
        return self

    def shared(self) -> AbstractContextManager[Cluster]:
        """A cluster whose sessions, at once or one after the other, run on the same servers until the end."""
        return nullcontext(self)

    def held(self, workers: int) -> AbstractContextManager[None]:
        """Keep the server that the driver starts beside servers that run already, for several sessions.

        TensorFlow's own collective ops do not survive the restart of one server among others.

        Args:
            workers: largest number of workers of a session.
        """
        return nullcontext()

    def check_roles(self, workers: Sequence[str], servers: Sequence[str]) -> None:
        """Check that tasks are what the description of the cluster calls them.

        Args:
            workers: device string of each worker.
            servers: device string of each parameter server.

        Raises:
            InputError: a worker is on a task for parameters, or the other way round.
        """
        return

    def hosts_of(self, devices: Sequence[str]) -> tuple[str, ...]:
        """A name of the host of each worker, the same for those that share one; empty where that is not known.

        Args:
            devices: device string of each worker.
        """
        return ()

    def most_in_a_process(self, devices: Sequence[str]) -> int:
        """The largest number of workers in one process.

        Args:
            devices: device string of each worker.
        """
        return max(Counter(Device.parse(text).process for text in devices).values())


_ClusterKind = TypeVar("_ClusterKind", bound=Cluster)


def with_options(cluster: _ClusterKind, options: RunOptions) -> _ClusterKind:
    """A copy of a cluster, with all else that it has, also where its class is the user's own.

    Args:
        cluster: the cluster.
        options: options of the copy.
    """
    same = copy.copy(cluster)
    object.__setattr__(same, "options", options)  # clusters are frozen
    return same


def has_gpu() -> bool:
    """Whether this machine has a GPU that TensorFlow can use."""
    return bool(tf.config.list_physical_devices("GPU"))


def workers_of(
    cluster: Cluster, workers: Any, server_tasks: int = 0, *, has_devices: bool = False
) -> tuple[int, tuple[str, ...] | None]:
    """The number of workers on a cluster, and their devices; None for the devices where the default ones will do.

    Args:
        cluster: where they run.
        workers: number of workers that the caller asked for; None for as many as the cluster has.
        server_tasks: number of tasks for parameter servers, after those of the workers.
        has_devices: whether the caller says the device of each worker.

    Raises:
        InputError: it is no number, nothing says how many there are, there are fewer, or parameter servers leave none.
    """
    devices = cluster.default_devices
    others = max(server_tasks - cluster.parameter_servers, 0)  # those that the description does not call so
    if workers is None and devices and len(devices) <= others:
        raise InputError(f"{server_tasks} parameter servers of the {len(devices)} tasks of the cluster leave no worker")
    devices = devices[: max(len(devices) - others, 0)]
    if workers is None and not devices:
        raise InputError("say how many workers: workers=N; a cluster such as caramel.Servers knows it by itself")
    number = len(devices) if workers is None else whole_number(workers, "workers")
    if devices and number > len(devices) and not has_devices:
        raise InputError(
            f"workers={number}: the cluster has {len(devices)} worker{'s' * (len(devices) != 1)}. Give a server for "
            "each, or several devices of a server (device_list=)"
        )
    return number, other_than_default(devices, number)


def workers_on_host(hosts: Sequence[str]) -> int:
    """The number of workers of each host, where it is the same for all but the last, which may have fewer; otherwise 1.

    Args:
        hosts: name of the host of each worker. Those of one host follow each other.

    >>> workers_on_host("aabb"), workers_on_host("aaab"), workers_on_host("abab"), workers_on_host("abb")
    (2, 3, 1, 1)
    """
    runs = [len(list(run)) for _, run in groupby(hosts)]
    if len(runs) != len(set(hosts)) or not runs:
        return 1
    *others, last = runs
    most = others[0] if others else last
    return most if all(number == most for number in others) and last <= most else 1


_KINDS = frozenset({"InProcess", "LocalProcesses", "Servers"})
"""Names of clusters with which descriptions of networks begin."""


def measured_elsewhere(network: str | None, cluster: Any) -> str:
    """What to know of a plan whose network was measured on another kind of cluster; empty where there is nothing.

    >>> from caramel import InProcess
    >>> measured_elsewhere("LocalProcesses, planned from host0", InProcess())[:49]
    'the network of the plan was measured on LocalProc'
    >>> measured_elsewhere("InProcess on host0", InProcess())
    ''

    Args:
        network: description of the network model.
        cluster: where a session runs.
    """
    measured, own = (network or "").replace(",", " ").split(" ")[0], type(cluster).__name__
    if measured == own or not _KINDS.issuperset((measured, own)):
        return ""
    return (
        f"the network of the plan was measured on {measured}, and this session runs on {own}: its transfers and "
        f"predictions are for {measured}"
    )


def check_cluster(cluster: Any) -> None:
    """Refuse what is no cluster.

    Raises:
        InputError: it has no `Cluster.start`.
    """
    if isinstance(cluster, (str, type)) or not hasattr(cluster, "start"):
        is_class = isinstance(cluster, type)
        got = f"the class {cluster.__name__}: it has no parentheses" if is_class else shown(cluster)
        raise InputError(
            "a session runs on a cluster such as caramel.InProcess(), caramel.LocalProcesses() or "
            f"caramel.Servers(['host0:2222', 'host1:2222']), got {got}"
        )
