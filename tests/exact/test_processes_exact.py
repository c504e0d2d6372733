"""Workers in processes of their own give the bits that workers in this process give.

In every run, test_in_two_local_processes of test_shared_processes_exact.py and test_on_processes of test_fit.py stand
for it.
"""

import exact_keras as k
import exact_tf1 as v1
import pytest
from exact_common import LOCAL, SAME, SERIAL, Case, assert_same, batches

import caramel

pytestmark = [pytest.mark.soak, pytest.mark.slow, pytest.mark.processes]


@pytest.fixture
def processes():
    return caramel.LocalProcesses(options=SERIAL)


def test_a_tf1_program(processes):
    case = Case("adam", (*SAME, *LOCAL), "float32", clip=1.4)
    data = batches(12, case.dtype)
    assert_same(v1.distributed(case, 2, data, processes), v1.distributed(case, 2, data))


def test_a_tf1_program_with_uneven_batches_and_default_options():
    case = Case("momentum", ("clip", "tied"), "float32")
    data = batches(7, case.dtype)
    got = v1.distributed(case, 3, data, caramel.LocalProcesses())
    assert_same(got, v1.distributed(case, 3, data, caramel.InProcess()))


def test_a_keras_step(processes):
    case = Case("adam", (*SAME, *LOCAL), "float32", clip=1.9)
    data = batches(12, case.dtype)
    assert_same(k.distributed(case, 2, data, processes), k.distributed(case, 2, data))
