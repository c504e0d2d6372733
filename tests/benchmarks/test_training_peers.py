"""Peers with a process for each worker train as one device does; nothing of theirs stays, and errors say what it was."""

import os
import signal
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner
from variants import in_soak

from benchmarks.testbed import UnavailableError
from benchmarks.training.__main__ import main
from benchmarks.training.effort import FULL, QUICK
from benchmarks.training.ingraph import tensorflow_collectives
from benchmarks.training.records import Tried
from benchmarks.training.shared import Group, Member
from benchmarks.training.site import Site
from benchmarks.training.spmd import HOROVOD, MIRRORED, SpmdContender, horovod_versions
from benchmarks.training.steps import Replica
from benchmarks.training.workloads import BY_NAME
from caramel.errors import ClusterError

pytestmark = pytest.mark.processes
DENSE, SPARSE = replace(BY_NAME["mlp"], examples=24), replace(BY_NAME["transformer"], examples=6)


def one_device(workload, steps):
    """Losses of the whole batch, and the replica."""
    replica = Replica(tf, workload, 1, 0)
    step = tf.function(lambda: replica.step(lambda gradients: gradients))
    return [float(step()) for _ in range(steps)]


@pytest.fixture(scope="module")
def site():
    try:
        made = Site(2, None, QUICK)
    except UnavailableError as error:
        pytest.skip(f"no testbed can be built here: {error}")
    with made:
        yield made


@pytest.fixture
def processes(site):
    """Started again if a test has ended them; the tests are in an order in which few do."""
    return site.peer(MIRRORED)


PACKS = {"bytes_per_pack": 2**18}


@pytest.mark.parametrize(
    ("workload", "options"),
    [(DENSE, PACKS), *in_soak((DENSE, {}), (SPARSE, {}), (SPARSE, PACKS))],
    ids=["dense in packs", "dense", "sparse", "sparse in packs"],
)
def test_mirrored_workers_train_as_one_device_does(workload, options, processes):
    contender = SpmdContender("mwms", processes, workload, options, options)
    burst = contender.run(4)
    contender.close()
    np.testing.assert_allclose(burst.losses, one_device(workload, 4), rtol=1e-4)
    assert len(burst.times_s) == 4 and min(burst.times_s) > 0


def test_workers_alone_do_not_wait_for_each_other(processes):
    contender = SpmdContender("compute", processes, DENSE, {}, None)
    burst = contender.run(4)
    contender.close()
    parts = []
    for rank in range(2):
        replica = Replica(tf, DENSE, 2, rank)
        parts.append([float(replica.step(lambda gradients: gradients)) for _ in range(4)])
    np.testing.assert_allclose(burst.losses, np.mean(parts, axis=0), rtol=1e-4)
    assert abs(burst.losses[3] / one_device(DENSE, 4)[3] - 1) > 1e-3


def test_a_contender_that_is_closed_is_forgotten(processes):
    contender = SpmdContender("compute", processes, DENSE, {}, None)
    contender.close()
    contender.close()
    assert len(processes.pids()) == 2


def test_meters_tell_hosts_apart(site):
    """Of a process on the second host the processor time is that host's; of this one it is nobody's."""
    processes = site.peer(MIRRORED)
    pids = [processes.pids()[1], os.getpid()]
    before = site.meter()(pids)
    contender = SpmdContender("mwms", processes, DENSE, {}, {})
    contender.run(3)
    used = site.meter()(pids).since(before, 1)
    assert used.processor_s[0] == 0 and used.processor_s[1] > 0 and len(used.processor_s) == 3
    least = DENSE.sent_bytes(2)
    assert len(used.sent_bytes) == 2 and min(*used.sent_bytes, *used.received_bytes) > 3 * least
    assert max(site.link_rates_bytes_per_s()) <= site.testbed.rate_bytes_per_s
    contender.close()


@pytest.mark.soak
def test_a_worker_that_ends_ends_all_and_all_are_started_again(site, processes):
    contender = SpmdContender("mwms", processes, DENSE, {}, {})
    os.kill(processes.pids()[1], signal.SIGKILL)
    with pytest.raises(ClusterError, match="MultiWorkerMirroredStrategy ended"):
        contender.run(2)
    contender.close()
    again = site.computation(DENSE)
    assert len(again.run(2).times_s) == 2
    assert not set(again.pids()) & set(processes.pids())


@pytest.mark.soak  # as test_a_worker_that_ends_ends_all_and_all_are_started_again
def test_computation_goes_on_where_others_that_share_its_processes_fail(site, monkeypatch):
    monkeypatch.setattr(Site, "taking_part", ("compute", "mwms", "mwms_best", "horovod"))
    settings = {"mwms_best": (Tried(PACKS, 1.0, None),)}
    computation, mirrored, best, horovod = site.contenders(DENSE, {}, settings)
    assert best.settings == PACKS
    with pytest.raises(ClusterError, match="make horovod builds it"):
        horovod.run(2)
    losses = computation.run(2).losses
    before = mirrored.pids()
    os.kill(before[1], signal.SIGKILL)
    with pytest.raises(ClusterError, match="MultiWorkerMirroredStrategy ended"):
        mirrored.run(2)
    burst = computation.run(2)  # after two steps that settle it
    assert not set(computation.pids()) & set(before) and burst.losses[0] < losses[0]
    assert len(best.run(2).times_s) == 2 and best.pids() == computation.pids()


@pytest.mark.soak  # as test_a_contender_that_is_closed_is_forgotten
def test_processes_that_end_with_the_cell_say_so_and_get_no_signals(site, processes, monkeypatch):
    contender = SpmdContender("mwms", processes, DENSE, {}, {})
    before = processes.pids()
    site.end_cell()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in before)
    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", lambda *_: pytest.fail("these processes may be anybody's by now"))
        with pytest.raises(ClusterError, match="the processes of MultiWorkerMirroredStrategy have ended"):
            contender.run(2)
        processes._processes.freeze(True)
        with pytest.raises(ClusterError, match="MultiWorkerMirroredStrategy: the processes were ended"):
            processes._processes.ask({})
        contender.close()
    again = site.computation(DENSE)
    assert len(again.run(2).times_s) == 2 and not set(again.pids()) & set(before)


def test_an_error_of_a_worker_is_told_first(processes):
    with pytest.raises(ClusterError, match="^MultiWorkerMirroredStrategy ended: KeyError: 'no such step'"):
        processes.ask({"do": "run", "name": "no such step", "steps": 1})
    assert processes.has_ended
    processes.close()


@pytest.mark.soak  # as test_local_processes of test_training_ingraph
def test_a_server_that_hangs_ends_with_the_contender_that_waits_for_it(site, freeze):
    group = Group(site.shared.close)
    ring, shuffle = (
        Member(kind, group, partial(tensorflow_collectives, DENSE, 2, site.shared, kind, step_timeout_s=8.0))
        for kind in ("ring", "shuffle")
    )
    first, _ = ring.run(2), shuffle.run(2)
    servers = [pid for pid in ring.pids() if pid != os.getpid()]
    freeze(servers[-1])
    with pytest.raises(ClusterError, match="step 1 of 2"):
        shuffle.run(2)
    again = ring.run(2)
    assert again.losses[0] < first.losses[0] and not set(ring.pids()) & set(servers)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in servers)
    site.end_cell()


@pytest.mark.soak  # as test_meters_tell_hosts_apart
def test_processor_time_is_that_of_the_hosts(site, processes):
    """Who drives a graph is on the first host, so that no time is left for the place of those on none."""
    driven = tensorflow_collectives(DENSE, 2, site.shared)
    places = [os.stat(host.namespace).st_ino for host in site.testbed.hosts]
    found = [
        [places.index(os.stat(f"/proc/{pid}/ns/net").st_ino) for pid in each.pids()] for each in (driven, processes)
    ]
    assert found == [[0, 0, 1], [0, 1]]
    read = site.meter()
    before = read(driven.pids())
    driven.run(4)
    used = read(driven.pids()).since(before, 4).processor_s
    assert len(used) == 3 and min(used[:2]) > 0 and used[2] == 0
    *on_hosts, elsewhere = read([os.getpid()]).processor_s
    assert on_hosts == [0, 0] and elsewhere > 0
    driven.close()


def test_nobody_else_needs_horovod(site):
    with pytest.raises(ClusterError, match="make horovod builds it"):
        site.peer(HOROVOD)
    assert horovod_versions(None) == horovod_versions("/there/is/no/python") == {}
    assert horovod_versions(sys.executable) == {"horovod_tensorflow": tf.__version__}


def test_the_settings_of_who_cannot_run_are_not_tried(site, monkeypatch):
    monkeypatch.setattr(site, "_effort", FULL)
    assert site.sweepable == ["mwms_best"]
    assert list(site.absent) == ["compute_horovod", "horovod", "horovod_best"]
    monkeypatch.setattr(Site, "taking_part", ("horovod", "horovod_best"))
    for contender in site.contenders(DENSE, {}, {}):
        with pytest.raises(ClusterError, match="^Horovod is not installed"):
            contender.run(2)


@pytest.fixture
def starts(monkeypatch):
    """What becomes of Horovod's processes, one after another, and the hosts that start them."""
    found = []

    class Starting:
        has_ended = False

        def __init__(self, kind, *_):
            if kind == MIRRORED or found.pop(0) == "late":
                raise ClusterError(f"{kind} ended\nwith a trace")

        def close(self):
            pass

    monkeypatch.setattr("benchmarks.training.site.Processes", Starting)
    try:
        with Site(2, "/some/python", FULL) as made:
            yield made, found
    except UnavailableError as error:
        pytest.skip(f"no testbed can be built here: {error}")


def test_horovod_that_does_not_start_is_given_up(starts):
    """Twice, as it may be chance; with settings of its own, too."""
    site, found = starts
    found += ["late"] * 2
    for _ in range(2):
        assert not site.absent and site.sweepable == ["mwms_best", "horovod_best"]
        with pytest.raises(ClusterError, match="^horovod ended"):
            site.peer(HOROVOD)
    assert "horovod" in site.absent and site.sweepable == ["mwms_best"]
    for start in (
        partial(site.peer, HOROVOD),
        partial(site._horovod_with, DENSE, {"fusion_bytes": 1, "cycle_ms": 1.0}),
    ):
        with pytest.raises(ClusterError, match=r"^Horovod cannot run here, and is not tried again: horovod ended$"):
            start()
    for _ in range(3):  # what has to run is always tried again
        with pytest.raises(ClusterError, match="^mwms ended"):
            site.peer(MIRRORED)


def test_horovod_that_has_run_is_not_given_up(starts):
    site, found = starts
    found += ["late", "well", "late", "late", "well"]
    for well in [text == "well" for text in found]:
        if well:
            site.peer(HOROVOD)
            site.end_cell()
        else:
            with pytest.raises(ClusterError, match="^horovod ended"):
                site.peer(HOROVOD)
    assert not site.absent and not found


@pytest.mark.parametrize("python", ["/there/is/no/python", sys.executable])
def test_a_python_without_horovod_is_refused_before_anything_is_measured(python, tmp_path):
    told = CliRunner().invoke(main, ["--horovod", python, "--results", str(tmp_path / "a.json")])
    assert told.exit_code == 1 and "no Python with Horovod: make horovod builds one" in told.output
    assert not list(tmp_path.iterdir())
