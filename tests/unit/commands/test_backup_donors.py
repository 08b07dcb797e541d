"""Backups over HTTP, from real admin ports: from whom, and the commands.

Source: docs/design/storage.md, "Backups".
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from exporting_node import BEGIN_MS, PROOF_KEY, SETTINGS, schedule
from giving_node import RECORDS, Giver
from typer.testing import CliRunner
from wheel_snapshots import contents_of

from delayd.commands import cli
from delayd.commands.backup import donating, packs
from delayd.commands.backup.donating import Cluster, back_up
from delayd.commands.backup.keeping import backups_in
from delayd.commands.backup.saving import Saved
from delayd.commands.backup.stores import Directory
from delayd.config.node import NodeConfig
from delayd.errors import BackupError, ConfigError, SnapshotError
from delayd.runtime.clock import Clock, SystemClock


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "PACK_BYTES", 20_000)
    monkeypatch.setattr("delayd.cluster.fetching.RETRY_S", 0.01)


def cluster_of(*givers: Giver) -> Cluster:
    members = {giver.name: giver.member for giver in givers}
    return Cluster(SETTINGS, PROOF_KEY, lambda: members, SystemClock())


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "target").mkdir()
    return tmp_path / "target"


@pytest.fixture
def made(tmp_path: Path) -> Iterator[list[Giver]]:
    givers = [Giver(tmp_path / "1", "n1", role="master"), Giver(tmp_path / "2", "n2")]
    yield givers
    for giver in givers:
        giver.close()


def saved_from(cluster: Cluster, target: Path, only: str | None = None) -> tuple[Saved, list[str]]:
    said: list[str] = []
    found = back_up(Directory(target), cluster, lambda *told: None, said.append, only)
    return found, said


def test_a_follower_gives_it_and_is_let_go(made: list[Giver], target: Path) -> None:
    master, follower = made
    saved, said = saved_from(cluster_of(*made), target)
    about = saved.manifest.about
    assert (about["node"], about["pending"], about["ingested"]) == ("n2", RECORDS, [RECORDS, 0])
    assert not master.gave and follower.donor.shown() == []
    assert "copies the wheel of n2" in said[0]
    again, _ = saved_from(cluster_of(*made), target)
    assert again.written_bytes == 0
    from_master, _ = saved_from(cluster_of(*made), target, "n1")
    assert from_master.manifest.about["node"] == "n1"


def test_only_new_bytes_go_over_the_network(made: list[Giver], target: Path) -> None:
    giver = made[1]
    saved_from(cluster_of(giver), target)
    before = len([path for path in giver.asked if "/bytes/" in path])
    giver.node.take(*[schedule(n, BEGIN_MS + 100) for n in range(RECORDS, RECORDS + 50)])
    giver.node.replica.checkpoint()
    saved, _ = saved_from(cluster_of(giver), target)
    asked = [path for path in giver.asked if "/bytes/" in path][before:]
    assert 0 < sum(int(path.rpartition("/")[2]) for path in asked) < saved.manifest.bytes / 4


def test_another_node_gives_when_one_dies_in_the_middle(
    made: list[Giver], target: Path, tmp_path: Path
) -> None:
    _, dies = made

    def die(path: str) -> None:
        if "/bytes/" in path:
            dies.die()
            raise ConnectionError("it is gone")

    dies.meets = die
    saved, said = saved_from(cluster_of(*made), target)
    assert saved.manifest.about["node"] == "n1" and len(said) == 2
    assert len(backups_in(Directory(target))) == 1


def test_nobody_gives(made: list[Giver], target: Path) -> None:
    with pytest.raises(SnapshotError, match="none is announced"):
        saved_from(cluster_of(*made), target, "n3")
    wrong = replace(cluster_of(*made), proof_key=b"another key of sixteen")
    with pytest.raises(SnapshotError, match="another cluster key"):
        saved_from(wrong, target)
    assert backups_in(Directory(target)) == []


# The commands.


@pytest.fixture
def run(made: list[Giver], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Commands":
    return Commands(made, tmp_path, monkeypatch)


class Commands:
    """The command line, with this cluster in place of Kafka and etcd."""

    def __init__(self, made: list[Giver], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.config = folder / "node.toml"
        self.config.write_text(
            'bootstrap = "nowhere:1"\netcd = ["http://nowhere:1"]\ncluster_key = "x%s"\n'
            % ("k" * 20)
        )

        @contextmanager
        def connected(node: NodeConfig, clock: Clock) -> Iterator[Cluster]:
            yield cluster_of(*made)

        monkeypatch.setattr(donating, "connected", connected)

    def __call__(self, *arguments: str | Path) -> str:
        result = CliRunner().invoke(cli.app, [str(each) for each in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        self.stderr, self.code = result.stderr, result.exit_code
        return result.stdout


def test_backups_are_made_listed_verified_and_removed(
    run: Commands, made: list[Giver], target: Path
) -> None:
    made_one = json.loads(run("backup", target, "-c", run.config, "--json"))
    assert made_one["pending"] == RECORDS and made_one["written_bytes"] > 0
    assert "new: 0 bytes in 0 packs" in run("backup", target, "-c", run.config)
    run("backup", target, "-c", run.config, "--keep", "1")
    assert "would remove 2 older backups" in run.stderr
    assert len(json.loads(run("backup", target, "--list", "--json"))["backups"]) == 3
    done = json.loads(run("backup", target, "-c", run.config, "--keep", "1", "--yes", "--json"))
    assert len(done["removed_backups"]) == 3 and "removes 3 older" in run.stderr
    assert "1 backups" in run("backup", target, "--list")
    assert "1 of 1 backups are whole" in run("backup", target, "--verify") and run.code == 0
    pack = next((target / "packs").iterdir())
    pack.write_bytes(pack.read_bytes()[:-1])
    assert "cannot be restored" in run("backup", target, "--verify") and run.code == 1
    assert not json.loads(run("backup", target, "--verify", "--json"))["ok"]
    with pytest.raises(BackupError, match="holds no backups"):
        run("backup", target.parent, "--list")
    with pytest.raises(ConfigError, match="stand alone"):
        run("backup", target, "--verify", "--keep", "2")


def test_a_backup_from_the_future_is_told_and_not_restored_for_ever(
    run: Commands, made: list[Giver], target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as wrong:
        wrong.setattr(SystemClock, "wall_ms", lambda self: 4_000_000_000_000)
        future = json.loads(run("backup", target, "-c", run.config, "--json"))["backup"]
    done = json.loads(run("backup", target, "-c", run.config, "--json"))
    assert f"warning: backup {future} lies in the future" in run.stderr
    listed = json.loads(run("backup", target, "--list", "--json"))["backups"]
    assert [each["backup"] for each in listed] == [future, done["backup"]]
    assert listed[0]["age_ms"] < 0 <= listed[1]["age_ms"]
    into = ("restore", target, "--into", tmp_path / "new", "--without-kafka", "--yes", "--json")
    (target / "backups" / "29990101T000000.000Z-0.json").write_bytes(b"{}")
    assert json.loads(run(*into))["backup"] == done["backup"]
    assert "passes over the newer backup 2999" in run.stderr and future in run.stderr
    (target / "backups" / "29990101T000000.000Z-0.json").unlink()
    done = json.loads(run("backup", target, "-c", run.config, "--keep=1", "--yes", "--json"))
    assert future in done["removed_backups"]
    assert (target / "backups" / done["backup"]).exists()


def test_a_wheel_is_restored_by_the_command(
    run: Commands, made: list[Giver], target: Path, tmp_path: Path
) -> None:
    run("backup", target, "-c", run.config)
    into = ("restore", target, "--into", tmp_path / "new", "--without-kafka")
    assert "would restore into" in run(*into) and not (tmp_path / "new").exists()
    done = json.loads(run(*into, "--yes", "--json"))
    assert (done["pending"], done["ingested"]) == (RECORDS, [RECORDS, 0])
    assert "restores into" in run.stderr
    assert contents_of(tmp_path / "new")[1]
    with pytest.raises(BackupError, match="holds a wheel"):
        run(*into)
    with pytest.raises(BackupError, match="so old"):
        run(*into, "--at", "2020-01-01T00:00:00Z")
    with pytest.raises(ConfigError, match="is not a time"):
        run(*into, "--at", "yesterday")


def test_a_backup_needs_a_target_that_is_there(run: Commands, tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="there is no directory"):
        run("backup", tmp_path / "away", "-c", run.config)
    assert not (tmp_path / "away").exists()
