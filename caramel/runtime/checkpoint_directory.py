"""A directory of checkpoints, of which the newest few are kept."""

from __future__ import annotations

import glob
import logging
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import text_format
from tensorflow.python.training.checkpoint_state_pb2 import CheckpointState

from caramel.errors import CheckpointError, listed
from caramel.runtime.checkpoint import (
    check_whole,
    finish_interrupted_save,
    interrupted_saves,
    local_state_prefix,
    readable,
)
from caramel.runtime.held_directory import checked_directory
from caramel.runtime.session import Session
from caramel.util.whole_files import sync

_logger = logging.getLogger(__name__)

_LIST = "checkpoint"
"""Name of the list of checkpoints, as tf.train.Saver has it."""

_LIST_WRITING = "checkpoint.writing"
"""Name under which the list is written; what a killed process left there is replaced by the next list."""

_BYTES_OF_A_LIST = 10_000_000
"""More is no list of checkpoints."""


@dataclass(frozen=True)
class Found:
    """The checkpoint from which to go on.

    Attributes:
        prefix: its prefix.
        note: what the user should know about how it was found, or None.
    """

    prefix: str
    note: str | None = None


class CheckpointDirectory:
    """Checkpoints ``checkpoint-STEP`` in a directory, listed as tf.train.Saver lists its own.

    Args:
        path: path of the directory, which is made by the first save.
        keep: number of the newest checkpoints to keep.

    Raises:
        InputError: it is an address and no path of this machine.
    """

    def __init__(self, path: str | os.PathLike[str], keep: int = 5) -> None:
        self.path = checked_directory(path)
        self.keep = keep

    @property
    def _list(self) -> Path:
        return self.path / _LIST

    def tidy(self) -> None:
        """Finish or remove what killed runs left half done; for whoever holds the directory.

        Raises:
            CheckpointError: it cannot be written.
        """
        if self._list.is_dir():
            raise CheckpointError(f"{str(self._list)!r} is a directory, and the list goes there: move it away")
        for prefix in interrupted_saves(self.path):
            finish_interrupted_save(prefix)

    def check(self, session: Session) -> None:
        """Check before a training that it can be saved here: worker 0 may be on another machine.

        Raises:
            CheckpointError: it cannot be.
        """
        session.check_saves_to(self.path)

    # -- reading -----------------------------------------------------------------------------

    def latest(self) -> Found | None:
        """The newest checkpoint, or None if nothing was saved here.

        It is that of the list. Without a list that can be read it is found by looking at the files.

        Raises:
            CheckpointError: the newest is in the list, but gone; or there were checkpoints, and none can be found.
        """
        known_prefixes, problem = self._listed()
        if known_prefixes:
            prefix = known_prefixes[-1]
            if not os.path.exists(f"{prefix}.index"):
                raise CheckpointError(
                    f"{str(self._list)!r} names {prefix!r}, which does not exist: restore its files. "
                    f"{self._way_on(prefix)}"
                )
            return Found(prefix)
        found_prefixes = self._on_disk()
        if found_prefixes:
            return Found(found_prefixes[-1], f"{problem}; {found_prefixes[-1]} is the newest of the files there")
        without_index = sorted(p.name for p in self.path.glob("*.data-?????-of-?????") if ".writing-" not in p.name)
        if without_index:
            raise CheckpointError(
                f"{str(self.path)!r} has {listed(without_index)} without the index that belongs to it, and no other "
                "checkpoint: restore the .index file, or give another directory to start anew"
            )
        if os.path.lexists(self._list):
            raise CheckpointError(
                f"{problem}, and there is no checkpoint beside it: restore the files, or remove the list to start anew"
            )
        return None

    def restore_latest(self, session: Session) -> Found | None:
        """Restore the newest checkpoint, if there is one.

        Raises:
            CheckpointError: it is missing, damaged or does not fit. If it is damaged, the message says which older one
                is whole.
        """
        found = self.latest()
        if found is None:
            return None
        try:
            session.restore(found.prefix)
        except CheckpointError as error:
            if _is_whole(found.prefix):
                raise
            raise CheckpointError(f"{error}. {self._way_on(found.prefix)}") from error
        return found

    def _way_on(self, prefix: str) -> str:
        """What to do where the newest checkpoint is gone or damaged."""
        bad = [prefix]
        for older in reversed([p for p in self._on_disk() if p != prefix]):
            if _is_whole(older):
                names = " and ".join(f"{os.path.basename(p)}.*" for p in bad)
                return (
                    f"An older one, {older!r}, is whole: to go on from it, move {names} and the list {_LIST!r} out of "
                    f"{str(self.path)!r} and start again"
                )
            bad.append(older)
        return f"No other checkpoint in {str(self.path)!r} is whole: give another directory to start anew"

    def _listed(self) -> tuple[list[str], str]:
        """Prefixes of the list, the latest one at the end; or none, and why."""
        try:
            if not stat.S_ISREG(self._list.stat().st_mode):
                return [], f"the list of checkpoints {str(self._list)!r} is no file"
            with open(self._list, "rb") as file:
                state = text_format.Parse(file.read(_BYTES_OF_A_LIST).decode(), CheckpointState())
        except FileNotFoundError:
            return [], f"the list of checkpoints {str(self._list)!r} is missing"
        except OSError as error:
            return [], f"the list of checkpoints {str(self._list)!r} cannot be read ({error.strerror})"
        except (text_format.ParseError, UnicodeDecodeError):
            return [], f"the list of checkpoints {str(self._list)!r} is damaged"
        latest = state.model_checkpoint_path
        names = [name for name in (*state.all_model_checkpoint_paths, latest) if name and "\0" not in name]
        if not latest or latest not in names:
            return [], f"the list of checkpoints {str(self._list)!r} names none"
        prefixes = [os.path.join(self.path, name) for name in dict.fromkeys(n for n in names if n != latest)]
        return [*prefixes, os.path.join(self.path, latest)], ""

    def _on_disk(self) -> list[str]:
        """Prefixes of the checkpoints whose files are there, the newest one at the end."""
        names = {p.name.removesuffix(".index"): p.lstat().st_mtime_ns for p in self.path.glob("*.index")}
        beside = {local_state_prefix(name) for name in names}
        own = [name for name in names if name not in beside and ".writing-" not in name]
        return [os.path.join(self.path, n) for n in sorted(own, key=lambda n: (_step_in(n), names[n], n))]

    # -- writing -----------------------------------------------------------------------------

    def save(self, session: Session) -> str:
        """Save a session's state and drop what is older than the newest few.

        Returns:
            The checkpoint's prefix.

        Raises:
            CheckpointError: it cannot be written; the older ones are untouched.
        """
        name = f"checkpoint-{session.step_count}"
        known_prefixes = self._listed()[0] or self._on_disk()
        session.save(self.path / name)
        known_names = [os.path.basename(p) for p in known_prefixes]
        names = [*(n for n in known_names if n != name), name]
        kept_names = names[-self.keep :]
        try:
            self._write_list(kept_names)
        except OSError as error:
            raise CheckpointError(
                f"the list of checkpoints in {str(self.path)!r} cannot be written: {error}"
            ) from error
        self._remove(n for n in names[: -self.keep] if re.fullmatch(r"checkpoint-\d+", n))
        return str(self.path / name)

    def _remove(self, names: Iterable[str]) -> None:
        """Remove old checkpoints; one that cannot be removed is no reason to end a training."""
        for old in names:
            for prefix in (old, local_state_prefix(old)):
                for part in self.path.glob(glob.escape(prefix) + ".*"):
                    try:
                        part.unlink(missing_ok=True)
                    except OSError as error:
                        _logger.warning("an old checkpoint cannot be removed: %s", error)

    def _write_list(self, names: list[str]) -> None:
        state = CheckpointState(model_checkpoint_path=names[-1], all_model_checkpoint_paths=names)
        temporary = self.path / _LIST_WRITING
        try:
            temporary.unlink(missing_ok=True)
            temporary.write_text(text_format.MessageToString(state), encoding="utf-8")
            sync(temporary)
            os.replace(temporary, self._list)  # a list that is a link is replaced itself, as its circle may be
            sync(self.path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _is_whole(prefix: str) -> bool:
    """Whether a checkpoint, and what is beside it, can be read to the end."""
    try:
        for part in (prefix, local_state_prefix(prefix)):
            if part == prefix or os.path.exists(f"{part}.index"):
                with readable(part) as alias:
                    check_whole(alias)
    except CheckpointError:
        return False
    return True


def _step_in(name: str) -> int:
    """The number at the end of a checkpoint's name; -1 if there is none."""
    found = re.search(r"-(\d{1,18})$", name)
    return int(found.group(1)) if found else -1
