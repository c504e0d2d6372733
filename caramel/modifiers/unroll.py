"""Unroll: copies of a step that follow each other, so that several steps are one run of the session.

Every worker goes on to the next step as soon as its own part of a step is done: it does not wait for the driver, nor
for workers that it needs nothing of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from caramel.data import template
from caramel.graph import ops
from caramel.graph.functions import Library
from caramel.graph.graph import Graph, NodeDef, copied, format_input, node_of, parse_input
from caramel.graph.nodes import colocate, group
from caramel.graph.verify import verify_structure
from caramel.modifiers.emission import Emission, Purpose, Role
from caramel.modifiers.place_input import input_name
from caramel.modifiers.proof import agreed_order
from caramel.modifiers.unrolled_elements import Place, TakenElements, taken_elements
from caramel.signature import Signature

MOST_NODES = 100_000
"""Nodes that the copies of a step may have: TensorFlow takes about half a minute to get ready for so many."""


@dataclass(frozen=True)
class Unrolled:
    """Steps that follow each other in one run.

    Attributes:
        nodes: nodes to add to the graph of a step.
        signatures: signature of each step; the first ones may be run without the others.
        elements: how the workers get their elements; None where the driver feeds all inputs.
    """

    nodes: Graph
    signatures: tuple[Signature, ...]
    elements: TakenElements | None


class Unrolling:
    """What several steps of a distributed graph take.

    Args:
        emission: a finished emission.
        signature: its signature.
    """

    def __init__(self, emission: Emission, signature: Signature) -> None:
        self._emission = emission
        self._graph = emission.graph
        self._library = Library(emission.graph)
        self._signature = signature
        outputs = [tensor for _, tensors in signature.outputs for tensor in tensors]
        self._roots = [*signature.step, *map(node_of, (*signature.losses, *outputs))]

    @cached_property
    def reason(self) -> str | None:
        """Why each step must be a run of its own; None where it need not be."""
        library = self._library
        for name in self._graph.ancestors(self._roots):
            node = self._graph[name]
            if node.op == ops.NATIVE_ALL_REDUCE:
                return "TensorFlow's own all-reduces ('native') have numbers, each of which may come once in a run"
            everything = [node, *(inner for _, inner in library.inner_nodes(node))]
            drawing = [n for n in everything if n.op not in library and ops.is_seeded_random(n)]
            if drawing:
                return f"op {name!r} ({drawing[0].op}) draws from a state of its own, which a copy does not have"
        in_branch = self._in_branches.intersection(name for names in self._ends for name in names)
        if in_branch:
            return f"op {min(in_branch)!r} runs in one branch only, and nothing that the step updates waits for it"
        return None

    @cached_property
    def _in_branches(self) -> frozenset[str]:
        """The nodes that do not run where another branch is taken, and what waits for them would not run either."""
        found: set[str] = set()
        for name in self._graph.order:
            op = self._graph[name].op
            if op in _SWITCHES or (op not in _MERGES and not found.isdisjoint(self._graph.sources(name))):
                found.add(name)
        return frozenset(found)

    @property
    def most_steps(self) -> int:
        """Number of steps of which the copies have `MOST_NODES` nodes at most; at least 1."""
        return max(MOST_NODES // self.nodes, 1)

    @property
    def nodes(self) -> int:
        """Number of nodes that each step needs of its own."""
        return len(self._copied)

    @cached_property
    def _copied(self) -> tuple[str, ...]:
        """The nodes that each step needs of its own, in the order of the graph: all but pipelines and handles."""
        needed = self._graph.ancestors(self._roots)
        return tuple(node.name for node in self._graph if node.name in needed and not self._is_shared(node))

    def _is_shared(self, node: NodeDef) -> bool:
        is_handle = not node.input and node.op not in self._library and ops.DT_RESOURCE in ops.output_types(node)
        return is_handle or self._emission.roles[node.name].purpose is Purpose.INPUT

    @cached_property
    def _elements(self) -> dict[str, int]:
        """The worker of each node that has the element of the data."""
        pipeline, ranks = self._emission.pipeline, range(self._signature.workers)
        return {} if pipeline is None else {input_name(rank, template.ELEMENT): rank for rank in ranks}

    @cached_property
    def _mine(self) -> frozenset[str]:
        return frozenset(self._copied)

    @cached_property
    def _waiting(self) -> frozenset[str]:
        """The nodes to copy that read or write what outlives a step."""
        return frozenset(name for name in self._copied if _has_state(self._graph[name], self._library))

    def steps(self, count: int) -> Unrolled:
        """Steps that follow each other.

        Args:
            count: number of steps.

        Raises:
            InvariantError: a copy broke an invariant.
        """
        places = [Place(number, count) for number in range(count)]
        nodes: list[NodeDef] = []
        elements = None
        if self._emission.pipeline is not None:
            data = self._signature.data
            nodes, elements = taken_elements(self._graph, places, len(self._elements), data is not None and data.ahead)
        for place in places:
            nodes += self._copies(place)
        self._verify(nodes, places)
        signatures = tuple(self._signature_of(place) for place in places)
        return Unrolled(Graph(nodes, None, self._graph.versions), signatures, elements)

    def _verify(self, nodes: Sequence[NodeDef], places: Sequence[Place]) -> None:
        """Check inputs and cycles, and that all workers can keep one order of the transfers of all steps."""
        graph = Graph([*self._graph, *nodes], self._graph.library, self._graph.versions, self._graph)
        verify_structure(graph, "unroll", self._graph)
        transfers = self._emission.plan.transfers
        roles = {**self._emission.roles, **dict.fromkeys((node.name for node in nodes), Role(Purpose.REPLICA, 0))}
        for place, name in product(places, self._copied):
            role = self._emission.roles[name]
            if role.transfer is not None:
                role = replace(role, transfer=place.number * len(transfers) + role.transfer)
            roles[place.scope + name] = role
        steps = graph.pruned(place.done(rank) for place in places for rank in range(len(self._signature.step)))
        agreed_order(steps, roles, [transfer.gradients[0] for transfer in transfers] * len(places))

    # -- one step ----------------------------------------------------------------------------

    def _copies(self, place: Place) -> list[NodeDef]:
        """The nodes of a step, which wait on each worker for the step before."""

        def renamed(name: str) -> str:
            if name in self._elements:
                return place.element(self._elements[name])
            return place.scope + name if name in self._mine else name

        nodes = []
        for name in self._copied:
            original = self._graph[name]
            inputs = (parse_input(text) for text in original.input)
            copy = copied(original, [format_input(renamed(producer), index) for producer, index in inputs])
            copy.name = renamed(name)
            colocate(copy, lambda other: renamed(other) if other in self._graph else None)
            if place.number and name in self._waiting:
                copy.input.append("^" + place.before.done(self._emission.roles[name].rank))
            nodes.append(copy)
        for rank, names in enumerate(self._ends):
            device = self._graph[self._signature.step[rank]].device
            nodes.append(group(place.done(rank), [place.scope + name for name in names], device))
        return nodes

    @cached_property
    def _ends(self) -> tuple[tuple[str, ...], ...]:
        """Per worker, the ops to wait for: its step op, and others that read or write state that survives the step."""
        steps = self._signature.step
        before = [self._graph.ancestors([step]) for step in steps]
        others: list[list[str]] = [[] for _ in before]
        for name in self._copied:
            rank = self._emission.roles[name].rank
            if name not in self._waiting or name in before[rank]:
                continue
            # What runs in one branch only is waited for by what waits for both, here or where the update is.
            elsewhere = [step for step, names in zip(steps, before) if name in names]
            end = elsewhere[0] if name in self._in_branches and elsewhere else name
            if end not in others[rank]:
                others[rank].append(end)
        return tuple((step, *rest) for step, rest in zip(steps, others))

    def _signature_of(self, place: Place) -> Signature:
        """The signature of a step."""
        signature = self._signature

        def renamed(tensors: Sequence[str]) -> tuple[str, ...]:
            return tuple(place.scope + text if node_of(text) in self._mine else text for text in tensors)

        return replace(
            signature,
            feeds=tuple(replace(feed, placeholders=renamed(feed.placeholders)) for feed in signature.feeds),
            weights=renamed(signature.weights),
            losses=renamed(signature.losses),
            outputs=tuple((name, renamed(tensors)) for name, tensors in signature.outputs),
            step=tuple(place.done(rank) for rank in range(len(signature.step))),
        )


_SWITCHES = frozenset({"Switch", "RefSwitch", "_SwitchN"})
"""Ops with outputs of which one only has a value."""

_MERGES = frozenset({"Merge", "RefMerge"})
"""Ops that have a value where one of their inputs has one."""


def _has_state(node: NodeDef, library: Library) -> bool:
    """Whether a node reads or writes what outlives a step."""
    if node.op in library or ops.is_stateful(node):
        return True
    return any(dtype == ops.DT_RESOURCE for _, dtype in ops.input_types(node))
