"""Facts: what analyzers find out or decide. Frozen data, each made once; nothing here computes.

Times are seconds of one worker's step. A gradient's *ready* time and its parameter's *read* time are on the
clock of the step's own computation, with nothing stalled and without updates (the compute clock): a step
computes from 0 to ``compute_s``; what waits moves everything after it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from caramel.outline import Outline
from caramel.util.units import format_ms

BACKWARD = "backward"
"""The window in the step that makes the gradient."""

FORWARD = "forward"
"""The window in the next step, before the parameter is first read."""


@dataclass(frozen=True)
class Dependencies:
    """What each gradient needs, from the Model's graph.

    Attributes:
        ops: names of the nodes that a step runs, producers first.
        gradients: names of the dense and sparse gradients, in the Model's order.
        needs: (gradients, ops) whether a gradient needs an op, directly or not; ops that TensorFlow joins to one
            (`caramel.graph.fusion`) count as one.
        producers: for each gradient the nodes whose results it is (several where it is a sum of tensors).
        reads: for each gradient the nodes that use what its update writes, before it is written.
        updates: for each gradient the nodes that follow from it and need no other gradient.
        levels: for each gradient how many all-reduces there are in a row before it (0 where it needs no other
            gradient's update in the same step). Only gradients of one level may travel together.
        kept_reasons: for each gradient why its update cannot wait for the next step; "" where it can.
        conditions: for gradients that a step makes in a branch only, under which condition. Only gradients of one
            condition may travel together: what is not there would keep the others back for good.
    """

    ops: tuple[str, ...]
    gradients: tuple[str, ...]
    needs: np.ndarray
    producers: Mapping[str, tuple[str, ...]]
    reads: Mapping[str, tuple[str, ...]]
    updates: Mapping[str, tuple[str, ...]]
    levels: Mapping[str, int]
    kept_reasons: Mapping[str, str]
    conditions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Trace:
    """Measured times of a step's ops.

    Attributes:
        model_digest: of the Model that was traced.
        op_s: seconds of each node, out of all runs as `caramel.trace` says. A node in a loop has the sum of a
            run's rounds.
        op_bytes: bytes of each node's first output, where the trace says so.
        step_s: median seconds of a step without communication, as it runs in training (graph optimizers on,
            nothing traced); of those measured in turn with ordered ones, if it is less.
        predicted_s: what ``op_s`` alone predict for such a step.
        runs: number of traced steps.
        workers: how many workers were on the host, all computing at once.
        examples: of one worker's batch; None if the program has none.
        description: where and when it was measured.
        warnings: what makes it doubtful (control flow whose times vary).
        ordered_step_s: median seconds of such a step with an order of its gradients enforced, by the kind of
            `ControlEdges`; ``"none"`` measured beside them. Empty if that was not measured.
        op_least_s: the least seconds of each node over all runs, which Caramel's own rules use; empty if not known.
        plain_steps_s: seconds of each step without communication whose median is ``step_s``; empty if not known.
        pace: for each kind of order, as in ``ordered_step_s``, the parts of a step's time after which all workers had
            computed 0, 1, ..., n n-ths of it, where what gradients need counts in the plan's order and all else comes
            last; ascending, the last one 1. Empty if that was not measured.
        outline: what the program is made of; None if not known.
    """

    model_digest: str
    op_s: Mapping[str, float]
    op_bytes: Mapping[str, int]
    step_s: float
    predicted_s: float
    runs: int
    workers: int
    examples: int | None
    description: str
    warnings: tuple[str, ...] = ()
    ordered_step_s: Mapping[str, float] = field(default_factory=dict)
    op_least_s: Mapping[str, float] = field(default_factory=dict)
    plain_steps_s: tuple[float, ...] = ()
    pace: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    outline: Outline | None = None

    def __str__(self) -> str:
        """What was traced, for people."""
        of_all = "" if self.examples is None else f" of {self.examples} examples on each worker"
        step = f"a step{of_all} takes {format_ms(self.step_s)} without communication"
        return f"trace of {len(self.op_s):,} ops, {step} ({self.description})"

    def doubt(self, workers_on_host: int) -> str | None:
        """Why its times are not those of hosts with so many workers each; None where they may be.

        Args:
            workers_on_host: number of workers on each host.
        """
        if self.workers == workers_on_host:
            return None
        traced = "one worker" if self.workers == 1 else f"{self.workers} workers at once"
        return (
            f"the trace is of {traced} on a host, and the hosts asked about have {workers_on_host} each, which share "
            f"its cores otherwise: trace with --workers-on-host {workers_on_host}"
        )

    def doubt_of_batch(self, examples: int, share: int) -> str | None:
        """Why its times are not those of a step with so many examples; None where they may be.

        Args:
            examples: number of examples in a batch.
            share: how many of these the worker has that has most.
        """
        if self.examples in (None, share):
            return None
        return (
            f"the trace is of {self.examples} examples on each worker, and here a worker has {share} of {examples}: "
            "its computation is planned and predicted for the traced ones; trace this number of workers and this batch"
        )

    @property
    def spread(self) -> float:
        """The standard deviation of steps without communication, as a fraction of their mean; 0 if not known."""
        steps_s = self.plain_steps_s
        if len(steps_s) < 2 or not any(steps_s):
            return 0.0
        return statistics.stdev(steps_s) / statistics.fmean(steps_s)


@dataclass(frozen=True)
class UpdateOrder:
    """The order in which gradients are computed.

    Attributes:
        gradients: their names, first the one that is ready first.
        stages: for each the ops that it needs and that none before it has needed, producers first.
        reason: how it was found.
    """

    gradients: tuple[str, ...]
    stages: tuple[tuple[str, ...], ...]
    reason: str


@dataclass(frozen=True)
class ControlEdges:
    """Control edges of one worker's step, by names of the Model's graph, that enforce an order.

    Attributes:
        edges: (before, after).
        kind: ``"total"`` (every op that only later gradients need waits), ``"updates"`` (only the edges that
            pay) or ``"none"``.
        reason: why so many.
    """

    edges: tuple[tuple[str, str], ...]
    kind: str
    reason: str


@dataclass(frozen=True)
class Boundary:
    """The transfer boundaries of one gradient, on the compute clock.

    Attributes:
        name: of the gradient.
        dtype: its element type.
        elements: how many; None for a sparse gradient.
        size_bytes: what an all-reduce of it sends, as bytes of a tensor (in the element type of the messages).
        ready_s: when it is computed.
        read_s: when something first reads what its update writes.
        update_s: seconds that its update takes.
        level: see `Dependencies.levels`.
        kept_reason: why it cannot travel in the forward window; "" where it can.
        divisible: whether it may be cut in two.
        condition: see `Dependencies.conditions`; "" where every step makes it.
    """

    name: str
    dtype: str
    elements: int | None
    size_bytes: float
    ready_s: float
    read_s: float
    update_s: float = 0.0
    level: int = 0
    kept_reason: str = ""
    divisible: bool = True
    condition: str = ""

    @property
    def kind(self) -> str:
        """What gradients of one transfer have in common: element type and condition."""
        return f"{self.dtype}, where {self.condition}" if self.condition else self.dtype

    @property
    def item_bytes(self) -> float:
        """Bytes on the wire for each element."""
        return self.size_bytes / self.elements if self.elements else math.nan

    @property
    def is_postponable(self) -> bool:
        """Whether it can travel in the forward window."""
        return not self.kept_reason


@dataclass(frozen=True)
class Boundaries:
    """All of them.

    Attributes:
        gradients: in the order in which they are ready.
        compute_s: seconds of a step's computation without updates.
        basis: what the times are from.
        factor: how many times as long as without transfers these times are.
        sharded: names of gradients whose updates each worker makes a part of.
        divided: names of sparse gradients of whose tables each worker has some rows.
    """

    gradients: tuple[Boundary, ...]
    compute_s: float
    basis: str = ""
    factor: float = 1.0
    sharded: frozenset[str] = frozenset()
    divided: frozenset[str] = frozenset()

    @cached_property
    def by_name(self) -> Mapping[str, Boundary]:
        """Boundaries by the gradient's name."""
        return {g.name: g for g in self.gradients}

    @property
    def updates_s(self) -> float:
        """Seconds of all updates."""
        return sum(g.update_s for g in self.gradients)

    def scaled(self, factor: float) -> Boundaries:
        """The same gradients with all computation so many times as long."""
        gradients = (
            replace(g, ready_s=factor * g.ready_s, read_s=factor * g.read_s, update_s=factor * g.update_s)
            for g in self.gradients
        )
        return replace(self, gradients=tuple(gradients), compute_s=factor * self.compute_s)


@dataclass(frozen=True)
class Piece:
    """A gradient, or a range of its elements.

    Attributes:
        gradient: its name.
        start: the first element.
        elements: how many; None for a sparse gradient, which is never cut.
    """

    gradient: str
    start: int
    elements: int | None

    @property
    def range_text(self) -> str:
        """Its elements, as Python writes a slice."""
        return f"{self.start}:{self.start + (self.elements or 0)}"


@dataclass(frozen=True)
class Buckets:
    """What travels together.

    Attributes:
        buckets: names of whole gradients, in the order in which the buckets are complete.
        reasons: why each is as it is.
    """

    buckets: tuple[tuple[str, ...], ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Scheduled:
    """A transfer and its window.

    Attributes:
        pieces: what travels together; one element type, one level.
        window: `BACKWARD` or `FORWARD`.
        reason: why.
    """

    pieces: tuple[Piece, ...]
    window: str
    reason: str


@dataclass(frozen=True)
class Schedule:
    """All transfers. Those of the forward window come first, each window in the order in which it sends.

    Attributes:
        transfers: in the order in which all workers start them.
        reason: which policy made it.
        in_flight: how much may be under way at once, where the order was made for that; None for the usual limits.
    """

    transfers: tuple[Scheduled, ...]
    reason: str
    in_flight: InFlight | None = None


@dataclass(frozen=True)
class InFlight:
    """How much of each window may be under way at once on a worker.

    Attributes:
        forward: number of transfers of the forward window; None for no limit.
        backward: number of transfers of the backward window; None for no limit.
        credit_bytes: bytes on the wire of all transfers of a window, of each window by itself; None for no limit.
    """

    forward: int | None = None
    backward: int | None = None
    credit_bytes: int | None = None

    def most(self, window: str) -> int | None:
        """The number of transfers of one window."""
        return self.forward if window == FORWARD else self.backward


NO_LIMIT = InFlight()
"""On any window."""


@dataclass(frozen=True)
class Span:
    """When something happens in the timeline of a step.

    Attributes:
        kind: ``"compute"``, ``"stall"`` (computation waits for an update), ``"update"`` or ``"transfer"``.
        what: gradient's name, or number of the transfer.
        start_s: from the start of the step.
        end_s: likewise.
    """

    kind: str
    what: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """One step in steady state, as it is predicted.

    Attributes:
        spans: in the order in which they start.
        iteration_s: seconds of the step.
        compute_s: seconds of computation in it, updates included.
        communication_s: seconds in which a transfer is under way.
    """

    spans: tuple[Span, ...]
    iteration_s: float
    compute_s: float
    communication_s: float

    @property
    def exposed_s(self) -> float:
        """Seconds in which the step only waits."""
        return self.iteration_s - self.compute_s

    @property
    def rho(self) -> float:
        """Communication over computation (Caramel, section 3.1)."""
        return self.communication_s / self.compute_s if self.compute_s > 0 else math.inf

    @property
    def alpha(self) -> float:
        """The overlap coefficient: the hidden part of the shorter of both (Caramel, section 3.1)."""
        shorter = min(self.communication_s, self.compute_s)
        hidden = self.communication_s - self.exposed_s
        return hidden / shorter if shorter > 0 else 1.0

    @property
    def utilisation(self) -> float:
        """U = 1 / (1 + rho - alpha * min(rho, 1)): the part of the step in which it computes."""
        return self.compute_s / self.iteration_s if self.iteration_s > 0 else 1.0
