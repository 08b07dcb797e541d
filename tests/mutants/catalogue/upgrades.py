"""Nodes of two releases in one cluster: what a reader may pass over, what it must know, and how the
rules are switched that all of them obey."""

from mutants.mutant import one_edit

RECORD = "replication/record.py"
RECORDS = "tests/unit/replication/test_record.py"
SIMULATED = "tests/simulation/test_switches.py::"
KEPT = f"{SIMULATED}test_a_cluster_keeps_every_promise_though_its_rules_are_switched"
SWITCHING = "tests/unit/node/replica/test_switching.py::"

UPGRADES = (
    one_edit(
        "needed-feature-passed-over",
        "a record that needs a feature which this version does not know stops its reader",
        "frontier.md#optional-fields",
        RECORD,
        '    refuse_unknown(needs, "the record", FrontierFormatError)\n',
        "",
        "tests/unit/node/delivery/test_one_master.py::"
        "test_a_master_stops_at_what_it_must_know_of_a_newer_release",
    ),
    one_edit(
        "optional-field-refused",
        "a field that a newer release adds, and that no feature stands for, stops nobody",
        "frontier.md#optional-fields",
        RECORD,
        "known = {name: value for name, value in fields.items() if name in _FIELDS}",
        "known = dict(fields)",
        "tests/unit/node/delivery/test_one_master.py::"
        "test_a_master_goes_on_from_what_a_newer_release_wrote",
    ),
    one_edit(
        "newer-settings-dropped",
        "settings that a master does not know stay in the cluster's record",
        "frontier.md#optional-fields",
        "replication/settings.py",
        "return {**json.loads(unknown), **fields} if unknown else fields",
        "return fields",
        f"{RECORDS}::test_settings_that_a_newer_release_adds_are_kept_in_the_clusters_record",
    ),
    one_edit(
        "barrier-without-proof-obeyed",
        "a barrier counts only with the proof of its partition",
        "frontier.md#rules-switch",
        "delayd/request/internal.py",
        "    check_proof(record, limits)\n",
        "    if not any(name == _RULES for name, _ in asked):\n"
        "        check_proof(record, limits)\n",
        KEPT,
    ),
    one_edit(
        "barrier-rules-other-partitions",
        "a barrier switches its own partition alone",
        "frontier.md#rules-switch",
        "replication/rules.py",
        "        for barrier in self._by_partition.get(partition, ()):\n"
        "            if barrier.offset < offset:",
        "        for barrier in self.barriers:\n            if barrier.offset < offset:",
        KEPT,
    ),
    one_edit(
        "barrier-rules-itself",
        "a barrier is ruled by the version before it",
        "frontier.md#rules-switch",
        "replication/rules.py",
        "if barrier.offset < offset:",
        "if barrier.offset <= offset:",
        f"{SWITCHING}test_what_is_behind_a_barrier_is_ruled_by_its_version",
        "tests/unit/replication/test_rules_switch.py::"
        "test_a_barrier_rules_what_is_behind_it_in_its_partition_alone",
    ),
    one_edit(
        "barriers-not-named",
        "every frontier record names the barriers below its O",
        "frontier.md#rules-switch",
        "delayd/node/delivery/mastership.py",
        "            barriers=self._replica.rules.below(frontier.offsets),\n",
        "",
        KEPT,
    ),
    one_edit(
        "half-a-switch-taken-for-whole",
        "a second run switches the partitions that the first one did not",
        "frontier.md#rules-switch",
        "delayd/cluster/rules_switch.py",
        "if rules.last(p) < version]",
        "if not record.barriers and rules.last(p) < version]",
        "tests/unit/cluster/test_switch_rules.py::"
        "test_who_is_killed_half_way_is_completed_by_the_next",
    ),
    one_edit(
        "log-time-begins-anew-at-a-barrier",
        "log time goes on behind a barrier from what it was",
        "frontier.md#rules-switch",
        "delayd/node/replica/ingest_batch.py",
        "            self._decide(record, SWITCH, Known())\n",
        "            self.states[record.partition] = LogState(record.offset + 1, 0)\n",
        f"{SWITCHING}test_the_seam_is_the_same_in_any_batches_and_through_any_crash",
    ),
    one_edit(
        "barriers-not-in-the-checkpoint",
        "a checkpoint knows the barriers that its node has passed",
        "frontier.md#rules-switch",
        "delayd/node/replica/replica.py",
        "rules=self.rules.barriers,",
        "rules=(),",
        KEPT,
    ),
    one_edit(
        "old-wheel-believed",
        "a wheel that passed a barrier by older rules is not gone on with",
        "frontier.md#rules-switch",
        "delayd/node/replica/switching.py",
        "if barrier not in rules.barriers and ingested[partition] > offset:",
        "if False:",
        f"{SWITCHING}test_a_wheel_that_passed_a_barrier_by_other_rules_is_refused",
    ),
    one_edit(
        "members-not-asked",
        "nothing is switched while a node does not know the new rules",
        "frontier.md#rules-switch",
        "delayd/cluster/rules_switch.py",
        "    if unready:",
        "    if False:",
        "tests/unit/cluster/test_switch_rules.py::"
        "test_nothing_is_written_while_a_node_does_not_know_the_rules",
    ),
    one_edit(
        "all-barriers-at-once",
        "a second partition is switched only when a frontier keeps older releases out",
        "frontier.md#rules-switch",
        "delayd/cluster/rules_switch.py",
        "for part in [left] if is_begun else [left[:1], left[1:]]:",
        "for part in [left]:",
        "tests/unit/cluster/test_switch_rules.py::"
        "test_an_older_node_that_starts_meanwhile_finds_one_barrier_at_most",
    ),
    one_edit(
        "barrier-signed-by-any-key",
        "a barrier is signed by the key by which the master signs: all nodes accept that one",
        "frontier.md#cluster-keys",
        "delayd/config/cluster_key.py",
        "    at = fingerprints(key, settings.cluster).index(settings.key_fingerprint)\n",
        "    at = 0\n",
        "tests/unit/config/test_cluster_key.py::test_the_key_that_signs_is_found_in_any_line",
    ),
)
