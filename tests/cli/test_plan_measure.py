"""`caramel plan --measure`: from a program to a plan that was tried, and the run that applies it."""

import json
import re
import shlex
import signal

import pytest
from click.testing import CliRunner
from small_programs import STEP

import caramel
from caramel.cli.main import main
from caramel.measure.netbench import QUICK, Settings, quick_up_to
from caramel.netmodel.file import load
from caramel.prediction import Prediction

SCRIPT = """
    import keras
    import numpy as np

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input([8]), keras.layers.Dense(30, "relu"), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.random.default_rng(1).normal(size=(40, 8)).astype("float32")
    history = model.fit(x, x.sum(axis=1), batch_size=20, epochs=2, verbose=0)
    print("plan of the training:", history.plan.digest, "losses", *history.history["loss"])
"""


@pytest.fixture
def a_short_look(monkeypatch):
    """A measurement of the network that takes a second or two."""
    sizes = []

    def settings(largest_bytes):
        sizes.append(largest_bytes)
        return Settings((64, 4096), ("star", "ring"), (1,), rounds=1, contention=False)

    monkeypatch.setattr("caramel.cli.measured_plan.quick_up_to", settings)
    return sizes


def run(*arguments):
    result = CliRunner().invoke(main, [*map(str, arguments)])
    assert result.exit_code == 0, (result.output, result.exception)
    return result


@pytest.mark.slow
def test_a_script_is_planned_and_trained(a_short_look, write, tmp_path):
    script, file = write(SCRIPT, "train.py"), tmp_path / "plan.json"
    said = run("plan", script, "--workers", 2, "--measure", "--cluster", "in-process", "--out", file)
    assert a_short_look == [4 * (8 * 30 + 30 + 30 + 1)]  # bytes of all gradients
    assert [line[0] for line in said.stderr.splitlines() if re.match(r"\d of 4: ", line)] == ["1", "2", "3", "4"]
    found = re.search(
        r"measured: ([\d.]+) ms \(median of (\d+) steps\); (for [\d.]+ ms of it the step waits for its data, .*; the rest "
        r"is [\d.]+ ms, )?predicted [\d.]+ ms, [\d.]+% (less|more)",
        said.stdout,
    )
    assert found and 5 <= int(found[2]) <= 33 and float(found[1]) > 0
    assert re.search(
        r"\nwithout a plan, measured in turn with it: [\d.]+ ms; the plan takes [\d.]+% (less|more) \(median of 5 rounds; ",
        said.stdout,
    )
    measured = [tmp_path / f"plan.{name}.json" for name in ("network", "trace")]
    assert f"written: {file}, {measured[0]}, {measured[1]}" in said.stdout
    assert load(tmp_path / "plan.network.json").workers == (2,)
    plan = caramel.Plan.load(file)
    assert plan.prediction is not None
    again = run("plan", script, "--workers", 2, "--network", measured[0], "--trace", measured[1], "--diff", file)
    assert f"no difference from {file}" in again.stdout
    _, *following = shlex.split(re.search("^next: (.*)$", said.stdout, re.MULTILINE)[1])
    assert following == ["run", str(script), "--workers", "2", "--cluster", "in-process", "--plan", str(file)]
    trained = run(*following)
    assert f"plan of the training: {plan.digest} losses" in trained.output
    plain = run("run", script, "--workers", 1)
    losses = [[float(text) for text in re.search("losses (.*)", each.output)[1].split()] for each in (trained, plain)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.soak
@pytest.mark.slow
def test_the_report_has_the_try(a_short_look, write, tmp_path):
    report, timeline = tmp_path / "report.html", tmp_path / "step.json"
    options = ("--workers", 3, "--measure", "--cluster", "in-process", "--report", report, "--timeline", timeline)
    said = run("plan", write(SCRIPT, "train.py"), *options)
    assert f"written: {timeline}, {report}" in said.stdout
    text = report.read_text()
    assert "measured step" in text and "measured, a traced step" in text
    shown_ms = float(re.search(r"measured: ([\d.]+) ms", said.stdout)[1])
    figures_ms = [float(figure.replace(",", "")) for figure in re.findall(r"\b(\d[\d,]*\.?\d*) ms", text)]
    assert any(figure_ms == pytest.approx(shown_ms, rel=0.01) for figure_ms in figures_ms)
    names = {
        event["args"].get("name", "") for event in json.loads(timeline.read_text())["traceEvents"] if event["ph"] == "M"
    }
    assert any("predicted" in name for name in names) and any("measured" in name for name in names)


def test_why_a_prediction_does_not_hold(monkeypatch):
    """Outside the interval there is a reason, where one is known, or what to do."""
    from types import SimpleNamespace

    from caramel.cli.measured_plan import TriedPlan

    prediction = Prediction(SimpleNamespace(iteration_s=1.0), 1.0, "", interval=SimpleNamespace(low_s=0.9, high_s=1.1))
    armodel = SimpleNamespace(plan=SimpleNamespace(prediction=prediction, workers=4, servers=None))

    def said(step_s, cluster):
        text = str(
            TriedPlan(
                armodel, None, None, SimpleNamespace(plain_steps_s=[step_s] * 3, data_wait_s=0.0), cluster, [(1, 1)]
            )
        )
        return text[: text.index("\nwithout a plan")]

    monkeypatch.setattr("caramel.report.training.usable_cores", lambda: 2)
    assert said(1.05, caramel.InProcess()).endswith(
        "predicted 1000 ms, 4.8% less than measured and within the interval of the prediction"
    )
    assert "\nnote: 4 workers share the 2 cores of this machine" in said(2.0, caramel.InProcess())
    assert said(2.0, caramel.Servers(["a:1", "b:1"])).endswith(
        "outside the interval of the prediction: trace and measure the network anew where it trains, with nothing else running"
    )
    armodel.plan = SimpleNamespace(
        prediction=None, workers=4, servers=SimpleNamespace(prediction=SimpleNamespace(step_s=1.0))
    )
    assert said(2.0, caramel.Servers(["a:1", "b:1"])).endswith("predicted 1000 ms, 50.0% less than measured")
    assert "50.0% less than measured\nnote: 4 workers share the 2 cores of this machine" in said(
        2.0, caramel.InProcess()
    )


@pytest.mark.parametrize(
    "with_s, is_slower",
    [((0.9, 0.95, 1.2, 0.9, 0.9), False), ((1.0,) * 5, False), ((1.1, 1.05, 0.99, 1.2, 1.04), True)],
)
def test_beside_the_step_without_a_plan(with_s, is_slower):
    from types import SimpleNamespace

    from caramel.cli.measured_plan import TriedPlan

    armodel = SimpleNamespace(plan=SimpleNamespace(prediction=None, workers=4, servers=None))
    record = SimpleNamespace(plain_steps_s=[1.0] * 3, data_wait_s=0.0)
    tried = TriedPlan(armodel, None, None, record, caramel.InProcess(), [(each, 1.0) for each in with_s])
    text = str(tried)
    median, least, most = (
        f"{abs(ratio - 1):.1%} {'less' if ratio < 1 else 'more'}"
        for ratio in (sorted(with_s)[2], min(with_s), max(with_s))
    )
    assert f"1000 ms; the plan takes {median} (median of 5 rounds; from {least} to {most})" in text
    assert ("the step is faster without this plan" in text) == is_slower
    assert tried.as_dict()["ratios_to_unplanned"] == list(with_s)


@pytest.mark.slow
def test_a_program_file_with_a_known_network(a_short_look, write, tmp_path):
    """What is given is not measured; JSON is all that is on standard output."""
    network = tmp_path / "network.json"
    run("netbench", "--link-rate", "1Gbit/s", "--out", network)
    options = ("--workers", 3, "--measure", "--cluster", "in-process", "--network", network, "--json")
    said = run("plan", f"{write(STEP)}:build", *options)
    figures = json.loads(said.stdout)
    assert not a_short_look and figures["measured_step_s"] > 0 and figures["predicted_iteration_s"] > 0
    assert figures["unplanned_step_s"] > 0 and len(figures["ratios_to_unplanned"]) == 5


@pytest.mark.slow
def test_what_was_measured_is_kept_where_a_gradient_is_not_known(a_short_look, write, tmp_path):
    file = tmp_path / "plan.json"
    options = ["--workers", "2", "--measure", "--cluster", "in-process", "--explain", "nothing", "--out", str(file)]
    result = CliRunner().invoke(main, ["plan", f"{write(STEP)}:build", *options])
    assert result.exit_code == 1 and "the plan has no gradient 'nothing'" in result.output
    assert (
        "without a plan, measured in turn with it" in result.output and caramel.Plan.load(file).prediction is not None
    )


@pytest.mark.soak
def test_on_server_processes(write, tmp_path, namespaces):
    script, file = write(SCRIPT, "train.py"), tmp_path / "plan.json"
    said = run("plan", script, "--workers", 4, "--measure", "--out", file)
    assert "measured: " in said.stdout and "predicted" in said.stdout
    assert load(tmp_path / "plan.network.json").workers == (4,)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--measure", "--analyzers", "trace"], "--analyzers does not go with --measure"),
        (["--measure", "--workers-on-host", "2"], "--workers-on-host does not go with --measure"),
    ],
)
def test_options_that_do_not_fit(arguments, said):
    result = CliRunner().invoke(main, ["plan", "x.py:build", "--workers", "2", *arguments])
    assert result.exit_code == 2 and said in result.output


@pytest.mark.parametrize("part", ["network", "trace"])
def test_a_file_beside_the_plan_that_cannot_be_written(write, tmp_path, part):
    """Before anything is measured for it."""
    (tmp_path / f"plan.{part}.json").mkdir()
    options = ["--workers", "2", "--measure", "--cluster", "in-process", "--out", str(tmp_path / "plan.json")]
    result = CliRunner().invoke(main, ["plan", f"{write(STEP)}:build", *options])
    assert result.exit_code == 1 and f"plan.{part}.json" in result.output and "of 4" not in result.output


def test_one_worker_has_no_network(write):
    result = CliRunner().invoke(main, ["plan", f"{write(STEP)}:build", "--workers", "1", "--measure"])
    assert result.exit_code == 1 and "there is no network to measure" in result.output


@pytest.mark.parametrize("largest_bytes, count", [(1, 3), (2**14, 3), (2**18 + 1, 4), (2**23, 6), (2**40, 8)])
def test_no_larger_sizes_than_need_be(largest_bytes, count):
    sizes = quick_up_to(largest_bytes).sizes
    assert sizes == QUICK.sizes[:count] and (sizes[-1] >= largest_bytes or sizes == QUICK.sizes)


# -- scripts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "option, instead",
    [
        ("--steps", "epochs="),
        ("--until-step", "epochs="),
        ("--checkpoint", "BackupAndRestore"),
    ],
)
def test_options_of_a_run_that_a_script_decides(option, instead):
    result = CliRunner().invoke(main, ["run", "train.py", "--workers", "2", option, "3"])
    assert result.exit_code == 2 and f"{option} belongs to FILE.py:ENTRY" in result.output and instead in result.output


@pytest.mark.parametrize("command", ["run", "plan", "trace"])
def test_arguments_of_a_script_without_dashes(command):
    result = CliRunner().invoke(main, [command, "train.py", "--workers", "2", "--epochs", "3"])
    assert result.exit_code == 2 and "No such option" in result.output and "FILE.py ... -- ARGUMENTS" in result.output
    result = CliRunner().invoke(main, [command, "train.py:program", "--workers", "2", "--epochs", "3"])
    assert result.exit_code == 2 and "ARGUMENTS of the script" not in result.output


@pytest.mark.parametrize("command", ["run", "plan", "trace"])
@pytest.mark.parametrize("name, what", [("trian.py", "script 'trian.py'"), ("trian.py:x", "program file 'trian.py'")])
def test_a_file_that_is_not_there_is_missed_at_once(command, name, what, python):
    options = ["--out", "t.json"] if command == "trace" else ["--workers", "2"]
    without = "import sys; sys.modules['tensorflow'] = None; from caramel.cli.main import main; main()"
    ended = python("-c", without, command, name, *options)
    assert ended.returncode == 1 and ended.stderr == f"Error: there is no {what}\n"


def test_ctrl_c_has_the_exit_status_of_the_signal(monkeypatch, write):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("caramel.cli.plan.loaded_program", interrupt)
    result = CliRunner().invoke(main, ["plan", str(write(SCRIPT)), "--workers", "2"])
    assert result.exit_code == 130 and result.stderr == "interrupted\n"


@pytest.mark.slow
def test_a_script_that_is_interrupted(write, python):
    """Ctrl-C: the running step is the last one, and the exit status is that of the signal."""
    script = write(
        SCRIPT.replace("epochs=2", "epochs=10**6, callbacks=[Signals()]").replace(
            "    model = ",
            "    import os, signal\n    class Signals(keras.callbacks.Callback):\n"
            "        def on_train_batch_end(self, batch, logs=None):\n"
            "            if batch == 1:\n"
            "                os.kill(os.getpid(), signal.SIGINT)\n    model = ",
            1,
        )
    )
    ended = python("-m", "caramel", "run", script, "--workers", 2)
    assert ended.returncode == 128 + signal.SIGINT, ended.stderr
    assert "BackupAndRestore" in ended.stderr and "Traceback" not in ended.stderr
