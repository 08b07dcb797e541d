"""A delayd node on a small disk, without a right to mount one. It is run as `delayd` is.

It replaces what delayd/wheel/disk.py asks the file system: free is what the folder SMALL_DISK has
not taken of SMALL_DISK_BYTES, LevelDB's files included, and an append beyond that is refused.
"""

import os
import sys
import time

FOLDER, SIZE = "SMALL_DISK", "SMALL_DISK_BYTES"
LOOK_S = 0.2
"""Between two looks at the folder; appends are counted meanwhile. A look asks for each file."""


def taken_bytes(folder: str) -> int:
    """Return what the files in a folder take."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(where, name)).st_blocks * 512  # noqa: PTH116, PTH118
            except FileNotFoundError:
                continue
    return total


def main() -> None:
    """Make the disk small, then run `delayd`."""
    folder, size_bytes = os.environ[FOLDER], int(os.environ[SIZE])

    from delayd.errors import DiskFullError
    from delayd.wheel import disk

    looked_s, taken = -LOOK_S, 0

    def free_bytes(self: disk.SystemDisk, path: str) -> int:
        nonlocal looked_s, taken
        if time.monotonic() - looked_s >= LOOK_S:
            taken, looked_s = taken_bytes(folder), time.monotonic()
        return max(0, size_bytes - taken)

    whole_append = disk.SystemDisk.append

    def append(self: disk.SystemDisk, file: disk.OpenFile, data: bytes | bytearray) -> None:
        nonlocal taken
        if free_bytes(self, folder) < len(data):
            raise DiskFullError(f"cannot append to {file.path}: no space left")
        taken += len(data)
        whole_append(self, file, data)

    disk.SystemDisk.free_bytes = free_bytes  # type: ignore[method-assign]
    disk.SystemDisk.append = append  # type: ignore[method-assign]

    from delayd.commands.cli import main as delayd

    sys.argv[0] = "delayd"
    delayd()


if __name__ == "__main__":
    main()
