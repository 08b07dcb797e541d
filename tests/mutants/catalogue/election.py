"""Who tries to be master. Only whole nodes hold elections."""

from mutants.mutant import one_edit

ELECTING = "replication/election.py"
GRANT = "delayd/node/delivery/grant.py"
MASTERSHIP = "delayd/node/delivery/mastership.py"
TURN = "replication/election_turn.py"
PULSE = "replication/pulse.py"
CONTACT = "delayd/node/election/kafka_contact.py"
CALLS = "delayd/node/election/etcd_calls.py"
SESSION = "replication/leadership_session.py"
TESTS = "tests/unit/replication/test_election.py"
RESIGNING_TESTS = "tests/unit/replication/test_election_resigning.py"
DEPOSING_TESTS = "tests/unit/replication/test_election_deposing.py"
PULSE_TESTS = "tests/unit/replication/test_pulse.py"
CONTACT_TESTS = "tests/unit/node/election/test_kafka_contact.py"
ALONE_TESTS = "tests/unit/replication/test_election_alone.py"
ONE_MASTER_TESTS = "tests/unit/node/delivery/test_one_master.py"
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
        "without a fence a master stops by itself at its deadline, whatever etcd says",
        "election.md#lease-and-deadline",
        ELECTING,
        "            if not self.is_fenced:\n"
        "                return self._resign(ResignReason.LEASE_EXPIRED)\n",
        "",
        f"{TESTS}::test_a_master_stops_by_itself_at_its_deadline",
    ),
    one_edit(
        "stops-while-etcd-is-away",
        "a master that can be fenced goes on past its deadline",
        "election.md#while-etcd-is-away",
        ELECTING,
        "            if not self.is_fenced:\n"
        "                return self._resign(ResignReason.LEASE_EXPIRED)\n",
        "            return self._resign(ResignReason.LEASE_EXPIRED)\n",
        f"{ALONE_TESTS}::test_a_master_that_can_be_fenced_goes_on_past_its_deadline",
    ),
    one_edit(
        "goes-on-without-a-fence",
        "where nobody can fence it, a grant ends with its lease",
        "election.md#lease-and-deadline",
        GRANT,
        "(self._outlives_lease and self.term > 0)",
        "self.term > 0",
        f"{ONE_MASTER_TESTS}::test_a_lease_that_runs_out_during_a_step_ends_it_before_the_commit",
    ),
    one_edit(
        "first-term-without-a-lease",
        "a node without a lease begins no term, unless it has begun one under the same grant",
        "election.md#while-etcd-is-away",
        GRANT,
        "(self._outlives_lease and self.term > 0)",
        "self._outlives_lease",
        f"{ONE_MASTER_TESTS}::test_nobody_begins_a_first_term_without_a_lease",
    ),
    one_edit(
        "fences-a-later-term",
        "a master without a lease looks for a later term before it fences",
        "election.md#while-etcd-is-away",
        MASTERSHIP,
        "            and self._grant.term < last.frontier.term\n",
        "            and False\n",
        f"{ONE_MASTER_TESTS}::"
        "test_without_a_lease_a_master_fences_nobody_who_has_begun_a_later_term",
    ),
    one_edit(
        "delivers-on-beside-another-leader",
        "a master stops when etcd says that another node leads",
        "election.md#while-etcd-is-away",
        ELECTING,
        "        if leader.nonce != self._nonce:\n"
        "            return self._resign(ResignReason.LEASE_LOST)\n",
        "        if leader.nonce != self._nonce:\n            return ()\n",
        f"{ALONE_TESTS}::test_etcd_saying_that_another_leads_ends_a_master",
    ),
    one_edit(
        "keepalive-while-stuck",
        "a master whose delivery is stuck does not keep its lease alive",
        "election.md#keepalive",
        ELECTING,
        "        if self._is_stuck:\n            # A stuck",
        "        if False:\n            # A stuck",
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
        TURN,
        "self._times.behind_polls if self.is_behind or goes_last else",
        "self._times.behind_polls if goes_last else",
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
        "if fact.now_ms - self._failing_since_ms > GIVE_WAY_MS and not fact.is_alone:",
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
    one_edit(
        "dead-without-asking",
        "the end of a connection is no death until the port refuses or another life answers",
        "election.md#pulse",
        PULSE,
        "        return Ask(0)\n",
        "        return Rest(Verdict.DEAD)\n",
        f"{PULSE_TESTS}::test_an_end_alone_is_no_death",
    ),
    one_edit(
        "refused-without-an-end",
        "a port that refuses proves nothing of a life whose connection has not ended",
        "election.md#pulse",
        PULSE,
        "            Refused: (Pulse._find_again, Find),\n",
        "            Refused: (Pulse._conclude, Rest),\n",
        f"{PULSE_TESTS}::test_of_a_life_that_never_answered_nothing_is_concluded",
    ),
    one_edit(
        "own-standstill-is-silence",
        "a follower that stood still misses nobody",
        "election.md#pulse",
        PULSE,
        "min(max(0, fact.now_ms - self._now_ms), WAIT_MS)",
        "fact.now_ms - self._now_ms",
        f"{PULSE_TESTS}::test_a_follower_that_stood_still_itself_misses_nobody",
    ),
    one_edit(
        "cut-off-without-asking",
        "who is cut off from Kafka is deposed by a node that Kafka answers, and by no other",
        "election.md#cut-off-from-kafka",
        PULSE,
        "            KafkaSilent: (Pulse._listen, Listen),\n",
        "            KafkaSilent: (Pulse._note_contact, Listen),\n",
        f"{PULSE_TESTS}::"
        "test_a_master_that_is_cut_off_from_kafka_is_replaced_by_a_node_that_kafka_answers",
    ),
    one_edit(
        "cut-off-while-kafka-is-slow",
        "who has no answer while Kafka is slow for all is not deposed as soon as one node has one",
        "election.md#cut-off-from-kafka",
        PULSE,
        "return Listen() if fact.now_ms < answered_ms + CONFIRM_MS else",
        "return",
        f"{PULSE_TESTS}::"
        "test_a_master_that_is_cut_off_from_kafka_is_replaced_by_a_node_that_kafka_answers",
    ),
    one_edit(
        "cut-off-though-it-commits",
        "a master that commits steps is not cut off, whatever else is not answered",
        "election.md#cut-off-from-kafka",
        CONTACT,
        "max(self._answered_ms, self._stepped_ms())",
        "self._answered_ms",
        f"{CONTACT_TESTS}::test_a_master_that_commits_steps_is_not_cut_off",
    ),
    one_edit(
        "half-is-most",
        "silence deposes nobody unless most members miss the master",
        "election.md#pulse",
        PULSE,
        "return 2 * missing > members",
        "return 2 * missing >= members",
        f"{PULSE_TESTS}::test_a_majority_of_all_members_deposes_whom_it_misses",
    ),
    one_edit(
        "no-restraint",
        "the more leaderships began within a minute, the longer one must last",
        "election.md#pulse",
        PULSE,
        "pause_ms = PAUSE_MS << (doublings - 1) if doublings > 0 else 0",
        "pause_ms = 0",
        f"{PULSE_TESTS}::"
        "test_a_cluster_that_always_judges_wrongly_deposes_a_dozen_masters_a_minute_at_most",
    ),
    one_edit(
        "depose-whoever-leads",
        "only the leadership that was found dead is deposed",
        "election.md#pulse",
        CALLS,
        "                self._etcd.revoke(lease_id)\n                return self.leader_read(",
        "                held = self._etcd.leader(SHARD)\n"
        '                self._etcd.revoke(json.loads(held.owner)["lease"] if held else 0)\n'
        "                return self.leader_read(",
        f"{DEPOSING_TESTS}::test_only_the_leadership_that_was_found_dead_is_deposed",
    ),
    one_edit(
        "depose-after-another-was-read",
        "who leads no more when a call in flight is answered is not deposed",
        "election.md#pulse",
        ELECTING,
        "            if event.leader.lease_id != self._dead_lease_id:\n",
        "            if False:\n",
        f"{DEPOSING_TESTS}::test_who_leads_no_more_by_then_is_not_deposed",
    ),
)
