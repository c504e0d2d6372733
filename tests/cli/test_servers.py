"""Parameter servers by the command: the same training, a plan that is applied, and who is what in a cluster."""

import json
import re

import pytest
from click.testing import CliRunner
from small_programs import STEP

from caramel.cli.main import main
from caramel.cli.places import Place
from caramel.errors import InputError
from caramel.plan import Plan

ADDRESSES = ",".join(f"127.0.0.1:{port}" for port in range(2222, 2226))


def jobs():
    addresses = ADDRESSES.split(",")
    return json.dumps(
        {"cluster": {"worker": addresses[:2], "ps": addresses[2:]}, "task": {"type": "worker", "index": 0}}
    )


def losses(output):
    found = re.search(r"loss ([\d.e+-]+)(?: -> ([\d.e+-]+))?", output)
    assert found, output
    return found.groups()


def called(*arguments):
    done = CliRunner().invoke(main, [str(each) for each in arguments])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def program(write):
    return f"{write(STEP)}:build"


@pytest.mark.slow
def test_trains_what_all_reduces_train(program):
    plain = called("run", program, "--workers", 2, "--deterministic")
    served = called("run", program, "--workers", 2, "--servers", 1)
    assert losses(plain) == losses(served)
    assert "2 workers and 1 parameter server\n" in served


@pytest.mark.slow
def test_a_plan_is_made_explained_and_applied(program, tmp_path):
    file = tmp_path / "plan.json"
    said = called("plan", program, "--workers", 2, "--servers", 1, "--out", file, "--explain", "w", "--check")
    assert "w: on server 0. Workers get it as number 1 of 1 (tic), 2 at a time." in said
    assert "each variable is on servers that exist" in said
    assert Plan.load(file).servers.pulls == ("w",)
    assert losses(called("run", program, "--workers", 2, "--plan", file))
    beside = called("run", program, "--workers", 2, "--servers", 1, "--server-device", "/job:worker/task:0")
    assert re.search(r"0  /job:worker/task:0 ", beside)


@pytest.mark.slow
@pytest.mark.processes
def test_servers_are_processes_of_their_own(program, namespaces):
    plain = called("run", program, "--workers", 2, "--servers", 1)
    assert losses(plain) == losses(called("run", program, "--workers", 2, "--servers", 1, "--cluster", "processes"))


def test_the_last_tasks_of_a_cluster_are_servers():
    assert Place(ADDRESSES, parameter_servers=1).size(None) == (3, ())
    assert Place(ADDRESSES, parameter_servers=2).size(2) == (2, ())
    assert Place(ADDRESSES).size(None) == (4, ())


def test_those_of_tf_config_are_its_job_ps(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", jobs())
    assert Place("tf-config", with_ps=True, parameter_servers=1).size(None) == (2, ())
    assert Place("tf-config").size(None) == (2, ())


@pytest.mark.parametrize(
    "workers, servers, words",
    [
        (None, 3, ["--servers 3", "2 tasks for workers", "2 in the job ps"]),
        (3, 1, ["--servers 1 --workers 3", "2 tasks for workers"]),
        (1, 2, ["--servers 2 --workers 1", "2 tasks for workers"]),
    ],
)
def test_tasks_are_what_tf_config_calls_them(monkeypatch, workers, servers, words):
    monkeypatch.setenv("TF_CONFIG", jobs())
    place = Place("tf-config", with_ps=True, parameter_servers=servers)
    with pytest.raises(InputError) as caught:
        place.size(workers)
    assert [word for word in words if word not in str(caught.value)] == []
