"""Fetching a wheel over HTTP, from real admin ports: whose, from whom, and what is refused."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from cluster_settings import PARTITIONS
from exporting_node import BEGIN_MS, PROOF_KEY, SETTINGS, ExportingNode, schedule
from giving_node import RECORDS, Giver
from manual_clock import ManualClock
from wheel_snapshots import contents_of

from delayd.cluster.fetching import SPOILED_MAX, Fetch, Want
from delayd.cluster.member_proof import AGE_MAX_MS, Asked, MemberCheck, MemberKeys, Passed
from delayd.dev.ports import pick_ports
from delayd.errors import DelaydError, DiskFullError, SnapshotError
from delayd.node.snapshots import donor as donors
from delayd.node.snapshots.donor import Donor
from delayd.runtime.clock import SystemClock
from delayd.wheel.draft import Draft
from delayd.wheel.snapshot import Snapshot
from replication.settings import Settings

CHUNK_BYTES = 20_000


@contextmanager
def givers(*made: Giver) -> Iterator[dict[str, str]]:
    """Their member keys."""
    try:
        yield {giver.name: giver.member for giver in made}
    finally:
        for giver in made:
            giver.close()


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(donors, "CHUNK_BYTES", CHUNK_BYTES)
    monkeypatch.setattr(donors, "LINES_BYTES", CHUNK_BYTES)
    monkeypatch.setattr("delayd.cluster.fetching.RETRY_S", 0.05)


def want(directory: Path, **more: Any) -> Want:
    fields = {
        "node": "new",
        "directory": directory,
        "settings": SETTINGS,
        "proof_key": PROOF_KEY,
        "spare_bytes": 0,
        "starts": lambda: dict.fromkeys(range(PARTITIONS), 0),
    }
    return Want(**{**fields, **more})


def fetch(directory: Path, members: Mapping[str, str], **more: Any) -> Fetch:
    return Fetch(want(directory, **more), lambda: members, SystemClock())


def test_a_copy_is_the_donors_checkpoint(tmp_path: Path) -> None:
    one = Giver(tmp_path / "1", "n1")
    with givers(one) as members:
        fetched = fetch(tmp_path / "new", members).run(5)
        assert fetched.donor == "n1" and fetched.progress.offsets == (RECORDS, 0)
        assert one.donor.shown() == [], "nothing is pinned afterwards"
        assert one.node.replica.wheel._segments.files.holds == 0
    assert contents_of(tmp_path / "new") == contents_of(tmp_path / "1")
    again = ExportingNode(tmp_path / "new")
    assert again.replica.ingested == (RECORDS, 0)
    again.close()


def test_followers_are_asked_before_the_master(tmp_path: Path) -> None:
    master = Giver(tmp_path / "1", "n1", role="master")
    follower = Giver(tmp_path / "2", "n2")
    with givers(master, follower) as members:
        assert fetch(tmp_path / "new", members).run(5).donor == "n2"
        assert not master.gave
        assert fetch(tmp_path / "other", members, donor="n1").run(5).donor == "n1"


def test_another_donor_takes_over_when_one_dies(tmp_path: Path) -> None:
    first, second = Giver(tmp_path / "1", "n1"), Giver(tmp_path / "2", "n2")
    with givers(first, second) as members:

        def die_in_the_middle(path: str) -> None:
            if path.endswith(f"/bytes/{3 * CHUNK_BYTES}"):
                first.die()
                raise ConnectionError("it is gone")

        first.meets = die_in_the_middle
        assert fetch(tmp_path / "new", members).run(5).donor == "n2"
    assert first.gave
    assert contents_of(tmp_path / "new") == contents_of(tmp_path / "2")


class Killed(BaseException):
    """As if the process had ended here."""


def test_a_killed_fetcher_goes_on_where_it_was(tmp_path: Path) -> None:
    one = Giver(tmp_path / "1", "n1")
    with givers(one) as members:

        def kill(stage: str, done: int, total: int) -> None:
            if stage == "files" and done > total // 2:
                raise Killed

        with pytest.raises(Killed):
            Fetch(want(tmp_path / "new"), lambda: members, SystemClock(), kill).run(5)
        before = [path for path in one.asked if "/bytes/" in path]
        (shown,) = one.donor.shown()
        assert shown["fetcher"] == "new" and 0 < shown["position"] < shown["bytes"]
        # The node goes on meanwhile.
        one.node.take(*[schedule(n, BEGIN_MS + 250 * n) for n in range(RECORDS, RECORDS + 500)])
        one.node.replica.checkpoint()
        fetched = fetch(tmp_path / "new", members).run(5)
        assert fetched.progress.offsets == (RECORDS, 0)
        after = [path for path in one.asked if "/bytes/" in path][len(before) :]
        assert not set(before) & set(after), "no chunk is asked for twice"
    again = ExportingNode(tmp_path / "new")
    assert again.replica.ingested == (RECORDS, 0)
    again.close()


def test_a_snapshot_that_has_ended_is_begun_again(tmp_path: Path) -> None:
    one = Giver(tmp_path / "1", "n1")
    with givers(one) as members:
        ends = [True]

        def end(path: str) -> None:
            if path.endswith(f"/bytes/{3 * CHUNK_BYTES}") and ends.pop():
                one.donor.give_way()
                ends.append(False)

        one.meets = end
        assert fetch(tmp_path / "new", members).run(5).donor == "n1"
    assert contents_of(tmp_path / "new") == contents_of(tmp_path / "1")


def test_a_damaged_donor_is_passed_over(tmp_path: Path) -> None:
    first, second = Giver(tmp_path / "1", "n1"), Giver(tmp_path / "2", "n2")
    path = next(path for path in (tmp_path / "1" / "slots").rglob("*.0"))
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with givers(first, second) as members:
        found = fetch(tmp_path / "new", members)
        assert found.run(5).donor == "n2"
        assert "differs from its line" in found.view.problems["n1"]
    assert contents_of(tmp_path / "new") == contents_of(tmp_path / "2")


def test_an_expired_snapshot_costs_only_what_is_new(tmp_path: Path) -> None:
    """docs/design/storage.md, Snapshots: a copy that takes long does not begin anew for ever."""
    one = Giver(tmp_path / "1", "n1")
    with givers(one) as members:
        ends = [True]

        def end(path: str) -> None:
            if path.endswith(f"/bytes/{6 * CHUNK_BYTES}") and ends.pop():
                one.donor.give_way()
                ends.append(False)

        one.meets = end
        fetched = fetch(tmp_path / "new", members).run(5)
        assert one.asked.count("/snapshots/new") == 2
        asked = [path for path in one.asked if "/bytes/" in path]
        assert len(asked) <= fetched.bytes // CHUNK_BYTES + 3, "what it had is not asked for again"
    assert contents_of(tmp_path / "new") == contents_of(tmp_path / "1")


def test_a_whole_copy_needs_its_donor_no_more(tmp_path: Path) -> None:
    one = Giver(tmp_path / "1", "n1")
    with givers(one) as members:

        def kill(stage: str, done: int, total: int) -> None:
            if stage == "verify":
                assert one.donor.shown() == [], "nothing is pinned any more"
                raise Killed

        with pytest.raises(Killed):
            Fetch(want(tmp_path / "new"), lambda: members, SystemClock(), kill).run(5)
        again = fetch(tmp_path / "new", {})
        assert again.run(5).donor == "n1"
        assert again.view.stage == "verify"
    assert contents_of(tmp_path / "new") == contents_of(tmp_path / "1")


def test_a_damaged_donor_is_not_asked_for_ever(tmp_path: Path) -> None:
    one = Giver(tmp_path / "1", "n1")
    path = next(path for path in (tmp_path / "1" / "slots").rglob("*.0"))
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with givers(one) as members:
        with pytest.raises(SnapshotError, match="differs from its line"):
            fetch(tmp_path / "new", members).run(3)
        assert one.asked.count("/snapshots/new") == SPOILED_MAX


def test_a_copy_that_the_buffer_has_overtaken_is_not_installed(tmp_path: Path) -> None:
    """The buffer is trimmed while it is copied: the next checkpoint is beyond that."""
    one = Giver(tmp_path / "1", "n1")
    with givers(one) as members:
        start = [0]

        def trim(stage: str, done: int, total: int) -> None:
            if stage == "verify" and not start[0]:
                start[0] = RECORDS + 1
                one.node.take(*[schedule(n, BEGIN_MS + 250 * n) for n in (RECORDS, RECORDS + 1)])
                one.node.replica.checkpoint()

        more = want(tmp_path / "new", starts=lambda: {0: start[0], 1: 0})
        fetched = Fetch(more, lambda: members, SystemClock(), trim).run(5)
        assert fetched.progress.offsets == (RECORDS + 2, 0)
        assert one.asked.count("/snapshots/new") == 2


def test_a_disk_without_room_lets_go_of_the_snapshot(tmp_path: Path) -> None:
    one = Giver(tmp_path / "1", "n1")
    with givers(one) as members:
        for _ in range(2):
            with pytest.raises(DiskFullError, match="nothing was removed"):
                fetch(tmp_path / "new", members, spare_bytes=2**60).run(5)
            assert one.donor.shown() == []
        with pytest.raises(Killed):
            interrupted(tmp_path / "new", members)
        with pytest.raises(DiskFullError):
            fetch(tmp_path / "new", members, spare_bytes=2**60).run(5)
    assert Draft(tmp_path / "new").source is not None, "what was copied stays"


def interrupted(directory: Path, members: Mapping[str, str]) -> None:
    def kill(stage: str, done: int, total: int) -> None:
        if stage == "files" and done > total // 2:
            raise Killed

    Fetch(want(directory), lambda: members, SystemClock(), kill).run(5)


def refused(directory: Path, members: Mapping[str, str], **more: Any) -> str:
    with pytest.raises(SnapshotError) as error:
        fetch(directory, members, **more).run(0.2)
    assert not (directory / "format.json").exists()
    return str(error.value)


def test_another_clusters_wheel_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It has the same key, and even believes in the same realm.
    one = Giver(tmp_path / "1", "n1")
    other: Settings = replace(SETTINGS, buffer=replace(SETTINGS.buffer, topic_id="another"))
    with givers(one) as members:
        assert "needs one of" in refused(tmp_path / "new", members, settings=other)
        described = Donor.described
        monkeypatch.setattr(
            Donor, "described", lambda self, id: {**described(self, id), "buffer": "another"}
        )
        assert "another cluster's" in refused(tmp_path / "new", members, settings=other)


def test_a_donor_of_another_realm_takes_no_request(tmp_path: Path) -> None:
    one = Giver(tmp_path / "1", "n1", realm="another/cluster")
    with givers(one) as members:
        assert "another cluster key, cluster" in refused(tmp_path / "new", members)


def test_a_donor_that_is_behind_the_buffer_is_refused(tmp_path: Path) -> None:
    one = Giver(tmp_path / "1", "n1")
    with givers(one) as members:
        problem = refused(tmp_path / "new", members, starts=lambda: {0: RECORDS + 1, 1: 0})
        assert f"begins at {RECORDS + 1}" in problem


def test_a_chunk_that_was_changed_on_the_way_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Giver(tmp_path / "1", "n1")
    wrong = [b"!" * CHUNK_BYTES, b""]
    sign, read = MemberCheck.answer, Snapshot.bytes_at

    def damage(self: Snapshot, position: int, size: int) -> bytes:
        data = read(self, position, size)
        if wrong and position:
            changed = wrong.pop()
            signed.append((changed, data))
            return changed
        return data

    signed: list[tuple[bytes, bytes]] = []

    def sign_the_right_one(self: MemberCheck, passed: Passed, body: bytes) -> str:
        right = next((data for changed, data in signed if changed == body), body)
        return sign(self, passed, right)

    monkeypatch.setattr(Snapshot, "bytes_at", damage)
    monkeypatch.setattr(MemberCheck, "answer", sign_the_right_one)
    with givers(one) as members:
        fetch(tmp_path / "new", members).run(5)
    assert not wrong
    assert one.asked.count("/snapshots/new") == 1, "what was right is not copied again"
    assert contents_of(tmp_path / "new") == contents_of(tmp_path / "1")


def test_nobody_is_there(tmp_path: Path) -> None:
    assert "no other node is announced" in refused(tmp_path / "new", {"new": "{}"})
    (port,) = pick_ports(1)
    away = {"n1": json.dumps({"admin": f"127.0.0.1:{port}", "nonce": "x"})}
    assert "n1: does not answer" in refused(tmp_path / "new", away)


# Who may ask.


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Giver]:
    made = Giver(tmp_path / "1", "n1")
    yield made
    made.close()


def test_strangers_get_nothing(one: Giver) -> None:
    url = f"http://127.0.0.1:{one.port}"
    pinned = one.donor.begin("somebody")["snapshot"]
    paths = [f"/snapshots/{pinned}{rest}" for rest in ("", "/lines/-", "/bytes/0")]
    keys = MemberKeys(b"another key of sixteen", SETTINGS.realm)
    for method, path in [*(("GET", path) for path in paths), ("POST", "/snapshots/me")]:
        stranger = Asked(keys, method, path, "life of n1", SystemClock()).header
        for shown in ({}, {"authorization": "Delayd 1.2.3"}, {"authorization": stranger}):
            answer = httpx.request(method, url + path, headers=shown)
            assert answer.status_code == 401, answer.text
    assert [pin["fetcher"] for pin in one.donor.shown()] == ["somebody"]


def test_a_request_is_taken_once_and_for_what_it_is(one: Giver) -> None:
    url = f"http://127.0.0.1:{one.port}"
    pinned = one.donor.begin("somebody")["snapshot"]
    path = f"/snapshots/{pinned}/bytes/0"
    asked = Asked(MemberKeys(PROOF_KEY, SETTINGS.realm), "GET", path, "life of n1", SystemClock())
    headers = {"authorization": asked.header}
    assert httpx.get(f"{url}/snapshots/{pinned}/bytes/1", headers=headers).status_code == 401
    assert httpx.delete(url + path, headers=headers).status_code != 200
    answer = httpx.get(url + path, headers=headers)
    assert answer.status_code == 200
    assert asked.is_answered_by(answer.content, answer.headers["x-delayd-proof"])
    assert not asked.is_answered_by(answer.content[:-1], answer.headers["x-delayd-proof"])
    again = httpx.get(url + path, headers=headers)
    assert again.status_code == 401 and "made before" in again.text


def test_keys_that_are_being_replaced_are_all_accepted() -> None:
    clock = ManualClock(10**12)
    old, new = b"the old key of the cluster", b"the new key of the cluster"
    for theirs, ours in ((old, new + b"\n" + old), (new + b"\n" + old, old + b"\n" + new)):
        asked = Asked(MemberKeys(theirs, "r"), "GET", "/x", "life", clock)
        check = MemberCheck(MemberKeys(ours, "r"), "life", clock)
        passed = check.check("GET", "/x", asked.header)
        assert asked.is_answered_by(b"body", check.answer(passed, b"body"))


def test_old_requests_and_those_to_another_life_are_refused() -> None:
    clock = ManualClock(10**12)
    keys = MemberKeys(PROOF_KEY, "r")
    check = MemberCheck(keys, "life", clock)

    def takes(asked: Asked, check: MemberCheck = check) -> bool:
        try:
            check.check("GET", "/x", asked.header)
        except Exception:
            return False
        return True

    late = Asked(keys, "GET", "/x", "life", clock)
    clock.now_ms += AGE_MAX_MS + 1
    assert not takes(late)
    asked = Asked(keys, "GET", "/x", "life", clock)
    assert not takes(asked, MemberCheck(keys, "the next life", clock))
    assert takes(asked) and not takes(asked)
    clock.now_ms += AGE_MAX_MS - 1
    assert takes(Asked(keys, "GET", "/x", "life", clock))
    assert not takes(asked), "as long as its time is accepted it is remembered"
    for _ in range(3):
        clock.now_ms += AGE_MAX_MS
        assert takes(Asked(keys, "GET", "/x", "life", clock))
    assert len(check._seen) < 5, "and no longer"


def test_errors_are_of_their_kind() -> None:
    assert issubclass(SnapshotError, DelaydError)
