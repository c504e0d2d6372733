"""Servers on a real local Ray cluster of two nodes, in a network of their own; without Ray, what is said."""

import importlib.util
import shutil
import signal
import sys
import tempfile
import time

import pytest

from caramel.errors import InputError
from caramel.runtime.clusters.ray_servers import number_of_nodes

NEEDS_RAY = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray")


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"Ray is not installed here: pip install 'ray>=2.40,<3'"):
        number_of_nodes()


@pytest.fixture
def ray_cluster(network, monkeypatch):
    """Two nodes with two CPUs each."""
    for name, value in {"RAY_DISABLE_IMPORT_WARNING": "1", "RAY_USAGE_STATS_ENABLED": "0"}.items():
        monkeypatch.setenv(name, value)
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # its sockets need short paths
    common = ["-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=2", "--node-ip-address=127.0.0.1"]
    head = ["--head", "--port=6380", "--include-dashboard=false", f"--temp-dir={folder}", "--disable-usage-stats"]
    nodes = [network.start(*common, *head)]
    assert said(nodes[0], "--block"), network.end(nodes[0])
    nodes.append(network.start(*common, "--address=127.0.0.1:6380"))
    assert said(nodes[1], "--block"), network.end(nodes[1])
    network.own |= set(network.others())
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6380")
    yield network
    for node in reversed(nodes):
        node.send_signal(signal.SIGTERM)  # it ends what it has started
        node.communicate(timeout=60)
    shutil.rmtree(folder)


def said(process, text):
    """Whether a process says something before it ends."""
    return any(text in line for line in iter(process.stdout.readline, ""))


def servers_left(network):
    """Servers, once they had time to end; processes of Ray itself stay."""
    until_s = time.monotonic() + 15
    while (found := [line for line in network.others().values() if " worker " in line]) and time.monotonic() < until_s:
        time.sleep(0.1)
    return found


@NEEDS_RAY
@pytest.mark.slow
@pytest.mark.processes
def test_training_on_ray(ray_cluster, least_squares, least_squares_losses):
    """One worker for each node where nobody says how many; nothing is left, of a program that raises an error neither."""
    result = ray_cluster.run("-m", "caramel", "run", f"{least_squares}:program", "--cluster", "ray")
    assert result.returncode == 0, result.stderr
    assert "2 workers" in result.stdout and f"loss {least_squares_losses(2)}" in result.stdout
    assert servers_left(ray_cluster) == []
    result = ray_cluster.run("-m", "caramel", "run", f"{least_squares}:broken", "--cluster", "ray", "--workers", 2)
    assert result.returncode == 1 and "nothing works" in result.stderr
    assert servers_left(ray_cluster) == []


TOO_MANY = """
import caramel
from caramel.runtime.clusters import ray_servers
ray_servers.ROOM_TIMEOUT_S = 3.0
try:
    with caramel.ray_servers(5):
        pass
except caramel.ClusterError as error:
    print(error)
"""


@NEEDS_RAY
@pytest.mark.soak
def test_more_servers_than_ray_has_room_for(ray_cluster):
    result = ray_cluster.run("-c", TOO_MANY)
    assert "Ray has had no room for 5 servers of 1 CPUs each for 3 s (4 CPUs are free" in result.stdout, result.stderr
