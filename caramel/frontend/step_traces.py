"""The traces of a training step that are needed until it is known what it does for any part of a batch.

Decision 24 has the reasons (docs/decisions/0024-a-fixed-batch-is-the-whole-batch.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tensorflow as tf

from caramel.errors import CaptureError
from caramel.frontend.batch.row_constants import of_part, row_constants
from caramel.frontend.captured import Gather, RawProgram
from caramel.frontend.programs.function_program import capture_step
from caramel.frontend.programs.naming import Naming
from caramel.frontend.programs.step_inputs import StepInputs
from caramel.frontend.recording.automatic_names import Renaming, counted_anew, counts_so_far, parts_of
from caramel.frontend.recording.own_ops import check_has_the_same, check_is_the_same
from caramel.frontend.recording.user_code import is_library
from caramel.frontend.recording.watching import recording
from caramel.graph.graph import behind_identities, node_of

__all__ = ["StepTraces"]


@dataclass(frozen=True)
class _Trace:
    """One trace of a step.

    Attributes:
        raw: the step.
        names: the names that it uses.
        asks_for_sizes: whether its own code asks for sizes that are open.
        own_ops: the ops that its own code makes; none where no number of examples is known.
        numbers: numbers of Python that are results.
    """

    raw: RawProgram
    names: set[str]
    asks_for_sizes: bool
    own_ops: Sequence[Any]
    numbers: Sequence[Any]


@dataclass
class StepTraces:
    """Traces a step as often as it takes to know what it does for any part of a batch.

    Who watches the step keeps what its last trace has made, so that is always the one that stands.

    Attributes:
        step: a tf.function or a plain Python function.
        inputs: what it takes.
        loss: see `caramel.capture`.
        loss_reduction: see `caramel.capture`.
        replicated: see `caramel.capture`.
        rows: see `caramel.frontend.recording.recorder.Recorder`.
        workers: number of workers that have such a part.
        unrolls: whether to unroll loops that differentiate.
        naming: the names of what the step uses.
    """

    step: Callable[..., Any]
    inputs: StepInputs
    loss: Any
    loss_reduction: str | None
    replicated: Sequence[str]
    rows: tuple[int | None, int] | None = None
    workers: int = 1
    unrolls: bool = False
    naming: Naming = field(default_factory=lambda: Naming(Renaming({})))
    _renamed: Mapping[str, str] = field(default_factory=dict)

    def traced(self, gathers: Collection[Gather]) -> RawProgram:
        """The step for any number of examples, or for those of a part.

        Args:
            gathers: inputs of ops that are to have the examples of all workers.

        Raises:
            CaptureError: it cannot be traced, or is another step for another number of examples.
        """
        first = self._traced(gathers)
        renamed = counted_anew(first.names, counts_so_far())
        if renamed and not self._renamed:  # a program that is built again in one process has the same plan
            self._renamed, self.naming = renamed, Naming(Renaming(renamed))
            first = self._traced(gathers)
        if self.rows is None and first.asks_for_sizes and self.inputs.examples is not None:
            return self._checked(first, self.inputs.examples, gathers)
        return first.raw if self.rows is None or self.workers == 1 else self._of_part(*self.rows, gathers)

    def _checked(self, opened: _Trace, examples: int, gathers: Collection[Gather]) -> RawProgram:
        """A step that is traced for any number of examples, if it is the same as for the number that batches have."""
        told = self._traced(gathers, open_size=examples)
        code = getattr(getattr(self.step, "python_function", self.step), "__code__", None)
        is_by_library = code is not None and is_library(code.co_filename)  # results of metrics, which know shapes
        has_results = np.array_equal(opened.numbers, told.numbers) and (
            is_by_library or _has_results_of(opened.raw, told.raw)
        )
        check_is_the_same(opened.own_ops, told.own_ops, examples, has_results)
        return self._traced(gathers).raw

    def _of_part(self, batch: int | None, rows: int, gathers: Collection[Gather]) -> RawProgram:
        """A step that is traced for a part of the batch, with those of its constants that follow from its size."""
        whole = self._traced(gathers, (batch, self.workers * rows))
        part = self._traced(gathers)
        check_has_the_same(part.own_ops, whole.own_ops)
        found = row_constants(part.raw.graph, whole.raw.graph, rows, self.workers)
        return replace(part.raw, graph=of_part(part.raw.graph, whole.raw.graph, found), row_constants=found)

    def _traced(
        self, gathers: Collection[Gather], rows: tuple[int | None, int] | None = None, open_size: int | None = None
    ) -> _Trace:
        """One trace.

        Args:
            gathers: inputs of ops that are to have the examples of all workers.
            rows: see `caramel.frontend.recording.recorder.Recorder`; None for those of these traces.
            open_size: see there.

        Raises:
            CaptureError: the step cannot be traced.
        """
        rows = rows or self.rows
        specs = self.inputs.specs if rows is None else self.inputs.with_rows(rows[1])
        own_ops: list[Any] | None = [] if self.inputs.examples is not None else None
        with recording(gathers, rows, self._renamed, open_size, own_ops) as recorder:
            if not tf.executing_eagerly():
                raise CaptureError(
                    "a training step is captured with the values that its variables have, and TensorFlow does not run "
                    "eagerly here (after disable_v2_behavior(), or in a tf.Graph): build a graph inside "
                    "'with caramel.capture()' instead"
                )
            raw = capture_step(
                self.step,
                specs,
                recorder,
                self.naming,
                loss=self.loss,
                loss_reduction=self.loss_reduction,
                replicated=self.replicated,
                unrolls=self.unrolls,
            )
        names = recorder.scopes | parts_of([v.name for v in raw.variables])
        return _Trace(raw, names, recorder.asks_for_sizes, own_ops or (), recorder.numbers)


def _has_results_of(raw: RawProgram, other: RawProgram) -> bool:
    """Whether a trace of a step gives as many results as another, and the same where they are constants in both."""
    if [name for name, _ in raw.outputs] != [name for name, _ in other.outputs]:
        return False
    made = [
        [program.graph[node_of(behind_identities(program.graph, tensor))] for _, tensor in program.outputs]
        for program in (raw, other)
    ]
    return all(a.attr["value"] == b.attr["value"] for a, b in zip(*made) if a.op == b.op == "Const")
