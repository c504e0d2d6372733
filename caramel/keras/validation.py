"""The validation of a model between epochs, by its own ``evaluate``."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import keras
import tensorflow as tf

from caramel.data.components import arguments_of, is_dataset, is_tuple_of_parts
from caramel.errors import InputError
from caramel.keras.arrays import are_arrays
from caramel.keras.batch_layout import BatchLayout
from caramel.keras.data_passes import note_evaluation
from caramel.keras.metrics import names_of_logs

_AGAIN = 2
"""Number of batches of a generator that Keras looks at before it begins, and has in each pass again."""


@dataclass(frozen=True)
class Validation:
    """The data on which a model is validated, and the epochs after which it is.

    Attributes:
        data: ``validation_data`` as for the model's own ``fit``; None for no validation.
        batch_size: number of examples in a step, for arrays.
        steps: number of steps.
        frequency: number of epochs from one validation to the next, or numbers (from 1) of epochs with one.
    """

    data: Any
    batch_size: int | None
    steps: int | None
    frequency: int | Collection[int]
    _first: list[Any] = field(default_factory=list, init=False)
    """The first batches of a generator, with which Keras begins each validation."""

    def __post_init__(self) -> None:
        if isinstance(self.data, Generator):
            self._first.extend(islice(self.data, _AGAIN))

    def is_due(self, epoch: int) -> bool:
        """Whether there is one after the epoch of this number (from 0)."""
        if self.data is None:
            return False
        if isinstance(self.frequency, Collection):
            return epoch + 1 in self.frequency
        return (epoch + 1) % self.frequency == 0

    def logs(self, model: Any, hooks: Any) -> dict[str, Any]:
        """Validate the model as it is now; the logs to add to those of the epoch."""
        data = self.data
        if isinstance(data, Generator):  # no more than is used, as what Keras reads ahead would be lost
            data = (batch for batch in islice(chain(self._first, self.data), self.steps))
        note_evaluation(data, self.steps, model.steps_per_execution)
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        values = model.evaluate(
            x, y, self.batch_size, "auto", weights, steps=self.steps, callbacks=hooks, return_dict=True
        )
        return {f"val_{name}": value for name, value in values.items()}


def check_validation(data: Any, steps: int | None, element_spec: Any) -> None:
    """Refuse, before a training, a dataset on which it could not be validated.

    Args:
        data: ``validation_data`` as for the model's own ``fit``.
        steps: number of steps of a validation.
        element_spec: structure of tf.TensorSpec of a batch of the training.

    Raises:
        InputError: the dataset has no end, and nobody says how long a validation is; or it is not in batches.
    """
    if not is_dataset(data):
        return
    if steps is None and int(data.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise InputError("the dataset of validation_data has no end: say how long a validation is, validation_steps=")
    own, trained = (tf.nest.flatten(spec)[0] for spec in (data.element_spec, element_spec))
    own_rank, rank = (getattr(getattr(spec, "shape", None), "rank", None) for spec in (own, trained))
    if own_rank is not None and rank is not None and own_rank == rank - 1:
        raise InputError(
            f"elements of validation_data are {own}, and batches of the training {trained}: elements are batches. Is "
            "dataset.batch(size) missing?"
        )


def validation_names(model: Any, data: Any, names: Sequence[str], callbacks: Sequence[Any]) -> list[str] | None:
    """Names of the logs of a validation, without ``val_``; None without one.

    Args:
        model: compiled model whose variables exist.
        data: ``validation_data`` as for the model's own ``fit``.
        names: names of the logs of a training.
        callbacks: Keras callbacks; the model's own ``test_step`` is only looked at where one monitors another name.
    """
    if data is None:
        return None
    known = {f"val_{name}" for name in names}
    monitors = [str(getattr(callback, "monitor", "")) for callback in callbacks]
    if all(monitor in known for monitor in monitors if monitor.startswith("val_")):
        return list(names)
    spec = _spec(data)
    return list(names) if spec is None else [*names, *_names_of_test_step(model, spec)]


def _names_of_test_step(model: Any, spec: Any) -> list[str]:
    """What a ``test_step`` returns; nothing of it runs."""
    layout = BatchLayout(is_alone=not is_tuple_of_parts(spec))

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def step(*parts: Any) -> Any:
        return model.test_step(layout.given(parts))

    try:
        logs = step.get_concrete_function(*arguments_of(spec)).structured_outputs
    except Exception:  # the validation will say what is wrong with it
        return []
    return names_of_logs(logs) if isinstance(logs, Mapping) else []


def _spec(data: Any) -> Any:
    """What a batch of validation data is like; None where that cannot be told without reading it."""
    if is_dataset(data):
        return data.element_spec
    if isinstance(data, keras.utils.PyDataset):
        data = data[0]
    elif not are_arrays(data):
        return None
    parts = [part for part in (data if isinstance(data, (list, tuple)) else (data,)) if part is not None]
    return tuple(tf.nest.map_structure(_of_array, part) for part in parts)


def _of_array(array: Any) -> Any:
    dtype = tf.as_dtype(array.dtype)
    return tf.TensorSpec([None, *array.shape[1:]], keras.config.floatx() if dtype.is_floating else dtype)
