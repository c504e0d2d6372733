"""The input pipeline of one worker, as a graph that is copied to each worker.

A worker makes the dataset once (``build``) and keeps it, so that what belongs to it (a cache, the
state of its shuffles) lasts from pass to pass as on one device. Each pass has an iterator of its own
(``begin``). ``advance`` takes the next element, cuts out the worker's part and keeps it in a
variable, from which the step reads: the end of the data, or an error, arises there and never in a
step. Where no element can fail, that of the next step is taken while a step runs. A worker without
data goes on with what it had. Every element carries its number in the pass, and what was tried is
counted, whether it failed or not: by both workers find to each other again after an error.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from caramel.data.components import Component
from caramel.data.source import Source
from caramel.dealing import WHOLE, Dealing
from caramel.graph.canonical_functions import canonical
from caramel.graph.graph import Graph
from caramel.model import Input

v1 = tf.compat.v1
raw = tf.raw_ops

RANK, WORKERS = "rank", "workers"
"""Names of the constants that differ from worker to worker, or with the number of workers."""

SOURCE = "source"
SKIP, BUFFER, START, ELEMENT = "skip", "buffer", "start", "element"
TRIED = "tried"
BUILD, BEGIN, ADVANCE, COUNTS, CLEAR = "build", "begin", "advance", "counts", "clear"
SNAPSHOT, FORGET, STATE, ITERATOR = "snapshot", "forget", "state", "iterator"
"""Names of nodes in the template."""

ELEMENT_INDEX, OWN_EXAMPLES, FIRST_ROWS = 0, 1, 2
"""Positions in ``counts``: number of the element in its pass (-1 at the end), examples of this worker, and
then for each split input the number of examples in the element that the worker read."""

MEAN_WEIGHT, SUM_WEIGHT = 0, 1
"""Outputs of the node ``element`` after the inputs: the weight of the worker's gradients where the loss is a mean, and
where it is a sum; see `caramel.runtime.feeds.worker_weights`. They hold where a worker has its rows of each element."""

_IGNORE_STATE = 1
"""tf.data's policy of ignoring ops with state, as in `caramel.data.serialise`."""


class Sharding(enum.Enum):
    """The part of the dataset that a worker takes."""

    SLICE = "slice"
    """Its rows of every element."""
    BATCHES = "batches"
    """One of every N elements."""
    OWN = "own"
    """Every element of a dataset of its own."""


@dataclass(frozen=True)
class Template:
    """A worker's input pipeline.

    Attributes:
        graph: nodes of the pipeline, whose devices and ranks are still open.
        order: inputs of the step, in the order of the outputs of the node ``element``.
    """

    graph: Graph
    order: tuple[Input, ...]


def make_template(source: Source, inputs: Sequence[Input], sharding: Sharding, dealing: Dealing = WHOLE) -> Template:
    """Build a worker's pipeline.

    Args:
        source: dataset of the worker.
        inputs: inputs of the step that come from the dataset.
        sharding: part of the dataset that a worker takes.
        dealing: how the rows of a batch are dealt to the workers.
    """
    graph = tf.Graph()
    with graph.as_default():
        _Builder(source, inputs, sharding, dealing).build()
    graph_def = graph.as_graph_def()
    nodes, library = canonical(graph_def.node, graph_def.library)
    return Template(Graph(nodes, library, graph_def.versions), tuple(inputs))


class _Builder:
    def __init__(self, source: Source, inputs: Sequence[Input], sharding: Sharding, dealing: Dealing) -> None:
        self._source = source
        self._inputs = inputs
        self._sharding = sharding
        self._micro_batches = dealing.micro_batches
        spec = [_spec(c) for c in source.components]
        self._spec = tuple(spec)
        flat = [tf.TensorSpec([], tf.int64), *spec]
        self._element = {"output_types": [s.dtype for s in flat], "output_shapes": [s.shape for s in flat]}
        self._counts = FIRST_ROWS + sum(1 for i in inputs if i.split)

    def build(self) -> None:
        """Add the nodes to the default graph."""
        rank = tf.constant(0, tf.int64, name=RANK)
        workers = tf.constant(1, tf.int64, name=WORKERS)
        # With a shared_name its functions could use no device but the iterator's own, not even to look up "CPU:0".
        iterator = raw.IteratorV2(shared_name="", container="", name=ITERATOR, **self._element)
        self._tried = _variable(TRIED, [], tf.int64)
        raw.ReadVariableOp(resource=self._tried, dtype=tf.int64, name=f"{TRIED}/read")
        self._passes(iterator)
        held = _variable("held", [])
        raw.AssignVariableOp(resource=held, value=raw.OptionalNone(), name=CLEAR)
        start = v1.placeholder_with_default(tf.constant(0, tf.int64), [], name=START)
        handle, number = tf.TensorSpec([], tf.resource), tf.TensorSpec([], tf.int64)
        specs = [handle, tf.TensorSpec([], tf.variant), number, number, number, handle]
        take = tf.function(self._take, autograph=False).get_concrete_function(*specs)
        new, counts = take(iterator, _read(held), rank, workers, start, self._tried)
        tf.identity(counts, name=COUNTS)
        kept = _read(held)
        raw.OptionalGetValue(optional=kept, name=ELEMENT, **self._kept_types())
        with tf.control_dependencies([kept]):  # in the run of a step that comes after what the step reads
            raw.AssignVariableOp(resource=held, value=new, name=ADVANCE)
        state = _variable(STATE, None)
        saved = raw.SerializeIterator(resource_handle=iterator, external_state_policy=_IGNORE_STATE)
        raw.AssignVariableOp(resource=state, value=saved, name=SNAPSHOT)
        raw.AssignVariableOp(resource=state, value=raw.OptionalNone(), name=FORGET)
        raw.ReadVariableOp(resource=state, dtype=tf.variant, name=f"{STATE}/read")

    def _passes(self, iterator: Any) -> None:
        (variant,) = tf.import_graph_def(
            self._source.graph.to_graph_def(), return_elements=[f"{self._source.dataset}:0"], name=SOURCE
        )
        dataset_variable = _variable("dataset", [])
        raw.AssignVariableOp(resource=dataset_variable, value=variant, name=BUILD)
        skip = v1.placeholder_with_default(tf.constant(0, tf.int64), [], name=SKIP)
        dataset = tf.data.experimental.from_variant(_read(dataset_variable), self._spec)
        buffer = v1.placeholder_with_default(tf.constant(tf.data.AUTOTUNE, tf.int64), [], name=BUFFER)
        dataset = dataset.skip(skip).enumerate(skip).prefetch(buffer)
        if not self._source.is_tuned:  # the end of an iterator may wait as long as TensorFlow has tuned it
            options = tf.data.Options()
            options.autotune.enabled = False
            dataset = dataset.with_options(options)
        with tf.control_dependencies([raw.AssignVariableOp(resource=self._tried, value=skip)]):
            raw.MakeIterator(dataset=tf.data.experimental.to_variant(dataset), iterator=iterator, name=BEGIN)

    def _kept_types(self) -> dict[str, Any]:
        kept = [self._spec[i.component] for i in self._inputs if i.component is not None]
        shapes = [_open(s.shape) if i.split else s.shape for i, s in zip(self._inputs, kept)]
        return {
            "output_types": [*(s.dtype for s in kept), tf.float64, tf.float64],
            "output_shapes": [*shapes, tf.TensorShape([]), tf.TensorShape([])],
        }

    # -- taking elements ---------------------------------------------------------------------

    def _take(self, iterator: Any, held: Any, rank: Any, workers: Any, start: Any, tried: Any) -> tuple[Any, Any]:
        """The next element from number ``start`` on: the tensors to keep, and the counts."""
        first, index = tf.while_loop(
            lambda _, index: (index >= 0) & (index < start),
            lambda *_: self._next(iterator, tried),
            self._next(iterator, tried),
        )
        none = tf.concat([[tf.constant(-1, tf.int64)], tf.zeros([self._counts - 1], tf.int64)], 0)
        if self._sharding is Sharding.BATCHES:
            mine, is_own = self._rank_th(iterator, tried, first, index, rank, workers)
        else:
            mine, is_own = first, tf.constant(True)
        return tf.cond(  # type: ignore[no-any-return]
            index >= 0, lambda: self._part(mine, index, is_own, rank, workers), lambda: (tf.identity(held), none)
        )

    def _next(self, iterator: Any, tried: Any) -> tuple[Any, Any]:
        """The next element, and its number or -1; whether or not it fails, it counts as tried."""
        with tf.control_dependencies([raw.AssignAddVariableOp(resource=tried, value=tf.constant(1, tf.int64))]):
            optional = raw.IteratorGetNextAsOptional(iterator=iterator, **self._element)
        index = tf.cond(
            raw.OptionalHasValue(optional=optional),
            lambda: raw.OptionalGetValue(optional=optional, **self._element)[0],
            lambda: tf.constant(-1, tf.int64),
        )
        return optional, index

    def _rank_th(self, iterator: Any, tried: Any, first: Any, index: Any, rank: Any, workers: Any) -> tuple[Any, Any]:
        """The element of this worker among this one and the N - 1 that follow; the last one if there are fewer."""

        def body(number: Any, mine: Any, is_own: Any, last: Any) -> tuple[Any, Any, Any, Any]:
            optional, index = self._next(iterator, tried)
            take = (index >= 0) & (number <= rank)
            mine = tf.cond(take, lambda: tf.identity(optional), lambda: tf.identity(mine))
            return number + 1, mine, is_own | (take & tf.equal(number, rank)), index

        _, mine, is_own, _ = tf.while_loop(
            lambda number, mine, is_own, last: (last >= 0) & (number < workers),
            body,
            (tf.constant(1, tf.int64), first, tf.equal(rank, 0), index),
        )
        return mine, is_own

    def _part(self, optional: Any, index: Any, is_own: Any, rank: Any, workers: Any) -> tuple[Any, Any]:
        _, *components = raw.OptionalGetValue(optional=optional, **self._element)
        chosen = [(i, components[i.component]) for i in self._inputs if i.component is not None]
        rows = [tf.shape(tensor, tf.int64)[0] for item, tensor in chosen if item.split]
        weights = [tf.constant(1.0, tf.float64)] * 2
        if not rows:
            kept = [*(t for _, t in chosen), *weights]
            return raw.OptionalFromValue(components=kept), tf.stack([index, tf.constant(0, tf.int64)])
        if self._sharding is Sharding.SLICE:
            size = rows[0] // self._micro_batches
            share = _share(size, rank, workers)
            kept = [self._own_rows(tensor, rank, workers) if item.split else tensor for item, tensor in chosen]
            mean = tf.cast(workers * share, tf.float64) / tf.cast(size, tf.float64)
            weights = [mean, tf.cast(share > 0, tf.float64)]
            share *= self._micro_batches
        else:
            share = tf.where(is_own, rows[0], tf.constant(0, tf.int64))
            kept = [tensor for _, tensor in chosen]
        return raw.OptionalFromValue(components=[*kept, *weights]), tf.stack([index, share, *rows])

    def _own_rows(self, tensor: Any, rank: Any, workers: Any) -> Any:
        """A worker's rows of a batch: those of each micro-batch, one after the other."""
        if self._micro_batches == 1:  # without a copy
            return _rows(tensor, rank, workers)
        shape = tf.shape(tensor, tf.int64)
        size = shape[0] // self._micro_batches
        cut = tf.reshape(tensor[: size * self._micro_batches], tf.concat([[self._micro_batches, size], shape[1:]], 0))
        return tf.reshape(_rows(cut, rank, workers, axis=1), tf.concat([[-1], shape[1:]], 0))


def _share(rows: Any, rank: Any, workers: Any) -> Any:
    """The number of a worker's rows."""
    return rows // workers + tf.cast(rank < rows % workers, tf.int64)


def _rows(tensor: Any, rank: Any, workers: Any, axis: int = 0) -> Any:
    """A worker's rows, along an axis; a worker without rows gets an existing one, to be weighted by 0."""
    available = tf.shape(tensor, tf.int64)[axis]
    size = tf.minimum(tf.maximum(_share(available, rank, workers), 1), available)
    begin = rank * (available // workers) + tf.minimum(rank, available % workers)
    begin = tf.minimum(begin, available - size)
    return tensor[begin : begin + size] if axis == 0 else tensor[:, begin : begin + size]


def _spec(component: Component) -> tf.TensorSpec:
    return tf.TensorSpec(component.shape, tf.as_dtype(component.dtype))


def _open(shape: tf.TensorShape) -> tf.TensorShape:
    """The shape of some of the rows."""
    return shape if not shape.rank else tf.TensorShape([None, *shape.as_list()[1:]])


def _variable(name: str, shape: list[int] | None, dtype: Any = tf.variant) -> Any:
    return raw.VarHandleOp(dtype=dtype, shape=tf.TensorShape(shape), shared_name=name, name=f"{name}/variable")


def _read(handle: Any) -> Any:
    return raw.ReadVariableOp(resource=handle, dtype=tf.variant)
