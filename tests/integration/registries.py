"""A real schema registry for tests, Apicurio's, fetched from Maven Central; it keeps all in memory.

Not here: the registry in memory that confluent-kafka brings, which checks no compatibility.
"""

import hashlib
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from installing import install, only_installer
from nodes import HANGS_S, wait_for

from delayd.dev.jars import ivy_jar
from delayd.dev.ports import LOOPBACK, pick_ports
from delayd.runtime.cache import cache_directory
from delayd.runtime.java import find_java

APICURIO_VERSION: Final = "2.6.13.Final"  # runs on Java 17; 3.3 does not
APICURIO_SHA256: Final = "3cda1b34aa020fb4ac4dd6a66018d757e81e437f97e20a1f92d366b70091c6ba"
MODULE: Final = f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
<info organisation="delayd" module="registry"/><dependencies>
<dependency org="io.apicurio" name="apicurio-registry-app" rev="{APICURIO_VERSION}"
 transitive="false"><artifact name="apicurio-registry-app" type="tar.gz" ext="tar.gz"
 m:classifier="all"/></dependency></dependencies></ivy-module>"""


@contextmanager
def apicurio(folder: Path) -> Iterator[str]:
    """Run one. Yield the URL of what it has for Confluent's clients."""
    java, port = find_java(os.environ), pick_ports(1)[0]
    url = f"http://{LOOPBACK}:{port}/apis/ccompat/v7"
    few = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
    here = (f"-Dquarkus.http.host={LOOPBACK}", f"-Dquarkus.http.port={port}")
    jar = _apicurio() / f"apicurio-registry-app-{APICURIO_VERSION}-runner.jar"
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen(
            [java.path, *few, *here, f"-Djava.io.tmpdir={folder}", "-jar", jar],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(lambda: _answers(url) or process.poll() is not None, "the registry answers")
        assert process.poll() is None, (folder / "registry.log").read_text()[-3000:]
        yield url
    finally:
        process.kill()
        process.wait(HANGS_S)


def _apicurio() -> Path:
    """The folder of the program; AssertionError if its checksum is another one."""
    with only_installer(cache_directory(os.environ), "registry") as folder:
        home = folder / f"apicurio-{APICURIO_VERSION}"
        if not home.exists():
            arriving = folder / "arriving"
            shutil.rmtree(arriving, ignore_errors=True)
            module = folder / "ivy.xml"
            module.write_text(MODULE)
            install(
                f"Apicurio Registry {APICURIO_VERSION} from Maven Central",
                [
                    *(find_java(os.environ).path, f"-Divy.default.ivy.user.dir={folder / 'ivy'}"),
                    *("-jar", ivy_jar(), "-cache", folder / "ivy" / "cache", "-ivy", module),
                ],
            )
            # Ivy retrieves nothing with a classifier of its own, but has it in its cache.
            [archive] = (folder / "ivy" / "cache").rglob("*.tar.gz")
            found = hashlib.sha256(archive.read_bytes()).hexdigest()
            assert found == APICURIO_SHA256, f"{archive} has the SHA-256 {found}"
            shutil.unpack_archive(archive, arriving, filter="data")
            arriving.rename(home)
            shutil.rmtree(folder / "ivy")
    return home


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/subjects", timeout=HANGS_S):
            return True
    except OSError:
        return False
