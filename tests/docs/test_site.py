"""The documentation builds, and no warning is left."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("sphinx") is None, reason="needs the extra docs"),
]


def build(source, target):
    """What `make docs` runs, but for the theme: that one takes long over the contents of the site on every page."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", str(ROOT / "docs")]
    command += ["-D", "html_theme=basic"]
    return subprocess.run(
        [*command, str(source), str(target)],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )


def test_the_site_builds_without_a_warning(tmp_path):
    done = build(ROOT / "docs", tmp_path / "site")
    assert done.returncode == 0, done.stderr
    pages = {path.relative_to(tmp_path / "site") for path in (tmp_path / "site").rglob("*.html")}
    assert {Path("index.html"), Path("reference/api.html"), Path("reference/command.html")} <= pages
    names = (tmp_path / "site" / "reference" / "api.html").read_text(encoding="utf-8")
    for name in (
        "caramel.ARModel.session",
        "caramel.facts.Boundary",
        "caramel.analyzers.mg_wfbp",
        "caramel.simulator.simulate",
    ):
        assert f'id="{name}"' in names
    assert "--link-rate" in (tmp_path / "site" / "reference" / "command.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "text",
    ["# A page\n\n[link](nowhere.md)\n", "# A page\n\n[link](#nowhere)\n", "# A page\n\n```{nothing}\n```\n"],
)
def test_a_warning_is_an_error(text, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "index.md").write_text(text)
    assert build(source, tmp_path / "site").returncode != 0
