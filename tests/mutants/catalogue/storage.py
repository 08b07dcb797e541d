"""What a crash leaves on a disk, and what a node believes of Kafka."""

from mutants.mutant import Edit, Mutant, one_edit

CHECKPOINT = "delayd/wheel/checkpoint.py"
STORAGE_FILE = "delayd/wheel/storage.py"
NEAR_HOURS = "delayd/wheel/near_hours.py"
FILES = "delayd/wheel/files.py"
HOURS = "delayd/wheel/hours.py"
SPARSE_TESTS = "tests/unit/wheel/test_sparse_hours.py"
REPLICA = "delayd/node/replica/replica.py"
FAILURES = "tests/unit/wheel/test_wheel_failures.py"
RECOVERY = "tests/unit/wheel/test_wheel_recovery.py"

STORAGE = (
    one_edit(
        "leveldb-before-the-files",
        "a checkpoint writes LevelDB after the files are synced",
        "storage.md#checkpoint",
        CHECKPOINT,
        "            self._sync_files()\n            self.catalogue.write(self.batch)\n",
        "            self.catalogue.write(self.batch)\n            self._sync_files()\n",
        f"{FAILURES}::test_a_failed_sync_stops_the_wheel_and_the_checkpoint_never_was",
        is_simulated=True,
    ),
    one_edit(
        "files-not-synced",
        "the bytes of every dirty file are synced before the checkpoint exists",
        "storage.md#checkpoint",
        CHECKPOINT,
        "        for file in self.files:\n            self.disk.fdatasync(file)\n",
        "",
        f"{RECOVERY}::test_a_checkpoint_outlives_any_number_of_losses_of_power",
        is_simulated=True,
    ),
    one_edit(
        "names-not-synced",
        "the names of new files and folders are synced before the checkpoint exists",
        "storage.md#checkpoint",
        CHECKPOINT,
        "        for folder in self.folders:\n            self.disk.sync_folder(folder)\n",
        "",
        f"{RECOVERY}::test_a_checkpoint_outlives_any_number_of_losses_of_power",
        is_simulated=True,
    ),
    one_edit(
        "failed-sync-survived",
        "after a failed sync the wheel refuses everything",
        "storage.md#failures",
        CHECKPOINT,
        "            self.on_failure(error)\n",
        "            pass\n",
        f"{FAILURES}::test_a_failed_sync_stops_the_wheel_and_the_checkpoint_never_was",
    ),
    one_edit(
        "unlinked-before-the-checkpoint",
        "a file is unlinked only after the checkpoint that forgot it",
        "storage.md#checkpoint",
        FILES,
        "self._forgotten.append(name)",
        "self._unlinkable.append(name)",
        "tests/unit/wheel/test_wheel_storage.py::"
        "test_a_file_is_not_unlinked_by_a_checkpoint_that_began_before_the_forget",
    ),
    one_edit(
        "torn-tails-kept",
        "recovery cuts a file to the length of its line in the catalogue",
        "storage.md#recovery",
        "delayd/wheel/recovery.py",
        "            if length > info.bytes:\n",
        "            if False:\n",
        f"{RECOVERY}::test_a_torn_tail_is_cut_to_the_catalogued_length",
        is_simulated=True,
    ),
    one_edit(
        "slot-opened-before-its-hour-is-split",
        "a slot is read only when no frame of it lies in the file of its hour",
        "storage.md#hour-files",
        "delayd/node/delivery/slot_opener.py",
        "return last if whole_below is None else min(last, whole_below - 1)",
        "return last",
        "tests/unit/node/test_one_node.py::"
        "test_what_is_due_in_an_hour_that_nobody_has_split_is_split_first",
    ),
    one_edit(
        "split-not-remembered",
        "the checkpoint with the frames in their slots records how far the hour is split",
        "storage.md#hour-files",
        NEAR_HOURS,
        "                self._segments.dirty.add(hour)\n",
        "",
        "tests/unit/wheel/test_wheel_crashes.py::"
        "test_after_a_kill_the_wheel_is_exactly_its_last_checkpoint",
    ),
    one_edit(
        "split-file-not-compared",
        "the frames that an hour's file gave to its slots match its line",
        "storage.md#hour-files",
        "delayd/wheel/near_hours.py",
        "    if count_left != 0 or digest_left % DIGEST_MODULO != 0:\n",
        "    if False:\n",
        f"{RECOVERY}::test_an_hour_that_is_not_what_its_line_says_is_found_at_the_end_of_its_split",
    ),
    one_edit(
        "export-while-frames-move",
        "while an export freezes its cut no frame moves from an hour's file to its slot",
        "storage.md#exports",
        HOURS,
        "return None if self.holds_splits and not self.is_sparse(first) else first",
        "return first",
        "tests/unit/wheel/test_wheel_storage.py::"
        "test_while_splits_are_held_no_frame_moves_and_no_file_goes",
    ),
    one_edit(
        "room-given-back-too-soon",
        "the split part of an hour's file is punched out when a durable checkpoint records it",
        "storage.md#hour-files",
        NEAR_HOURS,
        "                self._segments.dirty.add(hour)\n",
        "                self._segments.dirty.add(hour)\n"
        "                self._segments.files.punch(hour, hour.start)\n",
        f"{SPARSE_TESTS}::test_room_that_was_split_is_given_back_when_that_is_durable",
    ),
    one_edit(
        "append-time-splits",
        "hours are split by a time that the wheel is given, not by append times",
        "storage.md#hour-files",
        STORAGE_FILE,
        "self._hours.believe(last_ms if",
        "self._hours.tell(last_ms if",
        f"{SPARSE_TESTS}::test_an_append_time_that_is_far_ahead_has_nothing_split",
    ),
    one_edit(
        "late-in-a-sparse-hour-missed",
        "a takeover searches the files of sparse hours for late arrivals, too",
        "storage.md#hour-files",
        "delayd/node/delivery/slot_opener.py",
        "(entry.position < search.end or entry.position >= IN_HOUR)",
        "entry.position < search.end",
        f"{SPARSE_TESTS}::test_late_arrivals_in_a_sparse_hour_are_found_at_a_takeover",
    ),
    one_edit(
        "kills-of-an-hour-taken-once",
        "killed messages are left out of an hour's file and of its slots",
        "storage.md#exports",
        "delayd/node/export/segments.py",
        "self._kills[name.is_hour].take(first, slots)",
        "self._kills[True].take(first, slots)",
        "tests/unit/commands/test_wheel_export.py::"
        "test_killed_messages_of_a_sparse_hour_and_of_its_slots_are_left_out",
    ),
    one_edit(
        "lost-lines-not-missed",
        "the lines of slots and hours are as many as the last checkpoint counted",
        "storage.md#recovery",
        "delayd/wheel/catalogue.py",
        "        if expected is not None and expected != found:\n",
        "        if False:\n",
        f"{RECOVERY}::test_a_line_that_leveldb_has_lost_is_missed",
    ),
    one_edit(
        "wrong-length-taken-for-torn",
        "a record of LevelDB with a wrong length is damage, not a torn write",
        "storage.md#recovery",
        "delayd/wheel/recovery.py",
        "        if end.is_damaged:\n",
        "        if False:\n",
        f"{RECOVERY}::test_a_record_that_leveldb_takes_for_a_torn_write_is_found",
    ),
    Mutant(
        "progress-ahead-of-the-frames",
        "progress and frames change together: an ingested record is in the wheel",
        "frontier.md#ingest",
        (
            Edit(
                REPLICA,
                "            entries = self.wheel.append(batch.frames, until_ms)\n",
                "            self._states = batch.states\n"
                "            entries = self.wheel.append(batch.frames, until_ms)\n",
            ),
            Edit(
                REPLICA,
                "            batch.add_all(records, frames, others)\n",
                "            self._states = batch.states\n"
                "            batch.add_all(records, frames, others)\n",
            ),
        ),
        (
            "tests/unit/node/replica/test_replica.py::test_a_batch_that_fails_halfway_counts_as_not_ingested",
        ),
        is_simulated=False,
    ),
    one_edit(
        "aborted-records-ingested",
        "only committed records of the buffer are read",
        "frontier.md#ingest",
        "delayd/bus/confluent/settings.py",
        '"isolation.level": "read_committed"',
        '"isolation.level": "read_uncommitted"',
        "tests/unit/bus/test_bus_settings.py::test_the_promises_are_kept_by_default",
    ),
    one_edit(
        "older-frontier-believed",
        "a frontier older than one that this node has acted on stops it",
        "frontier.md#ingest",
        REPLICA,
        "elif seen.record.frontier.step < self.known_step:",
        "elif False:",
        "tests/unit/node/replica/test_replica.py::test_a_node_remembers_the_frontier_that_it_acted_on",
    ),
    one_edit(
        "topics-counted-without-bound",
        "pending messages are counted by the names of a bounded number of topics",
        "storage.md#counts",
        "delayd/wheel/counts.py",
        "if topic in self.topics or len(self.topics) < TOPICS_MAX:",
        "if topic != OTHER:",
        "tests/unit/wheel/test_wheel_counts.py"
        "::test_ten_thousand_topics_are_a_hundred_and_the_others",
    ),
    one_edit(
        "counts-packed-as-they-are-later",
        "a checkpoint holds the counts of the moment at which it was begun",
        "storage.md#counts",
        "delayd/wheel/counts.py",
        "topics.copy() if topics else None",
        "topics or None",
        "tests/unit/wheel/test_wheel_counts.py"
        "::test_what_comes_after_a_checkpoint_was_begun_is_not_in_it",
    ),
    one_edit(
        "unnamed-topics-counted-off-by-name",
        "what is counted off goes off its topic as far as that has it, or else off the others",
        "storage.md#counts",
        "delayd/wheel/counts.py",
        "for names in ((topic, OTHER), held):",
        "for names in ((topic,),):",
        "tests/unit/wheel/test_wheel_counts.py::test_the_hours_are_right_whatever_has_no_name",
    ),
)
