"""The results of a command, for people or for programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from caramel.cli.options import print_json
from caramel.util.progress import note_said


@dataclass
class Results:
    """What a command has to say: to people as it comes, to programs at the end.

    Attributes:
        as_json: whether it is for programs.
        values: what it is, by name.
    """

    as_json: bool
    values: dict[str, Any]

    def add(self, text: str, **values: Any) -> None:
        """Say something.

        Args:
            text: what to print for people.
            values: the same for programs.
        """
        self.values.update(values)
        note_said(text)
        if not self.as_json:
            click.echo(text)

    def add_evaluation(self, values: Any) -> None:
        """Say what an evaluation has given.

        Args:
            values: arrays in nested dicts, lists and tuples.
        """
        named = _named(values)
        for name, value in named:
            self.add(f"evaluation {name}: {_shown(value)}")
        self.values["evaluation"] = {name: _for_programs(value) for name, value in named}

    def end(self) -> None:
        """Print what is for programs."""
        if self.as_json:
            print_json(self.values)


def compared(before: str | None, after: str, differences: str) -> str:
    """The differences between two plans, for people.

    Args:
        before: file of the first.
        after: name of the second.
        differences: see `caramel.Plan.diff`.
    """
    return f"{before} -> {after}:\n{differences}" if differences else f"no difference from {before}"


def _named(values: Any, path: str = "") -> list[tuple[str, Any]]:
    """Name and value of every array in a structure."""
    if isinstance(values, dict):
        return [item for key, value in values.items() for item in _named(value, f"{path}{key}/")]
    if isinstance(values, (list, tuple)):
        return [item for n, value in enumerate(values) for item in _named(value, f"{path}{n}/")]
    return [(path.rstrip("/") or "result", values)]


def _for_programs(value: Any) -> Any:
    """An array, or a value of TensorFlow, as JSON has it."""
    import numpy as np

    plain = np.asarray(value).tolist()
    return plain.decode(errors="replace") if isinstance(plain, bytes) else plain


def _shown(value: Any) -> str:
    import numpy as np

    array = np.asarray(value)
    if array.shape:
        return f"array of shape {list(array.shape)}"
    if isinstance(value, bytes):  # TensorFlow's strings
        return value.decode(errors="replace")
    return f"{float(array):.6g}" if array.dtype.kind in "biuf" else str(array)
