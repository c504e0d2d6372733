"""Search for the tensors to sum over the workers, so that a loss is that of the whole batch on each of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from caramel.errors import CaptureError
from caramel.frontend.attributes import OVER_WORKERS_ATTRIBUTE, SIZED_ATTRIBUTE
from caramel.frontend.batch.domain import (
    Examples,
    Independent,
    Statistic,
    Total,
    Value,
    is_everywhere,
)
from caramel.frontend.captured import Gather, RawProgram
from caramel.frontend.roles.asked_sums import is_settled
from caramel.frontend.roles.divergence import SHAPE_OPS
from caramel.frontend.roles.entries import is_any_differentiated_again
from caramel.frontend.roles.example_sizes import Sizes
from caramel.frontend.roles.needs import ASSIGNMENTS, Look, Needs, kind_of_sum
from caramel.frontend.roles.summed_graph import name_over_workers, with_share, with_size, with_sum
from caramel.frontend.roles.tensor_reductions import Reductions
from caramel.graph import ops
from caramel.graph.graph import NodeDef, data_texts, node_of, parse_input, tensor_name
from caramel.graph.guards import guards_of

_MAX_ROUNDS = 256
"""Rounds after which a loss that is still no function of sums is given up; each round sums at least one tensor more."""

_SCATTERS = (
    "ResourceStridedSliceAssign",
    *(f"ResourceScatter{what}" for what in ("Add", "Sub", "Mul", "Div", "Min", "Max", "Update")),
    *(f"ResourceScatterNd{what}" for what in ("Add", "Sub", "Min", "Max", "Update")),
)
"""Ops that write some rows of a variable, each slice to the row of its index, or consecutive ones."""

Analyse = Callable[[RawProgram], tuple[Reductions, Sequence[str]]]
"""Function from a program to the analysis of its tensors, and the losses whose reduction must be told."""


class GatherNeeded(CaptureError):
    """The program has to be traced once more, with some inputs of ops replaced by those of all workers.

    Attributes:
        gathers: the inputs.
        refusal: why the program cannot be replicated otherwise.
    """

    def __init__(self, gathers: Collection[Gather], refusal: CaptureError) -> None:
        super().__init__(str(refusal))
        self.gathers = frozenset(gathers)
        self.refusal = refusal


@dataclass
class Search:
    """Search for the tensors to sum, one after the other, as the analysis of what is summed needs it.

    Attributes:
        raw: the program, with the sums found so far.
        analyse: see `Analyse`.
        at_ops: tensors for which what is behind them is summed where it is made.
        refusal: why the program cannot be replicated without sums.
        sources: tensors of the ops that add up the examples of each summed tensor.
        twice: summed tensors whose sources something else would have to sum, too.
        wanted_at_ops: those whose sources a result of the step would have to sum, too, which stays as it is.
        unshared: names of the ops for which the last `with_updates` has failed.
    """

    raw: RawProgram
    analyse: Analyse
    at_ops: Collection[str]
    refusal: CaptureError
    sources: dict[str, tuple[str, ...]] = field(default_factory=dict)
    twice: set[str] = field(default_factory=set)
    wanted_at_ops: set[str] = field(default_factory=set)
    unshared: set[str] = field(default_factory=set)
    _entries: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _left: set[str] = field(default_factory=set)
    _sized: set[tuple[str, int]] = field(default_factory=set)
    _updated: set[tuple[str, int]] = field(default_factory=set)

    def entries_of(self, tensor: str) -> set[str]:
        """Names of the nodes through which gradients enter what is behind a summed tensor."""
        return set(self._entries.get(tensor, ()))

    def run(self) -> RawProgram | None:
        """The program with the sums; None where no sums make its losses those of one device.

        Raises:
            GatherNeeded: the examples of all workers are needed.
        """
        for _ in range(_MAX_ROUNDS):
            reductions, losses = self.analyse(self.raw)
            looked = Look(self.raw, reductions)
            told = [reductions.reduction_of(loss)[0] for loss in losses]
            kinds = {kind for kind in told if kind is not None} or {"mean"}
            if None not in told and len(kinds) == 1 and is_settled(self.raw, reductions, *kinds):
                needs = looked.elsewhere(self._left)
                if needs is None:
                    return self.raw
            else:
                needs = looked.of_losses(losses, told)
            if needs.shares:
                if not self._share(needs.shares):
                    return None
                continue
            if needs.result:
                self._add_for_result(needs, reductions, losses)
                continue
            if needs.sizes and self._sized.issuperset(needs.sizes):
                return None  # that was done, and has not helped: a loop, say, that runs as often as there are examples
            needs.gathers |= {
                Gather(self.raw.made[name], at, None) for name, at in needs.sizes if looked.sizes.is_hidden(name, at)
            }
            if needs.gathers:
                raise GatherNeeded(needs.gathers, self.refusal)
            if not needs.tensors and not needs.sizes:
                return None
            # One at a time: the others may be functions of it.
            if needs.tensors and not self._add(needs.tensors[0], reductions, losses):
                return None
            if not needs.tensors and not self._add_sizes(needs.sizes, reductions):
                return None
        return None

    def with_losses(self) -> RawProgram | None:
        """The program whose losses are those of the whole batch on each worker; None where that is not possible.

        Raises:
            GatherNeeded: see `run`.
        """
        before = self.raw
        if self.run() is None:
            return None
        for _ in range(_MAX_ROUNDS):
            reductions, losses = self.analyse(self.raw)
            loss = next((loss for loss in losses if isinstance(reductions.value_of(loss), Total)), None)
            if loss is None:
                break
            if not self._add(loss, reductions, losses):
                return None
        return None if self.raw is before else self.raw

    def with_gradients_by_tensors(self, step: Collection[str]) -> RawProgram | None:
        """The program whose gradients by tensors that all workers have are those of the whole batch; None without any.

        Args:
            step: names of the nodes of the step.
        """
        before = self.raw
        reductions, _ = self.analyse(self.raw)
        for name in reductions.tensor_gradients:
            tensor = tensor_name(name)
            value = reductions.value_of(tensor)
            is_constant = name in self.raw.entries and not self.raw.entries[name]  # to all later differentiations
            if name in step and is_constant and isinstance(value, Total):
                self._sum(tensor, [tensor], value, reductions)
        return None if self.raw is before else self.raw

    def with_updates(self, writers: Sequence[str]) -> RawProgram | None:
        """The program in which some ops write the same to their variables on all workers; None if that is not possible.

        Args:
            writers: names of the ops.

        Raises:
            GatherNeeded: the examples of all workers are needed.
        """
        for _ in range(_MAX_ROUNDS):
            reductions, losses = self.analyse(self.raw)
            nodes = [self.raw.graph[name] for name in writers]
            self.unshared = {node.name for node in nodes if node.op not in (*ASSIGNMENTS, *_SCATTERS)}
            if self.unshared:
                return None
            own = [
                (node, position)
                for node in nodes
                for position, text in enumerate(data_texts(node)[1:], 1)
                if not is_everywhere(reductions.value_of(text))
            ]
            if not own:
                return self.raw
            looked = Look(self.raw, reductions)
            rows = [each for each in own if each[0].op in _SCATTERS]
            found = [(n.name, looked.gather_of(n.name, at, reductions.value_of(data_texts(n)[at]))) for n, at in rows]
            if gathers := {gather for _, gather in found if gather is not None}:
                self.unshared = {name for name, gather in found if gather is not None}
                raise GatherNeeded(gathers, self.refusal)
            if not self._add_for_updates(own, reductions, losses):
                return None
        return None

    def _add_for_updates(
        self, own: Sequence[tuple[NodeDef, int]], reductions: Reductions, losses: Sequence[str]
    ) -> bool:
        """Make what some inputs of writers are functions of values over all workers; False where that fails for some.

        Those that depend on what was added before are left to the next analysis, which knows of that.

        Raises:
            GatherNeeded: see `with_updates`.
        """
        refused: GatherNeeded | None = None
        is_added = True
        decided = guards_of(self.raw.graph).decided
        for node, position in own:
            writer = self.raw.graph[node.name]
            written = node_of(data_texts(writer)[position])
            behind = self.raw.graph.ancestors([written], control=False, further=lambda name: decided.get(name, ()))
            if not reductions.knows(self.raw.graph, behind):
                continue
            try:
                if self._add_for_update(writer, position, reductions, losses):
                    continue
                is_added = False
            except GatherNeeded as needed:
                refused = needed
            self.unshared.add(node.name)
        if refused is not None and is_added:
            raise refused
        return is_added

    def _add_for_update(self, writer: NodeDef, position: int, reductions: Reductions, losses: Sequence[str]) -> bool:
        """Make one of the values over all workers of which an input of what writes is a function; False without any."""
        written, looked = data_texts(writer)[position], Look(self.raw, reductions)
        if isinstance(reductions.value_of(written), Independent):
            return self._add_first(looked.sizes.inputs_of(writer.name, position), reductions, losses)
        if sums := looked.sums_behind(written):
            return self._add(sums[0], reductions, losses)
        places = looked.sizes.in_numbers(writer.name, position) or looked.sizes_beside_shared(written)
        places = places or self._sizes_for(written, reductions, losses)
        return self._add_first(places, reductions, losses)

    def _add_first(self, places: Sequence[tuple[str, int]], reductions: Reductions, losses: Sequence[str]) -> bool:
        """Let an op read a size as it is for all examples; False without any, or if that has not helped before."""
        if not places or places[0] in self._updated:
            return False
        self._updated.add(places[0])
        return self._add_size_of_no_loss(*places[0], reductions, losses)

    def _sizes_for(self, written: str, reductions: Reductions, losses: Sequence[str]) -> list[tuple[str, int]]:
        """Sizes that what is written is made of, where it has the examples in an order.

        Raises:
            GatherNeeded: the examples of all workers are needed, as what is written compares examples with each other.
        """
        looked = Look(self.raw, reductions)
        for name in looked.causes(written):
            needs = looked.at(name)
            if needs.gathers and looked.has_small_parameters(name, losses):
                raise GatherNeeded(needs.gathers, self.refusal)
            if needs.sizes and not needs.gathers:
                return needs.sizes
        return []

    # -- what to sum -------------------------------------------------------------------------

    def _add_for_result(self, needs: Needs, reductions: Reductions, losses: Sequence[str]) -> None:
        """Sum what a result of the step needs; where that would not be exact, the result stays as it is."""
        before = self.raw, dict(self.sources), dict(self._entries)
        if needs.tensors:
            is_added = self._add(needs.tensors[0], reductions, losses)
        else:
            is_added = all(self._add_size_of_no_loss(*place, reductions, losses) for place in needs.sizes)
        if not is_added:
            self.raw, self.sources, self._entries = before
            self.wanted_at_ops |= self.twice
            self.twice.clear()
            self._left.add(needs.result)

    def _add_size_of_no_loss(self, name: str, position: int, reductions: Reductions, losses: Sequence[str]) -> bool:
        """See `_add_size`. What no loss is made of is not differentiated, so no gradient reads its inputs."""
        forward = self.raw.graph.ancestors(map(node_of, losses), control=False)
        return self._add_size(name, position, reductions, is_plain=name not in forward)

    def _share(self, gradients: Sequence[str]) -> bool:
        """Make gradients by single examples those of the mean of the whole batch; False if that would not be exact."""
        is_told = all(name in self.raw.entries for name in gradients)  # where a later gradient enters them
        if not is_told or any(is_any_differentiated_again(self.raw, name) for name in gradients):
            return False
        for name in gradients:
            self.raw = with_share(self.raw, name)
        return True

    def _add_sizes(self, places: Sequence[tuple[str, int]], reductions: Reductions) -> bool:
        """Add sizes up to the first that depends on what was added here, of which the analysis knows nothing yet."""
        for name, position in places:
            behind = self.raw.graph.ancestors([node_of(self.raw.graph[name].input[position])], control=False)
            if not reductions.knows(self.raw.graph, behind):
                break
            self._sized.add((name, position))
            if not self._add_size(name, position, reductions):
                return False
        return True

    def _add_size(self, name: str, position: int, reductions: Reductions, *, is_plain: bool = False) -> bool:
        """Let an op read what is made of sizes as it is for the number of all examples.

        Args:
            name: name of the op.
            position: which of its inputs.
            reductions: the analysis.
            is_plain: whether the op is known to have no gradient, which would read that input as well.

        Returns:
            Whether it does; else a gradient might read the number of a worker's examples.
        """
        sizes = Sizes(self.raw, reductions)
        if not is_plain and not sizes.is_its_own(name, position):
            return False
        graph = self.raw.graph
        if SIZED_ATTRIBUTE in graph[node_of(graph[name].input[position])].attr:
            name, position = node_of(graph[name].input[position]), 0
        nodes = sizes.behind(graph[name].input[position])
        followed = [n for n in nodes if sizes.has_followed_shape(n)]
        shapes = {n: reductions.value_of(graph[n].input[0]) for n in followed}
        self.raw = with_size(self.raw, name, position, nodes, shapes)
        return True

    # -- where to sum ------------------------------------------------------------------------

    def _add(self, tensor: str, reductions: Reductions, losses: Sequence[str]) -> bool:
        """Sum a tensor; False where that would not be exact."""
        value = reductions.value_of(tensor)
        sources = self._sources(tensor, reductions)
        is_apart = (
            tensor in self.at_ops or not self._is_of(sources, tensor) or not self._passes(sources, tensor, losses)
        )
        if sources != [tensor] and is_apart:
            found = [(source, [source], reductions.value_of(source)) for source in sources]
            return bool(found) and all(self._sum(*each, reductions) for each in found)
        return self._sum(tensor, sources, value, reductions)

    def _sources(self, tensor: str, reductions: Reductions) -> list[str]:
        """The outputs of the ops that add up examples, and of which a tensor is a linear function."""
        found: list[str] = []
        waiting, seen = [tensor], {tensor}
        while waiting:
            current = waiting.pop()
            behind = [
                tensor_name(text)
                for text in data_texts(self.raw.graph[node_of(current)])
                if isinstance(reductions.value_of(text), (Total, Statistic))
            ]
            if not behind:
                found.append(current)
            waiting += [text for text in behind if text not in seen]
            seen.update(behind)
        return found

    def _is_of(self, sources: Sequence[str], tensor: str) -> bool:
        """Whether gradients go from a tensor to its sources only, and to no variable or other sum on the way."""
        graph = self.raw.graph
        stops = {node_of(source) for source in sources}
        behind = graph.ancestors(
            [node_of(tensor)], control=False, stop=lambda name: name in stops or graph[name].op in SHAPE_OPS
        )
        behind = behind - stops
        trained = {v.node for v in self.raw.variables if v.trainable}
        return behind.isdisjoint(trained) and not any(OVER_WORKERS_ATTRIBUTE in graph[name].attr for name in behind)

    def _passes(self, sources: Sequence[str], tensor: str, losses: Sequence[str]) -> bool:
        """Whether sources go into the losses through a tensor only, so that scaling their gradients is scaling its."""
        forward = self.raw.graph.ancestors([node_of(loss) for loss in losses], control=False)
        ends = {node_of(loss) for loss in losses}
        waiting = [node_of(source) for source in sources]
        seen = set(waiting)
        while waiting:
            name = waiting.pop()
            if name == node_of(tensor):
                continue
            if name in ends:
                return False
            for reader, _ in self.raw.graph.consumers[name]:
                if reader in forward and reader not in seen:
                    seen.add(reader)
                    waiting.append(reader)
        return True

    def _on_the_way(self, tensor: str, reductions: Reductions) -> set[str]:
        """The readers of a tensor through which it is a part of what is summed already.

        They go on with the worker's part: else it would be summed twice.
        """
        graph, found = self.raw.graph, set[str]()
        sums = [each.node for each in self.raw.forward_sums if each.kind in ("sum", "mean") and each.node in graph]
        waiting = [tensor_name(graph[name].input[0]) for name in sums]
        seen = set(waiting)
        while waiting:
            name = node_of(waiting.pop())
            for text in map(tensor_name, data_texts(graph[name])):
                if text == tensor:
                    found.add(name)
                if text not in seen and isinstance(reductions.value_of(text), (Total, Statistic)):
                    seen.add(text)
                    waiting.append(text)
        return found

    def _sum(self, tensor: str, sources: Sequence[str], value: Value, reductions: Reductions) -> bool:
        """Sum a tensor that is a linear function of some outputs of ops; False where that would not be exact."""
        graph = self.raw.graph
        kind, counted = kind_of_sum(value), None
        if kind is None and graph[node_of(tensor)].op == "Mean":
            averaged = tensor_name(graph[node_of(tensor)].input[0])
            of_examples = reductions.value_of(averaged)
            if isinstance(of_examples, Examples) and of_examples.chosen and of_examples.power == 0:
                kind, counted = "ratio", averaged
        conditions = [condition for condition, _ in guards_of(graph).by_node[node_of(tensor)]]
        is_run_by_all = all(is_everywhere(reductions.value_of(condition)) for condition in conditions)
        if kind is None or not is_run_by_all or name_over_workers(tensor) in graph:
            return False
        entries = []
        for source in map(node_of, sources):
            if source not in self.raw.entries and self._learns(tensor_name(source)):
                # Where its gradient enters cannot be told, or that is scaled for another sum.
                return self._refused_as_twice([source])
            entries += [(source, entry) for entry in self.raw.entries.get(source, ())]
        if any(is_any_differentiated_again(self.raw, source) for source in map(node_of, sources)):
            return False
        parts_of_sums = self._on_the_way(tensor, reductions)
        if parts_of_sums and (entries or parts_of_sums.issuperset(graph.readers(tensor))):
            return self._refused_as_twice(map(node_of, sources))
        self.raw = with_sum(self.raw, tensor, kind, counted, entries, parts_of_sums)
        self.sources[tensor] = tuple(sources)
        self._entries[tensor] = self.raw.forward_sums[-1].entries
        return True

    def _refused_as_twice(self, sources: Iterable[str]) -> bool:
        """False, once it is noted of which summed tensors these ops are sources, too."""
        names = {*sources}
        self.twice |= {other for other, those in self.sources.items() if not names.isdisjoint(map(node_of, those))}
        return False

    def _learns(self, tensor: str) -> bool:
        """Whether a tensor depends on a variable that is trained."""
        graph = self.raw.graph
        name, index = parse_input(tensor)
        if not ops.dtype_name(ops.output_types(graph[name])[index]).startswith(("float", "bfloat", "complex")):
            return False
        behind = graph.ancestors([name], control=False, stop=lambda other: graph[other].op in SHAPE_OPS)
        return any(v.trainable and v.node in behind for v in self.raw.variables)
