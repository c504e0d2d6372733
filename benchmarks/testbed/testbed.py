"""Hosts on a bridge, each behind a link with a rate."""

from __future__ import annotations

import math
import weakref
from types import TracebackType

from benchmarks.testbed.commands import check_system
from benchmarks.testbed.host import INTERFACE, Host
from benchmarks.testbed.measure import stream_rate_bytes_per_s
from benchmarks.testbed.namespaces import Namespaces
from benchmarks.testbed.shaping import Shape, packet_command, shape, shaping_command
from caramel.errors import InputError

MOST_HOSTS = 250
"""What the addresses 10.77.0.1 to 10.77.0.254 allow, rounded."""

CONGESTION_CONTROL = "reno"
"""In every kernel and allowed in every namespace, and fair: with bbr, three streams into one 100 Mbit/s host got 90, 5
and 4 Mbit/s, with reno 43, 42 and 14."""

_HUB = 0  # index of the namespace with the bridge; that of host r is r + 1
_BRIDGE = "bridge"


class Testbed:
    """Hosts that reach one another and nothing else, each over a link of its own to a common bridge.

    A link is a veth pair between the host's network namespace and the bridge's. The same token bucket filter at
    both ends limits what the host sends and what it receives, each to the rate; the bridge itself has no limit.
    Everything is gone when the testbed closes: at the end of ``with``, by `close`, when it is forgotten, or when
    its owner is killed.

    The machine's own network is not touched. Hosts use TCP's reno congestion control, whatever the machine uses.

    Args:
        hosts: how many, 1 to 250.
        rate_bytes_per_s: rate of every link in each direction, headers included; None for no limit.
        burst_bytes: how much passes unshaped when a link has been idle; by default as little as the rate allows.

    Attributes:
        hosts: the hosts by rank.

    Raises:
        InputError: an argument does not fit.
        UnavailableError: no testbed can be built on this machine or by this user.
        TestbedError: a command failed; whatever had been built is gone.

    Example::

        with Testbed(hosts=4, rate_bytes_per_s=62.5e6) as testbed:
            servers = [host.popen(["python", "server.py", host.address]) for host in testbed.hosts]
    """

    __test__ = False  # not a class of tests, whatever pytest thinks of the name

    def __init__(self, hosts: int, rate_bytes_per_s: float | None = None, burst_bytes: int | None = None) -> None:
        if not 1 <= hosts <= MOST_HOSTS:
            raise InputError(f"a testbed has 1 to {MOST_HOSTS} hosts, not {hosts}")
        if burst_bytes is not None and rate_bytes_per_s is None:
            raise InputError("a burst without a rate means nothing: give rate_bytes_per_s as well")
        wanted = None if rate_bytes_per_s is None else shape(rate_bytes_per_s, burst_bytes)
        check_system()
        self._burst_bytes = burst_bytes
        self._namespaces = Namespaces(hosts + 1)
        self._finalizer = weakref.finalize(self, self._namespaces.close)
        try:
            self.hosts = tuple(Host(rank, self._namespaces, rank + 1) for rank in range(hosts))
            self._build()
            self._shape_links(wanted)
        except BaseException:
            self.close()
            raise

    def _build(self) -> None:
        tool = self._namespaces.run_tool
        tool(_HUB, "ip", "link", "add", _BRIDGE, "type", "bridge")
        tool(_HUB, "ip", "link", "set", _BRIDGE, "up")
        for host in self.hosts:
            index = host.rank + 1
            holder = str(self._namespaces.holders[index])
            pair = ("type", "veth", "peer", "name", INTERFACE, "netns", holder)
            tool(_HUB, "ip", "link", "add", host.name, *pair)
            tool(_HUB, "ip", "link", "set", host.name, "master", _BRIDGE, "up")
            tool(index, "ip", "address", "add", f"{host.address}/24", "dev", INTERFACE)
            tool(index, "ip", "link", "set", INTERFACE, "up")
            tool(index, "sh", "-c", f"echo {CONGESTION_CONTROL} > /proc/sys/net/ipv4/tcp_congestion_control")

    def _shape_links(self, wanted: Shape | None) -> None:
        for host in self.hosts:
            for index, interface in ((host.rank + 1, INTERFACE), (_HUB, host.name)):
                self._namespaces.run_tool(index, *packet_command(interface, wanted))
                self._namespaces.run_tool(index, *shaping_command(interface, wanted))
        self._shape = wanted

    @property
    def rate_bytes_per_s(self) -> float | None:
        """Rate of every link, None for no limit."""
        return None if self._shape is None else self._shape.rate_bytes_per_s

    @property
    def burst_bytes(self) -> int | None:
        """How much passes a link unshaped when it has been idle, None without a limit."""
        return None if self._shape is None else self._shape.burst_bytes

    def set_rate(self, rate_bytes_per_s: float | None) -> None:
        """Change the rate of all links, one after another; connections go on.

        Args:
            rate_bytes_per_s: as for the testbed. The burst follows, unless it was given.

        Raises:
            InputError: the rate does not fit.
            TestbedError: a command failed; some links may have the new rate and others the old one.
        """
        self._namespaces.check_open()
        self._shape_links(None if rate_bytes_per_s is None else shape(rate_bytes_per_s, self._burst_bytes))

    def measure_rate_bytes_per_s(self, sender: int = 0, receiver: int = 1, seconds: float = 2.0) -> float:
        """Payload rate of one TCP stream between two hosts, after a warm-up of 0.3 s.

        At best it is 0.957 of the link's rate, which also counts headers: 1448 of 1514 bytes are payload.

        Args:
            sender: rank of the host that sends.
            receiver: rank of the host that receives and counts.
            seconds: how long to measure.

        Raises:
            InputError: a rank is unknown, both are the same, or the time is not positive and finite.
            TestbedError: the stream breaks.
        """
        for rank in (sender, receiver):
            if not 0 <= rank < len(self.hosts):
                raise InputError(f"there is no host {rank}: ranks are 0 to {len(self.hosts) - 1}")
        if sender == receiver:
            raise InputError(f"host {sender} has no link to itself: measure between two hosts")
        if not (math.isfinite(seconds) and seconds > 0):
            raise InputError(f"the time to measure must be positive and finite, not {seconds:g} s")
        return stream_rate_bytes_per_s(self.hosts[sender], self.hosts[receiver], seconds)

    def close(self) -> None:
        """End all processes of the hosts and remove hosts and links. Does nothing the second time."""
        self._finalizer()

    def __enter__(self) -> Testbed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
