"""The hosts of one number of workers, and all contenders on them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from types import TracebackType

from benchmarks.collectives import cluster
from benchmarks.testbed import Testbed
from benchmarks.testbed.cores import SharedCores
from benchmarks.testbed.shaping import LONG_BURST_BYTES
from benchmarks.training import names
from benchmarks.training.accelerated import Accelerated
from benchmarks.training.contender import Burst, Contender, Settings
from benchmarks.training.effort import FULL, Effort
from benchmarks.training.grid import best_of, sweep
from benchmarks.training.ingraph import parameter_server, tensorflow_collectives
from benchmarks.training.meters import Meter, meter_of
from benchmarks.training.ours import OPTIONS, OurContender, captured, planned
from benchmarks.training.records import Tried
from benchmarks.training.shared import Group, Member
from benchmarks.training.spmd import COMPUTING_THREADS, HOROVOD, INTRA_OP_THREADS, MIRRORED, Processes, SpmdContender
from benchmarks.training.workloads import Workload
from caramel.armodel import ARModel
from caramel.errors import CaramelError, ClusterError, in_one_line
from caramel.facts import Trace
from caramel.frontend.context import Context
from caramel.measure.netbench import measure_network
from caramel.netmodel.model import NetworkModel
from caramel.runtime.clusters.base import Cluster
from caramel.runtime.clusters.local_processes import SharedProcesses
from caramel.runtime.host.run_options import RunOptions

_FIRST_BYTES_PER_S = 50e6 / 8
"""Of the links, until a cell says something else."""

_MOST_STARTS = 2
"""Of a peer that has never started: it may be chance once."""

_OF_HOROVOD = (names.COMPUTE_HOROVOD, names.HOROVOD, names.HOROVOD_BEST)
"""Contenders that run in its environment."""


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
        accelerated: whether each host has an accelerator, which is emulated.

    Attributes:
        testbed: the hosts.
        cluster: servers of their own on the hosts, for each session.
        shared: servers on the hosts for all contenders of a cell that are in one graph.

    Raises:
        UnavailableError: no testbed can be built here.
    """

    def __init__(self, workers: int, horovod: str | None, effort: Effort = FULL, accelerated: bool = False) -> None:
        self.workers = workers
        self._effort = effort
        self._pythons = {MIRRORED: sys.executable, **({} if horovod is None else {HOROVOD: horovod})}
        self._unable = "Horovod is not installed: make horovod builds it" if horovod is None else None
        self._starts_left: int | None = _MOST_STARTS
        self._peers: dict[str, Processes] = {}
        self._networks: dict[float, NetworkModel] = {}
        self._open = ExitStack()
        try:
            self.testbed = self._open.enter_context(Testbed(workers, _FIRST_BYTES_PER_S, LONG_BURST_BYTES))
            self._open.enter_context(SharedCores(self.testbed))
            options = RunOptions(intra_op_threads=INTRA_OP_THREADS, inter_op_threads=COMPUTING_THREADS)
            processes = replace(cluster(workers, self.testbed), options=options)
            # With servers of its own for each contender that needs some, their memory would not do.
            self._servers = SharedProcesses(processes)
            self.cluster: Cluster = Accelerated(processes) if accelerated else processes
            self.shared: Cluster = Accelerated(self._servers) if accelerated else self._servers
            self._open.callback(self.end_cell)
        except BaseException:
            self.close()
            raise

    def end_cell(self) -> None:
        """Stop what the contenders of a cell ran in; the next one starts it again.

        Processes keep the memory of all that they have computed: after eleven cells there was none left.
        """
        self._servers.close()
        for kind in tuple(self._peers):
            self._end_peer(kind)

    def _end_peer(self, kind: str) -> None:
        if kind in self._peers:
            self._peers.pop(kind).close()

    def peer(self, kind: str) -> Processes:
        """The processes of a peer with its defaults, which are started again after a failure or a cell.

        Raises:
            ClusterError: they do not start, or it is Horovod and cannot run here.
        """
        found = self._peers.get(kind)
        if found is None or found.has_ended:
            if found is not None:
                found.close()
            self._peers[kind] = found = self._started(kind)
        return found

    def _started(self, kind: str, variables: Mapping[str, str] | None = None) -> Processes:
        """Processes of a peer; of Horovod none any more once it is clear that it cannot run."""
        if kind == MIRRORED:  # without it there is no computation alone: whatever happens, it is tried again
            return Processes(kind, self.testbed, self.workers, self._pythons[kind], variables)
        if self._unable is not None:
            raise ClusterError(self._unable)
        try:
            found = Processes(kind, self.testbed, self.workers, self._pythons[kind], variables)
        except ClusterError as error:
            if self._starts_left is not None:
                self._starts_left -= 1
            if self._starts_left == 0:
                self._unable = f"Horovod cannot run here, and is not tried again: {in_one_line(error)}"
            raise
        self._starts_left = None  # it can run, whatever happens later
        return found

    @property
    def absent(self) -> Collection[str]:
        """Names of the contenders that cannot run here at all: what they need is not there, or does not start."""
        return () if self._unable is None else _OF_HOROVOD

    # -- what is measured before a cell ----------------------------------------------------------

    def meter(self) -> Meter:
        """What reads the hosts' links and processes."""
        return meter_of(self.testbed.hosts)

    def link_rates_bytes_per_s(self) -> list[float]:
        """The payload rate of each host's link, measured to the next host."""
        return [self.testbed.measure_rate_bytes_per_s(rank, (rank + 1) % self.workers) for rank in range(self.workers)]

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
        return self._alone(workload, MIRRORED)

    @property
    def sweepable(self) -> Sequence[str]:
        """Names of the contenders whose settings can be tried."""
        return [name for name in names.SWEPT if self._effort.takes_part(name) and name not in self.absent]

    def swept(self, workload: Workload, wanted: Sequence[str]) -> Mapping[str, tuple[Tried, ...]]:
        """Settings of some contenders, tried.

        Args:
            workload: what they train.
            wanted: their names, of `sweepable`.
        """
        packs: list[Settings] = [{"bytes_per_pack": size} for size in (0, *self._effort.pack_bytes)]
        fusion: list[Settings] = [{}, *({"fusion_bytes": size, "cycle_ms": ms} for size, ms in self._effort.fusion)]
        found = {names.MIRRORED_BEST: (packs, self._mirrored_with), names.HOROVOD_BEST: (fusion, self._horovod_with)}
        return {
            name: sweep([(each, partial(make, workload, each)) for each in settings], self._effort.bursts)
            for name, (settings, make) in found.items()
            if name in wanted
        }

    # -- contenders ------------------------------------------------------------------------------

    def _alone(self, workload: Workload, kind: str) -> Contender:
        return SpmdContender(names.COMPUTE, self.peer(kind), workload, {}, None)

    def _alone_in_graph(self, plans: Mapping[str, ARModel | str]) -> Contender:
        """All workers in one graph of this library, which sends nothing."""
        planned = [plan for plan in plans.values() if not isinstance(plan, str)]
        if not planned:
            raise ClusterError("nothing of this library takes part, or can be planned")
        return OurContender.alone(planned[0].context, self.workers, self.shared)

    def _mirrored_with(self, workload: Workload, settings: Settings) -> Contender:
        return SpmdContender(names.MIRRORED, self.peer(MIRRORED), workload, settings, settings)

    def _horovod_with(self, workload: Workload, settings: Settings) -> Contender:
        """Horovod with settings, in processes of its own unless they are the defaults."""
        if not settings:
            return SpmdContender(names.HOROVOD, self.peer(HOROVOD), workload, settings, {})
        variables = {
            "HOROVOD_FUSION_THRESHOLD": str(settings["fusion_bytes"]),
            "HOROVOD_CYCLE_TIME": str(settings["cycle_ms"]),
        }
        processes = self._started(HOROVOD, variables)
        try:
            return SpmdContender(names.HOROVOD, processes, workload, settings, {}, owns=True)
        except BaseException:
            processes.close()
            raise

    # -- a cell ----------------------------------------------------------------------------------

    def plans(self, context: Context, trace: Trace) -> Mapping[str, ARModel | str]:
        """A workload planned in all ways that take part; where one cannot be planned, why.

        Raises:
            CaramelError: the network cannot be measured.
        """
        network = self.network()
        found: dict[str, ARModel | str] = {}
        for name in filter(self._effort.takes_part, OPTIONS):
            try:
                found[name] = planned(name, context, self.workers, trace, network)
            except CaramelError as error:
                found[name] = in_one_line(error)
        return found

    @property
    def taking_part(self) -> Sequence[str]:
        """The contenders' names, in their order."""
        horovod = [names.COMPUTE_HOROVOD] if HOROVOD in self._pythons else []
        computing = [names.COMPUTE, *horovod, names.COMPUTE_IN_GRAPH]
        return [name for name in (*computing, *OPTIONS, *names.PEERS) if self._effort.takes_part(name)]

    def contenders(
        self, workload: Workload, plans: Mapping[str, ARModel | str], swept: Mapping[str, Sequence[Tried]]
    ) -> list[Contender]:
        """All contenders; those that do not start have the reason as their error.

        Args:
            workload: what they train.
            plans: this library's.
            swept: settings of the peers.
        """
        peers = {kind: Group(partial(self._end_peer, kind)) for kind in (MIRRORED, HOROVOD)}
        in_graph, own = Group(self._servers.close), Group(lambda: None)
        makers: dict[str, tuple[Group, Callable[[], Contender]]] = {
            names.COMPUTE: (peers[MIRRORED], partial(self._alone, workload, MIRRORED)),
            names.COMPUTE_HOROVOD: (peers[HOROVOD], partial(self._alone, workload, HOROVOD)),
            names.COMPUTE_IN_GRAPH: (in_graph, partial(self._alone_in_graph, plans)),
            names.MIRRORED: (peers[MIRRORED], partial(self._mirrored_with, workload, {"bytes_per_pack": 0})),
            names.HOROVOD: (peers[HOROVOD], partial(self._horovod_with, workload, {})),
        }
        for name, plan in plans.items():
            if isinstance(plan, str):
                makers[name] = (own, partial(_cannot, plan))
            else:
                makers[name] = (in_graph, partial(OurContender.of_plan, name, plan, self.shared))
        for name, kind, make in (
            (names.MIRRORED_BEST, MIRRORED, self._mirrored_with),
            (names.HOROVOD_BEST, HOROVOD, self._horovod_with),
        ):
            try:
                settings = best_of(swept.get(name, ()))
                makers[name] = (own if kind == HOROVOD and settings else peers[kind], partial(make, workload, settings))
            except ClusterError as error:
                reason = self._unable if name in self.absent else None
                makers[name] = (own, partial(_cannot, reason or in_one_line(error)))
        makers["tf_collectives"] = (in_graph, partial(tensorflow_collectives, workload, self.workers, self.shared))
        for name, servers in (("ps_all", self.workers), ("ps_half", max(self.workers // 2, 1))):
            makers[name] = (in_graph, partial(parameter_server, workload, self.workers, self.shared, servers))
        return [_made(name, *makers[name]) for name in self.taking_part]

    def close(self) -> None:
        """End everything; nothing happens the second time."""
        self._open.close()

    def __enter__(self) -> Site:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _cannot(reason: str) -> Contender:
    raise ClusterError(reason)


def _made(name: str, group: Group, make: Callable[[], Contender]) -> Contender:
    try:
        return Member(name, group, make)
    except CaramelError as error:
        return Failed(name, {}, in_one_line(error))
