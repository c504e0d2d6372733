"""Sessions that stay open from one call to the next on the same model: nothing is then captured or compiled again.

Each call begins as in a new session, with the model's present values and its own data. Sessions are closed with their
model, or when other models have had some since.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from caramel.compiler.distributed_model import DistributedModel
from caramel.data.components import is_dataset
from caramel.data.dataset import training_data
from caramel.data.pipeline import Pipeline
from caramel.errors import CaramelError
from caramel.frontend.programs.naming import Snapshot
from caramel.graph.devices import Device, cpu_count
from caramel.keras.captured_steps import CapturedStep
from caramel.keras.data_passes import DataPasses
from caramel.keras.fed_batches import FedBatches
from caramel.keras.given_data import GivenData
from caramel.netmodel.model import NetworkModel
from caramel.plan import Plan
from caramel.runtime.clusters.base import Cluster
from caramel.runtime.clusters.heartbeat import abandon_at_the_end
from caramel.runtime.session import Session
from caramel.util.arrays import array_of
from caramel.util.temporary import is_in_process

_MOST_MODELS = 2
"""Number of models whose sessions stay open: those that were used last."""

_ATTRIBUTE = "_caramel_sessions"
"""Attribute of a model with its sessions, so that both are collected together: each refers to the other."""


@dataclass
class KeptSession:
    """An open session with what it runs.

    Attributes:
        step: captured step.
        distributed: the step on all workers.
        session: session that runs it.
        data: data of the last call.
        facts: facts from which the plan was made, by type.
        passes: passes over the data, which begin anew with each call.
    """

    step: CapturedStep
    distributed: DistributedModel
    session: Session
    data: GivenData
    facts: Mapping[type, Any] = field(default_factory=dict)
    passes: DataPasses | FedBatches = field(init=False)
    _values: Mapping[str, Any] = field(init=False)
    _pipeline: Pipeline | None = field(init=False)  # whose arrays the workers have

    def __post_init__(self) -> None:
        self.passes = self.data.passes(self.session)
        self._pipeline = self.distributed.pipeline
        source = self.distributed.model.values
        self._values = source.load()
        if isinstance(source, Snapshot):  # each use begins with what the variables have then
            source.forget(self.step.context.live_variables)

    def taken_values(self) -> Mapping[str, Any]:
        """Arrays of the model's variables by name, with which the session has begun; once, as they may be large."""
        values, self._values = self._values, {}
        return values

    def begin_again(self, data: GivenData) -> bool:
        """Let the session begin with the model's present values; False if the workers cannot read this data.

        Args:
            data: data of another call.
        """
        pipeline, loads = self._pipeline, False
        if not self._reads_on(data.dataset):
            pipeline = self._made(data)
            if pipeline is None:
                return False
            loads = self._pipeline is None or not self._pipeline.has_same_arrays(pipeline)
            self._pipeline = pipeline
        live = self.step.context.live_variables
        self._values = {name: array_of(variable.read_value()) for name, variable in live.items()}
        self.session.begin_again(self._values, pipeline, loads)
        self.passes = data.passes(self.session)
        self.data = data
        return True

    def _reads_on(self, dataset: Any) -> bool:
        """Whether the workers read what they did: nothing, or one dataset that cannot have changed."""
        if dataset is None:
            return self.data.dataset is None
        sources = () if self._pipeline is None else self._pipeline.sources
        return dataset is self.data.dataset and is_dataset(dataset) and not any(s.holds_copies for s in sources)

    def _made(self, data: GivenData) -> Pipeline | None:
        """The pipelines of other data, if they differ in their arrays alone."""
        first = self.distributed.pipeline
        if first is None or data.dataset is None:
            return None
        made = replace(first, sources=training_data(data.dataset).sources(self.distributed.plan.workers))
        return made if first.fits(made) else None


@dataclass(frozen=True)
class _Servers:
    """Servers that stay.

    Attributes:
        cluster: the cluster for which they were asked.
        plan: plan of the session that asked for them.
        servers: the same cluster, on these servers.
    """

    cluster: Cluster
    plan: Plan
    servers: Cluster

    def fits(self, cluster: Cluster, plan: Plan) -> bool:
        """Whether a session of another plan finds its workers, and all its devices, on them."""
        is_known = self.cluster is cluster or self.cluster == cluster
        return is_known and self.plan.workers == plan.workers and _tasks(plan).items() <= _tasks(self.plan).items()


def _tasks(plan: Plan) -> Mapping[tuple[str | None, int | None], int]:
    """The tasks of a plan, with the number of devices that each needs."""
    devices = (*plan.devices, *plan.server_devices)
    return {task: cpu_count(devices, task) for task in (Device.parse(text).process for text in devices)}


class _OfModel:
    """The sessions of one model, by what they are for; one for each of its methods at most."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[list[Any], KeptSession]] = {}
        self.uses = 0  # calls under way
        self._servers: list[_Servers] = []
        self._open = ExitStack()
        self._process = os.getpid()

    def servers(self, cluster: Cluster, plan: Plan, transfer_threads: int | None) -> Cluster:
        """The cluster shared by this model's sessions with this many workers; the first session decides its threads.

        A session without parameter servers may share the cluster of one that has some.
        """
        for kept in self._servers:
            if kept.fits(cluster, plan):
                return kept.servers
        if not self.kept and self.uses <= 1:  # no session needs the others
            self._servers.clear()
            self._open.close()
        started = cluster if transfer_threads is None else cluster.for_transfers(transfer_threads)
        servers = self._open.enter_context(started.shared())
        self._servers.append(_Servers(cluster, plan, servers))
        return servers

    def close(self) -> None:
        """End them, and their servers; in a fork of their process they stay, for TensorFlow cannot end them there."""
        self.given_up()()

    def given_up(self) -> Callable[[], None]:
        """Forget them all, so that the next call starts others; what ends them, which may take a while."""
        if not is_in_process(self._process):
            return lambda: None
        sessions, servers = [kept.session for _, kept in self.kept.values()], self._open.pop_all()
        self.kept.clear()
        self._servers.clear()

        def end() -> None:
            for session in sessions:
                with suppress(CaramelError):
                    session.close()
            with suppress(CaramelError):
                servers.close()

        return end


_lock = threading.RLock()
_recent: list[weakref.ref[_OfModel]] = []


def _close_all() -> None:
    """Close what is open at the end of the process: servers elsewhere would keep the variables."""
    for sessions in [reference() for reference in _recent]:
        if sessions is not None:
            sessions.close()


abandon_at_the_end()  # what is given up there is what `_close_all` has left, so it comes after that
# The last function to be registered is the first to be called at the end. The first finalizer of a process registers
# the one that calls them all. That of the driver's own server must come after this: closing would wait for it.
weakref.finalize(_close_all, lambda: None)
atexit.register(_close_all)


def servers_of(model: Any, cluster: Cluster, plan: Plan, transfer_threads: int | None = None) -> Cluster:
    """A cluster for the sessions of a model, on servers that stay.

    Args:
        model: the Keras model.
        cluster: where its workers run.
        plan: plan of a session.
        transfer_threads: see `Cluster.for_transfers`; None where what trains later has to say it.
    """
    with _sessions_of(model) as sessions:
        return sessions.servers(cluster, plan, transfer_threads)


@contextmanager
def _sessions_of(model: Any) -> Iterator[_OfModel]:
    """The sessions of a model, now the last one that was used, for a caller who has them alone meanwhile.

    Those of models before the last few are closed then, which may take a while.
    """
    ends: list[Callable[[], None]] = []
    try:
        with _lock:
            sessions, surplus = _used(model)
            ends += [each.given_up() for each in surplus]
            yield sessions
    finally:
        for end in ends:
            end()


def _used(model: Any) -> tuple[_OfModel, list[_OfModel]]:
    """The sessions of a model, now the last one that was used, and those of models before the last few."""
    sessions = vars(model).get(_ATTRIBUTE)
    if sessions is None:
        sessions = _OfModel()
        object.__setattr__(model, _ATTRIBUTE, sessions)
    others = [each for each in (reference() for reference in _recent) if each is not None and each is not sessions]
    idle = [each for each in others if each.uses == 0]
    surplus = idle[: max(len(others) + 1 - _MOST_MODELS, 0)]
    _recent[:] = [weakref.ref(each) for each in (*(each for each in others if each not in surplus), sessions)]
    return sessions, surplus


def taken(model: Any, method: str, purpose: list[Any], data: GivenData) -> KeptSession | None:
    """The session that was kept for the same purpose, which begins again; None where there is none.

    The caller has it for itself, until it gives it to `keep`.

    Args:
        model: the Keras model.
        method: name of the model's method that the workers run.
        purpose: what must be as it was; see `purpose_of`.
        data: data of the call.
    """
    with _lock:
        sessions = vars(model).get(_ATTRIBUTE)
        before, kept = (None, None) if sessions is None else sessions.kept.pop(method, (None, None))
    if kept is None:
        return None
    begins = False
    try:
        begins = _is_same(before, purpose) and kept.begin_again(data)
    except CaramelError:  # the servers are gone, for one: a new session says what is wrong, if that lasts
        pass
    finally:
        if not begins:
            with suppress(CaramelError):
                kept.session.close()
    return kept if begins else None


def keep(model: Any, method: str, purpose: list[Any], kept: KeptSession) -> None:
    """Keep a session open for the next call.

    Args:
        model: the Keras model.
        method: name of the model's method that the workers run.
        purpose: see `taken`.
        kept: session whose steps all went well.
    """
    with _sessions_of(model) as sessions:
        _, other = sessions.kept.get(method, (None, None))
        sessions.kept[method] = (purpose, kept)
    if other is not None:  # of another thread
        with suppress(CaramelError):
            other.session.close()


@dataclass
class Use:
    """A call on a model.

    Attributes:
        kept: session of the call, once it has one.
    """

    kept: KeptSession | None = None


@contextmanager
def using(model: Any) -> Iterator[Use]:
    """A call on a model, whose sessions stay meanwhile; if something goes wrong, its own is closed.

    Args:
        model: the Keras model.
    """
    with _sessions_of(model) as sessions:
        sessions.uses += 1
    use = Use()
    try:
        yield use
    except BaseException:
        if use.kept is not None:
            with suppress(CaramelError):  # what went wrong is what the user has to know
                use.kept.session.close()
        raise
    finally:
        with _lock:
            sessions.uses -= 1


def purpose_of(model: Any, data: GivenData, workers: int, cluster: Any, options: Mapping[str, Any]) -> list[Any]:
    """What must be the same for two calls to share a session.

    Args:
        model: the Keras model, with its variables.
        data: data of the call.
        workers: number of workers.
        cluster: where they run.
        options: further options of the call.
    """
    compiled = [
        getattr(model, name, None) for name in ("optimizer", "_compile_loss", "_compile_metrics", "_compile_config")
    ]
    steps = ("train_step", "test_step", "predict_step", "compute_loss", "call")
    own = [vars(model).get(name) for name in steps]
    own.append(vars(model).get("train_function"))  # who asks Keras for another one wants the step traced anew
    spec, is_fed = data.element_spec, data.dataset is None
    files = [_state_of_file(value) for value in options.values()]
    trainable = [variable.trainable for variable in model.variables]
    variables = list(model.variables)
    return [
        *compiled,
        *own,
        is_fed,
        spec,
        data.layout.is_alone,
        data.layout.template,
        workers,
        cluster,
        sorted(options),
        *(options[name] for name in sorted(options)),
        files,
        trainable,
        *variables,
    ]


def _state_of_file(value: Any) -> Any:
    """What changes with a file's contents, of an option that may be a path."""
    if not isinstance(value, (str, os.PathLike)) or not Path(value).is_file():
        return None
    state = Path(value).stat()
    return state.st_mtime_ns, state.st_size, state.st_ino


def _is_same(before: Any, now: list[Any]) -> bool:
    if before is None or len(before) != len(now):
        return False
    return all(map(_are_same, before, now))


def _are_same(one: Any, other: Any) -> bool:
    return one is other or (_is_plain(one) and type(one) is type(other) and one == other)


def _is_plain(value: Any) -> bool:
    """Whether equality of such values says that they are the same."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    return value is None or isinstance(value, (str, int, float, os.PathLike, Cluster, NetworkModel, tf.TypeSpec))
