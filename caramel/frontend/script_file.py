"""Scripts: files that are run from top to bottom, unlike program files, of which an entry is called."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from caramel.errors import CaramelError, ProgramError
from caramel.frontend.user_code import program_error


def is_script(spec: str) -> bool:
    """Whether a command's argument names a script, ``FILE.py``, and no entry of it."""
    return spec.endswith(".py")


def run_script(file: str, arguments: Sequence[str] = ()) -> None:
    """Run a script as ``python FILE.py ARGUMENTS`` does.

    Args:
        file: path of the script.
        arguments: its arguments.

    Raises:
        ProgramError: there is no such file, or it raises an exception.
        CaramelError: as it raises it.
        SystemExit: it exits.
    """
    path = Path(file)
    if not path.is_file():
        raise ProgramError(f"there is no script {str(path)!r}")
    with _as_main(path, arguments):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except CaramelError:
            raise
        except Exception as error:
            raise program_error(f"script {str(path)!r}", error) from error


@contextmanager
def _as_main(path: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Arguments and search path of a script; the search path stays, for what it imports later."""
    before = list(sys.argv)
    sys.argv[:] = [str(path), *arguments]
    directory = str(path.resolve().parent)
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        yield
    finally:
        sys.argv[:] = before
