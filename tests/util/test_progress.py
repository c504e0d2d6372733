"""A progress bar on a terminal; elsewhere a line now and then, and not a character about short work."""

import os
import pty
import subprocess
import sys

import pytest

from caramel.util.progress import progress_over

LOOP = """
from caramel.util.progress import progress_over

with progress_over(3, enabled={enabled}) as report:
    for done in range(1, 4):
        report(done, "loss 0.5")
"""


def test_quiet_where_there_is_no_terminal(capfd):
    with progress_over(3) as report:
        report(1, "loss 1")
    with progress_over(None) as report:
        report(1, "loss 1")
    assert capfd.readouterr() == ("", "")


def test_a_line_now_and_then_where_there_is_no_terminal(capfd, monkeypatch):
    clock = iter([100.0, 104.0, 110.0, 115.0, 121.0, 130.0])
    monkeypatch.setattr("caramel.util.progress.time.monotonic", lambda: next(clock))
    with progress_over(5) as report:
        for done in range(1, 6):
            report(done, f"loss {done}")
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines() == ["2 of 5: loss 2 (10 s, about 18 s to go)", "4 of 5: loss 4 (21 s, about 6 s to go)"]


def test_lines_about_work_of_unknown_length(capfd, monkeypatch):
    clock = iter([100.0, 110.0])
    monkeypatch.setattr("caramel.util.progress.time.monotonic", lambda: next(clock))
    with progress_over(None) as report:
        report(7, "loss 1")
    assert capfd.readouterr().err == "7: loss 1 (10 s)\n"


def test_lines_that_say_what_is_counted_and_when_it_ends(capfd, monkeypatch):
    clock = iter([100.0, 110.0, 100.0, 110.0])
    monkeypatch.setattr("caramel.util.progress.time.monotonic", lambda: next(clock))
    for total in (None, 70):
        with progress_over(total, unit="steps", end="until the data ends") as report:
            report(7, "loss 1")
    assert capfd.readouterr().err.splitlines() == [
        "7 steps, until the data ends: loss 1 (10 s)",
        "7 of 70 steps: loss 1 (10 s)",
    ]


def test_a_slow_start_does_not_count_for_what_is_left(capfd, monkeypatch):
    """Servers start before the first round."""
    clock = iter([100.0, 140.0, 141.0, 152.0])
    monkeypatch.setattr("caramel.util.progress.time.monotonic", lambda: next(clock))
    with progress_over(13) as report:
        for done in range(1, 4):
            report(done, "loss 1")
    assert capfd.readouterr().err.splitlines() == ["1 of 13: loss 1 (40 s)", "3 of 13: loss 1 (52 s, about 60 s to go)"]


@pytest.mark.parametrize("enabled", [True, False])
def test_a_bar_on_a_terminal_if_wanted(enabled):
    ours, theirs = pty.openpty()
    try:
        result = subprocess.run(
            [sys.executable, "-c", LOOP.format(enabled=enabled)],
            stderr=theirs,
            stdout=subprocess.PIPE,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
            check=True,
        )
    finally:
        os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:
        pass  # this is how the end of a terminal's output looks
    os.close(ours)
    assert result.stdout == b""
    assert (b"3/3" in shown and b"loss 0.5" in shown) if enabled else shown == b""
