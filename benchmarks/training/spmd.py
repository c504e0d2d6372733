"""Contenders with a process for each worker: MultiWorkerMirroredStrategy, Horovod, and computation alone."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

from benchmarks.processes import AnsweringProcesses
from benchmarks.testbed import Testbed
from benchmarks.training.contender import Burst, Settings
from benchmarks.training.workloads import Workload
from caramel.errors import ClusterError
from caramel.plan import TRANSFER_THREADS

INTRA_OP_THREADS = 1
"""Of every contender's workers: four share two cores."""

COMPUTING_THREADS = 2
INTER_OP_THREADS = COMPUTING_THREADS + TRANSFER_THREADS
"""Of every contender's workers, too: this library's servers have these threads besides those that are asked for."""

MIRRORED, HOROVOD = "mwms", "horovod"

_TITLES = {MIRRORED: "MultiWorkerMirroredStrategy", HOROVOD: "Horovod"}
_TIMEOUT_S = 120.0


_VERSIONS = """
import json
from importlib.metadata import distributions
print(json.dumps({d.metadata["Name"]: d.version for d in distributions()}))
"""


def horovod_versions(python: str | None) -> Mapping[str, str]:
    """What is installed for Horovod, as far as it can be told.

    Args:
        python: of its environment; None where there is none.
    """
    if python is None:
        return {}
    try:
        told = subprocess.run([python, "-c", _VERSIONS], stdout=subprocess.PIPE, check=True, timeout=_TIMEOUT_S).stdout
        found = json.loads(told)
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    wanted = {"horovod": "horovod", "tensorflow": "horovod_tensorflow", "tensorflow-cpu": "horovod_tensorflow"}
    return {named: found[name] for name, named in wanted.items() if name in found}


class Processes:
    """The processes of MultiWorkerMirroredStrategy or of Horovod, which train several workloads in turn.

    Horovod's look every millisecond for something to do, so they are stopped unless they have been asked.

    Args:
        kind: ``mwms`` or ``horovod``.
        testbed: its hosts; the workers are on the first ones.
        workers: number of workers.
        python: of the environment that has the peer.
        environment: variables with settings.

    Attributes:
        has_ended: whether they failed or were closed, and are of no use any more.

    Raises:
        ClusterError: a process ended, or did not answer in time.
    """

    def __init__(
        self,
        kind: str,
        testbed: Testbed,
        workers: int,
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        addresses = [host.address for host in testbed.hosts[:workers]]
        self._title = _TITLES[kind]
        self._is_frozen_between = kind == HOROVOD
        self._names = count()
        self.has_ended = False
        self._open = ExitStack()
        try:
            given = dict(environment or {})
            if kind == HOROVOD:
                given |= self._rendezvous(python, addresses, testbed)
            self._processes = self._open.enter_context(_running(kind, testbed, python, addresses, given))
            self.ask({"do": "begin"})
        except BaseException:
            self.close()
            raise

    def _rendezvous(self, python: str, addresses: Sequence[str], testbed: Testbed) -> dict[str, str]:
        command = [python, "-m", "benchmarks.training.rendezvous", *addresses]
        server = AnsweringProcesses("Horovod's rendezvous", lambda _: command, 1, testbed, timeout_s=_TIMEOUT_S)
        self._open.callback(server.close)
        port = server.ask({})[0]
        return {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": addresses[0],
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        }

    def ask(self, request: Mapping[str, Any]) -> list[Any]:
        """See `AnsweringProcesses.ask`; nothing of these processes runs before and after."""
        if self.has_ended:
            raise ClusterError(f"the processes of {self._title} have ended")
        if self._is_frozen_between:
            self._processes.freeze(False)
        try:
            return self._processes.ask(dict(request))
        except ClusterError:
            self.has_ended = True
            raise
        finally:
            if self._is_frozen_between and not self.has_ended:
                self._processes.freeze(True)

    def load(self, workload: Workload, reduce: str, options: Mapping[str, Any], together: int = 1) -> str:
        """Make a step in all processes, or several that are run together; returns the name by which they know it."""
        name = f"step{next(self._names)}"
        request = {"do": "load", "name": name, "workload": workload.name, "examples": workload.examples}
        self.ask({**request, "reduce": reduce, "options": dict(options), "together": together})
        return name

    def pids(self) -> Sequence[int]:
        """Of the workers' processes."""
        return self._processes.pids()

    def close(self) -> None:
        """End the processes; nothing happens the second time."""
        self.has_ended = True
        self._open.close()


@contextmanager
def _running(
    kind: str, testbed: Testbed, python: str, addresses: Sequence[str], environment: Mapping[str, str]
) -> Iterator[AnsweringProcesses]:
    threads = [str(INTRA_OP_THREADS), str(INTER_OP_THREADS)]

    def command(rank: int) -> Sequence[str]:
        return [python, "-m", "benchmarks.training.worker", kind, json.dumps(addresses), str(rank), *threads]

    def variables(rank: int) -> dict[str, str]:
        return {**environment, **(_horovod_variables(addresses, rank) if kind == HOROVOD else {})}

    processes = AnsweringProcesses(_TITLES[kind], command, len(addresses), testbed, variables, _TIMEOUT_S)
    try:
        yield processes
    finally:
        processes.close()


def _horovod_variables(addresses: Sequence[str], rank: int) -> dict[str, str]:
    """What Horovod's own launcher tells a process that is alone on its host."""
    workers = str(len(addresses))
    return {
        "HOROVOD_HOSTNAME": addresses[rank],
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": workers,
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "1",
        "HOROVOD_CROSS_RANK": str(rank),
        "HOROVOD_CROSS_SIZE": workers,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": "eth0",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "3600",  # while others are measured these processes stand still
    }


class SpmdContender:
    """A workload on such processes, which may have others besides.

    Args:
        name: of the contender.
        processes: where it runs.
        workload: what is trained.
        settings: what was chosen, in the processes' environment or as options.
        options: of the reduction; None to train without one, every worker alone.
        owns: whether the processes end with it.
        together: number of steps that follow each other in one ``tf.function``; what `run` counts are these.
    """

    def __init__(
        self,
        name: str,
        processes: Processes,
        workload: Workload,
        settings: Settings,
        options: Mapping[str, Any] | None,
        owns: bool = False,
        together: int = 1,
    ) -> None:
        self.name = name
        self.settings = settings
        self._processes = processes
        self._owns = owns
        self._is_alone = options is None
        self._step = processes.load(workload, "none" if options is None else "all", options or {}, together)

    def run(self, steps: int) -> Burst:
        """See `Contender.run`. Workers that do not wait for each other count as late as the last of them."""
        answers = self._processes.ask({"do": "run", "name": self._step, "steps": steps})
        losses = tuple(statistics.fmean(each) for each in zip(*(a["losses"] for a in answers)))
        times = answers[0]["times_s"]
        if self._is_alone:
            times = max((a["times_s"] for a in answers), key=sum)
        return Burst(tuple(times), losses)

    def pids(self) -> Sequence[int]:
        """See `Contender.pids`."""
        return self._processes.pids()

    def close(self) -> None:
        """Forget the step; the processes stay, unless they are its own."""
        if self._owns:
            self._processes.close()
        elif self._step and not self._processes.has_ended:
            self._processes.ask({"do": "drop", "name": self._step})
        self._step = ""
