"""A client of a virtual cluster: its acknowledgements have the time of the cluster.

Source: docs/guides/testing.md, "Against real Kafka".
"""

from pathlib import Path

import pytest
from scripted_library import Library

from delayd.bus import Ack
from delayd.client import Client
from delayd.client.asking import ask
from delayd.client.outbox import Outbox
from delayd.client.outcomes import Scheduled
from delayd.errors import ConfigError
from delayd.runtime.virtual_time import VARIABLE, Changes, VirtualTime

DAY_MS = 86_400_000
ACKED = Ack(1, 7, 5_000)
REMINDER = ask("delayd-buffer", "reminders", b"v", in_="30d")


def outbox_in(time: VirtualTime | None) -> Outbox:
    return Outbox(Library(ACKED), "delayd-buffer", 1_000, virtual=time)  # type: ignore[arg-type]


def test_an_acknowledgement_has_the_time_of_the_cluster(tmp_path: Path) -> None:
    (tmp_path / "time").write_text(Changes().after(5_000, DAY_MS).text())
    placed = outbox_in(VirtualTime(tmp_path / "time")).send(Scheduled, REMINDER).result(0)
    assert (placed.append_ms, placed.due_ms) == (5_000 + DAY_MS, 5_000 + 31 * DAY_MS)


def test_a_client_reads_no_environment_once_it_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each acknowledgement would cost it."""
    outbox = outbox_in(None)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "missing"))
    assert outbox.send(Scheduled, REMINDER).result(0).append_ms == 5_000


def test_a_file_that_cannot_be_read_ends_a_client_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="missing"):
        Client("localhost:1")


def test_a_file_that_is_lost_meanwhile_ends_the_request_and_not_the_librarys_thread(
    tmp_path: Path,
) -> None:
    time = VirtualTime.create(tmp_path / "time")
    outbox = outbox_in(time)
    time.file.unlink()
    ended = outbox.send(Scheduled, REMINDER)  # The library reports inside.
    with pytest.raises(ConfigError):
        ended.result(0)
