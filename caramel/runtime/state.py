"""The values of a running model: given to the workers, read from them, saved and restored."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from caramel.errors import CheckpointError, InputError, StepError, listed
from caramel.graph.graph import NodeDef
from caramel.model import Model, Variable
from caramel.modifiers.state import assignment_nodes, kept_apart, local_key
from caramel.runtime import checkpoint
from caramel.runtime.feeds import converted

if TYPE_CHECKING:
    from caramel.armodel import ARModel

Run = Callable[[str, Mapping[str, np.ndarray]], None]
"""Runs one op of the distributed graph, with feeds."""


class State:
    """Moves values between the workers, checkpoints and the user's own variables.

    Args:
        armodel: the model.
        run: runs an op of its graph on the cluster.
    """

    def __init__(self, armodel: ARModel, run: Run) -> None:
        self._context = armodel.context
        self._model = armodel.model
        self._plan = armodel.plan
        self._assignments: dict[tuple[str, ...], str] = {}  # op that assigns the variables of these names
        self._signature = armodel.signature
        self._run = run
        self._pipeline = armodel.pipeline
        self.last_read: str | None = None
        """Checkpoint of this library's that `restore` read; None after one that only holds the program's objects."""

    # -- to the workers ----------------------------------------------------------------------

    def initialise(self) -> int:
        """Give every worker the program's initial values; returns the number of steps in them."""
        values = self._model.values.load()
        if self._pipeline is None:
            return self._push(values)
        assert self._signature.data is not None
        return self._push({**values, **self._pipeline.values}, self._signature.data.load)

    def restore(self, path: str | os.PathLike[str]) -> int:
        """Restore a checkpoint, named or object-based; returns the number of steps in it.

        Raises:
            InputError: the path is no prefix.
            CheckpointError: it is missing, damaged or does not fit; then nothing has changed.
        """
        prefix = self.last_read = _prefix(path)
        reader = checkpoint.open_checkpoint(prefix)
        if reader.has_tensor(checkpoint.OBJECT_GRAPH_KEY):
            return self._restore_objects(prefix)
        checkpoint.check_fits(prefix, reader, [v for v in self._model.variables if v.saved])
        self._read(prefix, self._signature.restore)
        self._restore_local(prefix, reader)
        return self._steps(reader)

    def _restore_objects(self, prefix: str) -> int:
        objects = self._context.checkpoint
        if objects is None:
            raise CheckpointError(
                f"checkpoint {prefix!r} was written by tf.train.Checkpoint: pass "
                "checkpoint=tf.train.Checkpoint(...) with the same objects to caramel.capture"
            )
        live = self._context.live_variables
        before = {name: v.numpy().copy() for name, v in live.items()}
        try:
            objects.read(prefix).assert_existing_objects_matched()
        except Exception as error:  # TensorFlow raises anything from AssertionError to ValueError here
            for name, value in before.items():
                live[name].assign(value)
            raise CheckpointError(f"checkpoint {prefix!r} does not fit the program's objects: {error}") from error
        values = {**self._model.values.load(), **{n: v.numpy() for n, v in live.items()}}
        beside = self._written_together(prefix, values)
        self.last_read = None if beside is None else checkpoint.beside(prefix)
        if beside is None:
            return self._push(values)
        # The objects need not hold all: Keras leaves the state of its random generators out.
        self._push({**values, **{v.name: beside.get_tensor(v.name) for v in self._local_variables()}})
        self._restore_local(checkpoint.beside(prefix), beside)
        return self._steps(beside)

    def _local_variables(self) -> list[Variable]:
        return [v for v in self._model.variables if v.saved and v.kind.is_local]

    def _written_together(self, prefix: str, values: Mapping[str, np.ndarray]) -> Any:
        """A reader of what `save` wrote beside an object-based checkpoint, if it is of the same state.

        The single-device program may have written the objects again since then.
        """
        beside = checkpoint.beside(prefix)
        if not os.path.exists(f"{beside}.index"):
            return None
        reader = checkpoint.open_checkpoint(beside)
        shared = [v for v in self._model.variables if v.saved and not v.kind.is_local]
        checkpoint.check_fits(beside, reader, [*shared, *self._local_variables()])
        same = all(np.array_equal(reader.get_tensor(v.name), values[v.name], equal_nan=True) for v in shared)
        return reader if same else None

    def _restore_local(self, prefix: str, reader: Any) -> None:
        """What is local to the other workers, if the checkpoint has it for this number of workers."""
        shapes = reader.get_variable_to_shape_map()
        wanted = {key: v.shape for _, v, key in kept_apart(self._model, self._plan)}
        names = [v.name for v in self._model.variables if v.kind.is_local]
        kept = {key for r in (0, self._plan.workers) for n in names if (key := local_key(r, n)) in shapes}
        # Of more workers, or of a plan that averaged what this one does not: then all go on with what is shared.
        if not kept <= wanted.keys():
            return
        if wanted and all(tuple(shapes.get(key, (-1,))) == shape for key, shape in wanted.items()):
            self._read(prefix, [self._signature.restore_local])

    def _push(self, values: Mapping[str, np.ndarray], *further: str) -> int:
        """Give every worker these values, through a checkpoint that only exists meanwhile.

        Args:
            values: by key.
            further: other ops that read it.
        """
        with tempfile.TemporaryDirectory(prefix="caramel-values-") as directory:
            prefix = os.path.join(directory, "values")
            checkpoint.write_values(prefix, values)
            first, *others = self._signature.restore
            self._read(prefix, [first, self._signature.restore_unsaved, *others, *further])
            return self._steps(checkpoint.open_checkpoint(prefix))

    def assign(self, values: Mapping[str, np.ndarray], extend: Callable[[list[NodeDef]], None]) -> None:
        """Give every worker new values of some variables.

        Args:
            values: by the user's names.
            extend: adds nodes to the distributed graph.

        Raises:
            InputError: there is no such variable, or a value does not fit it.
        """
        arrays = {name: _fitting(self._model, name, value) for name, value in values.items()}
        names = tuple(arrays)
        if not names:
            return
        if names not in self._assignments:
            scope = f"caramel/assign_{len(self._assignments) + 1}"
            extend(assignment_nodes(self._model, self._plan, names, scope))
            self._assignments[names] = scope
        with tempfile.TemporaryDirectory(prefix="caramel-values-") as directory:
            prefix = os.path.join(directory, "values")
            checkpoint.write_values(prefix, arrays)
            self._read(prefix, [self._assignments[names]])

    def _read(self, prefix: str, targets: Sequence[str]) -> None:
        """Run ops that read a checkpoint, one after the other."""
        for target in targets:
            try:
                self._run(target, {self._signature.restore_prefix: _text(prefix)})
            except StepError as error:
                raise CheckpointError(f"worker 0 cannot read checkpoint {prefix!r}, it is damaged: {error}") from error

    def _steps(self, reader: Any) -> int:
        key = self._signature.steps_key
        return int(reader.get_tensor(key)) if reader.has_tensor(key) else 0

    # -- from the workers --------------------------------------------------------------------

    def values(self, steps: int) -> dict[str, np.ndarray]:
        """The value of every saved variable on worker 0."""
        with tempfile.TemporaryDirectory(prefix="caramel-values-") as directory:
            prefix = os.path.join(directory, "values")
            self._write(prefix, steps)
            return checkpoint.read_values(prefix, self._signature.checkpoint_names)

    def write_back(self, steps: int) -> None:
        """Give worker 0's values to the user's own variables.

        Raises:
            InputError: the program is a graph.
        """
        live = self._context.live_variables
        if not live:
            raise InputError(
                "only a captured step function has variables to write to; for a graph use values() or save()"
            )
        values = self.values(steps)
        for name, variable in live.items():
            variable.assign(values[name])

    def save(self, path: str | os.PathLike[str], steps: int, position: Mapping[str, np.ndarray] | None = None) -> None:
        """Write a checkpoint, in the format of the user's tf.train.Checkpoint if there is one.

        Args:
            path: its prefix.
            steps: number of steps so far.
            position: what to feed about the position in the data.

        Raises:
            InputError: the path is no prefix.
            CheckpointError: it cannot be written; what was there is untouched.
        """
        prefix = _prefix(path)
        objects = self._context.checkpoint
        writers: dict[str, Callable[[str], object]] = {}
        if objects is None:
            writers[prefix] = lambda temporary: self._write(temporary, steps, position)
        else:
            self.write_back(steps)
            writers[checkpoint.beside(prefix)] = lambda temporary: self._write(temporary, steps, position)
            writers[prefix] = objects.write
        checkpoint.write_atomically(writers)

    def _write(self, prefix: str, steps: int, position: Mapping[str, np.ndarray] | None = None) -> None:
        feeds = {self._signature.save_prefix: _text(prefix), self._signature.save_steps: np.int64(steps)}
        feeds.update(position or {})
        try:
            self._run(self._signature.save, feeds)
        except StepError as error:
            raise CheckpointError(f"worker 0 cannot write checkpoint {prefix!r}: {error}") from error


def _text(path: str) -> np.ndarray:
    return np.array(os.path.abspath(path).encode(), dtype=object)


def _prefix(path: Any) -> str:
    if not isinstance(path, (str, os.PathLike)) or not os.path.basename(os.fspath(path)):
        raise InputError(f"a checkpoint's path must be a file name prefix, got {path!r}")
    return os.fspath(path)


def _fitting(model: Model, name: str, value: Any) -> np.ndarray:
    variable = model.variable_by_name.get(name)
    if variable is None:
        raise InputError(f"there is no variable {name!r}; there are {listed([v.name for v in model.variables])}")
    array = converted(value, variable.dtype, f"variable {name!r}")
    if array.shape != variable.shape:
        raise InputError(
            f"variable {name!r} takes an array of shape {list(variable.shape)}, got {list(array.shape)}"
        )
    return array
