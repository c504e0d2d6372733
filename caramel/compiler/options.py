"""The options of the compiler, checked before anything is done."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from caramel.analyzers.registry import policy_named
from caramel.analyzers.servers.pull_orders import NO_ORDER, ORDERINGS
from caramel.errors import InputError, listed
from caramel.facts import Trace
from caramel.netmodel.choice import CollectiveOptions
from caramel.netmodel.file import as_network
from caramel.netmodel.model import NetworkModel
from caramel.plan import Plan
from caramel.util.arguments import flag, one_of, predicted_worker_count, shown, whole_number, worker_count
from caramel.util.text_files import about_file

SHARDED = ("all", "auto", "none")
"""Values of ``shard_updates`` and ``shard_embeddings``; true is the first, false the last."""

_DECISIONS = ("serialization", "batching", "scheduling", "policy", "postponed", "trace")
_COLLECTIVES = ("network", "algorithm", "depth", "deterministic", "wire")
_SHARDINGS = ("shard_updates", "shard_embeddings")
_EXCHANGE = ("outer_learning_rate", "outer_momentum")
_PULLS = ("ordering", "pulls_in_flight")

TRAVEL_OPTIONS = (*(name for name in _DECISIONS if name != "trace"), *_PULLS)
"""Options that say how gradients and parameters travel."""

DEFAULT_OUTER_LEARNING_RATE = 0.7
"""Of the exchange after local steps (DiLoCo, section 3.1)."""

DEFAULT_OUTER_MOMENTUM = 0.5
"""The same; DiLoCo's is 0.9, with hundreds of steps between exchanges. With few, losses grew (our choice)."""

DEFAULT_PULLS_IN_FLIGHT = 2
"""While one parameter is sent, the message that the next one may be sent is on its way (our choice)."""


@dataclass(frozen=True)
class CompileOptions:
    """The options of `caramel.ARModel`, whose documentation describes each.

    Attributes:
        is_what_if: whether a plan is made that only predicts; see `caramel.what_if`.

    Raises:
        InputError: an option does not fit, alone or beside the others.
    """

    workers: int
    serialization: bool = True
    batching: bool = True
    scheduling: bool = True
    analyzers: Sequence[Any] | None = None
    device_list: Sequence[str] | None = None
    sharding: str | None = None
    uneven_batches: str = "weight"
    statistics: str = "local"
    network: NetworkModel | str | os.PathLike[str] | None = None
    algorithm: str | None = None
    depth: int | None = None
    deterministic: bool = False
    wire: str | None = None
    postponed: Sequence[str] = ()
    shard_updates: bool | str = False
    shard_embeddings: bool | str | None = None
    sync_every: int | None = None
    outer_learning_rate: float | None = None
    outer_momentum: float | None = None
    servers: int | None = None
    ordering: str | None = None
    pulls_in_flight: int | None = None
    server_list: Sequence[str] | None = None
    trace: Trace | str | os.PathLike[str] | None = None
    policy: str = "optimal"
    plan: Plan | str | os.PathLike[str] | None = None
    is_what_if: bool = False

    def __post_init__(self) -> None:
        count = predicted_worker_count if self.is_what_if else worker_count
        object.__setattr__(self, "workers", count(self.workers, "number_of_workers"))
        for name in ("serialization", "batching", "scheduling", "deterministic"):
            object.__setattr__(self, name, flag(getattr(self, name), name))
        one_of(self.uneven_batches, ("weight", "refuse"), "uneven_batches")
        object.__setattr__(self, "shard_updates", _sharded(self.shard_updates, "shard_updates"))
        if self.shard_embeddings is not None:
            object.__setattr__(self, "shard_embeddings", _sharded(self.shard_embeddings, "shard_embeddings"))
        one_of(self.statistics, ("local", "mean"), "statistics")
        if self.sync_every is not None:
            object.__setattr__(self, "sync_every", whole_number(self.sync_every, "sync_every"))
        rate, momentum = self.outer_step
        if not 0 < rate < math.inf:
            raise InputError(f"outer_learning_rate must be a positive number, got {shown(rate)}")
        if not 0 <= momentum < 1:
            raise InputError(f"outer_momentum must be at least 0 and less than 1, got {shown(momentum)}")
        if self.servers is not None:
            object.__setattr__(self, "servers", whole_number(self.servers, "servers"))
        if self.ordering is not None:
            one_of(self.ordering, (*ORDERINGS, NO_ORDER), "ordering")
        if self.pulls_in_flight is not None:
            object.__setattr__(self, "pulls_in_flight", whole_number(self.pulls_in_flight, "pulls_in_flight"))
        for name in ("analyzers", "postponed"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, str) or not isinstance(value, Sequence)):
                raise InputError(f"{name} must be a list, got {shown(value)}")
        object.__setattr__(self, "postponed", tuple(self.postponed or ()))
        if self.plan is not None and not isinstance(self.plan, (Plan, str, os.PathLike)):
            raise InputError(f"plan is a caramel.Plan, or the path of a file with one, got {shown(self.plan)}")
        collectives = self.collectives
        with about_file(self.network):
            collectives.check_workers(self.workers)
        self._refuse_ineffective()

    def _given(self, *names: str) -> list[str]:
        """Those of some options that ask for what is not done by default."""
        return [name for name in names if not _is_default(name, getattr(self, name))]

    def _refuse_ineffective(self) -> None:
        if self.analyzers is not None:
            _refuse("analyzers", self._given(*_DECISIONS), "put analyzers that do it into the list")
        if self.sync_every is not None:
            self._refuse_beside_local_steps()
        elif given := self._given(*_EXCHANGE):
            raise InputError(f"{_as_arguments(given)} is of the exchange after some steps: give sync_every=, too")
        if self.servers is not None:
            decisions = [name for name in TRAVEL_OPTIONS if name not in _PULLS]
            others = self._given(*decisions, "analyzers", "algorithm", "depth", "wire", *_SHARDINGS)
            _refuse("servers", others, "gradients are pushed to servers, and not all-reduced")
        elif self.plan is None and (given := self._given(*_PULLS, "server_list")):
            raise InputError(f"{_as_arguments(given)} is of parameter servers: give servers=, too")
        if self.plan is not None:
            weighting = ("uneven_batches", "statistics")
            targets = ("sync_every", "servers", *_PULLS)
            others = self._given(*_DECISIONS, "analyzers", *_COLLECTIVES, *_SHARDINGS, *weighting, *targets)
            _refuse("plan", others, "all of it is decided by the plan")

    def _refuse_beside_local_steps(self) -> None:
        """Refuse options about gradients beside ``sync_every=``, as none is sent."""
        others = self._given(*_DECISIONS, "analyzers", *_SHARDINGS)
        _refuse("sync_every", others, "every worker trains by itself, and sends no gradient")
        if self.servers is not None:
            raise InputError("sync_every= goes without servers=: every worker has the parameters that it trains")
        if self.is_what_if:
            raise InputError("nothing is predicted of steps that exchange nothing: leave out sync_every=")
        if self.deterministic:
            raise InputError(
                "sync_every= and deterministic=True exclude each other: workers that train by themselves do not "
                "compute what one device does"
            )

    @property
    def outer_step(self) -> tuple[float, float]:
        """Learning rate and momentum of the exchange after local steps.

        Raises:
            InputError: one of them is no number.
        """
        given = {"outer_learning_rate": self.outer_learning_rate, "outer_momentum": self.outer_momentum}
        rate, momentum = (
            default if value is None else _number(value, name)
            for (name, value), default in zip(given.items(), (DEFAULT_OUTER_LEARNING_RATE, DEFAULT_OUTER_MOMENTUM))
        )
        return rate, momentum

    @property
    def pull_window(self) -> int:
        """Number of parameters that may be on the way from one server to one worker at once."""
        return DEFAULT_PULLS_IN_FLIGHT if self.pulls_in_flight is None else self.pulls_in_flight

    def divides_tables(self, is_predicted: bool) -> str:
        """One of `SHARDED` for the rows of embedding tables.

        Args:
            is_predicted: whether the step of a plan is predicted.
        """
        if self.shard_embeddings is not None:
            return str(self.shard_embeddings)
        is_ours = self.analyzers is None and self.policy == "optimal"
        return "auto" if is_predicted and is_ours else "none"

    @cached_property
    def collectives(self) -> CollectiveOptions:
        """The options by which all-reduces are chosen; a file of a network model is read once."""
        given = CollectiveOptions(
            *(self.algorithm, self.depth, self.deterministic, self.wire, as_network(self.network)),
            is_what_if=self.is_what_if,
        )
        complete = policy_named(self.policy).collectives
        return given if complete is None else complete(given)


def _number(given: Any, name: str) -> float:
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise InputError(f"{name} must be a number, got {shown(given)}")
    return float(given)


def _sharded(given: Any, name: str) -> str:
    """What a caller says about what is to be sharded, as one of `SHARDED`."""
    return one_of(SHARDED[0 if given else -1] if isinstance(given, bool) else given, SHARDED, name)


def _is_default(name: str, value: Any) -> bool:
    if name in _SHARDINGS:
        return value in (None, SHARDED[-1])
    default = _DEFAULTS[name]
    return value is default or (type(value) is type(default) and bool(value == default))


def _as_arguments(names: Sequence[str]) -> str:
    return listed([f"{name}=" for name in names])


_DEFAULTS = {field.name: field.default for field in fields(CompileOptions)}

OPTION_NAMES = tuple(name for name in _DEFAULTS if name not in ("workers", "is_what_if"))
"""Names of the options that callers give by name."""


def _refuse(option: str, others: Sequence[str], reason: str) -> None:
    """Refuse options that would have no effect beside another option.

    Args:
        option: name of the option that is given.
        others: names of other options that were given.
        reason: reason why the others would have no effect, and advice.

    Raises:
        InputError: another option was given.
    """
    if others:
        raise InputError(f"with {option}= leave out {_as_arguments(others)}: {reason}")
