"""Completion in the user's shell, as docs/reference/command.md describes it."""

import subprocess

import pytest
from click.testing import CliRunner

from caramel.cli.main import main


def completed(words, kind="bash"):
    last = len(words.split(" ")) - 1
    environment = {"_CARAMEL_COMPLETE": f"{kind}_complete", "COMP_WORDS": words, "COMP_CWORD": str(last)}
    said = CliRunner().invoke(main, prog_name="caramel", env=environment).output
    return [line.partition(",")[2] for line in said.splitlines()]


@pytest.mark.parametrize(
    "words, wanted",
    [
        ("caramel r", ["run"]),
        ("caramel run --clu", ["--cluster"]),
        ("caramel plan --policy op", ["optimal"]),
        ("caramel trace --stat", ["--statistic"]),
    ],
)
def test_names_are_completed(words, wanted):
    assert completed(words) == wanted


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_for_shells(shell):
    said = CliRunner().invoke(main, prog_name="caramel", env={"_CARAMEL_COMPLETE": f"{shell}_source"}).output
    assert f"_CARAMEL_COMPLETE={shell}_complete" in said and "caramel" in said
    if shell == "bash":
        assert subprocess.run(["bash", "-n"], input=said, text=True).returncode == 0
