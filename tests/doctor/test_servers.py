"""Real servers: healthy, down, stopped, with another clock, in another order, with another file system."""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

HOUR_S = 3600


def addresses(*ports):
    return ",".join(f"127.0.0.1:{port}" for port in ports)


def start(network, cluster, task, *prefix):
    """Start `caramel worker`, perhaps by way of another command, without waiting for it."""
    process = subprocess.Popen(
        [
            *network.prefix,
            *prefix,
            sys.executable,
            "-m",
            "caramel",
            "worker",
            "--cluster",
            cluster,
            "--task",
            str(task),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    network._started.append(process)
    return process


def await_all(network, *processes):
    for process in processes:
        line = network.line_of(process)
        assert "caramel server ready" in line, (line, *network.end(process))


def examined(network, *arguments):
    """Exit status, and the findings by check."""
    done = network.run("-m", "caramel", "doctor", "--json", *arguments)
    said = json.loads(done.stdout)
    assert said["problems"] == sum(f["state"] == "problem" for f in said["findings"])
    return done.returncode, {finding["check"]: finding for finding in said["findings"]}


@pytest.mark.soak
def test_healthy_servers(network, tmp_path):
    """All is well, and nothing is left in the directory. Then in another order, and where others reach the port."""
    cluster = addresses(2222, 2223)
    servers = [start(network, cluster, task) for task in range(2)]
    await_all(network, *servers)
    status, found = examined(network, "--cluster", cluster, "--checkpoint-dir", tmp_path)
    everything = {
        *("worker 0", "worker 1", "TensorFlow of worker 0", "TensorFlow of worker 1"),
        *("clock of worker 0", "clock of worker 1", "ways between servers"),
        *("checkpoint directory", "temporary directory", "checkpoint directory at other workers"),
        *("checkpoint directory at worker 0", "temporary directory at worker 0"),
        *("link from this process to worker 0", "link from worker 1 to this process", "link from worker 0 to worker 1"),
    }
    wrong = {check: found.get(check) for check in everything if found.get(check, {}).get("state") != "ok"}
    assert (status, wrong) == (0, {})
    assert "as the driver's" in found["TensorFlow of worker 1"]["found"]
    assert list(tmp_path.iterdir()) == []
    open_port = f"port 2222 on every interface (process {servers[0].pid})"
    assert open_port not in found["open ports"]["found"]

    added = subprocess.run([*network.prefix, "ip", "addr", "add", "192.0.2.77/32", "dev", "lo"], capture_output=True)
    status, found = examined(network, "--cluster", addresses(2223, 2222))
    assert status == 1
    assert [found[name]["state"] for name in ("worker 0", "worker 1")] == ["problem", "problem"]
    assert "/job:worker/replica:0/task:1" in found["worker 0"]["found"]
    assert "in the order" in found["worker 0"]["mend"]
    if added.returncode == 0:  # the namespace has an address besides loopback
        assert open_port in found["open ports"]["found"]


def test_servers_with_something_wrong(network, freeze, tmp_path):
    """Each is said, none hides another, and it takes seconds.

    Worker 0 has a file system of its own in place of the directory, worker 1 is down, worker 2 is stopped, worker 3 is
    an hour ahead, and worker 4 has no known name.
    """
    ports = (2222, 2223, 2224, 2225)
    cluster = f"{addresses(*ports)},nowhere.invalid:2226"
    has_faketime = shutil.which("faketime") is not None
    ahead = ("faketime", "-f", f"+{HOUR_S}s") if has_faketime else ()
    is_root = os.geteuid() == 0
    mount = f'mount -t tmpfs none "{tmp_path}" && exec "$@"'
    apart = ("unshare", "--mount", "sh", "-c", mount, "sh") if is_root else ()
    servers = {
        0: start(network, cluster, 0, *apart),
        2: start(network, cluster, 2),
        3: start(network, cluster, 3, *ahead),
    }
    await_all(network, *servers.values())
    freeze(servers[2].pid)
    began_s = time.monotonic()
    status, found = examined(network, "--cluster", cluster, "--checkpoint-dir", tmp_path)
    assert time.monotonic() - began_s < 60
    assert status == 1
    workers = [f"worker {task}" for task in range(5)]
    assert [found[name]["state"] for name in workers] == ["ok", "problem", "problem", "ok", "problem"]
    assert "nothing listens" in found["worker 1"]["found"]
    assert f"--cluster {cluster} --task 1" in found["worker 1"]["mend"]
    assert "has not answered" in found["worker 2"]["found"]
    assert "'nowhere.invalid' has no address" in found["worker 4"]["found"]
    assert found["ways between servers"]["state"] == "ok"
    assert found["link from worker 0 to worker 3"]["state"] == "ok"
    assert found["clock of worker 0"]["state"] == found["temporary directory at worker 0"]["state"] == "ok"
    assert "all other workers see" in found["checkpoint directory at other workers"]["found"]
    assert list(tmp_path.iterdir()) == []
    if is_root:
        assert found["checkpoint directory at worker 0"]["state"] == "problem"
        assert "does not see" in found["checkpoint directory at worker 0"]["found"]
    if has_faketime:
        assert found["clock of worker 3"]["state"] == "warning"
        assert "3.6e+03 s ahead of" in found["clock of worker 3"]["found"]
        assert "chrony" in found["clock of worker 3"]["mend"]
