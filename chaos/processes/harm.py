"""Harm to a node's own files and calls, from outside: a flipped byte, fsyncs that fail."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from chaos.backend import BackendError

SLOT_SOON_S: Final = (4, 20)
"""A slot that is due within these seconds is written for the most part, and not read yet."""

END_TIMEOUT_S: Final = 10


def corrupt_slot(wheel: Path) -> None:
    """Flip a byte of a slot that is to be delivered soon; BackendError if there is none."""
    first, last = (int(time.time()) + after for after in SLOT_SOON_S)
    slots = [
        file
        for file in (wheel / "slots").glob("*/*")
        if first <= int(file.name.partition(".")[0]) <= last and file.stat().st_size > 0
    ]
    if not slots:
        raise BackendError(f"{wheel} has no slot that is due soon")
    with max(slots, key=lambda file: file.stat().st_size).open("r+b") as slot:
        at = slot.seek(0, 2) // 2
        slot.seek(at)
        byte = slot.read(1)[0]
        slot.seek(at)
        slot.write(bytes([byte ^ 0x10]))


def fail_fsyncs(process_id: int, log: Path, has_ended: Callable[[], bool]) -> bool:
    """Each fsync of a process fails while `has_ended` waits; what that says."""
    calls = "fsync,fdatasync,syncfs,sync_file_range"
    command = ["strace", "-f", "-qq", "-o", "/dev/null", "-p", str(process_id)]
    command += ["-e", f"trace={calls}", "-e", f"inject={calls}:error=EIO"]
    with log.open("ab") as written:
        try:
            tracer = subprocess.Popen(command, stdout=written, stderr=written)
        except OSError as error:
            raise BackendError(f"strace, which fails fsyncs: {error}") from error
    try:
        return has_ended()
    finally:
        tracer.terminate()
        tracer.wait(END_TIMEOUT_S)
