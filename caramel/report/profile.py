"""Profiles: what real steps did with their time, in the measures of the papers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caramel.errors import InputError
from caramel.measure.step_stats import step_of
from caramel.measure.timed_steps import Batches, as_batches, timed_steps
from caramel.report.measured import IN_MEMORY, measured_timeline
from caramel.report.step_timeline import STALL, Bar, Lanes, StepTimeline, busy_s
from caramel.runtime.session import Session
from caramel.runtime.step_rate import FIRST_RUNS
from caramel.util.arguments import whole_number
from caramel.util.tables import fitted, wrapped
from caramel.util.units import format_ms, format_size


@dataclass(frozen=True)
class WorkerProfile:
    """What a worker did in a step, in seconds.

    Attributes:
        rank: rank of the worker.
        compute_s: an op ran there.
        communication_s: a transfer was under way there.
        both_s: both at once.
        wait_s: nothing ran there, and a transfer that was under way waited for a slower worker to take part, or all was
            done that the worker had to do; None where the clocks of the workers differ.
    """

    rank: int
    compute_s: float
    communication_s: float
    both_s: float
    wait_s: float | None


@dataclass(frozen=True)
class StepProfile:
    """What a step did with its time: means over the workers, and measures of them.

    Attributes:
        step_s: seconds of the step, T.
        workers: what each worker did.
    """

    step_s: float
    workers: tuple[WorkerProfile, ...]

    @property
    def compute_s(self) -> float:
        """Seconds of computation, C."""
        return statistics.fmean(each.compute_s for each in self.workers)

    @property
    def communication_s(self) -> float:
        """Seconds of communication, N."""
        return statistics.fmean(each.communication_s for each in self.workers)

    @property
    def both_s(self) -> float:
        """Seconds of both at once."""
        return statistics.fmean(each.both_s for each in self.workers)

    @property
    def idle_s(self) -> float:
        """Seconds of neither."""
        return self.step_s - (self.compute_s + self.communication_s - self.both_s)

    @property
    def rho(self) -> float | None:
        """Communication over computation, N / C (Caramel, section 3.1); None without computation."""
        return self.communication_s / self.compute_s if self.compute_s > 0 else None

    @property
    def alpha(self) -> float | None:
        """The part of the shorter of both that is at the time of the other (Caramel, section 3.1); None without one."""
        shorter = min(self.compute_s, self.communication_s)
        return self.both_s / shorter if shorter > 0 else None

    @property
    def utilisation(self) -> float | None:
        """U = 1 / (1 + rho - alpha min(rho, 1)) (Caramel, section 3.1); C / T where there is no time of neither."""
        if self.rho is None:
            return None
        return 1 / (1 + self.rho - (self.alpha or 0.0) * min(self.rho, 1.0))

    @property
    def efficiency(self) -> float | None:
        """E = (C + N - T) / (C + N - max(C, N)): how good the order is (TicTac, equations 1 to 3).

        1 for the best order, 0 for one in which only one of both is ever under way, below 0 where there is time of
        neither; None without communication or computation, where all orders are equal.
        """
        shorter = min(self.compute_s, self.communication_s)
        return (self.compute_s + self.communication_s - self.step_s) / shorter if shorter > 0 else None

    @property
    def speedup(self) -> float | None:
        """S: how much faster the best order could be than the worst (TicTac, equation 4); None if nothing happens."""
        longer = max(self.compute_s, self.communication_s)
        return min(self.compute_s, self.communication_s) / longer if longer > 0 else None

    @property
    def straggler_effect(self) -> float | None:
        """The longest wait for a slower worker over the step (TicTac, section 6); None where that is not known."""
        waits_s = [each.wait_s for each in self.workers if each.wait_s is not None]
        return max(waits_s) / self.step_s if waits_s and self.step_s > 0 else None

    @property
    def straggler(self) -> int | None:
        """Rank of the worker that waits least for the others; None where that is not known."""
        known = [(each.wait_s, each.rank) for each in self.workers if each.wait_s is not None]
        return min(known)[1] if len(known) > 1 else None


_TIMES = ("step_s", "compute_s", "communication_s", "both_s", "idle_s")
_MEASURES = ("rho", "alpha", "utilisation", "efficiency", "speedup", "straggler_effect")


@dataclass(frozen=True)
class Profile:
    """What some real steps did with their time.

    Attributes:
        steps: the traced steps.
        plain_steps_s: seconds of steps before them that were not traced.
        notes: what makes it doubtful, one sentence each.

    Examples:
        >>> import caramel
        >>> from caramel.report.profile import StepProfile, WorkerProfile
        >>> workers = (WorkerProfile(0, 0.3, 0.2, 0.1, 0.0), WorkerProfile(1, 0.2, 0.3, 0.1, 0.1))
        >>> profile = caramel.Profile((StepProfile(0.4, workers),), ())
        >>> [round(profile.median(name), 3) for name in ("rho", "alpha", "utilisation", "straggler_effect")]
        [1.0, 0.4, 0.625, 0.25]
        >>> profile.straggler
        0
    """

    steps: tuple[StepProfile, ...]
    plain_steps_s: tuple[float, ...]
    notes: tuple[str, ...] = ()

    def median(self, measure: str) -> float | None:
        """The median of a measure over the steps in which it is known; None if in none.

        Args:
            measure: name of a property or attribute of `StepProfile`, such as ``"alpha"`` or ``"step_s"``.

        Raises:
            InputError: there is no such measure.
        """
        if measure not in (*_TIMES, *_MEASURES):
            raise InputError(f"there is no measure {measure!r}; there are {', '.join((*_TIMES, *_MEASURES))}")
        values = [value for step in self.steps if (value := getattr(step, measure)) is not None]
        return statistics.median(values) if values else None

    @property
    def straggler(self) -> int | None:
        """Rank of the worker that waits least for the others in most steps; None where that is not known."""
        ranks = [step.straggler for step in self.steps if step.straggler is not None]
        return statistics.mode(ranks) if ranks else None

    def as_dict(self) -> Mapping[str, Any]:
        """The medians, and those of each worker, by name; seconds, and fractions; None for what is not known."""
        return {
            **{name: self.median(name) for name in (*_TIMES, *_MEASURES)},
            "straggler": self.straggler,
            "steps": len(self.steps),
            "plain_step_s": statistics.median(self.plain_steps_s) if self.plain_steps_s else None,
            "workers": [
                {name: _median(getattr(each, name) for each in of_worker) for name in _OF_WORKER}
                for of_worker in zip(*(step.workers for step in self.steps))
            ],
            "notes": list(self.notes),
        }

    def table(self) -> str:
        """The profile as text for a terminal."""
        found = self.as_dict()
        plain_s = found["plain_step_s"]
        untraced = "" if plain_s is None else f"; without tracing {format_ms(plain_s)} from one to the next"
        head = wrapped(
            f"profile of {len(self.steps)} steps: {format_ms(found['step_s'])} on the workers{untraced} (medians)"
        )
        rows: list[tuple[str, ...]] = [("worker", "computes", "sends", "does both", "waits for slower ones")]
        for rank, worker in enumerate(found["workers"]):
            shown = ["not known" if worker[name] is None else format_ms(worker[name]) for name in _OF_WORKER]
            rows.append((str(rank), *shown))
        measures = [("measure", "median", ""), *((name, _shown(found[key]), meaning) for name, key, meaning in _LINES)]
        sentences = []
        if found["idle_s"] > _MUCH_IDLE * found["step_s"]:
            idle = format_ms(found["idle_s"])
            why = "it waits for others to end the step, or is between two ops"
            sentences.append(f"In {idle} of a step a worker neither computes nor sends: {why}.")
        if found["straggler_effect"] is not None and found["straggler_effect"] > _STRAGGLES:
            sentences.append(f"Worker {self.straggler} is the one that the others wait for in most steps.")
        sentences += [f"note: {note}" for note in self.notes]
        tables = [fitted(rows, right={1, 2, 3, 4}), fitted(measures, right={1})]
        paragraphs = [head, *tables, "\n".join(map(wrapped, sentences))]
        return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)

    def __str__(self) -> str:
        return self.table()


_OF_WORKER = ("compute_s", "communication_s", "both_s", "wait_s")

_LINES = (
    ("rho", "rho", "communication over computation (Caramel, section 3.1)"),
    ("alpha", "alpha", "part of the shorter of both that is hidden by the other (Caramel, section 3.1)"),
    ("utilisation", "utilisation", "computation over a step without idle time, from these two (Caramel, section 3.1)"),
    ("E", "efficiency", "how good the order is, at most 1, or less than 0 (TicTac, equation 3)"),
    ("S", "speedup", "what the best order could gain over the worst (TicTac, equation 4)"),
    ("stragglers", "straggler_effect", "the longest wait for a slower worker, of the step (TicTac, section 6)"),
)
"""Name, key and meaning of each measure that is shown."""

_MUCH_IDLE, _STRAGGLES = 0.05, 0.05
"""Parts of a step from which on it is said that nothing happens, or who is slow (our choice)."""


def _shown(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


# -- one step ------------------------------------------------------------------------------------


def profiled_step(timeline: StepTimeline) -> StepProfile:
    """What a step did with its time.

    Args:
        timeline: the lanes of the step, measured or predicted.
    """
    last_s: dict[int, float] = {}  # when the last worker takes part in each transfer
    for lanes in timeline.workers:
        for bar in lanes.link:
            if bar.transfer is not None:
                last_s[bar.transfer] = max(bar.start_s, last_s.get(bar.transfer, bar.start_s))
    workers = tuple(_worker(lanes, timeline, last_s) for lanes in timeline.workers)
    return StepProfile(timeline.iteration_s, workers)


def _worker(lanes: Lanes, timeline: StepTimeline, last_s: Mapping[int, float]) -> WorkerProfile:
    step_s = timeline.iteration_s
    busy = [bar for bar in lanes.computation if bar.kind != STALL]
    compute_s, communication_s = busy_s(busy, step_s), busy_s(lanes.link, step_s)
    either_s = busy_s([*busy, *lanes.link], step_s)
    end_s = max((bar.end_s for bar in (*busy, *lanes.link)), default=0.0)
    behind = [
        Bar(STALL, "the end", end_s, step_s),
        *(
            Bar(STALL, bar.name, bar.start_s, min(bar.end_s, last_s[bar.transfer]))
            for bar in lanes.link
            if bar.transfer is not None and last_s[bar.transfer] > bar.start_s
        ),
    ]
    wait_s = busy_s([*busy, *behind], step_s) - compute_s if timeline.has_one_clock else None
    return WorkerProfile(lanes.rank, compute_s, communication_s, compute_s + communication_s - either_s, wait_s)


# -- real steps ----------------------------------------------------------------------------------


def profile(
    session: Session,
    batches: Batches | Sequence[Any] | None = None,
    steps: int = 10,
) -> Profile:
    """Run steps of a session, and say what they did with their time.

    First come some steps in which TensorFlow gets ready, then as many plain ones as traced ones, then those. They train
    like any others.

    Args:
        session: session of an ARModel.
        batches: batches for inputs that are fed, in a list that starts again at its end, or a function that gives so
            many; None for data on the workers.
        steps: number of traced steps, at least 1.

    Raises:
        InputError: no such number of steps, or the batches are neither.
        CaramelError: a step fails, or there are fewer batches.

    Source:
        Caramel, section 3.1; TicTac, section 3.2, equations 1 to 4, and section 6.

    Examples:
        >>> import tensorflow as tf
        >>> import caramel
        >>> w = tf.Variable([0.0, 0.0], name="w")
        >>> def step(x, y):
        ...     with tf.GradientTape() as tape:
        ...         loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
        ...     w.assign_sub(0.1 * tape.gradient(loss, w))
        ...     return loss
        >>> context = caramel.capture(step, [tf.TensorSpec([None, 2]), tf.TensorSpec([None])])

        >>> batch = [[1.0, 0.0], [0.0, 1.0]], [1.0, 2.0]
        >>> with caramel.ARModel(context, 2).session() as session:
        ...     found = caramel.profile(session, [batch], steps=3)
        >>> len(found.steps), len(found.plain_steps_s), 0 < found.median("utilisation") <= 1
        (3, 3, True)
    """
    wanted = whole_number(steps, "steps")
    metadata: list[bytes] = []

    def trace_next(done: int) -> None:
        if done >= FIRST_RUNS + wanted:
            session.trace_next(metadata.append)

    times_s = timed_steps(session, as_batches(batches), FIRST_RUNS + 2 * wanted, trace_next)
    traced = [step_of(each) for each in metadata[:wanted]]
    timelines = [measured_timeline(session.distributed, each) for each in traced]
    notes = []
    if apart := sum(not timeline.has_one_clock for timeline in timelines):
        steps_text = "" if apart == len(timelines) else f" in {apart} of {len(timelines)} steps, of which"
        notes.append(f"The clocks of the workers differ{steps_text or ', so'} who waits for whom is not known.")
    if any(IN_MEMORY in timeline.notes for timeline in timelines):
        notes.append(IN_MEMORY)
    local = session.distributed.plan.local
    if local is not None:
        notes.append(
            f"The workers train by themselves. An exchange of {format_size(local.size_bytes)} comes after at most "
            f"{local.sync_every} steps, between two of them, and is in none of these figures{_flush_text(session)}."
        )
    plain_s = tuple(times_s[FIRST_RUNS : FIRST_RUNS + wanted])
    return Profile(tuple(map(profiled_step, timelines)), plain_s, tuple(notes))


def _flush_text(session: Session) -> str:
    """How long an exchange took that is due now; "" where none is."""
    before_s = time.perf_counter()
    is_due = session.flush()
    return f": one took {format_ms(time.perf_counter() - before_s)}" if is_due else ""
