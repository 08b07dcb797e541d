"""Where etcd holds the progress: what it may take, of whom, and in which order."""

from mutants.mutant import one_edit

COMMIT = "delayd/node/delivery/commits/progress.py"
TWIN = "delayd/coordination/memory.py"
UNIT = "tests/unit/node/delivery/test_progress_commit.py"
CLUSTERS = "tests/simulation/test_at_least_once.py"

PROGRESS = (
    one_edit(
        "progress-written-before-flush",
        "etcd takes a frontier only after all that it covers was acknowledged",
        "frontier.md#at-least-once",
        COMMIT,
        "        self.producer.flush(FLUSH_TIMEOUT_MS)\n",
        "",
        f"{UNIT}::test_what_kafka_did_not_take_is_not_written_down",
    ),
    one_edit(
        "progress-not-guarded-by-leadership",
        "etcd takes a frontier only from the master that leads",
        "frontier.md#at-least-once",
        COMMIT,
        "            SHARD, self._leadership, encode(record), after=self._revision\n",
        "            SHARD,\n"
        "            self._etcd.leader(SHARD) or self._leadership,\n"
        "            encode(record),\n"
        "            after=self._revision,\n",
        f"{UNIT}::test_a_superseded_master_writes_nothing_and_resigns",
    ),
    one_edit(
        "progress-carried-out-late",
        "etcd takes a frontier only if it follows what its master has read or written last",
        "frontier.md#at-least-once",
        TWIN,
        "if self._etcd.revision_of(key) != after:",
        "if False:",
        f"{UNIT}::test_a_write_that_is_carried_out_late_changes_nothing",
    ),
    one_edit(
        "repeats-of-internal-records-not-ignored",
        "a record that continues a message a second time is ignored",
        "frontier.md#at-least-once",
        "delayd/node/replica/ingest_batch.py",
        "if self._settings.guarantee != AT_LEAST_ONCE:",
        "if True:",
        f"{CLUSTERS}::test_nothing_is_lost_and_only_what_was_in_doubt_is_doubled",
    ),
    one_edit(
        "late-frontier-believed",
        "readers skip a record that a superseded master appends behind its successor's",
        "frontier.md#at-least-once",
        "delayd/cluster/frontier_log.py",
        "if self._is_late(decoded):",
        "if False:",
        f"{UNIT}::test_a_superseded_masters_last_record_is_overlooked_by_readers",
    ),
)
