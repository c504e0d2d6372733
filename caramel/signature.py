"""The names by which a distributed graph is run: what to feed, to fetch and to call."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from caramel.dealing import WHOLE, Dealing

SIGNATURE_VERSION = 1

NONE = "none"
"""Reduction of a graph whose workers have nothing in common."""


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
class DataSignature:
    """How the workers' input pipelines are run. What has one entry for each worker is run on all together.

    Attributes:
        sharding: ``"slice"`` (each worker takes its rows of every batch), ``"batches"`` (one of every N
            batches) or ``"own"`` (each worker has a dataset of its own).
        anew: whether the dataset is built anew for every pass, with another seed.
        infinite: whether the dataset is known to have no end.
        draws: how often a pass draws seeds for the dataset's shuffles: ``"never"``, ``"once"`` (when it
            begins) or ``"often"`` (a shuffle is repeated within the dataset).
        resumes: whether the state of an iterator is all that it takes to go on from a checkpoint; if not,
            what was taken must be passed over.
        inputs: names of the inputs that come from it.
        split: those of them that are split over the workers.
        rows: how many examples of each split input a worker needs, None where any number will do.
        seed: int64 to feed to ``build``: positive, the same for all workers.
        skip: int64 to feed to ``begin``: elements to leave out at the start of the pass.
        buffer: int64 to feed to ``begin``: elements that an iterator reads ahead; 0 for none.
        start: int64 to feed to ``advance``: elements with lower numbers are passed over.
        tried: to fetch: elements of the pass that an iterator was asked for, those that failed and the end included;
            those that were left out at its start count, those before a restored position do not.
        load: op that reads the datasets' arrays from the initial values.
        build: ops that make the datasets.
        clear: ops that make the workers forget the element that they keep; once, before ``begin``.
        begin: ops that begin a pass.
        advance: ops that take the next element and keep the worker's part of it for the next step.
        counts: to fetch with ``advance``: number of the element in the pass (-1 at the end), examples of
            this worker, and examples in the element for each of ``split``.
        snapshot: ops that put down the iterators' positions for the next ``save``.
        forget: ops that drop them again; once before the first ``save``, too.
        restore: op that puts the iterators where a checkpoint says, after ``begin``.
        position: numbers to feed to ``save``: seed, passes begun, elements taken in this pass, what the
            pass is doing (0: it has ended, 1: it goes on, 2: it goes on after an element that failed, and each
            worker must find the next one), whether ``snapshot`` was run, number of workers. Where a pass draws
            seeds ``"often"``, two more for each earlier pass that was left before its end: its number, and of how
            many elements.
        position_key: their key in a checkpoint.
        digest: of the pipelines; a position fits only the same.
        digest_key: its key in a checkpoint.
        ahead: whether ``advance`` may be run together with a step: then it takes the element of the step after.
    """

    sharding: str
    anew: bool
    infinite: bool
    draws: str
    resumes: bool
    inputs: tuple[str, ...]
    split: tuple[str, ...]
    rows: tuple[int | None, ...]
    seed: tuple[str, ...]
    skip: tuple[str, ...]
    buffer: tuple[str, ...]
    start: tuple[str, ...]
    tried: tuple[str, ...]
    load: str
    build: tuple[str, ...]
    clear: tuple[str, ...]
    begin: tuple[str, ...]
    advance: tuple[str, ...]
    counts: tuple[str, ...]
    snapshot: tuple[str, ...]
    forget: tuple[str, ...]
    restore: str
    position: str
    position_key: str
    digest: str
    digest_key: str
    ahead: bool = False


@dataclass(frozen=True)
class Signature:
    """How to run a distributed graph with plain TensorFlow.

    Attributes:
        workers: number of workers.
        devices: device string of each.
        reduction: ``"mean"`` or ``"sum"``: how the workers' gradients combine; `NONE` where they do not.
        feeds: the inputs of a step.
        weights: scalar float64 tensor for each worker to feed N * b_r / B to where a batch of B
            examples does not divide evenly (if the loss is a sum: 0 to that of a worker that has none);
            empty if uneven batches are not supported.
        losses: the loss tensor of each worker.
        outputs: for each further result its name and the tensor of each worker.
        step: the op of each worker, and of each parameter server, that does its part of a step; run all of them
            together.
        restore_prefix: tensor to feed a checkpoint's path to.
        restore: ops to run, in order, to start from a checkpoint: read it on worker 0, broadcast.
        restore_unsaved: op that restores what single-device checkpoints leave out (from an initial
            checkpoint only).
        restore_local: op that restores what is local to each worker, if the checkpoint has it.
        local_keys: the keys that it reads.
        save_prefix: tensor to feed the path to write to.
        save_steps: tensor to feed the number of steps to, for programs that do not count them.
        steps_key: checkpoint key of the number of steps: the program's own counter, if it has one.
        save: op that writes a checkpoint.
        group_leader: the task that must be named as ``experimental.collective_group_leader`` in the
            configuration of servers and session; empty unless the graph has native all-reduces.
        flush: ops that apply what is postponed; empty if nothing ever is.
        checkpoint_names: key of each variable in a checkpoint.
        evaluation: the declared evaluation, if any.
        data: how the workers get their inputs from a dataset, if they do.
        reported: ``"mean"`` or ``"sum"``: how the values of ``losses`` combine.
        sync_every: number of steps after which ``flush`` has to run, where it exchanges what workers have trained by
            themselves; 0 where they do not.
        anchor: op to run after parameters were given new values between steps; "" for none.
        restore_momentum: op that restores the momentum of exchanges, if the checkpoint has it; "" for none.
        momentum_keys: the keys that it reads.
        servers: device string of each parameter server; empty without any.
        dealing: how the rows of a batch are dealt to the workers.
        dealt_outputs: results that have several batches, or parts of micro-batches, one after the other, with the axis
            of these and their number.
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
    local_keys: tuple[str, ...]
    save_prefix: str
    save_steps: str
    steps_key: str
    save: str
    group_leader: str
    flush: tuple[str, ...]
    checkpoint_names: tuple[str, ...]
    evaluation: EvaluationSignature | None
    data: DataSignature | None = None
    reported: str = "mean"
    sync_every: int = 0
    anchor: str = ""
    restore_momentum: str = ""
    momentum_keys: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    dealing: Dealing = WHOLE
    dealt_outputs: tuple[tuple[str, int, int], ...] = ()

    def to_json(self) -> str:
        """As JSON, with a version."""
        data: dict[str, Any] = {"version": SIGNATURE_VERSION, **asdict(self)}
        return json.dumps(data, indent=1, sort_keys=True)
