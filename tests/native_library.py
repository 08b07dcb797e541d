"""The native library of this source, built for the tests."""

import importlib.util
import os
from pathlib import Path
from types import ModuleType

from delayd.runtime import native

BUILD = Path(__file__).resolve().parents[1] / "native" / "build.py"


def the_build() -> ModuleType:
    """The script native/build.py."""
    spec = importlib.util.spec_from_file_location("native_build", BUILD)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def library_in(folder: Path) -> native.Library | None:
    """Build it there, so that no older one is tested, or load the one that DELAYD_NATIVE names;
    None on a machine without a compiler, which has Python alone."""
    if os.environ.get("DELAYD_NATIVE", "") not in ("", "0", "1"):
        assert native.library is not None, native.described
        return native.library
    script, out = the_build(), folder / "libdelayd.native.so"
    if not any(script.compilers()):
        return None
    script.build(out, ("-Werror",))
    return native.Library(out)
