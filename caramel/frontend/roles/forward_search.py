"""Search for the tensors to sum over the workers, so that a loss is that of the whole batch on each of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from caramel.errors import CaptureError
from caramel.frontend.attributes import OVER_WORKERS_ATTRIBUTE, SIZED_ATTRIBUTE, TARGETS_ATTRIBUTE
from caramel.frontend.batch.domain import (
    Examples,
    Followed,
    Independent,
    Statistic,
    Total,
    Unknown,
    Value,
    Whole,
    is_everywhere,
)
from caramel.frontend.captured import Gather, RawProgram
from caramel.frontend.roles.asked_sums import gathered_parts, is_plain, is_settled
from caramel.frontend.roles.divergence import SHAPE_OPS
from caramel.frontend.roles.loss_reduction import Reductions
from caramel.frontend.roles.summed_graph import name_over_workers, with_share, with_size, with_sum
from caramel.graph import ops
from caramel.graph.graph import NodeDef, data_texts, format_input, node_of, parse_input, tensor_name
from caramel.graph.guards import guards_of
from caramel.graph.shapes import static_size

_MAX_ROUNDS = 256
"""Rounds after which a loss that is still no function of sums is given up; each round sums at least one tensor more."""

_MAX_SUM_OF_RESULT = 2**16
"""Elements of the largest tensor that is summed for a result of the step only, such as a metric."""

_ASSIGNMENTS = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
"""Ops that write one tensor of a variable's shape."""

_SCATTERS = (
    *(f"ResourceScatter{what}" for what in ("Add", "Sub", "Mul", "Div", "Min", "Max", "Update")),
    *(f"ResourceScatterNd{what}" for what in ("Add", "Sub", "Min", "Max", "Update")),
)
"""Ops that write rows of a variable, each slice to the row of its index."""

_MAX_WHOLE_PARAMETER = 4096
"""Elements of the largest parameter with which every worker computes for the examples of all workers."""

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
class _Needs:
    """What a loss needs.

    Attributes:
        tensors: tensors to sum over the workers.
        gathers: inputs of ops that are to have the examples of all workers.
        sizes: inputs of ops, as (node, position), that are made of sizes and are to be those of all examples.
        shares: gradients of means with respect to single examples that are to be those of the whole batch's means.
        at: name of the op.
        result: the result of the step for which it is, which may stay as it is; "" for what a loss needs.
    """

    tensors: list[str] = field(default_factory=list)
    gathers: set[Gather] = field(default_factory=set)
    sizes: list[tuple[str, int]] = field(default_factory=list)
    shares: list[str] = field(default_factory=list)
    at: str = ""
    result: str = ""


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
    """

    raw: RawProgram
    analyse: Analyse
    at_ops: Collection[str]
    refusal: CaptureError
    sources: dict[str, tuple[str, ...]] = field(default_factory=dict)
    twice: set[str] = field(default_factory=set)
    wanted_at_ops: set[str] = field(default_factory=set)
    _entries: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _left: set[str] = field(default_factory=set)
    _sized: set[tuple[str, int]] = field(default_factory=set)

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
            told = [reductions.reduction_of(loss)[0] for loss in losses]
            kinds = {kind for kind in told if kind is not None} or {"mean"}
            if None not in told and len(kinds) == 1 and is_settled(self.raw, reductions, *kinds):
                needs = self._elsewhere(reductions)
                if needs is None:
                    return self.raw
            else:
                needs = self._next(reductions, losses, told)
            if needs.shares:
                if not all(name in self.raw.entries for name in needs.shares):
                    return None  # where a later gradient enters them cannot be told
                if any(is_any_differentiated_again(self.raw, name) for name in needs.shares):
                    return None
                for name in needs.shares:
                    self.raw = with_share(self.raw, name)
                continue
            if needs.result:
                self._add_for_result(needs, reductions, losses)
                continue
            if any(self._is_of_a_part(name, at) for name, at in needs.sizes):
                return None
            if needs.sizes and self._sized.issuperset(needs.sizes):
                return None  # that was done, and has not helped: a loop, say, that runs as often as there are examples
            self._sized.update(needs.sizes)
            needs.gathers |= {
                Gather(self.raw.made[name], at, None) for name, at in needs.sizes if self._is_hidden(name, at)
            }
            if needs.gathers:
                raise GatherNeeded(needs.gathers, self.refusal)
            if not needs.tensors and not needs.sizes:
                return None
            # One at a time: the others may be functions of it.
            if needs.tensors and not self._add(needs.tensors[0], reductions, losses):
                return None
            if not needs.tensors and not all(self._add_size(*place, reductions) for place in needs.sizes):
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
            if any(node.op not in (*_ASSIGNMENTS, *_SCATTERS) for node in nodes):
                return None
            scatters = [node for node in nodes if node.op in _SCATTERS]
            if scatters and not self._are_everywhere(scatters, reductions):
                return None
            nodes = [node for node in nodes if node.op in _ASSIGNMENTS]
            own = [node for node in nodes if not is_everywhere(reductions.value_of(node.input[1]))]
            if not own:
                return self.raw
            if not self._add_for_update(own[0], reductions, losses):
                return None
        return None

    def _are_everywhere(self, scatters: Sequence[NodeDef], reductions: Reductions) -> bool:
        """Whether what is scattered into variables is the same on all workers.

        Raises:
            GatherNeeded: it is of the examples, and has to be that of all of them.
        """
        gathers: set[Gather] = set()
        for node in scatters:
            for position, text in enumerate(data_texts(node)[1:], 1):
                value = reductions.value_of(text)
                gather = self._gather_of(node.name, position, value)
                if gather is not None:
                    gathers.add(gather)
                elif not is_everywhere(value):
                    return False
        if gathers:
            raise GatherNeeded(gathers, self.refusal)
        return True

    def _gather_of(self, name: str, position: int, value: Value) -> Gather | None:
        """How an op gets the examples of all workers; None for an input that has none, or not in a known order."""
        if not isinstance(value, Examples) or value.mixed_by or value.chosen or value.power:
            return None
        if value.before is None or name not in self.raw.made:
            return None
        return Gather(self.raw.made[name], position, value.axis, value.before)

    def _add_for_update(self, writer: NodeDef, reductions: Reductions, losses: Sequence[str]) -> bool:
        """Make one of the values over all workers of which what an op writes is a function; False if there is none."""
        written = writer.input[1]
        if isinstance(reductions.value_of(written), Independent):
            places = self._size_inputs(writer.name, 1, reductions)
            return bool(places) and self._add_size_of_no_loss(*places[0], reductions, losses)
        sums = self._sums_behind(written, reductions)
        if not sums:
            places = self._sizes_beside_shared(written, reductions)
            if places:
                return self._add_size_of_no_loss(*places[0], reductions, losses)
            self._gather_for(written, reductions, losses)
        return bool(sums) and self._add(sums[0], reductions, losses)

    def _sizes_beside_shared(self, written: str, reductions: Reductions) -> list[tuple[str, int]]:
        """An input of an op that is made of the number of examples, if all others are the same on all workers."""
        for name in self._causes(written, reductions):
            texts = data_texts(self.raw.graph[name])
            own = [(at, text) for at, text in enumerate(texts) if not is_everywhere(reductions.value_of(text))]
            values = [reductions.value_of(text) for _, text in own]
            if own and all(isinstance(v, Independent) for v in values) and self._is_sized(own[0][1], reductions):
                return [(name, own[0][0])]
        return []

    def _gather_for(self, written: str, reductions: Reductions, losses: Sequence[str]) -> None:
        """Ask for the examples of all workers, if what is written compares examples with each other."""
        for name in self._causes(written, reductions):
            needs = self._at(name, reductions)
            if needs.gathers and self._has_small_parameters(name, losses):
                raise GatherNeeded(needs.gathers, self.refusal)

    # -- what to sum -------------------------------------------------------------------------

    def _next(self, reductions: Reductions, losses: Sequence[str], told: Sequence[str | None]) -> _Needs:
        """What the first loss needs; nothing where no sums help."""
        gathered = [t for t in gathered_parts(self.raw) if reductions.has(t)]
        unclear = [t for t in gathered if not is_plain(reductions.value_of(t))]
        open_losses = [*unclear, *(loss for loss, kind in zip(losses, told) if kind is None)]
        if not open_losses:  # some are means and some are sums, or a sum is to become a mean
            return _Needs(list(dict.fromkeys(loss for loss, kind in zip(losses, told) if kind == "sum")))
        loss = open_losses[0]
        value = reductions.value_of(loss)
        if isinstance(value, Unknown):
            tried = (self._at(name, reductions) for name in self._causes(loss, reductions))
            needs = next((n for n in tried if n.tensors or n.gathers or n.sizes or n.shares), None)
            needs = self._sizes_beside(loss, reductions) if needs is None else needs
            return needs if not needs.gathers or self._has_small_parameters(needs.at, losses) else _Needs()
        if isinstance(value, (Examples, Total)) and value.mixed_by:
            return self._at(value.mixed_by, reductions)
        shares = reductions.unscaled_gradients([loss])
        if shares:
            return _Needs(shares=shares)
        if isinstance(value, Independent):
            return self._sizes_beside(loss, reductions)
        return _Needs(self._totals(loss, reductions))

    def _causes(self, loss: str, reductions: Reductions) -> list[str]:
        """The ops behind a loss that make its value one of which nothing is known, in the order of the graph."""
        graph = self.raw.graph
        behind = graph.ancestors(
            [node_of(loss)], control=False, stop=lambda name: OVER_WORKERS_ATTRIBUTE in graph[name].attr
        )
        causes = []
        for name in graph.order:
            if name in behind and ops.output_types(graph[name]):
                value = reductions.value_of(tensor_name(name))
                if isinstance(value, Unknown) and value.node == name and not value.unmodelled:
                    causes.append(name)
        return causes

    def _has_small_parameters(self, name: str, losses: Sequence[str]) -> bool:
        """Whether what every worker would compute for all examples, from an op on, has no large parameters.

        A network behind the op would have to be computed as a whole by each worker.
        """
        graph = self.raw.graph
        forward = graph.ancestors([node_of(loss) for loss in losses], control=False)
        after, waiting = {name}, [name]
        while waiting:
            for reader, _ in graph.consumers[waiting.pop()]:
                if reader in forward and reader not in after:
                    after.add(reader)
                    waiting.append(reader)
        beside = {node_of(text) for each in after for text in data_texts(graph[each])} - after
        large = {v.node for v in self.raw.variables if v.trainable and math.prod(v.shape) > _MAX_WHOLE_PARAMETER}
        reads = [name for name in beside if graph[name].op in ("ReadVariableOp", "Identity", "ResourceGather")]
        return large.isdisjoint(graph.ancestors(reads, control=False)) if reads else True

    def _at(self, name: str, reductions: Reductions) -> _Needs:
        """What an op needs that is not linear in sums over the examples, or compares the examples with each other."""
        if name not in self.raw.graph:
            return _Needs()
        op = self.raw.graph[name]
        values = [(position, text, reductions.value_of(text)) for position, text in enumerate(data_texts(op))]
        first = values[0][2] if values else None
        if op.op == "Mean" and isinstance(first, Examples) and first.chosen and first.axis == 0:
            return self._at(first.mixed_by, reductions) if first.mixed_by else _Needs([tensor_name(name)])
        shares = reductions.unscaled_gradients([text for _, text, _ in values])
        if shares:
            return _Needs(shares=shares, at=name)
        needs = _Needs(at=name)
        for _, text, value in values:
            if isinstance(value, (Total, Statistic)):
                needs.tensors += [t for t in self._totals(text, reductions) if t not in needs.tensors]
        if needs.tensors:
            return needs
        for position, text, value in values:
            if is_everywhere(value):
                continue
            if isinstance(value, Followed):
                needs.gathers |= self._gathers_of_parts(text, reductions)
                if not needs.gathers:
                    return _Needs()
            elif isinstance(value, Examples) and not value.mixed_by and not value.chosen and value.power == 0:
                gather = self._gather_of(name, position, value)
                if gather is None:
                    return _Needs()
                needs.gathers.add(gather)
            elif self._is_sized(text, reductions):
                needs.sizes.append((name, position))
            else:
                return _Needs()
        has_whole = any(isinstance(value, Whole) for _, _, value in values)
        return needs if needs.gathers or has_whole else _Needs()

    def _gathers_of_parts(self, text: str, reductions: Reductions) -> set[Gather]:
        """How examples with something behind them, which is the same on all workers, are those of all workers."""
        name = node_of(text)
        found = [
            self._gather_of(name, position, reductions.value_of(part))
            for position, part in enumerate(data_texts(self.raw.graph[name]))
        ]
        return {gather for gather in found if gather is not None}

    def _is_of_a_part(self, name: str, position: int) -> bool:
        """Whether sizes that are to be those of all examples are constants, made when a worker's part was traced."""
        graph = self.raw.graph
        behind = graph.ancestors([node_of(data_texts(graph[name])[position])], control=False)
        return any(function == "" and node in behind for function, node in self.raw.row_constants)

    def _sizes_beside(self, loss: str, reductions: Reductions) -> _Needs:
        """Sizes that stand beside values of the whole batch, on the way to a loss."""
        graph = self.raw.graph
        behind = graph.ancestors([node_of(loss)], control=False)
        summed = {s.node for s in self.raw.forward_sums}
        needs = _Needs()
        for name in graph.order:
            if name not in behind or graph[name].op in SHAPE_OPS:  # a shape is no function of what the tensor has
                continue
            texts = data_texts(graph[name])
            if not summed.isdisjoint(map(node_of, texts)) and name not in summed:
                summed.add(name)
                for position, text in enumerate(texts):
                    if node_of(text) not in summed:
                        needs.sizes += self._size_inputs(name, position, reductions)
        return needs

    def _size_inputs(self, name: str, position: int, reductions: Reductions) -> list[tuple[str, int]]:
        """The inputs behind one input of an op, itself included, that are made of the number of examples only."""
        text = data_texts(self.raw.graph[name])[position]
        value = reductions.value_of(text)
        if not isinstance(value, Independent) or value.power == 0:
            return []
        if self._is_sized(text, reductions):
            return [(name, position)]
        source = node_of(text)
        return [
            place
            for number in range(len(data_texts(self.raw.graph[source])))
            for place in self._size_inputs(source, number, reductions)
        ]

    def _elsewhere(self, reductions: Reductions) -> _Needs | None:
        """What a step needs beside its losses, such as metrics of what was gathered; None for nothing."""
        graph = self.raw.graph
        gradients = {node_of(g.tensor) for g in self.raw.gradients}  # what is behind them is summed later
        ends = [*self.raw.targets, *map(node_of, self.raw.results)]
        behind = graph.ancestors(ends, control=False, stop=lambda name: name in gradients) - gradients
        for name in graph.order:
            if name in behind and ops.output_types(graph[name]):
                value = reductions.value_of(tensor_name(name))
                if isinstance(value, Unknown) and value.beside_whole and value.node == name:
                    return self._at(name, reductions)
        written = self._written(reductions)
        return written if written.sizes else self._for_results(reductions)

    def _for_results(self, reductions: Reductions) -> _Needs | None:
        """Sums of which a result of the step is a function, as a share of the entries that a mask leaves; or None."""
        for tensor in self.raw.results:
            if tensor not in self._left and may_be_function_of_sums(reductions.value_of(tensor)):
                sums = self._sums_behind(tensor, reductions)
                if sums:
                    return _Needs(sums, result=tensor)
            sizes = [] if tensor in self._left else self._sizes_in(tensor, reductions)
            if sizes:
                return _Needs(sizes=sizes, result=tensor)
        return None

    def _sizes_in(self, tensor: str, reductions: Reductions) -> list[tuple[str, int]]:
        """Sizes beside values of the whole batch, of which a tensor is made that is no count of examples."""
        value = reductions.value_of(tensor)
        is_of_sizes = isinstance(value, Independent) and value.power not in (0, 1)
        return self._sizes_beside(tensor, reductions).sizes if is_of_sizes else []

    def _sums_behind(self, tensor: str, reductions: Reductions) -> list[str]:
        """Sums of which a tensor is a function; none where it is no function of sums, or they are large."""
        if isinstance(reductions.value_of(tensor), Unknown):
            needs = [self._at(name, reductions) for name in self._causes(tensor, reductions)]
            found = next((n.tensors for n in needs if n.tensors and not n.gathers and not n.sizes), [])
        else:
            found = self._totals(tensor, reductions)
        sizes = [static_size(self.raw.graph, each) for each in found]
        return found if all(size is not None and size <= _MAX_SUM_OF_RESULT for size in sizes) else []

    def _add_for_result(self, needs: _Needs, reductions: Reductions, losses: Sequence[str]) -> None:
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
        is_of_a_part = self._is_of_a_part(name, position)
        return not is_of_a_part and self._add_size(name, position, reductions, is_plain=name not in forward)

    def _written(self, reductions: Reductions) -> _Needs:
        """Sizes beside values of the whole batch in what is written to variables, but for what totals count."""
        graph = self.raw.graph
        needs = _Needs()
        if self.raw.forward_sums:
            for target in graph.pruned(self.raw.targets):
                if target.op in _ASSIGNMENTS:
                    places = self._sizes_in(target.input[1], reductions)
                    needs.sizes += [place for place in places if place not in needs.sizes]
        return needs

    def _is_sized(self, text: str, reductions: Reductions) -> bool:
        """Whether a tensor depends on nothing but constants and the shapes of tensors."""
        graph = self.raw.graph
        return all(
            not ops.is_stateful(graph[name])
            and graph[name].op not in ops.PLACEHOLDERS
            and not ops.functions_of(graph[name])
            for name in self._behind_sizes(text, reductions)
        )

    def _behind_sizes(self, text: str, reductions: Reductions) -> list[str]:
        """The nodes of which a tensor is made, up to the ops that ask for the shape of one that is followed."""
        graph = self.raw.graph
        behind = graph.ancestors(
            [node_of(text)], control=False, stop=lambda name: self._has_followed_shape(name, reductions)
        )
        return [name for name in graph.order if name in behind]

    def _has_followed_shape(self, name: str, reductions: Reductions) -> bool:
        """Whether an op asks for the shape of a tensor of which it is known how it has the examples."""
        op = self.raw.graph[name]
        return op.op in ("Shape", "Size") and isinstance(
            reductions.value_of(op.input[0]), (Examples, Independent, Whole)
        )

    def _totals(self, text: str, reductions: Reductions) -> list[str]:
        """The sums or means of which a tensor is a function."""
        value = reductions.value_of(text)
        if isinstance(value, Total) and value.mixed_by:
            return self._at(value.mixed_by, reductions).tensors
        if isinstance(value, Total) and value.power in (0, -1):
            return [tensor_name(text)]
        found: list[str] = []
        for source in data_texts(self.raw.graph[node_of(text)]):
            if isinstance(reductions.value_of(source), (Total, Statistic)):
                found += self._totals(source, reductions)
        return list(dict.fromkeys(found))

    def _is_hidden(self, name: str, position: int) -> bool:
        """Whether an op's own gradient may read one of its inputs, and that can only be told by another trace."""
        return not self._is_its_own(name, position) and name in self.raw.made

    def _is_its_own(self, name: str, position: int) -> bool:
        """Whether nothing else than an op, and perhaps its gradient, reads one of its inputs."""
        source, index = parse_input(self.raw.graph[name].input[position])
        readers = self.raw.graph.readers(format_input(source, index))
        return SIZED_ATTRIBUTE in self.raw.graph[source].attr or readers == (name,)

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
        if not is_plain and not self._is_its_own(name, position):
            return False
        graph = self.raw.graph
        if SIZED_ATTRIBUTE in graph[node_of(graph[name].input[position])].attr:
            name, position = node_of(graph[name].input[position]), 0
        nodes = self._behind_sizes(graph[name].input[position], reductions)
        followed = [n for n in nodes if self._has_followed_shape(n, reductions)]
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
            kind, counted = "ratio", tensor_name(graph[node_of(tensor)].input[0])
        is_always_run = not guards_of(graph).by_node[node_of(tensor)]
        if kind is None or not is_always_run or name_over_workers(tensor) in graph:
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


def is_any_differentiated_again(raw: RawProgram, name: str) -> bool:
    """Whether a differentiation goes through a gradient that enters an op: what is done to it would be left out.

    Args:
        raw: the captured program.
        name: name of the op.
    """
    entries = {node_of(entry.tensor) for entry in raw.entries.get(name, ())}
    if not entries:
        return False
    targets = {node_of(t) for t, _ in raw.differentiated} | {n.name for n in raw.graph if TARGETS_ATTRIBUTE in n.attr}
    return not entries.isdisjoint(raw.graph.ancestors(sorted(targets), control=False))


def may_be_function_of_sums(value: Value) -> bool:
    """Whether a tensor may be a function of sums over the examples and is neither a sum nor a mean itself."""
    return isinstance(value, (Statistic, Unknown)) or (isinstance(value, Total) and kind_of_sum(value) is None)


def kind_of_sum(value: Value) -> str | None:
    """How the workers' values of a tensor give that of the whole batch: by a sum or a mean; None by neither."""
    if isinstance(value, Total) and not value.mixed_by and value.power in (0, -1):
        return "sum" if value.power == 0 else "mean"
    return None
