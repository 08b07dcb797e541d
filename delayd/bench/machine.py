"""The machine, as far as it matters for reading figures. Linux, elsewhere with less to say."""

import os
import platform
import re
from pathlib import Path
from typing import Any, Final

from delayd import __version__
from delayd.dev.jars import KAFKA_VERSION
from delayd.errors import DelaydError
from delayd.runtime.java import find_java

_CPUINFO: Final = Path("/proc/cpuinfo")
_MEMINFO: Final = Path("/proc/meminfo")


def machine(*, has_own_brokers: bool = True) -> dict[str, Any]:
    """Processors, memory, kernel, Python, and what the brokers run on if they are the bench's."""
    found = {
        "delayd": __version__,
        "cpu": _said(_CPUINFO, r"^model name\s*: (.+)$") or platform.processor() or "unknown",
        "cpus": os.cpu_count(),
        "memory_mib": int(_said(_MEMINFO, r"^MemTotal:\s*(\d+) kB$") or 0) // 1024,
        "arch": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
    if has_own_brokers:
        found |= {"kafka": KAFKA_VERSION, "java": _java()}
    return found


def _java() -> str:
    try:
        return str(find_java(os.environ).major)
    except DelaydError:
        return "unknown"


def _said(file: Path, pattern: str) -> str:
    try:
        found = re.search(pattern, file.read_text(), re.MULTILINE)
    except OSError:
        return ""
    return found[1].strip() if found else ""
