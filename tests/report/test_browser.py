"""Reports in a real browser: nothing on the console, no request, nothing wider than the page, keys and zoom work.

It needs Playwright for Python (the extra ``browser``) and a Chromium of the system. `make browser` installs the first and
keeps the screenshots in build/browser.
"""

import os
import shutil
from pathlib import Path

import pytest

from caramel.report.content import Report
from caramel.report.page import write_report
from caramel.report.predicted import predicted_timeline
from caramel.report.run_record import RunRecord
from caramel.report.what_helps import what_ifs
from caramel.runtime.step_result import StepResult

playwright_api = pytest.importorskip("playwright.sync_api", reason="needs Playwright: the extra browser")

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next((found for found in map(shutil.which, NAMES) if found), None)
SWITCHES = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason=f"needs a browser of the system: one of {', '.join(NAMES)}"),
]


class Untraced:
    """In the place of a session, of which nothing is wanted."""

    data_wait_s = 0.0

    def trace_next(self, on_metadata):
        """Trace nothing."""


@pytest.fixture(scope="module")
def report(planned, tmp_path_factory):
    """The file of a report with all that a report can have."""
    record = RunRecord(Untraced())
    for step in range(1, 200):
        record.note([StepResult(step, 3.0 / step, (), 24, (8, 8, 8), {})])
    path = tmp_path_factory.mktemp("report") / "report.html"
    predicted = predicted_timeline(planned.plan)
    warnings = ("a warning with a word that is " + "very" * 60 + " long",)
    what = what_ifs(planned.plan, planned.facts)
    write_report(path, Report("train.py:program", planned.plan, "1.2.3", predicted, what, predicted, record, warnings))
    return path


@pytest.fixture(scope="module")
def browser():
    """A headless browser with a profile of its own."""
    with playwright_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=list(SWITCHES))
        yield running
        running.close()


@pytest.fixture
def opened(browser, report):
    """Function that opens the report at a width; the page and what it complained of or asked for."""
    pages = []

    def open_at(width, scheme="light"):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        pages.append(page)
        heard = []
        page.on("console", lambda message: heard.append(message.text))
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.on("request", lambda asked: heard.append(asked.url) if asked.url != report.as_uri() else None)
        page.goto(report.as_uri())
        return page, heard

    yield open_at
    for page in pages:
        page.close()


def folder(tmp_path):
    """Where the screenshots go."""
    path = Path(os.environ.get("CARAMEL_SCREENSHOTS", tmp_path))
    path.mkdir(parents=True, exist_ok=True)
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 800, 1280])
def test_nothing_is_wider_than_the_page(opened, tmp_path, width, scheme):
    page, heard = opened(width, scheme)
    for details in page.query_selector_all("details"):
        details.evaluate("each => each.open = true")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    file = folder(tmp_path) / f"report_{width}_{scheme}.png"
    page.screenshot(path=file, full_page=True)
    assert file.stat().st_size > 10_000
    assert [text for text in heard if not text.startswith("data:")] == []


def test_schemes_differ(opened):
    colours = [
        opened(800, scheme)[0].evaluate("getComputedStyle(document.body).backgroundColor")
        for scheme in ("light", "dark")
    ]
    assert colours[0] == "rgb(255, 255, 255)" != colours[1]


def test_zoom_widens_the_timeline_and_not_the_page(opened):
    page, heard = opened(800)
    width = "document.querySelector('.canvas').offsetWidth"
    before = page.evaluate(width)
    page.click(".zoom button[data-zoom='8']")
    assert page.evaluate(width) == pytest.approx(8 * before, abs=8)
    assert page.evaluate("document.documentElement.scrollWidth") <= 800
    assert page.get_attribute(".zoom button[data-zoom='8']", "aria-pressed") == "true" and heard == []


def test_keys_reach_transfers_and_say_what_travels(opened, planned):
    page, heard = opened(1280)
    page.focus(".lane.link .box")
    page.keyboard.press("ArrowRight")
    number = page.evaluate("document.activeElement.dataset.transfer")
    said = page.inner_text("#detail")
    assert number == "1" and all(name in said for name in planned.plan.transfers[1].gradients)
    assert page.evaluate("document.querySelector('tr.chosen').id") == "transfer-1"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className").startswith("box") and heard == []


def test_headings_sort_by_number(opened):
    page, _ = opened(1280)
    heading = page.locator("table.sortable th button", has_text="bytes")
    values = "[...document.querySelectorAll('table.sortable tbody tr')].map(row => Number(row.cells[2].dataset.sort))"
    heading.focus()
    page.keyboard.press("Enter")
    ascending = page.evaluate(values)
    page.keyboard.press("Enter")
    assert ascending == sorted(ascending) and page.evaluate(values) == sorted(ascending, reverse=True)
    assert len(set(ascending)) > 1
