"""Builds the native library, where there is a C compiler.

    python native/build.py                    into delayd/runtime/
    python native/build.py --sanitize         into build/native/, with ASan and UBSan
    python native/build.py --out FILE

Needs Python's standard library and nothing else: it runs while delayd is being installed. Python's
own headers are not needed, because the library knows nothing of Python. Where no compiler is, or
none that works, nothing is built, one line says so, and delayd runs in Python.

The compiler is CC, or the first of `cc`, `gcc`, `clang`, or that of the wheel `ziglang`.
"""

import argparse
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILT = HERE.parent / "delayd" / "runtime" / "libdelayd.native.so"
SANITIZED = HERE.parent / "build" / "native" / "libdelayd.sanitized.so"
FLAGS = (
    *("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=default"),
    *("-Wall", "-Wextra", "-Wconversion", "-Wshadow"),
)
SANITIZERS = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
COMPILE_TIMEOUT_S = 120


class NotBuiltError(Exception):
    """There is no compiler, or none of them could build it."""


def compilers() -> Iterator[list[str]]:
    """Yield the commands of compilers that are there, best first."""
    if asked := os.environ.get("CC"):
        yield shlex.split(asked)
        return
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            yield [found]
    if importlib.util.find_spec("ziglang") is not None:
        yield [sys.executable, "-m", "ziglang", "cc"]


def build(out: Path, extra: tuple[str, ...] = ()) -> str:
    """Build the library as `out`, all of it or nothing; return the compiler's name.

    Raises NotBuiltError, OSError.
    """
    sources = [str(path) for path in sorted(HERE.glob("*.c"))]
    said = "there is no C compiler"
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=out.parent) as folder:
        made = Path(folder) / out.name
        for compiler in compilers():
            command = [*compiler, *FLAGS, *extra, *sources, "-o", str(made)]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False
                )
            except (OSError, subprocess.SubprocessError) as error:
                said = f"{compiler[0]}: {error}"
                continue
            if done.returncode == 0 and made.exists():
                made.replace(out)
                return shlex.join(compiler)
            said = f"{shlex.join(compiler)} failed: {done.stderr.strip()[-500:]}"
    raise NotBuiltError(said)


def main() -> int:
    """Build as the command line says. Exit code 0, if it could be built or not; 1 with --sanitize
    and --require, if not."""
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    asked.add_argument("--out", type=Path)
    asked.add_argument("--sanitize", action="store_true")
    asked.add_argument("--require", action="store_true", help="fail if it cannot be built")
    options = asked.parse_args()
    out = options.out or (SANITIZED if options.sanitize else BUILT)
    try:
        compiler = build(out, SANITIZERS if options.sanitize else ())
    except (NotBuiltError, OSError) as error:
        print(f"native library: not built, delayd runs in Python: {error}", file=sys.stderr)
        return 1 if options.require or options.sanitize else 0
    print(f"native library: {out}, built by {compiler}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
