"""What `delayd recover frontier` believes of what steps have left behind."""

from mutants.mutant import Mutant, one_edit

RULES = "replication/recovered.py"
FOLDER = "delayd/commands/recover/frontier"
WORKING_OUT = f"{FOLDER}/working_out.py"
RECOVERING = f"{FOLDER}/recovering.py"
OF_RULES = "tests/unit/replication/test_recovered.py"
OF_DOUBTS = "tests/unit/commands/test_frontier_doubts.py"
OF_RUNS = "tests/unit/commands/test_frontier_recovery.py"
TOPICAL = f"{FOLDER}/topical.py"
OF_SHARDS = "tests/unit/commands/test_frontier_shards.py"
SHARDS = "recovering.md#several-shards"
FLOOR = "recovering.md#the-floor"
TOLD = "recovering.md#what-can-be-told-of-a-message"
ASSUMED = "recovering.md#what-is-assumed"
RECORD = "recovering.md#the-record"

RECOVERING_MUTANTS: tuple[Mutant, ...] = (
    one_edit(
        "recovered-floor-before-the-last-trace",
        "the floor covers every message that left a trace",
        FLOOR,
        RULES,
        "            cursors[at] = max(cursors[at], rank._replace(offset=rank.offset + 1))\n",
        "            cursors[at] = max(cursors[at], rank)\n",
        f"{OF_RULES}::test_with_all_traces_floor_and_frontier_cover_the_same",
        is_simulated=False,
    ),
    one_edit(
        "recovered-doubt-is-pending",
        "what a target does not show is in doubt, and not delivered again silently",
        TOLD,
        RULES,
        "    return Fate.DOUBTFUL if is_blind else Fate.PENDING\n",
        "    return Fate.PENDING\n",
        f"{OF_RULES}::test_what_a_blind_target_received_is_unseen_or_in_doubt",
        is_simulated=False,
    ),
    one_edit(
        "recovered-missing-is-done",
        "what the floor covers and nobody has seen is missing, and not lost silently",
        TOLD,
        RULES,
        "        return Fate.UNSEEN if is_blind else Fate.MISSING\n",
        "        return Fate.UNSEEN\n",
        f"{OF_RULES}::test_what_the_floor_covers_and_nobody_has_seen_is_missing",
        is_simulated=False,
    ),
    one_edit(
        "recovered-believes-a-target-made-again",
        "a target that shows nothing from before may have been made again",
        TOLD,
        RULES,
        "        if start == 0 and is_old:\n",
        "        if start == 0:\n",
        f"{OF_RULES}::test_a_target_is_blind_where_it_may_have_lost_what_came_since",
        is_simulated=False,
    ),
    one_edit(
        "recovered-a-step-behind",
        "no node has acted on a step beyond the recovered one",
        RECORD,
        RULES,
        "        step=max(each.step for each in last) + at_most,\n",
        "        step=floor.step,\n",
        f"{OF_RULES}::test_term_and_step_are_beyond_what_time_allows",
        is_simulated=False,
    ),
    one_edit(
        "recovered-by-source-alone",
        "a delivery of another cluster under the same source is none of this one",
        TOLD,
        WORKING_OUT,
        "    return sum((*each[:3], each.content) == (*asked, content) for each in "
        "clues.arrivals[source])\n",
        "    return sum(bool(asked) or bool(content) for each in clues.arrivals[source])\n",
        f"{OF_RUNS}::test_records_of_another_cluster_are_no_deliveries_of_this_one",
        is_simulated=False,
    ),
    one_edit(
        "recovered-refusal-is-a-death",
        "the dead letter of a request whose id was taken moves no cursor",
        TOLD,
        WORKING_OUT,
        "each.content == content and each.topic in DIED for each",
        "each.content == content for each",
        f"{OF_RUNS}::test_a_conflict_behind_the_wheel_says_nothing_of_its_rank",
        is_simulated=False,
    ),
    one_edit(
        "recovered-from-an-undone-step",
        "a frontier whose own step is not in Kafka is not gone on from",
        ASSUMED,
        WORKING_OUT,
        "    if len(sources) < last.delivered:\n",
        "    if len(sources) < 0:\n",
        f"{OF_DOUBTS}::test_a_step_that_was_undone_is_not_believed",
        is_simulated=False,
    ),
    one_edit(
        "recovered-fences-strangers",
        "nobody is fenced before it is sure that wheel and buffer are of one cluster",
        "recovering.md#the-record",
        RECOVERING,
        "    if state is None or state.topic_id != buffer.topic_id:\n",
        "    if state is None:\n",
        f"{OF_RUNS}::test_a_wheel_of_another_cluster_fences_nobody",
        is_simulated=False,
    ),
    one_edit(
        "recovered-behind-a-stale-read",
        "the record is committed right behind what was read of its topic, or not at all",
        RECORD,
        RECOVERING,
        "    if landed != {shard: end}:\n",
        "    if landed[shard] < end:\n",
        f"{OF_RUNS}::test_a_topic_that_goes_on_behind_what_was_read_gets_no_record",
        is_simulated=False,
    ),
    one_edit(
        "recovered-beside-a-sleeper",
        "a node that slept through a recovery does not deliver under its old transactional id",
        RECORD,
        "delayd/node/replica/switching.py",
        "    if read.settings.frontier != settings.frontier:\n",
        "    if read.settings.buffer != settings.buffer:\n",
        f"{OF_RUNS}::test_a_node_that_slept_through_the_recovery_delivers_nothing",
        is_simulated=False,
    ),
    one_edit(
        "recovered-joins-two-histories",
        "a topic that was emptied and used anew is not joined with what was before",
        ASSUMED,
        TOPICAL,
        "    if is_ours and (before.is_within(after) or after.is_within(before)):\n",
        "    if is_ours:\n",
        f"{OF_RUNS}::test_a_topic_that_was_emptied_and_used_anew_is_another_history",
        is_simulated=False,
    ),
    one_edit(
        "recovered-passes-over-a-master-at-work",
        "a master that etcd does not know is seen by the frontier that grows",
        "recovering.md#the-record",
        RECOVERING,
        "    if (now.topic_id, now.lasts) != (before.topic_id, before.lasts):\n",
        "    if now.topic_id != before.topic_id:\n",
        f"{OF_RUNS}::test_a_master_that_etcd_has_forgotten_is_seen_at_work",
        is_simulated=False,
    ),
    one_edit(
        "recovered-a-trace-moves-all-shards",
        "a trace moves the cursor of its own shard alone",
        SHARDS,
        RULES,
        "            at = known.cursor_at(lane, partition)\n",
        "            at = lane\n",
        f"{OF_SHARDS}::test_of_one_shard_whose_partition_is_lost_a_record_is_made_and_of_no_other",
        is_simulated=False,
    ),
    one_edit(
        "recovered-from-the-newest-of-all-shards",
        "traces are read from the last known step of each shard on",
        SHARDS,
        f"{FOLDER}/clues.py",
        "        self._since_ms = min(each.now_ms for each in known.steps) - SKEW_MS\n",
        "        self._since_ms = known.now_ms - SKEW_MS\n",
        f"{OF_SHARDS}::test_each_shard_is_read_from_its_own_last_step_on",
        is_simulated=False,
    ),
    one_edit(
        "recovered-doubts-of-intact-shards",
        "what the frontier of a shard says is in no doubt",
        SHARDS,
        WORKING_OUT,
        "_KNOWN = {Fate.DOUBTFUL: Fate.PENDING, Fate.MISSING: Fate.UNSEEN}\n",
        "_KNOWN = {Fate.MISSING: Fate.UNSEEN}\n",
        f"{OF_SHARDS}::test_what_of_other_shards_no_target_shows_is_in_no_doubt",
        is_simulated=False,
    ),
    one_edit(
        "recovered-guesses-the-number-of-shards",
        "a wheel that saw the number of shards change does not say how many there are",
        SHARDS,
        TOPICAL,
        "    if not counts and (known.resharding or known.rest_ms):\n",
        "    if not counts and known.resharding:\n",
        f"{OF_SHARDS}::"
        "test_a_wheel_that_saw_the_number_of_shards_change_does_not_say_how_many_there_are",
        is_simulated=False,
    ),
    one_edit(
        "recovered-believes-the-first-partition",
        "partitions that say different numbers of shards are not believed",
        SHARDS,
        TOPICAL,
        "    if len(counts) > 1 or any(partition < shards for partition in formers):\n",
        "    if any(partition < shards for partition in formers):\n",
        f"{OF_SHARDS}::test_a_topic_whose_partitions_say_different_numbers_is_not_believed",
        is_simulated=False,
    ),
    one_edit(
        "recovered-beside-a-master-of-another-shard",
        "a master of any shard keeps the command from everything",
        SHARDS,
        RECOVERING,
        "    shards = range(settings.shards)\n",
        "    shards = range(1)\n",
        f"{OF_SHARDS}::test_a_master_of_any_shard_keeps_it_from_everything",
        is_simulated=False,
    ),
)
