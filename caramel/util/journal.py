"""Several files that are replaced together: all of them or none, even if the process is killed between two of them.

A journal beside the files says what is being written under which temporary names, then which of these
go where. It is locked as long as its process lives. Whoever comes next and finds a journal of a dead
process finishes what it was about to do: files that were all written are put in place, others removed.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from caramel.util.file_locks import lock
from caramel.util.whole_files import sync

_HEADER = b'{"kind": "caramel journal"'
"""What every journal begins with."""

_TEMPORARY = re.compile(r"[^/]+\.writing-[0-9a-f]{8}")
"""Temporary names; what a journal calls so is removed, so that it may not be anything else."""

_BACKUP = re.compile(r"[^/]+\.old-[0-9a-f]{8}")
"""Names of files that are about to be replaced."""

Move = tuple[Path, Path]
"""Temporary and final name of a file."""


class Replacement:
    """Files that are written under temporary names, to be put in place together.

    Args:
        descriptor: open journal.
        directory: directory of the journal and of all files.
        tag: end of all temporary names.
    """

    def __init__(self, descriptor: int, directory: Path, tag: str) -> None:
        self._descriptor = descriptor
        self._directory = directory
        self._tag = tag
        self.is_open = False
        """Whether it was neither finished nor undone, so that the journal is still needed."""

    def temporary(self, name: str) -> Path:
        """The path under which a file is written, or with which the paths of several files begin."""
        return self._directory / f"{name}.writing-{self._tag}"

    def put_in_place(self, moves: Sequence[Move]) -> None:
        """Rename all files, or put back the files that were there.

        Args:
            moves: files in the order in which they are renamed.

        Raises:
            OSError: not all could be renamed.
        """
        for source, _ in moves:
            sync(source)
        sync(self._directory)
        backups = {t: t.with_name(f"{t.name}.old-{self._tag}") for _, t in moves if os.path.lexists(t)}
        named = [[s.name, t.name, backups[t].name if t in backups else None] for s, t in moves]
        _append(self._descriptor, {"moves": named})
        self.is_open = True
        done: list[Path] = []
        try:
            for target, backup in backups.items():
                _link_or_copy(target, backup)
            for source, target in moves:
                source.replace(target)
                done.append(target)
            sync(self._directory)
        except OSError:
            self._undo(done, backups)
            raise
        _remove(backups.values())
        self.is_open = False

    def _undo(self, done: Sequence[Path], backups: dict[Path, Path]) -> None:
        with contextlib.suppress(OSError):  # a full disk; it matters only if this process is killed now
            _append(self._descriptor, {"undo": True})
        for target in reversed(done):
            if target in backups:
                backups[target].replace(target)
            else:
                target.unlink(missing_ok=True)
        _remove(backups.values())
        self.is_open = False


@contextlib.contextmanager
def replacing_together(journal: Path, names: Sequence[str]) -> Iterator[Replacement]:
    """Write several files of a directory, then replace all of them or none.

    Args:
        journal: path of the journal, in the directory of the files; it is there only meanwhile.
        names: names of the files, or beginnings of names, to write.

    Raises:
        BlockingIOError: another process is writing them.
        OSError: something cannot be written; what was there is untouched.
    """
    finish_interrupted(journal)
    descriptor = _created(journal)
    replacement = Replacement(descriptor, journal.parent, uuid.uuid4().hex[:8])
    temporary = [replacement.temporary(name) for name in names]
    try:
        _append(descriptor, {"kind": "caramel journal", "temporary": [path.name for path in temporary]})
        sync(journal.parent)
        yield replacement
    finally:
        if not replacement.is_open:
            _remove_beginning(temporary)
            journal.unlink(missing_ok=True)
        os.close(descriptor)


def _created(journal: Path) -> int:
    """A descriptor of a new journal, locked."""
    try:
        descriptor = os.open(journal, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError as error:
        raise _busy(journal) from error
    if not lock(descriptor) or os.fstat(descriptor).st_nlink == 0:  # somebody took it for a leftover, as it is empty
        os.close(descriptor)
        raise _busy(journal)
    return descriptor


def finish_interrupted(journal: Path) -> None:
    """Finish, or undo, what a dead process was putting in place, and remove what else it has left.

    Args:
        journal: path of its journal, which may not exist.

    Raises:
        BlockingIOError: the process is alive.
        OSError: it cannot be finished, or this is no journal.
    """
    try:
        descriptor = os.open(journal, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        if not lock(descriptor):
            raise _busy(journal)
        record = _read(descriptor, journal)
        directory = journal.parent
        for source, target, backup in reversed(record.moves) if record.is_undone else record.moves:
            if not record.is_undone:
                if (directory / source).exists():
                    os.replace(directory / source, directory / target)
            elif backup is None:
                if not (directory / source).exists():  # it was put in place
                    (directory / target).unlink(missing_ok=True)
            elif (directory / backup).exists():
                os.replace(directory / backup, directory / target)
        _remove(directory / backup for _, _, backup in record.moves if backup is not None)
        _remove_beginning([directory / name for name in record.temporary])
        sync(directory)
        journal.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


@dataclass
class _Record:
    """What is in a journal."""

    temporary: list[str] = field(default_factory=list)
    moves: list[tuple[str, str, str | None]] = field(default_factory=list)
    is_undone: bool = False


def _read(descriptor: int, journal: Path) -> _Record:
    """The content of a journal. Its last line may be cut off; what it was to say has not begun then."""
    with open(descriptor, "rb", closefd=False) as file:
        content = file.read()
    if content[: len(_HEADER)] != _HEADER[: len(content)]:
        raise _no_journal(journal)
    record = _Record()
    try:
        for line in content.split(b"\n")[:-1]:
            entry = json.loads(line)
            record.temporary += [_name(name, _TEMPORARY) for name in entry.get("temporary", ())]
            for source, target, backup in entry.get("moves", ()):
                saved = None if backup is None else _name(backup, _BACKUP)
                record.moves.append((_name(source), _name(target), saved))
            record.is_undone = record.is_undone or "undo" in entry
    except (ValueError, TypeError, AttributeError) as error:
        raise _no_journal(journal) from error
    return record


def _name(value: Any, pattern: re.Pattern[str] = re.compile(r"[^/]+")) -> str:
    if not isinstance(value, str) or value in (".", "..") or not pattern.fullmatch(value):
        raise ValueError(f"{value!r} is no name")
    return value


def _append(descriptor: int, entry: dict[str, Any]) -> None:
    line = json.dumps(entry).encode() + b"\n"
    while line:
        line = line[os.write(descriptor, line) :]
    os.fsync(descriptor)


def _busy(journal: Path) -> BlockingIOError:
    return BlockingIOError(errno.EWOULDBLOCK, "another process is writing there", str(journal))


def _no_journal(journal: Path) -> OSError:
    return OSError(errno.EINVAL, "it is damaged, or no record of an interrupted write: move it away", str(journal))


def _link_or_copy(file: Path, name: Path) -> None:
    try:
        os.link(file, name, follow_symlinks=False)
    except OSError:  # a file system without hard links
        shutil.copy2(file, name, follow_symlinks=False)


def _remove(paths: Any) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _remove_beginning(prefixes: Sequence[Path]) -> None:
    """Remove all files and directories whose names begin with temporary ones."""
    for prefix in prefixes:
        for leftover in prefix.parent.glob(glob.escape(prefix.name) + "*"):
            if leftover.is_dir() and not leftover.is_symlink():  # TensorFlow's own temporary directory
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink(missing_ok=True)
