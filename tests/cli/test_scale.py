"""`caramel scale`: a table, files, and what is refused."""

import csv
import json

import keras
import pytest
from click.testing import CliRunner

import caramel
from caramel.cli.main import main
from caramel.facts import Trace
from caramel.frontend.program_file import load_program

PROGRAM = """
import numpy as np
import tensorflow as tf

def build():
    w = tf.Variable(tf.ones([50, 200]), name="w")
    v = tf.Variable(tf.ones([200, 100]), name="v")

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.nn.relu(x @ w) @ v) ** 2)
        for variable, gradient in zip((w, v), tape.gradient(loss, (w, v))):
            variable.assign_sub(0.01 * gradient)
        return loss

    return {"step": step, "inputs": [tf.TensorSpec([None, 50])], "data": [np.ones((32, 50), np.float32)]}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    there = tmp_path_factory.mktemp("scale")
    (there / "program.py").write_text(PROGRAM)
    keras.backend.clear_session(free_memory=False)
    model = load_program(f"{there}/program.py:build").context.model
    for examples in (16, 32):
        op_s = {node.name: 1e-4 * examples if node.op == "MatMul" else 1e-9 for node in model.graph}
        step_s = 5e-4 * examples
        trace = Trace(model.digest, op_s, {}, step_s, step_s, 3, 1, examples, "by hand")
        caramel.save_trace(trace, there / f"trace{examples}.json")
    return there


@pytest.fixture
def call(place):
    def run(*arguments, traces=(32,)):
        keras.backend.clear_session(free_memory=False)
        given = ["scale", f"{place}/program.py:build", *map(str, arguments)]
        for examples in traces:
            given += ["--trace", f"{place}/trace{examples}.json"]
        return CliRunner().invoke(main, given)

    return run


LINKS = ("--link-rate", "100Mbit/s,10Gbit/s")


def test_a_table_and_files(call, tmp_path):
    files = ("--csv", tmp_path / "scale.csv", "--plot", tmp_path / "scale.png")
    done = call("--workers", "2,4,...,16", *LINKS, "--policy", "all", *files)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].split()[:3] == ["workers", "network", "policy"] and sum("best" in line for line in lines) == 8
    assert f"written: {tmp_path}/scale.csv, {tmp_path}/scale.png" in done.stdout
    rows = list(csv.DictReader((tmp_path / "scale.csv").open()))
    assert len(rows) == 4 * 2 * 8 and {row["policy"] for row in rows} >= {"optimal", "paper", "mg_wfbp", "each"}
    assert (tmp_path / "scale.png").stat().st_size > 10_000


def test_for_programs_it_is_what_a_plan_predicts(call, place):
    done = call("--workers", 8, "--link-rate", "1Gbit/s", "--policy", "optimal", "--json")
    assert done.exit_code == 0, done.output
    (answer,) = json.loads(done.stdout)["answers"]
    keras.backend.clear_session(free_memory=False)
    context = load_program(f"{place}/program.py:build").context
    network = caramel.NetworkModel.from_link_rate(125e6)
    plan = caramel.what_if(context, 8, network=network, trace=place / "trace32.json")
    assert answer["step_s"] == pytest.approx(plan.prediction.timeline.iteration_s)
    assert answer["speed_up"] == pytest.approx(8 * 32 * 5e-4 / answer["step_s"])


def test_other_batches_need_several_traces(call):
    asked = ("--workers", "2,4,100", *LINKS, "--policy", "optimal", "--global-batch", 96, "--json")
    refused = [each["refused"] for each in json.loads(call(*asked).stdout)["answers"]]
    assert refused[:4] == ["not traced"] * 4 and "100 workers would share 96 examples" in refused[4]
    found = json.loads(call(*asked, traces=(16, 32)).stdout)["answers"]
    assert [each["examples"] for each in found] == [48, 48, 24, 24, None, None]
    assert [each["alone_s"] for each in found[:4]] == pytest.approx([24e-3, 24e-3, 12e-3, 12e-3])


def test_the_program_is_traced_where_no_trace_is_given(call):
    done = call("--workers", 2, "--alpha", 1e-4, "--beta", 1e-9, "--policy", "optimal", "--json", traces=())
    assert done.exit_code == 0, done.output
    (answer,) = json.loads(done.stdout)["answers"]
    assert answer["examples"] == 32 and answer["link"] == "given" and answer["step_s"] > 0


def test_a_trace_of_workers_that_shared_a_host_is_doubtful(call, place):
    from caramel.netmodel.file import save

    asked = ("--workers", 8, "--link-rate", "1Gbit/s", "--policy", "optimal")
    assert "the trace is of" not in call(*asked).stderr
    doubt = "the trace is of one worker on a host, and the hosts asked about have 2 each"
    assert doubt in call(*asked, "--workers-on-host", 2).stderr
    (place / "shared.json").write_text((place / "trace32.json").read_text().replace('"workers": 1', '"workers": 4'))
    arguments = ["--workers", "8", "--trace", f"{place}/shared.json"]
    save(caramel.NetworkModel.from_link_rate(125e6), place / "given.json")
    for command in (["scale", "--link-rate", "1Gbit/s"], ["plan", "--network", f"{place}/given.json"]):
        keras.backend.clear_session(free_memory=False)
        done = CliRunner().invoke(main, [command[0], f"{place}/program.py:build", *command[1:], *arguments])
        assert done.exit_code == 0 and "the trace is of 4 workers at once on a host" in done.stderr, done.output


def test_a_measured_network(call, tmp_path):
    from caramel.netmodel.file import save
    from caramel.netmodel.line import Curve, Sample

    curves = tuple(Curve.fitted(n, "ring", 1, [Sample(64, n * 1e-4), Sample(2**20, n * 1e-2)]) for n in (2, 4))
    save(caramel.NetworkModel("measured", curves), tmp_path / "network.json")
    done = call("--workers", "4,16,17", "--network", tmp_path / "network.json", "--policy", "optimal")
    assert done.exit_code == 0 and "extrapolated" in done.stdout and "up to 16" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (LINKS, "--workers"),
        (("--workers", "4,2", *LINKS), "must ascend"),
        (("--workers", "two", *LINKS), "cannot read 'two'"),
        (("--workers", 4), "say one thing about the network"),
        (("--workers", 4, *LINKS, "--alpha", 1), "say one thing about the network"),
        (("--workers", 4, "--alpha", 1), "--alpha and --beta belong together"),
        (("--workers", 4, "--network", "n.json", "--latency", 1), "--latency belongs to --link-rate"),
        (("--workers", 4, "--link-rate", "fast"), "cannot read the rate 'fast'"),
        (("--workers", 4, *LINKS, "--policy", "best"), "policy"),
        (("--workers", 4, *LINKS, "--global-batch", 8, "--batch-per-worker", 8), "not both"),
        (("--workers", 4, *LINKS, "--straggler", "often"), "cannot read the straggler 'often'"),
        (("--workers", 10_001, *LINKS), "10,000"),
        (("--workers", 4, *LINKS, "--plot", "/nowhere/scale.png"), "/nowhere"),
        (("--workers", 4, *LINKS, "--plot", "scale.xyz"), "its ending must be one of"),
        (("--workers", "1,2,...,20000", *LINKS), "there are more than 10,000 numbers"),
        (("--workers", "9" * 5000, *LINKS), "cannot read"),
    ],
)
def test_bad_options(arguments, message, call):
    done = call(*arguments)
    assert done.exit_code != 0 and message in done.output
