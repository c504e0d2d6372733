"""Scripts: files that are run from top to bottom, unlike program files, of which an entry is called."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

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
    with _as_main(path, arguments) as main:
        try:
            exec(compile(path.read_bytes(), main.__file__, "exec", dont_inherit=True), vars(main))
        except CaramelError:
            raise
        except Exception as error:
            raise program_error(f"script {str(path)!r}", error) from error


@contextmanager
def _as_main(path: Path, arguments: Sequence[str]) -> Iterator[Any]:
    """The module of a script, its arguments and search path; the search path stays, for what it imports later.

    Not that of `runpy`: Python has the whole path in ``__file__``, but the path as it was given in `sys.argv`.
    """
    main: Any = ModuleType("__main__")
    main.__file__ = str(path.absolute())
    before, main_before = list(sys.argv), sys.modules["__main__"]
    sys.argv[:] = [str(path), *arguments]
    sys.modules["__main__"] = main
    directory = str(path.resolve().parent)
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        yield main
    finally:
        sys.argv[:] = before
        sys.modules["__main__"] = main_before
