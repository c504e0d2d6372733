"""Progress of long work: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_over(total: int | None, enabled: bool = True) -> Iterator[Callable[[int, str], None]]:
    """Show how far a loop is.

    Args:
        total: number of rounds; None if it is not known.
        enabled: whether to show anything at all.

    Yields:
        A function to call with (rounds done, text to show).
    """
    if not enabled or not sys.stderr.isatty():
        yield lambda done, text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda done, text: bar.update(task, completed=done, description=text)
