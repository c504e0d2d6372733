"""Running a placed graph in a tf.compat.v1.Session, here or in another process."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Protocol
from weakref import WeakSet

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from caramel.errors import CaramelError, ClusterError, InputError, StepError, listed
from caramel.graph import ops
from caramel.graph.devices import Device
from caramel.runtime.growing_graph import GrowingGraph
from caramel.util.daemon_threads import DaemonThreads

v1 = tf.compat.v1


def has_native_collectives(graph_def: Any) -> bool:
    """Whether TensorFlow's own collective ops are in a graph; they need a group leader."""
    return any(node.op == ops.NATIVE_ALL_REDUCE for node in graph_def.node)


Run = tuple[Sequence[str], Sequence[str], Mapping[str, np.ndarray]]
"""Tensors to fetch, further ops to run, and arrays to feed by tensor name."""


KindOfRun = tuple[Sequence[str], Sequence[str], Iterable[str]]
"""Tensors to fetch, further ops to run, and names of tensors to feed."""


_Key = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], int]
"""Tensors to fetch, further ops to run, tensors to feed, and ms that this may take."""


class Executor(Protocol):
    """A running graph, as a cluster gives it to a Session."""

    def run(
        self, fetches: Sequence[str], targets: Sequence[str], feeds: Mapping[str, np.ndarray], timeout_s: float
    ) -> list[np.ndarray]:
        """Run once; values of ``fetches`` in order."""

    def run_traced(
        self, fetches: Sequence[str], targets: Sequence[str], feeds: Mapping[str, np.ndarray], timeout_s: float
    ) -> tuple[list[np.ndarray], bytes]:
        """Run once with full tracing; the values, and TensorFlow's RunMetadata, serialized."""

    def run_each(self, runs: Sequence[Run], timeout_s: float) -> list[list[np.ndarray] | StepError]:
        """Run several times at once; the values of each run, or its error, with which the other runs go on.

        Raises:
            ClusterError: a worker is gone or too slow.
        """

    def prepare(self, runs: Sequence[KindOfRun], timeout_s: float) -> None:
        """Get ready for runs to come, which is the quicker the less of the graph was run before."""

    def extend(self, graph_def: bytes) -> None:
        """Add nodes; they may read nodes that are there already."""

    def has_gpu(self) -> bool:
        """Whether a worker has a GPU.

        Raises:
            ClusterError: a worker is gone.
        """

    def pids(self) -> tuple[int, ...]:
        """Process ids of the driver and then of the servers that were started with it, by task."""

    def close(self) -> None:
        """Stop everything that was started."""


class SessionExecutor:
    """A graph in a session of this process, on local devices or on servers.

    Args:
        graph_def: GraphDef with devices that exist where it runs.
        target: address ``grpc://host:port`` of a server; "" for this process.
        config: a ConfigProto.

    Raises:
        ClusterError: the servers do not answer.
    """

    def __init__(self, graph_def: Any, target: str, config: Any) -> None:
        self._growing = GrowingGraph(graph_def)
        self._graph = self._growing.graph
        try:
            self._session = v1.Session(target, graph=self._graph, config=config)
        except tf.errors.OpError as error:
            raise caramel_error(error, "while opening the session") from error
        self._callables: dict[_Key, Callable[..., list[Any]]] = {}
        # On servers a call that is made once may take as long as any operation of the session.
        self._only_timeout_ms = config.operation_timeout_in_ms if target else None
        self._threads: DaemonThreads | None = None
        self._unfinished: list[Future[Any]] = []  # runs for which somebody was interrupted who waited for them
        _open_executors.add(self)

    @classmethod
    def on_servers(
        cls, graph_def: Any, target: str, config: Any, devices: Sequence[str], timeout_s: float
    ) -> SessionExecutor:
        """A session on servers, with variables of its own, that has all its workers' devices.

        Args:
            graph_def: GraphDef to run.
            target: address ``grpc://host:port`` of the server that coordinates.
            config: ConfigProto of the session; it is changed here.
            devices: device string of each worker, with job and task.
            timeout_s: seconds that an operation may take.

        Raises:
            InputError: a device is not there.
            ClusterError: the servers do not answer.
        """
        config.isolate_session_state = True
        config.operation_timeout_in_ms = int(timeout_s * 1000)
        executor = cls(graph_def, target, config)
        try:
            executor.require_devices(devices)
        except BaseException:
            executor.close()
            raise
        return executor

    def run(
        self, fetches: Sequence[str], targets: Sequence[str], feeds: Mapping[str, np.ndarray], timeout_s: float
    ) -> list[np.ndarray]:
        """Run once.

        Raises:
            ClusterError: a worker is gone or too slow.
            StepError: an op failed.
        """
        with _as_caramel_errors(timeout_s):
            if not self._is_made_once(timeout_s):
                return self._run_plainly(fetches, targets, feeds, timeout_s)
            return self._callable(fetches, targets, feeds, timeout_s)(*feeds.values())

    def run_traced(
        self, fetches: Sequence[str], targets: Sequence[str], feeds: Mapping[str, np.ndarray], timeout_s: float
    ) -> tuple[list[np.ndarray], bytes]:
        """Run once with full tracing; see `Executor.run_traced`."""
        metadata = v1.RunMetadata()
        with _as_caramel_errors(timeout_s):
            values = self._run_plainly(fetches, targets, feeds, timeout_s, v1.RunOptions.FULL_TRACE, metadata)
        return values, metadata.SerializeToString()

    def _is_made_once(self, timeout_s: float) -> bool:
        """Whether a run is a call that is made once: on servers such a call has the timeout of the session."""
        return self._only_timeout_ms in (None, _milliseconds(timeout_s))

    def _run_plainly(
        self,
        fetches: Sequence[str],
        targets: Sequence[str],
        feeds: Mapping[str, np.ndarray],
        timeout_s: float,
        trace: int = 0,
        into: Any = None,
    ) -> list[np.ndarray]:
        """Run as `Session.run` does, with all its options."""
        options = v1.RunOptions(timeout_in_ms=_milliseconds(timeout_s), trace_level=trace)
        self._growing.take_in([*fetches, *targets, *feeds])
        fetched = [self._graph.as_graph_element(name) for name in (*fetches, *targets)]
        return list(self._session.run(fetched, dict(feeds), options=options, run_metadata=into)[: len(fetches)])

    def prepare(self, runs: Sequence[KindOfRun], timeout_s: float) -> None:
        """Get ready for runs to come; see `Executor.prepare`."""
        if self._is_made_once(timeout_s):
            for run in runs:
                self._callable(*run, timeout_s)

    def run_each(self, runs: Sequence[Run], timeout_s: float) -> list[list[np.ndarray] | StepError]:
        """Run several times at once; see `Executor.run_each`."""

        def run_one(run: Run) -> list[np.ndarray] | StepError | ClusterError:
            try:
                return self.run(*run, timeout_s)
            except (StepError, ClusterError) as error:
                return error

        for each in self._unfinished:
            each.result()  # it could take an element of data that was made anew meanwhile
        for fetches, targets, feeds in runs:  # what changes the graph, which two threads must not do
            self._growing.take_in([*fetches, *targets, *feeds])
        self.prepare(runs, timeout_s)
        if self._threads is None and len(runs) > 1:
            self._threads = DaemonThreads(len(runs), "worker data")
        if self._threads is None:
            results = [run_one(runs[0])]
        else:
            self._unfinished = [self._threads.submit(run_one, run) for run in runs]
            results = [each.result() for each in self._unfinished]
            self._unfinished = []
        values_or_errors: list[list[np.ndarray] | StepError] = []
        for result in results:
            if isinstance(result, ClusterError):
                raise result
            values_or_errors.append(result)
        return values_or_errors

    def _callable(
        self, fetches: Sequence[str], targets: Sequence[str], feeds: Iterable[str], timeout_s: float
    ) -> Callable[..., list[Any]]:
        key = _key(fetches, targets, feeds, timeout_s)
        if key not in self._callables:
            self._callables[key] = self._make(*key)
        return self._callables[key]

    def _make(
        self, fetches: Sequence[str], targets: Sequence[str], feeds: Sequence[str], timeout_ms: int
    ) -> Callable[..., list[Any]]:
        """A function of what is fed, made once: what `Session.run` does in Python on every call takes half a ms.

        On servers the timeout is that of the session's operations.
        """
        self._growing.take_in([*fetches, *targets, *feeds])
        options = config_pb2.CallableOptions(fetch=fetches, target=targets, feed=feeds)
        options.run_options.timeout_in_ms = timeout_ms
        call = self._session._make_callable_from_options(options)
        dtypes = [self._graph.get_tensor_by_name(name).dtype.as_numpy_dtype for name in feeds]

        def run(*values: Any) -> list[Any]:
            results = call(*(np.asarray(value, dtype) for value, dtype in zip(values, dtypes)))
            # Arrays share memory with variables and constants, which must not change with what the caller writes there.
            return [each.copy() if isinstance(each, np.ndarray) else each for each in results]

        return run

    def has_gpu(self) -> bool:
        """Whether a device is a GPU; see `Executor.has_gpu`."""
        try:
            return any(device.device_type == "GPU" for device in self._session.list_devices())
        except tf.errors.OpError as error:
            raise caramel_error(error, "while opening the session") from error

    def require_devices(self, devices: Sequence[str]) -> None:
        """Check that the workers' devices exist; TensorFlow would silently use others instead.

        Args:
            devices: device string of each worker, with job and task.

        Raises:
            InputError: a device is not there.
            ClusterError: the servers do not answer.
        """
        try:
            session_devices = [Device.parse(device.name) for device in self._session.list_devices()]
        except tf.errors.OpError as error:
            raise caramel_error(error, "while opening the session") from error
        for text in devices:
            required = Device.parse(text)
            task_devices = [device for device in session_devices if device.process == required.process]
            if any(required.type in (None, d.type) and required.index in (None, d.index) for d in task_devices):
                continue
            device_list = listed(f"{d.type}:{d.index}" for d in task_devices) or "no device, or runs under another name"
            option = f" --devices {required.index + 1}" if required.type == "CPU" and required.index else ""
            raise InputError(
                f"there is no device {text!r}: the server of that task has {device_list}. "
                f"Name a device that is there, or start the server with `caramel worker{option}`"
            )

    def extend(self, graph_def: bytes) -> None:
        """Add nodes whose inputs may be nodes of the session's graph."""
        self._growing.add(v1.GraphDef.FromString(graph_def))

    def pids(self) -> tuple[int, ...]:
        """This process, which drives."""
        return (os.getpid(),)

    def leave(self) -> None:
        """Give the session up without closing it, which TensorFlow would do when this object or the process ends.

        It belongs to the process of which this one is a fork, or a server is lost, for which closing would wait.
        """
        leave_session(self._session)

    def close(self) -> None:
        """Close the session; its variables are gone.

        Raises:
            ClusterError: a server cannot be told.
        """
        try:
            self._session.close()
        except tf.errors.OpError as error:
            raise caramel_error(error, "while the session was closed") from error


def _key(fetches: Sequence[str], targets: Sequence[str], feeds: Iterable[str], timeout_s: float) -> _Key:
    return tuple(fetches), tuple(targets), tuple(feeds), _milliseconds(timeout_s)


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)


@contextmanager
def _as_caramel_errors(timeout_s: float) -> Iterator[None]:
    try:
        yield
    except tf.errors.OpError as error:
        raise caramel_error(error, f"after at most {timeout_s:g} s") from error


def leave_session(session: Any) -> None:
    """Give a tf.compat.v1.Session up without closing it; see `SessionExecutor.leave`."""
    session._closed, session._session = True, None


_open_executors: WeakSet[SessionExecutor] = WeakSet()
"""The executors of this process."""


def _leave_all() -> None:
    for executor in list(_open_executors):
        executor.leave()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_leave_all)


_COLLECTIVES_ABORTED = "Collective ops is aborted"
"""Text of TensorFlow's servers about every later collective op, once one of them has failed."""

_SENT_AGAIN = "request was received twice"
"""Text of TensorFlow about a step that it sends again after a worker was lost: that is no cause."""

WHAT_TO_DO = (
    "Start what is gone once more, and restore the last checkpoint: by the same command or script, or in a new session"
)
"""What a user does about a lost worker."""

_LOST_WORKER_CODES = (tf.errors.UNAVAILABLE, tf.errors.ABORTED, tf.errors.CANCELLED)
"""Error codes with which a run ends if a worker cannot be reached."""


def caramel_error(error: Any, when: str) -> CaramelError:
    """The CaramelError for an error of TensorFlow."""
    node, first = _failed_op_and_message(error)
    if _COLLECTIVES_ABORTED in str(error.message):
        return ClusterError(
            f"TensorFlow's own all-reduce ('native') was interrupted, or a server was restarted since the last one, "
            f"and the other servers run none any more ({first}). Restart all servers, and restore the last "
            "checkpoint; or use another algorithm"
        )
    if error.error_code == tf.errors.DEADLINE_EXCEEDED:
        return ClusterError(
            f"a worker did not answer {when} ({first}). Check that all workers run and reach each other; "
            "raise step_timeout_s if a step takes that long"
        )
    if error.error_code in _LOST_WORKER_CODES:
        reason = "" if _SENT_AGAIN in first else f" ({first})"
        return ClusterError(f"a worker cannot be reached any more{reason}. {WHAT_TO_DO}")
    return StepError(f"the program failed{f' in op {node!r}' if node else ''}: {first}")


_IN_FUNCTION = re.compile(r"\{\{function_node ([^}]+)\}\} ?")
"""A function in which an error was."""

_REQUEST = re.compile(r"\s+(?:goo\.gle/debug\w*|session_handle:)")
"""Where TensorFlow goes on with the whole request, all that was fed with it."""

_UNINFORMATIVE_LINE = re.compile(r"\[\[|([A-Z_]+: )?From /job:|\d+ root error\(s\) found")


def _failed_op_and_message(error: Any) -> tuple[str, str]:
    """The op (or "") and the first informative line of an error's message."""
    message = str(error.message).strip()
    node = re.search(r"\{\{node ([^}]+)\}\}", message) or _IN_FUNCTION.search(message)
    message = _IN_FUNCTION.sub("", message)
    lines = [line.strip() for line in message.splitlines()]
    if lines and lines[0].startswith("Graph execution error"):
        # TensorFlow puts the op's stack trace before the message, which follows the last "Node:" line.
        last = max((n for n, line in enumerate(lines) if line.startswith("Node:")), default=0)
        lines = lines[last + 1 :]
    lines = [re.sub(r"^\(\d+\) (\w+: )?", "", line) for line in lines]  # "(0) INVALID_ARGUMENT: " of a list of errors
    informative = [line for line in lines if re.search(r"\w", line) and not _UNINFORMATIVE_LINE.match(line)]
    first = _REQUEST.split(informative[0])[0] if informative else type(error).__name__
    return node.group(1) if node else "", first
