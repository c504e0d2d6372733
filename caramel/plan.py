"""The Plan: the complete decision, as frozen data that prints, saves and explains itself."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

from caramel.errors import InputError, PlanError, listed
from caramel.facts import BACKWARD, FORWARD, NO_LIMIT, InFlight, Piece
from caramel.local_plan import Exchange, LocalSteps
from caramel.outline import Outline
from caramel.plan_diff import plan_differences
from caramel.prediction import Prediction
from caramel.server_plan import ParameterServers
from caramel.util.arguments import shown
from caramel.util.dataclass_json import from_data
from caramel.util.json_files import JsonFormat
from caramel.util.tables import fitted, preformatted, wrapped
from caramel.util.text_files import write_text
from caramel.util.units import format_ms

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
        if not isinstance(gradient, str):
            raise InputError(f"explain takes the name of a gradient, got {shown(gradient)}")
        if self.local is not None:
            return self._explained_exchange(self.local, gradient)
        if self.servers is not None:
            return self.servers.explain(self._named_among(gradient, list(self.servers.home_by_variable), "variable"))
        gradient = self._gradient_named(gradient)
        own = next((own for own, name in self.aliases.items() if name == gradient), None)
        alike: dict[str, list[tuple[int, str]]] = {}  # many parts of one gradient travel alike, but for numbers
        for number, transfer in enumerate(self.transfers):
            for text in (self._explained(number, transfer, p) for p in transfer.pieces if p.gradient == gradient):
                alike.setdefault(_NUMBERS.sub("#", text), []).append((number, text))
        explanations = [
            first if not others else f"{first} So it is, with other numbers, in {_transfers([n for n, _ in others])}."
            for (_, first), *others in alike.values()
        ]
        place = (
            f" Number {self.order.index(gradient) + 1} of {len(self.order)} gradients."
            if gradient in self.order
            else ""
        )
        called = "" if own is None else f" This program calls it {own!r}."
        return "\n".join(explanations) + place + called

    def _gradient_named(self, name: str) -> str:
        return self._named_among(name, list(self.pieces), "gradient")

    def _named_among(self, name: str, names: Sequence[str], kind: str) -> str:
        """The one of some names that a name is, or is the end of."""
        if self.aliases.get(name, name) in names:
            return self.aliases.get(name, name)
        own = {alias: each for alias, each in self.aliases.items() if each in names}
        found = [each for each in names if each.endswith("/" + name)]
        found = [each for alias, each in own.items() if alias.endswith("/" + name)] or found
        if len(found) > 1:
            raise InputError(f"the plan has several {kind}s whose name ends with {name!r}: {listed(found, 8)}")
        if not found:
            raise InputError(f"the plan has no {kind} {name!r}; it has {listed(names, 8)}")
        return found[0]

    def _explained_exchange(self, local: LocalSteps, name: str) -> str:
        names = [parameter for exchange in local.exchanges for parameter in exchange.parameters]
        name = self._named_among(name, names, "parameter")
        number = next(n for n, exchange in enumerate(local.exchanges) if name in exchange.parameters)
        exchange = local.exchanges[number]
        others = len(exchange.parameters) - 1
        shared = f" together with {_counted(others, 'other parameter')}" if others else ""
        return (
            f"{name}: its gradient does not travel. Every worker updates it with its own, and after at most "
            f"{local.sync_every} steps its difference is in transfer {number} of the exchange{shared}, "
            f"{exchange.size_bytes} bytes of {_on_wire(exchange)}, {exchange.algorithm} of depth {exchange.depth}. "
            f"{exchange.reason}"
        )

    def _explained(self, number: int, transfer: Transfer, piece: Piece) -> str:
        size = "a number of" if transfer.size_bytes is None else str(transfer.size_bytes)
        part = "" if len(self.pieces[piece.gradient]) == 1 else f" elements {_range(piece)} in"
        is_sharded = piece.gradient in {update.gradient for update in self.sharded}
        update = " Each worker makes its part of the update, and all get the new parameter." if is_sharded else ""
        elsewhere = self.in_other_window(number)
        alternative = f" {elsewhere[0].upper()}{elsewhere[1:]}." if elsewhere else ""
        others = len(transfer.gradients) - 1
        shared = f" together with {_counted(others, 'other gradient')}" if others else ""
        return (
            f"{piece.gradient}:{part} transfer {number}{shared}, {size} bytes of {_on_wire(transfer)}, "
            f"{transfer.algorithm} of depth {transfer.depth}, {transfer.window} window. "
            f"{transfer.reason}{alternative}{update}"
        )

    def in_other_window(self, number: int) -> str:
        """What a step would take with a transfer in its other window, as a clause; "" where that was not simulated.

        Args:
            number: number of the transfer.
        """
        if self.prediction is None or not self.prediction.alternatives:
            return ""
        other_s = self.prediction.alternatives[number]
        window = FORWARD if self.transfers[number].window == BACKWARD else BACKWARD
        if other_s is None:
            return f"it cannot be in the {window} window"
        step_s = self.prediction.timeline.iteration_s
        more_s = other_s - step_s
        if abs(more_s) < _LEAST_DIFFERENCE * step_s:
            return f"in the {window} window the step would take as long"
        more = "more" if more_s >= 0 else "less"
        return f"in the {window} window the step would take {format_ms(abs(more_s), 3)} {more}"

    def table(self) -> str:
        """The plan as text for a terminal."""
        travel: Sequence[Transfer | Exchange] = self.transfers if self.local is None else self.local.exchanges
        predicted = any(t.predicted_s is not None for t in travel)
        what = "gradients" if self.local is None else "parameters"
        rows = [("#", what, "dtype", "bytes", "algorithm", "depth", "window", *(["ms"] if predicted else []))]
        for number, t in enumerate(travel):
            time = ["-" if t.predicted_s is None else f"{t.predicted_s * 1e3:.3g}"] if predicted else []
            size = "sparse" if t.size_bytes is None else f"{t.size_bytes:,}"
            window = "exchange" if isinstance(t, Exchange) else t.window
            dtype = f"{t.dtype} as {t.wire}" if t.wire else t.dtype
            rows.append((str(number), self._contents(t), dtype, size, t.algorithm, str(t.depth), window, *time))
        name = f"plan {self.digest[:12]}: {_counted(self.workers, 'worker')}"
        if self.servers is not None:
            pulls, rule = self.servers.pulls, self.servers.ordering
            order = "no order" if not pulls else f"an order ({rule}): {listed(pulls, _MOST_NAMES)}"
            head = [
                f"{name} and {_counted(len(self.server_devices), 'parameter server')}",
                f"{self.servers}, in {order}",
                f"gradients are combined by {self.reduction}, in rank order: {self.reduction_reason}",
            ]
            rows = list(self.servers.rows())
        elif self.local is not None:
            head = [f"{name}, which send no gradients", f"local steps: {self.local}"]
        else:
            sent = f"{len(self.transfers)} transfers, {self.bytes_per_step:,} bytes of gradients per worker and step"
            head = [f"{name}, {sent}", f"gradients are combined by {self.reduction}: {self.reduction_reason}"]
        if self.deterministic and self.servers is None:
            head.append("deterministic: gradients are added in rank order")
        if self.network is not None:
            head.append(f"network: {self.network}")
        if self.analyzers:
            head.append(f"analyzers: {', '.join(self.analyzers)}")
        if self.order:
            head.append(f"order of gradients: {self.order_reason}")
        if self.in_flight.credit_bytes is not None:
            head.append(f"at most {self.in_flight.credit_bytes:,} bytes of each window are under way at once")
        if self.sharded:
            head.append(
                f"{len(self.sharded)} updates are sharded: each worker makes a part of them, and has a part of "
                f"{sum(len(update.slots) for update in self.sharded)} slots"
            )
        if divided := [t.gradients[0] for t in self.transfers if t.algorithm == OWNERS]:
            head.append(f"{len(divided)} embedding tables are divided: each worker has some rows, and of their slots")
        if self.extra_bytes:
            head.append(f"each worker keeps {self.extra_bytes:,} bytes of gradients for the next step")
        if self.workers > 1:
            further = f" and {self.transfer_threads} for transfers" if self.transfer_threads else ""
            head.append(f"threads of a server that is started for this: one for each core{further}")
        counts: dict[str, int] = {}
        for _, kind in self.variable_classes:
            counts[kind] = counts.get(kind, 0) + 1
        head.append("variables: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))
        notes = ["", *(f"note: {n}" for n in self.notes)] if self.notes else []
        proof = ["", *(f"checked: {p}" for p in self.proof)] if self.proof else []
        after = [wrapped(line) for line in (*self._predicted(), *notes, *proof, *self._named())]
        right = {0, 3, 5, 7} if self.servers is None else {0, 2, 3, 4}
        return "\n".join([*map(wrapped, head), "", fitted(rows, right=right), *after])

    def _repr_html_(self) -> str:
        """The plan in a notebook."""
        return preformatted(self.table())

    def _contents(self, transfer: Transfer | Exchange) -> str:
        if isinstance(transfer, Exchange):
            return listed(transfer.parameters, _MOST_NAMES)
        names = [
            p.gradient if len(self.pieces[p.gradient]) == 1 else f"{p.gradient}[{_range(p)}]" for p in transfer.pieces
        ]
        return listed(names, _MOST_NAMES)

    def _named(self) -> list[str]:
        """What the program calls gradients whose names have other numbers in the plan."""
        own = [f"{name} is {alias}" for alias, name in self.aliases.items() if name in self.pieces]
        return ["", f"names that Keras numbers are counted anew; here {listed(own, 2)}"] if own else []

    def _predicted(self) -> list[str]:
        if self.servers is not None and self.servers.prediction is not None:
            return ["", str(self.servers.prediction)]
        if self.prediction is None:
            return []
        prediction, step = self.prediction, self.prediction.timeline
        bound = (
            f"no plan takes less than {format_ms(prediction.lower_bound_s)} (gap {prediction.gap:.1%})"
            if prediction.has_bound
            else "the lower bound came out above this step, so it is withdrawn (a defect; see caramel plan --check)"
        )
        return [
            "",
            f"predicted: {format_ms(step.iteration_s)} per step: {format_ms(step.compute_s)} of computation, "
            f"{format_ms(step.communication_s)} of communication, {format_ms(step.exposed_s)} of it exposed",
            *([] if prediction.interval is None else [str(prediction.interval)]),
            f"alpha {step.alpha:.3f}, rho {step.rho:.3f}, utilisation {step.utilisation:.1%}; {bound}",
            f"from: {prediction.basis}",
        ]

    def __str__(self) -> str:
        return self.table()

    def diff(self, other: Plan) -> str:
        """The decisions in which another plan differs, as text; empty if there are none.

        Args:
            other: plan to compare with.
        """
        return plan_differences(self, other)


_LEAST_DIFFERENCE = 1e-6
"""Part of a step below which a difference is one of rounding."""

_NUMBERS = re.compile(r"\d[\d.,]*")
"""Numbers in an explanation."""

_MOST_NAMES = 6
"""Largest number of gradients of a bucket whose names a table shows."""


def _with_parts_left_out(data: Any) -> Any:
    """The data of a plan with what plans of earlier versions, and those that do not use it, leave out."""
    data = {"outline": None, "sharded": [], "local": None, "servers": None, **data}
    in_flight = data.get("in_flight")
    return {**data, "in_flight": {"credit_bytes": None, **in_flight}} if isinstance(in_flight, Mapping) else data


def _transfers(numbers: Sequence[int]) -> str:
    """Some transfers, by their numbers.

    >>> _transfers([4, 5, 6, 9])
    'transfers 4 to 6 and 9'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    spelled = [f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    last = spelled.pop()
    places = f"{', '.join(spelled)} and {last}" if spelled else last
    return f"transfer{'s' if len(numbers) > 1 else ''} {places}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _on_wire(transfer: Transfer | Exchange) -> str:
    """The element type, and that of the messages if it is another."""
    return f"{transfer.dtype} ({transfer.wire} on the wire)" if transfer.wire else transfer.dtype


def _range(piece: Piece) -> str:
    return f"{piece.start}:{piece.start + (piece.elements or 0)}"
