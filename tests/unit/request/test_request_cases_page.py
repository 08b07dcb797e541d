"""docs/reference/request-cases.md has the cases that run on a real cluster, and says them well."""

from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

import pytest
from generated_pages import check_blocks
from request_cases import CASES, HEADER_CASES, ID_CASES
from request_cases.case import (
    KEY,
    PARTITIONS,
    VALUE,
    After,
    Case,
    Content,
    Dead,
    Delivered,
    Due,
    Header,
    Killed,
    Moment,
    Nothing,
    Pending,
    Recurs,
    Refused,
    Span,
    Step,
    Told,
    header_of,
)
from request_cases.states import COLUMNS

from delayd.bus.murmur2 import partition_of
from delayd.request import Op, Reason, Verdict
from delayd.request.headers import (
    DEBOUNCE_HEADERS,
    GROUP_HEADERS,
    INTERNAL_HEADERS,
    RESCHEDULE_HEADERS,
    SERIES_HEADERS,
    SUPPORTED_HEADERS,
    WISH_HEADERS,
    WRITTEN_HEADERS,
)

OF_REQUESTS = (
    *(*SUPPORTED_HEADERS, *WISH_HEADERS, *SERIES_HEADERS),
    *(*RESCHEDULE_HEADERS, *GROUP_HEADERS, *DEBOUNCE_HEADERS),
)
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "request-cases.md"
SHOWN_CHARS_MAX = 48
SHOWN_HEADERS_MAX = 8
CASES_MIN = 150
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def test_the_page_has_the_cases_as_they_are_run(request: pytest.FixtureRequest) -> None:
    """With `--rewrite` it is written."""
    check_blocks(PAGE, {"ids": id_table(), "headers": header_tables()}, request)


def test_there_are_cases_of_each_header_reason_verdict_and_operation() -> None:
    steps = [case.steps[-1] for case in CASES]
    assert len(CASES) >= CASES_MIN
    headers = {str(name) for step in steps for name, _ in step.headers}
    assert headers >= {*OF_REQUESTS}
    assert headers >= {*INTERNAL_HEADERS, *WRITTEN_HEADERS}
    reasons = {step.fate.reason for step in steps if isinstance(step.fate, Refused | Dead)}
    of_no_record, of_older_rules = {"unreadable-batch"}, {"not-supported"}
    of_no_record |= {"over-quota"}  # of no record alone: tests/unit/request/test_quota_records.py
    assert reasons | of_no_record | of_older_rules == {reason.slug for reason in Reason}
    verdicts = {told.verdict for step in steps for told in step.told}
    assert verdicts | {"over-quota"} == {verdict.slug for verdict in Verdict}
    ops = {header_of(step, "delayd-op") for step in steps}
    new = (Op.FIRE, Op.DEBOUNCE)
    assert ops >= {op.slug.encode() for op in (Op.SCHEDULE, Op.CANCEL, Op.REPLACE, *new)}


def test_each_header_has_good_cases_and_bad_ones() -> None:
    for header in OF_REQUESTS:
        fates = Counter(
            isinstance(case.steps[-1].fate, Refused) for case in CASES if case.section == header
        )
        assert fates[True] >= 4 and fates[False] >= 1, f"{header}: {fates}"


def test_no_two_cases_share_an_id_or_a_redrive() -> None:
    """They would meet, because all are played together; a rejected one does no harm."""
    used: list[tuple[bytes, bytes]] = []
    for case in CASES:
        done = [step for step in case.steps if not isinstance(step.fate, Refused)]
        for name in ("delayd-id", "delayd-redrive"):
            values = {header_of(step, name) for step in done} - {None}
            used += [(name.encode(), value) for value in values if value is not None]
    assert [each for each, count in Counter(used).items() if count > 1] == []


def test_a_redrive_lies_in_the_partition_that_its_source_names() -> None:
    for case in CASES:
        for step in case.steps:
            source = header_of(step, "delayd-redrive")
            if source is not None and isinstance(step.fate, Delivered | Pending):
                partition = step.partition
                if partition is None:
                    partition = partition_of(step.key or b"", PARTITIONS)
                assert source.startswith(b"%d/" % partition), case.name


def header_tables() -> str:
    lines: list[str] = []
    for section, cases in groupby(HEADER_CASES, lambda case: case.section):
        title = f"`{section}`" if section.startswith("delayd-") else section
        lines += ["", f"### {title}", "", "| | sent | outcome |", "|---|---|---|"]
        lines += [f"| {case.says} | {sent_of(case)} | {outcome_of(case)} |" for case in cases]
    return "".join(f"{line}\n" for line in [*lines, ""])


def id_table() -> str:
    lines = ["", f"| under the id | {' | '.join(COLUMNS)} |", f"|---|{'---|' * len(COLUMNS)}"]
    for says, cases in groupby(ID_CASES, lambda case: case.says):
        cells = {case.column: cell_of(case) for case in cases}
        assert list(cells) == list(COLUMNS), f"{says}: a column is missing"
        lines.append(f"| {says} | {' | '.join(cells.values())} |")
    return "".join(f"{line}\n" for line in [*lines, ""])


def sent_of(case: Case) -> str:
    """What of the record is not said once for all."""
    step = case.steps[-1]
    shown = step.headers[: len(step.headers) - step.implied]
    parts = [header_text(header) for header in shown[:SHOWN_HEADERS_MAX]]
    if len(shown) > SHOWN_HEADERS_MAX:
        parts = [*parts[:2], "...", parts_of(shown[-1:])]
    if step.key is None:
        parts.append("no key")
    elif step.key != KEY and step.key != header_of(step, "delayd-id"):
        parts.append(f"key {quoted(step.key)}")
    if step.value != VALUE:
        parts.append(f"value {quoted(step.value)}")
    if step.partition is not None:
        parts.append(f"in partition {step.partition}")
    if step.size_bytes is not None:
        parts.append(f"{step.size_bytes:,} bytes")
    return ", ".join(parts) or "nothing more"


def parts_of(headers: Iterable[Header]) -> str:
    return ", ".join(map(header_text, headers))


def header_text(header: Header) -> str:
    name, content = header
    if not name:
        return f"a header without a name: {quoted(content)}"
    shown = quoted(name if isinstance(name, bytes) else name.encode()).strip("`")
    if isinstance(content, bytes) and content:
        return f"`{shown}: {quoted(content).strip('`')}`"
    if isinstance(content, Moment):
        return f"`{shown}:` {moment_text(content)}"
    return f"`{shown}` {'null' if content is None else 'empty'}"


def quoted(content: Content) -> str:
    """As code, with what cannot be read escaped, and cut if it is long."""
    if content is None:
        return "null"
    assert isinstance(content, bytes), "a moment is worded otherwise"
    if content == b"":
        return "empty"
    text = content.decode("utf-8", "backslashreplace")
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    if len(text) > SHOWN_CHARS_MAX:
        text = f"{text[:8]}... ({len(content):,} bytes)"
    assert "`" not in text and "|" not in text, "it would end the cell"
    return f"`{text}`"


def moment_text(moment: Moment) -> str:
    form = "in Unix ms" if moment.form == "ms" else f"in RFC 3339 with `{moment.form}`"
    if moment.form == "UTC" or "/" in moment.form:
        form = "by the clock of the zone"
    return f"{after_text(moment.in_ms)}, {form}"


def after_text(ms: int) -> str:
    if ms == 0:
        return "now"
    if ms >= DAY_MS:
        return f"in {ms // DAY_MS} days and {ms % DAY_MS // HOUR_MS} h"
    return f"in {ms / 1000:g} s" if ms >= 1_000 else f"in {ms} ms"


def due_text(due: Due) -> str:
    match due:
        case Span(0):
            return "at once"
        case Span(ms):
            return f"{after_text(ms).removeprefix('in ')} after the append time"
        case Moment():
            return "then"
        case 0:
            return "at once"
        case _:
            return f"at once; `delayd-due` is {due}"


def outcome_of(case: Case) -> str:
    """What the last step comes to, in words."""
    step = case.steps[-1]
    parts = [fate_text(step)]
    parts += [f"receipt `{told.verdict}`" for told in step.told]
    return ", ".join(part for part in parts if part)


def fate_text(step: Step) -> str:
    match step.fate:
        case Delivered() as fate:
            text = f"delivered {due_text(fate.due)}"
            if fate.key is not None and fate.key != step.key:
                text += f", key {quoted(fate.key)}"
            if fate.partition is not None:
                text += f", to partition {fate.partition}"
            if fate.headers is not None:
                text += f", with {parts_of(fate.headers)}"
            return text
        case Pending():
            return "pending"
        case Recurs() as fate:
            return f"delivered each {fate.every_ms // 1_000} s up to its end"
        case Refused() as fate:
            text = f"dead letter `{fate.reason}`"
            if not fate.keeps_value:
                text += " without the value"
                text += "" if fate.keeps_headers else " and the headers"
            elif not fate.keeps_headers:
                text += " without the headers"
            return text
        case Dead() as fate:
            is_tried = fate.reason == "dead" or fate.attempts > 0
            return f"{'retried, then a ' if is_tried else ''}dead letter `{fate.reason}`"
        case Nothing():
            return ""
        case Killed():
            raise AssertionError("the last step of a case is not killed")


def cell_of(case: Case) -> str:
    """A cell of the table of ids: the verdict, and what is delivered."""
    step = case.steps[-1]
    parts = [told_text(told) for told in step.told if told.verdict != "dead"]
    match step.fate:
        case Refused() as fate:
            parts.append("dead letter" if step.told else f"dead letter `{fate.reason}`")
        case Delivered() | Pending() | Dead():
            parts.append("stored")
        case Nothing() | Killed():
            pass
    return ", ".join(parts)


def told_text(told: Told) -> str:
    killed = len(told.killed)
    return f"`{told.verdict}`" + (f" ({killed} messages)" if killed > 1 else "")


def test_steps_wait_for_nothing_that_never_comes() -> None:
    for case in CASES:
        for before, step in zip(case.steps, case.steps[1:], strict=False):
            if step.after is After.ANSWERED:
                assert before.told or not isinstance(before.fate, Pending | Nothing), case.name
