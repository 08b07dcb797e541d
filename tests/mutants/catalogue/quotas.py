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
AGAIN = "quotas.md#gates-that-a-node-does-not-know"

OF_TARGETS = (
    one_edit(
        "full-one-too-late",
        "a topic is full with as many messages as its quota says",
        REFUSED,
        QUOTAS,
        "elif not quota.is_full and after.pending >= quota.max_pending:",
        "elif not quota.is_full and after.pending > quota.max_pending:",
        f"{ON_A_NODE}::test_the_message_after_the_one_that_fills_the_quota_is_refused",
    ),
    one_edit(
        "opened-at-once",
        "a full topic is opened when a tenth of its quota is free",
        REFUSED,
        QUOTAS,
        "return max_pending - max(1, max_pending // FREE_SHARE)",
        "return max_pending - 1",
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
        "return [Gate(order.topic, now_ms, False, before.pending, 0)]",
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
        "elif quota.is_full and now_ms >= quota.written_ms + AGAIN_MS:",
        "elif quota.is_full and now_ms < 0:",
        f"{ON_A_NODE}::test_a_full_topic_is_said_again_now_and_then",
    ),
)
