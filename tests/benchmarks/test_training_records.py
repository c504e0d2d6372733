"""What was measured stays, whatever happens; a record of something else is not gone on with."""

import json
import re
import subprocess
from dataclasses import replace

import pytest

from benchmarks.training import records
from benchmarks.training.records import (
    Cell,
    Origin,
    Record,
    Row,
    Tried,
    _processor,
    by_cell,
    commit_here,
    drift,
    load,
    program_here,
    resume,
    save,
    versions_here,
)
from caramel.errors import InputError

PROGRAM = "abc"
CELLS = [Cell("vgg", 4, 1.0), Cell("mlp", 4, 2.0), Cell("vgg", 8, 0.5)]


def row(cell, contender="caramel", **changes):
    made = Row(
        *(cell.workload, cell.workers, cell.rho, 64, 1e7, (1e7, 2e7), contender, {"size": 3}, (1.0, 1.5), 1.25),
        *(1.0, 1.1, 1.2, None, 2.5, (1.0, 1.0, 0.5), 7e6, (7e6, 7e6), (6e6, 8e6), (3.0, 2.0), PROGRAM, None),
    )
    return replace(made, **changes)


def new(**settings):
    return Record({"tensorflow": "2.21"}, {"rounds": 3, **settings})


def test_a_record_comes_back_as_it_was(tmp_path):
    record = new().with_cell([row(CELLS[0]), row(CELLS[0], "mwms", error="late", time_s=None)])
    tried = {"vgg": {"mwms_best": (Tried({"bytes_per_pack": 0}, 1.5, None), Tried({}, None, "late"))}}
    record = replace(record, sweeps=tried)
    save(record, tmp_path / "a.json")
    assert load(tmp_path / "a.json") == record
    assert [r.contender for r in record.rows] == ["caramel", "mwms"]


def test_older_records_do_not_say_when_and_on_what(tmp_path):
    """They are read all the same, and then what the whole record was measured on is that of each cell."""
    older = new().with_cell([row(CELLS[0])])
    older = replace(older, sweeps={"vgg": {"mwms_best": (Tried({}, 1.5, None),)}})
    save(older, tmp_path / "a.json")
    data = json.loads((tmp_path / "a.json").read_text())
    for each in data["cells"]["vgg/4/1"]:
        del each["origin"], each["swept_in"], each["is_absent"], each["predicted_at_computation_s"]
    del data["sweeps"]["vgg"]["mwms_best"][0]["cell"]
    (tmp_path / "a.json").write_text(json.dumps(data))
    found = load(tmp_path / "a.json")
    assert found == older
    assert [r.origin for r in found.rows] == [Origin(None, None, {"tensorflow": "2.21"})]
    measured = Origin("2026-01-31T23:59:59Z", 61.5, {"tensorflow": "2.22"})
    save(found.with_cell([row(CELLS[1], origin=measured, swept_in="vgg/4/1")]), tmp_path / "a.json")
    (_, again) = load(tmp_path / "a.json").rows
    assert again == row(CELLS[1], origin=measured, swept_in="vgg/4/1")


def test_a_run_goes_on_where_it_was(tmp_path):
    path = tmp_path / "a.json"
    record = resume(path, new(), PROGRAM)
    assert path.exists() and record.unfinished(CELLS) == CELLS
    save(record.with_cell([row(CELLS[1])]), path)
    again = resume(path, new(), PROGRAM)
    assert again.unfinished(CELLS) == [CELLS[0], CELLS[2]]


def test_cells_with_failures_can_be_measured_once_more():
    record = new().with_cell([row(CELLS[0], error="late")]).with_cell([row(CELLS[1])])
    assert record.unfinished(CELLS[:2]) == []
    assert record.unfinished(CELLS[:2], retry=True) == [CELLS[0]]
    assert record.with_cell([row(CELLS[0], error="not there", is_absent=True)]).unfinished(CELLS[:2], retry=True) == []
    again = record.with_cell([row(CELLS[0])])
    assert list(again.cells) == list(record.cells) and again.unfinished(CELLS[:2], retry=True) == []


def test_disturbed_cells_can_be_measured_once_more():
    """Where computation alone took longer in one round than in another; what others do says nothing of it."""
    steady = [row(CELLS[0], "compute", times_s=(1.0, 1.1, 1.05)), row(CELLS[0], times_s=(1.0, 1.5))]
    disturbed = [row(CELLS[1], "compute", times_s=(1.0, 1.2, 1.0))]
    assert (drift(steady), drift(disturbed), drift([row(CELLS[0])])) == (1.1, 1.2, 1.0)
    record = new().with_cell(steady).with_cell(disturbed)
    assert record.unfinished(CELLS[:2]) == []
    assert record.unfinished(CELLS[:2], retry=True) == [CELLS[1]]


def test_rows_of_several_cells_are_no_cell():
    for rows in ([], [row(CELLS[0]), row(CELLS[1])]):
        with pytest.raises(InputError, match="one cell"):
            new().with_cell(rows)


def test_other_settings_and_versions_are_named(tmp_path):
    save(new().with_cell([row(CELLS[0])]), tmp_path / "a.json")
    with pytest.raises(InputError, match="rounds.*name another file or remove"):
        resume(tmp_path / "a.json", replace(new(), settings={"rounds": 5}), PROGRAM)
    with pytest.raises(InputError, match=r"tensorflow.*2\.21"):
        resume(tmp_path / "a.json", replace(new(), versions={"tensorflow": "2.22"}), PROGRAM)


def test_cells_of_another_program_stay_only_if_they_are_to(tmp_path):
    path = tmp_path / "a.json"
    record = new().with_cell([row(CELLS[0])]).with_cell([row(CELLS[1], program="old")])
    save(record, path)
    with pytest.raises(InputError, match=r"another version of this program has measured \(old, and this is abc\)"):
        resume(path, new(), PROGRAM)
    assert resume(path, new(), PROGRAM, is_any_program=True) == record


@pytest.mark.parametrize(
    "there, here",
    [
        ({"kernel": "6.1", "processor": "Some CPU"}, {"kernel": "6.2", "processor": "Some CPU"}),
        ({"kernel": "6.1", "processor": "Some CPU"}, {"kernel": "6.1", "processor": "Other CPU"}),
        ({"kernel": "6.1"}, {"kernel": "6.1", "processor": "Some CPU"}),
    ],
)
def test_cells_of_another_machine_stay_only_if_they_are_to(there, here, tmp_path):
    path = tmp_path / "a.json"
    record = replace(new(), versions=there).with_cell([row(CELLS[0], program="old")])
    save(record, path)
    now = replace(new(), versions=here)
    assert resume(path, now, PROGRAM, is_any_program=True) == record
    with pytest.raises(InputError, match=r"another machine \((kernel|processor) is .* there and .*--any-program"):
        resume(path, now, "old")
    with pytest.raises(InputError, match=r"otherwise \(tensorflow is not given there and '2\.22' here\)"):
        resume(path, replace(now, versions={**here, "tensorflow": "2.22"}), PROGRAM, is_any_program=True)
    with pytest.raises(InputError, match="otherwise .rounds"):
        resume(path, replace(now, settings={"rounds": 5}), PROGRAM, is_any_program=True)


def test_a_record_of_several_machines_is_none_of_the_first_alone(tmp_path):
    first, second = ({"kernel": kernel} for kernel in ("6.1", "6.2"))
    record = replace(new(), versions=first).with_cell([row(CELLS[0])])
    save(record.with_cell([row(CELLS[1], origin=Origin("2026-01-31T23:59:59Z", 61.5, second))]), tmp_path / "a.json")
    for here in (first, second):
        with pytest.raises(InputError, match="another machine"):
            resume(tmp_path / "a.json", replace(new(), versions=here), PROGRAM)


def test_the_commit_that_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "__file__", str(tmp_path / "benchmarks/training/records.py"))
    (tmp_path / "caramel").mkdir()

    def git(*arguments):
        told = subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=b", *arguments], cwd=tmp_path, check=True)
        return told.returncode

    assert commit_here() is None
    git("init", "-q")
    assert commit_here() is None
    (tmp_path / "caramel/a.py").write_text("a")
    git("add", ".")
    git("commit", "-qm", "First")
    first = commit_here()
    assert re.fullmatch("[0-9a-f]{12}", first)
    (tmp_path / "results.json").write_text("not measured")
    assert commit_here() == first
    (tmp_path / "caramel/a.py").write_text("b")
    assert commit_here() == f"{first}+"


def test_a_program_is_what_its_files_are(tmp_path, monkeypatch):
    """A file that is measured tells it from others; what only says what was measured does not."""
    monkeypatch.setattr(records, "__file__", str(tmp_path / "benchmarks/training/records.py"))
    found = [program_here()]
    for name, text in (
        ("caramel/a.py", "a"),
        ("caramel/a.py", "b"),
        ("caramel/report.py", "b"),
        ("benchmarks/training/report.py", "a"),
        ("benchmarks/other.py", "a"),
        ("caramel/a.txt", "a"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        found.append(program_here())
    assert [found.index(each) for each in found] == [0, 1, 2, 3, 3, 3, 3]


def test_a_version_that_only_moved_files_is_the_one_before(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "__file__", str(tmp_path / "benchmarks/training/records.py"))
    (tmp_path / "caramel").mkdir()
    (tmp_path / "caramel/a.py").write_text("a")
    before = program_here()
    (tmp_path / "caramel/a.py").rename(tmp_path / "caramel/b.py")
    moved = program_here()
    assert moved != before
    (tmp_path / "benchmarks/results").mkdir(parents=True)
    table = tmp_path / "benchmarks/results/same_programs.json"
    table.write_text(json.dumps({moved: {"same_as": before, "why": "moved"}}))
    assert program_here() == before
    (tmp_path / "caramel/b.py").write_text("b")
    assert program_here() not in (before, moved)


def test_a_record_without_cells_is_not_in_the_way(tmp_path):
    path = tmp_path / "a.json"
    resume(path, replace(new(), versions={"tensorflow": "2.22"}), PROGRAM)
    assert resume(path, new(), PROGRAM) == new() == load(path)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "not json", '{"version": 99}', '{"version": 1}', '{"version": 2, "versions": 3, "settings": {}}'],
)
def test_what_is_no_record(tmp_path, text):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"a\.json"):
        resume(path, new(), PROGRAM)
    assert path.read_text() == text


def test_damaged_cells(tmp_path):
    path = tmp_path / "a.json"
    save(new().with_cell([row(CELLS[0])]), path)
    data = json.loads(path.read_text())
    data["cells"]["mlp/4/1"] = data["cells"].pop("vgg/4/1")
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match="damaged"):
        load(path)


def test_a_place_that_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match="cannot be written"):
        resume(tmp_path / "no" / "folder.json", new(), PROGRAM)


def test_rows_by_cell():
    rows = [row(CELLS[1]), row(CELLS[0]), row(CELLS[1], "mwms")]
    found = by_cell(rows)
    assert list(found) == [CELLS[1], CELLS[0]] and list(found[CELLS[1]]) == ["caramel", "mwms"]


def test_the_versions_of_this_machine():
    found = versions_here(horovod="0.28")
    assert found["horovod"] == "0.28" and found["cores"] >= 1 and found["tensorflow"].startswith("2.")
    assert found["processor"]


@pytest.mark.parametrize(
    "cpuinfo, name",
    [
        ("model name\t: Some CPU\nflags\t\t: fpu avx avx2 sse\n", "Some CPU avx2"),
        ("model name\t: Some CPU\nflags\t\t: fpu avx512f avx2 avx\n" * 2, "Some CPU avx512f"),
        ("model name\t: Old CPU\nflags\t\t: fpu sse\n", "Old CPU"),
        ("Processor : other\n", "unknown"),
        (None, "unknown"),
    ],
)
def test_the_name_of_the_processor(cpuinfo, name, monkeypatch):
    def read_text(path, **options):
        assert str(path) == "/proc/cpuinfo"
        if cpuinfo is None:
            raise FileNotFoundError(path)
        return cpuinfo

    monkeypatch.setattr("pathlib.Path.read_text", read_text)
    assert _processor() == name
