"""Rules of virtual time: one function of real time, for whoever asks and whenever."""

from mutants.mutant import Mutant, one_edit

TIME = "delayd/runtime/virtual_time.py"
BUS = "delayd/bus/virtual.py"
PAGE = "../adr/0028-virtual-clusters.md"
TESTS = "tests/unit/runtime/test_virtual_time.py"
ON_BUS = "tests/unit/bus/test_virtual_bus.py::test_records_and_acknowledgements"

VIRTUAL_TIME: tuple[Mutant, ...] = (
    one_edit(
        "virtual-time-believes-late-announcements",
        "a change is made only if it was announced before its moment",
        PAGE,
        TIME,
        "                if self._real_now_ms() < at_ms:\n                    break",
        "                if True:\n                    break",
        f"{TESTS}::test_an_announcement_that_comes_too_late_is_withdrawn",
    ),
    one_edit(
        "virtual-time-waits-for-no-announcement",
        "who maps a time at or after an announced moment waits for what becomes of it",
        PAGE,
        TIME,
        "if announced_ms is None or real_ms < announced_ms:",
        "if True:",
        f"{TESTS}::test_who_meets_an_announcement_waits_for_what_becomes_of_it",
    ),
    one_edit(
        "virtual-time-believes-the-dead",
        "the announcement of a writer that died counts for nothing",
        PAGE,
        TIME,
        "if changes.announced_ms == announced_ms:",
        "if False:",
        f"{TESTS}::test_the_announcement_of_a_writer_that_died_counts_for_nothing",
    ),
    one_edit(
        "virtual-time-steps-back",
        "virtual time never steps back",
        PAGE,
        TIME,
        "if by_ms <= 0:",
        "if by_ms == 0:",
        f"{TESTS}::test_who_knows_the_file_sees_a_change_from_its_moment_on",
    ),
    one_edit(
        "virtual-time-maps-a-batch-by-its-first-record",
        "each time is mapped by the changes that were made before it",
        PAGE,
        BUS,
        "self._time.changes_until(max(record.append_ms for record in records))",
        "self._time.changes_until(0)",
        "tests/unit/bus/test_virtual_bus.py::test_a_batch_waits_for_an_announcement_before_its_end",
    ),
    one_edit(
        "virtual-cluster-lets-real-programs-in",
        "a program whose time is real refuses a virtual cluster",
        PAGE,
        "delayd/cluster/time_kind.py",
        "if settings.virtual and virtual is None:",
        "if False:",
        "tests/unit/cluster/test_time_kind.py::test_a_real_program_refuses_a_virtual_cluster",
    ),
    one_edit(
        "virtual-cluster-takes-any-time",
        "a program with the time of another virtual cluster is refused",
        PAGE,
        "delayd/cluster/time_kind.py",
        'if virtual.cluster not in ("", settings.frontier.topic_id):',
        "if False:",
        "tests/unit/cluster/test_time_kind.py"
        "::test_a_program_refuses_a_virtual_cluster_whose_time_it_has_not",
    ),
    one_edit(
        "virtual-cluster-lets-old-releases-in",
        "a release that knows no virtual time stops at a virtual cluster",
        PAGE,
        "replication/record.py",
        "names += [VIRTUAL] if self.settings.virtual else []",
        "names += []",
        "tests/unit/replication/test_record.py"
        "::test_a_release_that_knows_no_virtual_time_stops_at_such_a_cluster",
    ),
    one_edit(
        "virtual-time-leaves-acknowledgements",
        "what a broker says when it takes a record is mapped as the record is",
        PAGE,
        BUS,
        "ack._replace(append_ms=self._time.virtual_ms(ack.append_ms))",
        "ack",
        f"{ON_BUS}_have_the_time_of_the_cluster",
    ),
)
