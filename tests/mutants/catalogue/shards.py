"""Shards of the buffer."""

from mutants.mutant import one_edit

PLANNER = "delayd/node/delivery/planner.py"
ON_A_NODE = "tests/unit/node/delivery/test_shards_on_a_node.py"
OF_SHARDS = "tests/unit/replication/test_shards.py"
OF_MORE = "tests/unit/replication/test_resharding.py"
RESTING = "tests/unit/node/delivery/test_resting.py"
RUNS = "delayd/cluster/resharding.py"
OF_RUNS = "tests/unit/cluster/test_resharding_runs.py"
PAGE = "shards.md#shards"
MORE = "shards.md#more-or-fewer"
JOINT = "shards.md#the-joint-frontier"

SHARDS = (
    one_edit(
        "shards-share-what-arrives",
        "a master is told of what arrives in its own shard",
        PAGE,
        PLANNER,
        "for entry in self._own(entries):",
        "for entry in entries:",
        f"{ON_A_NODE}::test_each_master_delivers_its_own_shard",
        is_simulated=False,
    ),
    one_edit(
        "shards-share-what-is-stored",
        "a master opens what is stored of its own shard",
        PAGE,
        "delayd/node/delivery/slot_opener.py",
        "run = index.run(wanted.since, most, wanted.lanes, self._partitions)",
        "run = index.run(wanted.since, most, wanted.lanes)",
        f"{ON_A_NODE}::test_what_was_stored_before_is_delivered_by_the_master_of_its_shard",
        is_simulated=False,
    ),
    one_edit(
        "shards-share-answers",
        "a master that takes over finds the answers that are pending in its own shard",
        PAGE,
        PLANNER,
        "replies = self._own(wheel.pending_replies(frontier.offsets))",
        "replies = wheel.pending_replies(frontier.offsets)",
        f"{ON_A_NODE}::test_answers_are_given_by_the_master_of_the_shard",
        is_simulated=False,
    ),
    one_edit(
        "shard-counts-for-others",
        "the frontier of a shard says nothing of other partitions",
        PAGE,
        PLANNER,
        "ingested = tuple(n if own else 0 for",
        "ingested = tuple(n for",
        f"{ON_A_NODE}::test_each_master_delivers_its_own_shard",
        is_simulated=False,
    ),
    one_edit(
        "joint-frontier-of-the-first",
        "a message is covered by the frontier of its shard",
        JOINT,
        "replication/frontier.py",
        "lane += rank.partition % self.shards * (len(self.cursors) // self.shards)",
        "pass",
        f"{OF_SHARDS}::test_the_joint_frontier_covers_what_any_shard_covers",
        is_simulated=False,
    ),
    one_edit(
        "late-arrivals-of-others-awaited",
        "a takeover looks for late arrivals of its own shard",
        PAGE,
        "delayd/node/delivery/slot_opener.py",
        "run = index.run(search.since, most, partitions=self._partitions)",
        "run = index.run(search.since, most)",
        f"{ON_A_NODE}::test_late_arrivals_are_found_by_the_master_of_their_shard",
        is_simulated=False,
    ),
    one_edit(
        "closed-shard-goes-on",
        "nobody goes on from a shard that is closed",
        MORE,
        "delayd/node/replica/switching.py",
        "if read.resharding or read.settings.shards != settings.shards:",
        "if read.settings.shards != settings.shards:",
        f"{RESTING}::test_nobody_goes_on_from_a_shard_that_is_closed",
        is_simulated=False,
    ),
    one_edit(
        "node-of-other-shards-goes-on",
        "a node that began with other shards begins anew",
        MORE,
        "delayd/node/replica/switching.py",
        "if read.resharding or read.settings.shards != settings.shards:",
        "if read.resharding:",
        f"{RESTING}::test_a_node_that_began_with_other_shards_stops",
        is_simulated=False,
    ),
    one_edit(
        "rest-is-passed",
        "no step of a shard that rests passes T",
        MORE,
        "replication/resharding.py",
        "return min(now_ms, self.ms - 1) if self.ms else now_ms",
        "return now_ms",
        f"{RESTING}::test_a_master_rests_at_the_time_that_it_was_told_and_goes_on_a_minute_later",
        is_simulated=False,
    ),
    one_edit(
        "rest-for-ever",
        "a rest that nobody has ended counts no more after a minute",
        MORE,
        "replication/resharding.py",
        "if now_ms >= self.ms + REST_MS_MAX:",
        "if False:",
        f"{OF_MORE}::test_a_rest_holds_steps_back_until_nobody_can_want_it_any_more",
        is_simulated=False,
    ),
    one_edit(
        "new-shard-has-all-offsets",
        "a new shard has its part of O",
        MORE,
        "replication/resharding.py",
        "tuple(o if p % shards == shard else 0 for p, o in",
        "tuple(o for p, o in",
        f"{OF_MORE}::test_no_number_falls_in_any_partition",
        is_simulated=False,
    ),
    one_edit(
        "merged-step-falls",
        "what is merged has the steps of all its sources",
        MORE,
        "replication/resharding.py",
        "sum(each.step for each in known)",
        "known[0].step",
        f"{OF_MORE}::test_what_is_done_stays_the_same",
        is_simulated=False,
    ),
    one_edit(
        "resharded-from-a-stale-read",
        "what a run writes lands where its read ended",
        MORE,
        RUNS,
        "if landed != wanted:",
        "if False:",
        f"{OF_RUNS}::test_a_read_that_was_stale_is_read_again",
        is_simulated=False,
    ),
    one_edit(
        "resharded-while-it-rests",
        "shards are closed when all have come to rest",
        MORE,
        RUNS,
        "if behind := self._behind(shards, rest_ms + self.rest_timeout_ms):",
        "if behind := [][: self._behind(shards, rest_ms + self.rest_timeout_ms) is None]:",
        f"{OF_RUNS}::test_shards_that_do_not_come_to_rest_go_on_as_they_were",
        is_simulated=False,
    ),
)
