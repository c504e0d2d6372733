"""The captured program that both ways of capturing produce, before the roles are worked out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from caramel.data.dataset import TrainingData
from caramel.dealing import WHOLE, Dealing
from caramel.graph.functions import Library
from caramel.graph.graph import Graph
from caramel.model import ForwardSum, Input, ValueSource, VariablePart


@dataclass(frozen=True)
class RawVariable:
    """A variable as the program declares it.

    Attributes:
        name: the user's name of the variable.
        node: name of its VarHandleOp.
        dtype: element type, by its TensorFlow name.
        shape: static shape.
        trainable: the program's own flag.
        saved: whether single-device checkpoints contain the variable.
        part: its place in a larger variable, where the program has cut that into parts.
        renamed: name in plans and traces, where that is another; see `Variable`.
    """

    name: str
    node: str
    dtype: str
    shape: tuple[int, ...]
    trainable: bool
    saved: bool = True
    part: VariablePart | None = None
    renamed: str | None = None

    @property
    def plan_name(self) -> str:
        """Its name in plans and traces."""
        return self.name if self.renamed is None else self.renamed


@dataclass(frozen=True)
class RawTable:
    """A lookup table that the program reads.

    Attributes:
        node: name of the op that makes it.
        keys: variable with its keys.
        values: variable with the value of each.
    """

    node: str
    keys: RawVariable
    values: RawVariable


@dataclass(frozen=True)
class RawGradient:
    """The gradient of a variable that one differentiation gives.

    Attributes:
        variable: name of the variable's VarHandleOp.
        tensor: name of the gradient's tensor; where the gradient is sparse, of its values.
        consumers: names of the readers that read the tensor as the gradient (empty: all readers).
        call: number of the differentiation, in program order.
        location: ``file:line`` of the call.
        indices: tensor name of the row numbers of the values, where the gradient is sparse; else None.
        differentiated_again: whether another differentiation goes through the gradient.
        losses_inside: where a loop adds up the gradient, the tensors of its body that are differentiated.
        scales_inside: the same, constants by which the loop scales what it adds up, as (function, node).
    """

    variable: str
    tensor: str
    consumers: tuple[str, ...]
    call: int
    location: str
    indices: str | None = None
    differentiated_again: bool = False
    losses_inside: tuple[str, ...] = ()
    scales_inside: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True)
class Entry:
    """A gradient that enters the gradient function of an op.

    Attributes:
        tensor: name of the gradient's tensor.
        readers: pairs (node, position of its input) that read it there.
    """

    tensor: str
    readers: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Gather:
    """An input of an op that is to have the examples of all workers, one after the other, or their sizes.

    Attributes:
        op: type of the op, and how many of it the program makes before this one.
        position: which of its inputs.
        axis: axis of the examples; None for an input that is made of sizes.
        batches: number of batches, one after the other, along it.
    """

    op: str
    position: int
    axis: int | None
    batches: int = 1


@dataclass(frozen=True)
class RawProgram:
    """A captured program: all that is known of it without analysis.

    Attributes:
        graph: all nodes, with ``_output_shapes`` attributes.
        variables: the program's variables, in a fixed order.
        gradients: gradients of variables, in program order.
        differentiated: pairs (differentiated tensor, number of the call).
        seeds: pairs (tensor of ones with which a call begins, number of the call), where it is marked.
        inputs: tensors that can be fed.
        loss: name of the tensor to report as the loss; None if it is not chosen yet.
        outputs: pairs (name, tensor) of the step's further results.
        targets: names of the nodes that make up the step.
        values: source of the initial values.
        reduction: the caller's ``"mean"`` or ``"sum"`` for the loss, or None.
        is_graph: whether this is TF1-style graph code rather than a step function.
        notes: assumptions that the capture made, for the user.
        loop_gradient_numbers: numbers of the gradients inside loops whose sums are among ``gradients``.
        given: dataset that the graph's iterator reads; None without one.
        iterator: name of the op that takes elements of the dataset, in whose place the graph has placeholders; or None.
        trains: whether the program must have gradients; else nothing of it is learned.
        is_alone: whether one worker has all examples.
        tables: lookup tables of the program.
        entries: places where gradients enter ops that may add up examples, by the name of the op; one of which that
            cannot be told is not among them.
        forward_sums: tensors that are summed over the workers in the forward pass; whether the gradients that enter
            differ is not known yet.
        made: type of an op and how many of it the program has made before, by the name of the op; empty where it cannot
            be traced once more.
        single_examples: why gradients of single examples cannot be aggregated; empty if there are none.
        out_of_reach: where values of all replicas are asked for that cannot be had there.
        row_constants: abstract values (`caramel.frontend.batch`) of constants that follow from the number of examples,
            where the program was traced for two of them, by (function, node); "" for the graph itself. None where it
            is not known which constants do.
        dealing: how the rows of a batch are dealt to the workers.
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
    loop_gradient_numbers: frozenset[int] = frozenset()
    given: TrainingData | None = None
    iterator: str | None = None
    trains: bool = True
    is_alone: bool = False
    tables: tuple[RawTable, ...] = ()
    entries: Mapping[str, tuple[Entry, ...]] = field(default_factory=dict)
    forward_sums: tuple[ForwardSum, ...] = ()
    made: Mapping[str, str] = field(default_factory=dict)
    single_examples: str = ""
    out_of_reach: tuple[str, ...] = ()
    row_constants: Mapping[tuple[str, str], Any] | None = None
    dealing: Dealing = WHOLE
    seeds: tuple[tuple[str, int], ...] = ()

    @cached_property
    def library(self) -> Library:
        """The functions of the graph, and of whatever is left of it once it is pruned."""
        return Library(self.graph)

    @property
    def results(self) -> tuple[str, ...]:
        """The tensors that the step gives back; the loss, too, where it is chosen."""
        return (*(() if self.loss is None else (self.loss,)), *(tensor for _, tensor in self.outputs))

    def targets_of(self, call: int) -> list[str]:
        """The tensors that a call differentiates.

        Args:
            call: number of the differentiation.
        """
        return [tensor for tensor, number in self.differentiated if number == call]
