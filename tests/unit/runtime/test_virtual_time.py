"""Virtual time: one function of real time, the same for whoever asks, whenever they ask."""

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayd.errors import ConfigError
from delayd.runtime.clock import SystemClock
from delayd.runtime.virtual_time import LEAD_MS, VARIABLE, Changes, VirtualTime, real_now_ms

DAY_MS = 86_400_000
HANGS_S = 20


@st.composite
def all_changes(draw: st.DrawFn) -> Changes:
    changes, at_ms = Changes(), 1_000
    for _ in range(draw(st.integers(0, 5))):
        at_ms += draw(st.integers(1, 50))
        changes = changes.after(at_ms, draw(st.integers(0, 100)))
    return changes


@given(all_changes(), st.integers(900, 1_400))
def test_time_never_steps_back_and_later_changes_move_no_earlier_time(
    changes: Changes, real_ms: int
) -> None:
    assert changes.virtual_ms(real_ms) < changes.virtual_ms(real_ms + 1)
    last_ms = changes.at_ms[-1] if changes.at_ms else 1_000
    later = changes.after(max(last_ms, real_ms) + 1, 7)
    assert later.virtual_ms(real_ms) == changes.virtual_ms(real_ms)
    assert Changes.read_from(changes.text()) == changes


@given(all_changes(), st.integers(900, 2_000))
def test_the_real_time_of_a_virtual_one_is_the_first_at_which_it_was_as_late(
    changes: Changes, virtual_ms: int
) -> None:
    real_ms = changes.real_ms(virtual_ms)
    assert changes.virtual_ms(real_ms) >= virtual_ms > changes.virtual_ms(real_ms - 1)


def test_who_knows_the_file_sees_a_change_from_its_moment_on(tmp_path: Path) -> None:
    mover = VirtualTime.create(tmp_path / "time")
    reader = VirtualTime(mover.file)
    before_ms = real_now_ms()
    goal_ms = reader.now_ms() + 30 * DAY_MS

    mover.advance_to(goal_ms)

    assert goal_ms <= reader.now_ms() < goal_ms + HANGS_S * 1_000
    assert reader.virtual_ms(before_ms) == before_ms
    assert reader.real_ms(goal_ms) > before_ms
    mover.advance_to(goal_ms - DAY_MS)
    assert reader.now_ms() >= goal_ms, "it does not step back"


def test_a_program_of_the_cluster_lives_in_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mover = VirtualTime.create(tmp_path / "time")
    monkeypatch.setenv(VARIABLE, str(mover.file))
    clock = SystemClock()

    mover.advance_to(real_now_ms() + DAY_MS)

    assert clock.wall_ms() > real_now_ms() + DAY_MS - HANGS_S * 1_000
    assert clock.monotonic_ms() < clock.wall_ms()


def clock_of(*times_ms: int) -> Callable[[], int]:
    """Return a clock that shows these times one after the other, then goes on by the ms."""
    times: Iterator[int] = iter(times_ms)
    last_ms = times_ms[-1]

    def now_ms() -> int:
        nonlocal last_ms
        last_ms = next(times, last_ms + 1)
        return last_ms

    return now_ms


def test_an_announcement_that_comes_too_late_is_withdrawn(tmp_path: Path) -> None:
    """A reader may have mapped that moment before the announcement stood in the file."""
    file = VirtualTime.create(tmp_path / "time").file

    VirtualTime(file, clock_of(1_000, 1_000 + LEAD_MS, 2_000)).advance_to(DAY_MS)

    changes = VirtualTime(file).changes_until(5_000)
    assert changes.at_ms == (2_000 + 2 * LEAD_MS,)
    assert changes.virtual_ms(1_000 + LEAD_MS) == 1_000 + LEAD_MS


def test_who_meets_an_announcement_waits_for_what_becomes_of_it(tmp_path: Path) -> None:
    file = VirtualTime.create(tmp_path / "time").file
    announced, goes_on = Event(), Event()
    seen: list[int] = []

    def now_ms() -> int:
        """The writer is stopped between its announcement and the change."""
        if Changes.read_from(file.read_text()).announced_ms is None:
            return 5_000 if announced.is_set() else 1_000
        announced.set()
        assert goes_on.wait(HANGS_S)
        return 1_000

    writer = Thread(target=VirtualTime(file, now_ms).advance_to, args=(DAY_MS,))
    writer.start()
    assert announced.wait(HANGS_S)
    reader = Thread(target=lambda: seen.append(VirtualTime(file).virtual_ms(1_000 + LEAD_MS)))
    reader.start()
    assert VirtualTime(file).virtual_ms(1_000) == 1_000, "a time before it waits for nobody"
    reader.join(0.2)
    assert not seen
    goes_on.set()
    reader.join(HANGS_S)
    writer.join(HANGS_S)

    assert not writer.is_alive() and seen == [DAY_MS]


def test_the_announcement_of_a_writer_that_died_counts_for_nothing(tmp_path: Path) -> None:
    time = VirtualTime.create(tmp_path / "time")
    time.file.write_text(Changes().announcing(1_000).text())

    assert time.virtual_ms(1_500) == 1_500
    time.advance_to(real_now_ms() + DAY_MS)
    assert time.virtual_ms(1_500) == 1_500
    assert time.now_ms() > real_now_ms() + DAY_MS - HANGS_S * 1_000


def test_a_clock_that_was_set_back_moves_nothing(tmp_path: Path) -> None:
    time = VirtualTime.create(tmp_path / "time")
    time.advance_to(real_now_ms() + DAY_MS)
    with pytest.raises(ConfigError, match="set back"):
        VirtualTime(time.file, lambda: 1_000).advance_to(2 * DAY_MS)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "{}",
        '{"format": 2, "changes": [], "announced_ms": null}',
        '{"format": 1, "changes": [[2, 1], [3, 0]], "announced_ms": null}',
    ],
)
def test_a_file_that_is_missing_or_damaged_is_told(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "time"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=VARIABLE):
        VirtualTime(file).now_ms()


def test_a_lock_that_cannot_be_taken_is_told(tmp_path: Path) -> None:
    time = VirtualTime.create(tmp_path / "time")
    (tmp_path / "time.lock").mkdir()
    with pytest.raises(ConfigError, match=r"time\.lock cannot be opened"):
        time.advance_to(DAY_MS)
