"""A node that fetches its wheel: others see it, and take none of its answers for knowledge."""

import asyncio
import threading
from pathlib import Path

import httpx
import pytest
from exporting_node import SETTINGS, ExportingNode
from giving_node import Giver
from manual_clock import ManualClock
from one_node import CLUSTER_KEY
from pydantic import SecretStr
from wheel_snapshots import contents_of

from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.config.node import NodeConfig
from delayd.coordination.memory import MemoryCoordination, MemoryEtcd
from delayd.node.election.etcd_calls import Identity
from delayd.node.fetcher import CopyIsFasterError, FetcherAtStart, keep_announced
from delayd.node.monitoring.http import build_fetching_app
from delayd.node.snapshots.choosing import Choice
from delayd.runtime.clock import SystemClock

RECORDS = 500
"""Of the buffer, and pending on the node that gives its wheel."""


def test_it_is_announced_until_it_has_its_wheel() -> None:
    etcd = MemoryCoordination(MemoryEtcd(ManualClock()), "c")
    is_over = threading.Event()
    identity = Identity("n2", "a life", "127.0.0.1:1")
    thread = threading.Thread(target=keep_announced, args=(etcd, identity, is_over))
    thread.start()
    tick = threading.Event()
    for _ in range(1_000):
        if etcd.members():
            break
        tick.wait(0.01)
    assert etcd.members() == {"n2": identity.member_value(has_room=False)}
    is_over.set()
    thread.join(30)
    assert etcd.members() == {}, "the node announces itself"


@pytest.mark.parametrize("path", ["/ids/an-id", "/ids/a/b", "/pending", "/metrics", "/livez"])
def test_it_says_nothing_of_messages(path: str) -> None:
    """To `delayd show`, 404 means that a node knows nothing of the id."""

    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(build_fetching_app(dict))
        async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
            return await client.get(path)

    assert asyncio.run(asked()).status_code == (200 if path == "/livez" else 503)


# A copy in place of a replay.


def fetcher_in(folder: Path, etcd: MemoryCoordination, spare_bytes: int = 0) -> FetcherAtStart:
    """Of a node that copies whenever that is faster."""
    config = NodeConfig(
        node="new",
        bootstrap="nowhere:1",
        etcd=("http://nowhere",),
        cluster_key=SecretStr(CLUSTER_KEY),
        data_dir=folder,
        admin_port=0,
        connect_timeout_s=0.2,
        disk_free_min_bytes=spare_bytes,
        replay_max_s=0.001,
    )
    return FetcherAtStart(config, etcd, SystemClock())


def buffer_of(records: int) -> MemoryBus:
    """Brokers with a buffer of so many records."""
    return MemoryBus(brokers_with(records))


def brokers_with(records: int) -> MemoryKafka:
    kafka = MemoryKafka(SystemClock())
    kafka.create_topic(SETTINGS.buffer.name, SETTINGS.partitions)
    for _ in range(records):
        kafka.append(SETTINGS.buffer.name, 0, None, b"")
    return kafka


def weighed(fetcher: FetcherAtStart, bus: MemoryBus, folder: Path) -> Choice:
    """What a node chooses that has not read anything; it has a wheel of its own from then on."""
    node = ExportingNode(folder)
    try:
        with pytest.raises(CopyIsFasterError) as raised:
            fetcher.weigh(bus, node.replica)
        fetcher.weigh(bus, node.replica)  # Once in a life.
        node.replica.checkpoint()
    finally:
        node.close()
    return raised.value.choice


def announced(*givers: Giver) -> MemoryCoordination:
    etcd = MemoryCoordination(MemoryEtcd(SystemClock()), "c")
    for giver in givers:
        etcd.put_member(giver.name, giver.member, etcd.grant_lease(60).id)
    return etcd


def test_a_node_copies_what_would_take_longer_to_replay(tmp_path: Path) -> None:
    """docs/design/storage.md, Copy or replay."""
    one, new = Giver(tmp_path / "1", "n1", records=RECORDS), tmp_path / "new"
    bus = buffer_of(RECORDS)
    try:
        fetcher = fetcher_in(new, announced(one))
        choice = weighed(fetcher, bus, new)
        assert list(choice.copy_s) == ["n1"] and choice.behind == RECORDS
        asyncio.run(fetcher.fetch_instead(bus, SETTINGS, choice))
    finally:
        one.close()
    assert contents_of(new) == contents_of(tmp_path / "1")
    assert (new / "replaced" / "format.json").exists()
    assert (fetcher.told or "").startswith("copied another node's wheel: a replay of 500 records")


def test_a_node_whose_donors_fail_goes_on_with_the_wheel_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/design/storage.md, Copy or replay."""
    monkeypatch.setattr("delayd.cluster.fetching.RETRY_S", 0.05)
    one, new = Giver(tmp_path / "1", "n1", records=RECORDS), tmp_path / "new"
    bus = buffer_of(RECORDS)
    try:
        fetcher = fetcher_in(new, announced(one))
        choice = weighed(fetcher, bus, new)
        before = contents_of(new)

        def die(path: str) -> None:
            if "/bytes/" in path:
                one.die()
                raise ConnectionError("it is gone")

        one.meets = die
        asyncio.run(fetcher.fetch_instead(bus, SETTINGS, choice))
    finally:
        one.close()
    assert contents_of(new) == before and not (new / "replaced").exists()
    assert (fetcher.told or "").startswith("replays the buffer: "), fetcher.told
    assert "no other node gave its wheel" in (fetcher.told or "")


def test_a_copy_that_drags_on_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/design/storage.md, Copy or replay."""
    monkeypatch.setattr("delayd.node.snapshots.choosing.TRIAL_MS", 0)
    monkeypatch.setattr("delayd.node.snapshots.donor.CHUNK_BYTES", 1_000)
    one, new = Giver(tmp_path / "1", "n1", records=RECORDS), tmp_path / "new"
    try:
        fetcher = fetcher_in(new, announced(one))
        before = Choice(RECORDS, 0, {"n1": 0}, "a test wants it so")
        asyncio.run(fetcher.fetch_instead(buffer_of(0), SETTINGS, before))
    finally:
        one.close()
    assert "what is left of the copy takes longer than a replay" in (fetcher.told or "")
    assert not (new / "format.json").exists()


def test_a_copy_without_room_leaves_a_good_wheel_alone(tmp_path: Path) -> None:
    """docs/design/storage.md, Copy or replay."""
    one, new = Giver(tmp_path / "1", "n1", records=RECORDS), tmp_path / "new"
    try:
        fetcher = fetcher_in(new, announced(one), spare_bytes=2**60)
        choice = weighed(fetcher, buffer_of(RECORDS), new)
        before = contents_of(new)
        asyncio.run(fetcher.fetch_instead(buffer_of(0), SETTINGS, choice))
    finally:
        one.close()
    assert "beside the wheel that is there; nothing was removed" in (fetcher.told or "")
    assert contents_of(new) == before


def test_what_a_copy_misses_must_still_be_in_the_log(tmp_path: Path) -> None:
    """docs/design/storage.md, Copy or replay."""
    one, new = Giver(tmp_path / "1", "n1", records=RECORDS), tmp_path / "new"
    kafka = brokers_with(RECORDS)
    try:
        fetcher = fetcher_in(new, announced(one))
        choice = weighed(fetcher, MemoryBus(kafka), new)
        before = contents_of(new)
        kafka.log(SETTINGS.buffer.name, 1).start_offset = 1
        asyncio.run(fetcher.fetch_instead(MemoryBus(kafka), SETTINGS, choice))
    finally:
        one.close()
    assert "offset 0 of partition 1, which begins at 1" in (fetcher.told or "")
    assert contents_of(new) == before


def test_a_node_that_nobody_can_give_a_wheel_replays(tmp_path: Path) -> None:
    fetcher, node = fetcher_in(tmp_path, announced()), ExportingNode(tmp_path)
    fetcher.weigh(buffer_of(RECORDS), node.replica)
    node.close()
    assert (fetcher.told or "").endswith("no node can give its wheel")


def test_only_nodes_whose_copy_is_faster_are_asked(tmp_path: Path) -> None:
    """One that is not chosen, although Fetch would prefer a follower."""
    follower = Giver(tmp_path / "1", "n1", records=RECORDS)
    master = Giver(tmp_path / "2", "n2", records=RECORDS, role="master")
    try:
        fetcher = fetcher_in(tmp_path / "n", announced(follower, master))
        choice = Choice(RECORDS, 100, {"n2": 1}, "a test wants it so")
        asyncio.run(fetcher.fetch_instead(buffer_of(0), SETTINGS, choice))
    finally:
        for giver in (follower, master):
            giver.close()
    assert master.gave and not follower.asked
