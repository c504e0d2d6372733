"""Follow the examples through a graph, functions, branches and loops included."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from caramel.frontend.batch import map_loops, rules, sizes
from caramel.frontend.batch.domain import FREE, Free, ListOf, One, Unknown, Value, is_number
from caramel.frontend.batch.op import Op
from caramel.graph import ops
from caramel.graph.functions import Library, arguments_from
from caramel.graph.graph import Graph, NodeDef, data_texts, node_of, parse_input, tensor_name
from caramel.graph.guards import guards_of
from caramel.graph.shapes import Shape, static_shape, with_inferred_shapes
from caramel.graph.shapes import sizes as shape_sizes

_ROUNDS = 10
"""Rounds after which what a loop carries must have settled; each only makes it less."""

_SMALL = 64
"""Nodes behind a tensor that is worked out; constants that matter here are shapes and orders of axes."""

_BRANCH = "takes a branch that the examples decide, or how many there are"


class Bodies:
    """The functions of a graph, with the static shapes that follow from those of their arguments."""

    def __init__(self, graph: Graph) -> None:
        self.library = Library(graph)
        self._outer = graph
        self._graphs: dict[tuple[str, tuple[Shape | None, ...]], Graph] = {}

    def graph(self, name: str, shapes: Sequence[Shape | None]) -> Graph:
        """The nodes of a function that gets tensors of these shapes."""
        key = (name, tuple(shapes))
        if key not in self._graphs:
            body = self.library.body(name)
            nodes = Graph(body.graph, self._outer.library, self._outer.versions)
            self._graphs[key] = with_inferred_shapes(nodes, dict(zip(body.arguments, shapes)))
        return self._graphs[key]


class Analysis:
    """What each tensor of a graph is.

    Args:
        graph: nodes with ``_output_shapes`` attributes.
        bodies: the functions that they call.
        given: what some nodes are; inputs that are not among them do not depend on the batch.
        constants: values of tensors, ``node:index``, that are constants, although they do not look like it.
        function: of which these are the nodes, if it is one.
    """

    def __init__(
        self,
        graph: Graph,
        bodies: Bodies,
        given: Mapping[str, Value],
        constants: Mapping[str, np.ndarray] | None = None,
        function: str = "",
    ) -> None:
        self._graph = graph
        self._bodies = bodies
        self._given = dict(given)
        self._constants = dict(constants or {})
        self._function = function
        self._values: dict[str, Sequence[Value]] = {}
        self._notes: dict[str, dict[str, None]] = {}

    @cached_property
    def _decided(self) -> Mapping[str, Sequence[str]]:
        """For each Merge the nodes whose values choose between its inputs."""
        return guards_of(self._graph).decided

    def value_of(self, tensor: str) -> Value:
        """What a tensor is."""
        name, index = parse_input(tensor)
        if name not in self._values:
            needed = self._behind([name], lambda n: n in self._values)
            for current in self._graph.order:
                if current in needed and current not in self._values:
                    self._values[current] = self._of(self._graph[current])
        found = self._values[name]
        return found[index]

    def learn(self, node: str, value: Value) -> None:
        """Take a node for what it is said to be."""
        self._given[node] = value
        self._values.clear()

    def notes_behind(self, tensors: Sequence[str]) -> tuple[str, ...]:
        """The ops behind some tensors that put a value of the whole batch into the values of single examples."""
        for tensor in tensors:
            self.value_of(tensor)
        behind = self._behind([node_of(tensor) for tensor in tensors])
        return tuple(dict.fromkeys(note for name in self._graph.order if name in behind for note in self._notes[name]))

    def _behind(self, names: Sequence[str], stop: Callable[[str], bool] = lambda name: False) -> set[str]:
        """What goes into some nodes: as data, or because it decides which of two branches the data comes from."""
        return self._graph.ancestors(
            names,
            control=False,
            stop=lambda name: name in self._given or stop(name),
            further=lambda name: self._decided[name] if self._graph[name].op == "Merge" else (),
        )

    def _of(self, node: NodeDef) -> Sequence[Value]:
        outputs = max(len(ops.output_types(node)), 1)
        notes = self._notes[node.name] = {}
        if node.name in self._given:
            return [self._given[node.name]] * outputs
        if node.op == "Const":
            return [sizes.of_constant(self._constant(node.name))]
        texts = tuple(data_texts(node))
        inputs = tuple(self._values[node_of(t)][parse_input(t)[1]] for t in texts)
        found = self._by_rules(Op(node, inputs, texts, self._shape, self._constant, outputs, self._function, notes))
        return found if isinstance(found, Sequence) else [found] * outputs

    def _by_rules(self, op: Op) -> Value | Sequence[Value]:
        kind = op.node.op
        if kind in ("While", "StatelessWhile"):
            return self._loop(op)
        if ops.is_call(op.node):
            return self._branches(op)
        if kind in rules.PARTLY:
            return rules.ALL[kind](op)
        if unknown := next((v for v in op.inputs if isinstance(v, Unknown)), None):
            return unknown
        if kind == "Merge":
            return self._merge(op)
        if kind == "Switch":
            return _switch(op)
        if kind in rules.ON_SHAPES_AND_LISTS:
            return rules.ALL[kind](op)
        if kind in sizes.SIZES and all(isinstance(v, Free) for v in op.inputs):
            found = sizes.SIZES[kind](op)
            if found is not None:
                return found
        if all(is_number(v) for v in op.inputs):
            return FREE
        if (one := _of_one_example(op)) is not None:
            return one
        if any(isinstance(v, One) for v in op.inputs):
            return op.unknown("mixes a single example with others")
        if kind in rules.ALL:
            return rules.ALL[kind](op)
        return op.unknown("is not known to treat each example by itself", unheard=True)

    # -- facts -------------------------------------------------------------------------------

    def _shape(self, text: str) -> Shape | None:
        return static_shape(self._graph, text)

    def _constant(self, text: str) -> Any:
        """The value of a tensor that is made of constants only, else None."""
        key = tensor_name(text)
        if key not in self._constants:
            node = self._graph[node_of(text)]
            is_constant = node.op == "Const"
            self._constants[key] = tf.make_ndarray(node.attr["value"].tensor) if is_constant else self._folded(key)
        return self._constants[key]

    def _folded(self, tensor: str) -> Any:
        behind = self._graph.ancestors([node_of(tensor)], control=False)
        if len(behind) > _SMALL or behind & self._given.keys():
            return None
        nodes = Graph((n for n in self._graph if n.name in behind), self._graph.library, self._graph.versions)
        if any(n.op in ops.PLACEHOLDERS or ops.is_stateful(n) or ops.functions_of(n) for n in nodes):
            return None
        with tf.Graph().as_default():
            (found,) = tf.import_graph_def(_data_only(nodes), return_elements=[tensor], name="")
            with tf.compat.v1.Session() as session:
                return session.run(found)

    # -- control flow ------------------------------------------------------------------------

    def _merge(self, op: Op) -> Value | Sequence[Value]:
        """The value of the branch that was taken: an inlined branch is tied to its condition by control edges only."""
        decided = self._decided[op.node.name]
        if not decided or not all(is_number(v) for condition in decided for v in self._values[condition]):
            return op.unknown(_BRANCH)
        found = op.inputs[0]
        for value in op.inputs[1:]:
            found = op.joined(found, value)
        return [found, FREE]

    def _branches(self, op: Op) -> Value | Sequence[Value]:
        """A call: what its function returns, or what any of its functions does."""
        first = arguments_from(op.node)
        for condition in op.inputs[:first]:
            if not is_number(condition):
                return condition if isinstance(condition, Unknown) else op.unknown(_BRANCH)
        inputs, texts = op.inputs[first:], op.texts[first:]
        shapes = [self._shape(text) for text in texts]
        constants = {p: op.constant_of(text) for p, text in enumerate(texts) if isinstance(inputs[p], Free)}
        found: list[Value] | None = None
        for name in self._bodies.library.called(op.node):
            results = self._results(op, name, inputs, shapes, constants)
            found = results if found is None else [op.joined(a, b) for a, b in zip(found, results)]
        return op.unknown("calls a function that is not known", unheard=True) if found is None else found

    def _results(
        self,
        op: Op,
        name: str,
        inputs: Sequence[Value],
        shapes: Sequence[Shape | None],
        constants: Mapping[int, Any],
    ) -> list[Value]:
        """What a function returns that an op calls."""
        body = self._bodies.library.body(name)
        known = {tensor_name(body.arguments[p]): c for p, c in constants.items() if c is not None}
        given = dict(zip(body.arguments, inputs))
        inside = Analysis(self._bodies.graph(name, shapes), self._bodies, given, known, name)
        op.notes.update(dict.fromkeys(inside.notes_behind(body.results)))
        return [inside.value_of(text) for text in body.results]

    def _loop(self, op: Op) -> Value | Sequence[Value]:
        """What a loop carries, after as many rounds as it takes to settle."""
        body, condition = (op.node.attr[key].func.name for key in ("body", "cond"))
        shapes = [shape_sizes(s) for s in op.node.attr["output_shapes"].list.shape] or [
            self._shape(text) for text in op.texts
        ]
        fixed = self._passed_on(body)
        constants = {p: op.constant_of(op.texts[p]) for p in fixed if isinstance(op.inputs[p], Free)}
        shapes = [self._shape(t) if p in fixed else s for p, (t, s) in enumerate(zip(op.texts, shapes))]
        # The counter of a loop is the same number for all examples, but not the one that it starts from.
        carried = [v if p in fixed else _any_number(v) for p, v in enumerate(op.inputs)]
        for _ in range(_ROUNDS):
            results = self._results(op, body, carried, shapes, constants)
            after = [
                v if p in fixed else op.joined(v, _any_number(r)) for p, (v, r) in enumerate(zip(carried, results))
            ]
            if after == carried:
                (again,) = self._results(op, condition, carried, shapes, constants)
                return carried if is_number(again) else self._by_the_batch(op, carried, fixed)
            carried = after
        return op.unknown("is a loop whose values do not settle")

    def _by_the_batch(self, op: Op, carried: Sequence[Value], fixed: set[int]) -> Value | Sequence[Value]:
        """A loop whose rounds the batch decides: one for each example is followed, as map_fn makes it."""
        body, condition = (self._bodies.library.body(op.node.attr[key].func.name) for key in ("body", "cond"))
        counters = map_loops.counters(condition, body, op)
        if counters is None or not map_loops.reads_and_writes_at(body, counters):
            return op.unknown("is a loop that runs as often as the examples say, or as there are examples")
        written = map_loops.written(body, counters)
        other = op.unknown("carries values from one example to the next")

        def after(position: int, value: Value) -> Value:
            if position in fixed:
                return value
            if isinstance(value, ListOf) and value.examples:
                return replace(value, complete=value.complete or position in written)
            return other

        return [after(position, value) for position, value in enumerate(carried)]

    def _passed_on(self, name: str) -> set[int]:
        """Which variables of a loop stay as they are."""
        body = self._bodies.library.body(name)
        return {p for p, text in enumerate(body.results) if body.argument_of(text) == p}


def _any_number(value: Value) -> Value:
    """The same without what is known of its size."""
    return Free(value.power) if isinstance(value, Free) and value.sizes is not None else value


def _of_one_example(op: Op) -> Value | None:
    """Whatever an op does with a single example and what does not depend on the batch, is of that example."""
    ones = {v for v in op.inputs if isinstance(v, One)}
    if len(ones) != 1 or any(not isinstance(v, One) and not is_number(v) for v in op.inputs):
        return None
    return ones.pop()


def _switch(op: Op) -> Value:
    """The value on the way into the branch that is taken."""
    value, decision = op.inputs
    if is_number(decision):
        return value
    return op.unknown(_BRANCH)


def _data_only(nodes: Graph) -> Any:
    """The nodes without what ties them to others: control inputs and colocation."""
    graph_def = nodes.to_graph_def()
    for node in graph_def.node:
        node.attr.pop("_class", None)
        node.input[:] = data_texts(node)
    return graph_def
