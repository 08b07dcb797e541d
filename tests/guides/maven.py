"""Maven, for the libraries of clients/: found on the machine, its repository in the cache.

Invariants: nothing is written into the checkout or into ~/.m2; a machine without Maven, without a
compiler for Java or without Maven Central raises MavenMissingError; any other failure is a result.
"""

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from installing import only_installer

from delayd.runtime.cache import cache_directory

CLIENTS = Path(__file__).parents[2] / "clients"
MODULES = ("java", "spring")
FOLDER = "maven"
"""In the cache."""

RUN_TIMEOUT_S = 600
"""A first run fetches 80 MB."""

OF_THE_NETWORK = re.compile(
    r"Could not transfer (?:artifact|metadata).*(?:UnknownHostException|[Uu]nknown host"
    r"|[Tt]imed out|Temporary failure in name resolution|Connection (?:refused|reset)"
    r"|Network is unreachable|No route to host|status(?: code)?: (?:429|5[0-9][0-9]))"
)
"""What Maven says if a repository cannot be reached. What one has not, it "could not find"."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What surefire reports of a class of tests."""

    tests: int
    failed: int
    skipped: int


@dataclass(frozen=True, slots=True)
class MavenRun:
    """One `mvn test` of all modules."""

    ended_well: bool
    output: str
    by_class: Mapping[str, Counts]
    """By the name of the class without its package."""


class MavenMissingError(Exception):
    """There is no Maven here, or nothing that it could fetch from; the text says which."""


def maven_test(env: Mapping[str, str]) -> MavenRun:
    """Run `mvn test`, offline if all that it needs was fetched before. MavenMissingError."""
    maven, compiler = shutil.which("mvn"), shutil.which("javac")
    if maven is None or compiler is None:
        missing = "Maven" if maven is None else "a compiler for Java (javac)"
        raise MavenMissingError(f"{missing} is not installed")
    with only_installer(cache_directory(os.environ), FOLDER) as folder:
        work = folder / "clients"
        _copy_sources(work)
        fetched = folder / f"fetched-{_digest_of_poms()}"
        mode = "-o" if fetched.exists() else "-U"  # -U: what failed once is asked for again
        done = subprocess.run(
            [maven, "-q", "-B", mode, f"-Dmaven.repo.local={folder / 'repository'}", "test"],
            cwd=work,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
        ended_well = done.returncode == 0
        if ended_well:
            fetched.touch()
        elif mode == "-U" and (trouble := OF_THE_NETWORK.search(done.stdout)):
            raise MavenMissingError(f"Maven fetches nothing: {_line_at(done.stdout, trouble)}")
        return MavenRun(ended_well, done.stdout[-8000:], _reports(work))


def fetch_maven() -> None:
    """Fetch what the tests need, by running those that need no Kafka."""
    with contextlib.suppress(MavenMissingError):  # the test says so
        maven_test({})


def _copy_sources(work: Path) -> None:
    """Bring the sources up to date; keep what was compiled before."""
    for module in MODULES:
        shutil.rmtree(work / module / "src", ignore_errors=True)
        shutil.rmtree(work / module / "target" / "surefire-reports", ignore_errors=True)
        shutil.copytree(CLIENTS / module / "src", work / module / "src")
        shutil.copy(CLIENTS / module / "pom.xml", work / module)
    shutil.copy(CLIENTS / "pom.xml", work)
    shutil.copytree(CLIENTS / "conformance", work / "conformance", dirs_exist_ok=True)


def _digest_of_poms() -> str:
    poms = [CLIENTS / "pom.xml", *(CLIENTS / module / "pom.xml" for module in MODULES)]
    return hashlib.sha256(b"".join(pom.read_bytes() for pom in poms)).hexdigest()[:16]


def _line_at(text: str, found: re.Match[str]) -> str:
    begin = text.rfind("\n", 0, found.start()) + 1
    return text[begin:].partition("\n")[0][:300]


def _reports(work: Path) -> dict[str, Counts]:
    found = {}
    for report in work.glob("*/target/surefire-reports/TEST-*.xml"):
        suite = ET.parse(report).getroot().attrib
        failed = int(suite["failures"]) + int(suite["errors"])
        found[suite["name"].rpartition(".")[2]] = Counts(
            int(suite["tests"]), failed, int(suite["skipped"])
        )
    return found
