"""Accumulation: gradients that a program adds up before it uses them are aggregated once, as their sum.

A program adds up the gradients of micro-batches within a step, or over several steps in variables that
it empties when it has applied them. The sum of the workers' means is the mean of the workers' sums, so
each worker adds up its own gradients, and the sums that the rest of the program uses are aggregated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from tensorflow.python.framework import tensor_util

from caramel.frontend.captured import RawVariable
from caramel.graph import ops
from caramel.graph.functions import Library
from caramel.graph.graph import Graph, NodeDef, behind_identities, data_texts, node_of, tensor_name
from caramel.model import Gradient

_SUM_OPS = frozenset({"Add", "AddV2", "AddN"})
"""Ops that add gradients up."""

_SCALING_OPS = frozenset({"Mul", "RealDiv"})
"""Ops that may scale a gradient by a constant."""

_READS_TO_ADD = {"AssignAddVariableOp": 0, "AssignVariableOp": 1}
"""Number of reads of the variable in the written value with which a write adds to the variable, by the write's op."""


@dataclass(frozen=True)
class Accumulation:
    """Gradients to aggregate after accumulation.

    Attributes:
        gradients: gradients, or sums of gradients, to aggregate, in order.
        accumulators: handle nodes of the variables in which each worker adds up its own gradients.
    """

    gradients: tuple[Gradient, ...]
    accumulators: frozenset[str]


def accumulated(
    step: Graph,
    library: Library,
    gradients: Sequence[Gradient],
    variables: Sequence[RawVariable],
    row_constants: Collection[tuple[str, str]],
) -> Accumulation:
    """Find the sums of gradients.

    Args:
        step: nodes of the step.
        library: functions that the nodes call.
        gradients: gradients as they leave the differentiation.
        variables: variables of the program.
        row_constants: constants that follow from the number of examples, so that a worker has others than one device;
            see `caramel.frontend.captured.RawProgram`.
    """
    analysis = _Analysis(step, library, variables, {name for function, name in row_constants if not function})
    aggregated: list[Gradient] = []
    accumulators: set[str] = set()
    by_parameter: dict[str, list[Gradient]] = {}
    for gradient in gradients:
        by_parameter.setdefault(gradient.parameter, []).append(gradient)
    for parameter_gradients in by_parameter.values():
        if any(g.is_sparse for g in parameter_gradients):
            aggregated += parameter_gradients
            continue
        joined, used = analysis.joined(parameter_gradients)
        aggregated += joined
        accumulators |= used
    order = {g.parameter: position for position, g in reversed(list(enumerate(gradients)))}
    aggregated.sort(key=lambda g: order[g.parameter])
    return Accumulation(_in_order(step, aggregated), frozenset(accumulators))


def _in_order(step: Graph, gradients: Sequence[Gradient]) -> tuple[Gradient, ...]:
    """The gradients, each after those that it depends on: all workers aggregate in this order."""
    bits: dict[str, int] = {}
    for number, gradient in enumerate(gradients):
        name = node_of(gradient.tensor)
        bits[name] = bits.get(name, 0) | 1 << number
    behind: dict[str, int] = {}
    for name in step.order:
        behind[name] = 0
        for text in step[name].input:
            behind[name] |= behind[node_of(text)] | bits.get(node_of(text), 0)

    def place(number: int) -> tuple[int, int]:
        """Sort key: a gradient depends on more gradients than any gradient that it depends on, so it comes later."""
        return behind[node_of(gradients[number].tensor)].bit_count(), number

    return tuple(gradients[number] for number in sorted(range(len(gradients)), key=place))


@dataclass(frozen=True)
class Terms:
    """The terms of a sum.

    Attributes:
        gradients: tensors of the gradients in the sum, scaled by constants or not.
        base_count: number of times that the base, to which they are added, is in the sum; it is never scaled.
        path: names of the nodes that add and scale.
        scales: names of the constants by which they scale.
    """

    gradients: frozenset[str]
    base_count: int
    path: frozenset[str]
    scales: frozenset[str] = frozenset()


class Sums:
    """Search for sums in a graph.

    Args:
        graph: nodes to search.
        varying: constants that are other numbers on each worker than on one device.
    """

    def __init__(self, graph: Graph, varying: Collection[str] = ()) -> None:
        self._step = graph
        self._varying = varying

    def terms(self, text: str, markers: Collection[str], is_base: Callable[[str], bool]) -> Terms | None:
        """The terms of which a tensor is the sum.

        Args:
            text: input text of the tensor.
            markers: tensors of the gradients.
            is_base: predicate that tells the base, to which the gradients are added, from other tensors.

        Returns:
            The terms; None if the tensor is anything else than a sum of gradients and bases.
        """
        if tensor_name(text) in markers:
            return Terms(frozenset([tensor_name(text)]), 0, frozenset())
        if is_base(text):
            return Terms(frozenset(), 1, frozenset())
        node = self._step[node_of(text)]
        inputs = data_texts(node)
        scales: frozenset[str] = frozenset()
        if node.op in _SUM_OPS:
            parts = [self.terms(i, markers, is_base) for i in inputs if not self.is_zero(i)]
        elif node.op == "Identity":
            parts = [self.terms(inputs[0], markers, is_base)]
        elif (scaled := self.scaled(node)) is not None:
            parts = [self.terms(scaled, markers, is_base)]
            scales = frozenset(self._constant_behind(other).name for other in inputs if other != scaled)
            if parts[0] is not None and parts[0].base_count:
                return None  # a running average, not a sum
        else:
            return None
        if any(part is None for part in parts):
            return None
        known_parts = [part for part in parts if part is not None]
        return Terms(
            frozenset().union(*(part.gradients for part in known_parts)),
            sum(part.base_count for part in known_parts),
            frozenset([node.name]).union(*(part.path for part in known_parts)),
            scales.union(*(part.scales for part in known_parts)),
        )

    def scaled(self, node: NodeDef) -> str | None:
        """The input that a node multiplies or divides by a constant number; None for any other node."""
        if node.op not in _SCALING_OPS:
            return None
        first, second = data_texts(node)
        if self._is_constant_number(second):
            return first
        return second if node.op == "Mul" and self._is_constant_number(first) else None

    def _constant_behind(self, text: str) -> NodeDef:
        """The node whose number a tensor has, perhaps in another element type."""
        node = self._behind_identities(text)
        return self._constant_behind(node.input[0]) if node.op == "Cast" else node

    def _is_constant_number(self, text: str) -> bool:
        node = self._constant_behind(text)
        is_number = node.op == "Const" and not node.attr["value"].tensor.tensor_shape.dim
        return is_number and node.name not in self._varying

    def is_zero(self, text: str) -> bool:
        """Whether a tensor consists of zeros."""
        node = self._behind_identities(text)
        if node.op == "ZerosLike":
            return True
        if node.op == "Fill":
            return self.is_zero(node.input[1])
        if node.op != "Const" or ops.dtype_name(node.attr["dtype"].type) == "string":
            return False
        return not np.any(tensor_util.MakeNdarray(node.attr["value"].tensor))

    def _behind_identities(self, text: str) -> NodeDef:
        return self._step[node_of(behind_identities(self._step, text))]


class _Analysis:
    def __init__(
        self, step: Graph, library: Library, variables: Sequence[RawVariable], varying: Collection[str]
    ) -> None:
        self._step = step
        self._sums = Sums(step, varying)
        self._candidates = {v.node: v for v in variables if v.node in step and not v.trainable}
        self._writers: dict[str, list[str]] = {}
        self._readers: dict[str, list[str]] = {}
        for node in step:
            written = library.written(node)
            for handle, _ in ops.data_inputs(node):
                if handle in self._candidates:
                    (self._writers if handle in written else self._readers).setdefault(handle, []).append(node.name)
        self._candidates = {handle: v for handle, v in self._candidates.items() if self._is_emptied(handle)}

    def joined(self, gradients: Sequence[Gradient]) -> tuple[list[Gradient], set[str]]:
        """One parameter's gradients, with summed ones replaced by their sums, and the accumulators in use."""
        markers = {g.tensor: self._uses(g.tensor, g.consumers) for g in gradients}
        leaves: dict[str, frozenset[str]] = dict(markers)
        accumulators: set[str] = set()
        for handle, variable in self._candidates.items():
            if variable.dtype == gradients[0].dtype and variable.shape == gradients[0].shape:
                remaining = self._without(handle, leaves, markers)
                if remaining is not None:
                    leaves = remaining
                    accumulators.add(handle)
        leaves = self._summed(leaves)
        if leaves == markers:
            return list(gradients), set()
        sources = self._into_sums(markers, leaves)
        sums = []
        for number, (tensor, uses) in enumerate(leaves.items()):
            name = gradients[0].parameter + ("" if number == 0 else f"#{number + 1}")
            behind = () if tensor in markers else sources
            sums.append(
                replace(gradients[0], name=name, tensor=tensor, consumers=self._consumers(tensor, uses), sources=behind)
            )
        return sums, accumulators

    def _into_sums(
        self, markers: Mapping[str, frozenset[str]], leaves: Mapping[str, frozenset[str]]
    ) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The summed gradients with the readers that sum them: a gradient may be used by itself, too."""
        adding = {tensor: uses - leaves.get(tensor, frozenset()) for tensor, uses in markers.items()}
        return tuple((tensor, self._consumers(tensor, uses)) for tensor, uses in adding.items() if uses)

    def _consumers(self, tensor: str, uses: frozenset[str]) -> tuple[str, ...]:
        """The given readers of a tensor in the form that a Gradient has: an empty tuple stands for all readers."""
        return () if uses == self._uses(tensor, ()) else tuple(sorted(uses))

    def _uses(self, tensor: str, consumers: Sequence[str]) -> frozenset[str]:
        """The given readers of a tensor, or all readers if none are given."""
        return frozenset(consumers or self._step.readers(tensor))

    # -- accumulators ------------------------------------------------------------------------

    def _is_emptied(self, handle: str) -> bool:
        """Whether something sets a variable to zero."""
        writers = [self._step[name] for name in self._writers.get(handle, ())]
        return any(w.op == "AssignVariableOp" and self._sums.is_zero(w.input[1]) for w in writers)

    def _without(
        self, handle: str, leaves: Mapping[str, frozenset[str]], markers: Iterable[str]
    ) -> dict[str, frozenset[str]] | None:
        """The leaves if a variable is an accumulator of these gradients, else None.

        An accumulator is emptied somewhere, and otherwise only ever added to. Then a node on the way into it
        does not count as a use of a gradient, and a read of it, other than to add to it, does.
        """
        adding: set[str] = set()  # nodes on the way into the variable
        is_emptied = False
        for writer in self._writers.get(handle, ()):
            node = self._step[writer]
            if node.op not in _READS_TO_ADD:
                return None
            if node.op == "AssignVariableOp" and self._sums.is_zero(node.input[1]):
                is_emptied = True
            elif self._way(node.input[1], markers, handle, adding, _READS_TO_ADD[node.op]):
                adding.add(writer)
            else:
                return None
        if not is_emptied or not adding:
            return None
        for name in adding:  # nothing on the way is used otherwise
            if not adding.issuperset(self._step.data_readers(name)):
                return None
        remaining = {tensor: uses - adding for tensor, uses in leaves.items()}
        for reader in self._readers.get(handle, ()):
            if self._step[reader].op != "ReadVariableOp":
                return None
            tensor = tensor_name(reader)
            remaining[tensor] = self._uses(tensor, ()) - adding
        return {
            tensor: uses for tensor, uses in remaining.items() if uses and any(self._is_data(tensor, u) for u in uses)
        }

    def _is_data(self, tensor: str, reader: str) -> bool:
        return any(tensor_name(text) == tensor for text in data_texts(self._step[reader]))

    def _way(self, text: str, markers: Iterable[str], handle: str, adding: set[str], reads: int) -> bool:
        """Whether a tensor is a sum of gradients, scaled or not, and of ``reads`` reads of the variable."""

        def is_read(text: str) -> bool:
            node = self._step[node_of(text)]
            return node.op == "ReadVariableOp" and node_of(node.input[0]) == handle

        terms = self._sums.terms(text, set(markers), is_read)
        if terms is None or terms.base_count != reads or not terms.gradients:
            return False
        adding.update(terms.path)
        return True

    # -- sums --------------------------------------------------------------------------------

    def _summed(self, leaves: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
        """The leaves, with those that are only summed replaced by their sum, if that makes them fewer."""
        best = current = dict(leaves)
        while len(best) > 1:
            moved = self._moved(current)
            if moved is None:
                break
            current = moved
            if len(current) < len(best):
                best = current
        return best

    def _moved(self, leaves: dict[str, frozenset[str]]) -> dict[str, frozenset[str]] | None:
        """The leaves, with some replaced by the one node that reads them, which is linear; None if no node can be."""
        for tensor, uses in leaves.items():
            if len(uses) != 1:
                continue
            (reader,) = uses
            node = self._step[reader]
            inputs = data_texts(node)
            if node.op in _SUM_OPS:
                into = [tensor_name(i) for i in inputs if not self._sums.is_zero(i)]
            elif node.op == "Identity" or tensor_name(self._sums.scaled(node) or "") == tensor:
                into = [tensor]
            else:
                continue
            if all(leaves.get(i) == frozenset([reader]) for i in into):
                total = f"{reader}:0"
                rest = {t: u for t, u in leaves.items() if t not in into}
                return {**rest, total: self._uses(total, ())}
        return None
