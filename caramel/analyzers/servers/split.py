"""Split: which nodes of a step run on parameter servers, and what workers and servers need of each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from caramel.analyzers.step.kept import once_per_model
from caramel.analyzers.step.row_lookups import gathers_rows, might_be_at_once
from caramel.graph import ops
from caramel.graph.functions import Library
from caramel.graph.graph import node_of, parse_input, tensor_name
from caramel.graph.guards import Guard, guards_of
from caramel.model import Gradient, Model, Variable

LOOKUPS = frozenset({"ResourceGather", "ResourceGatherNd"})
"""Ops that look up entries of a variable by its handle."""


@dataclass(frozen=True)
class ServedLookup:
    """A lookup by workers in a variable of the servers, of which only what is looked up travels.

    Attributes:
        node: name of the op, on workers.
        taker: name of the op that takes the handle: the same one, or one that reads the whole value before it.
        handle: name of the handle.
    """

    node: str
    taker: str
    handle: str


@dataclass(frozen=True)
class Split:
    """The parts of a step, by names of the Model's graph.

    What differs between workers is computed by workers. What is the same for all and follows from gradients of all
    workers, or from variables that the step writes, is computed by servers, once.

    Attributes:
        variables: variables that servers hold, by the names of their handles: those that a step writes alike for all.
            Of a step that trains nothing, those that it does not write.
        nodes: nodes that servers run, producers first; also the handles.
        only_there: those among them that workers have no copy of. They follow from the variables or from gradients;
            others (constants, learning rates) both have.
        masks: for nodes of servers, the gradients from which they follow by data or by order, as the bits of an
            integer.
        results: gradient by (reader, tensor), where a node reads the gradient of all workers.
        lookups: lookups of workers in variables of the servers, in no branch.
        unread: nodes of servers that read all of a variable, of which nobody gets more than rows, in no branch.
        holders: (node, position) of further inputs of workers' nodes that are handles of such variables: a loop or a
            call, say, or what is in a branch that may not be taken. These need a copy of the variable.
    """

    variables: Mapping[str, Variable]
    nodes: tuple[str, ...]
    only_there: frozenset[str]
    masks: Mapping[str, int]
    results: Mapping[tuple[str, str], Gradient]
    lookups: tuple[ServedLookup, ...]
    unread: frozenset[str]
    holders: tuple[tuple[str, int], ...]

    @cached_property
    def members(self) -> frozenset[str]:
        """The nodes that servers run."""
        return frozenset(self.nodes)

    @cached_property
    def lookup_by_node(self) -> Mapping[str, ServedLookup]:
        """The lookups by the names of their ops."""
        return {lookup.node: lookup for lookup in self.lookups}


@once_per_model
def split_step(model: Model) -> Split:
    """Find the parts of a step.

    Args:
        model: the single-device step.
    """
    return _Splitting(model).found()


class _Splitting:
    def __init__(self, model: Model) -> None:
        self._model, self._graph = model, model.graph
        self._library = Library(model.graph)
        written = {name for name, writers in model.updates if writers}
        trains = bool(model.gradients)
        self._variables = {
            v.node: v
            for v in model.variables
            if v.node in self._graph and not v.kind.is_local and (v.name in written) == trains
        }
        self._results = dict(_results(model))
        self._bits = {gradient.name: 1 << number for number, gradient in enumerate(model.gradients)}
        self._summed = {each.node for each in model.forward_sums}
        rows = (g.indices if g.shared_rows else g.rows for g in model.gradients)
        self._same_rows = {node_of(tensor) for tensor in rows if tensor is not None}
        self._differing = self._found_differing()

    def found(self) -> Split:
        """See `Split`."""
        graph = self._graph
        members = self._needed_with(self._following())
        nodes = tuple(name for name in graph.order if name in members)
        only_there, masks = set[str](), dict[str, int]()
        for name in nodes:
            sources = graph.sources(name)
            bits = [self._bit(name, text) for text in graph[name].input]
            masks[name] = 0
            for source, bit in zip(sources, bits):
                masks[name] |= bit or masks.get(source, 0)
            if name in self._variables or any(bits) or not only_there.isdisjoint(sources):
                only_there.add(name)
        lookups, holders = [], []
        reads = self._reads_for_lookups(members, only_there)
        for name in graph.order:
            if name in members:
                continue
            for position, (source, index) in enumerate(graph.parsed_inputs(name)):
                if index < 0:
                    continue
                if source in reads:
                    lookups.append(ServedLookup(name, source, node_of(graph[source].input[0])))
                elif source in self._variables and graph[name].op in LOOKUPS and not self._guards[name]:
                    lookups.append(ServedLookup(name, name, source))
                elif source in self._variables:
                    holders.append((name, position))
        return Split(
            self._variables,
            nodes,
            frozenset(only_there),
            masks,
            self._results,
            tuple(lookups),
            frozenset(self._unread({lookup.node for lookup in lookups})),
            tuple(holders),
        )

    def _reads_for_lookups(self, members: set[str], only_there: set[str]) -> set[str]:
        """The nodes of servers that read all of a variable for workers, which only look up rows of it."""
        graph, readers = self._graph, dict[str, dict[str, list[str]]]()  # workers' nodes by read by handle
        for name in members:
            handle = node_of(graph[name].input[0]) if graph[name].op == "ReadVariableOp" else ""
            if handle in self._variables and (found := [r for r in graph.data_readers(name) if r not in members]):
                readers.setdefault(handle, {})[name] = found
        return {
            read
            for handle, by_read in readers.items()
            if not any(self._guards[writer] for writer in self._writers(handle))
            and all(self._looks_up(read, reader, only_there) for read, found in by_read.items() for reader in found)
            for read in by_read
        }

    def _writers(self, handle: str) -> Sequence[str]:
        """The nodes that write a variable."""
        return dict(self._model.updates).get(self._variables[handle].name, ())

    def _unread(self, looked_up: set[str]) -> Iterator[str]:
        """The reads of servers' variables, in no branch, whose value nothing needs but lookups."""
        users = {user for handle in self._variables for user, _ in self._graph.consumers[handle]}
        for name in users - self._given_back:
            is_read = self._graph[name].op == "ReadVariableOp" and not self._guards[name]
            if is_read and looked_up.issuperset(self._graph.data_readers(name)):
                yield name

    def _looks_up(self, read: str, reader: str, only_there: set[str]) -> bool:
        """Whether a worker's node looks up rows of what was read, by indices that workers have, and might at once."""
        node, is_in_branch = self._graph[reader], bool(self._guards[read] or self._guards[reader])
        if is_in_branch or read in self._given_back or not gathers_rows(self._graph, node):
            return False
        table, indices = map(node_of, node.input[:2])
        return table == read != indices and indices not in only_there and might_be_at_once(self._model, read, reader)

    @cached_property
    def _given_back(self) -> set[str]:
        """The nodes with results of a step."""
        return {node_of(tensor) for tensor in (self._model.loss, *(t for _, t in self._model.outputs))}

    @cached_property
    def _guards(self) -> Mapping[str, frozenset[Guard]]:
        """The conditions under which each node runs."""
        return guards_of(self._graph).by_node

    def _bit(self, reader: str, text: str) -> int:
        """The bit of the gradient whose result an input is; 0 where it is no such thing."""
        gradient = None if text.startswith("^") else self._results.get((reader, tensor_name(text)))
        return 0 if gradient is None else self._bits[gradient.name]

    # -- what differs between workers --------------------------------------------------------

    def _found_differing(self) -> set[str]:
        """The nodes whose values still differ between workers once every gradient is aggregated."""
        graph, guards = self._graph, guards_of(self._graph)
        starts = {i.node for i in self._model.inputs if i.split or i.component is not None}
        starts |= {v.node for v in self._model.variables if v.kind.is_local}
        starts |= {table.node for table in self._model.tables}
        differing: set[str] = set()
        for name in graph.order:
            if name in self._summed or name in self._same_rows:
                continue
            conditions = [*guards.decided[name], *(condition for condition, _ in guards.by_node[name])]
            sources = (node_of(text) for text in graph[name].input if self._is_own(name, text))
            if name in starts or self._draws(name) or not differing.isdisjoint([*sources, *conditions]):
                differing.add(name)
        return differing

    def _is_own(self, reader: str, text: str) -> bool:
        """Whether an input is data of the same worker."""
        return not text.startswith("^") and (reader, tensor_name(text)) not in self._results

    def _draws(self, name: str) -> bool:
        node = self._graph[name]
        inner = (inner for _, inner in self._library.inner_nodes(node))
        return any(ops.is_seeded_random(each) for each in (node, *inner) if each.op not in self._library)

    # -- what servers run --------------------------------------------------------------------

    def _following(self) -> set[str]:
        """Nodes equal on all workers that use a served variable, or follow from a gradient or a write."""
        takers = {reader for handle in self._variables for reader, _ in self._graph.consumers[handle]}
        found = {name for name in takers if self._is_same(name)}
        waiting = [reader for reader, _ in self._results]
        waiting += [writer for name, writers in self._model.updates if self._is_served(name) for writer in writers]
        followed: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name not in followed and self._is_same(name):
                followed.add(name)
                waiting += (reader for reader, _ in self._graph.consumers[name])
        return found | followed

    def _is_served(self, name: str) -> bool:
        return self._model.variable_by_name[name].node in self._variables

    def _is_same(self, name: str) -> bool:
        """Whether a node has the same value on all workers, and no worker has to be asked for it."""
        return name not in self._differing and name not in self._summed

    def _needed_with(self, names: Iterable[str]) -> set[str]:
        """These nodes, and every input of theirs, direct or not, that is equal on all workers and not fed."""
        found: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name in found:
                continue
            found.add(name)
            for text in self._graph[name].input:
                source, index = parse_input(text)
                if index >= 0 and (name, tensor_name(text)) in self._results:
                    continue
                if self._can_be_anywhere(source):
                    waiting.append(source)
        return found

    def _can_be_anywhere(self, name: str) -> bool:
        return self._is_same(name) and self._graph[name].op not in ops.PLACEHOLDERS


def _results(model: Model) -> Iterator[tuple[tuple[str, str], Gradient]]:
    """Each (reader, tensor) at which a gradient of all workers is read, with the gradient."""
    for gradient in model.gradients:
        for tensor in (gradient.tensor, gradient.indices):
            for reader in () if tensor is None else model.graph.readers(tensor):
                if not gradient.consumers or reader in gradient.consumers:
                    yield (reader, tensor_name(tensor or "")), gradient
