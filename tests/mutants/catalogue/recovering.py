"""What `delayd recover frontier` believes of what steps have left behind."""

from mutants.mutant import Mutant, one_edit

RULES = "replication/recovered.py"
FOLDER = "delayd/commands/recover/frontier"
WORKING_OUT = f"{FOLDER}/working_out.py"
RECOVERING = f"{FOLDER}/recovering.py"
OF_RULES = "tests/unit/replication/test_recovered.py"
OF_DOUBTS = "tests/unit/commands/test_frontier_doubts.py"
OF_RUNS = "tests/unit/commands/test_frontier_recovery.py"
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
        "            cursors[lane] = max(cursors[lane], rank._replace(offset=rank.offset + 1))\n",
        "            cursors[lane] = max(cursors[lane], rank)\n",
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
        "    if len(sources) < known.counts.delivered:\n",
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
        "    if landed != {0: end}:\n",
        "    if landed[0] < end:\n",
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
        RECOVERING,
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
        "    if (now.topic_id, now.last) != (before.topic_id, before.last):\n",
        "    if now.topic_id != before.topic_id:\n",
        f"{OF_RUNS}::test_a_master_that_etcd_has_forgotten_is_seen_at_work",
        is_simulated=False,
    ),
)
