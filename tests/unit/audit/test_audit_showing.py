"""The report on a terminal, and its page as text: escaped, bounded, the same each time. In Chromium
the page is seen by tests/integration/test_audit_page.py."""

import base64
import hashlib
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from sample_reports import (
    HOSTILE,
    START_MS,
    empty_report,
    failed_report,
    maximal_report,
    ok_report,
)

from delayd.audit.judging.faults import Fault
from delayd.audit.report import Fates, HeatCell, Moment, Report, ShardInfo
from delayd.audit.showing.building.elements import VOID, element, number
from delayd.audit.showing.figures.heat import SHADES, heat_within, shade
from delayd.audit.showing.figures.timeline import moments_within
from delayd.audit.showing.page import PAGE_BYTES_MAX, page
from delayd.audit.showing.text import show
from delayd.audit.showing.words import (
    duration_text,
    large_count,
    owner_name,
    place_text,
    short_count,
    time_text,
    verdict_sentence,
    wrong_sentence,
)
from delayd.runtime.visible import visible


class Reader(HTMLParser):
    """What is open, what was said, which elements and attributes there were."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == [], "what was opened was closed"
    return reader


# --- Elements


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\x00")))
def test_what_goes_into_an_element_comes_out_of_it_as_text(words: str) -> None:
    reader = read(element("p", words, title=words))
    assert reader.text == words
    assert reader.names == ["p"] and reader.attributes == [("title", words or None)]


def test_attributes_are_named_as_in_html() -> None:
    made = element("input", class_="a", aria_label="b", viewBox="0", hidden=True, x=1.0, y=None)
    assert made == '<input class="a" aria-label="b" viewBox="0" hidden x="1">'


def test_coordinates_are_short() -> None:
    assert [number(value) for value in (0.04, -0.04, 12, 3.14159, -2.5)] == [
        *("0", "0", "12", "3.1", "-2.5")
    ]


# --- Words


@given(st.text())
def test_visible_text_neither_moves_nor_hides_anything(text: str) -> None:
    shown = visible(text)
    assert len(shown) <= 300 and shown.encode() is not None
    assert not set(shown) & set("\x00\x07\x1b\r\n\t\u200e\u200f\u202a\u202e\u2066\u2069\ufeff")
    assert visible(shown) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("order-4711", "order-4711"),
        ("a\x1b[31m", "a\\x1b[31m"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\ud800", "\\ud800"),
        ("שלום 日本 grüße 👩‍👩‍👧", "שלום 日本 grüße 👩‍👩‍👧"),
        ("x" * 301, "x" * 299 + "…"),
    ],
)
def test_only_what_cannot_be_seen_is_written_as_its_code(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_durations_have_the_units_that_matter() -> None:
    given_ms = (0, 12, 999, 1000, 1250, 59_949, 59_999, 60_000, 192_000, 7_500_000, 273_600_000, -5)
    assert [duration_text(ms) for ms in given_ms] == [
        *("0 ms", "12 ms", "999 ms", "1 s", "1.25 s", "59.9 s", "60 s", "1 min"),
        *("3 min 12 s", "2 h 5 min", "3 d 4 h", "-5 ms"),
    ]


def test_counts_are_exact_where_there_is_room() -> None:
    assert [short_count(n) for n in (0, 0.25, 9, 950, 1234, 34_000, 5_600_000, 10**12)] == [
        *("0", "0.2", "9", "950", "1.2k", "34k", "5.6M", "1T")
    ]
    assert [large_count(n) for n in (0, 999_999, 1_000_000, 12_345_678, 999_499_999, 10**16)] == [
        *("0", "999,999", "1M", "12.3M", "999M", "10000T")
    ]


def test_times_beyond_the_calendar_are_numbers() -> None:
    assert time_text(START_MS + 7) == "2026-11-21 10:30:00.007"
    assert time_text(10**18) == "1000000000000000000 ms"


def test_places_say_what_is_known() -> None:
    assert place_text("t", 3, 17) == "t/3@17" and place_text("t", None, None) == "t"
    assert place_text(None, None, None) == ""
    assert owner_name("node-1/6f1c") == "node-1" and owner_name("node-1") == "node-1"


def test_the_sentence_says_the_three_numbers_that_must_be_0() -> None:
    report = replace(empty_report(), fates=Fates(delivered=66_512, cancelled=33_488))
    said = "100,000 requests: 66,512 delivered, 33,488 cancelled, 0 lost, 0 doubled, 0 early."
    assert verdict_sentence(report) == said
    assert wrong_sentence(report) == "Nothing is wrong."
    wrong = replace(report, found=(("lost", 1),))
    assert ", 1 lost, " in verdict_sentence(wrong)
    assert wrong_sentence(wrong) == "1 finding of 1 kind."


# --- What is shown of much

moments = st.builds(
    Moment,
    at_ms=st.integers(0, 5000).map(lambda n: START_MS + 250 * n),
    delivered=st.integers(0, 1000),
    late_p50=st.integers(0, 10),
    late_p99=st.integers(0, 10_000),
    late_max=st.integers(0, 10**6),
)


@given(st.lists(moments, max_size=60, unique_by=lambda moment: moment.at_ms))
def test_joined_intervals_have_all_deliveries_and_the_worst_lateness(given: list[Moment]) -> None:
    shown, width = moments_within(given, 40)
    assert len(shown) <= 40
    assert sum(each.delivered for each in shown) == sum(each.delivered for each in given)
    worst = max((each.late_p99 for each in given), default=0)
    assert max((each.late_p99 for each in shown), default=0) == worst
    assert all(after.at_ms - each.at_ms >= width for each, after in pairwise(shown)), "no overlap"


cells = st.builds(
    HeatCell,
    at_ms=st.integers(0, 900).map(lambda n: START_MS + 1000 * n),
    node=st.sampled_from(["", "node-1", "node-2", "node-3"]),
    pending=st.integers(0, 1000),
    differ=st.integers(0, 3),
)


@given(st.lists(cells, max_size=60))
def test_joined_cells_have_all_pending_messages_and_all_that_differ(given: list[HeatCell]) -> None:
    shown, _ = heat_within(given, 30)
    assert len({cell.at_ms for cell in shown}) <= 30
    for node in ("", "node-1", "node-2", "node-3"):
        for field in ("pending", "differ"):
            total = sum(getattr(cell, field) for cell in given if cell.node == node)
            assert sum(getattr(cell, field) for cell in shown if cell.node == node) == total


def test_of_many_nodes_those_that_differ_are_shown() -> None:
    many = [HeatCell(START_MS, f"node-{n}", 5, 1 if n == 77 else 0) for n in range(100)]
    shown, _ = heat_within([HeatCell(START_MS, "", 5, 0), *many], 30)
    assert {"", "node-77"} <= {cell.node for cell in shown} and len(shown) == 13


def test_few_are_told_from_none_and_most_have_the_last_shade() -> None:
    assert shade(1, 10**9) == 1 and shade(10**9, 10**9) == SHADES
    assert sorted({shade(n, 1000) for n in range(1, 1001)}) == list(range(1, SHADES + 1))


# --- The page


@pytest.mark.parametrize(
    "report", [ok_report(), failed_report(), empty_report()], ids=["ok", "failed", "empty"]
)
def test_a_page_is_whole_and_the_same_each_time(report: Report) -> None:
    text = page(report)
    assert text == page(report)
    assert text.startswith("<!doctype html>\n<html")
    read(text)


def test_a_page_names_no_other_place() -> None:
    """What a browser would fetch: sources, links, imports, addresses in styles."""
    text = page(failed_report())
    reader = read(text)
    fetching = {"src", "href", "srcset", "action", "data", "poster", "xlink:href"}
    assert [name for name, _ in reader.attributes if name in fetching] == []
    assert "url(" not in text and "@import" not in text and "http:" not in text


def test_only_the_script_of_the_page_may_run() -> None:
    text = page(failed_report())
    [script] = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    [policy] = re.findall(r'Content-Security-Policy" content="(.*?)"', text)
    assert policy.startswith("default-src &#x27;none&#x27;")
    assert f"script-src &#x27;sha256-{digest}&#x27;" in policy


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_anywhere_adds_no_element(hostile: str) -> None:
    bad = failed_report()
    clean = read(page(replace(bad, examples=(bad.examples[0],), notes=("n",), cluster="c")))
    finding = replace(
        bad.examples[0], id=hostile, source=hostile, topic=hostile, node="n", reason=hostile
    )
    dirty = read(page(replace(bad, examples=(finding,), notes=(hostile,), cluster=hostile)))
    assert dirty.names.count("bdi") == clean.names.count("bdi") + 1, "the node"
    assert [n for n in dirty.names if n != "bdi"] == [n for n in clean.names if n != "bdi"]
    assert dirty.text.count(visible(hostile)) >= 4


def test_each_fault_is_shown_with_its_meaning() -> None:
    found = tuple((fault.slug, 1) for fault in Fault)
    text = read(page(replace(ok_report(), found=found))).text
    assert "Verdict: failed" in text
    for fault in Fault:
        assert f"{fault.slug}1{fault.meaning}" in text


def test_a_page_is_bounded_whatever_the_report_holds() -> None:
    assert len(page(maximal_report()).encode()) < PAGE_BYTES_MAX
    assert len(page(ok_report()).encode()) < 250_000


# --- The terminal


def on_terminal(report: Report, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    show(report, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_verdict_comes_first_in_one_word_and_one_sentence() -> None:
    for report, word in ((ok_report(), "ok"), (failed_report(), "failed"), (empty_report(), "ok")):
        assert on_terminal(report).startswith(f"Verdict: {word}  ")
    assert "0 requests: 0 delivered, 0 cancelled, 0 lost, 0 doubled, 0 early." in on_terminal(
        empty_report()
    )


def test_what_is_of_a_shard_says_so_where_there_are_several() -> None:
    one = ok_report()
    cut = replace(one.cut, shards=(ShardInfo(0, 70, 2, 140, START_MS), ShardInfo(1, 9, 1, 18, 7)))
    several = replace(
        one,
        cut=cut,
        reigns=tuple(replace(each, shard=n % 2) for n, each in enumerate(one.reigns)),
        failovers=tuple(replace(each, shard=1) for each in one.failovers),
    )
    assert "shard" not in json.dumps(one.to_json()) + on_terminal(one) + page(one)
    said = several.to_json()
    assert [each["shard"] for each in said["reigns"]] == [0, 1, 0]
    assert {each["shard"] for each in said["failovers"]} == {1}
    assert [each["offset"] for each in said["cut"]["shards"]] == [140, 18]
    terminal = on_terminal(several, width=500)
    assert "of 2 shards" in terminal and "shard 1: node-1 to node-2" in terminal
    html = page(several)
    assert "step 9 of term 1, offset 18" in html and "Master by shard" in html
    assert html.count(">shard</th>") == 2 and "shard 1, term 2: " in html


def test_each_fault_has_its_count_its_meaning_and_examples() -> None:
    text = on_terminal(failed_report(), width=500)
    assert "lost  3  It was due, the frontier covers it, and it is nowhere." in text
    assert "source 0/44120, id order-48211, in order-timeouts, due 2026-11-21 10:31:01.337" in text
    assert "and 24 more" in text, "27 were altered, and 3 are shown"


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_names_can_neither_colour_the_terminal_nor_turn_its_lines(hostile: str) -> None:
    text = on_terminal(replace(failed_report(), cluster=hostile, notes=(hostile,)), width=700)
    assert not {"\x1b", "\x07", "\r", "\x00", "\u202e", "\u2066"} & set(text)
    assert text.count(visible(hostile)) >= 2, "as it is, markup or not"


def test_it_is_short_whatever_the_report_holds() -> None:
    assert len(on_terminal(maximal_report()).splitlines()) < 2200
