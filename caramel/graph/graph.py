"""A GraphDef with an index: the one representation that every pass reads and makes anew.

Works on TensorFlow's protobuf messages without importing TensorFlow, so analyses stay light.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import networkx as nx

from caramel.errors import InvariantError

NodeDef = Any  # tensorflow.core.framework.node_def_pb2.NodeDef


def parse_input(text: str) -> tuple[str, int]:
    """Split an input of a NodeDef into node name and output index (-1 for a control input)."""
    if text.startswith("^"):
        return text[1:], -1
    if ":" not in text:
        return text, 0
    name, colon, index = text.rpartition(":")
    if colon and index.isdigit():
        return name, int(index)
    return text, 0


def node_of(text: str) -> str:
    """Name of the node that an input or tensor name refers to."""
    return parse_input(text)[0]


def format_input(name: str, index: int) -> str:
    """The canonical text of an input: the inverse of `parse_input`."""
    if index < 0:
        return "^" + name
    return name if index == 0 else f"{name}:{index}"


def tensor_name(text: str) -> str:
    """``node:index`` for an input that may leave out a zero index."""
    name, index = parse_input(text)
    return f"{name}:{index}"


def data_texts(node: NodeDef) -> list[str]:
    """A node's data inputs, as they are written."""
    return [text for text in node.input if not text.startswith("^")]


def control_texts(node: NodeDef) -> list[str]:
    """A node's control inputs, as they are written."""
    return [text for text in node.input if text.startswith("^")]


def copied(node: NodeDef, inputs: Iterable[str] | None = None) -> NodeDef:
    """A copy that may be changed, with other inputs if they are given."""
    copy = type(node)()
    copy.CopyFrom(node)
    if inputs is not None:
        copy.input[:] = inputs
    return copy


_Parsed = tuple[NodeDef, tuple[str, ...], tuple[int, ...]]
"""A node, and of each of its inputs the name of the node that it is from, and the index of the output."""


class Graph:
    """Nodes by name in a fixed order, plus the function library. Treat as immutable.

    Passes build a new Graph; NodeDefs that a pass does not change are shared, so a NodeDef in a
    Graph must never be modified in place: copy it first.
    """

    def __init__(
        self,
        nodes: Iterable[NodeDef],
        library: Any = None,
        versions: Any = None,
        known: Graph | None = None,
    ) -> None:
        """Index nodes.

        Args:
            nodes: nodes, in the order of the graph.
            library: FunctionDefLibrary of the functions that the nodes call.
            versions: VersionDef of the graph.
            known: another graph with many of the same nodes, whose parsed inputs are used again.

        Raises:
            InvariantError: two nodes have one name.
        """
        self._parsed: dict[str, _Parsed] = {} if known is None else known._parsed
        self.nodes: dict[str, NodeDef] = {}
        for node in nodes:
            name = node.name  # each look is a new text
            if name in self.nodes:
                raise InvariantError(f"graph: two nodes are named {name!r}")
            self.nodes[name] = node
        self.library = library
        self.versions = versions

    @classmethod
    def from_graph_def(cls, graph_def: Any) -> Graph:
        """Index a GraphDef; its nodes are shared, not copied."""
        return cls(graph_def.node, graph_def.library, graph_def.versions)

    def to_graph_def(self) -> Any:
        """A new GraphDef with these nodes, in order."""
        from tensorflow.core.framework import graph_pb2

        graph_def = graph_pb2.GraphDef()
        graph_def.node.extend(self.nodes.values())
        if self.library is not None:
            graph_def.library.CopyFrom(self.library)
        if self.versions is not None:
            graph_def.versions.CopyFrom(self.versions)
        return graph_def

    def to_bytes(self) -> bytes:
        """The same bytes for the same nodes in the same order."""
        return self.to_graph_def().SerializeToString(deterministic=True)

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[NodeDef]:
        return iter(self.nodes.values())

    def __contains__(self, name: str) -> bool:
        return name in self.nodes

    def __getitem__(self, name: str) -> NodeDef:
        return self.nodes[name]

    def sources(self, name: str) -> tuple[str, ...]:
        """Names of the nodes that a node reads or waits for, one for each of its inputs."""
        return self._inputs(name)[1]

    def parsed_inputs(self, name: str) -> Iterator[tuple[str, int]]:
        """For each input of a node the name of the node that it is from, and its index there; see `parse_input`."""
        _, sources, indices = self._inputs(name)
        return zip(sources, indices)

    def _inputs(self, name: str) -> _Parsed:
        node = self.nodes[name]
        cached = self._parsed.get(name)
        if cached is None or cached[0] is not node:
            pairs = [parse_input(text) for text in node.input]
            cached = self._parsed[name] = (node, tuple([source for source, _ in pairs]), tuple([i for _, i in pairs]))
        return cached

    @cached_property
    def consumers(self) -> Mapping[str, tuple[tuple[str, int], ...]]:
        """For each node its readers: ``(reader, position in reader.input)``, in order."""
        readers_of: dict[str, list[tuple[str, int]]] = {name: [] for name in self.nodes}
        for reader in self.nodes:
            for position, name in enumerate(self.sources(reader)):
                readers_of.setdefault(name, []).append((reader, position))
        return {name: tuple(readers) for name, readers in readers_of.items()}

    def renamed(self, names: Mapping[str, str]) -> Graph:
        """The graph with other names for some nodes.

        Args:
            names: new name of each.
        """
        if not names:
            return self
        nodes = []
        for node in self:
            parsed = [parse_input(text) for text in node.input]
            if node.name in names or any(name in names for name, _ in parsed):
                node = copied(node, [format_input(names.get(name, name), index) for name, index in parsed])
                node.name = names.get(node.name, node.name)
            nodes.append(node)
        return Graph(nodes, self.library, self.versions)

    def readers(self, tensor: str) -> tuple[str, ...]:
        """Names of the nodes that have a tensor as a data input, each once, in order."""
        name, index = parse_input(tensor)
        reader_names = (
            r for r, position in self.consumers[name] if parse_input(self.nodes[r].input[position])[1] == index
        )
        return tuple(dict.fromkeys(reader_names))

    def data_readers(self, name: str) -> tuple[str, ...]:
        """Names of the nodes that read a result of a node, each once, in order; not of those that only wait for it."""
        found = (r for r, position in self.consumers[name] if not self.nodes[r].input[position].startswith("^"))
        return tuple(dict.fromkeys(found))

    @cached_property
    def digraph(self) -> nx.DiGraph:
        """The graph as a networkx graph, with an edge from each node to each node that reads it or waits for it.

        Raises:
            InvariantError: an input does not exist.
        """
        digraph = nx.DiGraph()
        digraph.add_nodes_from(self.nodes)
        for reader in self.nodes:
            for name in self.sources(reader):
                if name not in self.nodes:
                    raise InvariantError(f"graph: node {reader!r} reads {name!r}, which does not exist")
                digraph.add_edge(name, reader)
        return digraph

    def to_networkx(
        self, op_s: Mapping[str, float] | None = None, op_bytes: Mapping[str, int] | None = None
    ) -> nx.DiGraph:
        """The graph with the known times and sizes of its ops, for your own analyses.

        Args:
            op_s: seconds of each op, by name, such as those of a trace.
            op_bytes: bytes of each op's first output, by name, such as those of a trace.

        Returns:
            A DiGraph of node names with an edge from each node to each reader, or node that waits for it. Attributes of
            nodes: ``op``, ``device``, ``seconds`` and ``bytes`` (None where it is not known). Attributes of edges:
            ``control`` (whether nothing is read, but only waited for) and ``bytes`` (None where it is not known).
        """
        times, sizes = op_s or {}, op_bytes or {}
        digraph = nx.DiGraph()
        for node in self:
            measured = {"seconds": times.get(node.name), "bytes": sizes.get(node.name)}
            digraph.add_node(node.name, op=node.op, device=node.device, **measured)
        for node in self:
            read_outputs = {name: index for name, index in map(parse_input, node.input) if index >= 0}
            for name in dict.fromkeys(self.sources(node.name)):
                size = sizes.get(name) if read_outputs.get(name) == 0 else None
                digraph.add_edge(name, node.name, control=name not in read_outputs, bytes=size)
        return digraph

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Node names, producers first; ties keep the order of the graph.

        Raises:
            InvariantError: an input does not exist, or the graph has a cycle.
        """
        # networkx is not asked: emitted graphs are put in order after every modifier. With it, that took 12 s of the
        # 76 s (of a processor) in which BERT was compiled for 8 workers, and 6 of 48 s for ResNet-50; with this loop
        # half as much (python -m benchmarks.models has the models).
        readers: dict[str, list[str]] = {name: [] for name in self.nodes}
        waiting: dict[str, int] = {}  # for how many inputs
        for reader in self.nodes:
            sources = self.sources(reader)
            waiting[reader] = len(sources)
            for name in sources:
                if name not in readers:
                    raise InvariantError(f"graph: node {reader!r} reads {name!r}, which does not exist")
                readers[name].append(reader)
        order = [name for name, count in waiting.items() if count == 0]
        for name in order:  # grows on the way
            for reader in readers[name]:
                waiting[reader] -= 1
                if waiting[reader] == 0:
                    order.append(reader)
        if len(order) != len(self.nodes):
            stuck = sorted(name for name, count in waiting.items() if count > 0)
            raise InvariantError(f"graph: cycle through {stuck[0]!r} ({len(stuck)} nodes cannot be ordered)")
        return tuple(order)

    def loop_order(self) -> Iterator[NodeDef]:
        """The nodes, producers first, of a graph with loops of TensorFlow 1, too: what enters a loop comes first."""
        back = {node.name for node in self if node.op in ("NextIteration", "RefNextIteration")}
        forward = self.digraph.copy()
        forward.remove_edges_from(list(forward.out_edges(back)))
        order, stuck = topological_order(forward)
        yield from (self[name] for name in (*order, *stuck))  # stuck: on a cycle that is no loop; others refuse it

    @cached_property
    def place(self) -> Mapping[str, int]:
        """The place of each node in `order`."""
        return {name: place for place, name in enumerate(self.order)}

    def ancestors(
        self,
        roots: Iterable[str],
        *,
        control: bool = True,
        stop: Callable[[str], bool] = lambda name: False,
        further: Callable[[str], Iterable[str]] = lambda name: (),
    ) -> set[str]:
        """Nodes that ``roots`` need, themselves included.

        Args:
            roots: node names.
            control: whether control inputs count.
            stop: predicate of node names; a node for which it is true is included, but not its own inputs.
            further: function from a node name to the names of nodes that it needs besides its inputs.
        """
        seen: set[str] = set()
        stack = list(roots)
        while stack:
            name = stack.pop()
            if name in seen:
                continue
            if name not in self.nodes:
                raise InvariantError(f"graph: node {name!r} does not exist")
            seen.add(name)
            if stop(name):
                continue
            _, sources, indices = self._inputs(name)
            stack.extend(sources if control else [s for s, index in zip(sources, indices) if index >= 0])
            stack.extend(further(name))
        return seen

    def descendants(self, names: Iterable[str], control: bool = True) -> set[str]:
        """These nodes and all nodes that follow from them, transitively.

        Args:
            names: nodes to begin with.
            control: whether to follow control edges, too.
        """
        found: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name in found:
                continue
            found.add(name)
            readers = self.consumers[name]
            waiting.extend(r for r, position in readers if control or self._inputs(r)[2][position] >= 0)
        return found

    def order_of(self, names: Iterable[str]) -> Callable[[str, str], bool]:
        """A function that says of two of some nodes whether a path leads from the first to the second, over any nodes.

        Args:
            names: node names.
        """
        wanted = frozenset(names)
        numbers = {name: number for number, name in enumerate(name for name in self.order if name in wanted)}
        masks: dict[str, int] = {}  # of the nodes before each
        for name in self.order:
            mask = 0
            for source in self.sources(name):
                number = numbers.get(source)
                mask |= masks[source] if number is None else masks[source] | 1 << number
            masks[name] = mask
        kept = {name: masks[name] for name in numbers}
        return lambda first, last: bool(kept[last] >> numbers[first] & 1)

    def pruned(self, roots: Iterable[str]) -> Graph:
        """The graph of just what ``roots`` need, in the same order."""
        keep = self.ancestors(roots)
        return Graph((n for n in self if n.name in keep), self.library, self.versions, self)

    def replaced(self, changed: Mapping[str, NodeDef], added: Sequence[NodeDef] = (), library: Any = None) -> Graph:
        """A new graph in which some nodes are replaced, by name, some are added, and the functions may be replaced.

        Raises:
            InvariantError: two nodes have one name, or a node and its replacement have not.
        """
        graph = Graph(added, self.library if library is None else library, self.versions, self)
        for name, node in changed.items():
            if node.name != name:
                raise InvariantError(f"graph: node {name!r} is replaced by one named {node.name!r}")
        both = next((name for name in graph.nodes if name in self.nodes), None)
        if both is not None:
            raise InvariantError(f"graph: two nodes are named {both!r}")
        kept = {name: changed.get(name, node) for name, node in self.nodes.items()}
        graph.nodes = {**kept, **graph.nodes}
        return graph


def topological_order(digraph: nx.DiGraph) -> tuple[tuple[str, ...], list[str]]:
    """Nodes of a graph, producers first.

    Args:
        digraph: graph whose nodes are to be ordered.

    Returns:
        The nodes in their order, in which ties keep the order of the graph; and the nodes that cannot be ordered,
        because they are on a cycle or behind one.
    """
    order: list[str] = []
    try:
        for generation in nx.topological_generations(digraph):
            order += generation
    except nx.NetworkXUnfeasible:
        ordered = set(order)
        return tuple(order), [name for name in digraph if name not in ordered]
    return tuple(order), []


def behind_identities(graph: Graph, tensor: str) -> str:
    """The tensor that an input or tensor name stands for, ``node:index``, without the Identities that pass it on."""
    name, index = parse_input(tensor)
    while graph[name].op == "Identity":
        name, index = parse_input(graph[name].input[0])
    return f"{name}:{index}"
