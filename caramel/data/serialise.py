"""A dataset as a graph: TensorFlow's own serialisation, of a dataset made eagerly or in a tf.Graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import tensorflow as tf

from caramel.data.components import Component
from caramel.errors import CaptureError, UnsupportedError, in_one_line
from caramel.graph import ops
from caramel.graph.functions import Library
from caramel.graph.graph import Graph, NodeDef, node_of, tensor_name

v1 = tf.compat.v1

SEED_ATTRIBUTE = "_caramel_seed"
"""Attribute of a dataset with the seed for its shuffles: datasets that only differ in that have the same graph."""

VALUES_ATTRIBUTE = "_caramel_values"
"""Attribute of a dataset all of whose constants with dimensions are data: those with other data have the same graph."""

_IGNORE_STATE = 1
"""tf.data's policy of ignoring ops with state; `caramel.data.source` checks them, and names them in errors."""


@dataclass(frozen=True)
class Serialised:
    """A dataset's graph as TensorFlow writes it.

    Attributes:
        graph: nodes of the dataset.
        dataset: name of the node that is the dataset.
        cardinality: number of elements, or one of tf.data's INFINITE_CARDINALITY and UNKNOWN_CARDINALITY.
        components: tensors of its elements; empty where all workers' datasets have the same.
        seed: seed for the shuffles without one, which the graph is without; None to leave it to chance.
        has_values: whether all of its constants with dimensions are data, the small ones, too.
    """

    graph: Graph
    dataset: str
    cardinality: int
    components: tuple[Component, ...] = ()
    seed: int | None = None
    has_values: bool = False

    @cached_property
    def library(self) -> Library:
        """The functions that the nodes call."""
        return Library(self.graph)


def serialise(dataset: Any) -> Serialised:
    """The graph of a tf.data.Dataset.

    Raises:
        UnsupportedError: the dataset cannot be written as a graph.
        CaptureError: making it fails.
    """
    variant = tf.data.experimental.to_variant(dataset)
    if isinstance(variant, tf.__internal__.EagerTensor):
        with tf.init_scope(), _explaining():
            cardinality = tf.raw_ops.DatasetCardinality(input_dataset=variant).numpy()
            serialised = _parsed(_graph_of(variant).numpy(), cardinality)
            values, seed = getattr(dataset, VALUES_ATTRIBUTE, False), getattr(dataset, SEED_ATTRIBUTE, None)
            return replace(serialised, seed=seed, has_values=values)
    nodes = Graph.from_graph_def(variant.graph.as_graph_def())
    return serialise_nodes(nodes, variant.name)


def serialise_nodes(graph: Graph, dataset: str, anew: bool = False) -> Serialised:
    """The graph of a dataset that nodes of a tf.Graph make.

    Args:
        graph: the nodes.
        dataset: the tensor that is the dataset.
        anew: whether it is made anew for every pass, so that nothing in it may differ from one time to the next.

    Raises:
        UnsupportedError: it depends on something that is only known when the program runs.
        CaptureError: making it fails.
    """
    nodes = graph.pruned([node_of(dataset)])
    for node in nodes:
        _refuse_unknown(node)
        if anew and ops.is_seeded_random(node):
            raise UnsupportedError(
                f"the dataset depends on {node.name!r} ({node.op}), which draws other numbers whenever its iterator is "
                "initialized: draw them in a function of the dataset (dataset.map), or make them constants"
            )
    return _evaluated(nodes, dataset)


def serialise_function(graph: Graph, function: str) -> Serialised:
    """The graph of the dataset that a library function returns (a one-shot iterator's factory)."""
    call = v1.NodeDef(name="dataset", op="PartitionedCall")
    call.attr["f"].func.name = function
    call.attr["Tin"].list.SetInParent()
    call.attr["Tout"].list.type.append(ops.DT_VARIANT)
    return _evaluated(Graph([call], graph.library, graph.versions), "dataset")


def _refuse_unknown(node: NodeDef) -> None:
    if node.op in ops.PLACEHOLDERS:
        raise UnsupportedError(
            f"the dataset depends on placeholder {node.name!r}, whose value is not known: build the dataset from the "
            "arrays or file names themselves"
        )
    if node.op == ops.VARIABLE or ops.is_reference_op(node):
        raise UnsupportedError(
            f"the dataset depends on variable {node.name!r}, whose value is not known: build it from numbers"
        )


def _evaluated(nodes: Graph, dataset: str) -> Serialised:
    with tf.Graph().as_default() as graph, _explaining():
        (variant,) = tf.import_graph_def(nodes.to_graph_def(), return_elements=[tensor_name(dataset)], name="")
        fetches = [_graph_of(variant), tf.raw_ops.DatasetCardinality(input_dataset=variant)]
        with v1.Session(graph=graph, config=v1.ConfigProto(allow_soft_placement=True)) as session:
            return _parsed(*session.run(fetches))


def _graph_of(variant: Any) -> Any:
    return tf.raw_ops.DatasetToGraphV2(
        input_dataset=variant, external_state_policy=_IGNORE_STATE, strip_device_assignment=True
    )


def _parsed(data: bytes, cardinality: Any) -> Serialised:
    graph_def = v1.GraphDef.FromString(data)
    (return_node,) = [n for n in graph_def.node if n.op == "_Retval"]  # TensorFlow's way to name the dataset
    nodes = (n for n in graph_def.node if n.op != "_Retval")
    return Serialised(
        Graph(nodes, graph_def.library, graph_def.versions), node_of(return_node.input[0]), int(cardinality)
    )


@contextmanager
def _explaining() -> Iterator[None]:
    """Turn TensorFlow's errors into ours."""
    try:
        yield
    except (tf.errors.UnimplementedError, tf.errors.FailedPreconditionError) as error:
        raise UnsupportedError(
            f"the dataset cannot be sent to the workers: {in_one_line(error)}. Feed its batches as arrays instead "
            "(Session.run(batches))"
        ) from error
    except tf.errors.OpError as error:
        raise CaptureError(
            f"the dataset cannot be written as a graph: {in_one_line(error)}. (Arrays of more than 2 GB in one "
            "dataset are too much for a graph: read them from files)"
        ) from error
