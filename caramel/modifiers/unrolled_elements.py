"""The elements of the workers' data for steps that are unrolled: how they are taken, kept, and given to the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from caramel.data import template
from caramel.graph.graph import Graph, NodeDef, copied, data_texts, format_input, parse_input, tensor_name
from caramel.graph.nodes import assign, dtype_attribute, group, node, read, variable
from caramel.modifiers.emission import own_name
from caramel.modifiers.place_input import input_name

_BEFORE = 1
"""Position of the element before among the inputs of what takes one; see `caramel.data.template`."""


@dataclass(frozen=True)
class Place:
    """A step among several.

    Attributes:
        number: how many are before it.
        count: how many there are.
    """

    number: int
    count: int

    @property
    def name(self) -> str:
        """Short text, in names."""
        return f"step_{self.number}_of_{self.count}"

    @property
    def scope(self) -> str:
        """Prefix of its nodes."""
        return f"caramel/{self.name}/"

    @property
    def before(self) -> Place:
        """The step before."""
        return replace(self, number=self.number - 1)

    def done(self, rank: int) -> str:
        """Name of the op that is done when a worker's part of it is."""
        return own_name(rank, self.name)

    def element(self, rank: int) -> str:
        """Name of the node with a worker's element."""
        return input_name(rank, f"{self.name}/element")


@dataclass(frozen=True)
class TakenElements:
    """How the workers take the elements of several steps at once.

    Attributes:
        advance: op of each worker that takes its next elements, one for each step, and keeps them.
        counts: tensor of each worker, [steps, counts]: its counts for each step; see `caramel.signature.DataSignature`.
        advance_ahead: like ``advance``, to run together with the steps: each element is kept when the step has read the
            one before. Empty where that is not possible (`caramel.signature.DataSignature.ahead`).
        move: for each step the op of each worker that keeps the step's element where a single step reads it; likewise.
    """

    advance: tuple[str, ...]
    counts: tuple[str, ...]
    advance_ahead: tuple[str, ...] = ()
    move: tuple[tuple[str, ...], ...] = ()


def taken_elements(
    graph: Graph, places: Sequence[Place], workers: int, is_ahead: bool
) -> tuple[list[NodeDef], TakenElements]:
    """The nodes that take elements for several steps.

    Args:
        graph: graph of the step.
        places: the steps.
        workers: number of workers.
        is_ahead: whether elements may be taken while the steps run.
    """
    builders = [_ElementsOfWorker(graph, rank, places) for rank in range(workers)]
    for builder in builders:
        builder.take()
        if is_ahead:
            builder.take_ahead()
    elements = TakenElements(
        advance=tuple(builder.advance for builder in builders),
        counts=tuple(builder.counts for builder in builders),
        advance_ahead=tuple(builder.advance_ahead for builder in builders if is_ahead),
        move=tuple(zip(*(builder.move for builder in builders))),
    )
    return [each for builder in builders for each in builder.nodes], elements


class _ElementsOfWorker:
    """The nodes that take a worker's elements for several steps.

    One is taken after the other: each has the one before as an input, which is kept where the data has ended, and
    TensorFlow runs nothing of a function with state before it has all inputs. The last one is also kept where a single
    step has its own, for what is taken next.

    Args:
        graph: graph of the step.
        rank: the worker.
        places: the steps.

    Attributes:
        nodes: the nodes.
        advance: see `TakenElements`; "" until there is one, as for the others.
        counts: likewise.
        advance_ahead: likewise.
        move: likewise, for each step.
    """

    def __init__(self, graph: Graph, rank: int, places: Sequence[Place]) -> None:
        self._rank = rank
        self._places = places
        self._keep, self._element = graph[input_name(rank, template.ADVANCE)], graph[input_name(rank, template.ELEMENT)]
        self._held, new = data_texts(self._keep)
        take, self._output = parse_input(new)
        self._take = graph[take]
        self._counts_output = parse_input(graph[input_name(rank, template.COUNTS)].input[0])[1]
        self._handles: list[NodeDef] = []
        self._values: list[str] = []
        self._reads: list[NodeDef] = []
        self._last = ""
        self.nodes: list[NodeDef] = []
        self.advance = self.counts = self.advance_ahead = ""
        self.move: list[str] = []

    def take(self) -> None:
        """Add what takes the elements, keeps them, and gives each to its step."""
        taken = self._take.input[_BEFORE]
        counts = []
        for place in self._places:
            take = copied(self._take)
            take.name, take.input[_BEFORE] = self._name(f"{place.name}/take"), taken
            taken = format_input(take.name, self._output)
            counts.append(format_input(take.name, self._counts_output))
            handle = variable(self._name(f"{place.name}/variable"), "variant", (), self._keep.device)
            own = read(self._name(f"{place.name}/read"), handle.name, "variant", self._keep.device)
            element = copied(self._element, [own.name])
            element.name = place.element(self._rank)
            self._handles.append(handle)
            self._values.append(taken)
            self._reads.append(own)
            self.nodes += [take, handle, own, element]
        count, device = len(self._places), self._keep.device
        of_all = node(
            self._name(f"counts_of_{count}"), "Pack", counts, device, T=dtype_attribute("int64"), N=count, axis=0
        )
        last = self._kept(f"last_of_{count}", self._held, taken)
        self.nodes += [of_all, last]
        self.counts, self._last = tensor_name(of_all.name), last.name
        kept = [
            self._kept(f"{place.name}/keep", handle.name, value)
            for place, handle, value in zip(self._places, self._handles, self._values)
        ]
        self.advance = self._all(f"take_{count}", kept)

    def take_ahead(self) -> None:
        """Add what keeps the elements of the next steps while these run, and what gives one to a single step."""
        kept = []
        for place, handle, value, own in zip(self._places, self._handles, self._values, self._reads):
            kept.append(self._kept(f"{place.name}/keep_next", handle.name, value))
            kept[-1].input.append(f"^{own.name}")
            moved = self._kept(f"{place.name}/move", self._held, own.name)
            self.move.append(moved.name)
            self.nodes.append(moved)
        self.advance_ahead = self._all(f"take_next_{len(self._places)}", kept)

    def _all(self, name: str, kept: Sequence[NodeDef]) -> str:
        """An op that is done when all elements are kept."""
        done = group(self._name(name), [*(each.name for each in kept), self._last], self._keep.device)
        self.nodes += [*kept, done]
        return done.name

    def _kept(self, name: str, handle: str, value: str) -> NodeDef:
        return assign(self._name(name), handle, value, "variant", self._keep.device)

    def _name(self, name: str) -> str:
        return input_name(self._rank, name)
