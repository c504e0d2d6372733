"""Tables in documents: replaced between their marks, nothing else touched, and those that stand there as measured."""

import pytest

from benchmarks.publish import DOCUMENTS, ROOT, TABLES, measured, published
from benchmarks.training.effort import FULL
from benchmarks.training.records import Origin, Record, Row, save
from caramel.errors import InputError
from caramel.netbench import Settings


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.setitem(TABLES, "steps", lambda rows: f"{len(rows)} rows")
    monkeypatch.setitem(TABLES, "targets", lambda rows: "all kept")


def test_tables_are_replaced_and_the_rest_stays(tables):
    text = (
        "Before\n\n<!-- steps -->\nold\n| a |\n<!-- /steps -->\n\nby hand\n<!-- targets -->\n<!-- /targets -->\nafter"
    )
    once = published(text, [1, 2, 3])
    assert once == (
        "Before\n\n<!-- steps -->\n\n3 rows\n\n<!-- /steps -->\n\nby hand\n"
        "<!-- targets -->\n\nall kept\n\n<!-- /targets -->\nafter"
    )
    assert published(once, [1, 2, 3]) == once
    assert published("nothing to replace\n", []) == "nothing to replace\n"


@pytest.mark.parametrize(
    "text, line",
    [
        ("a\n<!-- steps -->\n", 2),
        ("<!-- /steps -->\n", 1),
        ("<!-- steps -->\n<!-- /targets -->\n", 1),
        ("\n\n<!-- others -->\n<!-- /others -->\n", 3),
        ("<!-- steps -->\n<!-- /steps -->\n<!-- steps -->\n<!-- targets -->\n<!-- /targets -->\n", 3),
    ],
)
def test_marks_that_do_not_fit(tables, text, line):
    with pytest.raises(InputError, match=rf"^line {line}: .* one of steps, targets"):
        published(text, [])


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


def test_documents_say_what_was_measured():
    rows = measured()
    assert rows
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        assert "<!-- steps -->" in text or "<!-- cells -->" in text
        assert published(text, rows) == text, f"{document} is not of these results: run python -m benchmarks.publish"


def test_the_document_says_how_much_of_a_network_is_measured():
    text = " ".join((ROOT / "docs/benchmarks.md").read_text(encoding="utf-8").split())
    here, usual = FULL.network, Settings()
    assert here.algorithms == usual.algorithms
    assert (min(here.sizes), max(here.sizes), here.depths) == (2**12, 2**20, (1, 4))
    assert f"{len(here.sizes)} sizes from 4 KiB to 1 MiB, 2 depths (1 and 4) and {here.rounds} rounds;" in text
    assert (min(usual.sizes), max(usual.sizes)) == (64, 2**25)
    counts = len(usual.sizes), len(usual.depths), usual.rounds
    assert "{} sizes from 64 B to 32 MiB, {} depths and {} rounds.".format(*counts) in text
