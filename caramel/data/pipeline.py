"""The input pipelines of all workers, and whether they fit the model and each other."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from caramel.data.components import check_inputs
from caramel.data.dataset import TrainingData
from caramel.data.source import Source
from caramel.data.template import Sharding, Template, make_template
from caramel.dealing import Dealing
from caramel.errors import InputError, UnsupportedError
from caramel.model import Input, Model

SHARDINGS = ("slice", "batches")
"""Values that a user may give for ``sharding``."""


@dataclass(frozen=True)
class Pipeline:
    """The input pipelines of the workers.

    Attributes:
        sharding: part of the dataset that a worker takes.
        sources: one dataset for all workers, or one for each.
        templates: pipeline of each source.
        inputs: inputs of the step that come from the dataset.
        always_even: whether all workers always have equally many examples.
    """

    sharding: Sharding
    sources: tuple[Source, ...]
    templates: tuple[Template, ...]
    inputs: tuple[Input, ...]
    always_even: bool

    def source(self, rank: int) -> Source:
        """A worker's dataset."""
        return self.sources[rank if len(self.sources) > 1 else 0]

    def template(self, rank: int) -> Template:
        """A worker's pipeline."""
        return self.templates[rank if len(self.templates) > 1 else 0]

    @property
    def shared(self) -> bool:
        """Whether all workers run the same pipeline, and so are at the same position in it."""
        return self.sharding is not Sharding.OWN

    @property
    def may_run_ahead(self) -> bool:
        """Whether a worker may take an element while a step runs: no element fails, and none draws a seed."""
        return all(source.cannot_fail and source.draws != "often" for source in self.sources)

    def saved_ranks(self, workers: int) -> range:
        """Ranks of the workers whose positions a checkpoint keeps; the other workers are at one of these positions."""
        return range(1 if self.shared else workers)

    @property
    def values(self) -> Mapping[str, np.ndarray]:
        """Arrays to load before the datasets are made, by key."""
        return {c.key: c.value for source in self.sources for c in source.constants}

    @property
    def seed(self) -> int | None:
        """The seed for shuffles without one; None to leave it to chance."""
        return self.sources[0].seed

    def fits(self, other: Pipeline) -> bool:
        """Whether the workers can go on with the data of another pipeline as they are: only its arrays differ.

        Args:
            other: pipeline of the same kind, for the same model and number of workers.
        """
        return self._without_values() == other._without_values()

    def has_same_arrays(self, other: Pipeline) -> bool:
        """Whether the arrays of a pipeline that `fits` are the same, too."""
        kept, given = ([c.key for s in each.sources for c in s.constants] for each in (self, other))
        return kept == given

    def _without_values(self) -> Any:
        constants = [constant for source in self.sources for constant in source.constants]
        keys = [constant.key for constant in constants]  # arrays with the same values are loaded once
        alike = [(c.node, c.dtype, c.value.shape, keys.index(c.key)) for c in constants]
        return self.sharding, self.always_even, [source.digest for source in self.sources], alike

    @property
    def digest(self) -> str:
        """SHA-256 of the pipelines; a position in one fits another only if these are equal."""
        return hashlib.sha256("".join(s.digest for s in self.sources).encode()).hexdigest()

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the plan, one sentence each."""
        description = {
            Sharding.SLICE: "every worker runs the pipeline and takes its rows of each batch",
            Sharding.BATCHES: "every worker runs the pipeline and takes one of every N batches",
            Sharding.OWN: "every worker runs a pipeline of its own",
        }[self.sharding]
        return (f"input: {description}", *dict.fromkeys(note for source in self.sources for note in source.notes))


def make_pipeline(training: TrainingData, model: Model, workers: int, sharding: str | None) -> Pipeline:
    """Fit a dataset to a model and a number of workers.

    Args:
        training: the user's training data.
        model: the single-device step, whose inputs have the component that they take.
        workers: number of workers.
        sharding: ``"slice"`` or ``"batches"``; None where each worker has a dataset of its own, else ``"slice"``.

    Raises:
        InputError: the dataset is empty, or does not fit the model or the number of workers.
        UnsupportedError: the dataset cannot run on the workers.
    """
    kind = _sharding(training, sharding)
    check_inputs(model.inputs, training.components)
    inputs = tuple(i for i in model.inputs if i.component is not None)
    if not inputs:
        raise InputError("the step uses nothing of the dataset's elements: leave out data=")
    sources = training.sources(workers)
    for rank, source in enumerate(sources):
        if source.cardinality == 0:
            raise InputError(
                f"the dataset{f' of worker {rank}' if training.per_worker else ''} is empty: it has no element"
            )
    if workers > 1:
        _check_sharding(sources, inputs, kind)
    _check_static(sources, inputs, workers, kind)
    even = workers == 1 or not any(i.split for i in inputs) or _is_even(sources, inputs, workers, kind, model.dealing)
    templates = tuple(make_template(s, inputs, kind, model.dealing) for s in sources)
    return Pipeline(kind, sources, templates, inputs, even)


def _sharding(training: TrainingData, sharding: str | None) -> Sharding:
    if sharding is not None and sharding not in SHARDINGS:
        raise InputError(f"sharding must be 'slice' or 'batches', got {sharding!r}")
    if not training.per_worker:
        return Sharding(sharding or "slice")
    if sharding is not None:
        raise InputError(
            f"sharding={sharding!r} divides one dataset between the workers, but data= is a function that makes each "
            "worker's own, all of which it takes: leave out sharding=, or give the whole dataset as data="
        )
    return Sharding.OWN


def _check_sharding(sources: tuple[Source, ...], inputs: tuple[Input, ...], kind: Sharding) -> None:
    whole = next((i for i in inputs if not i.split), None)
    if kind is not Sharding.OWN and sources[0].differs is not None:
        raise UnsupportedError(
            f"the workers would not see the same batches: {sources[0].differs}. (Or give each worker a dataset of its "
            "own: data=function of (workers, rank))"
        )
    if whole is None:
        return
    if kind is not Sharding.SLICE:
        raise UnsupportedError(
            f"input {whole.name!r} is the same for every worker, but the workers take different elements of the "
            "dataset: use sharding='slice', or feed this input"
        )
    if sources[0].random is not None:
        raise UnsupportedError(
            f"input {whole.name!r} must be the same for every worker, but {sources[0].random}: give it a seed, "
            "and its map no num_parallel_calls"
        )


def _check_static(sources: tuple[Source, ...], inputs: tuple[Input, ...], workers: int, kind: Sharding) -> None:
    """Check that the dataset can give each worker the fixed number of examples that a step may be made for."""
    for source, item in product(sources, inputs):
        size = item.shape[0] if item.split and item.shape else None
        batch = _static_batch(source, item)
        if size is None or batch is None:
            continue
        expected = size * workers if kind is Sharding.SLICE else size
        if batch != expected:
            raise InputError(
                f"input {item.name!r} takes exactly {size} examples on each worker, so the batches of the dataset must "
                f"have {expected}, not {batch}. Build the program for batches of any size (batch without "
                "drop_remainder, or inputs of shape [None, ...])"
                + (", or use sharding='batches'" if kind is Sharding.SLICE and batch == size else "")
            )


def _static_batch(source: Source, item: Input) -> int | None:
    assert item.component is not None
    shape = source.components[item.component].shape
    return shape[0] if item.split and shape else None


def _is_even(
    sources: tuple[Source, ...], inputs: tuple[Input, ...], workers: int, kind: Sharding, dealing: Dealing
) -> bool:
    """Whether all workers have as many examples of every element."""
    sizes = {_static_batch(s, i) for s in sources for i in inputs if i.split}
    if len(sizes) != 1 or None in sizes:
        return False
    if kind is Sharding.SLICE:
        return all(size is not None and size // dealing.micro_batches % workers == 0 for size in sizes)
    return all(
        s.is_infinite or (kind is Sharding.BATCHES and s.cardinality > 0 and s.cardinality % workers == 0)
        for s in sources
    )
