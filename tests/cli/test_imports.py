"""What stays light: help, version and everything that needs no TensorFlow."""

import resource

import pytest
from click.testing import CliRunner
from variants import mostly_in_soak

from caramel.cli.main import main

LIGHT = [
    "caramel",
    "caramel.errors",
    "caramel.plan",
    "caramel.signature",
    "caramel.model",
    "caramel.graph.graph",
    "caramel.graph.devices",
    "caramel.collectives.schedule",
    "caramel.collectives.algorithms",
    "caramel.netmodel.line",
    "caramel.netmodel.costs",
    "caramel.netmodel.model",
    "caramel.netmodel.file",
    "caramel.netmodel.choice",
    "caramel.netmodel.plot",
    "caramel.netmodel.report",
    "caramel.util.arguments",
    "caramel.util.units",
    "caramel.util.tables",
    "caramel.analyzers",
    "caramel.analyzers.plan_checks",
    "caramel.analyzers.policies.transfers",
    "caramel.analyzers.registry",
    "caramel.collectives",
    "caramel.netmodel",
    "caramel.scaling.question",
    "caramel.simulator",
    "caramel.facts",
    "caramel.measure.makespan",
    "caramel.measure.trace_file",
    "caramel.cli.main",
    "caramel.doctor.examination",
    "caramel.doctor.judgements",
    "caramel.starters.starter",
    "caramel.frontend.program_file",
    "caramel.runtime.feeds",
    "caramel.util.progress",
    "caramel.runtime.host.namespaces",
    "caramel.runtime.host.hosts_file",
    "caramel.runtime.host.membership",
    "caramel.runtime.host.slurm",
    "caramel.runtime.clusters.ray_servers",
    "caramel.runtime.clusters.remote_workers",
    "caramel.runtime.host.server",
]

HELP_LIMIT_S = 1.5
"""Of the processor, several times what it needs; TensorFlow alone takes more than this to load."""


WITHOUT_TENSORFLOW = """
import importlib, sys
sys.modules["tensorflow"] = sys.modules["keras"] = None
for module in sys.argv[1:]:
    for name in [name for name in sys.modules if name.partition(".")[0] == "caramel"]:
        del sys.modules[name]  # so that each is the first to be imported
    try:
        importlib.import_module(module)
    except ImportError as error:
        print(f"{module}: {error}")
"""


def test_imports_without_tensorflow(python):
    result = python("-c", WITHOUT_TENSORFLOW, *LIGHT)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_import_of_the_package_imports_no_tensorflow(python):
    result = python(
        "-c", "import sys, caramel; dir(caramel); print('tensorflow' in sys.modules, 'numpy' in sys.modules)"
    )
    assert result.stdout.split() == ["False", "False"], result.stderr


def test_an_unknown_name_is_an_attribute_error(python):
    result = python("-c", "import caramel; caramel.Capture")
    assert "AttributeError: module 'caramel' has no attribute 'Capture'" in result.stderr


def children_s():
    """What ended child processes have had of the processor."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_is_quick(command):
    before_s = children_s()
    result = command("--help")
    assert children_s() - before_s < HELP_LIMIT_S
    assert result.returncode == 0
    assert result.stderr == ""


@pytest.mark.parametrize(
    "arguments",
    mostly_in_soak(
        [
            "--help",
            "-h",
            "run --help",
            "launch --help",
            "export --help",
            "netbench --help",
            "trace --help",
            "init --help",
            "doctor --help",
            "--version",
        ],
        *("--help", "netbench --help", "--version"),
    ),
)
def test_help_needs_no_tensorflow(python, arguments):
    code = f"""
import sys
sys.modules["tensorflow"] = sys.modules["keras"] = None
sys.argv = ["caramel", *"{arguments}".split()]
from caramel.cli.main import main
main()
"""
    result = python("-c", code)
    assert result.returncode == 0, result.stderr
    assert "caramel" in result.stdout


def test_help_says_what_there_is():
    def shown(*arguments):
        return CliRunner().invoke(main, [*arguments, "--help"]).stdout

    text = shown()
    assert all(word in text for word in ("run", "export", "FILE.py:ENTRY", "--debug"))
    text = shown("run")
    options = (
        "--workers --cluster in-process processes --steps --steps-per-execution --checkpoint --save-every "
        "--allow-open-ports --base-port"
    )
    assert [word for word in options.split() if word not in text] == []
    assert all(word in shown("export") for word in ("--workers", "--out", "--device"))


def test_a_call_without_arguments_shows_the_help(command):
    result = command()
    assert "Usage: caramel" in result.stdout + result.stderr
    assert result.returncode in (0, 2)
