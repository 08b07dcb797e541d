"""The Dockerfile, read and not run: what the image is built from, who runs in it, what it asks;
and the same image without a daemon.

Not here: whether it builds and runs; `make chaos-docker` does both.
"""

import io
import json
import re
import sys
import tarfile
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from image import tar
from image.dockerfile import stage_of, steps_of

ROOT = Path(__file__).parents[3]
NOBODY = "65532:65532"
ROOT_USER = b"root:x:0:0:root:/root:/bin/bash\n"


STEPS = steps_of((ROOT / "Dockerfile").read_text())
NODE = stage_of(STEPS, "node")
AUDIT = stage_of(STEPS, "audit")
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def of(name: str, stage: int | None = None) -> list[str]:
    return [s.text for s in STEPS if s.name == name and stage in (None, s.stage)]


def is_ignored(path: str) -> bool:
    """By .dockerignore: the last line that matches decides; a line speaks for all below it."""
    ignored = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!")
        parts = Path(path).parts
        heads = ["/".join(parts[: end + 1]) for end in range(len(parts))]
        if line and not line.startswith("#") and any(fnmatch(head, pattern) for head in heads):
            ignored = not line.startswith("!")
    return ignored


def test_base_and_python_can_be_chosen_for_every_stage() -> None:
    assert [text.partition("=")[0] for text in of("ARG", 0)] == ["PYTHON", "BASE"]
    assert all(text.startswith("${BASE} AS ") for text in of("FROM")[:-1])


def test_what_builds_does_not_run_and_what_runs_builds_nothing() -> None:
    assert NODE >= 2
    assert all(text.startswith("--from=build ") for text in of("COPY", NODE))
    assert not [text for text in of("RUN", NODE) if re.search(r"\b(pip|apt-get|gcc)\b", text)]


def test_without_a_target_it_is_a_node() -> None:
    assert of("FROM")[-1] == "node"
    assert STEPS[-1].name == "FROM"


def test_a_node_is_built_before_what_an_audit_needs() -> None:
    """Some builders build every stage up to the one that is asked for."""
    assert stage_of(STEPS, "build-audit") > NODE


def test_an_audit_runs_as_nobody_who_has_a_name_and_has_java_from_the_bases_packages() -> None:
    assert of("USER", AUDIT) == [NOBODY]
    assert of("ENTRYPOINT", AUDIT) == ['["delayd"]']
    assert of("COPY", AUDIT) == ["--from=build-audit /opt/delayd /opt/delayd"]
    [prepared] = of("RUN", AUDIT)
    assert "apt-get install" in prepared and "default-jre-headless" in prepared
    assert 'echo "delayd:x:65532:65532:' in prepared and ">> /etc/passwd" in prepared
    [install] = [text for text in of("RUN", AUDIT - 1) if "pip install" in text]
    assert "'.[audit]'" in install and "--only-binary :all:" in install


def test_the_last_user_is_nobody_and_owns_the_data() -> None:
    assert of("USER", NODE) == [NOBODY]
    assert of("VOLUME", NODE) == ["/data"]
    assert any(f"chown {NOBODY} /data" in text for text in of("RUN", NODE))
    names = [step.name for step in STEPS if step.stage == NODE]
    assert names.index("RUN") < names.index("USER") < names.index("ENTRYPOINT")


def test_a_node_has_no_spark_and_nothing_is_compiled() -> None:
    [install] = [text for text in of("RUN", 1) if "pip install" in text]
    assert "--only-binary :all:" in install
    assert not re.search(r"\[|pyspark|numpy", install)


def test_the_context_holds_what_is_copied_and_no_more() -> None:
    copied = [path for text in of("COPY", 1) for path in text.split()[:-1]]
    assert set(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) < set(copied)
    wheels = "build/wheel[s]/*.whl"
    for path in copied:
        assert path == wheels or ((ROOT / path).exists() and not is_ignored(path)), path
    assert not is_ignored("build/wheels/x.whl")
    assert is_ignored("image/tar.py")
    for path in (".git", ".venv", "tests", "chaos", "build/lib", "delayd/__pycache__"):
        assert is_ignored(path), path


@pytest.mark.parametrize("stage", [NODE, AUDIT])
def test_the_label_says_this_version(stage: int) -> None:
    [version] = [text for text in of("ARG", stage) if text.startswith("VERSION=")]
    assert version == f"VERSION={PROJECT['project']['version']}"
    assert 'version="${VERSION}"' in of("LABEL", stage)[0]


def test_the_healthcheck_asks_what_depends_on_nothing() -> None:
    [check] = of("HEALTHCHECK", NODE)
    assert "'/livez'" in check
    assert "'DELAYD_ADMIN_PORT', '7070'" in check


def test_a_node_is_asked_to_end_and_not_its_shell() -> None:
    assert of("STOPSIGNAL", NODE) == ["SIGTERM"]
    assert of("ENTRYPOINT", NODE) == ['["delayd"]']
    assert of("CMD", NODE) == ['["node"]']


# --- Without a daemon


def installed(tree: Path, folder: str, version: str, extra: str | None = None) -> None:
    """Instead of 200 MB."""
    program = tree / tar.HOME / "bin" / "delayd"
    program.parent.mkdir(parents=True)
    program.write_text(f"{folder} {version} {extra}")
    (tree / "data").mkdir()


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root file system with this Python and nothing in it; what is installed there is small."""
    monkeypatch.setattr(tar, "install", installed)
    file = tmp_path / "base.tar"
    with tarfile.open(file, "w") as written:
        written.addfile(tarfile.TarInfo(f"./usr/bin/python{VERSION}"))
        written.addfile(tarfile.TarInfo("./usr/lib/x86_64-linux-gnu/libstdc++.so.6"))
        users = tarfile.TarInfo("./etc/passwd")
        users.size = len(ROOT_USER)
        written.addfile(users, io.BytesIO(ROOT_USER))
    return file


def read(image: Path) -> tuple[dict[str, Any], dict[str, Any], list[list[tarfile.TarInfo]]]:
    with tarfile.open(image) as opened:

        def content(name: str) -> bytes:
            file = opened.extractfile(name)
            assert file is not None
            return file.read()

        [manifest] = json.loads(content("manifest.json"))
        layers = []
        for name in manifest["Layers"]:
            with tarfile.open(fileobj=io.BytesIO(content(name))) as layer:
                layers.append(layer.getmembers())
        return manifest, json.loads(content(manifest["Config"])), layers


def test_a_tar_has_the_bases_layers_and_one_more_and_the_dockerfiles_settings(
    base: Path, tmp_path: Path
) -> None:
    out = tmp_path / "delayd.tar"
    assert tar.main([str(base), str(out), "--tag", "delayd:7", "--revision", "r1"]) == 0
    manifest, image, [_, layer] = read(out)
    assert manifest["RepoTags"] == ["delayd:7"]
    assert {entry.name: entry.uid for entry in layer}["data"] == 65532
    assert {entry.uid for entry in layer if entry.name != "data"} == {0}
    config = image["config"]
    assert (config["User"], config["Entrypoint"], config["Cmd"]) == (NOBODY, ["delayd"], ["node"])
    assert config["Labels"]["org.opencontainers.image.version"] == PROJECT["project"]["version"]
    assert config["Labels"]["org.opencontainers.image.revision"] == "r1"
    assert f"PATH=/opt/delayd/bin:{tar.BASE_PATH}" in config["Env"]
    assert config["Volumes"] == {"/data": {}} and config["ExposedPorts"] == {"7070/tcp": {}}
    assert config["Healthcheck"]["Test"][:2] == ["CMD", "python"]
    assert config["Healthcheck"]["Interval"] == 10_000_000_000

    again = tmp_path / "again.tar"
    tar.main([str(out), str(again)])
    assert len(read(again)[2]) == 3, "an image is a base too"


def test_the_same_files_are_the_same_layer(base: Path, tmp_path: Path) -> None:
    digests = []
    for number in range(2):
        out = tmp_path / f"{number}.tar"
        tar.main([str(base), str(out)])
        digests.append(read(out)[1]["rootfs"]["diff_ids"])
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("usr/local/bin/python3.1", "the base has Python 3.1"),
        (f"usr/bin/python{VERSION}", "no libstdc++.so.6"),
    ],
)
def test_a_base_with_another_python_or_without_the_library_of_cpp_is_refused(
    name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tmp_path / "base.tar"
    with tarfile.open(base, "w") as written:
        written.addfile(tarfile.TarInfo(name))
    assert tar.main([str(base), str(tmp_path / "out.tar")]) == 1
    assert said in capsys.readouterr().err


@pytest.fixture
def java(tmp_path: Path) -> Path:
    """As distributions have it: with links that lead out of it, and what no program needs."""
    home = tmp_path / "jvm" / "java"
    for name in ("bin/java", "lib/server/libjvm.so", "jmods/java.base.jmod"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(name)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "security").write_text("policy")
    (home / "conf").symlink_to(tmp_path / "etc")
    return home


def test_an_audit_has_java_and_its_user_has_a_name(base: Path, java: Path, tmp_path: Path) -> None:
    out = tmp_path / "audit.tar"
    assert tar.main([str(base), str(out), "--target", "audit", "--java", str(java)]) == 0
    _, image, [_, layer] = read(out)
    entries = {entry.name: entry for entry in layer}
    assert entries["opt/java/conf/security"].isfile()
    assert entries["opt/delayd/bin/java"].linkname == "/opt/java/bin/java"
    assert not {name for name in entries if "jmods" in name or name == "data"}
    assert entries["etc/passwd"].size > len(ROOT_USER)
    assert image["config"]["Cmd"] == ["audit", "--help"]
    assert image["config"]["User"] == NOBODY and not image["config"]["ExposedPorts"]


def test_servers_have_what_their_own_images_have(
    base: Path, java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jars, etcd = tmp_path / "jars", tmp_path / "etcd"
    jars.mkdir()
    (jars / "kafka.jar").write_text("jar")
    etcd.write_text("program")
    monkeypatch.setattr(tar, "find_java", lambda _environ: None)
    monkeypatch.setattr(tar, "kafka_jars", lambda *_, **__: jars)
    monkeypatch.setattr(tar, "etcd_binary", lambda: etcd)
    out = tmp_path / "servers.tar"
    assert tar.main([str(base), str(out), "--target", "servers", "--java", str(java)]) == 0
    _, image, [_, layer] = read(out)
    names = {entry.name for entry in layer}
    assert {"opt/kafka/libs/kafka.jar", "usr/local/bin/etcd", "usr/local/bin/java"} <= names
    assert not {name for name in names if name.startswith("opt/delayd")}
    assert image["config"]["User"] == NOBODY


@pytest.mark.parametrize("more", [["--target", "audit"], ["--java", "/usr"]])
def test_java_goes_with_what_runs_it(more: list[str], base: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        tar.main([str(base), str(tmp_path / "out.tar"), *more])
