"""What the programs are trained by: one device, or four workers. A program is a function of one of these.

A program builds its model or step and its data, and calls `train.fit`, `train.steps` or `train.graph` where its user would
change one line. It returns what has been trained: variables, or a dict of values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from exact_common import serial_functions

import caramel

v1 = tf.compat.v1
WORKERS = 4
BATCH = 12
AS_WRITTEN = caramel.InProcess(
    options=caramel.RunOptions(optimize_graph=False)
)  # Grappler takes longer than all the rest
COUNT = 34  # three steps; the last has 10 examples: 3, 3, 2 and 2


@dataclass
class OneDevice:
    """As Keras and TensorFlow do it alone.

    Attributes:
        folder: where a program may write files.
        logs: of every call: each name with its values.
    """

    folder: Path
    logs: list[dict[str, list[float]]] = field(default_factory=list)

    def fit(self, model, *data, **options):
        """`model.fit`."""
        model.jit_compile = False  # XLA would take longer than all the rest
        with serial_functions():
            self.logs.append(model.fit(*data, verbose=0, **options).history)

    def steps(self, step, batches):
        """The step as a `tf.function` on each batch."""
        function = tf.function(step, reduce_retracing=True)
        with serial_functions():
            self.logs.append({"loss": [float(function(*map(tf.constant, batch))) for batch in batches]})

    def graph(self, build, batches):
        """A TensorFlow 1 program; `build` returns loss and training op. Returns the values of all variables."""
        with tf.Graph().as_default():
            loss, train_op = build()
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                self.logs.append({"loss": [session.run([loss, train_op], batch)[0] for batch in batches]})
                return {v.op.name: session.run(v) for v in v1.global_variables()}


@dataclass
class Workers:
    """As Caramel does it; otherwise as `OneDevice`.

    Attributes:
        options: of `caramel.fit` and `caramel.capture`.
        cluster: where the workers are.
    """

    folder: Path
    logs: list[dict[str, list[float]]] = field(default_factory=list)
    options: dict = field(default_factory=dict)
    cluster: caramel.Cluster = AS_WRITTEN

    def fit(self, model, *data, **options):
        """`caramel.fit`."""
        options = {"workers": WORKERS, "cluster": self.cluster, "verbose": 0, **options, **self.options}
        history = caramel.fit(model, *data, **options)
        self.logs.append(history.history)

    def steps(self, step, batches):
        """`caramel.capture` with the step."""
        specs = [tf.TensorSpec([None, *array.shape[1:]], array.dtype) for array in batches[0]]
        with caramel.ARModel(caramel.capture(step, specs, **self.options), WORKERS).session(self.cluster) as session:
            self.logs.append({"loss": [result.loss for result in session.run(batches)]})
            session.write_back()

    def graph(self, build, batches):
        """`caramel.capture` around a graph."""
        with caramel.capture(**self.options) as context:
            context.loss, context.train_op = build()
        with caramel.ARModel(context, WORKERS).session(self.cluster) as session:
            self.logs.append({"loss": [session.step(batch).loss for batch in batches]})
            return session.values()


@dataclass(frozen=True)
class Trained:
    """What a program has come to: the logs of its calls, and its values by name."""

    logs: list[dict[str, list[float]]]
    values: dict[str, np.ndarray]


def run(program, train):
    """Run a program from the same seed as ever."""
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(3)
    found = program(train)
    if not isinstance(found, dict):
        found = {f"{n} {getattr(v, 'path', v.name)}": v for n, v in enumerate(found)}
    return Trained(train.logs, {name: np.asarray(value) for name, value in found.items()})


def assert_same(got, want, tolerance):
    """The same logs and values; what differs is less than `tolerance` of the largest number of its array."""
    assert [list(logs) for logs in got.logs] == [list(logs) for logs in want.logs]
    mine, theirs = (
        {
            f"log {call} {name}": np.asarray(numbers)
            for call, logs in enumerate(trained.logs)
            for name, numbers in logs.items()
        }
        | trained.values
        for trained in (got, want)
    )
    assert set(mine) == set(theirs)
    wrong = {}
    for name, expected in theirs.items():
        if not np.issubdtype(expected.dtype, np.floating):
            difference = np.count_nonzero(mine[name] != expected)
            allowed = 0.0
        else:
            difference = float(np.max(np.abs(mine[name] - expected), initial=0))
            allowed = 1e-12 + tolerance * float(np.max(np.abs(expected), initial=0))
        if not difference <= allowed:
            wrong[name] = f"differs by {difference:.3g} where {allowed:.3g} is allowed"
    assert not wrong, wrong


# -- data that several programs use ---------------------------------------------------------------


def images(count=COUNT, side=8, channels=1, classes=3, seed=0):
    """Images with a bright spot, and where it is."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    pixels = rng.uniform(0, 0.4, (count, side, side, channels))
    for image, label in zip(pixels, labels):
        image[2 * label : 2 * label + 2, 2:5] += 0.6
    return pixels, labels


def batched(*arrays, batch=BATCH):
    """The arrays in batches, for a step of one's own."""
    return [tuple(array[at : at + batch] for array in arrays) for at in range(0, len(arrays[0]), batch)]


def variables_of(*owners):
    """The variables of models and optimizers."""
    return [variable for owner in owners for variable in owner.variables]
