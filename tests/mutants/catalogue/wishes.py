"""What a message asks for beside its delivery."""

from mutants.mutant import one_edit

BODIES = "delayd/request/bodies.py"
WRITER = "delayd/node/delivery/step_writer.py"
ON_A_NODE = "tests/unit/node/delivery/test_wishes_on_a_node.py"
FORECASTS = "tests/unit/node/delivery/test_forecasts_on_a_node.py"
READ = "tests/unit/request/test_wishes.py"

WISHES = (
    one_edit(
        "wishes-by-the-package",
        "a record has wishes by the rules of its place, not by the package",
        "wishes.md#wishes",
        "delayd/request/headers.py",
        "return _WITH_WISHES if knows_wishes(rules_version) else _SUPPORTED",
        "return _WITH_WISHES",
        f"{READ}::test_a_barrier_decides_by_the_place_of_the_record",
    ),
    one_edit(
        "wishes-lost-by-a-retry",
        "a continuation keeps the wishes of its message",
        "wishes.md#wishes",
        "delayd/request/internal.py",
        "        wishes=wishes_of(fields),\n",
        "",
        f"{ON_A_NODE}::test_a_retry_is_delivered_and_told_so",
    ),
    one_edit(
        "receipt-of-a-delivery-not-written",
        "who asks for receipts is told of the delivery",
        "wishes.md#wishes",
        WRITER,
        "receipts_written == RECEIPTS_ALL or wishes_of(frame.body).is_told:",
        "receipts_written == RECEIPTS_ALL:",
        f"{ON_A_NODE}::test_with_an_id_it_gets_them_under_that_and_answers_as_ever",
    ),
    one_edit(
        "expired-by-the-asked-time-alone",
        "a message expires when its lateness is over, not when it is late",
        "wishes.md#wishes",
        BODIES,
        "return None if late_ms is None else planned_of(body, partition, offset) + late_ms",
        "return None if late_ms is None else planned_of(body, partition, offset)",
        f"{ON_A_NODE}::test_after_an_outage_what_is_over_expires_and_the_rest_goes_out",
    ),
    one_edit(
        "expired-is-delivered",
        "a step delivers nothing that is not worth it any more by its own now",
        "wishes.md#wishes",
        WRITER,
        "if until_ms is not None and self.now_ms > until_ms:",
        "if until_ms is not None and self.now_ms > until_ms + 60_000_000:",
        f"{ON_A_NODE}::test_a_message_expires_a_millisecond_after_it_was_worth_it",
    ),
    one_edit(
        "lateness-not-compared",
        "two requests of different lateness are not the same",
        "wishes.md#wishes",
        "delayd/request/parser.py",
        "forms = due_form_of(fields) if wishes is None else as_sent(fields)",
        "forms = due_form_of(fields)",
        f"{READ}::test_lateness_tells_requests_apart_as_it_was_sent",
    ),
    one_edit(
        "planned-by-the-place-of-a-retry",
        "a retry is planned as its message was, by the source of the user's own request",
        "wishes.md#wishes",
        BODIES,
        "planned_ms_of(asked_due_ms, window_ms, id or origin or source)",
        "planned_ms_of(asked_due_ms, window_ms, id or source)",
        f"{ON_A_NODE}::test_a_retry_says_when_its_message_was_planned",
    ),
    one_edit(
        "window-not-ranked",
        "a message with a window ranks by its planned time",
        "wishes.md#wishes",
        "delayd/request/parser.py",
        "sent = (op, topic, due_ms, planned_ms, key, value, user, partition)",
        "sent = (op, topic, due_ms, due_ms, key, value, user, partition)",
        f"{ON_A_NODE}::test_a_crowd_with_a_window_goes_out_in_planned_order_and_not_before",
    ),
    one_edit(
        "far-by-the-asked-time",
        "the longest delay holds for the end of the window",
        "wishes.md#wishes",
        "delayd/request/parser.py",
        "if farthest_ms - record.append_ms > limits.max_delay_ms:",
        "if due_ms - record.append_ms > limits.max_delay_ms:",
        f"{READ}::test_the_longest_delay_holds_for_the_end_of_the_window",
    ),
    one_edit(
        "forecast-by-the-package",
        "replicas store what a forecast needs by the rules of the record's place",
        "wishes.md#wishes",
        "delayd/node/replica/replies.py",
        " and self._rules.version_at(record.partition, record.offset) >= FORECAST_RULES",
        "",
        f"{FORECASTS}::test_older_rules_store_what_older_releases_do",
    ),
    one_edit(
        "forecast-of-the-target-alone",
        "the lateness of a second is that of all targets",
        "wishes.md#wishes",
        "delayd/node/delivery/forecast.py",
        "lates_ms.append((due - 1)",
        "lates_ms.append((count - 1)",
        f"{FORECASTS}::test_the_lateness_is_that_of_all_targets_at_the_measured_rate",
    ),
)
