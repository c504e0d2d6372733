"""A directory of checkpoints, of which the newest few are kept."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path

import tensorflow as tf
from google.protobuf import text_format
from tensorflow.python.training.checkpoint_state_pb2 import CheckpointState

from caramel.errors import CheckpointError
from caramel.runtime.checkpoint import local_state_prefix
from caramel.runtime.session import Session
from caramel.util.text_files import write_whole


class CheckpointDirectory:
    """Checkpoints ``checkpoint-STEP`` in a directory, listed as tf.train.Saver lists its own.

    Args:
        path: path of the directory, which is made by the first save.
        keep: number of the newest checkpoints to keep.
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
        prefix = str(state.model_checkpoint_path)
        if not os.path.exists(f"{prefix}.index"):
            raise CheckpointError(
                f"{str(self.path / 'checkpoint')!r} names {prefix!r}, which does not exist: restore its files, or name "
                "another checkpoint in that list"
            )
        return prefix

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
        kept_names = names[-self.keep :]
        try:
            self._write_list(kept_names)
            for old in (n for n in names[: -self.keep] if re.fullmatch(r"checkpoint-\d+", n)):
                for prefix in (old, local_state_prefix(old)):
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
