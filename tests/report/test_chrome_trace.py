"""Files for trace viewers: what they show, that tracks nest as viewers need it, and their size."""

import json
import time
from collections import defaultdict

import pytest

from caramel.errors import InputError, ReportError
from caramel.report.chrome_trace import MOST_BYTES, trace_events, write_timeline
from caramel.report.predicted import predicted_timeline
from caramel.report.step_timeline import Bar, Lanes, StepTimeline


def threads(document):
    """The bars of each thread, by process and name of the thread."""
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"}
    found = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            found[event["pid"], names[event["pid"], event["tid"]]].append(event)
    return found


def test_predicted_and_measured_are_beside_each_other(planned):
    predicted = predicted_timeline(planned.plan)
    lanes = (Bar("forward pass", "MatMul", 0.0, 2e-3), Bar("stall", "no op runs", 2e-3, 3e-3, 0, cause="transfer 0"))
    link = (Bar("transfer", "transfer 0", 1e-3, 3e-3, 0),)
    measured = StepTimeline("measured", 3e-3, tuple(Lanes(rank, lanes, link, ((2e-3, 64),)) for rank in range(3)))
    document = json.loads(trace_events(planned.plan, [predicted, measured]))
    found = threads(document)
    kinds = {f"{lane}, {source}" for lane in ("computation", "link") for source in ("predicted", "measured")}
    for rank in range(3):
        assert kinds <= {name for process, name in found if process == rank + 1}
    (sent,) = found[1, "link, measured"]
    assert (sent["ts"], sent["dur"]) == (1000.0, 2000.0)
    assert set(sent["args"]["gradients"].split(", ")) == set(planned.plan.transfers[0].gradients)
    assert sent["args"]["bytes"] == planned.plan.transfers[0].size_bytes
    stall = next(event for event in found[1, "computation, measured"] if event["cat"] == "stall")
    assert stall["args"] == {"waits for": "transfer 0"}
    counters = [event for event in document["traceEvents"] if event["ph"] == "C"]
    assert [event["args"]["received"] for event in counters] == [64] * 3
    names = {e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"}
    assert names == {"worker 0", "worker 1", "worker 2"}
    assert document["otherData"]["measured step [ms]"] == 3.0


def test_workers_and_servers_are_the_same_processes_in_every_step():
    """A prediction has the first workers only, and all servers."""
    bars = (Bar("forward pass", "MatMul", 0.0, 1e-3),)

    def step(source, workers):
        lanes = [tuple(Lanes(rank, bars, ()) for rank in range(count)) for count in (workers, 2)]
        return StepTimeline(source, 1e-3, lanes[0], servers=lanes[1])

    events = json.loads(trace_events(None, [step("predicted", 16), step("measured", 20)]))["traceEvents"]
    names = {(event["pid"], event["args"]["name"]) for event in events if event["name"] == "process_name"}
    assert len(names) == len({process for process, _ in names}) == len({name for _, name in names}) == 22


def test_bars_of_a_thread_do_not_overlap_and_threads_are_numbered_once(large_step):
    document = json.loads(trace_events(None, [large_step(300, 2)]))
    for events in threads(document).values():
        for before, after in zip(events, events[1:]):
            assert before["ts"] + before["dur"] <= after["ts"] + 2e-3  # of nanoseconds
    numbers = [(e["pid"], e["tid"]) for e in document["traceEvents"] if e["name"] == "thread_name"]
    assert len({tid for _, tid in numbers}) == len(numbers) and min(min(pair) for pair in numbers) > 0


@pytest.mark.parametrize("ops, workers", [(5000, 8), (20, 3)])
def test_a_file_is_small_and_quickly_written(large_step, tmp_path, ops, workers):
    steps = [large_step(ops, workers)]
    start_s = time.process_time()
    write_timeline(tmp_path / "out.json", None, steps)
    assert time.process_time() - start_s < 10
    assert 0 < (tmp_path / "out.json").stat().st_size <= MOST_BYTES
    found = threads(json.loads((tmp_path / "out.json").read_text()))
    assert {process for process, _ in found} == set(range(1, workers + 1))


def test_a_small_file_still_has_all_lanes(large_step):
    text = trace_events(None, [large_step(1000, 3)], most_bytes=20_000)
    assert len(text) <= 20_000
    found = threads(json.loads(text))
    assert {(process, name) for process, name in found} >= {(n, "link, measured") for n in (1, 2, 3)}
    names = [event["name"].split() for (_, name), events in found.items() for event in events]
    assert sum(int(words[0]) for words in names if "short" in words) > 1000


def test_nothing_to_draw_is_refused(planned):
    with pytest.raises(InputError, match="nothing to draw"):
        trace_events(planned.plan, [])


def test_a_file_that_cannot_be_written(large_step, tmp_path):
    with pytest.raises(ReportError, match=r"the timeline cannot be written to .*none/out\.json'"):
        write_timeline(tmp_path / "none" / "out.json", None, [large_step(2, 1)])
    assert list(tmp_path.iterdir()) == []
