"""What the log says of a record, and what became of a cancel."""

from mutants.mutant import one_edit

REPLICA = "delayd/node/replica/replica.py"
PLANNING = "delayd/node/delivery/planner.py"
BATCH = "delayd/node/replica/ingest_batch.py"
INGEST = "replication/ingest.py"
VERDICT = "replication/verdict.py"
LOG_TIME = "replication/log_time.py"
LOG_TIMES = "tests/unit/replication/test_log_time.py"
RULES = "tests/unit/replication/test_ingest_rules.py"
VERDICTS = "tests/unit/replication/test_verdict.py"
REPLICAS = "tests/unit/node/replica/test_replica.py"

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
        "                judged.append(self._judge(frame, plan.before))\n",
        "                by_clock = Rank(plan.now_ms, 0, 0)\n"
        '                done = __import__("dataclasses").replace(\n'
        "                    plan.before,\n"
        "                    cursors=(by_clock,) * len(plan.before.cursors),\n"
        "                    offsets=plan.frontier.offsets,\n"
        "                )\n"
        "                judged.append(self._judge(frame, done))\n",
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
        "if known.killed_by is not None:",
        "if False:",
    ),
    one_edit(
        "refusal-not-noted",
        "a cancel marker knows that it had a continuation refused",
        "frontier.md#verdicts",
        BATCH,
        "kill._replace(is_refused=True)",
        "kill",
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
        "taken = [m for m in id.live if m.due_ms > as_of_ms]",
        "taken: list[LiveMessage] = []",
    ),
    one_edit(
        "taken-for-a-moment-longer",
        "an id is free again when log time has reached the due time of its message",
        "frontier.md#ids",
        INGEST,
        "taken = [m for m in id.live if m.due_ms > as_of_ms]",
        "taken = [m for m in id.live if m.due_ms >= as_of_ms]",
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
        "without_tracing(user, limits) if limits.is_steady else user",
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
        "delayd/request/internal.py",
        "if hmac.compare_digest(proof, wanted):",
        "if wanted:",
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
        "an id is remembered for an hour of log time after it was due",
        "frontier.md#forgetting",
        REPLICA,
        "self.wheel.ids.forget(cut, self.log_ms, floor_ms)",
        "self.wheel.ids.forget(cut, (2**62,) * len(self.log_ms), floor_ms)",
    ),
    one_edit(
        "forgotten-before-own-ingest-reached-o",
        "a node drops what a frontier covers only when it has ingested up to its O",
        "frontier.md#forgetting",
        REPLICA,
        "if not cut.reached_by(self.ingested) or not passed_own_writes:",
        "if not passed_own_writes:",
        f"{REPLICAS}::test_a_node_that_is_behind_the_frontier_forgets_nothing",
    ),
    one_edit(
        "forgotten-before-own-ingest-reached-r",
        "a node drops what a frontier covers only when it has ingested beyond its R",
        "frontier.md#forgetting",
        REPLICA,
        "if not cut.reached_by(self.ingested) or not passed_own_writes:",
        "if not cut.reached_by(self.ingested):",
        f"{REPLICAS}::test_a_node_that_is_behind_the_frontier_forgets_nothing",
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
        REPLICA,
        "            [slot for slot in slots if is_passed(self.wheel.info(slot), cut)],\n",
        "            slots,\n",
        f"{REPLICAS}::test_a_slot_with_one_message_that_is_not_done_stays",
        is_simulated=True,
    ),
)
