"""What is compared with: TensorFlow's own in-graph all-reduces, and MultiWorkerMirroredStrategy."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.testbed import Testbed
from caramel.collectives.lower import Lowered
from caramel.errors import ClusterError
from caramel.graph.graph import parse_input
from caramel.timing import elements_of

ROOT = Path(__file__).parent.parent


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
        self._timeout_s = timeout_s
        self._is_late = False
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the workers
        addresses = [testbed.hosts[r].address if testbed else "127.0.0.1" for r in range(workers)]
        cluster = [f"{address}:{21000 + r}" for r, address in enumerate(addresses)]
        self._processes: list[Any] = []
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._log}
        try:
            for rank in range(workers):
                command = ["env", f"PYTHONPATH={ROOT}", "TF_CPP_MIN_LOG_LEVEL=3", sys.executable]
                command += ["-m", "benchmarks.mirrored_worker", json.dumps(cluster), str(rank)]
                start = testbed.hosts[rank].popen if testbed else subprocess.Popen
                self._processes.append(start(command, text=True, **pipes))
            self._ask({"do": "ready"})
        except BaseException:
            self.close()
            raise

    def load(self, size_bytes: int, repeats: int) -> None:
        """Make the tensors of a size and functions that reduce them so often in a row."""
        self._ask({"do": "load", "elements": elements_of(size_bytes), "repeats": repeats})

    def step_s(self) -> float:
        """Seconds of one step, measured on the first worker."""
        return float(self._ask({"do": "step"})[0])

    def empty_s(self) -> float:
        """Seconds of a step without all-reduce."""
        return float(self._ask({"do": "empty"})[0])

    def _ask(self, request: dict[str, Any]) -> list[Any]:
        timer = threading.Timer(self._timeout_s, self._give_up)
        timer.start()
        try:
            for process in self._processes:
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
            answers = [process.stdout.readline() for process in self._processes]
        except (OSError, ValueError) as error:
            raise ClusterError(self._problem()) from error
        finally:
            timer.cancel()
        if not all(answers):
            raise ClusterError(self._problem())
        return [json.loads(a) for a in answers]

    def _give_up(self) -> None:
        """End the workers; whoever waits for them then reads the end of their output."""
        self._is_late = True
        for process in self._processes:
            process.kill()

    def _problem(self) -> str:
        """What happened, with the last that the workers said."""
        self._log.seek(0)
        said = self._log.read().decode(errors="replace")[-2000:]
        what = f"did not answer within {self._timeout_s:g} s" if self._is_late else "ended"
        return f"MultiWorkerMirroredStrategy {what}: {said}"

    def close(self) -> None:
        """End the workers, and close what they wrote to; nothing happens the second time."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):  # a request that the worker did not read any more
                    pipe.close()
        self._log.close()

    def __enter__(self) -> MirroredWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
