"""An image without a daemon: `python -m image.tar BASE_TAR OUT_TAR [--target audit --java HOME]`.

    BASE_TAR  a root file system, or an image as `docker save` writes it
    OUT_TAR   an image as `docker load` and `ctr images import` take it: the base's layers and one
              more, with the same files as the Dockerfile's stage, and that stage's settings
    node      the image of a node
    audit     that of an audit, with Spark, and a copy of the Java runtime in HOME
    servers   Kafka and etcd as `delayd dev up` runs them, with a copy of Java: for clusters that
              reach no registry

Wheels come from build/wheels (`make wheels`) or, without them, from the package index. It must run
with the Python that the base has, 3.11 or 3.12: what is installed is compiled for that one.
"""

import argparse
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from delayd.dev.etcd import etcd_binary
from delayd.dev.jars import kafka_jars
from delayd.runtime.java import find_java
from image.dockerfile import config_of, steps_of

ROOT: Final = Path(__file__).parents[1]
HOME: Final = "opt/delayd"
USER: Final = 65532
EPOCH: Final = "1970-01-01T00:00:00Z"
BASE_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CHUNK_BYTES: Final = 1 << 20
NO_RUNTIME: Final = ("jmods", "include", "man", "docs", "demo", "src.zip", "*.debuginfo")
"""Of a Java: what only builders of programs need."""

PYTHON: Final = re.compile(r"(?:\./)?(usr/(?:local/)?bin)/python(3\.\d+)")
CPP: Final = re.compile(r".*/libstdc\+\+\.so\.6")
"""The library of C++, which LevelDB and Java need."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code: 0, or 1 with a sentence why not."""
    parser = argparse.ArgumentParser(prog="python -m image.tar", description=__doc__)
    parser.add_argument("base", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tag", default="delayd:latest")
    parser.add_argument("--revision", default="unknown")
    parser.add_argument("--target", choices=("node", "audit", "servers"), default="node")
    parser.add_argument("--java", type=Path, help="for audit and servers: a Java 17 or newer")
    options = parser.parse_args(arguments)
    if (options.java is None) is not (options.target == "node"):
        parser.error("--java goes with audit and servers")
    with tempfile.TemporaryDirectory(prefix="delayd-image-") as work:
        layers, path = base_layers(options.base, Path(work))
        python = next(found_in(layers, PYTHON), None)
        here = f"{sys.version_info.major}.{sys.version_info.minor}"
        if python is None or python[2] != here:
            has = "no Python" if python is None else f"Python {python[2]}"
            print(f"image: the base has {has}, and this is Python {here}", file=sys.stderr)
            return 1
        if not any(found_in(layers, CPP)):
            print("image: the base has no libstdc++.so.6 (libstdc++6)", file=sys.stderr)
            return 1
        tree = Path(work) / "tree"
        if options.target == "servers":
            install_servers(tree)
            config = {"Env": [f"PATH={path}"], "User": f"{USER}:{USER}"}
        else:
            install(tree, python[1], here, extra="audit" if options.target == "audit" else None)
            version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
            steps = steps_of((ROOT / "Dockerfile").read_text())
            told = {"VERSION": version, "REVISION": options.revision}
            config = config_of(steps, told, path, options.target)
        if options.java is not None:
            install_java(tree, options.java)
        if options.target == "audit":
            (tree / "data").rmdir()
            name_user(tree, layers)
        layer = Path(work) / "layer.tar"
        write_layer(tree, layer)
        write_image(options.out, options.tag, [*layers, layer], config)
        size = layer.stat().st_size / 1e6
    print(f"{options.out}: {options.tag}, {size:.0f} MB above its base")
    return 0


def base_layers(base: Path, work: Path) -> tuple[list[Path], str]:
    """The base's layers as files, and its PATH."""
    with tarfile.open(base) as tar:
        if "manifest.json" not in tar.getnames():
            return [base], BASE_PATH
        [manifest] = json.load(_file(tar, "manifest.json"))
        config = json.load(_file(tar, manifest["Config"]))
        layers = []
        for number, name in enumerate(manifest["Layers"]):
            layers.append(work / f"base-{number}.tar")
            with layers[-1].open("wb") as layer:
                shutil.copyfileobj(_file(tar, name), layer, CHUNK_BYTES)
    variables = dict(each.partition("=")[::2] for each in config["config"].get("Env") or ())
    return layers, variables.get("PATH", BASE_PATH)


def found_in(layers: Sequence[Path], pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
    """The names of the layers' files that match."""
    for layer in layers:
        with tarfile.open(layer) as tar:
            yield from filter(None, map(pattern.fullmatch, tar.getnames()))


def install(tree: Path, folder: str, version: str, extra: str | None = None) -> None:
    """The files of the image: as a virtual environment of the base's Python has them."""
    home = tree / HOME
    packages = home / "lib" / f"python{version}" / "site-packages"
    packages.mkdir(parents=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--target", str(packages), "--only-binary", ":all:", "--no-compile"]
    wheels = ROOT / "build" / "wheels"
    if any(wheels.glob("*.whl")):
        pip += ["--no-index", "--find-links", str(wheels)]
    elif extra == "audit":
        pip += ["--no-binary", "pyspark"]  # it has no wheel, and nothing to compile
    subprocess.run([*pip, f"{ROOT}[{extra}]" if extra else str(ROOT)], check=True)
    shutil.rmtree(packages / "bin", ignore_errors=True)  # their interpreter is the builder's
    subprocess.run(["sh", str(ROOT / "image" / "slim.sh"), str(packages)], check=True)
    # Believed without a look at the times of sources, which the layer does not have.
    compiled = ["-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    inside = ["-s", str(tree), "-p", "/", str(packages)]
    subprocess.run([sys.executable, *compiled, *inside], check=True)
    (home / "pyvenv.cfg").write_text(f"home = /{folder}\nversion = {version}\n")
    programs = home / "bin"
    programs.mkdir()
    (programs / "python3").symlink_to(f"/{folder}/python{version}")
    (programs / "python").symlink_to("python3")
    program = programs / "delayd"
    program.write_text(
        f"#!/{HOME}/bin/python3\nimport sys\n\n"
        "from delayd.commands.cli import main\n\nsys.exit(main())\n"
    )
    program.chmod(0o755)
    (tree / "data").mkdir()


def install_servers(tree: Path) -> None:
    """Kafka's jars and etcd's program, where their own images have them."""
    jars = kafka_jars(find_java(os.environ), env=os.environ)
    shutil.copytree(jars, tree / "opt" / "kafka" / "libs")
    programs = tree / "usr" / "local" / "bin"
    programs.mkdir(parents=True)
    shutil.copy2(etcd_binary(), programs / "etcd")
    for path in tree.rglob("*"):  # whoever runs them must be able to read them
        path.chmod(0o644 if path.suffix == ".jar" else 0o755)


def install_java(tree: Path, home: Path) -> None:
    """A copy that needs nothing of this machine: distributions link to their configuration."""
    here = tree / "opt" / "java"
    shutil.copytree(home, here, ignore=shutil.ignore_patterns(*NO_RUNTIME))
    for program in (tree / HOME / "bin", tree / "usr" / "local" / "bin"):
        if program.is_dir():
            (program / "java").symlink_to("/opt/java/bin/java")


def name_user(tree: Path, layers: Sequence[Path]) -> None:
    """Spark asks the system for the name of who runs it."""
    text = ""
    for layer in layers:
        with tarfile.open(layer) as tar:
            for name in {"etc/passwd", "./etc/passwd"} & set(tar.getnames()):
                text = _file(tar, name).read().decode()
    (tree / "etc").mkdir()
    (tree / "etc" / "passwd").write_text(f"{text}delayd:x:{USER}:{USER}::/tmp:/usr/sbin/nologin\n")


def write_layer(tree: Path, layer: Path) -> None:
    """Root's, but for the data; without times, so that the same files are the same layer."""

    def owned(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = USER if entry.name == "data" else 0
        entry.uname = entry.gname = ""
        entry.mtime = 0
        return entry

    with tarfile.open(layer, "w") as tar:
        for path in sorted(tree.rglob("*")):
            tar.add(path, str(path.relative_to(tree)), recursive=False, filter=owned)


def write_image(out: Path, tag: str, layers: Sequence[Path], config: dict[str, Any]) -> None:
    """In the format of `docker save`, one image."""
    digests = [_digest(layer) for layer in layers]
    image = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": EPOCH,
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
            "history": [{"created": EPOCH, "created_by": "image.tar"} for _ in digests],
        }
    ).encode()
    name = f"{hashlib.sha256(image).hexdigest()}.json"
    paths = [f"{digest}/layer.tar" for digest in digests]
    manifest = json.dumps([{"Config": name, "RepoTags": [tag], "Layers": paths}]).encode()
    with tarfile.open(out, "w") as tar:
        for layer, path in zip(layers, paths, strict=True):
            tar.add(layer, path)
        for path, content in ((name, image), ("manifest.json", manifest)):
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _file(tar: tarfile.TarFile, name: str) -> io.BufferedReader:
    found = tar.extractfile(name)
    assert found is not None, f"{name} is a file of the archive's own list"
    return found  # type: ignore[return-value]


if __name__ == "__main__":
    sys.exit(main())
