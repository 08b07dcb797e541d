"""The scratch folder, where a repair remembers ids while it reads the buffer.

It is not part of the wheel. A repair that is killed leaves it behind. A process that holds the lock
of the wheel's directory knows that no repair is running, and may remove it.
"""

import shutil

from delayd.errors import DiskError
from delayd.wheel.layout import Layout


def remove_scratch(layout: Layout) -> None:
    """Remove the folder that a killed repair has left. Raise DiskError if that fails."""
    try:
        shutil.rmtree(layout.scratch)
    except FileNotFoundError:
        return
    except OSError as error:
        raise DiskError(
            f"cannot remove {layout.scratch}, which a repair has left: {error.strerror}",
            remedy="let the user that runs delayd write there, then start it again",
        ) from error
