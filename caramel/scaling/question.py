"""What is asked: for which workers, networks, policies and batches a step is predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caramel.errors import InputError
from caramel.netmodel.model import NetworkModel
from caramel.scaling.policies import Policy
from caramel.scaling.stragglers import NONE, Stragglers
from caramel.util.arguments import predicted_worker_count, whole_number


@dataclass(frozen=True)
class Link:
    """A network that is asked about.

    Attributes:
        name: for people, such as ``10Gbit/s``.
        network: its model.
        rate_bytes_per_s: bytes per second of a host's link; None where that is not what is known.
    """

    name: str
    network: NetworkModel
    rate_bytes_per_s: float | None = None


@dataclass(frozen=True)
class Batch:
    """The examples of a step.

    Attributes:
        examples: number of examples.
        is_of_all: whether it is that of all workers together, or of each.
    """

    examples: int
    is_of_all: bool

    def of_worker(self, workers: int) -> int:
        """The examples of one worker: of those that have most, where they do not divide evenly.

        Args:
            workers: number of workers.

        Raises:
            InputError: a worker would have none.
        """
        if not self.is_of_all:
            return self.examples
        if workers > self.examples:
            raise InputError(f"{workers} workers would share {self.examples} examples: some would have none")
        return -(-self.examples // workers)

    def of_all(self, workers: int) -> int:
        """The examples of all workers."""
        return self.examples if self.is_of_all else workers * self.examples


@dataclass(frozen=True)
class Question:
    """What is asked.

    Attributes:
        workers: numbers of workers.
        links: networks.
        policies: policies.
        batch: examples of a step; None for those that were traced, on each worker.
        stragglers: how workers differ.
        workers_on_host: number of workers of a host, which share its link.

    Raises:
        InputError: an argument does not fit.
    """

    workers: Sequence[int]
    links: Sequence[Link]
    policies: Sequence[Policy]
    batch: Batch | None = None
    stragglers: Stragglers = NONE
    workers_on_host: int = 1

    def __post_init__(self) -> None:
        for count in self.workers:
            predicted_worker_count(count, "each number of workers")
        whole_number(self.workers_on_host, "workers_on_host")
        if not (self.workers and self.links and self.policies):
            raise InputError("ask for at least one number of workers, one network and one policy")
        if len({link.name for link in self.links}) < len(self.links):
            raise InputError(f"a network is named twice: {', '.join(link.name for link in self.links)}")
        if self.batch is not None:
            whole_number(self.batch.examples, "the examples of a batch")
        if self.workers_on_host > 1 and any(link.network.given is None for link in self.links):
            raise InputError(
                "a network that was measured is that of its workers on their hosts: measure it with as many on a host, "
                "or give the link's rate instead"
            )

    @property
    def count(self) -> int:
        """The number of answers."""
        return len(self.workers) * len(self.links) * len(self.policies)
