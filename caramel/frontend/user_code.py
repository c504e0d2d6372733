"""Calls of the user's own code, whose errors name the user's line."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from caramel.errors import CaramelError, ProgramError, in_one_line

_HERE = str(Path(__file__).resolve().parents[1]) + os.sep
"""Directory of this package, whose lines are not the user's."""

_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
"""Directories of Python's own modules and of installed packages; the latter may be within the former."""


_WRONG_ARGUMENTS = 2
"""Exit status of argparse, and of most commands, where arguments are wrong."""


def guarded(call: Callable[[], Any], what: str) -> Any:
    """Call the user's code; what it raises becomes a ProgramError that names the line.

    Args:
        call: function to call.
        what: what it is, for the message.

    Returns:
        What it returns.

    Raises:
        ProgramError: it raises an exception, or exits.
        CaramelError: as it raises it.
    """
    try:
        return call()
    except CaramelError:
        raise
    except SystemExit as error:
        if error.code == _WRONG_ARGUMENTS:
            raise ProgramError(
                f"{what} exits, as it does not like its arguments: they come last in a command, after two dashes, as "
                "in FILE.py:ENTRY --workers 4 -- --rate 0.1"
            ) from error
        raise ProgramError(
            f"{what} exits: put the part that runs under if __name__ == '__main__':. A script that calls fit itself is "
            "given without an entry, as FILE.py"
        ) from error
    except Exception as error:
        raise program_error(what, error) from error


def program_error(what: str, error: Exception) -> ProgramError:
    """The error for a failure in the user's code; it names the innermost line that is the user's own.

    Args:
        what: what has failed, for the message.
        error: what it raised.
    """
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((_HERE, "<frozen"))]
    own = [f for f in frames if not f.filename.startswith(_LIBRARIES)] or frames
    where = f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
    return ProgramError(f"{what} raises {type(error).__name__}{where}: {in_one_line(error)}")
