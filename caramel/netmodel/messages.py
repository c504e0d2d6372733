"""What a message between two hosts takes, concluded from measured all-reduces."""

from __future__ import annotations

from dataclasses import dataclass

from caramel.errors import InputError
from caramel.netmodel.costs import factors
from caramel.netmodel.model import NetworkModel

_SMALL_BYTES, _LARGE_BYTES = 2**12, 2**24


@dataclass(frozen=True)
class MessageCost:
    """Alpha and beta of a message, and gamma.

    Attributes:
        alpha_s: seconds for a message without content.
        beta_s_per_byte: seconds for each byte.
        gamma_s_per_byte: seconds for each byte that is added to another one.
        basis: what it was concluded from, in words.
    """

    alpha_s: float
    beta_s_per_byte: float
    gamma_s_per_byte: float
    basis: str

    def time_s(self, size_bytes: float) -> float:
        """Seconds of a message that has its link to itself.

        Args:
            size_bytes: its bytes.
        """
        return self.alpha_s + self.beta_s_per_byte * size_bytes


def message_cost(network: NetworkModel, workers: int) -> MessageCost:
    """The cost of a message, from the star if it was measured: it has most in common with parameter servers.

    Args:
        network: network model.
        workers: number of workers that send at the same time.

    Raises:
        InputError: the network was only measured with one worker.
    """
    if network.given is not None:
        given = network.given
        return MessageCost(given.alpha_s, given.beta_s_per_byte, given.gamma_s_per_byte, "costs as given")
    known = [number for number in network.workers if number > 1]
    if not known:
        raise InputError("the network model is of one worker, so it says nothing of messages: measure it with more")
    number = min(known, key=lambda each: (abs(each - workers), each))
    names = [candidate.algorithm for candidate in network.candidates(_SMALL_BYTES, number, depth=1)]
    algorithm = "star" if "star" in names else names[0]
    small_s, large_s = (network.predict(algorithm, 1, number, size).time_s for size in (_SMALL_BYTES, _LARGE_BYTES))
    of_all = factors(algorithm, number)
    gamma = network.gamma_s_per_byte
    per_byte = (large_s - small_s) / (_LARGE_BYTES - _SMALL_BYTES)
    beta = max(per_byte - gamma * of_all.added, 0.0) / of_all.volume
    alpha = max(small_s - per_byte * _SMALL_BYTES, 0.0) / of_all.messages
    return MessageCost(alpha, beta, gamma, f"messages as in the {algorithm} of {number} workers")
