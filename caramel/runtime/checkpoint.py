"""Checkpoints in TensorFlow's own format, written whole or not at all."""

from __future__ import annotations

import glob
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from caramel.errors import CheckpointError, listed
from caramel.model import Variable

v1 = tf.compat.v1

_READ_ERRORS = (tf.errors.OpError, RuntimeError, ValueError, IndexError)
"""Errors that TensorFlow's reader raises where a checkpoint is damaged."""

OBJECT_GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""Key that only checkpoints written by tf.train.Checkpoint have."""


def write_values(prefix: str | os.PathLike[str], values: Mapping[str, np.ndarray]) -> None:
    """Write arrays by name; works whether TensorFlow runs eagerly or not."""
    names = list(values)
    with tf.Graph().as_default():
        holders = [v1.placeholder(tf.as_dtype(values[n].dtype), values[n].shape) for n in names]
        save = tf.raw_ops.SaveV2(
            prefix=str(prefix), tensor_names=names, shape_and_slices=[""] * len(names), tensors=holders
        )
        with v1.Session() as session:
            session.run(save, {holder: values[n] for holder, n in zip(holders, names)})


def read_values(prefix: str | os.PathLike[str], names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
    """Read arrays by name.

    Raises:
        CheckpointError: the checkpoint is missing or damaged.
    """
    reader = open_checkpoint(prefix)
    wanted_names = reader.get_variable_to_shape_map() if names is None else names
    try:
        return {name: reader.get_tensor(name) for name in wanted_names}
    except _READ_ERRORS as error:
        raise CheckpointError(f"checkpoint {str(prefix)!r} is damaged: {error}") from error


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
        if variable.name not in shapes:
            problems.append(f"{variable.name} is missing")
        elif tuple(shapes[variable.name]) != variable.shape:
            problems.append(
                f"{variable.name} has shape {list(shapes[variable.name])}, the program wants {list(variable.shape)}"
            )
        elif dtypes[variable.name].name != variable.dtype:
            problems.append(f"{variable.name} is {dtypes[variable.name].name}, the program wants {variable.dtype}")
    if problems:
        raise CheckpointError(
            f"checkpoint {str(prefix)!r} does not fit the program: {listed(problems)}. "
            "Restore a checkpoint of the same program (same layers, same optimizer)"
        )


def write_atomically(writers: Mapping[str, Callable[[str], object]]) -> None:
    """Write checkpoints under temporary names, then put all of them in place, or none.

    Args:
        writers: function that writes a checkpoint to the prefix it is given, by the checkpoint's own prefix.

    Raises:
        CheckpointError: something could not be written; what was there is untouched.
    """
    tag = uuid.uuid4().hex[:8]
    temporary = {Path(p): Path(p).with_name(f"{Path(p).name}.writing-{tag}") for p in writers}
    where = " and ".join(repr(p) for p in writers)
    try:
        for prefix, write in writers.items():
            Path(prefix).parent.mkdir(parents=True, exist_ok=True)
            write(str(temporary[Path(prefix)]))
        data, indices = [], []
        for target, written in temporary.items():
            for part in sorted(target.parent.glob(glob.escape(written.name) + ".data-*")):
                data.append((part, target.with_name(target.name + part.name[len(written.name) :])))
            indices.append((written.with_name(written.name + ".index"), target.with_name(target.name + ".index")))
        _put_in_place([*data, *indices], tag)  # an index without its data would look like a checkpoint
    except (OSError, tf.errors.OpError) as error:
        raise CheckpointError(f"checkpoint {where} could not be written: {error}") from error
    finally:
        for target, written in temporary.items():
            for leftover in target.parent.glob(glob.escape(written.name) + "*") if target.parent.is_dir() else ():
                if leftover.is_dir():  # TensorFlow's own temporary directory
                    shutil.rmtree(leftover, ignore_errors=True)
                else:
                    leftover.unlink(missing_ok=True)


def _put_in_place(moves: list[tuple[Path, Path]], tag: str) -> None:
    """Rename all files, or put back the files that were there."""
    backups: dict[Path, Path] = {}
    done: list[Path] = []
    try:
        for source, target in moves:
            if target.exists():
                backup = target.with_name(f"{target.name}.old-{tag}")
                _link_or_copy(target, backup)
                backups[target] = backup
            source.replace(target)
            done.append(target)
    except OSError:
        for target in reversed(done):
            replaced = backups.pop(target, None)  # from here on it is not cleaned up, even if this fails
            if replaced is None:
                target.unlink(missing_ok=True)
            else:
                replaced.replace(target)
        raise
    finally:
        for backup in backups.values():
            backup.unlink(missing_ok=True)


def _link_or_copy(file: Path, name: Path) -> None:
    try:
        os.link(file, name)
    except OSError:  # a file system without hard links
        shutil.copy2(file, name)


def fed_path(path: str | os.PathLike[str]) -> np.ndarray:
    """A path as it is fed to ops that read or write there; workers may run in another directory."""
    return np.array(os.path.abspath(path).encode(), dtype=object)


def local_state_prefix(prefix: str | os.PathLike[str]) -> str:
    """Prefix of the local state of all workers beside an object-based checkpoint."""
    return f"{os.fspath(prefix)}-workers"
