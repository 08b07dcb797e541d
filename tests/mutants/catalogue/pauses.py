"""Targets that are paused."""

from mutants.mutant import one_edit

HOLDS = "replication/holds.py"
DRAIN = "replication/drain.py"
SMOOTHING = "replication/smoothing.py"
ORDERS = "delayd/request/holds.py"
WRITER = "delayd/node/delivery/step_writer.py"
ON_A_NODE = "tests/unit/node/delivery/test_pauses_on_a_node.py"
OF_HOLDS = "tests/unit/replication/test_holds.py"
READ = "tests/unit/request/test_orders.py"
PAGE = "pauses.md#pauses"
WAIT = "pauses.md#how-messages-wait"
END = "pauses.md#the-end"
ORDERED = "pauses.md#orders"

PAUSES = (
    one_edit(
        "paused-and-delivered",
        "no step delivers to a target that is held",
        PAGE,
        HOLDS,
        "return now_ms < self.until_ms",
        "return False",
        f"{ON_A_NODE}::test_nothing_goes_to_a_paused_topic_and_all_comes_in_order_when_the_pause_ends",
    ),
    one_edit(
        "pause-not-handed-on",
        "a successor knows the holds of the frontier that it goes on from",
        PAGE,
        "delayd/node/delivery/mastership.py",
        "else (found.smoothing, found.holds)",
        "else (found.smoothing, {})",
        f"{ON_A_NODE}::test_a_successor_knows_the_pause_and_the_order",
    ),
    one_edit(
        "hold-not-needed",
        "a release that does not know holds stops at a frontier with one",
        ORDERED,
        "replication/record.py",
        "names += [HOLDS] if self.holds else []",
        "names += []",
        f"{ON_A_NODE}::test_the_frontier_names_a_hold_until_what_has_waited_is_out",
    ),
    one_edit(
        "order-obeyed-after-the-step",
        "an order is obeyed by the step that passes it, before that delivers anything",
        ORDERED,
        "delayd/node/delivery/order_step.py",
        "                self.smoothing.obey(order, frame.offset, self._now_ms)\n",
        "                pass\n",
        f"{ON_A_NODE}::test_an_order_is_obeyed_by_the_step_that_passes_it",
    ),
    one_edit(
        "old-order-obeyed",
        "a copy of an order that comes later than 5 minutes is refused",
        ORDERED,
        ORDERS,
        "if abs(record.append_ms - order.at_ms) > ORDER_AGE_MS_MAX:",
        "if False:",
        f"{READ}::test_a_copy_that_comes_later_is_refused",
    ),
    one_edit(
        "order-without-a-proof",
        "an order without the proof of its words is refused",
        ORDERED,
        ORDERS,
        "    check_proof(record, limits)\n",
        "",
        f"{READ}::test_without_the_proof_of_these_words_it_is_refused",
    ),
    one_edit(
        "pause-without-an-end",
        "a pause lasts 24 h at most",
        ORDERED,
        ORDERS,
        "<= HOLD_MS_MAX:",
        "<= 365 * HOLD_MS_MAX:",
        f"{READ}::test_what_no_operator_may_order_is_refused",
    ),
    one_edit(
        "orders-by-the-package",
        "orders are known by the rules of their place",
        ORDERED,
        "delayd/request/parser.py",
        "if is_hold(asked) and knows_pauses(version):",
        "if is_hold(asked):",
        f"{READ}::test_older_rules_do_not_know_orders",
    ),
    one_edit(
        "new-ones-overtake-what-waits",
        "what becomes due waits behind what has waited, also at the end of a pause",
        END,
        WRITER,
        "            self._kept_back.append(frame)\n            return\n",
        "            pass\n",
        f"{ON_A_NODE}::test_steady_traffic_goes_behind_what_has_waited_and_ends_the_hold",
    ),
    one_edit(
        "hold-without-an-end",
        "a hold ends though messages come all the time",
        END,
        DRAIN,
        "if tail_ms > now_ms + END_MS or",
        "if tail_ms > now_ms - END_MS or",
        f"{ON_A_NODE}::test_steady_traffic_goes_behind_what_has_waited_and_ends_the_hold",
    ),
    one_edit(
        "hold-ended-too-early",
        "a hold ends with the step that passes its last turn",
        END,
        DRAIN,
        "if after.cursors[lane_of(topic, lanes)].due_ms > tail_ms:",
        "if True:",
        f"{OF_HOLDS}::test_a_step_that_is_too_full_is_an_ordinary_one_and_the_end_is_tried_again",
    ),
    one_edit(
        "hold-without-a-step-of-its-own",
        "the step that may end a hold is its lane's alone",
        END,
        "replication/delivery_queue.py",
        "(due.keys() & limits.lanes_first) or due.keys()",
        "due.keys()",
        f"{ON_A_NODE}::test_a_hold_ends_though_other_lanes_fill_every_step",
    ),
    one_edit(
        "pause-in-the-end-of-another",
        "a step that passes a pause ends no other pause of that target",
        END,
        SMOOTHING,
        "if not hold.is_closed(now_ms) and topic not in self._rates and topic in self._queues",
        "if topic not in self._rates and topic in self._queues",
        f"{OF_HOLDS}::test_a_step_that_passes_a_pause_in_the_end_of_another_ends_nothing",
    ),
    one_edit(
        "held-and-served",
        "while a target is held no turn is served",
        WAIT,
        SMOOTHING,
        "            elif look_ms is not None:\n",
        "            elif False:\n",
        f"{OF_HOLDS}::test_while_it_is_closed_nothing_goes_out_and_then_all_in_order_at_the_rate",
    ),
    one_edit(
        "held-at-any-rate",
        "what has waited goes out at the rate of the order",
        WAIT,
        SMOOTHING,
        "return hold.rate if own is None else min(own, hold.rate)",
        "return 1_000_000",
        f"{OF_HOLDS}::test_while_it_is_closed_nothing_goes_out_and_then_all_in_order_at_the_rate",
    ),
    one_edit(
        "expired-at-the-end-of-a-pause",
        "a message that is held is told in time that it is too late",
        WAIT,
        WRITER,
        "self._told_in_time(frame, deferral.due_ms) if is_held else deferral.due_ms",
        "deferral.due_ms",
        f"{ON_A_NODE}::test_late_is_counted_on_and_told_in_time",
    ),
    one_edit(
        "paused-target-asked",
        "a target that is held is not tried, and no attempt is lost",
        WAIT,
        WRITER,
        "if self._smoothing.is_held(frame.body[0], self.now_ms):",
        "if False:",
        f"{ON_A_NODE}::test_a_target_that_fails_is_not_tried_while_it_is_paused",
    ),
    one_edit(
        "holds-lost-with-the-frontier",
        "a frontier that is recovered has the holds of the one before",
        "pauses.md#what-else-knows-holds",
        "delayd/commands/recover/frontier/making.py",
        "holds=_holds_at(part, known, clues, now_ms),",
        "holds={},",
        "tests/unit/commands/test_frontier_recoveries.py::test_pauses_are_recovered",
    ),
)
