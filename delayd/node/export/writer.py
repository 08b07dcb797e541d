"""The writer: a process of its own that turns a frozen cut into the Parquet file.

`python -m delayd.node.export.writer FOLDER`; see manifest.py for the folder. Standard output gets
one JSON object: {"count": rows} with exit code 0, or {"problem": sentence} with another. It ends
when standard input does: that is how it learns that its node is gone.

Memory: a row group, a megabyte or one frame of a slot, and the library. It takes no lock and writes
nothing but its file.
"""

import json
import os
import sys
import threading
from pathlib import Path

from delayd.errors import is_disk_full
from delayd.node.export.child import NO_ROOM, ORPHANED
from delayd.node.export.manifest import RESULT, read_kills, read_manifest, read_segments
from delayd.node.export.rows import PendingFile
from delayd.node.export.segments import DamagedSegmentError, SegmentsReader
from delayd.wheel.layout import Layout


def write_export(folder: Path) -> int:
    """Write the file of an export's folder; the number of its rows. Raises DamagedSegmentError."""
    manifest = read_manifest(folder)
    layout = Layout(manifest.data_dir)
    cut = manifest.record.frontier
    file = PendingFile(folder / RESULT)
    reader = SegmentsReader(cut, lambda: read_kills(folder), file.write)
    for segment in read_segments(folder):
        reader.read(layout.segment_file(segment.name), segment)
    reader.finish()
    file.finish(node=manifest.node, step=cut.step)
    return file.count


def main() -> int:
    """Run the writer's process."""
    threading.Thread(target=_end_with_the_node, daemon=True).start()
    try:
        said = {"count": write_export(Path(sys.argv[1]))}
    except (DamagedSegmentError, OSError) as error:
        print(json.dumps({"problem": str(error)}), flush=True)
        return NO_ROOM if is_disk_full(error) else 1
    print(json.dumps(said), flush=True)
    return 0


def _end_with_the_node() -> None:
    while os.read(0, 1):
        pass
    os._exit(ORPHANED)


if __name__ == "__main__":
    sys.exit(main())
