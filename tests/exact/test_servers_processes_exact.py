"""Workers and parameter servers in processes of their own: the bits of those in this process."""

import numpy as np
import pytest
from exact_common import SERIAL, in_process
from exact_matrix import FEATURE, batches, program
from exact_steps import captured, values_of
from test_servers_exact import examples, large
from variants import in_soak

import caramel

pytestmark = [pytest.mark.slow, pytest.mark.processes]

PROGRAMS = {
    "parts": (large("adam"), examples()),
    "embedding": (program("adam", "embedding"), batches(FEATURE["embedding"])),
    "branch": (program("momentum", "branch"), batches(FEATURE["branch"])),
}


def trained(name, cluster, **options):
    """Losses, final values, and the ids of the processes."""
    make, data = PROGRAMS[name]
    made, context = captured(make)
    model = caramel.PSModel(context, 2, 2, **options)
    with model.session(cluster) as session:
        losses = [result.loss for result in session.run(data, progress=False)]
        session.write_back()
        pids = session._executor.worker_pids() if isinstance(cluster, caramel.LocalProcesses) else []
    return losses, values_of(made), pids


def assert_bits(got, want):
    assert got[0] == want[0]
    for name, value in want[1].items():
        np.testing.assert_array_equal(got[1][name], value, err_msg=name)


@pytest.mark.parametrize("name", ["parts", *in_soak("embedding", "branch")])
def test_two_workers_and_two_servers(name):
    got = trained(name, caramel.LocalProcesses(options=SERIAL))
    assert len(got[2]) == 4
    assert_bits(got, trained(name, in_process()))


@pytest.mark.soak
def test_with_default_options_and_no_order():
    got = trained("embedding", caramel.LocalProcesses(), ordering="none")
    assert_bits(got, trained("embedding", caramel.InProcess(), ordering="none"))


@pytest.mark.soak
def test_servers_beside_workers():
    got = trained("embedding", caramel.LocalProcesses(), server_list=["/job:worker/task:1", "/job:worker/task:0"])
    assert len(got[2]) == 2
    assert_bits(got, trained("embedding", caramel.InProcess()))
