"""What running nodes make of a difference between their wheels."""

from mutants.mutant import Mutant, one_edit

COMPARER = "delayd/node/comparing/comparer.py"
JUDGING = "delayd/node/comparing/judging.py"
LOOKING = "delayd/node/comparing/looking.py"
SIDE = "delayd/node/comparing/side.py"
TESTS = "tests/unit/node/comparing/test_comparer.py"
ROUNDS = "tests/unit/node/comparing/test_comparer_rounds.py"
TABLE = "tests/unit/node/comparing/test_judging.py"
SOURCE = "storage.md#comparing-running-nodes"

COMPARING: tuple[Mutant, ...] = (
    one_edit(
        "compared-at-own-cut",
        "two sides are compared at the one cut that follows from the checkpoints of both",
        SOURCE,
        SIDE,
        "            cut = cut_of(checkpoints, self._replica",
        "            cut = cut_of([self.about.checkpoint], self._replica",
        f"{TESTS}::test_a_node_that_is_behind_is_no_difference",
        is_simulated=False,
    ),
    one_edit(
        "alarm-after-one-look",
        "a difference alarms only if the second look sees it, too",
        SOURCE,
        COMPARER,
        "            confirmed = [found[source] for source in seen if source in found]\n",
        "            confirmed = [found.get(source, seen[source]) for source in seen]\n",
        f"{TESTS}::test_a_difference_that_is_gone_at_the_second_look_is_counted",
        is_simulated=False,
    ),
    one_edit(
        "passed-difference-hidden",
        "a difference that was delivered before the second look is counted",
        SOURCE,
        COMPARER,
        '            self.view.counts["transient" if _holds(cut, each) else "passed"] += 1\n',
        '            self.view.counts["transient"] += _holds(cut, each)\n',
        f"{TESTS}::test_a_difference_that_is_gone_at_the_second_look_is_counted",
        is_simulated=False,
    ),
    one_edit(
        "second-look-forgotten",
        "where a second look could not be taken, a later round begins",
        SOURCE,
        COMPARER,
        "            self._unfinished[peer] |= {hour.hour for hour in hours}\n",
        "",
        f"{TESTS}::test_a_second_look_that_fails_is_taken_in_a_later_round",
        is_simulated=False,
    ),
    one_edit(
        "walk-stays-at-an-hour",
        "an hour that takes too long does not keep those behind it from being compared",
        SOURCE,
        LOOKING,
        "            if self.broken_off == hour:\n",
        "            if False:\n",
        f"{ROUNDS}::test_an_hour_that_takes_too_long_hides_none_behind_it_or_before_it",
        is_simulated=False,
    ),
    one_edit(
        "walk-begins-again",
        "a round goes on where the last one ended",
        SOURCE,
        LOOKING,
        "                self.next_hour = hour\n",
        "",
        f"{ROUNDS}::test_every_hour_is_compared_in_rounds_that_read_little",
        is_simulated=False,
    ),
    one_edit(
        "hour-of-the-log-not-looked-at",
        "a message is missing only where it is not held in the hour that the log says either",
        SOURCE,
        COMPARER,
        "    dues_ms |= {each.value.due_ms for each in logged.values() if each.value}\n",
        "",
        f"{TESTS}::test_each_difference_is_named_and_ends_no_node",
        is_simulated=False,
    ),
    one_edit(
        "half-is-a-majority",
        "a majority is more than half",
        SOURCE,
        JUDGING,
        " and 2 * count > len(holdings) ",
        " and 2 * count >= len(holdings) ",
        f"{TABLE}::test_the_log_decides_and_then_the_majority",
        is_simulated=False,
    ),
    one_edit(
        "difference-ends-node",
        "a difference ends no node: each may have what the other one lacks",
        SOURCE,
        COMPARER,
        "        self._alarm(findings)\n",
        "        self._alarm(findings)\n"
        "        if all(self._node in each.judgement.wrong for each in findings):\n"
        "            self._on_damage(CorruptionError('it is wrong'))\n",
        f"{TESTS}::test_nodes_that_are_wrong_in_different_hours_do_not_end_each_other",
        is_simulated=False,
    ),
    one_edit(
        "second-look-dropped",
        "what only the second look saw is looked at again",
        SOURCE,
        COMPARER,
        "                    self._unfinished[name].update(_hours_of([each], {}))\n",
        "                    pass\n",
        f"{TESTS}::test_what_only_the_second_look_sees_is_looked_at_in_a_later_round",
        is_simulated=False,
    ),
    one_edit(
        "unproven-record-judges",
        "the log has no word on a record whose proof is by no key that the node has",
        SOURCE,
        "delayd/node/comparing/logged.py",
        "request.reason is Reason.BAD_PROOF:\n        return None\n",
        "request.reason is Reason.BAD_PROOF:\n        return Logged(None, is_stored=False)\n",
        "tests/unit/node/comparing/test_logged.py::"
        "test_the_log_has_no_word_on_what_a_key_that_was_taken_away_has_signed",
        is_simulated=False,
    ),
)
