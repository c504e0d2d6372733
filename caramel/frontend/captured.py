"""What both ways of capturing produce before the roles are worked out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from caramel.data.dataset import Given
from caramel.graph.functions import Library
from caramel.graph.graph import Graph
from caramel.model import Input, ValueSource


@dataclass(frozen=True)
class RawVariable:
    """A variable as the program declares it.

    Attributes:
        name: the user's name.
        node: its VarHandleOp.
        dtype: element type.
        shape: static shape.
        trainable: the program's own flag.
        saved: whether single-device checkpoints contain it.
    """

    name: str
    node: str
    dtype: str
    shape: tuple[int, ...]
    trainable: bool
    saved: bool = True


@dataclass(frozen=True)
class RawGradient:
    """A result of a differentiation.

    Attributes:
        variable: VarHandleOp of the variable.
        tensor: tensor name; of the values where the gradient is sparse.
        consumers: readers for which the tensor is the result (empty: all).
        call: number of the differentiation, in program order.
        location: ``file:line`` of the call.
        indices: tensor name of the rows that the values are for, where the gradient is sparse.
        passed: whether another differentiation goes through it.
    """

    variable: str
    tensor: str
    consumers: tuple[str, ...]
    call: int
    location: str
    indices: str | None = None
    passed: bool = False


@dataclass(frozen=True)
class RawProgram:
    """A captured program: everything that is known without analysis.

    Attributes:
        graph: all nodes, with ``_output_shapes`` attributes.
        variables: in a fixed order.
        gradients: in program order.
        differentiated: tensors that were differentiated, with the number of the call.
        inputs: what can be fed.
        loss: tensor to report, if chosen already.
        outputs: further per-step results.
        targets: nodes that make up the step.
        values: source of the initial values.
        reduction: the caller's word on the loss' reduction, or None.
        is_graph: whether this is TF1-style graph code rather than a step function.
        notes: what was assumed.
        loop_marks: numbers of the gradients inside loops whose sums are among ``gradients``.
        given: the dataset that a graph's iterator reads, if there is one.
        iterator: the op that takes elements of it, for which the graph has placeholders instead.
    """

    graph: Graph
    variables: tuple[RawVariable, ...]
    gradients: tuple[RawGradient, ...]
    differentiated: tuple[tuple[str, int], ...]
    inputs: tuple[Input, ...]
    loss: str | None
    outputs: tuple[tuple[str, str], ...]
    targets: tuple[str, ...]
    values: ValueSource
    reduction: str | None
    is_graph: bool
    notes: tuple[str, ...] = ()
    loop_marks: frozenset[int] = frozenset()
    given: Given | None = None
    iterator: str | None = None

    @cached_property
    def library(self) -> Library:
        """The functions of the graph, and of whatever is left of it once it is pruned."""
        return Library(self.graph)

    def targets_of(self, call: int) -> list[str]:
        """What a call differentiates."""
        return [tensor for tensor, number in self.differentiated if number == call]
