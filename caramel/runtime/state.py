"""The values of a running model: given to the workers, read from them, saved and restored."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from caramel.errors import CheckpointError, InputError, StepError
from caramel.model import Variable
from caramel.modifiers.state import STEPS_KEY, local_key, on_worker
from caramel.runtime import checkpoint

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
        self._signature = armodel.signature
        self._run = run

    # -- to the workers ----------------------------------------------------------------------

    def initialise(self) -> int:
        """Give every worker the program's initial values; returns the number of steps in them."""
        return self._push(self._model.values.load())

    def restore(self, path: str | os.PathLike[str]) -> int:
        """Restore a checkpoint, named or object-based; returns the number of steps in it.

        Raises:
            InputError: the path is no prefix.
            CheckpointError: it is missing, damaged or does not fit; then nothing has changed.
        """
        prefix = _prefix(path)
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
        workers = self._signature.workers
        wanted = {
            local_key(rank, v.name): v.shape
            for rank in range(1, workers)
            for v in on_worker(self._model, rank)
            if v.kind.is_local
        }
        further = any(key.startswith(local_key(workers, "")) for key in shapes)
        if wanted and not further and all(tuple(shapes.get(key, (-1,))) == shape for key, shape in wanted.items()):
            self._read(prefix, [self._signature.restore_local])

    def _push(self, values: Mapping[str, np.ndarray]) -> int:
        """Give every worker these values, through a checkpoint that only exists meanwhile."""
        with tempfile.TemporaryDirectory(prefix="caramel-values-") as directory:
            prefix = os.path.join(directory, "values")
            checkpoint.write_values(prefix, values)
            first, *others = self._signature.restore
            self._read(prefix, [first, self._signature.restore_unsaved, *others])
            return self._steps(checkpoint.open_checkpoint(prefix))

    def _read(self, prefix: str, targets: Sequence[str]) -> None:
        """Run ops that read a checkpoint, one after the other."""
        for target in targets:
            try:
                self._run(target, {self._signature.restore_prefix: _text(prefix)})
            except StepError as error:
                raise CheckpointError(f"worker 0 cannot read checkpoint {prefix!r}, it is damaged: {error}") from error

    def _steps(self, reader: Any) -> int:
        counter = self._model.step_counter or STEPS_KEY
        return int(reader.get_tensor(counter)) if reader.has_tensor(counter) else 0

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

    def save(self, path: str | os.PathLike[str], steps: int) -> None:
        """Write a checkpoint, in the format of the user's tf.train.Checkpoint if there is one.

        Raises:
            InputError: the path is no prefix.
            CheckpointError: it cannot be written; what was there is untouched.
        """
        prefix = _prefix(path)
        objects = self._context.checkpoint
        writers: dict[str, Callable[[str], object]] = {}
        if objects is None:
            writers[prefix] = lambda temporary: self._write(temporary, steps)
        else:
            self.write_back(steps)
            writers[checkpoint.beside(prefix)] = lambda temporary: self._write(temporary, steps)
            writers[prefix] = objects.write
        checkpoint.write_atomically(writers)

    def _write(self, prefix: str, steps: int) -> None:
        feeds = {self._signature.save_prefix: _text(prefix), self._signature.save_steps: np.int64(steps)}
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
