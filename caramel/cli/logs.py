"""What the command says on the way, how much of it, and where: ``-v``, ``-q`` and ``--log-file``."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any

import click

from caramel.errors import InputError
from caramel.util.progress import LOGGER_NAME, SAID_LOGGER_NAME, hide_progress
from caramel.util.whole_files import check_writable

_LIBRARY = "caramel"
"""Name of the logger above all of the library's."""

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
"""A line of a log file."""

_VERBOSITY, _QUIET, _FILE = "caramel.verbosity", "caramel.quiet", "caramel.log_file"
"""Keys of what the options say, in the meta data of click's context."""


def with_logs(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options about what it says."""
    file = click.Path(dir_okay=False)
    for option in (
        click.option(
            "--log-file",
            metavar="FILE",
            type=file,
            expose_value=False,
            callback=_noted(_FILE),
            help="Append to FILE what is said and done, with times.",
        ),
        click.option(
            "-q",
            "--quiet",
            is_flag=True,
            expose_value=False,
            callback=_noted(_QUIET),
            help="Say no more than results and errors.",
        ),
        click.option(
            "-v",
            "--verbose",
            count=True,
            expose_value=False,
            callback=_noted(_VERBOSITY),
            help="Say what is done; -vv: more of it.",
        ),
    ):
        command = option(command)
    return command


def is_quiet() -> bool:
    """Whether the command says no more than results and errors."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_QUIET))


def set_up(context: click.Context) -> None:
    """Send what the library logs, and warnings, to standard error and to the log file, as the options say.

    Args:
        context: context of the command.

    Raises:
        CaramelError: the log file cannot be written.
    """
    meta = context.meta  # shared by the contexts of a command line
    logger = logging.getLogger(_LIBRARY)
    _take_away(logger)
    shown = _on_standard_error()
    levels = (logging.WARNING, logging.INFO, logging.DEBUG)
    shown.setLevel(logging.ERROR if is_quiet() else levels[min(meta.get(_VERBOSITY, 0), 2)])
    logger.addHandler(shown)
    if meta.get(_FILE):
        check_writable(meta[_FILE])
        try:
            file = logging.FileHandler(meta[_FILE])
        except OSError as error:
            raise InputError(f"{meta[_FILE]!r} cannot be written: {error.strerror}") from error
        file.setFormatter(logging.Formatter(_FORMAT))
        logger.addHandler(file)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    hide_progress(is_quiet())
    before = warnings.showwarning
    warnings.showwarning = _log_warning
    context.call_on_close(lambda: _end(logger, before))


def _noted(key: str) -> Callable[..., None]:
    def note(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value:
            context.meta[key] = value

    return note


def _on_standard_error() -> logging.Handler:
    handler: logging.Handler
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.logging import RichHandler

        handler = RichHandler(console=Console(stderr=True), show_time=False, show_path=False)
    else:
        handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(lambda record: record.name not in (LOGGER_NAME, SAID_LOGGER_NAME))  # shown in their own ways
    return handler


def _log_warning(message: Any, *where: Any, **more: Any) -> None:
    """Log a warning, in place of `warnings.showwarning`: of what concerns users the line of code is no part."""
    logging.getLogger(f"{_LIBRARY}.warnings").warning("warning: %s", str(message).strip())


def _take_away(logger: logging.Logger) -> None:
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()


def _end(logger: logging.Logger, show_warning: Any) -> None:
    """As before the command: others may run in this process."""
    _take_away(logger)
    logger.propagate = True
    logger.setLevel(logging.NOTSET)
    hide_progress(False)
    warnings.showwarning = show_warning
