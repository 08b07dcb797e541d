"""The demo's last act: `delayd audit` over the whole cluster, in a process of its own.

The audit reads the topics and every node's files, and relies neither on delayd nor on the witness.
Its page stays where the user finds it. Not here: the audit itself (delayd/audit).

Invariants: the process carries the cluster's folder in its environment, so the command that ends
the cluster ends it too. Its tables lie in the folder and are removed.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from delayd.dev.parts import last_words
from delayd.dev.supervision import environment_for
from delayd.errors import DelaydError, ExitCode

TIMEOUT_S: Final = 1_800.0
"""Longer than an audit of as many orders as a demo can have."""


class ProofError(DelaydError):
    """The demo's audit failed, so nothing is proven."""

    code = "demo-audit"


@dataclass(frozen=True, slots=True)
class Proof:
    """What the audit said."""

    page: Path
    """Its report, for people."""
    report: dict[str, Any]
    """As `delayd audit --json` prints it."""

    @property
    def problems(self) -> list[str]:
        """Return what it found; nothing if all is well."""
        return [f"audit: {count} {fault}" for fault, count in self.report["found"].items()]


def audit(
    directory: Path,
    page: Path,
    *,
    log: Path,
    tell: Callable[[str], None],
    where: Sequence[str] = (),
    secrets: Mapping[str, str] | None = None,
) -> Proof:
    """Audit the running cluster of a folder, or the one that the options `where` name, with
    `secrets` in its environment. `tell` gets each task as it begins. Raises ProofError."""
    command = [sys.executable, "-m", "delayd.commands.cli", "audit", "--json"]
    work = directory / "audit"
    command += [*(where or ("--dir", str(directory))), "--html", str(page), "--work", str(work)]
    tell("auditing: every topic, and the files of every node")
    try:
        with log.open("ab") as written:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=written,
                env=environment_for(secrets or {}, directory),
                timeout=TIMEOUT_S,
                check=False,
            )
    except subprocess.TimeoutExpired as error:
        raise ProofError(
            f"the audit took longer than {TIMEOUT_S:.0f} s", remedy=f"see {log}"
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if done.returncode not in (ExitCode.FINE, ExitCode.PROBLEM) or not done.stdout.strip():
        raise ProofError(f"the audit ended: {last_words(log)}", remedy=f"see {log}")
    return Proof(page, json.loads(done.stdout))
