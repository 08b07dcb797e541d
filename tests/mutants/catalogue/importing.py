"""Rules of an import: each row once, with its own time."""

from mutants.mutant import Mutant, one_edit

JOB = "delayd/commands/importing/job.py"
JOURNAL = "delayd/commands/importing/journal.py"
MAPPING = "delayd/commands/importing/mapping.py"
PAGE = "../guides/importing.md"
TESTS = "tests/unit/commands/test_import_rows.py"

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
)
