"""Batches that this process makes in Python, and feeds to the workers in parts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from caramel.data.components import is_dataset, is_tuple_of_parts
from caramel.errors import DataError, EndOfData, InputError, in_one_line
from caramel.keras.batch_layout import BatchLayout, template_of, without_none
from caramel.keras.data_passes import note_pass
from caramel.keras.sparse_tensors import dense_batch
from caramel.runtime.session import Session
from caramel.runtime.step_result import StepResult

_BATCHES_FOR_SPEC = 2
"""Number of batches that say what all are like, as in Keras: where they differ in a size, it varies."""

Batch = tuple[Any, ...]
"""``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)``, in structures of arrays."""


class Source(Protocol):
    """Something that makes batches in this process.

    Attributes:
        length: number of batches of a pass, if it is known.
        spec: structure of tf.TensorSpec of a batch; their first dimension, the examples, is open.
        layout: how a model's step takes a batch.
    """

    length: int | None
    layout: BatchLayout

    @property
    def spec(self) -> Batch:
        """See above."""

    def first(self) -> Batch | None:
        """A batch that is like the others; it stays the first of its pass. None where that would change an order."""

    def new_pass(self) -> Iterator[Batch]:
        """The batches of another pass."""

    def leave_one_out(self) -> None:
        """Begin a pass that is never read, as Keras does."""

    def epoch_begins(self) -> None:
        """Tell it that an epoch begins."""

    def epoch_ends(self) -> None:
        """Tell it that an epoch has ended."""


@dataclass
class FedBatches:
    """Passes of one training over batches that this process makes.

    Attributes:
        session: session whose workers train on them.
        source: what makes them.
        weighted: function that adds the weights of classes to a batch.
    """

    session: Session
    source: Source
    weighted: Callable[[Batch], Batch] = lambda batch: batch
    _batches: Iterator[Batch] = field(init=False, default=iter(()))

    def begin(self) -> None:
        """Let the next step take the first batch of a new pass."""
        self._batches = self.source.new_pass()

    def leave_one_out(self) -> None:
        """Begin a pass that is never read, as Keras does."""
        self.source.leave_one_out()

    def took(self, batches: int) -> None:
        """Note that batches were read; they are counted here anyway."""

    def steps_in_run(self, wanted: int) -> int:
        """See `Session.steps_in_run`."""
        return self.session.steps_in_run(wanted)

    def steps(self, most: int) -> list[StepResult]:
        """Train on the next batches: one or more, as many as are one run.

        Args:
            most: largest number of batches.

        Raises:
            EndOfData: the pass has no further batch.
            DataError: an op of TensorFlow fails that makes one; an error of the user's own code is raised as it is.
        """
        taken = [self._next()]
        while len(taken) < most:
            taken[-1] = tuple(np.array(each) for each in taken[-1])  # its maker may write the next one into it
            try:
                taken.append(self._next())
            except Exception as error:  # also of the user's code, which makes them
                self._batches = _raising(error)  # when those before it are done
                break
        if len(taken) == most:
            return self.session.steps_together(most, taken)
        return [self.session.step(*batch) for batch in taken]

    def _next(self) -> tuple[Any, ...]:
        """The arrays of the next batch."""
        try:
            with self.session.waiting_for_data():
                batch = next(self._batches, None)
        except tf.errors.OpError as error:
            hint = ""
            if "not initialized" in str(error):
                hint = ". A layer such as StringLookup has no vocabulary: call its adapt(data) first, or give it one"
            raise DataError(f"the next batch cannot be made: {in_one_line(error)}{hint}") from error
        if batch is None:
            raise EndOfData("the data has no further batch in this pass")
        return tuple(tf.nest.flatten(self.weighted(batch)))

    def epoch_begins(self) -> None:
        """Tell the data that an epoch begins."""
        self.source.epoch_begins()

    def epoch_ends(self) -> None:
        """Tell the data that an epoch has ended."""
        self.source.epoch_ends()


def source_of(x: Any, shuffle: Any) -> Source | None:
    """What makes batches in this process; None for other kinds of data.

    Args:
        x: data as the user gave it.
        shuffle: whether the batches of a PyDataset come in another order in each pass.

    Raises:
        InputError: there is no batch, or what is there is none.
    """
    if isinstance(x, keras.utils.PyDataset):
        return _PyDatasetBatches(x, shuffle)
    if isinstance(x, Generator) or (isinstance(x, Iterator) and not isinstance(x, tf.data.Iterator)):
        return _GeneratedBatches(x)
    return None


class _EpochsWithoutHooks:
    """For data that nobody tells of epochs."""

    def leave_one_out(self) -> None:
        """Nothing notices."""

    def epoch_begins(self) -> None:
        """Nothing notices."""

    def epoch_ends(self) -> None:
        """Nothing notices."""


class DatasetBatches(_EpochsWithoutHooks):
    """Batches of a tf.data.Dataset that only runs in this process."""

    def __init__(self, dataset: Any) -> None:
        assert is_dataset(dataset)
        self._dataset = dataset
        cardinality = int(dataset.cardinality())
        self.length = cardinality if cardinality >= 0 else None
        self.layout = BatchLayout(is_alone=not is_tuple_of_parts(dataset.element_spec))

    @property
    def spec(self) -> Batch:
        """The dataset's own."""
        return _as_batch(self._dataset.element_spec)

    def first(self) -> Batch | None:
        """None: an iterator would draw an order."""
        return None

    def new_pass(self) -> Iterator[Batch]:
        """An iterator of the dataset, whose shuffles draw their order for it."""
        note_pass(self._dataset)
        return (_as_batch(batch) for batch in iter(self._dataset))

    def leave_one_out(self) -> None:
        """Make an iterator."""
        note_pass(self._dataset)
        iter(self._dataset)


class _PyDatasetBatches:
    """Batches of a keras.utils.PyDataset, one after the other, through its public methods."""

    def __init__(self, dataset: Any, shuffle: Any) -> None:
        self._dataset = dataset
        self._shuffle = bool(shuffle)
        self.length = _number_of_batches(dataset)
        if self.length == 0:
            raise InputError(f"the {type(dataset).__name__} is empty: it has no batch to train on")
        count = _BATCHES_FOR_SPEC if self.length is None else min(self.length, _BATCHES_FOR_SPEC)
        first = [dataset[number] for number in range(count)]
        self._spec = _spec_of([_checked(batch, dataset) for batch in first])
        self.layout = BatchLayout(isinstance(first[0], Mapping), template_of(_parts(first[0], dataset)))

    @property
    def spec(self) -> Batch:
        """That of the first batches."""
        return self._spec

    def first(self) -> Batch | None:
        """That of number 0."""
        return _checked(self._dataset[0], self._dataset)

    def new_pass(self) -> Iterator[Batch]:
        """All batches, in another order if they are shuffled; without end if their number is not known."""
        if self.length is None:
            numbers: Iterable[int] = itertools.count()
        else:
            numbers = list(range(self.length))
            if self._shuffle:
                random.shuffle(numbers)  # as Keras does: Python's state follows from keras.utils.set_random_seed
        return (_checked(self._dataset[number], self._dataset) for number in numbers)

    def leave_one_out(self) -> None:
        """Nothing notices."""

    def epoch_begins(self) -> None:
        """Call the dataset's hook."""
        self._dataset.on_epoch_begin()

    def epoch_ends(self) -> None:
        """Call the dataset's hook."""
        self._dataset.on_epoch_end()


def _number_of_batches(dataset: Any) -> int | None:
    """The number of batches of a PyDataset; None for one without end.

    Raises:
        InputError: it does not say.
    """
    try:
        number: int | None = dataset.num_batches
    except (NotImplementedError, TypeError, ValueError) as error:
        raise InputError(
            f"the {type(dataset).__name__} does not say how many batches it has ({in_one_line(error)}): let __len__ "
            "return their number, or let the property num_batches be None where they have no end"
        ) from error
    return number


class _GeneratedBatches(_EpochsWithoutHooks):
    """Batches of an iterator, which has one pass; epochs go on in it."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self.length: int | None = None
        self._iterator = iterator
        first = list(itertools.islice(iterator, _BATCHES_FOR_SPEC))
        if not first:
            raise InputError("the generator is empty: it has no batch to train on")
        self._first = [_checked(batch, iterator) for batch in first]
        is_alone = not isinstance(first[0], (list, tuple))
        self.layout = BatchLayout(is_alone, template_of(_parts(first[0], iterator)))

    @property
    def spec(self) -> Batch:
        """That of the first batches."""
        return _spec_of(self._first)

    def first(self) -> Batch | None:
        """The first of those that were looked at already."""
        return self._first[0] if self._first else None

    def new_pass(self) -> Iterator[Batch]:
        """What is left."""
        first, self._first = self._first, []
        return itertools.chain(first, (_checked(batch, self._iterator) for batch in self._iterator))


def tee_of_first(iterator: Iterator[Any]) -> tuple[Iterator[Any], Iterator[Any]]:
    """Two generators of an iterator's elements: one to look at the first of them, and one for all if nothing else is.

    Args:
        iterator: batches; no more than those that say what all are like are kept for the second generator.
    """
    kept: list[Any] = []

    def first() -> Iterator[Any]:
        for element in iterator:
            if len(kept) < _BATCHES_FOR_SPEC:
                kept.append(element)
            yield element

    def second() -> Iterator[Any]:
        yield from kept
        yield from iterator

    return first(), second()


def _raising(error: Exception) -> Iterator[Batch]:
    """An iterator that fails, and has nothing more then."""
    raise error
    yield


def _as_batch(element: Any) -> Batch:
    return element if is_tuple_of_parts(element) else (element,)


def _checked(batch: Any, source: Any) -> Batch:
    """A batch that Python code has made, without None; see `_parts`."""
    return tuple(without_none(_parts(batch, source)))


def _parts(batch: Any, source: Any) -> Batch:
    """The parts of a batch that Python code has made, with tuples for lists.

    Raises:
        InputError: it is none.
    """
    batch = tuple(batch) if isinstance(batch, (list, tuple)) else (batch,)
    while batch and batch[-1] is None:
        batch = batch[:-1]
    if not 1 <= len(batch) <= 3:
        raise InputError(
            f"the {type(source).__name__} gives batches of {len(batch)} parts: give (x, y) or (x, y, sample_weight)"
        )
    return tuple(_with_tuples(part) for part in batch)


def _with_tuples(part: Any) -> Any:
    if part is None:
        return None
    part = dense_batch(part)
    if isinstance(part, (list, tuple)):
        return tuple(_with_tuples(inner) for inner in part)
    if isinstance(part, dict):
        return {key: _with_tuples(inner) for key, inner in part.items()}
    return part if tf.is_tensor(part) else np.asarray(part)


def _spec_of(batches: list[Batch]) -> Batch:
    """What batches are like; the number of examples is open, and so are sizes in which they differ."""

    def spec(*arrays: Any) -> tf.TensorSpec:
        shapes = {tuple(array.shape) for array in arrays}
        if len({len(shape) for shape in shapes}) > 1:
            raise InputError(f"batches differ in their number of dimensions: {' and '.join(map(str, shapes))}")
        sizes = [sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes)]
        return tf.TensorSpec([None, *sizes[1:]] if sizes else [], tf.as_dtype(arrays[0].dtype))

    try:
        return tf.nest.map_structure(spec, *batches)  # type: ignore[no-any-return]
    except (ValueError, TypeError) as error:
        raise InputError(f"batches differ in their structure: {in_one_line(error)}") from error
