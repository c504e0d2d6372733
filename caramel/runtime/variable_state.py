"""The values of a running model: given to the workers, read from them, saved and restored."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from caramel.compiler.distributed_model import DistributedModel
from caramel.data.pipeline import Pipeline
from caramel.errors import CheckpointError, InputError, StepError, in_one_line, listed
from caramel.frontend.recording.automatic_names import Renaming, counted_anew, parts_of
from caramel.graph.graph import NodeDef
from caramel.model import Model, VariableClass
from caramel.modifiers.exchange import momentum_keys
from caramel.modifiers.save_restore import (
    BROADCAST,
    FILL,
    STEPS_KEY,
    assignment_nodes,
    file_copy_nodes,
    local_key,
    separately_saved,
)
from caramel.runtime import checkpoint
from caramel.runtime.feeds import converted_array
from caramel.util.arguments import shown
from caramel.util.arrays import same_values
from caramel.util.interrupts import Interrupts
from caramel.util.temporary import no_room, temporary_directory
from caramel.util.text_files import path_text
from caramel.util.whole_files import refuse_remote

RunOp = Callable[[str, Mapping[str, np.ndarray]], None]
"""Function that runs one op of the distributed graph, with feeds."""


class VariableState:
    """Moves values between the workers, checkpoints and the user's own variables.

    Args:
        distributed: distributed model that runs.
        run: function that runs an op of its graph on the cluster.
    """

    def __init__(self, distributed: DistributedModel, run: RunOp) -> None:
        self._context = distributed.context
        self._model = distributed.model
        self._plan = distributed.plan
        self._assignments: dict[tuple[str, ...], str] = {}  # op that assigns the variables of these names
        self._signature = distributed.signature
        self._run = run
        self._pipeline = distributed.pipeline
        self._has_copy = False  # whether the graph has the ops of `check_saves_to`
        self.last_read: str | None = None
        """Prefix of this library's checkpoint that `restore` read; None after one with the program's objects only."""
        self.has_changed = False
        """Whether the last `restore` has given the workers values, all or some of them."""

    # -- to the workers ----------------------------------------------------------------------

    def initialise(self) -> int:
        """Give every worker the program's initial values, and its dataset's arrays; the number of steps in them."""
        values = self._model.values.load()
        if self._pipeline is None:
            return self._push(values)
        assert self._signature.data is not None
        return self._push({**values, **self._pipeline.values}, self._signature.data.load)

    def begin_again(self, values: Mapping[str, np.ndarray], pipeline: Pipeline | None) -> int:
        """Give every worker values of all variables; the number of steps in them.

        Args:
            values: arrays by name, which replace the program's initial values.
            pipeline: other arrays for the same pipelines; None if the workers have theirs.
        """
        values = {**self._model.values.load(), **values}
        if pipeline is None or self._signature.data is None:
            return self._push(values)
        return self._push({**values, **self._arrays_of(pipeline)}, self._signature.data.load)

    def _arrays_of(self, pipeline: Pipeline) -> dict[str, np.ndarray]:
        """The arrays of other pipelines, under the keys of the first ones, although these say what an array has."""
        assert self._pipeline is not None
        arrays: dict[str, np.ndarray] = {}
        for source, other in zip(self._pipeline.sources, pipeline.sources):
            arrays.update((own.key, given.value) for own, given in zip(source.constants, other.constants))
        return arrays

    def load_data(self, pipeline: Pipeline) -> None:
        """Give every worker other arrays for the same pipelines.

        Args:
            pipeline: has the arrays.
        """
        assert self._signature.data is not None
        with _temporary_prefix() as prefix:
            _put_down(prefix, self._arrays_of(pipeline), self._model)
            self._read(prefix, [self._signature.data.load])

    def changed_beside_training(self, values: Mapping[str, np.ndarray], steps: int) -> dict[str, np.ndarray] | None:
        """Those of some values that are not what worker 0 has; None if what is trained is among them.

        What no step writes (a learning rate) and totals (of metrics) are not.

        Args:
            values: arrays by name.
            steps: number of steps so far.
        """
        changed: dict[str, np.ndarray] = {}
        written = {name for name, _ in self._model.updates}
        trained = {v.name for v in self._model.variables if v.name in written and v.kind is not VariableClass.TOTAL}
        with _temporary_prefix() as prefix:
            self._write(prefix, steps)
            for name, present in checkpoint.each_value(prefix, tuple(values), self._model.variables):
                if same_values(present, values[name]):
                    continue
                if name in trained:
                    return None
                changed[name] = values[name]
        return changed

    def restore(self, prefix: str) -> int:
        """Restore a checkpoint, named or object-based; the number of steps in it.

        Raises:
            CheckpointError: it is missing, damaged or does not fit; `has_changed` says whether workers have values of
                it all the same.
        """
        self.has_changed = False
        reader = checkpoint.open_checkpoint(prefix)
        if reader.has_tensor(checkpoint.OBJECT_GRAPH_KEY):
            return self._restore_objects(prefix)
        with self._under_own_names(prefix, reader) as named:
            saved = [v for v in self._model.variables if v.saved]
            checkpoint.check_fits(prefix, checkpoint.open_checkpoint(named), saved)
            steps, further = self._steps(named), [*self._local_targets(named), *self._momentum_targets(named)]
            self._read(named, [*self._signature.restore, *further])
        self.last_read = prefix
        return steps

    @contextmanager
    def _under_own_names(self, prefix: str, reader: Any) -> Iterator[str]:
        """A checkpoint under the program's names, where it was written when Keras had given other numbers.

        Args:
            prefix: of the checkpoint.
            reader: of it.
        """
        there = reader.get_variable_to_shape_map()
        wanted = {v.checkpoint_place[0] for v in self._model.variables if v.saved}
        if wanted <= there.keys():
            yield prefix
            return
        local_keys = [key for _, _, key in separately_saved(self._model, self._plan)]
        names = [*wanted, *local_keys, *self._signature.momentum_keys]
        then, now = (Renaming(counted_anew(parts_of(keys))) for keys in (there, names))
        own = {now.of(name): name for name in names}
        renamed = {key: own.get(then.of(key), key) for key in there}
        if not wanted <= {*renamed.values()}:
            yield prefix  # of another program, which is refused by name
            return
        with _temporary_prefix() as named:
            values = checkpoint.read_values(prefix)
            _put_down(named, {renamed[key]: value for key, value in values.items()}, self._model)
            yield named

    def _restore_objects(self, prefix: str) -> int:
        """Restore the user's own objects, and from them the workers; on failure the objects are as before."""
        objects = self._context.checkpoint
        if objects is None:
            raise CheckpointError(
                f"checkpoint {prefix!r} was written by tf.train.Checkpoint: pass "
                "checkpoint=tf.train.Checkpoint(...) with the same objects to caramel.capture"
            )
        live_variables = self._context.live_variables
        before = {name: v.numpy().copy() for name, v in live_variables.items()}
        try:
            try:
                objects.read(prefix).assert_existing_objects_matched()
            except Exception as error:  # TensorFlow raises anything from AssertionError to ValueError here
                raise CheckpointError(f"checkpoint {prefix!r} does not fit the program's objects: {error}") from error
            return self._restore_from_objects(prefix)
        except BaseException:
            for name, value in before.items():
                live_variables[name].assign(value)
            raise

    def _restore_from_objects(self, prefix: str) -> int:
        """Give the workers the values of the user's objects, and those that `save` wrote beside them."""
        values = {**self._model.values.load(), **{n: v.numpy() for n, v in self._context.live_variables.items()}}
        local_prefix = checkpoint.local_state_prefix(prefix)
        local_values = self._saved_local_values(local_prefix, values)
        if local_values is None:
            steps = self._push(values)
            self.last_read = None
            return steps
        steps = self._steps(local_prefix)
        targets = [*self._local_targets(local_prefix), *self._momentum_targets(local_prefix)]
        # The objects need not hold all: Keras leaves the state of its random generators out.
        self._push({**values, **local_values})
        self._read(local_prefix, targets)
        self.last_read = local_prefix
        return steps

    def _saved_local_values(self, local_prefix: str, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
        """Worker 0's local variables as `save` wrote them beside the objects, if both are of the same state.

        The single-device program may have written the objects again since then.
        """
        if not os.path.exists(f"{local_prefix}.index"):
            return None
        saved_variables = [v for v in self._model.variables if v.saved]
        checkpoint.check_fits(local_prefix, checkpoint.open_checkpoint(local_prefix), saved_variables)
        written = checkpoint.read_values(local_prefix, [v.name for v in saved_variables])
        shared = [v.name for v in saved_variables if not v.kind.is_local]
        if not all(same_values(written[name], values[name]) for name in shared):
            return None
        return {v.name: written[v.name] for v in saved_variables if v.kind.is_local}

    def _local_targets(self, prefix: str) -> list[str]:
        """Ops that restore the other workers' local values, if the checkpoint has them for this number of workers.

        Raises:
            CheckpointError: they are damaged.
        """
        shapes = checkpoint.open_checkpoint(prefix).get_variable_to_shape_map()
        local_shapes = {key: v.shape for _, v, key in separately_saved(self._model, self._plan)}
        names = [v.name for v in self._model.variables if v.kind.is_local]
        saved_keys = {key for r in (0, self._plan.workers) for n in names if (key := local_key(r, n)) in shapes}
        # Of more workers, or of a plan that averaged what this one does not: then all go on with what is shared.
        if not saved_keys <= local_shapes.keys():
            return []
        if not local_shapes or any(tuple(shapes.get(key, (-1,))) != shape for key, shape in local_shapes.items()):
            return []
        checkpoint.read_values(prefix, local_shapes)  # they are read last, when damage would come too late
        return [self._signature.restore_local]

    def _momentum_targets(self, prefix: str) -> list[str]:
        """The op that restores the momentum of exchanges, if the checkpoint has it of these parameters.

        Raises:
            CheckpointError: it is damaged.
        """
        shapes = checkpoint.open_checkpoint(prefix).get_variable_to_shape_map()
        wanted = {key: v.shape for key, v in momentum_keys(self._model, self._plan).items()}
        if not wanted or any(tuple(shapes.get(key, (-1,))) != shape for key, shape in wanted.items()):
            return []
        checkpoint.read_values(prefix, wanted)  # read last, like the local values
        return [self._signature.restore_momentum]

    def _push(self, values: Mapping[str, np.ndarray], *further_ops: str) -> int:
        """Give every worker these values, through a checkpoint that only exists meanwhile.

        Args:
            values: arrays by checkpoint key.
            further_ops: names of other ops that read that checkpoint.
        """
        with _temporary_prefix() as prefix:
            _put_down(prefix, values, self._model)
            first, *others = self._signature.restore
            self._read(prefix, [first, self._signature.restore_unsaved, *others, *further_ops])
            return self._steps(prefix)

    def assign(self, values: Mapping[str, np.ndarray], extend: Callable[[list[NodeDef]], None]) -> None:
        """Give every worker new values of some variables.

        Args:
            values: arrays by the user's names of the variables.
            extend: function that adds nodes to the distributed graph.

        Raises:
            InputError: there is no such variable, or a value does not fit it.
        """
        if not isinstance(values, Mapping):
            raise InputError(f"assign takes a dict of arrays by the variables' names, got {shown(values)}")
        arrays = {name: _fitting(self._model, name, value) for name, value in values.items()}
        names = tuple(arrays)
        if not names:
            return
        if names not in self._assignments:
            scope = f"caramel/assign_{len(self._assignments) + 1}"
            extend(assignment_nodes(self._model, self._plan, names, scope))
            self._assignments[names] = scope
        with _temporary_prefix() as prefix:
            _put_down(prefix, arrays, self._model)
            self._read(prefix, [self._assignments[names], *filter(None, [self._signature.anchor])])

    def _read(self, prefix: str, targets: Sequence[str]) -> None:
        """Run ops that read a checkpoint, or hand on what was read, one after the other."""
        for target in targets:
            try:
                self._run(target, {self._signature.restore_prefix: checkpoint.fed_path(prefix)})
                self.has_changed = True
            except StepError as error:
                if target in (BROADCAST, FILL):
                    raise CheckpointError(f"the workers cannot take what worker 0 has read: {error}") from error
                raise CheckpointError(
                    f"worker 0 cannot read checkpoint {prefix!r}: {error}. It is damaged, or worker 0 does not see the "
                    "files of this process: run on worker 0's machine, or set TMPDIR to a directory that both see and "
                    "keep checkpoints in such a one"
                ) from error

    def _steps(self, prefix: str) -> int:
        """The number of steps that a checkpoint's values have seen.

        The program's own counter says it of what one device has saved. It may count less than every step, or more:
        the applications of gradients that are added up, or those of losses that did not overflow.
        """
        reader = checkpoint.open_checkpoint(prefix)
        for key in (STEPS_KEY, self._signature.steps_key):
            if reader.has_tensor(key):
                return int(checkpoint.read_values(prefix, [key])[key])
        return 0

    # -- from the workers --------------------------------------------------------------------

    def values(self, steps: int) -> dict[str, np.ndarray]:
        """The value of every saved variable on worker 0."""
        with _temporary_prefix() as prefix:
            self._write(prefix, steps)
            return checkpoint.read_values(prefix, self._signature.checkpoint_names, self._model.variables)

    def write_back(self, steps: int) -> None:
        """Give worker 0's values to the user's own variables.

        Raises:
            InputError: the program is a graph.
        """
        live_variables = self._context.live_variables
        if not live_variables:
            raise InputError(
                "only a captured step function has variables to write to; for a graph use values() or save()"
            )
        self.give_values(steps, live_variables, lambda name, value: live_variables[name].assign(value))

    def give_values(self, steps: int, names: Iterable[str], take: Callable[[str, np.ndarray], object]) -> None:
        """Give worker 0's values to a function, one after the other; none of them if one cannot be read.

        A signal that would end the program waits until all are given.

        Args:
            steps: number of steps so far.
            names: names of variables.
            take: function of a name and an array.
        """
        names = tuple(names)
        with _temporary_prefix() as prefix:
            self._write(prefix, steps)
            for _ in checkpoint.each_value(prefix, names, self._model.variables):
                pass
            with Interrupts(lambda line: None) as signals:
                for name, value in checkpoint.each_value(prefix, names, self._model.variables):
                    take(name, value)
        signals.raise_ended()

    def save(self, path: str | os.PathLike[str], steps: int, position: Mapping[str, np.ndarray] | None = None) -> str:
        """Write a checkpoint, in the format of the user's tf.train.Checkpoint if there is one.

        Args:
            path: prefix of the checkpoint.
            steps: number of steps so far.
            position: arrays to feed about the position in the data, by tensor name.

        Returns:
            The prefix.

        Raises:
            InputError: the path is no prefix.
            CheckpointError: it cannot be written; what was there is untouched.
        """
        prefix = checked_prefix(path)
        objects = self._context.checkpoint
        writers: dict[str, Callable[[str], object]] = {}
        if objects is None:
            writers[prefix] = lambda temporary: self._write(temporary, steps, position)
        else:
            self.write_back(steps)
            writers[checkpoint.local_state_prefix(prefix)] = lambda temporary: self._write(temporary, steps, position)
            writers[prefix] = objects.write
        checkpoint.write_atomically(writers)
        return prefix

    def _write(self, prefix: str, steps: int, position: Mapping[str, np.ndarray] | None = None) -> None:
        feeds = {self._signature.save_prefix: checkpoint.fed_path(prefix), self._signature.save_steps: np.int64(steps)}
        feeds.update(position or {})
        try:
            self._run(self._signature.save, feeds)
        except StepError as error:
            raise CheckpointError(
                f"worker 0 cannot write checkpoint {prefix!r}: {error}. Make room there, or give a path that worker 0 "
                "may write to (for values and evaluations, TMPDIR)"
            ) from error

    def check_saves_to(self, directory: Path, extend: Callable[[list[NodeDef]], None]) -> None:
        """Check that worker 0 and this process read and write the same files of a directory.

        Args:
            directory: path of the directory, which exists.
            extend: function that adds nodes to the distributed graph.

        Raises:
            CheckpointError: they do not.
        """
        if not self._has_copy:
            extend(file_copy_nodes(self._plan, _COPY_SCOPE))
            self._has_copy = True
        name = f".{uuid.uuid4().hex[:8]}"
        written, copied = (directory / f"{name}.{end}" for end in ("written", "copied"))
        feeds = {f"{_COPY_SCOPE}/from:0": written, f"{_COPY_SCOPE}/to:0": copied}
        try:
            written.write_bytes(b"written before a training, to see that it can be saved")
            self._run(f"{_COPY_SCOPE}/copied", {name: checkpoint.fed_path(path) for name, path in feeds.items()})
            copied.read_bytes()
        except (OSError, StepError) as error:
            raise CheckpointError(
                f"worker 0 cannot save checkpoints to {str(directory)!r}: {error}. Give a directory that worker 0 and "
                "this process see under one path and may write to, or run on worker 0's machine"
            ) from error
        finally:
            for path in (written, copied):
                path.unlink(missing_ok=True)


_COPY_SCOPE = "caramel/copy_file"
"""Beginning of the names of the ops with which worker 0 copies a file."""


_NOTHING = "caramel/nothing"
"""Key of what a checkpoint has that is of a program without variables; TensorFlow writes no empty ones."""


def _put_down(prefix: str, values: Mapping[str, np.ndarray], model: Model) -> None:
    """Write a checkpoint that only exists meanwhile."""
    try:
        checkpoint.write_in_groups(prefix, values or {_NOTHING: np.zeros(())}, model.variables)
    except tf.errors.OpError as error:
        raise no_room(in_one_line(error), CheckpointError) from error


@contextmanager
def _temporary_prefix() -> Iterator[str]:
    """Prefix of a checkpoint that only exists meanwhile."""
    with temporary_directory("caramel-values-", CheckpointError) as directory:
        yield os.path.join(directory, "values")


def checked_prefix(path: Any) -> str:
    """The prefix of a checkpoint as a text.

    Raises:
        InputError: it is no name of files of this machine.
    """
    prefix = path_text(path, "a checkpoint", InputError)
    if not os.path.basename(prefix):
        raise InputError(f"a checkpoint's path must be a file name prefix, got {path!r}")
    try:
        refuse_remote(prefix)
    except OSError as error:
        raise InputError(f"there can be no checkpoint at {prefix!r}: {error.strerror}") from error
    return prefix


def _fitting(model: Model, name: str, value: Any) -> np.ndarray:
    variable = model.variable_by_name.get(name)
    if variable is None:
        raise InputError(f"there is no variable {name!r}; there are {listed([v.name for v in model.variables])}")
    array = converted_array(value, variable.dtype, f"variable {name!r}")
    if array.shape != variable.shape:
        raise InputError(f"variable {name!r} takes an array of shape {list(variable.shape)}, got {list(array.shape)}")
    return array
