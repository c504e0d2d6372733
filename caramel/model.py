"""The Model: a single-device training step, with a role for everything in it.

Capture makes a Model; analyzers and modifiers read it. Nothing here imports TensorFlow: the
graph's nodes are protobuf messages that are only passed through.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from caramel.dealing import WHOLE, Dealing
from caramel.graph.graph import Graph
from caramel.outline import Outline


class VariableClass(enum.Enum):
    """What a variable is to the training step; decides how replicas treat it."""

    PARAMETER = "parameter"
    """Trainable; equal on every worker because its updates use aggregated gradients."""
    SLOT = "optimizer slot"
    """Optimizer state of a parameter, written from its aggregated gradient."""
    HYPERPARAMETER = "hyperparameter or counter"
    """Equal on every worker: written from nothing that differs between workers, or never."""
    STATISTICS = "statistics"
    """Written from a worker's own inputs (batch-normalisation averages, metrics)."""
    RANDOM_STATE = "random state"
    """State of a random number generator; offset by rank so that workers draw differently."""

    TOTAL = "total over the examples"
    """Sum to which a step only adds what a worker's own examples give; zero at first on all workers but one."""

    ACCUMULATOR = "gradient accumulator"
    """Sum of a worker's own gradients over several steps, emptied when it is applied."""

    @property
    def is_local(self) -> bool:
        """Whether each worker has a value of its own."""
        return self in (
            VariableClass.STATISTICS,
            VariableClass.RANDOM_STATE,
            VariableClass.TOTAL,
            VariableClass.ACCUMULATOR,
        )


@dataclass(frozen=True)
class VariablePart:
    """The place of a variable in a larger one, which a program has cut into parts.

    Attributes:
        name: name of the larger one, under which single-device checkpoints have it.
        shape: its shape.
        offset: index of the part's first element in it.
    """

    name: str
    shape: tuple[int, ...]
    offset: tuple[int, ...]

    def slices(self, shape: tuple[int, ...]) -> tuple[slice, ...]:
        """The part in an array of the larger variable.

        Args:
            shape: shape of the part.
        """
        return tuple(slice(start, start + size) for start, size in zip(self.offset, shape))

    def text(self, shape: tuple[int, ...]) -> str:
        """The part as TensorFlow's ops for checkpoints write it.

        Args:
            shape: shape of the part.
        """
        places = ":".join(f"{start},{size}" for start, size in zip(self.offset, shape))
        return f"{' '.join(map(str, self.shape))} {places}"


@dataclass(frozen=True)
class Variable:
    """A variable of the single-device program.

    Attributes:
        name: the user's name; also the key in a single-device checkpoint.
        node: name of its VarHandleOp in the Model's graph.
        dtype: TensorFlow's name of the element type, such as ``"float32"``.
        shape: static shape.
        kind: its class.
        item_bytes: bytes per element.
        saved: whether single-device checkpoints contain it (TF1 local variables are not saved).
        part: its place in a larger variable, where the program has cut that into parts.
        renamed: its name in plans and traces, where that is another: a program that a process builds a second time has
            other numbers in the names that Keras gives.
    """

    name: str
    node: str
    dtype: str
    shape: tuple[int, ...]
    kind: VariableClass
    item_bytes: int
    saved: bool = True
    part: VariablePart | None = None
    renamed: str | None = None

    @property
    def plan_name(self) -> str:
        """Its name in plans and traces."""
        return self.name if self.renamed is None else self.renamed

    @property
    def checkpoint_place(self) -> tuple[str, str]:
        """Key of the variable in a single-device checkpoint, and which part of what that has ("" for all of it)."""
        return (self.name, "") if self.part is None else (self.part.name, self.part.text(self.shape))

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of the value."""
        return self.size * self.item_bytes


@dataclass(frozen=True)
class Gradient:
    """A gradient as it leaves the differentiation, before any clipping or scaling.

    A sparse gradient (IndexedSlices, of an embedding table) is known for some rows only: ``tensor``
    has their values, in any number and order, and a row may be there several times. Where no example
    chooses the rows and their number is static, the values are an ordinary dense gradient: every worker
    has the same rows, which do not travel.

    Attributes:
        name: unique name, the parameter's in plans plus a suffix where it has several gradients.
        parameter: name of the Variable that was differentiated.
        tensor: the tensor (``node:index``) that everything after the differentiation reads; the values
            where the gradient is sparse.
        consumers: names of the nodes that read the gradient as a result; other readers of the
            same tensor belong to the differentiation itself. Empty means all readers.
        dtype: element type.
        shape: static shape, the parameter's; of a dense gradient that is known for some rows only, that of ``tensor``.
        item_bytes: bytes per element.
        indices: the tensor with the rows of the values, where the gradient is sparse.
        index_dtype: its element type.
        sources: what left the differentiation, as (tensor, consumers), where ``tensor`` is a sum of it
            that the program makes (over micro-batches, or over steps); empty where ``tensor`` left it itself.
        shared_rows: whether a sparse gradient has the same rows on every worker, in the same order; their number is
            only known when the step runs.
        rows: the tensor with the rows of a dense gradient that is known for some rows only.
        is_seeded: whether the differentiation that it leaves begins with one of the model's ``seeds``.
        is_rounded: whether it has been a float16 before, so that a sum of several has to be one as well.
    """

    name: str
    parameter: str
    tensor: str
    consumers: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    item_bytes: int
    indices: str | None = None
    index_dtype: str | None = None
    sources: tuple[tuple[str, tuple[str, ...]], ...] = ()
    shared_rows: bool = False
    rows: str | None = None
    is_seeded: bool = False
    is_rounded: bool = False

    @property
    def is_sparse(self) -> bool:
        """Whether it is known for some rows only."""
        return self.indices is not None

    @property
    def size(self) -> int:
        """Number of elements; of the whole parameter where the gradient is sparse."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of a gradient for the whole parameter."""
        return self.size * self.item_bytes


@dataclass(frozen=True)
class Table:
    """A lookup table, of which each worker has a copy.

    Attributes:
        node: name of the op that makes it.
        keys: name of the variable with its keys.
        values: name of the variable with the value of each.
    """

    node: str
    keys: str
    values: str


@dataclass(frozen=True)
class Addend:
    """What a step adds to a variable of the class total.

    Attributes:
        consumer: name of the node that adds it.
        position: which of that node's inputs it is.
        tensor: name of the tensor.
        reduction: ``"sum"`` or ``"mean"``: how the workers' tensors make that of the whole batch.
    """

    consumer: str
    position: int
    tensor: str
    reduction: str


@dataclass(frozen=True)
class ForwardSum:
    """A tensor that each worker computes from its part of the batch, and that is replaced by that of the whole batch.

    Attributes:
        node: name of the Identity of the worker's part that is to have the value of the whole batch.
        kind: ``"sum"`` or ``"mean"``: how the workers' parts make that value; ``"ratio"`` for means over entries of
            which each worker has another number; ``"gather"`` for examples one after the other; ``"shape"`` for a shape
            with their number.
        entries: names of the Identities through which a gradient enters what makes the worker's part.
        counted: name of the tensor whose entries along its first axis a ratio is over; else None.
        gradients_differ: whether the gradients that enter differ between workers, so that they are summed, too.
        axis: axis of the examples in what is gathered; entry of their number in a shape.
        batches: number of batches, one after the other, along that axis.
    """

    node: str
    kind: str
    entries: tuple[str, ...] = ()
    counted: str | None = None
    gradients_differ: bool = False
    axis: int = 0
    batches: int = 1


@dataclass(frozen=True)
class Input:
    """A placeholder: the driver feeds it, or a dataset on the workers does.

    Attributes:
        name: the user's name for it.
        node: the Placeholder's name in its graph.
        dtype: element type.
        shape: static shape with None where unknown; None if the rank is unknown.
        split: whether the global array is split over the workers along axis 0; otherwise every
            worker gets the whole array.
        optional: whether the placeholder has a default and need not be fed.
        component: for inputs from a dataset, which tensor of its (flattened) elements; else None.
    """

    name: str
    node: str
    dtype: str
    shape: tuple[int | None, ...] | None
    split: bool
    optional: bool = False
    component: int | None = None


@dataclass(frozen=True)
class Reduction:
    """How the loss reduces over the batch, and so how gradients combine over workers.

    Attributes:
        kind: ``"mean"`` (gradients are averaged) or ``"sum"`` (they are added).
        reason: what the kind was concluded from, or that the caller said so.
    """

    kind: str
    reason: str


class Combination(enum.Enum):
    """How the values that the workers have of one tensor give the value for the whole batch."""

    MEAN = "mean"
    """Their mean, weighted by the numbers of examples."""
    SUM = "sum"
    SAME = "same"
    """It is the same on every worker."""
    EXAMPLES = "examples"
    """One after the other: each has the entries of its own examples."""
    MAX = "max"
    """The largest of them, entry by entry; of booleans, whether any is true."""
    MIN = "min"
    """The smallest of them; of booleans, whether all are true."""


@dataclass(frozen=True)
class Evaluation:
    """A computation on the model's variables that trains nothing.

    Attributes:
        graph: its nodes; variables appear as VarHandleOps named as in the Model.
        inputs: what to feed; never split.
        outputs: ``(name, tensor)`` in order.
        targets: nodes that must run although no output needs them.
        pack: turns the list of output arrays into the structure that the user's function returns.
    """

    graph: Graph
    inputs: tuple[Input, ...]
    outputs: tuple[tuple[str, str], ...]
    targets: tuple[str, ...] = ()
    pack: Any = field(default=None, compare=False, repr=False)


class ValueSource(Protocol):
    """Where the initial values of the variables come from."""

    def load(self) -> Mapping[str, np.ndarray]:
        """Values by variable name."""


@dataclass(frozen=True)
class Model:
    """A single-device training step: a graph plus roles.

    Attributes:
        graph: the step's nodes, without initialisers and whatever else a step does not need.
        inputs: what the driver feeds, in the order of the user's arguments.
        loss: the tensor reported as the loss; if it has several elements, their sum is.
        outputs: further per-step results of the user's step function, ``(name, tensor)``.
        combinations: how the workers' values of each of ``outputs`` combine; None where it cannot be told.
        targets: nodes that make up the step (everything that must run in each step).
        variables: all variables, in a fixed order.
        gradients: the gradients that updates use, in a fixed order.
        updates: for each written variable the names of the ops that write it in a step.
        reduction: the loss' reduction over the batch.
        reported: ``"mean"`` or ``"sum"``: how the workers' values of ``loss`` combine, which need not be
            what is differentiated; None where that cannot be told.
        values: source of the initial values.
        notes: what was assumed or left out, for the plan.
        step_counter: name of the variable that counts steps, if the program has one.
        unused_inputs: names of the program's inputs that a step does not need; feeding them is allowed.
        input_order: names of all inputs, those too, in the order of the user's arguments.
        synchronised: name scopes (layers) in which the program asks for values over all replicas that it would not get.
        addends: what the step adds to variables of the class total.
        mixed: variables of which each worker has its own value, and to which the step adds something for which examples
            are brought together, by name, with what does that.
        tables: lookup tables of the step and of evaluations.
        forward_sums: tensors that are summed over the workers in the forward pass, in an order in which they can be.
        seeds: tensors of ones with which differentiations begin, where there are gradients in float16, which does not
            hold large ones: each worker begins with its share of the examples, so that its gradients are no larger.
        dealing: how the rows of a batch are dealt to the workers.
        dealt_outputs: those of ``outputs`` that have several batches, or parts of micro-batches, one after the other,
            with the axis of these and their number.
    """

    graph: Graph
    inputs: tuple[Input, ...]
    loss: str
    outputs: tuple[tuple[str, str], ...]
    targets: tuple[str, ...]
    variables: tuple[Variable, ...]
    gradients: tuple[Gradient, ...]
    updates: tuple[tuple[str, tuple[str, ...]], ...]
    reduction: Reduction
    values: ValueSource = field(compare=False, repr=False)
    notes: tuple[str, ...] = ()
    step_counter: str | None = None
    unused_inputs: tuple[str, ...] = ()
    input_order: tuple[str, ...] = ()
    reported: str | None = "mean"
    combinations: tuple[Combination | None, ...] = ()
    synchronised: tuple[str, ...] = ()
    addends: tuple[Addend, ...] = ()
    mixed: tuple[tuple[str, str], ...] = ()
    tables: tuple[Table, ...] = ()
    forward_sums: tuple[ForwardSum, ...] = ()
    seeds: tuple[str, ...] = ()
    dealing: Dealing = WHOLE
    dealt_outputs: tuple[tuple[str, int, int], ...] = ()

    @cached_property
    def variable_by_name(self) -> Mapping[str, Variable]:
        """Variables by the user's name."""
        return {v.name: v for v in self.variables}

    def variables_of(self, *kinds: VariableClass) -> tuple[Variable, ...]:
        """The variables of the given classes, in order."""
        return tuple(v for v in self.variables if v.kind in kinds)

    @property
    def is_the_same_alone(self) -> bool:
        """Whether the step is the same one for one worker: nothing is exchanged in it, nor dealt to several."""
        return not self.forward_sums and self.dealing == WHOLE

    @cached_property
    def aliases(self) -> Mapping[str, str]:
        """The names in plans and traces of those variables that have another one there, by the user's name."""
        return {v.name: v.renamed for v in self.variables if v.renamed is not None}

    @cached_property
    def outline(self) -> Outline:
        """What the step is made of, for people; two programs with one outline may differ."""
        return Outline(
            {i.name: _spelled(i.dtype, i.shape) for i in self.inputs},
            {v.plan_name: f"{v.kind.value}, {_spelled(v.dtype, v.shape)}" for v in self.variables},
            dict(sorted(Counter(node.op for node in self.graph).items())),
            self.reduction.kind,
        )

    @cached_property
    def digest(self) -> str:
        """SHA-256 over graph and roles; equal for equal programs.

        What a step calls the components of a dataset's elements does not count.
        """
        names = {i.node: f"component {i.component}" for i in self.inputs if i.component is not None}
        plan_names = {v.name: v.plan_name for v in self.variables}
        roles: dict[str, Any] = {
            "inputs": [
                (names.get(i.node, i.name), names.get(i.node, i.node), i.dtype, i.shape, i.split) for i in self.inputs
            ],
            "loss": self.loss,
            "targets": self.targets,
            "variables": [(v.plan_name, v.node, v.dtype, v.shape, v.kind.value) for v in self.variables],
            "gradients": [
                (g.name, plan_names.get(g.parameter, g.parameter), g.tensor, g.consumers, g.indices, g.sources)
                for g in self.gradients
            ],
            "reduction": self.reduction.kind,
        }
        if self.dealing != WHOLE:
            roles["dealing"] = dataclasses.astuple(self.dealing)
        if self.forward_sums:
            roles["forward sums"] = [dataclasses.astuple(s) for s in self.forward_sums]
        graph = self.graph.renamed(names)
        if graph.library is not None and graph.library.function:  # whose names have numbers of this process
            from caramel.graph.canonical_functions import canonical

            graph = Graph(*canonical(graph, graph.library), graph.versions)
        hasher = hashlib.sha256(graph.to_bytes())
        hasher.update(json.dumps(roles, sort_keys=True).encode())
        return hasher.hexdigest()


def _spelled(dtype: str, shape: Sequence[int | None] | None) -> str:
    sizes = "of any rank" if shape is None else f"[{', '.join('?' if size is None else str(size) for size in shape)}]"
    return f"{dtype} {sizes}"
