"""Capture of a training step written as a Python function or tf.function, a Keras 3 step for one."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, node_def_pb2
from tensorflow.python.util import nest

from caramel.errors import CaptureError, InputError, UnsupportedError, in_one_line, listed
from caramel.frontend.attributes import MADE_ATTRIBUTE, without_capture_attributes
from caramel.frontend.captured import RawProgram, RawTable, RawVariable
from caramel.frontend.programs.naming import Naming, UsedVariables
from caramel.frontend.programs.python_state import (
    changed_names,
    is_own,
    python_values,
    random_numbers_kept,
    refuse_python_state,
)
from caramel.frontend.recording.recorded_gradients import read_differentiation
from caramel.frontend.recording.recorder import Recorder
from caramel.frontend.recording.total_marks import taken_out
from caramel.frontend.recording.user_code import is_library
from caramel.frontend.recording.watching import unwatched
from caramel.frontend.rewrites.inline import inline
from caramel.frontend.rewrites.unroll import loops_to_unroll, unrolled
from caramel.frontend.roles.summed_graph import with_loop_results_apart
from caramel.graph import ops
from caramel.graph.graph import Graph, behind_identities, format_input, parse_input
from caramel.graph.shapes import SHAPES_ATTRIBUTE, static_shape
from caramel.model import Evaluation, Input
from caramel.util.gc_pause import paused_gc

_MAX_CONSTANT_BYTES = 1024
"""Bytes of the largest captured eager tensor that becomes a constant (shapes, axes); a larger one is a variable."""


class Traced:
    """One traced function: its nodes, with variables in place of captured resources.

    Attributes:
        specs: tf.TensorSpec (or nests of them) of the function's arguments.
        func_graph: the traced FuncGraph.
        structured_outputs: outputs of the function in the user's structure.
        naming: names for captured variables.
        graph: nodes of the function, with calls inlined.
        loops: names of the loops that were unrolled.

    Args:
        function: a tf.function or a plain Python function.
        specs: tf.TensorSpec (or nests of them) of its arguments.
        what: noun for the function in messages, such as "the training step".
        naming: names for captured variables, shared between traced functions.
        unrolls: the recorder of loops that differentiate and are to be unrolled; None for loops as they are.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        specs: Sequence[Any],
        what: str,
        naming: Naming,
        unrolls: Recorder | None = None,
    ) -> None:
        self.specs = tuple(specs)
        concrete = _trace(function, self.specs, what)
        self.func_graph = concrete.graph
        self.structured_outputs = concrete.structured_outputs
        self.naming = naming
        captured = {internal.op.name: external for external, internal in self.func_graph.captures}
        self._arguments = [t for t in self.func_graph.inputs if t.op.name not in captured]
        graph_def = self.func_graph.as_graph_def(add_shapes=True)
        variables = UsedVariables(self.func_graph, getattr(function, "python_function", function))
        replacements = {name: self._capture(name, external, variables) for name, external in captured.items()}
        self._inlined = inline(_with_captures(graph_def, replacements))
        self.loops: list[str] = []
        if unrolls is not None:
            with unwatched():
                self.loops = loops_to_unroll(self._inlined.graph, unrolls.differentiated_again)
                self._inlined = unrolled(self._inlined, unrolls.differentiated_again)
        self.graph = self._inlined.graph

    def _capture(self, name: str, external: Any, variables: UsedVariables) -> list[Any]:
        """Nodes that stand for a captured value; the output of the last one replaces the placeholder's."""
        if external.dtype == tf.resource:
            return [self._resource(external, variables)]
        if not isinstance(external, tf.__internal__.EagerTensor):
            raise UnsupportedError(
                f"the step captures tensor {external.name!r} of another graph; "
                "pass it as an argument or make it a variable"
            )
        value = external.numpy()
        if external.dtype == tf.string or value.nbytes <= _MAX_CONSTANT_BYTES:
            return [_constant_node(name, external)]
        variable = self.naming.constant(external, name)
        handle = _handle_node(variable)
        read = node_def_pb2.NodeDef(name=name, op="ReadVariableOp", input=[handle.name])
        read.attr["dtype"].type = external.dtype.as_datatype_enum
        read.attr[SHAPES_ATTRIBUTE].list.shape.append(external.shape.as_proto())
        return [handle, read]

    def _resource(self, external: Any, variables: UsedVariables) -> Any:
        """The node that makes a variable or a lookup table."""
        try:
            return _handle_node(self.naming.variable(external, variables))
        except UnsupportedError:
            table = self.naming.table(external)
            if table is None:
                raise
            return _table_node(table)

    def inputs(self, replicated: Sequence[str]) -> tuple[Input, ...]:
        """The step's arguments, flattened in the order of the user's specs.

        Args:
            replicated: names of the arguments that every worker gets whole.

        Raises:
            CaptureError: one of these is not an argument.
        """
        names = {t.op.name for t in self._arguments}
        unknown = [name for name in replicated if name not in names]
        if unknown:
            raise CaptureError(
                f"replicated input {unknown[0]!r} is not an argument of the step ({', '.join(sorted(names))})"
            )
        inputs = []
        for tensor in self._arguments:
            shape = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
            name = tensor.op.name
            inputs.append(Input(name, name, tensor.dtype.name, shape, shape != () and name not in replicated))
        return tuple(inputs)

    @property
    def outputs(self) -> list[tuple[str, str]]:
        """Pairs (name, tensor) of the function's outputs, flattened.

        Raises:
            CaptureError: one of them is no dense tensor.
        """
        flat = nest.flatten_with_joined_string_paths(self.structured_outputs)
        for path, value in flat:
            if tf.is_tensor(value) and not isinstance(value, tf.Tensor):
                what = f"{type(value).__name__}{f' as {path!r}' if path else ''}"
                raise CaptureError(
                    f"the step returns a {what}: return dense tensors, such as its values, or what to_tensor() of a "
                    "ragged and tf.sparse.to_dense of a sparse one make"
                )
        return [(path or "output", self._inlined.tensor(t.name)) for path, t in flat if tf.is_tensor(t)]

    @property
    def targets(self) -> tuple[str, ...]:
        """Nodes with effects, in the order of the graph."""
        wanted = {op.name for op in self.func_graph.control_outputs}
        return tuple(name for name in self.graph.nodes if name in wanted)


def _of_changes(paths: Sequence[str]) -> tuple[str, ...]:
    """A note on what the step changes in Python."""
    if not paths:
        return ()
    return (f"the step changes {listed(paths, 3)} in Python, which is done as it is traced and not in each step",)


def _of_loops(names: Sequence[str], graph: Graph) -> tuple[str, ...]:
    """Notes on loops that were unrolled."""
    if not names:
        return ()
    rounds = tuple(f"{name}/round_" for name in names)
    draws = any(ops.is_seeded_random(n) and n.name.startswith(rounds) for n in graph)
    which = f"loop {names[0]} is" if len(names) == 1 else f"loops {listed(names)} are"
    note = f"the {which} unrolled, as it can only be told of single rounds what becomes of their gradients"
    return (f"{note}; behind the first round its random ops draw other numbers than on one device" if draws else note,)


def _made(graph: Graph) -> dict[str, str]:
    """The type of an op and how many of it the program has made before, by its name.

    Of all types together there may be more in another trace, where less is known of shapes.
    """
    return {n.name: n.attr[MADE_ATTRIBUTE].s.decode() for n in graph if MADE_ATTRIBUTE in n.attr}


@paused_gc()
def capture_step(
    function: Callable[..., Any],
    specs: Sequence[Any] | None,
    recorder: Recorder,
    naming: Naming,
    *,
    loss: Any,
    loss_reduction: str | None,
    replicated: Sequence[str],
    unrolls: bool = False,
) -> RawProgram:
    """Trace a training step.

    Args:
        function: a tf.function or a plain Python function.
        specs: tf.TensorSpec (or nests of them) of its arguments; None to use its input_signature.
        recorder: the active recorder.
        naming: names for captured variables, shared with evaluations.
        loss: name of the output to report as the loss; None to choose it.
        loss_reduction: ``"mean"`` or ``"sum"``; None to conclude it from the graph.
        replicated: names of arguments that every worker gets whole.
        unrolls: whether to unroll loops that differentiate.

    Raises:
        CaptureError: the step cannot be traced, or has no gradient.
    """
    specs = _specs(function, specs, "the step's inputs are not known: pass inputs=")
    is_traced_alone = hasattr(function, "python_function")  # a tf.function runs in Python once on one device, too
    before = {} if is_traced_alone else python_values(function)
    own_changes: list[str] = []
    traced = Traced(function, specs, "the training step", naming, recorder if unrolls else None)
    if not is_traced_alone and (changed := changed_names(before, python_values(function))):
        with random_numbers_kept():
            again = _trace(function, specs, "the training step").graph
        refuse_python_state(traced.func_graph, again, changed, _name_of(function))
        own_changes = [path for path in changed if is_own(path)]

    def handle_of(variable: Any) -> str | None:
        raw_variable = naming.of_handle(variable.handle)
        return None if raw_variable is None else raw_variable.node

    graph, entries = taken_out(traced.graph)
    differentiation = read_differentiation(graph, recorder, handle_of)
    chosen, others = _choose_loss(traced, loss, [t for t, _ in differentiation.differentiated])
    program = RawProgram(
        graph=graph,
        variables=naming.variables,
        gradients=differentiation.gradients,
        differentiated=differentiation.differentiated,
        seeds=differentiation.seeds,
        inputs=traced.inputs(replicated),
        loss=chosen,
        outputs=tuple(others),
        targets=traced.targets,
        values=naming.snapshot(),
        reduction=loss_reduction,
        is_graph=False,
        loop_gradient_numbers=differentiation.loop_gradient_numbers,
        entries=entries,
        made=_made(graph),
        single_examples=next(iter(recorder.single_examples), ""),
        out_of_reach=tuple(recorder.out_of_reach),
        notes=(*_of_loops(traced.loops, graph), *_of_changes(own_changes)),
    )
    return with_loop_results_apart(program)


def capture_evaluation(function: Callable[..., Any], specs: Sequence[Any] | None, naming: Naming) -> Evaluation:
    """Trace a function that uses the model's variables without training them.

    Args:
        function: a tf.function or a plain Python function.
        specs: tf.TensorSpec (or nests of them) of its arguments; None to use its input_signature.
        naming: names for captured variables, shared with the step.

    Raises:
        CaptureError: the function cannot be traced.
    """
    unknown = "the inputs of the evaluation are not known: pass evaluation_inputs="
    traced = Traced(function, _specs(function, specs, unknown), "the evaluation", naming)
    inputs = tuple(Input(i.name, i.node, i.dtype, i.shape, split=False) for i in traced.inputs(()))
    structure = traced.structured_outputs
    flat = tf.nest.flatten(structure, expand_composites=False)
    positions = [position for position, t in enumerate(flat) if tf.is_tensor(t)]

    def pack(arrays: Sequence[Any]) -> Any:
        filled = list(flat)
        for position, array in zip(positions, arrays):
            filled[position] = array
        return tf.nest.pack_sequence_as(structure, filled)

    return Evaluation(without_capture_attributes(traced.graph), inputs, tuple(traced.outputs), traced.targets, pack)


def _specs(function: Any, specs: Sequence[Any] | None, unknown: str) -> Sequence[Any]:
    if specs is None:
        specs = getattr(function, "input_signature", None)
    if specs is None:
        raise CaptureError(
            f"{unknown}[tf.TensorSpec(...), ...], one for each argument (or give the tf.function an input_signature)"
        )
    if isinstance(specs, (tf.TensorSpec, Mapping)):
        specs = [specs]
    for spec in tf.nest.flatten(list(specs)):
        if not isinstance(spec, tf.TensorSpec):
            raise InputError(
                f"inputs must be tf.TensorSpec, got {type(spec).__name__} {spec!r}; "
                "make sparse and ragged tensors dense in the pipeline (dataset.map with tf.sparse.to_dense, or "
                "each.to_tensor())"
            )
    return specs


def _trace(function: Any, specs: Sequence[Any], what: str) -> Any:
    """A newly traced concrete function: the recorder must see its gradients."""
    if not callable(function):
        raise InputError(f"{what} must be a function, got {type(function).__name__}")
    python_function = getattr(function, "python_function", function)
    fresh = tf.function(python_function, autograph=getattr(function, "_autograph", True))
    try:
        return fresh.get_concrete_function(*specs)
    except (CaptureError, UnsupportedError) as error:
        raise _as_raised(error) from None
    except Exception as error:
        refusal = CaptureError(
            f"{what} {_name_of(python_function)!r} cannot be traced with inputs {list(specs)}: "
            f"{type(error).__name__}{where_raised(error)}: {in_one_line(error)}"
        )
        refusal.may_pass_later = True
        raise refusal from error


def _name_of(function: Any) -> str:
    return getattr(function, "__name__", None) or repr(function)


def _as_raised(error: Exception) -> Exception:
    """The original error, which AutoGraph wraps in an account of the user's code."""
    while type(error.__context__) is type(error):
        error = error.__context__
    return error


def where_raised(error: Exception) -> str:
    """`` at FILE:LINE`` of the user's own code, from the frames or from AutoGraph's account of them."""
    account = re.findall(r'File "([^"]+)", line (\d+), in', str(error))
    frames = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    user_frames = [f for f in (account or frames) if not is_library(f[0])]
    return f" at {user_frames[-1][0]}:{user_frames[-1][1]}" if user_frames else ""


def _handle_node(variable: RawVariable) -> Any:
    node = node_def_pb2.NodeDef(name=variable.node, op=ops.VARIABLE)
    node.attr["dtype"].type = ops.dtype_enum(variable.dtype)
    node.attr["shape"].shape.CopyFrom(tf.TensorShape(variable.shape).as_proto())
    node.attr["shared_name"].s = variable.plan_name.encode()
    node.attr["container"].s = b""
    node.attr[SHAPES_ATTRIBUTE].list.shape.append(tf.TensorShape([]).as_proto())
    return node


def _table_node(table: RawTable) -> Any:
    node = node_def_pb2.NodeDef(name=table.node, op=ops.TABLE)
    node.attr["key_dtype"].type = ops.dtype_enum(table.keys.dtype)
    node.attr["value_dtype"].type = ops.dtype_enum(table.values.dtype)
    node.attr["shared_name"].s = table.node.encode()
    node.attr["container"].s = b""
    node.attr[SHAPES_ATTRIBUTE].list.shape.append(tf.TensorShape([]).as_proto())
    return node


def _constant_node(name: str, tensor: Any) -> Any:
    node = node_def_pb2.NodeDef(name=name, op="Const")
    node.attr["dtype"].type = tensor.dtype.as_datatype_enum
    node.attr["value"].CopyFrom(
        attr_value_pb2.AttrValue(tensor=tf.make_tensor_proto(tensor.numpy(), dtype=tensor.dtype))
    )
    node.attr[SHAPES_ATTRIBUTE].list.shape.append(tensor.shape.as_proto())
    return node


def _with_captures(graph_def: Any, replacements: Mapping[str, list[Any]]) -> Graph:
    """The traced nodes, with captured placeholders replaced and their readers redirected."""
    redirect = {name: nodes[-1].name for name, nodes in replacements.items()}
    nodes: dict[str, Any] = {}
    for node in graph_def.node:
        if node.name in replacements:
            for replacement in replacements[node.name]:
                nodes[replacement.name] = replacement
            continue
        for position, text in enumerate(node.input):
            name, index = parse_input(text)
            if name in redirect:
                node.input[position] = format_input(redirect[name], index)
        nodes[node.name] = node
    return Graph(nodes.values(), graph_def.library, graph_def.versions)


def _choose_loss(
    traced: Traced, wanted: Any, differentiated: Sequence[str]
) -> tuple[str | None, list[tuple[str, str]]]:
    """The output to report as the loss, and the others."""
    outputs = traced.outputs
    if wanted is not None:
        match = [o for o in outputs if o[0] == str(wanted)]
        if match:
            return match[0][1], [o for o in outputs if o is not match[0]]
        tensor = next((name for name in (str(wanted), f"{wanted}:0") if name in differentiated), None)
        if tensor is not None:
            return tensor, list(outputs)
        raise CaptureError(
            f"loss={wanted!r} is not an output of the step, whose outputs are {[n for n, _ in outputs]}, and no tensor "
            f"that it differentiates: these are {listed(differentiated)}"
        )
    candidates = [o for o in outputs if _scalar_float(traced, o[1])]
    sources = {behind_identities(traced.graph, t) for t in differentiated}
    differentiated_outputs = [o for o in candidates if behind_identities(traced.graph, o[1]) in sources]
    named = [o for o in candidates if o[0].rpartition("/")[2] == "loss"]
    # Where loops differentiate, no output is known to be what they do, and the first is taken for it. So it is where
    # several tensors are differentiated, none of which is an output: those of micro-batches, and their mean is one.
    is_first = len(candidates) == 1 or len(sources) != 1
    for group in (named, differentiated_outputs, candidates if is_first else []):
        if group:
            return group[0][1], [o for o in outputs if o is not group[0]]
    return None, list(outputs)


def _scalar_float(traced: Traced, tensor: str) -> bool:
    name, index = parse_input(tensor)
    node = traced.graph[name]
    dtype = tf.as_dtype(ops.output_types(node)[index])
    return dtype.is_floating and static_shape(traced.graph, tensor) == ()
