"""The benchmarks: their arithmetic, and that they run and write what they promise."""

import importlib
import json
import math
import os
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import collectives, depths
from benchmarks.build import BUCKETS, buckets, graph_of, resnet50_sizes
from benchmarks.output import write_json
from benchmarks.peers import tensorflow_builds
from benchmarks.statistics import geometric_mean, paired_ratio
from caramel.measure import netbench
from caramel.measure.all_reduce_bench import AllReduceBench, elements_of
from caramel.netmodel.file import load, save
from caramel.netmodel.line import Curve, Sample
from caramel.netmodel.model import NetworkModel
from caramel.runtime.clusters.in_process import InProcess

ROOT = Path(__file__).resolve().parents[2]
ALL_REDUCES = ("tf_shuffle", "tf_ring", "tf_recursive_hd")


def run(module, *arguments, timeout=400):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=timeout)


def test_the_bounds_of_a_ratio():
    rng = np.random.default_rng(3)
    theirs = rng.uniform(1.0, 1.2, 40)
    ratio = paired_ratio(theirs * rng.normal(0.9, 0.02, 40), theirs)
    assert 0.88 < ratio.low < ratio.median < ratio.high < 0.92
    same = paired_ratio(theirs, theirs)
    assert (same.low, same.median, same.high) == (1.0, 1.0, 1.0)
    assert geometric_mean([0.5, 2.0, 1.0]) == pytest.approx(1.0)


@pytest.mark.parametrize(("rounds", "least"), [(5, 1 - 1 / 2**5), (7, 1 - 1 / 2**7), (8, 1 - 9 / 2**8), (21, 0.9608)])
def test_bounds_hold_the_true_ratio_as_often_as_they_say(rounds, least):
    """The median is below the bound only if so many of the ratios are on one side of it as tosses of a coin are."""
    rng, times = np.random.default_rng(4), 4000
    held = Counter()
    for _ in range(times):
        ratio = paired_ratio(rng.lognormal(np.log(1.1), 0.1, rounds), np.ones(rounds))
        held["low"] += ratio.low <= 1.1
        held["high"] += ratio.high >= 1.1
    assert least >= 0.95
    assert [count / times for count in held.values()] == pytest.approx([least, least], abs=0.012)


def test_few_rounds_have_no_bounds():
    ratio = paired_ratio([1.0, 3.0, 2.0, 2.0], [1.0, 1.0, 1.0, 1.0])
    assert (ratio.low, ratio.median, ratio.high) == (0.0, 2.0, math.inf)


def test_results_that_cannot_be_written_leave_nothing_behind(tmp_path):
    (tmp_path / "directory").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_json([1], tmp_path / "directory")
    assert [path.name for path in tmp_path.iterdir()] == ["directory"]
    write_json([1], tmp_path / "file.json")
    assert json.loads((tmp_path / "file.json").read_text()) == [1]


def test_the_model_is_a_resnet50():
    sizes = resnet50_sizes()
    assert len(sizes) == 161
    assert sum(sizes) == 25_557_032
    found = buckets(sizes, BUCKETS)
    assert [size for bucket in found for size in bucket] == sizes
    assert len(found) == BUCKETS and min(map(len, found)) >= 1


def test_the_nodes_of_the_graph_grow_as_the_ring_does():
    """Some for each tensor and worker, and some for each shard and worker: a quadratic with known coefficients."""
    counts = [len(graph_of(workers, "ring")[0].node) for workers in (4, 8, 16)]
    per_square = (counts[2] - 2 * counts[1]) / (256 - 2 * 64)
    per_worker = (counts[1] - 64 * per_square) / 8
    assert counts[0] == pytest.approx(16 * per_square + 4 * per_worker, rel=0.01)


def measured_network(cluster, workers, settings, description=""):
    """In place of `measure_network`: the same times of all depths."""
    samples = [Sample(64, 1e-3), Sample(4096, 2e-3)]
    curves = (Curve.fitted(n, "ring", depth, samples) for n in workers for depth in (1, 2, 4, 8))
    return NetworkModel(description, tuple(curves))


def test_collectives_record_every_round(monkeypatch, tmp_path):
    times = {"caramel": [3.0, 1.0, 2.0], "tf_ring": [6.0, 4.0, 5.0]}
    cell = collectives.Cell(2, 64, "star", 1, None, times)
    monkeypatch.setattr(netbench, "measure_network", measured_network)
    monkeypatch.setattr(collectives, "measure", lambda *arguments: [cell])
    monkeypatch.setattr(collectives, "enter_network_namespace", lambda: None)
    file = tmp_path / "rows.json"
    done = CliRunner().invoke(collectives.main, ["--workers", "2", "--size", "64", "--json", str(file)])
    assert done.exit_code == 0, repr(done.exception)
    rows = json.loads(file.read_text())
    assert [(row["contender"], row["time_s"], row["rounds"], row["times_s"]) for row in rows] == [
        ("caramel", 2.0, 3, [3.0, 1.0, 2.0]),
        ("tf_ring", 5.0, 3, [6.0, 4.0, 5.0]),
    ]
    shown = collectives.record_table(rows).splitlines()
    assert shown[2] == "| 2 | 64 B | star, 1 | 2e+03 | 5e+03 | 0.40 |"
    assert shown[-1].endswith("in units of the best peer's: 0.40 with 2 workers.")


def test_a_record_with_limits_says_how_much_of_them_is_reached():
    cells = [
        collectives.Cell(4, 2**20, "ring", 2, 0.002, {"caramel": [0.004], "tf_ring": [0.008], "mwms_ring": [0.005]}),
        collectives.Cell(4, 2**21, "ring", 2, 0.006, {"caramel": [0.008], "tf_ring": [0.01], "mwms_ring": [0.02]}),
    ]
    rows = [asdict(row) for cell in cells for row in cell.rows()]
    assert collectives.record_table(rows).splitlines()[2:] == [
        "| 4 | 1 MiB | ring, 2 | 4 | 8 | 5 | 0.80 | 50% |",
        "| 4 | 2 MiB | ring, 2 | 8 | 10 | 20 | 0.80 | 75% |",
        "",
        "Geometric mean over sizes of the time in units of the best peer's: 0.80 with 4 workers.",
    ]


def test_depths_record_every_round(monkeypatch, tmp_path):
    times = {0: [1.0, 3.0, 2.0], **{depth: [2.0, 3.0, 4.0] for depth in (1, 2, 4, 8)}}
    cell = depths.Cell(64, 1, 2, times)
    monkeypatch.setattr(netbench, "measure_network", measured_network)
    monkeypatch.setattr(depths, "measure", lambda *arguments: [cell])
    file = tmp_path / "cells.json"
    done = CliRunner().invoke(depths.main, ["--size", "64", "--size", "4KiB", "--json", str(file)])
    assert done.exit_code == 0, repr(done.exception)
    (row,) = record = json.loads(file.read_text())
    assert (row["rounds"], row["times"]["0"], row["times"]["8"]) == (3, [1.0, 3.0, 2.0], [2.0, 3.0, 4.0])
    assert depths.cells_of(record) == [cell]


def test_all_of_tensorflow_s_all_reduces_are_timed():
    """On devices of this process; a wrong sum would be an error."""
    with AllReduceBench(InProcess(), 2, uses_native=True) as bench:
        bench.load(64, tensorflow_builds(bench.devices, elements_of(64)))
        times = bench.measure(2, prune=False)
    assert {name: len(each) for name, each in times.items()} == dict.fromkeys(ALL_REDUCES, 2)
    assert min(map(min, times.values())) > 0


@pytest.mark.soak  # as test_collectives_record_every_round, with test_all_of_tensorflow_s_all_reduces_are_timed
@pytest.mark.processes
@pytest.mark.parametrize("is_measured", [False, True], ids=["file", "measured"])
def test_collectives_against_the_peers(tmp_path, is_measured):
    """With a network model from a file, and with one that it measures, with all algorithms and depths."""
    rows_file, plot, network = tmp_path / "rows.json", tmp_path / "plot.png", tmp_path / "network.json"
    save(NetworkModel.from_link_rate(1e9), network)
    chosen_by = ["--fit-rounds", 1] if is_measured else ["--network", network]
    done = run(
        "collectives", "--workers", 2, "--size", 64, "--size", "64KiB", "--rounds", 2, *chosen_by,
        "--json", rows_file, "--plot", plot,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads(rows_file.read_text())
    keys = {"workers", "bytes", "contender", "algorithm", "depth", "time_s", "limit_s", "rounds", "times_s"}
    assert all(set(row) == keys for row in rows)
    assert all(row["rounds"] == len(row["times_s"]) == 2 for row in rows)
    contenders = {"caramel", *ALL_REDUCES, "mwms_ring"}
    assert {(row["bytes"], row["contender"]) for row in rows} == {(b, c) for b in (64, 65536) for c in contenders}
    assert all(row["time_s"] > 0 and row["limit_s"] is None for row in rows)
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "of the best peer's time" in done.stdout


@pytest.mark.soak
@pytest.mark.processes
def test_collectives_on_shaped_hosts(tmp_path):
    from benchmarks.testbed import Testbed, UnavailableError

    try:
        Testbed(1).close()
    except UnavailableError as error:
        pytest.skip(str(error))
    rows_file, network = tmp_path / "rows.json", tmp_path / "network.json"
    save(NetworkModel.from_link_rate(25e6), network)
    done = run(
        "collectives", "--workers", 2, "--size", 64, "--size", "1MiB", "--rounds", 2, "--network", network,
        "--rate", "200mbit", "--json", rows_file,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    for row in json.loads(rows_file.read_text()):
        least_s = row["bytes"] / (25e6 * 0.95)  # headers take the rest
        assert row["limit_s"] == pytest.approx(least_s, rel=0.3)
        if row["bytes"] == 2**20:
            assert row["time_s"] > 0.8 * least_s


def test_a_number_of_workers_that_is_said_twice_is_measured_once(monkeypatch, tmp_path):
    monkeypatch.setattr(netbench, "measure_network", measured_network)
    monkeypatch.setattr(collectives, "measure", lambda *arguments: [])
    monkeypatch.setattr(collectives, "enter_network_namespace", lambda: None)
    saved = str(tmp_path / "network.json")
    arguments = ["--workers", "4", "--workers", "2", "--workers", "2", "--save-network", saved]
    result = CliRunner().invoke(collectives.main, arguments)
    assert result.exit_code == 0, repr(result.exception)
    assert load(saved).workers == (2, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["collectives", "--rounds", "0"], "Invalid value for '--rounds'"),
        (["collectives", "--size", "2"], "from 4 bytes and 2 workers on"),
        (["collectives", "--workers", "1", "--size", "64"], "from 4 bytes and 2 workers on"),
        (["collectives", "--rate", "quick"], "cannot read the rate 'quick'"),
        (["depths", "--algorithm", "tree"], "no all-reduce algorithm 'tree'"),
    ],
)
def test_bad_arguments(arguments, message, monkeypatch):
    module, *given = arguments
    called = importlib.import_module(f"benchmarks.{module}")
    # This process shall not end up in a network of its own, which is not what is tested here.
    monkeypatch.setattr(collectives, "enter_network_namespace", lambda: None)
    done = CliRunner().invoke(called.main, given)
    assert isinstance(done.exception, SystemExit) and done.exit_code != 0, repr(done.exception)
    assert message in done.stderr


@pytest.mark.soak
def test_bad_arguments_of_a_program():
    done = run("collectives", "--network", "/nowhere.json", "--workers", "2")
    assert done.returncode != 0
    assert "cannot be read" in done.stderr and "Traceback" not in done.stderr
