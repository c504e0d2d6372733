"""Inline: the functions that a step calls become part of its graph, so that everything in it has one place.

Calls are replaced by the nodes of their functions, and an ``IdentityN`` by one Identity for each of its
tensors. An ``If`` or ``Case`` that touches variables, or in which workers exchange something, becomes
all of its branches, between Switch and Merge: only the nodes of the branch that is taken run. Loops, and
branches that only compute, stay as they are; so do gradients of convolutions that Keras lets XLA compile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tensorflow.core.framework import attr_value_pb2

from caramel.frontend.attributes import (
    ENTRY_ATTRIBUTE,
    OVER_WORKERS_ATTRIBUTE,
    SCOPE_ATTRIBUTE,
    TARGETS_ATTRIBUTE,
    TOTAL_ATTRIBUTE,
)
from caramel.frontend.rewrites.old_calls import with_calls_of_functions
from caramel.graph import ops
from caramel.graph.functions import Body, Library
from caramel.graph.graph import (
    Graph,
    NodeDef,
    control_texts,
    copied,
    data_texts,
    format_input,
    node_of,
    parse_input,
    tensor_name,
)
from caramel.graph.nodes import colocate, constant, dtype_attribute, node
from caramel.graph.shapes import with_inferred_shapes

_IDENTITY_N = "IdentityN"
"""Op that forwards several tensors at once."""

_CASE_OPS = frozenset({"Case", "StatelessCase"})
"""Ops that choose between any number of branches, by an integer."""

_BY_XLA = "_XlaMustCompile"
"""Attribute of calls that XLA must compile."""

_COMPILED = frozenset(
    {"Conv2DBackpropInput", "Conv2DBackpropFilter", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2"}
)
"""Ops that TensorFlow's own kernels may not have on a CPU, if the convolution is in groups."""


@dataclass(frozen=True)
class Inlined:
    """A graph without calls that can be inlined.

    Attributes:
        graph: graph of the same computation. A call's name is that of a node that is done when the call is.
        outputs: name of the tensor that has the value of a call's output, by the output ``node:index``.
    """

    graph: Graph
    outputs: Mapping[str, str]

    def tensor(self, name: str) -> str:
        """The tensor that has the value of a tensor of the original graph.

        Args:
            name: name of the original tensor.
        """
        return self.outputs.get(tensor_name(name), name)


def inline(graph: Graph, guards: Mapping[str, str] = MappingProxyType({})) -> Inlined:
    """Inline the calls of a graph.

    Args:
        graph: nodes, with the library of the functions that they call.
        guards: by the names of calls in branches that were inlined before, the node without which they must not run.
    """
    graph = with_calls_of_functions(graph)
    library = Library(graph)
    exchanged = _exchanged(graph, library)
    if not any(_is_inlined(n, library, exchanged) for n in graph):
        return Inlined(graph, {})
    inliner = _Inliner(graph, library, exchanged)
    for current in graph:
        inliner.emit(current, guards.get(current.name, ""))
    nodes = inliner.finished()
    return Inlined(with_inferred_shapes(Graph(nodes, graph.library, graph.versions), keep=True), inliner.outputs())


def prefixes_of(name: str) -> list[str]:
    """The scopes that a name is in, each with its "/".

    Args:
        name: the name.
    """
    return [name[: position + 1] for position, letter in enumerate(name) if letter == "/"]


def _exchanged(graph: Graph, library: Library) -> set[int]:
    """Numbers of what is of all workers in the program or in a function that it calls, or may be in a branch."""
    exchanged = _numbers(n for n in graph if OVER_WORKERS_ATTRIBUTE in n.attr)
    return exchanged.union(*(_exchanged_in(call, library, is_branch=False) for call in graph))


def _exchanged_in(call: NodeDef, library: Library, is_branch: bool) -> set[int]:
    is_branch = is_branch or (call.op in ops.BRANCHES and _takes_variables(call))
    inner_nodes = [inner for function in library.called(call) for inner in library.body(function).inner]
    found = _numbers(n for n in inner_nodes if is_branch or OVER_WORKERS_ATTRIBUTE in n.attr)
    return found.union(*(_exchanged_in(inner, library, is_branch) for inner in inner_nodes if ops.is_call(inner)))


def _numbers(nodes: Iterable[NodeDef]) -> set[int]:
    return {n.attr[TOTAL_ATTRIBUTE].i for n in nodes if TOTAL_ATTRIBUTE in n.attr}


def _is_inlined(call: NodeDef, library: Library, exchanged: Collection[int]) -> bool:
    if call.op in ops.INLINED_CALLS:
        return not _must_be_compiled(call, library)
    if _is_joint_identity(call):
        return True
    if call.op not in ops.BRANCHES or not _is_a_choice(call) or _gives_handles(call):
        return False
    return _takes_variables(call) or (bool(exchanged) and _exchanges(call, library, exchanged))


def _exchanges(call: NodeDef, library: Library, exchanged: Collection[int]) -> bool:
    """Whether something of all workers is made in a call, or the gradient of that enters it there."""
    return any(
        OVER_WORKERS_ATTRIBUTE in inner.attr
        or (ENTRY_ATTRIBUTE in inner.attr and inner.attr[ENTRY_ATTRIBUTE].i in exchanged)
        for _, inner in library.inner_nodes(call)
    )


def _must_be_compiled(call: NodeDef, library: Library) -> bool:
    """Whether a call only computes, and has ops that only XLA can compute: gradients of convolutions in groups."""
    is_asked_for = _BY_XLA in call.attr and call.attr[_BY_XLA].b and not _takes_variables(call)
    return is_asked_for and any(inner.op in _COMPILED for _, inner in library.inner_nodes(call))


def _is_joint_identity(call: NodeDef) -> bool:
    return call.op == _IDENTITY_N and len(data_texts(call)) > 1


def _is_a_choice(branch: NodeDef) -> bool:
    return len(_branches(branch)) > 1 and (branch.op in _CASE_OPS or _is_on_bool(branch))


def _is_on_bool(branch: NodeDef) -> bool:
    return ops.dtype_name(branch.attr["Tcond"].type) == "bool"


def _branches(branch: NodeDef) -> list[tuple[str, str]]:
    """Pairs (key, function) of the branches; the last branch is taken if no other is."""
    if branch.op in _CASE_OPS:
        return [(f"branch_{number}", f.name) for number, f in enumerate(branch.attr["branches"].list.func)]
    return [(key, branch.attr[f"{key}_branch"].func.name) for key in ("then", "else")]


def _gives_handles(call: NodeDef) -> bool:
    """Whether a call returns handles, whose variables could not be told apart."""
    return ops.DT_RESOURCE in ops.output_types(call)


def _takes_variables(call: NodeDef) -> bool:
    return any(t == ops.DT_RESOURCE for _, t in ops.input_types(call))


class _Inliner:
    def __init__(self, graph: Graph, library: Library, exchanged: Collection[int]) -> None:
        self._library = library
        self._exchanged = exchanged
        self._taken = {prefix for name in graph.nodes for prefix in prefixes_of(name)}  # names up to a "/"
        self._nodes: list[NodeDef] = []
        self._replaced: dict[tuple[str, int], str] = {}  # (call, output) -> tensor
        self._guards: dict[str, str] = {}  # of nodes in a branch: what must run for them to run

    def emit(self, current: NodeDef, guard: str) -> None:
        """Add a node, or the nodes that it calls.

        Args:
            current: node whose inputs are named as in the new graph; outputs of calls are resolved later.
            guard: name of the node without which it must not run; "" for none.
        """
        if not _is_inlined(current, self._library, self._exchanged):
            self._add(current, guard)
        elif current.op in ops.INLINED_CALLS:
            self._call(current, guard)
        elif _is_joint_identity(current):
            self._apart(current, guard)
        else:
            self._branch(current, guard)

    def _add(self, current: NodeDef, guard: str) -> str:
        self._nodes.append(current)
        self._taken.update(prefixes_of(current.name))
        if guard:
            self._guards[current.name] = guard
        return str(current.name)

    def finished(self) -> list[NodeDef]:
        """The nodes, with outputs of calls replaced, and with the nodes of a branch bound to the branch."""
        return [self._resolved(current) for current in self._nodes]

    def outputs(self) -> dict[str, str]:
        """See `Inlined`."""
        return {f"{name}:{index}": tensor_name(self._source(name, index)) for name, index in self._replaced}

    def _source(self, name: str, index: int) -> str:
        while (name, index) in self._replaced:
            name, index = parse_input(self._replaced[name, index])
        return format_input(name, index)

    def _resolved(self, current: NodeDef) -> NodeDef:
        texts = [self._source(*parse_input(text)) for text in current.input]
        guard = self._guards.get(current.name)
        if guard is not None and (ops.is_call(current) or not any(self._is_bound(text, guard) for text in texts)):
            texts += [] if "^" + guard in texts else ["^" + guard]
        return current if texts == list(current.input) else copied(current, texts)

    def _is_bound(self, text: str, guard: str) -> bool:
        """Whether an input exists only if a guard runs: a value from an outer branch exists without it."""
        name: str | None = node_of(text)
        while name is not None and name != guard:
            name = self._guards.get(name)
        return name == guard

    # -- calls -------------------------------------------------------------------------------

    def _call(self, call: NodeDef, guard: str) -> None:
        body = self._library.body(call.attr["f"].func.name)
        scope = self._scope(call.name)
        controls = control_texts(call)
        if len(controls) > 1:
            controls = ["^" + self._add(node(scope + "caramel_start", "NoOp", controls, call.device), guard)]
        arguments = data_texts(call)
        self._copy(body, scope, arguments, controls, guard, call.device)
        results = [_renamed(body, scope, arguments, text) for text in body.results]
        for index, (text, dtype) in enumerate(zip(results, ops.output_types(call))):
            self._replaced[call.name, index] = self._with_marks(call, index, scope, text, dtype, guard)
        values = [text for text, dtype in zip(results, ops.output_types(call)) if dtype != ops.DT_RESOURCE]
        after = dict.fromkeys([*(scope + name for name in body.effects), *map(node_of, values)])
        self._add(node(call.name, "NoOp", [*("^" + name for name in after), *controls], call.device), guard)

    def _apart(self, joint: NodeDef, guard: str) -> None:
        """Forward each tensor by itself: a reader of one need not wait for the others. Keras joins all gradients."""
        scope = self._scope(joint.name)
        controls = control_texts(joint)
        control_inputs = []
        for index, (text, dtype) in enumerate(zip(data_texts(joint), ops.output_types(joint))):
            kind = dtype_attribute(ops.dtype_name(dtype))
            identity = node(f"{scope}output_{index}", "Identity", [text, *controls], joint.device, T=kind)
            if marks := _marks_of(joint, index):
                identity.attr[TARGETS_ATTRIBUTE].list.i.extend(marks)
            if SCOPE_ATTRIBUTE in joint.attr:
                identity.attr[SCOPE_ATTRIBUTE].CopyFrom(joint.attr[SCOPE_ATTRIBUTE])
            self._replaced[joint.name, index] = self._add(identity, guard)
            control_inputs.append("^" + identity.name)
        self._add(node(joint.name, "NoOp", control_inputs, joint.device), guard)

    def _with_marks(self, call: NodeDef, index: int, scope: str, text: str, dtype: int, guard: str) -> str:
        """The tensor of a call's result; if the result was differentiated, it is that of a node with the marks."""
        marks = _marks_of(call, index)
        if not marks:
            return text
        kind = dtype_attribute(ops.dtype_name(dtype))
        result = node(f"{scope}caramel_result_{index}", "Identity", [text], call.device, T=kind)
        result.attr[TARGETS_ATTRIBUTE].list.i.extend(marks)
        return self._add(result, guard)

    def _scope(self, name: str) -> str:
        """A name prefix that no node has."""
        scope, number = name + "/", 1
        while scope in self._taken:
            scope, number = f"{name}_{number}/", number + 1
        self._taken.add(scope)
        return scope

    def _copy(
        self, body: Body, scope: str, arguments: Sequence[str], controls: Sequence[str], guard: str, device: str
    ) -> None:
        """Copy the nodes of a function under a scope.

        Args:
            body: the function.
            scope: prefix of the copies' names.
            arguments: tensors that the function gets.
            controls: control inputs of the nodes that read, write or draw, and of no others: where a loop waits for
                something through what it reads, too, TensorFlow's optimizers take its control input away, and its own
                nodes run as soon as what they read themselves is there.
            guard: name of the node without which no copy must run; "" for none.
            device: device of the nodes that have none.
        """
        names = {inner.name for inner in body.inner}
        self._taken.update(prefix for name in names for prefix in prefixes_of(scope + name))
        for inner in body.inner:
            copy = copied(inner, [_renamed(body, scope, arguments, text) for text in inner.input])
            copy.name = scope + inner.name
            copy.device = inner.device or device
            copy.attr[SCOPE_ATTRIBUTE].s = scope.encode()
            if ops.is_stateful(inner):
                copy.input.extend(text for text in controls if text not in copy.input)
            colocate(copy, lambda name: scope + name if name in names else None)
            self.emit(copy, guard)

    # -- branches ----------------------------------------------------------------------------

    def _branch(self, branch: NodeDef, guard: str) -> None:
        scope = self._scope(branch.name)
        results = self._choice(branch, 0, scope, scope + "caramel/", branch.name, guard)
        for index, result in enumerate(results):
            self._replaced[branch.name, index] = result

    def _choice(
        self,
        branch: NodeDef,
        first: int,
        scope: str,
        choice_scope: str,
        done: str,
        guard: str,
    ) -> list[str]:
        """Add one of the branches, to run if it is chosen, and else a choice between the branches after it.

        Args:
            branch: the If or Case.
            first: number of the branch.
            scope: name prefix of the nodes in the branches.
            choice_scope: name prefix of the nodes that choose.
            done: name of the node that is done when the taken branch is.
            guard: name of the node without which none of the nodes must run; "" for none.

        Returns:
            Tensors with the results of the taken branch.
        """
        device, boolean = branch.device, dtype_attribute("bool")
        condition = self._condition(branch, choice_scope, first, guard)
        controls = control_texts(branch) if first == 0 else []
        switch = self._add(
            node(choice_scope + "switch", "Switch", [condition, condition, *controls], device, T=boolean), guard
        )
        (key, function), *others = _branches(branch)[first:]
        sides, ends = [], []
        for number, (side, further) in enumerate(((others[0][0], others), (key, []))):
            inside = f"{choice_scope}{side}/"
            pivot = self._add(
                node(inside + "pivot", "Identity", [format_input(switch, number)], device, T=boolean), guard
            )
            if len(further) > 1:
                results = self._choice(
                    branch, first + 1, scope, f"{choice_scope}others/", f"{choice_scope}others/done", pivot
                )
                after = [f"^{choice_scope}others/done"]
            else:
                name = further[0][1] if further else function
                results, after = self._side(branch, f"{scope}{side}/", name, pivot)
            sides.append((inside, pivot, results))
            ends.append(self._add(node(inside + "done", "Identity", [pivot, *after], device, T=boolean), pivot))
        types = [ops.dtype_name(dtype) for dtype in ops.output_types(branch)]
        marks = [_marks_of(branch, index) if first == 0 else [] for index in range(len(types))]
        merged = [
            self._merged(f"{choice_scope}result_{i}", i, types[i], sides, marks[i], device, guard)
            for i in range(len(types))
        ]
        self._add(node(done, "Merge", ends, device, T=boolean, N=2), guard)
        return merged

    def _condition(self, branch: NodeDef, choice_scope: str, number: int, guard: str) -> str:
        """The tensor that says whether a branch is chosen."""
        selector = data_texts(branch)[0]
        if branch.op not in _CASE_OPS:
            return selector
        number_node = self._add(constant(choice_scope + "number", number, "int32", branch.device), guard)
        attributes = {"T": dtype_attribute("int32"), "incompatible_shape_error": attr_value_pb2.AttrValue(b=True)}
        return self._add(
            node(choice_scope + "is_chosen", "Equal", [selector, number_node], branch.device, **attributes), guard
        )

    def _side(self, branch: NodeDef, inside: str, function: str, pivot: str) -> tuple[list[str], list[str]]:
        """Add one branch; the tensors of its results, and control inputs for its effects."""
        body, arguments = self._library.body(function), data_texts(branch)[1:]
        self._copy(body, inside, arguments, (), pivot, branch.device)
        results = [_renamed(body, inside, arguments, text) for text in body.results]
        return results, ["^" + inside + name for name in body.effects]

    def _merged(
        self,
        name: str,
        index: int,
        dtype: str,
        sides: Sequence[tuple[str, str, Sequence[str]]],
        marks: Sequence[int],
        device: str,
        guard: str,
    ) -> str:
        """The tensor with one result of the taken branch."""
        kind = dtype_attribute(dtype)
        # A result may come from outside the branch, so it is bound to the branch by a node of its own.
        ends = [
            self._add(node(f"{inside}result_{index}", "Identity", [results[index]], device, T=kind), pivot)
            for inside, pivot, results in sides
        ]
        merge = node(name, "Merge", ends, device, T=kind, N=len(ends))
        if marks:
            merge.attr[TARGETS_ATTRIBUTE].list.i.extend(marks)
        return self._add(merge, guard)


def _marks_of(call: NodeDef, index: int) -> list[int]:
    """The marks of a call's output, for the node whose only output it becomes."""
    if TARGETS_ATTRIBUTE not in call.attr:
        return []
    marks = list(call.attr[TARGETS_ATTRIBUTE].list.i)
    return [value for number, output in zip(marks[::2], marks[1::2]) if output == index for value in (number, 0)]


def _renamed(body: Body, scope: str, arguments: Sequence[str], text: str) -> str:
    """The tensor or control input in the new graph for one inside a function."""
    name, index = parse_input(text)
    if name not in body.positions:
        return format_input(scope + name, index)
    argument = arguments[body.positions[name]]
    return argument if index >= 0 else "^" + node_of(argument)
