"""What a plan says of steps in which workers train by themselves, and of their exchanges."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Exchange:
    """The all-reduce of one bucket of differences of parameters; see `LocalSteps`.

    Attributes:
        parameters: names of the parameters, in the order in which they lie.
        dtype: their element type.
        elements: number of elements.
        size_bytes: bytes of the elements.
        algorithm: name of the collective.
        depth: number of chunks in flight at once.
        wire: element type of the messages; None if it is ``dtype``.
        predicted_s: predicted seconds of the transfer; None without a network model.
        reason: reason of these decisions.
    """

    parameters: tuple[str, ...]
    dtype: str
    elements: int
    size_bytes: int
    algorithm: str
    depth: int
    wire: str | None
    predicted_s: float | None
    reason: str


@dataclass(frozen=True)
class LocalSteps:
    """Steps in which every worker updates its own parameters, and after some of them what all make of these.

    With A the parameters after the last exchange and P_r those of worker r, the exchange takes D, the mean of A - P_r
    over the workers, M = momentum * M + D, and gives all workers A - learning_rate * (D + momentum * M).

    Attributes:
        sync_every: number of steps from one exchange to the next; at most, as values are read after one.
        learning_rate: of the exchange.
        momentum: of the exchange; 0 for none.
        exchanges: what travels.

    Source:
        Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models (2023), algorithm 1.
    """

    sync_every: int
    learning_rate: float
    momentum: float
    exchanges: tuple[Exchange, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all parameters that are exchanged."""
        return sum(exchange.size_bytes for exchange in self.exchanges)

    def __str__(self) -> str:
        return (
            f"every worker trains by itself, and at the latest after {self.sync_every} steps all exchange the "
            f"differences of {sum(len(e.parameters) for e in self.exchanges)} parameters ({self.size_bytes:,} bytes in "
            f"{len(self.exchanges)} transfers): Nesterov's step with a learning rate of {self.learning_rate:g} and a "
            f"momentum of {self.momentum:g}. This is not the training of one device"
        )
