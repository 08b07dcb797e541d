"""An import as the command runs it, into a delayd in memory: to its end, or killed at a call."""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from delayd.client.changing import Changer
from delayd.commands.importing.job import Import, Requests, Source
from delayd.commands.importing.journal import About, Journal
from delayd.commands.importing.mapping import mapping_of
from delayd.testing import InMemoryDelayd

START = datetime(2027, 1, 1, tzinfo=UTC)
START_S = int(START.timestamp())
START_MS = START_S * 1000


class KilledError(Exception):
    """The import was killed."""


class Dying:
    """A client of the source that dies behind its n-th call: that is before the next one."""

    def __init__(self, client: Any, at: int) -> None:
        self._client = client
        self.left = at

    def __getattr__(self, name: str) -> Any:
        what = getattr(self._client, name)
        if not callable(what) or name == "pipeline":
            return what

        def call(*arguments: Any, **named: Any) -> Any:
            done = what(*arguments, **named)
            self.left -= 1
            if self.left == 0:
                raise KilledError
            return done

        return call


def requests(folder: Path, text: str) -> Requests:
    (folder / "map.toml").write_text(text)
    return Requests(mapping_of(folder / "map.toml"), "delayd-buffer", None, START_MS)


def ran(kit: InMemoryDelayd, folder: Path, text: str, source: Source) -> Counter[str]:
    """Run an import as the command does, on where an earlier one has ended."""
    send = Changer.over(kit._connection()).change
    with Journal(folder / "job") as journal:
        known = None if journal.about is None else journal.about.identity
        about = About("c", source.name, source.identity(known), "m")
        journal.begin(about, source.start, START_MS)
        if journal.position is None:
            journal.note(source.disarm(), Counter())
        run = Import(journal, source, requests(folder, text), lambda name, why: None)
        assert run.run(send) is None and journal.is_done
        kept = source.kept()
        assert kept is not None and kept.messages == journal.rows
        return Counter(journal.verdicts)


def killed_at_each_call(
    folder: Path,
    open_: Callable[[], Any],
    text: str,
    fill: Callable[[], set[str]],
    doom: Callable[[Any, int], None],
) -> Iterator[InMemoryDelayd]:
    """Kill an import behind its first call of the source, its second, and so on; yield where each
    one is that was resumed. `doom` has a source die at a call."""
    for at in count(1):
        wanted = fill()
        (folder / "job").unlink(missing_ok=True)
        with InMemoryDelayd("orders", start=START) as kit:
            source = open_()
            doom(source, at)
            try:
                ran(kit, folder, text, source)
                assert at > 5, "it was killed"
                return
            except KilledError:
                pass
            verdicts = ran(kit, folder, text, open_())
            assert verdicts == {"scheduled": len(wanted)}
            assert {each.id for each in kit.pending()} == wanted
            yield kit
