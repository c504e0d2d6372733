"""Any training step, against one device with the whole batch.

A program is made twice by the same function. One is run as it is, with the whole batch; the other by Caramel on N
workers. In exact arithmetic both train alike, where a step's loss treats every example by itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from exact_common import SERIAL, in_process

import caramel
from caramel.runtime.host.run_options import RunOptions


@dataclass(frozen=True)
class Program:
    """A training step.

    Attributes:
        step: a Python function or tf.function; gives the loss.
        specs: of its arguments.
        variables: what is compared, by name.
        options: of `caramel.capture`.
    """

    step: Callable[..., Any]
    specs: Sequence[tf.TensorSpec]
    variables: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)


def fresh(make: Callable[[], Program]) -> Program:
    """A program that starts from the same values every time."""
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(7)
    return make()


def captured(make: Callable[[], Program]) -> tuple[Program, caramel.Context]:
    """A fresh program, and what is captured of it."""
    program = fresh(make)
    return program, caramel.capture(program.step, program.specs, **program.options)


def captured_once(make: Callable[[], Program]) -> tuple[Program, caramel.Context]:
    """The same; where the last call had this function, too, what that gave, with its first values.

    Half of what a test takes is to capture. All sessions of a context begin with the values of then.
    """
    if not _last or _last[0] is not make:
        program, context = captured(make)
        assert context.model.digest  # captured before anything changes
        _last[:] = [make, program, context, values_of(program)]
    _, program, context, values = _last
    for name, value in values.items():
        program.variables[name].assign(value)
    return program, context


_last: list[Any] = []
"""What `captured_once` was called with last, and what it gave; one only, as each has all of its graphs."""


def values_of(program: Program) -> dict[str, np.ndarray]:
    """The present values of what is compared."""
    return {name: np.array(v.numpy()) for name, v in program.variables.items()}


def alone(make: Callable[[], Program], batches: Sequence[tuple[Any, ...]]) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses and final values on one device."""
    program = fresh(make)
    step = tf.function(program.step, input_signature=program.specs)
    losses = [float(step(*batch)) for batch in batches]
    return losses, values_of(program)


def trained(
    make: Callable[[], Program],
    batches: Sequence[tuple[Any, ...]],
    workers: int,
    options_of: Callable[[caramel.Context], Mapping[str, Any]],
    run_options: RunOptions = SERIAL,
    together: int = 1,
) -> tuple[list[float], dict[str, np.ndarray], caramel.ARModel]:
    """Losses, final values and the model of a training, with options that may follow from what is captured."""
    program, context = captured_once(make)
    armodel = caramel.ARModel(context, workers, **options_of(context))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the steps are not run one by one
        with armodel.session(in_process(run_options)) as session:
            results = session.run(batches, steps_per_execution=together, progress=False)
            session.write_back()
    return [result.loss for result in results], values_of(program), armodel


def distributed(
    program: Program, context: caramel.Context, batches: Sequence[tuple[Any, ...]], workers: int, **options: Any
) -> tuple[list[float], dict[str, np.ndarray], caramel.ARModel]:
    """Losses and final values on N workers, written back to the program's own variables."""
    armodel = caramel.ARModel(context, workers, **options)
    with armodel.session(in_process()) as session:
        losses = [session.step(*batch).loss for batch in batches]
        session.write_back()
    return losses, values_of(program), armodel


def check(
    make: Callable[[], Program],
    batches: Sequence[tuple[Any, ...]],
    workers: int | Sequence[int],
    rtol: float = 1e-8,
    unmoved: Sequence[str] | None = (),
    **options: Any,
) -> caramel.ARModel:
    """N workers train as one device does.

    Args:
        make: gives the program.
        batches: global batches, a tuple of arrays for each step.
        workers: N, or several.
        rtol: how much values may differ, of themselves or of the largest in their tensor.
        unmoved: names of variables that training leaves as they are, learning rates apart; None where only
            parameters are certain to change.
        options: of `caramel.ARModel`.
    """
    program, context = captured_once(make)
    before = values_of(program)
    trained = {name for name, v in program.variables.items() if v.trainable}
    losses, want = alone(make, batches)
    still = {name for name in want if np.array_equal(before[name], want[name]) and "learning_rate" not in name}
    if unmoved is None:
        still, unmoved = still & trained, ()
    assert still == set(unmoved), still
    for number in [workers] if isinstance(workers, int) else workers:
        got_losses, got, armodel = distributed(program, context, batches, number, **options)
        np.testing.assert_allclose(got_losses, losses, rtol=rtol, err_msg=f"losses of {number} workers")
        assert set(got) == set(want)
        for name, theirs in want.items():
            largest = float(np.max(np.abs(theirs), initial=0)) if theirs.dtype.kind in "fc" else 0.0
            atol = 1e-2 * rtol * largest
            np.testing.assert_allclose(got[name], theirs, rtol=rtol, atol=atol, err_msg=f"{name}, {number} workers")
    return armodel
