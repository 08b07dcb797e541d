"""Programs of Kafka beside its broker, each a process in a folder of its own: for tests that kill
them."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from nodes import HANGS_S

from delayd.dev.jars import JarBundle, jars_of
from delayd.dev.kafka import LOG4J
from delayd.runtime.java import find_java


class JavaProcess:
    """A class of these jars that reads a file of properties."""

    def __init__(
        self, folder: Path, bundle: JarBundle, main: str, settings: Mapping[str, str]
    ) -> None:
        folder.mkdir(parents=True)
        java = find_java(os.environ)
        jars = jars_of(bundle, java, env=os.environ)
        (folder / "log4j2.xml").write_text(LOG4J)
        properties = folder / "process.properties"
        properties.write_text("".join(f"{key} = {value}\n" for key, value in settings.items()))
        self._log = folder / "log"
        self._command = [
            str(java.path),
            *("-cp", f"{jars}/*"),
            *("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
            f"-Djava.io.tmpdir={folder}",
            f"-Dlog4j2.configurationFile={(folder / 'log4j2.xml').as_uri()}",
            main,
            str(properties),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """What it has printed."""
        return self._log.read_text() if self._log.exists() else ""

    @property
    def runs(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it; it works after some seconds."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(HANGS_S)
