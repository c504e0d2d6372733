"""Live tuning: a plan is run with other limits, and kept where that is faster."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from caramel.armodel import ARModel
from caramel.compiler.options import OPTION_NAMES, TRAVEL_OPTIONS, CompileOptions
from caramel.errors import CaramelError, InputError, in_one_line, listed
from caramel.facts import Trace
from caramel.frontend.context import Context
from caramel.measure.in_turn import is_gain, times_in_turn
from caramel.measure.timed_steps import Batches, as_batches, timed_steps
from caramel.measure.trace_file import as_trace
from caramel.plan import OWNERS, Plan
from caramel.runtime.clusters.base import Cluster
from caramel.runtime.step_rate import FIRST_RUNS
from caramel.tuning.bayesian import BayesianSearch
from caramel.tuning.limits import Limits, Setting, coordinates, limits_for
from caramel.tuning.pull_limits import PullLimits, all_pull_limits
from caramel.util.arguments import refuse_unknown, whole_number
from caramel.util.tables import fitted
from caramel.util.units import format_ms

MOST_TRIALS, STEPS = 20, 10
"""Number of trials, and of steps of each (ByteScheduler, section 5)."""

_LARGEST_SEED = 2**32 - 1
"""That of NumPy's generators, by which the search draws."""

_DECIDED = (*TRAVEL_OPTIONS, "analyzers", "plan", "sync_every")
"""Options in whose place trials decide."""

_MOST_PROPOSALS = 3
"""Number of proposals for each trial: some give plans that were tried already."""


@dataclass(frozen=True)
class Trial:
    """A trial.

    Attributes:
        limits: what was tried; None for the planner's plan.
        step_s: median seconds of its steps; None if it failed.
        error: why it failed; "" if it did not.
    """

    limits: Limits | PullLimits | None
    step_s: float | None
    error: str = ""

    def __str__(self) -> str:
        what = "the planner's plan" if self.limits is None else str(self.limits)
        return f"{what}: {format_ms(self.step_s)}" if self.step_s is not None else f"{what}: failed, {self.error}"


@dataclass(frozen=True)
class Tuned:
    """What tuning has found.

    Attributes:
        plan: the best plan.
        limits: its limits; None if it is the planner's.
        trials: all trials, the planner's plan first.
        ratios: time of the best trial over that of the planner's plan, in each round of both in turn; empty if no trial
            was faster.
    """

    plan: Plan
    limits: Limits | PullLimits | None
    trials: tuple[Trial, ...]
    ratios: tuple[float, ...]

    def table(self) -> str:
        """The trials and the result, for a terminal."""
        first_s = self.trials[0].step_s
        rows: list[tuple[str, ...]] = [("trial", "step", "of the first", "limits")]
        for number, trial in enumerate(self.trials):
            what = "the planner's plan" if trial.limits is None else str(trial.limits)
            if trial.step_s is None:
                rows.append((str(number), "failed", "-", f"{what}: {trial.error}"))
            else:
                rows.append(
                    (str(number), format_ms(trial.step_s), f"{trial.step_s / (first_s or trial.step_s):.3f}", what)
                )
        return f"{fitted(rows, right={0, 1, 2})}\n\n{self.result()}"

    def result(self) -> str:
        """The result, in a sentence."""
        if not self.ratios:
            failed = [trial for trial in self.trials[1:] if trial.step_s is None]
            if failed and len(failed) == len(self.trials) - 1:
                return f"The planner's plan is kept: all trials failed, the last one with: {failed[-1].error}"
            return "The planner's plan is kept: no trial was faster."
        ratio = statistics.median(self.ratios)
        between = f"{min(self.ratios):.3f} to {max(self.ratios):.3f}"
        spread = f"{ratio:.3f} of its time in {len(self.ratios)} rounds in turn ({between})"
        if self.limits is None:
            return f"The planner's plan is kept: the fastest trial took {spread}, which is no gain beyond noise."
        return f"The plan has {self.limits}: against the planner's it took {spread}."

    def __str__(self) -> str:
        return self.table()


def tune(
    context: Context,
    workers: int,
    *,
    trace: Trace | str,
    network: Any,
    cluster: Cluster,
    batches: Batches | Sequence[Any] | None = None,
    trials: int = MOST_TRIALS,
    steps: int = STEPS,
    seed: int = 0,
    device_list: Sequence[str] | None = None,
    on_trial: Callable[[Trial], None] = lambda trial: None,
    **options: Any,
) -> Tuned:
    """Try a plan with other limits on a cluster, and keep the fastest.

    The first trial is the planner's plan. Others go by the priority of the next read, with limits for buckets,
    pieces, transfers under way and chunks; with parameter servers (``servers=``) they pull in another order, or with
    another number of parameters on the way. At the end the fastest one runs against the planner's plan in turn, and is
    kept only if it is faster beyond noise. What is trained meanwhile is thrown away.

    Args:
        context: captured program, as `caramel.capture` returned it.
        workers: number of workers, at least 2.
        trace: measured times of the program's ops, or the file of some.
        network: `caramel.NetworkModel`, or the file of one.
        cluster: where the workers run.
        batches: batches for inputs that are fed, in a list that starts again at its end, or a function that gives so
            many; None for data on the workers.
        trials: number of trials after the first, at least 1.
        steps: number of timed steps of each, at least 1.
        seed: seed of the search, from 0 to 2**32 - 1; the same seed and times give the same trials.
        device_list: see `caramel.ARModel`.
        on_trial: is called with each trial.
        options: further options of `caramel.ARModel`, such as ``deterministic``, ``wire``, ``algorithm`` or
            ``servers``.

    Returns:
        The best plan, and all trials.

    Raises:
        InputError: there is one worker, nothing was measured, or an option does not fit.
        CaramelError: the planner's plan cannot be run; a trial that fails is noted, and the search goes on.

    Source:
        ByteScheduler, sections 4 and 5 (what is tuned, and how).

    Examples:
        >>> import tensorflow as tf
        >>> import caramel
        >>> w = tf.Variable(tf.zeros([100, 10]), name="w")
        >>> def step(x):
        ...     with tf.GradientTape() as tape:
        ...         loss = tf.reduce_mean((x @ w - 1.0) ** 2)
        ...     w.assign_sub(0.1 * tape.gradient(loss, w))
        ...     return loss
        >>> context = caramel.capture(step, [tf.TensorSpec([None, 100])])
        >>> batch = [tf.ones([8, 100]).numpy()]

        >>> measured = {
        ...     "trace": caramel.trace(context, *batch, workers=2, runs=2, steps=2),
        ...     "network": caramel.NetworkModel.from_costs(1e-4, 1e-8),
        ... }
        >>> options = {"batches": [batch], "trials": 2, "steps": 3}
        >>> tuned = caramel.tune(context, 2, cluster=caramel.InProcess(), **measured, **options)
        >>> tuned.trials[0].limits is None, tuned.plan.workers
        (True, 2)
    """
    refuse_unknown(tune, options, OPTION_NAMES)
    if whole_number(workers, "workers") < 2:
        raise InputError("one worker sends nothing, so there is nothing to tune: tune for 2 workers or more")
    whole_number(trials, "trials")
    whole_number(steps, "steps")
    whole_number(seed, "seed", 0, _LARGEST_SEED)
    _refuse_decisions(options)
    if trace is None or network is None:
        raise InputError("the planner's plan, which is tried first, needs measured times: give trace= and network=")
    batches = as_batches(batches)
    common = {"network": network, "device_list": device_list, **options}
    planned = ARModel(context, workers, trace=trace, **common)
    found = as_trace(trace, planned.model)
    assert found is not None  # as it was given
    all_limits: Sequence[Limits | PullLimits]
    if planned.plan.servers is not None:
        all_limits = all_pull_limits()
    else:
        total_bytes = sum(g.size_bytes for g in planned.model.gradients)
        all_limits = limits_for(total_bytes, options.get("depth"), options.get("algorithm"))
        is_divided = any(transfer.algorithm == OWNERS for transfer in planned.plan.transfers)
        common["shard_embeddings"] = "all" if is_divided else "none"  # as limits have nothing to do with it

    def within(limits: Setting) -> ARModel:
        return ARModel(context, workers, **{**common, **limits.options(found)})

    def step_s(model: ARModel) -> float:
        return _step_s(model, cluster, batches, steps)

    tried = [Trial(None, step_s(planned))]
    on_trial(tried[0])
    search = _Search(planned, tried[0], all_limits, within, step_s, seed)
    for trial in search.trials(trials):
        tried.append(trial)
        on_trial(trial)
    best = search.best
    if best is None:
        return Tuned(planned.plan, None, tuple(tried), ())
    limits, model = best
    ratios = _in_turn(model, planned, cluster, batches, steps)
    if not is_gain(ratios):
        return Tuned(planned.plan, None, tuple(tried), ratios)
    note = f"tuned by {len(tried) - 1} trials: {statistics.median(ratios):.3f} of the time of the planner's plan"
    return Tuned(replace(model.plan, notes=(*model.plan.notes, note)), limits, tuple(tried), ratios)


def _refuse_decisions(options: Mapping[str, Any]) -> None:
    """Refuse options about what trials decide."""
    default = {each.name: each.default for each in fields(CompileOptions)}
    given = [name for name in _DECIDED if name in options and (options[name] or None) != (default[name] or None)]
    if given:
        names = listed([f"{name}=" for name in given])
        raise InputError(f"leave out {names}: trials decide what travels how, beginning with the default")


class _Search:
    """Trials of plans within limits, none of which was tried before.

    Args:
        planned: the planner's plan.
        first: its trial.
        limits: all limits to choose from.
        within: function that makes a plan within some.
        step_s: function that runs one; seconds of a step.
        seed: seed of the search.
    """

    def __init__(
        self,
        planned: ARModel,
        first: Trial,
        limits: Sequence[Limits | PullLimits],
        within: Callable[[Setting], ARModel],
        step_s: Callable[[ARModel], float],
        seed: int,
    ) -> None:
        assert first.step_s is not None
        self._limits, self._within, self._run = limits, within, step_s
        self._search = BayesianSearch(coordinates(limits), seed, first.step_s)
        self._first_s = first.step_s
        self._times_s = {_decisions(planned.plan): first.step_s}
        self._models: dict[Limits | PullLimits, tuple[float, ARModel]] = {}

    def trials(self, most: int) -> Iterator[Trial]:
        """Trials in the order in which they are chosen.

        Args:
            most: number of trials, at most: some proposals give plans that were tried already, or there are no more.
        """
        made = 0
        for _ in range(_MOST_PROPOSALS * most):
            number = self._search.propose() if made < most else None
            if number is None:
                return
            trial, is_new = self._trial(self._limits[number])
            self._search.note(number, trial.step_s)
            if is_new:
                made += 1
                yield trial

    def _trial(self, limits: Limits | PullLimits) -> tuple[Trial, bool]:
        """What limits give, and whether that was not known before."""
        try:
            model = self._within(limits)
            key = _decisions(model.plan)
            is_new = key not in self._times_s
            if is_new:  # other limits may give the same plan
                self._times_s[key] = self._run(model)
        except CaramelError as error:
            return Trial(limits, None, in_one_line(error)), True
        self._models[limits] = self._times_s[key], model
        return Trial(limits, self._times_s[key]), is_new

    @property
    def best(self) -> tuple[Limits | PullLimits, ARModel] | None:
        """The fastest, if it is faster than the planner's plan."""
        limits = min(self._models, key=lambda each: self._models[each][0], default=None)
        if limits is None or self._models[limits][0] >= self._first_s:
            return None
        return limits, self._models[limits][1]


def _decisions(plan: Plan) -> tuple[Any, ...]:
    """What a plan has the graph do."""
    transfers = tuple(replace(t, reason="", predicted_s=None) for t in plan.transfers)
    servers = plan.servers
    pulls = None if servers is None else (servers.pulls, servers.in_flight if servers.pulls else None)
    return transfers, plan.edges, plan.in_flight, plan.sharded, pulls


def _step_s(model: ARModel, cluster: Cluster, batches: Batches | None, steps: int) -> float:
    """Median seconds of some steps in a session of their own, after those in which TensorFlow gets ready."""
    with model.session(cluster) as session:
        timed_steps(session, batches, FIRST_RUNS)
        return statistics.median(timed_steps(session, batches, steps))


def _in_turn(
    model: ARModel, other: ARModel, cluster: Cluster, batches: Batches | None, steps: int
) -> tuple[float, ...]:
    """Time of one model over that of another, in rounds of both."""
    with model.session(cluster) as first, other.session(cluster.beside()) as second:
        for session in (first, second):
            timed_steps(session, batches, FIRST_RUNS)
        return tuple(own_s / other_s for own_s, other_s in times_in_turn((first, second), batches, steps))
