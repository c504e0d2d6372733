"""How much the command says: `-v`, `-q`, `--log-file`, and `--json`, which leaves standard output to a program."""

import json
import logging
import re
import textwrap
import warnings

import pytest
from click.testing import CliRunner
from small_programs import STEP

from caramel.cli.main import main
from caramel.netmodel.file import save
from caramel.netmodel.line import Curve, Sample
from caramel.netmodel.model import NetworkModel
from caramel.util.progress import progress_over

PROGRAM = STEP.replace(
    '"data": [batch]}',
    """"data": [batch], "evaluation": {
            "function": lambda x: {"sum": tf.reduce_sum(w), "odd": tf.constant(float("nan")), "name": tf.constant("w")},
            "inputs": [tf.TensorSpec([None, 3])],
            "data": (batch[0],),
        }}""",
)


@pytest.fixture
def run(write):
    program = f"{write(PROGRAM)}:build"

    def run_it(*arguments, command="run", before=(), status=0):
        given = [*before, command, program, "--workers", "2", *arguments]
        result = CliRunner().invoke(main, list(map(str, given)))
        assert result.exit_code == status, (result.output, result.exception)
        return result

    return run_it


def test_nothing_is_said_besides_results(run):
    assert run("--steps", 3).stderr == ""


@pytest.mark.parametrize("before, after", [(["-v"], []), ([], ["--verbose"]), (["-v"], ["--steps", "2"])])
def test_what_is_done(run, before, after):
    said = run(*after, before=before).stderr
    assert "compiled for 2 workers" in said and "opened a session" in said and "note of the plan" not in said


def test_more_of_it(run):
    assert "note of the plan" in run("-vv").stderr


def test_results_alone(run):
    quiet = run("-q", "--steps", 4).stdout
    assert "4 steps in" in quiet and "plan " not in quiet
    assert "plan " in run("--steps", 4).stdout  # and the next command is as ever


def test_warnings_are_lines_without_code(run, tmp_path):
    def warned(*more):
        written = write_text(
            tmp_path,
            PROGRAM.replace("        w = ", "        import warnings; warnings.warn('odd weights')\n        w = "),
        )
        return CliRunner().invoke(main, ["run", f"{written}:build", "--workers", "2", "--steps", "1", *more])

    def write_text(folder, text):
        import textwrap

        path = folder / "warns.py"
        path.write_text(textwrap.dedent(text))
        return path

    before = warnings.showwarning
    assert warned().stderr == "warning: odd weights\n"
    assert warned("-q").stderr == ""
    assert warnings.showwarning is before


def test_a_log_file_has_it_all_with_times(run, tmp_path):
    file = tmp_path / "run.log"
    run("--log-file", file, "--steps", 2, "-q")
    run("--log-file", file, "--steps", 3, before=["--log-file", file])
    failed = run("--log-file", file, "--checkpoint", tmp_path / "run.log" / "no", status=1)
    text = file.read_text()
    lines = text.splitlines()
    assert all(line[:4].isdigit() and line[4] == "-" for line in lines)
    assert text.count("2 steps in") == 1 and text.count("3 steps in") == 1
    assert "DEBUG caramel.armodel: note of the plan" in text
    assert lines[-1].endswith(failed.stderr.strip().removeprefix("Error: ")) and " ERROR " in lines[-1]
    assert logging.getLogger("caramel").handlers == []


def test_a_log_file_has_progress_even_of_what_shows_none(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("caramel.util.progress._LINE_INTERVAL_S", 0.0)
    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logger = logging.getLogger("caramel.util.progress")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        monkeypatch.setattr("caramel.util.progress._is_hidden", True)
        with progress_over(2, unit="steps") as report:
            report(1, "loss 3")
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    assert [line.partition(" (")[0] for line in records] == ["1 of 2 steps: loss 3"]
    assert capsys.readouterr().err == ""


def test_a_log_file_that_cannot_be_written(run):
    result = run("--log-file", "/nowhere/x.log", status=1)
    assert "'/nowhere/x.log' cannot be written" in result.stderr


def test_a_run_for_programs(run, tmp_path):
    result = run("--steps", 5, "--checkpoint", tmp_path / "saved", "--json")
    values = json.loads(result.stdout)
    assert (values["workers"], values["steps"], values["last_step"]) == (2, 5, 5)
    assert values["first_loss"] == 1.0 > values["last_loss"] > 0 and values["saved"].endswith("checkpoint-5")
    assert values["evaluation"]["name"] == "w" and values["evaluation"]["odd"] is None  # no number
    again = json.loads(run("--until-step", 7, "--checkpoint", tmp_path / "saved", "--json").stdout)
    assert (again["steps"], again["last_step"], again["restored"]) == (2, 7, values["saved"])
    assert again["plan"] == values["plan"]


def test_an_export_and_a_trace_for_programs(run, tmp_path):
    exported = json.loads(run("--out", tmp_path / "x", "--json", command="export").stdout)
    assert exported["written"] == [str(tmp_path / "x")] and exported["workers"] == 2
    options = ("--workers-on-host", 2, "--runs", 1, "--no-orders", "--out", tmp_path / "t.json", "--json")
    traced = json.loads(run(*options, command="trace").stdout)
    assert traced["step_s"] > 0 and traced["workers"] == 2 and traced["runs"] == 1 and traced["ops"] > 3


def test_a_network_for_programs(tmp_path):
    result = CliRunner().invoke(
        main, ["netbench", "--link-rate", "1Gbit/s", "--out", str(tmp_path / "n.json"), "--json"]
    )
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)
    assert values["written"] == [str(tmp_path / "n.json")]
    assert values["network"] == json.loads((tmp_path / "n.json").read_text())


@pytest.mark.parametrize("command", ["run", "plan"])
def test_what_a_program_prints_is_no_part_of_the_json(write, command, tmp_path):
    text = textwrap.dedent(PROGRAM).replace("    w = ", "    print('made')\n    w = ", 1)
    file = tmp_path / "network.json"
    curve = Curve.fitted(2, "shuffle", 1, [Sample(64, 1e-4), Sample(2**20, 2e-4)])
    save(NetworkModel("", (curve,)), file)
    options = [f"{write(text)}:build", "--workers", "2", "--json", "--network", str(file)]
    result = CliRunner().invoke(main, [command, *options])
    assert result.exit_code == 0, (result.output, result.exception)
    assert json.loads(result.stdout) and "made" in result.stderr


def test_a_log_file_that_cannot_be_opened(run, tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(logging.FileHandler, "_open", refuse)
    result = run("--log-file", tmp_path / "a.log", status=1)
    assert re.search(r"Error: '.*a\.log' cannot be written: Permission denied", result.stderr)
