"""Sizes: what follows from nothing but the number of examples, and where ops of a program read it."""

from __future__ import annotations

from dataclasses import dataclass

from caramel.frontend.attributes import PART_ATTRIBUTE, SIZED_ATTRIBUTE
from caramel.frontend.batch.domain import Examples, Independent, Whole, is_everywhere
from caramel.frontend.captured import RawProgram
from caramel.frontend.roles.tensor_reductions import Reductions
from caramel.graph import ops
from caramel.graph.graph import data_texts, format_input, node_of, parse_input


@dataclass(frozen=True)
class Sizes:
    """The sizes in a program, by one analysis of it.

    Attributes:
        raw: the program, with the sums found so far.
        reductions: the analysis.
    """

    raw: RawProgram
    reductions: Reductions

    def inputs_of(self, name: str, position: int) -> list[tuple[str, int]]:
        """The inputs behind one input of an op, itself included, that are made of the number of examples only.

        Args:
            name: name of the op.
            position: which of its inputs.
        """
        text = data_texts(self.raw.graph[name])[position]
        value = self.reductions.value_of(text)
        if not isinstance(value, Independent) or value.power == 0:
            return []
        if self.is_sized(text):
            return [(name, position)]
        source = node_of(text)
        return [
            place
            for number in range(len(data_texts(self.raw.graph[source])))
            for place in self.inputs_of(source, number)
        ]

    def in_numbers(self, name: str, position: int) -> list[tuple[str, int]]:
        """The inputs by which numbers follow from the number of examples, such as those of the rows of a batch.

        These are numbers that an op reads, made of sizes and of values that are the same on all workers, such as the
        place in a queue at which its next rows begin.

        Args:
            name: name of the op.
            position: which of its inputs.

        Returns:
            None of them where the numbers are made of something else, too.
        """
        graph = self.raw.graph
        found: dict[tuple[str, int], None] = {}
        waiting, seen = [(name, position)], set[str]()
        while waiting:
            reader, at = waiting.pop()
            text = data_texts(graph[reader])[at]
            if is_everywhere(self.reductions.value_of(text)):
                continue
            source = graph[node_of(text)]
            if self.is_sized(text):
                found[reader, at] = None
            elif ops.is_stateful(source) or source.op in ops.PLACEHOLDERS or ops.functions_of(source):
                return []
            elif source.name not in seen:
                seen.add(source.name)
                waiting += [(source.name, number) for number in range(len(data_texts(source)))]
        return list(found)

    def is_hidden(self, name: str, position: int) -> bool:
        """Whether only another trace can tell what else follows from one of an op's inputs, which is made of sizes.

        The op's own gradient may read it; and where it is a constant of a worker's part, shapes may follow from it.

        Args:
            name: name of the op.
            position: which of its inputs.
        """
        text = self.raw.graph[name].input[position]
        if name not in self.raw.made or SIZED_ATTRIBUTE in self.raw.graph[node_of(text)].attr:
            return False
        is_of_part = any(PART_ATTRIBUTE in self.raw.graph[each].attr for each in self.behind(text))
        return is_of_part or not self.is_its_own(name, position)

    def is_its_own(self, name: str, position: int) -> bool:
        """Whether nothing else than an op, and perhaps its gradient, reads one of its inputs.

        Args:
            name: name of the op.
            position: which of its inputs.
        """
        source, index = parse_input(self.raw.graph[name].input[position])
        readers = self.raw.graph.readers(format_input(source, index))
        return SIZED_ATTRIBUTE in self.raw.graph[source].attr or readers == (name,)

    def is_sized(self, text: str) -> bool:
        """Whether a tensor depends on nothing but constants and the shapes of tensors."""
        graph = self.raw.graph
        return all(
            not ops.is_stateful(graph[name])
            and (graph[name].op not in ops.PLACEHOLDERS or SIZED_ATTRIBUTE in graph[name].attr)
            and not ops.functions_of(graph[name])
            for name in self.behind(text)
        )

    def behind(self, text: str) -> list[str]:
        """The nodes of which a tensor is made, up to the ops that ask for the shape of one that is followed.

        Args:
            text: the tensor.
        """
        graph = self.raw.graph
        behind = graph.ancestors([node_of(text)], control=False, stop=lambda name: self.has_followed_shape(name))
        return [name for name in graph.order if name in behind]

    def has_followed_shape(self, name: str) -> bool:
        """Whether an op asks for the shape of a tensor of which it is known how it has the examples.

        Args:
            name: name of the op.
        """
        op = self.raw.graph[name]
        return op.op in ("Shape", "Size") and isinstance(
            self.reductions.value_of(op.input[0]), (Examples, Independent, Whole)
        )
