"""`caramel launch`: workers on hosts over ssh, by a stand-in and by a real sshd, in a network of their own."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from variants import in_soak

from caramel.cli.main import main

STAND_IN = """\
#!/bin/sh
# Runs the command here; in front of it are options, each with a value, and the host.
echo "$@" >> {log}
while [ "${{1#-}}" != "$1" ]; do shift 2; done
shift
exec sh -c "$*"
"""


@pytest.fixture
def hosts(write):
    """This machine, and one that is reached over ssh."""
    return write("localhost:2222\n127.0.0.2:2223 workers=2\n", "hosts.txt")


@pytest.fixture
def log(tmp_path, monkeypatch):
    """What the stand-in on PATH was called with."""
    log = tmp_path / "ssh.log"
    script = tmp_path / "bin" / "ssh"
    script.parent.mkdir()
    script.write_text(STAND_IN.format(log=log))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    return log


def launch(hosts, *arguments):
    return ["-m", "caramel", "launch", "--hosts", hosts, *arguments]


@pytest.mark.slow
@pytest.mark.processes
def test_workers_over_a_stand_in_for_ssh(network, least_squares, hosts, log, tmp_path, least_squares_losses):
    result = network.run(*launch(hosts, "--remote-directory", tmp_path, f"{least_squares}:program", "--steps", 4))
    assert result.returncode == 0, result.stderr
    assert network.left() == {}
    assert not re.search("worker|Traceback|Exception", result.stderr), result.stderr
    (call,) = log.read_text().splitlines()  # none for this machine
    assert call.startswith("-o BatchMode=yes") and f" 127.0.0.2 cd {tmp_path} && exec {sys.executable} -m" in call
    assert f"loss {least_squares_losses(3)}" in result.stdout


TROUBLES = {
    "program": r"Error: \S+least_squares.py:broken raises ValueError at \S+: nothing works",
    "port": r"Error: the worker on 127.0.0.2 did not start \(exit status 1\): the server cannot listen at "
    r"127.0.0.2:2223: .*",
    "directory": r"Error: the worker on 127.0.0.2 did not start \(exit status [12]\): .*cd: .*/nowhere.*",
    "ssh": r"Error: no-such-ssh cannot be run for 127.0.0.2: No such file or directory",
}


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("trouble", ["program", *in_soak("port", "directory", "ssh")])
def test_what_goes_wrong_is_one_line_and_leaves_nothing(network, least_squares, hosts, trouble):
    options = {"directory": ["--remote-directory", "/nowhere"], "ssh": ["--ssh", "no-such-ssh"]}.get(trouble, [])
    if trouble == "port":
        code = "import socket, time; s = socket.create_server(('', 2223)); print('up', flush=True); time.sleep(600)"
        other = network.start("-c", code)
        assert network.line_of(other) == "up\n"
        network.own.add(other.pid)
    entry = "broken" if trouble == "program" else "program"
    result = network.run(*launch(hosts, *options, f"{least_squares}:{entry}"))
    assert result.returncode == 1
    assert network.left() == {}
    *rest, last = [line for line in result.stderr.splitlines() if "0000" not in line and "absl::" not in line]
    assert re.fullmatch(TROUBLES[trouble], last) and rest == []


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("number", [signal.SIGTERM, *in_soak(signal.SIGKILL)])
def test_a_driver_that_is_ended_ends_its_workers(network, least_squares, hosts, number):
    driver = network.start(*launch(hosts, f"{least_squares}:endless", "--steps", 10**7))
    wait_for_steps(driver)
    assert driver.poll() is None, network.end(driver)
    driver.send_signal(number)
    driver.wait(60)
    assert network.left() == {}
    assert driver.returncode == (-9 if number == signal.SIGKILL else 128 + number)


def wait_for_steps(driver):
    """Read what a driver says until it opens its session, and wait into the first steps."""
    assert any(line.startswith("checked: the updates") for line in iter(driver.stdout.readline, ""))
    time.sleep(3)


SSHD = """
Port 2022
ListenAddress 127.0.0.2
HostKey {folder}/host
PidFile {folder}/sshd.pid
AuthorizedKeysFile {folder}/user.pub
PermitRootLogin yes
StrictModes no
UsePAM no
"""

SSH = """
Host 127.0.0.2
    Port 2022
    IdentityFile {folder}/user
    UserKnownHostsFile {folder}/known
    StrictHostKeyChecking accept-new
"""


@pytest.fixture
def sshd(network, tmp_path):
    """The command that connects to a real sshd in the network."""
    server = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if os.geteuid() != 0 or server is None or shutil.which("ssh") is None:
        pytest.skip("needs root, ssh and sshd")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    (tmp_path / "sshd_config").write_text(SSHD.format(folder=tmp_path))
    (tmp_path / "ssh_config").write_text(SSH.format(folder=tmp_path))
    Path("/run/sshd").mkdir(exist_ok=True)
    daemon = subprocess.Popen(
        [*network.prefix, server, "-D", "-e", "-f", tmp_path / "sshd_config"], stderr=-1, text=True
    )
    assert "Server listening" in daemon.stderr.readline()
    network.own.add(daemon.pid)
    yield f"ssh -F {tmp_path}/ssh_config"
    daemon.terminate()
    daemon.communicate()


@pytest.fixture
def remote_python(tmp_path):
    """A Python that finds this package; sshd passes no environment on."""
    script = tmp_path / "python"
    root = Path(__file__).resolve().parents[2]
    script.write_text(f'#!/bin/sh\nPYTHONPATH={root} CUDA_VISIBLE_DEVICES= exec {sys.executable} "$@"\n')
    script.chmod(0o755)
    return script


@pytest.mark.soak  # as over a stand-in for ssh, and with a connection that breaks
def test_workers_over_a_real_ssh(network, least_squares, hosts, sshd, remote_python, least_squares_losses):
    options = ["--ssh", sshd, "--remote-python", remote_python]
    result = network.run(*launch(hosts, *options, f"{least_squares}:program"))
    assert result.returncode == 0, result.stderr
    assert f"loss {least_squares_losses(3)}" in result.stdout
    assert network.left() == {}


@pytest.mark.slow
@pytest.mark.processes
def test_a_connection_that_breaks(network, least_squares, hosts, sshd, remote_python):
    """A real ssh trains, until the connection is cut."""
    options = ["--ssh", sshd, "--remote-python", remote_python]
    driver = network.start(*launch(hosts, *options, f"{least_squares}:endless", "--steps", 10**7))
    wait_for_steps(driver)
    assert driver.poll() is None, network.end(driver)
    (client,) = [pid for pid, line in network.others().items() if line.startswith("ssh -F")]
    os.kill(client, signal.SIGKILL)
    _, err = driver.communicate(timeout=60)
    assert driver.returncode == 1
    assert re.search(r"worker 1 at 127.0.0.2:2223|127.0.0.2:2223 \(worker 1\)", err)
    assert "[127.0.0.2] ended with exit status -9" in err
    assert network.left() == {}


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nowhere.py:program"], "No such option"),
        (["nowhere.py:program", "--task", "0"], "leave out --task"),
        (["nowhere.py:program", "--cluster", "a:1"], "--hosts and --cluster exclude each other"),
        (["nowhere.py:program", "--workers", "9", "--device", "/job:worker/task:0"], "1 entries for 9 workers"),
        (["nowhere.py:program"], "nowhere.invalid"),
    ],
)
def test_wrong_options_start_nothing(write, monkeypatch, arguments, message):
    monkeypatch.setattr(subprocess, "Popen", None)
    hosts = write("localhost\n" + ("nowhere.invalid\n" if message == "nowhere.invalid" else ""), "hosts.txt")
    before = ["--no-such"] if message == "No such option" else []
    result = CliRunner().invoke(main, ["launch", *map(str, ["--hosts", hosts]), *arguments, *before])
    assert result.exit_code in (1, 2) and message in result.output, result.output


def test_arguments_of_a_script_are_no_options(write, monkeypatch):
    """What comes after ``--`` is the script's, and the hosts are those of the file all the same."""
    given = []
    monkeypatch.setattr(
        "caramel.cli.launch.LaunchedPlace.cluster", lambda place, workers, trains: (place.hosts, workers)
    )
    monkeypatch.setattr("caramel.cli.run.run_script_on_workers", lambda *arguments: given.append(arguments))
    hosts, script = write("localhost:2222 workers=2\n", "hosts.txt"), write("pass", "train.py")
    arguments = ["launch", "--hosts", hosts, script, "--step-timeout", "9", "--", "--epochs", "3"]
    result = CliRunner().invoke(main, list(map(str, arguments)))
    assert result.exit_code == 0, (result.output, result.exception)
    assert given[0][:5] == (str(script), ("--epochs", "3"), 2, (str(hosts), 2), 9.0)
