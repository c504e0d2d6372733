"""Model files: what is saved is what is loaded, and damage of every kind is an InputError that names the file."""

import copy
import json
import math
import resource
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scheduled import SCHEDULED

from caramel.collectives.algorithms import NATIVE
from caramel.errors import InputError
from caramel.netmodel.file import from_json, load, save, to_json
from caramel.netmodel.line import Curve, Sample
from caramel.netmodel.model import NetworkModel
from caramel.netmodel.report import as_text


def measured(algorithm="ring", depth=1, workers=(2, 4), a=1e-4, b=1e-9):
    curves = [
        Curve.fitted(
            n, algorithm, depth, [Sample(s, (a + b * s) * n * 1.01**i) for i, s in enumerate((64, 4096, 2**20))]
        )
        for n in workers
    ]
    return NetworkModel("two hosts, 1 Gbit/s", tuple(curves), 3e-10)


MEASURED = measured()
GIVEN = NetworkModel.from_costs(1e-4, 1e-9, 1e-10)


@st.composite
def models(draw):
    if draw(st.booleans()):
        return NetworkModel.from_costs(draw(st.floats(1e-300, 1e300)), *(draw(st.floats(0, 1e300)) for _ in range(2)))
    keys = st.tuples(st.integers(2, 64), st.sampled_from([*SCHEDULED, NATIVE]), st.integers(1, 8)).filter(
        lambda key: key[1] != NATIVE or key[2] == 1
    )
    samples = st.dictionaries(st.integers(1, 2**40), st.floats(1e-9, 1e3), min_size=2, max_size=5)
    found = draw(st.dictionaries(keys, samples, min_size=1, max_size=4))
    curves = [Curve.fitted(*key, [Sample(*pair) for pair in pairs.items()]) for key, pairs in found.items()]
    return NetworkModel(draw(st.text()), tuple(curves), draw(st.floats(0, 1e-6)))


# -- round trips ---------------------------------------------------------------------------------


def as_set(model):
    return model.description, frozenset(model.curves), model.gamma_s_per_byte, model.given


@given(models())
@example(MEASURED)
@example(GIVEN)
@example(NetworkModel("", MEASURED.curves))
@example(NetworkModel("\ud800 \0 \u2028 \"'\\ é", MEASURED.curves))
def test_round_trip(model):
    text = to_json(model)
    loaded = from_json(text)
    assert as_set(loaded) == as_set(model)
    assert to_json(loaded) == text == to_json(model)
    json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))


@pytest.mark.parametrize("model", [MEASURED, GIVEN, NetworkModel("\ud800 é", MEASURED.curves)])
def test_round_trip_through_a_file(model, tmp_path):
    path = tmp_path / "network.json"
    for where in (path, str(path)):
        save(model, where)
        assert load(where) == model
    assert path.read_text(encoding="utf-8") == to_json(model)
    assert list(tmp_path.iterdir()) == [path]


def test_the_same_model_gives_the_same_text():
    assert to_json(measured()) == to_json(measured())
    assert to_json(measured(depth=2)) != to_json(measured())


def test_derived_numbers_are_not_believed():
    """Lines are fitted to the samples again, whatever the file says."""
    data = json.loads(to_json(MEASURED))
    derived = [(place, value) for place, value in leaves(data) if {"line", "residuals", "costs"} & set(place)]
    assert len(derived) >= 10
    for place, value in derived:
        if isinstance(value, float):
            assert from_json(json.dumps(replaced(data, place, 2 * value))) == MEASURED, place


# -- writing -------------------------------------------------------------------------------------


@contextmanager
def full_disk(size):
    """No file can grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [0, 1, 100])
def test_a_full_disk_leaves_the_old_file(tmp_path, size):
    path = tmp_path / "network.json"
    save(GIVEN, path)
    with full_disk(size), pytest.raises(InputError, match="network.json"):
        save(MEASURED, path)
    assert list(tmp_path.iterdir()) == [path]
    assert load(path) == GIVEN
    with full_disk(size), pytest.raises(InputError, match="new.json"):
        save(MEASURED, tmp_path / "new.json")
    assert list(tmp_path.iterdir()) == [path]


def test_a_failing_last_step_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "network.json"
    save(GIVEN, path)

    def fail(*arguments, **options):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch, pytest.raises(InputError, match="network.json.*Input/output error"):
        patch.setattr("os.replace", fail)
        save(MEASURED, path)
    assert list(tmp_path.iterdir()) == [path]
    assert load(path) == GIVEN


def test_where_no_file_can_be(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "directory").mkdir()
    for name in ("missing/network.json", "file/network.json", "directory"):
        with pytest.raises(InputError, match=name):
            save(MEASURED, tmp_path / name)
    assert {p.name for p in tmp_path.rglob("*")} == {"file", "directory"}


@pytest.mark.parametrize("path", ["", ".", "/", ".."])
def test_what_is_no_file_name(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="written"):
        save(MEASURED, path)
    with pytest.raises(InputError, match="read"):
        load(path)
    assert not list(tmp_path.iterdir())


# -- reading what is damaged ---------------------------------------------------------------------


def leaves(data, place=()):
    """(place, value) of everything that holds nothing else."""
    inside = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inside:
        yield from leaves(value, (*place, key))
    if not isinstance(data, dict | list):
        yield place, data


def places(data):
    found = {place[:n] for place, _ in leaves(data) for n in range(len(place) + 1)}
    return sorted(found, key=repr)


def replaced(data, place, value):
    if not place:
        return value
    changed = copy.deepcopy(data)
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return changed


def without(data, place):
    changed = copy.deepcopy(data)
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    del inner[place[-1]]
    return changed


def is_input_error_or_valid(text):
    """Whether it is refused; what is not must be a model like any other."""
    try:
        model = from_json(text, "the file")
    except InputError as error:
        assert "the file" in str(error)
        return True
    assert from_json(to_json(model)) == model
    numbers = [model.gamma_s_per_byte, *(model.given.__dict__.values() if model.given else ())]
    for curve in model.curves:
        assert isinstance(curve.algorithm, str) and type(curve.workers) is int and type(curve.depth) is int
        assert curve.workers >= 1 and curve.depth >= 1 and curve.algorithm in [*SCHEDULED, NATIVE]
        numbers += [curve.line.a_s, curve.line.b_s_per_byte, *(s.time_s for s in curve.samples)]
        numbers += [s.size_bytes for s in curve.samples]
    assert all(not isinstance(n, bool) and math.isfinite(n) and n >= 0 for n in numbers)
    assert isinstance(model.description, str)
    with suppress(InputError):
        assert as_text(model)
    return False


BAD = ["x", "", "1", True, False, -1, -0.5, 0, 0.5, 1e308, 10**400, math.nan, math.inf, -math.inf, None, [], {}, [[]]]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: repr(bad)[:12])
@pytest.mark.parametrize("model", [MEASURED, GIVEN], ids=["measured", "given"])
def test_bad_values_everywhere(model, bad):
    data, wrong = json.loads(to_json(model)), {}
    for place in places(data):
        try:
            is_input_error_or_valid(json.dumps(replaced(data, place, bad)))
        except Exception as error:  # all places in one list, by what is wrong there
            wrong.setdefault(f"{type(error).__name__}: {error}"[:200], []).append(place)
    assert not wrong


@pytest.mark.parametrize("bad", ["x", "1", True, None, -1, math.nan, math.inf, [], {}])
def test_bad_measurements(bad):
    """Sizes, times, workers and depths are whole or positive numbers, and nothing is taken for one."""
    data = json.loads(to_json(MEASURED))
    own = {n for c in MEASURED.curves for s in c.samples for n in (s.size_bytes, s.time_s)} | {1, 2, 4}
    keys = {"samples", "workers", "depth"}
    found = [p for p, v in leaves(data) if type(v) in (int, float) and v in own and "curves" in p and keys & set(p)]
    assert len(found) == 2 * (2 + 3 * 2)
    for place in found:
        assert is_input_error_or_valid(json.dumps(replaced(data, place, bad))), place


@pytest.mark.parametrize(("key", "least", "most"), [("workers", 1, 10_000), ("depth", 1, 256), ("samples", 0, 2**60)])
@pytest.mark.parametrize("bad", [-1, 2**60 + 1, 2.0])
def test_the_range_of_a_whole_number_is_said(key, least, most, bad):
    data = json.loads(to_json(MEASURED))
    place = ("curves", 0, key, *((0, 0) if key == "samples" else ()))
    with pytest.raises(InputError, match=f"'{bad}' should be a whole number between {least} and {most}"):
        from_json(json.dumps(replaced(data, place, bad)))


def test_bad_numbers_by_hand():
    data = json.loads(to_json(GIVEN))
    for number in (1e-4, 1e-9, 1e-10):
        places_of_it = [place for place, value in leaves(data) if value == number]
        assert places_of_it
        for bad in ("x", "1", True, -1, math.nan, math.inf, [], {}):
            texts = [json.dumps(replaced(data, place, bad)) for place in places_of_it]
            assert any(is_input_error_or_valid(text) for text in texts)


@pytest.mark.parametrize("model", [MEASURED, GIVEN], ids=["measured", "given"])
def test_missing_parts(model):
    """What is only written for the reader may be missing; without the rest the file is refused."""
    data, refused = json.loads(to_json(model)), 0
    for place in filter(None, places(data)):
        text = json.dumps(without(data, place))
        if is_input_error_or_valid(text):
            refused += 1
        elif not any(isinstance(key, int) for key in place[-1:]):
            assert from_json(text) == model, place
    assert refused >= 4


@pytest.mark.parametrize("model", [MEASURED, GIVEN], ids=["measured", "given"])
def test_truncated_files(model, tmp_path):
    path = tmp_path / "cut.json"
    whole = to_json(model).rstrip().encode()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match="cut.json"):
            load(path)


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 100,
        b"\xff\xfe\x80",
        bytes(range(256)),
        b"\x89PNG\r\n\x1a\n",
        b"network",
        b"[]",
        b"{}",
        b"null",
        b"3",
        b'"text"',
        b"{'a': 1}",
        b'{"a": 1}',
        b'{"version": 1}',
        DEEP.encode(),
        b"1" * 5000,
        b'{"version": ' + b"1" * 5000 + b"}",
    ],
    ids=lambda content: repr(content[:10]),
)
def test_other_files(content, tmp_path):
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match="other.json"):
        load(path)


def test_long_numbers_and_deep_lists():
    data = to_json(MEASURED)
    for size in ("4096", "1048576"):
        assert size in data
        assert is_input_error_or_valid(data.replace(size, "1" * 5000))
        is_input_error_or_valid(data.replace(size, "1" * 400))
        assert is_input_error_or_valid(data.replace(size, DEEP))


def test_no_file(tmp_path):
    with pytest.raises(InputError, match="missing.json"):
        load(tmp_path / "missing.json")
    with pytest.raises(InputError, match=tmp_path.name):
        load(tmp_path)
    (tmp_path / "loop.json").symlink_to("loop.json")
    with pytest.raises(InputError, match="loop.json"):
        load(tmp_path / "loop.json")


@pytest.mark.parametrize("version", [0, 2, 99, "1", 1.5, None])
def test_another_version(version):
    data = json.loads(to_json(MEASURED))
    places_of_it = [place for place, _ in leaves(data) if place[-1] in ("version", "format_version", "caramel_network")]
    assert places_of_it, "the file does not say its version"
    with pytest.raises(InputError, match="the file.*version"):
        from_json(json.dumps(replaced(data, places_of_it[0], version)), "the file")


def test_the_same_curve_twice():
    data = json.loads(to_json(MEASURED))
    data["curves"].append(data["curves"][0])
    with pytest.raises(InputError, match="twice|same|already"):
        from_json(json.dumps(data))


def test_one_size_only():
    """No line can be fitted, which is the file's fault."""
    data = json.loads(to_json(MEASURED))
    place = next(p for p, v in leaves(data) if v == 64)
    owner = place[: len(place) - 2]
    samples = data
    for key in owner:
        samples = samples[key]
    with pytest.raises(InputError, match="the file"):
        from_json(json.dumps(replaced(data, owner, samples[:1])), "the file")


@given(st.binary(max_size=200))
def test_garbage(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "garbage.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match="garbage.json"):
        load(path)


@given(st.data())
def test_one_byte_is_wrong(data):
    text = to_json(data.draw(st.sampled_from([MEASURED, GIVEN])))
    at = data.draw(st.integers(0, len(text) - 1))
    is_input_error_or_valid(text[:at] + data.draw(st.characters(max_codepoint=300)) + text[at + 1 :])


def test_a_network_of_shared_links_is_not_saved(tmp_path):
    given = replace(NetworkModel.from_costs(1e-4, 1e-9), workers_on_host=4)
    with pytest.raises(InputError, match="for questions only"):
        save(given, tmp_path / "network.json")
    assert not (tmp_path / "network.json").exists()
