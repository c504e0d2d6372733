"""Where TensorFlow puts the ops of a graph, beside where the graph asks for them."""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from caramel.errors import CaramelError
from caramel.graph.devices import Device

HOST = "CPU"
"""Kind of device of the host."""

_LINE = re.compile(r"^(\S+): \((\w+)\): (/job:\S+)$", re.MULTILINE)
"""What TensorFlow says of an op with ``log_device_placement``: its name, its kind, its device."""

_MOST_SHOWN = 20


@dataclass(frozen=True)
class Placements:
    """What became of the ops of a graph.

    Attributes:
        ops: number of ops.
        kinds: number of kinds of ops.
        on_host: number of ops on the host that should be on an accelerator, by kind.
        elsewhere: ops on another device than the graph asks for, the host apart; at most 20 of them.
        unplaced: kinds of ops of which nothing was heard.
    """

    ops: int
    kinds: int
    on_host: Mapping[str, int]
    elsewhere: Sequence[str]
    unplaced: Sequence[str]

    @property
    def failures(self) -> list[str]:
        """What is wrong, in words."""
        wrong = list(self.elsewhere[:1])
        return wrong + [f"nothing is known of the kinds {', '.join(self.unplaced)}"] * bool(self.unplaced)


def placements(graph_def: Any, log: str) -> Placements:
    """Compare what a graph asks for with what TensorFlow said.

    Args:
        graph_def: GraphDef with devices of this process.
        log: what TensorFlow wrote; the last word on an op counts.

    Raises:
        CaramelError: it has not written a line of the kind that is read here.
    """
    placed = {name: device for name, _, device in _LINE.findall(log)}
    if not placed:
        raise CaramelError("TensorFlow has logged no placement of an op, so nothing is known of any")
    on_host: Counter[str] = Counter()
    elsewhere: list[str] = []
    kinds: Counter[str] = Counter()
    heard: set[str] = set()
    for node in graph_def.node:
        kinds[node.op] += 1
        if node.name not in placed:
            continue
        heard.add(node.op)
        asked, found = Device.parse(node.device), Device.parse(placed[node.name])
        if asked.type is None or (asked.type, asked.index) == (found.type, found.index):
            continue
        if found.type == HOST != asked.type:
            on_host[node.op] += 1
        else:
            elsewhere.append(f"{node.name} ({node.op}) is on {found}, not on {asked}")
    return Placements(
        sum(kinds.values()),
        len(kinds),
        dict(sorted(on_host.items())),
        elsewhere[:_MOST_SHOWN],
        sorted(set(kinds) - heard),
    )


def logging_options() -> Any:
    """A `caramel.RunOptions` with which TensorFlow logs where it puts ops; it does so before it optimises a graph."""
    import caramel

    class Logging(caramel.RunOptions):
        """Options of which only the log is another."""

        def config(self, cpu_devices: int = 1, group_leader: str = "") -> Any:
            """See `caramel.RunOptions.config`."""
            config = super().config(cpu_devices, group_leader)
            config.log_device_placement = True
            return config

    return Logging(optimize_graph=False)


@contextmanager
def captured_output() -> Iterator[list[str]]:
    """What this process writes to its standard output meanwhile, TensorFlow's own code included, as one text."""
    texts: list[str] = []
    before = os.dup(1)
    with tempfile.TemporaryFile() as file:
        _flush()
        os.dup2(file.fileno(), 1)
        try:
            yield texts
        finally:
            _flush()
            os.dup2(before, 1)
            os.close(before)
        file.seek(0)
        texts.append(file.read().decode(errors="replace"))


def _flush() -> None:
    """C keeps what it writes to a file until there is enough of it."""
    ctypes.CDLL(None).fflush(None)


def placements_of(graph_def: Any, devices: Sequence[str], cluster: Any, timeout_s: float) -> Placements:
    """Have TensorFlow place all ops of a graph; none is run.

    Args:
        graph_def: GraphDef with devices of this process.
        devices: device string of each worker.
        cluster: where to place it, with `logging_options`.
        timeout_s: seconds that this may take.
    """
    whole = type(graph_def)()
    whole.CopyFrom(graph_def)
    everything = "everything"  # a session takes in, and places, what a run needs
    whole.node.add(name=everything, op="NoOp", input=[f"^{node.name}" for node in graph_def.node])
    with captured_output() as texts:
        executor = cluster.start(whole, tuple(devices), timeout_s)
        try:
            executor.prepare([([], [everything], [])], timeout_s)
        finally:
            executor.close()
    return placements(graph_def, texts[0])
