"""Messages that are due by the clock of a zone."""

from mutants.mutant import one_edit

STEP = "delayd/node/delivery/local_step.py"
TIMES = "delayd/request/recurrence/local_times.py"
ON_A_NODE = "tests/unit/node/delivery/test_local_times_on_a_node.py"
OF_TIMES = "tests/unit/recurrence/test_clock_times.py"
READ = "tests/unit/request/test_local_time_requests.py"
PAGE = "local-times.md#local-times"

LOCAL_TIMES = (
    one_edit(
        "local-time-by-the-package",
        "a record may have a local time by the rules of its place, not by the package",
        PAGE,
        "delayd/request/parser.py",
        "knows_local_times=knows_local_times(version)",
        "knows_local_times=True",
        f"{READ}::test_a_barrier_decides_by_the_place_of_the_record",
    ),
    one_edit(
        "local-time-resolved-once",
        "a local time that is more than a day away is resolved again",
        PAGE,
        STEP,
        "if again_ms <= self._now_ms and planned_ms <= farthest_ms:",
        "if planned_ms <= farthest_ms:",
        f"{ON_A_NODE}::test_a_change_of_time_zones_moves_it",
    ),
    one_edit(
        "local-time-looked-at-too-late",
        "a local time is resolved again a day before it is due",
        PAGE,
        STEP,
        "again_ms = due_ms - AGAIN_MS",
        "again_ms = due_ms - AGAIN_MS // 2",
        f"{ON_A_NODE}::test_a_far_one_is_resolved_again_a_day_before",
    ),
    one_edit(
        "open-local-time-delivered",
        "only a record that is final is delivered",
        PAGE,
        STEP,
        "        if local.state == LocalState.FINAL:\n            return None\n",
        "        if local.state != LocalState.UNRESOLVED:\n            return None\n",
        f"{ON_A_NODE}::test_a_change_of_time_zones_moves_it",
    ),
    one_edit(
        "id-of-a-local-time-free",
        "the id of a local time is pending until it is due",
        "local-times.md#ids",
        "delayd/node/replica/asking.py",
        "return LOCAL_TIME if request.local is not None and request.local.goes_on else 0",
        "return 0",
        f"{ON_A_NODE}::test_the_id_is_taken_until_it_is_due",
    ),
    one_edit(
        "local-time-moved-by",
        "`delayd-by` counts from no time that is not certain",
        "local-times.md#ids",
        "replication/ingest.py",
        "if not asked.is_fire and (of_series or is_open):",
        "if not asked.is_fire and of_series:",
        f"{ON_A_NODE}::test_by_needs_a_due_time_that_is_certain",
    ),
    one_edit(
        "unknown-zone-given-up",
        "a zone that another master knew is waited for",
        PAGE,
        STEP,
        "local.state == LocalState.EXPECTED and asked_due_of",
        "False and asked_due_of",
        f"{ON_A_NODE}::test_a_node_that_does_not_know_a_zone_that_another_did_waits",
    ),
    one_edit(
        "lost-zone-waited-for",
        "a zone that nobody knows any more holds nothing up beyond the known due time",
        PAGE,
        STEP,
        " and asked_due_of(frame.body) > self._now_ms",
        "",
        f"{ON_A_NODE}::test_a_zone_that_nobody_knows_any_more_holds_nothing_up",
    ),
    one_edit(
        "skipped-time-later",
        "a time that the clock skips is the moment when it has been put forward",
        "local-times.md#summer-time",
        TIMES,
        "            found, fraction_ms = change_before(tz, found), 0\n",
        "            pass\n",
        f"{OF_TIMES}::test_a_skipped_time_is_the_change_and_one_shown_twice_the_first",
    ),
    one_edit(
        "too-far-in-one-zone",
        "what would be near enough in some zone is not refused as too far",
        PAGE,
        "delayd/request/parser.py",
        "        farthest_ms = earliest_ms_of(local)\n",
        "        farthest_ms = earliest_ms_of(local) + 14 * 3_600_000\n",
        f"{READ}::test_it_is_too_far_where_it_would_be_in_any_zone",
    ),
    one_edit(
        "local-time-lost-on-its-way",
        "what is delivered says which local time was asked for",
        PAGE,
        "delayd/request/bodies.py",
        "        headers.append((LOCAL_TIME, shown(local).encode()))\n",
        "        pass\n",
        f"{ON_A_NODE}::test_it_is_delivered_once_when_the_clock_shows_it",
    ),
)
