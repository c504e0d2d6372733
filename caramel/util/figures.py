"""Plots as files, by matplotlib."""

from __future__ import annotations

import os
from typing import Any

from caramel.errors import InputError, listed
from caramel.util.whole_files import check_writable, replacing

_DOTS_PER_INCH = 120


def check_plot(path: str | os.PathLike[str]) -> None:
    """Refuse the file of a plot that cannot be written, before anything is done for it.

    Args:
        path: file to write; its ending says the format.

    Raises:
        InputError: it is no file that can be written, or of no format that matplotlib draws.
    """
    check_writable(os.fspath(path))
    from matplotlib.backend_bases import FigureCanvasBase  # takes half a second to import

    kinds = FigureCanvasBase.get_supported_filetypes()
    if _format(path) not in kinds:
        endings = listed(sorted(kinds), most=len(kinds))
        raise InputError(f"a plot cannot be written to {str(path)!r}: its ending must be one of {endings}")


def save_figure(figure: Any, path: str | os.PathLike[str]) -> None:
    """Write a figure of matplotlib.

    Args:
        figure: the figure.
        path: file to write; its ending says the format, PNG without one.

    Raises:
        InputError: it cannot be written.
    """
    try:
        with replacing(path) as temporary:
            figure.savefig(temporary, dpi=_DOTS_PER_INCH, format=_format(path))
    except (OSError, ValueError) as error:
        raise InputError(f"the plot cannot be written to {path}: {error}") from error


def _format(path: str | os.PathLike[str]) -> str:
    return os.path.splitext(path)[1].removeprefix(".").lower() or "png"
