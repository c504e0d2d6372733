"""The benchmark of versions: what is installed beside a wheel, what a record becomes, and which line of an error is kept."""

import zipfile

from benchmarks.versions import PAIRS, _digest, _last_error, _other_requirements, table


def wheel(path, text="", comment=b""):
    with zipfile.ZipFile(path, "w") as archive:
        archive.comment = comment
        archive.writestr("caramel/__init__.py", text)
        archive.writestr(
            "caramel_tf-1.dist-info/METADATA",
            "Name: caramel-tf\nRequires-Dist: tensorflow<3,>=2\nRequires-Dist: keras<4,>=3\nRequires-Dist: click<9,>=8\n"
            'Requires-Dist: pytest<10; extra == "test"\n\nkeras\n',
        )
    return path


def test_all_but_what_is_tried_is_installed_as_the_wheel_wants(tmp_path):
    assert _other_requirements(wheel(tmp_path / "a.whl")) == ["click<9,>=8"]


def test_a_wheel_counts_by_what_is_in_it(tmp_path):
    first, same, other = (
        _digest(wheel(tmp_path / name, text, comment))
        for name, text, comment in (("a", "1", b""), ("b", "1", b"later"), ("c", "2", b""))
    )
    assert first == same != other


def test_the_table_is_in_the_order_of_versions():
    result = {"numpy": "1.26.4", "python": "3.11.7", "failed": "", "wheel": "w"}
    record = {
        "b": {**result, "tensorflow": "2.21.0", "keras": "3.15.1"},
        "a": {**result, "tensorflow": "2.9.0", "keras": "3.2.1", "failed": "AttributeError: no"},
    }
    rows = table(record).splitlines()[2:]
    assert [row.split(" | ")[-1] for row in rows] == ["AttributeError: no |", "right |"]


def test_the_error_is_kept_not_what_follows_it():
    text = "Traceback (most recent call last):\nnumpy.AxisError: axis 1\n  and more\n"
    assert _last_error(text) == "numpy.AxisError: axis 1"
    assert _last_error("Killed\n") == "Killed"
    assert _last_error("") == "it ended without a word"


def test_each_version_is_tried_with_an_old_and_a_new_keras():
    assert all({keras != "" for version, keras in PAIRS if version == each} == {True, False} for each, _ in PAIRS)
