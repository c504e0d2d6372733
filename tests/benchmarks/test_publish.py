"""Tables in documents: replaced between their marks, nothing else touched, and those that stand there as measured."""

import json

import pytest

from benchmarks import collectives, publish
from benchmarks.build import graph_of
from benchmarks.publish import DOCUMENTS, RECORDS, RESULTS, ROOT, SETS, TABLES, measured, published
from benchmarks.training.effort import FULL
from benchmarks.training.records import Origin, Record, Row, save
from caramel.errors import InputError
from caramel.measure.netbench import Settings


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.setitem(TABLES, "steps", lambda rows, _: f"{len(rows)} rows")
    monkeypatch.setitem(TABLES, "targets", lambda rows, of: f"{len(of.cells)} cells, all kept")


def test_tables_are_replaced_and_the_rest_stays(tables):
    text = (
        "Before\n\n<!-- steps -->\nold\n| a |\n<!-- /steps -->\n\nby hand\n<!-- targets -->\n<!-- /targets -->\nafter"
    )
    rows = {"": [1, 2, 3], "slower": [1, 2]}
    once = published(text, rows)
    assert once == (
        "Before\n\n<!-- steps -->\n\n3 rows\n\n<!-- /steps -->\n\nby hand\n"
        "<!-- targets -->\n\n22 cells, all kept\n\n<!-- /targets -->\nafter"
    )
    assert published(once, rows) == once
    assert published("nothing to replace\n", {}) == "nothing to replace\n"


def test_tables_of_another_set(tables):
    text = "<!-- slower/steps -->\nold\n<!-- /slower/steps -->\n<!-- slower/targets -->\n<!-- /slower/targets -->\n"
    assert published(text, {"": [1, 2, 3], "slower": [1, 2]}) == (
        "<!-- slower/steps -->\n\n2 rows\n\n<!-- /slower/steps -->\n"
        "<!-- slower/targets -->\n\n12 cells, all kept\n\n<!-- /slower/targets -->\n"
    )


@pytest.mark.parametrize(
    "text, line",
    [
        ("a\n<!-- steps -->\n", 2),
        ("<!-- /steps -->\n", 1),
        ("<!-- steps -->\n<!-- /targets -->\n", 1),
        ("\n\n<!-- others -->\n<!-- /others -->\n", 3),
        ("<!-- steps -->\n<!-- /steps -->\n<!-- steps -->\n<!-- targets -->\n<!-- /targets -->\n", 3),
        ("<!-- slower/steps -->\n<!-- /steps -->\n", 1),
        ("a\n<!-- steps -->\n<!-- /slower/steps -->\n", 2),
        ("<!-- faster/steps -->\n<!-- /faster/steps -->\n", 1),
    ],
)
def test_marks_that_do_not_fit(tables, text, line):
    with pytest.raises(InputError, match=rf"^line {line}: .* one of build, .*steps, targets.* SET of slower"):
        published(text, {"": [], "slower": []})


def saved(folder, name, *cells):
    """A record with cells of one row each: (rho, when, program)."""
    record = Record({}, {})
    for rho, began_at, program in cells:
        origin = None if began_at is None else Origin(began_at, 1.0, {})
        made = Row(
            *(
                "vgg",
                4,
                rho,
                64,
                1e7,
                (1e7,),
                "caramel",
                {},
                (1.0,),
                1.0,
                1.0,
                1.0,
                1.0,
                None,
                None,
                (),
                None,
                (),
                (),
                (),
            ),
            *(program, None),
            origin=origin,
        )
        record = record.with_cell([made])
    save(record, folder / name)


@pytest.mark.parametrize(
    ("files", "programs"),
    [
        ({"training.json": [(2.0, None, "a")], "training_x.json": [(1.0, None, "b")]}, ["b", "a"]),
        ({"training.json": [(1.0, "2026-02-01", "a")], "training_x.json": [(1.0, "2026-01-31", "b")]}, ["a"]),
        ({"training.json": [(1.0, "2026-01-31", "a")], "training_x.json": [(1.0, "2026-02-01", "b")]}, ["b"]),
        ({"training.json": [(1.0, "2026-01-31", "a")], "training_x.json": [(1.0, None, "b")]}, ["a"]),
        ({"training.json": [(1.0, None, "a")], "training_x.json": [(1.0, None, "b")]}, ["b"]),
        ({"training.json": [(1.0, None, "a")], "training_quick.json": [(1.0, "2026-02-01", "b")]}, ["a"]),
        ({"training.json": [(1.0, None, "a")], "local.json": [(2.0, None, "b")]}, ["a"]),
    ],
)
def test_of_a_cell_in_several_files_the_last_measurement_counts(files, programs, tmp_path):
    for name, cells in reversed(files.items()):  # when files were written says nothing
        saved(tmp_path, name, *cells)
    assert [row.program for row in measured(tmp_path)] == programs


def test_sets_are_apart(tmp_path):
    saved(tmp_path, "training.json", (1.0, "2026-01-31", "a"))
    saved(tmp_path, "slower_core.json", (1.0, "2026-02-01", "b"))
    assert {group: [row.program for row in measured(tmp_path, group)] for group in SETS} == {
        "": ["a"],
        "slower": ["b"],
        "owners": [],
        "emulated": [],
    }


def test_documents_say_what_was_measured():
    rows = {group: measured(group=group) for group in SETS}
    assert all(rows.values())
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        assert "<!-- /" in text
        assert published(text, rows) == text, f"{document} is not of these results: run python -m benchmarks.publish"


def test_every_record_has_its_table_in_a_document():
    texts = "".join(document.read_text(encoding="utf-8") for document in DOCUMENTS)
    assert [texts.count(f"<!-- {name} -->") for name in RECORDS] == [1] * len(RECORDS)
    assert all((RESULTS / file).exists() for file, _ in RECORDS.values())


def test_tables_of_records(monkeypatch, tmp_path):
    monkeypatch.setattr(publish, "RESULTS", tmp_path)
    (tmp_path / "build.json").write_text(
        '[{"workers": 2, "nodes": 2000, "build_s": 0.05, "peak_bytes": 1048576, "start_s": 3.0, "first_run_s": 0.5,'
        ' "second_run_s": 0.25}, {"workers": 32, "nodes": 77000, "build_s": 1.25, "peak_bytes": 2097152}]'
    )
    text = "<!-- build -->\n| by hand |\n<!-- /build -->\nafter"
    assert published(text, {}).splitlines()[4:] == [
        "| 2 | 2000 | 0.05 | 25 | 1 | 3.00 | 0.50 | 0.25 |",
        "| 32 | 77000 | 1.25 | 16 | 2 | - | - | - |",
        "",
        "<!-- /build -->",
        "after",
    ]
    with pytest.raises(InputError, match="line 1"):
        published(text.replace("build", "slower/build"), {})


def page(name):
    return " ".join((ROOT / "docs/benchmarks" / name).read_text(encoding="utf-8").split())


def test_the_page_says_how_much_smaller_the_recorded_graphs_are():
    text = page("large-models.md")
    assert "an earlier version, whose graphs have 1 to 3 % fewer nodes than those of this one" in text
    for row in json.loads((RESULTS / "build.json").read_text()):
        if row["workers"] <= 16:
            now = len(graph_of(row["workers"], "ring")[0].node)
            assert round((1 - row["nodes"] / now) * 100) in (1, 2, 3)


def test_the_page_says_what_is_not_on_record():
    text = page("all-reduces.md")
    assert "How many rounds they are of is not on record (the program takes 15 by default)" in text
    (rounds,) = [option.default for option in collectives.main.params if option.name == "rounds"]
    assert rounds == 15
    for name in ("collectives_local.json", "collectives_shaped.json"):
        assert not any({"rounds", "times_s"} & row.keys() for row in json.loads((RESULTS / name).read_text()))
    assert "medians of 9 rounds" in text
    times = [
        each for cell in json.loads((RESULTS / "depths_shaped.json").read_text()) for each in cell["times"].values()
    ]
    assert {len(each) for each in times} == {9}


def test_the_document_says_how_much_of_a_network_is_measured():
    text = " ".join((ROOT / "docs/benchmarks/method.md").read_text(encoding="utf-8").split())
    here, usual = FULL.network, Settings()
    assert here.algorithms == usual.algorithms
    assert (min(here.sizes), max(here.sizes), here.depths) == (2**6, 2**20, (1, 4))
    assert f"{len(here.sizes)} sizes from 64 B to 1 MiB, 2 depths (1 and 4) and {here.rounds} rounds;" in text
    assert (min(usual.sizes), max(usual.sizes)) == (64, 2**25)
    counts = len(usual.sizes), len(usual.depths), usual.rounds
    assert "{} sizes from 64 B to 32 MiB, {} depths and {} rounds.".format(*counts) in text


def test_pictures_of_the_records_are_drawn(tmp_path):
    paths = publish.write_record_plots(tmp_path)
    assert sorted(path.name for path in paths) == sorted(f"{name}.png" for name in publish.RECORD_PLOTS)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    assert all((publish.PLOTS / path.name).exists() for path in paths)
