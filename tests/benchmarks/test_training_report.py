"""Numbers of the report, against such as were computed by hand; misses are told as misses."""

import math
from dataclasses import replace

import pytest

from benchmarks import colors
from benchmarks.training.findings import (
    INCOMPLETE,
    KEPT,
    MISSED,
    PROGRAMS_WITHOUT_BUCKETS,
    WITHDRAWN,
    best_peer,
    findings,
)
from benchmarks.training.plots import DRAWN, times_figure, utilisation_figure, write_plots
from benchmarks.training.processor_bound import least_byte_s, processor_bound_s
from benchmarks.training.records import Cell, Origin, Row
from benchmarks.training.report import (
    ablation_costs,
    ablation_table,
    cell_table,
    measured_rho,
    misses,
    overview,
    report,
)
from benchmarks.training.workloads import BY_NAME

FIRST, SECOND = Cell("vgg", 4, 1.0), Cell("mlp", 4, 2.0)
OTHER = Cell("vgg", 8, 1.0)


def rows(cell, limit_s=1.0, predicted_s=None, errors=(), **times_s):
    """Rows of a cell; the rounds of a contender differ, but all contenders' alike."""
    return [
        Row(
            *(cell.workload, cell.workers, cell.rho, 64, 1e7, (1e7,), name, {}),
            tuple(time_s * factor for factor in (0.98, 0.99, 1.0, 1.02, 1.04)) if name not in errors else (),
            time_s if name not in errors else None,
            *(0.9, limit_s, 0.95, predicted_s if name == "caramel" else None),
            *(2.0, (2.0,), 7e6, (7e6,), (7e6,), (3.0, 2.0), "abc"),
            "it broke" if name in errors else None,
        )
        for name, time_s in times_s.items()
    ]


def found(*given, expected=()):
    """Value, verdict and notes by the beginning of what it is."""
    each = findings([row for some in given for row in some], expected)
    names = ("failed", "mean", "worst", "gap", "slower", "speed", "predicted")
    return {name: (f.value, f.verdict, f.notes) for name, f in zip(names, each)}


def test_all_kept():
    first = rows(FIRST, 1.0, 1.06, caramel=1.1, mwms=1.8, mwms_best=1.5, horovod=1.9, horovod_best=1.6)
    second = rows(SECOND, 2.0, 2.1, caramel=2.0, mwms=4.0, mwms_best=3.5, horovod=3.0, horovod_best=2.5)
    got = found(first, second)
    assert {name: verdict for name, (_, verdict, _) in got.items()} == dict.fromkeys(got, KEPT)
    assert got["mean"][0] == pytest.approx((1.1 * 1.0) ** 0.5)
    assert got["worst"][0] == pytest.approx(1.1)
    assert got["gap"][0] == pytest.approx((0.4 / 0.5 + 0.5 / 0.5) / 2)  # the best swept peers: 1.5 and 2.5
    assert got["slower"][0] == pytest.approx(2.0 / 2.5)
    assert got["speed"][0] == pytest.approx((1.8 / 1.1 * 4.0 / 2.0) ** 0.5)
    assert got["predicted"][0] == 1.0


def test_misses():
    first = rows(FIRST, 1.0, 1.0, caramel=1.3, mwms=1.7, mwms_best=1.35, horovod=1.2, horovod_best=1.25)
    got = found(first)
    assert {verdict for name, (_, verdict, _) in got.items() if name != "failed"} == {MISSED}
    assert got["gap"][0] == pytest.approx((1.2 - 1.3) / 0.2)
    assert got["slower"][0] == pytest.approx(1.3 / 1.2)
    assert len(got["slower"][2]) == 4 and "horovod, at least 1.083" in got["slower"][2][0]
    assert "at most 1.083 of the time of horovod" in got["slower"][2][2]
    assert "-23.1%" in got["predicted"][2][0] and "1.300" in got["worst"][2][0]


def test_a_step_that_may_be_slower_by_chance_is_no_miss():
    ours, theirs = rows(FIRST, caramel=1.05, mwms=1.0)
    ours = replace(ours, times_s=(1.1, 0.9, 1.05, 1.3, 1.2))
    theirs = replace(theirs, times_s=(1.0, 1.0, 1.0, 1.0, 1.0))
    value, verdict, notes = found([ours, theirs])["slower"]
    # Five rounds bound the ratio by their least and their largest; the latter is shown, but does not decide.
    assert (value, verdict, notes) == (0.9, KEPT, ("vgg, 4 workers, rho 1: at most 1.300 of the time of mwms",))
    (shown,) = [f.shown for f in findings([ours, theirs]) if f.value == 0.9]
    assert shown == "0.900 (mwms); the upper bound is above 1.03 in 1 of 1 pairs"

    few = [replace(row, times_s=row.times_s[:4]) for row in (ours, theirs)]
    value, verdict, notes = found(few)["slower"]
    assert (value, verdict) == (None, INCOMPLETE) and "no bound of fewer than 5 rounds" in notes[0]


def test_what_a_policy_without_buckets_said_is_withdrawn():
    old = min(PROGRAMS_WITHOUT_BUCKETS)
    ours, papers = rows(FIRST, caramel=1.0, caramel_paper=1.2)
    for program, verdict in ((old, WITHDRAWN), ("another", KEPT)):
        (finding,) = [f for f in findings([ours, replace(papers, program=program)]) if "paper's policy" in f.what]
        assert (finding.value, finding.verdict) == (pytest.approx(1.2), verdict)
        assert any("measured anew" in note for note in finding.notes) == (verdict == WITHDRAWN)


def test_a_peer_at_the_limit_says_nothing_about_a_gap_or_a_speed_up():
    got = found(rows(FIRST, 1.0, 1.0, caramel=1.0, mwms=1.1, mwms_best=1.0))
    assert got["gap"][:2] == (None, INCOMPLETE) and "at the limit" in got["gap"][2][0]
    assert got["speed"][:2] == (None, INCOMPLETE) and "allows 1.10, reached 1.10" in got["speed"][2][0]


def test_other_numbers_of_workers_are_not_held_against_the_limit():
    others = rows(OTHER, 1.0, 3.0, caramel=3.0, mwms=9.0, mwms_best=9.0)
    assert found(others)["worst"][0] is None
    value, verdict, notes = found(rows(FIRST, 1.0, 1.0, caramel=1.1, mwms=1.8, mwms_best=1.5), others)["gap"]
    assert (value, verdict) == (pytest.approx(0.8), KEPT)
    assert notes == ("of all 2 cells: 77.5%",)  # the median of 0.4 / 0.5 and 6 / 8


def test_what_failed_or_was_not_measured():
    first = rows(FIRST, caramel=1.1, mwms=1.8, mwms_best=1.5, horovod=2.0, errors=("caramel",))
    got = found(first, expected=[FIRST, SECOND])
    assert got["failed"][:2] == (1.0, MISSED) and "it broke" in got["failed"][2][0]
    assert all(verdict == INCOMPLETE for name, (_, verdict, _) in got.items() if name != "failed")
    assert any("mlp" in note for note in got["mean"][2])
    (reason,) = found([], expected=[FIRST, SECOND])["mean"][2]  # once for all cells
    assert reason == "caramel was not measured: vgg, 4 workers, rho 1; mlp, 4 workers, rho 2"


def test_the_best_peer():
    def best(**options):
        each = {row.contender: row for row in rows(FIRST, **options)}
        row = best_peer(each)
        return None if row is None else row.contender

    assert best(mwms=1.6, mwms_best=1.5, horovod_best=1.4) == "horovod_best"
    assert best(mwms=1.0, mwms_best=1.5, horovod_best=1.4) == "mwms"  # whatever the settings, it is what users may take
    assert best(mwms=1.0, mwms_best=1.5, horovod_best=1.4, errors=("mwms",)) == "horovod_best"
    assert best(caramel=1.0, ps_all=0.5) is None


def test_what_an_optimisation_brings():
    given = rows(FIRST, caramel=1.0, caramel_no_order=1.2, caramel_no_buckets=0.9, errors=("caramel_no_buckets",))
    costs = ablation_costs(given)
    assert list(costs[FIRST]) == ["caramel_no_order"]
    ratio = costs[FIRST]["caramel_no_order"]
    assert ratio.median == ratio.low == ratio.high == pytest.approx(1.2)  # in each round the same


def test_findings_say_what_each_optimisation_brings():
    first = rows(FIRST, caramel=1.0, caramel_no_order=1.2, caramel_no_buckets=0.9)
    second = rows(SECOND, caramel=1.0, caramel_no_order=0.99, caramel_no_buckets=1.1)
    given = findings([*first, *second])
    order, buckets = (next(f for f in given if text in f.what) for text in ("no order", "no buckets"))
    assert order.value == pytest.approx((1.2 * 0.99) ** 0.5) and order.verdict == KEPT
    assert order.shown == "1.090, above 1 in 1 of 2 cells" and order.notes == ("mlp, 4 workers, rho 2: 0.990",)
    assert buckets.value == pytest.approx((0.9 * 1.1) ** 0.5) and buckets.verdict == MISSED
    assert not any("no forward" in f.what for f in given)  # a quick run leaves it out


def test_findings_name_disturbed_cells():
    (steady,), (other,) = rows(FIRST, compute=1.0), rows(OTHER, compute=1.0)
    last = findings([steady, replace(other, times_s=(1.0, 1.3, 1.0))])[-2]
    assert (last.value, last.verdict, last.notes) == (1.0, MISSED, ("vgg, 8 workers, rho 1: 30%",))
    assert findings([steady])[-2].verdict == KEPT


def test_the_report_has_every_contender_of_every_cell():
    given = [*rows(FIRST, predicted_s=1.0, caramel=1.25, mwms=2.0, errors=("mwms",)), *rows(OTHER, caramel=1.0)]
    text = report(given, [FIRST, SECOND])
    assert "| caramel | - | 1250 | 1238 to 1275 | 1.25 | 1.32 | 2.00 | 1000 | -20.0% | 7.00 |" in text
    assert "| mwms | - | failed |" in text and "- mwms failed: it broke" in text
    assert text.index("### vgg, 4 workers, rho 1") < text.index("### vgg, 8 workers, rho 1")
    assert "caramel was not measured: mlp, 4 workers, rho 2\n" in text


def timed(given, took_s, began_at="2026-01-31T23:59:59Z", **versions):
    return [replace(row, origin=Origin(began_at, took_s, versions)) for row in given]


def minutes(*given, expected=()):
    """What is said of the time that measuring took."""
    last = findings([row for some in given for row in some], expected)[-1]
    assert last.what == "minutes that measuring took, 4 workers, rho 1 and 2" and last.target == "at most 100"
    return last.value, last.shown, last.verdict, last.notes


def test_measuring_takes_its_time():
    """Each cell counts once, whoever took part, and only the core."""
    first, second = (rows(cell, caramel=1.0, mwms=1.5) for cell in (FIRST, SECOND))
    other = timed(rows(OTHER, caramel=1.0), 9e9)
    assert minutes(timed(first, 3000.0), timed(second, 3000.0), other) == (100.0, "100 for 2 cells", KEPT, ())
    assert minutes(timed(first, 3000.0), timed(second, 3060.0))[:3] == (101.0, "101 for 2 cells", MISSED)
    note = ("not recorded: mlp, 4 workers, rho 2",)
    assert minutes(timed(first, 3000.0), second) == (50.0, "50 for 1 cell", INCOMPLETE, note)
    older = replace(first[0], origin=Origin(None, None, {}))
    assert minutes([older], second)[:3] == (None, "not recorded", INCOMPLETE)
    assert minutes(expected=[FIRST])[3] == ("not measured: vgg, 4 workers, rho 1",)


def test_a_cell_says_when_it_was_measured():
    given = rows(FIRST, caramel=1.0, mwms=2.0, mwms_best=1.5, horovod_best=1.5)
    given = [*timed(given[:2], 61.4), *(replace(row, swept_in="vgg/4/2") for row in timed(given[2:], 61.4))]
    assert "\nMeasured: 2026-01-31T23:59:59Z; took: 61 s; peers' settings chosen in: vgg/4/2; program" in cell_table(
        given
    )
    given[-1] = replace(given[-1], swept_in=None)
    assert "; peers' settings chosen in: vgg/4/2, not recorded; program" in cell_table(given)
    given = rows(FIRST, caramel=1.0, mwms=2.0)
    assert "\nMeasured: not recorded; took: not recorded; program: abc; machine: processor not recorded." in cell_table(
        given
    )


def test_a_cell_says_with_what_it_was_measured():
    versions = {"processor": "Some CPU avx2", "cores": 2, "kernel": "6.1", "tensorflow": "2.21"}
    given = [replace(row, origin=Origin(None, None, versions, "c0ffee+")) for row in rows(FIRST, caramel=1.0)]
    told = "; program: abc, commit c0ffee+; machine: Some CPU avx2, 2 cores, Linux 6.1.\n"
    assert told in cell_table(given)


def test_the_measured_rho_is_that_of_the_examples_and_links_of_the_cell():
    """Sparse gradients grow with the examples; a workload that is no more, or a cell without computation, has none."""
    (row,) = rows(Cell("transformer", 2, 1.0), caramel=1.0)
    twice = measured_rho(replace(row, examples=128)) - measured_rho(row)
    assert twice == pytest.approx(measured_rho(replace(row, examples=192)) - measured_rho(replace(row, examples=128)))
    assert twice > 0
    assert measured_rho(replace(row, link_bytes_per_s=2e7)) == pytest.approx(measured_rho(row) / 2)
    assert measured_rho(replace(row, compute_s=None)) is measured_rho(replace(row, workload="old")) is None
    assert measured_rho(None) is None
    assert f", rho as measured {measured_rho(row):.2f}.\n" in cell_table([row])


def test_the_report_says_which_cells_were_disturbed():
    (steady,) = rows(FIRST, compute=1.0)
    (other,) = rows(OTHER, compute=1.0)
    text = report([steady, replace(other, times_s=(1.0, 1.3, 1.0))], [FIRST])
    assert "- disturbed: computation alone took 30% longer in one round" in text[text.index("### vgg, 8 workers") :]


def test_the_overview_has_a_line_for_each_cell():
    first = rows(FIRST, 1.0, compute=0.9, caramel=1.1, mwms=1.8, mwms_best=1.5, horovod=1.9, horovod_best=1.6)
    first[0] = replace(first[0], processor_s=1.75)
    second = rows(SECOND, 2.0, caramel=2.0, mwms=3.0, mwms_best=1.9, errors=("mwms",))
    sent_s = 2 * 3 / 4 * 4 * sum(math.prod(each.shape) for each in BY_NAME["vgg"].parameters.values()) / 1e7
    _, _, *lines = overview(timed([*first, *second, *rows(OTHER, mwms=2.0)], 60.0, cores=2)).splitlines()
    assert lines == [
        f"| vgg | 4 | 1 | {sent_s / 0.9:.2f} | 900 | 1000 | 1100 | 1.10 | 1.10 | 2.00, 1.75 | 1800 | 1500 | 1900 | 1600 | 80% |",
        f"| mlp | 4 | 2 | {BY_NAME['mlp'].sent_bytes(4) / 1e7 / 0.9:.2f} | 900 | 2000 | 2000 | 1.00 | - | 2.00, - | failed | 1900 | - | - | - |",
        "| vgg | 8 | 1 | - | - | - | - | - | - | -, - | 2000 | - | - | - | - |",
    ]


def test_who_failed_is_shown_as_failed():
    given = rows(FIRST, caramel=1.0, mwms=2.0, horovod=2.0, horovod_best=2.0, errors=("caramel", "mwms", "horovod"))
    given[2] = replace(given[2], is_absent=True)
    line = overview(given).splitlines()[-1]
    assert [cell.strip() for cell in line.split("|")][7:9] == ["failed", "-"]
    assert line.endswith("| failed | - | cannot run | 2000 | - |")
    first = rows(FIRST, caramel=1.0, caramel_no_order=1.2, caramel_paper=1.3, errors=("caramel_no_order",))
    second = rows(SECOND, caramel=1.0, caramel_no_order=1.1)
    *_, above, below, _ = ablation_table([*first, *second]).splitlines()
    assert above.endswith("| failed |") and above.count("1.300") == 3  # and its bounds
    assert below.startswith("| mlp, 4 workers, rho 2 | - |")


def test_misses_are_named():
    """From the data: targets, whether missed or open, and cells in which a peer is faster, if only a little."""
    first = rows(FIRST, 1.0, 1.0, caramel=1.3, mwms=1.7, horovod=1.299, horovod_best=1.3, ps_all=1.2)
    failed = rows(SECOND, caramel=1.0, mwms=0.5, errors=("caramel",))
    other = rows(OTHER, 1.0, 1.0, caramel=1.3, mwms=0.5, ps_half=1.4, errors=("mwms",))
    given = [*first, *failed, *other]
    targets, open_, faster = misses(findings(given), given).split(":\n\n")[1:]
    assert "- step / limit, the worst of 4 workers, rho 1 and 2: 1.300 (target: at most 1.25)\n" in targets
    assert "- cells in which this library failed: 1 of 3 (target: 0)\n" in targets and "minutes" not in targets
    assert "- minutes that measuring took, 4 workers, rho 1 and 2: not recorded (target: at most 100)\n" in open_
    horovod = "- vgg, 4 workers, rho 1: 1300 ms; Horovod 1299 ms; parameter servers on all hosts 1200 ms"
    assert faster == horovod


def on_processors(alone_s, sent_bytes, **processor_s):
    """Rows of a cell by contender, with processor time of two cores."""
    given = timed(rows(FIRST, 1.0, compute=0.9, **{**dict.fromkeys(processor_s, 1.5), "caramel": 1.2}), 60.0, cores=2)
    times_s = {"compute": alone_s, **processor_s}
    return {
        row.contender: replace(row, processor_s=times_s[row.contender], sent_bytes=sent_bytes)
        for row in given
        if row.contender in times_s
    }


def test_the_bound_counts_processors_as_the_thriftiest_contender_needs_them():
    given = on_processors(1.6, 5e6, caramel=2.6, mwms=2.2, ps_all=2.4)
    assert least_byte_s(given) == pytest.approx(0.6 / (4 * 5e6))  # MultiWorkerMirrored's
    must_be_sent = 4 * 2 * 3 / 4 * 4 * sum(math.prod(each.shape) for each in BY_NAME["vgg"].parameters.values())
    bound_s = (1.6 + must_be_sent * 0.6 / 2e7) / 2
    assert bound_s > 1.0 and processor_bound_s(given) == pytest.approx(bound_s)
    (mean,) = [
        f for f in findings(given.values()) if f.what == "step / the bound that counts processors, geometric mean"
    ]
    assert mean.value == pytest.approx(1.2 / bound_s) and mean.shown.endswith("over 1 cell")
    # Where nobody sends, or all take less than the computation alone, no less than the limit is the bound.
    assert processor_bound_s(on_processors(1.6, 5e6, caramel=1.5)) == 1.0
    assert processor_bound_s(on_processors(1.6, None, caramel=2.6)) is None
    assert processor_bound_s({name: row for name, row in given.items() if name != "compute"}) is None


def test_horovods_processor_time_counts_from_its_own_computation():
    given = on_processors(1.6, 5e6, caramel=2.6, horovod=2.0, compute_horovod=1.9)
    assert least_byte_s(given) == pytest.approx(0.1 / 2e7)
    del given["compute_horovod"]
    assert least_byte_s(given) == pytest.approx(1.0 / 2e7)


def test_nothing_is_missed():
    given = timed(rows(FIRST, 1.0, 1.0, compute=1.0, caramel=1.0, mwms=2.0, mwms_best=2.0), 60.0, cores=2)
    assert misses(findings(given), given) == (
        "Targets that are missed:\n\n- none\n\n"
        "Cells in which the median step of a peer is shorter than this library's:\n\n- none"
    )


def test_the_overview_says_which_cells_are_of_which_version_and_machine():
    cells = [replace(FIRST, rho=rho) for rho in (1.0, 2.0, 0.5)]
    given = [replace(row, origin=Origin(None, None, {"cores": 2})) for cell in cells for row in rows(cell, caramel=1.0)]
    assert "\n\n" not in overview(given)
    given[0] = replace(given[0], program="def", origin=Origin(None, None, {"cores": 2}, "c0ffee"))
    assert overview(given).partition("\n\n")[2] == (
        "These cells are of 2 versions of the program:\n\n"
        "- def, commit c0ffee: vgg, 4 workers, rho 1\n- abc: the other 2"
    )
    given[1] = replace(given[1], origin=Origin(None, None, {"processor": "Some CPU", "cores": 2}))
    told = "These cells are of 2 machines or kernels:\n\n- Some CPU, 2 cores: vgg, 4 workers, rho 2\n- processor not recorded, 2 cores:"
    assert told in overview(given)


@pytest.mark.parametrize("times_s", [{"caramel": 1.0}, {"caramel": 1.0, "caramel_paper": 1.3, "mwms": 2.0}])
def test_plots_of_what_there_is(times_s, tmp_path):
    given = [*rows(FIRST, **times_s), *rows(SECOND, caramel=1.5, mwms=2.0, errors=("mwms",))]
    paths = write_plots(given, tmp_path / "plots")
    assert len(paths) == (3 if "caramel_paper" in times_s else 2)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


PEERS_S = {"mwms": 2.5, "mwms_best": 2.0, "horovod": 1.8, "horovod_best": 1.9, "ps_all": 4.0, "tf_collectives": 3.0}


def test_the_plot_of_steps_has_few_contenders_by_their_best(tmp_path):
    figure = times_figure([*rows(FIRST, 0.5, caramel=1.0, **PEERS_S), *rows(SECOND, 1.0, caramel=1.5, horovod=2.0)])
    (axis,) = figure.axes
    dots = {line.get_color(): [] for line in axis.lines}
    for line in axis.lines:
        dots[line.get_color()] += [float(line.get_xdata()[0])] if line.get_marker() not in ("", "None", None) else []
    assert dots == {
        colors.OURS: [2.0, 1.5],
        colors.MIRRORED: [4.0],
        colors.HOROVOD: [3.6, 2.0],
        colors.OTHERS: [6.0],
        colors.BOUND: [],
    }
    assert figure.legends[0].get_texts()[0].get_text() == "this library"
    assert [text.get_text() for text in axis.texts] == ["1,000 ms", "1,500 ms"]


def test_a_contender_that_failed_is_marked():
    figure = utilisation_figure([*rows(FIRST, caramel=1.0, mwms=2.0, errors=("mwms",))])
    assert "failed" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert [line.get_color() for line in figure.axes[0].lines if line.get_marker() == "x"] == [colors.MIRRORED]


def test_nothing_else_has_the_colour_of_this_library():
    others = [drawn.color for drawn in DRAWN[1:]] + [*colors.TENSORFLOW, *colors.SHADES, colors.BOUND]
    assert DRAWN[0].color == colors.OURS and colors.OURS not in others


def test_no_plots_of_nothing(tmp_path):
    assert write_plots([], tmp_path) == []
