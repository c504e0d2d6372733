"""What is compared with: TensorFlow's own in-graph all-reduces, and MultiWorkerMirroredStrategy."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.processes import AnsweringProcesses
from benchmarks.testbed import Testbed
from caramel.collectives.lower import Lowered
from caramel.graph.graph import parse_input
from caramel.measure.all_reduce_bench import elements_of


def tensorflow_builds(devices: Sequence[str], elements: int) -> dict[str, Callable[..., Lowered]]:
    """TensorFlow's in-graph all-reduces that work for so many devices and elements.

    Args:
        devices: the device of each worker.
        elements: float32 elements of the tensor.
    """
    import tensorflow as tf
    from tensorflow.python.distribute.v1 import all_reduce

    workers = len(devices)

    def mean(total: Any) -> Any:
        return total / workers

    builders: dict[str, Callable[[Sequence[Any]], Sequence[Any]]] = {
        "tf_shuffle": lambda xs: all_reduce.build_shuffle_all_reduce(xs, devices, tf.add_n, mean),
        "tf_ring": lambda xs: all_reduce.build_ring_all_reduce(xs, workers, 1, [0], tf.add, mean),
    }
    if workers & (workers - 1) == 0 and elements % workers == 0:  # it refuses anything else
        builders["tf_recursive_hd"] = lambda xs: all_reduce.build_recursive_hd_all_reduce(xs, tf.add, mean)

    def as_build(make: Callable[[Sequence[Any]], Sequence[Any]]) -> Callable[..., Lowered]:
        return lambda repetition, scope, sources: _imported(make, scope, sources, devices, elements)

    return {name: as_build(make) for name, make in builders.items()}


def _imported(
    make: Callable[[Sequence[Any]], Sequence[Any]],
    scope: str,
    sources: Sequence[str],
    devices: Sequence[str],
    elements: int,
) -> Lowered:
    """The nodes that a builder makes, under a scope, reading the given sources."""
    import tensorflow as tf

    graph = tf.Graph()
    with graph.as_default():
        given = []
        for rank, device in enumerate(devices):
            with tf.device(device):
                given.append(tf.compat.v1.placeholder(tf.float32, [elements], name=f"source_{rank}"))
        results = make(given)
    renamed = {f"source_{rank}": source for rank, source in enumerate(sources)}
    lowered = Lowered()
    for node in graph.as_graph_def().node:
        if node.name in renamed:
            continue
        inputs = []
        for text in node.input:
            name, index = parse_input(text)
            target = renamed.get(name, f"{scope}/{name}")
            inputs.append(f"^{target}" if index < 0 else f"{target}:{index}")
        if "_class" in node.attr:
            places = [text.decode().removeprefix("loc:@") for text in node.attr["_class"].list.s]
            node.attr["_class"].list.s[:] = [f"loc:@{renamed.get(p, f'{scope}/{p}')}".encode() for p in places]
        node.name = f"{scope}/{node.name}"
        del node.input[:]
        node.input.extend(inputs)
        lowered.nodes.append((node, 0))
    for result in results:
        lowered.results.append(f"{scope}/{result.name}")
    return lowered


class MirroredWorkers:
    """MultiWorkerMirroredStrategy (RING), one process per worker, doing all-reduces on demand.

    Args:
        workers: number of workers.
        testbed: hosts to run on, one worker each; None for processes of this namespace.
        timeout_s: how long an answer may take.
    """

    def __init__(self, workers: int, testbed: Testbed | None, timeout_s: float = 300.0) -> None:
        addresses = [testbed.hosts[r].address if testbed else "127.0.0.1" for r in range(workers)]
        cluster = json.dumps([f"{address}:{21000 + r}" for r, address in enumerate(addresses)])

        def command(rank: int) -> list[str]:
            return [sys.executable, "-m", "benchmarks.mirrored_worker", cluster, str(rank)]

        self._processes = AnsweringProcesses(
            "MultiWorkerMirroredStrategy", command, workers, testbed, timeout_s=timeout_s
        )
        try:
            self._processes.ask({"do": "ready"})
        except BaseException:
            self.close()
            raise

    def load(self, size_bytes: int, repeats: int) -> None:
        """Make the tensors of a size and functions that reduce them so often in a row."""
        self._processes.ask({"do": "load", "elements": elements_of(size_bytes), "repeats": repeats})

    def step_s(self) -> float:
        """Seconds of one step, measured on the first worker."""
        return float(self._processes.ask({"do": "step"})[0])

    def empty_s(self) -> float:
        """Seconds of a step without all-reduce."""
        return float(self._processes.ask({"do": "empty"})[0])

    def close(self) -> None:
        """End the workers; nothing happens the second time."""
        self._processes.close()

    def __enter__(self) -> MirroredWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
