"""Programs in files: a GraphDef or MetaGraphDef becomes a tf.Graph, with the variables that are in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from google.protobuf.message import DecodeError
from tensorflow.core.framework import variable_pb2
from tensorflow.python.ops import resource_variable_ops

from caramel.errors import CaptureError, CheckpointError, InputError, in_one_line, listed
from caramel.frontend.captured import RawVariable
from caramel.graph import ops
from caramel.graph.graph import Graph, NodeDef, node_of, tensor_name
from caramel.util.text_files import path_text

v1 = tf.compat.v1

_FLOATING_PREFIXES = ("float", "bfloat", "complex")
"""Beginnings of the names of the dtypes that a trainable variable may have."""


@dataclass(frozen=True)
class GivenValues:
    """Initial values that the caller has given.

    Attributes:
        values: arrays by variable name, or the prefix of a checkpoint that has them.
        variables: the program's variables.
    """

    values: Mapping[str, np.ndarray] | str | os.PathLike[str]
    variables: tuple[RawVariable, ...]

    def load(self) -> Mapping[str, np.ndarray]:
        """The initial values by variable name.

        Raises:
            CheckpointError: the checkpoint cannot be read, or lacks a variable.
            InputError: the values lack a variable.
        """
        if isinstance(self.values, Mapping):
            missing = [v.name for v in self.variables if v.name not in self.values]
            if missing:
                raise InputError(f"values= has no value for the variables {listed(missing)}")
            return {v.name: np.asarray(self.values[v.name]) for v in self.variables}
        prefix = os.fspath(self.values)
        try:
            reader = tf.train.load_checkpoint(prefix)
        except (tf.errors.OpError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"values= names no checkpoint, {prefix!r}: {in_one_line(error)}") from error
        keys = {v.name: v.name if v.part is None else v.part.name for v in self.variables}
        missing = [key for key in dict.fromkeys(keys.values()) if not reader.has_tensor(key)]
        if missing:
            raise CheckpointError(f"checkpoint {prefix!r} has no value for the variables {listed(missing)}")
        arrays = {key: reader.get_tensor(key) for key in keys.values()}
        return {v.name: arrays[keys[v.name]][() if v.part is None else v.part.slices(v.shape)] for v in self.variables}


def is_graph_proto(program: Any) -> bool:
    """Whether a program is a GraphDef or a MetaGraphDef, as a graph's file contains it."""
    return isinstance(program, (v1.GraphDef, v1.MetaGraphDef))


def read_file(path: str | os.PathLike[str]) -> Any:
    """The GraphDef or MetaGraphDef of a file, binary or text.

    Raises:
        InputError: there is no such file, or no graph in it.
    """
    name = path_text(path, "a program", InputError)
    return _parsed(Path(name), f"file {name!r}")


def graph_from(program: Any, *, loss: Any, train_op: Any, needs_initializers: bool) -> Any:
    """The tf.Graph of a file, with collections of its variables.

    Args:
        program: a GraphDef or a MetaGraphDef.
        loss: name of the loss, needed where the graph has no collections: a GraphDef does not name it.
        train_op: name of the training op, needed likewise.
        needs_initializers: whether every variable must have an initialiser, because no values are given.

    Raises:
        CaptureError: TensorFlow cannot import the program, or the program lacks a needed name or initialiser.
    """
    what = f"the given {type(program).__name__}"
    graph = tf.Graph()
    try:
        with graph.as_default():
            if isinstance(program, v1.MetaGraphDef):
                v1.train.import_meta_graph(program)
            else:
                tf.import_graph_def(program, name="")
    except (ValueError, KeyError, TypeError, tf.errors.OpError) as error:
        raise CaptureError(f"{what} cannot be imported: {in_one_line(error)}") from error
    if not graph.get_collection(v1.GraphKeys.GLOBAL_VARIABLES):
        for name, role in (("train_op", train_op), ("loss", loss)):
            if role is None:
                raise CaptureError(f"{what} has no collections, so it does not say what trains: name its {name}=")
        _collect_variables(graph, loss, train_op, needs_initializers, what)
    return graph


def _parsed(path: Path, what: str) -> Any:
    if path.is_dir():
        raise InputError(
            f"{what} is a directory: a SavedModel is for inference. Write the training graph with "
            "tf.compat.v1.train.export_meta_graph"
        )
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{what} cannot be read: {error.strerror}") from error
    for kind, parse in _readings(content):
        message = kind()
        try:
            parse(message)
        except (DecodeError, text_format.ParseError, UnicodeDecodeError):
            continue
        if _is_graph(message if kind is v1.GraphDef else message.graph_def):
            return message
    raise InputError(
        f"{what} has neither a GraphDef nor a MetaGraphDef in it, binary or as text, that TensorFlow knows"
    )


def _readings(content: bytes) -> list[tuple[Any, Callable[[Any], Any]]]:
    binary = [(kind, lambda message: message.ParseFromString(content)) for kind in (v1.GraphDef, v1.MetaGraphDef)]
    text = [
        (kind, lambda message: text_format.Parse(content.decode(), message)) for kind in (v1.MetaGraphDef, v1.GraphDef)
    ]
    return [*binary, *text]


def _is_graph(graph_def: Any) -> bool:
    """Whether all ops of a parsed message are known: bytes of another kind of message may parse, too."""
    functions = {f.signature.name for f in graph_def.library.function}
    return bool(graph_def.node) and all(ops.is_known(n.op) or n.op in functions for n in graph_def.node)


def _collect_variables(graph: Any, loss: Any, train_op: Any, needs_initializers: bool, what: str) -> None:
    """Put variables into the collections: trainable is what the loss depends on and a step writes."""
    nodes = Graph.from_graph_def(graph.as_graph_def())
    for name, role in (("train_op", train_op), ("loss", loss)):
        if node_of(str(role)) not in nodes:
            raise CaptureError(f"{what} has no op {node_of(str(role))!r}, which {name}= names")
    before_loss = nodes.ancestors([node_of(str(loss))], control=False)
    step = nodes.ancestors([node_of(str(train_op))])
    for node in list(nodes):
        if node.op == ops.VARIABLE or node.op in ops.REFERENCE_VARIABLES:
            writers = [r for r, p in nodes.consumers[node.name] if p == 0 and nodes[r].op.startswith("Assign")]
            initializers = [w for w in writers if w not in step]
            initializer = next((w for w in initializers if w == f"{node.name}/Assign"), next(iter(initializers), None))
            if initializer is None and needs_initializers:
                raise CaptureError(
                    f"variable {node.name!r} of {what} has no initializer there: give values=, a checkpoint or a dict"
                )
            written = any(r in step and not _only_reads(nodes[r]) for r, _ in nodes.consumers[node.name])
            dtype = ops.dtype_name(node.attr["dtype"].type)
            trainable = node.name in before_loss and written and dtype.startswith(_FLOATING_PREFIXES)
            _collect(graph, node, initializer, trainable)


def _only_reads(node: NodeDef) -> bool:
    return node.op in ops.READS or node.op in ("Identity", "Switch")


def _collect(graph: Any, node: NodeDef, initializer: str | None, trainable: bool) -> None:
    is_resource = node.op == ops.VARIABLE
    with graph.as_default():
        if initializer is None:
            initializer = v1.no_op(name=f"{node.name}/no_initializer").name
        if is_resource:
            handle = graph.get_tensor_by_name(tensor_name(node.name))
            dtype = tf.as_dtype(node.attr["dtype"].type)
            value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype, name=f"{node.name}/value")
            value.set_shape(tf.TensorShape(node.attr["shape"].shape))
        else:
            value = tf.identity(graph.get_tensor_by_name(tensor_name(node.name)), name=f"{node.name}/value")
        proto = variable_pb2.VariableDef(
            variable_name=tensor_name(node.name),
            initializer_name=initializer,
            initial_value_name=value.name,
            snapshot_name=value.name,
            is_resource=is_resource,
            trainable=trainable,
        )
        kind = resource_variable_ops.ResourceVariable if is_resource else v1.Variable
        variable = kind.from_proto(proto)
        graph.add_to_collection(v1.GraphKeys.GLOBAL_VARIABLES, variable)
        if trainable:
            graph.add_to_collection(v1.GraphKeys.TRAINABLE_VARIABLES, variable)
