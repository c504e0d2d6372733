"""What TensorFlow tunes of a dataset while it runs: numbers of calls at once, and of elements ahead, left open."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.core.framework import dataset_options_pb2

from caramel.graph.graph import Graph, NodeDef

_COUNTS = ("RepeatDataset", "TakeDataset")
"""Datasets for which -1 is no number that is left open: all elements, or without end."""


def is_tuned(graph: Graph) -> bool:
    """Whether a dataset leaves a number to TensorFlow, or says how its numbers are to be tuned.

    Args:
        graph: nodes of the dataset, with the library of its functions, in which there may be others.
    """
    bodies = [list(graph), *(list(function.node_def) for function in graph.library.function)]
    return any(_leaves_one_open(nodes) for nodes in bodies)


def _leaves_one_open(nodes: list[NodeDef]) -> bool:
    left_open = {node.name for node in nodes if _is_minus_one(node)}
    return any(
        (node.op.endswith(("Dataset", "DatasetV2", "DatasetV3", "DatasetV4")) and node.op not in _COUNTS)
        and (_says_how(node) or any(text.split(":")[0] in left_open for text in node.input))
        for node in nodes
    )


def _is_minus_one(node: NodeDef) -> bool:
    if node.op != "Const" or node.attr["dtype"].type != tf.int64.as_datatype_enum:
        return False
    tensor = node.attr["value"].tensor
    return not tensor.tensor_shape.dim and int(tf.make_ndarray(tensor)) == tf.data.AUTOTUNE


def _says_how(node: NodeDef) -> bool:
    if node.op != "OptionsDataset":
        return False
    options = dataset_options_pb2.Options.FromString(node.attr["serialized_options"].s)
    return bool(options.autotune_options.ListFields())
