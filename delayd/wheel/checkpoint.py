"""A checkpoint on its way to the disk, between `Wheel.begin_checkpoint` and `finish_checkpoint`.

It holds its own descriptors and immutable values only, so that `sync` needs no lock.

`sync` makes durable, in this order, so that a crash is harmless:
1. the bytes of every dirty file,
2. the names of every new file and folder,
3. the catalogue's batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from delayd.wheel import Progress
from delayd.wheel.catalogue import Catalogue, CatalogueBatch
from delayd.wheel.disk import Disk, OpenFile
from delayd.wheel.layout import SegmentName

FILES_SYNCED_ONE_BY_ONE_MAX = 32
"""Above it one syncfs does it all: it waits for other writers of the volume too, but only once."""


@dataclass(kw_only=True, slots=True, eq=False)
class PendingCheckpoint:
    """A captured checkpoint. The wheel makes it, at most one at a time."""

    disk: Disk
    catalogue: Catalogue
    batch: CatalogueBatch
    files: Sequence[OpenFile]
    """Dirty files, owned by this checkpoint until the wheel takes them back."""
    folders: Sequence[str]
    whole_volume: OpenFile | None
    """Set if one syncfs does it all."""
    forgotten_files: Sequence[SegmentName]
    """Files that may be unlinked once this is durable."""
    on_failure: Callable[[BaseException], None]
    is_durable: bool = False

    @property
    def progress(self) -> Progress:
        """The progress of ingest that this checkpoint will remember."""
        return self.batch.progress

    def sync(self) -> None:
        """Make it durable, once. Any thread may call this, without the wheel's lock.

        Raises DiskError. The wheel then refuses every call, because after a failed sync the state
        of the disk is unknown (Rebello et al., USENIX ATC 2020).
        """
        assert not self.is_durable, "a checkpoint is synced once"
        try:
            self._sync_files()
            self.catalogue.write(self.batch)
        except BaseException as error:
            self.on_failure(error)
            raise
        self.is_durable = True

    def _sync_files(self) -> None:
        if self.whole_volume is not None:
            self.disk.syncfs(self.whole_volume)
            return
        for file in self.files:
            self.disk.fdatasync(file)
        for folder in self.folders:
            self.disk.sync_folder(folder)
