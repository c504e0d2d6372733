"""Whatever fails, the run goes on, the record says what failed, and nobody pays for the failure of another one."""

import json
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from benchmarks.testbed.commands import TestbedError
from benchmarks.training import __main__ as program
from benchmarks.training.contender import Burst
from benchmarks.training.effort import FULL, QUICK
from benchmarks.training.grid import run_cell
from benchmarks.training.meters import Reading
from benchmarks.training.ours import OPTIONS
from benchmarks.training.records import Cell, Origin, Record, Tried, load
from benchmarks.training.report import cell_table
from benchmarks.training.shared import Group, Member
from caramel.errors import ClusterError, InputError

ORIGIN = Origin(None, None, {"kernel": "6.1"}, "c0ffee")
CELLS = [Cell("vgg", 4, 1.0), Cell("mlp", 4, 1.0), Cell("mlp", 2, 1.0)]


# -- contenders on shared processes --------------------------------------------------------------


class Fake:
    """A contender that fails in one of its bursts, and whatever it does from the time its processes are stopped."""

    name, settings = "kind", {"size": 1}

    def __init__(self, log, fails_in=None):
        self._log, self._fails_in, self._bursts = log, fails_in, 0
        self.is_running = True
        log.append("made")

    def run(self, steps):
        self._bursts += 1
        if not self.is_running or self._bursts == self._fails_in:
            raise ClusterError("it broke")
        self._log.append(steps)
        return Burst((1.0,) * steps, (1.0,) * steps)

    def pids(self):
        if not self.is_running:
            raise ClusterError("no processes")
        return [1]

    def close(self):
        self._log.append("closed")
        raise ClusterError("it cannot be closed")


class Lasting(Fake):
    """One that ends as it should."""

    def close(self):
        pass


class Processes:
    """What several contenders share."""

    def __init__(self):
        self.made = []
        self.stopped = 0

    def stop(self):
        self.stopped += 1
        for contender in self.made:
            contender.is_running = False
        raise ClusterError("they do not stop as they should")

    def maker(self, log, fails_in=None):
        def make():
            self.made.append(Fake(log, fails_in))
            return self.made[-1]

        return make


def test_after_a_failure_the_others_are_made_again():
    processes, logs = Processes(), ([], [])
    group = Group(processes.stop)
    steady = Member("steady", group, processes.maker(logs[0]))
    broken = Member("broken", group, processes.maker(logs[1], fails_in=2))
    assert (steady.name, steady.settings) == ("steady", {"size": 1})
    steady.run(3)
    broken.run(3)
    with pytest.raises(ClusterError, match="it broke"):
        broken.run(3)
    assert processes.stopped == 1
    assert steady.pids() == [1]
    assert len(steady.run(4).times_s) == 4
    assert processes.stopped == 1 and logs[0] == ["made", 3, "closed", "made", 2, 4]  # two steps settle it


def test_who_has_not_run_yet_begins_with_its_first_step():
    """Its first losses are those that are compared."""
    processes, log = Processes(), []
    group = Group(processes.stop)
    steady = Member("steady", group, processes.maker(log))
    broken = Member("broken", group, processes.maker([], fails_in=1))
    with pytest.raises(ClusterError, match="it broke"):
        broken.run(3)
    steady.run(4)
    assert log == ["made", "closed", "made", 4]


def test_a_contender_that_cannot_be_made_stops_the_processes_too():
    processes = Processes()
    group = Group(processes.stop)
    steady = Member("steady", group, processes.maker([]))

    def refused():
        raise InputError("not with these gradients")

    def broken():
        raise ClusterError("a worker ended")

    with pytest.raises(InputError):
        Member("refused", group, refused)
    assert processes.stopped == 0
    with pytest.raises(ClusterError, match="a worker ended"):
        Member("broken", group, broken)
    assert processes.stopped == 1 and len(steady.run(2).times_s) == 2


def test_a_cell_has_the_times_of_those_that_did_not_fail():
    processes = Processes()
    group = Group(processes.stop)
    contenders = [
        Member("compute", group, processes.maker([])),
        Member("caramel", Group(lambda: None), lambda: Fake([])),
        Member("mwms", group, processes.maker([], fails_in=2)),
    ]
    conditions = program.Conditions(64, "abc", [1e7], 0.5, lambda compute_s: compute_s)
    found = run_cell(CELLS[0], contenders, conditions, lambda pids: Reading((), (0.0,), (0.0,)), 3, 2)
    assert [(row.time_s, row.limit_s) for row in found] == [(1.0, 1.0), (1.0, 1.0), (None, 1.0)]
    assert [len(row.times_s) for row in found] == [3, 3, 0] and found[2].error == "it broke"


# -- whole cells ---------------------------------------------------------------------------------


class Site:
    """Hosts on which some things fail."""

    ended = 0

    def __init__(self, workers, python, effort, accelerated=False):
        self.workers = workers
        self.testbed = self
        self.taking_part = ("compute", "caramel", "mwms")
        self.sweepable, self.absent = ["mwms_best"], ()

    def set_rate(self, rate_bytes_per_s):
        if self.workers == 2:
            raise TestbedError("the process that holds the testbed's namespaces was ended")

    def computation(self, workload):
        if workload.name == "vgg":
            raise ClusterError("MultiWorkerMirroredStrategy ended")
        return Lasting([])

    def traced(self, workload):
        raise ClusterError("a traced step took too long\nsomewhere")

    def swept(self, workload, wanted):
        assert wanted == ["mwms_best"]
        return {"mwms_best": (Tried({}, 1.0, None),)}

    def contenders(self, workload, plans, swept):
        assert plans == dict.fromkeys(OPTIONS, "a traced step took too long") and list(swept) == ["mwms_best"]
        failed = program.Failed("caramel", {}, plans["caramel"])
        return [Member(name, Group(lambda: None), lambda: Lasting([])) for name in ("compute", "mwms")] + [failed]

    def link_rates_bytes_per_s(self):
        return [1e6, 2e6, 3e6]

    def meter(self):
        return lambda pids: Reading((), (0.0,), (0.0,))

    def end_cell(self):
        Site.ended += 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def test_cells_of_which_something_or_nothing_can_be_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(program, "Site", Site)
    path, effort = str(tmp_path / "a.json"), replace(QUICK, rounds=2)
    with pytest.raises(TestbedError):  # the testbed is gone, and with it all that might be measured
        program._measured(Record({}, {}), CELLS, None, effort, "abc", ORIGIN, path)
    record = load(path)
    assert list(record.cells) == ["vgg/4/1", "mlp/4/1"] and Site.ended == 2
    nothing, something = record.cells.values()
    assert [row.contender for row in nothing] == ["compute", "caramel", "mwms"]
    assert {row.error for row in nothing} == {"MultiWorkerMirroredStrategy ended"}
    assert [(row.contender, row.time_s, row.error) for row in something] == [
        ("compute", 1.0, None),
        ("mwms", 1.0, None),
        ("caramel", None, "a traced step took too long"),
    ]
    assert something[0].link_bytes_per_s == 2e6 and something[0].limit_s is None
    assert something[0].naive_limit_s == program.BY_NAME["mlp"].sent_bytes(4) / 2e6 > 1.0  # longer than the steps
    assert record.sweeps == {"mlp": {"mwms_best": (Tried({}, 1.0, None, "mlp/4/1"),)}}
    assert record.unfinished(CELLS[:2]) == [] and record.unfinished(CELLS[:2], retry=True) == CELLS[:2]


def test_a_cell_says_when_it_was_measured_and_how_long_it_took(monkeypatch, tmp_path):
    """The first one with what was prepared for all of them; none with what came before it."""
    clock = iter(range(100, 200, 10))
    monkeypatch.setattr(program, "Site", Site)
    monkeypatch.setattr(program, "now", lambda: f"at {next(clock)}")
    monkeypatch.setattr(program, "time", SimpleNamespace(monotonic=lambda: float(next(clock)), strftime=str))
    effort, cells = replace(QUICK, rounds=2), CELLS[:2]
    record = program._measured(Record({}, {}), cells, None, effort, "abc", ORIGIN, str(tmp_path / "a.json"))
    origins = [[row.origin for row in rows] for rows in record.cells.values()]
    assert origins == [[Origin(at, 10.0, {"kernel": "6.1"}, "c0ffee")] * 3 for at in ("at 100", "at 130")]
    assert load(tmp_path / "a.json") == record


def test_a_contender_says_in_which_cell_its_settings_were_chosen(tmp_path):
    site, cell = Site(4, None, QUICK), CELLS[1]
    site.contenders = lambda *_: [Lasting([]), Named("mwms_best"), Named("horovod_best")]
    older = {"mlp": {"mwms_best": (Tried({}, 1.0, None, "mlp/4/2"),), "horovod_best": (Tried({}, 1.0, None),)}}
    rows = program.measure(site, cell, program.Preparations(site, older, 3), replace(QUICK, rounds=2), "abc", tmp_path)
    assert [row.swept_in for row in rows] == [None, "mlp/4/2", None]
    rows = program.measure(site, cell, program.Preparations(site, {}, 3), replace(QUICK, rounds=2), "abc", tmp_path)
    assert [row.swept_in for row in rows] == [None, "mlp/4/1", None]


class Named(Lasting):
    """A contender with a name."""

    def __init__(self, name):
        super().__init__([])
        self.name = name


class Computing(Lasting):
    """It takes 0.25 s and a millisecond for each example, and long when something else ran before it."""

    def __init__(self, examples):
        super().__init__([])
        self._step_s = 0.25 + 1e-3 * examples

    def run(self, steps):
        return Burst((9.0, *[self._step_s] * (steps - 1)), (1.0,) * steps)


def test_a_cell_has_the_examples_that_the_measured_computation_asks_for():
    site = Site(4, None, QUICK)
    site.computation = lambda workload: Computing(workload.examples)
    for name, rho in (("vgg", 1.0), ("resnet", 2.0)):
        nominal = program.BY_NAME[name]
        found = program.Preparations(site, {}, 3).workload(Cell(name, 4, rho))
        assert found == program.with_rho(nominal, 4, 0.25, 1e-3, rho)
        send_s = found.sent_bytes(4) / (program.link_rate(found, rho) * 1448 / 1514)
        assert send_s / (0.25 + 1e-3 * found.examples) == pytest.approx(rho, rel=0.02)


@pytest.mark.parametrize(("slower", "largest"), [(1, 256), (2, 256), (4, 128), (40, 32)])
def test_a_slow_machine_computes_smaller_batches_first(slower, largest):
    """A step of the usual 256 examples takes half a second on a fast one; the batch of 32 comes first."""
    site, sizes = Site(4, None, QUICK), []

    def computation(workload):
        sizes.append(workload.examples)
        return Proportional(workload.examples * slower / 512)

    site.computation = computation
    found = program.Preparations(site, {}, 3).workload(Cell("resnet", 4, 1.0))
    assert sizes == [32, largest // 2, largest]
    assert found == program.with_rho(program.BY_NAME["resnet"], 4, 0.0, slower / 512, 1.0)


class Proportional(Lasting):
    """It takes so long."""

    def __init__(self, step_s):
        super().__init__([])
        self._step_s = step_s

    def run(self, steps):
        return Burst((self._step_s,) * steps, (1.0,) * steps)


def test_the_links_have_the_rate_that_was_chosen(tmp_path):
    rates, site, cell = [], Site(4, None, QUICK), Cell("vgg", 4, 1.0)
    site.set_rate = rates.append
    site.computation = lambda workload: Computing(1000 * workload.examples)  # too long for any batch
    preparations = program.Preparations(site, {}, 3)
    rows = program.measure(site, cell, preparations, replace(QUICK, rounds=2), "abc", tmp_path)
    chosen = preparations.workload(cell)
    assert rates == [program.link_rate(chosen, 1.0)] and rates[0] < program.link_rate(program.BY_NAME["vgg"], 1.0) / 2
    assert {row.examples for row in rows} == {chosen.examples}


def test_settings_are_tried_once_for_a_workload_unless_none_worked():
    site = Site(4, None, QUICK)
    worked, failed = {"mwms_best": (Tried({"size": 1}, 2.0, None),)}, {"mwms_best": (Tried({}, None, "late"),)}
    preparations = program.Preparations(site, {"vgg": worked, "mlp": failed}, 3)
    workloads = [program.BY_NAME[name] for name in ("vgg", "mlp", "tiny")]
    found = [preparations.swept(Cell(each.name, 4, 2.0), each)["mwms_best"] for each in workloads]
    assert found[0] == worked["mwms_best"]
    assert found[1:] == [(Tried({}, 1.0, None, f"{name}/4/2"),) for name in ("mlp", "tiny")]
    assert set(preparations.sweeps) == {"vgg", "mlp", "tiny"}


def test_only_the_settings_of_who_had_none_are_tried_again():
    site, cell = Site(4, None, QUICK), CELLS[0]
    site.sweepable = ["mwms_best", "horovod_best"]
    worked, failed = (Tried({"size": 1}, 2.0, None),), (Tried({}, None, "late"),)
    preparations = program.Preparations(site, {"vgg": {"mwms_best": failed, "horovod_best": worked}}, 3)
    assert preparations.swept(cell, None) == {
        "mwms_best": (Tried({}, 1.0, None, "vgg/4/1"),),
        "horovod_best": worked,
    }


class Lacking(Site):
    """Hosts without Horovod."""

    sweeps = 0

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.absent = ("horovod", "horovod_best", "compute_horovod")

    def swept(self, workload, wanted):
        Lacking.sweeps += 1
        return super().swept(workload, wanted)

    def traced(self, workload):
        raise ClusterError("a traced step took too long\nsomewhere")

    def contenders(self, workload, plans, swept):
        lost = [program.Failed(name, {}, "Horovod is not installed") for name in ("horovod", "horovod_best")]
        return [Named("compute"), Named("caramel"), *lost]


def test_who_cannot_run_is_not_tried_in_each_cell_nor_once_more(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(program, "Site", Lacking)
    monkeypatch.setattr(Lacking, "sweeps", 0)
    cells, path = [Cell("mlp", 4, rho) for rho in (1.0, 2.0, 0.5)], str(tmp_path / "a.json")
    record = program._measured(Record({}, {}), cells, None, replace(QUICK, rounds=2), "abc", ORIGIN, path)
    assert Lacking.sweeps == 1 and list(record.sweeps["mlp"]) == ["mwms_best"]
    for rows in record.cells.values():
        assert [(row.contender, row.error, row.is_absent) for row in rows] == [
            ("compute", None, False),
            ("caramel", None, False),
            ("horovod", "Horovod is not installed", True),
            ("horovod_best", "Horovod is not installed", True),
        ]
    assert load(path).unfinished(cells, retry=True) == []
    told = capsys.readouterr().err
    assert told.count("done, none failed; cannot run: horovod, horovod_best\n") == 3
    table = cell_table(record.cells["mlp/4/1"])
    assert "\n- horovod cannot run: Horovod is not installed\n" in table and "| horovod | - | cannot run |" in table


# -- which cells ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "cells"),
    [
        (["--workers", "8"], [Cell("vgg", 8, 1.0), Cell("transformer", 8, 1.0)]),
        (["--rho", "2", "--workload", "mlp"], [Cell("mlp", 4, 2.0)]),
        (["--workers", "2", "--workers", "8", "--workload", "vgg"], [Cell("vgg", 2, 1.0), Cell("vgg", 8, 1.0)]),
    ],
)
def test_only_cells_that_are_asked_for_are_measured(arguments, cells, monkeypatch, tmp_path):
    wanted = []
    monkeypatch.setattr(program, "horovod_versions", lambda python: {})
    monkeypatch.setattr(program, "check_system", lambda: None)
    monkeypatch.setattr(program, "_measured", lambda record, cells, *others: wanted.extend(cells) or record)
    told = CliRunner().invoke(program.main, [*arguments, "--results", str(tmp_path / "a.json")])
    assert told.exit_code == 0, told.output
    assert wanted == cells


@pytest.fixture
def nobody(monkeypatch):
    """A user who is not root."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(program, "horovod_versions", lambda python: {})
    monkeypatch.setattr(program, "versions_here", lambda **others: {})
    monkeypatch.setattr(program, "program_here", lambda: "abc")


def test_without_root_nothing_is_written(nobody, tmp_path):
    """Neither a record, and a message says what is missing; nor into one that is there."""
    arguments = ["--results", str(tmp_path / "a.json"), "--plots", str(tmp_path / "plots")]
    told = CliRunner().invoke(program.main, arguments)
    assert told.exit_code == 1 and not list(tmp_path.iterdir())
    assert told.output == "Error: building a testbed needs root, and this is user 1000: run it with sudo\n"
    (tmp_path / "a.json").write_text(json.dumps(asdict(Record({"kernel": "6.1"}, {}))))
    before = (tmp_path / "a.json").read_text()
    assert CliRunner().invoke(program.main, arguments).exit_code == 1
    assert (tmp_path / "a.json").read_text() == before


def test_without_root_what_is_measured_can_be_looked_at(nobody, monkeypatch, tmp_path):
    monkeypatch.setattr(program, "Site", Site)
    path, cell = str(tmp_path / "a.json"), Cell("mlp", 4, 1.0)
    record = Record({}, dict(FULL.settings))
    program._measured(record, [cell], None, replace(FULL, rounds=2), "abc", ORIGIN, path)
    chosen = ["--workload", "mlp", "--rho", "1", "--workers", "4", "--any-program"]
    told = CliRunner().invoke(program.main, [*chosen, "--results", path])
    assert told.exit_code == 0 and "### mlp, 4 workers, rho 1" in told.output, told.output


def test_cells_that_are_not_there_are_refused_before_anything_is_measured(tmp_path):
    told = CliRunner().invoke(program.main, ["--workers", "3", "--results", str(tmp_path / "a.json")])
    assert told.exit_code == 1 and "no cell is such; there are vgg, 4 workers, rho 1" in told.output
    assert not list(tmp_path.iterdir())
