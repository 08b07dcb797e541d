"""`delayd send` and its like: what is refused before anything is sent, and how results read."""

import io
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from manual_clock import ManualClock

from delayd.bus import Bus
from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.client import RequestRefusedError, Scheduled
from delayd.cluster.topics import create_topics
from delayd.commands import messages
from delayd.commands.wording import local_time, plural
from delayd.errors import ConfigError, ExitCode
from replication.settings import DAY_MS

BROKERS = "127.0.0.1:1"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Bus:
    """A cluster on twins whose longest delay is two days."""
    clock = ManualClock()
    bus = MemoryBus(MemoryKafka(clock), clock=clock)
    create_topics(
        bus, cluster="c", cluster_key="a key that is long enough", max_delay_ms=2 * DAY_MS
    )
    monkeypatch.setattr(messages, "open_bus", lambda *_: bus)
    return bus


@pytest.mark.usefixtures("cluster")
def test_a_delay_beyond_the_clusters_longest_is_refused_with_the_limit() -> None:
    with pytest.raises(RequestRefusedError, match=rf"too-far.*{2 * DAY_MS}"):
        messages.send(BROKERS, "orders", "v", in_="3d")
    with pytest.raises(RequestRefusedError, match="too-far"):
        messages.replace("id", BROKERS, "orders", "v", in_="3d")
    with pytest.raises(RequestRefusedError, match="too-far"):
        messages.debounce("id", BROKERS, "orders", "3d", "4d", "v")
    with pytest.raises(RequestRefusedError, match="bad-max-wait"):
        messages.debounce("id", BROKERS, "orders", "1h", "1m", "v")


@pytest.mark.usefixtures("cluster")
def test_a_value_beyond_the_clusters_largest_is_refused_with_the_limit(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(2_000_000))
    with pytest.raises(RequestRefusedError, match=r"too-large.*2\d{6}.* \d{6,7}"):
        messages.send(BROKERS, "orders", value_from=tmp_path / "large", in_="3s")


@pytest.mark.parametrize("times", [{}, {"in_": "3s", "at": "7"}])
def test_a_message_has_one_time_and_the_flags_are_named(times: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="exactly one of --in, --at and --cron") as found:
        messages.send(BROKERS, "orders", "v", **times)  # type: ignore[arg-type]
    assert found.value.exit_code is ExitCode.USAGE


def test_a_value_has_the_bytes_that_the_shell_gave() -> None:
    """Python hands bytes that are not UTF-8 over as surrogates."""
    assert messages._content("a\udcff", None) == b"a\xff"
    assert messages._content("", None) == b""


def test_an_id_that_is_not_utf8_is_refused_in_one_line() -> None:
    with pytest.raises(RequestRefusedError, match="the id cannot be encoded as UTF-8"):
        messages.send(BROKERS, "orders", "v", in_="3s", id="\udcff")


def test_a_value_comes_from_a_file_or_from_stdin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "value").write_bytes(b"\xff\n")
    assert messages._content(None, tmp_path / "value") == b"\xff\n"
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"in\x00")))
    assert messages._content(None, Path("-")) == b"in\x00"


def test_a_value_that_is_missing_twice_given_or_unreadable_is_a_usage_error(tmp_path: Path) -> None:
    for value, file in ((None, None), ("v", tmp_path)):
        with pytest.raises(ConfigError, match="exactly one of VALUE and --value-from"):
            messages._content(value, file)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        messages._content(None, tmp_path / "absent")


def test_a_time_has_the_local_time_beside_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Europe/Vienna")
    time.tzset()
    try:
        messages._show_place(Scheduled(0, 0, 7, 1_795_404_607_066), as_json=False)
        assert capsys.readouterr().out == (
            "scheduled as 0/0, due at 1795404607066 (2026-11-23 04:30:07.066 CET)\n"
        )
        assert local_time(10**17) == "beyond the calendar"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_one_is_no_plural() -> None:
    assert [plural(count, "dead letter") for count in (0, 1, 2)] == [
        "0 dead letters",
        "1 dead letter",
        "2 dead letters",
    ]
