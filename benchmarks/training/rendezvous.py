"""Where Horovod's processes find each other: ``python -m benchmarks.training.rendezvous ADDRESS ...``, one per worker.

Answers a line on standard input with its port, and stays until its parent ends it.
"""

from __future__ import annotations

import sys

from caramel.runtime.host.namespaces import die_with_parent


def main() -> None:
    """See above."""
    die_with_parent()
    from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer()
    port = server.start()
    addresses = sys.argv[1:]
    server.init(get_host_assignments([HostInfo(address, 1) for address in addresses], len(addresses)))
    for _ in sys.stdin:
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
