"""What runs inside an actor of Ray: the process of one server. It needs no TensorFlow itself."""

from __future__ import annotations

import socket
import sys
import time

from caramel.runtime.host.membership import Membership
from caramel.runtime.host.worker_process import WorkerProcess, worker_command

_POLL_S = 0.05


class ServerActor:
    """One server on the node where Ray has put this actor. It ends with the actor, in whatever way that ends."""

    def __init__(self) -> None:
        self._worker: WorkerProcess | None = None

    def address(self) -> str:
        """An address ``host:port`` of this node, with a port that is free."""
        import ray

        host: str = ray.util.get_node_ip_address()
        with socket.create_server(("", 0)) as probe:
            port = probe.getsockname()[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def start(self, membership: Membership, task: int, timeout_s: float) -> str:
        """Start the server and wait until it listens.

        Args:
            membership: the cluster.
            task: number of the server.
            timeout_s: seconds that it may take.

        Returns:
            What is wrong; "" if it listens.
        """
        worker = WorkerProcess(f"task {task}", [sys.executable, *worker_command(membership, task)])
        self._worker = worker
        deadline_s = time.monotonic() + timeout_s
        while not worker.is_ready:
            if worker.ended() and not worker.is_ready:
                return f"it ended with exit status {worker.process.returncode}: {worker.last_words()}"
            if time.monotonic() > deadline_s:
                return f"it does not listen after {timeout_s:g} s: {worker.last_words()}"
            time.sleep(_POLL_S)
        return ""
