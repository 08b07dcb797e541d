"""The report on a terminal."""

import io
from dataclasses import replace

import pytest
from rich.console import Console
from sample_reports import HOSTILE, empty_report, failed_report, maximal_report, ok_report

from delayd.audit.report import Report
from delayd.audit.showing.text import show
from delayd.audit.showing.words import visible


def shown(report: Report, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    show(report, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_verdict_comes_first_in_one_word_and_one_sentence() -> None:
    for report, word in ((ok_report(), "ok"), (failed_report(), "failed"), (empty_report(), "ok")):
        assert shown(report).startswith(f"Verdict: {word}  ")
    assert "0 requests: 0 delivered, 0 cancelled, 0 lost, 0 doubled, 0 early." in shown(
        empty_report()
    )


def test_each_fault_has_its_count_its_meaning_and_examples() -> None:
    text = shown(failed_report(), width=500)
    assert "lost  3  It was due, the frontier covers it, and it is nowhere." in text
    assert "source 0/44120, id order-48211, in order-timeouts, due 2026-11-21 10:31:01.337" in text
    assert "and 24 more" in text, "27 were altered, and 3 are shown"


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_names_can_neither_colour_the_terminal_nor_turn_its_lines(hostile: str) -> None:
    text = shown(replace(failed_report(), cluster=hostile, notes=(hostile,)), width=700)
    assert not {"\x1b", "\x07", "\r", "\x00", "\u202e", "\u2066"} & set(text)
    assert text.count(visible(hostile)) >= 2, "as it is, markup or not"


def test_it_is_short_whatever_the_report_holds() -> None:
    assert len(shown(maximal_report()).splitlines()) < 2000
