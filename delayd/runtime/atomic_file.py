"""Files that a loss of power leaves whole, old or new."""

import os
from pathlib import Path


def write_atomically(file: Path, text: str) -> None:
    """Replace a file so that whoever reads it, also after a crash, finds the old or the new."""
    write_bytes_atomically(file, text.encode())


def write_bytes_atomically(file: Path, content: bytes) -> None:
    """Replace a file as `write_atomically` does."""
    draft = file.with_name(f".{file.name}.new")
    with draft.open("wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    draft.replace(file)
    sync_folder(file.parent)


def sync_folder(folder: Path) -> None:
    """Make a folder's new names survive a loss of power."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
