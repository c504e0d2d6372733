"""Several workers in one process: each has a device and variables of its own, and the result is that of one device."""

import itertools
import json
import pickle
from pathlib import Path

import exact_tf1 as v1
import numpy as np
import pytest
from exact_common import BATCH, LOCAL, SAME, SERIAL, Case, assert_equivalent, assert_same, batches, in_process, train
from test_collectives_exact import replica_values
from variants import in_soak

import caramel

DEVICES = [f"/job:worker/task:{task}/device:CPU:{index}" for task in (0, 1) for index in (0, 1)]
MIXED = [DEVICES[n] for n in (1, 2, 0, 3)]  # neighbouring ranks in different processes
CASE = Case("adam", (*SAME, *LOCAL), "float32", clip=1.4)


def placed(devices, algorithm="shuffle"):
    return {"device_list": devices, "algorithm": algorithm}


@pytest.fixture(scope="module")
def wanted():
    """What the oracle gives."""
    return v1.MicroBatches(CASE, 4).train(batches(BATCH, CASE.dtype))


@pytest.fixture
def one_step():
    """Function that trains for a step in processes, and gives the ids of the workers' processes to another one."""

    def train_it(devices, base_port, look=lambda pids: None):
        case = Case()
        context, program = v1.capture(case)
        armodel = caramel.ARModel(context, len(devices), device_list=devices)
        with armodel.session(caramel.LocalProcesses(base_port=base_port)) as session:
            session.step(program.feed(batches(12, case.dtype, steps=1)[0]))
            look(session._executor.worker_pids())

    return train_it


@pytest.mark.parametrize("devices", [*in_soak((DEVICES,)), MIXED], ids=["in order", "mixed"])
def test_in_one_process(devices, wanted):
    assert_same(v1.distributed(CASE, 4, batches(BATCH, CASE.dtype), armodel=placed(devices)), wanted)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    "devices", [pytest.param(DEVICES, id="in order", marks=pytest.mark.soak), pytest.param(MIXED, id="mixed")]
)
def test_in_two_local_processes(devices, wanted):
    data = batches(BATCH, CASE.dtype)
    got = v1.distributed(CASE, 4, data, caramel.LocalProcesses(options=SERIAL), placed(devices))
    assert_same(got, wanted)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    "cluster",
    [
        pytest.param(in_process(), id="in process"),
        pytest.param(caramel.LocalProcesses(options=SERIAL), id="processes", marks=pytest.mark.soak),
    ],
)
def test_native_all_reduces(cluster):
    """TensorFlow's own collective ops between four devices of two tasks, and uneven batches."""
    case = Case("adam", ("clip", "decay"))
    data = batches(10, case.dtype)
    got = v1.distributed(case, 4, data, cluster, placed(DEVICES, "native"))
    assert_equivalent(got, v1.OneDevice(case).train(data))


@pytest.mark.soak  # as test_in_two_local_processes: otherwise the losses of the workers would be others
@pytest.mark.slow
@pytest.mark.processes
def test_no_two_workers_share_a_variable():
    data = batches(BATCH, CASE.dtype, steps=3)
    context, program = v1.capture(CASE)
    armodel = caramel.ARModel(context, 4, device_list=DEVICES)
    with armodel.session(caramel.LocalProcesses(options=SERIAL)) as session:
        train(session, [program.feed(batch) for batch in data])
        different = 0
        for values in zip(*(replica_values(session, armodel, rank) for rank in range(4))):
            pairs = [np.array_equal(a, b) for a, b in itertools.combinations(values, 2)]
            assert all(pairs) or not any(pairs)
            different += not any(pairs)
        assert different >= 2  # the moving averages of the batch normalisation
        assert len(session._executor.worker_pids()) == 2


@pytest.mark.slow
@pytest.mark.processes
def test_ports_are_those_of_processes(one_step, listening_ports):
    """Four workers in two processes need two ports."""

    def look(pids):
        assert {65534, 65535} <= listening_ports(pids[0])

    one_step(DEVICES, 65534, look)
    with pytest.raises(caramel.InputError, match="port 65536"):
        one_step(["/job:worker/task:0", "/job:worker/task:1", "/job:worker/task:2"], 65534)


@pytest.mark.slow
@pytest.mark.processes
def test_a_device_that_is_not_there(one_step):
    with pytest.raises(caramel.InputError, match=r"no device '/job:worker/task:1/device:GPU:0': .* has CPU:0\."):
        one_step(["/job:worker/task:0", "/job:worker/task:1/GPU:0"], None)


# -- servers ---------------------------------------------------------------------------------

ON_SERVERS = """
import json, pickle, sys

sys.path.insert(0, sys.argv[1])
import tensorflow as tf
import exact_tf1 as v1
from exact_common import BATCH, LOCAL, SAME, SERIAL, Case, batches, train
import caramel

addresses, devices = json.loads(sys.argv[2]), json.loads(sys.argv[3])
case = Case("adam", (*SAME, *LOCAL), "float32", clip=1.4)
data = batches(BATCH, case.dtype)
context, program = v1.capture(case)
armodel = caramel.ARModel(context, 4, device_list=devices, algorithm="shuffle")
found = []
with armodel.session(caramel.Servers(addresses, options=SERIAL, task=0)) as session:
    trained = train(session, [program.feed(batch) for batch in data])
    session.trace_next(found.append)
    session.step(program.feed(data[0]))
ran = {}
for device in tf.compat.v1.RunMetadata.FromString(found[0]).step_stats.dev_stats:
    for node in device.node_stats:
        ran.setdefault(node.node_name.partition("/")[0], set()).add(device.device)
with open(sys.argv[4], "wb") as file:
    pickle.dump((trained, ran), file)
"""


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.processes
def test_on_two_servers(network, tmp_path, wanted):
    """One by `caramel worker --devices 2`, the other by the driver, which knows the number."""
    addresses = ["127.0.0.1:2222", "127.0.0.1:2223"]
    network.serve("--cluster", ",".join(addresses), "--task", 1, "--devices", 2)
    out = tmp_path / "trained.pickle"
    here = str(Path(__file__).parent)
    result = network.run("-c", ON_SERVERS, here, json.dumps(addresses), json.dumps(DEVICES), out)
    assert result.returncode == 0, result.stderr[-2000:]
    with open(out, "rb") as file:
        trained, ran = pickle.load(file)
    assert_same(trained, wanted)
    for rank, device in enumerate(DEVICES):
        assert ran[f"worker_{rank}"] == {device.replace("/task", "/replica:0/task")}
