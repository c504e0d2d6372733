"""Python files of the user's that are loaded as modules."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType


def executed_module(path: Path, name: str) -> ModuleType | None:
    """The module of a Python file, executed; where that raises, nothing of it is left.

    Args:
        path: path of the file.
        name: name of the module, by which its own classes find it. A module of another file that has it keeps it.

    Returns:
        None if the file is not one of Python's.
    """
    known = sys.modules.get(name)
    if known is not None and not _is_of(known, path):
        name = f"caramel_own_{name}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        return None
    module, before = importlib.util.module_from_spec(spec), sys.modules.get(name)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        raise
    return module


def _is_of(module: ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and os.path.realpath(file) == os.path.realpath(path)
