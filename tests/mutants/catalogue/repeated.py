"""Requests that are sent again and what they are told, and whoever reads over a switch."""

from mutants.mutant import one_edit

INGEST = "replication/ingest.py"
VERDICT = "replication/verdict.py"
REPEATED = "tests/unit/node/delivery/test_repeated_verdicts.py"

REPEATED_REQUESTS = (
    one_edit(
        "repeated-replace-stored-again",
        "a replace that is sent again with its due time stores nothing",
        "frontier.md#settlements",
        INGEST,
        "if is_repeated(",
        "if False and is_repeated(",
        f"{REPEATED}::test_a_replace_that_is_sent_again_is_told_the_same_and_delivers_nothing_more",
    ),
    one_edit(
        "repeated-replace-counts-for-ever",
        "a replace repeats another only while what that stored counts for all nodes",
        "frontier.md#settlements",
        "replication/ids.py",
        "        and m.due_ms + id_memory_ms >= as_of_ms\n",
        "",
        f"{REPEATED}::test_a_replace_that_is_sent_again_is_told_the_same_and_delivers_nothing_more",
    ),
    one_edit(
        "repetition-told-the-newest-settlement",
        "a repeated replace is told what the first one was, and nothing of markers before it",
        "frontier.md#settlements",
        VERDICT,
        "if settled is None or settled.marker_offset != marker.repeats:",
        "if settled is None:",
        f"{REPEATED}::test_a_replace_is_another_request_after_any_other_one_or_with_a_delay",
    ),
    one_edit(
        "repeated-delay-taken-for-the-same",
        "a replace with a delay asks for another time each time it is sent",
        "frontier.md#settlements",
        "delayd/request/parser.py",
        'has_own_time = op is _REPLACE and "delayd-due" in fields',
        "has_own_time = op is _REPLACE",
        f"{REPEATED}::test_a_replace_is_another_request_after_any_other_one_or_with_a_delay",
    ),
    one_edit(
        "repeated-replace-does-not-hold-the-id",
        "an id is remembered until the last repetition that asks about it was passed",
        "frontier.md#settlements",
        INGEST,
        "held = id._replace(killed_by=offset)",
        "held = id",
        "tests/unit/replication/test_ingest_rules.py::test_a_repeated_replace_holds_what_is_remembered",
    ),
    one_edit(
        "redrive-planned-by-the-first-rules",
        "a redrive is planned by the rules that its request will be judged by",
        "frontier.md#rules-switch",
        "delayd/request/redrives.py",
        "next_offset = 1 << 62",
        "next_offset = 0",
        "tests/unit/request/test_letters.py::test_a_redrive_is_planned_by_the_rules_in_force",
    ),
    one_edit(
        "unnamed-barrier-overlooked",
        "an audit finds a frontier that does not name a barrier below its O",
        "frontier.md#rules-switch",
        "delayd/audit/bounds.py",
        "wanted.symmetric_difference(self.named_barriers)",
        "set(self.named_barriers) - wanted",
        "tests/unit/audit/test_audit_barriers.py::"
        "test_a_frontier_names_the_barriers_that_it_has_passed",
    ),
)
