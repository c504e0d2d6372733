"""Keras callbacks in a training on workers: which of them may look at values, and which logs they monitor."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from typing import Any

import keras

from caramel.errors import InputError, listed
from caramel.util.user_warnings import warn_user

_LOG_CALLBACKS = (
    keras.callbacks.ProgbarLogger,
    keras.callbacks.TerminateOnNaN,
    keras.callbacks.History,
    keras.callbacks.CSVLogger,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)
"""Callbacks that look at nothing but logs around a batch."""

_SAVING_CALLBACKS = (keras.callbacks.ModelCheckpoint, keras.callbacks.BackupAndRestore)
"""Callbacks that look at values around a batch only if they save there."""

_BATCH_HOOKS = {
    "train": ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end"),
    "test": ("on_test_batch_begin", "on_test_batch_end"),
    "predict": ("on_predict_batch_begin", "on_predict_batch_end"),
}
"""Methods of a callback that are called around batches, by what is done with them."""


def callback_list(callbacks: Any, model: Any, verbose: int | str, epochs: int, steps: int | None, **more: Any) -> Any:
    """The keras.callbacks.CallbackList of a call; one that is given is used as it is, as Keras does.

    Args:
        callbacks: what Keras takes as ``callbacks``.
        model: the Keras model.
        verbose: verbosity as in Keras.
        epochs: number of epochs.
        steps: number of steps in an epoch, if it is known.
        more: further arguments of keras.callbacks.CallbackList.
    """
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    return keras.callbacks.CallbackList(
        listed_callbacks(callbacks),
        add_progbar=verbose != 0,
        model=model,
        epochs=epochs,
        steps=steps,
        verbose=verbose,
        **more,
    )


def listed_callbacks(callbacks: Any) -> list[Any]:
    """The callbacks in what Keras takes as ``callbacks``: one, several in lists, a CallbackList, or None."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    return keras.tree.flatten(callbacks) if callbacks else []


def may_look_at_values(callback: Any, what: str = "train") -> bool:
    """Whether a callback is called around batches and may want the model's values there, or change them.

    Args:
        callback: the callback.
        what: what is done with the batches: ``"train"``, ``"test"`` or ``"predict"``.
    """
    return _has_hooks_beyond(callback, _LOG_CALLBACKS, what)


def _has_hooks_beyond(callback: Any, kinds: Iterable[Any], what: str = "train") -> bool:
    """Whether a callback has hooks around batches besides those of Keras' own that do nothing, and of some kinds."""
    harmless = [keras.callbacks.Callback, *kinds]
    if getattr(callback, "save_freq", "epoch") == "epoch":
        harmless += _SAVING_CALLBACKS
    for hook in _BATCH_HOOKS[what]:
        method = getattr(callback, hook)
        function = getattr(method, "__func__", method)  # not bound to the callback
        if not any(function is getattr(kind, hook) for kind in harmless):
            return True
    return False


def has_batch_hooks(callback: Any) -> bool:
    """Whether a callback is called around batches, and does more there than to show progress."""
    return _has_hooks_beyond(callback, [keras.callbacks.ProgbarLogger, keras.callbacks.History])


def check_monitors(names: Collection[str], callbacks: Iterable[Any], validation_names: Collection[str] | None) -> None:
    """Refuse callbacks that would wait for a value that never comes; warn where it may come, or where Keras goes on.

    A callback of the user's own may add it to the logs. Keras goes on without a validation, and warns after each epoch.

    Args:
        names: names of the logs of an epoch, without those of the validation.
        callbacks: Keras callbacks.
        validation_names: names of the logs of a validation, without ``val_``; None without one.

    Raises:
        InputError: there is such a callback; the text names it.
    """
    callbacks = list(callbacks)
    log_names = [*names, "learning_rate", *(f"val_{name}" for name in validation_names or ())]
    possible = log_names if validation_names is not None else [*log_names, *(f"val_{name}" for name in names)]
    for callback in callbacks:
        monitor = getattr(callback, "monitor", None)
        if isinstance(callback, keras.callbacks.ModelCheckpoint) and not callback.save_best_only:
            continue  # saves whatever the value is
        if not isinstance(monitor, str) or monitor in log_names:
            continue
        near = difflib.get_close_matches(monitor, possible, 1)
        advice = f"did you mean {near[0]!r}?" if near else f"there are {listed(log_names, 8)}"
        if near and near[0] not in log_names:
            advice = "pass validation_data=" + ("" if near[0] == monitor else f"; {advice}")
        what = f"callback {type(callback).__name__} monitors {monitor!r}, which is no log of an epoch"
        if monitor not in possible and not any(_may_add_logs(other) for other in callbacks):
            raise InputError(f"{what}: {advice}")
        warn_user(f"{what}, and does nothing unless another callback adds it: {advice}")


def _may_add_logs(callback: Any) -> bool:
    """Whether a callback has code of the user's, which may add to the logs of an epoch."""
    is_own = not type(callback).__module__.startswith("keras.")
    return is_own or type(callback) is keras.callbacks.LambdaCallback
