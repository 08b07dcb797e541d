"""Rules of groups: a name that messages share."""

from mutants.mutant import Mutant, one_edit

PAGE = "wishes.md#wishes"
BODIES = "delayd/request/bodies.py"
GRAMMAR = "delayd/request/grammar.py"
READ = "tests/unit/request/test_groups.py"
PENDING = "delayd/node/monitoring/api/pending.py"
READER = "delayd/wheel/reader.py"
FINDING = "tests/unit/wheel/test_finding.py"
JOURNAL = "delayd/commands/groups/journal.py"
LISTED = "tests/unit/node/monitoring/test_groups_api.py"
JOBS = "tests/unit/commands/test_group_journals.py"
ON_A_NODE = "tests/unit/node/delivery/test_groups_on_a_node.py"

GROUPS: tuple[Mutant, ...] = (
    one_edit(
        "older-rules-group",
        "older rules do not know groups",
        PAGE,
        "delayd/request/headers.py",
        "_WITH_SERIES: Final = frozenset((*SUPPORTED_HEADERS, *WISH_HEADERS, *SERIES_HEADERS))",
        "_WITH_SERIES: Final = frozenset(\n"
        "    (*SUPPORTED_HEADERS, *WISH_HEADERS, *SERIES_HEADERS, *GROUP_HEADERS)\n"
        ")",
        f"{READ}::test_older_rules_do_not_know_it",
    ),
    one_edit(
        "group-without-an-id",
        "a message with a group has an id",
        PAGE,
        GRAMMAR,
        'if "delayd-id" not in fields:',
        'if "delayd-id" in ():',
        f"{READ}::test_without_an_id_it_is_refused_and_both_are_named",
    ),
    one_edit(
        "group-not-compared",
        "two requests of different groups are not the same",
        PAGE,
        GRAMMAR,
        '_COMPARED_WISHES = ("delayd-late", "delayd-window", "delayd-group")',
        '_COMPARED_WISHES = ("delayd-late", "delayd-window")',
        f"{READ}::test_it_tells_two_requests_apart",
    ),
    one_edit(
        "group-lost-by-a-retry",
        "a retry, a reschedule and each occurrence keep the group",
        PAGE,
        BODIES,
        '        headers.append(("delayd-group", wishes.group.encode()))\n    return headers',
        "        pass\n    return headers",
        f"{ON_A_NODE}::test_a_retry_keeps_it",
    ),
    one_edit(
        "group-not-delivered",
        "a delivered record names its group",
        PAGE,
        BODIES,
        "        if wishes.group is not None:\n            headers.append",
        "        if wishes.group == 0:\n            headers.append",
        f"{ON_A_NODE}::test_a_message_is_delivered_with_its_group",
    ),
    one_edit(
        "body-always-has-a-group",
        "a body without a group is as older releases write it",
        PAGE,
        BODIES,
        "return wishes if wishes.group is not None else wishes[:-1]",
        "return wishes",
        f"{READ}::test_a_group_is_one_more_field_of_the_wishes_and_of_nothing_else",
    ),
    one_edit(
        "group-listed-by-any-text",
        "a page of a group has its messages only",
        PAGE,
        PENDING,
        "if asked.group not in (None, group):",
        "if asked.group == 0:",
        f"{LISTED}::test_pages_are_filtered_by_group",
    ),
    one_edit(
        "job-by-the-last-listing",
        "a job asks for the due time that it computed first",
        PAGE,
        JOURNAL,
        "insert or ignore into ids",
        "insert or replace into ids",
        f"{JOBS}::test_a_journal_has_each_id_once_with_the_first_time",
    ),
    one_edit(
        "job-counts-a-delay-anew",
        "a second run of a job counts a delay from the first",
        PAGE,
        JOURNAL,
        "        return Change(op, None if kind is None else Kind(kind), ms, when)",
        "        return change",
        f"{JOBS}::test_a_delay_counts_from_the_first_run",
    ),
    one_edit(
        "job-fires-a-series-twice",
        "a series that may have been fired is not fired again",
        PAGE,
        JOURNAL,
        'doubtful = f"verdict is null and is_sent and {self._stays()}"',
        'doubtful = "0"',
        f"{JOBS}::test_of_one_that_was_killed_a_series_that_was_on_its_way_is_in_doubt",
    ),
    one_edit(
        "job-takes-the-list-of-a-node-without-groups",
        "a job touches nothing that is not in its group",
        PAGE,
        JOURNAL,
        'message.get("group") != group or not',
        "not",
        f"{JOBS}::test_nothing_is_listed_under_an_empty_name_or_by_a_node_that_knows_no_groups",
    ),
    one_edit(
        "job-keeps-a-mark-of-what-it-did-not-send",
        "a series that was not fired is fired by the next run",
        PAGE,
        JOURNAL,
        "if first <= last:",
        "if False:",
        f"{JOBS}::test_a_series_that_was_not_fired_yet_when_the_job_stopped_is_fired_by_the_next_run",
    ),
    one_edit(
        "job-lists-again",
        "a job that has its list goes on with that",
        PAGE,
        JOURNAL,
        'file.execute("update job set is_listed = 1")',
        "pass",
        f"{JOBS}::test_killed_half_way_it_comes_to_the_same",
    ),
    one_edit(
        "moved-by-a-walk-for-each",
        "what a job moves is found where the last message was",
        "rescheduling.md#rescheduling",
        READER,
        "found_in, begin = self._found.get(place, (ref(segment), segment.start))",
        "found_in, begin = ref(segment), segment.start",
        f"{FINDING}::test_messages_in_the_order_of_the_file_are_found_where_the_last_one_was",
    ),
    one_edit(
        "found-by-the-place-in-a-file-of-the-same-name",
        "a file that has the name of one before is looked through from its start",
        "rescheduling.md#rescheduling",
        READER,
        "found_in() is not segment or not",
        "not",
        f"{FINDING}::test_a_slot_that_was_forgotten_and_made_anew_is_looked_through_from_its_start",
    ),
    one_edit(
        "found-behind-the-last-one-only",
        "a message is found in any order",
        "rescheduling.md#rescheduling",
        READER,
        "for start, end in ((begin, segment.end), (segment.start, begin)):",
        "for start, end in ((begin, segment.end),):",
        f"{FINDING}::test_each_message_is_found_in_any_order",
    ),
)
