"""`caramel doctor` by itself: lines, JSON, exit status, and options that are wrong. tests/doctor has servers."""

import json
import os
import subprocess
import sys

import pytest


def run(*arguments, environment=None):
    removed = ("TF_CPP_MIN_LOG_LEVEL", "TF_CONFIG")
    kept = {name: value for name, value in os.environ.items() if name not in removed}
    command = [sys.executable, "-m", "caramel", "doctor", *map(str, arguments)]
    return subprocess.run(command, env={**kept, **(environment or {})}, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_this_machine(tmp_path):
    done = run("--checkpoint-dir", tmp_path / "none")
    assert done.stderr == ""
    *lines, empty, summary = done.stdout.splitlines()
    words = [line.split()[0] for line in lines]
    assert set(words) <= {"ok", "warning", "problem"} and not empty
    assert done.returncode == ("problem" in words)
    assert summary.startswith(f"{words.count('problem')} problem")
    for check in ("Python", "tensorflow", "keras", "cores", "memory", "network namespaces", "open ports"):
        assert any(line.partition("  ")[2].strip().startswith(f"{check}: ") for line in lines), check
    assert any("there is no" in line and "Mend: mkdir -p" in line for line in lines)


@pytest.mark.slow
def test_a_cluster_that_is_not_there():
    """The driver starts its own server; the other one is missing."""
    cluster = {"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, "task": {"type": "worker", "index": 0}}
    done = run("--cluster", "tf-config", "--json", environment={"TF_CONFIG": json.dumps(cluster)})
    assert (done.returncode, done.stderr) == (1, "")
    found = {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert found["worker 0"]["state"] == "ok" and "driver starts this server itself" in found["worker 0"]["found"]
    assert found["worker 1"]["state"] == "problem" and "TF_CONFIG" in found["worker 1"]["mend"]


def test_only_the_driver_starts_its_own_server():
    from caramel.doctor.cluster import Members, _check_server

    for own_task, states in ((0, ["ok", "problem"]), (1, ["problem", "problem"]), (None, ["problem", "problem"])):
        members = Members(("127.0.0.1:1", "127.0.0.1:2"), own_task)
        assert [finding.state.value for task in (0, 1) for finding in _check_server(members, task)] == states


WITHOUT_TENSORFLOW = "import sys; sys.modules['tensorflow'] = None; from caramel.cli.main import main; main()"


@pytest.mark.parametrize(
    ("options", "words", "status"),
    [
        ("--cluster nonsense", "--cluster takes HOST:PORT", 2),
        ("--cluster a:1,a:1", "an address is there twice", 1),
        ("--checkpoint-dir gs://bucket/run", "it is an address, not a path", 1),
    ],
)
def test_wrong_options(options, words, status):
    command = [sys.executable, "-c", WITHOUT_TENSORFLOW, "doctor", *options.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == status and words in done.stderr and done.stdout == ""


def test_tensorflow_that_cannot_be_loaded():
    """It is the finding, and the others are there."""
    command = [sys.executable, "-c", WITHOUT_TENSORFLOW, "doctor", "--json", "--cluster", "127.0.0.1:1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    said = json.loads(done.stdout)
    states = {finding["check"]: finding["state"] for finding in said["findings"]}
    assert done.returncode == 1 and states["TensorFlow itself"] == "problem" and states["cores"] == "ok"
