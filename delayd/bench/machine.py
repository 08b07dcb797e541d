"""The machine, as far as it matters for reading figures."""

import os
import platform
import re
from pathlib import Path
from typing import Any, Final

import psutil

from delayd import __version__
from delayd.dev.jars import KAFKA_VERSION
from delayd.errors import DelaydError
from delayd.runtime.java import find_java

_CPUINFO: Final = Path("/proc/cpuinfo")


def machine(*, has_own_brokers: bool = True) -> dict[str, Any]:
    """Return processors, memory, kernel, Python, and what the bench's own brokers run on."""
    found = {
        "delayd": __version__,
        "cpu": _cpu(),
        "cpus": os.cpu_count(),
        "memory_mib": psutil.virtual_memory().total // 2**20,
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


def _cpu() -> str:
    """Return the model's name, which psutil does not tell; not every kernel has it."""
    try:
        found = re.search(r"^model name\s*: (.+)$", _CPUINFO.read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or "unknown"
