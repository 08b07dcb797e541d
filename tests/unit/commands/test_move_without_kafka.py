"""`delayd move` by a wheel alone, whose checkpoint is older than what the old cluster has done.

Source: docs/design/moving.md.
"""

from pathlib import Path

import pytest
from moves import HOUR_MS, Site, site_in
from one_node import Maker

from delayd.node.replica.replica import Replica


def requeued_behind_the_checkpoint(site: Site, folder: Path, *, id: str | None) -> Path:
    """The wheel has taken in the continuation of a message, and knows no frontier that covers the
    message; return a copy of it."""
    now_ms = site.old.clock.now_ms
    site.old.send("missing", now_ms, id=id, value=b"retried")
    site.old.send("orders", now_ms + HOUR_MS, value=b"other")
    site.old.ingest()
    site.old.clock.now_ms += 1_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Replica, "observe", lambda *_, **__: None)
        site.old.step()
        return site.copied(folder)


@pytest.mark.parametrize("id", [None, "id"])
@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_a_message_and_what_continues_it_are_moved_as_one(
    tmp_path: Path, make: Maker, id: str | None, guarantee: str
) -> None:
    site = site_in(tmp_path, make, guarantee=guarantee)
    copy = requeued_behind_the_checkpoint(site, tmp_path / "copy", id=id)
    moved = site.move(folder=copy, knows_frontier=False, takes_doubles=True)
    assert moved.plan.pending == 2
    assert site.moved_values() == [b"other", b"retried"]


def test_a_message_is_over_whose_continuation_was_cancelled(tmp_path: Path, make: Maker) -> None:
    site = site_in(tmp_path, make)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Site, "copied", lambda site, folder: folder)
        requeued_behind_the_checkpoint(site, tmp_path / "copy", id="id")
        patch.undo()
    site.old.send("missing", id="id", op="cancel")
    copy = site.copied(tmp_path / "copy")
    site.move(folder=copy, knows_frontier=False, takes_doubles=True)
    assert site.moved_values() == [b"other"]
