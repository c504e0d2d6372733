"""Keras callbacks in a training on workers: which of them look at values, and what they wait for."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import keras

from caramel.errors import InputError, listed

_ONLY_LOGS = (
    keras.callbacks.ProgbarLogger,
    keras.callbacks.TerminateOnNaN,
    keras.callbacks.History,
    keras.callbacks.CSVLogger,
    keras.callbacks.RemoteMonitor,
)
"""Callbacks that look at nothing but logs around a batch."""

_SAVING = (keras.callbacks.ModelCheckpoint, keras.callbacks.BackupAndRestore)
"""Callbacks that look at values around a batch only if they are to save them there."""

_BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")


def may_look_at_values(callback: Any) -> bool:
    """Whether a callback is called around batches and may want the model's values there, or change them."""
    harmless = [keras.callbacks.Callback, *_ONLY_LOGS]
    if getattr(callback, "save_freq", "epoch") == "epoch":
        harmless += _SAVING
    for hook in _BATCH_HOOKS:
        given = getattr(callback, hook)
        function = getattr(given, "__func__", given)  # not bound to the callback
        if not any(function is getattr(kind, hook) for kind in harmless):
            return True
    return False


def check_monitors(names: Collection[str], callbacks: Iterable[Any], is_validated: bool) -> None:
    """Refuse callbacks that would wait for a value that never comes; Keras warns and goes on without them.

    Args:
        names: of the logs of an epoch, without those of the validation.
        callbacks: Keras callbacks.
        is_validated: whether there is a validation.

    Raises:
        InputError: naming such a callback.
    """
    there = [*names, "learning_rate"]
    if is_validated:
        there += [f"val_{name}" for name in names]
    for callback in callbacks:
        wanted = getattr(callback, "monitor", None)
        if isinstance(callback, keras.callbacks.ModelCheckpoint) and not callback.save_best_only:
            continue  # saves whatever the value is
        if isinstance(wanted, str) and wanted not in there:
            advice = "pass validation_data=" if wanted.startswith("val_") and not is_validated else "name one of these"
            raise InputError(
                f"callback {type(callback).__name__} monitors {wanted!r}, which is not there "
                f"({listed(there, 8)}): {advice}"
            )
