"""What a crash leaves on a disk, and what a node believes of Kafka."""

from mutants.mutant import Edit, Mutant

CHECKPOINT = "delayd/wheel/checkpoint.py"
STORAGE_FILE = "delayd/wheel/storage.py"
REPLICA = "delayd/replica.py"
FAILURES = "tests/unit/test_wheel_failures.py"
RECOVERY = "tests/unit/test_wheel_recovery.py"

STORAGE = (
    Mutant(
        "leveldb-before-the-files",
        "a checkpoint writes LevelDB after the files are synced",
        "storage.md#checkpoint",
        (
            Edit(
                CHECKPOINT,
                "            self._sync_files()\n            self._catalogue.write(self._batch)\n",
                "            self._catalogue.write(self._batch)\n            self._sync_files()\n",
            ),
        ),
        (f"{FAILURES}::test_a_failed_sync_stops_the_wheel_and_the_checkpoint_never_was",),
    ),
    Mutant(
        "files-not-synced",
        "the bytes of every dirty file are synced before the checkpoint exists",
        "storage.md#checkpoint",
        (
            Edit(
                CHECKPOINT,
                "        for file in self.files:\n            self._disk.fdatasync(file)\n",
                "",
            ),
        ),
        (f"{RECOVERY}::test_a_checkpoint_outlives_any_number_of_losses_of_power",),
    ),
    Mutant(
        "names-not-synced",
        "the names of new files and folders are synced before the checkpoint exists",
        "storage.md#checkpoint",
        (
            Edit(
                CHECKPOINT,
                "        for folder in self._folders:\n"
                "            self._disk.sync_folder(folder)\n",
                "",
            ),
        ),
        (f"{RECOVERY}::test_a_checkpoint_outlives_any_number_of_losses_of_power",),
    ),
    Mutant(
        "failed-sync-survived",
        "after a failed sync the wheel refuses everything",
        "storage.md#failures",
        (Edit(CHECKPOINT, "            self._on_failure(error)\n", "            pass\n"),),
        (f"{FAILURES}::test_a_failed_sync_stops_the_wheel_and_the_checkpoint_never_was",),
        is_simulated=False,
    ),
    Mutant(
        "unlinked-before-the-checkpoint",
        "a file is unlinked only after the checkpoint that forgot it",
        "storage.md#checkpoint",
        (
            Edit(
                STORAGE_FILE,
                "self._forgotten_files.append(name)",
                "self._unlinkable.append(name)",
            ),
        ),
        (
            "tests/unit/test_wheel_storage.py::"
            "test_a_file_is_not_unlinked_by_a_checkpoint_that_began_before_the_forget",
        ),
        is_simulated=False,
    ),
    Mutant(
        "torn-tails-kept",
        "recovery cuts a file to the length of its line in the catalogue",
        "storage.md#recovery",
        (
            Edit(
                "delayd/wheel/recovery.py",
                "            if length > info.bytes:\n",
                "            if False:\n",
            ),
        ),
        (f"{RECOVERY}::test_a_torn_tail_is_cut_to_the_catalogued_length",),
    ),
    Mutant(
        "progress-ahead-of-the-frames",
        "what counts as ingested is in the wheel: both change together, or neither",
        "frontier.md#ingest",
        (
            Edit(
                REPLICA,
                "            entries = self._wheel.append(batch.frames)\n",
                "            self._states = batch.states\n"
                "            entries = self._wheel.append(batch.frames)\n",
            ),
            Edit(
                REPLICA,
                "            for record, request in parsed:\n",
                "            self._states = batch.states\n"
                "            for record, request in parsed:\n",
            ),
        ),
        ("tests/unit/test_replica.py::test_a_batch_that_fails_halfway_counts_as_not_ingested",),
        is_simulated=False,
    ),
    Mutant(
        "aborted-records-ingested",
        "only committed records of the buffer are read",
        "frontier.md#ingest",
        (
            Edit(
                "delayd/bus/confluent/settings.py",
                '"isolation.level": "read_committed"',
                '"isolation.level": "read_uncommitted"',
            ),
        ),
        ("tests/unit/test_bus_settings.py::test_the_promises_are_kept_by_default",),
        is_simulated=False,
    ),
    Mutant(
        "older-frontier-believed",
        "a frontier older than one that this node has acted on stops it",
        "frontier.md#ingest",
        (Edit(REPLICA, "elif seen.record.frontier.step < self.known_step:", "elif False:"),),
        ("tests/unit/test_replica.py::test_a_node_remembers_the_frontier_that_it_acted_on",),
        is_simulated=False,
    ),
)
