"""The cluster key: strong enough, checked at start, told by its fingerprint only."""

from dataclasses import replace

import pytest
from manual_clock import ManualClock

from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.cluster.key_checks import check_keys, check_keys_before
from delayd.cluster.topics import create_topics
from delayd.config.cluster_key import (
    check_key,
    fingerprint,
    new_cluster_key,
    proof_key,
    refuse_weak_key,
    signing_key,
)
from delayd.errors import ConfigError, WrongClusterKeyError
from delayd.runtime.clock import SystemClock
from replication.settings import Settings

KEY = "ключ, long enough"


@pytest.fixture(scope="module")
def settings() -> Settings:
    bus = MemoryBus(MemoryKafka(SystemClock()))
    return create_topics(bus, cluster="c", cluster_key=KEY)


def test_the_key_that_a_cluster_was_made_with_is_accepted(settings: Settings) -> None:
    check_key(KEY, settings)


def test_another_key_is_refused_and_neither_is_shown(settings: Settings) -> None:
    with pytest.raises(
        WrongClusterKeyError, match=r"key of the cluster 'c'.*DELAYD_CLUSTER_KEY"
    ) as e:
        check_key("another one, as long", settings)
    assert "another one" not in str(e.value) and KEY not in str(e.value)


def test_the_settings_hold_no_more_than_the_fingerprint(settings: Settings) -> None:
    assert KEY not in repr(settings)
    # A fixed value: a change of the recipe locks every node out of its cluster.
    assert settings.key_fingerprint == fingerprint(KEY, "c") == "9d23a95ba8c11a5e"


def test_clusters_with_the_same_key_have_different_fingerprints(settings: Settings) -> None:
    with pytest.raises(WrongClusterKeyError):
        check_key(KEY, replace(settings, cluster="d"))


def test_a_new_key_is_long_and_never_the_same() -> None:
    keys = {new_cluster_key() for _ in range(100)}
    assert len(keys) == 100 and all(len(key) == 43 for key in keys)


def test_a_key_of_fewer_than_16_characters_is_refused_and_not_shown() -> None:
    refuse_weak_key("sixteen letters.")
    with pytest.raises(ConfigError, match="15 characters, fewer than 16") as raised:
        refuse_weak_key("fifteen letters")
    assert "fifteen letters" not in str(raised.value)


def test_the_proof_key_is_the_key_in_utf_8() -> None:
    assert proof_key(KEY) == KEY.encode()


# --- Several


def test_several_keys_are_lines_and_the_first_is_the_clusters(settings: Settings) -> None:
    """docs/operations.md, "A new cluster key"."""
    new = "the key that replaces it"
    assert fingerprint(f"{new}\r\n{KEY}\n", "c") == fingerprint(new, "c")
    for keys in (f"{new}\n{KEY}", f"{KEY}\n{new}", f"{KEY}\n"):
        check_key(keys, settings)
    with pytest.raises(WrongClusterKeyError):
        check_key(f"{new}\nand yet another one", settings)
    refuse_weak_key("\n".join([KEY] * 4))
    with pytest.raises(ConfigError, match="5 lines, more than 4"):
        refuse_weak_key("\n".join([KEY] * 5))
    with pytest.raises(ConfigError, match="0 characters"):
        refuse_weak_key(f"{KEY}\n\n")


@pytest.mark.parametrize("lines", [KEY, f"{KEY}\n", f"another one, as long\r\n{KEY}\r\n"])
def test_the_key_that_signs_is_found_in_any_line(settings: Settings, lines: str) -> None:
    assert signing_key(lines, settings) == KEY.encode()
    with pytest.raises(WrongClusterKeyError):
        signing_key("another one, as long\nand another", settings)


def test_settings_remember_which_keys_signed_and_until_when(settings: Settings) -> None:
    old = settings.key_fingerprint
    assert settings.signed_by(old, 5) is settings
    once = settings.signed_by("1" * 16, 1_000)
    assert (once.key_fingerprint, once.keys_before_ms()) == ("1" * 16, {old: 1_000})
    back = once.signed_by(old, 2_000)
    assert (back.key_fingerprint, back.keys_before_ms()) == (old, {"1" * 16: 2_000})
    last = back.signed_by("1" * 16, 3_000)
    for number in range(2, 6):
        last = last.signed_by(str(number) * 16, number * 10_000)
    assert last.keys_before_ms() == {str(n) * 16: (n + 1) * 10_000 for n in (2, 3, 4)}
    assert Settings.from_json(last.to_json()) == last
    assert "keys_before" not in settings.to_json()
    with pytest.raises(ValueError, match="fingerprint"):
        Settings.from_json({**last.to_json(), "keys_before": ["no fingerprint/1"]})
    with pytest.raises(ValueError, match="int"):
        Settings.from_json({**last.to_json(), "keys_before": [f"{old}/soon"]})


def test_a_key_that_signed_what_is_still_to_be_read_must_be_given() -> None:
    """docs/operations.md, "A new cluster key": without it a node would disagree with the others."""
    kafka = MemoryKafka(clock := ManualClock())
    bus = MemoryBus(kafka, clock=clock)
    made = create_topics(bus, cluster="c", cluster_key=KEY, partitions=2)
    for _ in range(3):
        kafka.append("delayd-buffer", 1, None, b"v")
    new = "the key that replaces it"
    clock.now_ms += 1_000
    settings = made.signed_by(fingerprint(new, "c"), clock.now_ms)
    kafka.append("delayd-buffer", 1, None, b"v")
    check_keys_before(f"{new}\n{KEY}", settings, bus, {0: 0, 1: 0}, clock, 1_000)
    check_keys_before(new, settings, bus, {0: 0, 1: 3}, clock, 1_000)
    for position in (0, 2):
        with pytest.raises(
            WrongClusterKeyError, match=f"delayd-buffer/1 from offset {position} on"
        ):
            check_keys_before(new, settings, bus, {0: 0, 1: position}, clock, 1_000)
    with pytest.raises(WrongClusterKeyError):
        check_keys(bus, new, settings, clock, 1_000)
    kafka.log("delayd-buffer", 1).delete_before(3)
    check_keys(bus, new, settings, clock, 1_000)


def test_commit_markers_are_nothing_to_be_read() -> None:
    """A partition that is quiet since the key was replaced often ends with one: a node that has
    read all records of it needs the old key no more."""
    kafka = MemoryKafka(clock := ManualClock())
    bus = MemoryBus(kafka, clock=clock)
    made = create_topics(bus, cluster="c", cluster_key=KEY, partitions=2)
    producer = bus.transactional_producer("some user's")
    producer.init_transactions(1_000)
    producer.begin()
    producer.send("delayd-buffer", key=None, value=b"v", headers=[], partition=1)
    producer.commit(1_000)
    new = "the key that replaces it"
    clock.now_ms += 1_000
    settings = made.signed_by(fingerprint(new, "c"), clock.now_ms)
    assert bus.cluster().end_offsets("delayd-buffer", 1_000, committed=False)[1] == 2
    check_keys_before(new, settings, bus, {0: 0, 1: 1}, clock, 1_000)
    with pytest.raises(WrongClusterKeyError, match="delayd-buffer/1 from offset 0 on"):
        check_keys_before(new, settings, bus, {0: 0, 1: 0}, clock, 1_000)
