"""A model for people: a table, choices and warnings; a picture."""

import pytest

from caramel.errors import InputError
from caramel.netmodel.line import Curve, Sample
from caramel.netmodel.model import NetworkModel
from caramel.netmodel.plot import save_plot
from caramel.netmodel.report import as_text

SIZES = (64, 4096, 2**18, 2**22)


def curve(workers, algorithm, depth, a=1e-4, b=1e-9):
    return Curve.fitted(workers, algorithm, depth, [Sample(size, a + b * size) for size in SIZES])


def jumping():
    times = (1e-4, 1e-4, 9e-1, 1.0)
    return Curve.fitted(8, "chain", 4, [Sample(size, time) for size, time in zip(SIZES, times)])


MEASURED = NetworkModel(
    "two hosts in a cellar",
    (
        curve(2, "ring", 1),
        curve(4, "ring", 1),
        curve(4, "star", 2, 1e-5, 1e-8),
        curve(8, "chain", 1, 1e-2, 1e-6),
        jumping(),
    ),
)
GIVEN = NetworkModel.from_costs(1e-4, 1e-9)


def test_a_measured_model():
    text = as_text(MEASURED)
    assert "two hosts in a cellar" in text
    for name in ("ring", "star", "chain"):
        assert name in text
    assert jumping().warning in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_every_measured_curve_has_a_row():
    rows = [line.split() for line in as_text(MEASURED).splitlines()]
    for workers, name, depth in ((2, "ring", 1), (4, "ring", 1), (4, "star", 2), (8, "chain", 4)):
        assert any({str(workers), name, str(depth)} <= set(row) for row in rows), (workers, name, depth)


def test_no_warning_where_lines_fit():
    fine = NetworkModel("fine", MEASURED.curves[:4])
    assert fine.warnings == ()
    assert "jump" not in as_text(fine)


def test_other_numbers_of_workers():
    assert "16 workers" in as_text(MEASURED, (16,))
    assert "16 workers" not in as_text(MEASURED)
    assert as_text(MEASURED, (4,)) == as_text(MEASURED)  # it is there already
    as_text(MEASURED, (1,))


def test_nothing_is_known_for_so_many_workers():
    single = NetworkModel("single", (curve(4, "ring", 1),))
    with pytest.raises(InputError, match="16 workers"):
        as_text(single, (16,))


def test_only_chunks_were_measured():
    """Nothing is known about whole tensors, and so about the threshold; the rest is shown."""
    text = as_text(NetworkModel("chunks", (curve(4, "chain", 4),)))
    assert "chain" in text and "4 workers" in text


def test_a_given_model():
    text = as_text(GIVEN, (4, 13))
    assert "4 workers" in text and "13 workers" in text
    assert as_text(GIVEN)


@pytest.mark.parametrize("name", ["plot.png", "a plot.png"])
def test_a_picture(tmp_path, name):
    save_plot(MEASURED, tmp_path / name)
    content = (tmp_path / name).read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert content.rstrip().endswith(b"IEND\xaeB`\x82")


def test_a_picture_as_text_path(tmp_path):
    save_plot(NetworkModel("one", (curve(4, "ring", 1),)), str(tmp_path / "one.png"))
    assert (tmp_path / "one.png").stat().st_size > 1000


def test_a_picture_that_begins_at_nothing(tmp_path):
    """An empty tensor was measured, too."""
    samples = [Sample(size, 1e-4 + 1e-9 * size) for size in (0, 4096, 2**20)]
    save_plot(NetworkModel("empty", (Curve.fitted(4, "ring", 1, samples),)), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_no_picture_of_given_costs(tmp_path):
    with pytest.raises(InputError, match="measure"):
        save_plot(GIVEN, tmp_path / "plot.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["missing/plot.png", "file/plot.png", "directory.png", "plot.xyz"])
def test_unwritable_pictures(tmp_path, name):
    (tmp_path / "file").touch()
    (tmp_path / "directory.png").mkdir()
    with pytest.raises(InputError, match=name):
        save_plot(MEASURED, tmp_path / name)
