"""Class-data archives: the classes of a program as Java keeps them once it has read and checked
them (JEP 350). A Java that finds one starts with about half of the processor time.

Not here: how one is made, which takes as long as several starts. `make test` does it.

Invariants:
- an archive's name says which Java and which jars it was made from: others do not find it;
- nothing depends on one: where none is, or Java refuses it, everything works as well.
"""

import hashlib
from contextlib import suppress
from pathlib import Path

from delayd.runtime.java import Java


def class_archive(cache: Path, name: str, java: Java, jars: Path) -> Path:
    """Return where the archive of a folder of jars is for this Java; it may not exist."""
    seen = hashlib.sha256()
    for file in (java.path.resolve(), *sorted(jars.glob("*.jar"))):
        with suppress(OSError):  # Then Java does not start, or not with it.
            status = file.stat()
            seen.update(f"{file} {status.st_size} {status.st_mtime_ns}\n".encode())
    return cache / f"{name}-{seen.hexdigest()[:16]}.jsa"


def options_with(archive: Path) -> tuple[str, ...]:
    """Return the options of a Java that reads the archive; none if there is none."""
    return (f"-XX:SharedArchiveFile={archive}",) if archive.is_file() else ()
