"""What `delayd recover marker` makes of a step that Kafka has ended in part only."""

from mutants.mutant import Mutant, one_edit

FOLDER = "delayd/commands/recover/marker"
DECIDING = f"{FOLDER}/deciding.py"
PIECES = f"{FOLDER}/pieces.py"
TESTS = "tests/unit/commands/test_marker_deciding.py"
SOURCE = "lost-markers.md#what-is-done"

MARKERS: tuple[Mutant, ...] = (
    one_edit(
        "marker-commits-what-was-aborted",
        "a step of which nothing is visible, and something was aborted, is aborted as a whole",
        SOURCE,
        DECIDING,
        "    elif len(hanging) == len(step.pieces) and _could_be_next(step, last):\n",
        "    elif hanging and _could_be_next(step, last):\n",
        f"{TESTS}::test_a_step_that_was_aborted_somewhere_never_was",
        is_simulated=False,
    ),
    one_edit(
        "marker-commits-an-incomplete-step",
        "a step of which nothing is visible is committed only if all of it was written",
        SOURCE,
        DECIDING,
        "    if record is None or lacks_some(step):\n",
        "    if record is None:\n",
        f"{TESTS}::test_an_incomplete_step_of_which_nothing_is_visible_never_was",
        is_simulated=False,
    ),
    one_edit(
        "marker-frontier-without-its-messages",
        "no frontier becomes visible while messages of its step are nowhere",
        SOURCE,
        DECIDING,
        "    if missing:\n        plan.problems.append(\n",
        "    if missing < 0:\n        plan.problems.append(\n",
        f"{TESTS}::test_no_frontier_becomes_visible_while_messages_of_its_step_are_nowhere",
        is_simulated=False,
    ),
    one_edit(
        "marker-of-the-frontier-first",
        "the frontier becomes visible last, so no node takes over before all is mended",
        SOURCE,
        DECIDING,
        "    plan.endings.sort(key=lambda ending: ending.run.kind is Kind.FRONTIER)\n",
        "    plan.endings.sort(key=lambda ending: ending.run.kind is not Kind.FRONTIER)\n",
        f"{TESTS}::test_the_frontiers_lost_marker_is_written_last",
        is_simulated=False,
    ),
    one_edit(
        "marker-copies-twice",
        "what an earlier run has written again is not written once more",
        "lost-markers.md#killed-half-way-run-twice",
        PIECES,
        "                copies = self._copies.get(piece.place)\n",
        "                copies = None\n",
        f"{TESTS}::test_what_was_aborted_beside_visible_records_is_written_again_once",
        is_simulated=False,
    ),
    one_edit(
        "marker-repeats-a-repeated-step",
        "a step that a successor has delivered again is not written once more",
        SOURCE,
        DECIDING,
        "    if is_aborted and record.frontier.is_within(last.frontier):\n",
        "    if is_aborted and record.frontier == last.frontier:\n",
        f"{TESTS}::test_a_step_that_a_successor_has_repeated_is_not_delivered_once_more",
        is_simulated=False,
    ),
)
