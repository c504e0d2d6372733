"""A trace as one JSON file."""

from __future__ import annotations

import os
from dataclasses import asdict, fields
from itertools import pairwise
from typing import Any

from caramel.errors import InputError, TraceError
from caramel.facts import Trace
from caramel.model import Model
from caramel.outline import Outline, differences
from caramel.util.dataclass_json import from_data
from caramel.util.json_files import JsonFormat, mapping, number, only_keys, sequence, text, whole
from caramel.util.tables import aligned
from caramel.util.text_files import about_file, write_text
from caramel.util.units import format_time

FORMAT = JsonFormat("trace", 2, TraceError, "caramel trace", "trace anew (caramel trace)", "caramel trace")


_ORDERS = {"total": "all that gradients need in one order", "updates": "the gradients' last ops in one order"}
"""What each kind of `ControlEdges` orders, for people."""

_LONGEST_S = 1e9
"""The longest time that makes sense, 32 years, as for all-reduces: more is a mistake, such as another unit."""


def trace_to_json(trace: Trace) -> str:
    """The trace as JSON; the same trace always gives the same text."""
    return FORMAT.write(asdict(trace)) + "\n"


def trace_from_json(document: str, name: str = "this") -> Trace:
    """Read what `trace_to_json` wrote.

    Args:
        document: JSON text of the trace.
        name: noun for it in messages.

    Raises:
        TraceError: it is damaged, something else, or of another version.
    """
    data = FORMAT.read(document, name)
    with FORMAT.reading(name):
        only_keys(data, [field.name for field in fields(Trace)])
        examples = data["examples"]
        return Trace(
            model_digest=text(data["model_digest"]),
            op_s=mapping(data["op_s"], _seconds),
            op_bytes=mapping(data["op_bytes"], lambda value: whole(value, 0)),
            step_s=_seconds(data["step_s"]),
            predicted_s=_seconds(data["predicted_s"]),
            runs=whole(data["runs"], 1),
            workers=whole(data["workers"], 1),
            examples=None if examples is None else whole(examples, 0),
            description=text(data["description"]),
            warnings=sequence(data["warnings"], text),
            ordered_step_s=mapping(data["ordered_step_s"], _seconds),
            # Traces of earlier versions lack these.
            op_least_s=mapping(data.get("op_least_s", {}), _seconds),
            plain_steps_s=sequence(data.get("plain_steps_s", []), _seconds),
            pace=mapping(data.get("pace", {}), _pace),
            outline=from_data(Outline | None, data.get("outline"), "outline"),
        )


def _seconds(value: Any) -> float:
    return number(value, _LONGEST_S)


def _pace(values: Any) -> tuple[float, ...]:
    pace = sequence(values, lambda value: number(value, 1.0))
    if len(pace) < 2 or pace[-1] != 1 or any(later < earlier for earlier, later in pairwise(pace)):
        raise ValueError("a pace ascends to 1")
    return pace


def save_trace(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write a trace to a file; what was there is replaced only once all is written.

    Raises:
        TraceError: it cannot be written; what was there is untouched.

    Examples:
        >>> import os, tempfile
        >>> import caramel
        >>> from caramel.facts import Trace
        >>> trace = Trace("digest", {"MatMul": 2e-3}, {}, 3e-3, 2e-3, 10, 1, 32, "by hand")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     caramel.save_trace(trace, os.path.join(folder, "trace.json"))
        ...     again = caramel.load_trace(os.path.join(folder, "trace.json"))
        >>> again == trace
        True
    """
    write_text(path, trace_to_json(trace), "the trace", TraceError)


def load_trace(path: str | os.PathLike[str]) -> Trace:
    """Read a trace from a file; it may have been measured on another machine.

    Raises:
        TraceError: no such file, or it is damaged, something else, or of another version.

    Examples:
        >>> import os, tempfile
        >>> import caramel
        >>> from caramel.facts import Trace
        >>> trace = Trace("digest", {"MatMul": 2e-3}, {}, 3e-3, 2e-3, 10, 1, 32, "by hand")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     caramel.save_trace(trace, os.path.join(folder, "trace.json"))
        ...     again = caramel.load_trace(os.path.join(folder, "trace.json"))
        >>> again == trace
        True
    """
    return trace_from_json(FORMAT.text_of(path), f"the trace {os.fspath(path)!r}")


def as_text(trace: Trace, most: int = 10) -> str:
    """A trace for people to read.

    Args:
        trace: the trace.
        most: number of the most expensive ops to show.
    """
    workers = "1 worker" if trace.workers == 1 else f"{trace.workers} workers at once"
    share = "" if trace.examples is None else f" on {trace.examples} examples{' each' if trace.workers > 1 else ''}"
    off = f" ({trace.predicted_s / trace.step_s - 1:+.0%})" if trace.step_s > 0 else ""
    total = sum(trace.op_s.values())
    rows = [("op", "time", "share")]
    for name, time_s in sorted(trace.op_s.items(), key=lambda item: (-item[1], item[0]))[:most]:
        rows.append((name, format_time(time_s), f"{time_s / total:.1%}" if total > 0 else "-"))
    blocks = [
        f"trace: {trace.description}",
        f"{workers}{share}: a step takes {format_time(trace.step_s)}\n"
        f"its {len(trace.op_s)} ops take {format_time(total)} one after the other, and together predict "
        f"{format_time(trace.predicted_s)}{off}",
        *_orders(trace),
        aligned(rows, right={1, 2}),
        *(f"warning: {warning}" for warning in trace.warnings),
    ]
    return "\n\n".join(blocks)


def _orders(trace: Trace) -> list[str]:
    free_s = trace.ordered_step_s.get("none", 0.0)
    costs = [
        f"{format_time(time_s)} ({time_s / free_s - 1:+.1%}) with {_ORDERS.get(kind, kind)}"
        for kind, time_s in trace.ordered_step_s.items()
        if free_s > 0 and kind != "none"
    ]
    return [f"measured in turn, a step takes {format_time(free_s)} with no order, {', '.join(costs)}"] if costs else []


def check_trace(trace: Trace, model: Model) -> None:
    """Refuse a trace of another program.

    Args:
        trace: the trace.
        model: model for which the trace is to be used.

    Raises:
        InputError: ``trace`` is no trace.
        TraceError: the trace is of another graph.
    """
    if not isinstance(trace, Trace):
        raise InputError(f"a trace is what caramel.trace returns or load_trace reads, got {type(trace).__name__}")
    if trace.model_digest != model.digest:
        raise TraceError(
            f"the trace ({trace.description}) is of another program, or the program was changed since then "
            f"(digest {trace.model_digest[:12]}, this one has {model.digest[:12]}; "
            f"{differences(trace.outline, model.outline)}): {FORMAT.anew}"
        )
    _check_times(trace)


def _check_times(trace: Trace) -> None:
    """Refuse times that nothing can be planned with: of a trace that was made by hand, they are not checked before."""
    where = f"the trace ({trace.description})"
    steps = {"step_s": trace.step_s, "predicted_s": trace.predicted_s}
    plain_s = {str(number): time_s for number, time_s in enumerate(trace.plain_steps_s)}
    ops, orders = (trace.op_s, trace.op_least_s), trace.ordered_step_s
    for what, times in (("", steps), *(("op ", op_s) for op_s in ops), ("order ", orders), ("plain step ", plain_s)):
        for name, time_s in times.items():
            try:
                _seconds(time_s)
            except ValueError as error:
                raise TraceError(
                    f"{where} is damaged: the seconds of {what}{name!r}: {error}; {FORMAT.anew}"
                ) from error
    for kind, pace in trace.pace.items():
        try:
            _pace(list(pace))
        except (ValueError, TypeError) as error:
            raise TraceError(f"{where} is damaged: the pace of {kind!r}: {error}; {FORMAT.anew}") from error
    if trace.step_s > 0 and not any(trace.op_s.values()):
        raise TraceError(
            f"{where} says that a step takes {format_time(trace.step_s)}, and has no time of any of its ops: "
            f"{FORMAT.anew}"
        )


def as_trace(trace: Trace | str | os.PathLike[str] | None, model: Model) -> Trace | None:
    """The trace that a caller gave, or named by its file, which is read; it must be of this program.

    Raises:
        InputError: it is something else.
        TraceError: no such file, or it is damaged, of another version or of another program.
    """
    if trace is None:
        return None
    loaded = load_trace(trace) if isinstance(trace, (str, os.PathLike)) else trace
    with about_file(trace):
        check_trace(loaded, model)
    return loaded
