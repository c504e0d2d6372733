"""A dataset made ready for the workers: no values in its graph, no handles of this process, one seed for all.

What TensorFlow writes for a dataset names resources of the process that wrote it, holds arrays as
constants, and leaves shuffles without a seed to chance. Here the resources become ones of the
worker's own, large constants become variables of the worker, and shuffles without a seed take one
that all workers are fed, so that all see the same batches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, dataset_options_pb2

from caramel.data import shareable_ops
from caramel.data.autotune import is_tuned
from caramel.data.components import Component
from caramel.data.infallible import cannot_fail
from caramel.data.serialise import Serialised
from caramel.errors import listed
from caramel.graph import ops
from caramel.graph.canonical_functions import canonical
from caramel.graph.graph import Graph, NodeDef, copied, node_of
from caramel.graph.nodes import constant, dtype_attribute, node, shape_attribute

SEED = "seed"
"""Name of the placeholder of the seed that all workers share, a positive int64."""

_MAX_CONSTANT_BYTES = 1024
"""Bytes of the largest constant that stays in the graph, as for captured tensors; larger ones travel beside it."""


@dataclass(frozen=True)
class Constant:
    """A large constant of a pipeline, kept in a variable of each worker.

    Attributes:
        node: name of its VarHandleOp in the source's graph.
        dtype: TensorFlow's name of the element type.
        value: array of its elements.
        key: key among the initial values; equal for equal values.
    """

    node: str
    dtype: str
    value: np.ndarray = field(compare=False, repr=False)
    key: str


@dataclass(frozen=True)
class Source:
    """A dataset's graph in the form that can run on any worker.

    Attributes:
        graph: nodes of the dataset.
        dataset: name of the node that is the dataset.
        components: tensors of its elements.
        cardinality: number of elements, or tf.data's INFINITE_CARDINALITY or UNKNOWN_CARDINALITY.
        constants: constants to load into variables before the dataset is made.
        anew: whether every pass makes the dataset anew, as running an iterator's initializer does.
        draws: frequency with which a pass draws seeds for its shuffles: ``"never"``, ``"once"`` or ``"often"``.
        differs: reason for which two workers that run it would see different elements; None if they see the same.
        random: op that draws other numbers on each worker, with the reason; None if there is none.
        resumes: whether an iterator can go on elsewhere from its state alone.
        notes: changes to the user's dataset, one sentence each.
        seed: seed for the shuffles without one; None to leave it to chance.
        holds_copies: whether it has copies of tables or variables, whose originals may change.
        cannot_fail: whether it is known to give all of its elements without an error.
        is_tuned: whether it leaves a number of calls at once, or of elements ahead, to TensorFlow.
    """

    graph: Graph
    dataset: str
    components: tuple[Component, ...]
    cardinality: int
    constants: tuple[Constant, ...]
    anew: bool
    draws: str
    differs: str | None
    random: str | None
    resumes: bool
    notes: tuple[str, ...]
    seed: int | None = None
    holds_copies: bool = False
    cannot_fail: bool = False
    is_tuned: bool = True

    @property
    def digest(self) -> str:
        """SHA-256 of the graph; equal for equal pipelines, whatever their data."""
        return hashlib.sha256(self.graph.to_bytes()).hexdigest()

    @property
    def is_infinite(self) -> bool:
        """Whether it is known to have no end."""
        return bool(self.cardinality == tf.data.INFINITE_CARDINALITY)


def make_source(serialised: Serialised, components: tuple[Component, ...], anew: bool, shared: bool) -> Source:
    """Make a serialised dataset ready for the workers.

    Args:
        serialised: the dataset as TensorFlow wrote it.
        components: tensors of its elements.
        anew: see `Source`.
        shared: whether all workers must see the same elements, so that order must not be left to chance.

    Raises:
        UnsupportedError: an op runs Python or holds something of this process.
    """
    shareable_ops.refuse_foreign(serialised)
    notes = []
    if serialised.seed is not None:
        serialised = replace(serialised, graph=shareable_ops.without_seeds(serialised.graph))
    if shared:
        graph, loose = _made_deterministic(serialised.graph)
        serialised = replace(serialised, graph=graph)
        if loose:
            notes.append(
                f"input: deterministic=False has no effect ({listed(loose, 3)}), because all workers must see the "
                "same batches"
            )
    copies = shareable_ops.copied_resources(serialised.graph)
    variables = [name for name in copies if serialised.graph[name].op == ops.VARIABLE]
    if variables:
        notes.append(
            f"input: each worker has copies of the {len(variables)} variables that the pipeline takes, which begin "
            "with their present values, also after a restore"
        )
    named = _with_plain_names(serialised.graph, copies)
    nodes, constants = _without_values(_with_seed(_with_own_resources(named)), serialised.has_values)
    nodes, library = canonical(nodes, serialised.graph.library)
    random = shareable_ops.random_op(serialised)
    if random is not None:
        notes.append(f"input: {random}, so it draws other numbers on each worker")
    resumes = _resumes(serialised)
    if not resumes:
        notes.append("input: a restore within a pass reads again what was taken of it")
    graph = Graph(nodes, library, serialised.graph.versions)
    return Source(
        graph=graph,
        dataset=serialised.dataset,
        components=components,
        cardinality=serialised.cardinality,
        constants=constants,
        anew=anew,
        draws=shareable_ops.draws(serialised),
        differs=shareable_ops.why_different(serialised),
        random=random,
        resumes=resumes,
        notes=tuple(notes),
        seed=serialised.seed,
        holds_copies=bool(copies),
        cannot_fail=cannot_fail(graph, serialised.dataset),
        is_tuned=is_tuned(graph),
    )


def _resumes(serialised: Serialised) -> bool:
    """Whether an iterator can go on elsewhere from its state alone.

    Random ops begin again with each iterator; but a dataset without end would be too much to read again for them.
    """
    if shareable_ops.reads_csv(serialised) or shareable_ops.draws_late(serialised):
        return False
    return serialised.cardinality == tf.data.INFINITE_CARDINALITY or not shareable_ops.has_seeded_random(serialised)


def _made_deterministic(graph: Graph) -> tuple[Graph, list[str]]:
    """The dataset with its elements in a fixed order, and the names of the ops that let them come in any order."""
    changed = {}
    for original in graph:
        strict = _strict(original)
        if strict:
            changed[original.name] = copied(original)
            _set(changed[original.name], strict)
    loose = list(changed)
    library = type(graph.library)()
    library.CopyFrom(graph.library)
    for function in library.function:
        for inner in function.node_def:
            strict = _strict(inner)
            if strict:
                _set(inner, strict)
                loose.append(inner.name)
    return graph.replaced(changed, library=library), loose


def _strict(current: NodeDef) -> dict[str, attr_value_pb2.AttrValue]:
    """New values of the attributes that must change for a dataset op to give its elements in order."""
    changes = {}
    if "deterministic" in current.attr and current.attr["deterministic"].s == b"false":
        changes["deterministic"] = attr_value_pb2.AttrValue(s=b"true")
    if "sloppy" in current.attr and current.attr["sloppy"].b:
        changes["sloppy"] = attr_value_pb2.AttrValue(b=False)
    if current.op == "OptionsDataset":
        options = dataset_options_pb2.Options.FromString(current.attr["serialized_options"].s)
        if options.WhichOneof("optional_deterministic") and not options.deterministic:
            options.deterministic = True
            written = options.SerializeToString(deterministic=True)
            changes["serialized_options"] = attr_value_pb2.AttrValue(s=written)
    return changes


def _set(target: NodeDef, attributes: Mapping[str, attr_value_pb2.AttrValue]) -> None:
    for name, value in attributes.items():
        target.attr[name].CopyFrom(value)


def _with_plain_names(graph: Graph, copies: Iterable[str]) -> list[NodeDef]:
    """The nodes with numbers in the names of copied resources, where TensorFlow writes random ones."""
    names = {name: f"resource_{number}" for number, name in enumerate(copies)}
    nodes = []
    for original in graph:
        node_def = copied(original)
        node_def.name = names.get(original.name, original.name)
        for position, text in enumerate(original.input):
            if node_of(text) in names:
                new = names[node_of(text)]
                node_def.input[position] = f"^{new}" if text.startswith("^") else new
        if original.name in names:
            node_def.attr["shared_name"].s = node_def.name.encode()
        nodes.append(node_def)
    return nodes


def _with_own_resources(nodes: Iterable[NodeDef]) -> list[NodeDef]:
    """Replace handles of this process by ops that make a resource of the worker's own."""
    all_nodes = list(nodes)
    makers = shareable_ops.resource_makers(all_nodes)
    return [node(n.name, makers[n.name]) if n.name in makers else n for n in all_nodes]


def _with_seed(nodes: list[NodeDef]) -> list[NodeDef]:
    """Give ops that shuffle, or draw, without a seed the common seed, and their own number as the second seed."""
    graph = Graph(nodes)
    seeded_nodes = [node(SEED, "Placeholder", dtype=dtype_attribute("int64"), shape=shape_attribute(()))]
    number = 0
    for current in nodes:
        positions = shareable_ops.unset_seeds(graph, current)
        if positions is not None:
            number += 1
            second = constant(f"{SEED}_{number}", number, "int64", "")
            seeded_nodes.append(second)
            copy = copied(current)
            copy.input[positions[0]], copy.input[positions[1]] = SEED, second.name
            current = copy
        seeded_nodes.append(current)
    used = {node_of(text) for n in seeded_nodes for text in n.input}
    return [n for n in seeded_nodes if n.op != "Const" or n.name in used]


def _without_values(nodes: Iterable[NodeDef], are_data: bool = False) -> tuple[list[NodeDef], tuple[Constant, ...]]:
    """Replace large constants by reads of variables.

    Args:
        nodes: nodes of a dataset.
        are_data: whether all constants with dimensions are data; then these are replaced, whatever their size.
    """
    new_nodes: list[NodeDef] = []
    constants: list[Constant] = []
    for current in nodes:
        tensor = current.attr["value"].tensor if current.op == "Const" else None
        # A variant (of sparse and ragged tensors) is nothing that an array can hold.
        if tensor is None or tensor.dtype == ops.DT_VARIANT:
            new_nodes.append(current)
            continue
        if tensor.ByteSize() <= _MAX_CONSTANT_BYTES and not (are_data and tensor.tensor_shape.dim):
            new_nodes.append(current)
            continue
        value = _array(tensor)
        dtype = ops.dtype_name(tensor.dtype)
        handle = f"{current.name}/variable"
        shape = attr_value_pb2.AttrValue(shape=tensor.tensor_shape)
        kind = dtype_attribute(dtype)
        new_nodes.append(
            node(handle, ops.VARIABLE, dtype=kind, shape=shape, container=b"", shared_name=handle.encode())
        )
        new_nodes.append(node(current.name, "ReadVariableOp", [handle], dtype=kind))
        constants.append(Constant(handle, dtype, value, f"caramel/input/{_content(tensor)}"))
    return new_nodes, tuple(constants)


def _array(tensor: tf.compat.v1.TensorProto) -> np.ndarray:
    """The value; TensorFlow packs strings in a way that its own `make_ndarray` does not read."""
    if tensor.dtype != tf.string.as_datatype_enum:
        return np.asarray(tf.make_ndarray(tensor))
    with tf.Graph().as_default():
        parsed = tf.io.parse_tensor(tensor.SerializeToString(), tf.string)
        with tf.compat.v1.Session() as session:
            return np.asarray(session.run(parsed))


def _content(tensor: tf.compat.v1.TensorProto) -> str:
    return hashlib.sha256(tensor.SerializeToString(deterministic=True)).hexdigest()[:16]
