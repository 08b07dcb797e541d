"""Messages that recur."""

from mutants.mutant import one_edit

WRITER = "delayd/node/delivery/step_writer.py"
STEP = "delayd/node/delivery/series_step.py"
RECUR = "delayd/request/recurrence/series.py"
TIMES = "delayd/request/recurrence/expressions.py"
ON_A_NODE = "tests/unit/node/delivery/test_series_on_a_node.py"
OF_TIMES = "tests/unit/recurrence/test_expressions.py"
READ = "tests/unit/request/test_series_requests.py"
PAGE = "series.md#series"

SERIES = (
    one_edit(
        "series-by-the-package",
        "a record may ask for a series by the rules of its place, not by the package",
        PAGE,
        "delayd/request/headers.py",
        "    if knows_series(rules_version):\n        return _WITH_SERIES\n",
        "    if True:\n        return _WITH_SERIES\n",
        f"{ON_A_NODE}::test_older_rules_refuse_it_as_before",
    ),
    one_edit(
        "occurrence-lost-after-a-delivery",
        "the step that delivers an occurrence writes the next one",
        PAGE,
        WRITER,
        "fate in (Fate.DELIVERED, Fate.DEAD, Fate.EXPIRED)",
        "fate in (Fate.DEAD, Fate.EXPIRED)",
        f"{ON_A_NODE}::test_each_occurrence_is_delivered_once_and_the_next_one_is_in_the_buffer",
    ),
    one_edit(
        "series-ends-with-a-dead-occurrence",
        "a dead occurrence does not end its series",
        PAGE,
        WRITER,
        "fate in (Fate.DELIVERED, Fate.DEAD, Fate.EXPIRED)",
        "fate in (Fate.DELIVERED, Fate.EXPIRED)",
        f"{ON_A_NODE}::test_a_retry_holds_the_series_and_a_dead_occurrence_does_not_end_it",
    ),
    one_edit(
        "frontier-before-the-next-occurrence",
        "R covers the occurrence that a step writes",
        PAGE,
        WRITER,
        "own = self.requeued_count + self._series.followed_count + self.moved_count",
        "own = self.requeued_count + self.moved_count",
        f"{ON_A_NODE}::test_r_covers_the_next_occurrence",
    ),
    one_edit(
        "the-last-one-goes-on",
        "the last occurrence has none behind it, and says so",
        PAGE,
        WRITER,
        "        if series.goes_on:\n            self._write_own",
        "        if True:\n            self._write_own",
        f"{ON_A_NODE}::test_it_ends_with_its_last_occurrence_and_says_so",
    ),
    one_edit(
        "series-over-in-silence",
        "a series without an occurrence becomes a dead letter",
        PAGE,
        RECUR,
        "        return Found(series._replace(occurrence=number, state=SeriesState.OVER), now_ms)",
        "        return Found(series._replace(occurrence=1, state=SeriesState.LAST), now_ms)",
        f"{ON_A_NODE}::test_one_without_any_occurrence_is_a_dead_letter_as_it_was_asked_for",
    ),
    one_edit(
        "id-free-between-occurrences",
        "a series that goes on is pending under its id, whatever its due time",
        PAGE,
        "replication/ingest.py",
        "        m for m in id.live if m.due_ms > as_of_ms or m.goes_on\n",
        "        m for m in id.live if m.due_ms > as_of_ms\n",
        f"{ON_A_NODE}::test_the_same_series_again_is_a_duplicate_at_any_time_while_it_goes_on",
    ),
    one_edit(
        "series-forgotten",
        "an id is not forgotten while a series goes on",
        PAGE,
        "replication/ids.py",
        "            if live.goes_on:\n                return NEVER_MS\n",
        "",
        "tests/unit/replication/test_series_ids.py"
        "::test_an_id_is_not_forgotten_while_its_series_goes_on",
    ),
    one_edit(
        "series-dropped-from-the-live",
        "a series that goes on is not the one dropped from 64 live messages",
        PAGE,
        "replication/ids.py",
        "del live[next((n for n, each in enumerate(live) if not each.goes_on), 0)]",
        "del live[0]",
        "tests/unit/replication/test_series_ids.py"
        "::test_a_series_that_goes_on_is_not_dropped_from_the_live_messages",
    ),
    one_edit(
        "all-missed-are-delivered",
        "after an outage the latest missed occurrence is delivered, and no other",
        PAGE,
        STEP,
        "if is_first_attempt(frame) and series.moved_ms is None:\n",
        "if False:\n",
        f"{ON_A_NODE}::test_after_an_outage_the_latest_missed_one_is_delivered_and_then_the_next",
    ),
    one_edit(
        "always-behind",
        "an occurrence that was found late is delivered itself",
        PAGE,
        STEP,
        "return frame.due_ms == asked_due_of(frame.body) and attempt_of(frame.body) == 0",
        "return attempt_of(frame.body) == 0",
        f"{ON_A_NODE}::test_one_that_is_always_behind_is_delivered_all_the_same",
    ),
    one_edit(
        "beyond-the-buffer",
        "no record of a series is due later than the longest delay after its append time",
        PAGE,
        STEP,
        "next_due_ms=min(found.due_ms, self._now_ms + self._limits.max_delay_ms),",
        "next_due_ms=found.due_ms,",
        f"{ON_A_NODE}::test_one_that_is_far_away_is_written_again_before_kafka_deletes_it",
    ),
    one_edit(
        "early-at-a-waypoint",
        "an occurrence is not delivered where its record is written again on its way",
        PAGE,
        STEP,
        "        if due_ms > self._now_ms:\n",
        "        if due_ms > self._now_ms + 10**12:\n",
        f"{ON_A_NODE}::test_one_that_is_far_away_is_written_again_before_kafka_deletes_it",
    ),
    one_edit(
        "twice-in-autumn",
        "a time of the day that the clock shows twice comes the first time",
        PAGE,
        TIMES,
        "        if found > after:  # a time",
        "        if True:  # a time",
        f"{OF_TIMES}::test_a_time_of_day_that_is_shown_twice_comes_the_first_time",
    ),
    one_edit(
        "never-in-spring",
        "a time of the day that the clock skips comes when it has been put forward",
        PAGE,
        TIMES,
        "            found = change_before(tz, found)\n",
        "            continue\n",
        f"{OF_TIMES}::test_a_time_of_day_that_is_skipped_comes_when_the_clock_has_been_put_forward",
    ),
    one_edit(
        "series-lost-by-a-retry",
        "a continuation keeps the series of its message",
        PAGE,
        "delayd/request/internal.py",
        "        series=_series(fields),\n",
        "",
        f"{ON_A_NODE}::test_each_occurrence_is_delivered_once_and_the_next_one_is_in_the_buffer",
    ),
    one_edit(
        "letter-of-a-whole-series",
        "a dead letter of an occurrence asks for that one alone",
        PAGE,
        "delayd/request/bodies.py",
        "    if is_occurrence(body):\n        return key",
        "    if series_of(body) is None:\n        return key",
        f"{ON_A_NODE}::test_an_occurrence_expires_and_the_series_goes_on",
    ),
    one_edit(
        "zone-not-compared",
        "two series in different zones are not the same",
        PAGE,
        "delayd/request/grammar.py",
        'for name in (*_DUES, "delayd-cron", *_OF_SERIES) if name in fields]',
        'for name in (*_DUES, "delayd-cron") if name in fields]',
        f"{READ}::test_series_are_compared_as_they_were_sent",
    ),
)
