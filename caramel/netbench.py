"""Measuring all-reduces on a cluster, one after the other, as `caramel netbench` does.

An all-reduce is measured as a training step uses it: it reads a tensor on every worker and its result
is assigned to a variable there. Several follow each other within a step, each beginning on a worker
when the one before has ended there, and the time of an empty step is taken off. (Chaining result to
input instead would let TensorFlow's optimizers see through a reduction whose result only travels.)
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from caramel.collectives.algorithms import ALGORITHMS, NATIVE, Schedules
from caramel.collectives.lower import Lowered, lower
from caramel.collectives.native import lower_native
from caramel.errors import InputError, InvariantError
from caramel.graph.devices import default_devices
from caramel.graph.graph import Graph, NodeDef
from caramel.graph.nodes import constant, dtype_attribute, group, node, shape_attribute
from caramel.netmodel.line import Curve, Sample
from caramel.netmodel.model import MEASURED_DEPTHS, NetworkModel
from caramel.runtime.cluster import Cluster, placed_nodes
from caramel.runtime.executor import Executor
from caramel.runtime.progress import progress_over

DEFAULT_SIZES = (64, *(2**k for k in range(12, 26, 2)), 2**25)
"""64 B and 4 MiB (Caramel, section 4.2), and a ladder up to 32 MiB."""

_DTYPE = "float32"
_WIDTH = 4
_HOPELESS = 3.0
"""What takes so many times as long as the fastest of a size is timed twice only at that size."""

_GIVEN_UP_FROM_BYTES = 2**20
"""From this size on, what is hopeless and falls behind is not measured at larger sizes; below, chunks look hopeless
that win when they are long enough."""

_CLOSE = 1.15
"""What is within this of the fastest is timed as often again: the fastest of many noisy medians is often not the
fastest."""

_PATTERN = 1009
"""Values of neighbouring elements differ, modulo this, so that misplaced shards are noticed."""

Build = Callable[[int, str, Sequence[str]], Lowered]
"""(number of the repetition, scope, local tensor of each rank) -> nodes and results."""


def repetitions(size_bytes: int) -> int:
    """How many all-reduces follow each other in a step: the shorter, the more."""
    return next((count for most, count in ((2**16, 8), (2**20, 4), (2**24, 2)) if size_bytes <= most), 1)


class AllReduceBench:
    """A cluster on which all-reduces of different kinds are timed in turn.

    Args:
        cluster: where.
        workers: number of workers, at least 2.
        timeout_s: of one step.
        uses_native: whether TensorFlow's own collective ops will be among them.
    """

    def __init__(self, cluster: Cluster, workers: int, timeout_s: float = 300.0, uses_native: bool = False) -> None:
        if workers < 2:
            raise InputError(f"all-reduces are measured on at least 2 workers, got {workers}")
        self.workers = workers
        self.devices = tuple(f"{text}/device:CPU:0" for text in default_devices(workers))
        self._timeout_s = timeout_s
        self._targets: dict[str, tuple[list[str], int]] = {}
        self._generation = 0
        self._instances = count(1)
        empty = [node(f"empty_{rank}", "NoOp", (), device) for rank, device in enumerate(self.devices)]
        self._empty = [n.name for n in empty]
        if uses_native:  # the cluster sees by this that it needs a group leader
            empty += self._native(
                0, "native_probe", [_value(empty, "probe", 0.0, 1, d, r) for r, d in enumerate(self.devices)]
            )
        graph_def = Graph(empty).to_graph_def()
        self._executor: Executor = cluster.start(graph_def, default_devices(workers), timeout_s)

    def __enter__(self) -> AllReduceBench:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.close()

    def _native(self, repetition: int, scope: str, sources: Sequence[str]) -> list[NodeDef]:
        return [n for n, _ in self.native_build(True)(repetition, scope, sources).nodes]

    def native_build(self, mean: bool) -> Build:
        """CollectiveReduceV2 as a `Build`."""
        return lambda repetition, scope, sources: lower_native(
            prefix=scope,
            size=1,  # of whatever size, it is not empty
            sources=sources,
            devices=self.devices,
            dtype=_DTYPE,
            mean=mean,
            instance=next(self._instances),
        )

    # -- one size at a time ----------------------------------------------------------------------

    def load(self, size_bytes: int, builds: Mapping[str, Build]) -> None:
        """Make the tensors of a size and the graphs of what is to be measured with it.

        Args:
            size_bytes: bytes of the tensor on each worker.
            builds: by name.
        """
        self._generation += 1
        scope = f"size_{self._generation}"
        nodes: list[NodeDef] = []
        elements = max(size_bytes // _WIDTH, 1)
        for rank, device in enumerate(self.devices):
            for kind in ("given", "reduced"):
                nodes.append(_variable(f"{scope}/{kind}_{rank}", elements, device))
            value = _value(nodes, f"{scope}/initial_{rank}", rank + 1.0, elements, device)
            pattern = _pattern(nodes, f"{scope}/pattern_{rank}", elements, device)
            nodes.append(_binary("AddV2", f"{scope}/patterned_{rank}", value, pattern, device))
            nodes.append(_assign(f"{scope}/initialise_{rank}", f"{scope}/given_{rank}", nodes[-1].name, device))
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
        repeats = repetitions(size_bytes)
        for name, build in builds.items():
            last = self._repeated(nodes, scope, f"{scope}/{name}", build, repeats)
            self._targets[name] = (last, repeats)
        self._executor.extend(placed_nodes(nodes))
        self._run([f"{scope}/initialise_{rank}" for rank in range(self.workers)])

    def _repeated(self, nodes: list[NodeDef], scope: str, name: str, build: Build, repeats: int) -> list[str]:
        """All-reduces that follow each other; the names of the last ops."""
        last: list[str] = []
        for repetition in range(repeats):
            sources = []
            for rank, device in enumerate(self.devices):
                after = [f"^{last[rank]}"] if last else []
                inputs = [f"{scope}/given_{rank}", *after]
                read = node(
                    f"{name}/read_{repetition}_{rank}", "ReadVariableOp", inputs, device, dtype=dtype_attribute(_DTYPE)
                )
                nodes.append(read)
                sources.append(read.name)
            lowered = build(repetition, f"{name}/reduce_{repetition}", sources)
            nodes += [made for made, _ in lowered.nodes]
            last = []
            for rank, device in enumerate(self.devices):
                assign = _assign(
                    f"{name}/done_{repetition}_{rank}", f"{scope}/reduced_{rank}", lowered.results[rank], device
                )
                nodes.append(assign)
                last.append(assign.name)
        return last

    def unload(self) -> None:
        """Free the tensors of the size."""
        self._run([f"size_{self._generation}/drop_{rank}" for rank in range(self.workers)])

    def measure(
        self, rounds: int, on_round: Callable[[int], None] = lambda done: None, prune: bool = True
    ) -> dict[str, list[float]]:
        """Time everything in turn, several times, after a round to warm up.

        Args:
            rounds: how often, at least 1.
            on_round: called after each round with the number done.
            prune: whether to give up, after two rounds, what takes several times as long as the best, and
                to time as often again what is close to it.

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
        for done in range(2 * rounds if prune else rounds):
            if done == rounds:
                best = min(statistics.median(times) for times in steps.values())
                active = [name for name in active if statistics.median(steps[name]) <= _CLOSE * best]
            empty.append(self._timed(self._empty))
            first = done % len(active)  # nobody is always the first, or always after the same one
            for name in [*active[first:], *active[:first]]:
                steps[name].append(self._timed(self._targets[name][0]))
            if done < rounds:
                on_round(done + 1)
            if prune and done == 1:
                best = min(min(times) for times in steps.values())
                active = [name for name in active if min(steps[name]) <= _HOPELESS * best]
        base = statistics.median(empty)
        return {
            name: [max(t - base, 1e-3 * t) / self._targets[name][1] for t in times] for name, times in steps.items()
        }

    def _check(self, name: str) -> None:
        """Every element of every worker's result, its pattern taken off, is the mean of 1, 2, ..., N."""
        wanted = (self.workers + 1) / 2
        scope = f"size_{self._generation}"
        fetches = [f"{scope}/check_{rank}/{kind}:0" for rank in range(self.workers) for kind in ("least", "most")]
        got = self._executor.run(fetches, [], {}, self._timeout_s)
        if not np.allclose(got, wanted, rtol=0, atol=_PATTERN * 1e-6):
            raise InvariantError(f"{name} gave {sorted({float(g) for g in got})} instead of {wanted}")

    def additions_s_per_byte(self, size_bytes: int = 2**22, rounds: int = 7) -> float:
        """Seconds to add a byte to another on the first worker, as a collective does."""
        self._generation += 1
        scope = f"size_{self._generation}"
        device = self.devices[0]
        repeats = 16
        elements = size_bytes // _WIDTH
        nodes = [_variable(f"{scope}/{k}", elements, device) for k in "abc"]
        for k, initial in (("a", 1.0), ("b", 2.0)):
            value = _value(nodes, f"{scope}/initial_{k}", initial, elements, device)
            nodes.append(_assign(f"{scope}/initialise_{k}", f"{scope}/{k}", value, device))
        nodes.append(group(f"{scope}/initialise", [f"{scope}/initialise_{k}" for k in "ab"], device))
        target = ""
        for number in range(repeats):
            after = [f"^{target}"] if target else []
            for k in "ab":
                read = node(f"{scope}/read_{k}_{number}", "ReadVariableOp", [f"{scope}/{k}", *after], device)
                read.attr["dtype"].CopyFrom(dtype_attribute(_DTYPE))
                nodes.append(read)
            nodes.append(_binary("AddV2", f"{scope}/add_{number}", nodes[-2].name, nodes[-1].name, device))
            target = f"{scope}/done_{number}"
            nodes.append(_assign(target, f"{scope}/c", nodes[-1].name, device))
        self._executor.extend(placed_nodes(nodes))
        self._run([f"{scope}/initialise"])
        self._run([target])
        times = []
        for _ in range(rounds):
            times.append(self._timed([target]) - self._timed(self._empty))
        return max(statistics.median(times), 0.0) / repeats / size_bytes

    def _run(self, targets: Sequence[str]) -> None:
        self._executor.run([], targets, {}, self._timeout_s)

    def _timed(self, targets: Sequence[str]) -> float:
        start = time.perf_counter()
        self._run(targets)
        return time.perf_counter() - start


def _variable(name: str, elements: int, device: str) -> NodeDef:
    attributes: dict[str, Any] = {"shape": shape_attribute((elements,)), "shared_name": name.encode()}
    return node(name, "VarHandleOp", (), device, dtype=dtype_attribute(_DTYPE), **attributes)


def _assign(name: str, variable: str, value: str, device: str) -> NodeDef:
    return node(name, "AssignVariableOp", [variable, value], device, dtype=dtype_attribute(_DTYPE))


def _value(nodes: list[NodeDef], name: str, value: float, elements: int, device: str, rank: int | None = None) -> str:
    """A filled vector."""
    name = name if rank is None else f"{name}_{rank}"
    dims = constant(f"{name}/dims", np.array([elements], np.int32), "int32", device)
    scalar = constant(f"{name}/value", value, _DTYPE, device)
    fill = node(
        name, "Fill", [dims.name, scalar.name], device, T=dtype_attribute(_DTYPE), index_type=dtype_attribute("int32")
    )
    nodes += [dims, scalar, fill]
    return name


def _binary(op: str, name: str, left: str, right: str, device: str) -> NodeDef:
    return node(name, op, [left, right], device, T=dtype_attribute(_DTYPE))


def _pattern(nodes: list[NodeDef], name: str, elements: int, device: str) -> str:
    """The position of each element, modulo `_PATTERN`."""
    numbers = {"start": 0, "limit": elements, "delta": 1, "modulus": _PATTERN}
    nodes += [constant(f"{name}/{key}", np.int32(value), "int32", device) for key, value in numbers.items()]
    int32 = dtype_attribute("int32")
    nodes += [
        node(f"{name}/range", "Range", [f"{name}/{k}" for k in ("start", "limit", "delta")], device, Tidx=int32),
        node(f"{name}/mod", "FloorMod", [f"{name}/range", f"{name}/modulus"], device, T=int32),
        node(name, "Cast", [f"{name}/mod"], device, SrcT=int32, DstT=dtype_attribute(_DTYPE)),
    ]
    return name


def _extremes(name: str, variable: str, pattern: str, device: str) -> list[NodeDef]:
    """The least and the largest of the variable's elements, the pattern taken off."""
    read = node(f"{name}/read", "ReadVariableOp", [variable], device, dtype=dtype_attribute(_DTYPE))
    plain = _binary("Sub", f"{name}/plain", read.name, pattern, device)
    axis = constant(f"{name}/axis", np.array([0], np.int32), "int32", device)
    attributes = {"T": dtype_attribute(_DTYPE), "Tidx": dtype_attribute("int32")}
    found = [
        node(f"{name}/{kind}", op, [plain.name, axis.name], device, **attributes)
        for kind, op in (("least", "Min"), ("most", "Max"))
    ]
    return [read, plain, axis, *found]


def build_for(schedules: Schedules, bench: AllReduceBench, algorithm: str, depth: int, size_bytes: int) -> Build:
    """An all-reduce of this library as a `Build`."""
    if algorithm == NATIVE:
        return bench.native_build(mean=True)
    elements = max(size_bytes // _WIDTH, 1)

    def build(repetition: int, scope: str, sources: Sequence[str]) -> Lowered:
        schedule = schedules.proved(algorithm, bench.workers, elements, depth, turn=repetition)
        return lower(schedule, prefix=scope, sources=sources, devices=bench.devices, dtype=_DTYPE, mean=True)

    return build


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
        sizes: bytes of the tensors.
        algorithms: names.
        depths: numbers of chunks; `native` has depth 1 only.
        rounds: how often each is timed.
        prune: whether to spend less time on what is far behind, and more on what is close to the fastest.
        timeout_s: of one step.
    """

    sizes: tuple[int, ...] = DEFAULT_SIZES
    algorithms: tuple[str, ...] = field(default=(*ALGORITHMS, NATIVE))
    depths: tuple[int, ...] = MEASURED_DEPTHS
    rounds: int = 7
    prune: bool = True
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        unknown = [a for a in self.algorithms if a not in (*ALGORITHMS, NATIVE)]
        if unknown or not self.algorithms:
            there = ", ".join((*ALGORITHMS, NATIVE))
            raise InputError(f"there is no all-reduce algorithm {(unknown or ['none'])[0]!r}; there are {there}")
        if len(set(self.sizes)) < 2 or min(self.sizes) < _WIDTH:
            raise InputError(f"a line needs at least 2 different sizes of at least {_WIDTH} bytes, got {self.sizes}")
        if not self.depths or min(self.depths) < 1:
            raise InputError(f"depths must be at least 1, got {self.depths}")
        if self.rounds < 1:
            raise InputError(f"rounds must be at least 1, got {self.rounds}")

    def choices(self) -> list[tuple[str, int]]:
        """Pairs of algorithm and depth."""
        return [(a, d) for a in self.algorithms for d in (self.depths if a != NATIVE else (1,))]


def measure_network(
    cluster: Cluster, workers: Collection[int], settings: Settings | None = None, description: str = ""
) -> NetworkModel:
    """Measure all-reduces and fit the model of the network.

    Args:
        cluster: where to start the workers.
        workers: one or more numbers of workers, each at least 2.
        settings: what to measure.
        description: where this is, for the reader of the file.

    Returns:
        The model, with a curve for each number of workers, algorithm and depth.

    Raises:
        ClusterError: a worker cannot be started or reached.
        FitError: too few sizes could be measured.
    """
    settings = settings or Settings()
    numbers = sorted(set(workers))
    if not numbers:
        raise InputError("give at least one number of workers")
    curves: list[Curve] = []
    gammas: list[float] = []
    with progress_over(len(numbers) * len(settings.sizes) * settings.rounds) as show:
        for position, number in enumerate(numbers):
            done = position * len(settings.sizes) * settings.rounds

            def tell(rounds: int, text: str, base: int = done) -> None:
                show(base + rounds, text)

            found, gamma = _measure(cluster, number, settings, tell)
            curves += found
            gammas.append(gamma)
    return NetworkModel(description or "measured", tuple(curves), min(gammas))


def _is_hopeless(ratios: Sequence[float]) -> bool:
    """Whether something was far behind the fastest at two sizes, and fell further behind."""
    return len(ratios) >= 2 and min(ratios[-2:]) > _HOPELESS and ratios[-1] >= ratios[-2]


def _measure(
    cluster: Cluster, workers: int, settings: Settings, tell: Callable[[int, str], None]
) -> tuple[list[Curve], float]:
    samples: dict[tuple[str, int], list[Sample]] = {}
    slowness: dict[tuple[str, int], list[float]] = {choice: [] for choice in settings.choices()}
    schedules = Schedules()
    with AllReduceBench(cluster, workers, settings.timeout_s, NATIVE in settings.algorithms) as bench:
        for position, size in enumerate(sorted(set(settings.sizes))):
            choices = [c for c, ratios in slowness.items() if not (settings.prune and _is_hopeless(ratios))]
            bench.load(size, {f"{a}_{d}": build_for(schedules, bench, a, d, size) for a, d in choices})

            def on_round(n: int, position: int = position, size: int = size) -> None:
                tell(position * settings.rounds + n, f"{workers} workers, {size} bytes")

            times = {
                c: statistics.median(t)
                for c, t in zip(choices, bench.measure(settings.rounds, on_round, settings.prune).values())
            }
            for choice in choices:
                samples.setdefault(choice, []).append(Sample(size, times[choice]))
                if size >= _GIVEN_UP_FROM_BYTES:
                    slowness[choice].append(times[choice] / min(times.values()))
            bench.unload()
        gamma = bench.additions_s_per_byte()
    return [Curve.fitted(workers, a, d, found) for (a, d), found in samples.items()], gamma
