"""The user's training data: one dataset for all workers, or a function that makes one for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import tensorflow as tf

from caramel.data.components import Component, components_of, is_dataset
from caramel.data.serialise import Serialised, serialise
from caramel.data.source import Source, make_source
from caramel.errors import CaptureError, CaramelError, InputError, in_one_line


@dataclass(frozen=True)
class TrainingData:
    """A dataset to train on, before the number of workers is known.

    Attributes:
        element_spec: structure of its elements, as `tf.data.Dataset.element_spec`.
        serialised: function from the number of workers to the dataset's graph for each, or to one graph for all.
        per_worker: whether each worker has a dataset of its own.
        anew: whether every pass makes the dataset anew.
    """

    element_spec: Any
    serialised: Callable[[int], list[Serialised]] = field(repr=False)
    per_worker: bool = False
    anew: bool = False

    @cached_property
    def components(self) -> tuple[Component, ...]:
        """The tensors of an element."""
        return components_of(self.element_spec)

    def sources(self, workers: int) -> tuple[Source, ...]:
        """The dataset of each worker, or one for all.

        Raises:
            UnsupportedError: the dataset cannot go to another process.
            CaptureError: the dataset cannot be written as a graph.
        """
        graphs = self.serialised(workers)
        shared = not self.per_worker and workers > 1
        return tuple(make_source(s, s.components or self.components, self.anew, shared) for s in graphs)


def training_data(data: Any) -> TrainingData:
    """The training data of ``data``: a tf.data.Dataset or a function (workers, rank) -> tf.data.Dataset.

    Raises:
        InputError: ``data`` is something else.
    """
    first = sample_dataset(data)
    if first is data:
        return TrainingData(first.element_spec, lambda workers: [serialise(first)])

    def serialised(workers: int) -> list[Serialised]:
        graphs = []
        for rank in range(workers):
            dataset = sample_dataset(data, workers, rank)
            _check_same(dataset.element_spec, first.element_spec, workers, rank)
            # Its batches may have another static size than those of a single worker.
            graphs.append(replace(serialise(dataset), components=components_of(dataset.element_spec)))
        return graphs

    return TrainingData(first.element_spec, serialised, per_worker=True)


def sample_dataset(data: Any, workers: int = 1, rank: int = 0) -> Any:
    """The dataset of one worker, by default of a single one: ``data`` itself, or the result of calling it.

    Raises:
        InputError: ``data`` is no tf.data.Dataset and no function that returns one.
        CaptureError: the function fails.
    """
    if is_dataset(data):
        return data
    if isinstance(data, tf.data.Iterator) or not callable(data):
        raise InputError(
            "data must be a tf.data.Dataset, or a function (workers, rank) -> tf.data.Dataset that makes each worker's "
            f"own, got {type(data).__name__}. (Arrays are fed in Session.run(batches) or Session.step(...))"
        )
    return _called(data, workers, rank)


def _called(function: Callable[[int, int], Any], workers: int, rank: int) -> Any:
    call = f"the function data({workers}, {rank})"
    try:
        with tf.init_scope():
            dataset = function(workers, rank)
    except CaramelError:
        raise
    except Exception as error:  # the user's code raises what it likes
        raise CaptureError(f"{call} raises {type(error).__name__}: {in_one_line(error)}") from error
    if not is_dataset(dataset):
        raise InputError(f"{call} must return the tf.data.Dataset of worker {rank}, got {type(dataset).__name__}")
    return dataset


def _check_same(spec: Any, first: Any, workers: int, rank: int) -> None:
    components, first_components = components_of(spec), components_of(first)
    if len(components) != len(first_components) or any(
        a.dtype != b.dtype or (a.shape or ())[1:] != (b.shape or ())[1:] for a, b in zip(components, first_components)
    ):
        raise InputError(
            f"the dataset of worker {rank} of {workers} has elements {spec}, that of a single worker has {first}: "
            "they must be alike"
        )


def why_not_on_workers(data: Any) -> str | None:
    """Why a dataset must be read in this process; None if the workers can run it."""
    try:
        training = training_data(data)
        (serialised,) = training.serialised(1)
        source = make_source(serialised, training.components, anew=False, shared=True)
    except CaptureError as error:
        return str(error)
    return source.differs
