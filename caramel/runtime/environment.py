"""The environment of processes of our own."""

from __future__ import annotations

import os
from pathlib import Path

import caramel


def child_environment() -> dict[str, str]:
    """This process's environment, and this very package found by ``python -m``."""
    root = str(Path(caramel.__file__).resolve().parent.parent)
    path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH")) if p)
    return {**os.environ, "PYTHONPATH": path}
