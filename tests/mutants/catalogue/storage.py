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
ROOM = "tests/unit/node/replica/test_room.py"
REPLICA_TESTS = "tests/unit/node/replica/test_forgetting.py"
FULL_DISKS = "tests/simulation/test_full_disks.py"
RECOVERY = "tests/unit/wheel/test_wheel_recovery.py"
CATALOGUE_DAMAGE = "tests/unit/wheel/test_catalogue_damage.py"
FLAT_INGEST = "tests/unit/node/replica/test_flat_ingest.py"
ROW_INGEST = "tests/unit/node/replica/test_row_ingest.py"
TOPIC_CHECKS = "delayd/cluster/topic_checks.py"
KAFKA_HEALTH = "delayd/node/kafka_health.py"
LOST_TOPICS = "tests/simulation/test_topic_lost.py"

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
        "short-node-takes-in-all",
        "a node that is short of room takes in no new messages",
        "storage.md#short-of-room",
        REPLICA,
        "return newest is not None and not has_passed(newest.record.frontier, self.ingested)",
        "return True",
        f"{ROOM}::test_a_short_node_takes_in_what_the_newest_frontier_took_into_account",
    ),
    one_edit(
        "short-node-never-reaches-the-frontier",
        "a node that is short of room takes in what the newest frontier took into account",
        "storage.md#short-of-room",
        REPLICA,
        "return newest is not None and not has_passed(newest.record.frontier, self.ingested)",
        "return False",
        f"{FULL_DISKS}::test_a_node_without_room_takes_in_what_another_has_taken_into_account",
    ),
    one_edit(
        "node-that-is-behind-frees-no-room",
        "a slot is forgotten by a frontier that the node has not reached",
        "storage.md#short-of-room",
        REPLICA,
        "            forget_covered(self.wheel, self.retention, hold_ms)\n",
        "            if self.newest and has_passed(self.newest.record.frontier, self.ingested):\n"
        "                forget_covered(self.wheel, self.retention, hold_ms)\n",
        f"{REPLICA_TESTS}::"
        "test_a_node_that_is_behind_the_frontier_forgets_frames_and_keeps_who_was_killed",
    ),
    one_edit(
        "compressed-buffer-read-fast",
        "a buffer whose brokers take compressed batches is read by what measures them",
        "frontier.md#unreadable-batches",
        "delayd/node/node.py",
        "careful=reads_carefully,",
        "careful=False,",
        "tests/simulation/test_heavy_buffer.py"
        "::test_nodes_hold_no_such_batch_where_brokers_take_them",
    ),
    one_edit(
        "once-compressed-buffer-read-fast",
        "what brokers took before the buffer was uncompressed is read by what measures it",
        "frontier.md#unreadable-batches",
        "delayd/node/node.py",
        "careful_to=heavy_batches_end(bus, self._settings, timeout_ms),",
        "careful_to=None,",
        "tests/simulation/test_heavy_buffer.py"
        "::test_nodes_hold_no_such_batch_that_brokers_took_before",
    ),
    one_edit(
        "reserve-kept-at-the-start",
        "a node gives its reserve back before it opens its wheel on a volume without room",
        "storage.md#short-of-room",
        "delayd/node/disk_opening.py",
        "    reserve.release_if_low()\n",
        "",
        f"{FULL_DISKS}::test_nodes_start_and_deliver_on_disks_that_others_have_filled",
    ),
    one_edit(
        "reserve-never-made",
        "a node keeps room while there is plenty",
        "storage.md#short-of-room",
        "delayd/node/disk_opening.py",
        "        replica.look_after_room = reserve.tend\n",
        "",
        f"{FULL_DISKS}::test_nodes_start_and_deliver_on_disks_that_others_have_filled",
    ),
    one_edit(
        "short-master-stays",
        "a master that is short of room hands over to a node that has some",
        "storage.md#short-of-room",
        "delayd/node/election/control_loop.py",
        "elif now_ms >= self._seeks_room_ms:",
        "elif False:",
        f"{FULL_DISKS}::test_a_master_without_room_hands_over_to_a_node_that_has_some",
    ),
    one_edit(
        "room-elsewhere-not-looked-for",
        "a master that is short of room stays where all are",
        "storage.md#short-of-room",
        "delayd/node/election/announcements.py",
        "and self._replica.room.state is RoomState.ENOUGH",
        "",
        f"{FULL_DISKS}::test_a_master_without_room_stays_where_nobody_has_any",
    ),
    one_edit(
        "short-for-ever",
        "a node takes in all again when a quarter more than the limit is free",
        "storage.md#short-of-room",
        "delayd/node/replica/room.py",
        "            short_bytes += short_bytes // 4\n",
        "            short_bytes = 1 << 62\n",
        f"{FULL_DISKS}::test_nodes_whose_disks_are_all_full_deliver_what_they_have",
    ),
    one_edit(
        "refused-write-not-taken-back",
        "a write that a full disk refuses leaves the file as it was",
        "storage.md#short-of-room",
        FILES,
        "            self._take_back(name, written, error)\n",
        "            del error\n",
        f"{FAILURES}::"
        "test_a_full_disk_leaves_the_wheel_as_it_was_and_the_next_checkpoint_tries_again",
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
        "waits = self.holds_splits or self.lacks_room",
        "waits = self.lacks_room",
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
        f"{CATALOGUE_DAMAGE}::test_a_line_that_leveldb_has_lost_is_missed",
    ),
    one_edit(
        "wrong-length-taken-for-torn",
        "a record of LevelDB with a wrong length is damage, not a torn write",
        "storage.md#recovery",
        "delayd/wheel/recovery.py",
        "        if end.is_damaged:\n",
        "        if False:\n",
        f"{CATALOGUE_DAMAGE}::test_a_record_that_leveldb_takes_for_a_torn_write_is_found",
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
                "            piece.add_to(batch)\n",
                "            self._states = batch.states\n            piece.add_to(batch)\n",
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
    one_edit(
        "one-answer-ends-a-node",
        "a node believes that its topics are broken only if several brokers say so in a row",
        "election.md#what-ends-a-node",
        KAFKA_HEALTH,
        "if times >= ANSWERS_NEEDED",
        "if times",
        f"{LOST_TOPICS}::test_no_node_ends_because_brokers_seem_not_to_know_a_topic",
    ),
    one_edit(
        "lowered-retention-ends-all-nodes",
        "a retention that is too short is a warning while nothing is lost",
        "election.md#what-ends-a-node",
        TOPIC_CHECKS,
        "return Findings(tuple(broken), tuple(warnings), tuple(advice))",
        "return Findings((*broken, *warnings), (), tuple(advice))",
        f"{LOST_TOPICS}::test_a_retention_that_was_lowered_by_mistake_stops_nobody",
    ),
    one_edit(
        "native-run-into-a-closed-hour",
        "no frame goes to the file of an hour that is near",
        "storage.md#hour-files",
        STORAGE_FILE,
        "if self.filing != (rules.near_slot, rules.counts_slots):",
        "if self.counts.floor > rules.near_slot:",
        f"{FLAT_INGEST}::test_a_run_s_own_append_time_makes_hours_near",
    ),
    one_edit(
        "native-run-past-the-others",
        "records are ingested in the order of their offsets",
        "frontier.md#ingest",
        "delayd/node/replica/flat_ingest.py",
        "                rejected += self._take_others(replica, data, begin, at, has_rows)\n"
        "                begin = at\n",
        "",
        f"{FLAT_INGEST}::test_what_is_not_plain_is_left_to_python_in_its_place",
    ),
    one_edit(
        "native-row-first-twice",
        "an id that is taken is never taken again in silence",
        "frontier.md#ids",
        "delayd/node/replica/ingest_batch.py",
        "return self._remembered[key] is UNKNOWN and key not in self._changed",
        "return self._remembered[key] is UNKNOWN",
        f"{ROW_INGEST}::test_an_id_twice_in_a_batch_is_a_duplicate_or_a_conflict",
    ),
    one_edit(
        "native-row-hides-its-receipt",
        "a cluster that writes all receipts writes that of a schedule",
        "frontier.md#ingest",
        "delayd/node/replica/ingest_batch.py",
        "self._past is WHOLE_PAST and self._settings.receipts_written != RECEIPTS_ALL",
        "self._past is WHOLE_PAST",
        f"{ROW_INGEST}::test_a_cluster_that_writes_all_receipts_writes_these",
    ),
    one_edit(
        "native-rows-past-a-switch",
        "a barrier rules the records that are behind it",
        "frontier.md#rules-switch",
        "delayd/node/replica/row_ingest.py",
        "                    break\n",
        "",
        f"{ROW_INGEST}::test_a_piece_ends_behind_a_switch",
    ),
    one_edit(
        "native-rows-by-newer-rules",
        "a record is ruled by the version of its place",
        "frontier.md#rules-switch",
        "delayd/node/replica/flat_ingest.py",
        "        has_rows = all(\n",
        "        has_rows = bool(records) or all(\n",
        f"{ROW_INGEST}::test_a_switch_rules_what_is_behind_it",
    ),
    one_edit(
        "end-of-a-state-not-queued",
        "what is remembered of an id is looked at when it ends",
        "frontier.md#forgetting",
        "delayd/wheel/id_memory.py",
        "        if forget_ms != before_ms:\n",
        "        if before_ms < 0:\n",
        "tests/unit/wheel/test_id_memory.py::"
        "test_a_state_whose_end_has_moved_gets_a_line_of_its_own",
    ),
)
