"""A real RocketMQ for tests, fetched from Maven Central: a name server and one broker, and the
programs that fill it with timer messages and export them.

The exporting one is that of the guide, compiled from its page.
"""

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from installing import install, only_installer
from java_compiler import compile_java
from nodes import CLOCK, HANGS_S, wait_for

from delayd.dev.jars import ivy_jar
from delayd.dev.ports import LOOPBACK, pick_ports
from delayd.runtime.cache import cache_directory
from delayd.runtime.clock import wait_until
from delayd.runtime.java import find_java

ROCKETMQ_VERSION: Final = "5.3.3"
MODULE: Final = (
    '<ivy-module version="2.0"><info organisation="delayd" module="rocketmq"/><dependencies>'
    f'<dependency org="org.apache.rocketmq" name="rocketmq-broker" rev="{ROCKETMQ_VERSION}"'
    ' conf="default"/>'
    f'<dependency org="org.apache.rocketmq" name="rocketmq-namesrv" rev="{ROCKETMQ_VERSION}"'
    ' conf="default"/></dependencies></ivy-module>'
)
GUIDE: Final = Path(__file__).parents[2] / "docs" / "guides" / "importing.md"
FILLING: Final = Path(__file__).with_name("FillTimers.java")
BROKER: Final = "broker-a"
STARTED: Final = "boot success"


def rocketmq_jars() -> Path:
    """The folder of its jars, fetched if need be."""
    with only_installer(cache_directory(os.environ), "rocketmq") as folder:
        jars = folder / f"rocketmq-{ROCKETMQ_VERSION}"
        if not jars.exists():
            arriving = folder / "arriving"
            shutil.rmtree(arriving, ignore_errors=True)
            module = folder / "ivy.xml"
            module.write_text(MODULE)
            install(
                f"RocketMQ {ROCKETMQ_VERSION} from Maven Central",
                [
                    *(find_java(os.environ).path, f"-Divy.default.ivy.user.dir={folder / 'ivy'}"),
                    *("-jar", ivy_jar(), "-cache", folder / "ivy" / "cache", "-ivy", module),
                    *("-types", "jar", "bundle", "-retrieve"),
                    f"{arriving}/[artifact]-[revision](-[classifier]).[ext]",
                ],
            )
            arriving.rename(jars)
            shutil.rmtree(folder / "ivy")
    return jars


class RocketMq:
    """The two processes, in a folder of its own. A context manager."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._java = find_java(os.environ)
        self._jars = rocketmq_jars()
        self._classes = folder / "classes"
        program = folder / "ExportTimers.java"
        program.write_text(_program_of_the_guide())
        with only_installer(cache_directory(os.environ), "guides") as cache:
            classpath = os.pathsep.join(str(jar) for jar in self._jars.glob("*.jar"))
            sources = [program, FILLING]
            compile_java("RocketMQ's programs", sources, classpath, self._classes, cache)
        self._name_port, self._port = pick_ports(1)[0], _broker_port()
        self._settings = {
            "brokerClusterName": "c",
            "brokerName": BROKER,
            "listenPort": str(self._port),
            "haListenPort": str(pick_ports(1)[0]),
            "brokerIP1": LOOPBACK,
            "brokerIP2": LOOPBACK,
            "namesrvAddr": self._address,
            "storePathRootDir": str(folder / "store"),
            "storePathCommitLog": str(folder / "store" / "commitlog"),
            "mappedFileSizeCommitLog": str(64 * 1024 * 1024),
            "diskMaxUsedSpaceRatio": "99",
            "timerWheelEnable": "true",
        }
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def _address(self) -> str:
        return f"{LOOPBACK}:{self._name_port}"

    def __enter__(self) -> "RocketMq":
        try:
            # A broker that finds no name server tells it half a minute later where it is.
            own = {"listenPort": str(self._name_port), "kvConfigPath": f"{self._folder}/kv.json"}
            self._start("namesrv", "org.apache.rocketmq.namesrv.NamesrvStartup", own)
            self._start_broker()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.kill()
            process.wait(HANGS_S)

    def schedule(self, topic: str, count: int, first_ms: int) -> dict[str, int]:
        """Send so many timer messages, each due a millisecond behind the one before; by the id that
        RocketMQ gave each, when it is due."""
        done = self._ran("FillTimers", self._address, topic, str(count), str(first_ms))
        sent = {id_: int(ms) for id_, ms in re.findall(r"^sent (\S+) (\d+)$", done.stdout, re.M)}
        assert done.returncode == 0 and len(sent) == count, done.stdout[-3000:]
        return sent

    def restart_without_wheel(self) -> None:
        """As the guide says: from then on no timer message goes out."""
        self._running["broker"].terminate()
        self._running["broker"].wait(HANGS_S)
        self._settings["timerWheelEnable"] = "false"
        self._start_broker()

    def export(self, rows: Path) -> Path:
        """Run the program of the guide, as soon as the name server knows the broker again."""
        from_ms, said = CLOCK.wall_ms(), [""]

        def is_done() -> bool:
            done = self._ran("ExportTimers", self._address, BROKER, str(from_ms), str(rows))
            said[0] = done.stdout
            return done.returncode == 0

        assert wait_until(is_done, HANGS_S * 1000), said[0][-3000:]
        return rows

    def _start_broker(self) -> None:
        self._start("broker", "org.apache.rocketmq.broker.BrokerStartup", self._settings)

    def _start(self, name: str, main: str, settings: Mapping[str, str]) -> None:
        config, log = self._folder / f"{name}.conf", self._folder / f"{name}.log"
        config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*self._command("-Xmx512m"), main, "-c", config],
                env=self._env,
                stdout=file,
                stderr=file,
            )
        self._running[name] = process
        wait_for(lambda: STARTED in log.read_text() or process.poll() is not None, f"{name} starts")
        assert process.poll() is None, log.read_text()[-3000:]

    def _ran(self, main: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._command("-Xmx512m"), main, *arguments],
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=3_600,
            check=False,
        )

    def _command(self, heap: str) -> list[str]:
        few = (heap, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
        # It logs into the home of the user.
        own = (f"-Duser.home={self._folder}", f"-Djava.io.tmpdir={self._folder}")
        return [str(self._java.path), "-cp", f"{self._classes}:{self._jars}/*", *few, *own]

    @property
    def _env(self) -> dict[str, str]:
        return {**os.environ, "ROCKETMQ_HOME": str(self._folder)}


def _program_of_the_guide() -> str:
    [program] = re.findall(r"^```java\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    return str(program)


def _broker_port() -> int:
    """A free port; the broker takes the last but one before it, too."""
    for port in pick_ports(20):
        with socket.socket() as other:
            try:
                other.bind((LOOPBACK, port - 2))
            except OSError:
                continue
            return port
    raise AssertionError("no two free ports")
