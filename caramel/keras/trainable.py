"""What of a model is trainable: Keras looks at it once, at the first training after ``compile``."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import keras

from caramel.errors import InputError, listed

_trained: WeakKeyDictionary[Any, tuple[tuple[Any, ...], dict[int, str]]] = WeakKeyDictionary()
"""For each model that was trained here: what its last ``compile`` made, and its trainable variables, paths by id."""


def check_trainable(model: Any) -> None:
    """Check that a model trains the same variables as before, unless it was compiled meanwhile.

    Keras itself goes on with the variables of the first training; ``compile`` makes it look again.

    Args:
        model: a compiled model.

    Raises:
        InputError: ``trainable`` of a layer was changed since.
    """
    compiled, now = _present(model)
    last_compiled, before = _trained.get(model, (None, now))
    if last_compiled is None or any(a is not b for a, b in zip(last_compiled, compiled)):
        has_trained = getattr(model, "train_function", None) is not None
        before = _of_optimizer(model) if has_trained and type(model).train_step is keras.Model.train_step else now
    for first, second, change in ((before, now, "frozen"), (now, before, "made trainable")):
        names = [path for number, path in first.items() if number not in second]
        if names:
            raise InputError(
                f"{listed(names, 3)} was {change} after the model {model.name!r} had trained, which Keras only heeds "
                "after compile: call model.compile(...) again, or set trainable back"
            )


def remember_trainable(model: Any) -> None:
    """Note which variables a model trains, for `check_trainable`.

    Args:
        model: a compiled model whose variables exist.
    """
    _trained[model] = _present(model)


def check_still_trainable(model: Any) -> None:
    """Check before the first step that callbacks have left alone what the captured step trains, and how.

    Keras traces its step only then, so there it would heed what they have changed.

    Args:
        model: a compiled model, after `remember_trainable`.

    Raises:
        InputError: ``trainable`` of a layer, or the optimizer, was changed since.
    """
    (compiled, before), (now_compiled, now) = _trained[model], _present(model)
    changed = [path for number, path in {**before, **now}.items() if not (number in before and number in now)]
    if changed or any(a is not b for a, b in zip(compiled, now_compiled)):
        what = f"whether {listed(changed, 3)} is trained" if changed else "how the model is compiled"
        raise InputError(
            f"a callback of the training has changed {what}, after the step was captured for the workers: do that "
            "before fit"
        )


def _present(model: Any) -> tuple[tuple[Any, ...], dict[int, str]]:
    compiled = (model.optimizer, model._compile_loss, model._compile_metrics)
    return compiled, {id(v): v.path for v in model.trainable_variables}


def _of_optimizer(model: Any) -> dict[int, str]:
    """The variables with which Keras' own fit has trained since the last ``compile``."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    return {id(v): v.path for v in getattr(optimizer, "_trainable_variables", model.trainable_variables)}
