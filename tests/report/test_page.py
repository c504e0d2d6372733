"""Reports: whole HTML that asks for nothing, with what it should say, small and quickly written, whatever names are."""

import re
import time
from array import array
from dataclasses import replace
from html.parser import HTMLParser

import pytest

import caramel
from caramel.errors import ReportError
from caramel.report.content import Report, advice, milliseconds, notes, shared_cores_warning
from caramel.report.figures import exposed_by_transfer, figures_of
from caramel.report.page import MOST_BYTES, report_page, write_report
from caramel.report.predicted import predicted_timeline
from caramel.report.run_record import RunRecord
from caramel.report.step_timeline import Bar, Lanes, StepTimeline
from caramel.report.what_helps import what_ifs
from caramel.runtime.step_result import StepResult

VOID = {"meta", "link", "line", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """What is in a page; wrong where tags do not match."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.addresses, self.texts, self.focusable = [], [], [], [], 0
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.append(tag)
        self.addresses += [
            given[name] for name in ("src", "href", "srcset", "action", "data", "poster") if given.get(name)
        ]
        self.focusable += tag in ("button", "summary") or given.get("tabindex") == "0"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open and self.open[-1] == tag, (tag, self.open[-3:])
            self.open.pop()

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def report_of(planned, **others):
    predicted = predicted_timeline(planned.plan)
    return Report("train.py:program", planned.plan, "1.2.3", predicted, what_ifs(planned.plan, planned.facts), **others)


@pytest.fixture
def measured():
    """A measured step of two workers, of which the second waits for transfer 0."""
    first = (Bar("forward pass", "MatMul", 0.0, 2e-3), Bar("backward pass", "MatMul_1", 2e-3, 6e-3))
    second = (
        Bar("forward pass", "MatMul", 0.0, 2e-3),
        Bar("stall", "no op runs", 2e-3, 5e-3, 0),
        Bar("update", "u", 5e-3, 6e-3),
    )
    link = (Bar("transfer", "transfer 0", 1e-3, 5e-3, 0), Bar("transfer", "transfer 1", 4e-3, 5.5e-3, 1))
    return StepTimeline("measured", 6e-3, (Lanes(0, first, link), Lanes(1, second, link)), ("a <note>",))


def test_figures_are_means_over_the_workers(measured):
    found = figures_of(measured)
    assert (found.step_s, found.compute_s) == pytest.approx((6e-3, 4.5e-3))
    assert (found.communication_s, found.exposed_s) == pytest.approx((4.5e-3, 1.5e-3))
    assert exposed_by_transfer(measured) == pytest.approx({0: 1.5e-3})


def test_a_page_says_what_there_is(planned, measured):
    page = Page(report_page(report_of(planned, measured=measured, warnings=("something & else",))))
    step, plan = planned.plan.prediction.timeline, planned.plan
    assert f"{step.iteration_s * 1e3:.3g} ms" in page.text and "6 ms" in page.text
    assert all(name in page.text for transfer in plan.transfers for name in transfer.gradients)
    assert "something & else" in page.text and "a <note>" in page.text
    assert "1.2.3" in page.text and plan.digest[:12] in page.text
    assert all(what_if.change in page.text for what_if in what_ifs(plan, planned.facts))
    assert "By the prediction the step waits for transfer" in page.text
    assert all(note in page.text for note in (*plan.notes, *plan.proof))


def test_a_page_asks_for_nothing(planned, measured):
    text = report_page(report_of(planned, measured=measured))
    assert set(Page(text).addresses) == {"data:,"}
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(|fetch\(|XMLHttpRequest|import\(", text)


def test_everything_wide_scrolls_by_itself_and_can_be_reached_by_keys(planned, measured):
    text = report_page(report_of(planned, measured=measured))
    assert text.count("<table") == len(re.findall(r'<div class="scroll" tabindex="0"[^>]*>\s*<table', text)) == 3
    assert Page(text).focusable >= 4 + len(planned.plan.transfers)


def test_names_are_text_and_no_markup(planned):
    evil = "<script>alert(1)</script>\"'&"
    report = replace(report_of(planned, warnings=(evil,)), title=evil)
    page = Page(report_page(report))
    assert page.tags.count("script") == 1 and page.text.count("alert(1)") >= 2


def test_a_plan_of_local_steps_has_a_page(context):
    """It says what is exchanged, and that this is another mathematics, in place of gradients that do not travel."""
    plan = caramel.ARModel(context, 2, sync_every=7).plan
    text = " ".join(Page(report_page(Report("x", plan, "1"))).text.split())
    assert "This is not the training of one device" in text and "after at most 7 steps" in text
    assert (
        "Nothing is predicted of steps" in text
        and "Gradients are combined" not in text
        and "exposed, predicted" not in text
    )


def test_a_plan_without_a_prediction_has_a_page(context):
    plan = caramel.ARModel(context, 2).plan
    page = Page(report_page(Report("x", plan, "1")))
    assert "Nothing is predicted" in page.text and "svg" not in page.tags


@pytest.mark.parametrize("gradients", [400, 20_000])
def test_a_page_is_small_and_quickly_written(planned, large_step, tmp_path, gradients):
    transfer = replace(planned.plan.transfers[0], reason="of a long reason " * 5)
    names = [f"model/block_{n}/a/rather/long/name/of/a/layer/kernel" for n in range(gradients)]
    pieces = [replace(transfer.pieces[0], gradient=name) for name in names]
    transfers = tuple(replace(transfer, pieces=tuple(pieces[n::200])) for n in range(200))
    plan = replace(planned.plan, transfers=transfers, prediction=None)
    report = Report("large", plan, "1", None, (), large_step(5000, 8))
    start_s = time.perf_counter()
    write_report(tmp_path / "out.html", report)
    assert time.perf_counter() - start_s < 10
    assert (tmp_path / "out.html").stat().st_size <= MOST_BYTES
    assert "worker 7" in Page((tmp_path / "out.html").read_text()).text


def test_a_page_that_cannot_be_written(planned, tmp_path):
    with pytest.raises(ReportError, match=r"the report cannot be written to .*none/out\.html'"):
        write_report(tmp_path / "none" / "out.html", report_of(planned))
    assert list(tmp_path.iterdir()) == []


class Untraced:
    """In the place of a session, of which nothing is wanted."""

    data_wait_s = 0.0

    def trace_next(self, on_metadata):
        """Trace nothing."""


def recorded(planned, losses):
    """The record of a training with these losses."""
    record = RunRecord(Untraced())
    for step, loss in enumerate(losses, 1):
        record.note([StepResult(step, loss, (), 24, (8, 8, 8), {})])
    return record


def test_the_head_has_the_median_of_plain_steps_and_their_examples(planned):
    record = recorded(planned, [3.0, 2.5, 2.0, *[1.0] * 9])
    record.step_s[:] = array("d", [9.0, 8.0, 7.0, 5.0, 5.0, 5.0, 0.1, 0.2, 0.3, 0.1, 0.2, 0.3])  # 1, 4, 5, 6 are traced
    assert record.median_step_s == pytest.approx(0.2) and record.examples_per_s == pytest.approx(6 * 24 / 1.2)
    text = Page(report_page(report_of(planned, record=record))).text
    assert "200 ms median of 6 steps" in text and "120 /s" in text and "after 12 steps; first 3" in text
    assert "outside the interval" in text


def test_a_step_below_the_bound_that_waits_for_its_data(planned):
    """The bound says nothing of the wait: it is below without it, and the figure is without it, too."""
    prediction = planned.plan.prediction
    record = recorded(planned, [1.0] * 12)
    wait_s = 1.0  # long beside the step
    record.step_s[:] = array("d", [0.8 * prediction.lower_bound_s + wait_s] * 12)
    record._waits_s[:] = array("d", [wait_s] * len(record._waits_s))
    wide = replace(planned.plan, prediction=replace(prediction, interval=None))
    texts = [text for _, text in notes(replace(report_of(planned, record=record), plan=wide))]
    (below,) = (text for text in texts if "is shorter than the lower bound" in text)
    assert milliseconds(0.8 * prediction.lower_bound_s) in below


def test_what_is_measured_is_said_beside_what_is_predicted(planned, measured):
    """Transfers for which a traced step waits longer than the predicted one, and a step that is shorter than the bound."""
    prediction = planned.plan.prediction
    lower_s = prediction.lower_bound_s
    for share, is_below in ((0.9, True), (1.1, False)):
        record = recorded(planned, [1.0] * 12)
        record.step_s[:] = array("d", [share * lower_s] * 12)
        wide = replace(planned.plan, prediction=replace(prediction, interval=None))
        texts = [text for _, text in notes(replace(report_of(planned, record=record), plan=wide))]
        assert any("is shorter than the lower bound" in text for text in texts) == is_below
    longer = replace(measured, iteration_s=100 * prediction.timeline.iteration_s)
    exposed_s = figures_of(longer).exposed_s
    assert exposed_s > prediction.timeline.exposed_s
    for shares_cores, words in ((True, "Workers share cores here"), (False, "Trace and measure the network anew")):
        said = advice(replace(report_of(planned, measured=longer), shares_cores=shares_cores))
        (sentence,) = [text for text in said if text.startswith("In the traced step it waits for transfers")]
        assert words in sentence and milliseconds(exposed_s) in sentence
    alone = replace(measured, workers=measured.workers[:1], iteration_s=0.0)
    assert not any("In the traced step" in text for text in advice(report_of(planned, measured=alone)))


def test_steps_of_one_run_share_its_time(planned):
    """Four runs of three steps, of which the first three do not count, and the first of two steps."""
    record = RunRecord(Untraced(), is_drawn=False)
    for run in range(4):
        record.note([StepResult(3 * run + step, 1.0, (), 24, (8, 8, 8), {}) for step in (1, 2, 3)])
    record.note([StepResult(step, 1.0, (), 24, (8, 8, 8), {}) for step in (13, 14)])
    assert record.steps_in_run == 3
    assert len(record.losses) == len(record.step_s) == 14 and record.examples == 3 * 24
    assert record.plain_steps_s == [record.step_s[11]] * 3


def test_a_loss_that_is_no_number_is_a_warning(planned):
    bad = report_of(planned, record=recorded(planned, [1.0, float("nan"), 2.0]))
    assert ("warning", "The loss is no finite number in step 2 of this run.") in notes(bad)
    assert not any("finite" in text for _, text in notes(report_of(planned, record=recorded(planned, [1.0]))))


def test_workers_that_share_cores_are_named():
    assert shared_cores_warning(2, 2) is None
    assert "4 workers share the 2 cores" in shared_cores_warning(4, 2)
    assert "2 workers share the 1 core of" in shared_cores_warning(2, 1)


# -- what would help ---------------------------------------------------------------------------


def with_network(planned, network):
    return caramel.ARModel(planned.context, 3, trace=planned.facts[caramel.facts.Trace], network=network)


def by_word(model):
    return {what_if.change.split()[0]: what_if for what_if in what_ifs(model.plan, model.facts)}


def test_half_the_bytes_are_as_good_as_links_twice_as_fast_where_messages_take_no_time(planned):
    found = by_word(with_network(planned, caramel.NetworkModel.from_costs(0.0, 5e-6)))
    assert found["Fewer"].step_s == pytest.approx(found["Links"].step_s)
    assert found["Fewer"].gain > 0.05
    assert found["Nothing"].step_s <= found["Links"].step_s


def test_where_messages_are_all_that_takes_time_fewer_bytes_do_not_help(planned):
    found = by_word(with_network(planned, caramel.NetworkModel.from_costs(2e-3, 0.0)))
    assert found["Fewer"].gain == pytest.approx(0.0, abs=1e-9)
    assert found["Links"].gain > 0.05


def test_links_are_no_advice_where_no_step_waits_for_them(planned):
    for seconds_of_a_byte, waits in ((1e-12, False), (5e-6, True)):
        model = with_network(planned, caramel.NetworkModel.from_costs(0.0, seconds_of_a_byte))
        said = " ".join(advice(report_of(model)))
        assert ("By the prediction the step waits for transfer" in said) == waits, said
        assert ("the step takes what its computation takes" in said) == (not waits)
        assert not (("faster links" in said) and not waits)


def test_larger_batches_send_less_for_each_example(planned):
    found = by_word(planned)
    now = planned.plan.prediction.timeline
    assert found["Batches"].step_s < now.iteration_s and found["Batches"].step_s >= now.iteration_s / 2
    assert found["Nothing"].step_s == pytest.approx(now.compute_s)


def test_nothing_is_said_of_a_plan_from_elsewhere(planned):
    model = caramel.ARModel(planned.context, 3, plan=planned.plan)
    assert what_ifs(model.plan, model.facts) == ()
