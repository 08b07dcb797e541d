"""`delayd move`: each message once in the new cluster, and nothing more from the old one."""

from mutants.mutant import Mutant, one_edit

MOVING = "delayd/commands/move/moving.py"
TESTS = "tests/unit/commands/test_move.py"
BY_WHEEL = "tests/unit/commands/test_move_without_kafka.py"
REFUSED = "tests/unit/commands/test_move_refused.py"

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
    one_edit(
        "move-behind-open-transaction",
        "nothing is moved while a transaction is open in the old buffer: what lies behind it is in "
        "no wheel",
        "moving.md#the-old-cluster",
        MOVING,
        "    old.require_settled(move.clock)\n",
        "",
        f"{REFUSED}::test_a_request_behind_an_open_transaction_is_not_left_behind",
        is_simulated=False,
    ),
    one_edit(
        "move-goes-on-unasked",
        "a run that goes on looks at the old cluster again: it may have delivered meanwhile",
        "moving.md#the-old-cluster",
        MOVING,
        "    if has_gone_on and not move.takes_doubles:\n",
        "    if False:\n",
        f"{REFUSED}::test_a_run_that_meets_the_old_kafka_again_sees_that_it_has_gone_on",
        is_simulated=False,
    ),
    one_edit(
        "move-resumed-not-ended",
        "a run that goes on ends the old cluster, if an earlier one could not reach it",
        "moving.md#the-old-cluster",
        MOVING,
        "            move.old.end(last, move.settings.realm)\n",
        "            pass\n",
        f"{REFUSED}::test_a_run_that_meets_the_old_kafka_again_at_rest_ends_it",
        is_simulated=False,
    ),
    one_edit(
        "move-progress-lost",
        "an ended cluster is not moved again if the records of its move are lost",
        "moving.md#each-once",
        MOVING,
        "        if progress is None:\n            raise MoveError(",
        "        if False:\n            raise MoveError(",
        f"{REFUSED}::test_nothing_is_moved_again_where_the_progress_is_lost",
        is_simulated=False,
    ),
    one_edit(
        "move-progress-trimmed",
        "records of a move that were removed are noticed",
        "moving.md#each-once",
        "delayd/commands/move/progress.py",
        "        if start:\n",
        "        if False:\n",
        f"{REFUSED}::test_nothing_is_moved_again_where_the_progress_was_trimmed",
        is_simulated=False,
    ),
    one_edit(
        "move-continued-too",
        "a message that another one in the wheel continues is not moved beside it",
        "moving.md#what-is-pending",
        "delayd/commands/move/source.py",
        "                if not self._is_continued(rank, body):\n",
        "                if True:\n",
        f"{BY_WHEEL}::test_a_message_and_what_continues_it_are_moved_as_one",
        is_simulated=False,
    ),
)
