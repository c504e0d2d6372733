"""The one tree of errors that Caramel raises on purpose."""

from __future__ import annotations

import re
from collections.abc import Iterable


class CaramelError(Exception):
    """Base class: the message says what is wrong, where, and what to do."""


class InputError(CaramelError, ValueError):
    """An argument, a fed array or an option does not fit."""


class ProgramError(CaramelError):
    """A program file or its entry cannot be loaded or does not follow the contract."""


class CaptureError(CaramelError):
    """The training program cannot be turned into a Model (no loss, two training ops, ...).

    Attributes:
        wants_reduction: whether all that is missing is that the caller says ``loss_reduction=``.
        may_pass_later: whether it may go well the next time: the program raised an error, or does something once.
    """

    # Attributes of the class, as AutoGraph makes errors anew that have no constructor of their own.
    wants_reduction = False
    may_pass_later = False


class UnsupportedError(CaptureError):
    """The program is valid but uses an op or construct that cannot be replicated yet."""


class InvariantError(CaramelError):
    """A graph, plan or schedule breaks an invariant; the message names modifier and node."""


class FitError(CaramelError):
    """Measurements cannot be turned into a model of the network."""


class AnalysisError(CaramelError):
    """An analyzer failed half-way; nothing was planned."""


class PlanError(InputError):
    """A plan does not fit the model, the workers or this library, or breaks an invariant."""


class OtherProgramError(PlanError):
    """A plan was made for another program than this one."""


class TraceError(CaramelError):
    """A trace cannot be measured, read or written, or is of another program."""


class CheckpointError(CaramelError):
    """A checkpoint is missing, damaged, or does not fit the model."""


class ExportError(CaramelError):
    """An export could not be written."""


class ReportError(CaramelError):
    """A timeline or a report could not be written."""


class ClusterError(CaramelError):
    """A worker cannot be started or reached, or died, or does not answer in time."""


class DataError(CaramelError):
    """An input pipeline failed, or the workers' pipelines do not fit together. No step has run."""


class EndOfData(CaramelError):
    """The dataset has no further element in this pass. No step has run."""


class StepError(CaramelError):
    """The program itself failed inside a training step or an evaluation."""


_TERMINAL_CODE = re.compile("\x1b\\[[0-9;]*m")
"""What makes text bold or coloured on a terminal, as Keras puts it into messages."""


def in_one_line(error: BaseException) -> str:
    """What an error says, without the code and the traces that some libraries put into it.

    >>> in_one_line(ValueError("in user code:\\n\\n    File 'a.py', line 3\\n\\n    ValueError: no such layer\\n"))
    'no such layer'
    """
    plain = _TERMINAL_CODE.sub("", str(error))
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("Exception encountered when calling"):  # Keras; what was raised follows
        return lines[1]
    if not lines:
        return type(error).__name__
    if lines[0] != "in user code:":
        return lines[0]
    return lines[-1].removeprefix(f"{type(error).__name__}: ")


def listed(names: Iterable[str], most: int = 5) -> str:
    """Names for a message, the first few of many.

    >>> listed("abcd", most=2)
    'a, b and 2 more'
    """
    everything = list(names)
    shown = ", ".join(everything[:most])
    return shown if len(everything) <= most else f"{shown} and {len(everything) - most} more"
