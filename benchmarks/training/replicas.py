"""A graph under construction that trains a workload on several workers, in plain TensorFlow 1 style."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.training.layers import Declared
from benchmarks.training.steps import apply
from benchmarks.training.workloads import Workload
from caramel.errors import InputError
from caramel.graph.devices import default_devices
from caramel.graph.graph import node_of


@dataclass(frozen=True)
class StepGraph:
    """One graph for all workers.

    Attributes:
        graph_def: the graph; each op is on a worker's device.
        initialise: ops that give all variables their first values.
        feeds: values that they need.
        losses: of each worker, a tensor.
        steps: ops that make a step; what they wait for is on their own devices.
    """

    graph_def: Any
    initialise: Sequence[str]
    feeds: Mapping[str, np.ndarray]
    losses: Sequence[str]
    steps: Sequence[str]


@dataclass(frozen=True)
class Stored:
    """A parameter and its momentum, on one device.

    Attributes:
        device: where.
        variable: the parameter.
        momentum: its momentum.
        value: of the parameter, read once in a step.
        reads: ops that read it, which its update waits for.
    """

    device: str
    variable: Any
    momentum: Any
    value: Any
    reads: list[Any]


class _Table:
    """A parameter of which a worker reads rows: `tf.gather` calls ``sparse_read``, as of a variable."""

    def __init__(self, tf: Any, stored: Stored) -> None:
        self._tf = tf
        self._stored = stored
        self.indices: Any = None
        self.rows: Any = None

    def sparse_read(self, indices: Any, name: str | None = None) -> Any:
        """Rows, gathered where the table is."""
        if self.rows is not None:
            raise InputError(f"{self._stored.variable.name} is gathered twice: the sum of its gradients is not known")
        with self._tf.device(self._stored.device):
            # From here on the indices are there, for the gradient too.
            self.indices = self._tf.reshape(indices, [-1])
            rows = self._stored.variable.sparse_read(self.indices, name=name)
        self._stored.reads.append(rows.op)
        self.rows = self._tf.identity(rows)
        return self._tf.reshape(self.rows, [*indices.shape, *self.rows.shape[1:]])


class Building:
    """Makes a graph: variables, each worker's loss and gradients, and updates.

    Args:
        workload: what is trained.
        workers: number of workers.

    Raises:
        InputError: there are fewer than two, or some would have no example.
    """

    def __init__(self, workload: Workload, workers: int) -> None:
        import tensorflow as tf

        if not 2 <= workers <= workload.examples:
            raise InputError(
                f"workers must be between 2 and the number of examples, {workload.examples}, got {workers}"
            )
        self.tf = tf
        self.graph = tf.Graph()
        self.devices = tuple(f"{text}/device:CPU:0" for text in default_devices(workers))
        self._workload = workload
        self._feeds: dict[str, np.ndarray] = {}
        self._first: dict[str, Any] = {}
        self._initialise: list[str] = []
        self._losses: list[str] = []
        self._updates: dict[str, list[Any]] = {device: [] for device in self.devices}
        self._awaited: dict[str, list[str]] = {}

    def stored(self, rank: int, where: Mapping[str, int] | None = None) -> dict[str, Stored]:
        """The parameters that are on a worker: all, or those that are there."""
        tf, found = self.tf, {}
        for name, declared in self._workload.parameters.items():
            if where is not None and where[name] != rank:
                continue
            first = self._first_value(name, declared)
            with tf.device(self.devices[rank]), tf.name_scope(f"worker{rank}/parameters/"):
                variable = self._variable(name, first)
                momentum = self._variable(f"{name}/momentum", tf.zeros(declared.shape))
                value = variable.read_value()
            reads = [] if self._workload.is_sparse(name) else [value.op]
            found[name] = Stored(self.devices[rank], variable, momentum, value, reads)
        return found

    def gradients(self, rank: int, stored: Mapping[str, Stored]) -> dict[str, Any]:
        """A worker's gradients by parameter, sparse ones over the number of workers; its averages are updated.

        Args:
            rank: of the worker.
            stored: the parameters, wherever they are.
        """
        tf, workload = self.tf, self._workload
        with tf.device(self.devices[rank]), tf.name_scope(f"worker{rank}/"):
            averages = {
                name: self._variable(f"averages/{name}", tf.fill(each.shape, each.fill))
                for name, each in workload.averages.items()
            }
            batch = [
                self._variable(f"batch{number}", value).read_value()
                for number, value in enumerate(workload.batch(tf, self.workers, rank))
            ]
            tables = {name: _Table(tf, each) for name, each in stored.items() if workload.is_sparse(name)}
            # Where a parameter is elsewhere, it is sent once, whatever reads the copy.
            copies = {name: tf.identity(each.value) for name, each in stored.items() if name not in tables}
            loss, updates = workload.loss(tf, {**averages, **copies, **tables}, *batch)
            sources = {**copies, **{name: table.rows for name, table in tables.items()}}
            found = dict(zip(sources, tf.gradients(loss, list(sources.values()))))
            for name, table in tables.items():
                found[name] = tf.IndexedSlices(found[name] / self.workers, table.indices)
            self._updates[self.devices[rank]] += [averages[name].assign(value).op for name, value in updates.items()]
        self._losses.append(loss.name)
        return found

    @property
    def workers(self) -> int:
        """How many there are."""
        return len(self.devices)

    def gathered(self, parts: Sequence[Any], device: str) -> Any:
        """On a device, all workers' slices of a gradient, whose sum is the mean."""
        tf = self.tf
        with tf.device(device):
            values, indices = (tf.concat([getattr(p, kind) for p in parts], 0) for kind in ("values", "indices"))
            return tf.IndexedSlices(values, indices)

    def update(self, stored: Stored, gradient: Any) -> None:
        """Apply the mean of the gradients, after all reads of the parameter."""
        tf = self.tf
        with tf.device(stored.device):
            made = apply(tf, stored.variable, stored.momentum, gradient, self._workload.learning_rate)
        self._updates[stored.device].append(made)
        # tf.control_dependencies would hold up the constants that it makes instead, which optimizers set free.
        self._awaited[made.name] = [read.name for read in stored.reads]

    def finish(self) -> StepGraph:
        """The graph."""
        tf, steps = self.tf, []
        for rank, (device, updates) in enumerate(self._updates.items()):
            if updates:
                with tf.device(device), tf.control_dependencies(updates):
                    steps.append(tf.no_op(f"worker{rank}/step").name)
        graph_def = _placed(self.graph.as_graph_def())
        for node in graph_def.node:
            node.input.extend(f"^{name}" for name in self._awaited.get(node.name, ()))
        graph_def = _needed(graph_def, [*self._initialise, *self._losses, *steps])
        return StepGraph(graph_def, self._initialise, self._feeds, self._losses, steps)

    def _variable(self, name: str, first: Any) -> Any:
        made = self.tf.Variable(first, trainable=False, name=name)
        self._initialise.append(made.initializer.name)
        return made

    def _first_value(self, name: str, declared: Declared) -> Any:
        """The same tensor for all workers, so that the graph does not grow by their values."""
        if name not in self._first:
            with self.tf.device(self.devices[0]):
                fed = self._fed(declared.value(name), f"first/{name}")
            self._first[name] = fed
        return self._first[name]

    def _fed(self, value: np.ndarray, name: str) -> Any:
        """Constants would make the graph large, and be loaded and optimized with it."""
        made = self.tf.compat.v1.placeholder(value.dtype, value.shape, name)
        self._feeds[made.name] = value
        return made


def _placed(graph_def: Any) -> Any:
    """A graph whose ops all have a device.

    TensorFlow's recursive_hd leaves its splits without one, and they would all end up on the first worker: they
    belong to what they split, and constants to the op that reads them.
    """
    nodes = {node.name: node for node in graph_def.node}
    for node in graph_def.node:
        inputs = [nodes[node_of(text)] for text in node.input]
        if not node.device:
            node.device = next((each.device for each in reversed(inputs) if each.device), "")
        for each in inputs:
            each.device = each.device or node.device
    return graph_def


def _needed(graph_def: Any, wanted: Iterable[str]) -> Any:
    """A graph without what is never run: the ring divides chunks that it does not use, a variable has idle reads."""
    nodes = {node.name: node for node in graph_def.node}
    found, waiting = set(), [node_of(text) for text in wanted]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [node_of(text) for text in nodes[name].input]
    needed = type(graph_def)(versions=graph_def.versions, library=graph_def.library)
    needed.node.extend(node for node in graph_def.node if node.name in found)
    return needed
