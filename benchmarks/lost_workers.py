"""``python -m benchmarks.lost_workers``: how soon a worker that is lost is reported, with every kind of cluster.

Three workers are on three hosts of a testbed, the driver on the first. In each try steps are made, and one worker is
killed, stopped, or cut off: its link goes down, and no connection is reset. What counts is the time until the driver
has its error, and that the error names the worker.
"""

from __future__ import annotations

import json
import os
import select
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click

from benchmarks.output import errors_for_click, markdown_table, write_json
from benchmarks.testbed import Testbed
from benchmarks.testbed.host import INTERFACE, Host
from caramel.errors import ClusterError

WORKERS = 3
"""Number of workers, as in `benchmarks.lost_driver`."""

KINDS = ("servers", "tf_config", "processes")
"""Kinds of clusters, as in `benchmarks.lost_driver`."""

MODES = ("session", "fit")
"""What trains, as in `benchmarks.lost_driver`."""

HOW = ("killed", "stopped", "cut off")
"""What is done to a worker."""

GOAL_S = 10.0
"""Seconds within which the error is to be out."""

_ROOT = Path(__file__).resolve().parents[1]
_PORT = 2222
_START_S = 120.0
_PATIENCE_S = 60.0
"""Seconds after which an error counts as missing."""

_RECOVERY_S = 20.0
"""Seconds in which servers free what the driver has left, and make connections anew."""


@dataclass
class Child:
    """A Python process on a host whose lines are read.

    Attributes:
        process: the process.
    """

    process: subprocess.Popen[Any]
    _read: str = field(init=False, default="")

    @classmethod
    def start(cls, host: Host, arguments: list[str], **environment: str) -> Child:
        """Start Python.

        Args:
            host: where.
            arguments: arguments of Python.
            environment: further variables.
        """
        quiet = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(_ROOT)}
        return cls(
            host.popen(
                [sys.executable, *arguments],
                env={**os.environ, **quiet, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        )

    def line(self, within_s: float) -> str:
        """The next line that it says.

        Raises:
            ClusterError: it says none in time.
        """
        stdout, until_s = self.process.stdout, time.monotonic() + within_s
        assert stdout is not None
        while "\n" not in self._read:
            ready = select.select([stdout], [], [], max(until_s - time.monotonic(), 0))[0]
            piece = os.read(stdout.fileno(), 4096).decode() if ready else ""
            if not piece:
                raise ClusterError(f"process {self.process.pid} has said nothing within {within_s:g} s")
            self._read += piece
        line, _, self._read = self._read.partition("\n")
        return line

    def value(self, name: str, within_s: float) -> Any:
        """What a driver says by a name, next.

        Raises:
            ClusterError: it says something else, or nothing in time.
        """
        values = json.loads(self.line(within_s))
        if name not in values:
            raise ClusterError(f"the driver was to say {name!r}, and says {values}")
        return values if name == "lost" else values[name]

    def begin(self) -> None:
        """Let a driver begin a try."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()


class Job:
    """Workers and a driver on the hosts of a testbed.

    Args:
        testbed: the hosts.
        kind: kind of cluster.
        mode: what trains.
    """

    def __init__(self, testbed: Testbed, kind: str, mode: str) -> None:
        self.kind, self.hosts = kind, testbed.hosts
        self.addresses = [f"{host.address}:{_PORT}" for host in self.hosts]
        self._servers: dict[int, Child] = {}
        for task in self.tasks():
            self._start_server(task)
        for server in self._servers.values():
            server.line(_START_S)
        config = {"cluster": {"worker": self.addresses}, "task": {"type": "worker", "index": 0}}
        arguments = ["-m", "benchmarks.lost_driver", kind, mode]
        variables = {"ADDRESSES": ",".join(self.addresses), "TF_CONFIG": json.dumps(config)}
        self.driver = Child.start(self.hosts[0], arguments, **variables)
        self.driver.value("ready", _START_S)

    def tasks(self) -> tuple[int, ...]:
        """Tasks of the servers that run beside the driver."""
        return {"servers": (0, 1, 2), "tf_config": (1, 2), "processes": ()}[self.kind]

    def victims(self, how: str) -> tuple[int, ...]:
        """Tasks of the workers that can be lost in this way: by its link none that shares the driver's host."""
        if how == "cut off":
            return tuple(task for task in self.tasks() if task > 0)
        return self.tasks() or tuple(range(WORKERS))

    def _start_server(self, task: int) -> None:
        cluster = ",".join(self.addresses)
        arguments = ["-m", "caramel", "worker", "--cluster", cluster, "--task", str(task)]
        self._servers[task] = Child.start(self.hosts[task], arguments)

    def tries(self, how: str, count: int) -> Iterator[tuple[float, bool]]:
        """Lose a worker several times; seconds until each error, and whether it names the worker.

        Args:
            how: one of `HOW`.
            count: number of tries.
        """
        victims = self.victims(how)
        for number in range(count):
            task = victims[number % len(victims)]
            self.driver.begin()
            self.driver.value("runs", _START_S)
            began_s, mend = time.monotonic(), self._lose(task, how)
            lost = self.driver.value("lost", _PATIENCE_S)
            mend()
            said = lost["message"]
            where = self.addresses[task] if self.tasks() else "worker"
            yield lost["lost"] - began_s, f"worker {task}" in said and where in said

    def _lose(self, task: int, how: str) -> Callable[[], None]:
        """Lose a worker; a function that brings it back."""
        if how == "cut off":
            link = ["ip", "link", "set", "dev", INTERFACE]
            self.hosts[task].run([*link, "down"], 10)
            return partial(self._link_again, task, [*link, "up"])
        is_own = not self.tasks()  # of the driver, which starts them anew by itself
        pid = server_processes(self.driver.process.pid)[task] if is_own else self._servers[task].process.pid
        os.kill(pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        if is_own:
            return lambda: None
        return partial(self._start_again, task) if how == "killed" else partial(_go_on, pid)

    def _link_again(self, task: int, command: list[str]) -> None:
        self.hosts[task].run(command, 10)
        time.sleep(_RECOVERY_S)

    def _start_again(self, task: int) -> None:
        self._servers[task].process.wait()
        self._start_server(task)
        self._servers[task].line(_START_S)


def _go_on(pid: int) -> None:
    """Let a stopped server go on."""
    os.kill(pid, signal.SIGCONT)
    time.sleep(_RECOVERY_S)


def server_processes(driver: int) -> list[int]:
    """The servers that a driver has started, in the order of their tasks.

    Args:
        driver: its process id.
    """
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            grandparent = int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):  # it has ended meanwhile
            continue
        if grandparent == driver and b"resource_tracker" not in (folder / "cmdline").read_bytes():
            found.append(int(folder.name))
    return sorted(found)


def measure(
    tries: int, kinds: tuple[str, ...], modes: tuple[str, ...], how: tuple[str, ...], on_row: Callable[[Any], None]
) -> None:
    """Lose workers of all kinds.

    Args:
        tries: number of tries of each.
        kinds: some of `KINDS`.
        modes: some of `MODES`.
        how: some of `HOW`.
        on_row: function that is called with each row.
    """
    for kind in kinds:
        for mode in modes:
            with ExitStack() as stack:
                job = Job(stack.enter_context(Testbed(WORKERS)), kind, mode)
                for each in how:
                    if not job.victims(each):
                        continue
                    results = list(job.tries(each, tries))
                    on_row(
                        {
                            "cluster": kind,
                            "trains": mode,
                            "how": each,
                            "seconds": [seconds for seconds, _ in results],
                            "named": sum(named for _, named in results),
                        }
                    )


def table(record: Any) -> str:
    """The longest times, for the documents."""
    names = {"servers": "servers on hosts", "tf_config": "TF_CONFIG", "processes": "processes of one machine"}
    rows = []
    for row in record["rows"]:
        seconds = row["seconds"]
        in_time = sum(each <= GOAL_S for each in seconds)
        rows.append(
            [
                names[row["cluster"]],
                row["trains"],
                row["how"],
                f"{statistics.median(seconds):.1f} s",
                f"{max(seconds):.1f} s",
                f"{in_time} of {len(seconds)}",
                f"{row['named']} of {len(seconds)}",
            ]
        )
    head = ["workers", "what trains", "a worker is", "median", "longest", f"within {GOAL_S:g} s", "named"]
    return markdown_table(head, rows)


@click.command()
@click.option("--tries", type=click.IntRange(min=1), default=20, show_default=True, help="Number of tries of each.")
@click.option("--kind", "kinds", type=click.Choice(KINDS), multiple=True, default=KINDS, help="Kinds of clusters.")
@click.option("--mode", "modes", type=click.Choice(MODES), multiple=True, default=MODES, help="What trains.")
@click.option("--how", type=click.Choice(HOW), multiple=True, default=HOW, help="What is done.")
@click.option("--json", "file", metavar="FILE.json", help="File to write.")
@errors_for_click
def main(tries: int, kinds: tuple[str, ...], modes: tuple[str, ...], how: tuple[str, ...], file: str | None) -> None:
    """Lose workers, as root, and time the errors. The file has what is measured so far, after each row."""
    rows: list[dict[str, Any]] = []

    def show(row: dict[str, Any]) -> None:
        rows.append(row)
        if file is not None:
            write_json({"tries": tries, "rows": rows}, file)
        seconds = row["seconds"]
        what = f"{row['cluster']}, {row['trains']}, {row['how']}"
        click.echo(f"{what}: longest {max(seconds):.1f} s of {len(seconds)}, {row['named']} named", err=True)

    measure(tries, kinds, modes, how, show)
    click.echo(table({"tries": tries, "rows": rows}))


if __name__ == "__main__":
    main()
