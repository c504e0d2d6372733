"""The predicted step: its timeline, its interval, and what it is beside a measured one."""

from __future__ import annotations

import math
from dataclasses import dataclass

from caramel.facts import Timeline
from caramel.util.units import format_ms, more_or_less

_DEVIATIONS = 1.96
"""Standard deviations of a normal distribution on either side of its mean that hold 95 % of it."""

_BOUND_TOLERANCE = 1e-9
"""Fraction of a step by which rounding may lift a lower bound above it."""


_LONG_WAIT = 0.25
"""Fraction of a step from which on it counts that the step waits for its data (our choice)."""

_LEAST_WAIT_S = 5e-3
"""Seconds of such a wait: to ask the workers for their next elements takes some milliseconds by itself."""


def is_long_wait(data_wait_s: float, step_s: float) -> bool:
    """Whether a step waits so long for its data that it matters.

    Args:
        data_wait_s: seconds in which it waits.
        step_s: seconds of the step.
    """
    return data_wait_s > max(_LEAST_WAIT_S, _LONG_WAIT * step_s)


def without_long_wait_s(step_s: float, data_wait_s: float) -> float:
    """Seconds of a step that a prediction counts: all, or all but a wait for data that is so long that it matters.

    Args:
        step_s: seconds of the step.
        data_wait_s: seconds in which it waits.

    >>> [without_long_wait_s(0.1, data_wait_s) for data_wait_s in (0.001, 0.05)]
    [0.1, 0.05]
    """
    return step_s - data_wait_s if is_long_wait(data_wait_s, step_s) else step_s


OUTSIDE_ADVICE = "trace and measure the network anew where it trains, with nothing else running"
"""What to do where a measured step is outside the interval of the prediction."""


@dataclass(frozen=True)
class Interval:
    """The seconds between which the step is with 95 % probability, and what they are from.

    The parts are standard deviations of the step, as fractions of it.

    Attributes:
        low_s: seconds.
        high_s: seconds.
        trace: how the steps of the trace differ from each other.
        network: how the network's measurements differ from what their neighbours predict.
        model: what the simulation leaves out, from steps that were measured beside predictions.
    """

    low_s: float
    high_s: float
    trace: float
    network: float
    model: float

    @classmethod
    def around(cls, step_s: float, trace: float, network: float, model: float) -> Interval:
        """The interval of a step with these parts, which count as independent and normal on a logarithmic scale.

        Args:
            step_s: the predicted seconds.
            trace: see `Interval`, and likewise the others.
        """
        factor = math.exp(_DEVIATIONS * math.hypot(trace, network, model))
        return cls(step_s / factor, step_s * factor, trace, network, model)

    def __str__(self) -> str:
        parts = ", ".join(f"{getattr(self, name):.1%} {name}" for name in ("trace", "network", "model"))
        return f"with 95 % probability {format_ms(self.low_s)} to {format_ms(self.high_s)} (uncertain: {parts})"


def predicted_beside(predicted_s: float, measured_s: float) -> str:
    """What was predicted, with how much less or more that is than what was measured.

    >>> predicted_beside(0.9, 1.0)
    'predicted 900 ms, 10.0% less than measured'

    Args:
        predicted_s: predicted seconds of a step.
        measured_s: measured seconds of it.
    """
    return f"predicted {format_ms(predicted_s)}, {more_or_less(predicted_s / measured_s)} than measured"


@dataclass(frozen=True)
class Prediction:
    """The predicted step, in steady state.

    Attributes:
        timeline: timeline of one step on each worker.
        lower_bound_s: seconds below which no plan of the same computation on the same network can be, with whatever
            all-reduces are allowed and measured.
        basis: origin of the times.
        alternatives: seconds of the step with each transfer in its other window; None where it cannot be there. Empty
            where they were not simulated, as of more than 1,000 transfers.
        interval: the seconds between which the step is; None in a prediction made by hand.
    """

    timeline: Timeline
    lower_bound_s: float
    basis: str
    alternatives: tuple[float | None, ...] = ()
    interval: Interval | None = None

    @property
    def gap(self) -> float:
        """Predicted time over the lower bound, less 1."""
        return self.timeline.iteration_s / self.lower_bound_s - 1 if self.lower_bound_s > 0 else 0.0

    @property
    def has_bound(self) -> bool:
        """Whether the lower bound is one: it is not above the predicted step, which would be a defect."""
        return self.gap >= -_BOUND_TOLERANCE

    def holds(self, step_s: float) -> bool:
        """Whether a measured step is within the interval; without one nothing speaks against it.

        Args:
            step_s: measured seconds of a step.
        """
        return self.interval is None or self.interval.low_s <= step_s <= self.interval.high_s

    def __str__(self) -> str:
        """The step and its interval, for people."""
        text = f"predicted {format_ms(self.timeline.iteration_s)} per step"
        return text if self.interval is None else f"{text}, {self.interval}"

    def beside(self, step_s: float, steps_in_run: int = 1, data_wait_s: float = 0.0) -> str:
        """What was predicted, beside what was measured, for people.

        Args:
            step_s: measured seconds of a step.
            steps_in_run: number of steps in a run of the graph; the prediction is for one.
            data_wait_s: seconds of a step in which it waits for its data, for which nothing is predicted.
        """
        predicted_s = self.timeline.iteration_s
        if is_long_wait(data_wait_s, step_s):
            wait, rest_s = format_ms(data_wait_s), step_s - data_wait_s
            advice = "let the input pipeline cache, prefetch, or make more calls at once"
            return (
                f"for {wait} of it the step waits for its data, which no prediction counts ({advice}); the rest is "
                f"{format_ms(rest_s)}, {self.beside(rest_s, steps_in_run)}"
            )
        if steps_in_run > 1:
            return f"predicted {format_ms(predicted_s)} for a step by itself, and {steps_in_run} were one run"
        text = predicted_beside(predicted_s, step_s)
        if self.interval is None:
            return text
        if self.holds(step_s):
            return f"{text} and within the interval of the prediction"
        return f"{text} and outside the interval of the prediction: {OUTSIDE_ADVICE}"

    def as_dict(self) -> dict[str, float]:
        """The figures, in SI units."""
        timeline = self.timeline
        return {
            "predicted_iteration_s": timeline.iteration_s,
            **({} if self.interval is None else {"low_s": self.interval.low_s, "high_s": self.interval.high_s}),
            "compute_s": timeline.compute_s,
            "communication_s": timeline.communication_s,
            "exposed_s": timeline.exposed_s,
            "alpha": timeline.alpha,
            "rho": timeline.rho,
            "utilisation": timeline.utilisation,
            **({"lower_bound_s": self.lower_bound_s, "gap": self.gap} if self.has_bound else {}),
        }
