"""The results of a command, for people or for programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from caramel.cli.logs import log_what_is_said
from caramel.cli.options import print_json


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
        log_what_is_said(text)
        if not self.as_json:
            click.echo(text)

    def end(self) -> None:
        """Print what is for programs."""
        if self.as_json:
            print_json(self.values)
