"""Options with which TensorFlow runs a graph: how many ops a server runs at once."""

import pytest

import caramel
from caramel.runtime.host.environment import usable_cores


def threads(options):
    return options.server_config().inter_op_parallelism_threads


def test_threads_besides_those_that_compute():
    cores = usable_cores()
    assert threads(caramel.RunOptions()) == cores + 6
    assert threads(caramel.RunOptions().for_transfers(0)) == cores
    assert threads(caramel.RunOptions(inter_op_threads=3).for_transfers(2)) == 5


def test_what_the_user_says_has_precedence():
    assert threads(caramel.RunOptions(transfer_threads=1).for_transfers(0)) == usable_cores() + 1
    assert threads(caramel.RunOptions.with_threads(3).for_transfers(6)) == 3
    assert caramel.RunOptions.with_threads(None) == caramel.RunOptions()


@pytest.mark.parametrize("cluster", [caramel.LocalProcesses(), caramel.Servers(["a:2222", "b:2222"], task=0)])
def test_servers_that_are_started_for_a_plan(cluster):
    assert cluster.for_transfers(0).options == caramel.RunOptions(transfer_threads=0)
    assert cluster.options == caramel.RunOptions()


def test_a_process_has_no_such_servers():
    cluster = caramel.InProcess()
    assert cluster.for_transfers(0) is cluster
