"""The Plan: the complete decision, as frozen data that prints, saves and explains itself."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

from caramel.errors import PlanError
from caramel.facts import FORWARD, NO_LIMIT, InFlight, Piece
from caramel.local_plan import LocalSteps
from caramel.outline import Outline
from caramel.plan_diff import plan_differences
from caramel.plan_reasons import explanation, in_other_window
from caramel.plan_table import plan_table
from caramel.prediction import Prediction
from caramel.server_plan import ParameterServers, ServedStep
from caramel.util.dataclass_json import from_data
from caramel.util.json_files import JsonFormat
from caramel.util.tables import preformatted
from caramel.util.text_files import write_text

FORMAT = JsonFormat("plan", 7, PlanError, "caramel plan", "make the plan anew")


OWNERS = "owners"
"""Name of the transfer of a sparse gradient to the workers that have the rows of its table."""


@dataclass(frozen=True)
class Transfer:
    """The all-reduce of one bucket.

    Attributes:
        pieces: gradients that travel together, or ranges of their elements, in the order in which they lie.
        dtype: element type of the gradients.
        elements: number of elements; None for a sparse gradient, whose rows vary from step to step.
        size_bytes: bytes of the elements; None for a sparse gradient.
        algorithm: name of the collective.
        depth: number of chunks in flight at once.
        window: ``"backward"`` (in the step that makes the gradients) or ``"forward"`` (in the next).
        wire: element type of the messages; None if it is ``dtype``.
        predicted_s: predicted seconds of the transfer; None without a network model.
        reason: reason of these decisions.
        adds_slices: whether each worker adds up its slices of one row of a sparse gradient before it sends them.
    """

    pieces: tuple[Piece, ...]
    dtype: str
    elements: int | None
    size_bytes: int | None
    algorithm: str
    depth: int
    window: str
    wire: str | None
    predicted_s: float | None
    reason: str
    adds_slices: bool = False

    @property
    def gradients(self) -> tuple[str, ...]:
        """Names of the gradients of which it has all elements or some."""
        return tuple(dict.fromkeys(p.gradient for p in self.pieces))


@dataclass(frozen=True)
class ShardedUpdate:
    """An update of which each worker makes a part: that of the elements whose sum it completes in the all-reduce.

    Attributes:
        gradient: name of the gradient.
        slots: names of the variables of which each worker has its own part only.
    """

    gradient: str
    slots: tuple[str, ...]


@dataclass(frozen=True)
class Transfers:
    """All transfers with their collectives; the fact from which a plan is made.

    Attributes:
        transfers: transfers of the forward window, then of the backward window, in the order in which all workers send.
        in_flight: how much of each window may be under way at once on a worker.
        notes: notes for the plan.
    """

    transfers: tuple[Transfer, ...]
    in_flight: InFlight = NO_LIMIT
    notes: tuple[str, ...] = ()


TRANSFER_THREADS = 6
"""Number of threads that a server has besides those that compute.

Sums and copies of a transfer are ops like all others: where every thread computes, they wait until an op of the
computation ends, and the network with them. Measured with two threads on a step with two ops at a time (VGG-like, 4
hosts, as much time on the network as computing): 1.06 s, and 0.80 s with two threads more; six are our choice, for
plans with more transfers under way. Where steps are short, threads that take turns on the cores cost more than they
save: 16 % of a step of 13 ms (4 processes on two cores).
"""

_SHORT_S = 0.05
"""Seconds of computation of the longest step that counts as short (our choice)."""

_FEW_BYTES = 2**20
"""Bytes of gradients that count as few where nothing is known of a step's length (our choice)."""


@dataclass(frozen=True)
class Plan:
    """Everything that was decided about the distributed graph.

    Attributes:
        model_digest: digest of the Model for which the plan was made.
        workers: number of workers.
        devices: device string of each rank, as `caramel.graph.devices.parse_devices` writes them.
        reduction: ``"mean"`` or ``"sum"`` over the workers.
        reduction_reason: observation from which the reduction was concluded.
        weighted: whether gradients are weighted by each worker's share of the examples.
        deterministic: whether gradients are added in rank order, so that no decision changes a bit.
        statistics: ``"local"`` if checkpoints and evaluations have worker 0's statistics (of batch
            normalisation), ``"mean"`` if they have the mean over the workers.
        network: description of the network model, if one was given.
        transfers: transfers in the order in which all workers start them.
        variable_classes: class of each variable.
        notes: assumptions, and options that have no effect.
        sharding: way in which a dataset on the workers is divided between them; None without one.
        analyzers: names of the analyzers that decided, in the order in which they ran.
        order: names of the gradients in the order in which they are computed.
        order_reason: way in which the order was found, and in which it is enforced.
        edges: control edges (before, after) that enforce it on each worker, by names of the single-device graph.
        in_flight: how much of each window may be under way at once on a worker.
        extra_bytes: bytes of the gradients that each worker keeps for the next step; numbers such as learning rates
            that it keeps with them are not counted.
        sharded: updates of which each worker makes a part.
        prediction: predicted step; None without a trace or a network model.
        proof: statements that were checked of the emitted graph; empty before it is emitted.
        outline: what the program is made of; None in plans of earlier versions.
        local: the steps in which every worker trains by itself, and their exchanges; None where gradients travel.
        servers: the parameter servers, and what they have; None where workers have all parameters.
        aliases: names in the plan of those variables that the program calls otherwise, by the program's name. They
            are those of the process that builds the program, and are not written down.

    Examples:
        >>> import tensorflow as tf
        >>> import caramel
        >>> w = tf.Variable([0.0, 0.0], name="w")
        >>> def step(x, y):
        ...     with tf.GradientTape() as tape:
        ...         loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
        ...     w.assign_sub(0.1 * tape.gradient(loss, w))
        ...     return loss
        >>> context = caramel.capture(step, [tf.TensorSpec([None, 2]), tf.TensorSpec([None])])

        >>> plan = caramel.ARModel(context, 2).plan
        >>> plan.bytes_per_step, plan.transfers[0].algorithm
        (8, 'star')
        >>> caramel.Plan.from_json(plan.to_json()) == plan
        True
    """

    model_digest: str
    workers: int
    devices: tuple[str, ...]
    reduction: str
    reduction_reason: str
    weighted: bool
    deterministic: bool
    statistics: str
    network: str | None
    transfers: tuple[Transfer, ...]
    variable_classes: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    sharding: str | None = None
    analyzers: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    order_reason: str = ""
    edges: tuple[tuple[str, str], ...] = ()
    in_flight: InFlight = NO_LIMIT
    extra_bytes: int = 0
    sharded: tuple[ShardedUpdate, ...] = ()
    prediction: Prediction | None = None
    proof: tuple[str, ...] = ()
    outline: Outline | None = None
    local: LocalSteps | None = None
    servers: ParameterServers | None = None
    aliases: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def predicted(self) -> Prediction | ServedStep | None:
        """The predicted step, with all-reduces or with parameter servers; None where nothing was predicted."""
        return self.prediction if self.servers is None else self.servers.prediction

    @property
    def server_devices(self) -> tuple[str, ...]:
        """Device string of each parameter server; empty without any."""
        return () if self.servers is None else self.servers.devices

    # -- as text -----------------------------------------------------------------------------

    def to_json(self) -> str:
        """The plan as JSON; the same plan always gives the same text."""
        written = asdict(self)
        del written["aliases"]
        if not self.sharded:
            del written["sharded"]  # so that plans without are what they were in earlier versions
        for name in ("local", "servers"):
            if getattr(self, name) is None:
                del written[name]
        if self.in_flight.credit_bytes is None:
            del written["in_flight"]["credit_bytes"]
        return FORMAT.write(written)

    @classmethod
    def from_json(cls, text: str, name: str = "the plan") -> Plan:
        """Read a plan that `to_json` wrote.

        Args:
            text: the JSON.
            name: noun for it in messages, such as ``"the plan 'plan.json'"``.

        Raises:
            PlanError: not a plan, of another version, or damaged.
        """
        data = FORMAT.read(text, name)
        with FORMAT.reading(name):
            plan: Plan = from_data(cls, _with_parts_left_out(data))
        alternatives = () if plan.prediction is None else plan.prediction.alternatives
        if alternatives and len(alternatives) != len(plan.transfers):
            raise PlanError(f"{name} predicts other transfers than it has: make the plan anew")
        return plan

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to a file, whole or not at all.

        Raises:
            PlanError: it cannot be written; what was there is untouched.
        """
        write_text(path, self.to_json() + "\n", "the plan", PlanError)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read a plan that `save` wrote.

        Raises:
            PlanError: it cannot be read, or see `from_json`.
        """
        return cls.from_json(FORMAT.text_of(path), f"the plan {os.fspath(path)!r}")

    @property
    def digest(self) -> str:
        """SHA-256 of the plan's JSON text, predictions and reasons included; not of the outline and the proof."""
        return hashlib.sha256(replace(self, proof=(), outline=None).to_json().encode()).hexdigest()

    # -- what is in it -----------------------------------------------------------------------

    @property
    def bytes_per_step(self) -> int:
        """Bytes of all dense gradients of one replica."""
        if self.servers is not None:
            return self.servers.pushed_bytes
        return sum(t.size_bytes or 0 for t in self.transfers)

    @property
    def transfer_threads(self) -> int:
        """Number of threads of a server besides those that compute.

        Sums and copies of transfers wait where all threads compute; but where steps are short, or little is sent, more
        threads than cores take longer than they save.
        """
        if self.prediction is not None:
            is_short = self.prediction.timeline.compute_s <= _SHORT_S
        else:
            is_short = self.bytes_per_step <= _FEW_BYTES
        return 0 if is_short else TRANSFER_THREADS

    @cached_property
    def pieces(self) -> Mapping[str, tuple[tuple[Piece, str], ...]]:
        """The pieces of each gradient and their windows, in the order of its elements, by the gradient's name."""
        pieces_by_gradient: dict[str, list[tuple[Piece, str]]] = {}
        for transfer in self.transfers:
            for piece in transfer.pieces:
                pieces_by_gradient.setdefault(piece.gradient, []).append((piece, transfer.window))
        return {
            name: tuple(sorted(gradient_pieces, key=lambda p: p[0].start))
            for name, gradient_pieces in pieces_by_gradient.items()
        }

    @property
    def divided_tables(self) -> tuple[str, ...]:
        """Names of the sparse gradients whose tables are divided between the workers."""
        return tuple(t.gradients[0] for t in self.transfers if t.algorithm == OWNERS)

    @cached_property
    def postponed(self) -> tuple[str, ...]:
        """Names of the gradients whose updates are made in the next step: some of their elements travel there."""
        return tuple(name for name, pieces in self.pieces.items() if any(window == FORWARD for _, window in pieces))

    def to_networkx(self) -> Any:
        """What travels how, as a networkx.DiGraph for your own analyses.

        Returns:
            A DiGraph. Its nodes are the gradients, by name, and the transfers, by number. ``kind`` says which
            (``"gradient"`` or ``"transfer"``); transfers also have ``bytes``, ``seconds`` (predicted), ``window``,
            ``algorithm`` and ``depth``; what is not known is None. An edge from a gradient to a transfer has the
            ``elements`` of the gradient that travel there (None for a sparse one). An edge from a transfer to the next
            one of its window says in which order they are sent. Of a plan with parameter servers, nodes are variables
            and servers (``kind`` is ``"variable"`` or ``"server"``), with an edge from each variable to each of its
            servers, with the ``elements`` that are there (None for all).
        """
        import networkx as nx  # most who read a plan never ask

        digraph = nx.DiGraph()
        for home in () if self.servers is None else self.servers.homes:
            for name, part in product(home.variables, home.parts):
                digraph.add_node(name, kind="variable")
                digraph.add_node(part.server, kind="server")
                digraph.add_edge(name, part.server, elements=part.elements)
        last: dict[str, int] = {}
        for number, transfer in enumerate(self.transfers):
            attributes = {"window": transfer.window, "algorithm": transfer.algorithm, "depth": transfer.depth}
            digraph.add_node(
                number, kind="transfer", bytes=transfer.size_bytes, seconds=transfer.predicted_s, **attributes
            )
            for piece in transfer.pieces:
                digraph.add_node(piece.gradient, kind="gradient")
                digraph.add_edge(piece.gradient, number, elements=piece.elements)
            if transfer.window in last:
                digraph.add_edge(last[transfer.window], number)
            last[transfer.window] = number
        return digraph

    def explain(self, gradient: str) -> str:
        """What happens to one gradient, and why.

        Args:
            gradient: name of the gradient (the parameter's, as the program or the plan calls it), or the end of the
                name of one gradient only (``"dense/kernel"`` of ``"model/dense/kernel"``).

        Raises:
            InputError: the plan has no such gradient, or several.
        """
        return explanation(self, gradient)

    def in_other_window(self, number: int) -> str:
        """What a step would take with a transfer in its other window, as a clause; "" where that was not simulated.

        Args:
            number: number of the transfer.
        """
        return in_other_window(self, number)

    def table(self) -> str:
        """The plan as text for a terminal."""
        return plan_table(self)

    def _repr_html_(self) -> str:
        """The plan in a notebook."""
        return preformatted(self.table())

    def __str__(self) -> str:
        return self.table()

    def diff(self, other: Plan) -> str:
        """The decisions in which another plan differs, as text; empty if there are none.

        Args:
            other: plan to compare with.
        """
        return plan_differences(self, other)


def _with_parts_left_out(data: Any) -> Any:
    """The data of a plan with what plans of earlier versions, and those that do not use it, leave out."""
    data = {"outline": None, "sharded": [], "local": None, "servers": None, **data}
    in_flight = data.get("in_flight")
    return {**data, "in_flight": {"credit_bytes": None, **in_flight}} if isinstance(in_flight, Mapping) else data
