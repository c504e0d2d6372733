"""Postponement: the nodes that have to move into the next step together with the update of a gradient.

An update that is postponed is still that of its own step. Whatever follows from the aggregated gradient
moves with it: the writes, and all that the program does after them. What these nodes need of their own
step is kept in variables, or computed again where nothing can have changed it in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from caramel.errors import InputError, listed
from caramel.graph import ops
from caramel.graph.functions import Library
from caramel.graph.graph import Graph, NodeDef, node_of, parse_input, tensor_name
from caramel.graph.guards import guards_of
from caramel.model import Gradient, Model

_CONTROL_FLOW = frozenset({"Switch", "Merge"})


@dataclass(frozen=True)
class Postponement:
    """The nodes that move, by names of the Model's graph.

    Attributes:
        gradients: names of the postponed gradients.
        moved: nodes that run in the next step, in the order of the graph.
        repeated: nodes that the moved ones need and that give the same in the next step; producers first.
        kept: tensors that the moved nodes need of their own step, besides the gradients.
        remaining: nodes that the moved ones wait for, and that the step still has to run.
        released: nodes that pass on the loss or an output, and no longer wait for what moves.
        written: moved nodes that write a variable, by the node of its handle.
        read: moved or repeated nodes that only read a variable, by the node of its handle.
    """

    gradients: tuple[str, ...]
    moved: tuple[str, ...]
    repeated: tuple[str, ...]
    kept: tuple[str, ...]
    remaining: tuple[str, ...]
    released: tuple[str, ...]
    written: Mapping[str, tuple[str, ...]]
    read: Mapping[str, tuple[str, ...]]


def postponement(model: Model, names: Sequence[str]) -> Postponement:
    """Find the nodes that move with some gradients.

    Args:
        model: the single-device step.
        names: names of the gradients.

    Returns:
        The nodes that move.

    Raises:
        InputError: there is no such gradient, or it cannot be postponed and stay exact; with the reason.

    Source:
        Caramel, section 4.3 (transfers in the next forward pass).
    """
    if not names:
        return Postponement((), (), (), (), (), (), {}, {})
    return Postponements(model).of(names)


class Postponements:
    """Finds the nodes that move with any gradients of a Model; facts that all gradients share are found once."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.graph: Graph = model.graph
        self.library = Library(model.graph)
        self.passing = self._passing_on()
        self.positions = {node.name: number for number, node in enumerate(model.graph)}
        self.rank = {name: number for number, name in enumerate(model.graph.order)}
        self.writes = self._by_variable(self.library.written)
        self.touched = self._by_variable(lambda node: [producer for producer, _ in ops.data_inputs(node)])
        self.guards = guards_of(model.graph)
        self.readers = {g.name: self._readers(g) for g in model.gradients}
        self.producers = {g.name: [node_of(t) for t in (g.tensor, *dict(g.sources))] for g in model.gradients}
        self._inputs: dict[str, tuple[tuple[str, str, int], ...]] = {}
        self._in_branch: dict[str, bool] = {}

    def of(self, names: Sequence[str]) -> Postponement:
        """The nodes that move with some gradients; see `postponement`."""
        by_name = {g.name: g for g in self.model.gradients}
        unknown = [name for name in names if name not in by_name]
        if unknown:
            raise InputError(f"there is no gradient {unknown[0]!r} to postpone; there are {listed(list(by_name), 8)}")
        return _Closure(self, [g for g in self.model.gradients if g.name in set(names)]).result()

    def following(self, gradient: Gradient) -> set[str]:
        """The nodes that follow from a gradient's result, by data or by order."""
        return self.downstream(self.readers[gradient.name])

    def downstream(self, start: Sequence[str]) -> set[str]:
        """The nodes that follow from others, by data or by order."""
        seen, waiting = set(start), list(start)
        while waiting:
            for reader, position in self.graph.consumers[waiting.pop()]:
                is_order = self.graph[reader].input[position].startswith("^")
                if reader not in seen and not (is_order and reader in self.passing):
                    seen.add(reader)
                    waiting.append(reader)
        return seen

    def inputs(self, name: str) -> tuple[tuple[str, str, int], ...]:
        """The inputs of a node that are not the same in every step, as (text, producer, output index)."""
        if name not in self._inputs:
            parsed = ((text, *parse_input(text)) for text in self.graph[name].input)
            self._inputs[name] = tuple(entry for entry in parsed if not is_shared(self.graph[entry[1]]))
        return self._inputs[name]

    def is_in_branch(self, name: str) -> bool:
        """Whether a node is in a branch, or depends on one."""
        if name not in self._in_branch:
            graph, before = self.graph, [name, *self.graph.sources(name)]
            is_guarded = any(self.guards.by_node[n] or graph[n].op == "Switch" for n in before)
            self._in_branch[name] = is_guarded or graph[name].op in _CONTROL_FLOW
        return self._in_branch[name]

    def _readers(self, gradient: Gradient) -> list[str]:
        readers = self.graph.readers(gradient.tensor)
        return [r for r in readers if not gradient.consumers or r in gradient.consumers]

    def _passing_on(self) -> dict[str, None]:
        """Nodes that only pass on the results of a step: a function's results wait for all of its effects.

        Nothing that has or sees effects follows from them, by data or by order: it would no longer wait.
        """
        passing: dict[str, None] = {}
        for tensor in (self.model.loss, *(t for _, t in self.model.outputs)):
            name = node_of(tensor)
            while self.graph[name].op == "Identity":
                passing[name] = None
                name = node_of(self.graph[name].input[0])
        before = self.graph.ancestors(n.name for n in self.graph if ops.is_stateful(n)) if passing else set()
        return {name: None for name in passing if name not in before}

    def _by_variable(self, handles: Callable[[NodeDef], Sequence[str]]) -> dict[str, list[str]]:
        """Nodes by the variables whose handles a function finds in them."""
        nodes_by_variable: dict[str, list[str]] = {}
        for node in self.graph:
            for handle in dict.fromkeys(handles(node)):
                if self.graph[handle].op == ops.VARIABLE:
                    nodes_by_variable.setdefault(handle, []).append(node.name)
        return nodes_by_variable


class _Closure:
    def __init__(self, common: Postponements, gradients: Sequence[Gradient]) -> None:
        self._common = common
        self._model = common.model
        self._graph = common.graph
        self._library = common.library
        self._gradients = gradients
        self._what = f"the update of {listed([g.name for g in gradients], 3)} cannot be postponed"
        self._results = {(tensor_name(g.tensor), reader) for g in gradients for reader in common.readers[g.name]}
        self._passing = common.passing
        self._moved = common.downstream([reader for _, reader in sorted(self._results)])
        self._writes = common.writes
        self._repeatable: dict[str, bool] = {}

    def result(self) -> Postponement:
        """See `postponement`."""
        self._refuse_sparse()
        self._refuse_what_is_wanted()
        self._refuse_other_gradients()
        self._refuse_branches()
        self._refuse_effects()
        moved = sorted(self._moved, key=self._common.positions.__getitem__)
        repeated: dict[str, None] = {}
        kept: dict[str, None] = {}
        remaining: dict[str, None] = {}
        for name in moved:
            for text, producer, index in self._common.inputs(name):
                if producer in self._moved:
                    continue
                if index < 0:
                    remaining[producer] = None
                elif (tensor_name(text), name) in self._results:
                    continue
                elif self._is_repeatable(producer):
                    cone = self._cone(producer)
                    repeated.update(dict.fromkeys(cone))
                    # What these wait for has effects of its own step, and may be run for nothing else.
                    inputs = (node_input for node in cone for node_input in self._common.inputs(node))
                    remaining.update(dict.fromkeys(source for _, source, position in inputs if position < 0))
                else:
                    kept[tensor_name(text)] = None
        self._refuse_handles(kept)
        ordered = tuple(sorted(repeated, key=self._common.rank.__getitem__))
        next_step = {*moved, *repeated}
        touched = [v for v, nodes in self._common.touched.items() if not next_step.isdisjoint(nodes)]
        written = {v: tuple(w for w in self._writes.get(v, ()) if w in self._moved) for v in touched}
        read = {v: tuple(n for n in self._common.touched[v] if n in next_step and n not in written[v]) for v in touched}
        return Postponement(
            gradients=tuple(g.name for g in self._gradients),
            moved=tuple(moved),
            repeated=ordered,
            kept=tuple(kept),
            remaining=tuple(remaining),
            released=tuple(n for n in self._passing if not self._moved.isdisjoint(self._graph.sources(n))),
            written={v: nodes for v, nodes in written.items() if nodes},
            read={v: nodes for v, nodes in read.items() if nodes},
        )

    # -- what moves --------------------------------------------------------------------------

    def _cone(self, name: str) -> list[str]:
        """A repeatable node and those that it is computed from."""
        needed = self._graph.ancestors([name], control=False, stop=lambda n: is_shared(self._graph[n]))
        return sorted(n for n in needed if not is_shared(self._graph[n]))

    def _is_repeatable(self, name: str) -> bool:
        """Whether a node gives the same in the next step, before anything there has been written."""
        if name not in self._repeatable:
            needed = self._graph.ancestors([name], control=False, stop=lambda n: self._repeatable.get(n, False))
            for current in sorted(needed, key=self._common.rank.__getitem__):
                if current not in self._repeatable:
                    self._repeatable[current] = self._is_repeatable_itself(current)
        return self._repeatable[name]

    def _is_repeatable_itself(self, name: str) -> bool:
        node = self._graph[name]
        if is_shared(node):
            return True
        if node.op == "ReadVariableOp":
            handle = node_of(node.input[0])
            own_step_writes = [w for w in self._writes.get(handle, ()) if w not in self._moved]
            # A write of the same step must have come before, for the next step begins after all of them.
            return self._graph[handle].op == ops.VARIABLE and (
                not own_step_writes or set(own_step_writes) <= self._graph.ancestors([name]) - {name}
            )
        if node.op in ops.PLACEHOLDERS or node.op in _CONTROL_FLOW or ops.is_stateful(node) or ops.functions_of(node):
            return False
        return all(self._repeatable[producer] for producer, _ in ops.data_inputs(node))

    # -- what stands in the way --------------------------------------------------------------

    def _refuse(self, reason: str) -> None:
        raise InputError(f"{self._what}: {reason}")

    def _refuse_sparse(self) -> None:
        for gradient in self._gradients:
            if gradient.is_sparse:
                self._refuse(f"the gradient of {gradient.parameter!r} is sparse")

    def _refuse_what_is_wanted(self) -> None:
        wanted = [("the loss", self._model.loss), *((f"the output {n!r}", t) for n, t in self._model.outputs)]
        for what, tensor in wanted:
            if node_of(tensor) in self._moved:
                self._refuse(f"{what}, which every step gives back, depends on it")

    def _refuse_other_gradients(self) -> None:
        """Refuse if other gradients follow from the update, or if it cannot be made without them."""
        names, readers = {g.name for g in self._gradients}, self._common.readers
        for gradient in self._model.gradients:
            if not self._moved.isdisjoint(self._common.producers[gradient.name]):
                self._refuse(f"the gradient of {gradient.parameter!r} depends on it in the same step")
            if gradient.name not in names and (used := sorted(self._moved.intersection(readers[gradient.name]))):
                self._refuse(
                    f"op {used[0]!r} ({self._graph[used[0]].op}) also needs the gradient of {gradient.parameter!r}, "
                    "which is not postponed (for a norm over several gradients, say, or a check that all are finite)"
                )

    def _refuse_branches(self) -> None:
        for name in sorted(self._moved):
            if self._common.is_in_branch(name):
                self._refuse(f"op {name!r} ({self._graph[name].op}) is in a branch, or depends on one")

    def _refuse_effects(self) -> None:
        for name in sorted(self._moved):
            node = self._graph[name]
            inner_nodes = [n for _, n in self._library.inner_nodes(node)]
            if inner_nodes:
                with_state = next((n for n in inner_nodes if ops.is_stateful(n) and not ops.is_call(n)), None)
                if with_state is not None or ops.DT_RESOURCE in [t for _, t in ops.input_types(node)]:
                    self._refuse(f"op {name!r} ({node.op}) does in a function what would have to be moved")
            elif ops.is_stateful(node) and node.op not in ops.READS and not self._library.written(node):
                self._refuse(f"op {name!r} ({node.op}) has state or effects besides variables")

    def _refuse_handles(self, kept: Mapping[str, None]) -> None:
        for tensor in kept:
            name, index = parse_input(tensor)
            if ops.output_types(self._graph[name])[index] in (ops.DT_RESOURCE, ops.DT_VARIANT):
                self._refuse(f"it needs {tensor!r}, which is not a plain tensor and cannot be kept for the next step")


def is_shared(node: NodeDef) -> bool:
    """Whether a node is the same in every step: a variable's handle, or a constant."""
    return node.op == ops.VARIABLE or (node.op == "Const" and not node.input)
