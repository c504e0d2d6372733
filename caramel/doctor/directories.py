"""Directories that the driver and servers have to see under one path."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from caramel.doctor.finding import Finding, ok, problem, warning
from caramel.doctor.probe import Probe
from caramel.runtime.held_directory import checked_directory

_PATIENCE_S = 2.0
"""Seconds until a file of another machine must be there (our choice): network file systems remember for some seconds
what they have not found, but not of a name that is asked for only once."""

_PAUSE_S = 0.25


def check_here(check: str, path: str) -> list[Finding]:
    """Whether this process can write to a directory.

    Args:
        check: noun for the directory.
        path: path of it.
    """
    directory = checked_directory(path)
    if not directory.exists():
        mend = f"mkdir -p {directory}, where a later look can find out who sees it; a run would make it, too"
        return [warning(check, f"there is no {str(directory)!r} yet", mend)]
    try:
        with _marked(directory):
            pass
    except OSError as error:
        found = f"{str(directory)!r} cannot be written by this process: {error.strerror}"
        return [problem(check, found, "give another directory, or the right to write there")]
    return [ok(check, f"this process can write to {str(directory)!r}")]


def shared_with_first(check: str, path: str, address: str) -> Iterator[Finding]:
    """Whether worker 0, which writes checkpoints, sees a directory of this process and can write to it.

    Args:
        check: noun for the directory.
        path: path of it, at which this process can write.
        address: address of the server.
    """
    directory = Path(path)
    with Probe(address) as probe, _marked(directory) as (mark, token):
        if not _sees(probe, mark, token):
            yield problem(
                check,
                f"worker 0 at {address} does not see what this process writes to {str(directory)!r}",
                "run the program on worker 0's machine, or take a directory that both see under one path",
            )
            return
        answer = mark.with_name(mark.name + "-answer")
        try:
            reason = probe.write(str(answer), token)
            if reason is None and not _is_there(answer, token):
                reason = "what it has written is not here"
        finally:
            answer.unlink(missing_ok=True)
        if reason is None:
            yield ok(check, f"worker 0 sees {str(directory)!r} and can write to it")
        else:
            yield problem(
                check,
                f"worker 0 sees {str(directory)!r}, but cannot write to it: {reason}",
                "let the user of its server write there",
            )


def seen_by(path: str, address: str) -> bool:
    """Whether a server sees what this process writes to a directory.

    Args:
        path: path of the directory, at which this process can write.
        address: address of the server.

    Raises:
        tf.errors.OpError: the server does not answer.
    """
    with Probe(address) as probe, _marked(Path(path)) as (mark, token):
        return _sees(probe, mark, token)


def judged_others(check: str, path: str, seen: dict[int, bool]) -> Finding:
    """What it means that other workers than worker 0 see a directory, or do not: nothing is missing.

    Args:
        check: noun for the directory.
        path: path of it.
        seen: whether each worker sees it, by rank.
    """
    not_seen = [str(rank) for rank, is_seen in seen.items() if not is_seen]
    if not not_seen:
        return ok(check, f"all other workers see {path!r}, too")
    return ok(check, f"not seen by worker {', '.join(not_seen)}, which need not: worker 0 reads and writes")


@contextlib.contextmanager
def _marked(directory: Path) -> Iterator[tuple[Path, bytes]]:
    """A file with a text of its own in a directory, which is there only meanwhile."""
    mark = directory / f".caramel-doctor-{uuid.uuid4().hex}"
    token = uuid.uuid4().hex.encode()
    try:
        with open(mark, "xb") as file:
            file.write(token)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(mark, 0o644)  # the server may be another user's
        yield mark, token
    finally:
        mark.unlink(missing_ok=True)


def _sees(probe: Probe, mark: Path, token: bytes) -> bool:
    until_s = time.monotonic() + _PATIENCE_S
    while (content := probe.read(str(mark))) != token:
        if content is not None or time.monotonic() > until_s:
            return False
        time.sleep(_PAUSE_S)
    return True


def _is_there(answer: Path, token: bytes) -> bool:
    until_s = time.monotonic() + _PATIENCE_S
    while not (answer.exists() and answer.read_bytes() == token):
        if time.monotonic() > until_s:
            return False
        time.sleep(_PAUSE_S)
    return True
