"""Rules of reschedules: what is pending gets another due time, once."""

from mutants.mutant import Mutant, one_edit

PAGE = "rescheduling.md#rescheduling"
INGEST = "replication/ingest.py"
IDS = "replication/ids.py"
INTERNAL = "delayd/request/internal.py"
PLANNING = "delayd/node/delivery/planner.py"
ON_A_NODE = "tests/unit/node/delivery/test_reschedules_on_a_node.py"
PURE = "tests/unit/replication/test_reschedule_ids.py"
SIMULATED = "tests/simulation/test_reschedules.py"

RESCHEDULES: tuple[Mutant, ...] = (
    one_edit(
        "older-rules-reschedule",
        "older rules refuse the operations",
        PAGE,
        "delayd/request/grammar.py",
        "return _OPS if knows_reschedule(rules_version) else _OLDER_OPS",
        "return _OPS",
        f"{ON_A_NODE}::test_older_rules_refuse_the_operations",
    ),
    one_edit(
        "moved-with-its-window",
        "the new due time is exact",
        PAGE,
        INTERNAL,
        "wishes_body_of(body)._replace(window_ms=None)",
        "wishes_body_of(body)",
        f"{ON_A_NODE}::test_its_window_ends_and_it_is_late_from_the_new_time_on",
    ),
    one_edit(
        "moved-to-before-it-was-asked",
        "`delayd-by` moves nothing to before the marker",
        PAGE,
        INGEST,
        "max(append_ms, min(due_ms + by_ms, latest_ms))",
        "max(0, min(due_ms + by_ms, latest_ms))",
        f"{PURE}::test_what_is_moved_to_before_now_is_due_now",
    ),
    one_edit(
        "move-counts-as-an-attempt",
        "the attempts of what is moved are counted on, and no more",
        PAGE,
        "delayd/node/delivery/rescheduling.py",
        "is_retry=False",
        "is_retry=True",
        f"{ON_A_NODE}::test_what_is_pending_is_due_at_another_time",
    ),
    one_edit(
        "schedule-slips-in",
        "the id is taken until the log says what came of the marker",
        PAGE,
        INGEST,
        "taken += held_counting(id, as_of_ms, id_memory_ms)",
        "pass",
        f"{ON_A_NODE}::test_no_schedule_slips_in_while_the_log_does_not_say_how_it_ended",
    ),
    one_edit(
        "reserved-for-ever",
        "a settlement of the marker ends the reservation",
        PAGE,
        IDS,
        "        state = state._replace(reserved=None)\n",
        "        pass\n",
        f"{ON_A_NODE}::test_the_id_is_free_once_the_log_says_that_it_was_too_late",
    ),
    one_edit(
        "overdue-not-held",
        "what a marker kills is held, however long ago it was due by the marker's own time",
        PAGE,
        INGEST,
        "    changed = reserve(id, offset, dues_ms)\n",
        "    changed = reserve(id, offset, dues_ms)\n"
        "    counting = held_counting(changed, as_of_ms, id_memory_ms)\n"
        "    if not counting:\n"
        "        changed = changed._replace(reserved=None)\n",
        f"{PURE}::test_what_a_marker_stamped_ahead_has_killed_goes_on",
    ),
    one_edit(
        "settled-only-if-it-counts",
        "a settlement frees what was done, though it does not count",
        PAGE,
        "replication/verdict.py",
        "if all(m in self.killed for m in marker.killed):",
        "if not self.done:",
        f"{PURE}::test_a_settlement_frees_what_was_done_and_does_not_count",
    ),
    one_edit(
        "one-of-a-part-ends-all",
        "of a reservation in part each known message goes on",
        PAGE,
        INGEST,
        "if reserved is None or reserved.held or asked.moved_by",
        "if reserved is None or reserved.is_whole or asked.moved_by",
        f"{PURE}::test_of_a_reservation_in_part_each_known_message_goes_on",
    ),
    one_edit(
        "held-retry-delivered",
        "what a reschedule holds is delivered by no step",
        PAGE,
        "delayd/node/replica/rescheduling.py",
        "NEVER_DELIVERED: Final = 0",
        "NEVER_DELIVERED: Final = 1 << 40",
        f"{ON_A_NODE}::test_a_retry_that_comes_behind_the_reschedule_is_what_moves",
    ),
    one_edit(
        "retry-not-held",
        "a retry that comes behind the marker is what it moves",
        PAGE,
        INGEST,
        "    if held is None:\n        return Decision(",
        "    if held is None or True:\n        return Decision(",
        f"{ON_A_NODE}::test_a_retry_that_comes_behind_the_reschedule_is_what_moves",
    ),
    one_edit(
        "overridden-move-accepted",
        "a later reschedule wins over the continuation of an earlier one",
        PAGE,
        INGEST,
        "if asked.moved_by == reserved.marker_offset:\n        stored",
        "if asked.moved_by >= 0:\n        stored",
        f"{ON_A_NODE}::test_what_comes_between_a_reschedule_and_its_continuation_wins",
    ),
    one_edit(
        "cancel-forgets-what-is-held",
        "a cancel kills what a reschedule holds",
        PAGE,
        IDS,
        "killed_from(live) if reserved is None else killed_of(state)",
        "killed_from(live)",
        f"{ON_A_NODE}::test_what_comes_between_a_reschedule_and_its_continuation_wins",
    ),
    one_edit(
        "both-in-a-step-write",
        "of several markers of an id in a step the last one writes",
        PAGE,
        PLANNING,
        "(is_holding or (is_taken and is_last))",
        "(is_holding or is_taken)",
        f"{SIMULATED}::test_messages_are_moved_overridden_held_and_found_too_late",
    ),
    one_edit(
        "verdict-before-the-move-is-read",
        "a marker that took over waits for what the step under way writes",
        PAGE,
        PLANNING,
        "            self._queue.postpone_verdicts(partition)\n",
        "            pass\n",
        f"{SIMULATED}::test_messages_are_moved_overridden_held_and_found_too_late",
    ),
    one_edit(
        "taken-over-kill-forgotten",
        "a kill is kept until the last marker that took it over is passed",
        PAGE,
        "delayd/wheel/id_memory.py",
        "max(offset, kill.marker_offset, kill.asked_by)",
        "max(offset, kill.marker_offset)",
        f"{SIMULATED}::test_messages_are_moved_overridden_held_and_found_too_late",
    ),
    one_edit(
        "series-moved",
        "a series that goes on is not moved",
        PAGE,
        INGEST,
        "    if not asked.is_fire and (",
        "    if False and (",
        f"{ON_A_NODE}::test_a_series_cannot_be_moved",
    ),
    one_edit(
        "put-off-too-far",
        "nothing is put off beyond the longest delay",
        PAGE,
        INGEST,
        "if asked.by_ms is not None and any(",
        "if False and any(",
        f"{ON_A_NODE}::test_what_would_be_put_off_too_far_stays_where_it_is",
    ),
    one_edit(
        "fired-series-loses-its-place",
        "the occurrence behind a fired one is that after its own time",
        PAGE,
        "delayd/node/delivery/series_step.py",
        "own_ms = asked_due_of(frame.body) if series.moved_ms is None else series.moved_ms",
        "own_ms = asked_due_of(frame.body)",
        f"{ON_A_NODE}::test_a_fired_occurrence_goes_out_now_and_the_series_goes_on",
    ),
    one_edit(
        "next-occurrence-fired",
        "an occurrence that came out meanwhile is not fired, and its series not hurried",
        PAGE,
        INGEST,
        "if is_recent and not (asked.follows and _is_held(known.id, asked)):",
        "if is_recent:",
        f"{ON_A_NODE}"
        "::test_an_occurrence_that_goes_out_meanwhile_is_not_fired_and_the_series_is_not_hurried",
    ),
)
