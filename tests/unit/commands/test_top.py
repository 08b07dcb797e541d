"""What `delayd top` makes of two looks at a cluster."""

import io
from typing import Any

from rich.console import Console

from delayd.commands.top import rates_of, view

NODE: dict[str, Any] = {
    "role": "follower",
    "ready": True,
    "unready": None,
    "ingest_lag": [2, None, 3],
    "disk": {"free_bytes": 2_500_000_000},
    "process": {"memory_bytes": 98_000_000},
    "checkpoint_took_ms": 12,
    "version": "0.2.0",
    "delivered_count": 0,
    "late_count": 0,
    "ingested_count": 100,
}


def report(**nodes: dict[str, Any]) -> dict[str, Any]:
    return {
        "cluster": "c",
        "master": "a",
        "cursor_age_ms": 1_200,
        "lag": 7,
        "nodes": [{"node": name, **fields} for name, fields in nodes.items()],
        "failing_targets": [],
        "paused": [],
        "limits": [],
        "problems": [],
    }


def words(shown: Any) -> str:
    console = Console(width=120, file=io.StringIO())
    console.print(shown)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_all_nodes_deliver_together_and_each_takes_in_all() -> None:
    before = report(a={**NODE, "delivered_count": 1_000}, b=NODE)
    after = report(
        a={**NODE, "delivered_count": 2_000, "late_count": 10, "ingested_count": 500},
        b={**NODE, "delivered_count": 500, "ingested_count": 300},
    )
    assert rates_of(before, after, 2_000) == {
        "delivered_count": 750.0,
        "late_count": 5.0,
        "ingested_count": 200.0,
    }


def test_a_node_that_is_new_silent_or_began_anew_has_counted_nothing_between() -> None:
    before = report(a={**NODE, "delivered_count": 1_000}, b={"admin": "x"})
    after = report(a={**NODE, "delivered_count": 3}, b=NODE, c=NODE)
    assert set(rates_of(before, after, 1_000).values()) == {0.0}
    assert set(rates_of(report(), report(), 0).values()) == {0.0}


def test_it_shows_leader_rates_nodes_targets_and_problems() -> None:
    of = report(a={**NODE, "role": "master", "leads_since_ms": 1_700_000_000_000}, b={"admin": "x"})
    of["failing_targets"] = [{"topic": "[red]orders", "messages": 3, "problem": "does not exist"}]
    of["problems"] = ["node b does not answer"]
    shown = words(view(of, {"delivered_count": 1234.4, "late_count": 0, "ingested_count": 5}, 0))
    assert "a since 2023-11-1" in shown and "1.2 s; 7 unread" in shown
    assert "1,234 delivered, 0 late (over 1 s), 5 taken in" in shown
    row = next(line for line in shown.splitlines() if "master" in line)
    assert all(each in row for each in ("yes", " 5 ", "2.5 GB", "98 MB", "12 ms", "0.2.0"))
    assert "does not answer" in shown
    assert "[red]orders" in shown, "a name is no markup"
    assert "node b does not answer" in shown
    assert "..." in words(view(of, {}, 0)), "the first look has nothing to compare with"


def test_what_is_paused_is_shown() -> None:
    fields = {"topic": "orders", "since_ms": 1, "until_ms": 2, "rate": 70}
    for state, said in (("paused", "orders is paused until"), ("resuming", "orders is resumed")):
        shown = words(view({**report(), "paused": [{**fields, "state": state}]}, {}, 0))
        assert said in shown and "70 a second" in shown


def test_a_target_that_is_full_or_nearly_is_shown() -> None:
    fields = {"topic": "orders", "pending": 90, "max_pending": 100, "full_since_ms": None}
    fields |= {"rate": None, "taken": 0, "refused_by": None}
    for state, since_ms, said in (
        ("full", 1, "requests are refused as over-quota"),
        ("nearly-full", None, "orders: 90 of 100 messages pending"),
    ):
        limit = {**fields, "state": state, "full_since_ms": since_ms}
        assert said in words(view({**report(), "limits": [limit]}, {}, 0))
    assert "orders" not in words(view({**report(), "limits": [{**fields, "state": "open"}]}, {}, 0))
