"""`delayd move`: each message once in the new cluster, and nothing more from the old one."""

from mutants.mutant import Mutant, one_edit

MOVING = "delayd/commands/move/moving.py"
TESTS = "tests/unit/commands/test_move.py"

MOVES: tuple[Mutant, ...] = (
    one_edit(
        "moved-cluster-not-ended",
        "nothing is moved before the old frontier topic says that the cluster was moved",
        "moving.md#the-old-cluster",
        MOVING,
        "        move.old.end(cut, move.settings.realm)\n",
        "        pass\n",
        f"{TESTS}::test_an_old_master_that_wakes_up_or_is_started_again_delivers_nothing",
        is_simulated=False,
    ),
    one_edit(
        "moved-record-read-over",
        "a reader that refused a frontier record meets it again whenever it reads on",
        "moving.md#the-old-cluster",
        "delayd/cluster/frontier_log.py",
        "                self._consumer.assign({self._shard: Position(record.offset)})\n",
        "",
        f"{TESTS}::test_an_old_master_that_wakes_up_or_is_started_again_delivers_nothing",
        is_simulated=False,
    ),
    one_edit(
        "move-progress-outside",
        "requests and progress are committed in one transaction",
        "moving.md#each-once",
        MOVING,
        "        log.step(producer, progress, places)\n        producer.commit(move.timeout_ms)\n",
        "        producer.commit(move.timeout_ms)\n        producer.begin()\n"
        "        log.step(producer, progress, places)\n        producer.commit(move.timeout_ms)\n",
        f"{TESTS}::test_a_move_that_is_killed_at_any_call_goes_on_without_doubles",
        is_simulated=False,
    ),
    one_edit(
        "move-by-another-source",
        "a run goes on only from a source that holds what the move began with",
        "moving.md#what-is-pending",
        MOVING,
        "    if (plan.pending, plan.digest) != (begun.pending, begun.digest):\n",
        "    if plan.pending > 10**9:\n",
        f"{TESTS}::test_another_source_is_noticed",
        is_simulated=False,
    ),
)
