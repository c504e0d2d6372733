"""Trace files: what is saved is what is loaded; damage, other versions and other programs are TraceErrors."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caramel.errors import InputError, TraceError
from caramel.facts import Trace
from caramel.measure.trace_file import (
    as_text,
    as_trace,
    check_trace,
    load_trace,
    save_trace,
    trace_from_json,
    trace_to_json,
)
from caramel.outline import Outline

TRACE = Trace(
    model_digest="0123456789abcdef" * 4,
    op_s={"MatMul": 2e-3, "gradients/MatMul_grad": 1e-3, "never": 0.0},
    op_bytes={"MatMul": 4096, "empty": 0},
    step_s=3.5e-3,
    predicted_s=3.1e-3,
    runs=10,
    workers=2,
    examples=32,
    description="a host, 2 cores",
    warnings=("first", "second"),
)

seconds = st.floats(0, 1e9)
traces = st.builds(
    Trace,
    model_digest=st.text(),
    op_s=st.dictionaries(st.text(), seconds),
    op_bytes=st.dictionaries(st.text(), st.integers(0, 2**60)),
    step_s=seconds,
    predicted_s=seconds,
    runs=st.integers(1, 10**6),
    workers=st.integers(1, 10**6),
    examples=st.none() | st.integers(0, 2**60),
    description=st.text(),
    warnings=st.lists(st.text()).map(tuple),
    plain_steps_s=st.lists(seconds).map(tuple),
    pace=st.dictionaries(st.text(), st.lists(st.floats(0, 1), min_size=1).map(lambda parts: (*sorted(parts), 1.0))),
)


@given(traces)
def test_round_trip(trace):
    text = trace_to_json(trace)
    assert trace_from_json(text) == trace
    assert trace_to_json(trace_from_json(text)) == text


@pytest.mark.parametrize("trace", [TRACE, replace(TRACE, examples=None, warnings=(), op_s={}, description="\ud800 é")])
def test_round_trip_through_a_file(trace, tmp_path):
    path = tmp_path / "trace.json"
    path.write_text("old")
    for where in (path, str(path)):
        save_trace(trace, where)
        assert load_trace(where) == trace
    assert list(tmp_path.iterdir()) == [path]


def test_the_order_of_ops_does_not_matter():
    other = replace(TRACE, op_s=dict(reversed(TRACE.op_s.items())))
    assert trace_to_json(other) == trace_to_json(TRACE)


def changed(**changes):
    data = json.loads(trace_to_json(TRACE))
    data.update(changes)
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "damaged or no trace"),
        ("[" * 100_000, "damaged or no trace"),
        (trace_to_json(TRACE)[:-20], "damaged or no trace"),
        ("{}", "is not a trace"),
        ("[]", "is not a trace"),
        (changed(kind="caramel network model"), "is not a trace"),
        (changed(version=3), "version 3, this library reads version 2: trace anew"),
        (changed(version=None), "version None"),
        (changed(step_s=-1), "'-1' should be a number"),
        (changed(step_s=float("nan")), "NaN is no number of JSON"),
        (changed(predicted_s=float("inf")), "Infinity is no number of JSON"),
        (changed(predicted_s=2.0**31), "should be a number of at most 1e\\+09"),
        (changed(step_s=10**400), "should be a number|too large"),
        (changed(extra=1), "it has an unknown 'extra'"),
        (changed(step_s=True), "'True' should be"),
        (changed(op_s={"a": "1"}), "'1' should be a number"),
        (changed(op_s=[1]), "should map names"),
        (changed(op_bytes={"a": 1.5}), "whole number of at least 0"),
        (changed(runs=0), "at least 1"),
        (changed(workers=True), "at least 1"),
        (changed(examples=-3), "at least 0"),
        (changed(description=3), "should be a text"),
        (changed(model_digest=None), "should be a text"),
        (changed(warnings="w"), "should be a list"),
        (changed(warnings=[1]), "should be a text"),
    ],
)
def test_damage(text, message, tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=message) as caught:
        load_trace(path)
    assert str(path) in str(caught.value)


NEW = {"op_least_s": {"MatMul": 1e-3}, "plain_steps_s": (3e-3, 4e-3), "pace": {"total": (0.0, 0.25, 1.0)}}
OUTLINE = Outline({"x": "float32 [?, 2]"}, {"w": "parameter, float32 [2]"}, {"MatMul": 1}, "mean")
NEW["outline"] = OUTLINE


@pytest.mark.parametrize("key", NEW)
def test_what_is_new_may_be_missing(key):
    """Traces of earlier versions lack it."""
    data = json.loads(trace_to_json(replace(TRACE, **{key: NEW[key]})))
    del data[key]
    assert trace_from_json(json.dumps(data)) == TRACE


@pytest.mark.parametrize("key", sorted(vars(TRACE).keys() - NEW.keys()))
def test_something_is_missing(key):
    data = json.loads(trace_to_json(TRACE))
    del data[key]
    with pytest.raises(TraceError, match=f"'{key}' is missing; trace anew"):
        trace_from_json(json.dumps(data))


def test_files_that_cannot_be_read_or_written(tmp_path):
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        load_trace(tmp_path / "nowhere.json")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="it is not text"):
        load_trace(tmp_path / "binary")
    with pytest.raises(TraceError, match="cannot be written"):
        save_trace(TRACE, tmp_path / "nowhere" / "trace.json")
    with pytest.raises(TraceError, match="no name of a file"):
        save_trace(TRACE, "")


def test_a_trace_of_another_program():
    check_trace(TRACE, SimpleNamespace(digest=TRACE.model_digest))
    other = SimpleNamespace(digest="f" * 64, outline=replace(OUTLINE, reduction="sum"))
    with pytest.raises(TraceError, match=r"a host, 2 cores.*another program.*0123456789ab.*ffff.*trace anew"):
        check_trace(TRACE, other)
    with pytest.raises(TraceError, match="the loss is a sum, was a mean"):
        check_trace(replace(TRACE, outline=OUTLINE), other)
    with pytest.raises(InputError, match="got str"):
        check_trace("trace.json", SimpleNamespace(digest=TRACE.model_digest))


def test_as_trace(tmp_path):
    model = SimpleNamespace(digest=TRACE.model_digest)
    path = tmp_path / "trace.json"
    save_trace(TRACE, path)
    assert as_trace(None, model) is None
    assert as_trace(TRACE, model) is TRACE
    assert as_trace(path, model) == as_trace(str(path), model) == TRACE
    for each in (TRACE, path):
        with pytest.raises(TraceError, match="another program"):
            as_trace(each, SimpleNamespace(digest="f" * 64, outline=OUTLINE))
    with pytest.raises(InputError, match="got dict"):
        as_trace({}, model)


def test_as_text():
    text = as_text(TRACE, most=2)
    assert "2 workers at once on 32 examples each: a step takes 3.5 ms" in text
    assert "predict 3.1 ms (-11%)" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["MatMul", "2", "ms", "66.7%"] in rows and ["gradients/MatMul_grad", "1", "ms", "33.3%"] in rows
    assert "never" not in text
    assert text.endswith("warning: first\n\nwarning: second")
    assert "1 worker on 32 examples: a step" in as_text(replace(TRACE, workers=1))
    assert "examples" not in as_text(replace(TRACE, examples=None, op_s={}, step_s=0.0, predicted_s=0.0))
