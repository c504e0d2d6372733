"""Clusters from a file of hosts and from Slurm's variables: servers that end with their driver, in a network of their own."""

import re
import subprocess
import time

import pytest

from caramel.netmodel.file import load

pytestmark = [pytest.mark.slow, pytest.mark.processes]

HOSTS = """
    127.0.0.1             # the default port
    127.0.0.2:2223        workers=2
"""


@pytest.fixture
def hosts(write):
    return write(HOSTS, "hosts.txt")


def losses(result):
    assert result.returncode == 0, result.stderr
    return re.search(r"loss (\S+ -> \S+)", result.stdout)[1]


@pytest.mark.soak  # as a fit on such servers, and as launch
def test_servers_of_a_file_end_with_their_driver(network, hosts, least_squares, least_squares_losses):
    """The first finds its own line; the second has two workers. Nothing says how many there are, but the file."""
    serve = ["--hosts", hosts, "--exit-with-driver"]
    servers = [network.serve(*serve), network.serve(*serve, "--task", 1)]
    assert [server.poll() for server in servers] == [None, None]
    result = network.run("-m", "caramel", "run", f"{least_squares}:program", "--hosts", hosts)
    assert losses(result) == least_squares_losses(3)
    assert not re.search("caramel|Traceback|Exception", result.stderr), result.stderr
    assert [server.wait(20) for server in servers] == [0, 0]
    assert "has ended without closing its session" not in servers[0].stdout.read()


FIT = """
import sys
import keras, numpy as np
import caramel

cluster = caramel.Servers.from_hosts_file(sys.argv[1])
rng = np.random.default_rng(0)
x = rng.normal(size=(24, 3)).astype("float32")
y = x @ np.array([[1.0], [2.0], [3.0]], "float32")

def model():
    made = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    made.compile("sgd", "mse")
    return made

trained = model()
history = caramel.fit(trained, x, y, batch_size=12, epochs=2, shuffle=False, verbose=0, cluster=cluster)
print(history.plan.workers, *history.history["loss"])
print(caramel.evaluate(trained, x, y, batch_size=12, verbose=0, cluster=cluster))
alone = model()
print(1, *alone.fit(x, y, batch_size=12, epochs=2, shuffle=False, verbose=0).history["loss"])
print(alone.evaluate(x, y, batch_size=12, verbose=0))
"""


def test_fit_on_servers_of_a_file(network, hosts):
    servers = [network.serve("--hosts", hosts, "--task", task, "--exit-with-driver") for task in (0, 1)]
    result = network.run("-c", FIT, hosts)
    assert result.returncode == 0, result.stderr
    first, evaluated, alone, evaluated_alone = (
        [float(text) for text in line.split()] for line in result.stdout.splitlines()
    )
    assert first[0] == 3
    assert first[1:] == pytest.approx(alone[1:], rel=1e-5)
    assert evaluated == pytest.approx(evaluated_alone, rel=1e-5)
    assert [server.wait(30) for server in servers] == [0, 0]
    assert "has ended without closing its session" not in servers[0].stdout.read()


@pytest.mark.soak  # as hierarchies over processes, and measurements of workers on shared hosts
def test_workers_that_share_hosts_are_measured_and_used(network, least_squares, least_squares_losses, write, tmp_path):
    """Two hosts, each a server of two workers: the all-reduce for such hosts is measured, and can be trained with."""
    hosts = write("127.0.0.1:20022 workers=2\n127.0.0.2:20023 workers=2\n", "pairs.txt")
    for task in (0, 1):
        network.serve("--hosts", hosts, "--task", task)
    measured = tmp_path / "net.json"
    few = ["--size", "4KiB", "--depth", 1, "--rounds", 1]
    result = network.run("-m", "caramel", "netbench", "--hosts", hosts, *few, "--out", measured)
    assert result.returncode == 0, result.stderr
    model = load(measured)
    assert model.workers == (4,) and "hierarchy_2" in {curve.algorithm for curve in model.curves}
    run = ["-m", "caramel", "run", f"{least_squares}:program", "--hosts", hosts, "--network", measured]
    assert losses(network.run(*run, "--algorithm", "hierarchy_2")) == least_squares_losses(4)


SLURM = {"SLURM_JOB_ID": "12", "SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_NUM_TASKS": "2"}
SLURM |= {"SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "0"}


@pytest.mark.soak  # as the files of examples/ for Slurm and Kubernetes
@pytest.mark.parametrize("kind", ["slurm", "hosts", "addresses"])
def test_the_same_command_on_every_host(network, least_squares, least_squares_losses, write, kind):
    """Task 0 drives, the other one serves and ends with it."""
    hosts = write("127.0.0.1:20012\n127.0.0.1:20013 workers=2\n", "two.txt")
    devices = [f"/job:worker/task:{device}" for device in ("0", "1/device:CPU:0", "1/device:CPU:1")]
    options = {
        "slurm": ["--cluster", "slurm"],
        "hosts": ["--hosts", hosts],
        "addresses": ["--cluster", "127.0.0.1:20012,127.0.0.1:20013", *(f"--device={device}" for device in devices)],
    }[kind]

    def start(task):
        own = ["--task", task] if kind != "slurm" else []
        environment = {**SLURM, "SLURM_PROCID": str(task)} if kind == "slurm" else {}
        return network.start(
            "-m", "caramel", "run", f"{least_squares}:program", *options, *own, environment=environment
        )

    serving, driving = start(1), start(0)
    out, err = driving.communicate(timeout=120)
    assert driving.returncode == 0, err
    assert re.search(r"loss (\S+ -> \S+)", out)[1] == least_squares_losses(2 if kind == "slurm" else 3)
    assert "anyone who reaches" in err and not re.search("Traceback|Exception|note:", err), err
    assert serving.wait(20) == 0
    assert "caramel server ready" in serving.stdout.read()


OTHER_VERSION = """
import sys
import tensorflow as tf
tf.__version__ = "2.1.0"
sys.argv = ["caramel", *sys.argv[1:]]
from caramel.cli.main import main
main()
"""


@pytest.mark.soak
def test_servers_with_another_version_of_tensorflow(network, least_squares, hosts):
    import tensorflow as tf

    for task in (0, 1):
        network.serve("--hosts", hosts, "--task", task)
    driver = network.start("-c", OTHER_VERSION, "run", f"{least_squares}:program", "--hosts", hosts)
    _, err = driver.communicate(timeout=120)
    assert driver.returncode == 1, err
    assert (
        f"different versions of TensorFlow: 2.1.0 here, where the program runs; {tf.__version__} on worker 0 at "
        "127.0.0.1:2222, worker 1 at 127.0.0.2:2223. Install" in err
    )


@pytest.mark.soak
def test_a_killed_driver_ends_its_servers(network, least_squares, hosts):
    """The kernel closes its connections; a server takes it for gone after five looks."""
    servers = [network.serve("--hosts", hosts, "--task", task, "--exit-with-driver") for task in (0, 1)]
    driver = network.start("-m", "caramel", "run", f"{least_squares}:endless", "--hosts", hosts, "--steps", 10**7)
    time.sleep(12)
    assert driver.poll() is None
    driver.kill()
    assert [server.wait(30) for server in servers] == [0, 0]


def test_a_worker_that_ends_with_its_input(network):
    worker = network.serve("--cluster", "127.0.0.1:2222", "--task", 0, "--exit-with-input", stdin=subprocess.PIPE)
    assert worker.poll() is None
    worker.stdin.close()
    assert worker.wait(10) == 0


@pytest.mark.soak  # as test_servers_that_are_started_for_a_plan
def test_a_number_of_threads_by_hand(network, least_squares, least_squares_losses):
    options = ["--workers", 2, "--cluster", "processes", "--allow-open-ports", "--threads", 3]
    result = network.run("-m", "caramel", "run", f"{least_squares}:program", *options)
    assert result.returncode == 0, result.stderr
    assert re.search(r"loss (\S+ -> \S+)", result.stdout)[1] == least_squares_losses(2)
