"""What a program needs so that its losses, results and updates are those of the whole batch: sums, gathers, sizes."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from caramel.frontend.attributes import OVER_WORKERS_ATTRIBUTE
from caramel.frontend.batch.domain import (
    Examples,
    Followed,
    Independent,
    Positions,
    Statistic,
    Total,
    Unknown,
    Value,
    Whole,
    is_everywhere,
    mixed_by,
)
from caramel.frontend.captured import Gather, RawProgram
from caramel.frontend.roles.asked_sums import gathered_parts, is_plain
from caramel.frontend.roles.divergence import SHAPE_OPS
from caramel.frontend.roles.example_sizes import Sizes
from caramel.frontend.roles.output_reductions import EXTREMES
from caramel.frontend.roles.tensor_reductions import Reductions
from caramel.frontend.roles.totals import added_to
from caramel.graph import ops
from caramel.graph.graph import data_texts, node_of, tensor_name
from caramel.graph.guards import Guards, guards_of
from caramel.graph.shapes import static_size

_MAX_SUM_OF_RESULT = 2**16
"""Elements of the largest tensor that is summed for a result of the step only, such as a metric."""

ASSIGNMENTS = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
"""Ops that write one tensor of a variable's shape."""

_CUTS = ("GatherV2", "ResourceGather", "StridedSlice")
"""Ops that take some rows of a tensor that all workers have, for as many examples as there are."""

_MAX_WHOLE_PARAMETER = 4096
"""Elements of the largest parameter with which every worker computes for the examples of all workers."""


@dataclass
class Needs:
    """What a loss needs.

    Attributes:
        tensors: tensors to sum over the workers.
        gathers: inputs of ops that are to have the examples of all workers.
        sizes: inputs of ops, as (node, position), that are made of sizes and are to be those of all examples.
        shares: gradients of means with respect to single examples that are to be those of the whole batch's means.
        at: name of the op.
        result: the result of the step for which it is, which may stay as it is; "" for what a loss needs.
        cuts: whether rows for all examples are taken of what all workers have.
    """

    tensors: list[str] = field(default_factory=list)
    gathers: set[Gather] = field(default_factory=set)
    sizes: list[tuple[str, int]] = field(default_factory=list)
    shares: list[str] = field(default_factory=list)
    at: str = ""
    result: str = ""
    cuts: bool = False


@dataclass(frozen=True)
class Look:
    """A look at a program, by one analysis of it.

    Attributes:
        raw: the program, with the sums found so far.
        reductions: the analysis.
    """

    raw: RawProgram
    reductions: Reductions

    @cached_property
    def sizes(self) -> Sizes:
        """The sizes in the program."""
        return Sizes(self.raw, self.reductions)

    @cached_property
    def _guards(self) -> Guards:
        return guards_of(self.raw.graph)

    def of_losses(self, losses: Sequence[str], told: Sequence[str | None]) -> Needs:
        """What the first loss needs; nothing where no sums help.

        Args:
            losses: tensors that are differentiated.
            told: how each reduces over the batch; None where that cannot be told.
        """
        gathered = [t for t in gathered_parts(self.raw) if self.reductions.has(t)]
        unclear = [t for t in gathered if not is_plain(self.reductions.value_of(t))]
        untold = (loss for loss, kind in zip(losses, told) if kind is None)
        open_losses = [*unclear, *(loss for loss in untold if not self.reductions.is_the_same(loss))]
        if not open_losses:  # some are means and some are sums, or a sum is to become a mean
            return Needs(list(dict.fromkeys(loss for loss, kind in zip(losses, told) if kind == "sum")))
        loss = open_losses[0]
        value = self.reductions.value_of(loss)
        if isinstance(value, Unknown):
            tried = (self.at(name) for name in self.causes(loss))
            needs = next(filter(_is_any, tried), None)
            needs = self._sizes_beside(loss) if needs is None else needs
            is_of_all = needs.gathers or needs.cuts
            return needs if not is_of_all or self.has_small_parameters(needs.at, losses) else Needs()
        if mixer := mixed_by(value):
            return self.at(mixer)
        shares = self.reductions.unscaled_gradients([loss])
        if shares:
            return Needs(shares=shares)
        if isinstance(value, Independent):
            return self._sizes_beside(loss)
        return Needs(self._totals(loss))

    def causes(self, loss: str) -> list[str]:
        """The ops behind a loss that make its value one of which nothing is known, in the order of the graph.

        Args:
            loss: tensor that is differentiated, or another one.
        """
        graph = self.raw.graph
        behind = graph.ancestors(
            [node_of(loss)],
            control=False,
            stop=lambda name: OVER_WORKERS_ATTRIBUTE in graph[name].attr,
            further=lambda name: self._guards.decided[name] if graph[name].op == "Merge" else (),
        )
        causes = []
        for name in graph.order:
            if name in behind and ops.output_types(graph[name]):
                value = self.reductions.value_of(tensor_name(name))
                if isinstance(value, Unknown) and not value.unmodelled and self._is_first(name, value):
                    causes.append(name)
        return causes

    def _is_first(self, name: str, value: Unknown) -> bool:
        """Whether nothing is known of an op's value because of this op, or of what is in a function that it calls."""
        if value.node or not ops.is_call(self.raw.graph[name]):
            return value.node == name
        return not any(isinstance(self.reductions.value_of(t), Unknown) for t in data_texts(self.raw.graph[name]))

    def has_small_parameters(self, name: str, losses: Sequence[str]) -> bool:
        """Whether what every worker would compute for all examples, from an op on, has no large parameters.

        A network behind the op would have to be computed as a whole by each worker.

        Args:
            name: name of the op.
            losses: tensors that are differentiated.
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

    def at(self, name: str) -> Needs:
        """What an op needs that is not linear in sums over the examples, or compares the examples with each other.

        Args:
            name: name of the op.
        """
        if name not in self.raw.graph:
            return Needs()
        op = self.raw.graph[name]
        values = [(position, text, self.reductions.value_of(text)) for position, text in enumerate(data_texts(op))]
        shares = self.reductions.unscaled_gradients([text for _, text, _ in values])
        if shares:
            return Needs(shares=shares, at=name)
        first = values[0][2] if values else None
        if op.op == "Mean" and isinstance(first, Examples) and first.chosen and first.axis == 0:
            if first.mixed_by:
                return self.at(first.mixed_by)
            if first.power != 0:
                return Needs()
            # In a branch nothing can be summed: the examples are chosen among those of all workers.
            is_in_branch = bool(self._guards.by_node[name])
            return Needs(gathers=self._gathers_of_masks(name), at=name) if is_in_branch else Needs([tensor_name(name)])
        needs = Needs(at=name)
        for _, text, value in values:
            if isinstance(value, (Total, Statistic)):
                needs.tensors += [t for t in self._totals(text) if t not in needs.tensors]
        if needs.tensors:
            return needs
        for position, text, value in values:
            if is_everywhere(value):
                continue
            if isinstance(value, Examples) and value.mixed_by and op.op == "TensorListFromTensor":
                return self.at(value.mixed_by)
            if isinstance(value, Followed):
                needs.gathers |= self._gathers_of_parts(text)
                if not needs.gathers:
                    return Needs()
            elif isinstance(value, Examples) and not value.mixed_by and not value.chosen and value.power == 0:
                gather = self.gather_of(name, position, value)
                if gather is None:
                    return Needs()
                needs.gathers.add(gather)
            elif isinstance(value, Examples) and value.chosen and (gathers := self._gathers_of_masks(node_of(text))):
                needs.gathers |= gathers
            elif isinstance(value, Positions) and (gather := self._gather_of_mask(text)) is not None:
                needs.gathers.add(gather)
            elif self.sizes.is_sized(text):
                needs.sizes.append((name, position))
            elif sizes := self.sizes.in_numbers(name, position):
                needs.sizes += sizes
            else:
                return Needs()
        has_whole = any(isinstance(value, Whole) for _, _, value in values)
        needs.cuts = op.op in _CUTS and bool(needs.sizes)
        return needs if needs.gathers or has_whole or needs.cuts else Needs()

    def gather_of(self, name: str, position: int, value: Value) -> Gather | None:
        """How an op gets the examples of all workers; None for an input that has none, or not in a known order.

        Args:
            name: name of the op.
            position: which of its inputs.
            value: abstract value of that input.
        """
        if not isinstance(value, Examples) or value.mixed_by or value.chosen or value.power:
            return None
        if value.before is None or name not in self.raw.made:
            return None
        return Gather(self.raw.made[name], position, value.axis, value.before)

    def _gathers_of_masks(self, name: str) -> set[Gather]:
        """How the masks that choose the examples which an op gets are those of all workers' examples."""
        behind = self.raw.graph.ancestors([name], control=False)
        places = [n for n in behind if isinstance(self.reductions.value_of(tensor_name(n)), Positions)]
        gathers = [self._gather_of_mask(n) for n in places if self.raw.graph[n].op == "Where"]
        return {gather for gather in gathers if gather is not None}

    def _gather_of_mask(self, text: str) -> Gather | None:
        """How the mask whose entries some places are is that of all workers' examples."""
        graph = self.raw.graph
        while graph[node_of(text)].op != "Where":
            text = data_texts(graph[node_of(text)])[0]
            if not isinstance(self.reductions.value_of(text), Positions):
                return None
        mask = data_texts(graph[node_of(text)])[0]
        return self.gather_of(node_of(text), 0, self.reductions.value_of(mask))

    def _gathers_of_parts(self, text: str) -> set[Gather]:
        """How examples with something behind them, which is the same on all workers, are those of all workers."""
        name = node_of(text)
        found = [
            self.gather_of(name, position, self.reductions.value_of(part))
            for position, part in enumerate(data_texts(self.raw.graph[name]))
        ]
        return {gather for gather in found if gather is not None}

    def elsewhere(self, left: Collection[str]) -> Needs | None:
        """What a step needs beside its losses, such as metrics of what was gathered; None for nothing.

        Args:
            left: results of the step that stay as they are.
        """
        graph = self.raw.graph
        # What is behind gradients is summed later.
        gradients = {node_of(t) for g in self.raw.gradients for t in (g.tensor, g.indices) if t is not None}
        ends = [*self.raw.targets, *map(node_of, self.raw.results)]
        behind = graph.ancestors(ends, control=False, stop=lambda name: name in gradients) - gradients
        beside = [name for name in graph.order if name in behind and self._is_beside_whole(name)]
        needs = next(filter(_is_any, map(self.at, beside)), None)
        if needs is None and not self.raw.trains:
            needs = self._for_evaluated_results()
        if needs is not None or beside:
            return needs or Needs()
        written = self._written()
        return written if written.sizes else self._for_results(left)

    def _written(self) -> Needs:
        """Sizes beside values of the whole batch in what is written to variables, but for what totals count."""
        graph = self.raw.graph
        needs = Needs()
        if self.raw.forward_sums:
            for target in graph.pruned(self.raw.targets):
                if target.op in ASSIGNMENTS:
                    places = self._sizes_in(target.input[1])
                    needs.sizes += [place for place in places if place not in needs.sizes]
        return needs

    def _for_results(self, left: Collection[str]) -> Needs | None:
        """Sums of which a result of the step is a function, as a share of the entries that a mask leaves; or None."""
        for tensor in self.raw.results:
            if tensor not in left and may_be_function_of_sums(self.reductions.value_of(tensor)):
                sums = self.sums_behind(tensor)
                sizes_of_sums = [static_size(self.raw.graph, each) for each in sums]
                if sums and all(size is not None and size <= _MAX_SUM_OF_RESULT for size in sizes_of_sums):
                    return Needs(sums, result=tensor)
            sizes = [] if tensor in left else self._sizes_in(tensor)
            if sizes:
                return Needs(sizes=sizes, result=tensor)
        return None

    def _is_beside_whole(self, name: str) -> bool:
        """Whether nothing is known of an op's value because values of all workers stand beside others there."""
        if not ops.output_types(self.raw.graph[name]):
            return False
        value = self.reductions.value_of(tensor_name(name))
        return isinstance(value, Unknown) and value.beside_whole and value.node == name

    def _for_evaluated_results(self) -> Needs | None:
        """What results need that are of the whole batch, in a step that only evaluates; or None.

        Examples that are compared with each other are gathered for them, as for losses. Where a step trains, that is
        done for its losses, and would be more than a further result is worth.
        """
        graph = self.raw.graph
        for tensor in (*self.raw.results, *written_by(self.raw)):
            value = self.reductions.value_of(tensor)
            if (mixer := mixed_by(value)) and _is_any(needs := self.at(mixer)):
                return needs
            if isinstance(value, Unknown) and not value.unmodelled:
                for name in self.causes(tensor):
                    needs = Needs() if graph[name].op in EXTREMES else self.at(name)
                    if needs.gathers and self.has_small_parameters(name, [tensor]):
                        return needs
        return None

    def _sizes_in(self, tensor: str) -> list[tuple[str, int]]:
        """Sizes beside values of the whole batch, of which a tensor is made that is no count of examples."""
        value = self.reductions.value_of(tensor)
        is_of_sizes = isinstance(value, Independent) and value.power not in (0, 1)
        return self._sizes_beside(tensor).sizes if is_of_sizes else []

    def sums_behind(self, tensor: str) -> list[str]:
        """Sums of which a tensor is a function; none where it is no function of sums.

        Args:
            tensor: name of the tensor.
        """
        if isinstance(self.reductions.value_of(tensor), Unknown):
            needs = [self.at(name) for name in self.causes(tensor)]
            return next((n.tensors for n in needs if n.tensors and not n.gathers and not n.sizes), [])
        return self._totals(tensor)

    def _totals(self, text: str) -> list[str]:
        """The sums or means of which a tensor is a function."""
        value = self.reductions.value_of(text)
        if isinstance(value, Total) and value.mixed_by:
            return self.at(value.mixed_by).tensors
        if isinstance(value, Total) and value.power in (0, -1):
            return [tensor_name(text)]
        found: list[str] = []
        for source in data_texts(self.raw.graph[node_of(text)]):
            if isinstance(self.reductions.value_of(source), (Total, Statistic)):
                found += self._totals(source)
        return list(dict.fromkeys(found))

    def sizes_beside_shared(self, written: str) -> list[tuple[str, int]]:
        """Inputs of an op that are made of the number of examples, if all others are the same on all workers.

        Args:
            written: tensor that is written to a variable.
        """
        for name in self.causes(written):
            texts = data_texts(self.raw.graph[name])
            own = [at for at, text in enumerate(texts) if not is_everywhere(self.reductions.value_of(text))]
            sizes = [self.sizes.in_numbers(name, at) for at in own]
            if own and all(sizes):
                return sizes[0]
        return []

    def _sizes_beside(self, loss: str) -> Needs:
        """Sizes that stand beside values of the whole batch, on the way to a loss."""
        graph = self.raw.graph
        behind = graph.ancestors([node_of(loss)], control=False)
        summed = {s.node for s in self.raw.forward_sums}
        needs = Needs()
        for name in graph.order:
            if name not in behind or graph[name].op in SHAPE_OPS:  # a shape is no function of what the tensor has
                continue
            texts = data_texts(graph[name])
            if not summed.isdisjoint(map(node_of, texts)) and name not in summed:
                summed.add(name)
                for position, text in enumerate(texts):
                    if node_of(text) not in summed:
                        needs.sizes += self.sizes.inputs_of(name, position)
        return needs


def _is_any(needs: Needs) -> bool:
    return bool(needs.tensors or needs.gathers or needs.sizes or needs.shares)


def written_by(raw: RawProgram) -> list[str]:
    """What a step writes to variables as a whole, or what it adds to them.

    Args:
        raw: the captured program.
    """
    written = []
    for node in raw.graph.pruned(raw.targets):
        if node.op in ASSIGNMENTS:
            added = added_to(raw.graph, node_of(node.input[0]), node.name)
            written.append(node.input[1] if added is None else added[2])
    return written


def may_be_function_of_sums(value: Value) -> bool:
    """Whether a tensor may be a function of sums over the examples and is neither a sum nor a mean itself."""
    return isinstance(value, (Statistic, Unknown)) or (isinstance(value, Total) and kind_of_sum(value) is None)


def kind_of_sum(value: Value) -> str | None:
    """How the workers' values of a tensor give that of the whole batch: by a sum or a mean; None by neither."""
    if isinstance(value, Total) and not value.mixed_by and value.power in (0, -1):
        return "sum" if value.power == 0 else "mean"
    return None
