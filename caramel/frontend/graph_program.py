"""Capture of TF1-style graph code: a tf.Graph with placeholders, variables and a training op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from caramel.errors import CaptureError, UnsupportedError, listed
from caramel.frontend.inference import infer_differentiation
from caramel.frontend.raw import RawGradient, RawProgram, RawVariable
from caramel.frontend.recorder import Recorder
from caramel.graph import ops
from caramel.graph.graph import Graph
from caramel.model import Input

v1 = tf.compat.v1


@dataclass(frozen=True)
class GraphInitializers:
    """Initial values made by the program's own initialisers, in a local session."""

    graph: Any
    variables: tuple[tuple[str, str, str], ...]
    """(name, initialiser op, tensor that reads the value)"""

    def load(self) -> Mapping[str, np.ndarray]:
        """Run the initialisers once, as `global_variables_initializer` would.

        Raises:
            CaptureError: an initialiser fails.
        """
        config = v1.ConfigProto(allow_soft_placement=True)
        try:
            with v1.Session(graph=self.graph, config=config) as session:
                session.run([op for _, op, _ in self.variables])
                values = session.run([tensor for _, _, tensor in self.variables])
        except tf.errors.OpError as error:
            raise CaptureError(f"an initialiser of the program failed: {error.message}") from error
        return {name: value for (name, _, _), value in zip(self.variables, values)}


def capture_graph(
    graph: Any,
    recorder: Recorder | None,
    *,
    loss: Any,
    train_op: Any,
    loss_reduction: str | None,
    replicated: Sequence[Any],
) -> RawProgram:
    """Read the roles of a tf.Graph.

    Args:
        graph: the tf.Graph.
        recorder: what was seen while it was built; None for a finished graph.
        loss: tensor or name to report; None to take the tensor that was differentiated.
        train_op: operation or name; None to take the one that an optimizer registered.
        loss_reduction: "mean", "sum" or None to find out.
        replicated: placeholders (or names) that every worker gets whole.

    Raises:
        CaptureError: a role is missing or ambiguous.
    """
    objects = _variables(graph)
    variables = tuple(_raw_variable(v, graph) for v in objects)
    target = _train_op(graph, train_op)
    nodes = Graph.from_graph_def(graph.as_graph_def(add_shapes=True))
    if recorder is None:
        inferred = infer_differentiation(graph, nodes, {v.node: v for v in variables}, target)
        gradients, differentiated = inferred
    else:
        gradients = tuple(_raw_gradient(g.variable, g.tensor, g.call, g.location) for g in recorder.of_graph(graph))
        differentiated = tuple((t.name, call) for t, call in recorder.targets_of(graph))
    return RawProgram(
        graph=nodes,
        variables=variables,
        gradients=gradients,
        differentiated=differentiated,
        inputs=_inputs(graph, replicated),
        loss=None if loss is None else _tensor_name(graph, loss, "loss"),
        outputs=(),
        targets=(target,),
        values=GraphInitializers(
            graph, tuple((r.name, v.initializer.name, _read_tensor(v)) for r, v in zip(variables, objects))
        ),
        reduction=loss_reduction,
        is_graph=True,
        notes=_unreached_updates(graph, nodes, target),
    )


def _variables(graph: Any) -> list[Any]:
    keys = v1.GraphKeys
    found: dict[str, Any] = {}
    for key in (keys.GLOBAL_VARIABLES, keys.TRAINABLE_VARIABLES, keys.MODEL_VARIABLES, keys.LOCAL_VARIABLES):
        for variable in graph.get_collection(key):
            if getattr(variable, "_save_slice_info", None) is not None:
                raise UnsupportedError(
                    f"variable {variable.op.name!r} is one part of a partitioned variable, which cannot be replicated "
                    "yet. Create it without a partitioner"
                )
            found.setdefault(variable.op.name, variable)
    return list(found.values())


def _raw_variable(variable: Any, graph: Any) -> RawVariable:
    keys = v1.GraphKeys
    if variable.op.type != ops.VARIABLE:
        raise UnsupportedError(
            f"variable {variable.op.name!r} is a reference variable of TensorFlow 1, which cannot be replicated yet. "
            "Call tf.compat.v1.enable_resource_variables() before building the graph"
        )
    shape = tuple(variable.shape.as_list()) if variable.shape.rank is not None else None
    if shape is None or None in shape:
        raise UnsupportedError(
            f"variable {variable.op.name!r} has no static shape; create it with a shape (validate_shape=True)"
        )
    return RawVariable(
        name=variable.op.name,
        node=variable.op.name,
        dtype=variable.dtype.base_dtype.name,
        shape=shape,
        trainable=any(variable is v for v in graph.get_collection(keys.TRAINABLE_VARIABLES)),
        saved=any(variable is v for v in graph.get_collection(keys.GLOBAL_VARIABLES)),
    )


def _read_tensor(variable: Any) -> str:
    with variable.graph.as_default():  # to_proto refuses to run eagerly
        return str(variable.to_proto().snapshot_name)


def _raw_gradient(variable: Any, tensor: Any, call: int, location: str) -> RawGradient:
    sparse = isinstance(tensor, tf.IndexedSlices)
    name = tensor.values.name if sparse else tensor.name
    return RawGradient(variable.handle.op.name, name, (), call, sparse, location)


def _train_op(graph: Any, train_op: Any) -> str:
    if train_op is not None:
        try:
            element = graph.as_graph_element(train_op, allow_tensor=True, allow_operation=True)
        except (KeyError, ValueError, TypeError) as error:
            raise CaptureError(f"train_op {train_op!r} is not in the captured graph: {error}") from error
        return element.op.name if hasattr(element, "op") else element.name
    registered = graph.get_collection(v1.GraphKeys.TRAIN_OP)
    for op in registered:
        if op.graph is not graph:
            raise CaptureError(
                f"training op {_operation_name(op)!r} is inside a branch or function of the graph: "
                "pass the op of the graph that is one step as train_op="
            )
    found = list(dict.fromkeys(_operation_name(op) for op in registered))
    if not found:
        raise CaptureError(
            "no training op was found: no optimizer applied gradients in the captured code. Call "
            "optimizer.minimize (or apply_gradients), or pass the op that does the update as train_op="
        )
    if len(found) > 1:
        raise CaptureError(
            f"{'two' if len(found) == 2 else len(found)} training ops were found ({', '.join(found)}): "
            "say with train_op= which one is the step"
        )
    _refuse_later_updates(graph.get_operation_by_name(found[0]))
    return found[0]


def _refuse_later_updates(train_op: Any) -> None:
    """What is made to run after the training op and writes variables may well be the real step."""
    seen, waiting = {train_op.name}, [train_op]
    while waiting:
        current = waiting.pop()
        readers = {r for output in current.outputs for r in output.consumers()} | set(current._control_outputs)
        for reader in sorted(readers, key=lambda op: op.name):
            if ops.is_variable_write(reader.node_def):
                raise CaptureError(
                    f"op {reader.name!r} runs after the training op {train_op.name!r} and writes a variable (an "
                    "average of the weights, for one): say with train_op= which op is the step"
                )
            if reader.name not in seen:
                seen.add(reader.name)
                waiting.append(reader)


def _operation_name(element: Any) -> str:
    return element.op.name if isinstance(element, (tf.Tensor, tf.Variable)) else element.name


def _tensor_name(graph: Any, tensor: Any, what: str) -> str:
    try:
        element = graph.as_graph_element(tensor, allow_tensor=True, allow_operation=True)
    except (KeyError, ValueError, TypeError) as error:
        raise CaptureError(f"{what} {tensor!r} is not in the captured graph: {error}") from error
    if isinstance(element, tf.Operation):
        return element.outputs[0].name
    return element.name


def _inputs(graph: Any, replicated: Sequence[Any]) -> tuple[Input, ...]:
    whole = {_tensor_name(graph, item, "replicated input") for item in replicated}
    found = []
    for op in graph.get_operations():
        if op.type not in ops.PLACEHOLDERS:
            continue
        tensor = op.outputs[0]
        shape = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
        found.append(
            Input(
                name=op.name,
                node=op.name,
                dtype=tensor.dtype.name,
                shape=shape,
                split=shape != () and tensor.name not in whole,
                optional=op.type == "PlaceholderWithDefault",
            )
        )
    return tuple(found)


def _unreached_updates(graph: Any, nodes: Graph, target: str) -> tuple[str, ...]:
    """Say which registered updates the training op does not run, as on one device."""
    reached = nodes.ancestors([target])
    names = [_operation_name(op) for op in graph.get_collection(v1.GraphKeys.UPDATE_OPS)]
    left = sorted(name for name in names if name not in reached)
    if not left:
        return ()
    return (
        f"the UPDATE_OPS {listed(left, 3)} are not part of the training op, so a step does not "
        "run them (as on one device); add them with tf.control_dependencies if they should run",
    )
