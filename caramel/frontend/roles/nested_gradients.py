"""Gradients inside losses: the use of one differentiation's gradients in a later one.

On one device a gradient of a variable is that of the whole batch. Here each worker has the gradient of its
own part, so the use in a later loss decides how it is treated:

- a constant to the later differentiation (a perturbation, a weight of a loss): it is aggregated first;
- one that is differentiated once more, of which the later loss is a linear function (a product with a
  vector): it stays as it is, as the later gradients are aggregated and add up to the same;
- any other: the sum of the later gradients is not what one device computes. That is refused here; where it is
  possible, `inner_sums` then sums the earlier gradient over the workers in the forward pass.

Gradients of single examples, with respect to tensors that come from the inputs, are the same on any worker.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from caramel.errors import UnsupportedError
from caramel.frontend.attributes import GRADIENT_ATTRIBUTE, OVER_WORKERS_ATTRIBUTE, RESULT_ATTRIBUTE, SOURCE_ATTRIBUTE
from caramel.frontend.captured import RawGradient, RawProgram
from caramel.frontend.roles.divergence import SHAPE_OPS, Locality, differing_in_body
from caramel.frontend.roles.refusals import refuse_functions_as_ops
from caramel.graph import ops
from caramel.graph.functions import Body, arguments_from
from caramel.graph.graph import Graph, NodeDef, data_texts, node_of, tensor_name
from caramel.graph.shapes import static_shape

_LINEAR_OPS = frozenset(
    {"Identity", "IdentityN", "Neg", "Sum", "Mean", "Reshape", "Squeeze", "ExpandDims", "Transpose", "StridedSlice"}
    | {"Slice", "Gather", "GatherV2", "Pad", "Tile"}
)
"""Ops that are linear in their first input, if the others are equal on all workers."""

_SUM_OPS = frozenset({"Add", "AddV2", "AddN", "Sub", "Pack", "ConcatV2"})
"""Ops that are linear in all their inputs together."""

_PRODUCT_OPS = frozenset({"Mul", "MatMul", "BatchMatMul", "BatchMatMulV2", "Einsum"})
"""Ops that are linear in each of their inputs by itself."""

_VALUE_FREE_OPS = SHAPE_OPS | {"ZerosLike", "OnesLike", "BroadcastGradientArgs"}
"""Ops whose result depends on shapes only."""


@dataclass(frozen=True)
class SortedGradients:
    """Gradients of a program, sorted by their treatment.

    Attributes:
        aggregated: gradients to aggregate, with the readers that get the aggregated value.
        inside: number of the call, by tensor, of the gradients that stay as they are inside a later loss.
    """

    aggregated: tuple[RawGradient, ...]
    inside: Mapping[str, int]


def sort_gradients(raw: RawProgram) -> SortedGradients:
    """Tell the gradients to aggregate from those inside losses.

    Raises:
        UnsupportedError: the gradient of a loss with a gradient inside it would not be that of one device.
    """
    return _Sorting(raw).sorted()


def gradients_inside(raw: RawProgram) -> list[RawGradient]:
    """The gradients through which later differentiations go, in the order of the calls."""
    sorting = _Sorting(raw)
    inner = set().union(*(found for _, found in sorting.behind.values()))
    return sorted((g for g in inner if g.differentiated_again), key=lambda g: (g.call, g.tensor))


class _Sorting:
    def __init__(self, raw: RawProgram) -> None:
        self._raw = raw
        self._graph = _of_interest(raw)
        self._library = raw.library
        self._by_tensor: dict[str, list[RawGradient]] = {}
        for gradient in raw.gradients:
            for tensor in (gradient.tensor, gradient.indices):
                if tensor is not None and node_of(tensor) in self._graph:
                    self._by_tensor.setdefault(tensor, []).append(gradient)
        self._split = {i.node for i in raw.inputs if i.split and i.node in self._graph}
        self._effects = self._graph.ancestors(raw.targets)
        self.behind = {call: self._walk(call) for call in sorted({g.call for g in raw.gradients})}
        self._forwards: dict[int, Collection[str]] = {}

    def sorted(self) -> SortedGradients:
        """See `sort_gradients`."""
        results = {n.name: n for n in self._graph if RESULT_ATTRIBUTE in n.attr}
        into = {g: [c for c, (_, seen) in self.behind.items() if g in seen] for g in self._raw.gradients}
        has_calls = any(RESULT_ATTRIBUTE in n.attr for c in self._graph for _, n in self._library.inner_nodes(c))
        has_legacy_loops = any(n.op in ops.LEGACY_LOOPS for n in self._graph)  # refused elsewhere, by name
        if has_legacy_loops or not (any(into.values()) or results or has_calls):
            return SortedGradients(self._raw.gradients, {})
        refuse_functions_as_ops(self._graph, self._library)
        local = self._locality.differing(self._split)
        self._refuse_by_tensors(results, local)
        aggregated: list[RawGradient] = []
        inside: dict[str, int] = {}
        for gradient, calls in into.items():
            if calls and node_of(gradient.tensor) not in local:
                continue  # of a term without examples, say: the same everywhere
            if not calls or not gradient.differentiated_again:
                aggregated.append(gradient)
                continue
            for call in calls:
                self._check(gradient.tensor, f"gradient taken at {gradient.location}", call)
            inside[gradient.tensor] = gradient.call
            readers = self._readers_outside(gradient, calls)
            if readers:
                aggregated.append(replace(gradient, consumers=readers))
        return SortedGradients(tuple(aggregated), inside)

    def _walk(self, call: int) -> tuple[set[str], set[RawGradient]]:
        """The nodes behind a call's gradients and targets, up to earlier calls' gradients, and these gradients."""
        waiting = [node_of(g.tensor) for g in self._raw.gradients if g.call == call]
        waiting += [node_of(t) for t in self._raw.targets_of(call)]
        seen = set(waiting)
        inner = {
            g for t in self._raw.targets_of(call) for g in self._by_tensor.get(tensor_name(t), ()) if g.call != call
        }
        while waiting:
            for text in data_texts(self._graph[waiting.pop()]):
                others = [g for g in self._by_tensor.get(tensor_name(text), ()) if g.call != call]
                inner.update(others)
                if not others and node_of(text) not in seen:
                    seen.add(node_of(text))
                    waiting.append(node_of(text))
        return seen, inner

    def _readers_outside(self, gradient: RawGradient, calls: Sequence[int]) -> tuple[str, ...]:
        """The readers of a gradient outside later differentiations."""
        inside = set().union(*(self.behind[call][0] for call in calls))
        consumers = gradient.consumers or self._graph.readers(gradient.tensor)
        readers = [r for r in self._graph.readers(gradient.tensor) if r in consumers and r not in inside]
        return tuple(r for r in readers if self._comes_to_something(r))

    def _comes_to_something(self, reader: str) -> bool:
        """Whether a node's value goes into a write, a target or an output; control inputs do not count."""
        returned = {*self._raw.targets, *map(node_of, self._raw.results)}
        seen, waiting = {reader}, [reader]
        while waiting:
            name = waiting.pop()
            if name in returned or self._library.written(self._graph[name]):
                return True
            for consumer in self._graph.data_readers(name):
                if consumer not in seen:
                    seen.add(consumer)
                    waiting.append(consumer)
        return False

    def _locations(self, call: int) -> str:
        return next(g.location for g in self._raw.gradients if g.call == call)

    def _is_applied(self, call: int) -> bool:
        """Whether a target of the step depends on the gradients of a call."""
        return any(node_of(g.tensor) in self._effects for g in self._raw.gradients if g.call == call)

    # -- what is exact -----------------------------------------------------------------------

    def _check(self, tensor: str, what: str, call: int) -> None:
        """Refuse a gradient inside a loss that is not a linear function of the gradient."""
        if not self._is_applied(call):
            return
        why = self._not_linear(tensor, call)
        if why is not None:
            raise UnsupportedError(
                f"the {what} is part of what is differentiated at {self._locations(call)}, through {why}. Each worker "
                "has it for its own examples only, so the second gradient would not be that of the whole batch. Keep "
                "it out of the second differentiation (tf.stop_gradient, or outside its tape), so that it can be "
                "aggregated first, or use gradients with respect to the inputs"
            )

    @cached_property
    def _locality(self) -> Locality:
        return Locality(self._graph, self._library)

    @cached_property
    def _local_in_losses(self) -> Collection[str]:
        """The nodes that differ when the gradients that are constants to later differentiations are aggregated."""
        return self._locality.differing(self._split, {n for n in map(node_of, self._by_tensor) if self._is_constant(n)})

    def _forward(self, call: int) -> Collection[str]:
        """The nodes from which the targets of a call are computed."""
        if call not in self._forwards:
            targets = [node_of(t) for t in self._raw.targets_of(call)]
            self._forwards[call] = self._graph.ancestors(targets, control=False)
        return self._forwards[call]

    def _not_linear(self, tensor: str, call: int) -> str | None:
        """Noun for the op that makes a call's targets not linear in a tensor; None if they are linear."""
        if not self._raw.targets_of(call):
            return "a loop"
        forward, behind = self._forward(call), self.behind[call][0]
        dependent: set[str] = set()
        for name in self._graph.order:
            node = self._graph[name]
            is_dependent = [tensor_name(t) == tensor or node_of(t) in dependent for t in data_texts(node)]
            if not any(is_dependent):
                continue
            if name in forward:
                if not self._is_linear(node, is_dependent, self._local_in_losses):
                    return f"op {name!r} ({node.op})"
                dependent.add(name)
            elif name in behind and node.op not in _VALUE_FREE_OPS:
                return f"op {name!r} ({node.op})"
        return None

    def _is_constant(self, name: str) -> bool:
        """Whether all gradients that a node gives are aggregated before they are used."""
        return not any(
            g.differentiated_again for t, gradients in self._by_tensor.items() if node_of(t) == name for g in gradients
        )

    def _is_linear(self, node: NodeDef, is_dependent: Sequence[bool], local: Collection[str]) -> bool:
        texts = data_texts(node)
        others = [t for t, depends in zip(texts, is_dependent) if not depends]
        are_equal = not any(node_of(t) in local for t in others)
        if node.op == "Cast":
            return ops.dtype_name(node.attr["DstT"].type).startswith(("float", "bfloat"))
        if node.op in _LINEAR_OPS:
            return is_dependent[0] and not any(is_dependent[1:]) and are_equal
        if node.op in _SUM_OPS:  # examples may be added to it, but it must not be repeated for each
            shape = static_shape(self._graph, node.name)
            return are_equal or (
                shape is not None
                and None not in shape
                and node.op not in ("Pack", "ConcatV2")
                and all(static_shape(self._graph, t) == shape for t in texts)
            )
        if node.op in _PRODUCT_OPS:
            return sum(is_dependent) == 1 and are_equal
        return node.op in ("RealDiv", "Div", "DivNoNan") and is_dependent[0] and not is_dependent[1] and are_equal

    # -- gradients by tensors ----------------------------------------------------------------

    def _refuse_by_tensors(self, results: Mapping[str, NodeDef], local: Collection[str]) -> None:
        """Refuse gradients with respect to a tensor that is the same on all workers: they cannot be aggregated."""
        cut = {*results, *(node_of(t) for t in self._by_tensor)}
        differing = self._locality.differing(self._split, cut)
        sources = _sources(self._graph, differing)
        for name, node in results.items():
            number, location = _mark(node)
            if number not in sources and name in local and not self._is_summed(name):
                for call in self._calls_with(name):
                    self._check(tensor_name(name), f"gradient (with respect to a tensor) taken at {location}", call)
        for node in self._graph:
            for body, gradient_node in self._in_bodies(node, differing):
                for call in self._calls_with(node.name):
                    if self._is_applied(call):
                        raise UnsupportedError(
                            f"the gradient taken at {_mark(gradient_node)[1]} in function {body.name!r}, called by "
                            f"{node.name!r} ({node.op}), is with respect to a tensor that is the same on all "
                            f"workers, and goes into what is differentiated at {self._locations(call)}. Each worker "
                            "has it for its own examples only, so the second gradient would not be that of the whole "
                            "batch. Write the loop in Python, and keep the gradient out of the second differentiation"
                        )

    def _is_summed(self, name: str) -> bool:
        """Whether nothing reads a node's own value: only that of all workers."""
        readers = self._graph.data_readers(name)
        return bool(readers) and all(OVER_WORKERS_ATTRIBUTE in self._graph[reader].attr for reader in readers)

    def _calls_with(self, name: str) -> list[int]:
        return [call for call, (behind, _) in self.behind.items() if name in behind]

    def _in_bodies(self, call: NodeDef, differing: Collection[str]) -> Iterator[tuple[Body, NodeDef]]:
        """Gradients in a loop's or branch's functions with respect to tensors that are the same on all workers."""
        inputs = data_texts(call)[arguments_from(call) :]
        positions = [position for position, text in enumerate(inputs) if node_of(text) in differing]
        is_loop = call.op in ops.LOOPS
        for function in self._library.called(call):
            body = self._library.body(function)
            results = {n.name: n for n in body.inner if RESULT_ATTRIBUTE in n.attr}
            if not results:
                continue
            cut = {*results, *(n.name for n in body.inner if GRADIENT_ATTRIBUTE in n.attr)}
            differing_sources, differing_positions = differing_in_body(
                body, self._library, positions, cut, is_loop=is_loop
            )
            sources = _sources(body.graph, differing_sources)
            inside, _ = differing_in_body(body, self._library, differing_positions, is_loop=is_loop)
            for name, node in results.items():
                if _mark(node)[0] not in sources and name in inside:
                    yield body, node


def _of_interest(raw: RawProgram) -> Graph:
    """The nodes that a step needs, and those that it differentiates."""
    roots = [*raw.targets, *(node_of(g.tensor) for g in raw.gradients)]
    roots += [node_of(t) for g in raw.gradients for t in raw.targets_of(g.call)]
    roots += [n.name for n in raw.graph if SOURCE_ATTRIBUTE in n.attr]
    return raw.graph.pruned(roots)


def _sources(graph: Graph, local: Collection[str]) -> set[int]:
    """Numbers of the gradients with respect to a tensor that differs between workers."""
    return {n.attr[SOURCE_ATTRIBUTE].list.i[0] for n in graph if SOURCE_ATTRIBUTE in n.attr and n.name in local}


def _mark(node: NodeDef) -> tuple[int, str]:
    """Number and location of a gradient with respect to a tensor."""
    marks = node.attr[RESULT_ATTRIBUTE].list
    return marks.i[0], marks.s[0].decode()
