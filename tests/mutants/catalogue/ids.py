"""What the log says of a record, and what became of a cancel."""

from mutants.mutant import one_edit

FORGETTING = "delayd/node/replica/forgetting.py"
PLANNING = "delayd/node/delivery/planner.py"
BATCH = "delayd/node/replica/ingest_batch.py"
INGEST = "replication/ingest.py"
VERDICT = "replication/verdict.py"
LOG_TIME = "replication/log_time.py"
LOG_TIMES = "tests/unit/replication/test_log_time.py"
RULES = "tests/unit/replication/test_ingest_rules.py"
REPEATED = "tests/unit/node/delivery/test_repeated_verdicts.py"
VERDICTS = "tests/unit/replication/test_verdict.py"
GUARD = "delayd/bus/guarded.py"
GUARDED = "tests/unit/bus/test_guarded.py"
EXPANSIONS = "tests/unit/bus/test_expansion.py"
REPLICAS = "tests/unit/node/replica/test_forgetting.py"

IDS = (
    one_edit(
        "cancel-looked-up-after-delivery",
        "a cancel marker below O' counts for what the same step would deliver",
        "frontier.md#verdicts",
        PLANNING,
        "not self._is_killed(frame, plan.frontier)",
        "not self._is_killed(frame, plan.before)",
    ),
    one_edit(
        "killed-at-the-ingested-position",
        "a cancel marker at or beyond O' does not count yet, though it has been ingested",
        "frontier.md#verdicts",
        PLANNING,
        "if kill.marker_offset < after.offsets[frame.partition]:",
        "if True:  # It is known, so it was ingested.",
    ),
    one_edit(
        "verdict-from-the-clock",
        "a verdict depends on what the frontier says was delivered, not on the time",
        "frontier.md#verdicts",
        PLANNING,
        "        judgement = judge(marker, plan.before, refused, keep_ms, settled, escaped)\n",
        "        by_clock = Rank(plan.now_ms, 0, 0)\n"
        '        so = __import__("dataclasses").replace(\n'
        "            plan.before,\n"
        "            cursors=(by_clock,) * len(plan.before.cursors),\n"
        "            offsets=plan.frontier.offsets,\n"
        "        )\n"
        "        judgement = judge(marker, so, refused, keep_ms, settled, escaped)\n",
    ),
    one_edit(
        "settlement-not-written",
        "what a cancel marker came to is written into the log",
        "frontier.md#settlements",
        "delayd/node/delivery/step_writer.py",
        "if settlement is not None:",
        "if False:",
    ),
    one_edit(
        "own-settlement-not-known",
        "a marker finds the settlement of a marker that was passed in the same step",
        "frontier.md#settlements",
        PLANNING,
        "return own or self._wheel",
        "return self._wheel",
        f"{REPEATED}::test_a_repetition_in_the_same_step_gets_the_same_verdict",
    ),
    one_edit(
        "settlement-counts-for-ever",
        "a settlement counts as long as ids are remembered, for nodes that forgot it too",
        "frontier.md#settlements",
        VERDICT,
        "if settled is not None and settled.last_due_ms + id_memory_ms >= marker.as_of_ms:",
        "if settled is not None:",
        f"{REPEATED}::test_a_cancel_gets_the_same_verdict_as_often_as_it_is_asked",
    ),
    one_edit(
        "repetition-does-not-hold-the-id",
        "an id is remembered until the last marker that asks about it was passed",
        "frontier.md#settlements",
        "replication/ids.py",
        "    if not live and state == NOTHING:\n",
        "    if not live:\n",
        "tests/unit/replication/test_verdict.py::"
        "test_a_marker_that_finds_nothing_live_holds_what_is_remembered",
    ),
    one_edit(
        "verdict-without-r",
        "a cancel marker is passed when what was requeued up to then has been ingested",
        "frontier.md#verdicts",
        "replication/delivery_queue.py",
        "waits = reached <= self._verdict_waits.get((partition, offset), -1)",
        "waits = False",
        "tests/unit/replication/test_delivery_queue_markers.py::test_a_cancel_marker_waits_until_all_that_was_requeued_is_ingested",
        is_simulated=True,
    ),
    one_edit(
        "verdict-not-postponed",
        "a cancel marker whose message a step requeues waits for the R of that step",
        "frontier.md#verdicts",
        PLANNING,
        "        self._queue.postpone_verdict(frame.partition, kill.marker_offset)\n",
        "",
        "tests/unit/node/test_one_node.py::"
        "test_a_verdict_waits_for_a_retry_that_began_before_its_mark_was_passed",
        is_simulated=True,
    ),
    one_edit(
        "killed-continuation-stored",
        "the continuation of a killed message is refused",
        "frontier.md#ids",
        INGEST,
        "        if known.killed_by is None:\n",
        "        if True:\n",
    ),
    one_edit(
        "continuation-refused-long-after",
        "a continuation is not refused for a kill that other nodes may have forgotten",
        "frontier.md#ids",
        INGEST,
        "if is_recent and not (asked.follows and _is_held(known.id, asked)):",
        "if True:",
        "tests/unit/replication/test_ingest_model.py::"
        "test_a_node_that_rebuilds_decides_as_one_that_was_there",
    ),
    one_edit(
        "refusal-not-noted",
        "a cancel marker knows that it had a continuation refused",
        "frontier.md#verdicts",
        "delayd/node/replica/rescheduling.py",
        "is_refused, place = True, None",
        "place = None",
        "tests/unit/node/test_one_node.py::"
        "test_a_verdict_waits_for_a_retry_that_began_before_its_mark_was_passed",
        is_simulated=True,
    ),
    one_edit(
        "done-and-old-counts",
        "a verdict ignores a message that was done longer ago than ids are kept",
        "frontier.md#verdicts",
        VERDICT,
        " and m.due_ms + id_memory_ms >= marker.as_of_ms",
        "",
        f"{VERDICTS}::test_a_message_done_longer_ago_than_ids_are_kept_does_not_count",
    ),
    one_edit(
        "second-cancel-not-found",
        "a repeated cancel is cancelled again while the last killed set proves it",
        "frontier.md#verdicts",
        VERDICT,
        "    if proved:\n",
        "    if False:\n",
        f"{VERDICTS}::test_a_repeated_cancel_is_cancelled_again_while_the_killed_set_proves_it",
    ),
    one_edit(
        "silent-replace",
        "a schedule under an id that is taken is a duplicate or a conflict, and not stored",
        "frontier.md#ids",
        INGEST,
        "taken: list[LiveMessage | HeldMessage] = [\n"
        "        m for m in id.live if m.due_ms > as_of_ms or m.goes_on\n    ]",
        "taken: list[LiveMessage | HeldMessage] = []",
    ),
    one_edit(
        "taken-for-a-moment-longer",
        "an id is free again when log time has reached the due time of its message",
        "frontier.md#ids",
        INGEST,
        "        m for m in id.live if m.due_ms > as_of_ms or m.goes_on\n",
        "        m for m in id.live if m.due_ms >= as_of_ms or m.goes_on\n",
        f"{RULES}::test_an_id_is_taken_until_log_time_reaches_its_due_time",
        is_simulated=True,
    ),
    one_edit(
        "due-by-log-time",
        "an overdue request ranks by its own append time, not by the partition's log time",
        "frontier.md#rank-slot-lane",
        INGEST,
        "due_of(asked_due_ms, append_ms)",
        "due_of(asked_due_ms, max(state.log_ms, append_ms))",
        f"{RULES}::test_a_message_is_due_when_asked_but_not_before_it_was_appended",
        is_simulated=True,
    ),
    one_edit(
        "log-time-steps-back",
        "append times step back, L does not",
        "frontier.md#log-time",
        LOG_TIME,
        "        return max(log_ms, append_ms), 0\n",
        "        return append_ms, 0\n",
        f"{RULES}::test_log_time_is_the_largest_append_time_and_never_steps_back",
    ),
    one_edit(
        "log-time-follows-a-leap",
        "an append time that is far ahead moves log time only when the log stays beyond it",
        "frontier.md#log-time",
        LOG_TIME,
        "if append_ms <= log_ms + 2 * trail_ms:",
        "if append_ms > 0:",
        f"{LOG_TIMES}::test_a_record_that_is_stamped_a_day_ahead_moves_no_other",
        is_simulated=True,
    ),
    one_edit(
        "judged-by-log-time-alone",
        "a record is judged as of its own append time, unless log time is later",
        "frontier.md#log-time",
        INGEST,
        "return max(append_ms, self.log_ms)",
        "return self.log_ms",
        f"{LOG_TIMES}::test_after_an_idle_time_an_id_is_free_at_once",
        is_simulated=True,
    ),
    one_edit(
        "tracing-in-the-digest",
        "two requests that differ in a tracing header only are the same",
        "frontier.md#ids",
        "delayd/request/parser.py",
        "without_tracing(user, limits) if is_steady(version) else user",
        "user",
        "tests/unit/request/test_request_ids.py::test_tracing_headers_do_not_tell_requests_apart",
        is_simulated=True,
    ),
    one_edit(
        "seconds-taken-for-milliseconds",
        "a due time that looks like another unit is refused",
        "rules.md#ingest",
        "delayd/request/times.py",
        "        if number in times:\n",
        "        if number < 0:\n",
        "tests/unit/request/test_request_times.py::"
        "test_a_due_time_in_another_unit_is_refused_with_what_to_do",
    ),
    one_edit(
        "due-before-acceptance",
        "a message ranks no earlier than its record was appended",
        "frontier.md#rank-slot-lane",
        "replication/rank.py",
        "return max(requested_due_ms, append_ms)",
        "return requested_due_ms",
    ),
    one_edit(
        "redriven-twice",
        "a dead letter is redriven once in thirty days",
        "frontier.md#ids",
        INGEST,
        "if any(m.due_ms + REDRIVE_MEMORY_MS >= as_of_ms ",
        "if any(False ",
    ),
    one_edit(
        "continuation-without-proof",
        "a continuation is accepted only with a proof under the cluster key",
        "frontier.md#ids",
        "delayd/request/proof.py",
        "any(hmac.compare_digest(proof, each) for each in wanted)",
        "any(wanted)",
        "tests/unit/request/test_request_internal.py::test_any_change_of_key_or_value_breaks_the_proof",
    ),
    one_edit(
        "dedupe-dropped-after-a-crash",
        "a checkpoint holds what is known of the ids that it has ingested",
        "storage.md#catalogue",
        "delayd/wheel/storage.py",
        "notes=self.ids.capture(),",
        "notes={},",
    ),
    one_edit(
        "id-memory-dropped-by-the-frontier-alone",
        "an id is remembered for some time of its log after it was due",
        "frontier.md#forgetting",
        FORGETTING,
        "wheel.ids.forget(cut, log_ms, floor_ms)",
        "wheel.ids.forget(cut, (2**62,) * len(log_ms), floor_ms)",
    ),
    one_edit(
        "kill-forgotten-without-a-fence",
        "at least once, a kill is kept as long as ids are: a superseded master may write later",
        "frontier.md#forgetting",
        FORGETTING,
        "if is_last and (settings.guarantee != AT_LEAST_ONCE or not knows_time):",
        "if is_last:",
        "tests/unit/node/replica/test_forgetting.py"
        "::test_without_a_fence_a_kill_is_kept_as_long_as_ids_are",
    ),
    one_edit(
        "forgotten-before-own-ingest-reached-o",
        "a node drops a kill of the last hour only when it has ingested up to the frontier's O",
        "frontier.md#forgetting",
        FORGETTING,
        "has_passed(cut, ingested), is_steady",
        "all(own > written for own, written in zip(ingested, cut.own_writes)), is_steady",
        f"{REPLICAS}::test_a_node_that_is_behind_the_frontier_forgets_frames_and_keeps_who_was_killed",
    ),
    one_edit(
        "forgotten-before-own-ingest-reached-r",
        "a node drops a kill of the last hour only when it has ingested beyond the frontier's R",
        "frontier.md#forgetting",
        FORGETTING,
        "has_passed(cut, ingested), is_steady",
        "cut.reached_by(ingested), is_steady",
        f"{REPLICAS}::test_a_node_that_is_behind_the_frontier_forgets_frames_and_keeps_who_was_killed",
    ),
    one_edit(
        "kills-forgotten-while-behind",
        "a node that is behind keeps a kill for as long as a continuation may be refused for it",
        "frontier.md#forgetting",
        FORGETTING,
        ", keep_kills_ms=settings.id_memory_ms)",
        ", keep_kills_ms=None)",
        f"{REPLICAS}::test_a_node_that_is_behind_the_frontier_forgets_frames_and_keeps_who_was_killed",
    ),
    one_edit(
        "delivered-history-stored",
        "a node that rebuilds does not store what was done when it began",
        "storage.md#rebuilding",
        "delayd/node/replica/retention.py",
        "if known is None or seen",
        "if known is not None and seen",
        "tests/simulation/test_replaced_disks.py::"
        "test_a_node_on_a_new_disk_stores_nothing_that_was_done_before",
    ),
    one_edit(
        "pending-history-skipped",
        "a node that rebuilds stores what was not done when it began",
        "storage.md#rebuilding",
        BATCH,
        "if covered is None or not covered.covers(lane, Rank(due_ms, partition, offset)):",
        "if covered is None or due_ms >= covered.cursors[lane].due_ms:",
        f"{REPLICAS}::test_a_node_that_begins_stores_nothing_that_was_done_by_then",
    ),
    one_edit(
        "ids-of-the-skipped-forgotten",
        "the id of a message that is not stored is remembered",
        "storage.md#rebuilding",
        BATCH,
        "        self._note_id(record, request, decision)\n"
        "        self._store(record, request, asked.lane, decision.rank)\n"
        "        if request.is_told or",
        "        if self.covered is None or not self.covered.covers(asked.lane, decision.rank):\n"
        "            self._note_id(record, request, decision)\n"
        "        self._store(record, request, asked.lane, decision.rank)\n"
        "        if request.is_told or",
        f"{REPLICAS}::test_ids_of_what_is_not_stored_are_remembered_for_as_long_as_others",
    ),
    one_edit(
        "forgotten-at-once",
        "a node drops only what a frontier at least export_hold old covers",
        "frontier.md#forgetting",
        "delayd/node/replica/retention.py",
        "old_enough_ms = history[-1].append_ms - hold_ms",
        "old_enough_ms = history[-1].append_ms",
        f"{REPLICAS}::test_what_a_frontier_of_before_the_hold_covers_is_forgotten",
    ),
    one_edit(
        "slot-dropped-that-o-has-not-passed",
        "a slot is dropped when O has passed every message in it",
        "frontier.md#forgetting",
        FORGETTING,
        "        [slot for slot in slots if is_passed(wheel.info(slot), cut)],\n",
        "        slots,\n",
        f"{REPLICAS}::test_a_slot_with_one_message_that_is_not_done_stays",
        is_simulated=True,
    ),
    one_edit(
        "busy-partition-forgets-its-share-only",
        "what one partition leaves of its share of forgetting the others get",
        "frontier.md#forgetting",
        "delayd/wheel/id_memory.py",
        "waiting = [partition for partition, count in counts.items() if count == share]",
        "waiting = []",
        "tests/unit/wheel/test_id_memory.py"
        "::test_one_busy_partition_may_forget_all_that_a_checkpoint_looks_at",
    ),
    one_edit(
        "heavy-batch-handed-out",
        "records that librdkafka hands out may be of a batch that is not read",
        "frontier.md#unreadable-batches",
        GUARD,
        "if self._held_weight > self._batch_bytes_max and self._suspects(self._held):",
        "if self._held_weight > self._batch_bytes_max < 0:",
        f"{GUARDED}::test_a_guarded_reader_reads_what_a_careful_one_reads",
    ),
    one_edit(
        "cut-batch-handed-out",
        "the end of a full poll is held until its batch has ended, and events count in it",
        "frontier.md#unreadable-batches",
        GUARD,
        "is_cut=2 * len(found) > records_max)",
        "is_cut=0 < len(found) == records_max)",
        f"{GUARDED}::test_a_guarded_reader_reads_what_a_careful_one_reads",
    ),
    one_edit(
        "deaf-reader-kept",
        "a reader that librdkafka has left without an answer is assigned anew",
        "frontier.md#unreadable-batches",
        "delayd/bus/progress.py",
        "if now_ms - since_ms >= self._stall_ms]",
        "if now_ms < since_ms]",
        "tests/unit/bus/test_bus_progress.py::"
        "test_a_reader_that_stands_before_an_end_is_stalled_after_a_while",
    ),
    one_edit(
        "passed-markers-asked-for-again",
        "a reader that takes over begins behind what was told to be passed: it may be deleted",
        "frontier.md#unreadable-batches",
        GUARD,
        "if reached > self._places[partition].offset:",
        "if False:",
        f"{GUARDED}::test_nothing_is_asked_for_that_was_told_to_be_passed",
    ),
    one_edit(
        "batch-expanded-whole",
        "a batch is expanded no further than its limit",
        "frontier.md#unreadable-batches",
        "delayd/bus/kafka_python/expansion.py",
        "        if self._left < 0:\n            raise UnreadableError(TOO_LARGE)\n",
        "",
        f"{EXPANSIONS}::test_what_is_too_large_takes_no_more_memory_than_its_limit",
    ),
    one_edit(
        "only-the-signing-key-accepted",
        "a proof under any of the cluster's keys is valid",
        "frontier.md#cluster-keys",
        "delayd/request/proof.py",
        "for each in wanted)",
        "for each in [next(wanted)])",
        "tests/simulation/test_key_rotation.py::test_a_cluster_key_is_replaced_without_an_outage",
        "tests/unit/request/test_request_internal.py"
        "::test_of_several_keys_the_first_signs_and_all_are_accepted",
    ),
    one_edit(
        "new-key-not-written-down",
        "a master writes down by which key it signs",
        "frontier.md#cluster-keys",
        "delayd/node/delivery/mastership.py",
        "self._written_settings = self._settings_after(found.settings)",
        "self._written_settings = found.settings",
        "tests/simulation/test_key_rotation.py::test_a_cluster_key_is_replaced_without_an_outage",
    ),
    one_edit(
        "old-key-not-missed",
        "a node that has yet to read what an old key signed does not start without that key",
        "frontier.md#cluster-keys",
        "delayd/cluster/key_checks.py",
        "        if unread is not None:\n",
        "        if False:\n",
        "tests/unit/config/test_cluster_key.py"
        "::test_a_key_that_signed_what_is_still_to_be_read_must_be_given",
    ),
    one_edit(
        "unknown-key-followed",
        "a node that lacks the key by which a master signs stops",
        "frontier.md#cluster-keys",
        "delayd/node/replica/replica.py",
        "                    check_key(self.limits.proof_key.decode(), part.record.settings)\n",
        "                    pass\n",
        "tests/unit/node/replica/test_replica.py"
        "::test_a_master_that_signs_by_an_unknown_key_stops_the_node",
    ),
)
