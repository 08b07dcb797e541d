"""Targets with a quota."""

from mutants.mutant import one_edit

QUOTAS = "replication/quotas.py"
RECORDS = "delayd/request/quotas.py"
ORDER_STEP = "delayd/node/delivery/order_step.py"
ON_A_NODE = "tests/unit/node/delivery/test_quotas_on_a_node.py"
OF_QUOTAS = "tests/unit/replication/test_quota_rules.py"
READ = "tests/unit/request/test_quota_records.py"
PACKED = "tests/unit/node/replica/test_flat_ingest.py"
GATES = "quotas.md#the-order-and-the-gates"
REFUSED = "quotas.md#what-is-refused-and-who-decides"
RATED = "tests/unit/node/delivery/test_rates_on_a_node.py"
RATES = "delayd/node/replica/request_rates.py"
TAKEN = "quotas.md#what-was-taken"
AGAIN = "quotas.md#gates-that-a-node-does-not-know"

OF_TARGETS = (
    one_edit(
        "full-one-too-late",
        "a topic is full with as many messages as its quota says",
        REFUSED,
        QUOTAS,
        "if most and (used >= most or",
        "if most and (used > most or",
        f"{ON_A_NODE}::test_the_message_after_the_one_that_fills_the_quota_is_refused",
    ),
    one_edit(
        "opened-at-once",
        "a full topic is opened when a tenth of its quota is free",
        REFUSED,
        QUOTAS,
        "return most - max(1, most // FREE_SHARE)",
        "return most - 1",
        f"{OF_QUOTAS}::test_a_topic_is_full_with_as_many_as_the_quota_says_and_open_with_a_tenth_free",
    ),
    one_edit(
        "gate-in-one-partition",
        "a step writes a gate into every partition",
        GATES,
        ORDER_STEP,
        "for partition in range(self._limits.partitions):",
        "for partition in range(1):",
        f"{ON_A_NODE}::test_a_refused_message_is_delivered_by_no_successor",
    ),
    one_edit(
        "cleared-and-full",
        "a topic that has no quota any more is open",
        GATES,
        QUOTAS,
        "return [Gate(order.topic, now_ms, 0, before.pending, 0, before.taken)]",
        "return []",
        f"{ON_A_NODE}::test_a_quota_that_is_cleared_or_raised_opens_a_full_topic",
    ),
    one_edit(
        "quota-not-handed-on",
        "a successor knows the quotas of the frontier that it goes on from",
        GATES,
        "delayd/node/delivery/mastership.py",
        "quotas = {} if found is None else found.quotas",
        "quotas: Mapping[str, Quota] = {}",
        f"{ON_A_NODE}::test_a_refused_message_is_delivered_by_no_successor",
    ),
    one_edit(
        "quota-not-needed",
        "a release that does not know quotas stops at a frontier with one",
        GATES,
        "replication/record.py",
        "names += [QUOTAS] if self.quotas else []",
        "names += []",
        f"{ON_A_NODE}::test_the_frontier_names_a_quota_until_there_is_none",
    ),
    one_edit(
        "old-gate-believed",
        "a copy of an order or a gate that comes later than 5 minutes is refused",
        GATES,
        RECORDS,
        "if abs(record.append_ms - said.at_ms) > ORDER_AGE_MS_MAX:",
        "if abs(record.append_ms - said.at_ms) < 0:",
        f"{READ}::test_what_nobody_can_have_written_is_refused",
    ),
    one_edit(
        "packed-though-full",
        "the native path packs nothing of a partition in which a topic is full",
        REFUSED,
        "delayd/node/replica/flat_ingest.py",
        " and stretch.partition not in replica.limits.full:",
        ":",
        f"{PACKED}::test_what_is_for_a_full_topic_is_refused_on_every_path",
    ),
    one_edit(
        "row-stored-though-full",
        "of rows that C has read, those for a full topic are refused",
        REFUSED,
        "delayd/node/replica/row_ingest.py",
        "is_full = limits.full and kind in (PLAIN, KEYED) and self._is_full(row)",
        "is_full = False",
        f"{PACKED}::test_what_is_for_a_full_topic_is_refused_on_every_path",
    ),
    one_edit(
        "listed-though-full",
        "of records that the fast path takes, those for a full topic are refused",
        REFUSED,
        "delayd/node/replica/list_ingest.py",
        "if frame and limits.full and",
        "if frame and limits.full and False and",
        f"{PACKED}::test_what_is_for_a_full_topic_is_refused_on_every_path",
    ),
    one_edit(
        "full-forgotten",
        "a node that is started again knows which topics are full",
        AGAIN,
        "delayd/node/replica/switching.py",
        "return replace(limits, full=full_of(progress.full)) if progress else limits",
        "return limits",
        f"{ON_A_NODE}::test_a_node_that_starts_again_knows_what_is_full",
    ),
    one_edit(
        "full-said-once",
        "the gates of a full topic are written anew now and then",
        AGAIN,
        QUOTAS,
        "elif now_ms >= quota.written_ms + AGAIN_MS:",
        "elif now_ms < 0:",
        f"{ON_A_NODE}::test_a_full_topic_is_said_again_now_and_then",
    ),
    one_edit(
        "rate-without-a-window",
        "what is older than ten seconds does not count",
        TAKEN,
        RATES,
        "seconds = range(since, since + 2 * RATE_WINDOW_S)",
        "seconds = range(since - 9, since + 2 * RATE_WINDOW_S)",
        f"{RATED}::test_a_rate_is_a_mean_of_ten_seconds",
    ),
    one_edit(
        "rate-of-own-writes",
        "what the master writes itself does not count",
        TAKEN,
        RATES,
        "Op.DEBOUNCE, Op.REDRIVE})",
        "Op.DEBOUNCE, Op.REDRIVE, Op.CONTINUE})",
        f"{RATED}::test_what_adds_no_message_does_not_count",
    ),
    one_edit(
        "rate-of-one-master",
        "every node counts, so a successor goes on",
        TAKEN,
        "delayd/node/delivery/planner.py",
        "taken=replica.arrivals.rates.taken,",
        "taken=None,",
        f"{RATED}::test_a_successor_counts_what_came_before_it",
    ),
    one_edit(
        "rate-of-a-straddling-run",
        "a run in which the second changes is taken row by row",
        TAKEN,
        RATES,
        "return any(topic in self._taken for _, topic, _ in run.tallies)",
        "return False",
        f"{PACKED}::test_requests_of_a_topic_with_a_rate_are_counted_by_their_seconds",
    ),
    one_edit(
        "rate-without-runs",
        "runs of native ingest are counted",
        TAKEN,
        RATES,
        "self._add(topic, piece.append_ms, count)",
        "self._add(topic, piece.append_ms, 0)",
        f"{PACKED}::test_requests_of_a_topic_with_a_rate_are_counted_by_their_seconds",
    ),
    one_edit(
        "rate-of-a-clock-ahead",
        "what is farther ahead than the window does not count",
        TAKEN,
        RATES,
        "topic: sum([of.get(second, 0) for second in seconds]) for topic, of in held.items()",
        "topic: sum(of.values()) for topic, of in held.items()",
        f"{RATED}::test_a_clock_far_ahead_does_not_shut_a_topic",
    ),
    one_edit(
        "limit-named-once",
        "a gate is written when another limit refuses",
        GATES,
        QUOTAS,
        "is_same = after.written_ms == quota.written_ms and after.shut == counted.shut",
        "is_same = after.written_ms == quota.written_ms",
        f"{OF_QUOTAS}::test_of_two_limits_it_is_said_which_one_refuses",
    ),
)
