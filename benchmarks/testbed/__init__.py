"""Hosts with shaped links, on one Linux machine: network namespaces on a bridge."""

from benchmarks.testbed.commands import TestbedError, UnavailableError
from benchmarks.testbed.host import Counters, Host
from benchmarks.testbed.testbed import Testbed

__all__ = ["Counters", "Host", "Testbed", "TestbedError", "UnavailableError"]
