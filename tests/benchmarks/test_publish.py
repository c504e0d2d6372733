"""Tables in documents: replaced between their marks, nothing else touched, and those that stand there as measured."""

import pytest

from benchmarks.publish import DOCUMENTS, TABLES, measured, published
from caramel.errors import InputError


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


def test_documents_say_what_was_measured():
    rows = measured()
    assert rows
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        assert "<!-- steps -->" in text or "<!-- cells -->" in text
        assert published(text, rows) == text, f"{document} is not of these results: run python -m benchmarks.publish"
