"""Each of our own JSON files, damaged in every way: always an error of the library that names the file."""

import json
import random
from dataclasses import asdict, replace

import pytest

import caramel
from caramel.errors import CaramelError
from caramel.facts import BACKWARD, FORWARD, InFlight, Piece, Span, Timeline, Trace
from caramel.measure.trace_file import load_trace, trace_to_json
from caramel.netmodel.contention import Contention
from caramel.netmodel.costs import Cost
from caramel.netmodel.file import load as load_network
from caramel.netmodel.file import to_json as network_to_json
from caramel.netmodel.line import Curve, Sample
from caramel.plan import Plan, Transfer
from caramel.prediction import Prediction
from caramel.util import json_files
from tests.variants import in_soak

SAMPLE = 300
"""Damaged texts of each format and kind of damage that every run tests; `make soak` has ten times as many."""

TRACE = Trace(
    model_digest="0123456789abcdef" * 4,
    op_s={"MatMul": 2e-3, "gradients/MatMul_grad": 1e-3},
    op_bytes={"MatMul": 4096},
    step_s=3.5e-3,
    predicted_s=3.1e-3,
    runs=10,
    workers=2,
    examples=32,
    description="a host",
    warnings=("first",),
    ordered_step_s={"none": 3.5e-3, "total": 3.6e-3},
    op_least_s={"MatMul": 1e-3},
    pace={"total": (0.0, 0.4, 1.0)},
)


def _curve(workers, algorithm, depth, scale):
    samples = [Sample(64, 1e-4 * scale), Sample(4096, 2e-4 * scale), Sample(2**20, 9e-3 * scale)]
    return Curve.fitted(workers, algorithm, depth, samples)


NETWORK = caramel.NetworkModel(
    "a network",
    (_curve(2, "ring", 1, 1.0), _curve(4, "ring", 1, 1.7), _curve(4, "shuffle", 2, 1.2)),
    1e-10,
    contentions=(Contention(4, "ring", 1, 4096, 0.2, 1.3, 1.1),),
)
GIVEN = replace(NETWORK, curves=(), contentions=(), given=Cost(1e-4, 1e-9, 1e-10))

PLAN = Plan(
    model_digest="f" * 64,
    workers=2,
    devices=("/job:worker/task:0", "/job:worker/task:1"),
    reduction="mean",
    reduction_reason="the loss is a mean",
    weighted=True,
    deterministic=False,
    statistics="local",
    network="a network",
    transfers=(
        Transfer((Piece("a", 0, 3),), "float32", 3, 12, "ring", 2, FORWARD, "bfloat16", 1e-3, "why"),
        Transfer((Piece("b", 0, None),), "float32", None, None, "all_gather", 1, BACKWARD, None, None, "why", True),
    ),
    variable_classes=(("a", "parameter"),),
    notes=("a note",),
    analyzers=("dependencies",),
    order=("a", "b"),
    edges=(("x", "y"),),
    in_flight=InFlight(1, 2),
    prediction=Prediction(Timeline((Span("compute", "", 0.0, 1.0),), 1.0, 0.9, 0.2), 0.8, "measured", (None, 1.1)),
)

FORMATS = {
    "plan": (PLAN.to_json(), Plan.load),
    "trace": (trace_to_json(TRACE), load_trace),
    "network": (network_to_json(NETWORK), load_network),
    "given network": (network_to_json(GIVEN), load_network),
}


def nested(depth):
    """Lists in lists."""
    return "[" * depth + "]" * depth


TEXTS = (
    *(
        [
            "null",
            "true",
            "false",
            "0",
            "-1",
            "1.5",
            "-0.0",
            "1e308",
            "-1e308",
            "1e400",
            "NaN",
            "Infinity",
            "-Infinity",
            "2147483648",
            "1e10",
        ]
    ),
    str(2**64),
    "9" * 400,
    "9" * 5000,
    "1." + "9" * 5000,
    '""',
    '"x"',
    '"\\ud800"',
    '"\\u0000"',
    '"' + "y" * 100_000 + '"',
    "[]",
    "{}",
    "[null]",
    '{"": null}',
    nested(400),
    nested(990),
    nested(100_000),
    '{"a":' * 500 + "1" + "}" * 500,
)
"""JSON text that may stand where another value was."""


def places(data, at=()):
    """Every place in parsed JSON."""
    yield at
    entries = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in entries:
        yield from places(value, (*at, key))


def changed(data, at, change):
    """A copy with what is at a place, and what it is called, changed; an object is a list of pairs, to have one twice."""
    if not at:
        return change(data)
    if isinstance(data, dict):
        return {key: changed(value, at[1:], change) if key == at[0] else value for key, value in data.items()}
    return [changed(value, at[1:], change) if key == at[0] else value for key, value in enumerate(data)]


HOLE = "a hole in a text"


def swapped(text, rng):
    """Another value in a place."""
    data = json.loads(text)
    at = rng.choice(list(places(data)))
    return json.dumps(changed(data, at, lambda _: HOLE)).replace(json.dumps(HOLE), rng.choice(TEXTS))


def rekeyed(text, rng):
    """A key that is gone, another one, or one twice."""
    data = json.loads(text)
    objects = [at for at in places(data) if isinstance(_at(data, at), dict) and _at(data, at)]
    at = rng.choice(objects)
    key = rng.choice(list(_at(data, at)))
    how = rng.choice(("deleted", "added", "renamed", "repeated"))
    if how == "repeated":
        marked = json.dumps(changed(data, at, lambda found: {HOLE: found[key], **found}))
        return marked.replace(json.dumps(HOLE), json.dumps(key), 1)

    def change(found):
        rest = {name: value for name, value in found.items() if name != key}
        return {"deleted": rest, "added": {**found, "another": 1}, "renamed": {**rest, f"{key} ": found[key]}}[how]

    return json.dumps(changed(data, at, change))


def _at(data, at):
    for key in at:
        data = data[key]
    return data


def flipped(text, rng):
    """Some bytes of other values."""
    content = bytearray(text.encode())
    for _ in range(rng.choice((1, 1, 2, 20))):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(content)


def cut(text, rng):
    """The beginning, the end, or a middle that is missing."""
    content = text.encode()
    first, second = sorted(rng.randrange(len(content)) for _ in range(2))
    return rng.choice((content[:first], content[first:], content[:first] + content[second:], content + content[first:]))


DAMAGE = (swapped, rekeyed, flipped, cut)


def check(load, content, path):
    """The file is read, or there is an error of the library that names it."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    try:
        load(path)
    except CaramelError as error:
        message = str(error)
        assert str(path) in message, f"the file is not named: {message[:300]}"
        assert len(message) < 1000, f"{len(message)} characters: {message[:300]}"
        return False
    return True


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_whole_is_read(name, tmp_path):
    text, load = FORMATS[name]
    assert check(load, text, tmp_path / "whole.json")


@pytest.mark.parametrize("count", [SAMPLE, *in_soak(10 * SAMPLE)])
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", FORMATS)
def test_damage(name, damage, count, tmp_path):
    text, load = FORMATS[name]
    rng = random.Random(f"{name} {damage.__name__} {count}")
    read = sum(check(load, damage(text, rng), tmp_path / f"{name}.json") for _ in range(count))
    assert read < 0.8 * count  # names of a trace's ops may be anything; else damage is seen


@pytest.mark.parametrize("name", FORMATS)
def test_every_kind_of_value_in_every_place(name, tmp_path):
    """Few places and few values are left out by chance."""
    text, load = FORMATS[name]
    data = json.loads(text)
    for at in places(data):
        marked = json.dumps(changed(data, at, lambda _: HOLE))
        for value in TEXTS[:: 1 if len(at) < 2 else 7]:
            check(load, marked.replace(json.dumps(HOLE), value), tmp_path / "value.json")


@pytest.mark.parametrize("name", FORMATS)
def test_unknown_keys_are_refused_by_name(name, tmp_path):
    """A key that nobody reads is a mistake of whoever wrote it; the maps from names to times have any keys."""
    text, load = FORMATS[name]
    data = json.loads(text)
    maps = {"op_s", "op_bytes", "op_least_s", "ordered_step_s", "pace", "line"}
    skipped = {("costs",)}  # is made anew from the samples
    path = tmp_path / "unknown.json"
    for at in places(data):
        if isinstance(_at(data, at), dict) and not maps & set(map(str, at)) and at[:1] not in skipped:
            added = changed(data, at, lambda found: {**found, "anothr": 1})
            path.write_text(json.dumps(added))
            with pytest.raises(CaramelError, match="anothr") as caught:
                load(path)
            assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", FORMATS)
def test_large_files_are_refused_before_they_are_read(name, tmp_path, monkeypatch):
    _, load = FORMATS[name]
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(json_files.MOST_BYTES + 1)  # no disk has to have room for it
    monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(CaramelError, match="more than 200 MB") as caught:
        load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", FORMATS)
def test_files_without_end(name):
    """A device says that it has no bytes."""
    _, load = FORMATS[name]
    with pytest.raises(CaramelError, match="more than 200 MB.*something else"):
        load("/dev/zero")


def test_documents_have_the_keys_of_their_data():
    assert json.loads(trace_to_json(TRACE)).keys() - {"kind", "version"} == asdict(TRACE).keys()
