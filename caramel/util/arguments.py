"""Checks of arguments that more than one module takes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from numbers import Real
from typing import Any, ParamSpec, TypeVar

from caramel.errors import InputError

P = ParamSpec("P")
R = TypeVar("R")

MOST_WORKERS = 256
"""The largest number of workers of a graph (our choice).

Its nodes grow with their square: 64 workers have 253,000 in 25 buckets (docs/benchmarks/large-models.md). With 256
there are sixteen times as many, at 200 bytes each, and a GraphDef has at most 2 GiB.
"""

MOST_PREDICTED_WORKERS = 10_000
"""The largest number of workers for which times are predicted (our choice): formulas know no end, but what they say of
more helps nobody."""

MOST_CHUNKS = 256
"""The largest number of chunks of an all-reduce (our choice): each has ops of its own on every worker; the paper's
largest is 8."""

SHORTEST_TIMEOUT_S, LONGEST_TIMEOUT_S = 1e-3, 2_000_000.0
"""Range of timeouts: TensorFlow and the system count whole milliseconds, and at most 2^31 of them."""

DEFAULT_STEP_TIMEOUT_S = 600.0
"""Seconds that a step may take before its workers count as lost."""


def whole_number(value: Any, name: str, least: int = 1, most: int | None = None, reason: str = "") -> int:
    """The argument, as an int.

    Args:
        value: the argument; NumPy's integers are as good as Python's.
        name: noun for the argument in the error, such as ``"depth"``.
        least: least allowed value.
        most: largest allowed value; None for any.
        reason: reason of the largest value, for the error.

    Raises:
        InputError: the argument is no whole number in the range.

    >>> whole_number(3, "depth"), whole_number(0, "steps", 0)
    (3, 0)
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {shown(value)}")
    if most is not None and number > most:
        raise InputError(f"{name} must be at most {most:,}, got {shown(value)}{': ' if reason else ''}{reason}")
    return number


def worker_count(value: Any, name: str) -> int:
    """The number of workers of a graph; see `whole_number`."""
    reason = "the graph has every worker's step, and the ops of all-reduces grow with the square of the workers"
    return whole_number(value, name, most=MOST_WORKERS, reason=reason)


def predicted_worker_count(value: Any, name: str) -> int:
    """The number of workers of a step that is only predicted; see `whole_number`."""
    return whole_number(value, name, most=MOST_PREDICTED_WORKERS, reason="predictions go so far")


def chunk_count(value: Any, name: str) -> int:
    """The number of chunks of an all-reduce; see `whole_number`."""
    return whole_number(value, name, most=MOST_CHUNKS, reason="each chunk has ops of its own on every worker")


def timeout_s(value: Any, name: str) -> float:
    """A timeout in seconds, as a float.

    Args:
        value: the argument.
        name: noun for the argument in the error, such as ``"step_timeout_s"``.

    Raises:
        InputError: it is no number, or outside of what TensorFlow and the system can count.

    >>> timeout_s(600, "step_timeout_s")
    600.0
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not SHORTEST_TIMEOUT_S <= value <= LONGEST_TIMEOUT_S:
        raise InputError(
            f"{name} must be a positive number of seconds, from {SHORTEST_TIMEOUT_S:g} to {LONGEST_TIMEOUT_S:,.0f} "
            f"(whole milliseconds are counted, in 32 bits), got {shown(value)}"
        )
    return float(value)


def one_of(value: Any, choices: Iterable[str], name: str) -> str:
    """The argument, one of some words.

    Args:
        value: the argument.
        choices: the words.
        name: noun for the argument in the error, such as ``"policy"``.

    Raises:
        InputError: it is none of them.

    >>> one_of("mean", ("mean", "sum"), "reduction")
    'mean'
    """
    words = list(choices)
    if not isinstance(value, str) or value not in words:
        raise InputError(f"{name} must be {' or '.join(map(repr, words))}, got {shown(value)}")
    return value


def flag(value: Any, name: str) -> bool:
    """The argument, as true or false.

    Args:
        value: the argument; 0 and 1 and what NumPy compares are as good as Python's own.
        name: noun for the argument in the error, such as ``"batching"``.

    Raises:
        InputError: it is something else.

    >>> flag(True, "batching"), flag(0, "batching")
    (True, False)
    """
    try:
        is_flag = not isinstance(value, float) and value in (False, True)
    except ValueError:  # an array compares with each entry
        is_flag = False
    if not is_flag:
        raise InputError(f"{name} must be True or False, got {shown(value)}")
    return bool(value)


def shown(value: Any, most: int = 60) -> str:
    """A value as a message shows it: not longer than that, whatever it is.

    Args:
        value: the value.
        most: largest number of characters.

    >>> shown("a" * 100, 10)
    "'aaaaaa..."
    """
    try:
        text = repr(value)
    except Exception as error:  # a number of 4,300 digits, lists in lists in lists, anything of the user's
        return f"a value that cannot be shown ({type(error).__name__})"
    return text if len(text) <= most else f"{text[: most - 3]}..."


def byte_count(value: Any, name: str, is_zero_allowed: bool = False) -> float:
    """The argument, as a float; infinity is allowed.

    Args:
        value: the argument, in bytes.
        name: noun for the argument in the error, such as ``"threshold_bytes"``.
        is_zero_allowed: whether the argument may be 0.

    Raises:
        InputError: the argument is no number, or too small.

    >>> byte_count(4096, "threshold_bytes"), byte_count(0, "threshold_bytes", is_zero_allowed=True)
    (4096.0, 0.0)
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not (value > 0 or (is_zero_allowed and value == 0)):
        least = "at least 0" if is_zero_allowed else "more than 0"
        raise InputError(f"{name} must be a number of bytes, {least}, got {shown(value)}")
    return float(value)


def refuse_unknown(
    function: Callable[..., Any],
    names: Iterable[str],
    further: Collection[str] = (),
    instead: Mapping[str, str] | None = None,
) -> None:
    """Refuse an argument that a function does not have.

    Args:
        function: the function, which takes arguments of any name.
        names: names of the arguments that are none of its signature's.
        further: names that it takes besides those.
        instead: what to do instead of arguments that a user may expect, by name.

    Raises:
        InputError: there is such an argument.
    """
    for name in names:
        if name in further:
            continue
        known = [p.name for p in signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
        near = get_close_matches(name, [*known, *further], 1)
        called = function.__qualname__.removesuffix(".__init__")
        hint = f"did you mean {near[0]!r}?" if near else f"see help(caramel.{called})"
        raise InputError(f"{called}() has no argument {name!r}: {(instead or {}).get(name, hint)}")


def known_arguments_only(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that an argument that it does not have is refused with the name of the nearest.

    Args:
        function: the function; or the ``__init__`` of a class.

    >>> @known_arguments_only
    ... def double(number):
    ...     return 2 * number
    >>> double(numbr=2)
    Traceback (most recent call last):
    caramel.errors.InputError: double() has no argument 'numbr': did you mean 'number'?
    """
    parameters = signature(function).parameters

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        unknown = kwargs.keys() - parameters.keys()
        if unknown:
            refuse_unknown(function, sorted(unknown))
        return function(*args, **kwargs)

    return checked
