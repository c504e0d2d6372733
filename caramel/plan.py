"""The Plan: the complete decision, as frozen data that prints, saves and explains itself."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from caramel.errors import InputError, listed
from caramel.tables import aligned

PLAN_VERSION = 3


@dataclass(frozen=True)
class Transfer:
    """The all-reduce of one bucket.

    Attributes:
        gradients: names of the gradients that travel together.
        dtype: their element type.
        elements: how many there are; None for a sparse gradient, whose rows vary from step to step.
        size_bytes: their size; None likewise.
        algorithm: the collective.
        depth: number of chunks in flight at once.
        window: ``"backward"`` (in the step that makes the gradients) or ``"forward"`` (in the next).
        wire: element type of the messages, if another than ``dtype``.
        predicted_s: seconds that it will take, if a network model was given.
        reason: why it is so.
    """

    gradients: tuple[str, ...]
    dtype: str
    elements: int | None
    size_bytes: int | None
    algorithm: str
    depth: int
    window: str
    wire: str | None
    predicted_s: float | None
    reason: str


@dataclass(frozen=True)
class Plan:
    """Everything that was decided about the distributed graph.

    Attributes:
        model_digest: of the Model that it was made for.
        workers: number of workers.
        devices: device string of each rank, as `caramel.modifiers.replicate.parse_devices` writes them.
        reduction: ``"mean"`` or ``"sum"`` over the workers.
        reduction_reason: what that was concluded from.
        weighted: whether gradients are weighted by each worker's share of the examples.
        deterministic: whether gradients are added in rank order, so that no decision changes a bit.
        statistics: ``"local"`` if checkpoints and evaluations have worker 0's statistics (of batch
            normalisation), ``"mean"`` if they have the mean over the workers.
        network: description of the network model, if one was given.
        transfers: in the order in which all workers start them.
        variable_classes: class of each variable.
        notes: assumptions, and options that have no effect.
        sharding: how a dataset on the workers is divided between them, if there is one.
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

    def to_json(self) -> str:
        """The plan as JSON; the same plan always gives the same text."""
        return json.dumps({"version": PLAN_VERSION, **asdict(self)}, indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read a plan that `to_json` wrote.

        Raises:
            InputError: not a plan, or of another version.
        """
        try:
            data: dict[str, Any] = json.loads(text)
            version = data.pop("version")
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise InputError(f"this is not a plan: {error}") from error
        if version != PLAN_VERSION:
            raise InputError(
                f"the plan has version {version}, this library reads version {PLAN_VERSION}: make the plan anew"
            )
        try:
            data["transfers"] = tuple(Transfer(**{**t, "gradients": tuple(t["gradients"])}) for t in data["transfers"])
            data["variable_classes"] = tuple((name, kind) for name, kind in data["variable_classes"])
            for key in ("devices", "notes"):
                data[key] = tuple(data[key])
            return cls(**data)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"the plan is damaged: {error}") from error

    @property
    def digest(self) -> str:
        """SHA-256 of the JSON text."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @property
    def bytes_per_step(self) -> int:
        """Bytes of all dense gradients of one replica."""
        return sum(t.size_bytes or 0 for t in self.transfers)

    @property
    def postponed(self) -> tuple[str, ...]:
        """Names of the gradients that travel in the next step."""
        return tuple(name for t in self.transfers if t.window == "forward" for name in t.gradients)

    def explain(self, gradient: str) -> str:
        """What happens to one gradient, and why.

        Args:
            gradient: its name (the parameter's).

        Raises:
            InputError: the plan has no such gradient.
        """
        for number, transfer in enumerate(self.transfers):
            if gradient in transfer.gradients:
                size = "a number of" if transfer.size_bytes is None else str(transfer.size_bytes)
                wire = f" ({transfer.wire} on the wire)" if transfer.wire else ""
                return (
                    f"{gradient}: transfer {number}, {size} bytes of {transfer.dtype}{wire}, "
                    f"{transfer.algorithm} of depth {transfer.depth}, {transfer.window} window. {transfer.reason}"
                )
        names = [g for t in self.transfers for g in t.gradients]
        raise InputError(f"the plan has no gradient {gradient!r}; it has {listed(names, 8)}")

    def table(self) -> str:
        """The plan as text for a terminal."""
        predicted = any(t.predicted_s is not None for t in self.transfers)
        rows = [("#", "gradients", "dtype", "bytes", "algorithm", "depth", "window", *(["ms"] if predicted else []))]
        for number, t in enumerate(self.transfers):
            names = ", ".join(t.gradients)
            time = ["-" if t.predicted_s is None else f"{t.predicted_s * 1e3:.3g}"] if predicted else []
            size = "sparse" if t.size_bytes is None else f"{t.size_bytes:,}"
            rows.append((str(number), names, t.dtype, size, t.algorithm, str(t.depth), t.window, *time))
        head = [
            f"plan {self.digest[:12]}: {self.workers} workers, {len(self.transfers)} transfers, "
            f"{self.bytes_per_step:,} bytes of gradients per worker and step",
            f"gradients are combined by {self.reduction}: {self.reduction_reason}",
        ]
        if self.deterministic:
            head.append("deterministic: gradients are added in rank order")
        if self.network is not None:
            head.append(f"network: {self.network}")
        counts: dict[str, int] = {}
        for _, kind in self.variable_classes:
            counts[kind] = counts.get(kind, 0) + 1
        head.append("variables: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))
        notes = ["", *(f"note: {n}" for n in self.notes)] if self.notes else []
        return "\n".join([*head, "", aligned(rows, right={0, 3, 5, 7}, rule=True), *notes])
