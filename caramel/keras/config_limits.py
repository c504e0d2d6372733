"""Limits of Keras' configuration for short trials.

`keras.config.set_max_epochs` and `keras.config.set_max_steps_per_epoch` set them, and so do the environment variables
KERAS_MAX_EPOCHS and KERAS_MAX_STEPS_PER_EPOCH.
"""

from __future__ import annotations

import keras

from caramel.util.user_warnings import warn_user


def limited_epochs(epochs: int) -> int:
    """The number of epochs, or that of Keras' configuration if it is less.

    Args:
        epochs: as the caller says.
    """
    most = _limit("max_epochs")
    if most is None or most >= epochs:
        return epochs
    warn_user(f"Keras' configuration limits the training to {most} of {epochs} epochs")
    return most


def limited_steps(steps: int | None) -> int | None:
    """The number of steps of an epoch or an evaluation, or that of Keras' configuration if it is less.

    Args:
        steps: as the caller says; None for a pass over the data.
    """
    most = _limit("max_steps_per_epoch")
    if most is None or (steps is not None and most >= steps):
        return steps
    warn_user(f"Keras' configuration limits the number of steps to {most}")
    return most


def _limit(name: str) -> int | None:
    """A limit; None without one, as in older versions of Keras, which have none."""
    found: int | None = getattr(keras.config, name, lambda: None)()
    return found or None
