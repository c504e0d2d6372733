"""From the user's global batch to what each worker is fed."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from caramel.errors import InputError
from caramel.signature import NONE, Feed, Signature

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Batch:
    """A step's feeds.

    Attributes:
        feeds: arrays by tensor name.
        shares: number of examples of each worker; all 0 where no input is split.
        reduction: reduction of the loss over the batch, ``"mean"`` or ``"sum"``.
    """

    feeds: Mapping[str, np.ndarray]
    shares: tuple[int, ...]
    reduction: str = "mean"

    def copied(self) -> Batch:
        """The batch with arrays of its own, which its maker does not write into any more."""
        return replace(self, feeds={name: np.array(array) for name, array in self.feeds.items()})

    @property
    def weights(self) -> tuple[float, ...]:
        """The weight of each worker's gradients and loss: N * b_r / B for means, 1 for sums.

        1 where no input is split; 0 for a worker without an example, which computes with one that is
        not its own.
        """
        return worker_weights(self.shares, self.reduction)


def worker_weights(shares: Sequence[int], reduction: str) -> tuple[float, ...]:
    """The weight of each worker's value: N * b_r / B in a mean, 1 in a sum; see `Batch.weights`."""
    examples = sum(shares)
    if examples == 0:
        return (1.0,) * len(shares)
    if reduction == "sum":
        return tuple(float(share > 0) for share in shares)
    return tuple(len(shares) * share / examples for share in shares)


def combined_value(values: Sequence[Any], shares: Sequence[int], reduction: str) -> Any:
    """The value for the whole batch.

    Args:
        values: number or array of each worker.
        shares: number of examples of each worker; all 0 where no input is split.
        reduction: ``"mean"`` or ``"sum"``, the reduction over the examples that makes the value.
    """
    counted = [weight * value for weight, value in zip(worker_weights(shares, reduction), values) if weight]
    return sum(counted) if reduction == "sum" else sum(counted) / len(values)


def step_feeds(signature: Signature, batch: Batch, is_packed: bool) -> dict[str, Any]:
    """What to feed to a step: no weights that follow from the workers' own elements.

    Args:
        signature: signature of the step.
        batch: its batch.
        is_packed: whether all that may be fed is, as it travels together.
    """
    feeds: dict[str, Any] = dict(batch.feeds)
    data = signature.data
    if is_packed or data is None or data.sharding != "slice" or signature.reduction == NONE:
        feeds.update((name, np.float64(weight)) for name, weight in zip(signature.weights, batch.weights))
    return feeds


def step_fetches(signature: Signature) -> list[str]:
    """What a step gives: the losses of the workers, and then each further result of theirs."""
    return [*signature.losses, *(tensor for _, tensors in signature.outputs for tensor in tensors)]


def bound_arrays(
    feeds: Sequence[Feed],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    unused: Collection[str] = (),
    order: Sequence[str] = (),
) -> dict[str, np.ndarray]:
    """Match the user's arguments with the inputs.

    Args:
        feeds: inputs of the step.
        args: arrays in the order of the inputs (nests are flattened), or one dict from names or
            placeholders to arrays.
        kwargs: arrays by name.
        unused: names that may be fed and are ignored, as a Session ignores what a fetch does not need.
        order: names of all inputs, unused ones included, in the user's order, which positions may refer to.

    Returns:
        An array of the right dtype for each input that is fed.

    Raises:
        InputError: an input is missing, unknown, fed twice, or does not fit in dtype or shape.
    """
    feed_by_name = {feed.name: feed for feed in feeds}
    arrays: dict[str, Any] = {}
    known = {*feed_by_name, *unused}
    if len(args) == 1 and isinstance(args[0], Mapping) and known & {_key(k, known) for k in args[0]}:
        arrays.update((_key(key, known), value) for key, value in args[0].items())
    elif args:
        flat = _flatten(args)
        positional = list(feeds)
        if len(flat) < sum(1 for f in feeds if not f.optional):
            positional = [f for f in feeds if f.name not in kwargs]
        required = [f for f in positional if not f.optional]
        if len(flat) not in (len(required), len(positional), len(order)):
            if len(flat) != 1:
                raise InputError(f"{len(flat)} arrays were given for the inputs {_list(positional)}")
            raise InputError(
                f"1 array was given for the inputs {_list(positional)}: a batch is a tuple of arrays, or a dict, and "
                "run takes a list of batches"
            )
        names = {
            len(order): order,
            len(required): [f.name for f in required],
            len(positional): [f.name for f in positional],
        }
        arrays.update(zip(names[len(flat)], flat))
    for name, value in kwargs.items():
        if name in arrays:
            raise InputError(f"input {name!r} was given twice")
        arrays[name] = value
    arrays = {name: value for name, value in arrays.items() if name in feed_by_name or name not in unused}
    unknown = [name for name in arrays if name not in feed_by_name]
    if unknown:
        raise InputError(f"there is no input {unknown[0]!r}; the inputs are {_list(feeds)}")
    missing = [f.name for f in feeds if f.name not in arrays and not f.optional]
    if missing:
        raise InputError(f"input {missing[0]!r} is missing; the inputs are {_list(feeds)}")
    return {name: _array(feed_by_name[name], value) for name, value in arrays.items()}


def split_batch(signature: Signature, arrays: Mapping[str, np.ndarray]) -> Batch:
    """Cut a global batch into one part for each worker.

    Parts differ by at most one example, or one of each micro-batch. A step whose inputs have a static batch needs
    exactly N times that many examples.

    Raises:
        InputError: the inputs disagree in their number of examples, there is none, or an uneven batch cannot be
            weighted.
    """
    workers = signature.workers
    feeds: dict[str, np.ndarray] = {}
    examples: int | None = None
    for feed in signature.feeds:
        if feed.name not in arrays:
            continue
        array = arrays[feed.name]
        if not feed.split:
            feeds.update((placeholder, array) for placeholder in feed.placeholders)
            continue
        if examples is None:
            examples = len(array)
        elif len(array) != examples and workers > 1:  # one worker alone takes what there is
            raise InputError(
                f"input {feed.name!r} has {len(array)} examples, another input has {examples}. An example has one row "
                "in each input: put several of one example side by side (shape [B, 2, ...]), or list an input that "
                "every worker gets whole in replicated="
            )
        # A worker without an example computes with those of others, and has the weight 0.
        for placeholder, slices in zip(feed.placeholders, signature.dealing.slices(len(array), workers)):
            own = [array[rows] for rows in slices]
            feeds[placeholder] = own[0] if len(own) == 1 else np.concatenate(own)
        _check_static(feed, len(array), workers)
    if examples is None:
        return Batch(feeds, (0,) * workers, signature.reduction)
    if examples == 0:
        raise InputError("a batch needs at least one example")
    if refusal := signature.dealing.refusal(examples):
        raise InputError(f"a batch has {examples} example{'s' * (examples != 1)}: {refusal}")
    shares = signature.dealing.shares(examples, workers)
    if signature.weights or signature.reduction == NONE:
        return Batch(feeds, shares, signature.reduction)
    if min(shares) == 0:
        raise InputError(
            f"a batch of {examples} examples cannot be split over {workers} workers: each needs at least one, or make "
            "the model with uneven_batches='weight'"
        )
    if signature.reduction == "mean" and len(set(shares)) > 1:
        raise InputError(
            f"a batch of {examples} examples does not divide evenly over {workers} workers. "
            f"Feed a multiple of {workers}, or make the model with uneven_batches='weight'"
        )
    return Batch(feeds, shares, signature.reduction)


def warn_of_idle_workers(batch: Batch) -> None:
    """Say where a batch has fewer examples than there are workers: some of them compute in vain.

    Args:
        batch: the first batch; a last one may have few.
    """
    examples, workers = sum(batch.shares), len(batch.shares)
    if examples and 0 in batch.shares:
        _logger.warning(
            "the first batch has %d example%s for %d workers: %d of them compute in vain in each such step",
            examples,
            "s" * (examples != 1),
            workers,
            batch.shares.count(0),
        )


def _check_static(feed: Feed, examples: int, workers: int) -> None:
    size = feed.shape[0] if feed.shape else None
    if size is not None and examples != size * workers:
        raise InputError(
            f"input {feed.name!r} takes {size} examples on each worker, so a step takes {size * workers}, "
            f"not {examples}. "
            "(If every worker should get the same array, list the input in replicated= of caramel.capture)"
        )


def _key(key: Any, known: Collection[str]) -> str:
    """Name of the input of a name or a tensor: of a placeholder its op, of an iterator's output the tensor."""
    name = str(key if isinstance(key, str) else getattr(key, "name", str(key)))
    return name if name in known else name.partition(":")[0]


def _flatten(values: Any) -> list[Any]:
    """Arrays of a nest; dicts in the order of their sorted keys, as TensorFlow flattens them."""
    if isinstance(values, Mapping):
        return [leaf for key in sorted(values) for leaf in _flatten(values[key])]
    if isinstance(values, tuple) or (isinstance(values, list) and any(hasattr(v, "shape") for v in values)):
        return [leaf for value in values for leaf in _flatten(value)]
    return [values]


def _list(feeds: Sequence[Feed]) -> str:
    return ", ".join(f"{f.name} ({f.dtype}{'' if f.shape is None else list(f.shape)})" for f in feeds) or "none"


def _array(feed: Feed, value: Any) -> np.ndarray:
    array = converted_array(value, feed.dtype, f"input {feed.name!r}")
    if feed.shape is not None:
        # A split input's leading dimension is one worker's; it is checked when the batch is split.
        static = (None, *feed.shape[1:]) if feed.split and feed.shape else feed.shape
        if len(static) != array.ndim or any(s not in (None, a) for s, a in zip(static, array.shape)):
            shown = [("batch" if n == 0 and feed.split else s) for n, s in enumerate(static)]
            raise InputError(f"input {feed.name!r} takes arrays of shape {shown}, got {list(array.shape)}")
    elif feed.split and array.ndim == 0:
        raise InputError(f"input {feed.name!r} is split over the workers, so it cannot be a scalar")
    return array


def converted_array(value: Any, dtype: str, noun: str) -> np.ndarray:
    """An array of the dtype with the same numbers, but for rounding.

    Args:
        value: array, or value from which numpy makes one.
        dtype: TensorFlow's name of the dtype.
        noun: noun for the input or variable in messages, such as ``"input 'x'"``.

    Raises:
        InputError: it is no array, of another kind, or has whole numbers that are too large.
    """
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InputError(f"{noun} is no array: {error}") from error
    if dtype == "string":
        return array.astype(object) if array.dtype.kind in "SU" else array
    numpy_dtype = _numpy_dtype(dtype)
    if array.dtype == numpy_dtype:
        return array
    if array.dtype == object or not np.can_cast(array.dtype, numpy_dtype, casting="same_kind"):
        raise InputError(f"{noun} takes {dtype}, got {array.dtype}")
    if numpy_dtype.kind in "iu" and not np.array_equal(array.astype(numpy_dtype), array):
        raise InputError(f"{noun} takes {dtype}, but some of the numbers are too large for it")
    return array.astype(numpy_dtype)


def _numpy_dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        import tensorflow as tf  # bfloat16 and its kin are TensorFlow's

        return np.dtype(tf.as_dtype(name).as_numpy_dtype)
