"""What is to be released, the wheel and the source archive: built, looked at, and tried.

    python tests/dist.py build/dist

Builds both from the checkout into the folder, and looks at what they hold. Then the wheel goes into
a bare virtual environment, from where `delayd dev demo` runs, far from the checkout: a real Kafka,
real nodes, a killed master, an audit. Beside them goes a bill of materials (CycloneDX) of what the
wheel installs for a node. Prints how long each step took, and SHA-256 of the files.
"""

import argparse
import email
import hashlib
import json
import subprocess
import tarfile
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("delayd/", "replication/")
"""All that the wheel has, beside what describes it."""
MUST_HAVE = (
    "delayd/commands/cli.py",
    "delayd/testing/fixtures.py",
    "delayd/node/monitoring/console/index.html",
    "replication/frontier.py",
)
SOURCE_HAS = ("pyproject.toml", "README.md", "LICENSE", "native/build.py", "native/pack.c")
EXTRAS = {"audit", "backup", "backup-s3", "chaos", "dev-cluster", "test"}


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command; return what it prints. SystemExit with its last words if it fails."""
    began = time.monotonic()
    done = subprocess.run(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{command} failed:\n{done.stdout[-3_000:]}")
    said = " ".join(Path(each).name if each is command[0] else str(each) for each in command)
    print(f"{time.monotonic() - began:6.1f} s  {said}", flush=True)
    return done.stdout


def bare_environment(folder: Path) -> Path:
    """A virtual environment with nothing in it but pip: where its programs are."""
    venv.create(folder, with_pip=True)
    return folder / "bin"


def look_into_wheel(file: Path) -> None:
    """Raise AssertionError for what the wheel lacks, or has and should not."""
    with zipfile.ZipFile(file) as wheel:
        assert wheel.testzip() is None, "it is damaged"
        names = wheel.namelist()
        [described] = [name for name in names if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(wheel.read(described))
        [entries] = [name for name in names if name.endswith("/entry_points.txt")]
        assert b"delayd = delayd.commands.cli:main" in wheel.read(entries)
    about = described.split("/")[0] + "/"
    strange = [name for name in names if not name.startswith((*PACKAGES, about))]
    assert not strange, f"what is this: {strange[:5]}"
    assert not [name for name in names if "__pycache__" in name], "bytecode"
    for name in MUST_HAVE:
        assert name in names, f"{name} is missing"
    ours = {
        f"{each.relative_to(ROOT)}" for kind in PACKAGES for each in (ROOT / kind).rglob("*.py")
    }
    assert ours <= set(names), f"missing: {sorted(ours - set(names))[:5]}"
    assert any("/licenses/LICENSE" in name for name in names), "the licence is missing"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("Provides-Extra", [])) >= EXTRAS
    is_native = any(name.endswith(".so") for name in names)
    assert is_native == ("-none-any" not in file.name), "its tag says otherwise"
    print(f"          {file.name}: {len(names)} files, {file.stat().st_size / 1e6:.2f} MB")


def look_into_source(file: Path) -> None:
    """Raise AssertionError for what it lacks to build the wheel from."""
    with tarfile.open(file) as source:
        names = {name.partition("/")[2] for name in source.getnames()}
    for name in SOURCE_HAS:
        assert name in names, f"{name} is missing"
    assert not [name for name in names if name.endswith(".so") or ".venv" in name]
    print(f"          {file.name}: {len(names)} files, {file.stat().st_size / 1e6:.2f} MB")


def write_materials(file: Path, wheel: Path, builder: Path, away: Path) -> None:
    """Write which packages, of which versions and licences, the wheel installs without extras.
    Raise AssertionError if one is missing in it."""
    node = away / "node"
    venv.create(node, with_pip=False)
    python = node / "bin" / "python"
    pip = (builder / "pip", "--python", python)
    run(*pip, "install", "--quiet", f"{wheel}", cwd=away)
    run(builder / "pip", "install", "--quiet", "cyclonedx-bom>=7,<8", cwd=away)
    about = ("--pyproject", ROOT / "pyproject.toml", "--mc-type", "application")
    form = ("--short-PURLs", "--output-reproducible", "--of", "JSON", "-o", file)
    run(builder / "cyclonedx-py", "environment", *about, *form, python, cwd=away)
    materials = json.loads(file.read_text())
    named = {(each["name"].lower(), each["version"]) for each in materials["components"]}
    listed = json.loads(
        run(*pip, "list", "--format", "json", "--disable-pip-version-check", cwd=away)
    )
    installed = {(each["name"].lower(), each["version"]) for each in listed}
    assert installed - {("delayd", version_of(wheel))} <= named, f"missing: {installed - named}"
    assert str(away) not in file.read_text(), "it names a place of this machine"
    licensed = sum("licenses" in each for each in materials["components"])
    print(f"          {file.name}: {len(named)} packages, {licensed} say their licence")


def version_of(wheel: Path) -> str:
    """The version that a wheel's name says."""
    return wheel.name.split("-")[1]


def main() -> None:
    """Build, look, try."""
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("folder", type=Path)
    folder: Path = asked.parse_args().folder.absolute()
    with tempfile.TemporaryDirectory(prefix="delayd-dist-") as directory:
        away = Path(directory)
        builder = bare_environment(away / "builder")
        run(builder / "pip", "install", "--quiet", "hatchling>=1.25", cwd=away)
        run(builder / "hatchling", "build", "-d", folder, cwd=ROOT)
        [wheel], [source] = folder.glob("*.whl"), folder.glob("*.tar.gz")
        look_into_wheel(wheel)
        look_into_source(source)
        materials = folder / f"delayd-{version_of(wheel)}.cdx.json"
        write_materials(materials, wheel, builder, away)
        user = bare_environment(away / "user")
        run(user / "pip", "install", "--quiet", f"{wheel}[audit,dev-cluster]", cwd=away)
        print(run(user / "delayd", "--version", cwd=away).strip())
        said = run(user / "delayd", "dev", "demo", cwd=away)
        print(*said.splitlines()[-6:], sep="\n")
    for file in (wheel, source, materials):
        print(hashlib.sha256(file.read_bytes()).hexdigest(), file.name)


if __name__ == "__main__":
    main()
