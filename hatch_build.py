"""Builds the native library while delayd is being installed, where there is a compiler.

A wheel with the library is for this platform and any Python, one without it for all. Nothing here
fails an installation: delayd runs in Python where the library is not.
"""

import importlib.util
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeLibrary(BuildHookInterface):
    """The build hook `custom` of pyproject.toml."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the library into the tree, and have the wheel carry it."""
        root = Path(self.root)
        spec = importlib.util.spec_from_file_location("native_build", root / "native" / "build.py")
        if spec is None or spec.loader is None or not (root / "native" / "build.py").exists():
            return
        native = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(native)
        try:
            native.build(native.BUILT)
        except (native.NotBuiltError, OSError) as error:
            native.BUILT.unlink(missing_ok=True)
            self.app.display_warning(f"delayd runs in Python, without its native library: {error}")
            return
        build_data["artifacts"].append(f"/{native.BUILT.relative_to(root)}")
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
