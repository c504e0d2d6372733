"""The names by which a distributed graph is run: what to feed, to fetch and to call."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

SIGNATURE_VERSION = 1


@dataclass(frozen=True)
class Feed:
    """One input of the user's program.

    Attributes:
        name: the user's name.
        dtype: element type.
        shape: shape of one worker's part, None where unknown.
        split: whether the global array is split over the workers along axis 0.
        optional: whether it need not be fed.
        placeholders: the tensor to feed for each worker.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None
    split: bool
    optional: bool
    placeholders: tuple[str, ...]


@dataclass(frozen=True)
class EvaluationSignature:
    """Names of the declared evaluation: feeds (never split) and fetches."""

    feeds: tuple[Feed, ...]
    fetches: tuple[tuple[str, str], ...]
    targets: tuple[str, ...]


@dataclass(frozen=True)
class Signature:
    """How to run a distributed graph with plain TensorFlow.

    Attributes:
        workers: number of workers.
        devices: device string of each.
        reduction: ``"mean"`` or ``"sum"``: how the workers' losses combine.
        feeds: the inputs of a step.
        weights: scalar float64 tensor for each worker to feed N * b_r / B to where a batch of B
            examples does not divide evenly; empty if uneven batches are not supported.
        losses: the loss tensor of each worker.
        outputs: for each further result its name and the tensor of each worker.
        step: the op of each worker that does its part of a step; run all of them together.
        restore_prefix: tensor to feed a checkpoint's path to.
        restore: ops to run, in order, to start from a checkpoint: read it on worker 0, broadcast.
        restore_unsaved: op that restores what single-device checkpoints leave out (from an initial
            checkpoint only).
        restore_local: op that restores the local state of the other workers.
        save_prefix: tensor to feed the path to write to.
        save_steps: tensor to feed the number of steps to, for programs that do not count them.
        save: op that writes a checkpoint.
        group_leader: the task that must be named as ``experimental.collective_group_leader`` in the
            configuration of servers and session; empty unless the graph has native all-reduces.
        flush: ops that apply what is postponed; empty if nothing ever is.
        checkpoint_names: key of each variable in a checkpoint.
        evaluation: the declared evaluation, if any.
    """

    workers: int
    devices: tuple[str, ...]
    reduction: str
    feeds: tuple[Feed, ...]
    weights: tuple[str, ...]
    losses: tuple[str, ...]
    outputs: tuple[tuple[str, tuple[str, ...]], ...]
    step: tuple[str, ...]
    restore_prefix: str
    restore: tuple[str, ...]
    restore_unsaved: str
    restore_local: str
    save_prefix: str
    save_steps: str
    save: str
    group_leader: str
    flush: tuple[str, ...]
    checkpoint_names: tuple[str, ...]
    evaluation: EvaluationSignature | None

    def to_json(self) -> str:
        """As JSON, with a version."""
        data: dict[str, Any] = {"version": SIGNATURE_VERSION, **asdict(self)}
        return json.dumps(data, indent=1, sort_keys=True)
