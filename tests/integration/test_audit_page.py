"""The page of an audit in a real Chromium: it needs nothing but itself, and people can read it."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, Page, running
from chromium import find_chromium
from sample_reports import (
    HOSTILE,
    empty_report,
    failed_report,
    maximal_report,
    month_report,
    ok_report,
    single_report,
    young_report,
)

from delayd.audit.showing.page import page as page_of
from delayd.runtime.visible import visible

MEASURE = (Path(__file__).parent / "measure.js").read_text()
IMAGE = Path(__file__).parents[2] / "docs" / "images" / "audit.png"
IMAGE_BYTES_MAX = 300_000
DEMO_PAGE = Path(__file__).parents[2] / "delayd-audit.html"

REPORTS = {
    "ok": ok_report,
    "failed": failed_report,
    "empty": empty_report,
    "maximal": maximal_report,
    "young": young_report,
    "single": single_report,
    "month": month_report,
}
WIDTHS = (1280, 400)
WIDER_FONT = """(() => {
  const style = document.createElement("style");
  style.textContent = ".plot, .plot span { font-size: 15px !important }";
  document.head.append(style);
})()"""
"""A quarter wider than DejaVu Sans at its size of 12 px, which is wider than most fonts."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running(find_chromium(), tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each report's page."""
    folder = tmp_path_factory.mktemp("pages")
    written = {name: folder / f"{name}.html" for name in REPORTS}
    for name, file in written.items():
        file.write_text(page_of(REPORTS[name]()), encoding="utf-8")
    return written


@pytest.fixture
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    opened = browser.page()
    print(f"The page was seen by {browser.name}.")
    request.node.user_properties.append(("browser", browser.name))
    yield opened
    opened.close()


def measured(page: Page, what: str) -> Any:
    if page.evaluate("typeof window.measure") == "undefined":
        page.evaluate(MEASURE)
    return page.evaluate(f"measure.{what}")


@pytest.mark.parametrize("name", REPORTS)
def test_a_page_asks_for_nothing_and_complains_of_nothing(
    page: Page, files: dict[str, Path], name: str
) -> None:
    page.show(files[name], width=1280)
    asked = [each["request"]["url"] for each in page.events("Network.requestWillBeSent")]
    assert asked == [files[name].as_uri()]
    said = page.events(
        "Runtime.consoleAPICalled",
        "Runtime.exceptionThrown",
        "Log.entryAdded",
        "Page.javascriptDialogOpening",
    )
    assert said == []


@pytest.mark.parametrize("width", [1280, 800, 400])
@pytest.mark.parametrize("name", REPORTS)
def test_a_page_fits_its_window_and_all_of_its_figures_can_be_read(
    page: Page, files: dict[str, Path], name: str, width: int
) -> None:
    page.show(files[name], width=width)
    assert measured(page, "widths()") == [width, width]
    assert measured(page, "figures()") == ([] if name == "empty" else [1, 1, 1])
    assert all(w > 20 and h > 15 for w, h in measured(page, "drawings()"))
    assert measured(page, "badTexts()") == []
    assert measured(page, "overlaps()") == []
    page.evaluate(WIDER_FONT)
    assert measured(page, "widths()") == [width, width]
    assert measured(page, "badTexts()") == []
    assert measured(page, "overlaps()") == []


def test_figures_show_the_labels_that_fit(page: Page, files: dict[str, Path]) -> None:
    always = {"Deliveries per second", "Master", "Lateness: median, p99 (log)", "node-1", "node-2"}
    always |= {"gap: 2.92 s", "gap: 1.48 s", "p50 4 ms", "p99 38 ms", "p99.9 1.91 s", "100 ms"}
    always |= {"10:30", "10:50", "5 s", "the log"}
    wide = {"10:35", "10:55", "node-3", "229k", "5.1k", "500 ms"}
    page.show(files["ok"], width=400)
    assert always <= set(measured(page, "labels()"))
    page.show(files["ok"], width=1280)
    assert always | wide <= set(measured(page, "labels()"))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("name", "word"), [("ok", "ok"), ("failed", "failed"), ("empty", "ok")])
def test_the_verdict_is_what_is_seen_first(
    page: Page, files: dict[str, Path], name: str, word: str, width: int
) -> None:
    page.show(files[name], width=width)
    assert measured(page, "texts('h1')") == [f"Verdict: {word}"]
    verdict = measured(page, "box('.verdict')")
    assert 0 < verdict["top"] < 120 and verdict["bottom"] < 500, "without scrolling"
    later = measured(page, "tops('dl, h2, h3, figure, table')")
    assert all(top >= verdict["bottom"] for top in later)
    sections = measured(page, "texts('h2')")
    assert sections[0] == ("What is wrong" if word == "failed" else "Deliveries and leadership")


def test_hostile_text_is_text(page: Page, files: dict[str, Path]) -> None:
    page.show(files["failed"], width=1280)
    assert measured(page, "intruders()") == []
    assert page.evaluate("document.title") == "delayd audit: failed (payments)"
    shown = measured(page, "texts('.findings td:nth-child(3)')")
    assert {visible(text) for text in HOSTILE} <= set(shown)
    assert page.evaluate("document.querySelectorAll('script').length") == 1


def test_what_would_turn_the_reading_direction_turns_only_itself(
    page: Page, files: dict[str, Path]
) -> None:
    """A Hebrew id is read from the right; the cell beside it still is at its right."""
    page.show(files["failed"], width=1280)
    row = "Array.from(document.querySelectorAll('.findings tr'))"
    row += ".find((each) => each.textContent.includes('שלום'))"
    lefts = page.evaluate(f"Array.from({row}.cells).map((c) => c.getBoundingClientRect().left)")
    assert lefts == sorted(lefts) and len(set(lefts)) == 7


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["ok", "failed"])
def test_every_text_stands_out_from_its_ground(
    page: Page, files: dict[str, Path], name: str, scheme: str, width: int
) -> None:
    """WCAG 2, contrast (minimum): 4.5 to 1."""
    page.show(files[name], width=width, scheme=scheme)
    ratio, text = measured(page, "contrast()")
    assert ratio >= 4.5, text


def test_light_and_dark_differ(page: Page, files: dict[str, Path]) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        page.show(files["ok"], width=1280, scheme=scheme)
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert grounds == ["rgb(255, 255, 255)", "rgb(19, 23, 26)"]


@pytest.mark.parametrize("name", ["ok", "failed", "empty"])
def test_what_is_drawn_or_tabled_has_words_and_heads(
    page: Page, files: dict[str, Path], name: str
) -> None:
    page.show(files[name], width=1280)
    assert measured(page, "unlabelled()") == []
    levels = measured(page, "headings()")
    steps = [after - before for before, after in pairwise(levels)]
    assert levels[0] == 1 and levels.count(1) == 1 and max(steps, default=0) <= 1
    identifiers = measured(page, "identifiers()")
    assert len(identifiers) == len(set(identifiers))


def test_the_filter_leaves_the_findings_that_contain_what_is_typed(
    page: Page, files: dict[str, Path]
) -> None:
    page.show(files["failed"], width=1280)
    assert measured(page, "shownRows()") == 63
    page.evaluate("document.querySelector('#filter').focus()")
    page.call("Input.insertText", text="NODE-2")
    assert measured(page, "shownRows()") == 20
    assert measured(page, "texts('.filter output')") == ["20 of 63"]


def test_the_page_is_complete_without_its_script(page: Page, files: dict[str, Path]) -> None:
    page.show(files["failed"], width=1280)
    with_script = page.evaluate("document.querySelector('main').innerText")
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    page.show(files["failed"], width=1280)
    without = page.evaluate("document.querySelector('main').innerText")
    assert without == with_script.replace("Filter\n", "").replace("Filter \n", "")


def test_on_paper_it_is_light_and_nothing_is_hidden_in_what_would_scroll(
    page: Page, files: dict[str, Path]
) -> None:
    page.show(files["failed"], width=1280, scheme="dark")
    page.media(scheme="dark", medium="print")
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(255, 255, 255)"
    cut = page.evaluate(
        "Array.from(document.querySelectorAll('.scroll, .findings'))"
        ".filter((each) => each.scrollHeight > each.clientHeight + 1).length"
    )
    assert cut == 0
    assert page.evaluate("getComputedStyle(document.querySelector('.filter')).display") == "none"


def test_the_image_of_the_documentation_is_small(
    page: Page, request: pytest.FixtureRequest
) -> None:
    """With `--rewrite` it is taken anew, of what `make demo` has left in the checkout."""
    if request.config.getoption("--rewrite"):
        page.show(DEMO_PAGE, width=1280)
        end = measured(page, "box('.part')")["bottom"]
        IMAGE.parent.mkdir(exist_ok=True)
        IMAGE.write_bytes(page.screenshot(1280, round(end) + 20))
    taken = IMAGE.read_bytes()
    assert taken.startswith(b"\x89PNG") and len(taken) < IMAGE_BYTES_MAX
