"""The files of examples/ for Slurm, Kubernetes and Kubeflow: each one's own command, with the variables that these set."""

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PROJECT = (ROOT / "pyproject.toml").read_text()
EXTRAS = re.compile(r"""(?:caramel-tf|pip install "\.)\[([\w,]+)\]""")


def documents(name):
    """The objects of a file, by their kind."""
    return {each["kind"]: each for each in yaml.safe_load_all((EXAMPLES / name).read_text())}


def imported_by(path):
    """The packages that a program imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.partition(".")[0]


def variables(entries):
    return {entry["name"]: entry["value"] for entry in entries}


def jobset():
    """What JobSet makes of its file: the pods' names, their variables, and the command of each."""
    spec = documents("jobset.yaml")["JobSet"]
    (job,) = spec["spec"]["replicatedJobs"]
    indexed = job["template"]["spec"]
    assert (indexed["completionMode"], job["replicas"]) == ("Indexed", 1)
    assert indexed["completions"] == indexed["parallelism"]
    (container,) = indexed["template"]["spec"]["containers"]
    name = spec["metadata"]["name"]
    pods = [f"{name}-{job['name']}-0-{index}.{name}" for index in range(indexed["completions"])]
    return pods, variables(container["env"]), [*container["command"], *container["args"]], container["image"]


def trainjob():
    """What Kubeflow's trainer makes of its file: a JobSet of the job's name."""
    found = documents("trainjob.yaml")
    runtime, job = found["TrainingRuntime"], found["TrainJob"]
    assert job["spec"]["runtimeRef"] == {"kind": "TrainingRuntime", "name": runtime["metadata"]["name"]}
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    labels = replicated["template"]["metadata"]["labels"]
    assert labels == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    assert (replicated["name"], container["name"]) == ("node", "node")
    trainer, name = job["spec"]["trainer"], job["metadata"]["name"]
    assert trainer["numNodes"] == runtime["spec"]["mlPolicy"]["numNodes"]
    pods = [f"{name}-node-0-{index}.{name}" for index in range(trainer["numNodes"])]
    return pods, variables(trainer["env"]), [*trainer["command"], *trainer["args"]], container["image"]


KINDS = {"jobset.yaml": jobset, "trainjob.yaml": trainjob}


@pytest.mark.parametrize("name", KINDS)
def test_the_hosts_are_the_pods(name):
    pods, environment, _, _ = KINDS[name]()
    assert environment["HOSTS"].split(",") == [f"{pod}:2222" for pod in pods]


@pytest.mark.parametrize("name", KINDS)
def test_only_the_jobs_own_pods_reach_it(name):
    found = documents(name)
    (job,) = (found[kind] for kind in ("JobSet", "TrainJob") if kind in found)
    policy = found["NetworkPolicy"]["spec"]
    own = {"matchLabels": {"jobset.sigs.k8s.io/jobset-name": job["metadata"]["name"]}}
    assert policy["podSelector"] == own and policy["policyTypes"] == ["Ingress"]
    assert policy["ingress"] == [{"from": [{"podSelector": own}]}]


def test_the_image_has_what_the_jobs_run():
    lines = (EXAMPLES / "Dockerfile").read_text()
    (programs,) = re.findall(r"^COPY (.*) \./$", lines, re.MULTILINE)
    of_package = re.findall(r"^COPY (.*) \S*/caramel-tf\S*$", lines, re.MULTILINE)
    assert all((ROOT / name).exists() for name in " ".join([programs, *of_package]).split())
    copied = [Path(name).name for name in programs.split()]
    for name in KINDS:
        *_, command, image = KINDS[name]()
        (program,) = re.findall(r"caramel run (\S+\.py):program", command[-1])
        assert program in copied and f"--tag {image} " in lines
    assert re.search(r"^RUN pip install .*caramel-tf\b", lines, re.MULTILINE)
    imports = {name for file in copied for name in imported_by(EXAMPLES / file)}
    foreign = imports - {"caramel", *sys.stdlib_module_names} - {Path(file).stem for file in copied}
    packages = {importlib.metadata.packages_distributions()[name][0] for name in foreign}
    (dependencies,) = re.findall(r"^dependencies = \[\n(.*?)^\]", PROJECT, re.MULTILINE | re.DOTALL)
    assert packages <= set(re.findall(r'^    "([\w-]+)', dependencies, re.MULTILINE))


def test_extras_that_are_named_exist():
    """Wherever one is told to install an extra: in documents, examples, and errors."""
    (options,) = re.findall(r"^\[project.optional-dependencies\]\n(.*?)^\[", PROJECT, re.MULTILINE | re.DOTALL)
    extras = set(re.findall(r"^(\w+) = \[", options, re.MULTILINE))
    folders = [ROOT / name for name in ("caramel", "docs", "examples", "tests")]
    files = [*ROOT.glob("*.md"), *(path for folder in folders for path in folder.rglob("*"))]
    texts = {path: path.read_text() for path in files if path.suffix in (".md", ".py", ".yaml", "") and path.is_file()}
    named = {
        (path, name) for path, text in texts.items() for names in EXTRAS.findall(text) for name in names.split(",")
    }
    assert {name for _, name in named} >= {"ray", "tensorboard"}
    assert not [(str(path), name) for path, name in named if name not in extras]


@pytest.fixture
def environment(tmp_path):
    """The command ``caramel`` is this package's, as in the image."""
    script = tmp_path / "bin" / "caramel"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m caramel "$@"\n')
    script.chmod(0o755)
    path = os.pathsep.join([str(script.parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.soak  # as the batch file, whose tasks are told by Slurm which they are
@pytest.mark.parametrize("name", KINDS)
def test_pods_train(network, environment, name):
    """All in one network here, so each has a port of its own instead of a name."""
    pods, own, command, _ = KINDS[name]()
    local = {"HOSTS": ",".join(f"127.0.0.1:{2222 + index}" for index in range(len(pods))), "STEPS": "3"}
    assert own.keys() == local.keys()
    started = [
        subprocess.Popen(
            [*network.prefix, *command],
            cwd=EXAMPLES,
            env={**environment, **local, "JOB_COMPLETION_INDEX": str(index)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(len(pods))
    ]
    ended = [process.communicate(timeout=150) for process in started]
    assert [process.returncode for process in started] == [0] * len(pods), ended
    assert "3 steps in" in ended[0][0]
    assert "evaluation accuracy" in ended[0][0]


SRUN = """\
#!/bin/bash
# As srun: the command on every task, with the variables of a step; options come first.
while [ "${{1#--}}" != "$1" ]; do shift; done
export SLURM_STEP_NODELIST=localhost SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2 SLURM_NODEID=0
for task in 1 0; do SLURM_PROCID=$task SLURM_LOCALID=$task "$@" > {folder}/$task.log 2>&1 & pids="$pids $!"; done
for pid in $pids; do wait $pid || status=$?; done
exit ${{status:-0}}
"""


@pytest.mark.slow
@pytest.mark.processes
def test_the_batch_file_of_slurm(network, environment, tmp_path):
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    srun = tmp_path / "bin" / "srun"
    srun.write_text(SRUN.format(folder=tmp_path))
    srun.chmod(0o755)
    batch = {"SLURM_JOB_ID": "41", "SLURM_JOB_NODELIST": "localhost", "SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "2"}
    own = {"STEPS": "3", "CHECKPOINTS": str(tmp_path / "checkpoints")}

    def submit():
        done = subprocess.run(
            [*network.prefix, "bash", "examples/slurm.sbatch"],
            cwd=ROOT,
            env={**environment, **batch, **own},
            capture_output=True,
            text=True,
            timeout=150,
        )
        logs = [(tmp_path / f"{task}.log").read_text() for task in range(2)]
        assert done.returncode == 0, (done.stderr, logs)
        return logs

    driving, serving = submit()
    assert "3 steps in" in driving and "saved" in driving
    assert "caramel server ready at grpc://localhost:20042" in serving


def test_the_batch_file_asks_slurm_for_tasks():
    text = (EXAMPLES / "slurm.sbatch").read_text()
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", text, re.MULTILINE))
    assert {"nodes", "ntasks-per-node", "cpus-per-task", "time"} <= options.keys()
    assert re.search(r"^srun --kill-on-bad-exit=1 ", text, re.MULTILINE)
