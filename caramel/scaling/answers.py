"""Predicted steps for many numbers of workers, links and policies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from caramel.analyzers.step.dependencies import find_dependencies
from caramel.compiler.distributed_model import trainable_model
from caramel.errors import CaptureError, CaramelError, in_one_line
from caramel.facts import Dependencies, Trace
from caramel.frontend.context import Context
from caramel.model import Model
from caramel.netmodel.model import NetworkModel
from caramel.scaling.batches import TracedBatches
from caramel.scaling.policies import Policy
from caramel.scaling.question import Batch, Link, Question

NOT_TRACED = "not traced"
"""Why there is no answer where the batch of a worker is far from what was traced."""


@dataclass(frozen=True)
class Answer:
    """A step with some workers on a network under a policy.

    Attributes:
        workers: number of workers.
        link: name of the network.
        link_bytes_per_s: rate of a host's link; None where that is not known.
        policy: name of the policy.
        examples: of one worker, of those that have most; None if the program has none.
        all_examples: of all workers.
        step_s: predicted seconds of a step; None without an answer.
        low_s: with 95 % probability a step takes at least so many.
        high_s: at most so many.
        compute_s: seconds of these in which the slowest worker computes.
        communication_s: seconds in which transfers are under way.
        alone_s: seconds that a worker takes for its examples without communication, beside the others of its host.
        basis: ``"given"``, ``"measured"`` or ``"extrapolated"``.
        refused: why there is no answer; empty if there is one.
    """

    workers: int
    link: str
    link_bytes_per_s: float | None
    policy: str
    examples: int | None
    all_examples: int | None
    step_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    compute_s: float | None = None
    communication_s: float | None = None
    alone_s: float | None = None
    basis: str = ""
    refused: str = ""

    @property
    def utilisation(self) -> float | None:
        """The part of a step in which workers compute, the time in which they wait for a straggler left out."""
        return None if self.step_s is None or self.alone_s is None else self.alone_s / self.step_s

    @property
    def speed_up(self) -> float | None:
        """How many times as many examples a second as one worker by itself has with its share of the batch."""
        if self.utilisation is None:
            return None
        shares = self.workers if not self.examples or self.all_examples is None else self.all_examples / self.examples
        return shares * self.utilisation

    @property
    def examples_per_s(self) -> float | None:
        """Examples of all workers in a second."""
        return None if self.step_s is None or self.all_examples is None else self.all_examples / self.step_s


def answers(
    context: Context,
    traces: TracedBatches,
    question: Question,
    show: Callable[[int, str], None] = lambda done, text: None,
) -> Iterator[Answer]:
    """Predict a step for each policy, network and number of workers; no graph is emitted.

    Args:
        context: captured program.
        traces: of it.
        question: what is asked.
        show: is called with the number of answers so far, and the next one.

    Yields:
        The answers, by number of workers, then network, then policy.

    Raises:
        TraceError: a trace is of another program.
    """
    known: dict[int, tuple[Model, Dependencies]] = {}  # of one worker, and of several
    links = [
        replace(link, network=replace(link.network, workers_on_host=question.workers_on_host))
        if question.workers_on_host > 1
        else link
        for link in question.links
    ]
    done = 0
    for workers in question.workers:
        try:
            model = trainable_model(context, workers)
        except CaptureError as error:
            captured: tuple[Model, Dependencies] | str = in_one_line(error)
        else:
            if id(model) not in known:
                traces.check(model)
                known[id(model)] = model, find_dependencies(model)
            captured = known[id(model)]
        for link in links:
            for policy in question.policies:
                show(done, f"{workers} workers, {link.name}, {policy.name}")
                yield _answer(captured, traces, question, workers, link, policy)
                done += 1


def _answer(
    captured: tuple[Model, Dependencies] | str,
    traces: TracedBatches,
    question: Question,
    workers: int,
    link: Link,
    policy: Policy,
) -> Answer:
    batch = question.batch or (None if traces.usual is None else Batch(traces.usual, is_of_all=False))
    all_examples = None if batch is None else batch.of_all(workers)
    about = Answer(workers, link.name, link.rate_bytes_per_s, policy.name, None, all_examples)
    if isinstance(captured, str):
        return replace(about, refused=captured)
    try:
        about = replace(about, examples=None if batch is None else batch.of_worker(workers))
        trace = traces.at(about.examples)
        if trace is None:
            return replace(about, refused=NOT_TRACED)
        slowest = question.stragglers.slowest(workers)
        slower = replace(trace, step_s=slowest * trace.step_s)  # all else of it counts in parts of that
        step = policy.predict(*captured, slower, link.network, workers)
    except CaramelError as error:
        return replace(about, refused=in_one_line(error))
    return replace(
        about,
        step_s=step.step_s,
        low_s=step.low_s,
        high_s=step.high_s,
        compute_s=step.compute_s,
        communication_s=step.communication_s,
        alone_s=_alone_s(trace),
        basis=_basis(link.network, workers),
    )


def _alone_s(trace: Trace) -> float:
    """Seconds of a step without communication, in the order in which it is fastest: a plan may enforce that one."""
    measured = trace.ordered_step_s
    free_s = measured.get("none", 0.0)
    return trace.step_s * (min(measured.values()) / free_s if free_s > 0 else 1.0)


def _basis(network: NetworkModel, workers: int) -> str:
    """What is known of the network with so many workers."""
    if network.given is not None:
        return "given"
    return "measured" if network.is_known_for(workers) else "extrapolated"
