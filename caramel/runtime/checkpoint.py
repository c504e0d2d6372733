"""Checkpoints in TensorFlow's own format, written whole or not at all."""

from __future__ import annotations

import glob
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.python.training.checkpoint_state_pb2 import CheckpointState

from caramel.errors import CheckpointError, listed
from caramel.model import Variable
from caramel.util.text_files import write_whole

if TYPE_CHECKING:
    from caramel.runtime.session import Session

v1 = tf.compat.v1

_DAMAGE = (tf.errors.OpError, RuntimeError, ValueError, IndexError)
"""What TensorFlow's reader raises, as it comes to notice."""

OBJECT_GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"


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
        CheckpointError: it is missing or damaged.
    """
    reader = open_checkpoint(prefix)
    wanted = reader.get_variable_to_shape_map() if names is None else names
    try:
        return {name: reader.get_tensor(name) for name in wanted}
    except _DAMAGE as error:
        raise CheckpointError(f"checkpoint {str(prefix)!r} is damaged: {error}") from error


def open_checkpoint(prefix: str | os.PathLike[str]) -> Any:
    """A reader for a checkpoint.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    if not os.path.exists(f"{prefix}.index"):
        hint = " (it is a directory: give the checkpoint's prefix in it)" if os.path.isdir(prefix) else ""
        raise CheckpointError(f"there is no checkpoint at {str(prefix)!r}: {str(prefix)!r}.index does not exist{hint}")
    try:
        return tf.train.load_checkpoint(str(prefix))
    except _DAMAGE as error:
        raise CheckpointError(f"checkpoint {str(prefix)!r} is damaged: {error}") from error


def check_fits(prefix: str | os.PathLike[str], reader: Any, variables: Iterable[Variable]) -> None:
    """Every variable must be there, with its shape and dtype.

    Raises:
        CheckpointError: listing what is missing or different.
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
    """Have checkpoints made under temporary names, then put all of them in place, or none.

    Args:
        writers: for each checkpoint's prefix a function that writes it to the prefix it is given.

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
            for left in target.parent.glob(glob.escape(written.name) + "*") if target.parent.is_dir() else ():
                if left.is_dir():  # TensorFlow's own temporary directory
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink(missing_ok=True)


def _put_in_place(moves: list[tuple[Path, Path]], tag: str) -> None:
    """Rename all files, or put back what was there."""
    backups: dict[Path, Path] = {}
    done: list[Path] = []
    try:
        for source, target in moves:
            if target.exists():
                backup = target.with_name(f"{target.name}.old-{tag}")
                _second_name(target, backup)
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


def _second_name(file: Path, name: Path) -> None:
    try:
        os.link(file, name)
    except OSError:  # a file system without hard links
        shutil.copy2(file, name)


def fed_path(path: str | os.PathLike[str]) -> np.ndarray:
    """A path as it is fed to ops that read or write there; workers may run in another directory."""
    return np.array(os.path.abspath(path).encode(), dtype=object)


def beside(prefix: str | os.PathLike[str]) -> str:
    """Prefix of the local state of all workers beside an object-based checkpoint."""
    return f"{os.fspath(prefix)}-workers"


class Directory:
    """Checkpoints ``checkpoint-STEP`` in a directory, listed as tf.train.Saver lists its own.

    Args:
        path: the directory; made when something is first saved.
        keep: how many of the newest to keep.
    """

    def __init__(self, path: str | os.PathLike[str], keep: int = 5) -> None:
        self.path = Path(path)
        self.keep = keep

    def latest(self) -> str | None:
        """Prefix of the newest checkpoint, or None if nothing was saved here.

        Raises:
            CheckpointError: the newest is in the list, but gone.
        """
        state = tf.train.get_checkpoint_state(str(self.path))
        if state is None and not (self.path / "checkpoint").exists():
            return None
        if state is None or not state.model_checkpoint_path:
            raise CheckpointError(
                f"the list of checkpoints {str(self.path / 'checkpoint')!r} is damaged: "
                "mend it, or remove it to start anew"
            )
        found = str(state.model_checkpoint_path)
        if not os.path.exists(f"{found}.index"):
            raise CheckpointError(
                f"{str(self.path / 'checkpoint')!r} names {found!r}, which does not exist: restore its files, or name "
                "another checkpoint in that list"
            )
        return found

    def save(self, session: Session) -> str:
        """Save a session's state and drop what is older than the newest few.

        Returns:
            The checkpoint's prefix.

        Raises:
            CheckpointError: it cannot be written; the older ones are untouched.
        """
        name = f"checkpoint-{session.step_count}"
        session.save(self.path / name)
        state = tf.train.get_checkpoint_state(str(self.path))
        known = [os.path.basename(p) for p in state.all_model_checkpoint_paths] if state is not None else []
        names = [*(n for n in known if n != name), name]
        kept = names[-self.keep :]
        try:
            self._write_list(kept)
            for old in (n for n in names[: -self.keep] if re.fullmatch(r"checkpoint-\d+", n)):
                for prefix in (old, beside(old)):
                    for part in self.path.glob(glob.escape(prefix) + ".*"):
                        part.unlink(missing_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"the list of checkpoints in {str(self.path)!r} cannot be written: {error}"
            ) from error
        return str(self.path / name)

    def _write_list(self, names: list[str]) -> None:
        state = CheckpointState(model_checkpoint_path=names[-1], all_model_checkpoint_paths=names)
        write_whole(self.path / "checkpoint", text_format.MessageToString(state))
