"""What `fit` is given to train on: arrays, datasets, or batches made in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from caramel.data.components import (
    EXAMPLES_ATTRIBUTE,
    arguments_of,
    arguments_of_rows,
    examples_in_batches,
    is_dataset,
    is_tuple_of_parts,
)
from caramel.data.dataset import sample_dataset, why_not_on_workers
from caramel.data.serialise import SEED_ATTRIBUTE, VALUES_ATTRIBUTE
from caramel.errors import InputError
from caramel.keras.arrays import Arrays, are_arrays, batch_size_of
from caramel.keras.batch_layout import BatchLayout
from caramel.keras.class_weights import class_weighting, with_class_weights
from caramel.keras.data_passes import DataPasses
from caramel.keras.fed_batches import Batch, DatasetBatches, FedBatches, Source, source_of
from caramel.keras.sparse_tensors import with_dense_batches
from caramel.runtime.session import Session
from caramel.util.user_warnings import warn_user


@dataclass(frozen=True)
class GivenData:
    """Data to train on.

    Attributes:
        element_spec: structure of tf.TensorSpec of a batch.
        layout: how a model's step takes it.
        length: number of batches of a pass, if it is known.
        dataset: what the workers read: a tf.data.Dataset, or a function that makes each worker's own; None where this
            process makes the batches.
        given_dataset: the same as the user gave it, without weights of classes.
        source: what makes batches in this process.
        weighted: function that adds weights of classes to a batch that this process has made.
        validation: validation data, where a part of the arrays is.
    """

    element_spec: Any
    layout: BatchLayout
    length: int | None
    dataset: Any = None
    given_dataset: Any = None
    source: Source | None = None
    weighted: Callable[[Batch], Batch] = lambda batch: batch
    validation: Any = None

    @property
    def examples_in_batches(self) -> int | None:
        """The number of examples of every batch; None if it varies, or nothing says so."""
        return examples_in_batches(self.element_spec) or getattr(self.dataset, EXAMPLES_ATTRIBUTE, None)

    def capture_arguments(self, workers: int, sharding: str | None = None) -> list[dict[str, Any]]:
        """The arguments of `caramel.capture` that say where batches come from; with others for steps that need to
        know the number of a worker's examples, where all batches have the same. ``rows`` are that of a batch, which
        a step may have in it as a number, and that of a part; see `caramel.frontend.recording.recorder.Recorder`.

        Args:
            workers: number of workers.
            sharding: see `caramel.ARModel`.
        """
        examples, parts = self.examples_in_batches, 1 if sharding == "batches" else workers
        first: dict[str, Any] = {"data": self.dataset}
        if self.source is not None:
            spec = self.element_spec
            first = {"inputs": arguments_of(spec) if examples is None else arguments_of_rows(spec, examples)}
        ways = [first]
        if (self.source is not None or is_dataset(self.dataset)) and examples is not None and examples % parts == 0:
            own = examples // parts
            ways += [{**first, "rows": (number, own)} for number in (None, examples)]
        return ways

    def a_batch(self) -> list[Any] | None:
        """The arrays of a step to trace: none where the workers read the data, None where there are none to be had."""
        if self.source is None:
            return []
        batch = self.source.first()
        return None if batch is None else tf.nest.flatten(self.weighted(batch))

    def passes(self, session: Session) -> DataPasses | FedBatches:
        """The passes over the data of a training."""
        if self.source is None:
            return DataPasses(session, self.given_dataset)
        return FedBatches(session, self.source, self.weighted)


def data_of_fit(
    *,
    x: Any,
    y: Any,
    sample_weight: Any,
    batch_size: int | None,
    shuffle: Any,
    validation_split: float,
    validation_data: Any,
    class_weight: Mapping[int, float] | None,
    steps_per_epoch: int | None,
) -> GivenData:
    """What the arguments of a ``fit`` say about its data; see `caramel.fit` for each of them.

    Raises:
        InputError: they do not fit each other, or there is no data.
    """
    return given_data(
        x,
        y,
        sample_weight,
        batch_size=batch_size,
        shuffle=shuffle,
        validation_split=0.0 if validation_data is not None else validation_split,
        class_weight=class_weight,
        steps=steps_per_epoch,
    )


def given_data(
    x: Any,
    y: Any,
    sample_weight: Any,
    *,
    batch_size: int | None,
    shuffle: Any,
    validation_split: float,
    class_weight: Mapping[int, float] | None,
    steps: int | None,
    who: str = "fit",
) -> GivenData:
    """What the arguments of Keras' ``fit`` say about the data.

    Args:
        x: see `caramel.fit`, and likewise the others.
        steps: number of steps of an epoch; None for a pass.
        who: the function that has these arguments, for messages.

    Raises:
        InputError: they do not fit each other, or there is no data.
    """
    if are_arrays(x):
        return _of_arrays(x, y, sample_weight, batch_size, shuffle, validation_split, class_weight, steps)
    if isinstance(x, (list, tuple)):
        kind = type(x).__name__
        raise InputError(f"x is a {kind} of what is no array: give arrays; of numbers np.asarray(x) makes one")
    _refuse_for_batches(y=y, batch_size=batch_size, sample_weight=sample_weight, validation_split=validation_split)
    source = source_of(x, shuffle)
    if source is not None:
        _check_length(source.length, steps, type(x).__name__, isinstance(x, keras.utils.PyDataset), who)
        ends = ", and an epoch ends where it does" if source.length is None and steps is None and who == "fit" else ""
        return _fed(source, class_weight, f"{_kind(x)} is Python code{ends}")
    if not is_dataset(x) and not callable(x):
        raise InputError(
            f"{who} takes arrays, a tf.data.Dataset of batches, a PyDataset, a generator, or a function that makes "
            f"each worker's own dataset, got {type(x).__name__}"
        )
    if is_dataset(x):
        cardinality = int(x.cardinality())
        is_endless = cardinality == tf.data.INFINITE_CARDINALITY
        _check_length(None if is_endless else cardinality, steps, "dataset", is_endless, who)
        dense = with_dense_batches(x)
        reason = why_not_on_workers(dense)
        if reason is not None:
            return _fed(DatasetBatches(dense), class_weight, reason)
        return _on_workers(x, dense, class_weight)
    return _on_workers(x, with_dense_batches(x), class_weight)


def _on_workers(
    dataset: Any,
    dense: Any,
    class_weight: Mapping[int, float] | None,
    layout: BatchLayout | None = None,
    **more: Any,
) -> GivenData:
    """What workers read: a dataset as it was given, whose batches are made dense, with weights of classes."""
    weighted = dense if class_weight is None else with_class_weights(dense, class_weight)
    for name in (SEED_ATTRIBUTE, VALUES_ATTRIBUTE, EXAMPLES_ATTRIBUTE):
        if hasattr(dataset, name):
            setattr(weighted, name, getattr(dataset, name))
    cardinality = int(dataset.cardinality()) if is_dataset(dataset) else -1
    spec = sample_dataset(weighted).element_spec
    return GivenData(
        spec,
        BatchLayout(is_alone=not is_tuple_of_parts(spec)) if layout is None else layout,
        cardinality if cardinality >= 0 else None,
        weighted,
        dataset,
        **more,
    )


def _of_arrays(
    x: Any,
    y: Any,
    sample_weight: Any,
    batch_size: int | None,
    shuffle: Any,
    validation_split: float,
    class_weight: Mapping[int, float] | None,
    steps: int | None,
) -> GivenData:
    if class_weight is not None and sample_weight is not None:
        raise InputError("class_weight and sample_weight both weight examples: give one of them")
    arrays, validation = Arrays.of(x, y, sample_weight), None
    if validation_split:
        arrays, held_out = arrays.split(validation_split)
        validation = held_out.parts
    size = batch_size_of(batch_size, arrays.examples, steps)
    dataset = arrays.dataset(size, shuffle)
    return _on_workers(dataset, dataset, class_weight, arrays.layout, validation=validation)


def _fed(source: Source, class_weight: Mapping[int, float] | None, reason: str) -> GivenData:
    warn_user(f"the batches are made in this process and sent to the workers: {reason}")
    weighting = None if class_weight is None else class_weighting(class_weight)
    spec, layout = source.spec, source.layout
    if weighting is None:
        return GivenData(spec, layout, source.length, source=source)
    weighted_spec = (*spec, tf.TensorSpec([None]))
    return GivenData(weighted_spec, layout, source.length, source=source, weighted=weighting)


def _check_length(length: int | None, steps: int | None, what: str, is_endless: bool, who: str) -> None:
    """Refuse data without a batch, and data without an end where nobody says how long an epoch is."""
    if length == 0:
        raise InputError(f"the {what} is empty: it has no batch")
    if length is None and steps is None and is_endless:
        how_long = (
            "say how long an epoch is, steps_per_epoch=" if who == "fit" else "say how many steps to take, steps="
        )
        raise InputError(f"the {what} has no end: {how_long}")


def _kind(data: Any) -> str:
    """What data is, for people."""
    name = type(data).__name__
    return f"a {name}" if name in ("generator", "PyDataset") else f"the class {name}"


def _refuse_for_batches(**given: Any) -> None:
    """Refuse what goes with arrays beside data that is batched, as Keras does."""
    instead = {
        "y": "a dataset has batches (x, y)",
        "sample_weight": "a dataset has batches (x, y, sample_weight)",
        "validation_split": "give validation_data=",
    }
    if given.pop("batch_size", None) is not None:
        warn_user("batch_size has no effect, as in Keras: the data is in batches already")
    for name, value in given.items():
        if value is not None and not (name == "validation_split" and value == 0):
            raise InputError(f"{name} goes with arrays, and x is no array: {instead[name]}")
