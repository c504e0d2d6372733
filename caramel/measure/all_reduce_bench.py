"""Timing all-reduces on a cluster, one after the other.

An all-reduce is timed as a training step uses it: it reads a tensor on every worker and its result
is assigned to a variable there. Several follow each other within a step, each beginning on a worker
when the one before has ended there, and the time of an empty step is taken off. (Chaining result to
input instead would let TensorFlow's optimizers see through a reduction whose result only travels.)
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from caramel.collectives.algorithms import NATIVE, Schedules
from caramel.collectives.dtypes import ITEM_BYTES
from caramel.collectives.emit import emit_all_reduce
from caramel.collectives.lower import Lowered, Request
from caramel.errors import InputError, InvariantError
from caramel.graph.devices import default_devices, parse_devices
from caramel.graph.graph import Graph, NodeDef
from caramel.graph.nodes import assign, constant, dtype_attribute, group, node, read, variable
from caramel.runtime.clusters.base import Cluster
from caramel.runtime.executor import Executor
from caramel.runtime.host.environment import usable_cores

_DTYPE = "float32"

ELEMENT_BYTES = ITEM_BYTES[_DTYPE]
"""Bytes of an element of the tensors that are reduced."""

PRUNE_RATIO = 3.0
"""Ratio to the fastest time of a size from which on an all-reduce is timed only twice at that size."""

_RETIME_RATIO = 1.15
"""Ratio to the fastest median up to which all-reduces are timed as often again: the least of many noisy medians is
often not that of the fastest."""

_LONG_STEP_S = 0.25
"""Seconds of a step after which all-reduces need not follow each other: what a step costs besides is far less."""

_BURST_S, _SUSTAINED_S, _LONG_AFTER_BURST_S = 0.01, 0.02, 0.1
"""Seconds for which short steps are run before they count, least seconds for which they are timed, and seconds from
which on a first step counts. A link that was idle lets a burst through at once, as token buckets do, so after a pause
they seem faster than the link."""

_ENOUGH_S, _MIN_ROUNDS = 5.0, 2
"""Seconds for which the fastest all-reduce is timed at most, if these are so many rounds: long steps differ little."""

_PATTERN_MODULUS = 1009
"""Modulus of the pattern in the values: neighbouring elements differ, so that misplaced shards are noticed."""

_ADDED_BYTES, _ADDING_ROUNDS = 2**22, 7
"""Bytes of the tensors that are added to find the time of additions, and how often that is timed."""

Build = Callable[[int, str, Sequence[str]], Lowered]
"""Function from (number of the repetition, scope, local tensor of each rank) to nodes and results."""


def elements_of(size_bytes: int) -> int:
    """Number of elements of a tensor of so many bytes, at least one."""
    return max(size_bytes // ELEMENT_BYTES, 1)


def repetitions(size_bytes: int, expected_s: float = 0.0) -> int:
    """Number of all-reduces that follow each other in a step: the shorter, the more.

    Args:
        size_bytes: bytes of the tensor on each worker.
        expected_s: seconds that the fastest one is expected to take; 0 if that is not known.

    >>> repetitions(2**12), repetitions(2**20), repetitions(2**20, expected_s=0.3), repetitions(2**25)
    (8, 4, 1, 1)
    """
    by_size = next((count for most, count in ((2**16, 8), (2**20, 4), (2**24, 2)) if size_bytes <= most), 1)
    return by_size if expected_s * by_size <= _LONG_STEP_S else max(1, math.floor(_LONG_STEP_S / expected_s))


def per_all_reduce(steps_s: Sequence[float], empty_s: Sequence[float], repeats: int) -> list[float]:
    """Seconds of one all-reduce: the median of the empty steps is taken off, as long as a thousandth is left.

    Args:
        steps_s: seconds of each step.
        empty_s: seconds of the empty steps that were timed in turn with them.
        repeats: number of all-reduces in a step.

    >>> per_all_reduce([5.0, 3.0, 1.0], [1.0, 2.0, 0.5], 2)
    [2.0, 1.0, 0.0005]
    """
    base = statistics.median(empty_s)
    return [max(t - base, 1e-3 * t) / repeats for t in steps_s]


class AllReduceBench:
    """A cluster on which all-reduces of different kinds are timed in turn.

    Args:
        cluster: the cluster to measure on.
        workers: number of workers, at least 2.
        timeout_s: seconds that one step may take.
        uses_native: whether TensorFlow's own collective ops will be among them.
        device_list: see `devices_for`.

    Attributes:
        workers: number of workers.
        devices: device of each worker.
        computing_threads: number of ops that a worker can compute at once.
        instances: counter that gives each all-reduce its number.
    """

    def __init__(
        self,
        cluster: Cluster,
        workers: int,
        timeout_s: float = 300.0,
        uses_native: bool = False,
        device_list: Sequence[str] = (),
    ) -> None:
        if workers < 2:
            raise InputError(f"all-reduces are measured on at least 2 workers, got {workers}")
        self.workers = workers
        started_devices = devices_for(cluster, workers, device_list)
        self.devices = tuple(text if "/device:" in text else f"{text}/device:CPU:0" for text in started_devices)
        self.computing_threads = cluster.options.inter_op_threads or usable_cores()
        self._timeout_s = timeout_s
        self._targets: dict[str, tuple[list[str], int]] = {}
        self._generation = 0
        self.instances = count(1)
        empty = [node(f"empty_{rank}", "NoOp", (), device) for rank, device in enumerate(self.devices)]
        self._empty = [n.name for n in empty]
        if uses_native:  # the cluster sees by this that it needs a group leader
            sources = [filled(empty, f"probe_{rank}", 0.0, (1,), device) for rank, device in enumerate(self.devices)]
            probe = build_for(Schedules(), self, NATIVE, 1, ELEMENT_BYTES)(0, "native_probe", sources)
            empty += [node_def for node_def, _ in probe.nodes]
        # The graph grows with each size. TensorFlow's optimizers find nothing to do in it, but go through all of it for
        # each new step, which is most of the time that a measurement would take.
        as_written = cluster.with_options(replace(cluster.options, optimize_graph=False))
        self._executor: Executor = as_written.start(Graph(empty).to_graph_def(), started_devices, timeout_s)

    def __enter__(self) -> AllReduceBench:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.close()

    # -- one size at a time ----------------------------------------------------------------------

    def load(
        self, size_bytes: int, builds: Mapping[str, Build], repeats: int | None = None, at_once: bool = False
    ) -> None:
        """Make the tensors of a size and the graphs of the all-reduces to measure with it.

        Args:
            size_bytes: bytes of the tensor on each worker.
            builds: functions that build the all-reduces, by name.
            repeats: number of all-reduces in a step; default: by their size.
            at_once: whether all begin with the step, instead of one after the other. Then they have the same roots.
        """
        self._generation += 1
        scope = f"size_{self._generation}"
        nodes: list[NodeDef] = []
        elements = elements_of(size_bytes)
        for rank, device in enumerate(self.devices):
            for kind in ("given", "reduced"):
                nodes.append(variable(f"{scope}/{kind}_{rank}", _DTYPE, (elements,), device))
            value = filled(nodes, f"{scope}/initial_{rank}", rank + 1.0, (elements,), device)
            pattern = _pattern(nodes, f"{scope}/pattern_{rank}", elements, device)
            nodes.append(_binary("AddV2", f"{scope}/patterned_{rank}", value, pattern, device))
            nodes.append(assign(f"{scope}/initialise_{rank}", f"{scope}/given_{rank}", nodes[-1].name, _DTYPE, device))
            nodes += _extremes(f"{scope}/check_{rank}", f"{scope}/reduced_{rank}", pattern, device)
            destroyed = [
                node(
                    f"{scope}/drop_{k}_{rank}",
                    "DestroyResourceOp",
                    [f"{scope}/{k}_{rank}"],
                    device,
                    ignore_lookup_error=True,
                )
                for k in ("given", "reduced")
            ]
            nodes += [*destroyed, group(f"{scope}/drop_{rank}", [n.name for n in destroyed], device)]
        self._targets = {}
        repeats = repeats or repetitions(size_bytes)
        for name, build in builds.items():
            ends = self._repeated(nodes, scope, f"{scope}/{name}", build, repeats, at_once)
            for rank, device in enumerate(self.devices):
                clock(nodes, f"{scope}/{name}/ended_{rank}", ends[rank], device)
            self._targets[name] = ([op_name for rank_ends in ends for op_name in rank_ends], repeats)
        self._executor.extend(Graph(nodes).to_bytes())
        self._run([f"{scope}/initialise_{rank}" for rank in range(self.workers)])

    def _repeated(
        self, nodes: list[NodeDef], scope: str, name: str, build: Build, repeats: int, at_once: bool
    ) -> list[list[str]]:
        """Add all-reduces; for each rank the names of the ops after which all have ended there."""
        ends: list[list[str]] = [[] for _ in self.devices]
        for repetition in range(repeats):
            sources = []
            for rank, device in enumerate(self.devices):
                variable_name, after = f"{scope}/given_{rank}", [] if at_once else ends[rank]
                nodes.append(read(f"{name}/read_{repetition}_{rank}", variable_name, _DTYPE, device, after))
                sources.append(nodes[-1].name)
            lowered = build(0 if at_once else repetition, f"{name}/reduce_{repetition}", sources)
            nodes += [node_def for node_def, _ in lowered.nodes]
            for rank, device in enumerate(self.devices):
                reduced, result = f"{scope}/reduced_{rank}", lowered.results[rank]
                nodes.append(assign(f"{name}/done_{repetition}_{rank}", reduced, result, _DTYPE, device))
                ends[rank] = [*(ends[rank] if at_once else ()), nodes[-1].name]
        return ends

    def ends(self, name: str) -> list[str]:
        """For each rank the tensor that says when the last all-reduce of a step has ended there, by its own clock."""
        return [f"size_{self._generation}/{name}/ended_{rank}:0" for rank in range(self.workers)]

    def extend(self, nodes: Sequence[NodeDef]) -> None:
        """Add other nodes to the graph."""
        self._executor.extend(Graph(nodes).to_bytes())

    def fetch(
        self, fetches: Sequence[str], targets: Sequence[str], feeds: Mapping[str, np.ndarray] | None = None
    ) -> list[np.ndarray]:
        """Run a step of one's own.

        Args:
            fetches: names of tensors.
            targets: names of ops.
            feeds: arrays by the names of tensors.

        Raises:
            ClusterError: a worker cannot be reached.
        """
        return self._executor.run(fetches, targets, feeds or {}, self._timeout_s)

    def unload(self) -> None:
        """Free the tensors of the size."""
        self._run([f"size_{self._generation}/drop_{rank}" for rank in range(self.workers)])

    def measure(
        self, rounds: int, on_round: Callable[[int], None] = lambda done: None, prune: bool = True
    ) -> dict[str, list[float]]:
        """Time everything in turn, several times, after a round to warm up.

        Args:
            rounds: number of rounds, at least 1.
            on_round: function that is called after each round with the number done.
            prune: whether to give up, after two rounds, all-reduces that take several times as long as the best,
                to time as often again those that are close to it, if any are, and to time long ones less often.

        Returns:
            Seconds per all-reduce, by name, in the order of the rounds.

        Raises:
            InvariantError: a result is wrong.
            ClusterError: a worker cannot be reached.
        """
        for name, (targets, _) in self._targets.items():
            self._run(targets)
            self._check(name)
        steps: dict[str, list[float]] = {name: [] for name in self._targets}
        empty: list[float] = []
        self._run(self._empty)
        active = list(self._targets)
        most_rounds = rounds
        for done in range(2 * rounds if prune else rounds):
            if done == 2 * most_rounds:
                break
            if done == most_rounds:
                active = _within(_RETIME_RATIO, statistics.median, steps, active) or active
                if len(active) == 1:
                    break  # nothing to tell apart
            empty.append(self._timed(self._empty))
            first = done % len(active)  # nobody is always the first, or always after the same one
            for name in [*active[first:], *active[:first]]:
                steps[name].append(self._timed(self._targets[name][0]))
            if done < most_rounds:
                on_round(done + 1)
            if prune and done + 1 == _MIN_ROUNDS:
                active = _within(PRUNE_RATIO, min, steps, active) or active
                fastest_s = min(min(steps[name]) for name in active)
                most_rounds = max(_MIN_ROUNDS, min(rounds, math.ceil(_ENOUGH_S / fastest_s)))
        return {name: per_all_reduce(times, empty, self._targets[name][1]) for name, times in steps.items()}

    def _check(self, name: str) -> None:
        """Check that every element of every worker's result, its pattern taken off, is the mean of 1, 2, ..., N."""
        expected = (self.workers + 1) / 2
        scope = f"size_{self._generation}"
        fetches = [f"{scope}/check_{rank}/{kind}:0" for rank in range(self.workers) for kind in ("least", "most")]
        extremes = self._executor.run(fetches, [], {}, self._timeout_s)
        if not np.allclose(extremes, expected, rtol=0, atol=_PATTERN_MODULUS * 1e-6):
            raise InvariantError(f"{name} gave {sorted({float(g) for g in extremes})} instead of {expected}")

    def additions_s_per_byte(self) -> float:
        """Seconds to add a byte to another on the first worker, as a collective does."""
        self._generation += 1
        scope = f"size_{self._generation}"
        device = self.devices[0]
        repeats = 16
        elements = elements_of(_ADDED_BYTES)
        nodes = [variable(f"{scope}/{k}", _DTYPE, (elements,), device) for k in "abc"]
        for k, initial in (("a", 1.0), ("b", 2.0)):
            value = filled(nodes, f"{scope}/initial_{k}", initial, (elements,), device)
            nodes.append(assign(f"{scope}/initialise_{k}", f"{scope}/{k}", value, _DTYPE, device))
        nodes.append(group(f"{scope}/initialise", [f"{scope}/initialise_{k}" for k in "ab"], device))
        target = ""
        for number in range(repeats):
            for k in "ab":
                after = [target] if target else []
                nodes.append(read(f"{scope}/read_{k}_{number}", f"{scope}/{k}", _DTYPE, device, after))
            nodes.append(_binary("AddV2", f"{scope}/add_{number}", nodes[-2].name, nodes[-1].name, device))
            target = f"{scope}/done_{number}"
            nodes.append(assign(target, f"{scope}/c", nodes[-1].name, _DTYPE, device))
        self._executor.extend(Graph(nodes).to_bytes())
        self._run([f"{scope}/initialise"])
        self._run([target])
        times = []
        for _ in range(_ADDING_ROUNDS):
            times.append(self._timed([target]) - self._timed(self._empty))
        return max(statistics.median(times), 0.0) / repeats / _ADDED_BYTES

    def _run(self, targets: Sequence[str]) -> None:
        self._executor.run([], targets, {}, self._timeout_s)

    def _timed(self, targets: Sequence[str]) -> float:
        """Seconds of a step; of a short one the mean of many that follow each other."""
        started_s = begin_s = time.perf_counter()
        steps = 0
        while True:
            self._run(targets)
            ended_s, steps = time.perf_counter(), steps + 1
            is_warm = begin_s - started_s >= _BURST_S
            if ended_s - begin_s >= (_SUSTAINED_S if is_warm else _LONG_AFTER_BURST_S):
                return (ended_s - begin_s) / steps
            if not is_warm:
                begin_s, steps = ended_s, 0


def devices_for(cluster: Cluster, workers: int, device_list: Sequence[str] = ()) -> tuple[str, ...]:
    """The devices of some workers: the first of those that are given, or that the cluster has, where it knows them.

    Args:
        cluster: where they run.
        workers: number of workers.
        device_list: device string of each worker; empty for those of the cluster.

    Raises:
        InputError: fewer devices are given, or one is no device.
    """
    if device_list:
        if len(device_list) < workers:
            raise InputError(f"{workers} workers need as many devices, got {len(device_list)}")
        return parse_devices(tuple(device_list[:workers]), workers)
    known = cluster.default_devices
    return known[:workers] if len(known) >= workers else default_devices(workers)


def build_for(schedules: Schedules, bench: AllReduceBench, algorithm: str, depth: int, size_bytes: int) -> Build:
    """An all-reduce of this library as a `Build`."""

    def build(repetition: int, scope: str, sources: Sequence[str]) -> Lowered:
        return emit_all_reduce(
            schedules,
            algorithm,
            depth,
            Request(scope, sources, bench.devices, _DTYPE, elements_of(size_bytes), mean=True),
            turn=repetition,
            instance=next(bench.instances),
        )

    return build


def _within(
    factor: float, score: Callable[[list[float]], float], steps: Mapping[str, list[float]], active: Sequence[str]
) -> list[str]:
    """The active names whose score is at most so many times the least of all."""
    best = min(score(times) for times in steps.values())
    return [name for name in active if score(steps[name]) <= factor * best]


def filled(nodes: list[NodeDef], name: str, value: float, shape: Sequence[int], device: str) -> str:
    """Add a tensor of one value; its name."""
    dims = constant(f"{name}/dims", np.array(shape, np.int32), "int32", device)
    scalar = constant(f"{name}/value", value, _DTYPE, device)
    fill = node(
        name, "Fill", [dims.name, scalar.name], device, T=dtype_attribute(_DTYPE), index_type=dtype_attribute("int32")
    )
    nodes += [dims, scalar, fill]
    return name


def clock(nodes: list[NodeDef], name: str, after: Sequence[str], device: str) -> str:
    """Add an op that says when others have ended, by the clock of its device's host; its tensor."""
    nodes.append(node(name, "Timestamp", [f"^{op_name}" for op_name in after], device))
    return f"{name}:0"


def _binary(op: str, name: str, left: str, right: str, device: str) -> NodeDef:
    return node(name, op, [left, right], device, T=dtype_attribute(_DTYPE))


def _pattern(nodes: list[NodeDef], name: str, elements: int, device: str) -> str:
    """The position of each element, modulo `_PATTERN_MODULUS`."""
    numbers = {"start": 0, "limit": elements, "delta": 1, "modulus": _PATTERN_MODULUS}
    nodes += [constant(f"{name}/{key}", np.int32(value), "int32", device) for key, value in numbers.items()]
    int32 = dtype_attribute("int32")
    nodes += [
        node(f"{name}/range", "Range", [f"{name}/{k}" for k in ("start", "limit", "delta")], device, Tidx=int32),
        node(f"{name}/mod", "FloorMod", [f"{name}/range", f"{name}/modulus"], device, T=int32),
        node(name, "Cast", [f"{name}/mod"], device, SrcT=int32, DstT=dtype_attribute(_DTYPE)),
    ]
    return name


def _extremes(name: str, handle: str, pattern: str, device: str) -> list[NodeDef]:
    """The least and the largest of the variable's elements, the pattern taken off."""
    value = read(f"{name}/read", handle, _DTYPE, device)
    plain = _binary("Sub", f"{name}/plain", value.name, pattern, device)
    axis = constant(f"{name}/axis", np.array([0], np.int32), "int32", device)
    attributes = {"T": dtype_attribute(_DTYPE), "Tidx": dtype_attribute("int32")}
    extremes = [
        node(f"{name}/{kind}", op, [plain.name, axis.name], device, **attributes)
        for kind, op in (("least", "Min"), ("most", "Max"))
    ]
    return [value, plain, axis, *extremes]
