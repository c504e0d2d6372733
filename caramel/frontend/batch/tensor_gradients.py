"""Gradients of sums and means over the batch with respect to tensors.

Let ``t = B**p * sum(f(x_i))``. Where each entry of a tensor belongs to one example, only ``f`` of that example depends
on it, and the gradient of t by the entry is ``B**p`` times that of ``f(x_i)``. Where a tensor does not depend on the
batch, the gradient is ``B**p`` times the sum of the examples' own. Both hold whatever ops compute the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from caramel.frontend.attributes import (
    ENTERING_ATTRIBUTE,
    OVER_WORKERS_ATTRIBUTE,
    RESULT_ATTRIBUTE,
    SOURCE_ATTRIBUTE,
    scope_of,
    targets_at,
)
from caramel.frontend.batch.domain import Examples, Total, Value, is_invariant
from caramel.graph.graph import Graph, node_of


@dataclass(frozen=True)
class TensorGradient:
    """A gradient with respect to a tensor, as the program took it.

    Attributes:
        source: the tensor.
        targets: the differentiated tensors.
        is_by_example: whether it is the Jacobian of each example, one after the other.
    """

    source: str
    targets: tuple[str, ...]
    is_by_example: bool = False


def tensor_gradients(graph: Graph) -> Mapping[str, TensorGradient]:
    """The gradients with respect to tensors, by the node that carries them; without those of which it cannot be told.

    Args:
        graph: nodes with the attributes of a capture.
    """
    results = {node.name: node for node in graph if RESULT_ATTRIBUTE in node.attr}
    if not results:
        return {}
    sources: dict[tuple[int, str], list[str]] = {}
    targets: dict[tuple[int, str], list[str]] = {}
    for node in graph:
        if SOURCE_ATTRIBUTE in node.attr:
            sources.setdefault((node.attr[SOURCE_ATTRIBUTE].list.i[0], scope_of(node)), []).append(node.input[0])
        for call, tensor in targets_at(node):
            targets.setdefault((call, scope_of(node)), []).append(tensor)
    found = {}
    for name, node in results.items():
        number, call, is_by_example = node.attr[RESULT_ATTRIBUTE].list.i
        of_number, of_call = sources.get((number, scope_of(node)), []), targets.get((call, scope_of(node)), [])
        if len(of_number) == 1 and of_call:
            found[name] = TensorGradient(of_number[0], tuple(of_call), bool(is_by_example))
    return found


def pruned_with_differentiated(graph: Graph, roots: Iterable[str]) -> Graph:
    """The graph of just what some nodes need, and of what the gradients in it are those of, which nothing need read.

    Args:
        graph: nodes with the attributes of a capture.
        roots: names of the nodes.
    """
    kept = graph.pruned(roots)
    known = tensor_gradients(graph)
    while known:
        found = [gradient for name, gradient in known.items() if name in kept]
        known = {name: gradient for name, gradient in known.items() if name not in kept}
        if not found:
            break
        tensors = [tensor for gradient in found for tensor in (gradient.source, *gradient.targets)]
        readers = {name for gradient in found for name in graph.data_readers(node_of(gradient.source))}
        readers = {name for name in readers if SOURCE_ATTRIBUTE in graph[name].attr}
        kept = graph.pruned([*kept.nodes, *map(node_of, tensors), *readers])
    return kept


def gradient_by_tensor(
    graph: Graph, name: str, gradient: TensorGradient, value_of: Callable[[str], Value]
) -> Examples | Total | None:
    """The abstract value of a gradient with respect to a tensor; None where it has to be told from the ops behind it.

    Args:
        graph: nodes with the attributes of a capture.
        name: node that carries the gradient.
        gradient: what is differentiated.
        value_of: function from a tensor to its abstract value.
    """
    source = value_of(gradient.source)
    is_of_examples = isinstance(source, Examples) and not (source.power or source.chosen or source.mixed_by)
    if not is_of_examples and not is_invariant(source):
        return None
    targets = [value_of(target) for target in gradient.targets]
    if gradient.is_by_example and not all(isinstance(v, Examples) and v.is_plain for v in (source, *targets)):
        return None
    powers = {_power(target) for target in targets}
    power = powers.pop()
    if power is None or powers or _passes_workers(graph, name, node_of(gradient.source)):
        return None
    return Examples(source.axis, power, source.before, source.after) if isinstance(source, Examples) else Total(power)


def _power(value: Value) -> Fraction | None:
    """The power of B in a sum, or in the values of single examples; None for what is no such value."""
    if isinstance(value, (Total, Examples)) and not value.mixed_by and not getattr(value, "repeated", False):
        return value.power
    return None


def _passes_workers(graph: Graph, name: str, source: str) -> bool:
    """Whether values of other workers' examples, or gradients that are scaled for these, go into a gradient."""
    over_workers = {n.name for n in graph if OVER_WORKERS_ATTRIBUTE in n.attr or ENTERING_ATTRIBUTE in n.attr}
    if not over_workers:
        return False
    within = over_workers & graph.ancestors([name], control=False)
    return any(source in graph.ancestors([each], control=False) for each in within)


def unscaled_gradients(
    graph: Graph, texts: Sequence[str], value_of: Callable[[str], Value], known: Mapping[str, TensorGradient]
) -> list[str]:
    """The gradients that have put a power of the number of examples into some tensors.

    Args:
        graph: nodes with the attributes of a capture.
        texts: the tensors.
        value_of: function from a tensor to its abstract value.
        known: see `tensor_gradients`.
    """
    found: list[str] = []
    waiting = list(texts)
    seen = {node_of(text) for text in waiting}
    while waiting:
        text = waiting.pop()
        value = value_of(text)
        if not isinstance(value, (Examples, Total)) or not value.power:
            continue
        name = node_of(text)
        if name in known and value.power == -1:
            found.append(name)
            continue
        for other in (t for t in graph[name].input if not t.startswith("^")):
            if node_of(other) not in seen:
                seen.add(node_of(other))
                waiting.append(other)
    return found
