"""Who tries to be master. Only whole nodes hold elections."""

from mutants.mutant import one_edit

ELECTING = "replication/election.py"
SESSION = "replication/leadership_session.py"
TESTS = "tests/unit/replication/test_election.py"
RESIGNING_TESTS = "tests/unit/replication/test_election_resigning.py"
SESSION_TESTS = "tests/unit/replication/test_leadership_session.py"

ELECTION = (
    one_edit(
        "deadline-from-the-answer",
        "a lease's deadline counts from when the keepalive was ordered, not from its answer",
        "election.md#lease-and-deadline",
        ELECTING,
        "HeldLease.since(self._ordered_ms, lease_id, ttl_ms)",
        "HeldLease.since(self._now_ms, lease_id, ttl_ms)",
        f"{TESTS}::test_a_slow_answer_extends_from_when_the_keepalive_was_ordered",
    ),
    one_edit(
        "deadline-not-kept",
        "a master stops by itself at its deadline, whatever etcd says",
        "election.md#lease-and-deadline",
        ELECTING,
        "if self._lease is None or self._now_ms < self._lease.deadline_ms:",
        "if True:",
        f"{TESTS}::test_a_master_stops_by_itself_at_its_deadline",
    ),
    one_edit(
        "keepalive-while-stuck",
        "a master whose delivery is stuck does not keep its lease alive",
        "election.md#keepalive",
        ELECTING,
        "if self._now_ms - self._progressed_ms >= self._times.stall_ms:",
        "if False:",
        f"{TESTS}::test_a_stuck_delivery_loop_ends_the_mastership_instead_of_a_keepalive",
        is_simulated=True,
    ),
    one_edit(
        "ttl-as-asked",
        "the TTL that etcd granted counts, not the one that was asked for",
        "election.md#lease-and-deadline",
        ELECTING,
        "        self._hold(event.lease_id, event.ttl_ms)\n",
        "        self._hold(event.lease_id, self._times.lease_ttl_s * 1000)\n",
        f"{TESTS}::"
        "test_a_win_starts_delivery_until_80_percent_of_the_granted_ttl_after_it_was_asked_for",
    ),
    one_edit(
        "lease-ended-before-delivery",
        "the lease is revoked when delivery is at rest, not before",
        "election.md#resigning",
        ELECTING,
        "        return (StopDelivery(reason),)\n",
        "        return (StopDelivery(reason), *self._let_go())\n",
        f"{RESIGNING_TESTS}::"
        "test_a_fault_stops_delivery_first_and_ends_the_lease_only_when_delivery_is_at_rest",
        is_simulated=True,
    ),
    one_edit(
        "win-under-another-lease",
        "a key of this node's under another lease is no win",
        "election.md#campaign",
        ELECTING,
        "if (leader.nonce, leader.lease_id) != (self._nonce, self._lease.id):",
        "if leader.nonce != self._nonce:",
        f"{TESTS}::test_a_lost_answer_and_any_other_key_is_a_defeat",
    ),
    one_edit(
        "campaign-repeated-blindly",
        "after a lost answer the key is read again before anything else is sent",
        "election.md#campaign",
        ELECTING,
        "        self._next_poll_ms = self._soonest_repetition_ms()\n        return ()\n",
        "        assert self._lease is not None\n"
        "        return self._order(Campaign(self._lease.id))\n",
        f"{TESTS}::test_a_lost_answer_is_read_again_and_our_own_key_is_a_win",
    ),
    one_edit(
        "lagging-node-campaigns-first",
        "a node whose wheel is behind the frontier lets others campaign first",
        "election.md#lag",
        ELECTING,
        "self._times.behind_polls if self._behind else",
        "self._times.behind_polls if False else",
        f"{TESTS}::test_a_node_that_is_far_behind_lets_others_campaign_first",
    ),
    one_edit(
        "fenced-master-tries-again",
        "a fenced master does not fence back under the same grant",
        "election.md#leadership-session",
        SESSION,
        "        Failure.FENCED: Ended.FENCED,\n",
        "",
        f"{SESSION_TESTS}::test_what_would_fail_again_is_not_tried_again",
    ),
    one_edit(
        "never-gives-way",
        "a master that commits no step for ten seconds lets another node try",
        "election.md#leadership-session",
        SESSION,
        "if fact.now_ms - self._failing_since_ms > GIVE_WAY_MS:",
        "if False:",
        f"{SESSION_TESTS}::test_who_commits_nothing_for_ten_seconds_lets_another_try",
    ),
    one_edit(
        "cool-down-as-if-asked",
        "the way in which delivery ended decides for how long others go first",
        "election.md#cool-down",
        ELECTING,
        "        found = RESIGNED_FOR[event.ended]\n",
        "        found = None\n",
        f"{RESIGNING_TESTS}::test_how_delivery_ended_says_for_how_long_others_go_first",
    ),
)
