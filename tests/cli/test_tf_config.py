"""The command on a cluster that TF_CONFIG describes, with real processes in a network of their own."""

import json
import re
import signal
import time

import pytest
from click.testing import CliRunner
from variants import in_soak

from caramel.cli.main import main

pytestmark = [pytest.mark.slow, pytest.mark.processes]

ADDRESSES = ["127.0.0.1:2222", "127.0.0.1:2223"]
CHIEF = {"chief": ADDRESSES[:1], "worker": ADDRESSES[1:]}
PLAIN = {"worker": ADDRESSES}

PROGRAM = """
    import time
    import numpy as np
    import tensorflow as tf

    v1 = tf.compat.v1

    def batches():
        rng = np.random.default_rng(0)
        for _ in range(4):
            x = rng.normal(size=(6, 3)).astype(np.float32)
            yield x, x @ np.array([1, 2, 3], np.float32)

    def slow():
        while True:
            yield from batches()
            time.sleep(0.05)

    def program(data=batches):
        w = tf.Variable(tf.zeros([3]), name="w")

        @tf.function
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return loss

        specs = [tf.TensorSpec([None, 3], name="x"), tf.TensorSpec([None], name="y")]
        return {"step": step, "inputs": specs, "data": data()}

    def endless():
        return program(slow)
"""


def tf_config(cluster, task):
    kind, index = task
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


def caramel(network, *arguments, task=("chief", 0), cluster=CHIEF, **options):
    return network.run("-m", "caramel", *arguments, environment=tf_config(cluster, task), **options)


@pytest.fixture
def program(write):
    return write(PROGRAM)


@pytest.fixture
def in_process(program):
    """Function that gives the losses of the same command in this process, where TensorFlow is loaded already."""

    def losses_of(*options):
        result = CliRunner().invoke(main, ["run", f"{program}:program", *map(str, options)])
        assert result.exit_code == 0, result.output
        return re.search(r"loss (\S+ -> \S+)", result.output)[1]

    return losses_of


def run(program, *options, entry="program"):
    return ["run", f"{program}:{entry}", "--workers", 2, "--cluster", "tf-config", *options]


def losses(result):
    assert result.returncode == 0, result.stderr
    return re.search(r"loss (\S+ -> \S+)", result.stdout)[1]


def listeners(network):
    """TCP ports on which something listens in the network."""
    out = network.run("-c", "print(open('/proc/net/tcp').read() + open('/proc/net/tcp6').read())").stdout
    rows = [line.split() for line in out.splitlines()]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if len(row) > 3 and row[3] == "0A"}


def test_the_driver_brings_the_server_of_task_0(network, program, in_process):
    worker = network.serve(environment=tf_config(CHIEF, ("worker", 0)))
    described = {"cluster": {**CHIEF, "ps": ["127.0.0.1:9"]}, "task": {"type": "chief", "index": 0}}
    result = network.run("-m", "caramel", *run(program), environment={"TF_CONFIG": json.dumps(described)})
    assert losses(result) == in_process("--workers", 2)
    assert "note: TF_CONFIG: the job 'ps' (127.0.0.1:9) takes no part" in result.stderr
    assert "anyone who reaches 127.0.0.1:2222 can run any graph" in result.stderr
    assert worker.poll() is None
    assert 2223 in listeners(network)
    assert 2222 not in listeners(network)


def test_a_server_of_task_0_that_runs_already_is_used_and_stays(network, program, in_process):
    """The other one has devices for two workers."""
    servers = [
        network.serve(environment=tf_config(CHIEF, ("chief", 0))),
        network.serve("--cluster", ",".join(ADDRESSES), "--task", 1, "--devices", 2),
    ]
    devices = [f"/job:worker/task:{task}/device:CPU:{index}" for task, index in ((0, 0), (1, 0), (1, 1))]
    three = ["--workers", 3, *(part for device in devices for part in ("--device", device))]
    assert losses(caramel(network, *run(program, *three))) == in_process(*three)
    assert [server.poll() for server in servers] == [None, None]
    assert {2222, 2223} <= listeners(network)


def wait_for(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.2)
    return condition()


@pytest.mark.soak  # as where the driver is killed without another server
def test_the_server_ends_with_the_driver(network, program):
    """It is killed; the other server stays."""
    worker = network.serve(environment=tf_config(CHIEF, ("worker", 0)))
    end_the_driver(network, run(program, entry="endless"), CHIEF, signal.SIGKILL)
    assert worker.poll() is None


@pytest.fixture
def not_in_the_background():
    """What a shell starts in the background ignores interrupts, and so does all that it starts."""
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGKILL, *in_soak(signal.SIGTERM, signal.SIGINT)])
@pytest.mark.usefixtures("not_in_the_background")
def test_the_server_ends_with_a_driver_that_gets_a_signal(network, program, number):
    """There is no other server here, which would take a while to start."""
    arguments = run(program, "--workers", 1, entry="endless")
    end_the_driver(network, arguments, {"chief": ADDRESSES[:1]}, number)


def end_the_driver(network, arguments, cluster, number):
    """Start it, send it a signal in the middle of its steps, and see its server end."""
    driver = network.start("-m", "caramel", *arguments, environment=tf_config(cluster, ("chief", 0)))
    assert wait_for(lambda: 2222 in listeners(network)), network.end(driver)
    time.sleep(2.0)  # into the first steps
    assert driver.poll() is None
    assert len(network.others()) == 1  # the server is in the driver's process
    driver.send_signal(number)
    driver.wait(60)
    assert wait_for(lambda: 2222 not in listeners(network))


def test_a_worker_that_is_not_there_is_named(network, program):
    result = caramel(network, *run(program, "--step-timeout", 8))
    assert result.returncode == 1
    assert "from here nothing listens at 127.0.0.1:2223 (worker 1)" in result.stderr
    assert 2222 not in listeners(network)


@pytest.mark.soak  # as test_the_driver_brings_the_server_of_task_0
def test_a_worker_may_come_later(network, program, in_process):
    """In a cluster without a chief, which the first worker drives."""
    drives, serves = (tf_config(PLAIN, ("worker", task)) for task in (0, 1))
    driver = network.start("-m", "caramel", *run(program), environment=drives)
    assert wait_for(lambda: 2222 in listeners(network)), network.end(driver)
    network.serve(environment=serves)
    out, err = driver.communicate(timeout=120)
    assert driver.returncode == 0, err
    assert re.search(r"4 steps in .*loss (\S+ -> \S+)", out)[1] == in_process("--workers", 2)
    assert 2222 not in listeners(network)


@pytest.mark.soak  # as test_a_worker_that_is_not_there_is_named
def test_what_listens_is_no_server(network, program):
    code = "import socket, time; s = socket.create_server(('', 2222)); print('up', flush=True); time.sleep(600)"
    other = network.start("-c", code)
    assert network.line_of(other) == "up\n"
    result = caramel(network, *run(program, "--step-timeout", 5, "--workers", 1), cluster={"chief": ADDRESSES[:1]})
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "while opening the session" in result.stderr


def test_a_port_that_cannot_be_used(network, program):
    code = "import socket, time; s = socket.socket(); s.bind(('', 2222)); print('up', flush=True); time.sleep(600)"
    assert network.line_of(network.start("-c", code)) == "up\n"
    result = caramel(network, *run(program))
    assert result.returncode == 1
    assert "Error: the server cannot listen at 127.0.0.1:2222: " in result.stderr
    assert "Does something else use the port?" in result.stderr


@pytest.mark.soak  # as test_measure_and_train_on_servers, in the tests of clusters
def test_netbench_and_native_all_reduces(network, program, tmp_path):
    """One server for all that is measured; a later driver's is another, which native all-reduces do not survive."""
    cluster = {"chief": ADDRESSES[:1], "worker": [ADDRESSES[1], "127.0.0.1:2224"]}
    for task in (0, 1):
        network.serve(environment=tf_config(cluster, ("worker", task)))
    settings = ["--size", "64", "--size", "256", "--rounds", 1, "--algorithm", "native"]
    arguments = ["--workers", 2, "--workers", 3, "--depth", 1, "--out", tmp_path / "network.json", *settings]
    measured = caramel(network, "netbench", "--cluster", "tf-config", *arguments, cluster=cluster)
    assert measured.returncode == 0, measured.stderr
    curves = json.loads((tmp_path / "network.json").read_text())["curves"]
    assert {(c["workers"], c["algorithm"]) for c in curves} == {(2, "native"), (3, "native")}
    refused = caramel(network, *run(program, "--algorithm", "native"), cluster=cluster)
    assert refused.returncode == 1
    assert "a server was restarted" in refused.stderr and "Restart all servers" in refused.stderr


@pytest.mark.soak
def test_native_all_reduces_where_all_servers_restart(network, program, in_process):
    expected = in_process("--workers", 2)
    native = run(program, "--algorithm", "native")
    for _ in range(2):
        worker = network.serve(environment=tf_config(CHIEF, ("worker", 0)))
        assert losses(caramel(network, *native)) == expected
        assert caramel(network, *native).returncode == 1
        assert losses(caramel(network, *run(program))) == expected  # others do
        worker.kill()
        worker.wait()


@pytest.mark.soak  # as test_a_server_of_task_0_that_runs_already_is_used_and_stays
def test_two_workers_in_one_server(network, program, in_process):
    network.serve("--devices", 2, environment=tf_config(CHIEF, ("worker", 0)))
    devices = [f"/job:worker/task:{task}/device:CPU:{index}" for task in (0, 1) for index in (0, 1)]
    options = [part for device in devices for part in ("--device", device)]
    four = ["--workers", 4, *options]
    result = caramel(network, "run", f"{program}:program", *four, "--cluster", "tf-config")
    assert losses(result) == in_process(*four)
    three = [
        part for device in ("0/CPU:0", "1/CPU:0", "1/CPU:2") for part in ("--device", f"/job:worker/task:{device}")
    ]
    result = caramel(network, "run", f"{program}:program", "--workers", 3, *three, "--cluster", "tf-config")
    assert result.returncode == 1
    assert "no device '/job:worker/task:1/device:CPU:2'" in result.stderr
    assert "has CPU:0, CPU:1" in result.stderr and "caramel worker --devices 3" in result.stderr
