"""The compilation of large models: arithmetic of the tables, and one small model through all stages."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import models
from benchmarks.models import (
    MOST_BYTES,
    STAGES,
    as_in_paper,
    cost_row,
    missed,
    parameter_table,
    total_s,
    trace_to_file,
)
from benchmarks.networks import IN_PAPER, NAMES, PUBLISHED, VGG_LIKE
from caramel.measure.trace_file import load_trace

ROOT = Path(__file__).resolve().parents[2]


def row(model="VGG16", **values):
    published = PUBLISHED[model]
    found = {"model": model, "tensors": 32, "nodes": 10, "model_nodes": 5, "graph_bytes": 2**20, "before_bytes": 2**30}
    found |= {"parameters": published.trainable, "total_parameters": published.total, "peak_bytes": MOST_BYTES}
    return {**found, **dict.fromkeys(STAGES, 15.0), **values}


def test_what_keeps_the_limits_misses_nothing():
    assert total_s(row()) == 60.0
    assert missed(row()) == []
    assert cost_row(row())[-1] == "-"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"capture_s": 16.0}, "61 s, limit 60 s"),
        ({"peak_bytes": MOST_BYTES + 2**30}, "7.0 GiB, limit 6 GiB"),
        ({"parameters": 7}, "7 parameters trainable, published 138,357,544"),
        ({"total_parameters": 8}, "8 parameters in all, published 138,357,544"),
    ],
)
def test_misses_are_said(values, said):
    assert missed(row(**values)) == [said]
    assert cost_row(row(**values))[-1] == said


@pytest.mark.parametrize(
    ("name", "tensors"), [("VGG16", 32), ("ResNet50", 214), ("ResNet152V2", 514), ("InceptionV3", 190)]
)
def test_sizes_are_those_of_the_paper(name, tensors):
    """Published numbers of parameters, without what the paper's implementations do not have, give the paper's sizes."""
    mine = as_in_paper(name, tensors, PUBLISHED[name].trainable)
    assert (mine[0], round(mine[1], 1)) == (IN_PAPER[name].tensors, IN_PAPER[name].mebibytes)


def test_numbers_are_beside_each_other():
    lines = parameter_table([row(), row("MobileNetV3Small", tensors=142, total_parameters=9)]).splitlines()
    assert lines[2] == (
        "| VGG16 | 32 | 138,357,544 | 138,357,544 | 138,357,544 | 138,357,544 | 527.8 | 32, 527.8 | 32, 527.8 |"
    )
    assert lines[3] == "| MobileNetV3Small | 142 | 2,542,856 | 2,542,856 | 9 | - | 9.7 | - | - |"


def test_every_number_has_a_source():
    assert all(
        published.source and published.trainable <= (published.total or 10**9) for published in PUBLISHED.values()
    )
    assert set(IN_PAPER) <= set(NAMES)


def test_a_network_that_nobody_has_published_is_compared_with_nothing():
    unpublished = {**row(), "model": VGG_LIKE}
    assert missed(unpublished) == []
    assert parameter_table([unpublished]).splitlines()[2] == (
        "| VGG-like | 32 | 138,357,544 | - | 138,357,544 | - | 527.8 | - | - |"
    )


def arguments_for(model, directory):
    """Traced and compiled for two workers."""
    files = ["--traces", str(directory), "--json", str(directory / "rows.json")]
    return ["--model", model, "--workers", "2", "--examples", "1", "--runs", "1", *files]


def check_all_stages(model, directory):
    (found,) = json.loads((directory / "rows.json").read_text())
    assert found["traced"] and all(found[stage] > 0 for stage in STAGES)
    assert found["nodes"] > 2 * found["model_nodes"] and found["peak_bytes"] >= found["before_bytes"] > 0
    assert found["prediction"]["predicted_iteration_s"] >= found["prediction"]["lower_bound_s"] > 0
    assert load_trace(directory / f"{model}.json").runs == 1
    return found


@pytest.mark.soak
def test_a_model_through_all_stages(tmp_path, monkeypatch):
    """All in this process, which has loaded TensorFlow already."""

    def run(*arguments):
        done = CliRunner().invoke(models.main, arguments)
        assert done.exit_code == 0, (done.output, done.exception)
        return done.stdout.splitlines()[-1]

    monkeypatch.setattr(models, "_child", run)
    run(*arguments_for(VGG_LIKE, tmp_path))
    assert check_all_stages(VGG_LIKE, tmp_path)["tensors"] == 18


@pytest.mark.soak
def test_a_published_model_in_processes_of_its_own(tmp_path):
    command = [sys.executable, "-m", "benchmarks.models", *arguments_for("MobileNetV3Small", tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-2000:]
    found = check_all_stages("MobileNetV3Small", tmp_path)
    assert found["parameters"] == PUBLISHED["MobileNetV3Small"].trainable and found["tensors"] == 142
    assert found["peak_bytes"] > found["before_bytes"]


def test_a_trace_that_is_there_is_used_again(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr("benchmarks.models._child", lambda *args: started.append(args[:2]))
    there, missing = tmp_path / "trace.json", tmp_path / "missing.json"
    there.write_text("a trace")
    for file in (there, missing):
        trace_to_file("MobileNetV3Small", file, 1, 1)
    assert started == [("--model", "MobileNetV3Small")] and there.read_text() == "a trace"
