"""Events that cancel messages."""

from mutants.mutant import one_edit

BRIDGE = "delayd/node/cancel_on/bridge.py"
EVENT = "delayd/node/cancel_on/event.py"
BRIDGE_TEST = "tests/unit/node/cancel_on/test_bridge.py"
EVENT_TEST = "tests/unit/node/cancel_on/test_event.py"

CANCEL_ON = (
    one_edit(
        "bridge-commits-no-offsets",
        "an event causes its cancel once",
        "cancel-on.md#cancel-on-event",
        BRIDGE,
        "        self._producer.send_offsets(self._group, offsets, TIMEOUT_MS)\n",
        "",
        f"{BRIDGE_TEST}::test_a_commit_in_doubt_doubles_and_loses_nothing",
    ),
    one_edit(
        "bridge-begins-at-the-end-again",
        "a bridge goes on where the last one ended",
        "cancel-on.md#cancel-on-event",
        BRIDGE,
        "known.get((topic, n), starts[n] if reads_all else end)",
        "end",
        f"{BRIDGE_TEST}::test_events_count_from_when_the_topic_was_first_seen",
    ),
    one_edit(
        "bridge-passes-what-a-new-partition-has",
        "of a partition that comes later every event counts",
        "cancel-on.md#cancel-on-event",
        BRIDGE,
        "starts[n] if reads_all else end",
        "end",
        f"{BRIDGE_TEST}::test_a_topic_that_grows_is_read_whole_by_the_same_bridge",
    ),
    one_edit(
        "bridge-forgets-where-it-began",
        "what is written after a topic was first seen counts",
        "cancel-on.md#cancel-on-event",
        BRIDGE,
        "if any(begin[n] != known.get((topic, n)) for n in begin):",
        "if known and any(begin[n] != known.get((topic, n)) for n in begin):",
        f"{BRIDGE_TEST}::test_events_count_from_when_the_topic_was_first_seen",
    ),
    one_edit(
        "bridge-trusts-an-offset-beyond-the-end",
        "a topic that was made anew is read",
        "cancel-on.md#cancel-on-event",
        BRIDGE,
        "if not starts[number] <= offset <= ends[number]:",
        "if offset < starts[number]:",
        f"{BRIDGE_TEST}::test_a_topic_that_was_made_anew_is_read_from_its_beginning_and_said",
    ),
    one_edit(
        "event-needs-one-condition",
        "a rule is for events of which all its conditions hold",
        "cancel-on.md#cancel-on-event",
        EVENT,
        "in rule.where.items():",
        "in [*rule.where.items()][:1]:",
        f"{EVENT_TEST}::test_only_events_whose_conditions_all_hold_are_meant",
    ),
)
