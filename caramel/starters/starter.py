"""Write a program file to begin with."""

from __future__ import annotations

import os
import shlex
from importlib import resources
from pathlib import Path

from caramel.errors import InputError
from caramel.util.text_files import path_text
from caramel.util.whole_files import refuse_remote, sync

KINDS = ("keras", "tf1", "step")
"""The kinds of programs for which there is a file."""

_PACKAGE = "caramel.starters"
_FILE = "$file"
"""What stands in a template for the path of the file."""

_SCRIPTS = ("keras",)
"""The kinds whose file is a script, which the command runs from top to bottom."""

_ENTRY = "program"
"""The function that the command calls in the files of the other kinds."""


def starter_text(kind: str, path: Path) -> str:
    """The text of a program file.

    Args:
        kind: one of `KINDS`.
        path: path that it will have, as its own first lines say it.
    """
    template = resources.files(_PACKAGE) / "templates" / f"{kind}.py"
    return template.read_text(encoding="utf-8").replace(_FILE, shlex.quote(str(path)))


def write_starter(kind: str, path: str | os.PathLike[str]) -> Path:
    """Write a program file; nothing that is there is overwritten.

    Args:
        kind: one of `KINDS`.
        path: path of the file, in an existing directory.

    Returns:
        The path.

    Raises:
        InputError: there is something at the path, it is no Python file's, or it cannot be written.
    """
    target = Path(path_text(path, "the program file", InputError))
    if target.suffix != ".py":
        raise InputError(f"{str(target)!r} is no name of a program file: let it end in .py")
    if not target.stem.isidentifier():
        raise InputError(
            f"{str(target)!r} is no name of a program file: Python imports it, so take letters, digits and _ only, "
            "such as train.py"
        )
    text = starter_text(kind, target)
    temporary = target.with_name(f".{target.name}.writing-{os.getpid()}")
    try:
        refuse_remote(target)
        try:
            temporary.write_text(text, encoding="utf-8")
            sync(temporary)
            os.link(temporary, target)  # unlike a renaming it replaces nothing
        finally:
            temporary.unlink(missing_ok=True)
    except FileExistsError as error:
        raise InputError(f"{str(target)!r} is there already, and stays as it is: give another path") from error
    except OSError as error:
        raise InputError(f"{str(target)!r} cannot be written: {error.strerror}") from error
    return target


def next_commands(kind: str, path: Path) -> tuple[tuple[str, str], ...]:
    """What to do with a program file next, as (command, what it does).

    Args:
        kind: one of `KINDS`.
        path: path of the file.
    """
    file = shlex.quote(str(path))
    run = f"caramel run {file}" if kind in _SCRIPTS else f"caramel run {shlex.quote(f'{path}:{_ENTRY}')} --steps 200"
    return (
        (f"python {file}", "trains it on one device"),
        (f"{run} --workers 2", "trains it on two virtual devices of this machine"),
        (f"{run} --workers 2 --cluster processes", "trains it on two server processes of this machine"),
        ("caramel doctor", "says whether this machine, or a cluster, is ready"),
    )
