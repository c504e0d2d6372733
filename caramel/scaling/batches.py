"""Times of ops with other numbers of examples, from traces with some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from caramel.errors import InputError
from caramel.facts import Trace
from caramel.measure.trace_file import check_trace
from caramel.model import Model

_LEAST, _MOST = 0.5, 2.0
"""Parts of the smallest and of the largest traced batch between which times are taken to lie on a line (our choice)."""


class TracedBatches:
    """Traces of one program, with different numbers of examples.

    The seconds of each op, of a step, and of a step with each order of its gradients are lines a + b * examples, a and
    b at least 0: through two traces, or fitted to more.

    Args:
        traces: at least one.

    Raises:
        InputError: they are of different programs or numbers of workers, or two have the same number of examples.
    """

    def __init__(self, traces: Sequence[Trace]) -> None:
        self._traces = sorted(traces, key=lambda trace: trace.examples or 0)
        self._found: dict[int, Trace] = {}
        if len({trace.model_digest for trace in traces}) > 1:
            raise InputError("the traces are of different programs: trace one program with several batches")
        if len({trace.workers for trace in traces}) > 1:
            raise InputError(
                "the traces have different numbers of workers on a host: trace with the same --workers-on-host"
            )
        counts = [trace.examples for trace in traces]
        if len(traces) > 1 and (None in counts or len({*counts}) < len(counts)):
            raise InputError(
                "each of several traces needs a number of examples of its own, got "
                + ", ".join("none" if count is None else str(count) for count in counts)
            )

    @property
    def usual(self) -> int | None:
        """The number of examples of a worker where nobody asks for another: that of the largest traced batch."""
        return self._traces[-1].examples

    def check(self, model: Model) -> None:
        """Check that the traces are of a program.

        Args:
            model: the program's step.

        Raises:
            TraceError: they are of another one.
        """
        for trace in self._traces:
            check_trace(trace, model)

    def at(self, examples: int | None) -> Trace | None:
        """The trace of so many examples; None where nothing is known of such a batch.

        Of one trace nothing follows for other batches. Of several it does from half of the smallest to twice the
        largest batch.

        Args:
            examples: of one worker; None for `usual`.
        """
        if examples is None:
            return self._traces[-1]
        for trace in self._traces:
            if trace.examples == examples:
                return trace
        counts = [trace.examples or 0 for trace in self._traces]
        if len(counts) < 2 or not _LEAST * counts[0] <= examples <= _MOST * counts[-1]:
            return None
        if examples not in self._found:
            self._found[examples] = self._on_lines(np.array(counts, float), examples)
        return self._found[examples]

    def _on_lines(self, counts: np.ndarray, examples: int) -> Trace:
        traces = self._traces
        nearest = min(traces, key=lambda trace: abs((trace.examples or 0) - examples))

        def lines(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
            names = [name for name in found[0] if all(name in each for each in found)]
            return {name: _at(counts, [each[name] for each in found], examples) for name in names}

        step_s = _at(counts, [trace.step_s for trace in traces], examples)
        longer = step_s / nearest.step_s if nearest.step_s > 0 else 1.0
        return replace(
            nearest,
            op_s=lines([trace.op_s for trace in traces]),
            op_bytes={name: round(size) for name, size in lines([trace.op_bytes for trace in traces]).items()},
            op_least_s=lines([trace.op_least_s for trace in traces]),
            ordered_step_s=lines([trace.ordered_step_s for trace in traces]),
            step_s=step_s,
            predicted_s=_at(counts, [trace.predicted_s for trace in traces], examples),
            plain_steps_s=tuple(longer * each for each in nearest.plain_steps_s),
            examples=examples,
        )


def _at(counts: np.ndarray, values: Sequence[float], examples: int) -> float:
    """A line with a start and a slope of at least 0 that is nearest to values, at a number of examples."""
    found = np.array(values, float)
    slope, start = np.polyfit(counts, found, 1)
    if slope < 0:
        return float(found.mean())
    if start < 0:
        return float(counts @ found / (counts @ counts) * examples)
    return float(start + slope * examples)
