"""Checkpoints in TensorFlow's own format, written whole or not at all."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from caramel.errors import CheckpointError, listed
from caramel.model import Variable
from caramel.util.journal import Move, finish_interrupted, replacing_together
from caramel.util.temporary import no_room, temporary_directory

v1 = tf.compat.v1

_READ_ERRORS = (tf.errors.OpError, RuntimeError, ValueError, IndexError)
"""Errors that TensorFlow's reader raises where a checkpoint is damaged."""

_JOURNAL = ".saving"
"""End of the names of journals."""

_GROUP_BYTES = 2**27
"""Bytes of which TensorFlow has a copy while it writes."""

OBJECT_GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""Key that only checkpoints written by tf.train.Checkpoint have."""


def write_values(
    prefix: str | os.PathLike[str], values: Mapping[str, np.ndarray], variables: Iterable[Variable] = ()
) -> None:
    """Write arrays by name; works whether TensorFlow runs eagerly or not.

    Args:
        prefix: prefix of the checkpoint.
        values: the arrays.
        variables: variables, of which checkpoints may have some under other names, as parts of larger ones.
    """
    names = list(values)
    found = {v.name: v.checkpoint_place for v in variables}
    places = [found.get(name, (name, "")) for name in names]
    with tf.Graph().as_default():
        holders = [v1.placeholder(tf.as_dtype(values[n].dtype), values[n].shape) for n in names]
        save = tf.raw_ops.SaveV2(
            prefix=str(prefix),
            tensor_names=[key for key, _ in places],
            shape_and_slices=[part for _, part in places],
            tensors=holders,
        )
        with v1.Session() as session:
            session.run(save, {holder: values[n] for holder, n in zip(holders, names)})


def write_in_groups(prefix: str, values: Mapping[str, np.ndarray], variables: Iterable[Variable] = ()) -> None:
    """Write arrays by name as `write_values` does, with a copy of some of them at a time.

    Args:
        prefix: prefix of the checkpoint, in a directory that is local and has nothing else.
        values: the arrays.
        variables: see `write_values`.
    """
    found = {v.name: v.checkpoint_place[0] for v in variables}
    groups: list[dict[str, np.ndarray]] = [{}]
    size, last = 0, None
    for name in sorted(values, key=lambda name: found.get(name, name)):  # the parts of a variable are written together
        key = found.get(name, name)
        if size >= _GROUP_BYTES and key != last:
            groups.append({})
            size = 0
        groups[-1][name] = values[name]
        size += values[name].nbytes
        last = key
    if len(groups) == 1:
        write_values(prefix, values, variables)
        return
    for number, group in enumerate(groups):
        write_values(f"{prefix}_{number}", group, variables)
    with tf.Graph().as_default(), v1.Session() as session:
        parts = [f"{prefix}_{number}" for number in range(len(groups))]
        session.run(tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=prefix))


def read_values(
    prefix: str | os.PathLike[str], names: Iterable[str] | None = None, variables: Iterable[Variable] = ()
) -> dict[str, np.ndarray]:
    """Read arrays by name.

    Args:
        prefix: prefix of the checkpoint.
        names: names of the arrays; all that there are by default.
        variables: see `write_values`.

    Raises:
        CheckpointError: the checkpoint is missing or damaged.
    """
    return dict(each_value(prefix, names, variables))


def each_value(
    prefix: str | os.PathLike[str], names: Iterable[str] | None = None, variables: Iterable[Variable] = ()
) -> Iterator[tuple[str, np.ndarray]]:
    """Read arrays one after the other, each with its name; see `read_values`."""
    reader = open_checkpoint(prefix)
    in_parts = {v.name: v for v in variables if v.part is not None}
    for name in reader.get_variable_to_shape_map() if names is None else names:
        part = in_parts[name].part if name in in_parts else None
        try:
            if part is None:
                value = reader.get_tensor(name)
            else:
                value = reader.get_tensor(part.name)[part.slices(in_parts[name].shape)]
        except _READ_ERRORS as error:
            raise CheckpointError(f"checkpoint {str(prefix)!r} is damaged: {error}") from error
        yield name, value


def open_checkpoint(prefix: str | os.PathLike[str]) -> Any:
    """A reader for a checkpoint.

    Raises:
        CheckpointError: the checkpoint is missing or damaged.
    """
    if not os.path.exists(f"{prefix}.index"):
        hint = " (it is a directory: give the checkpoint's prefix in it)" if os.path.isdir(prefix) else ""
        raise CheckpointError(f"there is no checkpoint at {str(prefix)!r}: {str(prefix)!r}.index does not exist{hint}")
    try:
        return tf.train.load_checkpoint(str(prefix))
    except _READ_ERRORS as error:
        raise CheckpointError(f"checkpoint {str(prefix)!r} is damaged: {error}") from error


def check_fits(prefix: str | os.PathLike[str], reader: Any, variables: Iterable[Variable]) -> None:
    """Check that a checkpoint has every variable, with its shape and dtype.

    Raises:
        CheckpointError: variables are missing or different; the text lists them.
    """
    shapes = reader.get_variable_to_shape_map()
    dtypes = reader.get_variable_to_dtype_map()
    problems = []
    for variable in variables:
        key, shape = variable.name, variable.shape
        if variable.part is not None:
            key, shape = variable.part.name, variable.part.shape
        if key not in shapes:
            problems.append(f"{key} is missing")
        elif tuple(shapes[key]) != shape:
            problems.append(f"{key} has shape {list(shapes[key])}, the program wants {list(shape)}")
        elif dtypes[key].name != variable.dtype:
            problems.append(f"{key} is {dtypes[key].name}, the program wants {variable.dtype}")
    problems = list(dict.fromkeys(problems))
    if problems:
        raise CheckpointError(
            f"checkpoint {str(prefix)!r} does not fit the program: {listed(problems)}. "
            "Restore a checkpoint of the same program (same layers, same optimizer)"
        )


def check_whole(prefix: str | os.PathLike[str]) -> None:
    """Read all arrays of a checkpoint, one after the other, and compare them with their checksums.

    Raises:
        CheckpointError: the checkpoint is missing or damaged.
    """
    dtypes = open_checkpoint(prefix).get_variable_to_dtype_map()
    for _ in each_value(prefix, [name for name, dtype in dtypes.items() if dtype != tf.variant]):
        pass  # states of iterators are no arrays


@contextlib.contextmanager
def readable(prefix: str) -> Iterator[str]:
    """A prefix under which TensorFlow can read a checkpoint, after an interrupted save to it was finished.

    TensorFlow takes the prefix that it reads, not the one that it writes, for a pattern, in which brackets do not stand
    for themselves. Where there are any, the files have other names meanwhile.

    Args:
        prefix: the checkpoint's own prefix, which errors name.

    Raises:
        CheckpointError: a save was interrupted, and cannot be finished.
    """
    finish_interrupted_save(prefix)
    if "\\" not in prefix and glob.escape(prefix) == prefix:
        yield prefix
        return
    path = Path(prefix).absolute()
    with temporary_directory("caramel-read-", CheckpointError) as directory:
        alias = os.path.join(directory, "checkpoint")
        for name in (path.name, local_state_prefix(path.name)):
            for part in path.parent.glob(glob.escape(name) + ".*"):
                try:
                    os.symlink(part, alias + part.name[len(path.name) :])
                except OSError as error:
                    raise no_room(error, CheckpointError) from error
        try:
            yield alias
        except CheckpointError as error:
            raise CheckpointError(str(error).replace(alias, prefix)) from error


def write_atomically(writers: Mapping[str, Callable[[str], object]]) -> None:
    """Write checkpoints under temporary names, then put all of them in place, or none.

    Args:
        writers: function that writes a checkpoint to the prefix it is given, by the checkpoint's own prefix. All are in
            one directory; the last one is that which will be restored.

    Raises:
        CheckpointError: something could not be written; what was there is untouched.
    """
    targets = [Path(prefix) for prefix in writers]
    try:
        targets[-1].parent.mkdir(parents=True, exist_ok=True)
        with replacing_together(_journal(targets[-1]), [target.name for target in targets]) as replacement:
            data: list[Move] = []
            indices: list[Move] = []
            for target, write in zip(targets, writers.values()):
                written = replacement.temporary(target.name)
                write(str(written))
                for part in sorted(target.parent.glob(glob.escape(written.name) + ".data-*")):
                    data.append((part, target.with_name(target.name + part.name[len(written.name) :])))
                indices.append((written.with_name(written.name + ".index"), target.with_name(target.name + ".index")))
            replacement.put_in_place([*data, *indices])  # an index without its data would look like a checkpoint
    except (OSError, tf.errors.OpError) as error:
        where = " and ".join(repr(prefix) for prefix in writers)
        raise CheckpointError(f"checkpoint {where} could not be written: {error}") from error


def finish_interrupted_save(prefix: str | os.PathLike[str]) -> None:
    """Finish a save to a prefix whose process was killed between two files.

    Raises:
        CheckpointError: it cannot be finished.
    """
    journal = _journal(Path(prefix))
    try:
        finish_interrupted(journal)
    except BlockingIOError:
        pass  # its process is still at it; until it has written all, the old files are there
    except OSError as error:
        raise CheckpointError(
            f"a save to {str(prefix)!r} was interrupted, and cannot be finished from {str(journal)!r}: {error}"
        ) from error


def interrupted_saves(directory: Path) -> list[str]:
    """Prefixes in a directory to which something is being saved, or was when its process died."""
    return sorted(str(j.with_name(j.name[1 : -len(_JOURNAL)])) for j in directory.glob(f".?*{_JOURNAL}"))


def _journal(prefix: Path) -> Path:
    return prefix.with_name(f".{prefix.name}{_JOURNAL}")


def fed_path(path: str | os.PathLike[str]) -> np.ndarray:
    """A path as it is fed to ops that read or write there; workers may run in another directory."""
    return np.array(os.path.abspath(path).encode(), dtype=object)


def local_state_prefix(prefix: str | os.PathLike[str]) -> str:
    """Prefix of the local state of all workers beside an object-based checkpoint."""
    return f"{os.fspath(prefix)}-workers"
