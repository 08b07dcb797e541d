"""Shards of the buffer."""

from mutants.mutant import one_edit

PLANNER = "delayd/node/delivery/planner.py"
ON_A_NODE = "tests/unit/node/delivery/test_shards_on_a_node.py"
OF_SHARDS = "tests/unit/replication/test_shards.py"
PAGE = "shards.md#shards"
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
)
