"""The check of an accelerator: what it finds wrong, what it says of a record, and that it runs on the host's devices."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import device
from benchmarks.device_checks import differences, largest_difference, unmoved
from benchmarks.device_programs import DIGITS, NETWORKS
from benchmarks.device_times import ALONE, CONTENDERS, MIRRORED, MIRRORED_HUB, OURS
from benchmarks.device_traces import check_trace, recorded
from caramel.errors import CaramelError

GPU_TRACE = Path(device.__file__).parent / "results/device_trace.json"
"""Rows of a trace that somebody has recorded on a GPU."""


# -- weights and bits ------------------------------------------------------------------------------


def test_differences_are_in_units_of_the_largest_change_of_a_weight():
    before = {"w": np.array([1.0, 2.0]), "b": np.array([0.0])}
    theirs = {"w": np.array([1.5, 2.0]), "b": np.array([0.1]), "slot": np.array([100.0]), "steps": np.array([7])}
    assert largest_difference(theirs, theirs, before) == 0
    for name, element in (("w", 1), ("b", 0), ("slot", 0)):
        ours = {each: value.copy() for each, value in theirs.items()}
        ours[name][element] += 0.001
        assert largest_difference(ours, theirs, before) == pytest.approx(0.002)


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        ({"w": np.ones(1)}, {"w": np.ones(1), "b": np.ones(1)}, "variables differ"),
        ({"w": np.zeros(1)}, {"w": np.zeros(1)}, "nothing is shown"),
        ({"w": np.full(1, np.nan)}, {"w": np.ones(1)}, "nothing is shown"),
        ({"w": np.full(1, np.nan)}, {"w": np.full(1, np.nan)}, "nothing is shown"),
    ],
)
def test_what_shows_nothing_is_refused(ours, theirs, said):
    with pytest.raises(CaramelError, match=said):
        largest_difference(ours, theirs, {"w": np.zeros(1)})


def test_other_bits_are_found():
    values = {"w": np.array([0.0, np.nan], "float32"), "n": np.array(1)}
    wanted = ([(1.0, 2.0)], values)
    assert differences(([(1.0, 2.0)], {name: value.copy() for name, value in values.items()}), wanted) == []
    assert differences(([(1.0, 2.5)], values), wanted) == ["losses [(1.0, 2.5)], not [(1.0, 2.0)]"]
    assert differences(([(1.0, 2.0)], {**values, "w": np.array([-0.0, np.nan], "float32")}), wanted) == ["w"]
    assert differences(([(1.0, 2.0)], {**values, "n": np.array(1, "int32")}), wanted) == ["n"]
    assert differences(([(1.0, 2.0)], {"w": values["w"]}), wanted) == ["n is only on one side"]


def test_a_training_that_does_nothing_has_no_bits_to_compare():
    before = {"w": np.zeros(2)}
    assert unmoved({"w": np.ones(2)}, before) == []
    assert unmoved({"w": np.zeros(2)}, before) == ["the training has changed nothing, so the same bits say nothing"]
    assert unmoved({"w": np.array([1, np.inf])}, before) == ["w is not finite"]


# -- traces ----------------------------------------------------------------------------------------

TASK = "/job:localhost/replica:0/task:0/device"
ON_GPUS = {"worker_0/x": "/device:GPU:0", "worker_1/x": "/device:GPU:1", "worker_1/text": "/device:GPU:1"}


def trace_of(**rows):
    """A RunMetadata with the rows of devices: where ``TASK`` goes before, ops run."""
    from tensorflow.core.protobuf import config_pb2

    metadata = config_pb2.RunMetadata()
    for place, names in rows.items():
        device_name = {"GPU_0": f"{TASK}:GPU:0", "GPU_1": f"{TASK}:GPU:1", "CPU_0": f"{TASK}:CPU:0"}.get(place)
        stats = metadata.step_stats.dev_stats.add(device=device_name or "/device:GPU:0/stream:all")
        for number, name in enumerate(names):
            stats.node_stats.add(node_name=name, all_start_nanos=1000 + number, op_end_rel_nanos=5, all_end_rel_nanos=9)
    return metadata.SerializeToString()


def test_rows_of_a_trace():
    metadata = trace_of(
        GPU_0=["worker_0/x"], GPU_1=["worker_1/x"], CPU_0=["worker_1/text"], stream=["worker_0/x:MatMul", "kernel"]
    )
    found = check_trace(metadata, ON_GPUS, ["/GPU:0", "/GPU:1"])
    assert found["failures"] == []
    assert found["streams"] == ["/device:GPU:0/stream:all"]
    assert found["rows_by_device"]["/device:GPU:0/stream:all"] == 2
    assert found["rows_read"] == {"/CPU:0": 1, "/GPU:0": 1, "/GPU:1": 1}
    assert found["ran_on_host"] == ["worker_1/text"]


def test_rows_of_a_trace_on_other_devices():
    found = check_trace(trace_of(GPU_0=["worker_0/x", "worker_1/x"]), ON_GPUS, ["/GPU:0", "/GPU:1"])
    assert found["failures"] == [
        f"worker_1/x ran on {TASK}:GPU:0, not on /device:GPU:1",
        "the trace has no row of an op on /GPU:1",
    ]


def test_a_recorded_trace_has_a_few_rows_of_each_device():
    from google.protobuf import json_format
    from tensorflow.core.protobuf import config_pb2

    text = recorded(trace_of(GPU_0=[f"op_{n}" for n in range(40)], stream=["one", "two"]), rows=4)
    again = json_format.Parse(text, config_pb2.RunMetadata())
    kept = {each.device: [row.node_name for row in each.node_stats] for each in again.step_stats.dev_stats}
    assert kept == {f"{TASK}:GPU:0": ["op_0", "op_10", "op_20", "op_30"], "/device:GPU:0/stream:all": ["one", "two"]}
    assert again.step_stats.dev_stats[0].node_stats[1].all_start_nanos == 1010


@pytest.mark.skipif(not GPU_TRACE.exists(), reason="no trace of a GPU has been recorded: make device")
def test_the_recorded_trace_of_a_gpu_is_read():
    from google.protobuf import json_format
    from tensorflow.core.protobuf import config_pb2

    from caramel.measure.step_stats import parsed_rows

    metadata = json_format.Parse(GPU_TRACE.read_text(encoding="utf-8"), config_pb2.RunMetadata())
    devices = {each.device for each in metadata.step_stats.dev_stats}
    rows = parsed_rows(metadata.SerializeToString())
    assert {row.device for row in rows} == {each for each in devices if each.startswith("/job:")}
    assert all(row.end_ns >= row.ready_ns >= row.start_ns > 0 for row in rows)
    assert {f"{TASK}:GPU:{rank}" for rank in range(4)} <= {row.device for row in rows}


# -- the record ------------------------------------------------------------------------------------


def found_of(failures=(), on_host=()):
    """What the processes find of a network."""
    graph = {"ops": 100, "kinds": 7}
    times_s = {OURS: [0.002, 0.003], ALONE: [0.001, 0.001], MIRRORED: [0.006, 0.006], MIRRORED_HUB: [0.004, 0.006]}
    return {
        "weights": {"off": 2.5e-13, "failures": list(failures)},
        "bits": {"differing": {"again": 0, "no buckets": 3}, "failures": []},
        "placement": {"graphs": {"a": graph, "b": {**graph, "kinds": 8}}, "on_host": list(on_host), "failures": []},
        "trace": {"rows_by_device": {"a": 5, "s": 2}, "streams": ["s"], "failures": []},
        "times": {"times_s": times_s, "failures": []},
    }


def test_the_table():
    failed = {what: {"failures": ["it was no good"]} for what in ("weights", "bits", "placement", "trace")}
    networks = {DIGITS: found_of(on_host=["StringJoin"]), "BERT": failed, "ResNet50": {}}
    lines = device.table({"networks": networks}).splitlines()
    assert lines[2:5] == [
        "| digits | 2e-13 | the same in 1 of 2 | 200, 8 | StringJoin | 7, 2 |",
        "| BERT | - | - | - | - | - |",
        "| ResNet50 | - | - | - | - | - |",
    ]
    assert lines[8:] == [
        "| digits | 2.50 | 1.00 | 6.00 | 5.00 | 0.50 (-) |",
        "| BERT | - | - | - | - | - |",
        "| ResNet50 | - | - | - | - | - |",
    ]


def run(*arguments):
    return CliRunner().invoke(device.main, arguments)


def test_without_a_gpu_it_says_so_and_does_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(device, "number_of_gpus", lambda: 0)
    monkeypatch.setattr(device, "measure", None)
    result = run("--json", str(tmp_path / "record.json"))
    assert result.exit_code == 0
    (line,) = result.output.splitlines()
    assert line.startswith("skipped: TensorFlow sees no GPU here")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def processes(monkeypatch):
    """What the processes are asked, and what they answer."""
    asked = []

    def answer(request, timeout_s):
        asked.append(SimpleNamespace(request=request, timeout_s=timeout_s))
        yield "hardware", {"device": "of a test"}
        for what, found in found_of().items():
            if what in device.WHOLE[request["stage"]]:
                yield what, found

    monkeypatch.setattr(device, "answers", answer)
    return asked


def test_the_record(processes, tmp_path):
    path = tmp_path / "record.json"
    options = ["--rounds", "3", "--memory", "512", "--json", str(path), "--record-trace", "trace.json"]
    result = run("--platform", "cpu", *options)
    assert result.exit_code == 0, result.output
    record = json.loads(path.read_text())
    assert list(record["networks"]) == list(NETWORKS)
    assert record["networks"][DIGITS] == found_of()
    assert record["hardware"] == {"device": "of a test"} and record["failures"] == [] and record["took_s"] >= 0
    assert (record["sizes"]["rounds"], record["sizes"]["memory_mib"], record["sizes"]["workers"]) == (3, 512, 4)
    assert [(each.request["network"], each.request["stage"]) for each in processes] == [
        (name, stage) for name in NETWORKS for stage in ("checks", "times")
    ]
    assert all(0 < each.timeout_s <= device.MOST_S for each in processes)
    assert {each.request["record_trace"] for each in processes[2:]} == {None}
    assert processes[0].request["record_trace"] == str(Path.cwd() / "trace.json")
    assert tuple(processes[0].request["contenders"]) == CONTENDERS


def test_what_failed_is_said_and_kept(monkeypatch, tmp_path):
    def answer(request, timeout_s):
        if request["stage"] == "times":
            raise CaramelError("it ended with 1: no memory")
        yield "weights", {"failures": ["weights are off by 0.5"], "off": 0.5}

    monkeypatch.setattr(device, "answers", answer)
    path = tmp_path / "record.json"
    result = run("--platform", "cpu", "--network", DIGITS, "--json", str(path))
    assert result.exit_code == 1
    failures = ["digits, weights: weights are off by 0.5", "digits, times: it ended with 1: no memory"]
    assert json.loads(path.read_text())["failures"] == failures
    assert all(failure in result.output for failure in failures)


def ask(sizes, timeout_s=60.0):
    request = {"platform": "cpu", "network": DIGITS, "stage": "checks", "record_trace": None, "contenders": [OURS]}
    return device.answers({**request, "sizes": sizes}, timeout_s)


def test_a_process_that_ends_says_why():
    with pytest.raises(CaramelError, match=r"it ended with 1: TypeError: .*unexpected keyword argument 'colour'"):
        list(ask({"colour": 1}))


def test_a_process_that_is_late_is_ended():
    with pytest.raises(CaramelError, match="no time left"):
        list(ask({}, timeout_s=0.01))


@pytest.mark.slow
def test_gpus_are_counted():
    import tensorflow as tf

    assert device.number_of_gpus() == len(tf.config.list_physical_devices("GPU"))


# -- for real --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_digits_are_those_of_the_example(monkeypatch):
    import runpy

    import caramel
    from benchmarks.device_programs import SMALL, program

    examples = Path(device.__file__).parents[1] / "examples"
    monkeypatch.syspath_prepend(examples)
    theirs = runpy.run_path(str(examples / "digits_keras.py"))["program"]()
    parameters = caramel.capture(theirs["step"], theirs["inputs"]).model.gradients
    weights = program(DIGITS, SMALL).model.trainable_variables
    assert [each.shape for each in parameters] == [tuple(each.shape) for each in weights]


@pytest.mark.soak
def test_digits_on_devices_of_the_host(tmp_path):
    path, trace = tmp_path / "record.json", tmp_path / "trace.json"
    options = ["--network", DIGITS, "--json", str(path), "--record-trace", str(trace)]
    result = run("--platform", "cpu", "--small", *options)
    assert result.exit_code == 0, result.output
    record = json.loads(path.read_text())
    assert record["hardware"]["platform"] == "cpu"
    found = record["networks"][DIGITS]
    assert 0 < found["weights"]["off"] < 1e-10
    assert set(found["bits"]["differing"].values()) == {0} and len(found["bits"]["differing"]) == 5
    assert found["bits"]["variables"] > 20
    assert len(found["placement"]["graphs"]) == 9 and found["placement"]["on_host"] == []
    assert found["trace"]["rows_read"].keys() == {f"/CPU:{rank}" for rank in range(4)}
    assert {len(each) for each in found["times"]["times_s"].values()} == {2}
    assert found["times"]["times_s"].keys() == set(CONTENDERS)
    assert len(json.loads(trace.read_text())["stepStats"]["devStats"]) == 4
