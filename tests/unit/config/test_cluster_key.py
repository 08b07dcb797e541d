"""The cluster key: strong enough, checked at start, told by its fingerprint only."""

from dataclasses import replace

import pytest

from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.cluster.topics import create_topics
from delayd.config.cluster_key import (
    check_key,
    fingerprint,
    new_cluster_key,
    proof_key,
    refuse_weak_key,
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
