"""Unroll: loops that differentiate become their rounds, one after the other, where it is known how many there are.

What a loop does with gradients can be told, and aggregated, where it only adds them up. Of rounds that stand one after
the other all can be told that can be told of a step. They are more nodes: a loop is unrolled where it is refused else.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from tensorflow.core.framework import attr_value_pb2

from caramel.frontend.attributes import (
    ENTRY_ATTRIBUTE,
    GATHERED_ATTRIBUTE,
    GRADIENT_ATTRIBUTE,
    TARGETS_ATTRIBUTE,
    TOTAL_ATTRIBUTE,
)
from caramel.frontend.rewrites.inline import Inlined, inline, prefixes_of
from caramel.graph import loops, ops
from caramel.graph.folding import folded
from caramel.graph.functions import Library
from caramel.graph.graph import (
    Graph,
    NodeDef,
    behind_identities,
    control_texts,
    copied,
    data_texts,
    format_input,
    node_of,
    parse_input,
    tensor_name,
)
from caramel.graph.nodes import free_name, node, offset_seed

_MOST_ROUNDS = 64
"""Rounds of the longest loop that is unrolled."""

_MOST_NODES = 50_000
"""Nodes of the largest graph, for one device, that loops are unrolled to."""

_SEEDS_APART = 0x85EBCA6B
"""What is added to a seed from round to round: odd, and no multiple of what is added from worker to worker."""


@dataclass(frozen=True)
class _Round:
    """A round of a loop that is unrolled.

    Attributes:
        number: its number in the loop.
        guard: name of the node without which it must not run; "" for none.
    """

    number: int
    guard: str


def loops_to_unroll(graph: Graph, again: Collection[int] = frozenset()) -> list[str]:
    """Names of the loops in place of which `unrolled` has their rounds, but for those within others.

    Args:
        graph: nodes with the attributes of capture, without calls that can be inlined.
        again: see `unrolled`.
    """
    return list(_rounds_in(graph, again))


def unrolled(inlined: Inlined, again: Collection[int]) -> Inlined:
    """The same computation without loops that differentiate, but for those whose number of rounds is not known.

    Nor is a loop unrolled through which the program differentiates: the loop of its gradients would stay.

    Args:
        inlined: nodes with the attributes of capture, without calls that can be inlined.
        again: numbers of the gradients that are differentiated once more.
    """
    while numbers := _rounds_in(inlined.graph, again):  # there may be further loops in those that were unrolled
        called, renamed, rounds = _with_rounds(inlined.graph, numbers)
        flat = inline(called, {name: each.guard for name, each in rounds.items()})
        outputs = {name: flat.tensor(tensor) for name, tensor in renamed.items()}
        before = {name: flat.tensor(renamed.get(tensor, tensor)) for name, tensor in inlined.outputs.items()}
        inlined = Inlined(_told_apart(flat.graph, rounds), {**flat.outputs, **outputs, **before})
    return replace(inlined, graph=_gathered_once(inlined.graph))


def _rounds_in(graph: Graph, again: Collection[int]) -> dict[str, int]:
    """The numbers of rounds of the loops that can be unrolled, by their names."""
    library = Library(graph)
    numbers = {each.name: _rounds(each, graph, library, again) for each in graph if each.op in ops.LOOPS}
    return {name: number for name, number in numbers.items() if number}


def _rounds(each: NodeDef, graph: Graph, library: Library, again: Collection[int]) -> int:
    """The number of rounds of a loop that can be unrolled; 0 for another."""
    inner_nodes = [inner for _, inner in library.inner_nodes(each)]
    numbers = {inner.attr[GRADIENT_ATTRIBUTE].i for inner in inner_nodes if GRADIENT_ATTRIBUTE in inner.attr}
    if not numbers or not numbers.isdisjoint(again):
        return 0
    if _draws_in_functions(each.attr["body"].func.name, library):  # which all rounds would share, with their seeds
        return 0
    texts = data_texts(each)
    body, condition = (library.body(each.attr[key].func.name) for key in ("body", "cond"))
    if any(inner.op == "TensorListPushBack" for inner in body.inner):  # it keeps values of all rounds for its gradient
        return 0

    def integer(position: int) -> int | None:
        value = folded(graph, tensor_name(texts[position]), library)
        return int(value) if value is not None and value.size == 1 and value.dtype.kind in "iu" else None

    found = loops.rounds(condition, body, integer) or 0
    is_small = found <= _MOST_ROUNDS and found * len(body.inner) + len(graph) <= _MOST_NODES
    return found if is_small else 0


def _draws_in_functions(name: str, library: Library) -> bool:
    """Whether a function draws random numbers, from seeds, in a loop or branch that stays one."""
    for inner in library.body(name).inner:
        if inner.op in ops.INLINED_CALLS:
            if any(_draws_in_functions(called, library) for called in library.called(inner)):
                return True
        elif any(ops.is_seeded_random(each) for _, each in library.inner_nodes(inner)):
            return True
    return False


def _with_rounds(graph: Graph, numbers: Mapping[str, int]) -> tuple[Graph, dict[str, str], dict[str, _Round]]:
    """The graph with a call of its body for each round of some loops.

    Args:
        graph: the nodes.
        numbers: numbers of rounds, by the names of the loops.

    Returns:
        The graph, in which a loop's name is that of a node that is done when the loop is; the tensors in place of the
        outputs of loops; and the rounds by the names of the calls.
    """
    taken = set(graph.nodes)
    nodes: list[NodeDef] = []
    renamed: dict[str, str] = {}
    rounds: dict[str, _Round] = {}
    for each in graph:
        if each.name not in numbers:
            nodes.append(each)
            continue
        calls = _calls(each, numbers[each.name], taken)
        guard = _guard_of(each, graph)
        rounds |= {call.name: _Round(at, guard) for at, call in enumerate(calls)}
        nodes += [*calls, node(each.name, "NoOp", ["^" + calls[-1].name], each.device)]
        renamed |= {f"{each.name}:{at}": f"{calls[-1].name}:{at}" for at in range(len(ops.output_types(each)))}

    def current(text: str) -> str:
        return text if text.startswith("^") else format_input(*parse_input(renamed.get(tensor_name(text), text)))

    changed = [copied(n, map(current, n.input)) for n in nodes]
    return Graph(changed, graph.library, graph.versions), renamed, rounds


def _calls(loop: NodeDef, number: int, taken: set[str]) -> list[NodeDef]:
    """The rounds of a loop as calls, each after the one before."""
    types = attr_value_pb2.AttrValue(list=attr_value_pb2.AttrValue.ListValue(type=ops.output_types(loop)))
    op = "StatefulPartitionedCall" if loop.op == "While" else "PartitionedCall"
    data, controls = data_texts(loop), control_texts(loop)
    calls = []
    for at in range(number):
        name = free_name(f"{loop.name}/round_{at}", taken)
        taken.add(name)
        call = node(name, op, [*data, *controls], loop.device, Tin=types, Tout=types)
        call.attr["f"].func.CopyFrom(loop.attr["body"].func)
        data, controls = [f"{name}:{index}" for index in range(len(types.list.type))], ["^" + name]
        calls.append(call)
    if TARGETS_ATTRIBUTE in loop.attr:
        calls[-1].attr[TARGETS_ATTRIBUTE].CopyFrom(loop.attr[TARGETS_ATTRIBUTE])
    return calls


def _guard_of(loop: NodeDef, graph: Graph) -> str:
    """The node without which a loop in a branch that was inlined must not run; "" for one in no branch."""
    for name in map(node_of, control_texts(loop)):
        sources = data_texts(graph[name]) if graph[name].op == "Identity" else ()
        if sources and graph[node_of(sources[0])].op == "Switch":
            return name
    return ""


def _told_apart(graph: Graph, rounds: Mapping[str, _Round]) -> Graph:
    """The graph in which ops of different rounds have other numbers, by which the gradients that enter them are told.

    Random ops have other seeds: each is one of its own now, and would draw in each round what it draws in the first.

    Args:
        graph: the nodes of the rounds have names that begin with that of the round.
        rounds: the rounds by their names.
    """
    library = Library(graph)
    marked = [each for n in graph for each in (n, *(inner for _, inner in library.inner_nodes(n)))]
    last = max((n.attr[TOTAL_ATTRIBUTE].i for n in marked if TOTAL_ATTRIBUTE in n.attr), default=0)
    fresh = itertools.count(last + 1)
    of_round: dict[str, dict[int, int]] = {name + "/": {} for name in rounds}
    found = {n.name: next((p for p in prefixes_of(n.name) if p in of_round), None) for n in graph}
    for each in graph:
        prefix = found[each.name]
        if prefix is not None and TOTAL_ATTRIBUTE in each.attr and each.attr[TOTAL_ATTRIBUTE].i > 0:
            numbers = of_round[prefix]
            if each.attr[TOTAL_ATTRIBUTE].i not in numbers:
                numbers[each.attr[TOTAL_ATTRIBUTE].i] = next(fresh)
    nodes = []
    for each in graph:
        prefix = found[each.name]
        if prefix is None:
            nodes.append(each)
            continue
        changed = copied(each)
        for attribute in (TOTAL_ATTRIBUTE, ENTRY_ATTRIBUTE):
            if attribute in each.attr and each.attr[attribute].i in of_round[prefix]:
                changed.attr[attribute].i = of_round[prefix][each.attr[attribute].i]
        if ops.is_seeded_random(each):
            offset_seed(changed, rounds[prefix[:-1]].number * _SEEDS_APART)
        nodes.append(changed)
    return Graph(nodes, graph.library, graph.versions)


def _gathered_once(graph: Graph) -> Graph:
    """The graph in which the rounds share what each would gather of an input, and through which no gradient goes."""
    entered = {n.attr[ENTRY_ATTRIBUTE].i for n in graph if ENTRY_ATTRIBUTE in n.attr}
    first: dict[tuple[str, bytes], str] = {}
    shared: dict[str, str] = {}
    for each in graph:
        if GATHERED_ATTRIBUTE not in each.attr or each.attr[TOTAL_ATTRIBUTE].i in entered:
            continue
        source = behind_identities(graph, each.input[0])
        if graph[node_of(source)].op in ops.PLACEHOLDERS:
            how = each.attr[GATHERED_ATTRIBUTE].SerializeToString(deterministic=True)
            shared[each.name] = first.setdefault((source, how), each.name)
    if all(name == other for name, other in shared.items()):
        return graph

    def of_first(text: str) -> str:
        name, index = parse_input(text)
        return format_input(shared.get(name, name), index)

    nodes = [n for n in graph if shared.get(n.name, n.name) == n.name]
    return Graph([copied(n, map(of_first, n.input)) for n in nodes], graph.library, graph.versions)
