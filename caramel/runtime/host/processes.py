"""What can be said of another process of this machine."""

from __future__ import annotations

from pathlib import Path


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal; False where that cannot be told (not on Linux), or it is gone.

    Args:
        pid: process id.
    """
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] in ("T", "t")
