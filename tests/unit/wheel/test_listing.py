"""Pages of pending messages, while the wheel goes on (docs/design/storage.md, "Listing")."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from wheel_reading import checkpoint, split_all

from delayd.errors import CorruptionError
from delayd.wheel import Frame, FrameKind
from delayd.wheel.kills import Kill
from delayd.wheel.listing import READ_BYTES, Cursor, Listing
from delayd.wheel.storage import Wheel
from replication.rank import SLOT_MS, Rank

HOUR_MS = 3_600_000
FAR_MS = 100 * HOUR_MS
EVER_MS = 2**53
FIRST = Cursor(0)


def message(due_ms: int, offset: int, size: int = 10, topic: str = "orders") -> Frame:
    return Frame(due_ms, 0, offset, 5, FrameKind.MESSAGE, 1_000, (topic, bytes(size)))


def page(
    wheel: Wheel,
    begin: Cursor = FIRST,
    *,
    count: int | None = None,
    from_ms: int = 0,
    until_ms: int = EVER_MS,
    topic: str | None = None,
    bytes_max: int = 1,
) -> tuple[list[int], Cursor | None]:
    """The offsets on one page, and where the next one begins."""
    peek = wheel.snapshots.peek()
    with closing(peek.catalogue):
        listing = Listing(
            peek, begin, from_ms=from_ms, until_ms=until_ms, topic=topic, bytes_max=bytes_max
        )
        found: list[int] = []
        with closing(listing.messages()) as messages:
            for frame, _ in messages:
                found.append(frame.offset)
                if len(found) == count:
                    break
        return found, listing.next


def pages(
    wheel: Wheel, between: Callable[[int], object] = lambda _: None, **options: object
) -> list[int]:
    """The offsets on all pages; `between` is called after each with its number."""
    found: list[int] = []
    begin: Cursor | None = FIRST
    number = 0
    while begin is not None:
        some, after = page(wheel, begin, **options)  # type: ignore[arg-type]
        assert after is None or after > begin or some, "a page advances"
        found += some
        begin = after
        number += 1
        between(number)
        assert number < 1_000
    return found


@pytest.fixture
def wheel(tmp_path: Path) -> Wheel:
    """200 messages in near slots, 300 in the files of far hours; a page reads one piece."""
    made = Wheel.open(tmp_path / "wheel", partitions=2, sparse_bytes_max=0)
    made.append([message(1_000 * (n % 50), n, size=2_000) for n in range(200)], 0)
    made.append([message(FAR_MS + n % 3 * HOUR_MS, 200 + n, size=2_000) for n in range(300)], 0)
    checkpoint(made)
    return made


def test_pages_have_each_message_once(wheel: Wheel) -> None:
    with closing(wheel):
        assert sorted(pages(wheel)) == list(range(500))
        assert sorted(pages(wheel, count=7)) == list(range(500))
        assert sorted(pages(wheel, bytes_max=10 * READ_BYTES)) == list(range(500))
        found, after = page(wheel)
        assert 0 < len(found) < 100 and after is not None, "a page is bounded by what it reads"


def test_a_frame_longer_than_a_page_is_on_one(tmp_path: Path) -> None:
    with closing(Wheel.open(tmp_path / "wheel", partitions=2)) as wheel:
        wheel.append([message(0, n, size=10 * READ_BYTES) for n in range(3)], 0)
        checkpoint(wheel)
        assert sorted(pages(wheel)) == [0, 1, 2]


def test_only_the_times_and_topics_that_are_asked_for_are_listed(tmp_path: Path) -> None:
    with closing(Wheel.open(tmp_path / "wheel", partitions=2)) as wheel:
        wheel.append([message(n * 60_000, n) for n in range(240)], 0)
        wheel.append([message(3 * HOUR_MS + n, 900 + n, topic="else") for n in range(5)], 0)
        checkpoint(wheel)
        late = pages(wheel, from_ms=90 * 60_000, until_ms=100 * 60_000 + 1)
        assert sorted(late) == list(range(90, 101))
        # Of the topic only hours are left out that count none of it.
        assert not set(pages(wheel, topic="else")) & set(range(180))
        assert set(range(900, 905)) <= set(pages(wheel, topic="else"))
        assert pages(wheel, topic="none") == []


def test_what_was_killed_is_not_listed(tmp_path: Path) -> None:
    with closing(Wheel.open(tmp_path / "wheel", partitions=2)) as wheel:
        wheel.append([message(n * SLOT_MS, n) for n in range(5)], 0)
        wheel.ids.note_kill(Rank(2 * SLOT_MS, 0, 2), Kill(9, topic="orders"))
        checkpoint(wheel)
        assert sorted(pages(wheel)) == [0, 1, 3, 4]


def test_a_message_that_stays_is_on_a_page_though_its_hour_is_split_between_two(
    wheel: Wheel,
) -> None:
    """Rules: nothing is left out; what had been listed may come again."""

    def split(number: int) -> None:
        if number == 12:
            split_all(wheel, FAR_MS + 5 * HOUR_MS)
            checkpoint(wheel)

    with closing(wheel):
        assert set(pages(wheel, split)) == set(range(500))


def test_what_arrives_and_goes_between_two_pages_disturbs_no_other(wheel: Wheel) -> None:
    def change(number: int) -> None:
        wheel.append([message(1_000 * 49, 1_000 + number)], 0)
        if number == 3:
            wheel.forget(range(5))
        checkpoint(wheel)

    with closing(wheel):
        found = pages(wheel, change, count=20)
        stayed = {n for n in range(500) if n >= 200 or n % 50 >= 5}
        assert stayed <= set(found)
        assert all(found.count(offset) == 1 for offset in stayed)


def test_damage_is_an_error_with_its_place(wheel: Wheel, tmp_path: Path) -> None:
    with closing(wheel):
        file = next((tmp_path / "wheel" / "slots" / "0").glob("7.*"))
        data = bytearray(file.read_bytes())
        data[100] ^= 1
        file.write_bytes(data)
        with pytest.raises(CorruptionError, match=f"{file}.*wrong CRC"):
            pages(wheel)
