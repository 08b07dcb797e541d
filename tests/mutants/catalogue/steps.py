"""What a step delivers, and the frontier that says so."""

from mutants.mutant import one_edit

QUEUE = "replication/delivery_queue.py"
LANE = "replication/lane.py"
STEP = "delayd/node/delivery/step_writer.py"
FAST = "delayd/node/delivery/fast_step.py"
SMOOTHING = "replication/smoothing.py"
MASTERSHIP = "delayd/node/delivery/mastership.py"
SILENT = "tests/unit/node/delivery/test_silent_leaders.py"

STEPS = (
    one_edit(
        "cursor-in-whole-seconds",
        "K is a rank: due time, partition and offset, not a second",
        "frontier.md#rank-slot-lane",
        QUEUE,
        "cursors[number] = max(cursor, last.cursors[number])",
        "whole = Rank(slot_of(cursor.due_ms) * 1_000, 0, 0)\n"
        "            cursors[number] = max(whole, last.cursors[number])",
    ),
    one_edit(
        "late-arrivals-forgotten",
        "a message that arrives below K waits for the step that moves O over it",
        "frontier.md#step",
        QUEUE,
        "            insort(self._late[entry.partition], (entry.offset, entry))\n"
        "            return\n",
        "            return\n",
    ),
    one_edit(
        "o-over-a-late-arrival",
        "O does not pass a late arrival that the step does not deliver",
        "frontier.md#step",
        QUEUE,
        "                if waits or (records and is_full and not is_second):\n",
        "                if waits and not is_reply:\n"
        "                    continue\n"
        "                if waits or (records and is_full and not is_second):\n",
        "tests/unit/replication/test_delivery_queue.py::test_a_late_arrival_that_is_not_yet_due_holds_o_below_it",
    ),
    one_edit(
        "late-arrivals-early",
        "a late arrival waits for its due time too",
        "frontier.md#step",
        QUEUE,
        "waits = entry.due_ms > now_ms",
        "waits = False",
        "tests/unit/replication/test_delivery_queue.py::test_a_late_arrival_that_is_not_yet_due_holds_o_below_it",
    ),
    one_edit(
        "k-over-closed-slots",
        "K does not enter what the master has not opened",
        "frontier.md#full-steps",
        QUEUE,
        "min(by_now, lane.opened_to) for lane in self._lanes",
        "by_now for lane in self._lanes",
        "tests/unit/replication/test_delivery_queue.py::test_k_never_enters_what_has_not_been_opened",
    ),
    one_edit(
        "full-lane-open-to-the-end",
        "a lane that could not take all is open up to the first message that had no room",
        "frontier.md#full-steps",
        LANE,
        "            until = _rank_of(entries[room])\n",
        "",
        "tests/unit/replication/test_delivery_queue.py::test_a_lane_that_is_full_waits_alone",
    ),
    one_edit(
        "crowded-lane-not-closed",
        "a lane that gets too much by arrivals is closed from the first message that it drops",
        "frontier.md#full-steps",
        LANE,
        "            self.opened_to = _rank_of(self.peek(most))\n",
        "",
        "tests/unit/replication/test_delivery_queue.py::test_what_arrives_in_a_crowded_lane_is_left_to_the_wheel",
    ),
    one_edit(
        "k-over-what-did-not-fit",
        "the K of a lane that is cut stops at the first message that did not fit",
        "frontier.md#full-steps",
        QUEUE,
        "if cut.taken < due[number]:",
        "if False:",
    ),
    one_edit(
        "k-ahead-of-o-at-once",
        "K waits 100 ms for a message that O cannot pass yet",
        "frontier.md#step",
        QUEUE,
        "if entry.due_ms + LATE_GRACE_MS > now_ms:",
        "if False:",
        "tests/unit/replication/test_delivery_queue.py::"
        "test_k_waits_for_a_message_that_o_cannot_pass_and_then_passes_it",
    ),
    one_edit(
        "passed-over-and-forgotten",
        "a message that K passes though O does not becomes a late arrival",
        "frontier.md#step",
        QUEUE,
        "        for entry in plan.passed_over:\n"
        "            insort(self._late[entry.partition], (entry.offset, entry))\n",
        "",
    ),
    one_edit(
        "late-arrivals-unsorted",
        "late arrivals go out sorted among themselves",
        "frontier.md#order",
        QUEUE,
        "deliveries += sorted(late_by_lane.get(number, ()))",
        "deliveries += late_by_lane.get(number, ())",
    ),
    one_edit(
        "lane-unsorted",
        "within a lane messages go out in rank order, whatever order they arrived in",
        "frontier.md#order",
        LANE,
        "insort(self._entries, entry, lo=self._front)",
        "self._entries.append(entry)",
    ),
    one_edit(
        "requeued-taken-for-fresh",
        "a requeued message carries its origin when it is delivered",
        "frontier.md#targets",
        FAST,
        "if origin or attempt or (",
        "if (",
        "tests/unit/node/delivery/test_fast_step.py::test_a_step_writes_the_same_however_it_asks",
    ),
    one_edit(
        "any-target-takes-the-fast-path",
        "only a target that takes everything is not checked for each message",
        "frontier.md#targets",
        STEP,
        "if partition_count is not None and not",
        "partition_count = 9\n            if not",
        "tests/unit/node/delivery/test_fast_step.py::test_a_step_writes_the_same_however_it_asks",
    ),
    one_edit(
        "own-writes-not-in-the-frontier",
        "a frontier records, as R, what its step has requeued",
        "frontier.md#verdicts",
        "delayd/node/delivery/mastership.py",
        "if own_writes != frontier.own_writes:",
        "if False:",
    ),
    one_edit(
        "own-writes-not-acknowledged",
        "requeued records are acknowledged before the frontier record that names them",
        "frontier.md#verdicts",
        STEP,
        "if self._settle(content.judged) or self.requeued_count:",
        "if self._settle(content.judged) and False:",
    ),
    one_edit(
        "failing-target-sent-to",
        "a record that its target is known to refuse does not enter a transaction",
        "frontier.md#targets",
        STEP,
        "problem = self._targets.problem_of(topic, partition, key, size_bytes)",
        "problem = None",
    ),
    one_edit(
        "silent-partition-sent-to-again",
        "a partition that acknowledged nothing in a step's time is sent nothing until it answers",
        "frontier.md#a-leader-that-hangs",
        MASTERSHIP,
        "self._sparing.note_silent(writer.now_ms, error.silent)",
        "self._sparing.note_silent(writer.now_ms, ())",
        f"{SILENT}::test_a_leader_that_hangs_fails_one_step_and_holds_up_its_own_messages",
    ),
    one_edit(
        "own-silence-held-against-targets",
        "silence of delayd's own topics is held against no target",
        "frontier.md#a-leader-that-hangs",
        MASTERSHIP,
        "all(topic in writer.sent for topic, _ in error.silent)",
        "True",
        f"{SILENT}::test_silence_of_the_own_topics_spares_nobody",
    ),
    one_edit(
        "spared-messages-each-at-their-time",
        "messages for a spared partition come back in their order",
        "frontier.md#a-leader-that-hangs",
        "delayd/node/targets/sparing.py",
        "return self.since_ms + -(-gone_ms // WAKE_EVERY_MS) * WAKE_EVERY_MS",
        "return now_ms + WAKE_EVERY_MS",
        f"{SILENT}::test_a_leader_that_hangs_fails_one_step_and_holds_up_its_own_messages",
    ),
    one_edit(
        "smoothing-overtakes",
        "while a message of a topic with a rate waits for its turn, later ones wait behind",
        "frontier.md#smoothing",
        SMOOTHING,
        "is_behind = queue.tail_ms >= max(rank_ms, cursor_ms)",
        "is_behind = False",
    ),
    one_edit(
        "smoothing-without-a-rate",
        "a topic receives at most its rate and what may be borrowed of it",
        "frontier.md#smoothing",
        SMOOTHING,
        "        if from_ns > (now_ms + BURST_MS) * MS_NS:\n            return None\n",
        "",
    ),
    one_edit(
        "overdue-turns-at-the-tail",
        "after a stall turns shift: an overdue message is not put behind those it precedes",
        "frontier.md#smoothing",
        SMOOTHING,
        "                self._queues[topic] = queue.shifted(turn_ms, due_ms)\n"
        "                return Deferral(due_ms, turn_ms)\n",
        "                pass\n",
        "tests/unit/replication/test_smoothing.py::test_whatever_happens_the_order_holds_and_the_rate_too",
    ),
    one_edit(
        "turns-not-handed-on",
        "a successor goes on with the turns in the frontier record",
        "frontier.md#smoothing",
        "replication/record.py",
        "if record.smoothing else",
        "if False else",
    ),
    one_edit(
        "turn-forgotten",
        "a deferral remembers its turn",
        "frontier.md#smoothing",
        "delayd/request/internal.py",
        "    if turn is not None:\n",
        "    if False:\n",
    ),
    one_edit(
        "turns-of-one-ms-in-any-order",
        "within one ms turns are given in the order of the partitions",
        "frontier.md#smoothing",
        SMOOTHING,
        "due_ms = self.tail_ms + (partition < self.tail_partition)",
        "due_ms = self.tail_ms",
        "tests/unit/replication/test_smoothing.py::"
        "test_beyond_a_thousand_a_second_the_turns_of_one_ms_are_in_the_order_of_partitions",
    ),
    one_edit(
        "unknown-names-asked-without-bound",
        "a step stops to ask for unknown names when enough of them did not exist",
        "frontier.md#targets",
        "delayd/node/targets/checks.py",
        "            self._absent_left -= topic not in self._absent\n",
        "",
        "tests/unit/node/delivery/test_steps.py"
        "::test_a_flood_of_names_that_do_not_exist_is_asked_for_step_by_step",
    ),
    one_edit(
        "unknown-names-displace-known-ones",
        "names that do not exist displace none that do",
        "frontier.md#targets",
        "delayd/node/targets/checks.py",
        "            self._absent[topic] = target\n",
        "            self._known[topic] = target\n",
        "tests/unit/node/targets/test_target_descriptions.py"
        "::test_names_that_do_not_exist_displace_none_that_do",
    ),
)
