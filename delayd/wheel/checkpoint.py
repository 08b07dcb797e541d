"""A checkpoint on its way to the disk, between `Wheel.begin_checkpoint` and `finish_checkpoint`.

It holds its own descriptors and immutable values only, so that `sync` needs no lock.

`sync` makes durable, in this order, so that a crash is harmless:
1. the bytes of every dirty file,
2. the names of every new file and folder,
3. the catalogue's batch.
"""

from collections.abc import Callable, Sequence

from delayd.wheel import Progress
from delayd.wheel.catalogue import Catalogue, CatalogueBatch
from delayd.wheel.disk import Disk, OpenFile
from delayd.wheel.layout import SegmentName

FILES_SYNCED_ONE_BY_ONE_MAX = 32
"""Above it one syncfs does it all: it waits for other writers of the volume too, but only once."""


class PendingCheckpoint:
    """A captured checkpoint. The wheel makes it, at most one at a time."""

    def __init__(
        self,
        disk: Disk,
        catalogue: Catalogue,
        batch: CatalogueBatch,
        *,
        files: Sequence[OpenFile],
        folders: Sequence[str],
        whole_volume: OpenFile | None,
        forgotten_files: Sequence[SegmentName],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._disk = disk
        self._catalogue = catalogue
        self._batch = batch
        self.files = files
        """Dirty files, owned by this checkpoint until the wheel takes them back."""
        self._folders = folders
        self._whole_volume = whole_volume
        self.forgotten_files = forgotten_files
        """Files that may be unlinked once this is durable."""
        self.split_to = {hour: line.start for hour, line in batch.hours.items()}
        """How far the hours are split whose line this writes."""
        self._on_failure = on_failure
        self.is_durable = False

    @property
    def progress(self) -> Progress:
        """The progress of ingest that this checkpoint will remember."""
        return self._batch.progress

    def sync(self) -> None:
        """Make it durable, once. Any thread may call this, without the wheel's lock.

        Raises DiskError. The wheel then refuses every call, because after a failed sync the state
        of the disk is unknown (Rebello et al., USENIX ATC 2020).
        """
        assert not self.is_durable, "a checkpoint is synced once"
        try:
            self._sync_files()
            self._catalogue.write(self._batch)
        except BaseException as error:
            self._on_failure(error)
            raise
        self.is_durable = True

    def _sync_files(self) -> None:
        if self._whole_volume is not None:
            self._disk.syncfs(self._whole_volume)
            return
        for file in self.files:
            self._disk.fdatasync(file)
        for folder in self._folders:
            self._disk.sync_folder(folder)
