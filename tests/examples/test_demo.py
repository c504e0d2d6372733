"""`make demo`, whole: what it prints and writes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_demo_writes_what_it_says():
    environment = {
        name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"
    }  # as users have it
    command = [sys.executable, "scripts/demo.py"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    folder = ROOT / "build" / "demo"
    for name in ("report.html", "timeline.json", "loss.png", "plan.json", "losses.json"):
        assert f"build/demo/{name}: " in done.stdout and (folder / name).stat().st_size > 0
    page = (folder / "report.html").read_text()
    assert "predicted step" in page and "measured step" in page
    events = json.loads((folder / "timeline.json").read_text())["traceEvents"]
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {f"worker {n}" for n in range(4)}
    assert "4 workers, this machine" in done.stdout and "4 machines like it" in done.stdout
