"""The hosts of one number of workers, and all contenders on them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from types import TracebackType

from benchmarks.collectives import cluster
from benchmarks.testbed import Testbed
from benchmarks.testbed.cores import SharedCores
from benchmarks.training import names
from benchmarks.training.contender import Burst, Contender, Settings
from benchmarks.training.effort import FULL, Effort
from benchmarks.training.grid import Sweep, best_of_sweep
from benchmarks.training.ingraph import parameter_server, tensorflow_collectives
from benchmarks.training.ours import OPTIONS, OurContender, captured
from benchmarks.training.spmd import COMPUTING_THREADS, HOROVOD, INTRA_OP_THREADS, MIRRORED, Processes, SpmdContender
from benchmarks.training.workloads import Workload
from caramel.errors import CaramelError, ClusterError, in_one_line
from caramel.facts import Trace
from caramel.frontend.context import Context
from caramel.netbench import measure_network
from caramel.netmodel.model import NetworkModel
from caramel.runtime.cluster import KeptProcesses
from caramel.runtime.executor import RunOptions

_BURST_BYTES = 32 * 1024
"""Of the links: the kernel passes packets on in bundles of three quarters of it, and the fewer, the less processor time
they take. Messages that are shorter than that, which are few, are not slowed down."""

_FIRST_BYTES_PER_S = 50e6 / 8
"""Of the links, until a cell says something else."""


class Failed:
    """A contender that cannot take part.

    Args:
        name: of the contender.
        settings: that were chosen.
        reason: why it cannot.
    """

    def __init__(self, name: str, settings: Settings, reason: str) -> None:
        self.name = name
        self.settings = settings
        self._reason = reason

    def run(self, steps: int) -> Burst:
        """See `Contender.run`."""
        raise ClusterError(self._reason)

    def pids(self) -> Sequence[int]:
        """None."""
        return ()

    def close(self) -> None:
        """Nothing is there."""


class Site:
    """Hosts on links whose rate changes from cell to cell.

    Args:
        workers: number of hosts, each with one worker of each contender.
        horovod: Python of the environment that has Horovod; None where there is none.
        effort: how much is measured.

    Attributes:
        testbed: the hosts.
        cluster: servers of their own on the hosts, for each session.
        shared: servers on the hosts for all contenders of a cell that are in one graph.

    Raises:
        UnavailableError: no testbed can be built here.
        ClusterError: MultiWorkerMirroredStrategy does not start.
    """

    def __init__(self, workers: int, horovod: str | None, effort: Effort = FULL) -> None:
        self.workers = workers
        self._effort = effort
        self._pythons = {MIRRORED: sys.executable, **({} if horovod is None else {HOROVOD: horovod})}
        self._peers: dict[str, Processes] = {}
        self._networks: dict[float, NetworkModel] = {}
        self._open = ExitStack()
        try:
            self.testbed = self._open.enter_context(Testbed(workers, _FIRST_BYTES_PER_S, _BURST_BYTES))
            self._open.enter_context(SharedCores(self.testbed))
            options = RunOptions(intra_op_threads=INTRA_OP_THREADS, inter_op_threads=COMPUTING_THREADS)
            self.cluster = replace(cluster(workers, self.testbed), options=options)
            # With servers of its own for each contender that needs some, their memory would not do.
            self.shared = KeptProcesses(self.cluster)
            self._open.callback(self.end_cell)
            self.peer(MIRRORED)
        except BaseException:
            self.close()
            raise

    def end_cell(self) -> None:
        """Stop what the contenders of a cell ran in; the next one starts it again.

        Processes keep the memory of all that they have computed: after eleven cells there was none left.
        """
        self.shared.close()
        for processes in self._peers.values():
            processes.close()
        self._peers.clear()

    def peer(self, kind: str) -> Processes:
        """The processes of a peer with its defaults, which are started again after a failure or a cell.

        Raises:
            ClusterError: they do not start, or there is no Horovod.
        """
        if kind not in self._pythons:
            raise ClusterError("Horovod is not installed: make horovod builds it")
        found = self._peers.get(kind)
        if found is None or found.has_ended:
            if found is not None:
                found.close()
            self._peers[kind] = found = Processes(kind, self.testbed, self.workers, self._pythons[kind])
        return found

    # -- what is measured before a cell ----------------------------------------------------------

    def sent_bytes(self) -> list[int]:
        """What each host has sent so far."""
        return [host.counters().sent_bytes for host in self.testbed.hosts]

    def network(self) -> NetworkModel:
        """This library's own measurement of the network at its present rate, which is made once."""
        rate = self.testbed.rate_bytes_per_s or 0.0
        if rate not in self._networks:
            where = f"links of {rate * 8 / 1e6:.4g} Mbit/s"
            self._networks[rate] = measure_network(self.cluster, [self.workers], self._effort.network, where)
        return self._networks[rate]

    def traced(self, workload: Workload) -> tuple[Context, Trace]:
        """A workload as this library captures and traces it."""
        import caramel

        context = captured(workload)
        runs, steps = self._effort.trace_runs, self._effort.trace_steps
        trace = caramel.trace(context, workers=self.workers, cluster=self.cluster, runs=runs, steps=steps)
        return context, trace

    def computation(self, workload: Workload) -> Contender:
        """Every worker on its own."""
        return SpmdContender(names.COMPUTE, self.peer(MIRRORED), workload, {}, None)

    def swept(self, workload: Workload) -> Mapping[str, Sweep | str]:
        """The best settings of the peers that have some, or why there are none."""
        found: dict[str, Sweep | str] = {}
        mirrored = [
            ({"bytes_per_pack": size}, partial(self._mirrored_with, workload, size))
            for size in (0, *self._effort.pack_bytes)
        ]
        horovod: list[tuple[Settings, Callable[[], Contender]]] = [({}, partial(self._horovod_with, workload, {}))]
        for fusion, cycle in self._effort.fusion:
            settings: Settings = {"fusion_bytes": fusion, "cycle_ms": cycle}
            horovod.append((settings, partial(self._horovod_with, workload, settings)))
        for name, candidates in ((names.MIRRORED_BEST, mirrored), (names.HOROVOD_BEST, horovod)):
            if not self._effort.takes_part(name):
                continue
            try:
                found[name] = best_of_sweep(candidates, bursts=self._effort.bursts)  # type: ignore[arg-type]
            except CaramelError as error:
                found[name] = in_one_line(error)
        return found

    def _mirrored_with(self, workload: Workload, pack_bytes: int, name: str = names.MIRRORED_BEST) -> Contender:
        options = {"bytes_per_pack": pack_bytes}
        return SpmdContender(name, self.peer(MIRRORED), workload, options, options)

    def _horovod_with(self, workload: Workload, settings: Settings, name: str = names.HOROVOD_BEST) -> Contender:
        """Horovod with settings, in processes of its own unless they are the defaults."""
        if not settings or HOROVOD not in self._pythons:
            return SpmdContender(name, self.peer(HOROVOD), workload, settings, {})
        variables = {
            "HOROVOD_FUSION_THRESHOLD": str(settings["fusion_bytes"]),
            "HOROVOD_CYCLE_TIME": str(settings["cycle_ms"]),
        }
        processes = Processes(HOROVOD, self.testbed, self.workers, self._pythons[HOROVOD], variables)
        try:
            return SpmdContender(name, processes, workload, settings, {}, owns=True)
        except BaseException:
            processes.close()
            raise

    # -- a cell ----------------------------------------------------------------------------------

    def contenders(
        self, workload: Workload, context: Context, trace: Trace, swept: Mapping[str, Sweep | str]
    ) -> list[Contender]:
        """All contenders; those that do not start have the reason as their error."""
        network = self.network()
        makers: dict[str, Callable[[], Contender]] = {names.COMPUTE: partial(self.computation, workload)}
        if HOROVOD in self._pythons:
            makers[names.COMPUTE_HOROVOD] = lambda: SpmdContender(
                names.COMPUTE_HOROVOD, self.peer(HOROVOD), workload, {}, None
            )
        for name in OPTIONS:
            makers[name] = partial(OurContender, name, context, trace, network, self.shared, self.workers)
        makers[names.MIRRORED] = partial(self._mirrored_with, workload, 0, names.MIRRORED)
        makers[names.MIRRORED_BEST] = lambda: self._mirrored_with(
            workload, int(_settings(swept, names.MIRRORED_BEST)["bytes_per_pack"])
        )
        makers[names.HOROVOD] = partial(self._horovod_with, workload, {}, names.HOROVOD)
        makers[names.HOROVOD_BEST] = lambda: self._horovod_with(workload, _settings(swept, names.HOROVOD_BEST))
        makers["tf_collectives"] = partial(tensorflow_collectives, workload, self.workers, self.shared)
        makers["ps_all"] = partial(parameter_server, workload, self.workers, self.shared)
        makers["ps_half"] = partial(parameter_server, workload, self.workers, self.shared, max(self.workers // 2, 1))
        return [_made(name, make) for name, make in makers.items() if self._effort.takes_part(name)]

    def close(self) -> None:
        """End everything; nothing happens the second time."""
        self._open.close()

    def __enter__(self) -> Site:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _settings(swept: Mapping[str, Sweep | str], name: str) -> Settings:
    found = swept[name]
    if isinstance(found, str):
        raise ClusterError(found)
    return found.settings


def _made(name: str, make: Callable[[], Contender]) -> Contender:
    try:
        contender = make()
    except CaramelError as error:
        return Failed(name, {}, in_one_line(error))
    contender.name = name
    return contender
