"""Hosts with emulated accelerators."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from benchmarks.training.accelerators import MARK, sleep_for
from caramel.graph.graph import node_of
from caramel.runtime.clusters.base import Cluster
from caramel.runtime.executor import Executor
from caramel.runtime.host.run_options import RunOptions

_OWN = ("OneShotIterator", "MutexV2", "MutexLock", "ConsumeMutexLock")
"""The ops around a sleeping op that each has for itself, in the order of their construction."""


def with_sleep(graph_def: Any) -> Any:
    """A graph whose marks are sleeping ops of the same names; without marks the same graph.

    Args:
        graph_def: a GraphDef.
    """
    import tensorflow as tf

    times_us = {node.name: int(found[1]) for node in graph_def.node if (found := _mark_of(node))}
    if not times_us:
        return graph_def
    templates = {time_us: _template(tf, time_us) for time_us in sorted({*times_us.values()})}
    result = type(graph_def)()
    result.CopyFrom(graph_def)
    known = {function.signature.name for function in result.library.function}
    for template, _ in templates.values():
        result.library.function.extend(f for f in template.library.function if f.signature.name not in known)
    for node in result.node:
        over = [f"^{_name(name, 'ConsumeMutexLock', times_us[name])}" for name in _waited_for(node) if name in times_us]
        node.input.extend(over)
    for mark in [node for node in result.node if node.name in times_us]:
        time_us, name, device = times_us[mark.name], mark.name, mark.device
        by_op = templates[time_us][1]
        own = {by_op[op].name: _name(name, op, time_us) for op in _OWN} | {by_op["IteratorGetNext"].name: name}
        waited_for = dict.fromkeys(f"^{node_of(text)}" for text in mark.input)
        for op in (*_OWN, "IteratorGetNext"):
            made = mark if op == "IteratorGetNext" else result.node.add()
            made.CopyFrom(by_op[op])
            inputs = [text for text in by_op[op].input if node_of(text) in own]
            made.name, made.device = own[by_op[op].name], device
            made.input[:] = [text.replace(node_of(text), own[node_of(text)]) for text in inputs]
            if op == "MutexLock":
                made.input.extend(waited_for)
    return result


def _name(mark: str, op: str, time_us: int) -> str:
    """The name of an op of a mark's own: a server keeps an iterator by its name, for all sessions."""
    return f"{mark}/{op}_for_{time_us}_us"


def _waited_for(node: Any) -> list[str]:
    return list(dict.fromkeys(map(node_of, node.input)))


def _mark_of(node: Any) -> re.Match[str] | None:
    return MARK.fullmatch(node.attr["message"].s.decode()) if node.op == "CheckNumerics" else None


def _template(tf: Any, time_us: int) -> tuple[Any, Mapping[str, Any]]:
    """A GraphDef with a sleeping op and what belongs to it, and these by the names of their ops."""
    with tf.Graph().as_default() as graph:
        sleep_for(tf, tf.constant(0.0), time_us)
    made = graph.as_graph_def()
    return made, {node.op: node for node in made.node}


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
        return self._hosts.start(with_sleep(graph_def), devices, timeout_s)

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
