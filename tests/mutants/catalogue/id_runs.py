"""Runs of schedules under new ids, which C packs as if nothing were known of them."""

from mutants.mutant import one_edit

REPLICA = "delayd/node/replica/replica.py"
ID_MEMORY = "delayd/wheel/id_memory.py"
ID_RUNS = "tests/unit/node/replica/test_id_runs.py"

ID_RUN_MUTANTS = (
    one_edit(
        "native-run-of-known-ids",
        "an id that is taken is never taken again in silence",
        "frontier.md#ids",
        REPLICA,
        "if known := self.wheel.ids.known_in(run.firsts):",
        "if (known := self.wheel.ids.known_in(run.firsts)) and False:",
        f"{ID_RUNS}::test_a_known_id_is_decided_by_the_rules_and_the_others_stay_in_runs",
    ),
    one_edit(
        "native-run-of-an-id-twice",
        "of two requests under one id in a run the second is looked at",
        "frontier.md#ids",
        "delayd/wheel/layers.py",
        "if values.count(None) == len(values) and len(set(keys)) == len(keys):",
        "if values.count(None) == len(values):",
        f"{ID_RUNS}::test_an_id_twice_in_a_run_is_a_duplicate",
    ),
    one_edit(
        "native-run-by-newer-rules",
        "requests are told apart by the rules of their place",
        "frontier.md#rules-switch",
        REPLICA,
        "is_steady(version) and stores_first(self._past, self.settings)",
        "stores_first(self._past, self.settings)",
        f"{ID_RUNS}::test_by_rules_before_4_there_are_no_runs_of_ids",
    ),
    one_edit(
        "native-run-of-a-trimmed-past",
        "a schedule that a trimmed record may decide is looked at",
        "trimmed.md#what-decides-later",
        "delayd/node/replica/unknown_past.py",
        "return past is WHOLE_PAST and settings",
        "return settings",
        f"{ID_RUNS}::test_where_a_trimmed_record_may_decide_there_are_no_runs_of_ids",
    ),
    one_edit(
        "native-run-of-ids-for-ever",
        "an id of a run is forgotten some time after its last message",
        "frontier.md#forgetting",
        ID_MEMORY,
        '            self._layers.put_all(zip(firsts.ends, repeat(b"")))\n',
        "",
        f"{ID_RUNS}::test_a_run_of_ids_is_forgotten_as_others_are",
    ),
    one_edit(
        "native-run-of-ids-behind-the-front",
        "the queue of ids is read from its first line on, also if that came last",
        "frontier.md#forgetting",
        ID_MEMORY,
        '            self._front(_STATE.pack(b"e", partition)).put(min(firsts.ends))\n',
        "",
        f"{ID_RUNS}::test_a_run_of_ids_is_forgotten_as_others_are",
    ),
)
