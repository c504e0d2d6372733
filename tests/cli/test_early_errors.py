"""Options that are wrong whatever the program is: found before TensorFlow is loaded, and before the program is."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from caramel.plan import Plan

WITHOUT_TENSORFLOW = """
import sys
sys.modules["tensorflow"] = None
import contextlib, io, json, traceback
from caramel.cli.main import main

for line in sys.stdin:
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            main(json.loads(line))
        except SystemExit as end:
            code = end.code
        except BaseException:
            code = None
            traceback.print_exc()
    print(json.dumps([code, said.getvalue()]), flush=True)
"""
"""Runs one command after the other. Importing TensorFlow, or the program, which is none, gives another message."""

PROGRAM = f"{__file__}:build"

NEEDS = {
    "--workers 0": "--workers must be a whole number of at least 1, got 0",
    "--workers 2 --depth 0": "depth of a collective must be a whole number of at least 1, got 0",
    "--workers 2 --algorithm nonsense": "nonsense",
    "--workers 2 --wire int8": "the wire can have bfloat16 or float16, got 'int8'",
    "--workers 2 --wire bfloat16 --deterministic": "--deterministic and --wire exclude each other",
    "--workers 2 --network FOLDER/missing.json": "missing.json' cannot be read",
    "--workers 2 --plan FOLDER/missing.json": "missing.json' cannot be read",
    "--workers 2 --trace FOLDER/missing.json": "missing.json' cannot be read",
    "--workers 2 --plan FOLDER/damaged.json": "damaged.json",
    "--workers 2 --plan FOLDER/of_three.json": "the plan was made for 3 workers, not for 2",
    "--workers 2 --plan FOLDER/missing.json --policy paper": "with --plan leave out --policy",
    "--workers 2 --step-timeout -1": "--step-timeout",
    "--workers 2 --device /job:worker/task:0": "device_list has 1 entries for 2 workers",
    "--workers 2 --device /job:worker/task:0 --device /job:worker/task:0": "for workers 0 and 1",
    "--workers 2 --cluster processes --base-port 99999999": "--base-port must be",
    "--workers 4 --cluster processes --base-port 65533": "--base-port must be",
    "--workers 2 --base-port 2222": "--base-port belongs to --cluster processes",
    "--workers 2 --threads 2": "--threads belongs to servers that this command starts, and it starts none (in-process)",
    "--workers 2 --cluster 127.0.0.1:2222,127.0.0.1:2223 --threads 2": "it starts none (127.0.0.1:2222,",
    "--workers 2 --cluster processes --threads 0": "--threads",
    "--workers 2 --cluster elsewhere": "--cluster takes in-process, processes, tf-config, slurm, ray or HOST:PORT",
    "--workers 2 --checkpoint /proc/checkpoints": "no checkpoint can be written to '/proc/checkpoints'",
    "--workers 2 --checkpoint gs://bucket/run": "there can be no checkpoints in 'gs://bucket/run'",
    "--workers 2 --servers 0": "--servers",
    "--workers 2 --servers 1 --algorithm ring": "with --servers leave out --algorithm",
    "--workers 2 --servers 1 --no-scheduling": "with --servers leave out --scheduling",
    "--workers 2 --servers 1 --sync-every 2": "--sync-every goes without --servers",
    "--workers 2 --servers 1 --ordering nonsense": "ordering must be 'tac' or",
    "--workers 2 --servers 1 --server-device /job:worker/task:0 --server-device /task:1": "--server-device has 2 entries",
    "--workers 2 --ordering tic": "--ordering is of parameter servers: give --servers, too",
    "--cluster 127.0.0.1:2222,127.0.0.1:2223 --servers 2": "leave no worker",
    "--workers 2 --save-every 3": "--save-every needs --checkpoint DIR",
    "--workers 4 --cluster a:1,b:1": "--workers 4: the cluster (a:1,b:1) has 2 workers. Give a server for each",
}


OF_THREE = Plan(
    model_digest="f" * 64,
    workers=3,
    devices=tuple(f"/job:worker/task:{n}" for n in range(3)),
    reduction="mean",
    reduction_reason="the loss is a mean",
    weighted=True,
    deterministic=False,
    statistics="local",
    network=None,
    transfers=(),
    variable_classes=(),
    notes=(),
)


@pytest.fixture(scope="module")
def run():
    """The exit status of a command and what it says, without TensorFlow."""
    command = [sys.executable, "-c", WITHOUT_TENSORFLOW]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:

        def done(*arguments):
            process.stdin.write(f"{json.dumps(arguments)}\n")
            code, said = json.loads(process.stdout.readline())
            return SimpleNamespace(returncode=code, stderr=said)

        yield done
        process.stdin.close()


@pytest.mark.parametrize("options", NEEDS)
def test_run(run, options, tmp_path):
    (tmp_path / "damaged.json").write_text("{")
    (tmp_path / "of_three.json").write_text(OF_THREE.to_json())
    done = run("run", PROGRAM, *options.replace("FOLDER", str(tmp_path)).split())
    assert done.returncode in (1, 2) and NEEDS[options] in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and {path.name for path in tmp_path.iterdir()} == {
        "damaged.json",
        "of_three.json",
    }


@pytest.mark.parametrize("command", ["export --out FOLDER/exported", "plan"])
@pytest.mark.parametrize(
    "options", ["--workers 0", "--workers 2 --algorithm nonsense", "--workers 2 --trace gone.json"]
)
def test_other_commands(run, command, options, tmp_path):
    verb, *rest = command.replace("FOLDER", str(tmp_path)).split()
    done = run(verb, PROGRAM, *rest, *options.split())
    wanted = {"0": "--workers must be", "nonsense": "nonsense", "gone.json": "gone.json"}[options.split()[-1]]
    assert done.returncode == 1 and wanted in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command, wanted",
    [
        (f"trace {PROGRAM} --out FOLDER/t.json --base-port 2222", "--base-port belongs to --cluster processes"),
        ("netbench --workers 2 --workers 4 --out FOLDER/n.json --base-port 65533", "--base-port must be"),
    ],
    ids=["trace", "netbench"],
)
def test_ports_of_what_measures(run, command, wanted, tmp_path):
    done = run(*command.replace("FOLDER", str(tmp_path)).split())
    assert done.returncode in (1, 2) and wanted in done.stderr and "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize(
    "options, wanted",
    [
        ("--measure --diff gone.json", "gone.json' cannot be read"),
        ("--json", "nothing can be predicted without a network model"),
    ],
)
def test_what_a_plan_is_to_show(run, options, wanted):
    done = run("plan", PROGRAM, "--workers", "2", *options.split())
    assert done.returncode == 1 and wanted in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_right_options_reach_tensorflow(run):
    assert "tensorflow" in run("run", PROGRAM, "--workers", "2").stderr
