"""Rules of an import: each row once, with its own time."""

from mutants.mutant import Mutant, one_edit

JOB = "delayd/commands/importing/job.py"
JOURNAL = "delayd/commands/importing/journal.py"
MAPPING = "delayd/commands/importing/mapping.py"
PAGE = "../guides/importing.md"
CELERY = "delayd/commands/importing/celery_queue.py"
TESTS = "tests/unit/commands/test_import_rows.py"
ON_REDIS = "tests/integration/test_importing_redis.py"
ON_RABBIT = "tests/integration/test_importing_rabbit.py"

IMPORTING: tuple[Mutant, ...] = (
    one_edit(
        "import-goes-on-behind-what-was-not-answered",
        "an import goes on behind the last row before which all are answered",
        PAGE,
        JOB,
        "                if self._stopped_by is None:\n                    self._take_answer",
        "                if True:\n                    self._take_answer",
        f"{TESTS}::test_after_a_missing_answer_it_stops_and_goes_on_from_there",
    ),
    one_edit(
        "import-notes-rows-without-their-position",
        "the counts of a journal are of the rows before its position",
        PAGE,
        JOB,
        "self._behind = self._waiting",
        "self._behind = self._behind or self._waiting",
        f"{TESTS}::test_killed_and_resumed_each_row_is_there_once",
    ),
    one_edit(
        "import-takes-another-journal",
        "a journal is of one cluster, one source and one mapping",
        PAGE,
        JOURNAL,
        "elif self.about != about:",
        "elif self.about[:1] != about[:1]:",
        f"{TESTS}::test_the_journal_of_another_import_is_refused",
    ),
    one_edit(
        "import-schedules-what-may-be-sent-twice",
        "what was delivered before an import is resumed is not delivered again",
        PAGE,
        MAPPING,
        "op=Op.REPLACE",
        "op=Op.SCHEDULE",
        f"{TESTS}::test_killed_and_resumed_each_row_is_there_once",
    ),
    one_edit(
        "import-rounds-down",
        "a due time in another unit is never early",
        PAGE,
        MAPPING,
        "to_integral_value(ROUND_CEILING)",
        'to_integral_value("ROUND_FLOOR")',
        f"{TESTS}::test_a_due_time_in_any_unit_is_never_early",
    ),
    one_edit(
        "import-goes-on-in-another-set",
        "what is kept of a source must stay as it is: a position counts from its beginning",
        PAGE,
        "delayd/commands/importing/zset.py",
        "            self._parked.refuse_other(total, then)",
        "            pass",
        f"{ON_REDIS}::test_what_is_kept_must_stay_as_it_is",
    ),
    one_edit(
        "import-takes-from-workers-at-work",
        "a queue of Celery is not taken while its workers run",
        PAGE,
        CELERY,
        "        self._refuse_workers()\n        self._refuse_absent()",
        "        self._refuse_absent()",
        f"{ON_REDIS}::test_workers_that_run_are_refused",
    ),
    one_edit(
        "import-removes-a-task-before-it-is-kept",
        "a task is where it goes to before it is gone where it was",
        PAGE,
        CELERY,
        "  local message = redis.call('LINDEX', KEYS[1], 0)\n  if not message then return end\n",
        "  local message = redis.call('LPOP', KEYS[1])\n  if not message then return end\n"
        "  redis.call('LPUSH', KEYS[1], '')\n",
        f"{ON_REDIS}::test_a_sort_that_fails_on_its_way_loses_nothing",
    ),
    one_edit(
        "import-leaves-what-workers-had-fetched",
        "what is kept of a task that a worker had fetched is gone there",
        PAGE,
        CELERY,
        "    redis.call('HDEL', KEYS[1], tag)\n",
        "",
        f"{ON_REDIS}::test_tasks_with_an_eta_are_taken_from_queues_and_dead_workers",
    ),
    one_edit(
        "import-moves-without-a-transaction",
        "a message of RabbitMQ is in one queue: one commit publishes and acknowledges it",
        PAGE,
        "delayd/commands/importing/rabbit_queue.py",
        "                channel.tx_select()\n                while ready and",
        "                while ready and",
        f"{ON_RABBIT}::test_killed_at_each_call_of_rabbitmq_each_message_is_there_once",
    ),
    one_edit(
        "import-goes-on-in-another-order",
        "what is kept of a source must stay as it is: a position counts from its beginning",
        PAGE,
        "delayd/commands/importing/rabbit_queue.py",
        "if index == behind and names != wanted:",
        "if False:",
        f"{ON_RABBIT}::test_what_is_kept_must_stay_as_it_is",
    ),
)
