"""Capture of TF1-style graph code: a tf.Graph with placeholders, variables and a training op."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from caramel.errors import CaptureError, UnsupportedError, listed
from caramel.frontend.captured import RawGradient, RawProgram, RawVariable
from caramel.frontend.programs.files import GivenValues
from caramel.frontend.programs.gradient_inference import differentiation_scopes, infer_differentiation, readers_outside
from caramel.frontend.programs.handles import direct_handles
from caramel.frontend.programs.iterators import given_iterator, iterator_inputs, iterator_of, with_placeholders
from caramel.frontend.recording.recorded_gradients import Differentiation, read_differentiation
from caramel.frontend.recording.recorder import Recorder
from caramel.frontend.recording.total_marks import taken_out
from caramel.frontend.rewrites.inline import inline
from caramel.frontend.rewrites.references import replace_references
from caramel.frontend.roles.refusals import refuse_functions_as_ops, refuse_initializer_effects
from caramel.frontend.roles.summed_graph import with_loop_results_apart
from caramel.graph import ops
from caramel.graph.functions import Library
from caramel.graph.graph import Graph, node_of
from caramel.graph.nodes import group
from caramel.model import Input, VariablePart

v1 = tf.compat.v1


@dataclass(frozen=True)
class GraphInitializers:
    """Initial values that the program's own initialisers compute, in a local session.

    Attributes:
        graph: the tf.Graph.
        variables: triples of variable name, initialiser op, and tensor that reads the value.
    """

    graph: Any
    variables: tuple[tuple[str, str, str], ...]

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
    gradients: Mapping[str, Any] | None = None,
    values: Any = None,
    is_file: bool = False,
) -> RawProgram:
    """Read the roles of a tf.Graph.

    Args:
        graph: the tf.Graph.
        recorder: record of the differentiations while the graph was built; None for a finished graph.
        loss: tensor or name to report as the loss; None to take the differentiated tensor.
        train_op: operation or name, or a list of several that are one step; None to take the one that an optimizer
            registered.
        loss_reduction: ``"mean"`` or ``"sum"``; None to conclude it from the graph.
        replicated: placeholders (or names) that every worker gets whole.
        gradients: gradient tensor, or (values, rows) of a sparse gradient, by parameter name; None to find the
            gradients in the graph.
        values: initial values by variable name, or a checkpoint with them; None to run the initialisers.
        is_file: whether the graph is from a file, whose initialisers may be anybody's.

    Raises:
        CaptureError: a role is missing or ambiguous.
        UnsupportedError: an initialiser of a file touches files or Python.
    """
    objects = _variables(graph)
    variables = tuple(_raw_variable(v, graph) for v in objects)
    initializers = GraphInitializers(
        graph, tuple((r.name, v.initializer.name, _read_tensor(v)) for r, v in zip(variables, objects))
    )
    if is_file and values is None:
        _refuse_effects(initializers)
    nodes, fetched = nodes_of(graph, [] if loss is None else [_tensor_name(graph, loss, "loss")])
    nodes, target = _with_train_op(graph, nodes, train_op)
    refuse_functions_as_ops(nodes.pruned([target]), Library(nodes))
    if gradients is not None:
        named = _named_gradients(graph, nodes, variables, gradients, target)
        differentiation = Differentiation(named, tuple((tensor, 1) for tensor in fetched))
    elif recorder is None:
        inferred = infer_differentiation(graph, nodes, {v.node: v for v in variables}, target)
        differentiation = Differentiation(*inferred)
    else:
        handles = {v.node for v in variables}
        differentiation = read_differentiation(nodes, recorder, lambda v: _handle_of(v, handles))
    nodes, entries = taken_out(nodes)
    reported = next(iter(fetched), None)
    iterator = iterator_of(nodes, [target] if reported is None else [target, node_of(reported)])
    whole = {_tensor_name(graph, tensor, "replicated input") for tensor in replicated}
    inputs = _inputs(graph, whole)
    if iterator is not None:
        inputs += iterator_inputs(nodes, iterator, whole)
    program = RawProgram(
        graph=with_placeholders(nodes, iterator),
        variables=variables,
        gradients=differentiation.gradients,
        differentiated=differentiation.differentiated,
        seeds=differentiation.seeds,
        inputs=inputs,
        loss=reported,
        outputs=(),
        targets=(target,),
        values=initializers if values is None else GivenValues(values, variables),
        reduction=loss_reduction,
        is_graph=True,
        notes=_unreached_updates(graph, nodes, target),
        loop_gradient_numbers=differentiation.loop_gradient_numbers,
        given=None if iterator is None else given_iterator(nodes, iterator),
        iterator=iterator,
        entries=entries,
        single_examples="" if recorder is None else next(iter(recorder.single_examples), ""),
        out_of_reach=() if recorder is None else tuple(recorder.out_of_reach),
    )
    return with_loop_results_apart(program)


def _refuse_effects(initializers: GraphInitializers) -> None:
    """Refuse initialisers that do more than compute values."""
    nodes = Graph.from_graph_def(initializers.graph.as_graph_def())
    names = [node_of(name) for _, op, tensor in initializers.variables for name in (op, tensor)]
    refuse_initializer_effects(nodes, Library(nodes), list(dict.fromkeys(names)))


def _named_gradients(
    graph: Any, nodes: Graph, variables: Sequence[RawVariable], gradients: Mapping[str, Any], train_op: str
) -> tuple[RawGradient, ...]:
    """The gradients that the caller has named."""
    by_name = {v.name: v for v in variables}
    step = nodes.ancestors([train_op])
    scopes = differentiation_scopes(graph)
    raw_gradients = []
    for name, gradient in gradients.items():
        if name not in by_name:
            raise CaptureError(f"gradients= names {name!r}, which is no variable; there are {listed(list(by_name))}")
        tensors = gradient if isinstance(gradient, (tuple, list)) else (gradient,)
        if len(tensors) not in (1, 2):
            raise CaptureError(f"the gradient of {name!r} must be a tensor, or (values, rows), got {gradient!r}")
        checked = [_tensor_name(graph, t, f"the gradient of {name!r}") for t in tensors]
        if node_of(checked[0]) not in step:
            raise CaptureError(f"the gradient of {name!r}, {checked[0]!r}, is not used by the training op {train_op!r}")
        indices = checked[1] if len(checked) == 2 else None
        readers = readers_outside(nodes, checked, scopes)
        raw_gradients.append(RawGradient(by_name[name].node, checked[0], readers, 1, "gradients=", indices))
    if not raw_gradients:
        raise CaptureError("gradients= is empty: name the gradient of every parameter, or leave it out")
    return tuple(raw_gradients)


def nodes_of(graph: Any, fetches: Sequence[str] = ()) -> tuple[Graph, tuple[str, ...]]:
    """A graph's nodes, with no variables but resources and no calls that can be inlined.

    Args:
        graph: the tf.Graph.
        fetches: names of tensors of the graph.

    Returns:
        The nodes, with ``_output_shapes`` attributes, and for each fetch the name of the tensor that has its value.
    """
    nodes, values = replace_references(Graph.from_graph_def(graph.as_graph_def(add_shapes=True)), fetches)
    flat = inline(direct_handles(nodes))
    return flat.graph, tuple(flat.tensor(value) for value in values)


def _variables(graph: Any) -> list[Any]:
    keys = v1.GraphKeys
    by_name: dict[str, Any] = {}
    for key in (keys.GLOBAL_VARIABLES, keys.TRAINABLE_VARIABLES, keys.MODEL_VARIABLES, keys.LOCAL_VARIABLES):
        for variable in graph.get_collection(key):
            by_name.setdefault(variable.op.name, variable)
    return list(by_name.values())


def _raw_variable(variable: Any, graph: Any) -> RawVariable:
    keys = v1.GraphKeys
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
        part=_part(variable),
    )


def _part(variable: Any) -> VariablePart | None:
    """The place of a variable in the one that a partitioner has cut."""
    info = getattr(variable, "_save_slice_info", None)
    if info is None:
        return None
    return VariablePart(info.full_name, tuple(info.full_shape), tuple(info.var_offset))


def _read_tensor(variable: Any) -> str:
    with variable.graph.as_default():  # to_proto refuses to run eagerly
        return str(variable.to_proto().snapshot_name)


def _handle_of(variable: Any, handles: Collection[str]) -> str | None:
    name = getattr(variable, "handle", variable).op.name  # a reference variable has the name of its node
    return name if name in handles else None


def _with_train_op(graph: Any, nodes: Graph, train_op: Any) -> tuple[Graph, str]:
    """The op that is one step, and the nodes with it: several ops become one that waits for all of them."""
    if not isinstance(train_op, (list, tuple)):
        return nodes, _train_op(graph, nodes, train_op)
    if not train_op:
        raise CaptureError("train_op is an empty list: name the ops that are one step")
    names = list(dict.fromkeys(_train_op(graph, nodes, each) for each in train_op))
    name = graph.unique_name("caramel_train_ops", mark_as_used=False)
    return nodes.replaced({}, [group(name, names, "")]), name


def _train_op(graph: Any, nodes: Graph, train_op: Any) -> str:
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
    train_ops = list(dict.fromkeys(_operation_name(op) for op in registered))
    if not train_ops:
        raise CaptureError(
            "no training op was found: no optimizer applied gradients in the captured code. Call "
            "optimizer.minimize (or apply_gradients), or pass the op that does the update as train_op="
        )
    if len(train_ops) > 1:
        raise CaptureError(
            f"{'two' if len(train_ops) == 2 else len(train_ops)} training ops were found ({', '.join(train_ops)}): "
            "say with train_op= which one is the step, or give a list of those that are one step together"
        )
    _refuse_later_updates(nodes, train_ops[0])
    return train_ops[0]


def _refuse_later_updates(nodes: Graph, train_op: str) -> None:
    """Refuse a graph in which an op runs after the training op and writes variables: it may well be the real step."""
    seen, waiting = {train_op}, [train_op]
    while waiting:
        for reader in sorted({name for name, _ in nodes.consumers[waiting.pop()]} - seen):
            if ops.is_variable_write(nodes[reader]):
                raise CaptureError(
                    f"op {reader!r} runs after the training op {train_op!r} and writes a variable (an "
                    "average of the weights, for one): say with train_op= which op is the step"
                )
            seen.add(reader)
            waiting.append(reader)


def _operation_name(element: Any) -> str:
    return element.op.name if isinstance(element, (tf.Tensor, tf.Variable)) else element.name


def _tensor_name(graph: Any, tensor: Any, what: str) -> str:
    try:
        element = graph.as_graph_element(tensor, allow_tensor=True, allow_operation=True)
    except (KeyError, ValueError, TypeError) as error:
        raise CaptureError(f"{what} {tensor!r} is not in the captured graph: {error}") from error
    if isinstance(element, tf.Tensor):
        return element.name
    if not element.outputs:
        raise CaptureError(f"{what} {element.name!r} is an op without a result: name the op that computes it")
    return element.outputs[0].name


def _inputs(graph: Any, whole: Collection[str]) -> tuple[Input, ...]:
    inputs = []
    for op in graph.get_operations():
        if op.type not in ops.PLACEHOLDERS:
            continue
        tensor = op.outputs[0]
        shape = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
        inputs.append(
            Input(
                name=op.name,
                node=op.name,
                dtype=tensor.dtype.name,
                shape=shape,
                split=shape != () and tensor.name not in whole,
                optional=op.type == "PlaceholderWithDefault",
            )
        )
    return tuple(inputs)


def _unreached_updates(graph: Any, nodes: Graph, target: str) -> tuple[str, ...]:
    """A note on the registered updates that the training op does not run, as on one device."""
    reached = nodes.ancestors([target])
    names = [_operation_name(op) for op in graph.get_collection(v1.GraphKeys.UPDATE_OPS)]
    left = sorted(name for name in names if name not in reached)
    if not left:
        return ()
    return (
        f"the UPDATE_OPS {listed(left, 3)} are not part of the training op, so a step does not "
        "run them (as on one device); add them with tf.control_dependencies if they should run",
    )
