"""Follow the examples through a graph, functions, branches and loops included."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from caramel.frontend.attributes import SIZED_ATTRIBUTE, targets_at
from caramel.frontend.batch import elementwise, map_loops, rules, sizes
from caramel.frontend.batch.domain import (
    INVARIANT,
    Examples,
    Facet,
    Independent,
    MicroBatches,
    Note,
    SingleExample,
    Size,
    TensorList,
    Total,
    Unknown,
    Value,
    Whole,
    is_everywhere,
    is_invariant,
)
from caramel.frontend.batch.micro_batches import of_micro_batches
from caramel.frontend.batch.op import KEEPS_NUMBERS, Op
from caramel.frontend.batch.tensor_gradients import TensorGradient, gradient_by_tensor, tensor_gradients
from caramel.graph import loops, ops
from caramel.graph.folding import folded
from caramel.graph.functions import Library, arguments_from
from caramel.graph.graph import Graph, NodeDef, data_texts, node_of, parse_input, tensor_name
from caramel.graph.guards import guards_of
from caramel.graph.shapes import Shape, static_shape, with_inferred_shapes
from caramel.graph.shapes import sizes as shape_sizes

_MAX_ROUNDS = 10
"""Rounds after which the values that a loop carries must have settled; each round only loses knowledge."""

_SAME_ENTRIES = frozenset({"Identity", "Reshape", "Squeeze", "ExpandDims", "StopGradient"})
"""Ops that leave the entries of their first input as they are, in the same order."""

_NONE, _REST = Size(Fraction(0)), Size(Fraction(-1))
"""The begin and the size of a slice that takes all of an axis."""

_MAX_DEPTH = 8
"""Number of ops one after the other by which two tensors are told to be the same."""

_MAX_SPELLED_ENTRIES = 64
"""Number of entries of the largest constant that is told by its entries; a larger one is told by its name."""

_LOCAL_BRANCH = "takes a branch that the examples decide, or how many there are"
"""Predicate, for messages, of an op whose branch depends on the batch."""


class FunctionBodies:
    """The functions of a graph, with the static shapes that follow from those of their arguments.

    Attributes:
        library: functions of the graph.
        row_constants: values of constants that follow from the number of examples, by (function, node); None where it
            is not known which do.
        differentiated: values of what is differentiated in bodies of loops, by (loop, tensor in its body).
        is_complete: whether all nodes of functions are interpreted, and not only what goes into their results.
        remainder_readers: names of the nodes, as far as they were interpreted, that read something of the rows that no
            micro-batch has, or of their number.

    Args:
        graph: nodes, with the library of the functions that they call.
        row_constants: see the attributes.
        is_complete: see the attributes.
    """

    def __init__(
        self,
        graph: Graph,
        row_constants: Mapping[tuple[str, str], Value] | None = None,
        is_complete: bool = False,
    ) -> None:
        self.is_complete = is_complete
        self.remainder_readers: list[str] = []
        self.library = Library(graph)
        self.row_constants = row_constants
        self.differentiated: dict[tuple[str, str], Value] = {}
        self._outer = graph
        self._graphs: dict[tuple[str, tuple[Shape | None, ...]], Graph] = {}

    def graph(self, name: str, shapes: Sequence[Shape | None]) -> Graph:
        """The nodes of a function that gets tensors of these shapes.

        Args:
            name: name of the function.
            shapes: static shape of each argument; None where not even the rank is known.
        """
        key = (name, tuple(shapes))
        if key not in self._graphs:
            body = self.library.body(name)
            nodes = Graph(body.graph, self._outer.library, self._outer.versions)
            self._graphs[key] = with_inferred_shapes(nodes, dict(zip(body.arguments, shapes)))
        return self._graphs[key]


class Analysis:
    """Abstract interpretation of a graph: the abstract value of each tensor.

    Args:
        graph: nodes with ``_output_shapes`` attributes.
        bodies: functions that the nodes call.
        given: abstract values of some nodes, by name; inputs that are not among them do not depend on the batch.
        constants: constant values, by tensor ``node:index``, of arguments that are constants at the call.
        function: name of the function with these nodes; "" for the graph itself.
        limits: numbers below which arguments are with which a loop counts, by tensor ``node:index``.
    """

    def __init__(
        self,
        graph: Graph,
        bodies: FunctionBodies,
        given: Mapping[str, Value],
        constants: Mapping[str, np.ndarray] | None = None,
        function: str = "",
        limits: Mapping[str, int] | None = None,
    ) -> None:
        self._limits = dict(limits or {})
        self._graph = graph
        self._bodies = bodies
        self._given = dict(given)
        self._constants = dict(constants or {})
        self._function = function
        self._values: dict[str, Sequence[Value]] = {}
        self._notes: dict[str, dict[str, Note]] = {}

    @cached_property
    def _decided(self) -> Mapping[str, Sequence[str]]:
        """The nodes whose values choose between the inputs of a Merge, by the Merge."""
        return guards_of(self._graph).decided

    @cached_property
    def tensor_gradients(self) -> Mapping[str, TensorGradient]:
        """The gradients with respect to tensors, by the node that carries them."""
        return tensor_gradients(self._graph)

    def value_of(self, tensor: str) -> Value:
        """The abstract value of a tensor."""
        name, index = parse_input(tensor)
        if name not in self._values:
            needed = self._behind([name], lambda n: n in self._values)
            for current in self._graph.order:
                if current in needed and current not in self._values:
                    self._values[current] = self._of(self._graph[current])
        outputs = self._values[name]
        return outputs[index]

    def constant_of(self, tensor: str) -> Any:
        """The value of a tensor that is made of constants only; None for any other tensor."""
        return self._constant(tensor)

    def complete(self) -> None:
        """Interpret all nodes."""
        for name in self._graph.order:
            if name not in self._values:
                self._values[name] = self._of(self._graph[name])

    def remainder_readers(self) -> Sequence[str]:
        """See `FunctionBodies`; of the whole graph, with what is assumed now."""
        self._bodies.remainder_readers.clear()
        self._values.clear()
        self.complete()
        return tuple(self._bodies.remainder_readers)

    @property
    def differentiated(self) -> Mapping[tuple[str, str], Value]:
        """See `FunctionBodies`; of the loops that were interpreted so far."""
        return self._bodies.differentiated

    def inner_nodes(self, node: NodeDef) -> Iterator[NodeDef]:
        """The nodes that run inside a call."""
        return (inner for _, inner in self._bodies.library.inner_nodes(node))

    def assume(self, node: str, value: Value) -> None:
        """Assume an abstract value for a node, in place of the interpretation's own.

        Args:
            node: name of the node.
            value: abstract value of its outputs.
        """
        self._given[node] = value
        self._values.clear()

    def assuming(self, values: Mapping[str, Value]) -> Analysis:
        """Another interpretation of the same graph, with these values for some nodes.

        Args:
            values: abstract value of the outputs of nodes, by name.
        """
        return Analysis(
            self._graph, self._bodies, {**self._given, **values}, self._constants, self._function, self._limits
        )

    def notes_behind(self, tensors: Sequence[str]) -> dict[str, Note]:
        """What of the whole batch ops behind some tensors put into values of single examples, by their names."""
        for tensor in tensors:
            self.value_of(tensor)
        behind = self._behind([node_of(tensor) for tensor in tensors])
        found: dict[str, Note] = {}
        for name in self._graph.order:
            if name in behind:
                found.update(self._notes[name])
        return found

    def _behind(self, names: Sequence[str], stop: Callable[[str], bool] = lambda name: False) -> set[str]:
        """The nodes that go into some nodes as data, or that decide from which of two branches the data comes."""
        return self._graph.ancestors(
            names,
            control=False,
            stop=lambda name: name in self._given or stop(name),
            further=lambda name: self._decided[name] if self._graph[name].op == "Merge" else (),
        )

    def _of(self, node: NodeDef) -> Sequence[Value]:
        outputs = max(len(ops.output_types(node)), 1)
        notes: dict[str, Note] = {}
        self._notes[node.name] = notes
        if node.name in self._given:
            return [self._given[node.name]] * outputs
        if node.name in self.tensor_gradients:
            gradient = gradient_by_tensor(self._graph, node.name, self.tensor_gradients[node.name], self.value_of)
            if gradient is not None:
                return [gradient]
        if SIZED_ATTRIBUTE in node.attr:
            return [self._computed(data_texts(node)[0])]
        if node.op == "Const":
            of_rows = (self._bodies.row_constants or {}).get((self._function, node.name))
            return [sizes.of_constant(self._constant(node.name)) if of_rows is None else of_rows]
        texts = tuple(data_texts(node))
        inputs = tuple(map(self._computed, texts))
        outcome = self._by_rules(
            Op(
                node,
                inputs,
                texts,
                self._shape,
                self._constant,
                self._expression,
                self._producer,
                self._computed,
                outputs,
                self._function,
                notes,
                self._limit,
                self._bodies.row_constants is not None,
            )
        )
        values = outcome if isinstance(outcome, Sequence) else [outcome] * outputs
        has_body = ops.is_call(node) or node.op in ops.LOOPS
        if isinstance(outcome, Unknown) or (not has_body and any(isinstance(v, Unknown) for v in values)):
            self._note_remainder(node, inputs)
        return values

    def _note_remainder(self, node: NodeDef, values: Sequence[Value]) -> None:
        """Note a node that reads some values in a way that cannot be followed, if one has rows of no micro-batch."""
        if any(isinstance(v, MicroBatches) for v in values):
            self._bodies.remainder_readers.append(node.name)

    def _joined(self, op: Op, first: Value, second: Value) -> Value:
        """The value of an output that has one of two values."""
        value = op.joined(first, second)
        if isinstance(value, Unknown):
            self._note_remainder(op.node, (first, second))
        return value

    def _by_rules(self, op: Op) -> Value | Sequence[Value]:
        kind = op.node.op
        if kind == "Switch":
            return _switch(op)
        if kind == "Merge" and not self._is_decided_everywhere(op):
            return next((v for v in op.inputs if isinstance(v, Unknown)), op.unknown(_LOCAL_BRANCH))
        if any(isinstance(v, Whole) for v in op.inputs):
            return self._of_whole(op)
        if kind in ops.LOOPS:
            return self._loop(op)
        if ops.is_call(op.node):
            return self._branches(op)
        if kind != "Merge" and any(isinstance(v, MicroBatches) for v in op.inputs):
            return self._of_micro_batches(op)
        if kind in rules.PARTIAL_OPS:
            return rules.ALL_RULES[kind](op)
        if kind == "Minimum" and (bound := elementwise.bound_of(op)) is not None:
            return bound
        if unknown := next((v for v in op.inputs if isinstance(v, Unknown)), None):
            return unknown
        if kind == "Merge":
            return self._merge(op)
        if (reader := rules.reader_of(op)) is not None:
            return reader(op)
        if kind in rules.ON_SHAPES_AND_LISTS:
            return rules.ALL_RULES[kind](op)
        if kind in sizes.SIZE_RULES and all(isinstance(v, Independent) for v in op.inputs):
            value = sizes.SIZE_RULES[kind](op)
            if value is not None:
                return value
        if all(is_invariant(v) for v in op.inputs):
            return INVARIANT
        if (single_example := _of_one_example(op)) is not None:
            return single_example
        if any(isinstance(v, SingleExample) for v in op.inputs):
            return op.unknown("mixes a single example with others")
        if kind in rules.ALL_RULES:
            return rules.ALL_RULES[kind](op)
        return op.unknown("is not known to treat each example by itself", unmodelled=True)

    def _of_micro_batches(self, op: Op) -> Value | Sequence[Value]:
        """The values of an op that reads a batch of micro-batches and a remainder."""
        value = of_micro_batches(op)
        return self._of_each_row(op) or value if isinstance(value, Unknown) else value

    def _of_each_row(self, op: Op) -> Value | None:
        """The value of an op that computes something of each row of such a batch; else None."""
        counts = {v.count for v in op.inputs if isinstance(v, MicroBatches) and v.facet is Facet.VALUES}
        if len(counts) != 1 or any(isinstance(v, MicroBatches) and v.facet is not Facet.VALUES for v in op.inputs):
            return None
        examples = Examples(0, before=counts.pop())
        value = self._by_rules(
            replace(op, inputs=tuple(examples if isinstance(v, MicroBatches) else v for v in op.inputs))
        )
        return MicroBatches(examples.before or 1) if value == examples else None

    def _of_whole(self, op: Op) -> Value | Sequence[Value]:
        """The values of an op on the whole batch: every worker has them, if all other inputs are the same, too."""
        if not all(map(is_everywhere, op.inputs)):
            return replace(
                op.unknown("has values of the whole batch beside those of a worker's part"), beside_whole=True
            )
        if ops.is_seeded_random(op.node) or any(
            ops.is_seeded_random(inner) for _, inner in self._bodies.library.inner_nodes(op.node)
        ):
            return op.unknown("draws random numbers for the whole batch, others on each worker")
        # Whole numbers may become sizes; other numbers of a static shape may stand beside anything.
        types = [ops.dtype_name(t) for t in ops.output_types(op.node)]
        shapes = [op.result_shape(index) for index in range(len(types))]
        return [
            INVARIANT if dtype.startswith(("float", "bfloat")) and shape is not None and None not in shape else Whole()
            for dtype, shape in zip(types, shapes)
        ]

    # -- facts -------------------------------------------------------------------------------

    def _shape(self, text: str) -> Shape | None:
        shape = static_shape(self._graph, text)
        node = self._graph[node_of(text)]
        if node.op != "Slice" or shape is None or None not in shape:
            return shape
        # Of a slice with one size that is not constant, TensorFlow knows no size.
        source = self._shape(node.input[0])
        begin, size = (self._values[node_of(t)][parse_input(t)[1]] for t in node.input[1:3])
        parts = [v.sizes if isinstance(v, Independent) else None for v in (begin, size)]
        if source is None or any(p is None or len(p) != len(source) for p in parts):
            return shape
        is_whole = [b == _NONE and s == _REST for b, s in zip(*(p for p in parts if p is not None))]
        return tuple(d if d is not None or not whole else own for d, whole, own in zip(shape, is_whole, source))

    def _constant(self, text: str) -> Any:
        """The value of a tensor that is made of constants only; None for any other tensor."""
        key = tensor_name(text)
        if key not in self._constants:
            node = self._graph[node_of(text)]
            is_constant = node.op == "Const"
            self._constants[key] = (
                tf.make_ndarray(node.attr["value"].tensor)
                if is_constant
                else folded(self._graph, key, self._bodies.library, self._given)
            )
        return self._constants[key]

    def _expression(self, text: str, depth: int = _MAX_DEPTH) -> str:
        """A text for a tensor's entries, in their order: the same for tensors that are computed alike."""
        name, index = parse_input(text)
        node = self._graph[name]
        if node.op in _SAME_ENTRIES:
            return self._expression(node.input[0], depth)
        own = f"{self._function}/{name}:{index}"
        if node.op == "Const":
            value = self._constant(text)
            return f"{value.dtype}{value.tolist()}" if value.size <= _MAX_SPELLED_ENTRIES else own
        if depth == 0 or name in self._given or ops.is_stateful(node) or ops.functions_of(node) or not node.input:
            return own
        attributes = sorted(k for k in node.attr if not k.startswith("_"))
        values = [node.attr[k].SerializeToString(deterministic=True).hex() for k in attributes]
        inputs = [self._expression(t, depth - 1) for t in data_texts(node)]
        return f"{node.op}:{index}({', '.join(inputs)}; {', '.join(values)})"

    def _limit(self, text: str) -> int | None:
        """The number below which a tensor is that a loop counts with; None for any other."""
        while tensor_name(text) not in self._limits:
            node = self._producer(text)
            if node.op not in KEEPS_NUMBERS:
                return None
            text = node.input[0]
        return self._limits[tensor_name(text)]

    def _producer(self, text: str) -> NodeDef:
        return self._graph[node_of(text)]

    def _computed(self, text: str) -> Value:
        """The value of a tensor whose node was interpreted before."""
        return self._values[node_of(text)][parse_input(text)[1]]

    # -- control flow ------------------------------------------------------------------------

    def _is_decided_everywhere(self, op: Op) -> bool:
        """Whether all workers take the same branch: control edges alone tie an inlined branch to its condition."""
        decided = self._decided[op.node.name]
        return bool(decided) and all(is_everywhere(v) for condition in decided for v in self._values[condition])

    def _merge(self, op: Op) -> Sequence[Value]:
        """The value of the taken branch."""
        merged = op.inputs[0]
        for value in op.inputs[1:]:
            merged = self._joined(op, merged, value)
        return [merged, INVARIANT]

    def _branches(self, op: Op) -> Value | Sequence[Value]:
        """The values of a call: those that its function returns, or that cover the results of all its functions."""
        first = arguments_from(op.node)
        if any(isinstance(condition, SingleExample) for condition in op.inputs[:first]):
            return _of_one_example(op) or op.unknown(_LOCAL_BRANCH)
        for condition in op.inputs[:first]:
            if not is_invariant(condition):
                return condition if isinstance(condition, Unknown) else op.unknown(_LOCAL_BRANCH)
        inputs, texts = op.inputs[first:], op.texts[first:]
        shapes = [self._shape(text) for text in texts]
        constants = {p: op.constant_of(text) for p, text in enumerate(texts) if isinstance(inputs[p], Independent)}
        merged: list[Value] | None = None
        for name in self._bodies.library.called(op.node):
            results = self._results(op, name, inputs, shapes, constants)
            merged = results if merged is None else [self._joined(op, a, b) for a, b in zip(merged, results)]
        return op.unknown("calls a function that is not known", unmodelled=True) if merged is None else merged

    def _results(
        self,
        op: Op,
        name: str,
        inputs: Sequence[Value],
        shapes: Sequence[Shape | None],
        constants: Mapping[int, Any],
        limits: Mapping[int, int] | None = None,
    ) -> list[Value]:
        """The values that a function returns to the op that calls it."""
        body = self._bodies.library.body(name)
        analysis = self._inside(name, inputs, shapes, constants, limits)
        op.notes.update(analysis.notes_behind(body.results))
        for _, tensor in itertools.chain.from_iterable(map(targets_at, body.inner)):
            self._bodies.differentiated[op.node.name, tensor] = analysis.value_of(tensor)
        return [analysis.value_of(text) for text in body.results]

    def _inside(
        self,
        name: str,
        inputs: Sequence[Value],
        shapes: Sequence[Shape | None],
        constants: Mapping[int, Any],
        limits: Mapping[int, int] | None = None,
    ) -> Analysis:
        """The interpretation of a function that gets these arguments."""
        body = self._bodies.library.body(name)
        below = {tensor_name(body.arguments[p]): limit for p, limit in (limits or {}).items()}
        argument_constants = {tensor_name(body.arguments[p]): c for p, c in constants.items() if c is not None}
        argument_values = dict(zip(body.arguments, inputs))
        analysis = Analysis(
            self._bodies.graph(name, shapes), self._bodies, argument_values, argument_constants, name, below
        )
        if self._bodies.is_complete:
            analysis.complete()
        return analysis

    def _loop(self, op: Op) -> Value | Sequence[Value]:
        """The values that a loop carries, after as many rounds as they take to settle."""
        body, condition = (op.node.attr[key].func.name for key in ("body", "cond"))
        shapes = [shape_sizes(s) for s in op.node.attr["output_shapes"].list.shape] or [
            self._shape(text) for text in op.texts
        ]
        fixed = self._passed_on(body)
        constants = {p: op.constant_of(op.texts[p]) for p in fixed if isinstance(op.inputs[p], Independent)}
        shapes = [self._shape(t) if p in fixed else s for p, (t, s) in enumerate(zip(op.texts, shapes))]
        # The counter of a loop is the same number for all examples, but not the one that it starts from.
        carried = [v if p in fixed else _any_number(v) for p, v in enumerate(op.inputs)]
        counting = loops.counters(self._bodies.library.body(condition), self._bodies.library.body(body), op.integer)
        limits = {p: counter.limit for p, counter in counting.items() if counter.first >= 0 and counter.step == 1}
        carried = self._with_sums(op, carried, shapes, constants, limits)
        for _ in range(max(_MAX_ROUNDS, 2 + len(carried))):  # each may have its value from the one before it
            results = self._results(op, body, carried, shapes, constants, limits)
            after = [
                v if p in fixed else self._joined(op, v, _any_number(r))
                for p, (v, r) in enumerate(zip(carried, results))
            ]
            if after == carried:
                (goes_on,) = self._results(op, condition, carried, shapes, constants)
                if not is_invariant(goes_on):
                    return self._by_the_batch(op, carried, fixed)
                return self._with_gathered(op, carried, self._inside(body, carried, shapes, constants, limits))
            carried = after
        return op.unknown("is a loop whose values do not settle")

    def _with_sums(
        self,
        op: Op,
        carried: Sequence[Value],
        shapes: Sequence[Shape | None],
        constants: Mapping[int, Any],
        limits: Mapping[int, int],
    ) -> list[Value]:
        """What a loop carries at first: a zero to which the first round adds a sum over the examples is one of none."""
        first = {
            p: op.constant_of(op.texts[p])
            for p, value in enumerate(carried)
            if p not in constants and p not in limits and is_invariant(value)
        }
        zeros = {p: value for p, value in first.items() if value is not None and _is_zero(value)}
        if not zeros:
            return [*carried]
        results = self._results(op, op.node.attr["body"].func.name, carried, shapes, {**constants, **zeros}, limits)
        return [r if p in zeros and isinstance(r, Total) else v for p, (v, r) in enumerate(zip(carried, results))]

    def _with_gathered(self, op: Op, carried: Sequence[Value], inside: Analysis) -> list[Value]:
        """The values that a loop of a fixed number of rounds returns: all entries that its rounds put together.

        Args:
            op: the loop.
            carried: values in any of its rounds.
            inside: the interpretation of its body with these.
        """
        body, condition = (self._bodies.library.body(op.node.attr[key].func.name) for key in ("body", "cond"))
        rounds = loops.rounds(condition, body, op.integer)
        if rounds is None:
            return [*carried]
        counting = loops.counters(condition, body, op.integer)
        written = map_loops.lists_written(body, {p for p, c in counting.items() if (c.first, c.step) == (0, 1)})

        def after(position: int, value: Value) -> Value:
            start = op.inputs[position]
            if isinstance(value, TensorList) and isinstance(start, TensorList) and position in written:
                is_known = start.length is not None and start.length <= rounds
                return replace(value, length=rounds, filled=rounds) if is_known else value
            behind = map_loops.appended(body, position) if isinstance(value, Unknown) else None
            shape = op.shape(position)
            if behind is None or not shape or not rounds:
                return value
            appended, axis = inside.value_of(behind[0]), inside.constant_of(behind[1])
            if not isinstance(appended, Examples) or appended.chosen or appended.before is None or axis is None:
                return value
            is_along = int(axis) % len(shape) == appended.axis and shape[appended.axis] == 0
            return replace(appended, before=appended.before * rounds) if is_along else value

        return [after(position, value) for position, value in enumerate(carried)]

    def _by_the_batch(self, op: Op, carried: Sequence[Value], fixed: set[int]) -> Value | Sequence[Value]:
        """The values of a loop whose number of rounds the batch decides: one round for each example, as in map_fn."""
        body, condition = (self._bodies.library.body(op.node.attr[key].func.name) for key in ("body", "cond"))
        counters = map_loops.counters(condition, body, op)
        if counters is None or not map_loops.reads_and_writes_at(body, counters):
            return op.unknown("is a loop that runs as often as the examples say, or as there are examples")
        written = map_loops.lists_written(body, counters)
        other = op.unknown("carries values from one example to the next")
        self._note_remainder(op.node, [v for p, v in enumerate(carried) if p not in fixed])

        def after(position: int, value: Value) -> Value:
            if position in fixed:
                return value
            if isinstance(value, TensorList) and value.per_example:
                return replace(value, complete=value.complete or position in written)
            return other

        return [after(position, value) for position, value in enumerate(carried)]

    def _passed_on(self, name: str) -> set[int]:
        """Positions of the loop variables that no round changes."""
        body = self._bodies.library.body(name)
        return {p for p, text in enumerate(body.results) if body.argument_of(text) == p}


def _is_zero(value: Any) -> bool:
    return value.dtype.kind in "iuf" and not value.any()


def _any_number(value: Value) -> Value:
    """The value without the exact sizes, if it has any."""
    return Independent(value.power) if isinstance(value, Independent) and value.sizes is not None else value


def _of_one_example(op: Op) -> Value | None:
    """The example of which an op's result is a function, where all other inputs are invariant; else None."""
    examples = {v for v in op.inputs if isinstance(v, SingleExample)}
    if len(examples) != 1 or any(not isinstance(v, SingleExample) and not is_invariant(v) for v in op.inputs):
        return None
    return examples.pop()


def _switch(op: Op) -> Value:
    """The value on its way into the taken branch."""
    value, decision = op.inputs
    return value if isinstance(value, Unknown) or is_everywhere(decision) else op.unknown(_LOCAL_BRANCH)
