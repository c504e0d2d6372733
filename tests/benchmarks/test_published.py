"""Published figures: the data are what was published, the numbers follow from them, and the record has these numbers."""

import json
import re
from dataclasses import asdict

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import published
from benchmarks.publish import RESULTS, ROOT
from benchmarks.published import (
    BOTH,
    FIGURE_9_WORKERS,
    FITTED_BYTES,
    MOST_OFF,
    PLANNERS,
    PUBLISHED_SPEEDUPS,
    RHOS,
    Gap,
    calibrations,
    calibrations_table,
    figure_9_table,
    gaps,
    gaps_table,
    replay,
)
from benchmarks.published_data import FITTED_NETWORKS, all_reduce_samples, boundaries_of
from benchmarks.published_layers import Layer, googlenet_on_k80, layers_by_network
from caramel.netmodel.line import Sample

RECORD = json.loads((RESULTS / "published.json").read_text(encoding="utf-8"))

BACKWARD_ONLY, _, _ = PLANNERS

TOTALS = {
    # Numbers of parameters are those of torchvision's models, which has no GNMT; microseconds forward and backward are
    # the sums over all layers of PipeDream's profiles.
    "AlexNet": (61_100_840, 44_801, 40_520),
    "VGG-16": (138_357_544, 233_902, 438_633),
    "ResNet-50": (25_557_032, 182_488, 260_931),
    "ResNet-101": (44_549_160, 197_306, 213_786),
    "Inception-v3": (27_161_264, 289_269, 399_769),
    "DenseNet-121": (7_978_856, 177_404, 148_751),
    "ResNeXt-50": (25_028_904, 221_803, 368_990),
    "SqueezeNet": (1_248_424, 113_247, 172_119),
    "GNMT": (193_765_952, 33_533, 55_883),
}


def of_record(found):
    """What was computed, as JSON has it."""
    return json.loads(json.dumps([asdict(each) for each in found]))


def near(found, record):
    """Whether two rows are the same but for rounding."""
    assert found.keys() == record.keys()
    for key, value in found.items():
        assert value == (pytest.approx(record[key], rel=1e-9) if isinstance(value, float | dict) else record[key]), key


# -- the data ----------------------------------------------------------------------------------------


def test_the_layers_add_up_to_the_networks():
    found = layers_by_network()
    assert found.keys() == TOTALS.keys()
    for name, (parameters, forward_us, backward_us) in TOTALS.items():
        layers = found[name]
        assert sum(layer.parameter_bytes for layer in layers) == 4 * parameters
        assert all(layer.parameter_bytes > 0 for layer in layers)
        assert sum(layer.forward_s for layer in layers) == pytest.approx(forward_us * 1e-6)
        assert sum(layer.backward_s for layer in layers) == pytest.approx(backward_us * 1e-6)


def test_boundaries_of_a_chain():
    layers = [Layer(40, 1.0, 2.0), Layer(8, 3.0, 5.0), Layer(4, 7.0, 11.0)]
    made = boundaries_of(layers)
    assert [(g.name, g.elements, g.size_bytes, g.ready_s, g.read_s) for g in made.gradients] == [
        ("layer3", 1, 4.0, 22.0, 4.0),
        ("layer2", 2, 8.0, 27.0, 1.0),
        ("layer1", 10, 40.0, 29.0, 0.0),
    ]
    assert made.compute_s == 29.0


def test_a_ring_takes_the_time_of_the_line():
    for each in FITTED_NETWORKS:
        for size in (64, 2**20, 5e8):
            line_s = each.line.a_s + each.line.b_s_per_byte * size
            assert each.model().predict("ring", 1, each.workers, size).time_s == pytest.approx(line_s, rel=1e-12)


# -- MG-WFBP's figure 9 ------------------------------------------------------------------------------


def test_the_ratios_of_figure_9():
    found = [replay(googlenet_on_k80(), workers) for workers in FIGURE_9_WORKERS]
    for (workers, system), speedup in {(64, "WFBP"): 1.78, (64, "SyncEASGD"): 1.35}.items():
        (row,) = [row for row in found if row.workers == workers]
        assert row.steps_s[system] / row.steps_s["MG-WFBP"] == pytest.approx(speedup, rel=0.03)
        assert PUBLISHED_SPEEDUPS[workers, system] == speedup
    assert MOST_OFF == 0.03
    for row, record in zip(of_record(found), RECORD["figure_9"], strict=True):
        near(row, record)


def test_a_ratio_that_is_missed_is_said():
    steps_s = {"WFBP": 1.69, "SyncEASGD": 1.31, "MG-WFBP": 1.0}
    lines = figure_9_table({"figure_9": [{"workers": 64, "steps_s": steps_s}]}).splitlines()
    assert lines[2:] == [
        "| 64 | MG-WFBP over WFBP | 1.78 | 1.69 | -5.1% | no |",
        "| 64 | MG-WFBP over SyncEASGD | 1.35 | 1.31 | -3.0% | yes |",
    ]


# -- times of all-reduces ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def calibrated():
    return calibrations(all_reduce_samples())


def test_the_record_has_these_calibrations(calibrated):
    for row, record in zip(of_record(calibrated), RECORD["calibrations"], strict=True):
        near(row, record)


def check(found, errors):
    """Errors by size, computed in another way."""
    worst = max(errors, key=lambda size: abs(errors[size]))
    assert (found.count, found.worst_bytes) == (len(errors), worst)
    assert found.worst_off == pytest.approx(errors[worst])
    small = [abs(each) for size, each in errors.items() if size <= 8192]
    assert found.small_off == (pytest.approx(np.median(small)) if small else None)
    assert found.large_off == pytest.approx(np.median([abs(e) for size, e in errors.items() if size > 8192]))


@pytest.mark.parametrize("number", range(3))
def test_sizes_between(calibrated, number):
    """Interpolation between the fitted sizes, below them the time of the smallest; none of them is predicted."""
    found = calibrated[number]
    times = {s.size_bytes: s.time_s for s in all_reduce_samples()[found.workers]}
    fitted = [times[size] for size in FITTED_BYTES]
    errors = {b: np.interp(b, FITTED_BYTES, fitted) / t - 1 for b, t in times.items() if b not in FITTED_BYTES}
    check(found, errors)


@pytest.mark.parametrize("number", range(3))
def test_sizes_beyond(calibrated, number):
    """On with the slope from 64 to 256 KiB, but no steeper than through 0."""
    found = calibrated[3 + number]
    times = {s.size_bytes: s.time_s for s in all_reduce_samples()[found.workers]}
    last = 2**18
    slope = min((times[last] - times[2**16]) / (last - 2**16), times[last] / last)
    check(found, {b: (times[last] + slope * (b - last)) / t - 1 for b, t in times.items() if b > last})


@pytest.mark.parametrize("number", range(3))
def test_other_numbers_of_workers(calibrated, number):
    """Alpha and beta of a ring by weighted least squares, from the two other numbers."""
    found = calibrated[6 + number]
    samples = all_reduce_samples()
    rows = []
    for n in samples:
        for s in samples[n]:
            if n != found.workers and s.size_bytes in FITTED_BYTES:
                rows.append((2 * (n - 1) / s.time_s, 2 * (n - 1) / n * s.size_bytes / s.time_s))
    (alpha, beta), *_ = np.linalg.lstsq(np.array(rows), np.ones(len(rows)), rcond=None)
    assert alpha > 0 and beta > 0
    n = found.workers
    predicted = {s.size_bytes: 2 * (n - 1) * (alpha + beta * s.size_bytes / n) / s.time_s - 1 for s in samples[n]}
    check(found, predicted)


def test_what_was_fitted_is_not_predicted():
    """With 1 s at all fitted sizes and 2 s at all others, every prediction is half of the time."""
    samples = {
        n: [Sample(b, 1.0 if b in FITTED_BYTES else 2.0) for b in sorted({*FITTED_BYTES, 128, 2**15, 2**19})]
        for n in (2, 4, 8)
    }
    found = calibrations(samples)
    assert [each.count for each in found] == [3] * 3 + [2] * 3 + [11] * 3
    assert [each.worst_off for each in found[:3]] == [-0.5] * 3
    text = calibrations_table({"calibrations": of_record(found)})
    assert text.splitlines()[2] == (
        "| 8 sizes, 64 B to 1 MiB | 2 workers | all others | 3 | 50.0% | 50.0% | -50% | 128 B |"
    )


# -- plans for nine networks -------------------------------------------------------------------------

FEW = ("AlexNet", "VGG-16", "SqueezeNet", "GNMT")
"""Those with few layers, which are planned in a moment."""


@pytest.fixture(scope="module")
def few():
    return gaps({name: layers for name, layers in layers_by_network().items() if name in FEW})


def test_the_record_has_these_gaps(few):
    record = {(row["network"], row["links"], row["workers"], row["rho"]): row for row in RECORD["gaps"]}
    assert len(record) == len(RECORD["gaps"]) == 9 * 4 * 5
    assert {key[0] for key in record} == TOTALS.keys() and {key[3] for key in record} == set(RHOS)
    assert len(few) == len(FEW) * 4 * 5
    for row in of_record(few):
        near(row, record[row["network"], row["links"], row["workers"], row["rho"]])


def test_gaps_are_ordered():
    """More freedom is never worse but by what is taken for equal, and no plan is below a bound."""
    for row in RECORD["gaps"]:
        backward, whole, both = (row["plans_s"][planner] for planner in PLANNERS)
        assert row["any_bound_s"] <= row["bound_s"] * (1 + 1e-9)
        assert row["bound_s"] <= both * (1 + 1e-9)
        assert both <= 1.002001 * whole <= 1.002001**2 * backward
        assert row["is_proved"] == (both <= 1.002001 * row["bound_s"])


@pytest.mark.parametrize("rho", RHOS)
def test_the_best_buckets_are_those_of_a_dynamic_programme(few, rho):
    """F(i) = min over j of max(F(j), ready(i)) + T(bytes of j+1 to i), over the times of the layers."""
    for row in (each for each in few if each.rho == rho):
        layers = layers_by_network()[row.network]
        (line,) = [o.line for o in FITTED_NETWORKS if (o.name, o.workers) == (row.links, row.workers)]
        sizes = [layer.parameter_bytes for layer in reversed(layers)]
        compute_s = (line.a_s + line.b_s_per_byte * sum(sizes)) / rho
        scale = compute_s / sum(layer.forward_s + layer.backward_s for layer in layers)
        left_s = [scale * sum(layer.backward_s for layer in layers[:n]) for n in range(len(layers))]
        ready = [compute_s - each for each in reversed(left_s)]
        ends = [0.0]
        for i in range(len(sizes)):
            ways = [max(ends[j], ready[i]) + line.a_s + line.b_s_per_byte * sum(sizes[j : i + 1]) for j in range(i + 1)]
            ends.append(min(ways))
        assert ends[-1] * (1 - 1e-9) <= row.plans_s[BACKWARD_ONLY] <= 1.002001 * ends[-1]


def test_the_table_of_gaps():
    def one(network, rho, times, any_bound_s, is_proved, cuts):
        return asdict(Gap(network, "links", 8, rho, dict(zip(PLANNERS, times)), 1.0, any_bound_s, is_proved, cuts))

    made = [
        one("a", 0.5, (1.21, 1.1, 1.0), 1.0, True, 1),
        one("b", 0.5, (1.0, 1.0, 1.0), 0.5, False, 3),
        one("a", 2.0, (1.5, 1.25, 1.002), 1.002, True, 0),
    ]
    *_, first, second, _, said = gaps_table({"gaps": made}).splitlines()
    assert first == "| 0.5 | 10.0 % / 21.0 % | 4.9 % / 10.0 % | 0.0 % / 0.0 % | 41.4 % / 100.0 % |"
    assert second == "| 2 | 50.0 % / 50.0 % | 25.0 % / 25.0 % | 0.2 % / 0.2 % | 0.0 % / 0.0 % |"
    assert said == (
        "Of the 3 plans with both windows 2 are proved to be within 0.2 % of the first bound; they cut 3 gradients at most."
    )


# -- the program and the pages -----------------------------------------------------------------------


def test_the_program_writes_the_record(monkeypatch, tmp_path):
    monkeypatch.setattr(published, "layers_by_network", lambda: {"AlexNet": layers_by_network()["AlexNet"][-2:]})
    file = tmp_path / "published.json"
    done = CliRunner().invoke(published.main, ["--json", str(file)])
    assert done.exit_code == 0, repr(done.exception)
    record = json.loads(file.read_text())
    assert record.keys() == RECORD.keys() and len(record["gaps"]) == 4 * 5
    for table in (figure_9_table, calibrations_table, gaps_table):
        assert table(record) in done.stdout


def page(name):
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_the_page_lists_the_fitted_networks():
    rows = re.findall(
        r"^\| (\S+ Gbit/s \w+) \| (\d+)[^|]* \| ([\d.]+) \| ([\d.]+) \|$", page("benchmarks/predictions.md"), re.M
    )
    found = [(name, int(workers), float(a), float(b)) for name, workers, a, b in rows]
    wanted = [(n.name, n.workers, n.line.a_s * 1e3, n.line.b_s_per_byte * 1e9) for n in FITTED_NETWORKS]
    assert [row[:2] for row in found] == [row[:2] for row in wanted]
    for row, exact in zip(found, wanted):
        assert row[2:] == pytest.approx(exact[2:], rel=2e-3)


def test_what_the_pages_say_of_the_gaps():
    assert max(row["plans_s"][BOTH] / row["any_bound_s"] for row in RECORD["gaps"]) <= 1.0025
    assert "but not in these chains of layers" in " ".join(page("benchmarks/predictions.md").split())
    largest = max(row["plans_s"][BOTH] / row["bound_s"] for row in RECORD["gaps"])
    assert largest <= 1.002 and "[within 0.2 %](#plans-for-published-networks)" in page("validation.md")


def test_what_the_page_says_of_jumps():
    times = {n: {s.size_bytes: s.time_s * 1e3 for s in samples} for n, samples in all_reduce_samples().items()}
    text = " ".join(page("validation.md").split())
    assert all(each[12288] > 1.5 * each[8192] for each in times.values())
    assert f"with 8 from {times[8][8192]:.2f} to {times[8][12288]:.2f} ms" in text
    before = max(size for size in times[4] if size < 2**18)
    assert f"from {times[4][before]:.2f} to {times[4][2**18]:.2f} ms" in text
    assert before > 0.98 * 2**18
