"""Contenders take turns; whoever fails or trains otherwise is out, and the rest goes on."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from benchmarks.training import names
from benchmarks.training.contender import Burst
from benchmarks.training.effort import FULL
from benchmarks.training.entry import Conditions
from benchmarks.training.grid import best_of, cells, fitted_times, is_core, link_rate, run_cell, sweep, with_rho
from benchmarks.training.meters import Reading, processor_times_s
from benchmarks.training.records import Cell
from caramel.errors import ClusterError, InputError

CELL = Cell("vgg", 4, 1.0)
CONDITIONS = Conditions(
    *(64, "abc", (90.0, 100.0, 150.0), 1.5),
    limit=lambda compute_s: 1.1 * compute_s,
    predicted_s={"caramel": 1.9, "mwms": 7.0},
)


class Fake:
    """A contender whose steps take known times: the first of a burst far too long."""

    log: ClassVar[list[str]] = []

    def __init__(self, name, step_s=(1.0,), losses=(3.0, 2.0, 1.0), fails_in=None, settings=None):
        self.name, self.settings = name, settings or {}
        self._step_s, self._losses, self._fails_in = step_s, losses, fails_in
        self._bursts, self._steps, self.closed = 0, 0, 0

    def run(self, steps):
        Fake.log.append(self.name)
        self._bursts += 1
        if self._bursts == self._fails_in:
            raise ClusterError(f"{self.name} broke\nwith a trace")
        time_s = self._step_s[(self._bursts - 1) % len(self._step_s)]
        losses = [self._losses[min(self._steps + n, len(self._losses) - 1)] for n in range(steps)]
        self._steps += steps
        return Burst((99.0, *([time_s] * (steps - 1))), tuple(losses))

    def pids(self):
        return [1, 2]

    def close(self):
        self.closed += 1


@pytest.fixture(autouse=True)
def log():
    Fake.log = []
    return Fake.log


def run(*contenders, rounds=3, steps=2):
    """Between two readings there are bursts of three steps."""
    readings = (Reading((6.0 * n, 3.0 * n), (300.0 * n, 600.0 * n), (900.0 * n, 0.0)) for n in range(10**6))
    return run_cell(CELL, contenders, CONDITIONS, lambda pids: next(readings), rounds, steps)


def test_rows_have_what_was_measured(log):
    ours, theirs = Fake("caramel", (50.0, 2.0, 4.0, 3.0)), Fake("mwms", (5.0,))
    rows = {row.contender: row for row in run(Fake("compute", (1.0,), losses=(8.0,)), ours, theirs)}
    assert rows["caramel"].times_s == (2.0, 4.0, 3.0)  # without the first burst, and the first step of each
    assert rows["caramel"].time_s == 3.0 and rows["caramel"].predicted_s == 1.9
    assert rows["caramel"].compute_s == 1.0 and rows["caramel"].limit_s == pytest.approx(1.1)
    assert rows["caramel"].naive_limit_s == 1.5 and rows["mwms"].predicted_s == 7.0
    assert rows["caramel"].processor_s == 3.0 and rows["caramel"].host_processor_s == (2.0, 1.0)  # of three steps
    assert rows["caramel"].sent_bytes == 150.0 and rows["caramel"].host_sent_bytes == (100.0, 200.0)
    assert rows["caramel"].host_received_bytes == (300.0, 0.0)
    assert rows["caramel"].link_bytes_per_s == 100.0 and rows["caramel"].program == "abc"
    assert rows["caramel"].losses == (3.0, 2.0, 1.0, 1.0)
    assert all(row.error is None and row.cell == CELL for row in rows.values())
    # Everybody once, then rounds that begin with another one each time.
    assert log == [
        *("compute", "caramel", "mwms"),
        *("compute", "caramel", "mwms"),
        *("caramel", "mwms", "compute"),
        *("mwms", "compute", "caramel"),
    ]


def test_who_fails_is_out_and_the_others_go_on():
    broken, late = Fake("mwms", fails_in=1), Fake("horovod", fails_in=3)
    rows = {row.contender: row for row in run(broken, Fake("caramel", (2.0,)), late)}
    assert rows["mwms"].error == "mwms broke" and rows["mwms"].times_s == ()
    assert rows["horovod"].time_s is None and len(rows["horovod"].times_s) == 1
    assert rows["caramel"].time_s == 2.0 and rows["caramel"].compute_s is None
    assert broken.closed == late.closed == 1


def test_who_lost_its_processes_is_out_and_the_others_go_on():
    class Gone(Fake):
        def pids(self):
            raise ClusterError("the cluster is closed")

    gone = Gone("mwms")
    rows = {row.contender: row for row in run(gone, Fake("caramel", (2.0,)))}
    assert rows["mwms"].error == "the cluster is closed" and rows["mwms"].times_s == ()
    assert rows["caramel"].time_s == 2.0 and gone.closed == 1


@pytest.mark.parametrize("losses, agrees", [((3.0, 2.0, 1.0005), True), ((3.0, 2.0, 1.002), False)])
def test_who_trains_otherwise_is_out(losses, agrees):
    rows = {row.contender: row for row in run(Fake("caramel"), Fake("mwms"), Fake("horovod", losses=losses))}
    assert (rows["horovod"].error is None) == agrees
    if not agrees:
        assert rows["horovod"].error == "does not train as mwms does: loss 1.002 in step 3, and not 1"
    assert rows["caramel"].error is rows["mwms"].error is None


def test_the_peers_judge_this_library_and_not_the_other_way_round():
    wrong = (3.0, 2.5, 2.0)
    ours = [Fake(name, losses=wrong) for name in ("caramel", "caramel_paper")]
    rows = {row.contender: row for row in run(*ours, Fake("horovod"), Fake("mwms", fails_in=1))}
    assert rows["caramel"].error == "does not train as horovod does: loss 2.5 in step 2, and not 2"
    assert rows["caramel_paper"].error is not None and rows["horovod"].error is None
    assert [row.error for row in run(Fake("caramel"), Fake("caramel_paper"))] == [None, None]


def test_computation_alone_has_losses_of_its_own():
    rows = run(Fake("compute", losses=(9.0,)), Fake("caramel"), Fake("mwms"))
    assert [row.error for row in rows] == [None, None, None]


@pytest.mark.parametrize("numbers", [{"rounds": 0}, {"steps": 0}])
def test_nothing_to_measure(numbers):
    with pytest.raises(InputError, match="at least one of each"):
        run(Fake("caramel"), **numbers)


def test_a_name_twice():
    with pytest.raises(InputError, match="no name twice"):
        run(Fake("caramel"), Fake("caramel"))


def test_the_best_settings_are_those_with_the_least_median():
    made = []

    def maker(step_s, fails_in=None):
        def make():
            made.append(Fake("horovod", step_s, fails_in=fails_in))
            return made[-1]

        return make

    tried = [
        ({"size": 1}, maker((9.0, 3.0, 3.0))),
        ({"size": 2}, maker((9.0, 1.0, 1.5))),
        ({"size": 3}, maker((0.1, 0.1, 0.1), fails_in=2)),
    ]
    found = sweep(tried, bursts=2, steps=2)
    assert best_of(found) == {"size": 2}
    assert [each.time_s for each in found] == [3.0, 1.25, None]
    assert found[2].error == "horovod broke"
    assert all(each.closed for each in made)


def test_a_sweep_of_which_nothing_works():
    with pytest.raises(ClusterError, match="none of 1 settings works; the first one: horovod broke"):
        best_of(sweep([({}, lambda: Fake("horovod", fails_in=1))]))
    with pytest.raises(ClusterError, match="none of 0 settings works"):
        best_of(())
    with pytest.raises(InputError, match="at least one of each"):
        sweep([])


def test_the_cells():
    every = cells()
    assert len(every) == len(set(every)) == 6 * 3 + 2 * 2
    core = cells(core=True)
    assert every[: len(core)] == core and all(map(is_core, core)) and len(core) == 12
    assert {c.workers for c in every} == {2, 4, 8} and {c.rho for c in every} == {0.5, 1.0, 2.0}
    assert cells(workloads=["mlp"]) == [Cell("mlp", 4, rho) for rho in (1.0, 2.0, 0.5)]
    assert 0 < len(cells(quick=True)) < 4


@dataclass(frozen=True)
class Sending:
    """A workload that sends known bytes."""

    always_bytes: float
    example_bytes: float = 0.0
    examples: int = 64
    link_bits_per_s: float = 50e6

    def sent_bytes(self, workers):
        return self.always_bytes + self.example_bytes * self.examples / workers


def rho_of(workload, workers, fixed_s, example_s, rho):
    """What a workload comes to on links of the rate for this rho."""
    send_s = workload.sent_bytes(workers) / (link_rate(workload, rho) * 1448 / 1514)
    return send_s / (fixed_s + workload.examples * example_s)


@pytest.mark.parametrize("rho", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("fixed_s", [0.0, 0.1])
@pytest.mark.parametrize("example_bytes", [0, 3000])
@pytest.mark.parametrize("workers", [2, 4])
def test_batches_are_so_large_that_sending_takes_rho_times_as_long(rho, fixed_s, example_bytes, workers):
    nominal = Sending(5e6, example_bytes, examples=800)
    workload = with_rho(nominal, workers, fixed_s, 1e-3, rho)
    assert workload.examples % 8 == 0
    assert rho_of(workload, workers, fixed_s, 1e-3, rho) == pytest.approx(rho, rel=0.02)
    assert 0.2 < fixed_s + workload.examples * 1e-3 < 1.5
    assert workload.link_bits_per_s == nominal.link_bits_per_s


def test_a_tenth_of_the_examples_is_a_sensible_batch():
    """Links of another rate would have to be measured first."""
    nominal = Sending(4e5, examples=644)
    workload = with_rho(nominal, 4, 0.0, 1e-3, 1.0)
    assert (workload.examples, workload.link_bits_per_s) == (64, nominal.link_bits_per_s)


@pytest.mark.parametrize("rho", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(
    ("always_bytes", "example_bytes", "fixed_s", "examples"),
    [
        (3e6, 48_000, 0.0, 640),  # more bytes than time in each example, with any of the three
        (5e6, 48_000, 1.2, 8),  # and a step that takes too long without any, as if less than none would do
        (4.85e6, 0, 0.78, 16),  # a step takes long without any: fewer than usual
        (5e6, 0, 3.0, 8),
        (2e5, 0, 0.0, 640),  # few would do
        (1e9, 0, 0.0, 640),  # so many would do that they do not fit into memory
    ],
)
def test_where_no_sensible_batch_does_the_links_are_chosen(rho, always_bytes, example_bytes, fixed_s, examples):
    workload = with_rho(Sending(always_bytes, example_bytes, examples=644), 4, fixed_s, 1e-3, rho)
    assert workload.examples == examples
    assert rho_of(workload, 4, fixed_s, 1e-3, rho) == pytest.approx(rho, rel=0.02)


@pytest.mark.parametrize(
    ("workload", "fixed_s", "example_s", "rho"),
    [
        (Sending(1e6), 0.0, 0.0, 1.0),
        (Sending(1e6), 0.0, float("nan"), 1.0),
        (Sending(1e6), -0.1, 1e-3, 1.0),
        (Sending(1e6), float("inf"), 1e-3, 1.0),
        (Sending(1e6), 0.0, 1e-3, 0.0),
        (Sending(1e6), 0.0, 1e-3, float("inf")),
        (Sending(0.0), 0.0, 1e-3, 1.0),
    ],
)
def test_no_batch_makes_that(workload, fixed_s, example_s, rho):
    with pytest.raises(InputError):
        with_rho(workload, 4, fixed_s, example_s, rho)


@pytest.mark.parametrize(
    ("small", "large", "expected"),
    [
        ((320, 0.5), (640, 0.75), (0.25, 0.25 / 320)),
        ((320, 0.25), (640, 0.75), (0.0, 0.75 / 640)),  # by the line, a step without examples takes less than nothing
        ((320, 0.75), (640, 0.5), (0.0, 0.5 / 640)),  # noise
    ],
)
def test_times_of_two_batches_give_those_of_any(small, large, expected):
    assert fitted_times(small, large) == pytest.approx(expected)


def test_processor_time_of_processes(tmp_path):
    import os

    before = processor_times_s([os.getpid(), os.getpid()])
    total = sum(range(3_000_000))
    after = processor_times_s([os.getpid()])
    assert list(before) == list(after) == [os.getpid()]
    assert total and before[os.getpid()] > 0 and 0 < after[os.getpid()] - before[os.getpid()] < 10
    assert processor_times_s([os.getpid(), 2**22 + 1]) is None


def test_variants_take_part_only_if_they_are_named():
    assert FULL.takes_part("caramel_paper") and not FULL.takes_part("caramel_rings")
    some = replace(FULL, contenders=("compute", "caramel_rings"))
    assert [name for name in names.TITLES if some.takes_part(name)] == ["compute", "caramel_rings"]
