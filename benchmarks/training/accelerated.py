"""Hosts with emulated accelerators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from benchmarks.training.accelerators import MARK, sleep_for
from caramel.errors import InvariantError
from caramel.graph.graph import node_of
from caramel.runtime.clusters.base import Cluster
from caramel.runtime.executor import Executor
from caramel.runtime.host.run_options import RunOptions

_UNLOCK = "ConsumeMutexLock"


def with_sleep(graph_def: Any) -> Any:
    """A graph whose marks are sleeping ops of the same names; without marks the same graph.

    Args:
        graph_def: a GraphDef.
    """
    import tensorflow as tf

    if any(_mark_of(node) is not None for function in graph_def.library.function for node in function.node_def):
        raise InvariantError("a mark is in a function, where nothing takes its place")
    marks = {node.name: found for node in graph_def.node if (found := _mark_of(node)) is not None}
    if not marks:
        return graph_def
    sleeps = {mark: _Sleep(tf, mark) for mark in {*marks.values()}}
    result = type(graph_def)()
    result.CopyFrom(graph_def)
    known = {function.signature.name for function in result.library.function}
    for sleep in sleeps.values():
        result.library.function.extend(f for f in sleep.functions if f.signature.name not in known)
    for node in result.node:
        read = dict.fromkeys(map(node_of, node.input))
        # Whoever reads an element waits for the lock's end, which would not be run else.
        node.input.extend(f"^{_name(name, _UNLOCK, *marks[name])}" for name in read if name in marks and marks[name][1])
    for node in [node for node in result.node if node.name in marks]:
        made = sleeps[marks[node.name]].nodes(node)
        node.CopyFrom(made.pop())
        result.node.extend(made)
    return result


_Mark = tuple[int, bool]
"""Microseconds, and whether there is a lock."""


def _mark_of(node: Any) -> _Mark | None:
    found = MARK.fullmatch(node.attr["message"].s.decode()) if node.op == "CheckNumerics" else None
    return None if found is None else (int(found[1]), found[2] is not None)


def _name(name: str, op: str, time_us: int, has_lock: bool) -> str:
    """The name of an op of a mark's own: a server keeps an iterator by its name, for all sessions."""
    return f"{name}/{op}_for_{time_us}_us"


class _Sleep:
    """What stands for the marks of one kind.

    Args:
        tf: TensorFlow.
        mark: of the kind.

    Attributes:
        functions: that the ops need.
    """

    def __init__(self, tf: Any, mark: _Mark) -> None:
        with tf.Graph().as_default() as graph:
            sleep_for(tf, tf.constant(0.0, name="before"), mark[0], not mark[1])
        made = graph.as_graph_def()
        self._mark = mark
        self._own = [node for node in made.node if node.op not in ("Const", "Identity")]
        self.functions = made.library.function

    def nodes(self, mark: Any) -> list[Any]:
        """The ops for a mark; the last one has its name.

        Args:
            mark: node of the mark.
        """
        names = {
            node.name: mark.name if node.op == "IteratorGetNext" else _name(mark.name, node.op, *self._mark)
            for node in self._own
        }
        waited_for = list(dict.fromkeys(f"^{node_of(text)}" for text in mark.input))
        made = []
        for node in self._own:
            own = type(node)()
            own.CopyFrom(node)
            own.name, own.device = names[node.name], mark.device
            own.input[:] = [
                text.replace(node_of(text), names[node_of(text)]) for text in node.input if node_of(text) in names
            ]
            if any(node_of(text) == "before" for text in node.input):
                own.input.extend(waited_for)
            made.append(own)
        return sorted(made, key=lambda each: each.name == mark.name)


class _Accelerated:
    """An executor that replaces the marks of nodes that are added, too.

    Args:
        executor: what it is for all else.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def extend(self, graph_def: bytes) -> None:
        """See `Executor.extend`."""
        from tensorflow.core.framework import graph_pb2

        self._executor.extend(with_sleep(graph_pb2.GraphDef.FromString(graph_def)).SerializeToString())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)


class Accelerated(Cluster):
    """Hosts with an accelerator each: marks in graphs that are started there are sleeping ops.

    Args:
        hosts: where the graphs run.
    """

    def __init__(self, hosts: Cluster) -> None:
        self.options = hosts.options
        self.is_elsewhere = hosts.is_elsewhere
        self._hosts = hosts

    def start(self, graph_def: Any, devices: tuple[str, ...], timeout_s: float) -> Executor:
        """See `Cluster.start`."""
        return _Accelerated(self._hosts.start(with_sleep(graph_def), devices, timeout_s))  # type: ignore[return-value]

    def with_options(self, options: RunOptions) -> Cluster:
        """See `Cluster.with_options`."""
        return Accelerated(self._hosts.with_options(options))

    def as_written(self) -> Cluster | None:
        """See `Cluster.as_written`."""
        as_written = self._hosts.as_written()
        return None if as_written is None else Accelerated(as_written)

    def for_transfers(self, threads: int) -> Cluster:
        """See `Cluster.for_transfers`."""
        return Accelerated(self._hosts.for_transfers(threads))

    def shared(self) -> AbstractContextManager[Cluster]:
        """See `Cluster.shared`."""
        return self._shared()

    @contextmanager
    def _shared(self) -> Iterator[Cluster]:
        with self._hosts.shared() as hosts:
            yield Accelerated(hosts)
