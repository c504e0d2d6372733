"""Writing results."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_json(data: Any, path: str | os.PathLike[str]) -> None:
    """Write JSON, whole or not at all."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(data, indent=1) + "\n")
    temporary.replace(target)
